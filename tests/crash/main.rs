//! The operator dies, or sleeps for longer than a TTL, at every crash point; its answers come late or never; two
//! operators run at once. On real servers throughout.
//!
//! A scene is a crash point with a namespace of its own, in which work gets to that point. One operator process is
//! armed with all points and dies, or sleeps, when every scene is at its own: so a round covers all of them in the
//! time of one. `scene.rs` says how work gets to each point.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod answers;
mod scene;
mod two_operators;

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use consul_semaphore_operator::crash::Point;
use futures::future::join_all;
use testbed::{Bed, Operator, eventually, eventually_within, same};
use tokio::sync::{Mutex, MutexGuard};

use self::scene::Scene;

/// Consul ends a session between one TTL and two after its last renewal, and checks when it has time.
const EXPIRY: Duration = Duration::from_mins(2);

/// The flags of every operator here: only Consul's answers keep it from doing another operator's work, and an
/// operator that slept continues as if nothing had happened.
const ALWAYS_ACTIVE: [&str; 2] = ["--leader-election", "off"];

/// A bed without a running operator.
async fn bed() -> Bed {
    let bed = Bed::builder().operator_args(ALWAYS_ACTIVE);
    bed.without_operator().start().await
}

/// Each of these tests uses about twenty semaphores at once: one after another they are fast.
async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

#[tokio::test]
async fn the_operator_dies_and_sleeps_at_every_point() {
    let _turn = turn().await;
    let bed = bed().await;
    it_dies(&bed).await;
    it_sleeps_until_its_slots_are_gone(&bed).await;
    it_sleeps_and_another_takes_over(&bed).await;
}

async fn it_dies(bed: &Bed) {
    let (operator, scenes) = bring_to_their_points(bed, "kill").await;
    operator.ended().await;
    assert_all_were_reached(&operator);

    bed.operator().start().await;
    join_all(scenes.iter().map(|scene| scene.comes_to_its_end(bed))).await;
    bed.operator().stop().await;
}

async fn it_sleeps_until_its_slots_are_gone(bed: &Bed) {
    let (operator, scenes) = bring_to_their_points(bed, "stop").await;
    operator.is_paused().await;
    assert_all_were_reached(&operator);
    all_sessions_end(bed).await;
    let taken = join_all(scenes.iter().map(|scene| scene.slot_is_taken(bed))).await;

    operator.resume().await;
    let taken = scenes.iter().zip(taken);
    let taken: Vec<_> = taken
        .filter_map(|(scene, taken)| Some((scene, taken?)))
        .collect();
    assert!(taken.len() > 3, "many slept with a slot");
    join_all(taken.iter().map(|(scene, taken)| scene.nothing_runs(taken))).await;
    join_all(
        taken
            .iter()
            .map(|(scene, taken)| taken.give_back(bed, scene)),
    )
    .await;
    join_all(scenes.iter().map(|scene| scene.comes_to_its_end(bed))).await;
    operator.stop().await;
}

async fn it_sleeps_and_another_takes_over(bed: &Bed) {
    let (operator, scenes) = bring_to_their_points(bed, "stop").await;
    operator.is_paused().await;
    assert_all_were_reached(&operator);
    all_sessions_end(bed).await;

    bed.operator().start().await;
    operator.resume().await;
    join_all(scenes.iter().map(|scene| scene.comes_to_its_end(bed))).await;
    operator.stop().await;
    bed.operator().stop().await;
}

