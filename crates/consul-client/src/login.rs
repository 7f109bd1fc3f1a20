//! Logs in to Consul, which exchanges a bearer token for an ACL token by one of its auth methods.
//!
//! One task logs in for all clones of the client: when a token is first needed, when Consul no longer knows the
//! token, and before the token expires. Calls that need a token wait for the task.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;

use jiff::Timestamp;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    Backoff, Client, ConfigError, Error, LoginFailure, Scope, Secret, call::Call,
    files::CHECK_TIMEOUT, lanes::Lane, token::Token,
};
use crate::clock::Moment;

/// The auth method of a login, and what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthMethod {
    /// Name of the auth method in Consul.
    pub name: String,
    /// File of the bearer token. The file is read for each login, because Kubernetes replaces it.
    pub bearer_token_file: PathBuf,
    /// Text that Consul adds to the description of the token, for people.
    pub meta: BTreeMap<String, String>,
    /// Datacenter, namespace and partition of the auth method, if they are not those that the client works with. In
    /// Consul Enterprise, auth methods usually are in the namespace and partition `default`.
    pub scope: Scope,
}

impl AuthMethod {
    /// Path at which Kubernetes puts the token of a pod's `ServiceAccount`.
    pub const BEARER_TOKEN_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
}

/// Environment variable that has the name of the bearer token's file.
const BEARER_TOKEN_FILE: &str = "CONSUL_BEARER_TOKEN_FILE";

/// Pauses between logins that fail, or whose tokens are lost at once.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));

/// Age from which a lost token counts as one that did work before.
const LASTING_FROM_AGE: Duration = Duration::from_secs(30);

/// Pauses between checks whether the server that is asked knows a new token. The server usually knows the token after
/// some 100 ms. An agent that is asked too early caches for 30 s that the token does not exist.
const PROBE_PAUSES: Backoff = Backoff::new(Duration::from_millis(25), Duration::from_millis(500));

/// Number of checks whether the server knows a new token.
const MOST_PROBES: usize = 10;

/// The shortest time between checks of a token that was denied.
const RECHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Longest time that giving the token back may take.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(2);

/// The login of a client and all its clones.
pub(super) struct Login {
    worker: Arc<Worker>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The state of the task.
struct Worker {
    method: AuthMethod,
    /// Client that sends no token, for the place in which the calls are made.
    client: Client,
    state: watch::Sender<LoginState>,
    /// Notifies the task when Consul has answered that it does not know the token.
    denied: Notify,
}

#[derive(Clone, Default)]
enum LoginState {
    /// No token is needed yet.
    #[default]
    Idle,
    /// A login is in progress.
    Asking,
    /// The login succeeded, with this token.
    In(Token),
    /// There is no token; the error is the cause of the last failure.
    Out(Error),
    /// The token was given back, and there will be no other token.
    Over,
}

/// A token from a login.
struct LoginToken {
    token: Token,
    since: Moment,
    /// Time for which Consul keeps the token valid; `None`: for ever.
    life: Option<Duration>,
}

impl Login {
    /// Makes a login that begins when a token is first needed, by a client without a token.
    pub(super) fn new(client: Client, method: AuthMethod) -> Result<Self, ConfigError> {
        let file = method.bearer_token_file.display();
        let problem = match std::fs::read_to_string(&method.bearer_token_file) {
            Ok(text) if text.trim().is_empty() => Some(format!("{file} is empty")),
            Ok(_) => None,
            Err(error) => Some(format!("cannot read {file}: {error}")),
        };
        if let Some(problem) = problem {
            return Err(ConfigError::new(BEARER_TOKEN_FILE, problem));
        }
        let worker = Worker {
            method,
            client,
            state: watch::Sender::default(),
            denied: Notify::new(),
        };
        Ok(Self {
            worker: Arc::new(worker),
            task: Mutex::default(),
        })
    }

    /// Returns the token, or the reason why there is none. Waits while a login is in progress.
    pub(super) async fn token(&self) -> Result<Token, Error> {
        self.begin();
        let mut state = self.worker.state.subscribe();
        let known = |state: &LoginState| !matches!(state, LoginState::Idle | LoginState::Asking);
        match state.wait_for(known).await.as_deref() {
            Ok(LoginState::In(token)) => Ok(token.clone()),
            Ok(LoginState::Out(error)) => Err(error.clone()),
            _ => Err(Error::NoToken),
        }
    }

    /// Reports that Consul does not know the token. Waits until there is another token or none, or until Consul does
    /// know the token. Returns whether to retry the call.
    pub(super) async fn recheck(&self) -> bool {
        let mut state = self.worker.state.subscribe();
        if matches!(*state.borrow_and_update(), LoginState::Over) {
            return false;
        }
        self.worker.denied.notify_one();
        state.changed().await.is_ok()
    }

    /// Gives the token back. From then on there is no token.
    pub(super) async fn end(&self) {
        self.worker.state.send_replace(LoginState::Over);
        let task = self.task.lock().take();
        if let Some(task) = task
            && timeout(LOGOUT_TIMEOUT, task).await.is_err()
        {
            tracing::warn!("can't log out of Consul: the token stays valid until it expires");
        }
    }

