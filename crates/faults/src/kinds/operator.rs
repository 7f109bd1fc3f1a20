//! The operator dies, sleeps, or is there twice.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::{Hit, Strike};
use testbed::Process;

use crate::record::Part;

pub(super) async fn killed(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let away = strike.away(Part::Operator);
    strike.begins("SIGKILL");
    strike.world.operator.end("KILL").await?;
    sleep(Duration::from_secs(seconds)).await;
    strike.world.operator.start_again()?;
    strike.world.operator_ready().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn restarted(strike: &mut Strike) -> Result<Hit> {
    let world = strike.world.clone();
    strike.begins("SIGTERM");
    replace(strike, &world.operator, &world.operator).await?;
    Ok(Hit::Yes)
}

pub(super) async fn frozen(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let away = strike.away(Part::Frozen);
    strike.begins("SIGSTOP");
    strike.world.operator.signal("STOP")?;
    strike.lasts(seconds).await;
    strike.world.operator.signal("CONT")?;
    drop(away);
    Ok(Hit::Yes)
}

/// Its wall clock jumps weeks ahead, and an hour back: as far as the API server's certificate is old.
pub(super) async fn clock_jumps(strike: &mut Strike) -> Result<Hit> {
    let world = strike.world.clone();
    let Some(jumping) = &world.jumping_operator else {
        return Ok(Hit::Nothing);
    };
    strike.begins("+30d, then -50m, then right again");
    replace(strike, &world.operator, jumping).await?;
    for jump in ["+30d", "-50m", "+0"] {
        std::fs::write(&world.clock, jump)?;
        strike.lasts(3).await;
    }
    replace(strike, jumping, &world.operator).await?;
    Ok(Hit::Yes)
}

async fn replace(strike: &Strike, old: &Process, new: &Process) -> Result<()> {
    let away = strike.away(Part::Operator);
    old.end("TERM").await?;
    new.start_again()?;
    strike.world.operator_ready().await?;
    drop(away);
    Ok(())
}

/// Two are active at once, as when a lease was lost and nobody noticed.
pub(super) async fn doubled(strike: &mut Strike) -> Result<Hit> {
    strike.begins("");
    let started = strike.world.second_operator.start_again();
    strike.lasts(6).await;
    started?;
    strike.world.second_operator.end("KILL").await?;
    Ok(Hit::Yes)
}
