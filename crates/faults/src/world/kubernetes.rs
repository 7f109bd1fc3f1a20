//! The bed's Kubernetes, and the operator's door to it.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use kube::Client;
use testbed::{Bed, Etcd, Process, Proxy};

use crate::{door, record::Writer, timeline::Timeline, versions::Versions};

/// The bed's Kubernetes, and the operator's door to it.
pub(crate) struct Kubernetes {
    bed: Bed,
    /// An admin client that bypasses the door.
    pub(crate) client: Client,
    pub(crate) door: Proxy,
    /// The operator's kubeconfig, which points at the door.
    pub(super) kubeconfig: PathBuf,
    /// The object versions that the operator sees.
    pub(crate) versions: Versions,
}

impl Kubernetes {
    /// The Kubernetes of this bed, whose operator is this writer.
    pub(super) async fn behind_a_door(
        bed: &Bed,
        writer: Writer,
        timeline: &Timeline,
    ) -> Result<Self> {
        let kubernetes = servers(bed)?;
        let versions = Versions::new();
        let door = door::to_kubernetes(kubernetes.url(), writer, timeline, &versions)
            .trusting(kubernetes.authority()?)
            // This certificate is never replaced, so the operator can't tell the door from the API server.
            .showing(&kubernetes.certificate()?)
            .start()
            .await?;
        Ok(Self {
            bed: bed.clone(),
            client: bed.client().clone(),
            kubeconfig: bed.through(&door.url())?,
            door,
            versions,
        })
    }

    /// etcd, which is read directly, past the API server.
    pub(crate) fn etcd(&self) -> Result<&Etcd> {
        Ok(servers(&self.bed)?.etcd())
    }

    /// The API server.
    pub(crate) fn api_server(&self) -> Result<&Process> {
        let [api_server, ..] = servers(&self.bed)?.processes();
        Ok(api_server)
    }

    /// Restarts the API server, and waits until it serves. Its clients are restarted too, and those of other workloads
    /// than Jobs with their webhooks: otherwise they would notice only after a pause of up to a minute, and the load
    /// would be idle until then.
    pub(crate) async fn start_api_server(&self) -> Result<()> {
        let kubernetes = servers(&self.bed)?;
        kubernetes.try_start_again().await?;
        let [_api_server, _etcd, controllers @ ..] = kubernetes.processes();
        for controller in controllers {
            if controller.is_running() {
                controller.end("KILL").await?;
            }
            controller.start_again()?;
        }
        for running in self.bed.controllers() {
            running.kill().await?;
        }
        self.start_controllers().await
    }

    /// Starts the controllers of other workloads than Jobs again, and waits until they and their webhooks are ready.
    pub(crate) async fn start_controllers(&self) -> Result<()> {
        let controllers = self.bed.controllers().iter();
        let starts = controllers.map(|running| running.start_again(&self.bed));
        try_join_all(starts).await.map(drop)
    }
}

fn servers(bed: &Bed) -> Result<&testbed::Kubernetes> {
    bed.kubernetes().context("the bed has no Kubernetes")
}
