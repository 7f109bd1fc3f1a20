//! A plain HTTP client for Consul. It shares no code with the operator.
use std::{collections::BTreeSet, panic::Location, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::{Body, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use crate::{
    http_client,
    story::{reads, story},
};

/// The `Flags` of a semaphore's keys, as every Consul client writes them.
pub const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;

/// The longest that a read waits for a change.
const WAIT: Duration = Duration::from_secs(30);

/// A client to read and to change Consul.
///
/// The methods panic with the line of the test when Consul does not answer or refuses: those that change something at
/// once, and those that read when it goes on for a minute.
#[derive(Clone)]
pub struct Consul {
    http: reqwest::Client,
    address: String,
    token: Option<String>,
}

impl std::fmt::Debug for Consul {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consul")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A key as it is in Consul.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The full name of the key.
    pub key: String,
    /// Its body.
    pub value: Vec<u8>,
    /// Its flags, which say what kind of lock it belongs to.
    pub flags: u64,
    /// The session that has it locked.
    pub session: Option<String>,
    /// The raft index of its last change.
    pub modify_index: u64,
    /// How often it has been locked.
    pub lock_index: u64,
}

impl Entry {
    /// The body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.value).unwrap_or_default()
    }

    fn parse(entry: &Value) -> Result<Self> {
        let number = |field: &str| {
            entry[field]
                .as_u64()
                .with_context(|| format!("no {field} in {entry}"))
        };
        Ok(Self {
            key: entry["Key"]
                .as_str()
                .with_context(|| format!("no Key in {entry}"))?
                .to_owned(),
            value: BASE64_STANDARD.decode(entry["Value"].as_str().unwrap_or_default())?,
            flags: number("Flags")?,
            session: entry["Session"].as_str().map(str::to_owned),
            modify_index: number("ModifyIndex")?,
            lock_index: number("LockIndex")?,
        })
    }
}

/// The content of a `.lock` body, in either of its two forms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// The limit in Consul.
    pub limit: Option<u64>,
    /// The sessions that hold a slot.
    pub holders: BTreeSet<String>,
}

impl Lock {
    fn parse(body: &Value) -> Self {
        let holders = match &body["Holders"] {
            Value::Object(map) => map.keys().cloned().collect(),
            Value::Array(list) => list
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            _ => BTreeSet::new(),
        };
        Self {
            limit: body["Limit"].as_u64(),
            holders,
        }
    }
}

impl Consul {
    /// A Consul at `address`, as in `CONSUL_HTTP_ADDR`: with or without a scheme.
    pub fn at(address: &str, token: Option<&str>) -> Result<Self> {
        let http = http_client().timeout(WAIT * 2).build()?;
        let address = if address.contains("://") {
            address.to_owned()
        } else {
            format!("http://{address}")
        };
        Ok(Self {
            http,
            address,
            token: token.map(str::to_owned),
        })
    }

