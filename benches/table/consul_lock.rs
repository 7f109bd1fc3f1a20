//! Compared with `consul lock -n 3`: processes that wait for the same kind of slots as our Jobs, and the same
//! processes under `exec`.
//!
//! All of them wait before the slots are released. A hand-over is from the end of one child to the start of the next,
//! as the children themselves record as their first and last action: it includes starting a child, which a Job's does
//! not.

use std::{fs, path::Path, time::Duration};

use testbed::{Bed, SlotClientBuilder};

use crate::{
    figures::{Goal, Row, Times, rows_of_times},
    hand_over::{self, SLOTS},
};

/// How many times faster ours must be.
const FASTER: f64 = 1.25;

/// How many processes wait together.
const BATCH: usize = 30;

/// What each of them runs.
const CHILD: &str = r#"
echo "start $EPOCHREALTIME" >>"$0"
sleep 0.2
echo "end $EPOCHREALTIME" >>"$0"
"#;

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let limit = u32::try_from(SLOTS).expect("a limit");
    let (mut jobs, mut exec, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs {
        jobs.push(hand_over::our_batch(&bed).await);
        let name = format!("exec-{run}");
        exec.push(processes(&bed, &name, |prefix| bed.exec(&name, prefix, limit)).await);
        let name = format!("lock-{run}");
        theirs.push(processes(&bed, &name, |prefix| bed.consul_lock(&name, prefix, limit)).await);
    }
    let faster = |what: &str, ours: &[Times]| {
        let what = format!("hand-over {what}, limit {SLOTS}");
        let theirs = ("processes under `consul lock`", theirs.as_slice());
        let rows = rows_of_times(&what, ours, theirs, Goal::AtLeast(FASTER));
        rows.into_iter().map(Row::how_many_times_faster)
    };
    let rows = faster("of processes under `exec`", &exec);
    rows.chain(faster("of Jobs", &jobs)).collect()
}

/// Hands over a batch of processes.
async fn processes(bed: &Bed, name: &str, waits: impl Fn(&str) -> SlotClientBuilder) -> Times {
    let (consul, prefix) = (bed.consul(), format!("locks/{name}"));
    let notes = bed.folder().path().join(name);
    let mut holders = Vec::new();
    for _ in 0..SLOTS {
        holders.push(consul.take_slot(&prefix, SLOTS as u64).await);
    }
    let mut waiting = Vec::new();
    for number in 1..=BATCH {
        let child = ["bash", "-c", CHILD, &notes.to_string_lossy()];
        waiting.push(waits(&prefix).running(child).start().await);
        testbed::eventually("it waits", || async {
            testbed::same(consul.contenders(&prefix).await.len(), SLOTS + number)
        })
        .await;
    }
    for holder in holders {
        consul.give_back(&prefix, &holder).await;
    }
    for process in &waiting {
        process.is_done().await;
    }
    let (starts, ends) = (noted(&notes, "start"), noted(&notes, "end"));
    let starts = starts.into_iter().skip(SLOTS);
    let hand_overs = starts
        .zip(ends)
        .map(|(start, end)| start.saturating_sub(end));
    Times::of(hand_overs.collect())
}

/// When the children recorded this, in order, since the epoch.
fn noted(notes: &Path, what: &str) -> Vec<Duration> {
    let notes = fs::read_to_string(notes).expect("the children's notes");
    let mut times: Vec<Duration> = notes
        .lines()
        .filter_map(|line| line.strip_prefix(what)?.trim().parse().ok())
        .map(Duration::from_secs_f64)
        .collect();
    times.sort();
    assert_eq!(times.len(), BATCH, "every child notes a time");
    times
}
