//! Serves Kueue, which asks before it admits a Workload. Two things are served: the admission checks of
//! `consul-semaphore.io/slots`, each of which is said to be active, and the Workloads that wait for their answer.
//!
//! What the owner of a Workload says decides what the Workload waits for, so the owner is read before the index has
//! the Workload. A Workload that asks for no slot is Ready at once. A Workload whose owner can't be read is Pending,
//! and its message says why.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use kube::{
    Api,
    api::{PartialObjectMeta, Patch},
    runtime::watcher::{self, Event},
};
use tokio::{sync::mpsc, task::JoinSet, time::sleep};

use super::{
    Context,
    tasks::{Pause, Tasks},
    watches::{Unsynced, next},
    watching::Watching,
};
use crate::{
    call::{CALL_TIMEOUT, CallError, call, patch_params},
    watch_scope::WatchScope,
    workload::{Urgency, WorkloadName, WorkloadWrite, WriteError},
};
use consul_client::{
    clock::{self, Moment},
    turns::FairTurns,
};
use consul_semaphore::{KindName, Uid, holding::Setback};
use consul_semaphore_workload::{
    Kind, Object, Obstacle, Request, TrackedWorkload,
    kueue::{self, AdmissionCheck, Asked, Owner, QUEUE},
};

/// Number of Workloads or admission checks that are read or answered at once, in fair shares for each namespace.
const CONCURRENCY: usize = 16;

/// Number of owners that may have changed before they are read.
const CHANGED_OWNERS_CAPACITY: usize = 64;

/// Longest time at the start for which nothing is decided because owners are not read yet.
const DECIDE_WITHOUT_OWNERS_AFTER: Duration = Duration::from_secs(10);

/// Number of Workloads that are named in the log because their owners are not read yet.
const MOST_WORKLOADS_NAMED: usize = 5;

/// Says that each admission check of ours is active, and keeps the names of these checks.
pub(super) async fn watch_checks(context: Arc<Context>, mut watching: Watching) {
    let resource = kueue::admission_checks();
    let api: Api<Object> = Api::all_with(context.client.clone(), &resource);
    let scope = WatchScope::Cluster;
    let mut events = scope.watch_resource::<Object>(
        &context.client,
        resource,
        watcher::Config::default(),
        watching.if_missing(),
    );
    let mut checks = Checks::default();
    let mut tasks = Tasks::new(CONCURRENCY);
    loop {
        let now = Moment::now();
        while let Some(uid) = tasks.take_due(now) {
            let namespace = "".into();
            match checks.uids.get(&uid) {
                Some(name) if tasks.may_start(&uid, &namespace) => {
                    tasks.start(uid, namespace, activate(api.clone(), name.clone()));
                }
                Some(_) => {}
                None => tasks.rest(&uid, now),
            }
        }
        let wait = tasks.wait(now);
        let event = tokio::select! {
            event = next(&mut events, &mut watching) => event,
            Some((uid, activated)) = tasks.next() => {
                let now = Moment::now();
                match activated {
                    Activated::Already => tasks.rest(&uid, now),
                    // Another program may change the status back at once, and again.
                    Activated::Now => tasks.pause(&uid, |before| Pause::outrun(before, now)),
                    Activated::Not => tasks.pause(&uid, |before| Pause::after_failure(before, now)),
                }
                continue;
            }
            () = sleep(wait) => continue,
        };
        let Some(event) = event else {
            return;
        };
        if let Some(inactive) = checks.on(event) {
            tasks.plan(&inactive, Moment::now());
        }
        if checks.listing.is_none() {
            context.shared.owners.set_checks(&checks.names);
        }
    }
}

/// Our admission checks: those of `consul-semaphore.io/slots`.
#[derive(Default)]
struct Checks {
    names: BTreeSet<String>,
    /// Names in the list that is being received.
    listing: Option<BTreeSet<String>>,
    uids: HashMap<Uid, String>,
}

