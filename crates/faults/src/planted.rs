//! The proof that comes first: deliberate violations of a millisecond are caught.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::{
    judge::{Rule, Verdict, judge},
    observer::{Observer, POD_LABEL, prefix_of},
    record::{Record, Semaphore, What, Writer},
    world::{CALL, NAMESPACE, World},
};

/// A semaphore that nobody else uses.
const NAME: &str = "planted";

/// Plants one holder too many and a pod without a slot, each for as short as possible, and returns a summary of how
/// they were reported. Anything but exactly these two violations is an error.
pub(crate) async fn prove(world: &World) -> Result<String> {
    let prefix = prefix_of(NAMESPACE, NAME);
    let (earlier, _) = world.timeline.records();
    let _watches = (
        Observer::of_lock(&world.consul.reader, &prefix, &world.timeline),
        Observer::of_kubernetes(&world.kubernetes.client, &world.timeline),
    );
    over_limit(world, &prefix)
        .await
        .context("planting a holder")?;
    without_slot(world).await.context("planting a pod")?;
    let mut verdict = Verdict::default();
    for _ in 0..600 {
        verdict = verdict_on(world, &prefix, earlier.len());
        if verdict.count(Rule::OverLimit) > 0 && verdict.count(Rule::WithoutSlot) > 0 {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    let rules: Vec<_> = verdict
        .violations
        .iter()
        .map(|violation| violation.rule)
        .collect();
    if rules.len() != 2 || !rules.contains(&Rule::OverLimit) || !rules.contains(&Rule::WithoutSlot)
    {
        bail!(
            "the judge does not see what was planted: {:?}",
            verdict.violations
        );
    }
    let (records, _) = world.timeline.records();
    Ok(lives(&records[earlier.len()..]))
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
    let opening = [What::Bed { seed: 0, faults: 0 }, What::Semaphore(semaphore)];
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
        "a second holder at a limit of 1 for {:.1} ms and a pod without a slot for {:.1} ms",
        life(locks.get(1..).unwrap_or_default()),
        life(&pods)
    )
}
