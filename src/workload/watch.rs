//! The watches of workloads, and of the pods of those that hold slots.

use futures::{Stream, StreamExt as _, stream::BoxStream};
use kube::{
    Client,
    runtime::watcher::{self, Event},
};

use super::Subject;
use crate::watch_scope::WatchScope;
use consul_client::clock::Moment;
use consul_semaphore::{KindName, Uid};
use consul_semaphore_workload::{
    Kind, TrackedWorkload, WorkloadObject, advice,
    pods::{self, OwnPod},
};

/// A workload as the watch shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) kind: KindName,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: Uid,
    /// What the operator keeps of it; `None` if it does not concern the operator (any more).
    pub(crate) tracked: Option<TrackedWorkload>,
    /// The warning for its users about annotations that have no effect.
    pub(crate) advice: Option<String>,
}

impl Sighting {
    /// Reads a Job that was just received.
    fn of_job(object: WorkloadObject) -> Option<Self> {
        let tracked = TrackedWorkload::read(&object, Moment::now());
        let advice = advice(&object);
        let metadata = object.metadata;
        Some(Self {
            kind: Kind::Job.name(),
            uid: metadata.uid?.as_str().into(),
            namespace: metadata.namespace?,
            name: metadata.name?,
            tracked,
            advice,
        })
    }
}

impl<'a> From<&'a Sighting> for Subject<'a> {
    fn from(sighting: &'a Sighting) -> Self {
        let Sighting {
            kind, name, uid, ..
        } = sighting;
        Self { kind, name, uid }
    }
}

/// The workloads of a kind in the scope.
pub(crate) fn watch(
    kind: &Kind,
    reach: &WatchScope,
    client: &Client,
) -> BoxStream<'static, watcher::Result<Event<Option<Sighting>>>> {
    match kind {
        Kind::Job => {
            let events = reach.watch::<WorkloadObject>(client, watcher::Config::default());
            let read = |event| read(event, Sighting::of_job);
            events.map(move |event| event.map(read)).boxed()
        }
    }
}

/// The pods of workloads that hold slots, in the scope.
pub(crate) fn watch_pods(
    reach: &WatchScope,
    client: &Client,
) -> impl Stream<Item = watcher::Result<Event<Option<OwnPod>>>> + Send + Unpin + use<> {
    let config = watcher::Config::default().labels(pods::OF_ANY);
    let events = reach.watch(client, config);
    events.map(|event| event.map(|event| read(event, |pod| OwnPod::read(&pod))))
}

fn read<K, T>(event: Event<K>, read: impl FnOnce(K) -> T) -> Event<T> {
    match event {
        Event::Apply(object) => Event::Apply(read(object)),
        Event::Delete(object) => Event::Delete(read(object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(read(object)),
        Event::InitDone => Event::InitDone,
    }
}
