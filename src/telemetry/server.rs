//! `/livez`, `/readyz` and `/metrics` over HTTP.
use std::{future::Future, io, net::SocketAddr, pin::pin, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::Telemetry;

/// More connections than this wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;

/// A connection serves one request, and is closed after so long whatever it does.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long answers that are under way may take when the server ends.
const GRACE: Duration = Duration::from_secs(2);

/// How long to wait when the system has no connection to give, as when file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address}: {source}; choose another address with --http-address or HTTP_ADDRESS"
)]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// Listens on an address; port 0 takes a free one.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| BindError { address, source })
}

/// Serves until `shutdown` ends, then for a moment longer, to finish what is under way.
pub async fn serve(
    listener: TcpListener,
    telemetry: Telemetry,
    shutdown: impl Future<Output = ()>,
) {
    let routes = routes(telemetry);
    let mut shutdown = pin!(shutdown);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => drop(connections.spawn(answer(stream, routes.clone()))),
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    // What is not finished by then is dropped with the set.
    let _ = timeout(GRACE, async {
        while connections.join_next().await.is_some() {}
    })
    .await;
}

/// Answers one request on a new connection.
async fn answer(stream: TcpStream, routes: Router) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().keep_alive(false);
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    match timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(error, "a connection failed"),
        Err(_) => tracing::debug!("a connection was closed: it took too long"),
    }
}

fn routes(telemetry: Telemetry) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(telemetry)
}

async fn ready(State(telemetry): State<Telemetry>) -> impl IntoResponse {
    let obstacles = telemetry.health.obstacles();
    if obstacles.is_empty() {
        (
            StatusCode::OK,
            format!("ok\n{}", telemetry.health.remarks()),
        )
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, obstacles)
    }
}

async fn metrics(State(telemetry): State<Telemetry>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, OPEN_METRICS)],
        telemetry.metrics.encode(),
    )
}
