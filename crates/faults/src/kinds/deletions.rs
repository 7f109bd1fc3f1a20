//! Objects are deleted while the operator works on them.

use anyhow::Result;
use k8s_openapi::{
    api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use tokio::time::timeout;

use super::{ActiveFault, Hit, locks::is_made_again, until_done};
use crate::{
    load::{Life, PASSING, SEMAPHORES, create_job},
    observer::{Observer, prefix_of},
    record::{Part, What},
    world::{CALL, NAMESPACE},
};

const DEFINITION: &str = "consulsemaphores.consul-semaphore.io";

/// Once their running Jobs are done, all `ConsulSemaphores` are deleted with their definition, and then created
/// again.
pub(super) async fn definition(fault: &mut ActiveFault) -> Result<Hit> {
    let world = fault.world.clone();
    let _alone = world.semaphores.write().await;
    let away: Vec<_> = SEMAPHORES
        .iter()
        .map(|semaphore| fault.away(Part::Grants(semaphore.prefix())))
        .collect();
    let definitions = Api::<CustomResourceDefinition>::all(world.kubernetes.client.clone());
    let mut definition = timeout(CALL, definitions.get(DEFINITION)).await??;
    definition.metadata = ObjectMeta {
        name: definition.metadata.name,
        ..ObjectMeta::default()
    };
    definition.status = None;
    fault.begins(DEFINITION);
    timeout(
        CALL,
        definitions.delete(DEFINITION, &DeleteParams::default()),
    )
    .await??;
    until_done("the definition is gone", || async {
        Ok(timeout(CALL, definitions.get_opt(DEFINITION))
            .await??
            .is_none())
    })
    .await?;
    until_done("the definition is there again", || async {
        is_there(
            timeout(
                CALL,
                definitions.create(&PostParams::default(), &definition),
            )
            .await?,
        )
    })
    .await?;
    for semaphore in &SEMAPHORES {
        is_made_again(&world, semaphore).await?;
    }
    drop(away);
    Ok(Hit::Yes)
}

/// A namespace with its own semaphore and Jobs, some of them running, is deleted.
pub(super) async fn namespace(fault: &mut ActiveFault) -> Result<Hit> {
    let world = fault.world.clone();
    let name = format!("{NAMESPACE}-{}", fault.planned.id);
    let prefix = prefix_of(&name, PASSING.name);
    fault.begins(&name);
    let namespaces = Api::<Namespace>::all(world.kubernetes.client.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
    until_done("there is a namespace", || async {
        is_there(timeout(CALL, namespaces.create(&PostParams::default(), &namespace)).await?)
    })
    .await?;
    world.timeline.push(What::Semaphore(PASSING.record(&name)));
    let _watch = Observer::of_lock(&world.consul.reader, &prefix, &world.timeline);
    until_done("it has a semaphore", || async {
        PASSING.create(&world, &name).await.map(|()| true)
    })
    .await?;
    for _ in 0..PASSING.limit + 2 {
        let life = Life {
            kind: world.some_kind(&mut fault.rng),
            runs_ms: 60_000,
            terminates_ms: fault.rng.u32(500..4_000),
            fails: false,
            pods: fault.rng.u32(1..3),
            ends_by: None,
            child_asks: false,
        };
        create_job(&world, &fault.load, &name, PASSING.name, &life).await?;
    }
    until_done("Jobs of it run", || async {
        Ok(world.timeline.look(|view| {
            let mut jobs = view.jobs.values();
            jobs.any(|job| job.prefix == prefix && view.pods.contains_key(&job.uid))
        }))
    })
    .await?;
    timeout(CALL, namespaces.delete(&name, &DeleteParams::default())).await??;
    until_done("the namespace is gone", || async {
        Ok(timeout(CALL, namespaces.get_opt(&name)).await??.is_none())
    })
    .await?;
    Ok(Hit::Yes)
}

/// Whether something was created, or existed before.
fn is_there<K>(made: kube::Result<K>) -> Result<bool> {
    match made {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(true),
        Err(error) => Err(error.into()),
    }
}
