//! Everything that a campaign runs on: the bed's Kubernetes, three Consul servers, the doors, the operators.

pub(crate) mod access;
mod consul;
mod copy;
mod kubernetes;
mod operators;
mod policies;

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use fastrand::Rng;
use testbed::{Bed, Controller};
use tokio::sync::RwLock;

pub(crate) use self::{consul::Consul, copy::Copy};

use self::{kubernetes::Kubernetes, operators::Operators};
use crate::{
    record::{WorkloadKind, Writer},
    timeline::Timeline,
    workloads::KINDS,
};

/// The namespace of everything that a campaign makes.
pub(crate) const NAMESPACE: &str = "faults";

/// How long a call to the API server may take.
pub(crate) const CALL: Duration = Duration::from_secs(10);

/// How long a server may take to become ready, or a write to succeed while other faults interfere.
pub(crate) const PATIENCE: Duration = Duration::from_mins(5);

/// Everything that a campaign runs on. It ends when this is dropped.
pub(crate) struct World {
    /// The kinds of workloads.
    pub(crate) kinds: &'static [WorkloadKind],
    pub(crate) operators: Operators,
    pub(crate) consul: Consul,
    pub(crate) kubernetes: Kubernetes,
    pub(crate) timeline: Timeline,
    /// Locked for reading to change one `ConsulSemaphore`, and for writing to delete all of them.
    pub(crate) semaphores: RwLock<()>,
    pub(crate) bed: Bed,
}

impl World {
    /// Starts everything, and waits until all of it works. Without `workloads` there are only Jobs.
    pub(crate) async fn start(timeline: &Timeline, workloads: bool) -> Result<Self> {
        let controllers = [Controller::JobSet, Controller::Tekton];
        let kinds = if workloads { &KINDS[..] } else { &KINDS[..1] };
        // The campaign starts its own Consul servers, so the bed starts none, and its own Consul helpers are not
        // used.
        let bed = Bed::builder()
            .with_consul([("CONSUL_HTTP_ADDR".to_owned(), "127.0.0.1:1".to_owned())])
            .controllers(controllers.into_iter().filter(|_| workloads))
            .without_operator()
            .try_start()
            .await?;
        policies::install(&bed, kinds).await?;
        let kubernetes = Kubernetes::behind_a_door(&bed, Writer::Operator, timeline).await?;
        let consul = Consul::start(&bed, timeline).await?;
        access::grant(&consul).await?;
        let operators = Operators::of(&bed, kinds, &consul.doors, &kubernetes)?;
        operators
            .first
            .try_start()
            .await
            .context("the first start of the operator")?;
        Ok(Self {
            kinds,
            operators,
            consul,
            kubernetes,
            timeline: timeline.clone(),
            semaphores: RwLock::default(),
            bed,
        })
    }

    /// Some kind of workload.
    pub(crate) fn some_kind(&self, rng: &mut Rng) -> WorkloadKind {
        rng.choice(self.kinds).copied().unwrap_or_default()
    }

    /// The folder of the logs, and of the output of the load's `consul lock`s.
    pub(crate) fn folder(&self) -> &Path {
        self.bed.folder().path()
    }
}