/// In a background task: without special handling, the others would continue.
#[tokio::test]
async fn a_panic_ends_the_process_and_a_restart_adopts() {
    let _turn = turn().await;
    let bed = bed().await;
    let team = bed.namespace("panic").await;
    let db = team.semaphore("db").limit(2).create().await;
    let points = ("CRASH_POINTS", "panic session-destroyed".to_owned());
    let operator = bed.another_operator("panicking", ALWAYS_ACTIVE, [points]);
    operator.start().await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    a.is_running().await;
    let held = bed.consul().holders(&db.lock_prefix()).await;
    let b = team.job("b").semaphore("db").create().await;
    operator.ended().await;
    assert!(operator.logs().contains("CRASH_POINTS asks for it"));

    bed.operator().start().await;
    b.is_complete().await;
    team.job("c")
        .semaphore("db")
        .create()
        .await
        .is_complete()
        .await;
    eventually("only a holds a slot", || async {
        same(bed.consul().holders(&db.lock_prefix()).await, held.clone())
    })
    .await;
    assert_eq!(a.session().await.as_ref(), held.first(), "it was adopted");
    a.finish().await;
    bed.operator().stop().await;
}

/// The answers to its last writes come after it was asked to end.
#[tokio::test]
async fn an_operator_that_ends_reports_what_its_last_writes_did() {
    let _turn = turn().await;
    let bed = bed().await;
    let (first, second) = (bed.namespace("first").await, bed.namespace("second").await);
    let points = format!("end started@{} released@{}", first.name(), second.name());
    let operator = bed.another_operator("ending", ALWAYS_ACTIVE, [("CRASH_POINTS", points)]);
    operator.start().await;
    for team in [&first, &second] {
        team.semaphore("db").limit(1).create().await;
    }
    let started = first.job("a").semaphore("db").runs("1h").create().await;
    let done = second.job("b").semaphore("db").create().await;
    operator.ended().await;
    for (job, reason) in [(&started, "SlotGranted"), (&done, "SlotReleased")] {
        let events = job.events().await;
        let reasons: Vec<_> = events
            .into_iter()
            .filter_map(|event| event.reason)
            .collect();
        assert!(reasons.iter().any(|known| known == reason), "{reasons:?}");
    }
}

/// Starts an operator that waits at every point, and brings work to each of them.
async fn bring_to_their_points(bed: &Bed, what: &str) -> (Operator, Vec<Scene>) {
    static ROUND: AtomicU32 = AtomicU32::new(1);
    let scenes = join_all(Point::ALL.iter().map(|point| Scene::new(bed, *point))).await;
    let places: Vec<String> = scenes.iter().map(Scene::place).collect();
    let points = format!("{what} {}", places.join(" "));
    let round = ROUND.fetch_add(1, Ordering::Relaxed);
    let name = format!("crashing-{round}");
    let operator = bed.another_operator(&name, ALWAYS_ACTIVE, [("CRASH_POINTS", points)]);
    // What is done once for all scenes must be waited for in the scene that does it.
    let (first, others) = scenes.split_first().expect("there are points");
    assert!(first.point == Point::NodeRegistered);
    first.begin(bed).await;
    operator.start().await;
    eventually("the first point is reached", || async {
        operator.logs().contains("got to a crash point")
    })
    .await;
    join_all(others.iter().map(|scene| async move {
        scene.begin(bed).await;
        scene.gets_to_its_point(bed).await;
    }))
    .await;
    (operator, scenes)
}

fn assert_all_were_reached(operator: &Operator) {
    let logs = operator.logs();
    for point in Point::ALL {
        let reached = format!("got to a crash point point={} ", point.name());
        assert_eq!(logs.matches(&reached).count(), 1, "{reached}");
    }
}

/// Waits until Consul has ended every session of the operator's.
async fn all_sessions_end(bed: &Bed) {
    eventually_within(EXPIRY, "all sessions have ended", || async {
        same(sessions(bed, "").await, Vec::new())
    })
    .await;
}

/// The names of the operator's sessions for this namespace, or for any.
async fn sessions(bed: &Bed, namespace: &str) -> Vec<String> {
    let sessions = bed.consul().sessions().await;
    let names = sessions
        .iter()
        .filter_map(|session| session["Name"].as_str());
    let own = names.filter(|name| {
        name.starts_with("consul-semaphore-operator/")
            && (namespace.is_empty() || name.contains(&format!("/{namespace}/")))
    });
    own.map(str::to_owned).collect()
}
