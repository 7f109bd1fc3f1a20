//! The API server is away, or strange.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use tokio::time::{sleep, timeout};

use super::{Hit, Strike, until_done};
use crate::{
    load::CALL,
    record::Part,
    weather::{Weather, Which},
};

/// What gives the operator its rights.
const BINDING: &str = "consul-semaphore-operator";

pub(super) async fn killed(strike: &mut Strike, seconds: u64) -> Result<Hit> {
    let away = strike.away(Part::Api);
    strike.begins("SIGKILL");
    strike.world.api_server.end("KILL").await?;
    sleep(Duration::from_secs(seconds)).await;
    strike.world.start_api_server().await?;
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
    let lose = Some(Which::JobPatches);
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
    let keep = Some((Which::JobPatches, Duration::from_secs(6)));
    let hit = during(
        strike,
        Weather {
            keep,
            ..Weather::default()
        },
        3,
    )
    .await;
    // What was kept last is still on its way.
    let away = strike.away(Part::Api);
    sleep(Duration::from_secs(6)).await;
    drop(away);
    hit
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
    let away = strike.away(Part::Api);
    let spell = Strike::weather(&strike.world.to_api, weather);
    strike.begins(format!("{weather:?}"));
    strike.lasts(seconds).await;
    drop(spell);
    drop(away);
    Ok(Hit::Yes)
}

/// Watches that are broken off now can't go on from where they were.
pub(super) async fn compacted(strike: &mut Strike) -> Result<Hit> {
    strike.begins("");
    strike.world.etcd.compact().await?;
    let weather = Weather {
        cut: true,
        ..Weather::default()
    };
    during_unnoticed(strike, weather).await
}

async fn during_unnoticed(strike: &mut Strike, weather: Weather) -> Result<Hit> {
    let away = strike.away(Part::Api);
    let spell = Strike::weather(&strike.world.to_api, weather);
    strike.lasts(1).await;
    drop(spell);
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn rbac(strike: &mut Strike) -> Result<Hit> {
    let bindings = Api::<ClusterRoleBinding>::all(strike.world.client.clone());
    let mut binding = timeout(CALL, bindings.get(BINDING)).await??;
    binding.metadata.resource_version = None;
    binding.metadata.uid = None;
    let away = strike.away(Part::Api);
    strike.begins(BINDING);
    timeout(CALL, bindings.delete(BINDING, &DeleteParams::default())).await??;
    strike.lasts(4).await;
    until_done("the binding is there again", || async {
        match timeout(CALL, bindings.create(&PostParams::default(), &binding)).await? {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(true),
            Err(error) => Err(error.into()),
        }
    })
    .await?;
    drop(away);
    Ok(Hit::Yes)
}
