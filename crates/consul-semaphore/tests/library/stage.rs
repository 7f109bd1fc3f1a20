//! A Consul, and semaphores in it.

use std::{future::Future, time::Duration};

use consul_semaphore::{
    Builder, Semaphore, Slot,
    consul::{Client, Config},
};
use serde_json::Value;
use testbed::{Consul, ConsulBuilder, ConsulServer, Link, PATIENCE, eventually};
use tokio::time::timeout;

/// The prefix of the semaphore.
pub(crate) const PREFIX: &str = "shared/db";

/// A separate Consul for each story.
pub(crate) struct Stage {
    pub(crate) consul: ConsulServer,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self::with(Consul::builder()).await
    }

    pub(crate) async fn with(consul: ConsulBuilder) -> Self {
        Self {
            consul: consul.start().await,
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client_with(|_config| {})
    }

    pub(crate) fn client_with(&self, change: impl FnOnce(&mut Config)) -> Client {
        let mut config = Config {
            addresses: vec![self.consul.address().parse().unwrap()],
            ..Config::default()
        };
        change(&mut config);
        Client::new(config).unwrap()
    }

    /// A link to Consul, and a client whose calls go through it.
    pub(crate) async fn linked(&self) -> (Link, Client) {
        let address = self.consul.address().trim_start_matches("http://");
        let link = Link::start(address.to_owned()).await.unwrap();
        let client = self.client_with(|config| {
            config.addresses = vec![link.address().parse().unwrap()];
        });
        (link, client)
    }

    /// The semaphore of the story, with this limit.
    pub(crate) fn semaphore(&self, limit: u32) -> Semaphore {
        self.builder().limit(limit).build().unwrap()
    }

    pub(crate) fn builder(&self) -> Builder {
        Semaphore::builder(self.client(), PREFIX)
    }

    /// How many slots are held.
    pub(crate) async fn held(&self) -> usize {
        self.consul.holders(PREFIX).await.len()
    }

    /// Waits until this many of ours contend: hold, or wait visibly.
    pub(crate) async fn contend(&self, count: usize) {
        eventually(&format!("{count} contend"), async || {
            testbed::same(self.consul.contenders(PREFIX).await.len(), count)
        })
        .await;
    }

    /// Waits until there are this many sessions: one for each slot, and one that is made ahead for each call that waits.
    pub(crate) async fn has_sessions(&self, count: usize) {
        eventually(&format!("there are {count} sessions"), async || {
            testbed::same(self.consul.sessions().await.len(), count)
        })
        .await;
    }

    /// Waits until nothing is left in Consul.
    pub(crate) async fn becomes_clean(&self) {
        eventually("nothing is left", async || {
            let keys = self.consul.list("shared").await;
            let sessions = self.consul.sessions().await;
            if keys.is_empty() && sessions.is_empty() {
                Ok(())
            } else {
                Err(format!("{keys:?}, {sessions:?}"))
            }
        })
        .await;
    }

    /// Checks that nothing is left in Consul.
    pub(crate) async fn is_clean(&self) {
        assert_eq!(self.consul.list("shared").await, []);
        assert_eq!(self.consul.sessions().await, Vec::<Value>::new());
    }
}

/// What comes in time.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it takes too long")
}

/// A slot that comes in time.
pub(crate) async fn slot_of(semaphore: &Semaphore) -> Slot {
    soon(semaphore.acquire()).await.unwrap()
}

/// Long enough for something to have happened, if it were to.
pub(crate) const MOMENT: Duration = Duration::from_millis(500);
