//! Reads and writes the text of the record: which proofs are in it, and how much room they may take.
//!
//! What a tenant chooses (names, TTLs, Secrets) takes a fixed number of bytes here, and each namespace has its share
//! of the entries. So the text can always be read again. A group that has no room of its own in the text counts as
//! the oldest one of its namespace.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use consul_client::clock::Moment;
use consul_semaphore::{LastProof, LastProofs};

/// Longest text that is read or written, in bytes. All annotations of an object together have at most 256 KiB.
const LONGEST_RECORD_TEXT: usize = 240 << 10;

/// Maximum number of operators whose records are kept in one Lease.
const MOST_OPERATORS: usize = 8;

/// Maximum number of entries of one operator. An entry takes 74 bytes at most, with the number of its namespace, so
/// all records that are kept in one Lease have room in it.
const MOST_ENTRIES: usize = 320;

/// Group of semaphores of one namespace whose proofs become old together, or of all other semaphores of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProofGroup {
    namespace: u64,
    name: u32,
}

impl ProofGroup {
    /// Name of the group of all others of a namespace.
    const REST: u32 = 0;

    /// Creates the group of the semaphores of this namespace that have these texts in common. The texts are different
    /// for each group.
    pub(super) fn new(namespace: &str, in_common: &[&str]) -> Self {
        Self {
            namespace: u64::from_be_bytes(short_hash(&[namespace])),
            name: u32::from_be_bytes(short_hash(in_common)),
        }
    }

    /// Returns the group of all semaphores of the same namespace that have no entry of their own.
    fn rest(self) -> Self {
        Self {
            name: Self::REST,
            ..self
        }
    }

    /// Returns the group that the namespace shares with a few others if there are more namespaces than entries.
    fn shared(self) -> Self {
        Self {
            namespace: self.namespace % MOST_ENTRIES as u64,
            name: Self::REST,
        }
    }

    /// Returns the entries that the proof of this group can be in, the most exact one first.
    pub(super) fn entries(self) -> [Self; 3] {
        [self, self.rest(), self.shared()]
    }
}

/// Returns the first bytes of the SHA-256 of these texts. They are the same in every version of the operator.
fn short_hash<const N: usize>(texts: &[&str]) -> [u8; N] {
    let mut context = Context::new(&SHA256);
    for text in texts {
        context.update(&(text.len() as u64).to_be_bytes());
        context.update(text.as_bytes());
    }
    let digest = context.finish();
    digest.as_ref().first_chunk().copied().unwrap_or([0; N])
}

/// Text of the record: what each operator wrote, by the part of the cluster that it works for. Another operator's
/// part may be in the format of another version.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RecordText(BTreeMap<String, Box<RawValue>>);

/// Time at which an operator wrote its record.
#[derive(Deserialize)]
struct WrittenAt {
    at: Timestamp,
}

impl RecordText {
    /// Reads the text of the record.
    ///
    /// # Errors
    /// The text is too long or is no JSON object.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST_RECORD_TEXT {
            return Err(format!("it has {} bytes", text.len()));
        }
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Returns what the operator for this part of the cluster wrote.
    ///
    /// # Errors
    /// That operator wrote something that can't be read.
    pub(super) fn of(&self, part: &str) -> Result<Option<WrittenRecord>, String> {
        let written = self.0.get(part).map(|raw| serde_json::from_str(raw.get()));
        written.transpose().map_err(|error| error.to_string())
    }

    /// Inserts what the operator for this part writes, and returns the whole as text. If there are too many records,
    /// the oldest ones of other operators are left out.
    pub(super) fn with(
        mut self,
        part: &str,
        written: &WrittenRecord,
    ) -> serde_json::Result<String> {
        let raw = serde_json::value::to_raw_value(written)?;
        self.0.insert(part.to_owned(), raw);
        loop {
            let text = serde_json::to_string(&self)?;
            if text.len() <= LONGEST_RECORD_TEXT && self.0.len() <= MOST_OPERATORS {
                return Ok(text);
            }
            let others = self.0.iter().filter(|(other, _)| *other != part);
            let oldest = others.min_by_key(|(_, raw)| {
                let written = serde_json::from_str::<WrittenAt>(raw.get());
                written.ok().map(|written| written.at)
            });
            let Some(oldest) = oldest.map(|(other, _)| other.clone()) else {
                return Ok(text);
            };
            self.0.remove(&oldest);
        }
    }
}

