//! What a door of the proxy does to those who go through it.

use std::time::Duration;

use axum::http::Method;
use tokio::sync::watch;

/// What a door does to those who go through it. The default is fine weather.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weather {
    /// These don't get through, in either direction, and are not refused: packets are dropped.
    pub(crate) cut: Option<Which>,
    /// How long each request waits before it goes on.
    pub(crate) slow: Duration,
    /// These are refused with this status.
    pub(crate) refuse: Option<(Which, u16)>,
    /// These are done, and their answers never arrive.
    pub(crate) lose: Option<Which>,
    /// These are kept, and go on after this time, whether or not somebody still waits for the answer.
    pub(crate) keep: Option<(Which, Duration)>,
}

impl Weather {
    fn cuts(&self, method: &Method, path: &str) -> bool {
        self.cut.is_some_and(|which| which.matches(method, path))
    }
}

/// Some of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All there are.
    All,
    /// Consul's transactions.
    Transactions,
    /// What Consul's raft has to commit: all writes but renewals.
    Commits,
    /// What names a datacenter of Consul's: a server forwards it there.
    Forwarded,
    /// Changes of a Job.
    JobPatches,
    /// Questions which pods of a Job are left.
    PodLists,
}

impl Which {
    /// Whether it is one of them, by its path and query.
    pub(crate) fn matches(self, method: &Method, path: &str) -> bool {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        match self {
            Self::All => true,
            Self::Transactions => path == "/v1/txn",
            Self::Commits => !method.is_safe() && !path.starts_with("/v1/session/renew/"),
            Self::Forwarded => query.split('&').any(|part| part.starts_with("dc=")),
            Self::JobPatches => method == Method::PATCH && path.contains("/jobs/"),
            Self::PodLists => {
                let watches = query.split('&').any(|part| part == "watch=true");
                method == Method::GET && path.ends_with("/pods") && !watches
            }
        }
    }
}

/// The weather at a door, to be changed and to be felt.
#[derive(Clone)]
pub(crate) struct Sky(watch::Sender<Weather>);

impl Sky {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Weather::default()))
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.0.send_replace(weather);
    }

    pub(crate) fn now(&self) -> Weather {
        *self.0.borrow()
    }

    /// Waits while a request does not get through; says whether that was so.
    pub(crate) async fn passable(&self, method: &Method, path: &str) -> bool {
        let mut weather = self.0.subscribe();
        let mut waited = false;
        while weather.borrow_and_update().cuts(method, path) {
            waited = true;
            if weather.changed().await.is_err() {
                break;
            }
        }
        waited
    }

    /// Waits until a request that was let through is cut off, and until it would be let through again.
    pub(crate) async fn breaks(&self, method: &Method, path: &str) {
        let mut weather = self.0.subscribe();
        let cut = weather
            .wait_for(|weather| weather.cuts(method, path))
            .await
            .is_ok();
        if !cut {
            std::future::pending::<()>().await;
        }
        self.passable(method, path).await;
    }
}
