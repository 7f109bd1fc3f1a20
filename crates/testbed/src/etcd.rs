//! A client for etcd that bypasses the API server.
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::http_client;

/// The etcd of an [`ApiServer`](crate::ApiServer), through its JSON gateway.
#[derive(Clone, Debug)]
pub struct Etcd {
    http: reqwest::Client,
    url: String,
}

impl Etcd {
    pub(crate) fn at(url: &str) -> Result<Self> {
        Ok(Self {
            http: http_client().build()?,
            url: url.to_owned(),
        })
    }

    /// Its URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Checks that it works.
    pub(crate) async fn health(&self) -> Result<()> {
        let request = self.http.get(format!("{}/health", self.url));
        request.send().await?.error_for_status()?;
        Ok(())
    }

    /// The revision of the newest write, which orders everything in Kubernetes: every write that was answered before
    /// this call is included.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn revision(&self) -> Result<u64> {
        let any = json!({ "key": "YQ==", "count_only": true });
        let answer = self.ask("range", &any).await?;
        answer["header"]["revision"]
            .as_str()
            .and_then(|revision| revision.parse().ok())
            .with_context(|| format!("no revision in {answer}"))
    }

    /// Drops all revisions except the current one, as the API server has it do every few minutes. A watch from an
    /// older revision must then start again (410 Gone).
    ///
    /// # Errors
    /// It does not answer.
    pub async fn compact(&self) -> Result<()> {
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
