//! Makes the calls of Consul's HTTP API, with deadlines, retries and bounded answers.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use reqwest::{StatusCode, header::DATE};
use tokio::{
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use super::{
    Account, Address, Config, ConfigError, Entries, Error, HttpAuth, Scope,
    call::{Answer, Call},
    datacenter::{Datacenter, Datacenters},
    elements::Elements,
    endpoints::{Endpoints, Idle, Target, root_cause},
    lanes::{Lanes, Turn},
    listing::Wanted,
    login::Login,
    repeat::Repeat,
    shared_turn::{Purpose, SharedTurn},
    token::{Token, TokenCell, TokenSource},
};
use crate::{clock::Moment, turns};

/// Receives every request that was made, for metrics.
pub trait Observer: Send + Sync {
    /// A request of this kind (such as `kv_list`, `txn`, `session_renew`) had this result (`ok` or [`Error::reason`])
    /// and took so long. Kinds and results are from fixed sets.
    fn call(&self, kind: &'static str, result: &'static str, took: Duration);
}

/// Decides whether writes may be sent.
pub trait Gate: Send + Sync {
    /// Returns the error with which writes fail while the gate is closed; `None` if writes may be sent.
    fn refusal(&self) -> Option<Error>;
}

/// A client of Consul's HTTP API. Clones share connections, the token and the state of the servers.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    pub(super) scope: Arc<Scope>,
    /// The datacenter of the scope.
    pub(super) datacenter: Arc<Datacenter>,
    pub(super) lanes: Arc<Lanes>,
    gate: Option<Arc<dyn Gate>>,
    token: Arc<TokenSource>,
    idle: Idle,
    /// Moment by which all calls end, in addition to the timeout.
    by: Moment,
    /// Account that counts what is kept of listings.
    pub(super) account: Option<Account>,
}

/// State that all clones, scopes and tokens of a client share.
struct Shared {
    datacenters: Datacenters,
    /// Whether all addresses are on this machine.
    local: bool,
    http_auth: Option<HttpAuth>,
    timeout: Duration,
    observer: Option<Arc<dyn Observer>>,
    /// Owner of the turns of a client without an account.
    owner: Arc<str>,
}

/// Tenths of a call's time that may have passed when the call is sent. After that the call would hardly be answered
/// in time, so it is not sent and others go first.
const LATEST_SEND_TENTHS: u32 = 9;

/// The longest answer that is read, in bytes. A prefix with 5000 holders takes some 10 MiB: a contender each, with a
/// body of up to 1 KiB, which grows by a third in transit.
const LONGEST_ANSWER: usize = 16 << 20;

/// The longest entry of a listing that is read, in bytes: Consul accepts values of 512 KiB unless it is configured
/// otherwise.
const LONGEST_ENTRY: usize = 2 << 20;

/// Answers of more than this many bytes are read a few at a time, so that what others write below their prefixes does
/// not add up in memory.
const LONG_ANSWER: usize = 64 << 10;

