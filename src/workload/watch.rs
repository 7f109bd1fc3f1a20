//! The watches of workloads, and of the pods of those that hold slots.

use futures::{Stream, StreamExt as _, stream::BoxStream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client,
    runtime::watcher::{self, Event},
};

use super::Subject;
use crate::watch_scope::WatchScope;
use consul_client::clock::Moment;
use consul_semaphore::{KindName, Uid};
use consul_semaphore_workload::{
    Kind, Object, TrackedWorkload, WAITING, WorkloadObject, advice,
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
        Self::new(&Kind::Job, object.metadata, tracked, advice)
    }

    /// Reads a workload of another kind that was just received. One that can't be read is left alone.
    fn of_object(kind: &Kind, object: Object) -> Option<Self> {
        let tracked = TrackedWorkload::read_object(kind, &object, Moment::now());
        let tracked = tracked.unwrap_or_else(|error| {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(kind = %kind.name(), name, %error, "an object can't be read");
            None
        });
        Self::new(kind, object.metadata, tracked, None)
    }

    fn new(
        kind: &Kind,
        metadata: ObjectMeta,
        tracked: Option<TrackedWorkload>,
        advice: Option<String>,
    ) -> Option<Self> {
        Some(Self {
            kind: kind.name(),
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
        kind => {
            let config = watcher::Config::default().labels(WAITING);
            let events = reach.watch_resource(client, kind.resource(), config);
            let kind = kind.clone();
            let read = move |event| read(event, |object| Sighting::of_object(&kind, object));
            events.map(move |event| event.map(&read)).boxed()
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
