//! The Jobs of the load, as this program's own watch shows them.

use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};

use futures::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, ResourceExt as _,
    runtime::watcher::{self, Event, watcher},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

/// The pause before a failed watch is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// The watch, which ends when it is dropped.
pub(super) struct Jobs {
    line: Arc<Mutex<Line>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Line {
    /// The existing Jobs by uid, each with the time since when it waits if it was not started yet.
    there: HashMap<String, Option<Instant>>,
    started: usize,
    /// The longest wait of the Jobs that were started since this was last read.
    longest: Duration,
}

impl Jobs {
    pub(super) fn follow(jobs: Api<Job>) -> Self {
        let line = Arc::new(Mutex::new(Line::default()));
        let task = tokio::spawn(follow(jobs, line.clone()));
        Self { line, task }
    }

    /// How many Jobs exist.
    pub(super) fn there(&self) -> usize {
        self.line().there.len()
    }

    /// How many of them wait.
    pub(super) fn waiting(&self) -> usize {
        self.line().there.values().flatten().count()
    }

    /// How many were started so far.
    pub(super) fn started(&self) -> usize {
        self.line().started
    }

    /// The longest wait since this was last read, including Jobs that still wait.
    pub(super) fn longest_wait(&self) -> Duration {
        let mut line = self.line();
        let over = std::mem::take(&mut line.longest);
        let still = line.there.values().flatten().map(Instant::elapsed);
        still.fold(over, Duration::max)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock()
}

async fn follow(jobs: Api<Job>, line: Arc<Mutex<Line>>) {
    let mut events = pin!(watcher(jobs, watcher::Config::default()));
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(job)) => {
                listed.extend(job.uid());
                lock(&line).note(&job);
            }
            Ok(Event::InitDone) => lock(&line).there.retain(|uid, _| listed.contains(uid)),
            Ok(Event::Apply(job)) => lock(&line).note(&job),
            Ok(Event::Delete(job)) => {
                lock(&line).there.remove(&job.uid().unwrap_or_default());
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

impl Line {
    fn note(&mut self, job: &Job) {
        let uid = job.uid().unwrap_or_default();
        let since = self.there.entry(uid).or_insert(Some(Instant::now()));
        let suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
        if !suspended && let Some(since) = since.take() {
            self.started += 1;
            self.longest = self.longest.max(since.elapsed());
        }
    }
}
