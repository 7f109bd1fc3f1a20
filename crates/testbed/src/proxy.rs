//! A proxy in front of Consul or the API server. It refuses, delays, holds, loses and counts calls.
use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    panic::Location,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use anyhow::{Context as _, Result, anyhow};
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::AbortHandle};

use crate::{
    story::story,
    tls::{self, ServerCertificate, TlsListener},
};

/// The longest request, and the longest answer that may be lost, in bytes.
const LONGEST: usize = 16 << 20;

/// How long connecting to a server may take. Answers have no deadline: a query may wait for minutes, and its sender
/// knows for how long.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a call without an answer hangs if its sender does not give up earlier.
const HANG: Duration = Duration::from_mins(2);

/// Headers of a single connection, or headers that this client sets itself.
const OF_THE_CONNECTION: [HeaderName; 7] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::ACCEPT_ENCODING,
    header::UPGRADE,
    header::TE,
];

/// A request to a [`Proxy`]. Its headers are not shown, because they contain a token.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method, such as `PUT`.
    pub method: Method,
    /// The path, such as `/v1/session/renew/...`, without the query.
    pub path: String,
    /// The query: the part after the question mark.
    pub query: String,
    /// The whole body.
    pub body: Bytes,
}

impl Call {
    /// A call of `target`, a path with or without a query.
    pub fn new(method: Method, target: &str, body: impl Into<Bytes>) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Self {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            body: body.into(),
        }
    }

    /// The path with the query.
    pub fn target(&self) -> String {
        match self.query.as_str() {
            "" => self.path.clone(),
            query => format!("{}?{query}", self.path),
        }
    }

    /// Whether it can change something.
    pub fn writes(&self) -> bool {
        !self.method.is_safe()
    }

    /// Whether it waits for a change in Consul.
    pub fn is_blocking(&self) -> bool {
        self.query.contains("index=")
    }

    /// Whether it renews a session in Consul.
    pub fn is_renewal(&self) -> bool {
        self.path.starts_with("/v1/session/renew/")
    }

    /// Whether it reads keys in Consul.
    pub fn is_reading(&self) -> bool {
        self.path.starts_with("/v1/kv/")
    }

    /// Its body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The verb, key and value of each operation, if it is a transaction in Consul.
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
    /// It is answered with this status and text, and never reaches the server.
    Refused(u16, &'static str),
    /// It reaches the server after this delay; a write does even if its sender has given up.
    Late(Duration),
    /// It is held until the faults change, and is then judged again.
    Held,
    /// Its connection breaks, and it reaches the server only when [`Proxy::land`] is called.
    Stray,
    /// It reaches the server, but the connection breaks before its answer arrives.
    AnswerLost,
    /// It reaches the server, but no answer arrives, so its sender has to give up.
    Unanswered,
    /// It reaches the server, and its answer begins, but then stalls until the faults change.
    AnswerHeld,
}

/// The fault for a call, or `None` to let it pass.
type Faults = dyn Fn(&Call) -> Option<Fault> + Send + Sync;

/// The current rule for calls.
#[derive(Clone)]
enum Rule {
    Faults(Arc<Faults>),
    Cut(Arc<dyn Fn(&Call) -> bool + Send + Sync>),
}

impl Rule {
    fn fault(&self, call: &Call) -> Option<Fault> {
        match self {
            Self::Faults(fault) => fault(call),
            Self::Cut(_) => None,
        }
    }

    fn cuts(&self, call: &Call) -> bool {
        matches!(self, Self::Cut(which) if which(call))
    }
}

/// Forwards a call to the server and returns its answer.
type Carrier = dyn Fn(Call, Next) -> BoxFuture<'static, Result<Response>> + Send + Sync;

/// The remaining path of a call, for a carrier of [`ProxyBuilder::carried_by`].
pub struct Next {
    servers: Arc<Servers>,
    headers: HeaderMap,
    loses_the_answer: bool,
}

