//! Runs the Kubernetes side of the operator: watches deliver objects, the engine decides, and Jobs are updated.
//!
//! A Job passes through these parts: `watches` (delivers the events of the Job) → `index` (gives the Job its place in
//! a queue) → `shell` (passes events to the [engine](consul_semaphore::engine), and makes the calls that the engine
//! asks for) → `crate::workload` (starts the Job) → `shell` again (the pods have ended, so the slot is given back).
//!
//! Other parts:
//! - `semaphore` handles a `ConsulSemaphore` apart from its slots: finalizer, status, access to Consul, and the watch
//!   of its prefix.
//! - `session_manager` renews sessions.
//! - `events` writes events.
//! - `intake` reports workloads that are in no queue, and `unqueued` ends their waits.
//! - `advisor` reports annotations that have no effect.
//! - `ungranted` suspends Jobs that run without a grant.
//! - `unfailable` puts workloads on hold whose status can't say that they have failed.
//! - `startup_log` reports at startup where Consul is, and whether it answers.
//! - `list_rights` checks whether a replica could list what the leader watches.
//! - `table` serves the kinds of a `ConfigMap`.
//! - `kueue` answers the admission checks of Kueue.
//! - `proof_record` keeps, for the next process, when slots were last proved to be held.
//! - `unproved` looks for pods that the status of a workload does not show.
//! - `tasks` runs what several of these parts do about single workloads, each when it is due (`due_times`).
//! - `consul_target` says where in Consul a semaphore lives.
//! - `secret` reads the token of a semaphore that has its own.
//! - `prefix_watches` has the watches of prefixes, which semaphores share.
//! - `watching` reports the health of the watches of the API server.
//! - `bench` exposes the index to benchmarks.
//!
//! [`check`](crate::check) uses the same code to read specs and Secrets.

mod advisor;
#[cfg(feature = "bench")]
pub mod bench;
mod consul_target;
mod due_times;
mod events;
mod index;
mod intake;
mod kueue;
mod list_rights;
mod prefix_watches;
mod proof_record;
mod secret;
mod semaphore;
mod session_manager;
mod shell;
mod startup_log;
mod table;
mod tasks;
mod unfailable;
mod ungranted;
mod unproved;
mod unqueued;
mod watches;
mod watching;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Config};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::timeout};

pub(crate) use self::{
    consul_target::{default_node, place, tenants_node},
    secret::take_token,
    semaphore::spec::{defence, settings_of},
};
use self::{
    events::Events,
    index::Index,
    prefix_watches::PrefixWatches,
    proof_record::{ProofGroup, ProofKeeper, ProofRecord},
    secret::Secrets,
    session_manager::{RENEW_EARLIER_SESSIONS_FOR, SessionManager},
    unfailable::Unfailable,
};
use crate::{
    admission,
    call::call,
    identity::{self, Identity, Marks},
    leader::{self, Standing, Term},
    schema,
    telemetry::{Health, Metrics, Telemetry, Traces},
    workload::{self, KnownKinds, Owners},
};
use consul_client::{self as consul, Budget, Exposure, Observer, text::one_line};
use consul_semaphore::{Cluster, LastProofs, Order, holding::retry_until_ok};
use consul_semaphore_api::{scope::Scope, tenancy::Tenancy};
use consul_semaphore_workload::Kinds;

/// Time that pending events may take at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Delay of low-priority work, such as writing an event, or making a session ahead or ending it. Urgent work at the
/// same time, usually the start of a Job, comes first.
const LOW_PRIORITY: Duration = Duration::from_millis(50);

/// Settings of the operator.
#[derive(Clone, Debug)]
pub struct OperatorSettings {
    /// Name of the cluster in Consul; by default the first 8 characters of its id.
    pub cluster_name: Option<String>,
    /// Id of the cluster in Consul; by default the uid of the namespace kube-system.
    pub cluster_id: Option<String>,
    /// External node that owns the sessions; by default `k8s-<cluster id>`.
    pub consul_node: Option<String>,
    /// Part of the cluster that the operator works for.
    pub scope: Scope,
    /// Kinds of workloads that the operator serves.
    pub workloads: WorkloadChoice,
    /// Settings of the election, which decides which of several replicas leads.
    pub election: leader::ElectionSettings,
    /// Rules that say who may use which prefix with the operator's own token.
    pub tenancy: Tenancy,
    /// Order in which waiting workloads are served.
    pub order: Order,
    /// Maximum size of what is kept of Consul's answers, in bytes.
    pub consul_memory: usize,
}

