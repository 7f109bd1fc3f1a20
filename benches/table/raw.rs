//! The floor: the same writes as raw requests, on persistent connections, and nothing else.

use std::time::{Duration, Instant};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testbed::{Bed, Namespace};

/// As long as the operator's body of a contender.
const BODY: usize = 280;

/// A semaphore, and the Jobs that it starts.
pub(crate) struct Raw {
    http: reqwest::Client,
    url: String,
    prefix: String,
    limit: usize,
    jobs: Api<Job>,
    sessions: Vec<String>,
    index: Mutex<u64>,
}

impl Raw {
    /// With a session for each Job, created ahead.
    pub(crate) async fn new(bed: &Bed, team: &Namespace, limit: usize, jobs: usize) -> Self {
        let mut sessions = Vec::new();
        for _ in 0..jobs {
            let session = json!({ "TTL": "600s", "Behavior": "delete" });
            sessions.push(bed.consul().create_session(session).await);
        }
        Self {
            http: reqwest::Client::new(),
            url: format!("{}/v1/txn", bed.consul().address()),
            prefix: format!("semaphores/{}/floor", team.name()),
            limit,
            jobs: team.api(),
            sessions,
            index: Mutex::new(0),
        }
    }

    /// One transaction that replaces one holder by another. Returns how long it took.
    pub(crate) async fn hand_over(
        &self,
        slots: &[usize],
        ended: Option<usize>,
        next: usize,
    ) -> Duration {
        let key = |number: usize| format!("{}/{}", self.prefix, self.sessions[number]);
        let holders: serde_json::Map<String, Value> = slots
            .iter()
            .map(|slot| (self.sessions[*slot].clone(), true.into()))
            .collect();
        let body = json!({ "Limit": self.limit, "Holders": holders }).to_string();
        let index = *self.index.lock();
        let mut operations = vec![
            json!({ "KV": { "Verb": "lock", "Key": key(next), "Session": self.sessions[next], "Flags": testbed::SEMAPHORE_FLAGS, "Value": BASE64.encode("x".repeat(BODY)) } }),
            json!({ "KV": { "Verb": "cas", "Key": format!("{}/.lock", self.prefix), "Index": index, "Flags": testbed::SEMAPHORE_FLAGS, "Value": BASE64.encode(body) } }),
        ];
        if let Some(ended) = ended {
            operations.push(json!({ "KV": { "Verb": "delete", "Key": key(ended) } }));
        }
        let sent = Instant::now();
        let request = self.http.put(&self.url).json(&operations);
        let answer = request.send().await.expect("an answer");
        let answer: Value = answer.json().await.expect("JSON");
        let took = sent.elapsed();
        let written = answer["Results"][1]["KV"]["ModifyIndex"].as_u64();
        *self.index.lock() = written.expect("the transaction went through");
        took
    }

    /// One PATCH that starts the Job, with the sequencer on its template. Returns how long it took.
    pub(crate) async fn start(&self, name: &str, number: usize) -> Duration {
        let session = &self.sessions[number];
        let key = format!("{}/{session}", self.prefix);
        start(&self.jobs, name, session, &key).await
    }
}

/// The PATCH that starts a Job, as large as the operator's.
pub(crate) async fn start(jobs: &Api<Job>, name: &str, session: &str, key: &str) -> Duration {
    let patch = Patch::Merge(json!({
        "metadata": { "annotations": { "example.com/session": session } },
        "spec": { "suspend": false, "template": { "metadata": {
            "labels": { "example.com/holder": "true" },
            "annotations": {
                "example.com/lock-key": key,
                "example.com/session": session,
                "example.com/lock-index": "1",
                "example.com/fencing-token": "123456",
                "example.com/granted-to": session,
            },
        } } },
    }));
    let sent = Instant::now();
    let patched = jobs.patch(name, &PatchParams::default(), &patch).await;
    patched.expect("a PATCH");
    sent.elapsed()
}
