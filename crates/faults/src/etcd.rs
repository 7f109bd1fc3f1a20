//! etcd's revision: the one clock that orders what is in Kubernetes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The bed's etcd, asked through its JSON gateway.
#[derive(Clone)]
pub(crate) struct Etcd {
    http: reqwest::Client,
    url: String,
}

impl Etcd {
    pub(crate) fn at(url: &str) -> Result<Self> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(10))
            .build()?;
        Ok(Self {
            http,
            url: url.to_owned(),
        })
    }

    /// The revision of the newest write: whatever was answered before this is asked is in it.
    pub(crate) async fn revision(&self) -> Result<u64> {
        let key = json!({ "key": "YQ==", "count_only": true });
        let answer = self.ask("range", &key).await?;
        answer["header"]["revision"]
            .as_str()
            .and_then(|revision| revision.parse().ok())
            .with_context(|| format!("no revision in {answer}"))
    }

    /// Forgets all earlier revisions: a watch that wants to go on from one of them can't.
    pub(crate) async fn compact(&self) -> Result<()> {
        let revision = self.revision().await?.to_string();
        let compaction = json!({ "revision": revision, "physical": true });
        self.ask("compaction", &compaction).await.map(drop)
    }

    async fn ask(&self, call: &str, body: &Value) -> Result<Value> {
        let request = self.http.post(format!("{}/v3/kv/{call}", self.url));
        let answer = request.json(body).send().await?.error_for_status()?;
        Ok(answer.json().await?)
    }
}