impl Client {
    /// Makes a client, and reads the files that the settings name. The first call connects.
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
                owner: "".into(),
            }),
            gate: None,
            token: Arc::new(token),
            idle: Idle::Long,
            by: Moment::END,
            account: None,
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

    /// Whether the client's calls have a token. Calls without a token have only the rights of the anonymous token.
    pub fn has_token(&self) -> bool {
        !matches!(*self.token, TokenSource::None)
    }

    /// Returns this client for another datacenter, namespace or partition.
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

    /// Returns this client with calls that wait for no other calls: for an election, which makes one call after the
    /// other beside one watch.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            lanes: Arc::new(Lanes::apart()),
            ..self.clone()
        }
    }

    /// Returns this client with calls that end by the given moment. A call that could only be answered later is not
    /// sent: [`Error::NotSent`].
    #[must_use]
    pub fn by(&self, by: Moment) -> Self {
        Self { by, ..self.clone() }
    }

    /// Returns this client in a form that closes a connection once no call has used it for some seconds. This form is
    /// for a program that makes its calls in bursts, and is one of many at an agent: Consul accepts 200 connections from
    /// one address (`limits.http_max_conns_per_client`), and counts idle connections, too.
    #[must_use]
    pub fn with_brief_connections(self) -> Self {
        Self {
            idle: Idle::Brief,
            ..self
        }
    }

    /// Returns this client in a form that closes a connection after each call, except between blocking queries, and
    /// that opens a connection only in a turn that it shares with all such clients of this machine. This form is for
    /// programs of which thousands may use one agent, and that have little to ask: see
    /// [`Self::with_brief_connections`].
    #[must_use]
    pub fn without_idle_connections(&self) -> Self {
        Self {
            idle: Idle::Once,
            ..self.clone()
        }
    }

    /// Returns this client with an account, so that it keeps of a listing only what fits into the account's budget,
    /// beside what is kept of other listings; otherwise it fails with [`Error::PrefixTooLarge`]. The client reads
    /// long answers in the turns of the account's owner.
    #[must_use]
    pub fn charged(&self, account: Account) -> Self {
        Self {
            account: Some(account),
            ..self.clone()
        }
    }

    /// Returns the owner whose turns the client takes.
    fn owner(&self) -> &Arc<str> {
        let account = self.account.as_ref();
        account.map_or(&self.shared.owner, Account::owner)
    }

    /// Returns this client with a gate. While the gate is closed, the client sends no writes: they fail with the
    /// gate's refusal, which is [`Error::Withheld`] as a rule.
    #[must_use]
    pub fn gated(&self, gate: Arc<dyn Gate>) -> Self {
        Self {
            gate: Some(gate),
            ..self.clone()
        }
    }

    /// Returns this client with another token. While there is no token, all calls fail with [`Error::NoToken`].
    #[must_use]
    pub fn with_token(&self, token: TokenCell) -> Self {
        self.with_source(TokenSource::Cell(token))
    }

    /// Returns this client with the given token.
    pub(super) fn with_fixed(&self, token: Token) -> Self {
        self.with_source(TokenSource::Fixed(token))
    }

    fn with_source(&self, token: TokenSource) -> Self {
        Self {
            token: Arc::new(token),
            ..self.clone()
        }
    }

    /// Gives back the token from a login ([`Config::login`]); from then on calls fail with [`Error::NoToken`]. This
    /// takes at most two seconds, and does nothing with any other token.
    pub async fn log_out(&self) {
        if let TokenSource::Login(login) = &*self.token {
            login.end().await;
        }
    }

    /// Makes the call. Retries it, also at other servers, where that is safe and may help, until the call's time is
    /// up.
    pub(super) async fn send(&self, call: Call) -> Result<Answer, Error> {
        let began = Instant::now();
        let wait = call.wait.as_ref().map(|wait| wait.most);
        let longest = self.shared.timeout + wait.unwrap_or_default();
        let limit = longest.min(self.by.since(Moment::now()));
        let time = Time {
            latest: began + limit / 10 * LATEST_SEND_TENTHS,
            deadline: began + limit,
            // A server that hangs must leave time for another one, except in a blocking query.
            patience: if call.idempotent && call.wait.is_none() {
                limit / 2
            } else {
                limit
            },
        };
        let mut repeat = Repeat::new(time.latest);
        // The token is checked only once: if Consul denies it again, Consul really does not know it.
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
            Ok(ready) if call.is_for_another(&ready.target) => {
                // No request was sent, so there is nothing to count.
                return Err(interrupted("another server is asked now"));
            }
            Ok(ready) => {
                repeat.tried.push(ready.target.clone());
                // The server's time starts here, because a wait for other calls says nothing about the server.
                let until = time.deadline.min(Instant::now() + time.patience);
                self.ask_there(&ready.target, call, ready.token, until)
                    .await
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

    /// Waits for all that a call needs.
    async fn prepare(&self, call: &Call, time: &Time) -> Result<Ready<'_>, Error> {
        // The token comes before the turn, because a login that all calls wait for needs a turn, too.
        let token = timeout_at(time.latest, self.token.current())
            .await
            .map_err(|_| interrupted("no token was available in time"))??;
        let lane_turn = async {
            match call.wait {
                Some(_) => None,
                None => self.lanes.turn(call.lane).await,
            }
        };
        let turn = timeout_at(time.latest, lane_turn)
            .await
            .map_err(|_| Error::NotSent("other calls took too long".to_owned()))?;
        let target = timeout_at(time.latest, self.datacenter.servers.current())
            .await
            .map_err(|_| interrupted("no server was found in time"))??;
        let shared = timeout_at(time.latest, self.shared_turn(call, &target))
            .await
            .map_err(|_| {
                Error::NotSent("other programs of this machine took too long".to_owned())
            })?;
        if Instant::now() >= time.latest {
            return Err(Error::NotSent("too little time is left".to_owned()));
        }
        Ok(Ready {
            token,
            target,
            _turn: turn,
            _shared: shared,
        })
    }

    /// Waits for a turn among the programs of this machine, if the call opens a connection of its own.
    async fn shared_turn(&self, call: &Call, target: &Target) -> Option<SharedTurn> {
        if self.idle.after(call) != Idle::Once {
            return None;
        }
        Some(SharedTurn::wait(Purpose::of(call.lane), target.base()).await)
    }

    /// Asks one server, and remembers a failure of the server.
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
                // The loss is already known, so it does not count against the server again.
                () = target.lost.notified() => return Err(interrupted("the server is lost")),
                () = servers.lost.notified() => return Err(interrupted("the datacenter does not answer")),
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
            // The server has answered.
            Error::NoTurn(_) => {}
            _ => servers.leave(target),
        }
    }

    /// Sends one request to one server.
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
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let query = call.query.iter().map(|(name, value)| (*name, value));
        for (name, value) in query.chain(scope) {
            url.query_pairs_mut().append_pair(name, value);
        }

        let http = target.http(self.idle.after(call));
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
        // The gate is asked as late as possible, because everything before this may have taken long.
        if call.changes
            && let Some(refusal) = self.gate.as_ref().and_then(|gate| gate.refusal())
        {
            return Err(refusal);
        }
        let sent = Moment::now();
        let response = timeout_at(until, request.send())
            .await
            .map_err(|_| silent(target))?
            .map_err(|error| unreachable(target, &error))?;
        let status = response.status();
        let header = |name: &str| response.headers().get(name)?.to_str().ok();
        let index = header("X-Consul-Index").and_then(|index| index.parse::<u64>().ok());
        let filtered = header("X-Consul-Results-Filtered-By-ACLs") == Some("true");
        let date = response.headers().get(DATE).cloned();
        let listing = call.listing.as_ref();
        let mut body = Body {
            response,
            target,
            until,
            length: 0,
            client: self,
            turn: None,
        };
        let (mut text, mut entries) = (Vec::new(), Entries::default());
        match listing.filter(|_| status == StatusCode::OK) {
            Some(wanted) => entries = body.list(wanted).await?,
            None => text = body.text().await?,
        }
        let turn = body.turn.take();
        // The pool takes back its connection in a separate task. A call made before that would open another
        // connection.
        yield_now().await;
        if status != StatusCode::OK {
            // A proxy may quote the request.
            let hidden = token.map(|t| t.hide_in(&String::from_utf8_lossy(&text)).into_bytes());
            text = hidden.unwrap_or(text);
        }
        if status != StatusCode::OK && status != StatusCode::NOT_FOUND {
            return Err(Error::from_answer(status.as_u16(), &text));
        }
        Ok(Answer {
            found: status == StatusCode::OK,
            // "index 0" would make a blocking query return at once, for ever.
            index: index.map(|index| index.max(1)),
            filtered,
            date,
            body: text,
            entries,
            _turn: turn,
            sent,
            server: target.clone(),
        })
    }
}

