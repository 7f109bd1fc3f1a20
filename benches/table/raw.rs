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

/// Semaphores, and the Jobs that start in a slot of each of them.
pub(crate) struct Raw {
    http: reqwest::Client,
    url: String,
    prefixes: Vec<String>,
    limit: usize,
    jobs: Api<Job>,
    /// Those of each semaphore, by the number of the Job.
    sessions: Vec<Vec<String>>,
    /// The version of each `.lock`.
    indexes: Mutex<Vec<u64>>,
}

impl Raw {
    /// This many semaphores, with a session in each of them for each Job, created ahead.
    pub(crate) async fn new(
        bed: &Bed,
        team: &Namespace,
        semaphores: usize,
        limit: usize,
        jobs: usize,
    ) -> Self {
        let mut sessions = Vec::new();
        for _ in 0..semaphores {
            let mut of_one = Vec::new();
            for _ in 0..jobs {
                let session = json!({ "TTL": "600s", "Behavior": "delete" });
                of_one.push(bed.consul().create_session(session).await);
            }
            sessions.push(of_one);
        }
        let prefix = |number| format!("semaphores/{}/floor-{number}", team.name());
        Self {
            http: reqwest::Client::new(),
            url: format!("{}/v1/txn", bed.consul().address()),
            prefixes: (0..semaphores).map(prefix).collect(),
            limit,
            jobs: team.api(),
            sessions,
            indexes: Mutex::new(vec![0; semaphores]),
        }
    }

    /// One transaction that replaces one holder by another, in each semaphore. Returns how long it took.
    pub(crate) async fn hand_over(
        &self,
        slots: &[usize],
        ended: Option<usize>,
        next: usize,
    ) -> Duration {
        let indexes = self.indexes.lock().clone();
        let mut operations = Vec::new();
        for ((prefix, sessions), index) in self.prefixes.iter().zip(&self.sessions).zip(indexes) {
            operations.extend(self.writes(prefix, sessions, index, (slots, next)));
        }
        for (prefix, sessions) in self.prefixes.iter().zip(&self.sessions) {
            if let Some(ended) = ended {
                let key = format!("{prefix}/{}", sessions[ended]);
                operations.push(json!({ "KV": { "Verb": "delete", "Key": key } }));
            }
        }
        let sent = Instant::now();
        let request = self.http.put(&self.url).json(&operations);
        let answer = request.send().await.expect("an answer");
        let answer: Value = answer.json().await.expect("JSON");
        let took = sent.elapsed();
        let index = |number: usize| {
            let written = answer["Results"][2 * number + 1]["KV"]["ModifyIndex"].as_u64();
            written.expect("the transaction went through")
        };
        *self.indexes.lock() = (0..self.prefixes.len()).map(index).collect();
        took
    }

    /// The lock of the next contender, and the CAS of `.lock`, in one semaphore.
    fn writes(
        &self,
        prefix: &str,
        sessions: &[String],
        index: u64,
        (slots, next): (&[usize], usize),
    ) -> [Value; 2] {
        let holders: serde_json::Map<String, Value> = slots
            .iter()
            .map(|slot| (sessions[*slot].clone(), true.into()))
            .collect();
        let body = json!({ "Limit": self.limit, "Holders": holders }).to_string();
        let session = &sessions[next];
        [
            json!({ "KV": { "Verb": "lock", "Key": format!("{prefix}/{session}"), "Session": session, "Flags": testbed::SEMAPHORE_FLAGS, "Value": BASE64.encode("x".repeat(BODY)) } }),
            json!({ "KV": { "Verb": "cas", "Key": format!("{prefix}/.lock"), "Index": index, "Flags": testbed::SEMAPHORE_FLAGS, "Value": BASE64.encode(body) } }),
        ]
    }

    /// One PATCH that starts the Job, with the sequencer on its template. Returns how long it took.
    pub(crate) async fn start(&self, name: &str, number: usize) -> Duration {
        let session = &self.sessions[0][number];
        let key = format!("{}/{session}", self.prefixes[0]);
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
