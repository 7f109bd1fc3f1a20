//! Records when slots of running workloads were last proved to be held, for the next process that finds these
//! workloads.
//!
//! A restart renews no evidence: a workload that a new process finds running was proved to hold its slots when an
//! earlier process last proved it. So each process keeps a record of its last proofs where the next one can read it,
//! and [`LastProofs`] is what that record says.
//!
//! There may be thousands of workloads, so the record has one entry for each group of semaphores whose proofs fail
//! together. An entry has the oldest proof of its group: a workload can be judged too early by it, but not too late.

use std::{collections::BTreeMap, time::Duration};

use crate::evidence::LATE;
use consul_client::clock::Moment;

/// The most time of one operator that counts between two updates of the record. An operator updates the record more
/// often than that unless its process or its machine stops, and a stopped operator does not ask Consul.
const LONGEST_COUNTED_STEP: Duration = LATE.saturating_mul(4);

/// The oldest of the last proofs of some running workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastProof {
    /// Time at which the proof was sent.
    pub sent: Moment,
    /// The shortest TTL of the sessions that hold the slots; `None`: the TTL that their semaphore asks for.
    pub ttl: Option<Duration>,
    /// Time for which operators have run since the proof, in which they could ask Consul for another proof.
    pub ran: Duration,
}

/// The latest knowledge of the running workloads of one semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proved {
    /// Time at which the oldest of the workloads' last proofs was sent.
    pub sent: Moment,
    /// The shortest TTL of the sessions that hold the workloads' slots.
    pub ttl: Duration,
}

impl Proved {
    /// Returns the older proof and the shorter TTL of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            sent: self.sent.min(other.sent),
            ttl: self.ttl.min(other.ttl),
        }
    }
}

/// The last proofs of all running workloads of an operator, by group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastProofs<K> {
    /// Time at which the entries were last known to be complete; `None` if nothing was ever recorded.
    complete: Option<Moment>,
    /// Time at which this process last updated the entries.
    noted: Option<Moment>,
    groups: BTreeMap<K, LastProof>,
}

impl<K> Default for LastProofs<K> {
    fn default() -> Self {
        Self {
            complete: None,
            noted: None,
            groups: BTreeMap::new(),
        }
    }
}

impl<K: Clone + Ord> LastProofs<K> {
    /// Returns the record that an earlier process completed at `complete`.
    pub fn recorded(complete: Moment, groups: impl IntoIterator<Item = (K, LastProof)>) -> Self {
        Self {
            complete: Some(complete),
            noted: None,
            groups: groups.into_iter().collect(),
        }
    }

    /// Takes over the record of an earlier process or of another replica. Both records are true, so the later proof
    /// of a group counts. The running time of this process counts from the first take-over or update on.
    ///
    /// If the other record was complete later, the groups that it lacks are forgotten here: the writer of the other
    /// record knew this record, and would have kept an entry for these groups if they still needed one.
    pub fn take_over(&mut self, now: Moment, recorded: Self) {
        self.noted.get_or_insert(now);
        if self.complete < recorded.complete {
            self.groups.retain(|group, _| recorded.has(group));
        }
        self.complete = self.complete.max(recorded.complete);
        for (group, proof) in recorded.groups {
            let known = self.groups.entry(group).or_insert(proof);
            if known.sent < proof.sent {
                *known = proof;
            }
        }
    }

    /// Updates the record with the latest knowledge of the running workloads.
    ///
    /// The entry of a group without known running workloads is kept for two TTLs in which an operator runs, because a
    /// process that has just started has not seen all workloads yet.
    pub fn note(&mut self, now: Moment, proved: impl IntoIterator<Item = (K, Proved)>) {
        let last = self.noted.replace(now);
        let ran = last.map_or(Duration::ZERO, |last| {
            now.since(last).min(LONGEST_COUNTED_STEP)
        });
        let mut seen: BTreeMap<K, Proved> = BTreeMap::new();
        for (group, proved) in proved {
            let before = seen.get(&group).copied();
            let oldest = before.map_or(proved, |before| before.and(proved));
            seen.insert(group, oldest);
        }
        for proof in self.groups.values_mut() {
            proof.ran += ran;
        }
        for (group, &Proved { sent, ttl }) in &seen {
            let known = self.groups.get(group).filter(|known| known.sent == sent);
            let ran = known.map_or(now.since(sent), |known| known.ran);
            let ttl = Some(ttl);
            self.groups
                .insert(group.clone(), LastProof { sent, ttl, ran });
        }
        let lasts = |proof: &LastProof| proof.ran <= proof.ttl.unwrap_or_default() * 2;
        self.groups
            .retain(|group, proof| seen.contains_key(group) || lasts(proof));
        self.complete = Some(now);
    }

