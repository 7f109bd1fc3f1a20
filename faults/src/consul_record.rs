//! Every revision of every `.lock`.
//!
//! All who write to Consul on the bed go through the proxy, which lets one write to a `.lock` through
//! at a time and reads the key again before the next. So no revision is missed, however short it
//! lived, and each is known by whose write made it: a blocking query would merge them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::{
    access,
    etcd::Etcd,
    proxy::{Answer, Asked},
    record::{Body, What, Writer},
    timeline::Timeline,
};

/// How often a `.lock` is asked for before it is given up, and the pause between.
const TRIES: u32 = 600;
const PAUSE: Duration = Duration::from_millis(100);

/// What is known of every `.lock`; the doors of Consul share it.
#[derive(Clone)]
pub(crate) struct LockBook(Arc<Inner>);

struct Inner {
    consul: ConsulReader,
    etcd: Etcd,
    timeline: Timeline,
    locks: Mutex<BTreeMap<String, Arc<Mutex<Body>>>>,
}

/// All `.lock`s while nobody writes to them.
pub(crate) struct Closed {
    locks: Vec<(OwnedMutexGuard<Body>, String)>,
    /// etcd's revision at its beginning.
    before: u64,
}

/// What a transaction says, as far as it concerns a semaphore.
#[derive(Default)]
struct Told {
    /// The `.lock`s that it writes to.
    prefixes: BTreeSet<String>,
    /// Session, prefix and Job of the contenders that it writes.
    contenders: Vec<(String, String, String)>,
    /// The sessions of whose contenders it checks that they are gone, or free.
    dead: BTreeSet<String>,
}

impl LockBook {
    pub(crate) fn new(consul: ConsulReader, etcd: Etcd, timeline: Timeline) -> Self {
        Self(Arc::new(Inner {
            consul,
            etcd,
            timeline,
            locks: Mutex::default(),
        }))
    }

    /// Carries out a write by `send`, and writes down what became of each `.lock` that it names.
    pub(crate) async fn write(
        &self,
        writer: Writer,
        asked: &Asked,
        send: impl Future<Output = Result<Answer>>,
    ) -> Result<Answer> {
        let told = Told::by(asked);
        let Inner { etcd, timeline, .. } = &*self.0;
        for (session, prefix, uid) in told.contenders {
            timeline.push(What::Contender {
                prefix,
                session,
                uid,
            });
        }
        if told.prefixes.is_empty() {
            return send.await;
        }
        let mut guards = Vec::new();
        // In the order of their names, so that two who want the same ones don't wait for each other.
        for prefix in told.prefixes {
            guards.push((self.guard(&prefix).await, prefix));
        }
        let before = etcd.revision().await.context("etcd")?;
        let answer = send.await;
        for (known, prefix) in &mut guards {
            let body = self.read(prefix).await;
            if **known == body {
                continue;
            }
            let after = etcd.revision().await.unwrap_or(before);
            // One that failed otherwise may have been done.
            let refused = answer
                .as_ref()
                .is_ok_and(|answer| (400..500).contains(&answer.status) || answer.body == "false");
            timeline.push(What::Lock {
                prefix: prefix.clone(),
                writer: if refused { Writer::Nobody } else { writer },
                before,
                after,
                body: body.clone(),
                dead: told.dead.clone(),
            });
            **known = body;
        }
        answer
    }

    /// Has all who write to a `.lock` wait, once what is under way is written down.
    pub(crate) async fn close(&self) -> Result<Closed> {
        let prefixes: Vec<_> = self.0.locks.lock().await.keys().cloned().collect();
        let mut locks = Vec::new();
        for prefix in prefixes {
            locks.push((self.guard(&prefix).await, prefix));
        }
        let before = self.0.etcd.revision().await.context("etcd")?;
        Ok(Closed { locks, before })
    }

    /// Writes down what the campaign itself has done to `.lock`s while nobody wrote to them.
    pub(crate) async fn open(&self, closed: Closed) -> Result<()> {
        let after = self.0.etcd.revision().await.context("etcd")?;
        for (mut known, prefix) in closed.locks {
            let body = self.read(&prefix).await;
            if *known != body {
                self.0.timeline.push(What::Lock {
                    prefix,
                    writer: Writer::Fault,
                    before: closed.before,
                    after,
                    body: body.clone(),
                    dead: BTreeSet::new(),
                });
                *known = body;
            }
        }
        Ok(())
    }