    fn begin(&self) {
        let idle = |state: &mut LoginState| {
            let idle = matches!(state, LoginState::Idle);
            if idle {
                *state = LoginState::Asking;
            }
            idle
        };
        if self.worker.state.send_if_modified(idle) {
            *self.task.lock() = Some(tokio::spawn(self.worker.clone().run()));
        }
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Worker {
    /// Keeps a valid token until the login is over, and gives the last token back.
    async fn run(self: Arc<Self>) {
        let mut held: Option<LoginToken> = None;
        let mut relapses = BACKOFF;
        while self.renew(&mut held).await {
            let Some(now) = &held else { break };
            let lost = self.unless_over(self.until_due(now)).await == Some(true);
            let lasted = now.since + LASTING_FROM_AGE < Moment::now();
            if lost {
                tracing::info!("Consul does not know the token any more: logging in again");
                self.set_state(LoginState::Asking);
                held = None;
            }
            if lasted {
                relapses.reset();
            } else if lost {
                // If tokens are unknown as soon as they are used, the logins must not follow each other without a
                // pause.
                self.unless_over(relapses.wait()).await;
            }
        }
        if let Some(last) = held {
            self.log_out(&last.token).await;
        }
    }

    /// Logs in until that works, and gives the previous token back; returns false if the login is over before that.
    async fn renew(&self, held: &mut Option<LoginToken>) -> bool {
        let mut backoff = BACKOFF;
        let mut last_logged = None;
        while !self.is_over() {
            let error = match self.log_in().await {
                Ok(next) => {
                    self.set_state(LoginState::In(next.token.clone()));
                    if let Some(old) = held.replace(next) {
                        self.log_out(&old.token).await;
                    }
                    return true;
                }
                Err(error) => error,
            };
            if last_logged.as_ref() != Some(&error) {
                tracing::warn!(%error, "not logged in to Consul: trying again");
            }
            // The previous token is kept while it is still valid.
            if let Some(old) = held
                && self.is_lost(&old.token).await
            {
                *held = None;
            }
            self.set_state(match held {
                Some(old) => LoginState::In(old.token.clone()),
                None => LoginState::Out(error.clone()),
            });
            last_logged = Some(error);
            self.unless_over(backoff.wait()).await;
        }
        false
    }

    /// Waits until another token is needed: returns true if Consul no longer knows this token, false if the token
    /// will soon expire.
    async fn until_due(&self, held: &LoginToken) -> bool {
        let expires = async {
            match held.life {
                // The token is renewed after 70 to 85 % of its life, so that replicas that started together spread
                // out.
                Some(life) => sleep(life.mul_f64(fastrand::f64().mul_add(0.15, 0.7))).await,
                None => std::future::pending().await,
            }
        };
        let lost = async {
            loop {
                self.denied.notified().await;
                if self.is_lost(&held.token).await {
                    return;
                }
                self.set_state(LoginState::In(held.token.clone()));
                sleep(RECHECK_INTERVAL).await;
            }
        };
        tokio::select! {
            () = expires => false,
            () = lost => true,
        }
    }

    /// Logs in once, and waits until the server that is asked knows the token.
    async fn log_in(&self) -> Result<LoginToken, Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct LoginRequest<'a> {
            auth_method: &'a str,
            bearer_token: &'a str,
            meta: &'a BTreeMap<String, String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Given {
            #[serde(rename = "AccessorID")]
            accessor: String,
            #[serde(rename = "SecretID")]
            secret: String,
            create_time: Option<Timestamp>,
            expiration_time: Option<Timestamp>,
        }
        let bearer = self.bearer().await.map_err(|why| self.failed(&why))?;
        let request = LoginRequest {
            auth_method: &self.method.name,
            bearer_token: bearer.expose(),
            meta: &self.method.meta,
        };
        // The request has strings only, so writing it cannot fail.
        let body = serde_json::to_vec(&request).unwrap_or_default();
        let since = Moment::now();
        let answer = self
            .client
            .scoped(self.method.scope.clone())
            .send(post("acl_login", "/v1/acl/login", body))
            .await
            .map_err(|error| self.explain(error, &bearer))?;
        // The message does not quote the error: it could contain the token.
        let unclear = || self.failed("the answer cannot be understood");
        let given: Given = answer.json().map_err(|_| unclear())?;
        let token = Token::parse(&given.secret).map_err(|_| unclear())?;
        tracing::info!(
            method = self.method.name,
            accessor = given.accessor,
            "logged in to Consul"
        );
        self.probe(&token).await;
        let life = given.create_time.zip(given.expiration_time);
        Ok(LoginToken {
            token,
            since,
            // Both times are from Consul's clock.
            life: life.and_then(|(from, to)| to.duration_since(from).try_into().ok()),
        })
    }

