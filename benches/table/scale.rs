//! A hand-over under load: a thousand semaphores with ten thousand waiting Jobs, a thousand keys.
//!
//! The servers have more to do then, too, and share this machine with the operator. So the table also shows how many
//! times the floor a hand-over takes, with the floor measured under both loads.

use serde_json::json;
use testbed::{Bed, Consul, Namespace, Semaphore};

use crate::{
    figures::{Goal, Row, Times, rows_of_times},
    hand_over::{self, RUNS, SLOTS},
    load::{self, Taken, scaled},
    process::kubernetes_rests,
    timeline::{Timeline, follow},
};

const GOAL: Goal = Goal::AtMost(1.2);

/// How many Jobs wait for each of the other semaphores.
const WAITING: usize = 10;

/// How many semaphores there are.
const SEMAPHORES: usize = 1000;

/// How many keys are held besides the one that is measured.
const KEYS: usize = 1000;

/// How many Jobs are handed over on a key in a run.
const BATCH: usize = 100;

/// Hand-overs on one semaphore, first beside one other and then beside many.
pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let others = bed.namespace("few").await;
    load::full_semaphores(bed.consul(), &others, 1, WAITING).await;
    let few = Side::measure(&bed, runs).await;
    let others = bed.namespace("many").await;
    let semaphores = scaled(SEMAPHORES);
    load::full_semaphores(bed.consul(), &others, semaphores, WAITING).await;
    let many = Side::measure(&bed, runs).await;
    let what = |semaphores| {
        let waiting = semaphores * WAITING;
        format!("hand-over beside {semaphores} semaphores, {waiting} Jobs waiting")
    };
    let compared = |share: &str, figure: fn(&Times) -> f64| {
        let what = format!("{}, in floors, {share}", what(semaphores));
        let against = ("beside 1", few.in_floors(figure));
        Row::of(what, "×", many.in_floors(figure), against, Goal::None)
    };
    let beside = |semaphores, side: &Side| {
        let floor = ("raw txn + PATCH", side.floor.as_slice());
        rows_of_times(&what(semaphores), &side.ours, floor, Goal::None)
    };
    let mut rows = beside(1, &few);
    rows.extend(beside(semaphores, &many));
    let beside_one = ("beside 1", few.ours.as_slice());
    rows.extend(rows_of_times(
        &what(semaphores),
        &many.ours,
        beside_one,
        GOAL,
    ));
    rows.push(compared("p50", |times| times.p50));
    rows.push(compared("p99", |times| times.p99));
    rows
}

/// What was measured beside this many others.
struct Side {
    ours: Vec<Times>,
    floor: Vec<Times>,
}

impl Side {
    async fn measure(bed: &Bed, runs: usize) -> Self {
        kubernetes_rests(bed).await;
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            ours.push(hand_over::our_batch(bed).await);
            floor.push(hand_over::floor_batch(bed, 0).await);
        }
        Self { ours, floor }
    }

    /// How many times the floor ours took.
    fn in_floors(&self, figure: fn(&Times) -> f64) -> Vec<f64> {
        let pairs = self.ours.iter().zip(&self.floor);
        pairs
            .map(|(ours, floor)| figure(ours) / figure(floor))
            .collect()
    }
}

/// Hand-overs on one key of a keyed semaphore, alone and beside many keys, in turns.
pub(crate) async fn keyed_rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let keys = scaled(KEYS);
    let (alone, crowd) = (Keyed::new(&bed, 0).await, Keyed::new(&bed, keys).await);
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for run in 0..runs {
        one.push(alone.batch(run).await);
        many.push(crowd.batch(run).await);
    }
    let what = format!("hand-over on one key beside {keys} keys");
    rows_of_times(&what, &many, ("that key alone", &one), GOAL)
}

/// A keyed semaphore, with this many keys held by another program.
struct Keyed {
    consul: Consul,
    team: Namespace,
    db: Semaphore,
}

impl Keyed {
    async fn new(bed: &Bed, keys: usize) -> Self {
        let team = bed.namespace("keys").await;
        let db = team.semaphore("db").limit(3);
        let db = db.spec(json!({ "keyed": true })).create().await;
        db.is_ready().await;
        let prefix = db.lock_prefix();
        let taken: Vec<String> = (0..keys).map(|key| format!("{prefix}/key-{key}")).collect();
        Taken::new(bed.consul(), &taken, SLOTS).await;
        db.shows(json!({ "held": keys, "keysInUse": keys })).await;
        let consul = bed.consul().clone();
        Self { consul, team, db }
    }

    /// Hands over a batch of Jobs on a key whose slots were held by others until all were queued: pausing would be a
    /// change for all keys.
    async fn batch(&self, run: usize) -> Times {
        let Self { consul, team, db } = self;
        let prefix = format!("{}/measured", db.lock_prefix());
        let mut others = Vec::new();
        for _ in 0..SLOTS {
            others.push(consul.take_slot(&prefix, SLOTS as u64).await);
        }
        let mut events = follow(team);
        let own = format!("run-{run}-");
        load::jobs(team, &own, BATCH, |_, job| {
            let job = job.runs(RUNS).semaphore(db.name());
            job.annotation("consul-semaphore.io/key", "measured")
        })
        .await;
        db.shows(json!({ "waiting": BATCH })).await;
        for other in others {
            consul.give_back(&prefix, &other).await;
        }
        let line = Timeline::until_complete(&mut events, &own, BATCH).await;
        Times::of(line.hand_overs(SLOTS))
    }
}
