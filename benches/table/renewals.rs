//! Renewals while Consul takes long to commit what is written: a renewal commits nothing, and must not wait for what
//! does.
//!
//! A proxy delays everything that is committed, and records when each session is renewed. Jobs hand over beside the
//! holders, so that something is committed all the time.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::json;
use testbed::{Bed, Call, Namespace, Proxy};
use tokio::time::sleep;

use crate::{
    figures::{Goal, Row},
    load::{self, scaled},
    many_holders::generations,
    process::kubernetes_rests,
    timeline::follow,
};

/// How many Jobs hold a slot, at how many semaphores: the body of a single `.lock` would be too long for Consul.
const HOLDERS: usize = 10_000;
const SEMAPHORES: usize = 4;

/// How long each commit takes.
const COMMIT: Duration = Duration::from_secs(1);

/// The TTL of the sessions, which are due after a third of it.
const TTL: Duration = Duration::from_mins(1);

/// How long this is watched.
const WINDOW: Duration = Duration::from_mins(2);

pub(crate) async fn rows(_runs: usize) -> Vec<Row> {
    let bed = Bed::builder().without_operator().start().await;
    let (slow, renewals) = (Arc::new(AtomicBool::new(false)), Renewals::default());
    let consul = consul(&bed, slow.clone(), renewals.clone()).await;
    let env = [("CONSUL_HTTP_ADDR", consul.address())];
    let operator = bed.another_operator("operator", [""; 0], env);
    operator.start().await;
    let team = bed.namespace("renewals").await;
    let each = scaled(HOLDERS / SEMAPHORES);
    fill(&team, each).await;
    kubernetes_rests(&bed).await;
    let before = (holders(&bed, &team).await, generations(&team).await);

    slow.store(true, Ordering::Relaxed);
    let moves = team.semaphore("moves").limit(3).create().await;
    load::jobs(&team, "moves-", 3 * 60, |_, job| {
        job.runs("1s").semaphore(moves.name())
    })
    .await;
    sleep(WINDOW).await;
    let longest = renewals.longest(&before.0);
    slow.store(false, Ordering::Relaxed);
    let held = holders(&bed, &team).await;
    let now = generations(&team).await;

    let what = format!(
        "{} holders, each commit takes {} s",
        each * SEMAPHORES,
        COMMIT.as_secs()
    );
    let none =
        |what: String, count: usize| Row::alone(what, "", vec![count as f64], Goal::AtMost(0.0));
    vec![
        Row::alone(
            format!("longest time between renewals of a session, in TTLs; {what}"),
            "",
            vec![longest.as_secs_f64() / TTL.as_secs_f64()],
            Goal::AtMost(0.5),
        ),
        none(
            format!("slots lost; {what}"),
            before.0.difference(&held).count(),
        ),
        none(
            format!("Jobs stopped; {what}"),
            before.1.difference(&now).count(),
        ),
    ]
}

/// A proxy in front of Consul that delays commits while it is `slow`.
async fn consul(bed: &Bed, slow: Arc<AtomicBool>, renewals: Renewals) -> Proxy {
    let address = bed.consul().address().trim_start_matches("http://");
    let carry = move |call: Call, next: testbed::Next| {
        let commits = call.writes() && !call.is_renewal();
        let waits = commits && slow.load(Ordering::Relaxed);
        if call.is_renewal() {
            renewals.note(&call);
        }
        async move {
            if waits {
                sleep(COMMIT).await;
            }
            next.send(call).await
        }
    };
    let proxy = Proxy::before([format!("http://{address}")]).carried_by(carry);
    proxy.start().await.expect("a proxy")
}

fn name(number: usize) -> String {
    format!("db-{number}")
}

/// Has this many Jobs hold a slot of each semaphore.
async fn fill(team: &Namespace, each: usize) {
    let mut events = follow(team);
    let limit = each.try_into().expect("a limit");
    for number in 0..SEMAPHORES {
        let semaphore = team.semaphore(&name(number)).limit(limit).paused(true);
        let semaphore = semaphore.ttl(&format!("{}s", TTL.as_secs())).create().await;
        load::jobs(team, &format!("holds-{number}-"), each, |_, job| {
            job.runs("24h").semaphore(semaphore.name())
        })
        .await;
        semaphore.resume().await;
        load::started(&mut events, each).await;
        semaphore.shows(json!({ "held": each })).await;
    }
}

/// The sessions that hold the slots.
async fn holders(bed: &Bed, team: &Namespace) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for number in 0..SEMAPHORES {
        let prefix = team.semaphore(&name(number)).lock_prefix();
        all.extend(bed.consul().holders(&prefix).await);
    }
    all
}

/// When each session was renewed last, and the longest time between two renewals of it.
#[derive(Clone, Default)]
struct Renewals(Arc<Mutex<HashMap<String, (Instant, Duration)>>>);

impl Renewals {
    fn note(&self, call: &Call) {
        let session = call.path.rsplit('/').next().unwrap_or_default();
        let (mut known, now) = (self.0.lock(), Instant::now());
        let (last, longest) = known
            .entry(session.to_owned())
            .or_insert((now, Duration::ZERO));
        *longest = (*longest).max(now - *last);
        *last = now;
    }

    /// The longest of these sessions, up to now.
    fn longest(&self, sessions: &BTreeSet<String>) -> Duration {
        let (known, now) = (self.0.lock(), Instant::now());
        let longest = sessions.iter().map(|session| match known.get(session) {
            Some((last, longest)) => (*longest).max(now - *last),
            None => Duration::MAX,
        });
        longest.max().unwrap_or(Duration::MAX)
    }
}
