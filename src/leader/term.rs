//! One time of leading.

use std::sync::Arc;

use kube::{
    Client, Config,
    client::{Body, ClientBuilder, retry::RetryPolicy},
};
use tokio::{sync::watch, time::sleep};
use tower::{BoxError, buffer::BufferLayer, filter::FilterLayer, retry::RetryLayer};

use crate::{clock::Moment, consul};

/// How many requests to the API server may wait at the gate.
const QUEUE: usize = 1024;

/// The request would have changed something, and was held back.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("this replica does not lead any more, so it writes nothing")]
pub struct NotLeading;

/// One time of leading: it lasts until a moment that every good renewal puts off, or until it is
/// ended. Clones are the same term.
///
/// Tasks are dropped when it is over, but not in the very moment: a machine that slept wakes with
/// its lease long gone, and every task that has something to do goes on first. So all that writes
/// does so through [`Term::kubernetes`] and [`Term::consul`], which let nothing through any more.
#[derive(Clone, Debug)]
pub struct Term(Arc<watch::Sender<Moment>>);

impl Term {
    /// A term that lasts until then, if it is not extended.
    pub(super) fn new(until: Moment) -> Self {
        Self(Arc::new(watch::Sender::new(until)))
    }

    /// Whether it still lasts.
    pub fn lasts(&self) -> bool {
        Moment::now() < *self.0.borrow()
    }

    /// It lasts until then at least, unless it has been ended.
    pub(super) fn extend(&self, until: Moment) {
        self.0.send_if_modified(|end| {
            let longer = *end != Moment::default() && until > *end;
            if longer {
                *end = until;
            }
            longer
        });
    }

    /// It is over, for good.
    pub(super) fn end(&self) {
        self.0.send_replace(Moment::default());
    }

    /// Waits until it is over.
    pub async fn over(&self) {
        let mut end = self.0.subscribe();
        loop {
            let left = end.borrow_and_update().since(Moment::now());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                // `self` keeps the sender.
                _ = end.changed() => {}
                () = sleep(left) => {}
            }
        }
    }

    /// A client of the API server that writes only while the term lasts: also when it does again
    /// what the server was too busy for.
    ///
    /// # Errors
    /// The settings can't be used.
    pub fn kubernetes(&self, mut config: Config) -> kube::Result<Client> {
        let term = self.clone();
        let gate = FilterLayer::new(move |request: http::Request<Body>| {
            if request.method().is_safe() || term.lasts() {
                Ok(request)
            } else {
                Err(BoxError::from(NotLeading))
            }
        });
        config.default_retry = false;
        let client = ClientBuilder::try_from(config)?
            .with_layer(&gate)
            .with_layer(&BufferLayer::new(QUEUE))
            .with_layer(&RetryLayer::new(RetryPolicy::server_retry()))
            .build();
        Ok(client)
    }

    /// A client of Consul that writes only while the term lasts.
    pub fn consul(&self, consul: &consul::Client) -> consul::Client {
        consul.gated(Arc::new(self.clone()))
    }
}

impl consul::Gate for Term {
    fn is_open(&self) -> bool {
        self.lasts()
    }
}
