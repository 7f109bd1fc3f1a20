//! Keeps the record of the last proofs, which one process leaves for the next, so that a restart renews no evidence.
//!
//! The record is a text in an annotation of the operator's Lease. A leader that is elected by the Lease writes the
//! text with each renewal. Without such an election, [`ProofKeeper::keep`] writes it into a Lease that nobody holds.
//!
//! The text says how old each proof was when it was written, and when that was. So the clocks of two machines matter
//! only for the time in between, in which no operator ran. A proof is never younger than the text says.

mod written;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use tokio::time::sleep;

use self::written::{RecordText, WrittenRecord};
use super::consul_target::place;
use crate::{
    call::{CallError, call},
    leader::{self, LEGACY, Legacy},
};
use consul_client::{
    Backoff,
    clock::{self, Moment},
    text::one_line,
};
use consul_semaphore::{LastProof, LastProofs, Proved};
use consul_semaphore_api::{ConsulSemaphore, scope::Scope};

/// Pause between the writes of [`ProofKeeper::keep`] while workloads run: as often as a Lease is renewed.
const WRITE_PAUSE: Duration = Duration::from_secs(2);

/// Pause between the writes of [`ProofKeeper::keep`] while no workload runs.
const IDLE_WRITE_PAUSE: Duration = Duration::from_secs(30);

/// Semaphores whose proofs become old together: those of one namespace that reach Consul in the same way and whose
/// sessions live equally long. A semaphore that still has sessions with another TTL than its spec asks for is a group
/// of its own.
///
/// No group has semaphores of two namespaces, because a tenant can prevent the proofs of its own semaphores.
pub(super) use self::written::ProofGroup;

/// Returns the group of a semaphore whose sessions live this long.
pub(super) fn group(semaphore: &ConsulSemaphore, ttl: Option<Duration>) -> ProofGroup {
    let at = place(semaphore);
    let part = |name: &Option<String>| name.clone().unwrap_or_default();
    let consul = semaphore.spec.consul.as_ref();
    let secret_ref = consul.and_then(|consul| consul.token_secret_ref.as_ref());
    let (secret, key) = secret_ref.map_or(("", ""), |secret| (&secret.name, &secret.key));
    let ttl = ttl.unwrap_or_default().as_secs().to_string();
    let [datacenter, partition] = [&at.datacenter, &at.partition].map(part);
    let in_common = [
        &datacenter,
        &partition,
        &part(&at.namespace),
        secret,
        key,
        &ttl,
    ];
    ProofGroup::new(namespace_of(semaphore), &in_common)
}

/// Returns the group that has only this semaphore.
pub(super) fn group_of_one(semaphore: &ConsulSemaphore) -> ProofGroup {
    let name = semaphore.metadata.name.as_deref().unwrap_or_default();
    ProofGroup::new(namespace_of(semaphore), &[name])
}

fn namespace_of(semaphore: &ConsulSemaphore) -> &str {
    semaphore.metadata.namespace.as_deref().unwrap_or_default()
}

/// Record of an operator. Clones share it. It outlives a term of leadership.
#[derive(Clone, Debug)]
pub(super) struct ProofRecord {
    proofs: Arc<Mutex<LastProofs<ProofGroup>>>,
    /// Part of the cluster that the operator works for. It is in the record because operators without an election may
    /// share one Lease.
    part: Arc<str>,
}

impl ProofRecord {
    /// Creates the empty record of an operator that works for this part of the cluster.
    pub(super) fn new(scope: &Scope) -> Self {
        let part = if scope.is_whole() {
            String::new()
        } else {
            format!("{} {}", scope.namespaces, scope.semaphores)
        };
        Self {
            proofs: Arc::default(),
            part: one_line(&part, 500).into(),
        }
    }

    /// Returns the proofs that are known from before, for a term that begins.
    pub(super) fn proofs(&self) -> LastProofs<ProofGroup> {
        self.proofs.lock().clone()
    }

    /// Returns when an operator was last at work, by this machine's clocks; `None` if that is unknown.
    pub(super) fn last_at_work(&self) -> Option<Timestamp> {
        let (complete, _) = self.proofs.lock().entries()?;
        let ago = SignedDuration::try_from(Moment::now().since(complete)).ok()?;
        clock::time().checked_sub(ago).ok()
    }

