//! How every call is made: deadline, attempts, retries, bounded answers.

use std::{fmt, sync::Arc, time::Duration};

use reqwest::{StatusCode, header::DATE};
use tokio::{
    sync::Semaphore,
    task::yield_now,
    time::{Instant, timeout_at},
};

use super::{
    Address, Config, ConfigError, Error, HttpAuth, Scope,
    call::{Answer, Call},
    datacenter::{Datacenter, Datacenters},
    endpoints::{Endpoints, Target, root_cause},
    lanes::{Lanes, Turn},
    login::Login,
    repeat::Repeat,
    token::{Token, TokenCell, TokenSource},
};
use crate::clock::Moment;

/// Receives every request that was made, for metrics.
pub trait Observer: Send + Sync {
    /// A request of this kind (such as `kv_list`, `txn`, `session_renew`) had this result (`ok` or [`Error::reason`])
    /// and took so long. Kinds and results are from fixed sets.
    fn call(&self, kind: &'static str, result: &'static str, took: Duration);
}

/// Decides whether writes may be sent.
pub trait Gate: Send + Sync {
    /// Why no writes are sent, as calls fail then; `None` if they are sent.
    fn refusal(&self) -> Option<Error>;
}

/// Consul's HTTP API. Clones share connections, the token and the state of the servers.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    pub(super) scope: Arc<Scope>,
    /// The datacenter of the scope.
    pub(super) datacenter: Arc<Datacenter>,
    pub(super) lanes: Arc<Lanes>,
    gate: Option<Arc<dyn Gate>>,
    token: Arc<TokenSource>,
    /// Whether connections are kept for further calls.
    keeps_connections: bool,
    /// When all calls end, in addition to the timeout.
    by: Moment,
}

/// What all clones, scopes and tokens of a client have in common.
struct Shared {
    datacenters: Datacenters,
    /// Whether all addresses are on this machine.
    local: bool,
    http_auth: Option<HttpAuth>,
    timeout: Duration,
    observer: Option<Arc<dyn Observer>>,
    /// Permits one long answer at a time.
    long: Arc<Semaphore>,
}

/// How many tenths of its time may have passed when a call is sent. After that it would hardly be answered in time,
/// so it is not sent and others go first.
const LATEST: u32 = 9;

/// The longest answer that is read, in bytes. A prefix with 5000 holders takes some 10 MiB: a contender each, with a
/// body of up to 1 KiB, which grows by a third in transit.
const LONGEST: usize = 16 << 20;

/// Answers of at least this many bytes are read one at a time, so that what others write below their prefixes does
/// not add up in memory.
const LONG: usize = 1 << 20;

