//! Somebody interferes in Consul, and a running Job's slot is lost: what happens to the Job, and to those that wait
//! behind it.

use std::collections::BTreeSet;

use serde_json::json;
use testbed::{
    Bed, Job, LimitWatch, Namespace, SEMAPHORE_FLAGS, Semaphore, eventually,
    helpers::metric,
    proof::{
        End, Grant, all_is_decided, gets_event, is_warned, nothing_is_left, pods_end, running_pods,
        runs_in_a_slot, sessions,
    },
    same,
};

/// How somebody takes the slot of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mischief {
    /// The session is destroyed, which forces a release.
    SessionDestroyed,
    ContenderDeleted,
    /// `?release=`: the session lives.
    ContenderFreed,
    /// Removed from `Holders`: session and contender live.
    TakenOut,
    LockDeleted,
}

use Mischief::{ContenderDeleted, ContenderFreed, LockDeleted, SessionDestroyed, TakenOut};

const ALL: [Mischief; 5] = [
    SessionDestroyed,
    ContenderDeleted,
    ContenderFreed,
    TakenOut,
    LockDeleted,
];

impl Mischief {
    /// A name for a namespace.
    fn name(self) -> String {
        format!("lost-{self:?}").to_lowercase()
    }

    async fn happens(self, bed: &Bed, db: &Semaphore, session: &str) {
        let (consul, prefix) = (bed.consul(), db.lock_prefix());
        let (lock, contender) = (format!("{prefix}/.lock"), format!("{prefix}/{session}"));
        match self {
            Self::SessionDestroyed => consul.destroy_session(session).await,
            Self::ContenderDeleted => consul.delete(&contender).await,
            Self::ContenderFreed => {
                let path = format!("kv/{contender}?release={session}");
                consul.put_json(&path, json!(null)).await;
            }
            Self::TakenOut => {
                consul
                    .put(&lock, SEMAPHORE_FLAGS, r#"{"Limit":1,"Holders":{}}"#)
                    .await;
            }
            Self::LockDeleted => consul.delete(&lock).await,
        }
    }

    /// Whether the Job's session and contender survive it.
    fn spares_the_contender(self) -> bool {
        matches!(self, TakenOut | LockDeleted)
    }
}

/// A Job that runs in the only slot, and one that waits behind it.
struct Stage {
    bed: Bed,
    team: Namespace,
    db: Semaphore,
    observer: LimitWatch,
    a: Job,
    b: Job,
    grant: Grant,
}

impl Stage {
    async fn new(name: &str, policy: &str) -> Self {
        let bed = Bed::shared().await;
        let team = bed.namespace(name).await;
        let db = team.semaphore("db").limit(1);
        let spec = json!({ "onSlotLost": policy, "session": { "lockDelay": "0s" } });
        let db = db.spec(spec).create().await;
        let observer = bed.watch_limit(&db.lock_prefix()).await;
        let job = |name| team.job(name).semaphore("db").runs("1h");
        let a = job("a").terminates_in("1h").create().await;
        let grant = runs_in_a_slot(&bed, &db, &a).await;
        let b = job("b").priority(9).create().await;
        b.has_event("SlotWaiting").await;
        Self {
            bed,
            team,
            db,
            observer,
            a,
            b,
            grant,
        }
    }

    /// Waits until `a` runs in a slot whose session is, or is not, this one, and returns the session.
    async fn has_its_slot_again(&self, other: bool) -> String {
        let before = &self.grant.session;
        eventually("it has its slot again", || async {
            let session = self.a.session().await.ok_or("none")?;
            let holders = self.holders().await;
            same(
                (session != *before, holders),
                (other, BTreeSet::from([session.clone()])),
            )
            .map(|_| session)
        })
        .await
    }

    async fn holders(&self) -> BTreeSet<String> {
        self.bed.consul().holders(&self.db.lock_prefix()).await
    }

    async fn losses_are(&self, expected: f64) {
        eventually("losses are counted", || async {
            let page = self.bed.operator().get("/metrics").await;
            let (namespace, semaphore) = (self.team.name(), self.db.name());
            let name =
                format!("losses_total{{namespace=\"{namespace}\",semaphore=\"{semaphore}\"}}");
            same(metric(&page, &name), Some(expected))
        })
        .await;
    }