/// Kinds of workloads that an operator serves.
#[derive(Clone, Debug, Default)]
pub struct WorkloadChoice {
    /// Kinds that come with the operator.
    pub kinds: Kinds,
    /// Name of the `ConfigMap` in the operator's namespace that has rows of other kinds.
    pub table: Option<String>,
}

/// State that all terms of leadership share.
struct SharedState {
    cluster: Cluster,
    /// Name of this replica.
    identity: Arc<str>,
    /// External node that owns the sessions made with the operator's own token, so that restarting a Consul agent
    /// does not end them.
    node: Arc<str>,
    scope: Scope,
    served: WorkloadChoice,
    known: KnownKinds,
    tenancy: Tenancy,
    order: Order,
    /// Time that the other replicas wait for a dead leader; `None` if there is no election.
    lease: Option<Duration>,
    /// Place where the identity of the cluster is kept. `marks` has what is known of the marks from earlier terms.
    place: identity::Place,
    marks: Arc<Marks>,
    session_manager: SessionManager,
    /// Record of when slots were last proved to be held.
    proof_record: ProofRecord,
    /// Owners of the Workloads of Kueue, and what they say.
    owners: Owners,
    events: Events,
    metrics: Metrics,
    /// Sender of the traces of Jobs.
    traces: Traces,
    /// Budget for what is kept of Consul's answers.
    budget: Budget,
    /// Exposure that the first token of a Secret will have, if no warning has named it yet.
    unsaid: Mutex<Option<Exposure>>,
}

/// State of one term of leadership. The clients send no writes after the term.
struct Context {
    shared: Arc<SharedState>,
    client: Client,
    consul: consul::Client,
    identity: Identity,
    index: Index,
    workloads: workload::ClusterWorkloads,
    unfailable: Unfailable,
    /// Record of the last proofs as it was when the term began.
    last_proofs: LastProofs<ProofGroup>,
    prefix_watches: PrefixWatches,
    secrets: Secrets,
}

/// Runs the operator until it is asked to end. Running Jobs keep their slots.
///
/// # Errors
/// The cluster can't be reached at the start, or refuses access to something that the operator must read then.
pub async fn run(
    settings: OperatorSettings,
    consul: consul::Config,
    telemetry: Telemetry,
    shutdown: impl Future<Output = ()> + Clone,
) -> anyhow::Result<()> {
    let addresses = consul.addresses.clone();
    let unsaid = warn_of_exposures(&consul);
    let consul = consul::Client::new(consul::Config {
        observer: Some(Arc::new(Calls(telemetry.metrics.clone()))),
        ..consul
    })?;
    let kubernetes = Config::infer().await.context(
        "no Kubernetes cluster is known: set KUBECONFIG, or run the operator in a cluster",
    )?;
    let client = Client::try_from(kubernetes.clone()).context("the API server")?;
    let cluster = tokio::select! {
        cluster = cluster(&client, settings.cluster_id.clone(), settings.cluster_name.clone(), &telemetry.health) => cluster,
        () = shutdown.clone() => return Ok(()),
    };
    // The operator is not ready before it knows the state of the election, even if all other parts are ready.
    let starting = telemetry.health.part("operator");
    let mut aside = startup_tasks(&client, &settings, &telemetry.health);
    let health = telemetry.health.clone();
    aside.spawn(startup_log::write(consul.clone(), addresses, health));
    // Events for completed work are written even if the lead was lost in the meantime.
    let (known, owners) = (KnownKinds::new(), Owners::default());
    let metrics = telemetry.metrics.clone();
    let (events, write_events) =
        Events::new(client.clone(), metrics, known.clone(), owners.clone());
    let mut writing = JoinSet::new();
    writing.spawn(write_events);
    let node = settings
        .consul_node
        .unwrap_or_else(|| default_node(&cluster.id));
    tracing::info!(cluster = %cluster.name, id = %cluster.id, %node, "serving this cluster");
    log_part(&settings.scope);
    let session_manager = SessionManager::new(telemetry.metrics.clone());
    let guest = consul.clone();
    let lease = settings.election.waits();
    let proof_record = ProofRecord::new(&settings.scope);
    let kept_in = settings.election.clone();
    let identity = settings.election.identity.as_str().into();
    let node: Arc<str> = node.into();
    let place = identity_place(&settings.election, &kubernetes, &cluster, &node);
    let marks = Arc::<Marks>::default();
    aside.spawn(marks.clone().remember(place.clone(), client.clone()));
    let election = leader::Election {
        settings: settings.election,
        kubernetes: kubernetes.clone(),
        consul: consul.clone(),
        node: node.to_string(),
        cluster: cluster.name.clone(),
        cluster_id: cluster.id.clone(),
        telemetry: telemetry.clone(),
        legacy: Arc::new(proof_record.clone()),
    };
    let (heirs, heirs_of_marks) = (session_manager.clone(), marks.clone());
    let on_change = |standing: &Standing| {
        starting.ready();
        if matches!(standing, Standing::Standby { leader: Some(_) }) {
            heirs.hand_over();
            heirs_of_marks.hand_over();
        }
    };
    let Telemetry {
        health,
        metrics,
        traces,
    } = telemetry;
    let budget = counted_budget(settings.consul_memory, &metrics);
    let task = LeaderTask {
        kubernetes,
        consul,
        health,
        kept_in,
        shared: Arc::new(SharedState {
            cluster,
            identity,
            node,
            scope: settings.scope,
            served: settings.workloads,
            known,
            tenancy: settings.tenancy,
            order: settings.order,
            lease,
            place,
            marks,
            session_manager,
            proof_record,
            owners,
            events,
            metrics,
            traces,
            budget,
            unsaid: Mutex::new(unsaid),
        }),
    };
    let work = |term| task.work(term, shutdown.clone());
    let worked = election.run(shutdown.clone(), on_change, work).await;
    // The writer of events ends when the last handle is dropped and the queue of events is empty.
    drop(task);
    let _ = timeout(SHUTDOWN_GRACE, writing.join_all()).await;
    guest.log_out().await;
    worked
}

