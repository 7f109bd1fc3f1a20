//! Jobs that the operator takes through their whole lives with the policies in force: none of its writes is refused,
//! and no Job runs without a slot, though each is created unsuspended.

use serde_json::json;
use testbed::{
    Bed, Job, LimitWatch, Namespace, Semaphore, eventually,
    helpers::event_reasons,
    proof::{
        End, HOLD, SESSION, grant_of, is_given_back, is_warned, nothing_is_left, pods_end,
        queue_is, running_pods, runs_in_a_slot,
    },
};

use crate::stage::bed;

struct Stage {
    bed: Bed,
    team: Namespace,
    db: Semaphore,
    observer: LimitWatch,
}

impl Stage {
    async fn new(name: &str, on_slot_lost: &str) -> Self {
        let bed = bed().await;
        let team = bed.namespace(name).await;
        let spec = json!({ "onSlotLost": on_slot_lost, "session": { "lockDelay": "0s" } });
        let db = team.semaphore("db").limit(1).spec(spec).create().await;
        let observer = bed.watch_limit(&db.lock_prefix()).await;
        Self {
            bed,
            team,
            db,
            observer,
        }
    }

    async fn job(&self, name: &str) -> Job {
        let job = self.team.job(name).semaphore("db").unsuspended().runs("1h");
        job.create().await
    }

    /// Ends the Job, and waits until nothing is left. None of these Jobs ever ran without a slot, and no write of the
    /// operator was refused.
    async fn ends_well(&self, last: &Job, jobs: &[&Job]) {
        pods_end(&self.team, last, End::Succeeded).await;
        last.is_complete().await;
        nothing_is_left(&self.bed, &self.team, &self.db).await;
        for job in jobs {
            let reasons = event_reasons(job).await;
            for never in ["RanWithoutSlot", "StartRefused"] {
                assert!(
                    !reasons.contains(&never.to_owned()),
                    "{}: {reasons:?}",
                    job.name()
                );
            }
        }
        assert_eq!(
            (self.observer.peak_holders(), self.observer.peak_jobs()),
            (1, 1)
        );
    }
}

#[tokio::test]
async fn they_wait_run_and_end() {
    let stage = Stage::new("whole-way", "Reacquire").await;
    let Stage { bed, team, db, .. } = &stage;
    // The Job controller may mark a later Job as suspended first, which then goes first.
    let a = stage.job("a").await;
    let mut last = runs_in_a_slot(bed, db, &a).await;
    let [b, c] = [stage.job("b").await, stage.job("c").await];
    queue_is(db, [&b, &c]).await;
    for [job, next] in [[&a, &b], [&b, &c]] {
        pods_end(team, job, End::Succeeded).await;
        job.is_complete().await;
        let grant = runs_in_a_slot(bed, db, next).await;
        assert!(last.fencing_token < grant.fencing_token);
        is_given_back(bed, db, &last).await;
        last = grant;
    }
    stage.ends_well(&c, &[&a, &b, &c]).await;
}

/// The operator names the new session on a running Job.
#[tokio::test]
async fn one_has_its_slot_again_under_another_session() {
    let stage = Stage::new("renamed", "Reacquire").await;
    let Stage { bed, db, .. } = &stage;
    let a = stage.job("a").await;
    let grant = runs_in_a_slot(bed, db, &a).await;
    let pods = running_pods(&a).await;
    bed.consul().destroy_session(&grant.session).await;
    is_warned(&a, "SlotLost", "").await;
    eventually("the Job names its new session", || async {
        let session = a.session().await?;
        (session != grant.session).then_some(())
    })
    .await;
    assert_eq!(running_pods(&a).await, pods);
    stage.ends_well(&a, &[&a]).await;
}

/// The operator suspends a Job, and starts it again.
#[tokio::test]
async fn one_loses_its_slot_and_is_started_again() {
    let stage = Stage::new("lost", "Suspend").await;
    let Stage { bed, team, db, .. } = &stage;
    let a = stage.job("a").await;
    let grant = runs_in_a_slot(bed, db, &a).await;
    bed.consul().destroy_session(&grant.session).await;
    is_warned(&a, "SlotLost", "suspended, first in the queue").await;
    eventually("it has another grant", || async {
        let again = grant_of(&a).await?;
        (again.session != grant.session).then_some(())
    })
    .await;
    let again = runs_in_a_slot(bed, db, &a).await;
    assert!(grant.fencing_token < again.fencing_token);
    let b = stage.job("b").await;
    pods_end(team, &a, End::Succeeded).await;
    runs_in_a_slot(bed, db, &b).await;
    stage.ends_well(&b, &[&a, &b]).await;
}

/// The operator clears the grant of a Job that its user suspends, puts it on hold, and starts it again.
#[tokio::test]
async fn one_is_suspended_by_its_user_and_goes_on_later() {
    let stage = Stage::new("suspended", "Reacquire").await;
    let Stage { bed, team, db, .. } = &stage;
    let a = stage.job("a").await;
    let grant = runs_in_a_slot(bed, db, &a).await;
    let b = stage.job("b").await;
    queue_is(db, [&b]).await;
    a.suspend().await;
    a.is_on_hold().await;
    is_given_back(bed, db, &grant).await;
    runs_in_a_slot(bed, db, &b).await;
    assert_eq!(grant_of(&a).await, None);
    assert_eq!(
        a.session().await.as_ref(),
        Some(&grant.session),
        "{SESSION} reports it still"
    );
    a.annotate(HOLD, None).await;
    queue_is(db, [&a]).await;
    pods_end(team, &b, End::Succeeded).await;
    runs_in_a_slot(bed, db, &a).await;
    stage.ends_well(&a, &[&a, &b]).await;
}

/// The operator deletes a Job that must not wait.
#[tokio::test]
async fn a_skip_job_is_deleted_with_the_policies() {
    let stage = Stage::new("skipped", "Reacquire").await;
    let Stage { bed, team, db, .. } = &stage;
    let a = stage.job("a").await;
    runs_in_a_slot(bed, db, &a).await;
    let b = team.job("b").semaphore("db").unsuspended();
    let b = b
        .annotation("consul-semaphore.io/on-contention", "Skip")
        .create()
        .await;
    b.is_gone().await;
    b.has_event("Skipped").await;
    stage.ends_well(&a, &[&a, &b]).await;
}
