//! The model's Consul as a server, for those who can only be asked over a connection; and what must be true of every
//! write to it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{Method, StatusCode},
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testbed::{Call, Proxy};
use tokio::{sync::watch, time::timeout};

use super::{
    consul::{Consul, Refused},
    sight,
};
use crate::Prefix;
use consul_client::{Entry, Op, SessionId, clock::Moment};

/// The only prefix.
pub(super) const PREFIX: &str = "shared/db";

/// A Consul that is served. Clones are the same one.
#[derive(Clone)]
pub(super) struct Served {
    state: Arc<Mutex<ServedState>>,
    changes: watch::Sender<()>,
}

/// Consul, and what the observer remembers.
struct ServedState {
    consul: Consul,
    limit: usize,
    /// The sessions that somebody has ended by hand.
    taken: BTreeSet<SessionId>,
    /// The sessions in whose slots somebody works.
    working: BTreeSet<SessionId>,
    /// The sessions of which a program knows that their slot is lost.
    known_lost: BTreeSet<SessionId>,
    /// The sessions whose slot somebody else has freed, so that others could have it.
    pruned: BTreeSet<SessionId>,
    /// The rules that were broken: nobody hears of a panic in a server.
    broken: Vec<String>,
}

impl ServedState {
    fn prefix() -> Prefix {
        PREFIX.parse().unwrap()
    }

    fn holders(&self) -> BTreeSet<SessionId> {
        let lock = self.consul.get(&Self::prefix().lock_key());
        let body = lock.and_then(|lock| sight::Body::read(&lock.value));
        body.map_or_else(BTreeSet::new, |body| body.holders.iter().cloned().collect())
    }

    /// The sessions that have a contender.
    fn contenders(&self) -> Vec<SessionId> {
        let prefix = Self::prefix();
        let entries = self.consul.below(&prefix);
        entries.filter_map(|entry| entry.session.clone()).collect()
    }

    /// Every live holder has an index below the limit, and no other one has the same. Where sessions are ended by hand,
    /// a program may have its index again that one that has just come has taken.
    fn check_indices(&mut self) {
        let (prefix, holders) = (Self::prefix(), self.holders());
        let entries = self.consul.below(&prefix);
        let held = entries.filter(|entry| {
            let session = entry.session.as_ref();
            session.is_some_and(|session| holders.contains(session))
        });
        let index = |entry: &Entry| -> Option<u64> {
            let body: Value = serde_json::from_slice(&entry.value).ok()?;
            body.get("slotIndex")?.as_u64()
        };
        let indices: Vec<_> = held.map(index).collect();
        let apart: BTreeSet<_> = indices.iter().collect();
        let limit = u64::try_from(self.limit).unwrap();
        let small = indices
            .iter()
            .all(|index| index.is_some_and(|index| index < limit));
        if apart.len() != indices.len() || !small {
            self.broken.push(format!("the indices are {indices:?}"));
        }
    }

    fn transact(&mut self, operations: &[Op]) -> Result<Vec<Entry>, Refused> {
        let before = self.holders();
        let answer = self.consul.transact(operations)?;
        let after = self.holders();
        let added: Vec<_> = after.difference(&before).collect();
        if !added.is_empty() && after.len() > self.limit {
            self.broken
                .push(format!("more holders than the limit: {after:?}"));
        }
        if !added.is_empty() && self.taken.is_empty() {
            self.check_indices();
        }
        if added
            .iter()
            .any(|session| self.known_lost.contains(session))
        {
            self.broken
                .push(format!("a slot that was lost is held again: {added:?}"));
        }
        // A program that releases its own slot deletes its contender in the same transaction.
        let releases = |session: &SessionId| {
            let own = Self::prefix().contender_key(session);
            let mut operations = operations.iter();
            operations.any(|operation| matches!(operation, Op::Delete { key } if *key == own))
        };
        let mut gone = before.difference(&after);
        self.pruned
            .extend(gone.clone().filter(|gone| !releases(gone)).cloned());
        if gone.any(|session| self.working.contains(session) && !self.taken.contains(session)) {
            self.broken.push(format!(
                "a slot was given back while its work goes on: {before:?} to {after:?}"
            ));
        }
        Ok(answer)
    }
}

