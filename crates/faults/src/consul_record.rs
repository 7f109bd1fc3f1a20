//! Every revision of every `.lock`.
//!
//! Every program on the bed writes to Consul through the proxy. The proxy lets one write to a `.lock` through at a
//! time, and reads the key again before the next one. So no revision is missed, however short it lived, and the
//! writer of each is known. A blocking query would merge revisions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::future::try_join_all;
use reqwest::header::{HeaderMap, HeaderValue};
use serde_json::Value;
use testbed::{Call, Etcd, http_client};
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedRwLockWriteGuard, RwLock};

use crate::{
    facts::{Answer, CallFacts},
    record::{Body, What, Writer},
    timeline::Timeline,
};

/// How often a `.lock` is read before giving up, and the pause between.
const TRIES: u32 = 600;
const PAUSE: Duration = Duration::from_millis(100);

/// What is known of every `.lock`. All doors to Consul share it.
#[derive(Clone)]
pub(crate) struct LockBook(Arc<Inner>);

struct Inner {
    consul: ConsulReader,
    /// The clusters whose Jobs are judged. Each has its own clock and timeline.
    clusters: Vec<(Etcd, Timeline)>,
    locks: Mutex<BTreeMap<String, Arc<Mutex<Known>>>>,
    /// Held for reading by each write to a `.lock`.
    open: Arc<RwLock<()>>,
}

/// What is known of one `.lock`.
#[derive(Default)]
struct Known {
    /// Its content, once it has been read.
    body: Option<Body>,
    /// Whether the outcome of a write to it is unknown: the write may have been done after it was answered.
    doubtful: bool,
}

/// All `.lock`s while nobody writes to them.
pub(crate) struct Closed {
    _nobody: OwnedRwLockWriteGuard<()>,
    /// The revision of each etcd when the `.lock`s were closed.
    before: Vec<u64>,
}

/// Whether all writers wait this long for an answer. A writer that has given up may read its own write, and act on
/// it, before the answer comes: the operator does so before it has to suspend a running Job.
fn is_awaited(seconds: f64) -> bool {
    seconds < 0.4
}

impl Known {
    /// Whether this is its known content, or it never existed and still does not.
    fn is(&self, body: &Body) -> bool {
        self.body.as_ref().unwrap_or(&Body::Absent) == body
    }
}

impl LockBook {
    pub(crate) fn new(consul: ConsulReader, etcd: Etcd, timeline: Timeline) -> Self {
        Self::of_clusters(consul, vec![(etcd, timeline)])
    }

    /// For several clusters on one Consul.
    pub(crate) fn of_clusters(consul: ConsulReader, clusters: Vec<(Etcd, Timeline)>) -> Self {
        Self(Arc::new(Inner {
            consul,
            clusters,
            locks: Mutex::default(),
            open: Arc::default(),
        }))
    }

    /// Carries out a write by `send`, and records the result for each `.lock` that it names. `own` is the timeline of
    /// the writer's cluster.
    pub(crate) async fn write(
        &self,
        writer: Writer,
        own: &Timeline,
        call: &Call,
        send: impl Future<Output = Result<Answer>>,
    ) -> Result<Answer> {
        let mut facts = CallFacts::by(call);
        for (session, prefix, uid) in std::mem::take(&mut facts.contenders) {
            own.push(What::Contender {
                prefix,
                session,
                uid,
            });
        }
        let begun = own.now();
        if facts.prefixes.is_empty() {
            let answer = send.await?;
            self.note(facts, &answer, begun);
            return Ok(answer);
        }
        let _open = self.0.open.read().await;
        // Read before the write's turn: the writer knows nothing newer.
        let before = self.revisions().await?;
        let mut guards = Vec::new();
        // In the order of their names, so that two writers of the same keys don't deadlock.
        for prefix in std::mem::take(&mut facts.prefixes) {
            guards.push((self.guard(&prefix).await, prefix));
        }
        let answer = send.await;
        for (known, prefix) in &mut guards {
            let refused = answer.as_ref().is_ok_and(Answer::refuses);
            known.doubtful |= !answer.as_ref().is_ok_and(|answer| answer.status() < 500);
            if refused && !known.doubtful && known.body.is_some() {
                continue;
            }
            let body = self.read(prefix).await;
            if known.is(&body) {
                continue;
            }
            let after = match self.revisions().await {
                Ok(after) if is_awaited(own.now() - begun) => after,
                // The writer may know of it already, or etcd did not answer.
                _ => before.clone(),
            };
            // A write that failed in another way may have been done.
            let writer = if refused { Writer::Nobody } else { writer };
            self.changed(prefix, writer, (&before, &after), &body, &facts.dead);
            let old = known.body.as_ref().map(Body::holders);
            self.granted(prefix, &body.holders() - &old.unwrap_or_default())
                .await;
            known.body = Some(body);
        }
        if let Ok(answer) = &answer {
            self.note(facts, answer, begun);
        }
        answer
    }

