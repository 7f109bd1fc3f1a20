//! What a door of the proxy does to those who go through it.

use std::time::Duration;

use axum::http::Method;
use tokio::sync::watch;

/// What a door does to those who go through it. The default is fine weather.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weather {
    /// Nothing gets through, in either direction, and nothing is refused: packets are dropped.
    pub(crate) cut: bool,
    /// How long each request waits before it goes on.
    pub(crate) slow: Duration,
    /// All are refused with this status.
    pub(crate) refuse: Option<u16>,
    /// These are done, and their answers never arrive.
    pub(crate) lose: Option<Which>,
    /// These are kept, and go on after this time, whether or not somebody still waits for the answer.
    pub(crate) keep: Option<(Which, Duration)>,
}

/// Some of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Consul's transactions.
    Transactions,
    /// Changes of a Job.
    JobPatches,
}

impl Which {
    pub(crate) fn matches(self, method: &Method, path: &str) -> bool {
        match self {
            Self::Transactions => path == "/v1/txn",
            Self::JobPatches => method == Method::PATCH && path.contains("/jobs/"),
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

    /// Waits while nothing gets through; says whether that was so.
    pub(crate) async fn passable(&self) -> bool {
        let mut weather = self.0.subscribe();
        let mut waited = false;
        while weather.borrow_and_update().cut {
            waited = true;
            if weather.changed().await.is_err() {
                break;
            }
        }
        waited
    }

    /// Waits until nothing gets through.
    pub(crate) async fn closes(&self) {
        let mut weather = self.0.subscribe();
        if weather.wait_for(|weather| weather.cut).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