impl Checks {
    /// Handles an event of the watch. Returns the uid of an admission check if the check is ours and does not say
    /// that it is active.
    fn on(&mut self, event: Event<Object>) -> Option<Uid> {
        match event {
            Event::Init => self.listing = Some(BTreeSet::new()),
            Event::InitDone => {
                self.names = self.listing.take().unwrap_or_default();
                self.uids.retain(|_, name| self.names.contains(name));
            }
            Event::Apply(object) | Event::InitApply(object) => {
                let name = object.metadata.name.clone().unwrap_or_default();
                let uid = Uid::from(object.metadata.uid.as_deref().unwrap_or_default());
                let names = self.listing.as_mut().unwrap_or(&mut self.names);
                let Ok(Some(check)) = AdmissionCheck::of(&object) else {
                    names.remove(&name);
                    self.uids.remove(&uid);
                    return None;
                };
                names.insert(name.clone());
                self.uids.insert(uid.clone(), name);
                return check.active(clock::time()).map(|_| uid);
            }
            Event::Delete(object) => {
                let name = object.metadata.name.unwrap_or_default();
                self.names.remove(&name);
                self.uids.retain(|_, known| *known != name);
            }
        }
        None
    }
}

/// Whether an admission check says that it is active.
#[derive(Debug, PartialEq, Eq)]
enum Activated {
    Already,
    /// The status was written, or the check has changed. The watch shows the check as it is then.
    Now,
    Not,
}

/// Writes into the status of an admission check that it is active.
async fn activate(api: Api<Object>, name: String) -> Activated {
    let read = |object: &Object| {
        let check = AdmissionCheck::of(object).ok().flatten();
        check.and_then(|check| check.active(clock::time()))
    };
    let activated = async {
        let Some(active) = read(&call(api.get(&name)).await?) else {
            return Ok(Activated::Already);
        };
        let (params, patch) = (patch_params(), Patch::Merge(&active));
        let written = call(api.patch_status(&name, &params, &patch)).await?;
        if read(&written).is_some() {
            tracing::warn!(
                check = name,
                "the API server accepts the condition Active of an admission check, but does not store it"
            );
            return Ok(Activated::Not);
        }
        Ok::<_, CallError>(Activated::Now)
    };
    match activated.await {
        Ok(activated) => activated,
        Err(error) if matches!(error.refusal(), Some((404 | 409, _))) => Activated::Now,
        Err(error) => {
            tracing::warn!(check = name, %error, "can't set the condition Active of an admission check");
            Activated::Not
        }
    }
}

/// Feeds the Workloads of Kueue with a check of ours into the index, and answers those that get no slot. `unsynced`
/// exists until all Workloads are listed.
pub(super) async fn watch_workloads(
    context: Arc<Context>,
    scope: WatchScope,
    mut watching: Watching,
    of_owners: Vec<(Kind, Watching)>,
    mut unsynced: Option<Unsynced>,
) {
    let mut checks = context.shared.owners.checks();
    while checks.borrow_and_update().is_none() {
        tokio::select! {
            changed = checks.changed() => if changed.is_err() {
                return;
            },
            () = Unsynced::is_over(unsynced.as_ref()) => unsynced = None,
        }
    }
    let (sender, mut news) = mpsc::channel(CHANGED_OWNERS_CAPACITY);
    let mut owners = JoinSet::new();
    for (kind, watching) in of_owners {
        let (context, scope, sender) = (context.clone(), scope.clone(), sender.clone());
        owners.spawn(watch_owners(context, scope, kind, watching, sender));
    }
    let mut workloads = KueueWorkloads::new(context.clone(), scope.clone());
    loop {
        // A Workload may have an entry of a check that was not known to be ours. A new list shows such entries, so it
        // begins with each change of our checks.
        checks.mark_unchanged();
        let mut events = scope.watch_resource::<Object>(
            &context.client,
            Kind::KueueWorkload.resource(),
            watcher::Config::default(),
            watching.if_missing(),
        );
        loop {
            tokio::select! {
                event = next(&mut events, &mut watching) => match event {
                    Some(Event::InitDone) => {
                        workloads.listed().await;
                        drop(unsynced.take());
                    }
                    Some(event) => {
                        if matches!(event, Event::InitApply(_)) {
                            unsynced.iter_mut().for_each(Unsynced::progresses);
                        }
                        workloads.on(event);
                    }
                    None => return,
                },
                () = Unsynced::is_over(unsynced.as_ref()) => unsynced = None,
                Some(done) = workloads.tasks.join_next() => workloads.on_done(done),
                Some(name) = news.recv() => workloads.read(name, None, Duration::ZERO),
                ours = checks.changed() => match ours {
                    Ok(()) => break,
                    Err(_) => return,
                },
            }
        }
    }
}

