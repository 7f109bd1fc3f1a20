//! Consul is away, or strange.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use tokio::time::sleep;

use super::{Hit, Strike};
use crate::{
    record::Part,
    weather::{Weather, Which},
};

pub(super) async fn leader_killed(strike: &mut Strike) -> Result<Hit> {
    let world = strike.world.clone();
    let leader = &world.consuls[world.leader().await?];
    let away = strike.away(Part::Consul);
    strike.begins("SIGKILL");
    leader.end("KILL").await?;
    strike.lasts(4).await;
    // Not after an election: one of the other two may not have caught up from an earlier fault.
    leader.start().await?;
    world.consul_leads().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn follower_killed(strike: &mut Strike) -> Result<Hit> {
    let world = strike.world.clone();
    let follower = &world.consuls[(world.leader().await? + 1) % world.consuls.len()];
    strike.begins("SIGKILL");
    follower.end("KILL").await?;
    strike.lasts(3).await;
    follower.start().await?;
    Ok(Hit::Yes)
}

pub(super) async fn leader_frozen(strike: &mut Strike) -> Result<Hit> {
    let world = strike.world.clone();
    let leader = &world.consuls[world.leader().await?];
    // Whoever has a connection to it waits as long as it sleeps.
    let away = strike.away(Part::Consul);
    strike.begins("SIGSTOP");
    leader.signal("STOP").await?;
    strike.lasts(4).await;
    leader.signal("CONT").await?;
    world.consul_leads().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn all_killed(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let world = strike.world.clone();
    let away = strike.away(Part::Consul);
    strike.begins("SIGKILL");
    for consul in &world.consuls {
        consul.end("KILL").await?;
    }
    sleep(Duration::from_secs(seconds)).await;
    for consul in &world.consuls {
        consul.start().await?;
    }
    world.consul_leads().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn cut(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let weather = Weather {
        cut: true,
        ..Weather::default()
    };
    during(strike, weather, seconds).await
}

pub(super) async fn slow(strike: &mut Strike) -> Result<Hit> {
    let slow = Duration::from_millis(1500);
    during(
        strike,
        Weather {
            slow,
            ..Weather::default()
        },
        6,
    )
    .await
}

pub(super) async fn answers_lost(strike: &mut Strike) -> Result<Hit> {
    let lose = Some(Which::Transactions);
    during(
        strike,
        Weather {
            lose,
            ..Weather::default()
        },
        4,
    )
    .await
}

pub(super) async fn late(strike: &mut Strike) -> Result<Hit> {
    let keep = Some((Which::Transactions, Duration::from_secs(6)));
    during(
        strike,
        Weather {
            keep,
            ..Weather::default()
        },
        3,
    )
    .await
}

pub(super) async fn refuses(strike: &mut Strike, status: u16) -> Result<Hit> {
    let refuse = Some(status);
    during(
        strike,
        Weather {
            refuse,
            ..Weather::default()
        },
        4,
    )
    .await
}

async fn during(strike: &mut Strike, weather: Weather, seconds: u64) -> Result<Hit> {
    let away = strike.away(Part::Consul);
    let spell = Strike::weather(&strike.world.to_consul, weather);
    strike.begins(format!("{weather:?}"));
    strike.lasts(seconds).await;
    drop(spell);
    drop(away);
    Ok(Hit::Yes)
}

/// Takes all sessions of the operator with it.
pub(super) async fn node_deregistered(strike: &mut Strike) -> Result<Hit> {
    let sessions = strike.world.consul.json("session/list").await?;
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
        .put("catalog/deregister", body)
        .await
        .context("deregistering the node")?;
    Ok(Hit::Yes)
}
