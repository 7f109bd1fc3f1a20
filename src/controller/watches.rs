//! What comes in from the API server: Jobs, the pods of Jobs that hold slots, and semaphores.

use std::{collections::HashMap, sync::Arc};

use futures::{Stream, StreamExt};
use k8s_openapi::api::{
    batch::v1 as batch,
    core::v1::{ObjectReference, Pod},
};
use kube::{
    Api, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use tokio::{
    sync::{Notify, watch},
    task::{AbortHandle, JoinSet},
};

use super::{
    Context,
    events::Reason,
    index::SemaphoreRef,
    intake,
    job::{Kept, controller_uid},
    overseer::Overseer,
    ungranted,
};
use crate::{
    api::{ConsulSemaphore, annotations},
    clock::Moment,
    semaphore::lock_key_of,
    telemetry::{Health, Part, SemaphoreLabels},
};

/// How many objects a list asks for at once.
const PAGE: u32 = 500;

impl SemaphoreRef {
    /// The reference to this object.
    pub(super) fn of(object: &impl Resource) -> Self {
        let metadata = object.meta();
        Self {
            namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
            name: metadata.name.as_deref().unwrap_or_default().into(),
        }
    }
}

/// Watches and works until `shutdown`; everything that was begun ends with it.
pub(super) async fn run(
    context: Arc<Context>,
    health: &Health,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    let (jobs_part, semaphores_part) = (health.part("jobs"), health.part("consulsemaphores"));
    let (synced, jobs_synced) = watch::channel(false);
    tasks.spawn(watch_jobs(context.clone(), jobs_part, synced));
    tasks.spawn(watch_pods(context.clone()));
    tasks.spawn(watch_semaphores(context, semaphores_part, jobs_synced));
    let worked = tokio::select! {
        () = shutdown => Ok(()),
        // None of them ends by itself.
        ended = tasks.join_next() => Err(anyhow::anyhow!("a part of the operator has failed: {ended:?}")),
    };
    tasks.shutdown().await;
    worked
}

fn config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// Feeds the Jobs into the index. Only what concerns the operator is kept of them.
async fn watch_jobs(context: Arc<Context>, part: Part, synced: watch::Sender<bool>) {
    let jobs: Api<batch::Job> = Api::all(context.client.clone());
    let mut events = std::pin::pin!(watcher(jobs, config()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => context.index.list_begins(),
            Ok(Event::InitDone) => {
                context.index.list_ends();
                synced.send_replace(true);
                part.ready();
            }
            Ok(Event::Apply(job) | Event::InitApply(job)) => {
                if let Some(uid) = job.metadata.uid.as_deref() {
                    context
                        .index
                        .put(&uid.into(), Kept::read(&job, Moment::now()));
                }
            }
            Ok(Event::Delete(job)) => {
                if let Some(uid) = job.metadata.uid.as_deref() {
                    context.index.remove(&uid.into());
                }
            }
            Err(error) => complain("Jobs", &error),
        }
    }
}

/// Hears when pods of Jobs that hold slots end. Nothing of them is kept: what is asked for proof is
/// the API server itself.
async fn watch_pods(context: Arc<Context>) {
    let pods: Api<Pod> = Api::all(context.client.clone());
    let holders = format!(
        "{}={}",
        annotations::HOLDER_LABEL,
        annotations::HOLDER_VALUE
    );
    let mut events = std::pin::pin!(watcher(pods, config().labels(&holders)).default_backoff());
    while let Some(event) = events.next().await {
        let pod = match event {
            Ok(Event::Delete(pod)) => pod,
            Ok(Event::Apply(pod) | Event::InitApply(pod)) if has_ended(&pod) => pod,
            Ok(_) => continue,
            Err(error) => {
                complain("pods", &error);
                continue;
            }
        };
        let key = pod.annotations().get(annotations::LOCK_KEY);
        if let (Some(uid), Some(key)) = (controller_uid(pod.labels()), key) {
            let namespace = pod.namespace().unwrap_or_default();
            context.index.pod_ended(&namespace, &lock_key_of(key), &uid);
        }
    }
}

/// An overseer at work.
struct AtWork {
    uid: Option<String>,
    specs: watch::Sender<Arc<ConsulSemaphore>>,
    task: AbortHandle,
}

/// Has an overseer for each semaphore. They begin when all Jobs are known.
async fn watch_semaphores(
    context: Arc<Context>,
    part: Part,
    mut jobs_synced: watch::Receiver<bool>,
) {
    if jobs_synced.wait_for(|synced| *synced).await.is_err() {
        return;
    }
    let semaphores: Api<DeserializeGuard<ConsulSemaphore>> = Api::all(context.client.clone());
    let events = watcher(semaphores, config()).default_backoff();
    Overseers {
        context,
        at_work: HashMap::new(),
        tasks: JoinSet::new(),
    }
    .run(events, part)
    .await;
}

struct Overseers {
    context: Arc<Context>,
    at_work: HashMap<SemaphoreRef, AtWork>,
    tasks: JoinSet<()>,
}

impl Overseers {
    async fn run(
        mut self,
        events: impl Stream<Item = watcher::Result<Event<DeserializeGuard<ConsulSemaphore>>>>,
        part: Part,
    ) {
        let mut events = std::pin::pin!(events);
        let mut listed: Option<Vec<SemaphoreRef>> = None;
        let mut intake = false;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                Some(ended) = self.tasks.join_next() => match ended {
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    _ => continue,
                },
            };
            match event {
                Some(Ok(Event::Init)) => listed = Some(Vec::new()),
                Some(Ok(Event::InitApply(semaphore))) => {
                    if let Some(listed) = &mut listed {
                        listed.push(SemaphoreRef::of(&semaphore));
                    }
                    self.put(semaphore);
                }
                Some(Ok(Event::InitDone)) => {
                    let listed = listed.take().unwrap_or_default();
                    let gone: Vec<_> = self
                        .at_work
                        .keys()
                        .filter(|known| !listed.contains(known))
                        .cloned()
                        .collect();
                    for reference in &gone {
                        self.remove(reference);
                    }
                    self.context.index.semaphores_are_known();
                    part.ready();
                    if !std::mem::replace(&mut intake, true) {
                        self.tasks.spawn(intake::run(self.context.clone()));
                        self.tasks.spawn(ungranted::run(self.context.clone()));
                    }
                }
                Some(Ok(Event::Apply(semaphore))) => self.put(semaphore),
                Some(Ok(Event::Delete(semaphore))) => self.remove(&SemaphoreRef::of(&semaphore)),
                Some(Err(error)) => complain("ConsulSemaphores", &error),
                None => return,
            }
        }
    }

    fn put(&mut self, DeserializeGuard(read): DeserializeGuard<ConsulSemaphore>) {
        let semaphore = match read {
            Ok(semaphore) => Arc::new(semaphore),
            Err(invalid) => return self.tell_invalid(&invalid),
        };
        let reference = SemaphoreRef::of(semaphore.as_ref());
        let uid = semaphore.uid();
        if let Some(known) = self.at_work.get(&reference) {
            if known.uid == uid {
                known.specs.send_replace(semaphore);
                return;
            }
            self.remove(&reference);
        }
        let wake = Arc::new(Notify::new());
        let lock_key = semaphore.prefix().lock_key();
        self.context
            .index
            .add_semaphore(reference.clone(), lock_key, wake.clone());
        let (specs, changes) = watch::channel(semaphore);
        let overseer = Overseer::new(self.context.clone(), changes, wake);
        let task = self.tasks.spawn(overseer.run());
        self.at_work.insert(reference, AtWork { uid, specs, task });
    }

    fn remove(&mut self, reference: &SemaphoreRef) {
        if let Some(gone) = self.at_work.remove(reference) {
            gone.task.abort();
            self.context.index.remove_semaphore(reference);
            let labels =
                SemaphoreLabels::new(reference.namespace.as_ref(), reference.name.as_ref());
            self.context.metrics.forget(&labels);
        }
    }

    /// The schema lets nothing through that can't be read, so this one was stored before it.
    fn tell_invalid(&self, invalid: &kube::core::error_boundary::InvalidObject) {
        let about = ObjectReference {
            api_version: Some(ConsulSemaphore::api_version(&()).into()),
            kind: Some(ConsulSemaphore::kind(&()).into()),
            namespace: invalid.metadata.namespace.clone(),
            name: invalid.metadata.name.clone(),
            uid: invalid.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        let note = format!(
            "this ConsulSemaphore can't be read, correct it: {}",
            invalid.error
        );
        tracing::warn!(name = invalid.metadata.name, "{note}");
        self.context
            .events
            .tell(about, Reason::InvalidSemaphore, note);
    }
}

/// Whether none of a pod's containers runs, or will.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn complain(what: &str, error: &watcher::Error) {
    tracing::warn!(what, %error, "the watch is to be started again");
}
