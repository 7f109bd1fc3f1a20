//! All that a campaign runs on: the bed's Kubernetes, three Consul servers, the doors, the operators.

pub(crate) mod access;
mod consul;
mod kubernetes;
mod operators;

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use testbed::Bed;
use tokio::sync::RwLock;

pub(crate) use self::consul::Consul;

use self::{kubernetes::Kubernetes, operators::Operators};
use crate::timeline::Timeline;

/// The namespace of all that a campaign makes.
pub(crate) const NAMESPACE: &str = "faults";

/// How long a call to the API server may take.
pub(crate) const CALL: Duration = Duration::from_secs(10);

/// How long a server may take to get ready, and a write while other faults are in its way.
pub(crate) const PATIENCE: Duration = Duration::from_mins(5);

/// All that a campaign runs on. It ends when this is dropped.
pub(crate) struct World {
    pub(crate) operators: Operators,
    pub(crate) consul: Consul,
    pub(crate) kubernetes: Kubernetes,
    pub(crate) timeline: Timeline,
    /// To be read by who changes a `ConsulSemaphore`, and written by who takes all of them away.
    pub(crate) semaphores: RwLock<()>,
    pub(crate) bed: Bed,
}

impl World {
    /// Starts everything, and waits until all of it works.
    pub(crate) async fn start(timeline: &Timeline) -> Result<Self> {
        // The bed starts none, and asks none: its own helpers for Consul are not used.
        let bed = Bed::builder()
            .with_consul([("CONSUL_HTTP_ADDR".to_owned(), "127.0.0.1:1".to_owned())])
            .without_operator()
            .try_start()
            .await?;
        let kubernetes = Kubernetes::behind_a_door(&bed, timeline).await?;
        let consul = Consul::start(&bed, timeline).await?;
        access::grant(&consul).await?;
        let operators = Operators::of(&bed, &consul.doors, &kubernetes)?;
        operators
            .first
            .try_start()
            .await
            .context("the first start of the operator")?;
        Ok(Self {
            operators,
            consul,
            kubernetes,
            timeline: timeline.clone(),
            semaphores: RwLock::default(),
            bed,
        })
    }

    /// Of logs, and of what the `consul lock`s of the load say.
    pub(crate) fn folder(&self) -> &Path {
        self.bed.folder().path()
    }
}
