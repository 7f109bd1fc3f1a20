//! What the API server and Consul show without the proxy. The observer shares no code with the operator: it knows
//! workloads by their annotation, pods by the label of what made them, and semaphores by their manifests.

mod others;

use std::{collections::BTreeMap, time::Duration};

use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1,
    core::v1::{Namespace, Pod},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, ListParams},
    runtime::watcher::{self, Event},
};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    consul_record::ConsulReader,
    record::{Job, JobState, Part, Start, What, WorkloadKind},
    timeline::Timeline,
};

/// The annotation by which a Job names its semaphore. The load also sets it on the pods, as a label.
pub(crate) const SEMAPHORE: &str = "consul-semaphore.io/semaphore";
pub(crate) const POD_LABEL: &str = "faults.consul-semaphore.io/semaphore";

/// The labels of a pod that say whose it is: the first of them that it has counts, because a `JobSet` makes Jobs.
const OWNER_LABELS: [&str; 3] = [
    "tekton.dev/pipelineRunUID",
    "jobset.sigs.k8s.io/jobset-uid",
    "batch.kubernetes.io/controller-uid",
];

const SESSION: &str = "consul-semaphore.io/session";
const HOLD: &str = "consul-semaphore.io/hold";
const GRANTED_TO: &str = "consul-semaphore.io/granted-to";

/// The name under which the operator writes to Jobs.
const OPERATOR: &str = "consul-semaphore-operator";

/// The pause before a failed watch is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// The longest time that the API server takes to answer a small list on a machine that has time for it. Otherwise an
/// answer takes milliseconds.
const BUSY_AFTER: Duration = Duration::from_secs(1);

/// An observer, which watches until it is dropped.
pub(crate) struct Observer(Vec<JoinHandle<()>>);

impl Observer {
    pub(crate) fn of_kubernetes(
        client: &Client,
        kinds: &[WorkloadKind],
        timeline: &Timeline,
    ) -> Self {
        let pods = watcher::watcher(Api::all(client.clone()), watcher::Config::default());
        let mut tasks = vec![
            tokio::spawn(follow(pods, timeline.clone(), pod)),
            tokio::spawn(pulse(client.clone(), timeline.clone())),
        ];
        for kind in kinds {
            let others = |record| {
                let api = Api::<DynamicObject>::all_with(client.clone(), &kind.resource());
                let events = watcher::watcher(api, watcher::Config::default());
                tokio::spawn(follow(events, timeline.clone(), record))
            };
            tasks.push(match kind {
                WorkloadKind::Job => {
                    let jobs =
                        watcher::watcher(Api::all(client.clone()), watcher::Config::default());
                    tokio::spawn(follow(jobs, timeline.clone(), job))
                }
                WorkloadKind::JobSet => others(others::job_set),
                WorkloadKind::PipelineRun => others(others::pipeline_run),
            });
        }
        Self(tasks)
    }

    /// The second source for a `.lock`: blocking queries. They may miss revisions, but they soon notice a program
    /// that writes past the proxy.
    pub(crate) fn of_lock(consul: &ConsulReader, prefix: &str, timeline: &Timeline) -> Self {
        let task = follow_lock(consul.clone(), prefix.to_owned(), timeline.clone());
        Self(vec![tokio::spawn(task)])
    }
}

/// All observers of a campaign. When they are dropped, the timeline records that first: later writes can't be judged.
pub(crate) struct Observers {
    pub(crate) timeline: Timeline,
    pub(crate) observers: Vec<Observer>,
}

