//! Another program changes a semaphore's keys in Consul.

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::{ActiveFault, Hit, until_done};
use crate::{
    load::LoadSemaphore,
    record::{Body, Part},
    world::{NAMESPACE, World},
};

/// The flags of a semaphore's keys, and of a mutex, as every Consul client writes them.
const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;
const MUTEX_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// A session that holds a slot for a Job, with the Job's uid.
fn some_holder(fault: &mut ActiveFault) -> Result<Option<(String, String)>> {
    let prefix = fault.semaphore()?.prefix();
    let held = fault.world.timeline.look(|view| view.held_here(&prefix));
    Ok(fault.rng.choice(held))
}

pub(super) async fn session_destroyed(fault: &mut ActiveFault) -> Result<Hit> {
    let Some((session, uid)) = some_holder(fault)? else {
        return Ok(Hit::Nothing);
    };
    fault.begins(format!("{session} of {uid}"));
    fault
        .world
        .consul
        .put(&format!("session/destroy/{session}"), "")
        .await?;
    Ok(Hit::Yes)
}

pub(super) async fn contender_deleted(fault: &mut ActiveFault) -> Result<Hit> {
    let prefix = fault.semaphore()?.prefix();
    let Some((session, uid)) = some_holder(fault)? else {
        return Ok(Hit::Nothing);
    };
    fault.begins(format!("{session} of {uid}"));
    let path = format!("kv/{prefix}/{session}");
    fault.world.consul.delete(&path).await?;
    Ok(Hit::Yes)
}

/// Unlocks a contender key, while its session stays alive.
pub(super) async fn contender_released(fault: &mut ActiveFault) -> Result<Hit> {
    let prefix = fault.semaphore()?.prefix();
    let Some((session, uid)) = some_holder(fault)? else {
        return Ok(Hit::Nothing);
    };
    fault.begins(format!("{session} of {uid}"));
    let path = format!("kv/{prefix}/{session}?release={session}");
    fault.world.consul.put(&path, "").await?;
    Ok(Hit::Yes)
}

pub(super) async fn holder_removed(fault: &mut ActiveFault) -> Result<Hit> {
    let Some((session, uid)) = some_holder(fault)? else {
        return Ok(Hit::Nothing);
    };
    let prefix = fault.semaphore()?.prefix();
    let (body, _) = fault.world.consul.reader.lock(&prefix, None).await?;
    let Body::Semaphore {
        index,
        limit,
        mut holders,
    } = body
    else {
        return Ok(Hit::Nothing);
    };
    if !holders.remove(&session) || !write(&fault.world, &prefix, index, limit, holders).await? {
        return Ok(Hit::Nothing);
    }
    fault.begins(format!("{session} of {uid}"));
    Ok(Hit::Yes)
}

pub(super) async fn deleted(fault: &mut ActiveFault) -> Result<Hit> {
    let prefix = fault.semaphore()?.prefix();
    fault.begins("");
    fault
        .world
        .consul
        .delete(&format!("kv/{prefix}/.lock"))
        .await?;
    Ok(Hit::Yes)
}

pub(super) async fn garbage(fault: &mut ActiveFault) -> Result<Hit> {
    let path = format!("kv/{}/.lock", fault.semaphore()?.prefix());
    let away = fault.away(Part::Grants(fault.semaphore()?.prefix()));
    fault.begins("");
    let flagged = format!("{path}?flags={SEMAPHORE_FLAGS}");
    fault.world.consul.put(&flagged, "{\"Limit\":").await?;
    fault.lasts(3).await;
    let world = fault.world.clone();
    until_done("the garbage is gone", || async {
        Ok(world.consul.delete(&path).await? == true)
    })
    .await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn limit_changed(fault: &mut ActiveFault) -> Result<Hit> {
    let semaphore = fault.semaphore()?;
    let prefix = semaphore.prefix();
    let (body, _) = fault.world.consul.reader.lock(&prefix, None).await?;
    let Body::Semaphore {
        index,
        limit,
        holders,
    } = body
    else {
        return Ok(Hit::Nothing);
    };
    let away = fault.away(Part::Grants(prefix.clone()));
    if !write(&fault.world, &prefix, index, limit + 1, holders).await? {
        return Ok(Hit::Nothing);
    }
    fault.begins(format!("{limit} to {}", limit + 1));
    fault.lasts(3).await;
    limit_is_right(&fault.world, semaphore).await?;
    drop(away);
    Ok(Hit::Yes)
}

/// Waits until a `.lock` has the semaphore's limit again. Where another limit is left, it writes the right one,
/// because the operator takes the other one for a conflict.
async fn limit_is_right(world: &World, semaphore: &LoadSemaphore) -> Result<()> {
    let prefix = semaphore.prefix();
    until_done("the limit is what it was", || async {
        match world.consul.reader.lock(&prefix, None).await?.0 {
            Body::Semaphore {
                index,
                limit,
                holders,
            } if limit != semaphore.limit => {
                write(world, &prefix, index, semaphore.limit, holders).await
            }
            _ => Ok(true),
        }
    })
    .await
}

/// Recreates a deleted semaphore, and waits until its limit is right: a limit that was changed just before the
/// deletion looks like a conflict to the new one.
pub(super) async fn is_made_again(world: &World, semaphore: &LoadSemaphore) -> Result<()> {
    until_done("the semaphore is there again", || async {
        match semaphore.create(world, NAMESPACE).await {
            Ok(()) => Ok(true),
            Err(error) if error.to_string().contains("already exists") => Ok(true),
            Err(error) => Err(error),
        }
    })
    .await?;
    limit_is_right(world, semaphore).await
}

/// As `consul lock -n 1` on the same prefix would do without its check.
pub(super) async fn mutex(fault: &mut ActiveFault) -> Result<Hit> {
    let prefix = fault.semaphore()?.prefix();
    let world = fault.world.clone();
    let session = json!({ "TTL": "1h", "Behavior": "delete", "LockDelay": "0s" }).to_string();
    let created = world.consul.put("session/create", session).await?;
    let session = created["ID"].as_str().context("no session")?.to_owned();
    let away = fault.away(Part::Grants(prefix.clone()));
    fault.begins("");
    let path = format!("kv/{prefix}/.lock?acquire={session}&flags={MUTEX_FLAGS}");
    world.consul.put(&path, "").await?;
    fault.lasts(3).await;
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
pub(super) fn foreigner_killed(fault: &mut ActiveFault) -> Result<Hit> {
    let holding = fault.load.holding(&fault.semaphore()?.prefix());
    let Some(foreigner) = fault.rng.choice(holding) else {
        return Ok(Hit::Nothing);
    };
    fault.begins("SIGKILL");
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