impl Client {
    /// Reads the files that the settings name. The first call connects.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        install_crypto();
        config.validate()?;
        let endpoints = Endpoints::new(&config)?;
        let local = config.addresses.iter().all(Address::is_local);
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
        let home = scope.datacenter.clone();
        let datacenters = Datacenters::new(endpoints, home, max_watches as usize);
        let datacenter = datacenters.get(scope.datacenter.as_ref());
        let client = Self {
            scope: Arc::new(scope),
            lanes: datacenter.lanes.clone(),
            datacenter,
            shared: Arc::new(Shared {
                datacenters,
                local,
                http_auth,
                timeout,
                observer,
                long: Arc::new(Semaphore::new(1)),
            }),
            gate: None,
            token: Arc::new(token),
            keeps_connections: true,
            by: Moment::END,
        };
        let Some(method) = login else {
            return Ok(client);
        };
        let login = Login::new(client.clone(), method)?;
        Ok(client.with_source(TokenSource::Login(login)))
    }

    /// Whether all addresses are on this machine, where an agent is expected, and not a server.
    pub fn is_local(&self) -> bool {
        self.shared.local
    }

    /// Whether its calls have a token: others don't have its rights.
    pub fn has_token(&self) -> bool {
        !matches!(*self.token, TokenSource::None)
    }

    /// The same client for another datacenter, namespace or partition.
    #[must_use]
    pub fn scoped(&self, scope: Scope) -> Self {
        let scope = Scope {
            datacenter: scope.datacenter.or_else(|| self.scope.datacenter.clone()),
            namespace: scope.namespace.or_else(|| self.scope.namespace.clone()),
            partition: scope.partition.or_else(|| self.scope.partition.clone()),
        };
        let datacenter = self.shared.datacenters.get(scope.datacenter.as_ref());
        Self {
            scope: Arc::new(scope),
            lanes: datacenter.lanes.clone(),
            datacenter,
            ..self.clone()
        }
    }

    /// The same client, with calls that wait for no others: for an election, which makes one call after the other
    /// beside one watch.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            lanes: Arc::new(Lanes::apart()),
            ..self.clone()
        }
    }

    /// The same client, whose calls end by then. A call that could only be answered later is not sent:
    /// [`Error::NotSent`].
    #[must_use]
    pub fn by(&self, by: Moment) -> Self {
        Self { by, ..self.clone() }
    }

    /// The same client, which closes a connection after each call, except between blocking queries: for programs of which
    /// thousands may use one agent, and that have little to ask. Consul accepts 200 connections from one address
    /// (`limits.http_max_conns_per_client`), also of those that are idle.
    #[must_use]
    pub fn without_idle_connections(&self) -> Self {
        Self {
            keeps_connections: false,
            ..self.clone()
        }
    }

    /// The same client, which sends no writes while the gate is closed: they fail with its refusal, which is
    /// [`Error::Withheld`] as a rule.
    #[must_use]
    pub fn gated(&self, gate: Arc<dyn Gate>) -> Self {
        Self {
            gate: Some(gate),
            ..self.clone()
        }
    }

    /// The same client with another token. While there is none, all calls fail with [`Error::NoToken`].
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

    /// Gives back the token from a login ([`Config::login`]); from then on calls fail with [`Error::NoToken`]. Takes
    /// at most two seconds. Does nothing with any other token.
    pub async fn log_out(&self) {
        if let TokenSource::Login(login) = &*self.token {
            login.end().await;
        }
    }

    /// Makes the call. Retries, also at other servers, where that is safe and may help, until its time is up.
    pub(super) async fn send(&self, call: Call) -> Result<Answer, Error> {
        let began = Instant::now();
        let wait = call.wait.as_ref().map(|wait| wait.most);
        let limit = self.shared.timeout + wait.unwrap_or_default();
        let limit = limit.min(self.by.since(Moment::now()));
        let time = Time {
            latest: began + limit / 10 * LATEST,
            deadline: began + limit,
            // A server that hangs must leave time for another one, except in a blocking query.
            patience: if call.idempotent && call.wait.is_none() {
                limit / 2
            } else {
                limit
            },
        };
        let mut repeat = Repeat::new(time.latest);
        // Only once: if Consul denies the token again, it really does not know it.
        let mut rechecked = false;
        loop {
            let error = match self.attempt(&call, &mut repeat, &time).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            tracing::debug!(call = call.kind, %error, "a call of Consul failed");
            if error.is_unknown_token() && !rechecked {
                rechecked = true;
                if let Ok(true) = timeout_at(time.latest, self.token.recheck()).await {
                    continue;
                }
            }
            let safe = call.wait.is_none() && (call.idempotent || !error.may_have_been_applied());
            if !safe || !error.is_transient() {
                return Err(repeat.worst(error));
            }
            repeat.pause(error, &self.datacenter.servers).await?;
        }
    }

    async fn attempt(
        &self,
        call: &Call,
        repeat: &mut Repeat,
        time: &Time,
    ) -> Result<Answer, Error> {
        let began = Instant::now();
        let result = match self.prepare(call, time).await {
            Ok((_, _, target)) if call.is_for_another(&target) => {
                // Nothing was asked, so there is nothing to count.
                return Err(interrupted("another server is asked now"));
            }
            Ok((token, _turn, target)) => {
                repeat.tried.push(target.clone());
                // Starts here: a wait for other calls says nothing about the server.
                let until = time.deadline.min(Instant::now() + time.patience);
                self.ask_there(&target, call, token, until).await
            }
            Err(error) => Err(error),
        };
        if let Err(Error::Denied(_)) = result {
            self.token.invalidate();
        }
        if let Some(observer) = &self.shared.observer {
            let word = result.as_ref().map_or_else(Error::reason, |_| "ok");
            observer.call(call.kind, word, began.elapsed());
        }
        result
    }

    /// What a call needs: a token, a turn, and a server.
    async fn prepare(
        &self,
        call: &Call,
        time: &Time,
    ) -> Result<(Option<Token>, Option<Turn<'_>>, Arc<Target>), Error> {
        // Before it takes a turn: a login that all calls wait for needs one, too.
        let token = timeout_at(time.latest, self.token.current()).await;
        let token = token.map_err(|_| interrupted("there was no token in time"))??;
        let turn = async {
            match call.wait {
                Some(_) => None,
                None => self.lanes.turn(call.lane).await,
            }
        };
        let turn = timeout_at(time.latest, turn).await;
        let turn = turn.map_err(|_| Error::NotSent("other calls took too long".to_owned()))?;
        let target = timeout_at(time.latest, self.datacenter.servers.current()).await;
        let target = target.map_err(|_| interrupted("no server was found in time"))??;
        if Instant::now() >= time.latest {
            return Err(Error::NotSent("too little time is left".to_owned()));
        }
        Ok((token, turn, target))
    }

    /// Asks one server, and remembers a failure of it.
    async fn ask_there(
        &self,
        target: &Arc<Target>,
        call: &Call,
        token: Option<Token>,
        until: Instant,
    ) -> Result<Answer, Error> {
        let asked = self.ask(target, call, token, until);
        let result = if call.wait.is_some() {
            let servers = &self.datacenter.servers;
            tokio::select! {
                result = asked => result,
                // This is nothing new about the server, so it does not count against it.
                () = target.lost.notified() => return Err(interrupted("the server is lost")),
                () = servers.lost.notified() => return Err(interrupted("the datacenter is silent")),
            }
        } else {
            asked.await
        };
        if let Err(error) = &result
            && error.is_transient()
            && (call.idempotent || !matches!(error, Error::Unexpected { .. }))
        {
            self.leave(target, error, Instant::now() >= until);
        }
        result
    }

    /// Moves on to another server after this failure: for all datacenters if the failure is the server's own, as when
    /// its connection fails, or if the server is `silent` and forwards to no other datacenter.
    fn leave(&self, target: &Arc<Target>, error: &Error, silent: bool) {
        let servers = &self.datacenter.servers;
        match error {
            Error::Unreachable { .. } if silent && self.scope.datacenter.is_some() => {
                servers.lost.notify_waiters();
                servers.leave(target);
            }
            Error::Unreachable { .. } => self.shared.datacenters.leave(target),
            _ => servers.leave(target),
        }
    }

    /// One request to one server.
    async fn ask(
        &self,
        target: &Arc<Target>,
        call: &Call,
        token: Option<Token>,
        until: Instant,
    ) -> Result<Answer, Error> {
        let mut url = target
            .url(&call.path)
            .ok_or_else(|| Error::invalid_key(&call.path))?;
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

        let keeps = self.keeps_connections || call.wait.is_some();
        let http = if keeps {
            &target.http
        } else {
            &target.http_once
        };
        let mut request = http.request(call.method.clone(), url);
        if let Some(token) = &token {
            request = request.header("X-Consul-Token", token.header());
        }
        if let Some(auth) = &self.shared.http_auth {
            request = request.basic_auth(&auth.username, Some(auth.password.expose()));
        }
        if let Some(body) = &call.body {
            request = request.body(body.clone());
        }
        // As late as possible: everything before this may have taken long.
        if call.changes
            && let Some(refusal) = self.gate.as_ref().and_then(|gate| gate.refusal())
        {
            return Err(refusal);
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

        let (mut body, mut long) = (Vec::new(), None);
        while let Some(part) = response.chunk().await.map_err(lost)? {
            let length = body.len() + part.len();
            if length > LONGEST {
                return Err(Error::AnswerTooLarge(LONGEST));
            }
            if length > LONG && long.is_none() {
                let turn = timeout_at(until, self.shared.long.clone().acquire_owned()).await;
                // The semaphore is never closed.
                long = turn
                    .map_err(|_| interrupted("other long answers took too long"))?
                    .ok();
            }
            body.extend_from_slice(&part);
        }
        // The pool takes back its connection in a separate task. A call made before that would open another
        // connection.
        yield_now().await;
        if status != StatusCode::OK {
            // A proxy may quote the request.
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
            _long: long,
            sent,
            server: target.clone(),
        })
    }
}

/// The time limits of one call.
struct Time {
    /// When it must be sent at the latest.
    latest: Instant,
    deadline: Instant,
    /// How long one server may take.
    patience: Duration,
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

/// The call ends before a server could decide about it.
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

/// TLS must know its cryptography provider before the first client is made.
pub(super) fn install_crypto() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // `Err` means that a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