    /// Records the new sessions and waiting contenders, if the write was not refused.
    fn note(&self, facts: CallFacts, answer: &Answer, sent: f64) {
        if answer.refuses() {
            return;
        }
        let made: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let session = facts.session.zip(made["ID"].as_str());
        let session = session.map(|(name, id)| What::Session {
            session: id.to_owned(),
            name,
        });
        let waits = |(session, prefix, place)| What::Waits {
            prefix,
            session,
            place,
            sent,
        };
        for what in session
            .into_iter()
            .chain(facts.waiting.into_iter().map(waits))
        {
            for (_, timeline) in &self.0.clusters {
                timeline.push(what.clone());
            }
        }
    }

    /// Records a new revision of a `.lock`, with the revision of each etcd before and after.
    fn changed(
        &self,
        prefix: &str,
        writer: Writer,
        (before, after): (&[u64], &[u64]),
        body: &Body,
        dead: &BTreeSet<String>,
    ) {
        let clusters = self.0.clusters.iter().zip(before.iter().zip(after));
        for ((_, timeline), (before, after)) in clusters {
            timeline.push(What::Lock {
                prefix: prefix.to_owned(),
                writer,
                before: *before,
                after: *after,
                body: body.clone(),
                dead: dead.clone(),
            });
        }
    }

    /// Records the raft indexes at which these sessions were granted their slots, as their contenders show them.
    async fn granted(&self, prefix: &str, added: BTreeSet<String>) {
        if added.is_empty() {
            return;
        }
        // Without an answer they stay unknown.
        let indexes = self.0.consul.contenders(prefix).await;
        for (session, index) in indexes.unwrap_or_default() {
            if added.contains(&session) {
                for (_, timeline) in &self.0.clusters {
                    timeline.push(What::Granted {
                        prefix: prefix.to_owned(),
                        session: session.clone(),
                        index,
                    });
                }
            }
        }
    }

    /// The current revision of each etcd.
    async fn revisions(&self) -> Result<Vec<u64>> {
        let revisions = self.0.clusters.iter().map(|(etcd, _)| etcd.revision());
        try_join_all(revisions).await.context("etcd")
    }

    /// Blocks all writers of any `.lock`, also of one that does not exist yet, once the writes under way are
    /// recorded.
    pub(crate) async fn close(&self) -> Result<Closed> {
        let nobody = self.0.open.clone().write_owned().await;
        Ok(Closed {
            _nobody: nobody,
            before: self.revisions().await?,
        })
    }

    /// Records what the campaign itself did to `.lock`s while they were closed.
    pub(crate) async fn open(&self, closed: Closed) -> Result<()> {
        let after = self.revisions().await?;
        let prefixes: Vec<_> = self.0.locks.lock().await.keys().cloned().collect();
        for prefix in prefixes {
            let mut known = self.guard(&prefix).await;
            let body = self.read(&prefix).await;
            if !known.is(&body) {
                let revisions = (closed.before.as_slice(), after.as_slice());
                let nobody = BTreeSet::new();
                self.changed(&prefix, Writer::Fault, revisions, &body, &nobody);
                known.body = Some(body);
            }
        }
        Ok(())
    }

    async fn guard(&self, prefix: &str) -> OwnedMutexGuard<Known> {
        let lock = {
            let mut locks = self.0.locks.lock().await;
            let lock = locks.entry(prefix.to_owned());
            lock.or_default().clone()
        };
        lock.lock_owned().await
    }

    /// Reads a `.lock`, and retries as often as needed: the result of a write must be known before the next one.
    async fn read(&self, prefix: &str) -> Body {
        for _ in 0..TRIES {
            match self.0.consul.lock(prefix, None).await {
                Ok((body, _)) => return body,
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
        Body::Unknown
    }
}

/// Reads Consul directly, past the proxy.
#[derive(Clone)]
pub(crate) struct ConsulReader {
    http: reqwest::Client,
    servers: Vec<String>,
}

impl ConsulReader {
    /// For equivalent servers, by their URLs.
    pub(crate) fn at(servers: Vec<String>, token: Option<&str>) -> Result<Self> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            let mut token = HeaderValue::from_str(token)?;
            token.set_sensitive(true);
            headers.insert("x-consul-token", token);
        }
        let http = http_client()
            .default_headers(headers)
            .connect_timeout(Duration::from_secs(2))
            .build()?;
        Ok(Self { http, servers })
    }

    /// A `.lock`, and the index of the answer. With `index`, waits for a change since then.
    pub(crate) async fn lock(&self, prefix: &str, index: Option<u64>) -> Result<(Body, u64)> {
        let query = match index {
            Some(index) => format!("index={index}&wait=20s"),
            None => "consistent".to_owned(),
        };
        let patience = Duration::from_secs(if index.is_some() { 30 } else { 3 });
        let path = format!("/v1/kv/{prefix}/.lock?{query}");
        let answer = self.get(&path, patience).await?;
        let index = answer
            .headers()
            .get("x-consul-index")
            .and_then(|index| index.to_str().ok()?.parse().ok())
            .context("an answer without an index")?;
        if answer.status().as_u16() == 404 {
            return Ok((Body::Absent, index));
        }
        let entries: Value = answer.error_for_status()?.json().await?;
        Ok((understand(&entries[0]), index))
    }