/// Record that one operator wrote.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenRecord {
    /// Time of the writing, by the operator's wall clock.
    at: Timestamp,
    /// Milliseconds before `at` when the record was last complete. Right after an operator took the record over, it
    /// is not complete, because the operator does not know yet which workloads run.
    complete: u32,
    /// Proofs by namespace and name of the group.
    groups: BTreeMap<u64, BTreeMap<u32, WrittenProof>>,
}

impl WrittenRecord {
    /// Returns what there is to record; `None` if there is nothing.
    pub(super) fn new(proofs: &LastProofs<ProofGroup>, now: Moment, at: Timestamp) -> Option<Self> {
        let (complete, groups) = proofs.entries()?;
        let mut by_namespace: BTreeMap<u64, Vec<(ProofGroup, WrittenProof)>> = BTreeMap::new();
        for (group, proof) in groups {
            let proof = WrittenProof::new(proof, now);
            let of_it = by_namespace.entry(group.namespace).or_default();
            of_it.push((*group, proof));
        }
        let room = MOST_ENTRIES / by_namespace.len().max(1);
        let mut written = Self {
            at,
            complete: milliseconds(now.since(complete)),
            groups: BTreeMap::new(),
        };
        for (_, mut proofs) in by_namespace {
            // The entry of the rest counts as old as the oldest proof, so the youngest proofs keep entries of their
            // own.
            proofs.sort_by_key(|(_, proof)| proof.spent());
            for (place, (group, proof)) in proofs.iter().enumerate() {
                if proofs.len() > 1 && place + 1 < room {
                    written.add(*group, *proof);
                }
                let rest = if room == 0 {
                    group.shared()
                } else {
                    group.rest()
                };
                written.add(rest, *proof);
            }
        }
        Some(written)
    }

    fn add(&mut self, group: ProofGroup, proof: WrittenProof) {
        let of_namespace = self.groups.entry(group.namespace).or_default();
        let known = of_namespace.entry(group.name).or_insert(proof);
        *known = known.and(proof);
    }

    /// Returns the proofs by the clocks of this machine.
    pub(super) fn proofs(self, now: Moment, time: Timestamp) -> LastProofs<ProofGroup> {
        let since = time.duration_since(self.at);
        // A clock that is behind says nothing about the time since the writing.
        let since = Duration::try_from(since).unwrap_or_default();
        let groups = self.groups.into_iter().flat_map(|(namespace, groups)| {
            groups.into_iter().map(move |(name, written)| {
                let group = ProofGroup { namespace, name };
                (group, written.proof(now, since))
            })
        });
        let complete = since.saturating_add(duration(self.complete));
        LastProofs::recorded(now.before(complete), groups)
    }
}

/// A [`LastProof`] in the format of the text: its age, its TTL and how long operators have run since then, in
/// milliseconds. The numbers end at 49 days, which is enough because no TTL is longer than a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u32; 3]", into = "[u32; 3]")]
struct WrittenProof {
    age: u32,
    ttl: u32,
    ran: u32,
}

impl From<[u32; 3]> for WrittenProof {
    fn from([age, ttl, ran]: [u32; 3]) -> Self {
        Self { age, ttl, ran }
    }
}

impl From<WrittenProof> for [u32; 3] {
    fn from(WrittenProof { age, ttl, ran }: WrittenProof) -> Self {
        [age, ttl, ran]
    }
}

impl WrittenProof {
    fn new(proof: &LastProof, now: Moment) -> Self {
        Self {
            age: milliseconds(now.since(proof.sent)),
            ttl: milliseconds(proof.ttl.unwrap_or_default()),
            ran: milliseconds(proof.ran),
        }
    }

    fn proof(self, now: Moment, since: Duration) -> LastProof {
        LastProof {
            sent: now.before(duration(self.age).saturating_add(since)),
            ttl: Some(duration(self.ttl)),
            ran: duration(self.ran),
        }
    }

    /// Returns how much of the TTL has passed, in thousandths.
    fn spent(self) -> u64 {
        u64::from(self.age) * 1000 / u64::from(self.ttl.max(1))
    }

    /// Returns a proof that is no better than either of two proofs: it has the shorter TTL, and the larger part of it
    /// has passed. Age alone does not compare proofs, because a proof with a long TTL is renewed rarely.
    fn and(self, other: Self) -> Self {
        let ttl = self.ttl.min(other.ttl);
        let [one, other] = [self, other].map(|proof| proof.with_shorter_ttl(ttl));
        Self {
            age: one.age.max(other.age),
            ttl,
            ran: one.ran.max(other.ran),
        }
    }

