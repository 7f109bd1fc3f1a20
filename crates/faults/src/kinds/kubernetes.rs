//! The API server itself is down or restored.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use tokio::time::{sleep, timeout};

use super::{ActiveFault, Hit, connection, until_done};
use crate::{record::Part, world::CALL};

/// The binding that gives the operator its rights.
const BINDING: &str = "consul-semaphore-operator";

pub(super) async fn killed(fault: &mut ActiveFault, seconds: u64) -> Result<Hit> {
    let away = fault.away(Part::Api);
    fault.begins("SIGKILL");
    fault.world.kubernetes.api_server()?.end("KILL").await?;
    sleep(Duration::from_secs(seconds)).await;
    fault.world.kubernetes.start_api_server().await?;
    drop(away);
    Ok(Hit::Yes)
}

/// The controllers of other workloads than Jobs die, and their webhooks with them: nothing can be written to those.
pub(super) async fn controllers_killed(fault: &mut ActiveFault) -> Result<Hit> {
    let away = fault.away(Part::Api);
    fault.begins("SIGKILL");
    for running in fault.world.bed.controllers() {
        running.kill().await?;
    }
    fault.lasts(4).await;
    fault.world.kubernetes.start_controllers().await?;
    drop(away);
    Ok(Hit::Yes)
}

/// Watches that are interrupted now can't resume where they were.
pub(super) async fn compacted(fault: &mut ActiveFault) -> Result<Hit> {
    fault.world.kubernetes.etcd()?.compact().await?;
    connection::cut(fault, connection::To::Api, 1).await
}

/// Objects get lower versions than before, as after a restore of etcd from a backup.
pub(super) async fn restored(fault: &mut ActiveFault) -> Result<Hit> {
    fault.world.kubernetes.versions.go_back();
    connection::cut(fault, connection::To::Api, 1).await
}

/// The operator has no rights at all.
pub(super) async fn rbac(fault: &mut ActiveFault) -> Result<Hit> {
    let bindings = Api::<ClusterRoleBinding>::all(fault.world.kubernetes.client.clone());
    let mut binding = timeout(CALL, bindings.get(BINDING)).await??;
    binding.metadata.resource_version = None;
    binding.metadata.uid = None;
    let away = fault.away(Part::Api);
    fault.begins(BINDING);
    timeout(CALL, bindings.delete(BINDING, &DeleteParams::default())).await??;
    fault.lasts(4).await;
    until_done("the binding is there again", || async {
        match timeout(CALL, bindings.create(&PostParams::default(), &binding)).await? {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(true),
            Err(error) => Err(error.into()),
        }
    })
    .await?;
    drop(away);
    Ok(Hit::Yes)
}
