//! The operator dies, sleeps, or runs twice.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::{Hit, Strike};
use testbed::Operator;

use crate::record::Part;

pub(super) async fn killed(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let away = strike.away(Part::Operator);
    strike.begins("SIGKILL");
    strike.world.operators.first.end("KILL").await?;
    sleep(Duration::from_secs(seconds)).await;
    strike.world.operators.first.try_start().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn restarted(strike: &mut Strike) -> Result<Hit> {
    let world = strike.world.clone();
    strike.begins("SIGTERM");
    let operator = &world.operators.first;
    replace(strike, operator, operator).await?;
    Ok(Hit::Yes)
}

pub(super) async fn frozen(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let away = strike.away(Part::Frozen);
    strike.begins("SIGSTOP");
    strike.world.operators.first.signal("STOP").await?;
    strike.lasts(seconds).await;
    strike.world.operators.first.signal("CONT").await?;
    drop(away);
    Ok(Hit::Yes)
}

/// Its wall clock jumps weeks ahead, and an hour back: that far back, the API server's certificate is still valid.
pub(super) async fn clock_jumps(strike: &mut Strike) -> Result<Hit> {
    let world = strike.world.clone();
    let Some((jumping, clock)) = &world.operators.jumping else {
        return Ok(Hit::Nothing);
    };
    strike.begins("+30d, then -50m, then right again");
    let operator = &world.operators.first;
    replace(strike, operator, jumping).await?;
    for jump in ["+30d", "-50m", "+0"] {
        clock.jump(jump)?;
        strike.lasts(3).await;
    }
    replace(strike, jumping, operator).await?;
    Ok(Hit::Yes)
}

async fn replace(strike: &Strike, old: &Operator, new: &Operator) -> Result<()> {
    let away = strike.away(Part::Operator);
    old.end("TERM").await?;
    new.try_start().await?;
    drop(away);
    Ok(())
}

/// Two are active at once, as when a lease is lost and neither replica notices.
pub(super) async fn doubled(strike: &mut Strike) -> Result<Hit> {
    strike.begins("");
    strike.world.operators.second.try_start().await?;
    strike.lasts(6).await;
    strike.world.operators.second.end("KILL").await?;
    Ok(Hit::Yes)
}
