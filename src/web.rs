//! Serves a page for people: who holds the slots of each semaphore, who waits and why, live.
//!
//! The page shows the status of each `ConsulSemaphore`, from its own watch. So every replica shows the same, leader
//! or not, and the controller neither knows of the page nor waits for it.
//!
//! | module | subject |
//! |---|---|
//! | `watch` | the watch of the API server, which updates the picture |
//! | `picture` | the current state of all semaphores, and what changed since a reader's last read |
//! | `view` | one semaphore as JSON; `trend` keeps its recent use |
//! | `guard` | who may see which namespaces: the API server is asked about it |
//! | `places` | how many pages may be open |
//! | `stream` | one open page: server-sent events |
//! | `routes` | paths and headers |
//! | `page/` | HTML, CSS and JavaScript |

mod guard;
mod picture;
mod places;
mod routes;
mod stream;
mod trend;
mod view;
mod watch;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{net::TcpListener, task::JoinSet};

use self::{guard::Guard, picture::Picture, places::Places};
use crate::{
    auth::{Purpose, Reviews},
    connections::{self, Bounds},
    telemetry::Telemetry,
};
use consul_semaphore_api::scope::Scope;

/// Purpose for which users of the page show their tokens.
const PURPOSE: Purpose = Purpose {
    audience: "consul-semaphore-web",
    role: "config/web/role.yaml",
};

/// Bounds of connections. An open page reconnects before its connection is closed.
const BOUNDS: Bounds = Bounds {
    most: places::MAX_PAGES + 32,
    head: Duration::from_secs(10),
    lasts: Duration::from_mins(15),
    grace: Duration::ZERO,
};

/// Time for which a connection to the API server may be silent before it is closed.
const SILENCE: Duration = Duration::from_mins(5);

/// Settings of the page.
#[derive(Clone, Debug)]
pub struct PageSettings {
    /// Address on which the page is served.
    pub address: SocketAddr,
    /// Users that may see the page.
    pub access: PageAccess,
    /// Semaphores that the page shows.
    pub scope: Scope,
}

/// The users that may see the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAccess {
    /// Everybody with a token that the API server knows, as far as the user may list `ConsulSemaphores`.
    Kubernetes,
    /// Everybody may see the page. This is only for loopback addresses.
    Open,
}

/// Listening on the address failed.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address}: {source}; choose another address with --web-address or WEB_ADDRESS"
)]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// The page, ready to be served.
#[derive(Debug)]
pub struct Page {
    listener: TcpListener,
    settings: PageSettings,
}

/// State that all open pages share.
struct AppState {
    guard: Guard,
    picture: Arc<Shared>,
    places: Places,
    telemetry: Telemetry,
}

/// The picture, for one writer and many readers. Each reader reads the current state when it has time.
type Shared = tokio::sync::watch::Sender<Picture>;

impl Page {
    /// Listens on the address; port 0 takes a free port.
    pub async fn bind(settings: PageSettings) -> Result<Self, BindError> {
        let address = settings.address;
        let listener = connections::listen(address)
            .await
            .map_err(|source| BindError { address, source })?;
        Ok(Self { listener, settings })
    }

    /// Returns the address on which the page is served.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves the page until `shutdown` ends.
    ///
    /// # Errors
    /// Fails if the cluster is not configured.
    pub async fn serve(
        self,
        telemetry: Telemetry,
        shutdown: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let PageSettings {
            address: _,
            access,
            scope,
        } = self.settings;
        let mut config = kube::Config::infer()
            .await
            .context("no cluster is configured")?;
        // Requests are not retried, so that the page shows at once what is wrong.
        config.default_retry = false;
        // The API server ends a watch earlier than that, so a longer silence means a dead connection.
        config.read_timeout = Some(SILENCE);
        let client = kube::Client::try_from(config).context("the API server")?;
        let picture = Arc::new(Shared::default());
        let mut watching = JoinSet::new();
        for watch in watch::over(&scope, &client, &picture) {
            watching.spawn(watch.run());
        }
        let app = AppState {
            guard: match access {
                PageAccess::Kubernetes => Guard::Asks(Box::new(Reviews::new(client, PURPOSE))),
                PageAccess::Open => Guard::Open,
            },
            picture,
            places: Places::default(),
            telemetry,
        };
        let routes = routes::routes(Arc::new(app));
        connections::serve(self.listener, None, routes, BOUNDS, shutdown).await;
        Ok(())
    }
}
