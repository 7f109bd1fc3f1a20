//! The operator dies, sleeps, or is there twice.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::{Hit, Strike};
use crate::record::Part;

pub(super) async fn killed(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let away = strike.away(Part::Operator);
    strike.begins("SIGKILL");
    strike.world.operator.end("KILL").await?;
    sleep(Duration::from_secs(seconds)).await;
    strike.world.operator.start().await?;
    strike.world.operator_ready().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn restarted(strike: &mut Strike) -> Result<Hit> {
    let away = strike.away(Part::Operator);
    strike.begins("SIGTERM");
    strike.world.operator.end("TERM").await?;
    strike.world.operator.start().await?;
    strike.world.operator_ready().await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn frozen(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let away = strike.away(Part::Frozen);
    strike.begins("SIGSTOP");
    strike.world.operator.signal("STOP").await?;
    strike.lasts(seconds).await;
    strike.world.operator.signal("CONT").await?;
    drop(away);
    Ok(Hit::Yes)
}

/// Two are active at once, as when a lease was lost and nobody noticed.
pub(super) async fn doubled(strike: &mut Strike) -> Result<Hit> {
    strike.begins("");
    let started = strike.world.second_operator.start().await;
    strike.lasts(6).await;
    started?;
    strike.world.second_operator.end("KILL").await?;
    Ok(Hit::Yes)
}
