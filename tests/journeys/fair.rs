//! Fair order among all contenders that wait at a prefix: `docs/protocol.md` has the rule.

use serde_json::json;
use testbed::{
    Bed, eventually,
    proof::{End, PRIORITY, grant_of, pods_end},
};

/// How often a story is tried at most: a turn takes two seconds, and a contender that sleeps longer, on a busy
/// machine, is rightly passed over.
const ROUNDS: usize = 3;

/// Two semaphores on one prefix behave like two clusters: neither sees the other's Jobs.
#[tokio::test]
async fn the_first_of_two_clusters_goes_first() {
    let bed = Bed::shared().await;
    let mut tokens = [0; 4];
    for _ in 0..ROUNDS {
        tokens = Box::pin(tokens_of_two_clusters(&bed)).await;
        // The last of them may not be visible yet when the one before it is granted its slot.
        if tokens[..3].is_sorted() && tokens[1] < tokens[3] {
            return;
        }
    }
    panic!("{tokens:?}");
}

/// The fencing tokens of four Jobs, in the order in which they should get their slots.
async fn tokens_of_two_clusters(bed: &Bed) -> [u64; 4] {
    let team = bed.namespace("fair").await;
    let prefix = format!("shared/{}", team.name());
    let x = team.semaphore("x").prefix(&prefix).limit(1).create().await;
    x.is_ready().await;
    let y = team.semaphore("y").prefix(&prefix).limit(1).create().await;
    y.is_ready().await;
    let waits = async |name: &str, semaphore: &str, priority: i64| {
        let job = team.job(name).semaphore(semaphore).priority(priority);
        let job = job.runs("200ms").create().await;
        job.has_event("SlotWaiting").await;
        job
    };
    let holder = team.job("holder").semaphore("x").runs("1h").create().await;
    holder.is_running().await;
    // One after another, and all see each before the next one comes.
    let d = waits("d", "x", 0).await;
    let c = waits("c", "y", 5).await;
    let b = waits("b", "x", 0).await;
    let a = waits("a", "y", 9).await;
    b.annotate(PRIORITY, Some("7")).await;
    eventually(
        "the head of each line is shown, with its priority now",
        || async {
            let contenders = bed.consul().contenders(&prefix).await;
            let bodies = contenders.iter().map(testbed::Entry::json);
            let waiting = bodies.filter(|body| !body["waiting"].is_null());
            let mut shown: Vec<_> = waiting
                .map(|body| (body["name"].clone(), body["waiting"]["priority"].clone()))
                .collect();
            shown.sort_by_key(|(name, _)| name.to_string());
            let both =
                shown.contains(&(json!("a"), json!(9))) && shown.contains(&(json!("b"), json!(7)));
            both.then_some(()).ok_or(format!("{shown:?}"))
        },
    )
    .await;

    pods_end(&team, &holder, End::Succeeded).await;
    let mut tokens = [0; 4];
    for (token, job) in tokens.iter_mut().zip([a, b, c, d]) {
        job.is_complete().await;
        *token = grant_of(&job).await.expect("it had a slot").fencing_token;
    }
    tokens
}

/// Its Job is queued again, and nothing suggests that it had a slot.
#[tokio::test]
async fn a_session_that_only_waited_releases_no_slot() {
    let bed = Bed::shared().await;
    let team = bed.namespace("expired-in-line").await;
    let prefix = format!("shared/{}", team.name());
    for name in ["x", "y"] {
        let semaphore = team.semaphore(name).prefix(&prefix).limit(1);
        semaphore.create().await.is_ready().await;
    }
    let holder = team.job("holder").semaphore("x").runs("1h").create().await;
    holder.is_running().await;
    let waits = team.job("waits").semaphore("y").create().await;
    let in_line = async |but: Option<&str>| {
        let what = format!("another contender than {but:?} waits");
        eventually(&what, || async {
            let contenders = bed.consul().contenders(&prefix).await;
            let ours = contenders.iter().find(|of| of.json()["name"] == "waits");
            let session = ours.and_then(|of| of.session.clone());
            session
                .filter(|session| Some(session.as_str()) != but)
                .ok_or(format!("{contenders:?}"))
        })
        .await
    };
    let first = in_line(None).await;
    bed.consul().destroy_session(&first).await;
    in_line(Some(&first)).await;
    let logs = bed.operator().logs();
    let of_it = |line: &&str| line.contains(&first) && line.contains("released");
    assert_eq!(logs.lines().find(of_it), None);

    holder.finish().await;
    waits.has_event("SlotReleased").await;
    let events = waits.events().await;
    let matches = |event: &&k8s_openapi::api::core::v1::Event| {
        event.reason.as_deref() == Some("SlotReleased")
    };
    assert_eq!(events.iter().filter(matches).count(), 1);
}

#[tokio::test]
async fn a_program_that_waits_longer_than_our_jobs_is_served_first() {
    let bed = Bed::shared().await;
    for _ in 0..ROUNDS {
        if Box::pin(the_program_is_first(&bed)).await {
            return;
        }
    }
    panic!("our Job went first each time");
}

/// A program waits longer than our next Job: returns whether it gets its slot first.
async fn the_program_is_first(bed: &Bed) -> bool {
    let team = bed.namespace("fair-program").await;
    let db = team.semaphore("db").limit(2).create().await;
    let prefix = db.lock_prefix();
    let running = |name: &str| team.job(name).semaphore("db").runs("1h").create();
    let (a, _b) = (running("a").await, running("b").await);
    db.shows(json!({ "held": 2 })).await;
    let next = running("next").await;
    next.has_event("SlotWaiting").await;

    let served = bed.folder().path().join(team.name());
    let command = format!("touch {}; echo served", served.display());
    let lock = bed.consul_tool(["lock", "-n", "2", &prefix, &command]);
    let serve = async {
        eventually("the program and our next Job are seen to wait", || async {
            let seen = bed.consul().contenders(&prefix).await.len();
            (seen == 4).then_some(()).ok_or(seen)
        })
        .await;
        a.finish().await;
        next.is_running().await;
        let first = served.exists();
        // Otherwise the program would wait for an hour.
        next.finish().await;
        first
    };
    let (said, first) = tokio::join!(lock, serve);
    assert!(said.contains("served"), "{said}");
    first
}

#[tokio::test]
async fn a_contender_that_never_takes_its_slot_blocks_no_job() {
    let bed = Bed::shared().await;
    let team = bed.namespace("fair-silent").await;
    let consul = bed.consul();
    let prefix = team.semaphore("db").lock_prefix();
    let session = consul.create_session(json!({ "TTL": "24h" })).await;
    let acquire = format!("kv/{prefix}/{session}?acquire={session}");
    consul.put_json(&acquire, json!("here first")).await;
    let db = team.semaphore("db").limit(1).create().await;
    db.is_ready().await;
    for name in ["a", "b"] {
        let job = team.job(name).semaphore("db").runs("200ms").create().await;
        job.is_complete().await;
    }
    let contenders = consul.contenders(&prefix).await;
    let silent = contenders
        .iter()
        .find(|entry| entry.key.ends_with(&session));
    assert!(silent.is_some(), "it is left alone: {contenders:?}");
}
