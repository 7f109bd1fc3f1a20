//! Runs the watches of the API server: workloads, the pods of workloads that hold slots, and semaphores.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt, stream::BoxStream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::watcher::{self, Event},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{interval, sleep, timeout},
};

use super::{
    Context,
    advisor::Advisor,
    consul_target::place,
    events::Reason,
    index::{Manager, Offer, SLOW_START},
    intake, kueue,
    semaphore::ConflictReport,
    shell::{Input, LAST_WRITES, Shell},
    table::KindTable,
    ungranted, unproved,
    watching::Watching,
};
use crate::{
    identity::Ownership,
    manifests::Source,
    telemetry::{Health, Metrics},
    watch_scope::WatchScope,
    workload,
};
use consul_client::clock::Moment;
use consul_semaphore::engine::SemaphoreRef;
use consul_semaphore_api::{ConsulSemaphore, scope::Namespaces};
use consul_semaphore_workload::{Kind, Kinds, kueue::OWNERS};

/// Returns the reference to a semaphore.
pub(super) fn reference_of(semaphore: &impl Resource) -> SemaphoreRef {
    let metadata = semaphore.meta();
    SemaphoreRef {
        namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
        name: metadata.name.as_deref().unwrap_or_default().into(),
    }
}

/// The watches, before they start.
pub(super) struct Begun {
    scopes: Vec<BegunScope>,
    table: Option<(KindTable, Watching)>,
}

/// The watches of one scope, before they start.
struct BegunScope {
    scope: WatchScope,
    workloads: Vec<(Kind, Watching)>,
    /// The watch of Kueue's admission checks. Only one scope has it, because they are not namespaced.
    checks: Option<Watching>,
    /// The watches of the kinds that own Workloads of Kueue.
    owners: Vec<(Kind, Watching)>,
    pods: Watching,
    semaphores: Watching,
}

/// Prepares the watches that together cover these kinds and namespaces, and the watch of the table of kinds in this
/// namespace and with this name. From now on, the operator is not ready until everything is listed.
pub(super) fn begin(
    kinds: &Kinds,
    table: Option<(&str, &str)>,
    namespaces: &Namespaces,
    health: &Health,
    metrics: &Metrics,
) -> Begun {
    let scopes = WatchScope::over(namespaces).into_iter();
    let of_kueue = kinds.contains(&Kind::KueueWorkload);
    let check = || {
        Watching::begin("admissionchecks", &WatchScope::Cluster, health, metrics)
            .of(Source::of(&Kind::KueueWorkload))
    };
    let mut checks = of_kueue.then(check);
    let begun = scopes.map(|scope| {
        let begin = |what: &str| Watching::begin(what, &scope, health, metrics);
        let workloads = kinds.iter().map(|kind| {
            let watching = begin(&kind.resource().plural).of(Source::of(kind));
            (kind.clone(), watching)
        });
        let owners = OWNERS.into_iter().filter(|_| of_kueue).map(|kind| {
            let what = kind.resource().plural;
            let watching = Watching::begin_part(&what, "Kueue", &scope, health, metrics);
            let source = match kind {
                Kind::Job => Source::Operator,
                _ => Source::of(&Kind::KueueWorkload),
            };
            (kind, watching.of(source))
        });
        BegunScope {
            owners: owners.collect(),
            workloads: workloads.collect(),
            checks: checks.take(),
            pods: begin("pods"),
            semaphores: begin("consulsemaphores"),
            scope,
        }
    });
    let scopes = begun.collect();
    let table = table.map(|(namespace, name)| KindTable::begin(namespace, name, health, metrics));
    Begun { scopes, table }
}

/// Longest time without a new object for which decisions wait, at the start, for the list of a kind. A list may never
/// come, because the operator may not list the kind or because the row that describes it is wrong. Decisions wait for
/// Jobs without a limit.
const DECIDE_WITHOUT_LIST_AFTER: Duration = Duration::from_secs(10);

/// A list in a scope that is not complete yet. It counts as incomplete until this is dropped.
pub(super) struct Unsynced {
    counts: watch::Sender<usize>,
    /// Moment until which decisions wait for the list; `None`: for ever.
    until: Option<Moment>,
}