impl std::fmt::Debug for Next {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Next").field(&self.servers.urls).finish()
    }
}

impl Next {
    /// Whether the sender will not get the answer.
    pub fn loses_the_answer(&self) -> bool {
        self.loses_the_answer
    }

    /// Sends the call to the server, and returns the answer as soon as it begins.
    ///
    /// # Errors
    /// No server answers.
    pub async fn send(self, call: Call) -> Result<Response> {
        self.servers.send(&call, self.headers).await
    }
}

/// A server, or several equivalent ones.
struct Servers {
    http: reqwest::Client,
    urls: Vec<String>,
    /// The server that was reachable last.
    current: AtomicUsize,
}

impl Servers {
    /// Sends a call to the server that was reachable last, and to the next one if that server can't be reached at
    /// all.
    async fn send(&self, call: &Call, headers: HeaderMap) -> Result<Response> {
        let mut failure = anyhow!("no server");
        for _ in 0..self.urls.len() {
            let current = self.current.load(Ordering::Relaxed);
            let url = &self.urls[current % self.urls.len()];
            let request = self
                .http
                .request(call.method.clone(), format!("{url}{}", call.target()))
                .headers(headers.clone())
                .body(call.body.clone());
            match request.send().await {
                Ok(answer) => return Ok(streamed(answer)),
                Err(error) if error.is_connect() => {
                    self.current.store(current + 1, Ordering::Relaxed);
                    failure = error.into();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(failure)
    }
}

/// The settings of a [`Proxy`].
pub struct ProxyBuilder {
    servers: Vec<String>,
    authority: Option<Vec<u8>>,
    certificate: Option<ServerCertificate>,
    carrier: Arc<Carrier>,
}

impl std::fmt::Debug for ProxyBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ProxyBuilder").field(&self.servers).finish()
    }
}

impl ProxyBuilder {
    /// The authority (PEM) that signed the servers' certificates.
    #[must_use]
    pub fn trusting(mut self, authority: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(authority.into());
        self
    }

    /// Serves TLS with this certificate (default: HTTP).
    #[must_use]
    pub fn showing(mut self, certificate: &ServerCertificate) -> Self {
        self.certificate = Some(certificate.clone());
        self
    }

    /// Forwards each call through this function. It can read and change the call and its answer, and make calls wait
    /// for each other.
    #[must_use]
    pub fn carried_by<F>(mut self, carry: impl Fn(Call, Next) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Response>> + Send + 'static,
    {
        self.carrier = Arc::new(move |call, next| carry(call, next).boxed());
        self
    }

    /// Starts the proxy.
    ///
    /// # Errors
    /// There is no free port, or the authority is not a certificate.
    pub async fn start(self) -> Result<Proxy> {
        tls::init();
        let mut http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT);
        if let Some(authority) = self.authority {
            http = http.tls_certs_only(reqwest::Certificate::from_pem_bundle(&authority)?);
        }
        let shared = Arc::new(Shared {
            servers: Arc::new(Servers {
                http: http.build()?,
                urls: self.servers,
                current: AtomicUsize::new(0),
            }),
            carrier: self.carrier,
            rule: watch::Sender::new(Rule::Faults(Arc::new(|_| None))),
            seen: Mutex::default(),
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let router = Router::new().fallback(pass).with_state(shared.clone());
        let (scheme, serving) = if let Some(certificate) = self.certificate {
            let listener = TlsListener::new(listener, certificate)?;
            let serving = async move { axum::serve(listener, router).await };
            ("https", tokio::spawn(serving))
        } else {
            let serving = async move { axum::serve(listener, router).await };
            ("http", tokio::spawn(serving))
        };
        Ok(Proxy {
            address,
            scheme,
            shared,
            serving: serving.abort_handle(),
        })
    }
}

/// A server as seen over a network with faults. At first everything passes. It ends when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    scheme: &'static str,
    shared: Arc<Shared>,
    serving: AbortHandle,
}

struct Shared {
    servers: Arc<Servers>,
    carrier: Arc<Carrier>,
    rule: watch::Sender<Rule>,
    seen: Mutex<Seen>,
}

/// The calls so far.
#[derive(Default)]
struct Seen {
    calls: Vec<Call>,
    /// How many of them met a fault.
    met: usize,
    strays: VecDeque<(Call, HeaderMap)>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(&self.servers.urls).finish()
    }
}

impl Proxy {
    /// Starts a proxy in front of the Consul at this address, as in `CONSUL_HTTP_ADDR`.
    #[track_caller]
    pub fn start(server: &str) -> impl Future<Output = Self> {
        let server = server.trim_start_matches("http://");
        let server = format!("http://{server}");
        story(Location::caller(), Self::before([server]).start())
    }