    async fn bearer(&self) -> Result<Secret, String> {
        let file = &self.method.bearer_token_file;
        let text = match timeout(CHECK_TIMEOUT, tokio::fs::read_to_string(file)).await {
            Ok(text) => text.map_err(|error| format!("cannot read {}: {error}", file.display()))?,
            Err(_) => return Err(format!("{} cannot be read in time", file.display())),
        };
        match text.trim() {
            "" => Err(format!("{} is empty", file.display())),
            bearer => Ok(bearer.into()),
        }
    }

    /// Waits until the server that is asked knows the token without asking the leader. If that takes too long, the
    /// token is used anyway.
    async fn probe(&self, token: &Token) {
        let client = self.client.with_fixed(token.clone());
        for pause in PROBE_PAUSES.pauses().take(MOST_PROBES) {
            match client.send(own_token().with("stale", "")).await {
                Err(error) if error.is_unknown_token() => sleep(pause).await,
                _ => return,
            }
        }
    }

    /// Whether the leader does not know the token.
    async fn is_lost(&self, token: &Token) -> bool {
        let client = self.client.with_fixed(token.clone());
        matches!(client.send(own_token()).await, Err(error) if error.is_unknown_token())
    }

    async fn log_out(&self, token: &Token) {
        let there = self.client.scoped(self.method.scope.clone());
        let client = there.with_fixed(token.clone());
        let out = client.send(post("acl_logout", "/v1/acl/logout", Vec::new()));
        match timeout(LOGOUT_TIMEOUT, out).await {
            Ok(Err(error)) if !error.is_unknown_token() => {
                tracing::warn!(%error, "can't log out of Consul: the token stays valid until it expires");
            }
            _ => {}
        }
    }

    /// Makes the error of a failed login, for the calls that wait for a token.
    fn explain(&self, error: Error, bearer: &Secret) -> Error {
        // A proxy may quote anything.
        let hide = |text: &str| text.replace(bearer.expose(), "<hidden>");
        match error {
            Error::Denied(_) | Error::Unexpected { .. } | Error::Decode(_) => {
                // This may be a refusal: Consul has the same status for a token that it can't verify.
                self.failure(&hide(&error.to_string()), error.is_transient())
            }
            Error::NoLeader { message, undecided } => Error::NoLeader {
                message: hide(&message),
                undecided,
            },
            Error::TooManyRequests(message) => Error::TooManyRequests(hide(&message)),
            away => away,
        }
    }

    fn failed(&self, why: &str) -> Error {
        self.failure(why, false)
    }

    fn failure(&self, why: &str, passing: bool) -> Error {
        let method = &self.method.name;
        let why = format!("by the auth method {method:?}: {why}");
        Error::LoginFailed(LoginFailure { why, passing })
    }

    fn set_state(&self, news: LoginState) {
        self.state.send_if_modified(|state| {
            let goes_on = !matches!(state, LoginState::Over);
            if goes_on {
                *state = news;
            }
            goes_on
        });
    }

    fn is_over(&self) -> bool {
        matches!(*self.state.borrow(), LoginState::Over)
    }

    /// Returns the result of `doing`, or `None` if the login is over before that.
    async fn unless_over<T>(&self, doing: impl Future<Output = T>) -> Option<T> {
        let mut state = self.state.subscribe();
        tokio::select! {
            done = doing => Some(done),
            _ = state.wait_for(|state| matches!(state, LoginState::Over)) => None,
        }
    }
}

/// Makes the call that reads what Consul knows about the client's token.
fn own_token() -> Call {
    Call {
        lane: Lane::Login,
        ..Call::get("acl_token_self", "/v1/acl/token/self".to_owned())
    }
}

/// Makes the call of a login or logout, which is never repeated when its answer was lost.
fn post(kind: &'static str, path: &str, body: Vec<u8>) -> Call {
    Call {
        method: Method::POST,
        lane: Lane::Login,
        ..Call::put(kind, path.to_owned(), body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    /// Returns the error for these answers to a login.
    fn explained(status: u16, body: &str) -> Error {
        let worker = Worker {
            method: AuthMethod {
                name: "jwt".to_owned(),
                bearer_token_file: PathBuf::new(),
                meta: BTreeMap::new(),
                scope: Scope::default(),
            },
            client: Client::new(Config::default()).unwrap(),
            state: watch::Sender::default(),
            denied: Notify::new(),
        };
        worker.explain(
            Error::from_answer(status, body.as_bytes()),
            &"s3cr3t".into(),
        )
    }

    #[tokio::test]
    async fn a_login_that_fails_may_pass_unless_it_is_refused() {
        for (status, passes) in [(403, false), (404, false), (500, true), (503, true)] {
            let Error::LoginFailed(failure) = explained(status, "no") else {
                panic!("{status}");
            };
            assert_eq!(failure.passing, passes, "{status}");
        }
        for (status, body) in [(500, "No cluster leader"), (429, "later")] {
            assert!(explained(status, body).is_transient(), "{status}");
        }
    }

    #[tokio::test]
    async fn no_explanation_repeats_the_bearer_token() {
        for (status, body) in [
            (403, "no s3cr3t"),
            (503, "s3cr3t"),
            (429, "s3cr3t"),
            (500, "No cluster leader for s3cr3t"),
        ] {
            let error = explained(status, body);
            assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{status}");
        }
    }
}
