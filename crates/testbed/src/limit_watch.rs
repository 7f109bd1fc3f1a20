//! Watches whether a semaphore's limit is kept. It shares no code with the operator and relies on nothing
//! that the operator reports: it reads `.lock` in Consul and the pods in Kubernetes.
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _, api::DynamicObject, runtime::watcher};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{
    consul::{Consul, Entry},
    job::{SEMAPHORE_LABEL, WORKLOAD_LABEL},
    semaphore::{self, prefix_of},
    wait,
};

/// Between an error and the next attempt.
const PAUSE: Duration = Duration::from_millis(200);

/// What has been seen of a semaphore so far.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The sessions in `.lock` now.
    pub holders: BTreeSet<String>,
    /// The most sessions that were in `.lock` at once.
    pub peak_holders: usize,
    /// All sessions that ever were in it.
    pub all_holders: BTreeSet<String>,
    /// The Jobs (their uids), or other workloads, that currently have pods which have not ended.
    pub jobs: BTreeSet<String>,
    /// The most Jobs that had such pods at once.
    pub peak_jobs: usize,
    /// All Jobs that ever had pods.
    pub all_jobs: BTreeSet<String>,
    /// The slot indices that two live holders had at once, each with their sessions.
    pub shared_indices: Vec<String>,
}

/// Watches a semaphore until it is dropped. If two holders had the same slot index at once, the drop panics.
#[derive(Debug)]
pub struct LimitWatch {
    state: Arc<Mutex<State>>,
    tasks: [JoinHandle<()>; 3],
}

#[derive(Debug, Default)]
struct State {
    seen: Seen,
    lock: Sight,
    pods: Sight,
}

/// How well one of the two can be seen.
#[derive(Debug, Default)]
struct Sight {
    has_read: bool,
    /// The errors since the last reading.
    since: Vec<String>,
    /// How many gaps were of a moment.
    moments: usize,
    gaps: Vec<String>,
}

/// How many gaps of a moment are nothing to report.
const MOMENTS: usize = 3;

impl Sight {
    fn fails(&mut self, error: &anyhow::Error) {
        self.since.push(format!("{error:#}"));
    }

    /// All is read anew, from the beginning or after errors.
    fn reads(&mut self) {
        self.has_read = true;
        self.gaps = self.gaps();
        self.moments += usize::from(!self.since.is_empty());
        self.since.clear();
    }

    /// The errors between which something may have been missed. One after which all was read at once is none of them:
    /// that misses what lasts for a moment, as any watch does. It is one of them if it happens again and again.
    fn gaps(&self) -> Vec<String> {
        let is_moment = self.since.len() < 2 && self.moments < MOMENTS;
        let new = if is_moment {
            &[]
        } else {
            self.since.as_slice()
        };
        self.gaps.iter().chain(new).cloned().collect()
    }
}

impl LimitWatch {
    /// Starts to watch, and returns once it has a first reading of both, so that it misses nothing from now on.
    pub(crate) async fn start(consul: &Consul, client: &Client, prefix: &str) -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let tasks = [
            tokio::spawn(follow_lock(
                consul.clone(),
                prefix.to_owned(),
                state.clone(),
            )),
            tokio::spawn(follow_pods(
                client.clone(),
                prefix.to_owned(),
                state.clone(),
            )),
            tokio::spawn(follow_indices(
                consul.clone(),
                prefix.to_owned(),
                state.clone(),
            )),
        ];
        let this = Self { state, tasks };
        wait::until(
            "the observer sees the lock and the pods",
            wait::PATIENCE,
            || async {
                let state = this.state.lock();
                wait::same((state.lock.has_read, state.pods.has_read), (true, true))
                    .map_err(|seen| format!("{seen}, {:?}, {:?}", state.lock, state.pods))
            },
        )
        .await?;
        Ok(this)
    }

    /// What has been seen so far.
    pub fn seen(&self) -> Seen {
        self.state.lock().seen.clone()
    }

    /// The most holders at once.
    pub fn peak_holders(&self) -> usize {
        self.state.lock().seen.peak_holders
    }

    /// The most Jobs with pods at once.
    pub fn peak_jobs(&self) -> usize {
        self.state.lock().seen.peak_jobs
    }

    /// Errors while watching, between which it may have missed something. A single one is none of them if all was read
    /// again at once: on a busy machine a connection can be lost.
    pub fn errors(&self) -> Vec<String> {
        let state = self.state.lock();
        [state.lock.gaps(), state.pods.gaps()].concat()
    }
}