/// Warns of what the operator's own token is exposed to. Returns what the first token of a Secret would be exposed
/// to, if no warning has named it.
fn warn_of_exposures(consul: &consul::Config) -> Option<Exposure> {
    let exposures = consul.exposures();
    startup_log::warn(&exposures);
    let plain_text = consul.plain_text();
    plain_text.filter(|plain_text| !exposures.contains(plain_text))
}

/// Returns a budget of this many bytes, whose use the metrics show.
fn counted_budget(bytes: usize, metrics: &Metrics) -> Budget {
    let budget = Budget::new(bytes);
    let counted = budget.clone();
    metrics.consul().count_memory(bytes, move || counted.kept());
    budget
}

/// Starts the tasks that report about the cluster in the background. The work of the operator does not depend on
/// them.
fn startup_tasks(client: &Client, settings: &OperatorSettings, health: &Health) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let kinds: Vec<_> = settings.workloads.kinds.iter().cloned().collect();
    tasks.spawn(schema::report(client.clone(), kinds.clone()));
    tasks.spawn(admission::report(client.clone(), kinds));
    tasks.spawn(list_rights::check(
        client.clone(),
        settings.workloads.clone(),
        settings.scope.namespaces.clone(),
        health.clone(),
    ));
    tasks
}

/// Logs which part of the cluster the operator works for, unless that is the whole cluster.
fn log_part(scope: &Scope) {
    if !scope.is_whole() {
        let Scope {
            namespaces,
            semaphores,
        } = scope;
        tracing::info!(%namespaces, %semaphores, "serving only a part of the cluster");
    }
}

/// Returns the place where the identity of this cluster is kept.
fn identity_place(
    election: &leader::ElectionSettings,
    kubernetes: &Config,
    cluster: &Cluster,
    node: &Arc<str>,
) -> identity::Place {
    let namespace = election.namespace.as_ref();
    identity::Place {
        cluster: cluster.clone(),
        node: node.clone(),
        replica: election.identity.as_str().into(),
        namespace: namespace.unwrap_or(&kubernetes.default_namespace).clone(),
        lease: election.lease_name.to_string(),
    }
}

/// Work of the leader. Each term reads everything again that [`SharedState`] does not hold.
struct LeaderTask {
    kubernetes: Config,
    consul: consul::Client,
    health: Health,
    /// Settings of the Lease in which the record of the last proofs is kept.
    kept_in: leader::ElectionSettings,
    shared: Arc<SharedState>,
}

