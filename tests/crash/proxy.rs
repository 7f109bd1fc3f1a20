//! A proxy before Consul or the API server, over which requests come late and answers are lost.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::stream;
use serde_json::Value;
use testbed::eventually;
use tokio::{net::TcpListener, sync::watch, task::AbortHandle};

/// The longest request that passes, in bytes.
const LONGEST: usize = 4 << 20;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Such as `PATCH`.
    pub(crate) method: String,
    /// With the query.
    pub(crate) path: String,
    headers: axum::http::HeaderMap,
    body: Bytes,
}

impl Call {
    /// Its body as JSON; null when it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// What it is to Consul: the verbs, keys and values of a transaction's operations.
    pub(crate) fn operations(&self) -> Vec<(String, String, String)> {
        let operations = self.json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let operations = operations.as_array().into_iter().flatten();
        operations
            .map(|operation| {
                let kv = &operation["KV"];
                let value = BASE64_STANDARD
                    .decode(text(&kv["Value"]))
                    .unwrap_or_default();
                let value = String::from_utf8_lossy(&value).into_owned();
                (text(&kv["Verb"]), text(&kv["Key"]), value)
            })
            .collect()
    }
}

/// What is done to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is done, and its answer is cut off.
    AnswerLost,
    /// Nothing is heard of it, and it gets to the server when [`Proxy::land`] says so.
    Late,
    /// Its answer stops coming until [`Proxy::flow`].
    Stalled,
}

type Rule = Box<dyn FnMut(&Call) -> Option<Fault> + Send>;

/// The proxy: lets all pass, but for those that its rule says something about. Ends when it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: AbortHandle,
}

struct Shared {
    http: reqwest::Client,
    upstream: String,
    state: Mutex<Inner>,
    flows: watch::Sender<bool>,
}

#[derive(Default)]
struct Inner {
    rule: Option<Rule>,
    /// What was lost or held, in order.
    met: Vec<Call>,
    late: Vec<Call>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Proxy {
    /// A proxy before the server at this URL, which has a certificate signed by `ca` if it speaks TLS.
    pub(crate) async fn before(upstream: &str, ca: Option<&[u8]>) -> Self {
        let mut http = reqwest::Client::builder().no_proxy();
        if let Some(ca) = ca {
            let ca = reqwest::Certificate::from_pem(ca).expect("a certificate");
            http = http.tls_certs_only([ca]);
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let shared = Arc::new(Shared {
            http: http.build().expect("a client"),
            upstream: upstream.to_owned(),
            state: Mutex::default(),
            flows: watch::Sender::new(false),
        });
        let address = listener.local_addr().expect("an address");
        let router = Router::new().fallback(pass).with_state(shared.clone());
        let serving = tokio::spawn(async move {
            let _ended = axum::serve(listener, router).await;
        });
        Self {
            address,
            shared,
            serving: serving.abort_handle(),
        }
    }

    /// Where it is.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on this says what is done to a request.
    pub(crate) fn rule(&self, rule: impl FnMut(&Call) -> Option<Fault> + Send + 'static) {
        self.shared.state().rule = Some(Box::new(rule));
    }

    /// From now on all pass.
    pub(crate) fn all_pass(&self) {
        self.shared.state().rule = None;
    }

    /// To how many requests something was done.
    pub(crate) fn met(&self) -> usize {
        self.shared.state().met.len()
    }

    /// Waits until something was done to so many requests.
    pub(crate) async fn has_met(&self, count: usize) {
        eventually("the fault has happened", || async {
            let met = self.shared.state().met.len();
            if met >= count { Ok(()) } else { Err(met) }
        })
        .await;
    }

    /// Lets the first of those that are late get to the server; returns the status of the answer.
    pub(crate) async fn land(&self) -> u16 {
        let call = self.shared.state().late.remove(0);
        let answer = self.shared.forward(&call).await;
        answer.expect("the server answers").status().as_u16()
    }

    /// The answers that stopped flow again.
    pub(crate) fn flow(&self) {
        self.shared.flows.send_replace(true);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, call: &Call) -> Option<Fault> {
        let mut state = self.state();
        let fault = state.rule.as_mut().and_then(|rule| rule(call))?;
        state.met.push(call.clone());
        if fault == Fault::Late {
            state.late.push(call.clone());
        }
        Some(fault)
    }

    async fn forward(&self, call: &Call) -> reqwest::Result<reqwest::Response> {
        let url = format!("{}{}", self.upstream, call.path);
        let method = call.method.parse().expect("a method");
        let mut headers = call.headers.clone();
        // Those that speak of the connection, and what the client here says for itself.
        for name in [header::HOST, header::CONNECTION, header::CONTENT_LENGTH] {
            headers.remove(name);
        }
        headers.remove(header::ACCEPT_ENCODING);
        let request = self.http.request(method, url).headers(headers);
        request.body(call.body.clone()).send().await
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let call = Call {
        method: parts.method.to_string(),
        path: path.to_owned(),
        headers: parts.headers,
        body: to_bytes(body, LONGEST).await.unwrap_or_default(),
    };
    let fault = shared.judge(&call);
    if fault == Some(Fault::Late) {
        return cut_off();
    }
    match shared.forward(&call).await {
        Ok(answer) if fault == Some(Fault::AnswerLost) => {
            let _whole = answer.bytes().await;
            cut_off()
        }
        Ok(answer) => {
            let stalls = (fault == Some(Fault::Stalled)).then(|| shared.flows.subscribe());
            give_on(answer, stalls)
        }
        Err(_) => cut_off(),
    }
}

fn give_on(answer: reqwest::Response, stalls: Option<watch::Receiver<bool>>) -> Response {
    let mut response = Response::builder().status(answer.status());
    let connection = [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::CONTENT_LENGTH,
    ];
    let headers: HashMap<_, _> = answer
        .headers()
        .clone()
        .drain()
        .filter_map(|(name, value)| Some((name?, value)))
        .collect();
    for (name, value) in headers
        .into_iter()
        .filter(|(name, _)| !connection.contains(name))
    {
        response = response.header(name, value);
    }
    let chunks = stream::unfold((answer, stalls), async |(mut answer, mut stalls)| {
        if let Some(stalls) = &mut stalls {
            let _ = stalls.wait_for(|flows| *flows).await;
        }
        let chunk = answer.chunk().await.transpose()?;
        Some((chunk, (answer, stalls)))
    });
    response.body(Body::from_stream(chunks)).expect("an answer")
}

/// An answer that ends before it has told anything.
fn cut_off() -> Response {
    let nothing = stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut off")) });
    let mut response = Response::new(Body::from_stream(nothing));
    *response.status_mut() = StatusCode::OK;
    response
}