    /// A proxy in front of these equivalent servers, by their URLs. If one can't be reached, it tries the next.
    pub fn before<S: Into<String>>(servers: impl IntoIterator<Item = S>) -> ProxyBuilder {
        ProxyBuilder {
            servers: servers.into_iter().map(Into::into).collect(),
            authority: None,
            certificate: None,
            carrier: Arc::new(|call, next| next.send(call).boxed()),
        }
    }

    /// Its address (`host:port`).
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// From now on, calls meet these faults, also those that are held; `None` lets a call pass.
    pub fn faults(&self, rule: impl Fn(&Call) -> Option<Fault> + Send + Sync + 'static) {
        self.shared.rule.send_replace(Rule::Faults(Arc::new(rule)));
    }

    /// From now on no packet of these calls gets through, in either direction, including calls under way. Neither
    /// side is notified: the sender finds the connection dead once [`Self::heal`] or [`Self::faults`] ends the cut.
    pub fn cut(&self, which: impl Fn(&Call) -> bool + Send + Sync + 'static) {
        self.shared.rule.send_replace(Rule::Cut(Arc::new(which)));
    }

    /// Removes all faults: everything passes from now on.
    pub fn heal(&self) {
        self.faults(|_| None);
    }

    /// All calls so far, whatever happened to them.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.seen.lock().calls.clone()
    }

    /// How many calls have met a fault so far.
    pub fn met(&self) -> usize {
        self.shared.seen.lock().met
    }