impl Unsynced {
    fn of(counts: &watch::Sender<usize>) -> Self {
        counts.send_modify(|unsynced| *unsynced += 1);
        Self {
            counts: counts.clone(),
            until: None,
        }
    }

    /// Adds another incomplete list, for this kind.
    pub(super) fn another(&self, kind: &Kind) -> Self {
        Self::of_kind(&self.counts, kind)
    }

    fn of_kind(counts: &watch::Sender<usize>, kind: &Kind) -> Self {
        let mut one = Self::of(counts);
        one.until = (*kind != Kind::Job).then(|| Moment::now() + DECIDE_WITHOUT_LIST_AFTER);
        one
    }

    /// Extends the wait, because an object was listed.
    pub(super) fn progresses(&mut self) {
        let now = Moment::now();
        self.until = self.until.map(|_| now + DECIDE_WITHOUT_LIST_AFTER);
    }

    /// Completes when decisions do not wait for the list any more.
    pub(super) async fn is_over(unsynced: Option<&Self>) {
        match unsynced.and_then(|unsynced| unsynced.until) {
            Some(until) => sleep(until.since(Moment::now())).await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Unsynced {
    fn drop(&mut self) {
        self.counts.send_modify(|unsynced| *unsynced -= 1);
    }
}

/// Runs the watches and the work until `end`, and then stops everything. If `end` returns that this replica still leads,
/// what the last writes have changed is reported first.
pub(super) async fn run(
    context: Arc<Context>,
    begun: Begun,
    end: impl Future<Output = bool>,
) -> anyhow::Result<()> {
    let shared = context.shared.clone();
    shared.owners.forget_all();
    let mut tasks = JoinSet::new();
    let shell = Shell::new(context.clone());
    let inputs = shell.inputs();
    let (leave, left) = oneshot::channel::<()>();
    tasks.spawn(shell.run(async {
        let _ = left.await;
    }));
    let (mut tabled, has_table) = (Vec::new(), begun.table.is_some());
    for begun in begun.scopes {
        let BegunScope {
            scope,
            workloads,
            checks,
            mut owners,
            pods,
            semaphores,
        } = begun;
        let (counts, unsynced) = watch::channel(0);
        let context = || context.clone();
        tasks.extend(checks.map(|checks| kueue::watch_checks(context(), checks)));
        for (kind, watching) in workloads {
            let (scope, one) = (scope.clone(), Some(Unsynced::of_kind(&counts, &kind)));
            if kind == Kind::KueueWorkload {
                let owners = mem::take(&mut owners);
                tasks.spawn(kueue::watch_workloads(
                    context(),
                    scope,
                    watching,
                    owners,
                    one,
                ));
            } else {
                tasks.spawn(watch_workloads(context(), kind, scope, watching, one));
            }
        }
        if has_table {
            tabled.push((scope.clone(), Unsynced::of(&counts)));
        }
        tasks.spawn(watch_pods(context(), scope.clone(), pods, unsynced.clone()));
        let inputs = inputs.clone();
        tasks.spawn(watch_semaphores(
            context(),
            scope,
            semaphores,
            unsynced,
            inputs,
        ));
    }
    if let Some((table, watching)) = begun.table {
        tasks.spawn(table.run(context.clone(), tabled, watching));
    }
    tasks.spawn(intake::run(context.clone()));
    tasks.spawn(ungranted::run(context.clone()));
    tasks.spawn(unproved::run(context));
    let worked = tokio::select! {
        leads = end => Ok(leads),
        // No part of the operator ends normally.
        ended = tasks.join_next() => Err(anyhow::anyhow!("a part of the operator has failed: {ended:?}")),
    };
    drop(leave);
    // The shell is the only part that ends then. Another replica may lead already if this one has lost the lead, and a
    // part that has failed must not wait for anything.
    if let Ok(true) = worked {
        let _ = timeout(2 * LAST_WRITES, tasks.join_next()).await;
    }
    tasks.shutdown().await;
    shared.owners.forget_all();
    worked.map(drop)
}

/// Returns the next event of a watch, after reporting the watch's health; `None` when the watch ends.
pub(super) async fn next<K>(
    events: &mut (impl Stream<Item = watcher::Result<Event<K>>> + Unpin),
    watching: &mut Watching,
) -> Option<Event<K>> {
    loop {
        let event = tokio::select! {
            event = events.next() => event?,
            () = watching.quiet() => {
                watching.works();
                continue;
            }
        };
        match event {
            // The start of a list does not show yet that the list is allowed.
            Ok(Event::Init) => return Some(Event::Init),
            Ok(Event::InitDone) => {
                watching.synced();
                return Some(Event::InitDone);
            }
            Ok(event) => {
                watching.works();
                return Some(event);
            }
            Err(error) => watching.failed(&error),
        }
    }
}

/// Feeds the workloads of a kind into the index, which keeps only those that concern the operator. `unsynced` is kept
/// until all are listed.
pub(super) async fn watch_workloads(
    context: Arc<Context>,
    kind: Kind,
    scope: WatchScope,
    mut watching: Watching,
    mut unsynced: Option<Unsynced>,
) {
    let kueue = context.shared.served.kinds.contains(&Kind::KueueWorkload);
    let mut events = workload::watch(&kind, kueue, &scope, &context.client, watching.if_missing());
    let kind = kind.name();
    let mut advisor = Advisor::new(context.shared.events.clone());
    loop {
        let event = tokio::select! {
            event = next(&mut events, &mut watching) => event,
            () = Unsynced::is_over(unsynced.as_ref()) => {
                unsynced = None;
                continue;
            }
        };
        let Some(event) = event else {
            return;
        };
        match event {
            Event::Init => {
                context.index.list_begins(&kind, &scope);
                advisor.list_begins();
            }
            Event::InitDone => {
                context.index.list_ends(&kind, &scope);
                advisor.list_ends();
                unsynced = None;
            }
            Event::Apply(Some(workload)) | Event::InitApply(Some(workload)) => {
                unsynced.iter_mut().for_each(Unsynced::progresses);
                advisor.on_update(&workload);
                match workload.tracked {
                    Some(tracked) => context.index.put(&workload.uid, Some(tracked)),
                    // A Workload of Kueue is indexed under the uid of its owner.
                    None => context.index.forget(&kind, &workload.uid),
                }
            }
            Event::Delete(Some(workload)) => {
                context.index.forget(&kind, &workload.uid);
                advisor.forget(&workload.uid);
            }
            Event::Apply(None) | Event::InitApply(None) | Event::Delete(None) => {}
        }
    }
}

/// Notifies the index when pods of workloads that hold slots start and end. The pods are not stored: a proof reads them
/// from the API server. The pods are listed once all workloads are known, because the index keeps nothing of a pod whose
/// workload it does not know.
async fn watch_pods(
    context: Arc<Context>,
    scope: WatchScope,
    mut watching: Watching,
    mut unsynced: watch::Receiver<usize>,
) {
    if unsynced.wait_for(|unsynced| *unsynced == 0).await.is_err() {
        return;
    }
    let index = &context.index;
    let mut events = workload::watch_pods(&scope, &context.client);
    let mut looks = interval(SLOW_START / 3);
    loop {
        let event = tokio::select! {
            event = next(&mut events, &mut watching) => event,
            _ = looks.tick() => {
                index.mark_slow_starts();
                continue;
            }
        };
        let Some(event) = event else {
            return;
        };
        let ended = match event {
            Event::Delete(pod) => {
                if let Some(pod) = &pod {
                    index.pod_seen(pod, true);
                }
                pod
            }
            Event::Apply(pod) | Event::InitApply(pod) => {
                if let Some(pod) = &pod {
                    index.pod_seen(pod, false);
                }
                pod.filter(|pod| pod.ended)
            }
            Event::InitDone => {
                index.pods_listed(&scope);
                None
            }
            Event::Init => None,
        };
        if let Some(pod) = ended {
            index.pod_ended(&pod.namespace, &pod.lock_key, &pod.workload);
        }
    }
}

/// Sends the shell each semaphore that the operator manages, once all workloads are known.
async fn watch_semaphores(
    context: Arc<Context>,
    scope: WatchScope,
    watching: Watching,
    mut unsynced: watch::Receiver<usize>,
    inputs: mpsc::Sender<Input>,
) {
    if unsynced.wait_for(|unsynced| *unsynced == 0).await.is_err() {
        return;
    }
    context.identity.decided().await;
    let events = scope.watch(&context.client, watcher::Config::default());
    Semaphores {
        context,
        scope,
        known: HashMap::new(),
        conflicts: HashMap::new(),
        inputs,
    }
    .run(events, watching)
    .await;
}

/// Manager of a semaphore, as this operator sees it.
#[derive(PartialEq, Eq)]
enum LookedAfter {
    /// This operator manages the semaphore, which has this uid.
    Here(Option<String>),
    ByOthers,
    /// Nobody manages the semaphore yet, because it is unknown to whom the identity belongs where its slots are.
    Later,
    /// Nobody manages the semaphore, because another API server uses the identity where its slots are.
    Nobody,
}

impl LookedAfter {
    fn manager(&self) -> Manager {
        match self {
            Self::Here(_) => Manager::ThisOperator,
            Self::Later => Manager::Undecided,
            Self::ByOthers | Self::Nobody => Manager::Others,
        }
    }
}

struct Semaphores {
    context: Arc<Context>,
    scope: WatchScope,
    /// All existing semaphores.
    known: HashMap<SemaphoreRef, (LookedAfter, Arc<ConsulSemaphore>)>,
    /// Reports about the semaphores that nobody manages.
    conflicts: HashMap<SemaphoreRef, ConflictReport>,
    inputs: mpsc::Sender<Input>,
}

impl Semaphores {
    async fn run(
        mut self,
        mut events: BoxStream<'static, watcher::Result<Event<DeserializeGuard<ConsulSemaphore>>>>,
        mut watching: Watching,
    ) {
        let mut listed: Option<HashSet<SemaphoreRef>> = None;
        let context = self.context.clone();
        let mut identity = context.identity.changes();
        loop {
            let event = tokio::select! {
                event = next(&mut events, &mut watching) => event,
                // The sender is in the context, so it outlives this loop.
                _ = identity.changed() => {
                    self.reconsider().await;
                    continue;
                }
            };
            match event {
                Some(Event::Init) => listed = Some(HashSet::new()),
                Some(Event::InitApply(semaphore)) => {
                    if let Some(listed) = &mut listed {
                        listed.insert(reference_of(&semaphore));
                    }
                    self.put(semaphore).await;
                }
                Some(Event::InitDone) => {
                    let listed = listed.take().unwrap_or_default();
                    let gone: Vec<_> = self
                        .known
                        .keys()
                        .filter(|known| !listed.contains(*known))
                        .cloned()
                        .collect();
                    for reference in &gone {
                        tracing::info!(semaphore = %reference, "the semaphore was deleted while disconnected; letting its sessions expire");
                        self.remove(reference).await;
                    }
                    self.context.index.semaphores_are_known(&self.scope);
                }
                Some(Event::Apply(semaphore)) => self.put(semaphore).await,
                Some(Event::Delete(semaphore)) => self.remove(&reference_of(&semaphore)).await,
                None => return,
            }
        }
    }

    async fn put(&mut self, DeserializeGuard(read): DeserializeGuard<ConsulSemaphore>) {
        let semaphore = match read {
            Ok(semaphore) => Arc::new(semaphore),
            Err(invalid) => return self.report_invalid(&invalid),
        };
        self.place(semaphore).await;
    }

    /// Decides again who manages each semaphore, because the owner of the identity has changed somewhere.
    async fn reconsider(&mut self) {
        let all: Vec<_> = self.known.values().map(|(_, it)| it.clone()).collect();
        for semaphore in all {
            self.place(semaphore).await;
        }
    }

    /// Returns who manages this semaphore, and, if nobody does, why.
    fn looked_after(&self, semaphore: &ConsulSemaphore) -> (LookedAfter, Option<String>) {
        let context = &self.context;
        if !context.shared.scope.semaphores.matches(semaphore.labels()) {
            return (LookedAfter::ByOthers, None);
        }
        let datacenter = place(semaphore).datacenter;
        let ownership = context.identity.ownership(datacenter.as_deref());
        match &*ownership.borrow() {
            Ownership::Undecided => (LookedAfter::Later, None),
            Ownership::Ours(_) | Ownership::Unknown(_) => {
                (LookedAfter::Here(semaphore.uid()), None)
            }
            Ownership::Conflict(message) => (LookedAfter::Nobody, Some(message.clone())),
        }
    }

    /// Hands a semaphore to its manager, or ends the work on it if this operator does not manage it.
    async fn place(&mut self, semaphore: Arc<ConsulSemaphore>) {
        let reference = reference_of(semaphore.as_ref());
        let (looked_after, conflict) = self.looked_after(&semaphore);
        let ours = matches!(looked_after, LookedAfter::Here(_));
        let offer = Offer::of(&semaphore, &self.context.shared.tenancy);
        let before = self.known.get(&reference).map(|(before, _)| before);
        let known = (looked_after, semaphore.clone());
        if ours && before == Some(&known.0) {
            let index = &self.context.index;
            index.update_semaphore(&reference, offer).await;
            self.known.insert(reference, known);
            return self.send(Input::Put(semaphore)).await;
        }
        if self.dismiss(&reference).await && known.0 == LookedAfter::ByOthers {
            tracing::info!(semaphore = %reference, "left to another operator: the selector no longer matches its labels");
        }
        let index = &self.context.index;
        index
            .add_semaphore(&reference, offer, known.0.manager())
            .await;
        self.report_conflict(&reference, &semaphore, conflict);
        self.known.insert(reference, known);
        if ours {
            self.send(Input::Put(semaphore)).await;
        }
    }

    /// Reports that another API server uses the identity where a semaphore is, with this message, or ends the report.
    fn report_conflict(
        &mut self,
        reference: &SemaphoreRef,
        semaphore: &Arc<ConsulSemaphore>,
        message: Option<String>,
    ) {
        let reported = self.conflicts.remove(reference);
        let Some(message) = message else {
            return;
        };
        let reported = reported.filter(|reported| reported.is_of(semaphore));
        let start = || ConflictReport::start(&self.context, semaphore.clone());
        let mut report = reported.unwrap_or_else(start);
        report.say(&self.context, semaphore.clone(), message);
        self.conflicts.insert(reference.clone(), report);
    }

    async fn remove(&mut self, reference: &SemaphoreRef) {
        self.dismiss(reference).await;
        self.conflicts.remove(reference);
        self.context.index.remove_semaphore(reference).await;
    }

    /// Ends the work on a semaphore; returns whether there was any. The work ends before the index learns of another
    /// semaphore with that name, so that no workload that waits for the new semaphore gets a slot of the old one.
    async fn dismiss(&mut self, reference: &SemaphoreRef) -> bool {
        let known = self.known.remove(reference);
        let ours = matches!(known, Some((LookedAfter::Here(_), _)));
        if ours {
            let (removed, ended) = oneshot::channel();
            self.send(Input::Removed(reference.clone(), removed)).await;
            let _ = ended.await;
        }
        ours
    }

    /// Sends an input to the shell, which lives as long as this.
    async fn send(&self, input: Input) {
        let _ = self.inputs.send(input).await;
    }

    /// Reports an object that can't be read. The schema rejects such objects, so this one was stored before the
    /// schema.
    fn report_invalid(&self, invalid: &kube::core::error_boundary::InvalidObject) {
        let labels = invalid.metadata.labels.clone().unwrap_or_default();
        if !self.context.shared.scope.semaphores.matches(&labels) {
            return;
        }
        let about = ObjectReference {
            api_version: Some(ConsulSemaphore::api_version(&()).into()),
            kind: Some(ConsulSemaphore::kind(&()).into()),
            namespace: invalid.metadata.namespace.clone(),
            name: invalid.metadata.name.clone(),
            uid: invalid.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        let note = format!(
            "this ConsulSemaphore can't be read. Correct it: {}",
            invalid.error
        );
        tracing::warn!(name = invalid.metadata.name, "{note}");
        self.context
            .shared
            .events
            .emit(about, Reason::InvalidSemaphore, note);
    }
}
