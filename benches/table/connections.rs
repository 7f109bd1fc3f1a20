//! How many connections to Consul a thousand semaphores cost, and how much time it costs the semaphores whose prefix
//! has no connection to wait for changes: it is read periodically.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use consul_client::Config;
use testbed::{Bed, Namespace};
use tokio::{sync::mpsc, task::AbortHandle, time::interval};

use crate::{
    figures::{Goal, Row},
    load::{self, Taken, scaled},
    process::{Process, kubernetes_rests},
    timeline::{Sight, follow},
};

/// How many semaphores there are, with a Job that waits for each.
const SEMAPHORES: usize = 1000;

/// How many slots are freed in a run, one after another.
const GRANTS: usize = 50;

/// How many slots are freed at once in a run.
const AT_ONCE: usize = 50;

/// How many connections there may be besides those that wait for changes: one for each call that the client makes at once
/// in its own datacenter.
const BESIDE: u32 = 34;

/// Between two counts of the connections.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let most = MostConnections::watch(&bed).await;
    let team = bed.namespace("many").await;
    let semaphores = scaled(SEMAPHORES);
    let events = follow(&team);
    let taken = load::full_semaphores(bed.consul(), &team, semaphores, 1).await;
    kubernetes_rests(&bed).await;
    let mut full: Vec<usize> = (0..semaphores).collect();
    fastrand::shuffle(&mut full);
    let mut grants = Grants {
        team,
        taken,
        full,
        events,
    };
    let starting = most.take();
    let (mut connections, mut medians, mut latest) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let mut times = Vec::new();
        for _ in 0..scaled(GRANTS) {
            times.push(grants.one().await.as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        medians.push(times[times.len() / 2]);
        latest.extend(times.last());
        grants.at_once(scaled(AT_ONCE)).await;
        connections.push(most.take());
    }
    let allowed = Config::MAX_WATCHES + BESIDE;
    let goal = Goal::AtMost(f64::from(allowed));
    let what = format!("connections to Consul, {semaphores} semaphores");
    let grant =
        format!("a slot is given back elsewhere, to the Job started, {semaphores} semaphores");
    vec![
        Row::alone(format!("{what}, starting"), "", vec![starting], goal),
        Row::alone(format!("{what}, granting"), "", connections, goal),
        Row::alone(format!("{grant}, median"), "s", medians, Goal::None),
        Row::alone(format!("{grant}, latest"), "s", latest, Goal::AtMost(2.0)),
    ]
}

/// The most connections from the operator to Consul that were seen at once.
struct MostConnections {
    seen: Arc<AtomicUsize>,
    watching: AbortHandle,
}

impl MostConnections {
    async fn watch(bed: &Bed) -> Self {
        let process = Process::of(bed.operator()).await;
        let address = bed.consul().address().trim_start_matches("http://");
        let consul: SocketAddr = address.parse().expect("an address");
        let seen = Arc::new(AtomicUsize::new(0));
        let most = seen.clone();
        let watching = tokio::spawn(async move {
            let mut looks = interval(LOOK);
            loop {
                looks.tick().await;
                most.fetch_max(process.connections_to(consul), Ordering::Relaxed);
            }
        });
        Self {
            seen,
            watching: watching.abort_handle(),
        }
    }

    /// The most since the last call.
    fn take(&self) -> f64 {
        self.seen.swap(0, Ordering::Relaxed) as f64
    }
}

impl Drop for MostConnections {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Semaphores, each with a Job that waits for the slot that another program holds.
struct Grants {
    team: Namespace,
    taken: Taken,
    /// Those whose slot is taken, in random order.
    full: Vec<usize>,
    events: mpsc::Receiver<Sight>,
}

impl Grants {
    /// How long it takes from the end of another program's hold to the start of the Job that waits.
    async fn one(&mut self) -> Duration {
        self.free().await;
        let freed = Instant::now();
        load::started(&mut self.events, 1)
            .await
            .saturating_duration_since(freed)
    }

    /// Many of them at once.
    async fn at_once(&mut self, many: usize) {
        for _ in 0..many {
            self.free().await;
        }
        load::started(&mut self.events, many).await;
    }

    async fn free(&mut self) {
        let number = self.full.pop().expect("a semaphore that is full");
        let semaphore = self.team.semaphore(&format!("db-{number}"));
        self.taken.give_back(&semaphore.lock_prefix()).await;
    }
}
