//! A copy of the cluster: another API server on a copy of etcd's data, with its own operator and the same Consul.

use anyhow::{Context as _, Result};
use kube::api::ListParams;
use testbed::{Bed, Operator, Proxy};
use tokio::time::timeout;

use super::{CALL, NAMESPACE, World, access, kubernetes::Kubernetes, operators::flags};
use crate::{load::semaphores, record::Writer};

/// A copy of the cluster, as a restored backup is one: it has the identity of the original. Its operator, which does not
/// run at first, has doors of its own, so that all that it writes is known to be the copy's.
pub(crate) struct Copy {
    pub(crate) operator: Operator,
    kubernetes: Kubernetes,
    _consul: Proxy,
    bed: Bed,
}

impl Copy {
    /// Copies what etcd has now. The pods of copied Jobs run on in the copy.
    pub(crate) async fn of(world: &World) -> Result<Self> {
        let bed = Bed::builder().copy_of(&world.bed).without_operator();
        let bed = bed.try_start().await?;
        let kubernetes = Kubernetes::behind_a_door(&bed, Writer::Copy, &world.timeline).await?;
        let (consul, _) = world.consul.open(Writer::Copy, &world.timeline).await?;
        let env = [
            ("KUBECONFIG", kubernetes.kubeconfig.display().to_string()),
            ("CONSUL_HTTP_ADDR", consul.url()),
            ("CONSUL_HTTP_TOKEN", access::OPERATOR.secret.to_owned()),
        ];
        let operator = bed.another_operator("copy", flags(world.kinds, "kubernetes"), env);
        Ok(Self {
            operator,
            kubernetes,
            _consul: consul,
            bed,
        })
    }

    /// Whether every `ConsulSemaphore` of the copy says that another API server uses its identity.
    pub(crate) async fn is_in_conflict(&self) -> Result<bool> {
        let api = semaphores(&self.kubernetes.client, NAMESPACE);
        let listed = timeout(CALL, api.list(&ListParams::default())).await??;
        let mut there = listed
            .iter()
            .filter(|semaphore| semaphore.metadata.deletion_timestamp.is_none())
            .peekable();
        there.peek().context("the copy has no semaphores")?;
        Ok(there.all(|semaphore| {
            let conditions = semaphore.data["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|condition| {
                condition["type"] == "Ready" && condition["reason"] == "IdentityConflict"
            })
        }))
    }

    /// Ends everything that belongs to it.
    pub(crate) async fn end(self) -> Result<()> {
        let Self {
            operator,
            kubernetes,
            _consul,
            bed,
        } = self;
        operator.end("KILL").await?;
        drop((operator, kubernetes));
        bed.end().await.context("ending the copy")
    }
}
