//! The doors through which all traffic goes: the operator's to Consul and to the API server, and
//! those of all others who write to Consul.
//!
//! A door does to requests what its [`Weather`](crate::weather::Weather) says, and writes down each
//! write with its answer. A write that has been let through is carried out to its end, whether or not
//! its sender still waits, as on a real network.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::Response,
};
use futures::{Stream, TryStreamExt as _, stream};

use crate::{
    consul_record::LockBook,
    record::{What, Writer},
    timeline::Timeline,
    versions::{Added, Versions},
    weather::Sky,
};

/// The longest body that is let through: Kubernetes' own bound is 3 MiB.
const LONGEST: usize = 4 << 20;

/// How long a server may take for a write.
const WRITE: Duration = Duration::from_mins(2);

/// How long a request whose answer is lost hangs, if its sender does not give up before.
const HANG: Duration = Duration::from_mins(2);

/// Headers that are about one connection and not about the request.
const OF_THE_CONNECTION: [HeaderName; 6] = [
    header::CONNECTION,
    header::HOST,
    header::TRANSFER_ENCODING,
    header::CONTENT_LENGTH,
    header::UPGRADE,
    header::TE,
];

/// A door.
#[derive(Clone)]
pub(crate) struct Door(Arc<Inner>);

struct Inner {
    writer: Writer,
    upstream: Upstream,
    sky: Sky,
    timeline: Timeline,
    /// Consul's doors write down what becomes of each `.lock`.
    book: Option<LockBook>,
    /// Kubernetes' doors show other versions than there are.
    versions: Option<Versions>,
}

/// A server, or several that are the same.
pub(crate) struct Upstream {
    http: reqwest::Client,
    servers: Vec<String>,
    /// The one that answered last.
    current: AtomicUsize,
}

impl Upstream {
    pub(crate) fn new(http: reqwest::Client, servers: Vec<String>) -> Self {
        Self {
            http,
            servers,
            current: AtomicUsize::new(0),
        }
    }

    /// Sends a request to the server that answered last, and to the next one if that can't be
    /// reached at all.
    async fn send(&self, asked: &Asked) -> Result<reqwest::Response> {
        let mut failure = None;
        for _ in 0..self.servers.len() {
            let current = self.current.load(Ordering::Relaxed);
            let server = &self.servers[current % self.servers.len()];
            let mut request = self
                .http
                .request(asked.method.clone(), format!("{server}{}", asked.path))
                .headers(asked.headers.clone())
                .body(asked.body.clone());
            if asked.writes() {
                request = request.timeout(WRITE);
            }
            match request.send().await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_connect() => {
                    self.current
                        .store((current + 1) % self.servers.len(), Ordering::Relaxed);
                    failure = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(failure.map_or_else(|| anyhow::anyhow!("no server"), Into::into))
    }
}

/// A request, whole.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Asked {
    fn writes(&self) -> bool {
        self.method != Method::GET && self.method != Method::HEAD
    }
}

/// What a server said to a write.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// Whether it says that nothing was done.
    pub(crate) fn refuses(&self) -> bool {
        (400..500).contains(&self.status) || self.body == "false"
    }
}

impl Door {
    /// To Consul, for one kind of writer.
    pub(crate) fn to_consul(
        writer: Writer,
        upstream: Upstream,
        sky: Sky,
        timeline: Timeline,
        book: LockBook,
    ) -> Self {
        Self(Arc::new(Inner {
            writer,
            upstream,
            sky,
            timeline,
            book: Some(book),
            versions: None,
        }))
    }

    /// The operator's, to the API server.
    pub(crate) fn to_api(
        upstream: Upstream,
        sky: Sky,
        timeline: Timeline,
        versions: Versions,
    ) -> Self {
        Self(Arc::new(Inner {
            writer: Writer::Operator,
            upstream,
            sky,
            timeline,
            book: None,
            versions: Some(versions),
        }))
    }

    /// Opens it: it serves this listener to the end of the process.
    pub(crate) fn open<L>(self, listener: L)
    where
        L: axum::serve::Listener,
        L::Addr: std::fmt::Debug,
    {
        let router = Router::new().fallback(pass).with_state(self);
        tokio::spawn(async move { axum::serve(listener, router).await });
    }

    /// Carries a write out, and writes it down. What it finds at the door was decided before.
    async fn write(&self, asked: Asked, lost: bool) -> Result<Answer> {
        let Inner {
            writer,
            upstream,
            timeline,
            book,
            ..
        } = &*self.0;
        let start = Instant::now();
        let sent = async {
            let answer = upstream.send(&asked).await?;
            let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
            Ok(Answer {
                status,
                headers,
                body: answer.bytes().await?,
            })
        };
        let answer = match book {
            Some(book) => book.write(*writer, timeline, &asked, sent).await,
            None => sent.await,
        };
        let took = start.elapsed().as_millis();
        // Renewals are most of all writes, and write nothing.
        if !asked.path.starts_with("/v1/session/renew/") || lost || answer.is_err() {
            timeline.push(What::Write {
                writer: *writer,
                method: asked.method.to_string(),
                path: asked.path.clone(),
                status: answer.as_ref().ok().map(|answer| answer.status),
                lost,
                ms: took.try_into().unwrap_or(u64::MAX),
            });
        }
        answer
    }
}

