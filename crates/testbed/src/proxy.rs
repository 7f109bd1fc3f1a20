//! A proxy before Consul or the API server: what passes it can be refused, delayed, held, lost and counted.
use std::{collections::VecDeque, net::SocketAddr, panic::Location, sync::Arc, time::Duration};

use parking_lot::Mutex;

use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::stream;
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::AbortHandle};

use crate::{story::story, tls};

/// The longest request that passes, in bytes.
const LONGEST: usize = 16 << 20;

/// Headers that are about one connection, or that the client here says for itself.
const OF_THE_CONNECTION: [HeaderName; 5] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::ACCEPT_ENCODING,
];

/// A request that came to a [`Proxy`]. Its headers, and a token among them, are nobody's business.
#[derive(Clone, Debug)]
pub struct Call {
    /// Such as `PUT`.
    pub method: String,
    /// Such as `/v1/session/renew/...`, without the query.
    pub path: String,
    /// What follows the question mark.
    pub query: String,
    body: Bytes,
}

impl Call {
    /// Whether it waits for a change in Consul.
    pub fn is_blocking(&self) -> bool {
        self.query.contains("index=")
    }

    /// Whether it renews a session of Consul's.
    pub fn is_renewal(&self) -> bool {
        self.path.starts_with("/v1/session/renew/")
    }

    /// Whether it reads keys of Consul's.
    pub fn is_reading(&self) -> bool {
        self.path.starts_with("/v1/kv/")
    }

    /// Its body; null when that is no JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// What it is to Consul: the verb, key and value of each operation of a transaction.
    pub fn operations(&self) -> Vec<(String, String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let operation = |operation: &Value| {
            let kv = &operation["KV"];
            let value = BASE64_STANDARD.decode(text(&kv["Value"]));
            let value = String::from_utf8_lossy(&value.unwrap_or_default()).into_owned();
            (text(&kv["Verb"]), text(&kv["Key"]), value)
        };
        let operations = self.json();
        operations
            .as_array()
            .into_iter()
            .flatten()
            .map(operation)
            .collect()
    }
}

/// What a [`Proxy`] does to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with this status and text, and never gets to the server.
    Refused(u16, &'static str),
    /// It gets to the server after a while.
    Late(Duration),
    /// It stays where it is until the faults change, and then is judged again.
    Held,
    /// Whoever sent it hears nothing of it; it gets to the server when [`Proxy::land`] says so.
    Stray,
    /// It gets to the server, and its answer is cut off.
    AnswerLost,
    /// It gets to the server, and its answer begins, and stops coming until the faults change.
    AnswerHeld,
}

type Rule = dyn Fn(&Call) -> Option<Fault> + Send + Sync;

/// A server as somebody sees it over a network that has faults. Lets all pass at first. Ends when it
/// is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: AbortHandle,
}

struct Shared {
    http: reqwest::Client,
    upstream: String,
    rule: watch::Sender<Arc<Rule>>,
    seen: Mutex<Seen>,
}

/// What has come so far.
#[derive(Default)]
struct Seen {
    calls: Vec<Call>,
    /// How many of them met with a fault.
    met: usize,
    strays: VecDeque<Asked>,
}

/// A request, whole.
#[derive(Clone)]
struct Asked {
    call: Call,
    headers: HeaderMap,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(&self.upstream).finish()
    }
}

impl Proxy {
    /// Starts one before the Consul at this address, as in `CONSUL_HTTP_ADDR`.
    #[track_caller]
    pub fn start(upstream: &str) -> impl Future<Output = Self> {
        let upstream = upstream.trim_start_matches("http://");
        let upstream = format!("http://{upstream}");
        story(Location::caller(), Self::before(upstream, None))
    }