    /// Delivers the first of the stray calls to the server, and returns the answer's status.
    #[track_caller]
    pub fn land(&self) -> impl Future<Output = u16> {
        story(Location::caller(), async {
            let stray = self.shared.seen.lock().strays.pop_front();
            let (call, headers) = stray.context("none is astray")?;
            let answer = self.shared.carry(call, headers, true).await?;
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
    /// The fault for a call, once it is no longer held.
    async fn judge(&self, call: &Call) -> Option<Fault> {
        let mut rules = self.rule.subscribe();
        let rule = rules.borrow_and_update().clone();
        let mut fault = rule.fault(call);
        {
            let mut seen = self.seen.lock();
            seen.calls.push(call.clone());
            seen.met += usize::from(fault.is_some() || rule.cuts(call));
        }
        while fault == Some(Fault::Held) && rules.changed().await.is_ok() {
            let rule = rules.borrow_and_update().clone();
            fault = rule.fault(call);
        }
        fault
    }

    fn carry(
        &self,
        call: Call,
        headers: HeaderMap,
        loses_the_answer: bool,
    ) -> BoxFuture<'static, Result<Response>> {
        let next = Next {
            servers: self.servers.clone(),
            headers,
            loses_the_answer,
        };
        (self.carrier)(call, next)
    }

    /// Waits while a call is cut off. Returns whether it was.
    async fn outlasts_a_cut(&self, call: &Call) -> bool {
        let mut rules = self.rule.subscribe();
        let mut was_cut = false;
        loop {
            let rule = rules.borrow_and_update().clone();
            if !rule.cuts(call) {
                return was_cut;
            }
            was_cut = true;
            if rules.changed().await.is_err() {
                return was_cut;
            }
        }
    }

    /// The result of `work`, or `None` if the call is cut off first, which is returned only when the cut ends.
    async fn unless_cut<T>(&self, call: &Call, work: impl Future<Output = T>) -> Option<T> {
        let mut rules = self.rule.subscribe();
        tokio::select! {
            // Nothing gets through during a cut, even if it is already ready.
            biased;
            Ok(()) = async { rules.wait_for(|rule| rule.cuts(call)).await.map(drop) } => {
                self.outlasts_a_cut(call).await;
                None
            }
            done = work => Some(done),
        }
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, LONGEST).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let target = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let call = Call::new(parts.method, target, body);
    let headers = without_those_of_the_connection(parts.headers);
    let rules = shared.rule.subscribe();
    let fault = shared.judge(&call).await;
    if shared.outlasts_a_cut(&call).await {
        return broken();
    }
    match fault {
        Some(Fault::Refused(status, text)) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
            return (status, text).into_response();
        }
        Some(Fault::Stray) => {
            shared.seen.lock().strays.push_back((call, headers));
            return broken();
        }
        _ => {}
    }
    let lost = matches!(fault, Some(Fault::AnswerLost | Fault::Unanswered));
    let carried = {
        let (shared, call) = (shared.clone(), call.clone());
        let late = match fault {
            Some(Fault::Late(by)) => by,
            _ => Duration::ZERO,
        };
        async move {
            tokio::time::sleep(late).await;
            shared.carry(call, headers, lost).await
        }
    };
    let carried = if call.writes() {
        // As on a real network, the call arrives whether or not its sender still waits.
        let carried = tokio::spawn(carried);
        async { carried.await? }.boxed()
    } else {
        carried.boxed()
    };
    match shared.unless_cut(&call, carried).await {
        Some(Ok(answer)) if lost => {
            // Its content is lost, but the server has certainly carried out the call.
            drop(to_bytes(answer.into_body(), LONGEST).await);
            if fault == Some(Fault::Unanswered) {
                tokio::time::sleep(HANG).await;
            }
            broken()
        }
        Some(Ok(answer)) => {
            let held = (fault == Some(Fault::AnswerHeld)).then_some(rules);
            forward_answer(answer, shared, call, held)
        }
        // As from a server that is down: there is no answer.
        Some(Err(_)) | None => broken(),
    }
}

/// Forwards an answer as it arrives; that of a watch takes minutes. With `held`, it stalls until the faults change.
fn forward_answer(
    answer: Response,
    shared: Arc<Shared>,
    call: Call,
    held: Option<watch::Receiver<Rule>>,
) -> Response {
    let (parts, body) = answer.into_parts();
    let from = (body.into_data_stream(), shared, call, held);
    let chunks = stream::unfold(from, async |(mut body, shared, call, held)| {
        if let Some(mut rules) = held {
            rules.changed().await.ok()?;
        }
        let chunk = match shared.unless_cut(&call, body.next()).await {
            Some(chunk) => chunk?.map_err(io::Error::other),
            None => Err(io::Error::other("cut off")),
        };
        Some((chunk, (body, shared, call, None)))
    });
    Response::from_parts(parts, Body::from_stream(chunks))
}

/// A server's answer, with the body as a stream.
fn streamed(answer: reqwest::Response) -> Response {
    let (status, headers) = (answer.status(), answer.headers().clone());
    let chunks = stream::unfold(answer, async |mut answer| {
        let chunk = answer.chunk().await.transpose()?;
        Some((chunk, answer))
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

/// An answer whose connection breaks in the middle.
fn broken() -> Response {
    let nothing = stream::once(async { Err::<Bytes, _>(io::Error::other("cut off")) });
    Response::new(Body::from_stream(nothing))
}
