//! The objects around a semaphore: its Jobs and events, and whether an operator reports. Objects that the user may not
//! read are left out.

use std::{collections::BTreeSet, time::Duration};

use consul_client::clock::{self, Moment};
use consul_semaphore_api::ConsulSemaphore;
use consul_semaphore_workload::{Job, TrackedWorkload};
use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams},
};
use tokio::time::timeout;

use crate::{
    cluster::{ClusterClient, ListedItems},
    failure::{Failure, FailureKind},
    view::{
        item::Item,
        missing::{self, Reference},
        operator::{LEASE_NAME, OPERATOR_NAMESPACE, last_write, silence},
        queue::{QueueView, queue_of},
        recorded::{REPORTER, RecordedEvent},
    },
};

/// The time that a call may take if a command can do without its answer.
const OPTIONAL_CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The objects that belong to a semaphore. What the user may not read becomes a gap in the output.
pub(crate) struct Around {
    pub(crate) workloads: Vec<TrackedWorkload>,
    pub(crate) recorded: Vec<RecordedEvent>,
    /// The semaphores of the namespace, if a Job asks for slots of several and the user may list them.
    pub(crate) others: Vec<ConsulSemaphore>,
    pub(crate) gaps: Vec<String>,
}

impl Around {
    /// Reads the objects around the semaphore with this metadata.
    pub(crate) async fn read(
        cluster: &ClusterClient,
        semaphore: &ObjectMeta,
    ) -> Result<Self, Failure> {
        let name = semaphore.name.as_deref().unwrap_or_default();
        let read = |job: Job| {
            let workload = TrackedWorkload::read(&job, Moment::default());
            workload.filter(|workload| workload.names(name))
        };
        let from_operator = format!("reportingComponent={REPORTER}");
        let (jobs, events, silence) = tokio::join!(
            cluster.list_jobs(read),
            cluster.list_events(&from_operator, |event| RecordedEvent::read(&event)),
            operator_silence(cluster, last_write([semaphore])),
        );
        let mut gaps: Vec<String> = silence.into_iter().collect();
        let workloads = unless_denied("Jobs", jobs, &mut gaps)?;
        let several = |one: &TrackedWorkload| one.workload.asks_for_several();
        let others = if workloads.iter().any(several) {
            all_semaphores(cluster).await
        } else {
            Vec::new()
        };
        Ok(Self {
            workloads,
            recorded: unless_denied("events", events, &mut gaps)?,
            others,
            gaps,
        })
    }

    /// Returns the queue of this semaphore, with at most `most` Jobs in it and at most `most` outside it.
    pub(crate) fn queue(&self, semaphore: &ConsulSemaphore, most: usize) -> QueueView {
        let name = semaphore.metadata.name.as_deref().unwrap_or_default();
        let mut queue = queue_of(semaphore, &self.workloads, &self.recorded, most);
        queue.look_elsewhere(name, &self.others);
        queue
    }
}

/// Returns the semaphores of the namespace that can be read; none if the user may not list them.
async fn all_semaphores(cluster: &ClusterClient) -> Vec<ConsulSemaphore> {
    let namespace = Some(cluster.namespace.as_str());
    let call = cluster.list_semaphores(namespace, None);
    let items = timeout(OPTIONAL_CALL_TIMEOUT, call)
        .await
        .ok()
        .and_then(Result::ok)
        .map(|listed| listed.items)
        .unwrap_or_default();
    let readable = |object: &DynamicObject| match Item::read(object) {
        Item::Semaphore(semaphore) => Some(*semaphore),
        Item::Unreadable { .. } => None,
    };
    items.iter().filter_map(readable).collect()
}

fn unless_denied<T>(
    what: &str,
    listed: Result<ListedItems<T>, Failure>,
    gaps: &mut Vec<String>,
) -> Result<Vec<T>, Failure> {
    match listed {
        Ok(ListedItems { items, cut }) => {
            if cut {
                gaps.push(format!(
                    "the namespace has too many {what}: not all were read"
                ));
            }
            Ok(items)
        }
        Err(failure) if failure.kind == FailureKind::Denied => {
            gaps.push(gap(what, &failure.message));
            Ok(Vec::new())
        }
        Err(failure) => Err(failure),
    }
}

/// Returns the line that replaces something that can't be shown.
pub(crate) fn gap(what: &str, why: &str) -> String {
    format!("the {what} are not shown: {why}")
}

/// Returns a line that says since when no operator reports, if the user may read its Lease. `written` says when an
/// operator last changed a semaphore.
pub(crate) async fn operator_silence(
    cluster: &ClusterClient,
    written: Option<Timestamp>,
) -> Option<String> {
    silence(&leases(cluster).await, written, clock::time())
}

/// Returns the operator's Leases in all namespaces. A user who may not list all gets those of the namespaces where a
/// Lease is most likely.
async fn leases(cluster: &ClusterClient) -> Vec<Lease> {
    let params = ListParams::default().fields(&format!("metadata.name={LEASE_NAME}"));
    let all: Api<Lease> = Api::all(cluster.client());
    match timeout(OPTIONAL_CALL_TIMEOUT, all.list(&params)).await {
        Ok(Ok(list)) => return list.items,
        Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => {}
        _ => return Vec::new(),
    }
    let mut leases = Vec::new();
    for namespace in [OPERATOR_NAMESPACE, &cluster.namespace] {
        let one: Api<Lease> = Api::namespaced(cluster.client(), namespace);
        if let Ok(Ok(Some(lease))) = timeout(OPTIONAL_CALL_TIMEOUT, one.get_opt(LEASE_NAME)).await {
            leases.push(lease);
        }
    }
    leases
}

/// Returns a line about the Jobs that name none of these semaphores, which are all of the namespace or of all
/// namespaces. `None` if there are no such Jobs, or if the user may not list Jobs.
pub(crate) async fn without_semaphore(
    cluster: &ClusterClient,
    namespace: Option<&str>,
    semaphores: &[DynamicObject],
) -> Option<String> {
    let read = |job: Job| {
        let workload = TrackedWorkload::read(&job, Moment::default())?;
        Some(Reference::of(&workload)).filter(|references| !references.is_empty())
    };
    let ListedItems { items, cut } = cluster.list_unfinished(namespace, read).await.ok()?;
    let items: Vec<Reference> = items.into_iter().flatten().collect();
    let existing: BTreeSet<(String, String)> = semaphores
        .iter()
        .map(|object| (object.namespace().unwrap_or_default(), object.name_any()))
        .collect();
    missing::line(&items, &existing, cut)
}