    /// Takes the slot of `a` away and gives it to another program.
    async fn somebody_takes_it(&self) -> String {
        let (consul, prefix) = (self.bed.consul(), self.db.lock_prefix());
        let session = consul.create_session(json!({ "TTL": "24h" })).await;
        let path = format!("kv/{prefix}/{session}?acquire={session}&flags={SEMAPHORE_FLAGS}");
        consul.put_json(&path, json!(null)).await;
        let body = json!({ "Limit": 1, "Holders": { session.as_str(): true } });
        consul
            .put(
                &format!("{prefix}/.lock"),
                SEMAPHORE_FLAGS,
                body.to_string(),
            )
            .await;
        session
    }
}

#[tokio::test]
async fn a_running_job_has_its_slot_again_before_any_waiting_one() {
    let journeys = ALL.map(|mischief| async move {
        let stage = Stage::new(&mischief.name(), "Reacquire").await;
        let Stage { team, db, a, b, .. } = &stage;
        let pods = running_pods(a).await;
        let session = &stage.grant.session;
        mischief.happens(&stage.bed, db, session).await;
        is_warned(a, "SlotLost", "has a slot again").await;
        let now = stage
            .has_its_slot_again(!mischief.spares_the_contender())
            .await;
        // Its holder and its contender were written together.
        let prefix = db.lock_prefix();
        let consul = stage.bed.consul();
        let lock = consul.kv(&format!("{prefix}/.lock")).await.expect("a lock");
        let contender = consul.kv(&format!("{prefix}/{now}")).await;
        let contender = contender.expect("a contender");
        assert_eq!(lock.modify_index, contender.modify_index, "{mischief:?}");
        all_is_decided(team, db).await;
        b.is_waiting().await;
        assert_eq!(running_pods(a).await, pods, "{mischief:?}");
        assert!(!stage.observer.seen().all_jobs.contains(&uid(b).await));
        stage.losses_are(1.0).await;
        db.is_ready().await;

        a.finish().await;
        b.is_running().await;
        b.finish().await;
        nothing_is_left(&stage.bed, team, db).await;
        assert_eq!(stage.observer.peak_holders(), 1, "{mischief:?}");
        assert_eq!(stage.observer.peak_jobs(), 1, "{mischief:?}");
    });
    futures::future::join_all(journeys).await;
}

async fn uid(job: &Job) -> String {
    testbed::proof::uid_of(job).await
}

#[tokio::test]
async fn a_suspended_job_counts_until_its_pods_are_gone_and_is_first_in_the_queue() {
    let journeys = ALL.map(|mischief| async move {
        let stage = Stage::new(&mischief.name(), "Suspend").await;
        let Stage { team, db, a, b, .. } = &stage;
        mischief.happens(&stage.bed, db, &stage.grant.session).await;
        is_warned(a, "SlotLost", "suspended, first in the queue").await;
        a.is("stopping", |job| {
            let status = job.status.as_ref();
            status.and_then(|status| status.terminating) == Some(1)
        })
        .await;
        all_is_decided(team, db).await;
        b.is_waiting().await;

        pods_end(team, a, End::Failed).await;
        let second = runs_in_a_slot(&stage.bed, db, a).await;
        assert!(second.fencing_token > stage.grant.fencing_token);
        gets_event(a, "Normal", "SlotGranted", &second.session).await;
        b.is_waiting().await;
        stage.losses_are(1.0).await;
        a.finish().await;
        b.is_running().await;
        b.finish().await;
        nothing_is_left(&stage.bed, team, db).await;
        assert_eq!(stage.observer.peak_holders(), 1, "{mischief:?}");
        assert_eq!(stage.observer.peak_jobs(), 1, "{mischief:?}");
    });
    futures::future::join_all(journeys).await;
}

#[tokio::test]
async fn a_job_that_lost_its_slot_is_first_in_the_queue() {
    let stage = Stage::new("lost-taken", "Reacquire").await;
    let Stage { team, db, a, b, .. } = &stage;
    let other = stage.somebody_takes_it().await;
    is_warned(a, "SlotLost", "suspended, first in the queue").await;
    pods_end(team, a, End::Failed).await;
    a.is_waiting().await;
    all_is_decided(team, db).await;
    assert_eq!(stage.holders().await, BTreeSet::from([other.clone()]));

    let (consul, job) = (stage.bed.consul(), uid(a).await);
    consul.destroy_session(&stage.grant.session).await;
    eventually("another session is made for it", || async {
        let sessions = sessions(&stage.bed).await;
        sessions.iter().any(|(_, name)| name.ends_with(&job))
    })
    .await;
    consul.give_back(&db.lock_prefix(), &other).await;
    let again = runs_in_a_slot(&stage.bed, db, a).await;
    // A lost slot was not given back.
    gets_event(a, "Normal", "SlotGranted", &again.session).await;
    let events = a.events().await;
    let mut reasons = events.iter().filter_map(|event| event.reason.as_deref());
    assert!(reasons.all(|reason| reason != "SlotReleased"), "{events:?}");
    b.is_waiting().await;
    stage.losses_are(1.0).await;
    assert_eq!(stage.observer.peak_holders(), 1);
}

#[tokio::test]
async fn with_continue_a_job_runs_without_a_slot_until_one_is_free() {
    let stage = Stage::new("lost-continue", "Continue").await;
    let Stage { team, db, a, b, .. } = &stage;
    let pods = running_pods(a).await;
    let other = stage.somebody_takes_it().await;
    is_warned(a, "SlotLost", "it continues").await;
    db.has_condition("SlotsAvailable", "False", "RunningWithoutSlot")
        .await;
    db.is_ready().await;
    stage.losses_are(1.0).await;

    stage
        .bed
        .consul()
        .give_back(&db.lock_prefix(), &other)
        .await;
    is_warned(a, "SlotLost", "has a slot again").await;
    db.has_condition("SlotsAvailable", "False", "AllSlotsHeld")
        .await;
    all_is_decided(team, db).await;
    b.is_waiting().await;
    assert_eq!(running_pods(a).await, pods);
    stage.losses_are(1.0).await;
    assert_eq!(stage.observer.peak_holders(), 1);
}

#[tokio::test]
async fn a_running_job_has_its_slot_again_also_while_nothing_is_granted() {
    let stage = Stage::new("lost-closed", "Reacquire").await;
    let Stage { db, a, .. } = &stage;
    let (consul, pods) = (stage.bed.consul(), running_pods(a).await);
    let mut session = stage.grant.session.clone();
    for reason in ["Paused", "LimitConflict", "Terminating"] {
        match reason {
            "Paused" => db.pause().await,
            "LimitConflict" => {
                // By hand, and on purpose.
                let body = json!({ "Limit": 7, "Holders": { session.as_str(): true } });
                let key = format!("{}/.lock", db.lock_prefix());
                consul.put(&key, SEMAPHORE_FLAGS, body.to_string()).await;
            }
            _ => db.delete().await,
        }
        // A semaphore that its spec pauses does what its spec asks for.
        let ready = if reason == "Paused" { "True" } else { "False" };
        db.has_condition("Ready", ready, reason).await;
        consul.destroy_session(&session).await;
        session = eventually("it has its slot again", || async {
            let holders = stage.holders().await;
            let other = holders.iter().find(|holder| **holder != session);
            other.cloned().ok_or(format!("{holders:?}"))
        })
        .await;
        is_warned(a, "SlotLost", &session).await;
    }
    assert_eq!(running_pods(a).await, pods);
    a.finish().await;
    db.is_gone().await;
    assert_eq!(stage.observer.peak_holders(), 1);
}

#[tokio::test]
async fn a_lock_that_cannot_be_parsed_ends_the_evidence() {
    /// The flags of Consul's mutex.
    const MUTEX_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;
    let bed = Bed::shared().await;
    let team = bed.namespace("lost-unreadable").await;
    let mut stages = Vec::new();
    for (name, policy, flags, body) in [
        ("garbage", "Reacquire", SEMAPHORE_FLAGS, "garbage"),
        ("mutex", "Suspend", MUTEX_FLAGS, ""),
        ("go-on", "Continue", SEMAPHORE_FLAGS, "[]"),
    ] {
        let db = team.semaphore(name).ttl("10s");
        let db = db.spec(json!({ "onSlotLost": policy })).create().await;
        let job = team.job(name).semaphore(name).runs("1h").grace(1);
        let job = job.create().await;
        let grant = runs_in_a_slot(&bed, &db, &job).await;
        let lock_key = format!("{}/.lock", db.lock_prefix());
        bed.consul().put(&lock_key, flags, body).await;
        stages.push((db, job, grant, lock_key, policy));
    }
    for (db, job, _, _, policy) in &stages {
        db.has_condition("Ready", "False", "LockConflict").await;
        if *policy == "Continue" {
            is_warned(job, "SlotLost", "it continues").await;
            db.has_condition("SlotsAvailable", "False", "RunningWithoutSlot")
                .await;
        } else {
            is_warned(job, "SlotLost", "could not confirm for too long").await;
            job.is_waiting().await;
        }
    }
    for (db, job, grant, lock_key, policy) in &stages {
        bed.consul().delete(lock_key).await;
        db.is_ready().await;
        if *policy == "Continue" {
            is_warned(job, "SlotLost", "has a slot again").await;
            job.is_running().await;
        } else {
            let again = runs_in_a_slot(&bed, db, job).await;
            assert!(again.fencing_token > grant.fencing_token);
        }
    }
}
