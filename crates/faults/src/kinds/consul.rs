//! Consul itself is down, or has lost data.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use tokio::time::sleep;

use super::{ActiveFault, Hit};
use crate::{record::Part, world::access};

pub(super) async fn leader_killed(fault: &mut ActiveFault) -> Result<Hit> {
    let world = fault.world.clone();
    let [leader, ..] = world.consul.leader_first().await?;
    let away = fault.away(Part::Consul);
    fault.begins("SIGKILL");
    leader.end("KILL").await?;
    fault.lasts(4).await;
    // Not after an election: one of the other two may not have caught up after an earlier fault.
    leader.start_again()?;
    world.consul.cluster.try_leader().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn follower_killed(fault: &mut ActiveFault) -> Result<Hit> {
    let world = fault.world.clone();
    let [_, follower, _] = world.consul.leader_first().await?;
    fault.begins("SIGKILL");
    follower.end("KILL").await?;
    fault.lasts(3).await;
    follower.start_again()?;
    Ok(Hit::Yes)
}

pub(super) async fn leader_frozen(fault: &mut ActiveFault) -> Result<Hit> {
    let world = fault.world.clone();
    let [leader, ..] = world.consul.leader_first().await?;
    // All clients that are connected to it wait while it sleeps.
    let away = fault.away(Part::Consul);
    fault.begins("SIGSTOP");
    leader.signal("STOP")?;
    fault.lasts(4).await;
    leader.signal("CONT")?;
    world.consul.cluster.try_leader().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn all_killed(fault: &mut ActiveFault, seconds: u64) -> Result<Hit> {
    let world = fault.world.clone();
    let away = fault.away(Part::Consul);
    fault.begins("SIGKILL");
    for consul in world.consul.cluster.servers() {
        consul.process().end("KILL").await?;
    }
    sleep(Duration::from_secs(seconds)).await;
    for consul in world.consul.cluster.servers() {
        consul.process().start_again()?;
    }
    world.consul.cluster.try_leader().await?;
    drop(away);
    Ok(Hit::Yes)
}

/// Two of three servers are frozen: the third can't lead.
pub(super) async fn leaderless(fault: &mut ActiveFault, seconds: u64) -> Result<Hit> {
    let world = fault.world.clone();
    let [leader, follower, _] = world.consul.leader_first().await?;
    let away = fault.away(Part::Consul);
    fault.begins("SIGSTOP");
    for server in [leader, follower] {
        server.signal("STOP")?;
    }
    fault.lasts(seconds).await;
    for server in [leader, follower] {
        server.signal("CONT")?;
    }
    world.consul.cluster.try_leader().await?;
    drop(away);
    Ok(Hit::Yes)
}

/// All servers come back empty: locks, contenders, sessions and tokens are lost, and indexes start again from zero.
pub(super) async fn data_lost(fault: &mut ActiveFault) -> Result<Hit> {
    let world = fault.world.clone();
    let away = fault.away(Part::Consul);
    let locks = world.consul.book.close().await?;
    fault.begins("SIGKILL");
    for consul in world.consul.cluster.servers() {
        consul.process().end("KILL").await?;
    }
    for number in 0..world.consul.cluster.servers().len() {
        world.consul.cluster.try_forget(number)?;
    }
    for consul in world.consul.cluster.servers() {
        consul.process().start_again()?;
    }
    world.consul.cluster.try_leader().await?;
    world.consul.book.open(locks).await?;
    access::grant(&world.consul).await?;
    drop(away);
    Ok(Hit::Yes)
}

/// Consul denies the operator everything, for one of two reasons.
pub(super) async fn denied(fault: &mut ActiveFault, seconds: u64) -> Result<Hit> {
    let world = fault.world.clone();
    let away = fault.away(Part::Consul);
    if fault.rng.bool() {
        fault.begins("its token is deleted");
        access::revoke_token(&world.consul).await?;
    } else {
        fault.begins("its rules are taken away");
        access::take_rules(&world.consul).await?;
    }
    fault.lasts(seconds).await;
    access::grant(&world.consul).await?;
    drop(away);
    Ok(Hit::Yes)
}

/// This destroys all sessions of the operator.
pub(super) async fn node_deregistered(fault: &mut ActiveFault) -> Result<Hit> {
    let sessions = fault.world.consul.reader.json("session/list").await?;
    let mut nodes = sessions.as_array().into_iter().flatten();
    let Some(node) = nodes.find_map(|session| session["Node"].as_str()?.strip_prefix("k8s-"))
    else {
        return Ok(Hit::Nothing);
    };
    let node = format!("k8s-{node}");
    fault.begins(&node);
    let body = json!({ "Node": node }).to_string();
    fault
        .world
        .consul
        .put("catalog/deregister", body)
        .await
        .context("deregistering the node")?;
    Ok(Hit::Yes)
}
