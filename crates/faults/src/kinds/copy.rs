//! A copy of the cluster comes up beside it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use testbed::until;

use super::{ActiveFault, Hit, operator, until_done};
use crate::world::{Copy, PATIENCE, World};

/// Where the operators of all clusters have their marks in Consul.
const MARKS: &str = "kv/service/consul-semaphore-operator/?recurse&consistent";

/// How long the operator of the copy may take to say that its identity is in use.
const SAID: Duration = Duration::from_mins(1);

/// An API server on a copy of etcd's data, with an operator of the same identity and at the same Consul. The original
/// keeps the identity, and goes on as if the copy were not there, so nothing counts as down but the original's operator,
/// which is restarted beside the copy.
pub(super) async fn copied(fault: &mut ActiveFault) -> Result<Hit> {
    let world = fault.world.clone();
    fault.begins("all that etcd has");
    let copy = Copy::of(&world).await?;
    // A version that was in the Lease when etcd was copied is in Consul by now.
    let copied = until("there is a mark", PATIENCE, || mark(&world)).await?;
    if fault.rng.bool() {
        operator::restart(fault).await?;
    }
    // With one that it knows, the copy passes for the original, as docs/operations.md says.
    until_done("the mark is written anew", || async {
        Ok(mark(&world).await? > copied)
    })
    .await?;
    copy.operator.try_start().await?;
    until("the copy is in conflict", SAID, || async {
        copy.is_in_conflict()
            .await?
            .then_some(())
            .context("not yet")
    })
    .await?;
    fault.lasts(12).await;
    operator::restart(fault).await?;
    fault.lasts(12).await;
    copy.end().await?;
    Ok(Hit::Yes)
}

/// The `ModifyIndex` of the original's mark, which a session keeps.
async fn mark(world: &World) -> Result<u64> {
    let marks = world.consul.reader.json(MARKS).await?;
    let marks = marks.as_array().into_iter().flatten();
    let kept = marks.filter(|mark| mark["Session"].is_string());
    let indexes = kept.filter_map(|mark| mark["ModifyIndex"].as_u64());
    indexes.max().context("no session keeps a mark")
}