impl Drop for Observers {
    fn drop(&mut self) {
        self.timeline.push(What::Unwatched);
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// How many slots a Job asks for, by prefix, from a list of `name` and `name:slots`; empty for one slot.
fn asks(namespace: &str, annotation: &str) -> BTreeMap<String, usize> {
    let asks = annotation.split(',').map(|part| {
        let part = part.trim();
        let (name, slots) = part.split_once(':').unwrap_or((part, "1"));
        (prefix_of(namespace, name), slots.parse().unwrap_or(1))
    });
    let asks: BTreeMap<_, _> = asks.collect();
    if asks.values().sum::<usize>() > 1 {
        asks
    } else {
        BTreeMap::new()
    }
}

/// The first semaphore that a Job names.
fn first(annotation: &str) -> &str {
    let end = annotation.find([',', ':']).unwrap_or(annotation.len());
    annotation[..end].trim()
}

/// The prefix of a semaphore of this name.
pub(crate) fn prefix_of(namespace: &str, semaphore: &str) -> String {
    format!("semaphores/{namespace}/{semaphore}")
}

/// Records when the API server does not answer in time. The list is a consistent read, so its answer also waits for
/// etcd and for the server's own watches, which are late on a busy machine.
async fn pulse(client: Client, timeline: Timeline) {
    let namespaces = Api::<Namespace>::all(client);
    let params = ListParams::default();
    let is_busy = |away| What::Outage {
        part: Part::Machine,
        away,
    };
    loop {
        let mut list = std::pin::pin!(namespaces.list(&params));
        if timeout(BUSY_AFTER, &mut list).await.is_err() {
            timeline.push(is_busy(true));
            // An error is an answer, too.
            drop(list.await);
            timeline.push(is_busy(false));
        }
        sleep(PAUSE).await;
    }
}

/// Records what a watch shows. `record` makes a record of an object that exists or was deleted.
async fn follow<K: kube::Resource>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    timeline: Timeline,
    record: fn(&K, bool) -> Option<What>,
) {
    let mut known: BTreeMap<String, What> = BTreeMap::new();
    let mut listed: Option<BTreeMap<String, What>> = None;
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = Some(BTreeMap::new()),
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                let uid = object.meta().uid.clone().unwrap_or_default();
                if let Some(what) = record(&object, true) {
                    timeline.push(what.clone());
                    if let Some(listed) = &mut listed {
                        listed.insert(uid.clone(), what.clone());
                    }
                    known.insert(uid, what);
                }
            }
            Ok(Event::Delete(object)) => {
                known.remove(&object.meta().uid.clone().unwrap_or_default());
                if let Some(what) = record(&object, false) {
                    timeline.push(what);
                }
            }
            Ok(Event::InitDone) => {
                let listed = listed.take().unwrap_or_default();
                for (uid, what) in std::mem::take(&mut known) {
                    if !listed.contains_key(&uid) {
                        timeline.push(gone(what));
                    }
                }
                known = listed;
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// A record of an object that was deleted while the watch did not see it.
fn gone(what: What) -> What {
    match what {
        What::Job(job) => What::Job(Job {
            state: JobState::Gone,
            rv: 0,
            start: None,
            ..job
        }),
        What::Pod {
            pod,
            prefix,
            uid,
            grace,
            ..
        } => What::Pod {
            pod,
            prefix,
            uid,
            grace,
            rv: 0,
            alive: false,
        },
        other => other,
    }
}

fn job(job: &v1::Job, there: bool) -> Option<What> {
    let semaphore = job.annotations().get(SEMAPHORE)?;
    let mut owners = job.owner_references().iter();
    // What made it decides when it runs: it is a part of that, whatever its own annotation says.
    if owners.any(|owner| owner.controller == Some(true)) {
        return None;
    }
    let spec = job.spec.as_ref();
    let status = job.status.as_ref();
    let condition = |name: &str| {
        let conditions = status.and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == name && condition.status == "True")
    };
    let pods = status.map_or(0, |status| {
        status.active.unwrap_or_default() + status.terminating.unwrap_or_default()
    });
    let suspended = spec.and_then(|spec| spec.suspend).unwrap_or_default();
    let held = job
        .annotations()
        .get(HOLD)
        .is_some_and(|hold| hold == "true");
    // The Job controller makes no pod of it.
    let is_bare = spec.and_then(|spec| spec.parallelism) == Some(0) && pods == 0;
    let state = if !there || job.metadata.deletion_timestamp.is_some() {
        JobState::Gone
    } else if condition("Complete") || condition("Failed") || (!suspended && is_bare) {
        JobState::Finished
    } else if !suspended {
        JobState::Running
    } else if held {
        JobState::Held
    } else if condition("Suspended") && pods == 0 {
        JobState::Waiting
    } else {
        JobState::Stopping
    };
    Some(What::Job(Job {
        kind: WorkloadKind::Job,
        uid: job.uid()?,
        name: job.name_any(),
        prefix: prefix_of(job.metadata.namespace.as_deref()?, first(semaphore)),
        asks: asks(job.metadata.namespace.as_deref()?, semaphore),
        rv: version(&job.metadata),
        state,
        session: job.annotations().get(SESSION).cloned(),
        start: start(job),
    }))
}

/// The write that made a Job run, if it was the operator's.
fn start(job: &v1::Job) -> Option<Start> {
    let spec = job.spec.as_ref()?;
    // Without parallelism the Job was only made to fail.
    if spec.suspend.unwrap_or_default() || spec.parallelism == Some(0) {
        return None;
    }
    let template = spec.template.metadata.as_ref()?;
    let annotations = template.annotations.as_ref()?;
    if annotations.get(GRANTED_TO) != job.metadata.uid.as_ref() {
        return None;
    }
    // The operator also changes annotations of a running Job, but only if it lost a slot.
    let ago = ago(job, |fields| fields["f:spec"].get("f:suspend").is_some())?;
    Some(Start {
        session: annotations.get(SESSION)?.clone(),
        ago,
    })
}

/// How many seconds ago the API server took the last write of some fields, if it was the operator's.
fn ago(object: &impl kube::Resource, fields: impl Fn(&serde_json::Value) -> bool) -> Option<f64> {
    let mut writes = object.meta().managed_fields.iter().flatten();
    let write = writes.find(|write| {
        let written = write.fields_v1.as_ref();
        written.is_some_and(|written| fields(&written.0))
    })?;
    let time = write.time.as_ref()?.0;
    (write.manager.as_deref() == Some(OPERATOR)).then_some(())?;
    Some(Timestamp::now().duration_since(time).as_secs_f64())
}

fn pod(pod: &Pod, there: bool) -> Option<What> {
    let labels = pod.labels();
    let uid = OWNER_LABELS.iter().find_map(|label| labels.get(*label))?;
    let semaphore = pod.labels().get(POD_LABEL)?;
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let grace = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    Some(What::Pod {
        pod: pod.name_any(),
        prefix: prefix_of(pod.metadata.namespace.as_deref()?, semaphore),
        uid: uid.clone(),
        rv: version(&pod.metadata),
        // A terminating pod still runs; a pending one will run.
        alive: there && !matches!(phase, Some("Succeeded" | "Failed")),
        grace: f64::from(i32::try_from(grace.unwrap_or(30)).unwrap_or(30)),
    })
}

fn version(metadata: &kube::core::ObjectMeta) -> u64 {
    let version = metadata.resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

async fn follow_lock(consul: ConsulReader, prefix: String, timeline: Timeline) {
    let mut index = 0;
    let mut seen = None;
    loop {
        let Ok((body, at)) = consul.lock(&prefix, Some(index)).await else {
            index = 0;
            sleep(PAUSE).await;
            continue;
        };
        // An index that went back is invalid, so read at once.
        index = if at < index { 0 } else { at.max(1) };
        let now = body.index();
        if let Some(now) = now.filter(|now| seen != Some(*now)) {
            timeline.push(What::Seen {
                prefix: prefix.clone(),
                index: now,
            });
        }
        seen = now;
    }
}
