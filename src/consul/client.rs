//! The one way that every call takes: deadline, attempts, what is repeated, bounded answers.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use reqwest::{StatusCode, header::DATE};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::yield_now,
    time::{Instant, timeout_at},
};

use super::{
    Config, ConfigError, Error, HttpAuth, Scope,
    call::{Answer, Call},
    endpoints::{Endpoints, Target, root_cause},
    login::Login,
    repeat::Repeat,
    token::{Token, TokenCell, TokenSource},
};
use crate::clock::Moment;

/// Is told of every request that is made, for metrics.
pub trait Observer: Send + Sync {
    /// A request of this kind (such as `kv_list`, `txn`, `session_renew`) had this result (`ok` or
    /// [`Error::reason`]) and took so long. Both words are of fixed sets.
    fn call(&self, kind: &'static str, result: &'static str, took: Duration);
}

/// Says whether anything may be changed.
pub trait Gate: Send + Sync {
    /// Whether what changes something is let through.
    fn is_open(&self) -> bool;
}

/// Consul's HTTP API. Clones share connections, token and what has been learned of the servers.
#[derive(Clone)]
pub struct Client {
    pub(super) shared: Arc<Shared>,
    pub(super) scope: Arc<Scope>,
    gate: Option<Arc<dyn Gate>>,
    token: Arc<TokenSource>,
}

/// What all clones, scopes and tokens of a client have in common.
pub(super) struct Shared {
    endpoints: Endpoints,
    http_auth: Option<HttpAuth>,
    timeout: Duration,
    observer: Option<Arc<dyn Observer>>,
    /// Bounds the connections: an agent takes 200 from one address. Watches are not counted.
    calls: Semaphore,
    /// Turns to wait for changes.
    watches: Semaphore,
    /// How many operations a transaction may have, as far as is known.
    pub(super) capacity: AtomicUsize,
    /// Consul has accepted a namespace or a partition.
    pub(super) enterprise: AtomicBool,
}

/// Calls at the same time, each over a connection of its own, without watches. With the election's own
/// watch and the few connections that are opened although one is about to be free, they are 16 at most.
const CALLS: usize = 12;

/// The longest answer that is read, in bytes. The largest prefix of a semaphore is some MiB.
const LONGEST: usize = 64 << 20;

