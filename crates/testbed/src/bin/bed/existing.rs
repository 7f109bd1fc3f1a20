//! The demo on a Kubernetes and a Consul that are there already. It takes away all that it makes there, however it
//! ends, and begins only where nothing of that exists: so nothing of others is taken away.
use anyhow::{Context as _, Result, anyhow, bail, ensure};
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
    tokio::select! {
        free = is_free(existing) => free?,
        why = &mut asked => bail!("{why}, before anything was made"),
    }
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
        taken = take_away(existing, bed) => taken,
        why = again => Err(anyhow!(why)),
    };
    taken.with_context(|| {
        format!(
            "something may be left. These take it away:\n  kubectl {}\n",
            TAKE_AWAY.join("\n  kubectl ")
        )
    })?;
    println!("Nothing of it is left. README.md says how to install the operator there.");
    shown
}

/// Whether nothing is there of what the demo makes and takes away.
async fn is_free(existing: &Existing) -> Result<()> {
    let mut found = String::new();
    for command in FIND {
        found += &existing.kubectl(command.split(' ')).await?;
    }
    ensure!(
        found.is_empty(),
        "the demo makes these and takes them away again, but the cluster has them already:\n{found}"
    );
    let keys = existing.consul()?.try_list(&format!("{PREFIX}/")).await;
    let keys = keys.context("asking Consul")?;
    ensure!(
        keys.is_empty(),
        "there are keys below {PREFIX}/ in Consul: another cluster may use this semaphore"
    );
    Ok(())
}

async fn take_away(existing: &Existing, bed: Option<Bed>) -> Result<()> {
    let [semaphore, installed @ ..] = TAKE_AWAY;
    existing.kubectl(semaphore.split(' ')).await?;
    if let Some(bed) = bed {
        bed.end().await?;
    }
    for command in installed {
        existing.kubectl(command.split(' ')).await?;
    }
    let keys = existing.consul()?.try_list(&format!("{PREFIX}/")).await?;
    ensure!(keys.is_empty(), "there are keys below {PREFIX}/ in Consul");
    Ok(())
}
