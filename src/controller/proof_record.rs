//! The record of the last proofs: what a process leaves for the next one, so that a restart renews no evidence.
//!
//! It is a text in an annotation of the operator's Lease. A leader that is elected by the Lease writes it with each
//! renewal. Without such an election [`keep`] writes it into a Lease that nobody holds.
//!
//! The text says how old each proof was when it was written, and when that was. So the clocks of two machines matter
//! only for the time in between, in which no operator ran: a proof is never younger than the text says.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

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

/// The longest text that is read, in bytes. All annotations of an object together have at most 256 KiB.
const LONGEST: usize = 64 << 10;

/// The most groups of semaphores that are written. The proofs of all others count as the oldest of these.
const MOST_GROUPS: usize = 200;

/// The most operators whose records are kept in one Lease.
const MOST_OPERATORS: usize = 8;

/// How often [`keep`] writes while workloads run: as often as a Lease is renewed.
const PAUSE: Duration = Duration::from_secs(2);

/// How often it writes while none does.
const IDLE_PAUSE: Duration = Duration::from_secs(30);

/// Semaphores whose proofs become old together: those that reach Consul in the same way and whose sessions live
/// equally long. One that still has sessions with another TTL than its spec asks for is a group of its own.
pub(super) type Group = Arc<str>;

/// The group of all that found no room in the record.
const REST: &str = "rest";

/// The group of a semaphore whose sessions live this long.
pub(super) fn group(semaphore: &ConsulSemaphore, ttl: Option<Duration>) -> Group {
    let at = place(semaphore);
    let part = |name: &Option<String>| name.clone().unwrap_or_default();
    let secret = semaphore.spec.consul.as_ref();
    let secret = secret.and_then(|consul| consul.token_secret_ref.as_ref());
    let token = secret.map_or_else(String::new, |secret| {
        let namespace = semaphore.metadata.namespace.as_deref().unwrap_or_default();
        format!("{namespace}/{}/{}", secret.name, secret.key)
    });
    let (datacenter, namespace) = (part(&at.datacenter), part(&at.namespace));
    let partition = part(&at.partition);
    let ttl = ttl.unwrap_or_default().as_secs();
    format!("{datacenter}|{partition}|{namespace}|{token}|{ttl}s").into()
}

/// The group of one semaphore alone.
pub(super) fn group_of_one(semaphore: &ConsulSemaphore) -> Group {
    let metadata = &semaphore.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    format!("{namespace}/{name}").into()
}

/// The record of an operator; clones share it. It outlives a term of leadership.
#[derive(Clone, Debug)]
pub(super) struct ProofRecord {
    proofs: Arc<Mutex<LastProofs<Group>>>,
    /// For which part of the cluster: operators without an election may have one Lease.
    part: Arc<str>,
}

impl ProofRecord {
    /// An empty record of an operator that works for this part of the cluster.
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

    /// What is known from before, for a term that begins.
    pub(super) fn proofs(&self) -> LastProofs<Group> {
        self.proofs.lock().clone()
    }

    /// Updates it with what is proved now.
    pub(super) fn note(&self, now: Moment, proved: impl IntoIterator<Item = (Group, Proved)>) {
        self.proofs.lock().note(now, proved);
    }

    /// Whether no workload runs.
    fn is_idle(&self) -> bool {
        let proofs = self.proofs.lock();
        proofs.entries().is_none_or(|(_, groups)| groups.is_empty())
    }

    fn take_over_at(&self, found: Option<&str>, now: Moment, time: Timestamp) {
        let Some(text) = found else { return };
        match Text::read(text).map(|mut text| text.0.remove(&*self.part)) {
            Ok(Some(written)) => self.proofs.lock().take_over(now, written.proofs(now, time)),
            Ok(None) => {}
            Err(why) => tracing::warn!(
                annotation = LEGACY,
                why = one_line(&why, 200),
                "the record of the last proofs can't be read: running Jobs count as proved now"
            ),
        }
    }

    fn leave_at(&self, found: Option<&str>, now: Moment, time: Timestamp) -> Option<String> {
        let written = {
            let proofs = self.proofs.lock();
            let (_, groups) = proofs.entries()?;
            Written::new(groups, now, time)
        };
        let mut text = found
            .and_then(|text| Text::read(text).ok())
            .unwrap_or_default();
        text.0.insert(self.part.to_string(), written);
        while text.0.len() > MOST_OPERATORS {
            let others = text.0.iter().filter(|(part, _)| ***part != *self.part);
            let oldest = others.min_by_key(|(_, written)| written.at);
            let oldest = oldest.map(|(part, _)| part.clone())?;
            text.0.remove(&oldest);
        }
        serde_json::to_string(&text).ok()
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

/// The text: what each operator wrote, by the part of the cluster that it works for.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Text(BTreeMap<String, Written>);

impl Text {
    fn read(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("it has {} bytes", text.len()));
        }
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

/// What one operator wrote.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    /// When, by its wall clock.
    at: Timestamp,
    groups: BTreeMap<String, WrittenProof>,
}

/// A [`LastProof`] as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "each field names its unit")]
struct WrittenProof {
    age_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(default)]
    ran_ms: u64,
}

impl WrittenProof {
    fn new(proof: &LastProof, now: Moment) -> Self {
        Self {
            age_ms: milliseconds(now.since(proof.sent)),
            ttl_ms: proof.ttl.map(milliseconds),
            ran_ms: milliseconds(proof.ran),
        }
    }