    /// Updates the record with what is proved at this moment.
    pub(super) fn note(&self, now: Moment, proved: impl IntoIterator<Item = (ProofGroup, Proved)>) {
        self.proofs.lock().note(now, proved);
    }

    /// Whether no workload runs.
    fn is_idle(&self) -> bool {
        let proofs = self.proofs.lock();
        proofs.entries().is_none_or(|(_, groups)| groups.is_empty())
    }

    fn take_over_at(&self, found: Option<&str>, now: Moment, time: Timestamp) {
        let Some(text) = found else { return };
        match RecordText::read(text).and_then(|text| text.of(&self.part)) {
            Ok(Some(written)) => self.proofs.lock().take_over(now, written.proofs(now, time)),
            Ok(None) => {}
            Err(why) => tracing::warn!(
                annotation = LEGACY,
                why = one_line(&why, 200),
                "can't read when Consul last confirmed the slots of the running Jobs: unless Consul confirms a slot again, its \
                 Job continues for half a TTL"
            ),
        }
    }

    fn leave_at(&self, found: Option<&str>, now: Moment, time: Timestamp) -> Option<String> {
        let written = WrittenRecord::new(&self.proofs.lock(), now, time)?;
        let found = found.and_then(|text| RecordText::read(text).ok());
        let text = found.unwrap_or_default().with(&self.part, &written);
        text.inspect_err(|error| tracing::warn!(%error, "can't record when Consul last proved the slots of running Jobs"))
            .ok()
    }
}

impl Legacy for ProofRecord {
    fn take_over(&self, found: Option<&str>) {
        self.take_over_at(found, Moment::now(), clock::time());
    }

    fn leave(&self, found: Option<&str>) -> Option<String> {
        self.leave_at(found, Moment::now(), clock::time())
    }
}

/// Returns the last known proof of a semaphore whose sessions are to live this long. `same` says whether its spec is
/// the one that the last operator worked by. If it is not, the TTL or the Secret of the spec says nothing about the
/// sessions that exist.
pub(super) fn last_proof(
    proofs: &LastProofs<ProofGroup>,
    semaphore: &ConsulSemaphore,
    ttl: Option<Duration>,
    same: bool,
) -> Option<LastProof> {
    let alone = group_of_one(semaphore);
    let group = if same && !proofs.has(&alone) {
        group(semaphore, ttl)
    } else {
        alone
    };
    recorded_of(proofs, group)
}

/// Returns the last known proof of a group.
///
/// The proof of a group can be in several entries. Each of them guarantees only that the proof is no older than the
/// entry says, so the entry with the most time left counts.
fn recorded_of(proofs: &LastProofs<ProofGroup>, group: ProofGroup) -> Option<LastProof> {
    let entries = group.entries().into_iter();
    let in_record = entries.filter(|entry| proofs.has(entry));
    let recorded = in_record.filter_map(|entry| proofs.of(&entry));
    let best = recorded.max_by_key(|proof| proof.sent + proof.ttl.unwrap_or_default());
    best.or_else(|| proofs.of(&group))
}

/// Writer of the record into a Lease, for an operator that is not elected by this Lease.
#[derive(Clone)]
pub(super) struct ProofKeeper {
    leases: Api<Lease>,
    name: String,
    record: ProofRecord,
    /// Lease as it was last seen.
    found: Arc<Mutex<Option<Lease>>>,
    /// Whether a failure to read or write the Lease was reported.
    reported: Arc<OnceLock<()>>,
}

impl ProofKeeper {
    /// Creates the writer of this record into the Lease of these settings; `None` if the leader writes it, because it
    /// is elected by this Lease.
    pub(super) fn new(
        client: Client,
        default_namespace: &str,
        election: &leader::ElectionSettings,
        record: ProofRecord,
    ) -> Option<Self> {
        if election.mode == leader::Mode::Kubernetes {
            return None;
        }
        let namespace = election.namespace.as_deref().unwrap_or(default_namespace);
        Some(Self {
            leases: Api::namespaced(client, namespace),
            name: election.lease_name.as_ref().to_owned(),
            record,
            found: Arc::default(),
            reported: Arc::default(),
        })
    }

