//! Reads the Consul token of a `ConsulSemaphore` that has its own from its Secret, periodically.
//!
//! The Secret is read by GET and not by a watch, so that the operator needs only the right to `get` this one Secret.
//! Semaphores that name the same Secret share one copy of its token.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::AsyncReadExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::{Client, Resource as _, api::GetParams, core::Request};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{
    sync::{Notify, Semaphore, watch},
    task::AbortHandle,
    time::sleep,
};

use super::{Context, startup_log};
use crate::call::{CallError, call};
use consul_client::{Backoff, TokenCell, clock::Moment};
use consul_semaphore_api::{TokenSecretRef, annotations::is_object_name};

/// Pause between two readings of a Secret without problems, before jitter. After Consul denies a token, the Secret is
/// read sooner.
const READ_INTERVAL: Duration = Duration::from_mins(5);

/// Longest answer for a Secret that is read, in bytes. The API server takes 1 MiB of data, which grows by a third in
/// transit, and the answer may have as much again for everything else.
const LONGEST_SECRET_ANSWER: u64 = 3 << 20;

/// Number of Secrets that are read at once.
const SECRETS_READ_AT_ONCE: usize = 2;

/// Place of a token: the namespace, and the Secret and its key in that namespace.
type TokenPlace = (Arc<str>, TokenSecretRef);

/// Secrets whose tokens are read.
pub(super) struct Secrets {
    tokens: Mutex<HashMap<TokenPlace, Weak<SecretToken>>>,
    turns: Semaphore,
}

impl Default for Secrets {
    fn default() -> Self {
        Self {
            tokens: Mutex::default(),
            turns: Semaphore::new(SECRETS_READ_AT_ONCE),
        }
    }
}

/// Token that is read periodically for as long as this exists. The last good token stays in use when its Secret is
/// deleted, because a namespace that is deleted loses its Secrets first.
pub(super) struct SecretToken {
    cell: TokenCell,
    state: watch::Receiver<TokenState>,
    /// Request to read the Secret again at once, although there is a problem.
    again: Arc<Notify>,
    reading: AbortHandle,
}

/// Result of the last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TokenState {
    /// Reason why no token can be read, and what to do.
    problem: Option<String>,
    /// Number of different tokens that have been read.
    tokens: u64,
}

impl Drop for SecretToken {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl SecretToken {
    /// Returns the token that semaphores of this namespace refer to with `from`. Reading it starts at once, unless
    /// another semaphore shares it already.
    pub(super) fn shared(
        context: &Arc<Context>,
        namespace: &Arc<str>,
        from: &TokenSecretRef,
    ) -> Arc<Self> {
        let mut tokens = context.secrets.tokens.lock();
        let subject = (namespace.clone(), from.clone());
        if let Some(token) = tokens.get(&subject).and_then(Weak::upgrade) {
            if token.problem().is_some() {
                // The Secret may have been created together with the semaphore.
                token.again.notify_one();
            }
            return token;
        }
        let token = Arc::new(Self::read(context.clone(), namespace.clone(), from.clone()));
        tokens.retain(|_, token| token.strong_count() > 0);
        tokens.insert(subject, Arc::downgrade(&token));
        token
    }

    fn read(context: Arc<Context>, namespace: Arc<str>, from: TokenSecretRef) -> Self {
        let cell = TokenCell::default();
        let (sender, state) = watch::channel(TokenState::default());
        let again = Arc::new(Notify::new());
        let reader = SecretReader {
            context,
            namespace,
            from,
            cell: cell.clone(),
            again: again.clone(),
        };
        let reading = tokio::spawn(reader.run(sender)).abort_handle();
        Self {
            cell,
            state,
            again,
            reading,
        }
    }

    /// Returns the token, once it was read.
    pub(super) fn token(&self) -> Option<TokenCell> {
        self.cell.is_set().then(|| self.cell.clone())
    }

    /// Returns the reason why no token can be read, and what to do.
    pub(super) fn problem(&self) -> Option<String> {
        self.state.borrow().problem.clone()
    }

