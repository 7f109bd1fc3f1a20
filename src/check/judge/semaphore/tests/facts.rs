//! Facts for tests to change.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::*;
use crate::{
    check::consul::{ScratchKeys, Tried},
    controller::settings_of,
};
use consul_client::{Entry, Error, Session, clock::Moment};
use consul_semaphore::{Cluster, Order, lock::SEMAPHORE_FLAGS, turns::WINDOW};

/// The facts about a semaphore with two slots that agrees with Consul, and is not in use. Each test changes what it
/// is about.
pub(super) struct Facts {
    pub(super) object: Value,
    pub(super) jobs: Vec<Value>,
    pub(super) entries: Vec<Entry>,
    pub(super) sessions: Result<Vec<Session>, Unknown>,
    /// Why the prefix can't be read.
    pub(super) unreadable: Option<Error>,
    pub(super) shortest: u64,
    pub(super) in_scope: bool,
    pub(super) barred: Option<String>,
    pub(super) token: Option<CheckedToken>,
}

pub(super) fn name() -> NamespacedName {
    "batch/db".parse().unwrap()
}

pub(super) fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": format!("{reason} it is"),
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

impl Facts {
    pub(super) fn new() -> Self {
        let object = json!({
            "apiVersion": "consul-semaphore.io/v1alpha1",
            "kind": "ConsulSemaphore",
            "metadata": { "name": "db", "namespace": "batch", "generation": 1 },
            "spec": { "limit": 2 },
            "status": {
                "observedGeneration": 1, "appliedLimits": [2], "held": 0, "heldHere": 0, "waiting": 0,
                "conditions": [condition("Ready", "True", "Reconciled")],
            },
        });
        let mut facts = Self {
            object,
            jobs: Vec::new(),
            entries: Vec::new(),
            sessions: Ok(Vec::new()),
            unreadable: None,
            shortest: 10,
            in_scope: true,
            barred: None,
            token: None,
        };
        facts.lock(&[]);
        facts
    }

    pub(super) fn entry(&mut self, key: &str, session: Option<&str>, value: &str) -> &mut Self {
        self.entries.retain(|entry| entry.key != key);
        self.entries.push(Entry {
            key: key.into(),
            value: value.into(),
            flags: SEMAPHORE_FLAGS,
            session: session.map(Into::into),
            lock_index: 1,
            create_index: 3,
            modify_index: 5,
        });
        self
    }

    /// `.lock` of limit 2 with these holders.
    pub(super) fn lock(&mut self, holders: &[&str]) -> &mut Self {
        self.lock_of("semaphores/batch/db", 2, holders)
    }

    pub(super) fn lock_of(&mut self, prefix: &str, limit: u32, holders: &[&str]) -> &mut Self {
        let holders: serde_json::Map<_, _> = holders
            .iter()
            .map(|holder| ((*holder).to_owned(), true.into()))
            .collect();
        let body = json!({ "Limit": limit, "Holders": holders }).to_string();
        self.entry(&format!("{prefix}/.lock"), None, &body)
    }

    /// A foreign live contender.
    pub(super) fn contender(&mut self, session: &str) -> &mut Self {
        self.entry(&format!("semaphores/batch/db/{session}"), Some(session), "")
    }

    /// A waiting Job with these annotations in addition to the semaphore's.
    pub(super) fn job(&mut self, name: &str, mut annotations: Value) -> &mut Self {
        annotations["consul-semaphore.io/semaphore"] = "db".into();
        let job = json!({
            "metadata": {
                "name": name, "namespace": "batch", "uid": format!("uid-{name}"),
                "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:10Z",
                "annotations": annotations,
            },
            "spec": { "suspend": true, "template": {} },
            "status": { "conditions": [{ "type": "Suspended", "status": "True" }] },
        });
        self.jobs.push(job);
        self
    }

    pub(super) fn spec(&mut self, name: &str, value: Value) -> &mut Self {
        self.object["spec"][name] = value;
        self
    }

    pub(super) fn conditions(&mut self, conditions: &[Value]) -> &mut Self {
        self.object["status"]["conditions"] = conditions.into();
        self
    }

    pub(super) fn lines(&mut self) -> Vec<Line> {
        let semaphore: ConsulSemaphore = serde_json::from_value(self.object.clone()).unwrap();
        let cluster = Cluster {
            name: "prod".to_owned(),
            id: "c-1".to_owned(),
        };
        let tracked = |job: &Value| {
            let job = serde_json::from_value(job.clone()).unwrap();
            TrackedWorkload::read(&job, Moment::default()).unwrap()
        };
        self.entries.sort_by(|one, other| one.key.cmp(&other.key));
        let sent = Moment::from_boot(Duration::from_secs(1));
        let listing = Listing {
            entries: self.entries.clone().into(),
            index: 5,
            sent,
            reset: false,
        };
        let prefix = PrefixFacts {
            listing: self.unreadable.clone().map_or(Ok(listing), Err),
            sessions: self.sessions.clone(),
            tried: Tried {
                node: Some("k8s-1".to_owned()),
                known: Some(true),
                keys: ScratchKeys {
                    folder: "semaphores/batch/db/".to_owned(),
                    rule: "semaphores/batch/db/".to_owned(),
                },
                steps: Vec::new(),
                shortest: Some(Duration::from_secs(self.shortest)),
            },
            operations: 64,
            now: Moment::from_boot(Duration::from_secs(2)),
            time: jiff::Timestamp::UNIX_EPOCH,
        };
        let asked = self.barred.is_none() && self.token.is_none();
        let seen = SemaphoreFacts {
            settings: settings_of(
                &cluster,
                Order {
                    fair: Some(WINDOW),
                    pass_over: Duration::from_mins(1),
                },
                &semaphore,
            ),
            semaphore,
            in_scope: self.in_scope,
            barred: self.barred.clone(),
            token: self.token.take(),
            jobs: Ok(self.jobs.iter().map(tracked).collect()),
            prefix: asked.then_some(prefix),
        };
        lines(&name(), &Ok(seen))
    }

    /// The one line with this name.
    #[track_caller]
    pub(super) fn says(&mut self, what: &str) -> (Outcome, String) {
        let lines = self.lines();
        let Some(line) = lines.iter().find(|line| line.what == what) else {
            panic!("no {what:?} in {lines:#?}");
        };
        let todo = line.todo.as_deref().unwrap_or_default();
        (line.outcome, format!("{} -> {todo}", line.message))
    }

    #[track_caller]
    pub(super) fn assert(&mut self, what: &str, outcome: Outcome, words: &[&str]) {
        let (found, said) = self.says(what);
        assert_eq!(found, outcome, "{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is not in: {said}");
        }
    }
}