/// Watches owners of Workloads and notes what they say. While the watch fails, changes are not noticed.
async fn watch_owners(
    context: Arc<Context>,
    scope: WatchScope,
    kind: Kind,
    mut watching: Watching,
    changes: mpsc::Sender<WorkloadName>,
) {
    let config = watcher::Config::default().labels(QUEUE);
    let mut events = scope.watch_resource::<PartialObjectMeta<Object>>(
        &context.client,
        kind.resource(),
        config,
        watching.if_missing(),
    );
    while let Some(event) = next(&mut events, &mut watching).await {
        let (Event::Apply(owner) | Event::InitApply(owner)) = event else {
            continue;
        };
        let owner = owner.metadata;
        let Some(uid) = owner.uid.as_deref() else {
            continue;
        };
        let says = kueue::annotations(&owner);
        if let Some(workload) = context.shared.owners.says(&uid.into(), says)
            && changes.send(workload).await.is_err()
        {
            return;
        }
    }
}

/// Result of a task for a Workload.
enum KueueTaskDone {
    /// The Workload was read: `None` if it is gone, or can't be read. The result says whether its owner could be
    /// read, too, or why not.
    Read(WorkloadName, Option<Box<Object>>, Result<(), String>),
    /// The Workload was answered; `false` if the answer failed and is to be tried again.
    Answered(WorkloadName, bool),
}

/// Workloads of one scope.
struct KueueWorkloads {
    context: Arc<Context>,
    scope: WatchScope,
    kind: KindName,
    /// Workloads with a check of ours, with the uids of their owners.
    known: HashMap<WorkloadName, Uid>,
    /// Workloads with a check of ours that are in the list that is being received.
    listed: HashSet<WorkloadName>,
    /// Workloads that are being read, and whether they have changed since the reading began.
    reading: HashMap<WorkloadName, bool>,
    setbacks: HashMap<WorkloadName, Setback>,
    turns: FairTurns,
    tasks: JoinSet<KueueTaskDone>,
}

impl KueueWorkloads {
    fn new(context: Arc<Context>, scope: WatchScope) -> Self {
        Self {
            context,
            scope,
            kind: Kind::KueueWorkload.name(),
            known: HashMap::new(),
            listed: HashSet::new(),
            reading: HashMap::new(),
            setbacks: HashMap::new(),
            turns: FairTurns::new(CONCURRENCY),
            tasks: JoinSet::new(),
        }
    }

    fn on(&mut self, event: Event<Object>) {
        match event {
            Event::Init => {
                self.context.index.list_begins(&self.kind, &self.scope);
                self.listed.clear();
            }
            Event::InitApply(object) => {
                self.listed.extend(name_of(&object));
                self.show(object);
            }
            Event::Apply(object) => self.show(object),
            Event::Delete(object) => self.forget(name_of(&object)),
            Event::InitDone => {}
        }
    }

