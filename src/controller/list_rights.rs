//! Checks whether this replica could list what the leader watches. The replica is not ready before that, so a rollout
//! of a version without the rights or the schema stops while the old leader continues.

use kube::{Client, core::ApiResource};

use super::{WorkloadChoice, watching::with_advice};
use crate::{call::CallError, manifests::Source, telemetry::Health, watch_scope::WatchScope};
use consul_semaphore::holding::retry_until_ok;
use consul_semaphore_api::{ConsulSemaphore, scope::Namespaces};
use consul_semaphore_workload::Kind;

/// Lists one object of each resource in each scope, and tries again until that has worked.
pub(super) async fn check(
    client: Client,
    served: WorkloadChoice,
    namespaces: Namespaces,
    health: Health,
) {
    let part = health.part("lists");
    let kinds = served.kinds.iter();
    let workloads = kinds.map(|kind| (kind.resource(), Source::of(kind), *kind != Kind::Job));
    let own = [
        Kind::Pod.resource(),
        ApiResource::erase::<ConsulSemaphore>(&()),
    ]
    .map(|resource| (resource, Source::Operator, false));
    let resources: Vec<_> = workloads.chain(own).collect();
    for scope in WatchScope::over(&namespaces) {
        for (resource, source, optional) in &resources {
            let list = async || match scope.list_one(&client, resource).await {
                // A missing kind is no problem, because the leader serves it as soon as it is there.
                Err(error) if *optional && matches!(error.refusal(), Some((404, _))) => Ok(()),
                listed => listed.map_err(|error| problem(&scope, &resource.plural, source, &error)),
            };
            let complain = |problem: &String| part.not_ready(problem.clone());
            retry_until_ok(list, complain).await;
        }
    }
    part.ready();
}

/// Returns why objects of this resource can't be listed, and what to do about it.
fn problem(scope: &WatchScope, what: &str, source: &Source, error: &CallError) -> String {
    let code = error.refusal().map(|(code, _)| code);
    let why = with_advice(&error.to_string(), what, source, code);
    format!("{} can't be listed: {why}", scope.of(what))
}
