//! Reads one semaphore for the check: the object, the Jobs of its namespace, its prefix and its sessions.

use kube::Api;
use tokio::time::timeout;

use super::{
    CheckSettings, NamespacedName, OperatorIdentity, ScratchKeys,
    api_server::{Answer, ApiServer},
    consul::{Scratch, Tried, try_all},
    kubernetes::CheckedCluster,
    rights::{Question, SECRET},
};
use crate::{
    controller::{place, settings_of, take_token, tenants_node},
    manifests::Source,
    workload,
};
use consul_client::{
    Client, Error, Listing, Session, TokenCell,
    clock::{self, Moment},
};
use consul_semaphore as algorithm;
use consul_semaphore_api::{ConsulSemaphore, TokenSecretRef};
use consul_semaphore_workload::TrackedWorkload;

/// Way in which the operator uses Consul.
pub(super) struct Way {
    pub(super) operator: OperatorIdentity,
    /// Client with the operator's own token; `None` if Consul does not answer.
    pub(super) consul: Option<Client>,
}

/// Everything that was read of one semaphore.
pub(super) struct SemaphoreFacts {
    pub(super) semaphore: ConsulSemaphore,
    /// Whether the checked operator manages the semaphore.
    pub(super) in_scope: bool,
    /// Settings in the spec of the semaphore.
    pub(super) settings: algorithm::Settings,
    /// Reason why the operator's own token must not be used for the semaphore.
    pub(super) barred: Option<String>,
    /// Token from the Secret of the semaphore, if the spec names one.
    pub(super) token: Option<CheckedToken>,
    pub(super) jobs: Answer<Vec<TrackedWorkload>>,
    /// Part of Consul's data that concerns the semaphore, if Consul was read.
    pub(super) prefix: Option<PrefixFacts>,
}

/// Token of a semaphore's Secret.
pub(super) struct CheckedToken {
    pub(super) from: TokenSecretRef,
    /// Reason why the token can't be read.
    pub(super) problem: Option<String>,
    /// Whether the operator may read the Secret.
    pub(super) allowed: Answer<bool>,
}

/// Data that was read in Consul.
pub(super) struct PrefixFacts {
    pub(super) listing: Result<Listing, Error>,
    /// Sessions on the node of the semaphore. Their names identify the operator's own contenders.
    pub(super) sessions: Result<Vec<Session>, Unknown>,
    pub(super) tried: Tried,
    /// Maximum number of operations in one transaction.
    pub(super) operations: usize,
    /// Time at which everything had been read: `now` is for intervals, `time` is for people.
    pub(super) now: Moment,
    pub(super) time: jiff::Timestamp,
}

/// Reason why it is unknown which contenders are the operator's own.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Unknown {
    #[error("the cluster's id is unknown")]
    Cluster,
    #[error("its sessions can't be read: {0}")]
    Sessions(#[from] Error),
}

/// Reads the semaphore.
pub(super) async fn look(
    settings: &CheckSettings,
    name: &NamespacedName,
    cluster: &CheckedCluster,
    way: &Way,
    scratch: &Scratch,
) -> Answer<SemaphoreFacts> {
    let server = &cluster.server;
    let semaphores: Api<ConsulSemaphore> = Api::namespaced(server.client.clone(), &name.namespace);
    let semaphore = server.within(semaphores.get(&name.name)).await?;
    // The Jobs are read before the prefix, because a listing of Consul that is older than them proves nothing about a
    // Job.
    let jobs = jobs(server, &name.namespace).await;
    let asked = settings_of(&way.operator.cluster, settings.operator.order, &semaphore);
    let consul_spec = semaphore.spec.consul.as_ref();
    let reference = consul_spec.and_then(|consul| consul.token_secret_ref.clone());
    let own = way
        .consul
        .clone()
        .map(|consul| consul.scoped(place(&semaphore)));
    let (token, barred, consul) = match reference {
        Some(from) => {
            let cell = TokenCell::default();
            let take = take_token(&server.client, &name.namespace, &from, &cell);
            let outcome = timeout(server.patience, take).await;
            let silent = |_| Err("the API server did not answer in time".to_owned());
            let token = CheckedToken {
                problem: outcome.unwrap_or_else(silent).err(),
                allowed: may_read(cluster, name, &from).await,
                from,
            };
            let consul = own.filter(|_| cell.is_set());
            (
                Some(token),
                None,
                consul.map(|consul| consul.with_token(cell)),
            )
        }
        None => match settings
            .operator
            .tenancy
            .check(&name.namespace, &asked.prefix)
        {
            Ok(()) => (None, None, own),
            Err(refusal) => (None, Some(refusal.to_string()), None),
        },
    };
    let node = way.operator.node.as_deref().map(|own| match &token {
        Some(_) => tenants_node(own, &name.namespace),
        None => own.to_owned(),
    });
    let prefix = match consul {
        Some(consul) => Some(look_at_prefix(&consul, node, &asked, scratch).await),
        None => None,
    };
    Ok(SemaphoreFacts {
        in_scope: is_in_scope(settings, &semaphore),
        settings: asked,
        semaphore,
        barred,
        token,
        jobs,
        prefix,
    })
}

fn is_in_scope(settings: &CheckSettings, semaphore: &ConsulSemaphore) -> bool {
    let metadata = &semaphore.metadata;
    let labels = metadata.labels.clone().unwrap_or_default();
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let scope = &settings.operator.scope;
    scope.namespaces.contains(namespace) && scope.semaphores.matches(&labels)
}

async fn look_at_prefix(
    consul: &Client,
    node: Option<String>,
    asked: &algorithm::Settings,
    scratch: &Scratch,
) -> PrefixFacts {
    let folder = asked.prefix.folder();
    let keys = ScratchKeys {
        rule: folder.clone(),
        folder,
    };
    // The transactions are tried first, so that the rest is read at about the same time. Only contenders and `.lock`
    // matter below the prefix.
    let tried = try_all(consul, node.as_deref(), keys, scratch).await;
    // A session's name contains the cluster's id. Without the id, our sessions can't be told apart from others.
    let node = node.filter(|_| !asked.cluster.id.is_empty());
    let sessions = match node.ok_or(Unknown::Cluster) {
        Ok(node) => consul.node_sessions(&node).await.map_err(Unknown::from),
        Err(unknown) => Err(unknown),
    };
    let listing = consul.list(&asked.prefix.folder()).await;
    PrefixFacts {
        listing,
        sessions,
        tried,
        operations: consul.transaction_capacity(),
        now: Moment::now(),
        time: clock::time(),
    }
}

/// Returns all Jobs of a namespace that concern the operator.
async fn jobs(server: &ApiServer, namespace: &str) -> Answer<Vec<TrackedWorkload>> {
    let mut pages = workload::Pages::of(server.client.clone(), namespace);
    let mut jobs = Vec::new();
    while let Some(page) = server.within(pages.next()).await? {
        jobs.extend(page);
    }
    Ok(jobs)
}

/// Returns whether the operator may read the Secret.
async fn may_read(
    cluster: &CheckedCluster,
    name: &NamespacedName,
    from: &TokenSecretRef,
) -> Answer<bool> {
    let question = Question {
        rule: SECRET.clone(),
        source: Source::Operator,
        namespace: Some(name.namespace.clone()),
        name: Some(from.name.clone()),
    };
    cluster.may(&question, "get").await
}
