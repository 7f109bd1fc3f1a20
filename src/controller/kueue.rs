//! Kueue asks before it admits a Workload: the admission checks of `consul-semaphore.io/slots`, each of which is said to
//! be active, and the Workloads that wait for their answer.
//!
//! What the owner of a Workload says decides what it waits for, so it is read before the index has the Workload. One
//! that asks for no slot is Ready at once; one whose owner can't be read is Pending, and says why.

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
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::sleep,
};

use super::{
    Context,
    watches::{Unsynced, next},
    watching::Watching,
};
use crate::{
    call::{CALL_TIMEOUT, CallError, call, patch_params},
    watch_scope::WatchScope,
    workload::{Urgency, WorkloadName, WorkloadWrite, WriteError},
};
use consul_client::clock::{self, Moment};
use consul_semaphore::{KindName, Uid, holding::Setback};
use consul_semaphore_workload::{
    Kind, Object, Obstacle, Request, TrackedWorkload,
    kueue::{self, Asked, Check, Owner, QUEUE},
};

/// How many Workloads are read or answered at once.
const CONCURRENCY: usize = 16;

/// How many owners may have changed before they are read.
const CHANGES: usize = 64;

/// For how long at most nothing is decided at the start because owners are not read yet.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many Workloads are named whose owners are not read yet.
const NAMED: usize = 5;

/// Says that each admission check of ours is active, and keeps their names.
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
    let mut ours: BTreeSet<String> = BTreeSet::new();
    let mut listing: Option<BTreeSet<String>> = None;
    // Those that could not be written to.
    let mut setbacks: HashMap<String, Setback> = HashMap::new();
    loop {
        let due = setbacks.values().map(|setback| setback.until).min();
        let wait = due.map_or(Duration::MAX, |due| due.since(Moment::now()));
        let event = tokio::select! {
            event = next(&mut events, &mut watching) => event,
            () = sleep(wait) => {
                let now = Moment::now();
                let due = setbacks.iter().filter(|(_, setback)| setback.until <= now);
                let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
                for name in due {
                    let object = call(api.get(&name)).await;
                    activate(&api, &name, object, &mut setbacks).await;
                }
                continue;
            }
        };
        match event {
            Some(Event::Init) => listing = Some(BTreeSet::new()),
            Some(Event::InitDone) => ours = listing.take().unwrap_or_default(),
            Some(Event::Apply(object) | Event::InitApply(object)) => {
                let name = object.metadata.name.clone().unwrap_or_default();
                let is_ours = matches!(Check::of(&object), Ok(Some(_)));
                let names = listing.as_mut().unwrap_or(&mut ours);
                if is_ours {
                    names.insert(name.clone());
                    activate(&api, &name, Ok(object), &mut setbacks).await;
                } else {
                    names.remove(&name);
                    setbacks.remove(&name);
                }
            }
            Some(Event::Delete(object)) => {
                let name = object.metadata.name.unwrap_or_default();
                ours.remove(&name);
                setbacks.remove(&name);
            }
            None => return,
        }
        if listing.is_none() {
            context.shared.owners.set_checks(&ours);
        }
    }
}

/// Says that an admission check is active. A conflict is not tried again: the watch shows what there is now.
async fn activate(
    api: &Api<Object>,
    name: &str,
    object: Result<Object, CallError>,
    setbacks: &mut HashMap<String, Setback>,
) {
    let before = setbacks.remove(name);
    let activated = async {
        let check = Check::of(&object?).ok().flatten();
        if let Some(active) = check.and_then(|check| check.active(clock::time())) {
            let (params, patch) = (patch_params(), Patch::Merge(&active));
            call(api.patch_status(name, &params, &patch)).await?;
        }
        Ok::<_, CallError>(())
    };
    let Err(error) = activated.await else {
        return;
    };
    if !matches!(error.refusal(), Some((404 | 409, _))) {
        tracing::warn!(check = name, %error, "can't say that an admission check is active");
        let setback = Setback::after(before.as_ref(), Moment::now());
        setbacks.insert(name.to_owned(), setback);
    }
}