/// What the observer does.
impl Served {
    pub(super) fn new(limit: usize) -> Self {
        let mut consul = Consul::default();
        // Raft has committed something before anybody asks.
        consul.begin_at(1000);
        Self {
            state: Arc::new(Mutex::new(ServedState {
                consul,
                limit,
                taken: BTreeSet::new(),
                working: BTreeSet::new(),
                known_lost: BTreeSet::new(),
                pruned: BTreeSet::new(),
                broken: Vec::new(),
            })),
            changes: watch::Sender::new(()),
        }
    }

    /// Starts to listen.
    pub(super) async fn start(&self) -> Proxy {
        let served = self.clone();
        let proxy = Proxy::before(["http://127.0.0.1:9"]).carried_by(move |call, _nobody| {
            let served = served.clone();
            async move { Ok(served.answer(&call).await) }
        });
        proxy.start().await.unwrap()
    }

    /// Work begins in the slot of this session.
    pub(super) fn work_begins(&self, session: &SessionId) {
        self.state.lock().working.insert(session.clone());
        self.check_work(session);
    }

    /// A program that works in the slot of this session does not know that it is lost: then it isn't, or somebody has
    /// just taken it.
    pub(super) fn check_work(&self, session: &SessionId) {
        let mut state = self.state.lock();
        if !state.holders().contains(session) && !state.taken.contains(session) {
            state.broken.push(format!("{session} works without a slot"));
        }
    }

    /// The work is over. `lost`: because the program knows that its slot is lost.
    pub(super) fn work_ends(&self, session: &SessionId, lost: bool) {
        let mut state = self.state.lock();
        state.working.remove(session);
        if lost {
            state.known_lost.insert(session.clone());
            if !state.taken.contains(session) {
                state.broken.push(format!(
                    "{session} has its slot, and is told that it is lost"
                ));
            }
        }
    }

    /// Whether somebody has ended this session by hand.
    pub(super) fn is_taken(&self, session: &SessionId) -> bool {
        self.state.lock().taken.contains(session)
    }

    /// Whether somebody else has freed the slot of this session.
    pub(super) fn is_pruned(&self, session: &SessionId) -> bool {
        self.state.lock().pruned.contains(session)
    }

    /// Somebody ends one of the sessions that have a contender.
    pub(super) fn take(&self, choice: usize) {
        let mut state = self.state.lock();
        let sessions = state.contenders();
        if let Some(session) = sessions.get(choice % sessions.len().max(1)) {
            state.taken.insert(session.clone());
            state.consul.destroy(session);
        }
        drop(state);
        self.changes.send_replace(());
    }

    /// What is left: holders, contenders, and the live sessions.
    pub(super) fn left(&self) -> (BTreeSet<SessionId>, Vec<SessionId>, usize) {
        let state = self.state.lock();
        let sessions = state.consul.sessions().count();
        (state.holders(), state.contenders(), sessions)
    }

    /// The rules that were broken.
    pub(super) fn broken(&self) -> Vec<String> {
        self.state.lock().broken.clone()
    }
}

/// What the server answers.
impl Served {
    async fn answer(&self, call: &Call) -> Response {
        let path = call.path.strip_prefix("/v1/").unwrap_or_default();
        if let Some(key) = path
            .strip_prefix("kv/")
            .filter(|_| call.method == Method::GET)
        {
            return self.read(call, key).await;
        }
        let answer = self.write(call, path);
        if call.writes() {
            self.changes.send_replace(());
        }
        answer
    }

    async fn read(&self, call: &Call, key: &str) -> Response {
        let parameter = |name: &str| {
            let mut all = call.query.split('&');
            all.find_map(|one| one.strip_prefix(name)?.strip_prefix('='))
        };
        let index = parameter("index").and_then(|index| index.parse().ok());
        let seconds = parameter("wait").and_then(|wait| wait.strip_suffix('s'));
        let wait = seconds.and_then(|wait| wait.parse().ok());
        let mut changes = self.changes.subscribe();
        let news = async {
            while self.state.lock().consul.index() <= index.unwrap_or(0) {
                // The sender is in `self`.
                let _ = changes.changed().await;
            }
        };
        if index.is_some() {
            let _nothing_changed = timeout(Duration::from_secs(wait.unwrap_or(1)), news).await;
        }
        let state = self.state.lock();
        let is_asked = |name| call.query.split('&').any(|one| one.starts_with(name));
        let listing = state.consul.list(&ServedState::prefix(), Moment::default());
        let all = listing.entries.iter();
        let entries = all.filter(|entry| match key.strip_suffix('/') {
            Some(_) => entry.key.starts_with(key),
            None => entry.key == key,
        });
        let found: Vec<_> = if is_asked("keys") {
            entries.map(|entry| entry.key.clone().into()).collect()
        } else {
            entries.map(|entry| wire(entry, true)).collect()
        };
        let status = if found.is_empty() {
            StatusCode::NOT_FOUND
        } else {
            StatusCode::OK
        };
        let builder = Response::builder().status(status);
        let answer = builder.header("X-Consul-Index", listing.index);
        answer
            .body(Body::from(Value::Array(found).to_string()))
            .unwrap()
    }