impl Client {
    /// Reads the files that the settings name; connects with the first call.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        install_crypto();
        config.validate()?;
        let endpoints = Endpoints::new(&config)?;
        let token = match config.login {
            Some(_) => TokenSource::None,
            None => TokenSource::new(&config)?,
        };
        let scope = config.scope();
        let Config {
            login,
            http_auth,
            timeout,
            max_watches,
            observer,
            ..
        } = config;
        let shared = Shared {
            endpoints,
            http_auth,
            timeout,
            observer,
            calls: Semaphore::new(CALLS),
            watches: Semaphore::new(max_watches as usize),
            capacity: AtomicUsize::new(super::txn::CAPACITY),
            enterprise: AtomicBool::new(false),
        };
        let client = Self {
            scope: Arc::new(scope),
            shared: Arc::new(shared),
            gate: None,
            token: Arc::new(token),
        };
        let Some(method) = login else {
            return Ok(client);
        };
        let login = Login::new(client.clone(), method)?;
        Ok(client.with_source(TokenSource::Login(login)))
    }

    /// The same client for another datacenter, namespace or partition.
    #[must_use]
    pub fn scoped(&self, scope: Scope) -> Self {
        let scope = Scope {
            datacenter: scope.datacenter.or_else(|| self.scope.datacenter.clone()),
            namespace: scope.namespace.or_else(|| self.scope.namespace.clone()),
            partition: scope.partition.or_else(|| self.scope.partition.clone()),
        };
        Self {
            scope: Arc::new(scope),
            ..self.clone()
        }
    }

    /// The same client, which changes nothing while the gate is closed: [`Error::Withheld`] then.
    #[must_use]
    pub fn gated(&self, gate: Arc<dyn Gate>) -> Self {
        Self {
            gate: Some(gate),
            ..self.clone()
        }
    }

    /// The same client with another token. While there is none, no call is made: they fail with
    /// [`Error::NoToken`].
    #[must_use]
    pub fn with_token(&self, token: TokenCell) -> Self {
        self.with_source(TokenSource::Cell(token))
    }

    /// The same client with this token.
    pub(super) fn with_fixed(&self, token: Token) -> Self {
        self.with_source(TokenSource::Fixed(token))
    }

    fn with_source(&self, token: TokenSource) -> Self {
        Self {
            token: Arc::new(token),
            ..self.clone()
        }
    }

    /// Gives the token back that this client has by a login ([`Config::login`]); calls fail with
    /// [`Error::NoToken`] from then on. Takes two seconds at the most. Any other token stays.
    pub async fn log_out(&self) {
        if let TokenSource::Login(login) = &*self.token {
            login.end().await;
        }
    }

    /// Makes the call, again and elsewhere where that is safe and may help, until its time is up.
    pub(super) async fn send(&self, call: Call) -> Result<Answer, Error> {
        let began = Instant::now();
        let wait = call.wait.as_ref().map(|wait| wait.most);
        let limit = self.shared.timeout + wait.unwrap_or_default();
        let deadline = began + limit;
        // One server that hangs must leave time for another, unless hanging is what was asked for.
        let patience = if call.idempotent && call.wait.is_none() {
            limit / 2
        } else {
            limit
        };
        let mut repeat = Repeat::new(deadline);
        // Once: a token that is denied again was not lost by bad luck.
        let mut looked_into = false;
        loop {
            let until = deadline.min(Instant::now() + patience);
            let error = match self.attempt(&call, &mut repeat, until).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            tracing::debug!(call = call.kind, %error, "a call of Consul failed");
            if error.is_unknown_token() && !looked_into {
                looked_into = true;
                if let Ok(true) = timeout_at(deadline, self.token.look_into()).await {
                    continue;
                }
            }
            let safe = call.wait.is_none() && (call.idempotent || !error.may_have_been_applied());
            if !safe || !error.is_transient() {
                return Err(repeat.worst(error));
            }
            repeat.pause(error, &self.shared.endpoints).await?;
        }
    }

    async fn attempt(
        &self,
        call: &Call,
        repeat: &mut Repeat,
        until: Instant,
    ) -> Result<Answer, Error> {
        let shared = &self.shared;
        let began = Instant::now();
        let ready = async {
            // Before a permit is had: a login that all wait for needs one, too.
            let token = self.token(until).await?;
            Ok((token, self.find(call, until).await?))
        };
        let result = match ready.await {
            Ok((_, (_, target))) if call.is_for_another(&target) => {
                return Err(interrupted("another server is asked now"));
            }
            Ok((token, (_permit, target))) => {
                repeat.tried.push(target.clone());
                self.ask_there(&target, call, token, until).await
            }
            Err(error) => Err(error),
        };
        if let Err(Error::Denied(_)) = result {
            self.token.doubt();
        }
        if let Some(observer) = &shared.observer {
            let word = result.as_ref().map_or_else(Error::reason, |_| "ok");
            observer.call(call.kind, word, began.elapsed());
        }
        result
    }

    async fn token(&self, until: Instant) -> Result<Option<Token>, Error> {
        let late = |_| interrupted("there was no token in time");
        timeout_at(until, self.token.current())
            .await
            .map_err(late)?
    }

    /// A turn to wait for changes; `None` while others have all of them.
    pub(super) fn watch_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.shared.watches.try_acquire().ok()
    }

    /// Whom to ask, and the permission to do so.
    async fn find(
        &self,
        call: &Call,
        until: Instant,
    ) -> Result<(Option<SemaphorePermit<'_>>, Arc<Target>), Error> {
        let found = async {
            let permit = match call.wait {
                Some(_) => None,
                None => self.shared.calls.acquire().await.ok(),
            };
            Ok((permit, self.shared.endpoints.current().await?))
        };
        let late = |_| interrupted("no server was found in time");
        timeout_at(until, found).await.map_err(late)?
    }

    /// Asks one server, and remembers if it does not work.
    async fn ask_there(
        &self,
        target: &Arc<Target>,
        call: &Call,
        token: Option<Token>,
        until: Instant,
    ) -> Result<Answer, Error> {
        let asked = self.ask(target, call, token, until);
        let result = if call.wait.is_some() {
            tokio::select! {
                result = asked => result,
                // Nothing new about the server, so this does not count against it.
                () = target.lost.notified() => return Err(interrupted("the server is lost")),
            }
        } else {
            asked.await
        };
        if let Err(error) = &result
            && error.is_transient()
            && (call.idempotent || !matches!(error, Error::Unexpected { .. }))
        {
            self.shared.endpoints.failed(target, error);
        }
        result
    }

    /// One request to one server.
    async fn ask(
        &self,
        target: &Arc<Target>,
        call: &Call,
        token: Option<Token>,
        until: Instant,
    ) -> Result<Answer, Error> {
        let shared = &self.shared;
        let mut url = target
            .url(&call.path)
            .ok_or_else(|| Error::InvalidKey(call.path.clone()))?;
        let scope = [
            ("dc", &self.scope.datacenter),
            ("ns", &self.scope.namespace),
            ("partition", &self.scope.partition),
        ];
        let scope = scope
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let query = call.query.iter().map(|(name, value)| (*name, value));
        for (name, value) in query.chain(scope) {
            url.query_pairs_mut().append_pair(name, value);
        }

        let mut request = target.http.request(call.method.clone(), url);
        if let Some(token) = &token {
            request = request.header("X-Consul-Token", token.header());
        }
        if let Some(auth) = &shared.http_auth {
            request = request.basic_auth(&auth.username, Some(auth.password.expose()));
        }
        if let Some(body) = &call.body {
            request = request.body(body.clone());
        }
        // As late as can be: all that comes before may have taken long.
        if call.changes && self.gate.as_ref().is_some_and(|gate| !gate.is_open()) {
            return Err(Error::Withheld);
        }
        let left = until.saturating_duration_since(Instant::now());
        let sent = Moment::now();
        let lost = |error: reqwest::Error| unreachable(target, &error);
        let mut response = request.timeout(left).send().await.map_err(lost)?;
        let status = response.status();
        let header = |name: &str| response.headers().get(name)?.to_str().ok();
        let index = header("X-Consul-Index").and_then(|index| index.parse::<u64>().ok());
        let filtered = header("X-Consul-Results-Filtered-By-ACLs") == Some("true");
        let date = response.headers().get(DATE).cloned();

        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(lost)? {
            if body.len() + part.len() > LONGEST {
                return Err(Error::Decode(format!("it is longer than {LONGEST} bytes")));
            }
            body.extend_from_slice(&part);
        }
        // The pool gets its connection back in a task of its own. A call before that would open another.
        yield_now().await;
        if status != StatusCode::OK {
            // A proxy may repeat what it was sent.
            let hidden = token.map(|t| t.hide_in(&String::from_utf8_lossy(&body)).into_bytes());
            body = hidden.unwrap_or(body);
        }
        if status != StatusCode::OK && status != StatusCode::NOT_FOUND {
            return Err(Error::from_answer(status.as_u16(), &body));
        }
        Ok(Answer {
            found: status == StatusCode::OK,
            // "index 0" would make a blocking query return at once, for ever.
            index: index.map(|index| index.max(1)),
            filtered,
            date,
            body,
            sent,
            server: target.clone(),
        })
    }
}

impl AsRef<Self> for Client {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// The call ends before a server could decide it.
fn interrupted(message: &str) -> Error {
    Error::Unreachable {
        message: message.to_owned(),
        undecided: false,
    }
}

fn unreachable(target: &Target, error: &reqwest::Error) -> Error {
    let why = if error.is_timeout() && !error.is_connect() {
        "no answer in time".to_owned()
    } else {
        root_cause(error)
    };
    Error::Unreachable {
        message: format!("{}: {why}", target.name),
        undecided: !error.is_connect(),
    }
}

/// TLS needs to know which cryptography it is built with, before the first client is made.
pub(super) fn install_crypto() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Another thread may have been quicker, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