/// Feeds the Workloads of Kueue with a check of ours into the index, and answers those that get no slot. `unsynced` is
/// there until all are listed.
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
    let (sender, mut news) = mpsc::channel(CHANGES);
    let mut owners = JoinSet::new();
    for (kind, watching) in of_owners {
        let (context, scope, sender) = (context.clone(), scope.clone(), sender.clone());
        owners.spawn(watch_owners(context, scope, kind, watching, sender));
    }
    let mut workloads = Workloads::new(context.clone(), scope.clone());
    loop {
        // Entries of a check that was not known to be ours are seen in another list.
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

/// Notes what owners of Workloads say. While this fails, a change is not noticed.
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

/// What was done about a Workload.
enum Done {
    /// It was read: `None` if it is gone, or can't be. Its owner was read, too, or why it can't be.
    Read(WorkloadName, Option<Box<Object>>, Result<(), String>),
    /// It was answered, or it is to be tried again.
    Answered(WorkloadName, bool),
}

/// The Workloads of a scope.
struct Workloads {
    context: Arc<Context>,
    scope: WatchScope,
    kind: KindName,
    /// Those with a check of ours, with the uids of their owners.
    known: HashMap<WorkloadName, Uid>,
    /// Those of them in the list that is being received.
    listed: HashSet<WorkloadName>,
    /// Those that are being read, and whether they have changed since.
    reading: HashMap<WorkloadName, bool>,
    setbacks: HashMap<WorkloadName, Setback>,
    turns: Arc<Semaphore>,
    tasks: JoinSet<Done>,
}

impl Workloads {
    fn new(context: Arc<Context>, scope: WatchScope) -> Self {
        Self {
            context,
            scope,
            kind: Kind::KueueWorkload.name(),
            known: HashMap::new(),
            listed: HashSet::new(),
            reading: HashMap::new(),
            setbacks: HashMap::new(),
            turns: Arc::new(Semaphore::new(CONCURRENCY)),
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

    /// The list is complete. Its Workloads are in the index before the semaphores are served, as far as their owners
    /// can be read.
    async fn listed(&mut self) {
        let end = Moment::now() + PATIENCE;
        while self.are_read_first().next().is_some() {
            tokio::select! {
                Some(done) = self.tasks.join_next() => self.on_done(done),
                () = sleep(end.since(Moment::now())) => {
                    let missing = self.are_read_first().count();
                    let some: Vec<_> = self.are_read_first().take(NAMED).collect();
                    tracing::warn!(missing, ?some, "the owners of Workloads of Kueue are not read yet: working without them");
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

    /// Those that are being read, and were not read in vain.
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

    /// A Workload has this owner no more.
    fn let_go(&self, owner: &Uid, name: &WorkloadName) {
        if self.context.shared.owners.forget(owner, name) {
            self.context.index.forget(&self.kind, owner);
        }
    }

    /// A Workload is none of ours now, but may have been.
    fn leave(&self, name: &WorkloadName) {
        let uid = self.known.get(name);
        if let Some(uid) = uid.filter(|uid| self.context.shared.owners.is_of(uid, name)) {
            self.context.index.forget(&self.kind, uid);
        }
    }

    /// The watch shows a Workload.
    fn show(&mut self, object: Object) {
        if let Some(name) = self.see(object, Ok(())) {
            self.try_again(name);
        }
    }

    /// A Workload as it is now; `owner` is why its owner can't be read, if it can't. Returns its name if it is to be
    /// looked at again.
    fn see(&mut self, mut object: Object, owner: Result<(), String>) -> Option<WorkloadName> {
        let name = name_of(&object)?;
        let tracked = self.context.shared.owners.track(&mut object, Moment::now());
        match tracked.and_then(|tracked| Ok((tracked, Asked::of(&object)?))) {
            Ok((None, Some(asked))) if asked.is_finished() => self.forget(Some(name)),
            Ok((tracked, Some(asked))) => match kueue::owner(&object) {
                Ok(served) => return self.serve(name, tracked, &asked, served, owner),
                Err(why) => {
                    // Its owner may have been deleted without it.
                    self.forget(Some(name.clone()));
                    self.answer(name, &asked, asked.pending(&why, clock::time()));
                }
            },
            // None of our checks is asked about it any more, if it ever was. What it holds it keeps until its owner has
            // no pods.
            Ok((_, None)) => self.leave(&name),
            Err(error) => {
                tracing::warn!(name = name.1, %error, "a Workload of Kueue can't be read");
                self.forget(Some(name));
            }
        }
        None
    }

    /// A Workload that our check is asked about, with its owner. Returns its name if it is to be looked at again.
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
            // What runs then would keep the slots of the last run.
            None if asked.waits() && self.context.index.has_contender(&served.uid) => {
                let why = "waits until the slots of its last run are free";
                self.answer(name.clone(), asked, asked.pending(why, now));
                return Some(name);
            }
            None => self.answer(name, asked, asked.ready(now)),
        }
        None
    }

    /// Answers Kueue about a Workload, if it waits for that.
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
            // Turns are never closed.
            let _turn = turns.acquire().await;
            let done = match context.workloads.write(write).await {
                // What has changed is shown by the watch.
                Ok(_) | Err(WriteError::Outdated(_)) => true,
                Err(error) => {
                    tracing::warn!(namespace = name.0, workload = name.1, %error, "can't answer Kueue");
                    false
                }
            };
            Done::Answered(name, done)
        });
    }

    /// Reads a Workload again after a while, and before it its owner if nothing is known of that.
    fn read(&mut self, name: WorkloadName, owner: Option<Owner>, wait: Duration) {
        if let Some(changed) = self.reading.get_mut(&name) {
            *changed = true;
            return;
        }
        self.reading.insert(name.clone(), false);
        let (context, turns) = (self.context.clone(), self.turns.clone());
        self.tasks.spawn(async move {
            sleep(wait).await;
            let _turn = turns.acquire().await;
            let told = match &owner {
                Some(owner) => read_owner(&context, &name.0, owner).await,
                None => Ok(()),
            };
            let workload = Kind::KueueWorkload.resource();
            let api: Api<Object> = Api::namespaced_with(context.client.clone(), &name.0, &workload);
            let object = call(api.get(&name.1)).await;
            Done::Read(name, object.ok().map(Box::new), told)
        });
    }

    fn on_done(&mut self, done: Result<Done, tokio::task::JoinError>) {
        match done {
            Ok(Done::Read(name, object, owner)) => {
                let changed = self.reading.remove(&name) == Some(true);
                // It may have been deleted meanwhile.
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
            Ok(Done::Answered(name, true)) => drop(self.setbacks.remove(&name)),
            Ok(Done::Answered(name, false)) => self.try_again(name),
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

/// Reads what the owner of a Workload says and, if that was evicted, in which slots its pods run; and notes it.
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
        return Err(format!("its owner, {title}, is another one now"));
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
