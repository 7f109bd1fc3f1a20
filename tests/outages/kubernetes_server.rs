//! The API server goes away and comes back, and etcd loses its history.

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use testbed::{
    Bed, Job, eventually_within,
    proof::{holders_are, is_given_back, nothing_is_left, running_pods, runs_in_a_slot},
    same,
};

use crate::stage::{Held, LONG, calls};

#[tokio::test]
async fn the_api_server_is_away_and_comes_back() {
    let bed = Bed::start().await;
    away_for_a_minute(&bed).await;
    watches_begin_again_after_a_compaction(&bed).await;
    jobs_change_all_the_time(&bed).await;
}

/// Slots are kept for all running Jobs, no Job is started, and what has ended meanwhile is noticed.
async fn away_for_a_minute(bed: &Bed) {
    let (server, operator) = (bed.kubernetes().expect("the bed's own"), bed.operator());
    let team = bed.namespace("api-away").await;
    let held = Held::new(bed, &team, "Reacquire", "30s").await;
    let next = team.job("next").semaphore(held.db.name()).runs("1h");
    let next = next.create().await;
    next.has_event("SlotWaiting").await;
    let holders = bed.consul().holders(&held.db.lock_prefix()).await;

    server.kill().await;
    // About a minute: a TTL of 30 s is renewed three times in it, and a bit.
    calls(operator, "session_renew", "ok", 6.0).await;
    assert_eq!(bed.consul().holders(&held.db.lock_prefix()).await, holders);
    assert!(operator.is_running().await);
    server.start_again().await;

    held.goes_on().await;
    held.job.finish().await;
    eventually_within(LONG, "the next runs", || async {
        same(running_pods(&next).await.len(), 1)
    })
    .await;
    let grant = runs_in_a_slot(bed, &held.db, &next).await;
    holders_are(bed, &held.db, [&grant]).await;
    assert!(grant.fencing_token > held.grant.fencing_token);
    held.kept_the_limit();
    next.finish().await;
    nothing_is_left(bed, &team, &held.db).await;
}

/// The operator sleeps, much happens, and its versions are compacted when it wakes: 410. It runs without an election:
/// losing the lead would end its watches, too.
async fn watches_begin_again_after_a_compaction(bed: &Bed) {
    let server = bed.kubernetes().expect("the bed's own");
    bed.operator().stop().await;
    let operator = &bed.another_operator("alone", ["--leader-election", "off"], []);
    operator.start().await;
    let team = bed.namespace("compaction").await;
    let held = Held::new(bed, &team, "Reacquire", "120s").await;
    let job = |name| team.job(name).semaphore(held.db.name()).runs("1h");
    let withdrawn = job("a-withdrawn").create().await;
    withdrawn.has_event("SlotWaiting").await;
    let before = operator.logs().len();

    operator.pause().await;
    held.job.delete().await;
    withdrawn.delete().await;
    held.job.is_gone().await;
    withdrawn.is_gone().await;
    held.job.has_no_pods().await;
    let new = job("b-new").create().await;
    let late = team.semaphore("late").create().await;
    let in_late = team.job("in-late").semaphore("late").create().await;
    server.kill().await;
    server.start_again().await;
    server.compact().await;
    operator.resume().await;

    let grant = runs_in_a_slot(bed, &held.db, &new).await;
    is_given_back(bed, &held.db, &held.grant).await;
    in_late.is_complete().await;
    late.is_ready().await;
    held.kept_the_limit();
    let logs = operator.logs().split_off(before);
    assert!(logs.contains("starting the watch again"), "{logs}");
    holders_are(bed, &held.db, [&grant]).await;
    new.finish().await;
    nothing_is_left(bed, &team, &held.db).await;
    operator.stop().await;
    bed.operator().start().await;
}

/// Somebody constantly writes to the Jobs: conflicts are no reason to give up, nor to start a Job twice.
async fn jobs_change_all_the_time(bed: &Bed) {
    let team = bed.namespace("conflicts").await;
    let db = team.semaphore("db").limit(2).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let mut jobs = Vec::new();
    for number in 0..6 {
        let job = team.job(&format!("busy-{number}")).semaphore("db");
        jobs.push(job.runs("1s").create().await);
    }
    let api: Api<k8s_openapi::api::batch::v1::Job> = team.api();
    let meddling = tokio::spawn({
        let names: Vec<_> = jobs.iter().map(|job| job.name().to_owned()).collect();
        async move {
            let params = PatchParams::default();
            for round in 0_u32.. {
                let round = json!({ "round": round.to_string() });
                let touch = Patch::Merge(json!({ "metadata": { "annotations": round } }));
                for name in &names {
                    // Refused or not, the next one follows.
                    drop(api.patch(name, &params, &touch).await);
                }
            }
        }
    });
    for job in &jobs {
        job.is_complete().await;
    }
    meddling.abort();
    nothing_is_left(bed, &team, &db).await;
    assert_eq!(observer.peak_holders(), 2);
    assert!(observer.peak_jobs() <= 2, "{:?}", observer.seen());
    let sessions = Job::sessions(&jobs).await;
    assert_eq!(sessions.len(), 6, "one session a Job");
    assert!(observer.seen().all_holders.is_subset(&sessions));
}
