//! A hand-over: a Job ends, and the next one is started.
//!
//! `ours`: from a Job's Complete event to the event that shows the next Job of the queue started, both seen by this
//! program's own watch. The floor: the same for Jobs that this program hands over itself, with one raw transaction
//! and one raw PATCH. Batches of both take turns.

use std::{collections::HashMap, sync::Arc};

use testbed::{Bed, Namespace, Semaphore};
use tokio::task::JoinSet;

use crate::{
    figures::{Goal, Row, Times, rows_of_times},
    raw::Raw,
    timeline::{Seen, Timeline, create, follow},
};

/// How many hold a slot at once.
pub(crate) const SLOTS: usize = 3;
/// How many semaphores a request is for.
const SEVERAL: usize = 3;
/// How many Jobs a run has.
const BATCH: usize = 100;
/// How long each of them runs.
pub(crate) const RUNS: &str = "200ms";

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        ours.push(our_batch(&bed).await);
        floor.push(floor_batch(&bed, 0).await);
    }
    let what = format!("hand-over, 1 semaphore, limit {SLOTS}");
    rows_of_times(&what, &ours, ("raw txn + PATCH", &floor), Goal::AtMost(1.3))
}

/// The same, where each Job asks for a slot of several semaphores.
pub(crate) async fn rows_of_several(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        ours.push(our_batch_of_several(&bed).await);
        floor.push(floor_batch_of(&bed, SEVERAL, 0).await);
    }
    let what = format!("hand-over of a request of {SEVERAL} semaphores, limit {SLOTS} each");
    let against = ("raw txn + PATCH", &*floor);
    rows_of_times(&what, &ours, against, Goal::AtMost(1.3))
}

/// Hands over a batch of Jobs that ask for several semaphores with the operator.
async fn our_batch_of_several(bed: &Bed) -> Times {
    let team = bed.namespace("several").await;
    let mut semaphores = Vec::new();
    for number in 0..SEVERAL {
        let semaphore = team.semaphore(&format!("db-{number}")).limit(3);
        semaphores.push(semaphore.paused(true).create().await);
    }
    let names: Vec<&str> = semaphores.iter().map(Semaphore::name).collect();
    let asks = names.join(", ");
    let mut events = follow(&team);
    create(&team, "job-", BATCH, |job| job.runs(RUNS).semaphore(&asks)).await;
    for semaphore in &semaphores {
        semaphore
            .shows(serde_json::json!({ "waiting": BATCH }))
            .await;
    }
    for semaphore in &semaphores {
        semaphore.resume().await;
    }
    let timeline = Timeline::until_complete(&mut events, "job-", BATCH).await;
    Times::of(timeline.hand_overs(SLOTS))
}

/// Hands over a batch of Jobs with the operator.
pub(crate) async fn our_batch(bed: &Bed) -> Times {
    let team = bed.namespace("ours").await;
    let db = team.semaphore("db").limit(3).paused(true).create().await;
    db.has_condition("Ready", "True", "Paused").await;
    batch(&team, &db, "job-").await
}

/// Hands over a batch of Jobs on a paused semaphore, of which [`SLOTS`] slots are free.
pub(crate) async fn batch(team: &Namespace, db: &Semaphore, prefix: &str) -> Times {
    let mut events = follow(team);
    create(team, prefix, BATCH, |job| {
        job.runs(RUNS).semaphore(db.name())
    })
    .await;
    db.shows(serde_json::json!({ "waiting": BATCH })).await;
    db.resume().await;
    let timeline = Timeline::until_complete(&mut events, prefix, BATCH).await;
    Times::of(timeline.hand_overs(SLOTS))
}

/// Hands over a batch of Jobs with the fewest possible requests, while this many others hold slots beside them: the
/// transactions one after another, because each depends on the one before, and the PATCHes concurrently.
pub(crate) async fn floor_batch(bed: &Bed, others: usize) -> Times {
    floor_batch_of(bed, 1, others).await
}

/// The same with a slot of this many semaphores for each Job, in the same transactions.
async fn floor_batch_of(bed: &Bed, semaphores: usize, others: usize) -> Times {
    let team = bed.namespace("floor").await;
    let mut events = follow(&team);
    let names = create(&team, "job-", BATCH, |job| job.runs(RUNS)).await;
    let (limit, jobs) = (SLOTS + others, names.len() + others);
    let raw = Arc::new(Raw::new(bed, &team, semaphores, limit, jobs).await);
    let mut starts = JoinSet::new();
    let mut waiting = names.iter().enumerate();
    let mut slots: Vec<usize> = (names.len()..names.len() + others).collect();
    for (number, name) in waiting.by_ref().take(SLOTS) {
        slots.push(number);
        raw.hand_over(&slots, None, number).await;
        raw.start(name, number).await;
    }
    let mut timeline = Timeline::default();
    let numbers: HashMap<&str, usize> = names
        .iter()
        .enumerate()
        .map(|(number, name)| (name.as_str(), number))
        .collect();
    while timeline.completed.len() < BATCH {
        let (name, seen, at) = events.recv().await.expect("an event");
        timeline.note(seen, at);
        if seen == Seen::Complete
            && let Some((number, next)) = waiting.next()
        {
            let ended = numbers[name.as_str()];
            slots.retain(|held| *held != ended);
            slots.push(number);
            raw.hand_over(&slots, Some(ended), number).await;
            let (raw, next) = (raw.clone(), next.clone());
            starts.spawn(async move { raw.start(&next, number).await });
        }
    }
    starts.join_all().await;
    Times::of(timeline.hand_overs(SLOTS))
}