    /// The `ModifyIndex` of each contender that its session has locked.
    async fn contenders(&self, prefix: &str) -> Result<BTreeMap<String, u64>> {
        let entries = self
            .json(&format!("kv/{prefix}/?recurse&consistent"))
            .await?;
        let entries = entries.as_array().into_iter().flatten();
        let contenders = entries.filter_map(|entry| {
            let session = entry["Session"].as_str()?;
            let own = entry["Key"].as_str()? == format!("{prefix}/{session}");
            own.then_some((session.to_owned(), entry["ModifyIndex"].as_u64()?))
        });
        Ok(contenders.collect())
    }

    /// The answer to `GET /v1/<path>`; null for 404.
    pub(crate) async fn json(&self, path: &str) -> Result<Value> {
        let answer = self
            .get(&format!("/v1/{path}"), Duration::from_secs(5))
            .await?;
        if answer.status().as_u16() == 404 {
            return Ok(Value::Null);
        }
        Ok(answer.error_for_status()?.json().await?)
    }

    /// Asks one server after another until one of them answers.
    async fn get(&self, path: &str, patience: Duration) -> Result<reqwest::Response> {
        let mut failure = None;
        for server in &self.servers {
            let request = self.http.get(format!("{server}{path}")).timeout(patience);
            match request.send().await {
                Ok(answer) if !answer.status().is_server_error() => return Ok(answer),
                Ok(answer) => failure = Some(anyhow::anyhow!("{}", answer.status())),
                Err(error) => failure = Some(error.into()),
            }
        }
        Err(failure.unwrap_or_else(|| anyhow::anyhow!("no server")))
    }
}

/// Parses a `.lock`: a limit and holders, as a map or as a list.
fn understand(entry: &Value) -> Body {
    let index = entry["ModifyIndex"].as_u64().unwrap_or_default();
    let body = BASE64_STANDARD.decode(entry["Value"].as_str().unwrap_or_default());
    let body: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
    let holders = match &body["Holders"] {
        Value::Object(map) => Some(map.keys().cloned().collect()),
        Value::Array(list) => Some(
            list.iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        ),
        Value::Null => Some(BTreeSet::new()),
        _ => None,
    };
    match (body["Limit"].as_u64(), holders) {
        (Some(limit), Some(holders)) if entry["Session"].is_null() => Body::Semaphore {
            index,
            limit,
            holders,
        },
        _ => Body::Other { index },
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use futures::FutureExt as _;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn while_it_is_closed_nobody_writes_a_lock_for_the_first_time_either() {
        // This chooses the TLS provider of the process.
        let _consul = testbed::Consul::at("127.0.0.1:1", None).unwrap();
        let file = format!("closed-{}.jsonl", std::process::id());
        let file = std::env::temp_dir().join(file);
        let timeline = Timeline::open(&file).unwrap();
        std::fs::remove_file(file).unwrap();
        let reader = ConsulReader::at(Vec::new(), None).unwrap();
        let book = LockBook::of_clusters(reader, Vec::new());
        let call = Call::new(Method::PUT, "/v1/kv/p/.lock", "");
        let closed = book.close().await.unwrap();
        let sent = async { panic!("it gets through") };
        let write = book.write(Writer::Foreign, &timeline, &call, sent);
        assert!(write.now_or_never().is_none());
        drop(closed);
    }

    #[test]
    fn an_answer_that_took_long_was_not_awaited_by_all() {
        assert!(is_awaited(0.1));
        // An operator was cut off from its answer after half a second, read from another server that it had the slot,
        // and started the Job, while this proxy waited for 1.8 s.
        assert!(!is_awaited(0.5));
    }

    #[test]
    fn holders_are_read_as_a_map_and_as_a_list_and_a_mutex_has_none() {
        let entry = |value: &str, session: Option<&str>| json!({ "ModifyIndex": 3, "Value": BASE64_STANDARD.encode(value), "Session": session });
        let both = Body::Semaphore {
            index: 3,
            limit: 2,
            holders: ["a".to_owned()].into(),
        };
        assert_eq!(
            understand(&entry(r#"{"Limit":2,"Holders":{"a":true}}"#, None)),
            both
        );
        assert_eq!(
            understand(&entry(r#"{"Limit":2,"Holders":["a"]}"#, None)),
            both
        );
        let other = Body::Other { index: 3 };
        assert_eq!(understand(&entry("{", None)), other);
        assert_eq!(understand(&entry(r#"{"Limit":2}"#, Some("s"))), other);
    }
}