/// A request comes to the door.
async fn pass(State(door): State<Door>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut headers = parts.headers;
    for name in OF_THE_CONNECTION {
        headers.remove(name);
    }
    let Ok(body) = axum::body::to_bytes(body, LONGEST).await else {
        return refusal(StatusCode::PAYLOAD_TOO_LARGE);
    };
    let asked = Asked {
        method: parts.method,
        path: path.to_owned(),
        headers,
        body,
    };
    let added = door.0.versions.as_ref().map(Versions::now);
    let asked = match added {
        Some(added) => match added.taken_off(asked) {
            Some(asked) => asked,
            None => return expired(),
        },
        None => asked,
    };
    let sky = &door.0.sky;
    if sky.passable(&asked.method, &asked.path).await {
        // What was sent while nothing got through is lost; its sender finds the connection dead.
        return refusal(StatusCode::BAD_GATEWAY);
    }
    let weather = sky.now();
    if let Some((which, status)) = weather.refuse
        && which.matches(&asked.method, &asked.path)
    {
        return refusal(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY));
    }
    tokio::time::sleep(weather.slow).await;
    let outcome = if asked.writes() {
        pass_write(&door, asked, added).await
    } else {
        pass_read(&door, &asked, added).await
    };
    outcome.unwrap_or_else(|_| refusal(StatusCode::BAD_GATEWAY))
}

async fn pass_write(door: &Door, asked: Asked, added: Option<Added>) -> Result<Response> {
    let weather = door.0.sky.now();
    let matches = |which: crate::weather::Which| which.matches(&asked.method, &asked.path);
    let lost = weather.lose.is_some_and(matches);
    let kept = weather.keep.filter(|(which, _)| matches(*which));
    let carried_out = tokio::spawn({
        let (door, asked) = (door.clone(), asked.clone());
        async move {
            if let Some((_, time)) = kept {
                tokio::time::sleep(time).await;
            }
            door.write(asked, lost).await
        }
    });
    let answer = carried_out.await.context("the door")??;
    if lost || door.0.sky.passable(&asked.method, &asked.path).await {
        tokio::time::sleep(if lost { HANG } else { Duration::ZERO }).await;
        return Ok(refusal(StatusCode::BAD_GATEWAY));
    }
    let body = match added {
        Some(added) => added.put_on(&answer.body),
        None => answer.body,
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(answer.status)?;
    *response.headers_mut() = without_those_of_the_connection(&answer.headers);
    Ok(response)
}

async fn pass_read(door: &Door, asked: &Asked, added: Option<Added>) -> Result<Response> {
    let sky = door.0.sky.clone();
    let answer = tokio::select! {
        answer = door.0.upstream.send(asked) => answer?,
        () = sky.breaks(&asked.method, &asked.path) => anyhow::bail!("the way was cut"),
    };
    let status = StatusCode::from_u16(answer.status().as_u16())?;
    let headers = without_those_of_the_connection(answer.headers());
    // A watch goes on for minutes: a cut must stop it in the middle, and show only afterwards.
    let way = (sky, asked.method.clone(), asked.path.clone());
    let body = stream::unfold((answer, way), |(mut answer, way)| async move {
        let (sky, method, path) = &way;
        let chunk = tokio::select! {
            chunk = answer.chunk() => chunk.map_err(std::io::Error::other).transpose()?,
            () = sky.breaks(method, path) => Err(std::io::Error::other("the way was cut")),
        };
        Some((chunk, (answer, way)))
    });
    let body = match added {
        Some(added) => Body::from_stream(lines(body).map_ok(move |line| added.put_on(&line))),
        None => Body::from_stream(body),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// The same bytes, cut after ends of lines only.
fn lines(
    chunks: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
) -> impl Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    let begun = (Box::pin(chunks), Vec::new());
    stream::try_unfold(begun, |(mut chunks, mut begun)| async move {
        while let Some(chunk) = chunks.try_next().await? {
            begun.extend_from_slice(&chunk);
            if let Some(end) = begun.iter().rposition(|byte| *byte == b'\n') {
                let rest = begun.split_off(end + 1);
                return Ok(Some((begun.into(), (chunks, rest))));
            }
        }
        let rest = std::mem::take(&mut begun);
        Ok((!rest.is_empty()).then(|| (rest.into(), (chunks, begun))))
    })
}

/// What the API server says to who watches from a version that is not there any more.
fn expired() -> Response {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410,
    });
    let event = serde_json::json!({ "type": "ERROR", "object": status });
    Response::new(Body::from(format!("{event}\n")))
}

fn without_those_of_the_connection(headers: &HeaderMap<HeaderValue>) -> HeaderMap {
    let mut headers = headers.clone();
    for name in OF_THE_CONNECTION {
        headers.remove(name);
    }
    headers
}

fn refusal(status: StatusCode) -> Response {
    let mut response = Response::new(Body::from("the door of the fault campaign says no"));
    *response.status_mut() = status;
    response
}