impl LeaderTask {
    /// Works until the process is asked to end or the lead is lost. Then all running tasks are dropped, and nothing
    /// more is written except events for completed work. A process that is asked to end first awaits the answers to its
    /// last writes for a moment.
    fn work(
        &self,
        term: Term,
        shutdown: impl Future<Output = ()>,
    ) -> impl Future<Output = anyhow::Result<()>> {
        // The watches begin before this replica is reported as the leader, so that the replica does not count as
        // ready in between.
        let SharedState {
            scope,
            served,
            metrics,
            ..
        } = &*self.shared;
        let namespace = &self.kubernetes.default_namespace;
        let table = served.table.as_ref().map(|name| (&**namespace, &**name));
        let begun = watches::begin(
            &served.kinds,
            table,
            &scope.namespaces,
            &self.health,
            metrics,
        );
        self.work_with(term, begun, shutdown)
    }

    async fn work_with(
        &self,
        term: Term,
        begun: watches::Begun,
        shutdown: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let client = term
            .kubernetes(self.kubernetes.clone())
            .context("the API server")?;
        let consul = term.consul(&self.consul);
        let (place, marks) = (self.shared.place.clone(), self.shared.marks.clone());
        let identity = Identity::new(term.clone(), client.clone(), &consul, place, marks);
        let sessions = &self.shared.session_manager;
        sessions.come_back();
        let mut stop = std::pin::pin!(async {
            tokio::select! {
                () = shutdown => true,
                () = term.over() => {
                    sessions.leave();
                    false
                }
            }
        });
        let mut aside = JoinSet::new();
        aside.spawn(sessions.clone().settle_in(RENEW_EARLIER_SESSIONS_FOR));
        let record = &self.shared.proof_record;
        let keeper = ProofKeeper::new(
            client.clone(),
            &self.kubernetes.default_namespace,
            &self.kept_in,
            record.clone(),
        );
        if let Some(keeper) = keeper {
            tokio::select! {
                () = keeper.take_over() => {}
                _ = &mut stop => return Ok(()),
            }
            aside.spawn(keeper.keep());
        }
        let context = Arc::new(Context {
            shared: self.shared.clone(),
            workloads: workload::ClusterWorkloads::new(
                client.clone(),
                self.shared.known.clone(),
                workload::ServedKinds::new(&self.shared.served.kinds),
                self.shared.owners.clone(),
            ),
            client,
            consul,
            identity,
            index: record
                .last_at_work()
                .map_or_else(Index::default, Index::after),
            unfailable: Unfailable::default(),
            last_proofs: record.proofs(),
            prefix_watches: PrefixWatches::new(self.shared.budget.clone()),
            secrets: Secrets::default(),
        });
        let worked = watches::run(context, begun, stop).await;
        if !term.lasts() {
            self.shared.metrics.semaphores().forget_all();
        }
        worked
    }
}

/// Returns the identity of this cluster, by the id that was chosen for it or the uid of kube-system. Reading the uid
/// is retried until there is an answer.
async fn cluster(
    client: &Client,
    id: Option<String>,
    name: Option<String>,
    health: &Health,
) -> Cluster {
    let id = match id {
        Some(id) => id,
        None => uid_of_kube_system(client, health).await,
    };
    let name = name.unwrap_or_else(|| id.chars().take(8).collect());
    Cluster { name, id }
}

async fn uid_of_kube_system(client: &Client, health: &Health) -> String {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let part = health.part("cluster");
    let ask = async || match call(namespaces.get("kube-system")).await {
        Ok(Namespace { metadata, .. }) => metadata
            .uid
            .ok_or_else(|| "the namespace kube-system has no uid".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let log = |problem: &String| {
        tracing::warn!(
            problem,
            "the namespace kube-system can't be read: trying again"
        );
        let problem = one_line(problem, 400);
        part.not_ready(format!(
            "can't read the namespace kube-system, whose uid is the cluster's id: {problem}"
        ));
    };
    retry_until_ok(ask, log).await
}

/// Counts the calls to Consul.
struct Calls(Metrics);

impl Observer for Calls {
    fn call(&self, kind: &'static str, result: &'static str, took: Duration) {
        self.0.consul().called(kind, result, took);
    }
}

#[cfg(test)]
mod golden;