    /// Returns the recorded proof of the workloads of a group; `None` if nothing was ever recorded.
    ///
    /// A group without an entry had no running workload when the record was complete, so its workloads were started
    /// after that.
    pub fn of(&self, group: &K) -> Option<LastProof> {
        let known = self.groups.get(group).copied();
        known.or_else(|| {
            self.complete.map(|sent| LastProof {
                sent,
                ttl: None,
                ran: Duration::ZERO,
            })
        })
    }

    /// Whether the record has an entry for this group.
    pub fn has(&self, group: &K) -> bool {
        self.groups.contains_key(group)
    }

    /// Returns the time at which the record was last complete, and its entries; `None` if there is nothing to record.
    pub fn entries(&self) -> Option<(Moment, &BTreeMap<K, LastProof>)> {
        self.complete.map(|complete| (complete, &self.groups))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(100);

    fn second(since: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(since))
    }

    fn proved(sent: u64) -> Proved {
        Proved {
            sent: second(sent),
            ttl: TTL,
        }
    }

    fn last(sent: u64, ran: u64) -> LastProof {
        LastProof {
            sent: second(sent),
            ttl: Some(TTL),
            ran: Duration::from_secs(ran),
        }
    }

    #[test]
    fn a_group_that_still_runs_keeps_its_entry_however_old_its_proof_is() {
        let mut proofs = LastProofs::default();
        for now in [50, 150, 250, 350, 450] {
            proofs.note(second(now), [("a", proved(40))]);
        }
        assert_eq!(proofs.of(&"a").map(|proof| proof.sent), Some(second(40)));
    }

    #[test]
    fn a_group_is_proved_as_long_ago_as_its_oldest_workload() {
        let mut proofs = LastProofs::default();
        assert_eq!(proofs.of(&"a"), None);
        proofs.note(
            second(50),
            [("a", proved(40)), ("b", proved(45)), ("a", proved(30))],
        );
        assert_eq!(proofs.of(&"a"), Some(last(30, 20)));
        assert_eq!(proofs.of(&"b"), Some(last(45, 5)));
    }

    #[test]
    fn one_without_an_entry_had_no_workload_when_the_record_was_complete() {
        let mut proofs = LastProofs::default();
        proofs.note(second(50), [("a", proved(40))]);
        proofs.note(second(51), [("a", proved(40))]);
        let of_another = proofs.of(&"b").map(|proof| proof.sent);
        assert_eq!(of_another, Some(second(51)));
    }

    #[test]
    fn a_record_without_an_entry_says_when_an_operator_was_at_work() {
        let mut proofs = LastProofs::<&str>::default();
        assert_eq!(proofs.entries(), None);
        proofs.note(second(50), []);
        assert_eq!(proofs.entries(), Some((second(50), &BTreeMap::new())));
    }

    #[test]
    fn only_the_time_counts_in_which_an_operator_ran() {
        let mut proofs = LastProofs::default();
        for now in 40..=92 {
            proofs.note(second(now), [("a", proved(40))]);
        }
        assert_eq!(proofs.of(&"a"), Some(last(40, 52)));
        // The process is frozen for a minute, and then replaced by another process.
        proofs.note(second(152), [("a", proved(40))]);
        assert_eq!(proofs.of(&"a"), Some(last(40, 52 + 4)));
        let (complete, groups) = proofs.entries().unwrap();
        let mut next = LastProofs::default();
        next.take_over(second(169), LastProofs::recorded(complete, groups.clone()));
        next.note(second(170), [("a", proved(40))]);
        next.note(second(171), [("a", proved(40))]);
        assert_eq!(next.of(&"a"), Some(last(40, 52 + 4 + 2)));
        next.note(second(172), [("a", proved(171))]);
        assert_eq!(next.of(&"a"), Some(last(171, 1)), "Consul answers again");
    }

    #[test]
    fn an_entry_outlives_a_start_that_has_not_seen_the_workloads_yet() {
        let mut proofs = LastProofs::recorded(second(50), [("a", last(40, 0))]);
        for now in 51..=240 {
            proofs.note(second(now), []);
        }
        assert_eq!(proofs.of(&"a").map(|proof| proof.sent), Some(second(40)));
        for now in 241..=260 {
            proofs.note(second(now), []);
        }
        assert!(!proofs.has(&"a"), "it would have been suspended by now");
    }

    #[test]
    fn the_later_of_two_records_counts() {
        let before = [("a", last(40, 0)), ("b", last(45, 0)), ("c", last(46, 0))];
        let mut own = LastProofs::recorded(second(50), before);
        let other = [("a", last(80, 0)), ("b", last(30, 7))];
        own.take_over(second(91), LastProofs::recorded(second(90), other));
        assert_eq!(own.of(&"a"), Some(last(80, 0)));
        assert_eq!(own.of(&"b"), Some(last(45, 0)));
        for ended in ["c", "d"] {
            let known = own.of(&ended).map(|proof| proof.sent);
            assert_eq!(known, Some(second(90)), "{ended}");
        }
        own.take_over(second(91), LastProofs::recorded(second(60), []));
        assert_eq!(own.of(&"a"), Some(last(80, 0)), "an older record");
    }
}