    async fn guard(&self, prefix: &str) -> OwnedMutexGuard<Body> {
        let lock = {
            let mut locks = self.0.locks.lock().await;
            let lock = locks.entry(prefix.to_owned());
            lock.or_insert_with(|| Arc::new(Mutex::new(Body::Absent)))
                .clone()
        };
        lock.lock_owned().await
    }

    /// Reads a `.lock`, as often as it takes: what a write has done must be known before the next.
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

impl Told {
    fn by(asked: &Asked) -> Self {
        let path = asked.path.split('?').next().unwrap_or_default();
        let mut told = Self::default();
        if path == "/v1/txn" {
            let operations: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
            for operation in operations.as_array().into_iter().flatten() {
                told.take(&operation["KV"]);
            }
        } else if let Some(prefix) = path.strip_prefix("/v1/kv/").and_then(prefix_of) {
            told.prefixes.insert(prefix.to_owned());
        }
        told
    }

    fn take(&mut self, operation: &Value) {
        let verb = operation["Verb"].as_str().unwrap_or_default();
        let key = operation["Key"].as_str().unwrap_or_default();
        let reads = verb.starts_with("check-") || verb.starts_with("get");
        if let Some(prefix) = prefix_of(key) {
            if !reads {
                self.prefixes.insert(prefix.to_owned());
            }
            return;
        }
        let Some((prefix, session)) = key.rsplit_once('/') else {
            return;
        };
        match verb {
            "lock" => {
                let body = operation["Value"].as_str().unwrap_or_default();
                let body = BASE64_STANDARD.decode(body).unwrap_or_default();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                if let Some(uid) = body["uid"].as_str() {
                    self.contenders
                        .push((session.into(), prefix.into(), uid.into()));
                }
            }
            "check-not-exists" | "check-index" => {
                self.dead.insert(session.to_owned());
            }
            _ => {}
        }
    }
}

fn prefix_of(key: &str) -> Option<&str> {
    key.strip_suffix("/.lock")
}

/// Reads Consul past the proxy.
#[derive(Clone)]
pub(crate) struct ConsulReader {
    http: reqwest::Client,
    servers: Vec<String>,
}

impl ConsulReader {
    pub(crate) fn at(servers: Vec<String>) -> Result<Self> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .default_headers(access::headers())
            .connect_timeout(Duration::from_secs(2))
            .build()?;
        Ok(Self { http, servers })
    }

    /// A `.lock`, and the index of the answer; after a change since `index`, if there is one.
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

    /// What `GET /v1/<path>` answers; null for 404.
    pub(crate) async fn json(&self, path: &str) -> Result<Value> {
        let answer = self
            .get(&format!("/v1/{path}"), Duration::from_secs(5))
            .await?;
        if answer.status().as_u16() == 404 {
            return Ok(Value::Null);
        }
        Ok(answer.error_for_status()?.json().await?)
    }

    /// Asks one server after another until one answers.
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

/// A `.lock` as the field has it: a limit and holders, as a map or as a list.
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
    use axum::http::{HeaderMap, Method};
    use serde_json::json;

    use super::*;

    fn asked(method: Method, path: &str, body: &Value) -> Asked {
        Asked {
            method,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body: body.to_string().into(),
        }
    }

    #[test]
    fn a_transaction_tells_whom_it_grants_to_and_who_is_dead() {
        let body = BASE64_STANDARD.encode(r#"{"uid":"u"}"#);
        let told = Told::by(&asked(
            Method::PUT,
            "/v1/txn?dc=dc1",
            &json!([
                { "KV": { "Verb": "lock", "Key": "p/q/new", "Session": "new", "Value": body } },
                { "KV": { "Verb": "check-not-exists", "Key": "p/q/old" } },
                { "KV": { "Verb": "cas", "Key": "p/q/.lock", "Index": 7 } },
            ]),
        ));
        assert_eq!(told.prefixes, ["p/q".to_owned()].into());
        assert_eq!(told.dead, ["old".to_owned()].into());
        let contender = ("new".to_owned(), "p/q".to_owned(), "u".to_owned());
        assert_eq!(told.contenders, [contender]);
    }

    #[test]
    fn only_what_may_change_a_lock_waits_for_its_turn() {
        let prefixes = |path| Told::by(&asked(Method::PUT, path, &json!({}))).prefixes;
        assert_eq!(prefixes("/v1/kv/p/.lock?cas=1"), ["p".to_owned()].into());
        assert_eq!(prefixes("/v1/kv/p/session?acquire=session"), [].into());
        assert_eq!(prefixes("/v1/session/renew/p"), [].into());
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