    fn with_shorter_ttl(self, ttl: u32) -> Self {
        let part = |time: u32| {
            let product = u64::from(time) * u64::from(ttl);
            let part = product.div_ceil(u64::from(self.ttl.max(1)));
            u32::try_from(part).unwrap_or(u32::MAX)
        };
        Self {
            age: part(self.age),
            ttl,
            ran: part(self.ran),
        }
    }
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn duration(milliseconds: u32) -> Duration {
    Duration::from_millis(milliseconds.into())
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::{super::recorded_of, *};
    use consul_semaphore::evidence::tenure;

    type Proofs = BTreeMap<ProofGroup, LastProof>;

    /// Returns the moment at which the proofs are recorded, and read again.
    fn now() -> Moment {
        Moment::from_boot(Duration::from_secs(1_000_000))
    }

    fn proof() -> impl Strategy<Value = LastProof> {
        (0..20_u64, 10..86_400_u64, 0..20_u64).prop_map(|(age, ttl, ran)| LastProof {
            sent: now().before(Duration::from_secs(age * ttl / 10)),
            ttl: Some(Duration::from_secs(ttl)),
            ran: Duration::from_secs(ran * ttl / 10),
        })
    }

    /// Generates the proofs of groups of so many namespaces.
    fn proofs() -> impl Strategy<Value = Proofs> {
        prop_oneof![Just(1_u32), Just(3), Just(300), Just(2000)].prop_flat_map(|namespaces| {
            let group = (0..namespaces, 0..900_u32).prop_map(|(namespace, name)| {
                ProofGroup::new(&namespace.to_string(), &[&name.to_string()])
            });
            vec((group, proof()), 1..1200).prop_map(|proofs| proofs.into_iter().collect())
        })
    }

    /// Returns the text of these proofs, and what is read from it at once.
    fn read_again(proofs: &Proofs) -> (String, LastProofs<ProofGroup>) {
        let recorded = LastProofs::recorded(now(), proofs.clone());
        let written = WrittenRecord::new(&recorded, now(), Timestamp::UNIX_EPOCH).unwrap();
        let text = RecordText::default().with("", &written).unwrap();
        let read = RecordText::read(&text).unwrap().of("").unwrap().unwrap();
        (text, read.proofs(now(), Timestamp::UNIX_EPOCH))
    }

    /// Returns how long a workload with this grace period may run without a proof, and how long Consul may be asked
    /// first.
    fn left(proof: &LastProof, grace: u64) -> [Duration; 2] {
        let tenure = tenure(proof.ttl.unwrap(), Duration::from_secs(grace));
        [now().since(proof.sent), proof.ran].map(|passed| tenure.saturating_sub(passed))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_record_finds_room_and_gives_nobody_more_time(proofs in proofs()) {
            let (text, read) = read_again(&proofs);
            prop_assert!(text.len() <= LONGEST_RECORD_TEXT / MOST_OPERATORS, "{}", text.len());
            for (group, proof) in &proofs {
                let known = recorded_of(&read, *group).unwrap();
                for grace in [0, 30, 3600] {
                    let [lasts, ask] = left(&known, grace);
                    let before = left(proof, grace);
                    prop_assert!(lasts <= before[0] && ask <= before[1], "{known:?} of {proof:?}");
                }
            }
        }
    }

    #[test]
    fn a_proof_with_a_long_ttl_makes_one_with_a_short_ttl_little_older() {
        let [long, short] = [[390, 1200, 390], [20, 120, 20]].map(WrittenProof::from);
        let both = WrittenProof::from([39, 120, 39]);
        assert_eq!((long.and(short), short.and(long)), (both, both));
    }

    #[test]
    fn the_longest_entries_of_all_operators_find_room() {
        let longest = LastProof {
            sent: Moment::default(),
            ttl: Some(Duration::MAX),
            ran: Duration::MAX,
        };
        let names = (0..10_000).map(|number| ProofGroup {
            namespace: u64::MAX,
            name: u32::MAX - number,
        });
        let namespaces = (0..320).map(|number| ProofGroup {
            namespace: u64::MAX - number,
            name: u32::MAX,
        });
        for groups in [names.collect::<Vec<_>>(), namespaces.collect()] {
            let proofs = groups.into_iter().map(|group| (group, longest));
            let (text, _) = read_again(&proofs.collect());
            assert!(
                text.len() <= LONGEST_RECORD_TEXT / MOST_OPERATORS,
                "{}",
                text.len()
            );
        }
    }

    #[test]
    fn every_version_of_the_operator_has_the_same_groups() {
        let expected = ProofGroup {
            namespace: 8_101_274_307_756_636_097,
            name: 2_329_227_592,
        };
        assert_eq!(
            ProofGroup::new("team-a", &["", "", "", "", "", "120"]),
            expected
        );
    }
}
