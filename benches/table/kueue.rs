//! Compared with Kueue, a queue for Jobs within one cluster: the same loads on the same bed, in turns. While one
//! works, the other has nothing to do.
//!
//! A hand-over is measured as in `hand_over.rs`, a burst as in `burst.rs`: Kueue's starts with the answer to the
//! PATCH that opens a held queue with enough quota for all.

use std::time::Instant;

use testbed::{Bed, Kueue};

use crate::{
    burst,
    figures::{Goal, Row, Times, rows_of_times},
    hand_over, process,
    timeline::{Timeline, create, follow},
};

/// How many Jobs it hands over in a run: fewer than ours, because it takes a second for three of them.
const BATCH: usize = 45;

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let kueue = Kueue::start(&bed).await;
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    let (mut our_bursts, mut their_bursts) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        our_times.push(hand_over::our_batch(&bed).await);
        their_times.push(hand_overs(&bed, &kueue).await);
        our_bursts.push(burst::our_batch(&bed).await);
        their_bursts.push(a_burst(&bed, &kueue).await);
    }
    let times = rows_of_times(
        &format!("hand-over, limit {}", hand_over::SLOTS),
        &our_times,
        ("Kueue", &their_times),
        Goal::AtLeast(50.0),
    );
    let burst = Row::of(
        format!("burst: {} waiting Jobs", burst::JOBS),
        "Jobs/s",
        our_bursts,
        ("Kueue", their_bursts),
        Goal::AtLeast(3.0),
    );
    let mut rows: Vec<Row> = times.into_iter().map(Row::how_many_times_faster).collect();
    rows.push(burst);
    rows
}

/// Has Kueue hand over a batch of Jobs.
async fn hand_overs(bed: &Bed, kueue: &Kueue) -> Times {
    let team = bed.namespace("kueue").await;
    let queue = kueue.queue(&team, hand_over::SLOTS).await;
    let mut events = follow(&team);
    create(&team, "job-", BATCH, |job| {
        queue.takes(job.runs(hand_over::RUNS))
    })
    .await;
    queue.shows_waiting(BATCH).await;
    queue.open().await;
    let timeline = Timeline::until_complete(&mut events, "job-", BATCH).await;
    burst::clear(bed, &team).await;
    Times::of(timeline.hand_overs(hand_over::SLOTS))
}

/// Has Kueue start a batch of Jobs at once.
async fn a_burst(bed: &Bed, kueue: &Kueue) -> f64 {
    let team = bed.namespace("kueue").await;
    let queue = kueue.queue(&team, burst::JOBS).await;
    let mut events = follow(&team);
    create(&team, "job-", burst::JOBS, |job| {
        queue.takes(job.runs(burst::RUNS))
    })
    .await;
    queue.shows_waiting(burst::JOBS).await;
    process::all_rests(bed).await;
    queue.open().await;
    let rate = burst::rate(&mut events, Instant::now()).await;
    burst::clear(bed, &team).await;
    rate
}
