//! Watches workloads, and the pods of those that hold slots.

use futures::{Stream, StreamExt as _, stream::BoxStream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client,
    runtime::watcher::{self, Event},
};

use super::Subject;
use crate::watch_scope::WatchScope;
use consul_client::clock::Moment;
use consul_semaphore::{KindName, Phase, Uid};
use consul_semaphore_workload::{
    Job, Kind, Object, TrackedWorkload, WAITING, advice, advice_on,
    kueue::is_in_a_queue,
    pods::{self, OwnPod},
};

/// A workload as the watch shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) kind: KindName,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: Uid,
    /// State that the operator keeps of the workload; `None` if the workload does not concern the operator (any
    /// more).
    pub(crate) tracked: Option<TrackedWorkload>,
    /// Warning for the users of the workload about annotations that have no effect.
    pub(crate) advice: Option<String>,
    /// Warning for the users of the workload about effects that it has while it waits.
    pub(crate) caution: Option<String>,
}

impl Sighting {
    /// Reads a Job that was just received.
    fn of_job(object: Job, kueue: bool) -> Option<Self> {
        let tracked = TrackedWorkload::read(&object, Moment::now());
        if kueue && is_in_a_queue(&object.metadata) {
            let advice = tracked.as_ref().and_then(not_asked).map(ToOwned::to_owned);
            return Self::new(&Kind::Job, object.metadata, None, advice);
        }
        let advice = advice(&object);
        Self::new(&Kind::Job, object.metadata, tracked, advice)
    }

    /// Reads a workload of another kind that was just received. A workload that can't be read is left alone.
    fn of_object(kind: &Kind, object: Object, kueue: bool) -> Option<Self> {
        let parsed = TrackedWorkload::read_object(kind, &object, Moment::now());
        let readable = parsed.unwrap_or_else(|error| {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(kind = %kind.name(), name, %error, "an object can't be read");
            None
        });
        let tracked = readable.filter(|_| !kueue || !is_in_a_queue(&object.metadata));
        let caution = tracked
            .as_ref()
            .map(|_| kind.caution(&object).ok().flatten());
        let advice = advice_on(kind, &object);
        let sighting = Self::new(kind, object.metadata, tracked, advice)?;
        Some(Self {
            caution: caution.flatten(),
            ..sighting
        })
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
            caution: None,
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

/// Returns the warning for the users of a Job in a queue of Kueue that asks for a slot and runs without one. Such a
/// Job has no grant, because a grant would be in its template.
fn not_asked(job: &TrackedWorkload) -> Option<&'static str> {
    let TrackedWorkload { workload, .. } = job;
    (workload.phase == Phase::Running && workload.granted.is_none()).then_some(
        "it runs without a slot: Kueue has not asked for one. Name an AdmissionCheck with the controllerName \
         consul-semaphore.io/slots in its ClusterQueue",
    )
}

/// Watches the workloads of a kind in the scope. With `kueue`, workloads in a queue of Kueue do not concern the
/// operator. `if_missing` is what the log says while the cluster has no such kind.
pub(crate) fn watch(
    kind: &Kind,
    kueue: bool,
    reach: &WatchScope,
    client: &Client,
    if_missing: String,
) -> BoxStream<'static, watcher::Result<Event<Option<Sighting>>>> {
    match kind {
        Kind::Job => {
            let events = reach.watch::<Job>(client, watcher::Config::default());
            let read = move |event| read(event, |object| Sighting::of_job(object, kueue));
            events.map(move |event| event.map(read)).boxed()
        }
        kind => {
            let config = watcher::Config::default().labels(WAITING);
            let events = reach.watch_resource(client, kind.resource(), config, if_missing);
            let kind = kind.clone();
            let read = move |event| read(event, |object| Sighting::of_object(&kind, object, kueue));
            events.map(move |event| event.map(&read)).boxed()
        }
    }
}

/// Watches the pods of workloads that hold slots, in the scope.
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