    /// Reads what an earlier process left. If the API server does not answer, it is asked again, because without it
    /// nothing is known of the Jobs, either.
    pub(super) async fn take_over(&self) {
        let mut backoff = Backoff::default();
        loop {
            match self.read().await {
                Ok(()) => break,
                Err(error) => {
                    self.report(&error);
                    if error.is_refused_for_good() {
                        return;
                    }
                }
            }
            backoff.wait().await;
        }
        let found = self.found.lock().clone();
        self.record.take_over(found.as_ref().and_then(legacy_in));
    }

    async fn read(&self) -> Result<(), CallError> {
        let found = call(self.leases.get_opt(&self.name)).await?;
        *self.found.lock() = found;
        Ok(())
    }

    /// Writes the record for ever, in intervals.
    pub(super) async fn keep(self) {
        let mut backoff = Backoff::new(WRITE_PAUSE, IDLE_WRITE_PAUSE);
        let mut written = None;
        loop {
            sleep(WRITE_PAUSE.mul_f64(fastrand::f64().mul_add(0.4, 0.8))).await;
            let now = Moment::now();
            let due = written.is_none_or(|written: Moment| written + IDLE_WRITE_PAUSE <= now);
            if self.record.is_idle() && !due {
                continue;
            }
            match self.write().await {
                Ok(()) => {
                    written = Some(now);
                    backoff.reset();
                }
                Err(error) => {
                    self.report(&error);
                    backoff.wait().await;
                }
            }
        }
    }

    async fn write(&self) -> Result<(), CallError> {
        let found = self.found.lock().clone();
        let Some(text) = self.record.leave(found.as_ref().and_then(legacy_in)) else {
            return Ok(());
        };
        let exists = found.is_some();
        let mut lease = found.unwrap_or_default();
        lease.metadata.name = Some(self.name.clone());
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(LEGACY.to_owned(), text);
        let params = PostParams::default();
        let written = if exists {
            call(self.leases.replace(&self.name, &params, &lease)).await
        } else {
            call(self.leases.create(&params, &lease)).await
        };
        match written {
            Ok(written) => *self.found.lock() = Some(written),
            // Another process has written or deleted the Lease, or an answer was lost. The next write is based on the
            // state that is read here.
            Err(error) => {
                self.read().await?;
                let outrun = matches!(error.refusal(), Some((404 | 409, _)));
                return if outrun { Ok(()) } else { Err(error) };
            }
        }
        Ok(())
    }

    fn report(&self, error: &CallError) {
        let first = self.reported.set(()).is_ok();
        let (name, error) = (&self.name, one_line(&error.to_string(), 300));
        if first {
            tracing::warn!(
                lease = name,
                error,
                "can't record when Consul last proved the slots of running Jobs: after a restart, they count as proved"
            );
        } else {
            tracing::debug!(
                lease = name,
                error,
                "can't yet record when Consul last proved the slots of running Jobs"
            );
        }
    }
}