    /// The older proof, the shorter TTL and the longer time.
    fn and(self, other: Self) -> Self {
        Self {
            age_ms: self.age_ms.max(other.age_ms),
            ttl_ms: self.ttl_ms.into_iter().chain(other.ttl_ms).min(),
            ran_ms: self.ran_ms.max(other.ran_ms),
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Written {
    fn new(groups: &BTreeMap<Group, LastProof>, now: Moment, at: Timestamp) -> Self {
        let mut written = BTreeMap::new();
        for (group, proof) in groups {
            let fits = written.len() < MOST_GROUPS;
            let group = if fits { &**group } else { REST };
            let proof = WrittenProof::new(proof, now);
            let known = written.entry(group.to_owned()).or_insert(proof);
            *known = known.and(proof);
        }
        Self {
            at,
            groups: written,
        }
    }

    /// The same by the clocks of this machine.
    fn proofs(self, now: Moment, time: Timestamp) -> LastProofs<Group> {
        let since = time.duration_since(self.at);
        // A clock that is behind says nothing about the time since.
        let since = Duration::try_from(since).unwrap_or_default();
        let groups = self.groups.into_iter().map(|(group, written)| {
            let age = Duration::from_millis(written.age_ms).saturating_add(since);
            let proof = LastProof {
                sent: now.before(age),
                ttl: written.ttl_ms.map(Duration::from_millis),
                ran: Duration::from_millis(written.ran_ms),
            };
            (group.into(), proof)
        });
        LastProofs::recorded(now.before(since), groups)
    }
}

/// What is known from before of a semaphore whose sessions are to live this long.
pub(super) fn last_proof(
    proofs: &LastProofs<Group>,
    semaphore: &ConsulSemaphore,
    ttl: Option<Duration>,
) -> Option<LastProof> {
    let groups = [group_of_one(semaphore), group(semaphore, ttl), REST.into()];
    let recorded = groups.iter().find(|group| proofs.has(group));
    proofs.of(recorded.unwrap_or(&groups[1]))
}

/// The Lease with the record of an operator that is not elected by it.
#[derive(Clone)]
pub(super) struct Keeper {
    leases: Api<Lease>,
    name: String,
    record: ProofRecord,
    /// As it was last seen.
    found: Arc<Mutex<Option<Lease>>>,
    /// Whether it was reported that it can't be read or written.
    reported: Arc<OnceLock<()>>,
}

impl Keeper {
    /// Keeps this record in the Lease of these settings; `None` if its leader does.
    pub(super) fn new(
        client: Client,
        default_namespace: &str,
        election: &leader::Settings,
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

    /// Reads what an earlier process left. An API server that does not answer is asked again: without it nothing is
    /// known of the Jobs, either.
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

    /// Writes the record again and again.
    pub(super) async fn keep(self) {
        let mut backoff = Backoff::new(PAUSE, IDLE_PAUSE);
        let mut written = None;
        loop {
            sleep(PAUSE.mul_f64(fastrand::f64().mul_add(0.4, 0.8))).await;
            let now = Moment::now();
            let due = written.is_none_or(|written: Moment| written + IDLE_PAUSE <= now);
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
            // Somebody else has written or deleted it, or an answer was lost: the next write is based on that.
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
                "the record of the last proofs can't be kept: after a restart, running Jobs count as proved"
            );
        } else {
            tracing::debug!(
                lease = name,
                error,
                "the record of the last proofs can't be kept yet"
            );
        }
    }
}

/// What an earlier process left in a Lease.
fn legacy_in(lease: &Lease) -> Option<&str> {
    let annotations = lease.metadata.annotations.as_ref()?;
    annotations.get(LEGACY).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_mins(2);

    fn at(second: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(second))
    }

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A record in which the group `a` was proved at second 80, updated at second 100.
    fn record() -> ProofRecord {
        let record = ProofRecord::new(&Scope::default());
        let proved = Proved {
            sent: at(80),
            ttl: TTL,
        };
        record.note(at(100), [("a".into(), proved)]);
        record
    }

    /// What the next process knows that reads this text at second 1000 of its own machine.
    fn next(text: &str, now: i64) -> Option<LastProof> {
        let next = ProofRecord::new(&Scope::default());
        next.take_over_at(Some(text), at(1000), time(now));
        next.proofs().of(&"a".into())
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
        assert_eq!(next(&" ".repeat(LONGEST + 1), 0), None);
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
        let proved = Proved {
            sent: at(101),
            ttl: TTL,
        };
        part.note(at(105), [("a".into(), proved)]);
        let both = part.leave_at(Some(&first), at(105), time(5000)).unwrap();
        let sent = next(&both, 5000).map(|proof| proof.sent);
        assert_eq!(sent, Some(at(1000 - 25)), "that of the whole cluster");
    }

    #[test]
    fn what_finds_no_room_counts_as_the_oldest_of_it() {
        let record = ProofRecord::new(&Scope::default());
        let proved = (0..300).map(|number| {
            let sent = at(1000 - number);
            let group: Group = format!("{number:03}").into();
            (group, Proved { sent, ttl: TTL })
        });
        record.note(at(1000), proved);
        let text = record.leave_at(None, at(1000), time(0)).unwrap();
        assert!(text.len() < LONGEST, "{}", text.len());
        let next = ProofRecord::new(&Scope::default());
        next.take_over_at(Some(&text), at(1000), time(0));
        let rest = next.proofs().of(&REST.into());
        assert_eq!(rest.map(|proof| proof.sent), Some(at(1000 - 299)));
    }
}
