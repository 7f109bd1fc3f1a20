//! What the operator requests from the servers while nothing happens: counted by proxies in front of them.

use std::time::Duration;

use testbed::{Bed, Call, Proxy};
use tokio::time::sleep;

use crate::{
    figures::{Goal, Row},
    load::{self, scaled},
    process::{Process, kubernetes_rests},
    timeline::follow,
};

const RUNNING: usize = 1000;
const WAITING: usize = 10_000;

/// The TTL of the sessions.
const TTL: Duration = Duration::from_secs(30);

/// How long calls are counted: as long as three renewals of each session take.
const WINDOW: Duration = TTL;

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::builder().without_operator().start().await;
    let consul = Proxy::start(bed.consul().address()).await;
    let (kubernetes, kubeconfig) = bed.proxy_to_kubernetes().await;
    let env = [
        ("CONSUL_HTTP_ADDR", consul.address()),
        ("KUBECONFIG", kubeconfig.display().to_string()),
    ];
    let operator = bed.another_operator("operator", [""; 0], env);
    operator.start().await;
    let process = Process::of(&operator).await;

    let team = bed.namespace("idle").await;
    let mut events = follow(&team);
    let (running, waiting) = (scaled(RUNNING), scaled(WAITING));
    let db = team
        .semaphore("db")
        .limit(running.try_into().expect("a limit"));
    let db = db.ttl(&format!("{}s", TTL.as_secs())).paused(true);
    let db = db.create().await;
    let describe = |_, job: testbed::Job| job.runs("24h").semaphore("db");
    load::jobs(&team, "runs-", running, describe).await;
    db.resume().await;
    load::started(&mut events, running).await;
    kubernetes_rests(&bed).await;
    sleep(TTL).await;
    let consul = Rates::measure(&consul, runs).await;

    load::jobs(&team, "waits-", waiting, describe).await;
    db.shows(serde_json::json!({ "waiting": waiting })).await;
    kubernetes_rests(&bed).await;
    process.rests().await;
    all_events_are_written(&kubernetes).await;
    let kubernetes = Rates::measure(&kubernetes, runs).await;

    let mut rows = of_consul(&consul, running);
    rows.extend(of_kubernetes(&kubernetes, waiting));
    rows
}

fn of_consul(consul: &Rates, running: usize) -> Vec<Row> {
    let what = format!("Consul requests while nothing happens, {running} Jobs running");
    let least = running as f64 / (TTL / 3).as_secs_f64();
    let least = vec![least; consul.0.len()];
    let against = ("one renewal a Job each TTL/3", least);
    let renewals = consul.of(Call::is_renewal);
    let others = consul.of(|call| !call.is_renewal());
    vec![
        Row::of(
            what.clone(),
            UNIT,
            consul.of(|_| true),
            against,
            Goal::AtMost(1.1),
        ),
        Row::alone(format!("{what}: renewals"), UNIT, renewals, Goal::None),
        Row::alone(format!("{what}: others"), UNIT, others, Goal::None),
    ]
}

fn of_kubernetes(kubernetes: &Rates, waiting: usize) -> Vec<Row> {
    let what = format!("API requests while nothing happens, {waiting} Jobs waiting");
    let row = |of: &str, calls: fn(&Call) -> bool, goal| {
        Row::alone(format!("{what}: {of}"), UNIT, kubernetes.of(calls), goal)
    };
    vec![
        row("watches begun again", is_watch, Goal::None),
        row("renewals of the lease", is_lease, Goal::None),
        row("others", is_about_something, Goal::AtMost(0.0)),
    ]
}

const UNIT: &str = "/s";

fn is_watch(call: &Call) -> bool {
    call.query.contains("watch=true")
}

fn is_lease(call: &Call) -> bool {
    call.path.contains("/leases/")
}

/// Whether it is not one of the permanent background calls.
fn is_about_something(call: &Call) -> bool {
    !is_watch(call) && !is_lease(call)
}

/// Waits until each Job has the event that it waits: they are written one after another. For five minutes at most:
/// later calls are not caused by what has happened.
async fn all_events_are_written(kubernetes: &Proxy) {
    let mut silent = 0;
    for _ in 0..300 {
        let before = kubernetes.calls().len();
        sleep(Duration::from_secs(1)).await;
        let calls = kubernetes.calls().split_off(before);
        silent = if calls.iter().any(is_about_something) {
            0
        } else {
            silent + 1
        };
        if silent == 5 {
            return;
        }
    }
}

/// The calls of each run.
struct Rates(Vec<Vec<Call>>);

impl Rates {
    async fn measure(proxy: &Proxy, runs: usize) -> Self {
        let mut counted = Vec::new();
        for _ in 0..runs {
            let before = proxy.calls().len();
            sleep(WINDOW).await;
            counted.push(proxy.calls().split_off(before));
        }
        Self(counted)
    }

    /// How many calls per second were of this kind, in each run.
    fn of(&self, kind: impl Fn(&Call) -> bool) -> Vec<f64> {
        let runs = self.0.iter();
        runs.map(|calls| calls.iter().filter(|call| kind(call)).count() as f64)
            .map(|calls| calls / WINDOW.as_secs_f64())
            .collect()
    }
}
