//! Another program changes a semaphore's keys in Consul.

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::{Hit, Strike, until_done};
use crate::{
    load::Kept,
    record::{Body, Part},
    world::{NAMESPACE, World},
};

/// The flags of a semaphore's keys, and of a mutex, as every Consul client writes them.
const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;
const MUTEX_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// A session that holds a slot for a Job, with the Job's uid.
fn some_holder(strike: &mut Strike) -> Result<Option<(String, String)>> {
    let prefix = strike.kept()?.prefix();
    let held = strike.world.timeline.look(|view| view.held_here(&prefix));
    Ok(strike.rng.choice(held))
}

pub(super) async fn session_destroyed(strike: &mut Strike) -> Result<Hit> {
    let Some((session, uid)) = some_holder(strike)? else {
        return Ok(Hit::Nothing);
    };
    strike.begins(format!("{session} of {uid}"));
    strike
        .world
        .consul
        .put(&format!("session/destroy/{session}"), "")
        .await?;
    Ok(Hit::Yes)
}

pub(super) async fn contender_deleted(strike: &mut Strike) -> Result<Hit> {
    let prefix = strike.kept()?.prefix();
    let Some((session, uid)) = some_holder(strike)? else {
        return Ok(Hit::Nothing);
    };
    strike.begins(format!("{session} of {uid}"));
    let path = format!("kv/{prefix}/{session}");
    strike.world.consul.delete(&path).await?;
    Ok(Hit::Yes)
}

/// Unlocks a contender key, while its session stays alive.
pub(super) async fn contender_released(strike: &mut Strike) -> Result<Hit> {
    let prefix = strike.kept()?.prefix();
    let Some((session, uid)) = some_holder(strike)? else {
        return Ok(Hit::Nothing);
    };
    strike.begins(format!("{session} of {uid}"));
    let path = format!("kv/{prefix}/{session}?release={session}");
    strike.world.consul.put(&path, "").await?;
    Ok(Hit::Yes)
}

pub(super) async fn holder_removed(strike: &mut Strike) -> Result<Hit> {
    let Some((session, uid)) = some_holder(strike)? else {
        return Ok(Hit::Nothing);
    };
    let prefix = strike.kept()?.prefix();
    let (body, _) = strike.world.consul.reader.lock(&prefix, None).await?;
    let Body::Semaphore {
        index,
        limit,
        mut holders,
    } = body
    else {
        return Ok(Hit::Nothing);
    };
    if !holders.remove(&session) || !write(&strike.world, &prefix, index, limit, holders).await? {
        return Ok(Hit::Nothing);
    }
    strike.begins(format!("{session} of {uid}"));
    Ok(Hit::Yes)
}

pub(super) async fn deleted(strike: &mut Strike) -> Result<Hit> {
    let prefix = strike.kept()?.prefix();
    strike.begins("");
    strike
        .world
        .consul
        .delete(&format!("kv/{prefix}/.lock"))
        .await?;
    Ok(Hit::Yes)
}

pub(super) async fn garbage(strike: &mut Strike) -> Result<Hit> {
    let path = format!("kv/{}/.lock", strike.kept()?.prefix());
    let away = strike.away(Part::Grants(strike.kept()?.prefix()));
    strike.begins("");
    let flagged = format!("{path}?flags={SEMAPHORE_FLAGS}");
    strike.world.consul.put(&flagged, "{\"Limit\":").await?;
    strike.lasts(3).await;
    let world = strike.world.clone();
    until_done("the garbage is gone", || async {
        Ok(world.consul.delete(&path).await? == true)
    })
    .await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn limit_changed(strike: &mut Strike) -> Result<Hit> {
    let kept = strike.kept()?;
    let prefix = kept.prefix();
    let (body, _) = strike.world.consul.reader.lock(&prefix, None).await?;
    let Body::Semaphore {
        index,
        limit,
        holders,
    } = body
    else {
        return Ok(Hit::Nothing);
    };
    let away = strike.away(Part::Grants(prefix.clone()));
    if !write(&strike.world, &prefix, index, limit + 1, holders).await? {
        return Ok(Hit::Nothing);
    }
    strike.begins(format!("{limit} to {}", limit + 1));
    strike.lasts(3).await;
    limit_is_right(&strike.world, kept).await?;
    drop(away);
    Ok(Hit::Yes)
}

/// Waits until a `.lock` has the semaphore's limit again. Where another limit is left, it writes the right one,
/// because the operator takes the other one for a conflict.
async fn limit_is_right(world: &World, kept: &Kept) -> Result<()> {
    let prefix = kept.prefix();
    until_done("the limit is what it was", || async {
        match world.consul.reader.lock(&prefix, None).await?.0 {
            Body::Semaphore {
                index,
                limit,
                holders,
            } if limit != kept.limit => write(world, &prefix, index, kept.limit, holders).await,
            _ => Ok(true),
        }
    })
    .await
}

/// Recreates a deleted semaphore, and waits until its limit is right: a limit that was changed just before the
/// deletion looks like a conflict to the new one.
pub(super) async fn is_made_again(world: &World, kept: &Kept) -> Result<()> {
    until_done("the semaphore is there again", || async {
        match kept.create(world, NAMESPACE).await {
            Ok(()) => Ok(true),
            Err(error) if error.to_string().contains("already exists") => Ok(true),
            Err(error) => Err(error),
        }
    })
    .await?;
    limit_is_right(world, kept).await
}

/// As `consul lock -n 1` on the same prefix would do without its check.
pub(super) async fn mutex(strike: &mut Strike) -> Result<Hit> {
    let prefix = strike.kept()?.prefix();
    let world = strike.world.clone();
    let session = json!({ "TTL": "1h", "Behavior": "delete", "LockDelay": "0s" }).to_string();
    let created = world.consul.put("session/create", session).await?;
    let session = created["ID"].as_str().context("no session")?.to_owned();
    let away = strike.away(Part::Grants(prefix.clone()));
    strike.begins("");
    let path = format!("kv/{prefix}/.lock?acquire={session}&flags={MUTEX_FLAGS}");
    world.consul.put(&path, "").await?;
    strike.lasts(3).await;
    let path = format!("kv/{prefix}/.lock");
    until_done("the mutex is gone", || async {
        Ok(world.consul.delete(&path).await? == true)
    })
    .await?;
    until_done("its session is gone", || async {
        Ok(world
            .consul
            .put(&format!("session/destroy/{session}"), "")
            .await?
            == true)
    })
    .await?;
    drop(away);
    Ok(Hit::Yes)
}

/// The session of the killed program stays until it expires.
pub(super) fn foreigner_killed(strike: &mut Strike) -> Result<Hit> {
    let holding = strike.load.holding(&strike.kept()?.prefix());
    let Some(foreigner) = strike.rng.choice(holding) else {
        return Ok(Hit::Nothing);
    };
    strike.begins("SIGKILL");
    // It may just have ended on its own.
    let _ended = foreigner.server.signal("KILL");
    Ok(Hit::Yes)
}

/// Writes a `.lock` unless it has changed since `index`. Returns whether it was written.
async fn write(
    world: &World,
    prefix: &str,
    index: u64,
    limit: u64,
    holders: std::collections::BTreeSet<String>,
) -> Result<bool> {
    let holders: Map<String, Value> = holders.into_iter().map(|id| (id, true.into())).collect();
    let path = format!("kv/{prefix}/.lock?cas={index}&flags={SEMAPHORE_FLAGS}");
    let body = json!({ "Limit": limit, "Holders": holders }).to_string();
    Ok(world.consul.put(&path, body).await? == true)
}