    /// Starts one before the server at this URL, whose certificate is signed by `authority` (PEM).
    /// It speaks HTTP itself, without TLS.
    pub(crate) async fn before(upstream: String, authority: Option<&[u8]>) -> Result<Self> {
        tls::init();
        // No timeout: a query may wait for minutes, and whoever asked knows for how long.
        let mut http = reqwest::Client::builder().no_proxy();
        if let Some(authority) = authority {
            http = http.tls_certs_only(reqwest::Certificate::from_pem_bundle(authority)?);
        }
        let shared = Arc::new(Shared {
            http: http.build()?,
            upstream,
            rule: watch::Sender::new(Arc::new(|_: &Call| None)),
            seen: Mutex::default(),
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

    /// Where it is to be found (`host:port`).
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// From now on this happens to calls, also to those that are held; `None`: they pass.
    pub fn faults(&self, rule: impl Fn(&Call) -> Option<Fault> + Send + Sync + 'static) {
        self.shared.rule.send_replace(Arc::new(rule));
    }

    /// From now on everything passes.
    pub fn heal(&self) {
        self.faults(|_| None);
    }

    /// The calls that have come so far, whatever became of them.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.seen.lock().calls.clone()
    }

    /// How many calls have met with a fault so far.
    pub fn met(&self) -> usize {
        self.shared.seen.lock().met
    }

    /// Lets the first of the calls that went astray get to the server; returns the answer's status.
    #[track_caller]
    pub fn land(&self) -> impl Future<Output = u16> {
        story(Location::caller(), async {
            let stray = self.shared.seen.lock().strays.pop_front();
            let answer = self
                .shared
                .forward(stray.context("none is astray")?)
                .await?;
            Ok(answer.status().as_u16())
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Shared {
    /// What is to be done to a call, once it is held no more.
    async fn judge(&self, asked: &Asked) -> Option<Fault> {
        let mut rules = self.rule.subscribe();
        let rule = rules.borrow_and_update().clone();
        let mut fault = rule(&asked.call);
        self.note(asked, fault.as_ref());
        while fault == Some(Fault::Held) && rules.changed().await.is_ok() {
            let rule = rules.borrow_and_update().clone();
            fault = rule(&asked.call);
        }
        if fault == Some(Fault::Stray) {
            self.seen.lock().strays.push_back(asked.clone());
        }
        fault
    }

    fn note(&self, asked: &Asked, fault: Option<&Fault>) {
        let mut seen = self.seen.lock();
        seen.calls.push(asked.call.clone());
        seen.met += usize::from(fault.is_some());
    }

    async fn forward(&self, asked: Asked) -> Result<reqwest::Response> {
        let Asked { call, headers } = asked;
        let mut url = format!("{}{}", self.upstream, call.path);
        if !call.query.is_empty() {
            url = format!("{url}?{}", call.query);
        }
        let request = self.http.request(call.method.parse()?, url);
        Ok(request.headers(headers).body(call.body).send().await?)
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, LONGEST).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let asked = Asked {
        call: Call {
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            body,
        },
        headers: without_those_of_the_connection(parts.headers),
    };
    let rules = shared.rule.subscribe();
    let fault = shared.judge(&asked).await;
    match fault {
        Some(Fault::Refused(status, text)) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
            return (status, text).into_response();
        }
        Some(Fault::Stray) => return cut_off(),
        Some(Fault::Late(by)) => tokio::time::sleep(by).await,
        _ => {}
    }
    match shared.forward(asked).await {
        Ok(answer) if fault == Some(Fault::AnswerLost) => {
            // What it says is lost; that it was done is certain.
            drop(answer.bytes().await);
            cut_off()
        }
        Ok(answer) => give_on(answer, (fault == Some(Fault::AnswerHeld)).then_some(rules)),
        // As a server that is not there: nothing is heard.
        Err(_) => cut_off(),
    }
}

/// An answer as it comes; a watch's comes for minutes. With `held` it comes once the faults change.
fn give_on(answer: reqwest::Response, held: Option<watch::Receiver<Arc<Rule>>>) -> Response {
    let (status, headers) = (answer.status(), answer.headers().clone());
    let chunks = stream::unfold((answer, held), async |(mut answer, held)| {
        if let Some(mut rules) = held {
            // That nobody can change them any more ends the proxy, too.
            rules.changed().await.ok()?;
        }
        let chunk = answer.chunk().await.transpose()?;
        Some((chunk, (answer, None)))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    *response.status_mut() = status;
    *response.headers_mut() = without_those_of_the_connection(headers);
    response
}

fn without_those_of_the_connection(mut headers: HeaderMap) -> HeaderMap {
    for name in OF_THE_CONNECTION {
        headers.remove(name);
    }
    headers
}

/// An answer whose connection ends in the middle of it.
fn cut_off() -> Response {
    let nothing = stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut off")) });
    Response::new(Body::from_stream(nothing))
}
