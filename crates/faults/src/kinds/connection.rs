//! The connection from the operator to Consul or to the API server is cut or disturbed.

use std::time::Duration;

use anyhow::Result;
use testbed::{Fault, Proxy};
use tokio::time::sleep;

use super::{ActiveFault, Hit, jobs};
use crate::{
    load::{LoadSemaphore, SEMAPHORES},
    record::Part,
    weather::{Weather, Which},
    world::World,
};

/// How long each request is delayed on a slow connection.
const SLOW: Duration = Duration::from_millis(1500);

/// How long a delayed write takes.
const LATE: Duration = Duration::from_secs(6);

/// How long a commit takes while raft is slow.
const COMMIT: Duration = Duration::from_secs(1);

/// How many bytes of a value make an answer that is read in turns (`consul_client::client::LONG`).
const LONG: usize = 100 << 10;

/// How long a restarting server accepts no connections.
const RESTART: Duration = Duration::from_millis(300);

/// The answer to refused requests.
const REFUSAL: &str = "the door of the fault campaign says no";

/// The destination of the connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    Consul,
    Api,
}

impl To {
    fn door(self, world: &World) -> &Proxy {
        match self {
            Self::Consul => &world.consul.doors.operator,
            Self::Api => &world.kubernetes.door,
        }
    }

    fn part(self) -> Part {
        match self {
            Self::Consul => Part::Consul,
            Self::Api => Part::Api,
        }
    }

    /// The writes there that decide which Jobs run.
    fn writes(self) -> Which {
        match self {
            Self::Consul => Which::Transactions,
            Self::Api => Which::JobPatches,
        }
    }
}

/// Nothing gets through.
pub(super) async fn cut(fault: &mut ActiveFault, to: To, seconds: u64) -> Result<Hit> {
    away_during(fault, to, Weather::Cut(Which::All), seconds).await
}

/// Raft takes long for each commit, but renewals are answered at once, so nothing counts as down.
pub(super) async fn commits_late(fault: &mut ActiveFault, seconds: u64) -> Result<Hit> {
    let weather = Weather::Met(Which::Commits, Fault::Late(COMMIT));
    during(fault, To::Consul, weather, seconds).await;
    Ok(Hit::Yes)
}

/// Calls that are forwarded to a datacenter get no answer: only the semaphores there may notice.
pub(super) async fn datacenter_hangs(fault: &mut ActiveFault, seconds: u64) -> Result<Hit> {
    let there = SEMAPHORES
        .iter()
        .filter(|semaphore| semaphore.is_forwarded());
    let away: Vec<_> = there
        .map(|semaphore| fault.away(Part::Grants(semaphore.prefix())))
        .collect();
    during(fault, To::Consul, Weather::Cut(Which::Forwarded), seconds).await;
    drop(away);
    Ok(Hit::Yes)
}

/// Every prefix has so much below it that its listings take turns, and one of them stalls half read: only the semaphore
/// of that one may notice.
pub(super) async fn long_answer_stalls(fault: &mut ActiveFault, seconds: u64) -> Result<Hit> {
    let world = fault.world.clone();
    let stalled = fault.rng.usize(..SEMAPHORES.len());
    let away = fault.away(Part::Grants(SEMAPHORES[stalled].prefix()));
    let long = |semaphore: &LoadSemaphore| format!("kv/{}/long", semaphore.prefix());
    for semaphore in &SEMAPHORES {
        let value = "x".repeat(LONG);
        world.consul.put(&long(semaphore), value).await?;
    }
    let weather = Weather::Met(Which::ListingsOf(stalled), Fault::AnswerHeld);
    during(fault, To::Consul, weather, seconds).await;
    for semaphore in &SEMAPHORES {
        world.consul.delete(&long(semaphore)).await?;
    }
    drop(away);
    Ok(Hit::Yes)
}

/// Consul and the operator get a new CA and new certificates. The operator has to notice on its own.
pub(super) async fn certificates_exchanged(fault: &mut ActiveFault) -> Result<Hit> {
    let world = fault.world.clone();
    let doors = &world.consul.doors;
    fault.begins("a CA, and certificates of it");
    doors.certificates.exchange().await?;
    // As after a restart of the servers, all connections are lost.
    doors.link.cut();
    sleep(RESTART).await;
    doors.link.mend();
    Ok(Hit::Yes)
}

/// Every request is slow.
pub(super) async fn slow(fault: &mut ActiveFault, to: To) -> Result<Hit> {
    away_during(fault, to, Weather::Met(Which::All, Fault::Late(SLOW)), 6).await
}

/// Writes are carried out, but their answers never arrive.
pub(super) async fn answers_lost(fault: &mut ActiveFault, to: To) -> Result<Hit> {
    away_during(fault, to, Weather::Met(to.writes(), Fault::Unanswered), 4).await
}

/// Writes arrive when their sender may have given up already.
pub(super) async fn late(fault: &mut ActiveFault, to: To) -> Result<Hit> {
    let away = fault.away(to.part());
    let hit = away_during(fault, to, Weather::Met(to.writes(), Fault::Late(LATE)), 3).await;
    // The last delayed write is still under way.
    sleep(LATE).await;
    drop(away);
    hit
}

/// Everything is refused.
pub(super) async fn refuses(fault: &mut ActiveFault, to: To, status: u16) -> Result<Hit> {
    away_during(
        fault,
        to,
        Weather::Met(Which::All, Fault::Refused(status, REFUSAL)),
        4,
    )
    .await
}

/// A webhook answers each change of a Job with a conflict, whatever the Job's version.
pub(super) async fn conflicts(fault: &mut ActiveFault) -> Result<Hit> {
    let conflict = Fault::Refused(409, REFUSAL);
    away_during(fault, To::Api, Weather::Met(Which::JobPatches, conflict), 6).await
}

/// Running Jobs are deleted, and pods can't be listed: their slots stay held, but nothing else is delayed.
pub(super) async fn pod_lists_hang(fault: &mut ActiveFault, seconds: u64) -> Result<Hit> {
    let world = fault.world.clone();
    let away = fault.away(Part::Proofs);
    let weather = Weather::Cut(Which::PodLists);
    fault.begins(format!("{weather:?}"));
    let spell = weather.over(&world.kubernetes.door);
    for semaphore in &SEMAPHORES {
        // No Job may be running, or the one that was has just ended.
        let _gone = jobs::delete_one_that_runs(fault, semaphore).await;
    }
    fault.lasts(seconds).await;
    drop(spell);
    drop(away);
    Ok(Hit::Yes)
}

/// Applies the weather, and marks the server as down in the meantime.
async fn away_during(
    fault: &mut ActiveFault,
    to: To,
    weather: Weather,
    seconds: u64,
) -> Result<Hit> {
    let away = fault.away(to.part());
    during(fault, to, weather, seconds).await;
    drop(away);
    Ok(Hit::Yes)
}

async fn during(fault: &mut ActiveFault, to: To, weather: Weather, seconds: u64) {
    let world = fault.world.clone();
    fault.begins(format!("{weather:?}"));
    let spell = weather.over(to.door(&world));
    fault.lasts(seconds).await;
    drop(spell);
}
