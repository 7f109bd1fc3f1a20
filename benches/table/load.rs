//! Heavy load: thousands of Jobs and semaphores.

use std::time::Instant;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::batch::v1;
use serde_json::{Value, json};
use testbed::{Consul, Job, Namespace, SEMAPHORE_FLAGS};
use tokio::sync::mpsc;

use crate::timeline::{Seen, Sight};

/// How many objects are created, or read, at once.
const AT_ONCE: usize = 16;

/// How many prefixes are taken in one transaction.
const TAKEN: usize = 30;

/// The part of a load that `SCALE` says: all of it, or with `SCALE=0.1` a tenth, to try something out.
pub(crate) fn scaled(all: usize) -> usize {
    let scale = std::env::var("SCALE").ok();
    let scale: f64 = scale.map_or(1.0, |scale| scale.parse().expect("SCALE is a number"));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of objects"
    )]
    let scaled = (all as f64 * scale).ceil() as usize;
    scaled
}

/// The results for each number below `count`, a few at once, in order.
pub(crate) async fn each<F: Future>(count: usize, made: impl Fn(usize) -> F) -> Vec<F::Output> {
    let making = stream::iter(0..count).map(made);
    making.buffered(AT_ONCE).collect().await
}

/// Creates this many suspended Jobs, and waits until Kubernetes shows all of them as suspended; `describe` adds to
/// each by its number. Their names are `<prefix>00000` and so on.
pub(crate) async fn jobs(
    team: &Namespace,
    prefix: &str,
    count: usize,
    describe: impl Fn(usize, Job) -> Job,
) -> Vec<String> {
    let job = |number| team.job(&format!("{prefix}{number:05}"));
    each(count, |number| describe(number, job(number)).create()).await;
    let shown = |number| async move {
        let job = job(number);
        job.is("suspended, and shown so", is_idle).await;
        job.name().to_owned()
    };
    each(count, shown).await
}

fn is_idle(job: &v1::Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| &status.conditions);
    conditions
        .flatten()
        .any(|condition| condition.status == "True" && condition.type_ == "Suspended")
}

/// This many semaphores of limit 1, `db-0` and so on, each held by another program, and this many Jobs that wait for
/// each of them.
pub(crate) async fn full_semaphores(
    consul: &Consul,
    team: &Namespace,
    count: usize,
    waiting: usize,
) -> Taken {
    let semaphore = |number: usize| team.semaphore(&format!("db-{number}"));
    let prefixes: Vec<String> = (0..count)
        .map(|number| semaphore(number).lock_prefix())
        .collect();
    let taken = Taken::new(consul, &prefixes, 1).await;
    each(count, |number| semaphore(number).create()).await;
    jobs(team, "waits-", count * waiting, |number, job| {
        job.semaphore(semaphore(number / waiting).name())
    })
    .await;
    let shown = |number| async move {
        let here = json!({ "held": 1, "waiting": waiting });
        semaphore(number).shows(here).await;
    };
    each(count, shown).await;
    taken
}

/// Slots held by another program: one of each of many semaphores, all under one session.
pub(crate) struct Taken {
    consul: Consul,
    session: String,
    limit: usize,
}

impl Taken {
    /// Takes a slot at each of these prefixes, which are unused.
    pub(crate) async fn new(consul: &Consul, prefixes: &[String], limit: usize) -> Self {
        let session = json!({ "TTL": "24h", "Behavior": "delete" });
        let session = consul.create_session(session).await;
        let taken = Self {
            consul: consul.clone(),
            session,
            limit,
        };
        for prefixes in prefixes.chunks(TAKEN) {
            let operations: Vec<Value> = prefixes
                .iter()
                .flat_map(|prefix| [taken.contender("lock", prefix), taken.lock(prefix, true)])
                .collect();
            taken.write(operations).await;
        }
        taken
    }

    /// Gives back the slot at this prefix.
    pub(crate) async fn give_back(&self, prefix: &str) {
        self.write(vec![
            self.lock(prefix, false),
            self.contender("delete", prefix),
        ])
        .await;
    }

    /// An operation on the contender key.
    fn contender(&self, verb: &str, prefix: &str) -> Value {
        let session = &self.session;
        json!({ "KV": {
            "Verb": verb, "Key": format!("{prefix}/{session}"), "Session": session,
            "Flags": SEMAPHORE_FLAGS, "Value": BASE64.encode("x".repeat(280)),
        } })
    }

    /// The operation that writes `.lock`, with this one holder or none.
    fn lock(&self, prefix: &str, held: bool) -> Value {
        let holders = if held {
            json!({ &self.session: true })
        } else {
            json!({})
        };
        let body = json!({ "Limit": self.limit, "Holders": holders }).to_string();
        json!({ "KV": {
            "Verb": "set", "Key": format!("{prefix}/.lock"),
            "Flags": SEMAPHORE_FLAGS, "Value": BASE64.encode(body),
        } })
    }

    async fn write(&self, operations: Vec<Value>) {
        self.consul.put_json("txn", operations.into()).await;
    }
}

/// When this many more Jobs had been seen to start.
pub(crate) async fn started(events: &mut mpsc::Receiver<Sight>, jobs: usize) -> Instant {
    let mut left = jobs;
    loop {
        let (_, seen, at) = events.recv().await.expect("an event");
        left -= usize::from(seen == Seen::Started);
        if left == 0 {
            return at;
        }
    }
}
