//! Consul itself is down, or has lost data.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use tokio::time::sleep;

use super::{Hit, Strike};
use crate::{record::Part, world::access};

pub(super) async fn leader_killed(strike: &mut Strike) -> Result<Hit> {
    let world = strike.world.clone();
    let [leader, ..] = world.consul.leader_first().await?;
    let away = strike.away(Part::Consul);
    strike.begins("SIGKILL");
    leader.end("KILL").await?;
    strike.lasts(4).await;
    // Not after an election: one of the other two may not have caught up after an earlier fault.
    leader.start_again()?;
    world.consul.cluster.try_leader().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn follower_killed(strike: &mut Strike) -> Result<Hit> {
    let world = strike.world.clone();
    let [_, follower, _] = world.consul.leader_first().await?;
    strike.begins("SIGKILL");
    follower.end("KILL").await?;
    strike.lasts(3).await;
    follower.start_again()?;
    Ok(Hit::Yes)
}

pub(super) async fn leader_frozen(strike: &mut Strike) -> Result<Hit> {
    let world = strike.world.clone();
    let [leader, ..] = world.consul.leader_first().await?;
    // All clients that are connected to it wait while it sleeps.
    let away = strike.away(Part::Consul);
    strike.begins("SIGSTOP");
    leader.signal("STOP")?;
    strike.lasts(4).await;
    leader.signal("CONT")?;
    world.consul.cluster.try_leader().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn all_killed(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let world = strike.world.clone();
    let away = strike.away(Part::Consul);
    strike.begins("SIGKILL");
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
pub(super) async fn leaderless(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let world = strike.world.clone();
    let [leader, follower, _] = world.consul.leader_first().await?;
    let away = strike.away(Part::Consul);
    strike.begins("SIGSTOP");
    for server in [leader, follower] {
        server.signal("STOP")?;
    }
    strike.lasts(seconds).await;
    for server in [leader, follower] {
        server.signal("CONT")?;
    }
    world.consul.cluster.try_leader().await?;
    drop(away);
    Ok(Hit::Yes)
}

/// All servers come back empty: locks, contenders, sessions and tokens are lost, and indexes start again from zero.
pub(super) async fn data_lost(strike: &mut Strike) -> Result<Hit> {
    let world = strike.world.clone();
    let away = strike.away(Part::Consul);
    let locks = world.consul.book.close().await?;
    strike.begins("SIGKILL");
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
pub(super) async fn denied(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let world = strike.world.clone();
    let away = strike.away(Part::Consul);
    if strike.rng.bool() {
        strike.begins("its token is deleted");
        access::revoke_token(&world.consul).await?;
    } else {
        strike.begins("its rules are taken away");
        access::take_rules(&world.consul).await?;
    }
    strike.lasts(seconds).await;
    access::grant(&world.consul).await?;
    drop(away);
    Ok(Hit::Yes)
}

/// This destroys all sessions of the operator.
pub(super) async fn node_deregistered(strike: &mut Strike) -> Result<Hit> {
    let sessions = strike.world.consul.reader.json("session/list").await?;
    let mut nodes = sessions.as_array().into_iter().flatten();
    let Some(node) = nodes.find_map(|session| session["Node"].as_str()?.strip_prefix("k8s-"))
    else {
        return Ok(Hit::Nothing);
    };
    let node = format!("k8s-{node}");
    strike.begins(&node);
    let body = json!({ "Node": node }).to_string();
    strike
        .world
        .consul
        .put("catalog/deregister", body)
        .await
        .context("deregistering the node")?;
    Ok(Hit::Yes)
}