/// The token, server and turns that a call needs.
struct Ready<'a> {
    token: Option<Token>,
    target: Arc<Target>,
    /// Turn of the call among the calls of this client.
    _turn: Option<Turn<'a>>,
    /// Turn of the call among the programs of this machine.
    _shared: Option<SharedTurn>,
}

/// The body of an answer, while it is read.
struct Body<'a> {
    response: reqwest::Response,
    target: &'a Target,
    /// Time by which the server must have sent the body.
    until: Instant,
    /// Number of bytes that were read.
    length: usize,
    client: &'a Client,
    turn: Option<turns::FairTurn>,
}

impl Body<'_> {
    /// Returns the next bytes of the body.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let part = timeout_at(self.until, self.response.chunk())
            .await
            .map_err(|_| silent(self.target))?
            .map_err(|error| unreachable(self.target, &error))?;
        if let Some(part) = &part {
            self.length += part.len();
            if self.length > LONGEST_ANSWER {
                return Err(Error::AnswerTooLarge(LONGEST_ANSWER));
            }
        }
        Ok(part)
    }

    /// Takes a turn for a long answer, unless the body has one. The time that this takes does not count against the
    /// server.
    async fn take_turn(&mut self, turns: &turns::FairTurns) -> Result<(), Error> {
        if self.turn.is_some() || self.length <= LONG_ANSWER {
            return Ok(());
        }
        let asked = Instant::now();
        let taking = turns.take(self.client.owner());
        let turn = timeout(self.client.shared.timeout, taking)
            .await
            .map_err(|_| Error::NoTurn("other long answers took too long".to_owned()))?;
        self.until += asked.elapsed();
        self.turn = Some(turn);
        Ok(())
    }

    /// Reads the whole body as text.
    async fn text(&mut self) -> Result<Vec<u8>, Error> {
        let mut text = Vec::new();
        while let Some(part) = self.next().await? {
            self.take_turn(&self.client.datacenter.long.others).await?;
            text.extend_from_slice(&part);
        }
        Ok(text)
    }

    /// Reads the entries of a listing.
    async fn list(&mut self, wanted: &Wanted) -> Result<Entries, Error> {
        let (mut elements, mut decoder) = (Elements::default(), wanted.decoder());
        while let Some(part) = self.next().await? {
            self.take_turn(&self.client.datacenter.long.listings)
                .await?;
            let mut part: &[u8] = &part;
            while let Some(element) = elements.next(&mut part)? {
                decoder.take(element)?;
            }
            if elements.pending() > LONGEST_ENTRY {
                return Err(Error::AnswerTooLarge(LONGEST_ENTRY));
            }
        }
        if !elements.ended() {
            return Err(Error::Decode("the list is cut off".to_owned()));
        }
        self.turn = None;
        let entries = decoder.finish().await?;
        entries.ok_or_else(|| Error::NoTurn("other prefixes had to free memory first".to_owned()))
    }
}

