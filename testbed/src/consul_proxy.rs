//! A proxy before a Consul: what passes it can be refused, delayed, held, lost and counted.
use std::{
    net::SocketAddr,
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use tokio::{net::TcpListener, sync::watch, task::AbortHandle};

use crate::{story::story, tls};

/// The longest request or answer that passes, in bytes.
const LONGEST: usize = 16 << 20;

/// A request that came to a [`ConsulProxy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsulCall {
    /// Such as `PUT`.
    pub method: String,
    /// Such as `/v1/session/renew/...`, without the query.
    pub path: String,
    /// What follows the question mark.
    pub query: String,
}

impl ConsulCall {
    /// Whether it waits for a change.
    pub fn is_blocking(&self) -> bool {
        self.query.contains("index=")
    }

    /// Whether it renews a session.
    pub fn is_renewal(&self) -> bool {
        self.path.starts_with("/v1/session/renew/")
    }

    /// Whether it reads keys.
    pub fn is_reading(&self) -> bool {
        self.path.starts_with("/v1/kv/")
    }
}

/// What a [`ConsulProxy`] does to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with this status and text, and never gets to Consul.
    Refused(u16, &'static str),
    /// It gets to Consul after a while.
    Late(Duration),
    /// It stays where it is until the faults change, and then is judged again.
    Held,
    /// It gets to Consul, and its answer is cut off.
    AnswerLost,
}

type Rule = dyn Fn(&ConsulCall) -> Option<Fault> + Send + Sync;

/// One Consul as somebody sees it over a network that has faults. Lets all pass at first. Ends when
/// it is dropped.
#[derive(Debug)]
pub struct ConsulProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: AbortHandle,
}

struct Shared {
    http: reqwest::Client,
    upstream: String,
    rule: watch::Sender<Arc<Rule>>,
    calls: Mutex<Vec<ConsulCall>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(&self.upstream).finish()
    }
}

impl ConsulProxy {
    /// Starts one before the Consul at this address, as in `CONSUL_HTTP_ADDR`.
    #[track_caller]
    pub fn start(upstream: &str) -> impl Future<Output = Self> {
        let upstream = upstream.trim_start_matches("http://").to_owned();
        story(Location::caller(), Self::try_start(upstream))
    }

    async fn try_start(upstream: String) -> Result<Self> {
        tls::init();
        let shared = Arc::new(Shared {
            // No timeout: a query may wait for minutes, and whoever asked knows for how long.
            http: reqwest::Client::builder().no_proxy().build()?,
            upstream: format!("http://{upstream}"),
            rule: watch::Sender::new(Arc::new(|_: &ConsulCall| None)),
            calls: Mutex::default(),
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let router = Router::new().fallback(pass).with_state(shared.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self {
            address,
            shared,
            serving: serving.abort_handle(),
        })
    }

    /// Where it is to be found, as in `CONSUL_HTTP_ADDR`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// From now on this happens to calls, also to those that are held; `None`: they pass.
    pub fn faults(&self, rule: impl Fn(&ConsulCall) -> Option<Fault> + Send + Sync + 'static) {
        self.shared.rule.send_replace(Arc::new(rule));
    }

    /// From now on everything passes.
    pub fn heal(&self) {
        self.faults(|_| None);
    }

    /// The calls that have come so far, whatever became of them.
    pub fn calls(&self) -> Vec<ConsulCall> {
        self.shared.calls().clone()
    }
}

impl Drop for ConsulProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Shared {
    fn calls(&self) -> MutexGuard<'_, Vec<ConsulCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn forward(&self, request: Request) -> Result<Response> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().context("no path")?;
        let mut asked = self
            .http
            .request(parts.method, format!("{}{path}", self.upstream))
            .body(to_bytes(body, LONGEST).await?);
        if let Some(token) = parts.headers.get("x-consul-token") {
            asked = asked.header("x-consul-token", token);
        }
        let answer = asked.send().await?;
        let mut response = Response::builder().status(answer.status());
        for (name, value) in answer.headers() {
            if name.as_str().starts_with("x-consul-") {
                response = response.header(name, value);
            }
        }
        Ok(response.body(Body::from(answer.bytes().await?))?)
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let call = ConsulCall {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
    };
    shared.calls().push(call.clone());
    let mut rules = shared.rule.subscribe();
    let fault = loop {
        let rule = rules.borrow_and_update().clone();
        match rule(&call) {
            Some(Fault::Held) if rules.changed().await.is_ok() => {}
            fault => break fault,
        }
    };
    match fault {
        Some(Fault::Refused(status, text)) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
            return (status, text).into_response();
        }
        Some(Fault::Late(by)) => tokio::time::sleep(by).await,
        _ => {}
    }
    let answer = shared.forward(request).await;
    match answer {
        Ok(_) if fault == Some(Fault::AnswerLost) => cut_off(),
        Ok(answer) => answer,
        // As a server that is not there: nothing is heard.
        Err(_) => cut_off(),
    }
}

/// An answer whose connection ends in the middle of it.
fn cut_off() -> Response {
    let nothing = futures::stream::once(async { Err::<Vec<u8>, _>(std::io::Error::other("cut")) });
    Response::new(Body::from_stream(nothing))
}
