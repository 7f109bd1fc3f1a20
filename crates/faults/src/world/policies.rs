//! What the operator needs where there are other workloads than Jobs: its rights, and the admission policies of all.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::{
    Api,
    api::{DynamicObject, PostParams},
};
use testbed::{Bed, until};
use tokio::time::timeout;

use super::CALL;
use crate::{load::Life, record::WorkloadKind};

/// As users have them.
const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config");

/// How long the API server may take to put policies into force.
const PATIENCE: Duration = Duration::from_mins(2);

/// Installs what these kinds need, and waits until what is created is held. Jobs alone need none of it.
pub(super) async fn install(bed: &Bed, kinds: &[WorkloadKind]) -> Result<()> {
    if kinds == [WorkloadKind::Job] {
        return Ok(());
    }
    for kind in kinds {
        let plural = kind.resource().plural;
        let (flag, place) = match kind {
            WorkloadKind::Job => ("-k", format!("{CONFIG}/policies")),
            _ => ("-f", format!("{CONFIG}/workloads/{plural}/{plural}.yaml")),
        };
        bed.try_kubectl(["apply", flag, &place]).await?;
        until(&format!("{plural} are held"), PATIENCE, || {
            is_held(bed, *kind)
        })
        .await?;
    }
    Ok(())
}

async fn is_held(bed: &Bed, kind: WorkloadKind) -> Result<()> {
    let api =
        Api::<DynamicObject>::namespaced_with(bed.client().clone(), "default", &kind.resource());
    let life = Life {
        kind,
        runs_ms: 0,
        terminates_ms: 0,
        fails: false,
        pods: 1,
        ends_by: None,
        child_asks: false,
    };
    let mut probe = kind.describe("probe", "probe", &life);
    // The load's own Jobs are described held.
    if let Some(suspend) = probe["spec"].get_mut("suspend") {
        *suspend = false.into();
    }
    let probe = serde_json::from_value(probe)?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let made = timeout(CALL, api.create(&dry_run, &probe)).await??;
    let spec = &made.data["spec"];
    let held = spec["suspend"] == true || spec["status"] == "PipelineRunPending";
    held.then_some(()).context("it would run")
}
