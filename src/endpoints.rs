//! Serves the operator's HTTP endpoints: `/livez` and `/readyz` for everybody, `/metrics` for those who may read it.
//!
//! | module | subject |
//! |---|---|
//! | `metrics_page` | the page of metrics, which all readers share |

mod metrics_page;

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use consul_client::ConfigError;
use parking_lot::Mutex;
use tokio::{net::TcpListener, time::timeout};

use self::metrics_page::MetricsPage;
pub use crate::connections::TlsFiles;
use crate::{
    auth::{Purpose, Refusal, Reviews, Right, Token},
    connections::{self, Bounds, Connection, Tls},
    telemetry::{Health, Telemetry},
};

/// Bounds of connections. Answers are short, and so is the time for them. Connections are never kept open, so a probe
/// is always answered at once.
const BOUNDS: Bounds = Bounds {
    most: 64,
    head: Duration::from_secs(2),
    lasts: Duration::from_secs(10),
    grace: Duration::from_secs(2),
};

/// Time that the API server has to say who may read the metrics. It is shorter than the connection lasts, so that the
/// client learns that there was no answer.
const METRICS_REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Purpose for which scrapers show their tokens.
const PURPOSE: Purpose = Purpose {
    audience: "consul-semaphore-metrics",
    role: "config/metrics/role.yaml",
};

const METRICS: &str = "/metrics";

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Settings of the endpoints.
#[derive(Clone, Debug)]
pub struct EndpointsSettings {
    /// Address on which the endpoints are served.
    pub address: SocketAddr,
    /// Files for TLS; `None` means plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Clients that may read the metrics.
    pub metrics: Access,
}

/// The clients that may read the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody may read the metrics.
    Open,
    /// Everybody with a token whose user may `get` the nonResourceURL `/metrics` of the API server.
    Kubernetes,
}

/// The endpoints can't be served.
#[derive(Debug, thiserror::Error)]
pub enum EndpointsError {
    /// Listening on the address failed.
    #[error(
        "cannot listen on {address}: {source}; choose another address with --http-address or HTTP_ADDRESS"
    )]
    Address {
        /// Address on which the operator should listen.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The certificate or its key can't be used.
    #[error(transparent)]
    Certificate(#[from] ConfigError),
    /// There is no API server that could be asked who may read the metrics.
    #[error("--metrics-auth=kubernetes needs an API server to ask about tokens: {0}")]
    NoCluster(String),
}

/// The endpoints, ready to be served.
#[derive(Debug)]
pub struct Endpoints {
    listener: TcpListener,
    tls: Option<Tls>,
    scrapers: Option<Arc<Scrapers>>,
}

impl Endpoints {
    /// Listens on the address; port 0 takes a free port.
    pub async fn bind(settings: EndpointsSettings) -> Result<Self, EndpointsError> {
        let EndpointsSettings {
            address,
            tls,
            metrics,
        } = settings;
        let listener = connections::listen(address)
            .await
            .map_err(|source| EndpointsError::Address { address, source })?;
        let tls = tls.map(Tls::read).transpose()?;
        let scrapers = match metrics {
            Access::Open => None,
            Access::Kubernetes => Some(Arc::new(Scrapers::new().await?)),
        };
        if scrapers.is_some() && tls.is_none() {
            tracing::warn!(
                "with --metrics-auth=kubernetes and without TLS, scrapers send their tokens in plain text: set \
                 --http-tls-cert-file and --http-tls-key-file"
            );
        }
        Ok(Self {
            listener,
            tls,
            scrapers,
        })
    }

    /// Returns the address on which the endpoints are served.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` ends, then a moment longer, to finish answers that have begun.
    pub async fn serve(self, telemetry: Telemetry, shutdown: impl Future<Output = ()>) {
        let metrics = telemetry.metrics.clone();
        let routes = routes(App {
            health: telemetry.health,
            page: Arc::new(MetricsPage::new(move || metrics.encode())),
            scrapers: self.scrapers,
        });
        connections::serve(self.listener, self.tls, routes, BOUNDS, shutdown).await;
    }
}

fn routes(app: App) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route(METRICS, get(metrics))
        .with_state(app)
}

#[derive(Clone)]
struct App {
    health: Health,
    page: Arc<MetricsPage>,
    scrapers: Option<Arc<Scrapers>>,
}

async fn ready(State(App { health, .. }): State<App>) -> impl IntoResponse {
    let obstacles = health.obstacles();
    if obstacles.is_empty() {
        (StatusCode::OK, format!("ok\n{}", health.remarks()))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, obstacles)
    }
}

async fn metrics(
    State(app): State<App>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Refusal> {
    if let Some(scrapers) = &app.scrapers {
        scrapers.admit(&headers, connection.address()).await?;
    }
    let text = app.page.read().await;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], Body::from(text)))
}

/// Decides which clients may read the metrics.
struct Scrapers {
    reviews: Reviews,
    /// Reason why the API server could not be asked the last time.
    problem: Mutex<Option<String>>,
}

impl Scrapers {
    /// Uses the API server of KUBECONFIG, or of the pod's cluster.
    async fn new() -> Result<Self, EndpointsError> {
        let no_cluster =
            |error: &dyn std::error::Error| EndpointsError::NoCluster(error.to_string());
        let mut config = kube::Config::infer()
            .await
            .map_err(|error| no_cluster(&error))?;
        // A failed request is not retried, because the next scrape is a retry.
        config.default_retry = false;
        let client = kube::Client::try_from(config).map_err(|error| no_cluster(&error))?;
        Ok(Self::asking(Reviews::new(client, PURPOSE)))
    }

    fn asking(reviews: Reviews) -> Self {
        Self {
            reviews,
            problem: Mutex::default(),
        }
    }

    /// Admits a client at this address, or returns why not.
    async fn admit(&self, headers: &HeaderMap, address: &Arc<str>) -> Result<(), Refusal> {
        let review = timeout(METRICS_REVIEW_TIMEOUT, self.review(headers, address));
        let admitted = review.await.unwrap_or(Err(Refusal::silent()));
        self.report(&admitted);
        admitted
    }

    async fn review(&self, headers: &HeaderMap, address: &Arc<str>) -> Result<(), Refusal> {
        let token = Token::bearer(headers).ok_or(Refusal::NoToken)?;
        let user = self.reviews.user(&token, address).await?;
        if self.reviews.has(&user, &Right::Get(METRICS)).await? {
            return Ok(());
        }
        Err(Refusal::Forbidden(format!(
            "{} may not get {METRICS}: bind it to a ClusterRole that allows get on this nonResourceURL",
            user.name
        )))
    }

    /// Logs why a client was refused, once while the reason stays the same. Prometheus shows only the status of an
    /// answer.
    fn report(&self, admitted: &Result<(), Refusal>) {
        let problem = match admitted {
            Ok(()) | Err(Refusal::Forbidden(_)) => None,
            Err(Refusal::Unable(why)) => Some(why.clone()),
            // Anybody can cause these refusals, so they are not logged.
            Err(Refusal::NoToken | Refusal::Unknown) => return,
        };
        let mut last = self.problem.lock();
        if let Some(problem) = problem.as_ref().filter(|_| problem != *last) {
            tracing::warn!(problem, "can't ask the API server who may read the metrics");
        }
        *last = problem;
    }
}

impl std::fmt::Debug for Scrapers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrapers")
    }
}

#[cfg(test)]
mod tests;