    /// The same Consul, with another token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            token: Some(token.to_owned()),
            ..self.clone()
        }
    }

    /// The token that it uses.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Its URL.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The limit in `<prefix>/.lock`.
    #[track_caller]
    pub fn limit(&self, prefix: &str) -> impl Future<Output = Option<u64>> {
        reads(Location::caller(), prefix, move || async move {
            let (lock, _) = self.try_lock(prefix, 0).await?;
            Ok(lock.and_then(|lock| lock.limit))
        })
    }

    /// The sessions that hold a slot, from `<prefix>/.lock`.
    #[track_caller]
    pub fn holders(&self, prefix: &str) -> impl Future<Output = BTreeSet<String>> {
        reads(Location::caller(), prefix, move || async move {
            let (lock, _) = self.try_lock(prefix, 0).await?;
            Ok(lock.map(|lock| lock.holders).unwrap_or_default())
        })
    }

    /// The contender keys below `prefix` that are locked.
    #[track_caller]
    pub fn contenders(&self, prefix: &str) -> impl Future<Output = Vec<Entry>> {
        reads(Location::caller(), prefix, move || async move {
            let mut entries = self.try_list(&format!("{prefix}/")).await?;
            entries.retain(|entry| entry.session.is_some() && !entry.key.ends_with("/.lock"));
            Ok(entries)
        })
    }

    /// One key.
    #[track_caller]
    pub fn kv(&self, key: &str) -> impl Future<Output = Option<Entry>> {
        reads(Location::caller(), key, move || async move {
            Ok(self.try_kv(key, 0).await?.0)
        })
    }

    /// All keys that start with `prefix`, taken literally: without a trailing slash it also finds neighbours.
    #[track_caller]
    pub fn list(&self, prefix: &str) -> impl Future<Output = Vec<Entry>> {
        reads(Location::caller(), prefix, || self.try_list(prefix))
    }

    /// Writes a key with any body.
    #[track_caller]
    pub fn put(&self, key: &str, flags: u64, body: impl Into<Vec<u8>>) -> impl Future<Output = ()> {
        let body = body.into();
        story(Location::caller(), async move {
            let query = [("flags", flags.to_string())];
            self.check(
                self.request(Method::PUT, &format!("kv/{key}"))
                    .query(&query)
                    .body(body),
            )
            .await
            .map(drop)
        })
    }

    /// Deletes a key.
    #[track_caller]
    pub fn delete(&self, key: &str) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            self.check(self.request(Method::DELETE, &format!("kv/{key}")))
                .await
                .map(drop)
        })
    }

    /// Creates a session and returns its id. Without a node, it belongs to the agent's own node.
    #[track_caller]
    pub fn create_session(&self, session: Value) -> impl Future<Output = String> {
        story(Location::caller(), async move {
            let created = self.try_put("session/create", session).await?;
            created["ID"]
                .as_str()
                .map(str::to_owned)
                .with_context(|| format!("no ID in {created}"))
        })
    }

    /// Destroys a session, as a Consul admin can at any time.
    #[track_caller]
    pub fn destroy_session(&self, id: &str) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            self.try_put(&format!("session/destroy/{id}"), json!({}))
                .await
                .map(drop)
        })
    }

    /// All live sessions.
    #[track_caller]
    pub fn sessions(&self) -> impl Future<Output = Vec<Value>> {
        reads(Location::caller(), "the sessions", move || async move {
            match self.try_get("session/list").await? {
                Value::Array(sessions) => Ok(sessions),
                other => bail!("not a list of sessions: {other}"),
            }
        })
    }

    /// Takes a slot as a foreign program: makes a session and follows Consul's protocol, without waiting. Returns the
    /// session, or panics when no slot is free.
    #[track_caller]
    pub fn take_slot(&self, prefix: &str, limit: u64) -> impl Future<Output = String> {
        story(Location::caller(), self.try_take_slot(prefix, limit))
    }

    /// Takes the slot of `holder` as a foreign program that breaks the protocol: the slot is never free in between.
    #[track_caller]
    pub fn usurp(&self, prefix: &str, limit: u64, holder: &str) -> impl Future<Output = String> {
        story(Location::caller(), self.try_usurp(prefix, limit, holder))
    }

    /// Releases the slot that [`Self::take_slot`] took.
    #[track_caller]
    pub fn give_back(&self, prefix: &str, session: &str) -> impl Future<Output = ()> {
        story(Location::caller(), self.try_give_back(prefix, session))
    }

    /// `GET /v1/<path>`.
    #[track_caller]
    pub fn get(&self, path: &str) -> impl Future<Output = Value> {
        reads(Location::caller(), path, || self.try_get(path))
    }

    /// `PUT /v1/<path>` with a JSON body.
    #[track_caller]
    pub fn put_json(&self, path: &str, body: Value) -> impl Future<Output = Value> {
        story(Location::caller(), self.try_put(path, body))
    }

    /// `DELETE /v1/<path>`.
    #[track_caller]
    pub fn delete_at(&self, path: &str) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            self.try_call(Method::DELETE, path, "").await.map(drop)
        })
    }

    /// `GET /v1/<path>`, as a `Result`.
    pub async fn try_get(&self, path: &str) -> Result<Value> {
        Ok(self
            .check(self.request(Method::GET, path))
            .await?
            .json()
            .await?)
    }

    /// `PUT /v1/<path>`, as a `Result`; an answer that is not JSON is null.
    pub async fn try_put(&self, path: &str, body: Value) -> Result<Value> {
        self.try_call(Method::PUT, path, body.to_string()).await
    }

    /// A call of `/v1/<path>` with any body; an answer that is not JSON is null.
    ///
    /// # Errors
    /// Consul does not answer, or refuses.
    pub async fn try_call(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Body>,
    ) -> Result<Value> {
        let answer = self.check(self.request(method, path).body(body)).await?;
        Ok(serde_json::from_slice(&answer.bytes().await?).unwrap_or_default())
    }

    /// Reads `<prefix>/.lock`, if `index` is not 0 after a change since then. Also returns the index of the answer.
    pub(crate) async fn try_lock(&self, prefix: &str, index: u64) -> Result<(Option<Lock>, u64)> {
        let (entry, index) = self.try_kv(&format!("{prefix}/.lock"), index).await?;
        Ok((entry.map(|entry| Lock::parse(&entry.json())), index))
    }

    async fn try_kv(&self, key: &str, index: u64) -> Result<(Option<Entry>, u64)> {
        let (entries, index) = self.try_read(&format!("kv/{key}"), index).await?;
        Ok((entries.into_iter().next(), index))
    }

    /// Reads all keys below a prefix, if `index` is not 0 after a change since then. Also returns the index of the
    /// answer.
    pub(crate) async fn try_below(&self, prefix: &str, index: u64) -> Result<(Vec<Entry>, u64)> {
        self.try_read(&format!("kv/{prefix}/?recurse"), index).await
    }

    async fn try_read(&self, path: &str, index: u64) -> Result<(Vec<Entry>, u64)> {
        let mut request = self.request(Method::GET, path);
        if index > 0 {
            request = request.query(&[
                ("index", index.to_string()),
                ("wait", format!("{}s", WAIT.as_secs())),
            ]);
        }
        let answer = self.send(request).await?;
        let index = answer
            .headers()
            .get("x-consul-index")
            .and_then(|index| index.to_str().ok()?.parse().ok())
            .context("an answer without X-Consul-Index")?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok((Vec::new(), index));
        }
        let entries: Vec<Value> = refused(answer).await?.json().await?;
        let entries: Result<_> = entries.iter().map(Entry::parse).collect();
        Ok((entries?, index))
    }

    /// Like [`Self::list`], for programs other than tests.
    pub async fn try_list(&self, prefix: &str) -> Result<Vec<Entry>> {
        let answer = self
            .send(self.request(Method::GET, &format!("kv/{prefix}?recurse")))
            .await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(Vec::new());
        }
        let entries: Vec<Value> = refused(answer).await?.json().await?;
        entries.iter().map(Entry::parse).collect()
    }

    async fn try_take_slot(&self, prefix: &str, limit: u64) -> Result<String> {
        let session = self.try_contend(prefix).await?;
        self.change_holders(prefix, limit, |holders| {
            if holders.len() as u64 >= limit {
                bail!("no room in {prefix}: {holders:?}");
            }
            holders.insert(session.clone());
            Ok(())
        })
        .await?;
        Ok(session)
    }

    async fn try_usurp(&self, prefix: &str, limit: u64, holder: &str) -> Result<String> {
        let session = self.try_contend(prefix).await?;
        self.change_holders(prefix, limit, |holders| {
            if !holders.remove(holder) {
                bail!("{holder} has no slot of {prefix}: {holders:?}");
            }
            holders.insert(session.clone());
            Ok(())
        })
        .await?;
        Ok(session)
    }

    /// Makes a session with a contender of `prefix`.
    async fn try_contend(&self, prefix: &str) -> Result<String> {
        let created = self
            .try_put(
                "session/create",
                json!({ "Behavior": "delete", "TTL": "24h" }),
            )
            .await?;
        let session = created["ID"].as_str().context("no session")?;
        let contender = self.request(Method::PUT, &format!("kv/{prefix}/{session}"));
        self.check(contender.query(&[
            ("acquire", session),
            ("flags", &SEMAPHORE_FLAGS.to_string()),
        ]))
        .await?;
        Ok(session.to_owned())
    }

    async fn try_give_back(&self, prefix: &str, session: &str) -> Result<()> {
        let limit = self
            .try_lock(prefix, 0)
            .await?
            .0
            .and_then(|lock| lock.limit)
            .unwrap_or(1);
        self.change_holders(prefix, limit, |holders| {
            holders.remove(session);
            Ok(())
        })
        .await?;
        self.check(self.request(Method::DELETE, &format!("kv/{prefix}/{session}")))
            .await?;
        self.try_put(&format!("session/destroy/{session}"), json!({}))
            .await
            .map(drop)
    }

    async fn change_holders(
        &self,
        prefix: &str,
        limit: u64,
        change: impl Fn(&mut BTreeSet<String>) -> Result<()>,
    ) -> Result<()> {
        let key = format!("{prefix}/.lock");
        for _ in 0..100 {
            let (entry, _) = self.try_kv(&key, 0).await?;
            let mut holders = entry
                .as_ref()
                .map(|entry| Lock::parse(&entry.json()).holders)
                .unwrap_or_default();
            change(&mut holders)?;
            let holders: serde_json::Map<_, _> = holders
                .into_iter()
                .map(|id| (id, Value::Bool(true)))
                .collect();
            let cas = entry.map_or(0, |entry| entry.modify_index).to_string();
            let request = self
                .request(Method::PUT, &format!("kv/{key}"))
                .query(&[("cas", &cas), ("flags", &SEMAPHORE_FLAGS.to_string())])
                .json(&json!({ "Limit": limit, "Holders": holders }));
            if self.check(request).await?.json::<bool>().await? {
                return Ok(());
            }
        }
        bail!("{key} changes all the time")
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self
            .http
            .request(method, format!("{}/v1/{path}", self.address));
        match &self.token {
            Some(token) => request.header("X-Consul-Token", token),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        request
            .send()
            .await
            .with_context(|| format!("no answer from Consul at {}", self.address))
    }

    async fn check(&self, request: RequestBuilder) -> Result<Response> {
        refused(self.send(request).await?).await
    }
}

async fn refused(answer: Response) -> Result<Response> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let path = answer.url().path().to_owned();
    Err(anyhow!(
        "Consul refused {path}: {status}: {}",
        answer.text().await.unwrap_or_default().trim()
    ))
}
