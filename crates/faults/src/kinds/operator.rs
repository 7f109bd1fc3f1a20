//! The operator dies, sleeps, or runs twice.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use super::{ActiveFault, Hit};
use testbed::Operator;

use crate::{
    record::Part,
    weather::{Weather, Which},
};

pub(super) async fn killed(fault: &mut ActiveFault, seconds: u64) -> Result<Hit> {
    let away = fault.away(Part::Operator);
    fault.begins("SIGKILL");
    fault.world.operators.first.end("KILL").await?;
    sleep(Duration::from_secs(seconds)).await;
    fault.world.operators.first.try_start().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn restarted(fault: &mut ActiveFault) -> Result<Hit> {
    fault.begins("SIGTERM");
    restart(fault).await?;
    Ok(Hit::Yes)
}

pub(super) async fn restart(fault: &ActiveFault) -> Result<()> {
    let operator = &fault.world.operators.first;
    replace(fault, operator, operator).await
}

/// How long each process runs whose predecessor was killed: shorter than what a Job has at least when nothing is known
/// of its slot.
const LIFE: Duration = Duration::from_secs(4);

/// Process after process is killed while Consul is cut off, for so many seconds.
pub(super) async fn restarted_without_consul(fault: &mut ActiveFault, seconds: u64) -> Result<Hit> {
    let world = fault.world.clone();
    let away = fault.away(Part::Consul);
    fault.begins(format!("SIGKILL every {LIFE:?}"));
    let spell = Weather::Cut(Which::All).over(&world.consul.doors.operator);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let gone = fault.away(Part::Operator);
        world.operators.first.end("KILL").await?;
        world.operators.first.try_start().await?;
        drop(gone);
        sleep(LIFE).await;
    }
    drop(spell);
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn frozen(fault: &mut ActiveFault, seconds: u64) -> Result<Hit> {
    let away = fault.away(Part::Frozen);
    fault.begins("SIGSTOP");
    fault.world.operators.first.signal("STOP").await?;
    fault.lasts(seconds).await;
    fault.world.operators.first.signal("CONT").await?;
    drop(away);
    Ok(Hit::Yes)
}

/// Its wall clock jumps weeks ahead, and an hour back: that far back, the API server's certificate is still valid.
pub(super) async fn clock_jumps(fault: &mut ActiveFault) -> Result<Hit> {
    let world = fault.world.clone();
    let Some((jumping, clock)) = &world.operators.jumping else {
        return Ok(Hit::Nothing);
    };
    fault.begins("+30d, then -50m, then right again");
    let operator = &world.operators.first;
    replace(fault, operator, jumping).await?;
    for jump in ["+30d", "-50m", "+0"] {
        clock.jump(jump)?;
        fault.lasts(3).await;
    }
    replace(fault, jumping, operator).await?;
    Ok(Hit::Yes)
}

async fn replace(fault: &ActiveFault, old: &Operator, new: &Operator) -> Result<()> {
    let away = fault.away(Part::Operator);
    old.end("TERM").await?;
    new.try_start().await?;
    drop(away);
    Ok(())
}

/// Two are active at once, as when a lease is lost and neither replica notices.
pub(super) async fn doubled(fault: &mut ActiveFault) -> Result<Hit> {
    fault.begins("");
    fault.world.operators.second.try_start().await?;
    fault.lasts(6).await;
    fault.world.operators.second.end("KILL").await?;
    Ok(Hit::Yes)
}