/// The time limits of one call.
struct Time {
    /// Latest time at which the call may be sent.
    latest: Instant,
    deadline: Instant,
    /// Longest time that one server may take.
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

/// Makes the error of a call that ends before a server could decide about it.
fn interrupted(message: &str) -> Error {
    Error::Unreachable {
        message: message.to_owned(),
        undecided: false,
    }
}

/// Makes the error for a server that has not answered in time.
fn silent(target: &Target) -> Error {
    Error::Unreachable {
        message: format!("{}: no answer in time", target.name),
        undecided: true,
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

/// Installs the cryptography provider for TLS, which must be known before the first client is made.
pub(super) fn install_crypto() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // `Err` means that a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt as _;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        sync::watch,
    };

    use super::*;
    use crate::{Budget, WatchOptions};

    /// Starts a Consul with a long listing, and counts how often it was asked to wait for a change of the listing,
    /// which never comes.
    async fn consul_with_a_long_listing() -> (Config, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let waits = Arc::new(AtomicUsize::new(0));
        let counted = waits.clone();
        let entry = |number| {
            format!(r#"{{"Key":"p/{number}","Value":null,"CreateIndex":1,"ModifyIndex":1}}"#)
        };
        let entries: Vec<_> = (0..2000).map(entry).collect();
        let body = format!("[{}]", entries.join(","));
        let answer = format!(
            "HTTP/1.1 200 OK\r\nX-Consul-Index: 5\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (answer, counted) = (answer.clone(), counted.clone());
                tokio::spawn(async move {
                    let mut request = vec![0; 4096];
                    while let Ok(read @ 1..) = stream.read(&mut request).await {
                        if String::from_utf8_lossy(&request[..read]).contains("index=5") {
                            counted.fetch_add(1, Ordering::Relaxed);
                            std::future::pending::<()>().await;
                        }
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        let config = Config {
            addresses: vec![address.parse().unwrap()],
            // Beside a busy machine a listing takes its time, too.
            timeout: Duration::from_secs(10),
            ..Config::default()
        };
        (config, waits)
    }

    #[tokio::test]
    async fn a_wait_for_the_turn_of_a_long_answer_is_not_charged_to_the_server() {
        let (config, waits) = consul_with_a_long_listing().await;
        let client = Client::new(config).unwrap();
        let budget = Budget::new(64 << 20);
        let of = |owner: &str| client.charged(budget.account(&owner.into(), "p"));
        let (busy, other) = (of("busy"), of("other"));
        // Somebody waits for a change.
        let options = WatchOptions {
            urgent: watch::channel(false).1,
            ..WatchOptions::default()
        };
        let mut readings = other.readings("p/", options);
        assert!(readings.recv().await.unwrap().is_ok());
        while waits.load(Ordering::Relaxed) == 0 {
            yield_now().await;
        }
        // One owner reads as many long answers as it may.
        let turns = &busy.datacenter.long.listings;
        let taken: Vec<_> =
            std::iter::from_fn(|| turns.take(busy.owner()).now_or_never()).collect();
        assert!(!taken.is_empty());
        let error = busy.list("p/").await.unwrap_err();
        assert!(matches!(error, Error::NoTurn(_)), "{error}");
        // The taken turns end no wait at this server, and other owners have their turns.
        assert_eq!(other.list("p/").await.unwrap().entries.len(), 2000);
        assert!(readings.recv().now_or_never().is_none());
        assert_eq!(waits.load(Ordering::Relaxed), 1);
        drop(taken);
        assert_eq!(busy.list("p/").await.unwrap().entries.len(), 2000);
    }
}