impl Drop for LimitWatch {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        let shared = std::mem::take(&mut self.state.lock().seen.shared_indices);
        assert!(
            shared.is_empty() || std::thread::panicking(),
            "two holders at once have the same slot index: {shared:?}"
        );
    }
}

async fn follow_lock(consul: Consul, prefix: String, state: Arc<Mutex<State>>) {
    let mut index = 0;
    loop {
        match consul.try_lock(&prefix, index).await {
            Ok((read, at)) => {
                // An index that went back, or is 0, is invalid, so read at once.
                index = if at < index { 0 } else { at };
                let holders = read.map(|read| read.holders).unwrap_or_default();
                let mut state = state.lock();
                state.lock.reads();
                state.seen.peak_holders = state.seen.peak_holders.max(holders.len());
                state.seen.all_holders.extend(holders.iter().cloned());
                state.seen.holders = holders;
            }
            Err(error) => {
                index = 0;
                state.lock().lock.fails(&error);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// A prefix of more keys than this is read only now and then, because each reading has all of them.
const MANY: usize = 300;

/// Reads the whole prefix, because only one answer of Consul shows all contenders at the same moment.
async fn follow_indices(consul: Consul, prefix: String, state: Arc<Mutex<State>>) {
    let mut index = 0;
    loop {
        let Ok((entries, at)) = consul.try_below(&prefix, index).await else {
            index = 0;
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        index = if at < index { 0 } else { at };
        let shared = shared_indices(&prefix, &entries);
        state.lock().seen.shared_indices.extend(shared);
        if entries.len() > MANY {
            tokio::time::sleep(10 * PAUSE).await;
        }
    }
}

/// Returns the slot indices that two of the contenders tell, each with their sessions. Contenders are locked by the
/// session that they are named after, and lie directly below the prefix.
fn shared_indices(prefix: &str, entries: &[Entry]) -> Vec<String> {
    let mut seen: HashMap<u64, &str> = HashMap::new();
    let told = entries.iter().filter_map(|entry| {
        let session = entry.session.as_deref()?;
        let is_contender = entry.key == format!("{prefix}/{session}");
        let body: Value = serde_json::from_slice(&entry.value).ok()?;
        let index = body.get("slotIndex")?.as_u64()?;
        is_contender.then_some((index, session))
    });
    told.filter_map(|(index, session)| {
        let other = seen.insert(index, session)?;
        Some(format!("{index}: {other} and {session}"))
    })
    .collect()
}

/// After an error all pods are listed again, which says that the watch goes on.
async fn follow_pods(client: Client, prefix: String, state: Arc<Mutex<State>>) {
    let mut prefixes = HashMap::new();
    while let Err(error) = follow_pods_once(&client, &prefix, &mut prefixes, &state).await {
        state.lock().pods.fails(&error);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Lists the pods, and follows their changes.
///
/// # Errors
/// The API server does not answer, or has ended the watch.
async fn follow_pods_once(
    client: &Client,
    prefix: &str,
    prefixes: &mut HashMap<(String, String), String>,
    state: &Mutex<State>,
) -> Result<()> {
    let ours = watcher::Config::default().labels(SEMAPHORE_LABEL);
    let mut events = watcher(Api::<Pod>::all(client.clone()), ours).boxed();
    let mut pods = Pods::default();
    let mut is_listed = false;
    while let Some(event) = events.try_next().await? {
        match event {
            watcher::Event::Init => (pods, is_listed) = (Pods::default(), false),
            watcher::Event::InitApply(pod) | watcher::Event::Apply(pod) => {
                if prefix_of_pod(client, prefixes, &pod).await? == prefix {
                    pods.apply(&pod);
                }
            }
            watcher::Event::Delete(pod) => pods.remove(&pod),
            watcher::Event::InitDone => {
                is_listed = true;
                state.lock().pods.reads();
            }
        }
        let jobs = pods.jobs();
        let mut state = state.lock();
        state.seen.peak_jobs = state.seen.peak_jobs.max(jobs.len());
        state.seen.all_jobs.extend(jobs.iter().cloned());
        // Half a list says nothing of those that it does not have yet.
        if is_listed {
            state.seen.jobs = jobs;
        }
    }
    Ok(())
}

/// Pods that have not ended, by the uid of their Job.
#[derive(Default)]
struct Pods(HashMap<String, HashSet<String>>);

impl Pods {
    fn apply(&mut self, pod: &Pod) {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let gates = pod.spec.as_ref();
        let gates = gates.and_then(|spec| spec.scheduling_gates.as_ref());
        let is_gated = gates.is_some_and(|gates| !gates.is_empty());
        // A terminating pod still works, and a pending one will start, unless it is held.
        if is_gated || matches!(phase, Some("Succeeded" | "Failed")) {
            self.remove(pod);
        } else if let Some(job) = job_of(pod) {
            self.0.entry(job).or_default().insert(pod.name_any());
        }
    }

    fn remove(&mut self, pod: &Pod) {
        if let Some(pods) = job_of(pod).and_then(|job| self.0.get_mut(&job)) {
            pods.remove(&pod.name_any());
        }
    }

    fn jobs(&self) -> BTreeSet<String> {
        self.0
            .iter()
            .filter(|(_, pods)| !pods.is_empty())
            .map(|(job, _)| job.clone())
            .collect()
    }
}

/// The Job of a pod, by a label: an orphan keeps it when it loses its owner reference. If the Job has its own
/// selector, Kubernetes sets no label with the uid, and the test sets one with the name. A test that is about other
/// workloads says itself which one a pod is of.
fn job_of(pod: &Pod) -> Option<String> {
    let [uid, name] =
        ["controller-uid", "job-name"].map(|label| format!("batch.kubernetes.io/{label}"));
    [WORKLOAD_LABEL.to_owned(), uid, name]
        .iter()
        .find_map(|label| pod.labels().get(label))
        .cloned()
}

/// The prefix of the semaphore for which a pod's Job was made. It never changes.
async fn prefix_of_pod(
    client: &Client,
    known: &mut HashMap<(String, String), String>,
    pod: &Pod,
) -> Result<String> {
    let namespace = pod.namespace().context("a pod without a namespace")?;
    let name = pod
        .labels()
        .get(SEMAPHORE_LABEL)
        .cloned()
        .context("a pod without the label asked for")?;
    if let Some(prefix) = known.get(&(namespace.clone(), name.clone())) {
        return Ok(prefix.clone());
    }
    let semaphores =
        Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &semaphore::resource());
    let object = semaphores.get_opt(&name).await?;
    let prefix = prefix_of(
        &object
            .as_ref()
            .map(serde_json::to_value)
            .transpose()?
            .unwrap_or_default(),
        &namespace,
        &name,
    );
    if object.is_some() {
        known.insert((namespace, name), prefix.clone());
    }
    Ok(prefix)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    fn sight(gaps: &[&[&'static str]]) -> Sight {
        let mut sight = Sight::default();
        sight.reads();
        for gap in gaps {
            for error in *gap {
                sight.fails(&anyhow!(*error));
            }
            sight.reads();
        }
        sight
    }

    #[test]
    fn an_error_after_which_all_is_read_at_once_is_no_gap() {
        assert_eq!(sight(&[&["a"], &["b"], &["c"]]).gaps(), [""; 0]);
    }

    #[test]
    fn errors_without_a_reading_between_them_are_a_gap() {
        assert_eq!(sight(&[&["a"], &["b", "c"], &["d"]]).gaps(), ["b", "c"]);
        let mut lasts = sight(&[]);
        lasts.fails(&anyhow!("a"));
        assert_eq!(lasts.gaps(), [""; 0]);
        lasts.fails(&anyhow!("b"));
        assert_eq!(lasts.gaps(), ["a", "b"]);
    }

    #[test]
    fn errors_again_and_again_are_gaps() {
        let all = [&["a"][..], &["b"], &["c"], &["d"], &["e"]];
        assert_eq!(sight(&all).gaps(), ["d", "e"]);
    }
}