    fn write(&self, call: &Call, path: &str) -> Response {
        let mut state = self.state.lock();
        let (what, session) = path.rsplit_once('/').unwrap_or((path, ""));
        let session = SessionId::from(session);
        match what {
            "session" => {
                let name = call.json()["Name"].as_str().unwrap_or_default().to_owned();
                let made = state.consul.make_session(&name);
                found(&json!({ "ID": made }))
            }
            "session/destroy" => {
                state.consul.destroy(&session);
                found(&json!(true))
            }
            "session/renew" if !state.consul.is_alive(&session) => {
                let text = format!("Session id {session:?} not found");
                with_status(StatusCode::NOT_FOUND, text)
            }
            "session/renew" | "session/info" => {
                let alive = state.consul.is_alive(&session);
                let known = json!({ "ID": session, "Node": "n", "TTL": "60s", "CreateIndex": 1 });
                found(&Value::from_iter(alive.then_some(known)))
            }
            "txn" => match state.transact(&operations(&call.json())) {
                Ok(entries) => {
                    let all = entries.iter();
                    let results = all.map(|entry| json!({ "KV": wire(entry, false) }));
                    found(&json!({ "Results": results.collect::<Value>() }))
                }
                Err(refused) => {
                    let errors = json!([{ "OpIndex": 0, "What": format!("{refused:?}") }]);
                    let text = json!({ "Errors": errors }).to_string();
                    with_status(StatusCode::CONFLICT, text)
                }
            },
            _ => with_status(StatusCode::NOT_IMPLEMENTED, format!("{call:?}")),
        }
    }
}

fn found(value: &Value) -> Response {
    with_status(StatusCode::OK, value.to_string())
}

fn with_status(status: StatusCode, text: String) -> Response {
    let answer = Response::builder().status(status);
    answer.body(Body::from(text)).unwrap()
}

/// An entry as Consul writes it.
fn wire(entry: &Entry, whole: bool) -> Value {
    json!({
        "Key": entry.key,
        "Value": whole.then(|| BASE64_STANDARD.encode(&entry.value)),
        "Flags": entry.flags,
        "Session": entry.session,
        "LockIndex": entry.lock_index,
        "CreateIndex": entry.create_index,
        "ModifyIndex": entry.modify_index,
    })
}

/// The operations of a transaction, as Consul reads them.
fn operations(wire: &Value) -> Vec<Op> {
    let operations = wire.as_array().into_iter().flatten();
    let operation = |operation: &Value| {
        let kv = &operation["KV"];
        let text = |name: &str| kv[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| kv[name].as_u64().unwrap_or_default();
        let (key, flags, index) = (text("Key"), number("Flags"), number("Index"));
        let (value, session) = (
            BASE64_STANDARD.decode(text("Value")).unwrap(),
            SessionId::from(text("Session")),
        );
        match text("Verb").as_str() {
            "set" => Op::Set { key, value, flags },
            "cas" => Op::Cas {
                key,
                value,
                flags,
                index,
            },
            "lock" => Op::Lock {
                key,
                value,
                flags,
                session,
            },
            "unlock" => Op::Unlock {
                key,
                value,
                flags,
                session,
            },
            "delete" => Op::Delete { key },
            "delete-cas" => Op::DeleteCas { key, index },
            "check-index" => Op::CheckIndex { key, index },
            "check-session" => Op::CheckSession { key, session },
            "check-not-exists" => Op::CheckNotExists { key },
            other => panic!("{other}"),
        }
    };
    operations.map(operation).collect()
}