    /// Handles the end of the list. It first waits until the Workloads are in the index, as far as their owners can
    /// be read, because the semaphores are served after that.
    async fn listed(&mut self) {
        let end = Moment::now() + DECIDE_WITHOUT_OWNERS_AFTER;
        while self.are_read_first().next().is_some() {
            tokio::select! {
                Some(done) = self.tasks.join_next() => self.on_done(done),
                () = sleep(end.since(Moment::now())) => {
                    let missing = self.are_read_first().count();
                    let some: Vec<_> = self.are_read_first().take(MOST_WORKLOADS_NAMED).collect();
                    tracing::warn!(
                        missing,
                        ?some,
                        "some owners of Workloads of Kueue have not been read yet: continuing without them"
                    );
                    break;
                }
            }
        }
        let gone = self
            .known
            .keys()
            .filter(|name| !self.listed.contains(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.forget(Some(name));
        }
        self.context.index.list_ends(&self.kind, &self.scope);
    }

    /// Returns the Workloads that are being read for the first time, without an earlier failure.
    fn are_read_first(&self) -> impl Iterator<Item = &WorkloadName> {
        let reading = self.reading.keys();
        reading.filter(|name| !self.setbacks.contains_key(*name))
    }

    fn forget(&mut self, name: Option<WorkloadName>) {
        let Some(name) = name else {
            return;
        };
        self.setbacks.remove(&name);
        if let Some(uid) = self.known.remove(&name) {
            self.let_go(&uid, &name);
        }
    }

    /// Notes that a Workload has this owner no more.
    fn let_go(&self, owner: &Uid, name: &WorkloadName) {
        if self.context.shared.owners.forget(owner, name) {
            self.context.index.forget(&self.kind, owner);
        }
    }

    /// Removes a Workload from the index that is not ours, but may have been.
    fn leave(&self, name: &WorkloadName) {
        let uid = self.known.get(name);
        if let Some(uid) = uid.filter(|uid| self.context.shared.owners.is_of(uid, name)) {
            self.context.index.forget(&self.kind, uid);
        }
    }

    /// Handles a Workload that the watch shows.
    fn show(&mut self, object: Object) {
        if let Some(name) = self.see(object, Ok(())) {
            self.try_again(name);
        }
    }

    /// Handles the current version of a Workload; `owner` has the reason why its owner can't be read, if it can't.
    /// Returns the name of the Workload if it is to be looked at again.
    fn see(&mut self, mut object: Object, owner: Result<(), String>) -> Option<WorkloadName> {
        let name = name_of(&object)?;
        let tracked = self.context.shared.owners.track(&mut object, Moment::now());
        match tracked.and_then(|tracked| Ok((tracked, Asked::of(&object)?))) {
            Ok((None, Some(asked))) if asked.is_finished() => self.forget(Some(name)),
            Ok((tracked, Some(asked))) => match kueue::owner(&object) {
                Ok(served) => return self.serve(name, tracked, &asked, served, owner),
                Err(why) => {
                    // The owner may have been deleted without the Workload.
                    self.forget(Some(name.clone()));
                    self.answer(name, &asked, asked.pending(&why, clock::time()));
                }
            },
            // None of our checks is asked about the Workload any more, if any ever was. The Workload keeps the slots
            // that it holds until its owner has no pods.
            Ok((_, None)) => self.leave(&name),
            Err(error) => {
                tracing::warn!(name = name.1, %error, "a Workload of Kueue can't be read");
                self.forget(Some(name));
            }
        }
        None
    }

    /// Handles a Workload that our check is asked about, with its owner. Returns the name of the Workload if it is to
    /// be looked at again.
    fn serve(
        &mut self,
        name: WorkloadName,
        tracked: Option<TrackedWorkload>,
        asked: &Asked,
        served: Owner,
        owner: Result<(), String>,
    ) -> Option<WorkloadName> {
        let owners = &self.context.shared.owners;
        let is_known = owners.note(&name, &served, asked.looks_back());
        if asked.is_finished() {
            owners.is_over(&served.uid);
        }
        if let Some(before) = self.known.insert(name.clone(), served.uid.clone())
            && before != served.uid
        {
            self.let_go(&before, &name);
        }
        let obstacle = tracked.as_ref().map(|tracked| tracked.obstacle.clone());
        match tracked {
            Some(tracked) => self.context.index.put(&served.uid, Some(tracked)),
            None => self.leave(&name),
        }
        let now = clock::time();
        match obstacle {
            _ if asked.is_finished() => {}
            _ if !is_known => match owner {
                Ok(()) => self.read(name, Some(served), Duration::ZERO),
                Err(why) => self.answer(name, asked, asked.pending(&why, now)),
            },
            Some(Some(Obstacle::Unfit(why))) => {
                self.answer(name, asked, asked.pending(&why, now));
            }
            Some(_) => {}
            // If Kueue had an answer, the next run would keep the slots of the last one.
            None if asked.waits() && self.context.index.has_contender(&served.uid) => {
                let why = "waits until the slots of its last run are free";
                self.answer(name.clone(), asked, asked.pending(why, now));
                return Some(name);
            }
            None => self.answer(name, asked, asked.ready(now)),
        }
        None
    }

    /// Answers Kueue about a Workload, if the Workload waits for an answer.
    fn answer(&mut self, name: WorkloadName, asked: &Asked, answer: Option<Request>) {
        let Some(request) = answer.filter(|_| asked.waits()) else {
            return;
        };
        let (context, turns) = (self.context.clone(), self.turns.clone());
        let write = WorkloadWrite {
            namespace: name.0.as_str().into(),
            target: asked.target().clone(),
            request,
            below: Vec::new(),
            urgency: Urgency::Usual,
            timeout: CALL_TIMEOUT,
            deadline: None,
            holds: false,
        };
        self.tasks.spawn(async move {
            let _turn = turns.take(&write.namespace).await;
            let done = match context.workloads.write(write).await {
                // The watch shows what has changed.
                Ok(_) | Err(WriteError::Outdated(_)) => true,
                Err(error) => {
                    tracing::warn!(namespace = name.0, workload = name.1, %error, "can't answer Kueue");
                    false
                }
            };
            KueueTaskDone::Answered(name, done)
        });
    }

    /// Reads a Workload again after a while. If `owner` is given, nothing is known of that owner, so it is read
    /// before the Workload.
    fn read(&mut self, name: WorkloadName, owner: Option<Owner>, wait: Duration) {
        if let Some(changed) = self.reading.get_mut(&name) {
            *changed = true;
            return;
        }
        self.reading.insert(name.clone(), false);
        let (context, turns) = (self.context.clone(), self.turns.clone());
        self.tasks.spawn(async move {
            sleep(wait).await;
            let _turn = turns.take(&name.0.as_str().into()).await;
            let told = match &owner {
                Some(owner) => read_owner(&context, &name.0, owner).await,
                None => Ok(()),
            };
            let workload = Kind::KueueWorkload.resource();
            let api: Api<Object> = Api::namespaced_with(context.client.clone(), &name.0, &workload);
            let object = call(api.get(&name.1)).await;
            KueueTaskDone::Read(name, object.ok().map(Box::new), told)
        });
    }

    fn on_done(&mut self, done: Result<KueueTaskDone, tokio::task::JoinError>) {
        match done {
            Ok(KueueTaskDone::Read(name, object, owner)) => {
                let changed = self.reading.remove(&name) == Some(true);
                // The Workload may have been deleted meanwhile.
                if !self.known.contains_key(&name) {
                    return;
                }
                let failed = object.is_none() || owner.is_err();
                let again = object.and_then(|object| self.see(*object, owner));
                if failed || again.is_some() {
                    self.try_again(name.clone());
                } else {
                    self.setbacks.remove(&name);
                }
                if changed {
                    self.read(name, None, Duration::ZERO);
                }
            }
            Ok(KueueTaskDone::Answered(name, true)) => drop(self.setbacks.remove(&name)),
            Ok(KueueTaskDone::Answered(name, false)) => self.try_again(name),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    fn try_again(&mut self, name: WorkloadName) {
        let Some(uid) = self.known.get(&name) else {
            return;
        };
        let owner = self.context.shared.owners.owner(uid);
        let setback = Setback::after(self.setbacks.get(&name), Moment::now());
        let wait = setback.until.since(Moment::now());
        self.setbacks.insert(name.clone(), setback);
        self.read(name, owner, wait);
    }
}

/// Reads what the owner of a Workload says, and notes it. If the Workload was evicted, this also reads in which slots
/// the owner's pods run.
async fn read_owner(context: &Context, namespace: &str, owner: &Owner) -> Result<(), String> {
    let Owner { kind, name, uid } = owner;
    let title = format!("{} {name}", kind.name());
    let api: Api<Object> =
        Api::namespaced_with(context.client.clone(), namespace, &kind.resource());
    let read = call(api.get_metadata(name)).await;
    let metadata = read
        .map_err(|error| format!("its owner, {title}, can't be read: {error}"))?
        .metadata;
    if metadata.uid.as_deref() != Some(uid.as_ref()) {
        return Err(format!(
            "its owner, {title}, has been replaced by another object with the same name"
        ));
    }
    let (annotations, owners) = (kueue::annotations(&metadata), &context.shared.owners);
    let mut earlier = None;
    if owners.looks_back(uid) {
        let found = context.workloads.slots_of_pods(namespace, uid).await;
        earlier = Some(found.map_err(|error| format!("its pods can't be listed: {error}"))?);
    }
    owners.read(uid, namespace, annotations, earlier);
    Ok(())
}

fn name_of(object: &Object) -> Option<WorkloadName> {
    let metadata = &object.metadata;
    Some((metadata.namespace.clone()?, metadata.name.clone()?))
}

#[cfg(test)]
mod tests {
    use http::{Method, Request as HttpRequest, Response};
    use http_body_util::BodyExt as _;
    use kube::{Client, client::Body};
    use serde_json::{Value, json};
    use tower::{BoxError, service_fn};

    use super::*;

    fn check(status: &Value) -> Value {
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "AdmissionCheck",
            "metadata": { "name": "slots", "uid": "u", "resourceVersion": "7", "generation": 1 },
            "spec": { "controllerName": "consul-semaphore.io/slots" },
            "status": status,
        })
    }

    /// Returns the result for an admission check with this status; `keeps` says whether the API server keeps what is
    /// written.
    async fn activated(status: Value, keeps: bool) -> Activated {
        let service = service_fn(move |request: HttpRequest<Body>| {
            let status = status.clone();
            async move {
                let is_write = request.method() == Method::PATCH;
                let body = request.into_body().collect().await?.to_bytes();
                let answer = if is_write && keeps {
                    let patch: Value = serde_json::from_slice(&body)?;
                    check(&patch["status"])
                } else {
                    check(&status)
                };
                let answer = Body::from(serde_json::to_vec(&answer)?);
                Ok::<_, BoxError>(Response::new(answer))
            }
        });
        let client = Client::new(service, "default");
        let api = Api::all_with(client, &kueue::admission_checks());
        activate(api, "slots".to_owned()).await
    }

    /// A status that the API server does not keep is tried again after a pause, like a refusal.
    #[tokio::test]
    async fn an_admission_check_that_does_not_keep_that_it_is_active_is_not_active() {
        assert_eq!(activated(json!({}), true).await, Activated::Now);
        assert_eq!(activated(json!({}), false).await, Activated::Not);
        let fresh: Object = serde_json::from_value(check(&json!({}))).unwrap();
        let active = AdmissionCheck::of(&fresh)
            .unwrap()
            .unwrap()
            .active(clock::time());
        let status = active.unwrap()["status"].clone();
        assert_eq!(activated(status, false).await, Activated::Already);
    }

    #[test]
    fn only_an_admission_check_of_ours_is_to_be_activated() {
        let object = |controller: &str| -> Object {
            let mut object = check(&json!({}));
            object["spec"]["controllerName"] = controller.into();
            serde_json::from_value(object).unwrap()
        };
        let mut checks = Checks::default();
        assert_eq!(checks.on(Event::Init), None);
        let ours = || object("consul-semaphore.io/slots");
        assert_eq!(checks.on(Event::InitApply(ours())), Some("u".into()));
        assert_eq!(checks.on(Event::InitDone), None);
        assert_eq!(checks.names, ["slots".to_owned()].into());
        assert_eq!(checks.on(Event::Apply(object("others"))), None);
        assert!(checks.names.is_empty() && checks.uids.is_empty());
        checks.on(Event::Apply(ours()));
        checks.on(Event::Delete(ours()));
        assert!(checks.names.is_empty() && checks.uids.is_empty());
    }
}
