//! The demo on a Kubernetes and a Consul that are there already. It takes away all that it makes there, also when
//! it fails or is broken off, and begins only where nothing of that exists: so nothing of others is taken away.
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::json;
use testbed::{Bed, Existing};

use crate::{
    demo::{self, PREFIX},
    dev::asked_to_end,
};

/// The commands that take all away from Kubernetes, in this order. While the namespace goes, the operator runs: it is
/// the operator that takes the semaphore out of Consul.
const TAKE_AWAY: [&str; 4] = [
    "delete namespace demo --ignore-not-found --timeout=2m",
    "delete -k config/rbac --ignore-not-found --timeout=1m",
    "delete -k crds --ignore-not-found --timeout=1m",
    "delete namespace consul-semaphore-system --ignore-not-found --timeout=1m",
];

/// The commands that show what of that exists.
const FIND: [&str; 3] = [
    "get -k crds --ignore-not-found -o name",
    "get -k config/rbac --ignore-not-found -o name",
    "get namespace demo consul-semaphore-system --ignore-not-found -o name",
];

/// Runs the demo there. Ctrl-C, SIGTERM and SIGHUP break it off, and all is taken away then, too.
pub(crate) async fn run(existing: &Existing) -> Result<()> {
    let asked = asked_to_end()?;
    tokio::pin!(asked);
    let node = tokio::select! {
        free = is_free(existing) => free?,
        why = &mut asked => bail!("{why}, before anything was made"),
    };
    println!("Installing the operator's CRD and rights, and starting it on this machine ...");
    let started = tokio::select! {
        started = Bed::builder().try_start() => started,
        why = &mut asked => Err(anyhow!(why)),
    };
    let (bed, shown) = match started {
        Ok(bed) => {
            let shown = tokio::select! {
                shown = demo::show(&bed) => shown,
                why = &mut asked => Err(anyhow!(why)),
            };
            (Some(bed), shown)
        }
        Err(error) => (None, Err(error)),
    };

    if let Err(why) = &shown {
        println!("\nThe demo ends early: {why:#}.");
    }
    println!("\nTaking away what was made; Ctrl-C leaves the rest there ...");
    let again = asked_to_end()?;
    let taken = tokio::select! {
        taken = take_away(existing, bed, &node) => taken,
        why = again => Err(anyhow!(why)),
    };
    taken.with_context(|| {
        format!(
            "something may be left. In this folder, with the same KUBECONFIG, these take it away:\n  kubectl {}\n  {}\n",
            TAKE_AWAY.join("\n  kubectl "),
            deregister(&node)
        )
    })?;
    println!("Nothing of it is left. README.md says how to install the operator there.");
    shown
}

/// Makes sure that nothing is there of what the demo makes and takes away. Returns the name of the node that the operator
/// registers in Consul for this cluster.
async fn is_free(existing: &Existing) -> Result<String> {
    let mut found = String::new();
    for command in FIND {
        found += &existing.kubectl(command.split(' ')).await?;
    }
    ensure!(
        found.is_empty(),
        "the demo makes these and takes them away again, but the cluster has them already:\n{found}"
    );
    let consul = existing.consul()?;
    let keys = consul.try_list(&format!("{PREFIX}/")).await;
    let keys = keys.context("asking Consul")?;
    ensure!(
        keys.is_empty(),
        "there are keys below {PREFIX}/ in Consul: another cluster may use this semaphore"
    );
    let id = "get namespace kube-system -o jsonpath={.metadata.uid}";
    let node = format!("k8s-{}", existing.kubectl(id.split(' ')).await?.trim());
    let registered = consul.try_get(&format!("catalog/node/{node}")).await?;
    ensure!(
        registered.is_null(),
        "Consul has a node of an operator that was in this cluster. If it is not there any more, this takes it away:\n  {}",
        deregister(&node)
    );
    Ok(node)
}

/// A command that takes the operator's node out of Consul, with its sessions and the key that they hold for the
/// identity of the cluster. That key would keep the next operator waiting for minutes.
fn deregister(node: &str) -> String {
    let body = json!({ "Node": node });
    format!("curl -X PUT --data '{body}' $CONSUL_HTTP_ADDR/v1/catalog/deregister")
}

async fn take_away(existing: &Existing, bed: Option<Bed>, node: &str) -> Result<()> {
    let [semaphore, installed @ ..] = TAKE_AWAY;
    existing.kubectl(semaphore.split(' ')).await?;
    if let Some(bed) = bed {
        bed.end().await?;
    }
    for command in installed {
        existing.kubectl(command.split(' ')).await?;
    }
    let consul = existing.consul()?;
    let node = json!({ "Node": node });
    consul.try_put("catalog/deregister", node).await?;
    let keys = consul.try_list(&format!("{PREFIX}/")).await?;
    ensure!(keys.is_empty(), "there are keys below {PREFIX}/ in Consul");
    Ok(())
}
