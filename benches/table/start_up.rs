//! The start of the operator: with much existing state, and with none; and the size of its program.

use std::{
    fmt::Debug,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use serde::de::DeserializeOwned;
use testbed::{Bed, Namespace, Semaphore};
use tokio::sync::mpsc;

use crate::{
    figures::{Goal, Row},
    load::{self, scaled},
    process::all_rests,
    timeline::{Seen, Sight, follow},
};

const RUNNING: usize = 1000;
const WAITING: usize = 10_000;

/// How many objects one page of a list has.
const PAGE: u32 = 500;

/// The path of the shipped program, once `make bench` has built it.
const SHIPPED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/target/release/consul-semaphore-operator"
);

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let mut rows = vec![ready_row(runs).await, size_row()];
    rows.extend(first_grant_rows(runs).await);
    rows
}

/// From the process's start to `/readyz`, without existing state.
async fn ready_row(runs: usize) -> Row {
    let bed = Bed::start().await;
    let mut times = Vec::new();
    for _ in 0..runs {
        bed.operator().stop().await;
        let started = Instant::now();
        bed.operator().start().await;
        times.push(started.elapsed().as_secs_f64());
    }
    Row::alone(
        "start to ready, nothing there",
        "s",
        times,
        Goal::AtMost(1.0),
    )
}

fn size_row() -> Row {
    let run = testbed::operator_program().expect("a program");
    let shipped = Path::new(SHIPPED);
    let program = if shipped.is_file() { shipped } else { &run };
    let size = fs::metadata(program).expect("a program").len() as f64;
    let size = size / f64::from(1 << 20);
    Row::alone("size of the program", "MiB", vec![size], Goal::AtMost(15.0))
}

/// From the process's start to the first grant that was due then: on a free semaphore, and on the one that all other
/// Jobs use.
async fn first_grant_rows(runs: usize) -> Vec<Row> {
    let mut stage = Stage::build().await;
    let (mut elsewhere, mut here, mut lists) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs {
        let first = stage.restart(run).await;
        elsewhere.push(first.elsewhere.as_secs_f64());
        here.push(first.here.as_secs_f64());
        lists.push(stage.list_all().await.as_secs_f64());
    }
    let (running, waiting) = (running(), scaled(WAITING));
    let row = |at: &str, times| {
        let what = format!("start to first grant {at}, {running} Jobs running, {waiting} waiting");
        Row::of(
            what,
            "s",
            times,
            ("one list of each", lists.clone()),
            Goal::AtMost(2.0),
        )
    };
    vec![
        row("at a free semaphore", elsewhere),
        row("at theirs", here),
    ]
}

/// How many Jobs run: with a `SCALE` above 1 only more wait, because each that runs takes a session and pods.
fn running() -> usize {
    scaled(RUNNING).min(RUNNING)
}

/// A semaphore with many running and more waiting Jobs, and another one that is free.
struct Stage {
    bed: Bed,
    team: Namespace,
    db: Semaphore,
    events: mpsc::Receiver<Sight>,
}

/// The first grants after a start.
struct First {
    elsewhere: Duration,
    here: Duration,
}

impl Stage {
    async fn build() -> Self {
        let bed = Bed::start().await;
        let team = bed.namespace("start").await;
        let mut events = follow(&team);
        team.semaphore("free").create().await.is_ready().await;
        let (running, waiting) = (running(), scaled(WAITING));
        let limit = running.try_into().expect("a limit");
        let db = team.semaphore("db").limit(limit).paused(true);
        let db = db.create().await;
        load::jobs(&team, "job-", running + waiting, |_, job| {
            job.runs("24h").semaphore("db")
        })
        .await;
        db.resume().await;
        load::started(&mut events, running).await;
        all_rests(&bed).await;
        Self {
            bed,
            team,
            db,
            events,
        }
    }

    /// Restarts the operator. While it is down, a slot becomes free, and a Job arrives whose slot is free.
    async fn restart(&mut self, run: usize) -> First {
        let operator = self.bed.operator();
        operator.stop().await;
        self.team.job(&format!("job-{run:05}")).finish().await;
        let newcomer = format!("newcomer-{run}-");
        load::jobs(&self.team, &newcomer, 1, |_, job| {
            job.runs("1s").semaphore("free")
        })
        .await;
        while self.events.try_recv().is_ok() {}
        let started = Instant::now();
        let ((), first) = tokio::join!(operator.start(), first_starts(&mut self.events, &newcomer));
        let [elsewhere, here] = first.map(|at| at.saturating_duration_since(started));
        all_rests(&self.bed).await;
        First { elsewhere, here }
    }

    /// How long it takes to read everything that a start has to know, once and sequentially.
    async fn list_all(&self) -> Duration {
        let kubernetes = self
            .bed
            .kubernetes()
            .expect("a Kubernetes of the bed's own");
        let started = Instant::now();
        let client = kubernetes.client().await;
        let any = ListParams::default();
        list(Api::<Job>::all(client.clone()), &any).await;
        let holders = any.clone().labels("consul-semaphore.io/holder=true");
        list(Api::<Pod>::all(client.clone()), &holders).await;
        let kind = GroupVersionKind::gvk("consul-semaphore.io", "v1alpha1", "ConsulSemaphore");
        let kind = ApiResource::from_gvk(&kind);
        list(Api::<DynamicObject>::all_with(client, &kind), &any).await;
        let prefix = format!("{}/", self.db.lock_prefix());
        self.bed.consul().list(&prefix).await;
        started.elapsed()
    }
}

/// Lists all objects, page by page, and keeps them.
async fn list<K>(api: Api<K>, what: &ListParams) -> Vec<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = what.clone().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&params).await.expect("a list");
        all.extend(page.items);
        match page.metadata.continue_ {
            Some(more) if !more.is_empty() => params = params.continue_token(&more),
            _ => return all,
        }
    }
}

/// When the first Job whose name begins like this was seen to start, and the first with another name.
async fn first_starts(events: &mut mpsc::Receiver<Sight>, prefix: &str) -> [Instant; 2] {
    let (mut such, mut other) = (None, None);
    loop {
        let (name, seen, at) = events.recv().await.expect("an event");
        if seen == Seen::Started {
            let first = if name.starts_with(prefix) {
                &mut such
            } else {
                &mut other
            };
            first.get_or_insert(at);
        }
        if let (Some(such), Some(other)) = (such, other) {
            return [such, other];
        }
    }
}
