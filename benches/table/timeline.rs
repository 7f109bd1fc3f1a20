//! When Jobs were seen to start and to end.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use testbed::Namespace;
use tokio::sync::mpsc;

use crate::load;

/// What a Job's events showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Started,
    Complete,
}

/// A Job's name, what its events showed, and when that arrived.
pub(crate) type Sight = (String, Seen, Instant);

/// The starts and ends of a namespace's Jobs, as a watch shows them.
pub(crate) fn follow(team: &Namespace) -> mpsc::Receiver<Sight> {
    let (sender, receiver) = mpsc::channel(1024);
    let jobs: Api<Job> = team.api();
    tokio::spawn(async move {
        let mut known: HashMap<String, Seen> = HashMap::new();
        let events = watcher(jobs, watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(events);
        loop {
            let event = tokio::select! {
                Some(event) = events.next() => event,
                () = sender.closed() => return,
            };
            let at = Instant::now();
            let Ok(Event::Apply(job) | Event::InitApply(job)) = event else {
                continue;
            };
            let name = job.metadata.name.clone().unwrap_or_default();
            let seen = if is_complete(&job) {
                Seen::Complete
            } else if job.spec.is_some_and(|spec| spec.suspend == Some(false)) {
                Seen::Started
            } else {
                continue;
            };
            if known.insert(name.clone(), seen) != Some(seen)
                && sender.send((name, seen, at)).await.is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn is_complete(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| &status.conditions);
    conditions
        .flatten()
        .any(|condition| condition.status == "True" && condition.type_ == "Complete")
}

/// The times at which the Jobs of a batch were seen to start and to complete.
#[derive(Default)]
pub(crate) struct Timeline {
    pub(crate) started: Vec<Instant>,
    pub(crate) completed: Vec<Instant>,
}

impl Timeline {
    pub(crate) fn note(&mut self, seen: Seen, at: Instant) {
        match seen {
            Seen::Started => self.started.push(at),
            Seen::Complete => self.completed.push(at),
        }
    }

    /// Records what is seen until this many of the Jobs whose names begin like this are complete.
    pub(crate) async fn until_complete(
        events: &mut mpsc::Receiver<Sight>,
        prefix: &str,
        jobs: usize,
    ) -> Self {
        let mut timeline = Self::default();
        while timeline.completed.len() < jobs {
            let (name, seen, at) = events.recv().await.expect("an event");
            if name.starts_with(prefix) {
                timeline.note(seen, at);
            }
        }
        timeline
    }

    /// Every end allows one start, beyond the first ones.
    pub(crate) fn hand_overs(&self, first: usize) -> Vec<Duration> {
        let starts = self.started.iter().skip(first);
        starts
            .zip(&self.completed)
            .map(|(start, end)| start.saturating_duration_since(*end))
            .collect()
    }
}

/// Creates this many suspended Jobs, and waits until all are shown as suspended; `describe` adds to each. Their names
/// are `<prefix>0000` and so on.
pub(crate) async fn create(
    team: &Namespace,
    prefix: &str,
    jobs: usize,
    describe: impl Fn(testbed::Job) -> testbed::Job,
) -> Vec<String> {
    load::jobs(team, prefix, jobs, |_, job| describe(job)).await
}
