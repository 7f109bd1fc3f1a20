//! `/livez`, `/readyz` and `/metrics` over HTTP.
use std::{future::Future, io, net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;

use super::Telemetry;
use crate::connections::{self, Bounds};

/// Answers are short, and so is the time for them. Connections are never kept open, so a probe is always answered at
/// once.
const BOUNDS: Bounds = Bounds {
    most: 64,
    head: Duration::from_secs(2),
    lasts: Duration::from_secs(10),
    grace: Duration::from_secs(2),
};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Listening on the address failed.
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

/// Serves until `shutdown` ends, then a moment longer, to finish answers that have begun.
pub async fn serve(
    listener: TcpListener,
    telemetry: Telemetry,
    shutdown: impl Future<Output = ()>,
) {
    connections::serve(listener, routes(telemetry), BOUNDS, shutdown).await;
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