    /// Returns a receiver for changes of the token, or of its problem.
    pub(super) fn changes(&self) -> TokenChanges {
        TokenChanges(self.state.clone())
    }
}

/// Receiver for changes of a token.
pub(super) struct TokenChanges(watch::Receiver<TokenState>);

impl TokenChanges {
    /// Waits until there is another token, or another problem; returns `false` when the token is no longer read.
    pub(super) async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

struct SecretReader {
    context: Arc<Context>,
    namespace: Arc<str>,
    from: TokenSecretRef,
    cell: TokenCell,
    again: Arc<Notify>,
}

impl SecretReader {
    async fn run(self, sender: watch::Sender<TokenState>) {
        let mut backoff = Backoff::default();
        loop {
            let (problem, news) = match self.look().await {
                Ok(news) => (None, news),
                Err(problem) => (Some(problem), false),
            };
            sender.send_if_modified(|state| {
                let other = state.problem != problem;
                // The warning is only for a semaphore that has an earlier token. Without a token the semaphore is not
                // ready, which its condition reports.
                let still = other && self.cell.is_set();
                if let Some(problem) = problem.as_ref().filter(|_| still) {
                    tracing::warn!(
                        namespace = %self.namespace,
                        secret = %self.from.name,
                        problem,
                        "the operator still uses the token that it read before"
                    );
                }
                state.problem.clone_from(&problem);
                state.tokens += u64::from(news);
                other || news
            });
            // The pause grows, so that neither a missing Secret nor a token that Consul denies causes a storm of
            // requests.
            if news {
                backoff.reset();
                let exposure = self.context.shared.unsaid.lock().take();
                startup_log::warn(exposure.as_slice());
            }
            let next = Moment::now() + backoff.pause();
            let due = async || sleep(next.since(Moment::now())).await;
            if problem.is_some() {
                tokio::select! {
                    () = due() => {}
                    () = self.again.notified() => {}
                }
                continue;
            }
            let pause = READ_INTERVAL.mul_f64(fastrand::f64().mul_add(0.2, 0.9));
            tokio::select! {
                () = sleep(pause) => backoff.reset(),
                () = self.cell.denied() => due().await,
            }
        }
    }

    /// Reads the Secret; returns whether its token has changed.
    async fn look(&self) -> Result<bool, String> {
        // The semaphore of turns is never closed, so this can't fail.
        let _turn = self.context.secrets.turns.acquire().await;
        let (client, namespace) = (&self.context.client, &self.namespace);
        take_token(client, namespace, &self.from, &self.cell).await
    }
}

/// Reads a token from its Secret into a cell; returns whether the token has changed.
pub(crate) async fn take_token(
    client: &Client,
    namespace: &str,
    from: &TokenSecretRef,
    into: &TokenCell,
) -> Result<bool, String> {
    /// Fields of a Secret that are used.
    #[derive(Deserialize)]
    struct SecretData<'a> {
        #[serde(default, borrow)]
        data: BTreeMap<Cow<'a, str>, &'a RawValue>,
    }
    let TokenSecretRef { name, key } = from;
    if !is_object_name(name) {
        return Err(format!("{name:?} can't be the name of a Secret"));
    }
    let secrets = Request::new(Secret::url_path(&(), Some(namespace)));
    let request = secrets
        .get(name, &GetParams::default())
        .map_err(|error| format!("the Secret {name} can't be read: {error}"))?;
    // The answer is read as text, because the client logs an answer with its contents if it can't parse it.
    let read = async {
        let answer = client.request_stream(request).await?;
        let mut text = Vec::new();
        let mut answer = std::pin::pin!(answer.take(LONGEST_SECRET_ANSWER + 1));
        let read = answer.read_to_end(&mut text).await;
        read.map_err(kube::Error::ReadEvents)?;
        Ok(text)
    };
    let text = call(read)
        .await
        .map_err(|error| explain(&error, namespace, name))?;
    if text.len() as u64 > LONGEST_SECRET_ANSWER {
        return Err(format!("the Secret {name} is too large to be read"));
    }
    let Ok(SecretData { data }) = serde_json::from_slice(&text) else {
        return Err(format!("the Secret {name} can't be understood"));
    };
    let Some(value) = data.get(key.as_str()) else {
        return Err(format!(
            "the Secret {name} has no key {key}: put the token there, or name its key in \
             spec.consul.tokenSecretRef"
        ));
    };
    let encoded: Option<Cow<'_, str>> = serde_json::from_str(value.get()).ok();
    let token = encoded
        .and_then(|encoded| BASE64_STANDARD.decode(&*encoded).ok())
        .and_then(|token| String::from_utf8(token).ok())
        .map(|token| token.trim().to_owned());
    let Some(token) = token.filter(|token| !token.is_empty()) else {
        return Err(format!("the key {key} of the Secret {name} holds no token"));
    };
    let set = into.set(&token.into());
    set.map_err(|error| format!("the key {key} of the Secret {name} {error}"))
}

fn explain(error: &CallError, namespace: &str, name: &str) -> String {
    match error.refusal() {
        Some((404, _)) => format!(
            "there is no Secret {name} in the namespace {namespace}: create it, with a Consul token \
             in it"
        ),
        Some((403, _)) => format!(
            "the operator may not read the Secret {name} of the namespace {namespace}: allow it to \
             get that Secret by a Role in the namespace, as config/token-secret does"
        ),
        _ => format!("the Secret {name} can't be read: {error}"),
    }
}
