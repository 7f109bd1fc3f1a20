//! The proof that comes first: deliberate violations of a millisecond are caught.

use std::{fmt::Write as _, time::Duration};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use testbed::until;
use tokio::time::{sleep, timeout};

use crate::{
    judge::{Rule, Verdict, judge},
    load::Life,
    observer::{Observer, POD_LABEL, SEMAPHORE, prefix_of},
    record::{Record, Semaphore, What, WorkloadKind, Writer},
    workloads::api,
    world::{CALL, NAMESPACE, PATIENCE, World},
};

/// A semaphore that nobody else uses.
const NAME: &str = "planted";

/// Plants one holder too many, a slot that a copy of the cluster frees, and a pod without a slot, each for as short as
/// possible, and one workload of each other
/// kind that runs without a slot, and returns a summary of how they were reported. Anything but exactly these violations
/// is an error.
pub(crate) async fn prove(world: &World) -> Result<String> {
    let prefix = prefix_of(NAMESPACE, NAME);
    let (earlier, _) = world.timeline.records();
    let _watches = (
        Observer::of_lock(&world.consul.reader, &prefix, &world.timeline),
        Observer::of_kubernetes(&world.kubernetes.client, world.kinds, &world.timeline),
    );
    over_limit(world, &prefix)
        .await
        .context("planting a holder")?;
    by_a_copy(world, &prefix)
        .await
        .context("planting a write of a copy")?;
    without_slot(world).await.context("planting a pod")?;
    let mut lives = lives(&world.timeline.records().0[earlier.len()..]);
    for kind in world.kinds {
        if *kind != WorkloadKind::Job {
            workload_without_slot(world, *kind)
                .await
                .with_context(|| format!("planting a {kind:?}"))?;
            // Writing to a text can't fail.
            let _ = write!(lives, ", and a {kind:?}");
        }
    }
    let mut verdict = Verdict::default();
    let mut is_complete = false;
    for _ in 0..600 {
        verdict = verdict_on(world, &prefix, earlier.len());
        let rules = [Rule::OverLimit, Rule::CopyActs, Rule::WithoutSlot];
        is_complete = rules.map(|rule| verdict.count(rule)) == [1, 1, world.kinds.len()];
        if is_complete {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    if !is_complete || verdict.violations.len() != 2 + world.kinds.len() {
        bail!(
            "the judge does not see what was planted: {:?}",
            verdict.violations
        );
    }
    Ok(lives)
}

/// Adds one holder too many through the operator's kind of door, and removes it at once.
async fn over_limit(world: &World, prefix: &str) -> Result<()> {
    let (_door, consul) = world.consul.open(Writer::Operator, &world.timeline).await?;
    for body in [
        json!({ "Limit": 1, "Holders": { "a": true } }),
        json!({ "Limit": 1, "Holders": { "a": true, "b": true } }),
        json!({ "Limit": 1, "Holders": { "a": true } }),
    ] {
        let path = format!("kv/{prefix}/.lock");
        consul.try_put(&path, body).await?;
    }
    Ok(())
}

/// Frees a slot through the copy's kind of door.
async fn by_a_copy(world: &World, prefix: &str) -> Result<()> {
    let (_door, consul) = world.consul.open(Writer::Copy, &world.timeline).await?;
    let path = format!("kv/{prefix}/.lock");
    consul
        .try_put(&path, json!({ "Limit": 1, "Holders": {} }))
        .await?;
    Ok(())
}

/// Creates a pod that looks like one of a Job's, and deletes it at once.
async fn without_slot(world: &World) -> Result<()> {
    let pods = Api::<Pod>::namespaced(world.kubernetes.client.clone(), NAMESPACE);
    let pod = serde_json::from_value(json!({
        "metadata": {
            "name": NAME,
            "labels": { POD_LABEL: NAME, "batch.kubernetes.io/controller-uid": NAME },
        },
        "spec": { "containers": [{ "name": "work", "image": "none" }] },
    }))?;
    timeout(CALL, pods.create(&PostParams::default(), &pod)).await??;
    let at_once = DeleteParams::default().grace_period(0);
    timeout(CALL, pods.delete(NAME, &at_once)).await??;
    Ok(())
}

/// Creates a workload that names no semaphore, so nothing holds it, with the label by which its pods count here. It is
/// deleted when it has a pod.
async fn workload_without_slot(world: &World, kind: WorkloadKind) -> Result<()> {
    let life = Life {
        kind,
        runs_ms: 60_000,
        terminates_ms: 0,
        fails: false,
        pods: 1,
        ends_by: None,
        child_asks: false,
    };
    let mut object = kind.describe(NAME, NAME, &life);
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove(SEMAPHORE);
    }
    let (api, object) = (api(world, kind, NAMESPACE), serde_json::from_value(object)?);
    let made = timeout(CALL, api.create(&PostParams::default(), &object)).await??;
    let uid = made.metadata.uid.context("an object without a uid")?;
    until("it has a pod", PATIENCE, || async {
        let runs = world.timeline.look(|view| view.pods.contains_key(&uid));
        runs.then_some(()).context("it has none")
    })
    .await?;
    timeout(CALL, api.delete(NAME, &DeleteParams::background())).await??;
    until("its pod is gone", PATIENCE, || async {
        let runs = world.timeline.look(|view| view.pods.contains_key(&uid));
        (!runs).then_some(()).context("it runs")
    })
    .await
}

fn verdict_on(world: &World, prefix: &str, from: usize) -> Verdict {
    let (records, _) = world.timeline.records();
    let semaphore = Semaphore {
        prefix: prefix.to_owned(),
        limit: 1,
        ttl: Some(10.0),
        lock_delay: 0.0,
        goes_on: false,
        period: None,
    };
    let bed = What::Bed {
        seed: 0,
        faults: 0,
        workloads: false,
    };
    let opening = [bed, What::Semaphore(semaphore)];
    let mut bed: Vec<_> = opening.map(|what| Record { t: 0.0, what }).into();
    bed.extend_from_slice(&records[from..]);
    judge(&bed, f64::MAX)
}

/// How long the planted violations lasted.
fn lives(records: &[Record]) -> String {
    let locks: Vec<_> = records
        .iter()
        .filter(|record| matches!(record.what, What::Lock { .. }))
        .map(|record| record.t)
        .collect();
    let pods: Vec<_> = records
        .iter()
        .filter(|record| matches!(record.what, What::Pod { .. }))
        .map(|record| record.t)
        .collect();
    let life = |times: &[f64]| match times {
        [first, .., last] => (last - first) * 1000.0,
        _ => 0.0,
    };
    format!(
        "a second holder at a limit of 1 for {:.1} ms, a slot that a copy freed, and a pod without a slot for {:.1} ms",
        life(locks.get(1..3).unwrap_or_default()),
        life(&pods)
    )
}