/// Returns what an earlier process left in a Lease.
fn legacy_in(lease: &Lease) -> Option<&str> {
    let annotations = lease.metadata.annotations.as_ref()?;
    annotations.get(LEGACY).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TTL: Duration = Duration::from_mins(2);

    fn at(second: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(second))
    }

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Makes a semaphore whose sessions are to live this long.
    fn semaphore(namespace: &str, name: &str, ttl: Duration) -> ConsulSemaphore {
        let spec = json!({
            "prefix": "a", "limit": 1, "session": { "ttl": format!("{}s", ttl.as_secs()) },
        });
        let mut semaphore = ConsulSemaphore::new(name, serde_json::from_value(spec).unwrap());
        semaphore.metadata.namespace = Some(namespace.to_owned());
        semaphore
    }

    fn a() -> ConsulSemaphore {
        semaphore("team-a", "a", TTL)
    }

    fn group_of_a() -> ProofGroup {
        group(&a(), Some(TTL))
    }

    fn proved(second: u64) -> Proved {
        let sent = at(second);
        Proved { sent, ttl: TTL }
    }

    /// Makes a record in which `a` was proved at second 80, updated at second 100.
    fn record() -> ProofRecord {
        let record = ProofRecord::new(&Scope::default());
        record.note(at(100), [(group_of_a(), proved(80))]);
        record
    }

    /// Returns what the next process knows of `a`, if it reads this text at second 1000 of its own machine.
    fn next(text: &str, now: i64) -> Option<LastProof> {
        let next = ProofRecord::new(&Scope::default());
        next.take_over_at(Some(text), at(1000), time(now));
        last_proof(&next.proofs(), &a(), Some(TTL), true)
    }

    #[test]
    fn a_proof_is_as_old_for_the_next_process_as_it_is_by_the_clocks() {
        let text = record().leave_at(None, at(105), time(5000)).unwrap();
        let expected = LastProof {
            sent: at(1000 - 25 - 60),
            ttl: Some(TTL),
            ran: Duration::from_secs(20),
        };
        assert_eq!(next(&text, 5060), Some(expected));
    }

    #[test]
    fn a_clock_that_is_behind_makes_no_proof_newer() {
        let text = record().leave_at(None, at(105), time(5000)).unwrap();
        let sent = next(&text, 10).map(|proof| proof.sent);
        assert_eq!(sent, Some(at(1000 - 25)));
    }

    #[test]
    fn what_cannot_be_read_is_as_good_as_nothing() {
        for text in [
            "",
            "7",
            r#"{"": 3}"#,
            r#"{"": {"at": "never", "groups": {}}}"#,
        ] {
            assert_eq!(next(text, 0), None, "{text}");
        }
        assert_eq!(next(&" ".repeat(1 << 20), 0), None);
    }

    #[test]
    fn operators_of_two_parts_keep_their_records_in_one_lease() {
        let part = ProofRecord::new(&Scope {
            namespaces: "team-a".parse().unwrap(),
            ..Scope::default()
        });
        let first = record().leave_at(None, at(105), time(5000)).unwrap();
        part.take_over_at(Some(&first), at(105), time(5000));
        assert_eq!(part.proofs(), LastProofs::default());
        part.note(at(105), [(group_of_a(), proved(101))]);
        let both = part.leave_at(Some(&first), at(105), time(5000)).unwrap();
        let sent = next(&both, 5000).map(|proof| proof.sent);
        assert_eq!(sent, Some(at(1000 - 25)), "that of the whole cluster");
    }

    #[test]
    fn a_process_that_only_takes_the_record_over_makes_it_no_newer() {
        let text = record().leave_at(None, at(105), time(5000)).unwrap();
        let short = ProofRecord::new(&Scope::default());
        short.take_over_at(Some(&text), at(600), time(5060));
        let text = short.leave_at(Some(&text), at(602), time(5062)).unwrap();
        let sent = next(&text, 5070).map(|proof| proof.sent);
        assert_eq!(sent, Some(at(1000 - 25 - 70)), "it was proved");
        let started = ProofRecord::new(&Scope::default());
        started.take_over_at(Some(&text), at(1000), time(5070));
        let unknown = semaphore("team-b", "b", TTL);
        let unknown = last_proof(&started.proofs(), &unknown, Some(TTL), true);
        let sent = unknown.map(|proof| proof.sent);
        let complete = at(1000 - 5 - 70);
        assert_eq!(sent, Some(complete), "it may have been started after that");
    }

    #[test]
    fn whoever_leads_again_knows_what_others_proved_meanwhile() {
        let first = record();
        let text = first.leave_at(None, at(100), time(5000)).unwrap();
        let other = ProofRecord::new(&Scope::default());
        other.take_over_at(Some(&text), at(100), time(5000));
        for second in 101..=400 {
            other.note(at(second), [(group_of_a(), proved(second - 10))]);
        }
        let text = other.leave_at(Some(&text), at(400), time(5300)).unwrap();
        first.take_over_at(Some(&text), at(400), time(5300));
        let text = first.leave_at(Some(&text), at(400), time(5300)).unwrap();
        let next = ProofRecord::new(&Scope::default());
        next.take_over_at(Some(&text), at(400), time(5300));
        for (record, same) in [(first, true), (next, false)] {
            let known = last_proof(&record.proofs(), &a(), Some(TTL), same);
            assert_eq!(known.map(|proof| proof.sent), Some(at(390)));
        }
    }

    /// Returns what the next process knows of a semaphore, after it has read these records at second 10,000. A record
    /// has the group, how long ago it was proved, and its TTL.
    fn next_knows(
        recorded: impl IntoIterator<Item = (ProofGroup, u64, Duration)>,
        semaphore: &ConsulSemaphore,
        ttl: Duration,
        same: bool,
    ) -> LastProof {
        let record = ProofRecord::new(&Scope::default());
        let proved = recorded.into_iter().map(|(group, age, ttl)| {
            let sent = at(10_000 - age);
            (group, Proved { sent, ttl })
        });
        record.note(at(10_000), proved);
        let text = record.leave_at(None, at(10_000), time(0)).unwrap();
        let next = ProofRecord::new(&Scope::default());
        next.take_over_at(Some(&text), at(10_000), time(0));
        last_proof(&next.proofs(), semaphore, Some(ttl), same).unwrap()
    }

    /// Makes the knowledge of a semaphore that was proved so many seconds ago.
    fn known(age: u64, ttl: Duration) -> LastProof {
        LastProof {
            sent: at(10_000 - age),
            ttl: Some(ttl),
            ran: Duration::from_secs(age),
        }
    }

    #[test]
    fn the_longest_names_leave_a_record_that_can_be_read() {
        let neighbours = (0..200).map(|number| {
            let name = format!("{number:0253}");
            let neighbour = semaphore(&"t".repeat(63), &name, Duration::from_secs(1000));
            (group_of_one(&neighbour), 30, TTL)
        });
        let own = semaphore("team-a", "a", TTL);
        let recorded = neighbours.chain([(group(&own, Some(TTL)), 20, TTL)]);
        assert_eq!(next_knows(recorded, &own, TTL, true), known(20, TTL));
    }

    #[test]
    fn however_many_ttls_a_tenant_uses_others_are_proved_when_they_were() {
        let neighbours = (1000..1300).map(|seconds| {
            let ttl = Duration::from_secs(seconds);
            let neighbour = semaphore("team-b", &seconds.to_string(), ttl);
            (group(&neighbour, Some(ttl)), 390, ttl)
        });
        let own = semaphore("team-a", "a", TTL);
        let recorded = neighbours.chain([(group(&own, Some(TTL)), 20, TTL)]);
        assert_eq!(next_knows(recorded, &own, TTL, true), known(20, TTL));
    }

    /// A tenant can prevent its own proofs by a `.lock` that can't be read, or by too many keys, and with
    /// `onSlotLost: Continue`.
    #[test]
    fn a_tenant_that_prevents_its_own_proofs_prevents_no_others() {
        let neighbour = semaphore("team-b", "b", TTL);
        let own = semaphore("team-a", "a", TTL);
        let recorded = [
            (group(&neighbour, Some(TTL)), 5000, TTL),
            (group(&own, Some(TTL)), 20, TTL),
        ];
        assert_eq!(next_knows(recorded, &own, TTL, true), known(20, TTL));
    }

    #[test]
    fn another_ttl_or_token_while_no_operator_runs_renews_no_evidence() {
        let before = semaphore("team-a", "a", TTL);
        let longer = Duration::from_hours(1);
        let after = semaphore("team-a", "a", longer);
        let other = semaphore("team-a", "other", longer);
        let recorded = [
            (group(&before, Some(TTL)), 70, TTL),
            (group(&other, Some(longer)), 70, longer),
        ];
        assert_eq!(next_knows(recorded, &after, longer, false), known(70, TTL));

        let mut with_token = before;
        with_token.spec.consul =
            Some(serde_json::from_value(json!({ "tokenSecretRef": { "name": "token" } })).unwrap());
        assert_eq!(
            next_knows(recorded, &with_token, TTL, false),
            known(70, TTL)
        );
    }

    #[test]
    fn what_another_operator_wrote_stays_even_if_this_one_cannot_read_it() {
        for others in [r#"{"of a later version":[1,2]}"#.to_owned(), {
            let each = (0..2000).map(|number| format!(r#""{number:040}":[0]"#));
            let names = each.collect::<Vec<_>>().join(",");
            format!(r#"{{"of a later version":{{{names}}}}}"#)
        }] {
            let text = record().leave_at(Some(&others), at(105), time(0)).unwrap();
            assert!(text.contains("of a later version"), "{}", others.len());
            assert!(next(&text, 0).is_some(), "{}", others.len());
        }
    }
}
