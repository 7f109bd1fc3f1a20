//! Names from the cluster and the kubeconfig.

use clap::Arg;
use consul_client::clock::Moment;
use consul_semaphore::Phase;
use consul_semaphore_workload::{Kind, TrackedWorkload};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _, api::ListParams};

use super::NextWords;
use crate::{
    cluster::ClusterClient,
    view::item::{Item, status},
};

/// The kind of a name that completion offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NameKind {
    Semaphore,
    Workload(Kind),
    Session,
    Namespace,
    Context,
    Cluster,
    User,
    File,
}

impl NameKind {
    /// Returns the kind of name for an argument of `cli.rs`, by the argument's id.
    pub(super) fn of(arg: &Arg) -> Option<Self> {
        match arg.get_id().as_str() {
            "semaphore" => Some(Self::Semaphore),
            "workload" => Some(Self::Workload(Kind::Job)),
            "session" => Some(Self::Session),
            "namespace" => Some(Self::Namespace),
            "context" => Some(Self::Context),
            "cluster" => Some(Self::Cluster),
            "user" => Some(Self::User),
            "kubeconfig" => Some(Self::File),
            _ => None,
        }
    }
}

/// Returns the names of a kind, each with its description; `None` if they can't be read.
pub(super) async fn names(name: &NameKind, next: &NextWords) -> Option<Vec<(String, String)>> {
    let bare = |name: String| (name, String::new());
    match name {
        NameKind::File => None,
        NameKind::Context => {
            let contexts = next.connection.kubeconfig().ok()?.contexts.into_iter();
            Some(contexts.map(|context| bare(context.name)).collect())
        }
        NameKind::Cluster => {
            let clusters = next.connection.kubeconfig().ok()?.clusters.into_iter();
            Some(clusters.map(|cluster| bare(cluster.name)).collect())
        }
        NameKind::User => {
            let users = next.connection.kubeconfig().ok()?.auth_infos.into_iter();
            Some(users.map(|user| bare(user.name)).collect())
        }
        NameKind::Namespace => {
            let cluster = ClusterClient::connect(&next.connection).await.ok()?;
            let namespaces = Api::<Namespace>::all(cluster.client());
            let listed = namespaces
                .list_metadata(&ListParams::default())
                .await
                .ok()?;
            let objects = listed.items.iter();
            Some(objects.map(|object| bare(object.name_any())).collect())
        }
        NameKind::Semaphore => {
            let cluster = ClusterClient::connect(&next.connection).await.ok()?;
            let listed = cluster
                .list_semaphores(Some(&cluster.namespace), None)
                .await
                .ok()?;
            let objects = listed.items.iter();
            Some(objects.map(|object| bare(object.name_any())).collect())
        }
        NameKind::Workload(kind) => {
            let cluster = ClusterClient::connect(&next.connection).await.ok()?;
            let listed = cluster.list_workloads(kind, |object| {
                let read = TrackedWorkload::read_object(kind, &object, Moment::default());
                let workload = read.ok().flatten()?;
                let semaphores: Vec<&str> = workload.semaphores().map(AsRef::as_ref).collect();
                let named = (
                    workload.workload.name.to_string(),
                    format!("of {}", semaphores.join(", ")),
                );
                suits(next, &workload).then_some(named)
            });
            Some(listed.await.ok()?.items)
        }
        NameKind::Session => {
            let cluster = ClusterClient::connect(&next.connection).await.ok()?;
            let object = cluster.semaphore(next.given.first()?).await.ok()?;
            let Item::Semaphore(semaphore) = Item::read(&object) else {
                return None;
            };
            let holders = status(&semaphore).holders.into_iter();
            let named = holders.map(|holder| (holder.session, holder.holder.to_string()));
            Some(named.collect())
        }
    }
}

/// Whether the command on the line would change this workload.
fn suits(next: &NextWords, workload: &TrackedWorkload) -> bool {
    let job = &workload.workload;
    let over = matches!(job.phase, Phase::Finished { .. } | Phase::Deleting);
    let suits = match next.command.as_str() {
        "hold" => !job.hold,
        "unhold" => job.hold || workload.obstacle.is_some(),
        _ => true,
    };
    !over && suits
}
