//! The objects that the watches have received, and the output made from them, without IO or a clock.

use std::{collections::BTreeMap, time::Duration};

use consul_client::clock::Moment;
use consul_semaphore_workload::{Job, Kind, TrackedWorkload};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event as Noted;
use kube::{
    ResourceExt as _,
    api::DynamicObject,
    runtime::watcher::{self, Event},
};

use crate::{
    around::gap,
    failure::{Failure, NeededRight, ResourceKind},
    read::{SHOWN_EVENTS, SHOWN_JOBS, names},
    store::Store,
    view::{
        changes::ReportedState,
        item::Item,
        list::{self, Columns},
        queue::queue_of,
        recorded::{RecordedEvent, recent},
        show::{self, SemaphoreDetails},
        text::{Line, Text, Tone},
    },
};

/// The time after which a failed watch that has not failed again has recovered. The watch is retried within half a
/// minute, and there is no event if nothing has changed since.
const RECOVERED_AFTER: Duration = Duration::from_secs(75);

/// The number of events that are kept.
const KEPT_EVENTS: usize = 2_000;

/// The semaphores that a watch shows.
#[derive(Clone, Debug)]
pub(crate) struct WatchTarget {
    /// Namespace of the objects; `None` is all namespaces.
    pub(crate) namespace: Option<String>,
    /// The semaphore that is shown with everything that belongs to it; `None` shows all semaphores, one on each line.
    pub(crate) semaphore: Option<String>,
    /// A label selector, if all semaphores are watched.
    pub(crate) selector: Option<String>,
}

/// An update from a watch.
#[derive(Debug)]
pub(crate) enum Update {
    Semaphore(Box<Event<DynamicObject>>),
    Job(Box<Event<Job>>),
    Noted(Box<Event<Noted>>),
    Failed(ResourceKind, watcher::Error),
}

/// The objects that are known, and the watches that fail.
#[derive(Debug)]
pub(crate) struct World {
    target: WatchTarget,
    semaphores: Store<(String, String), Item>,
    jobs: Store<String, TrackedWorkload>,
    noted: Store<String, RecordedEvent>,
    /// The last failure of each watch, and when it happened.
    troubles: BTreeMap<ResourceKind, (Timestamp, Failure)>,
}

impl World {
    pub(crate) fn new(target: WatchTarget) -> Self {
        Self {
            target,
            semaphores: Store::default(),
            jobs: Store::default(),
            noted: Store::default(),
            troubles: BTreeMap::new(),
        }
    }

    /// Applies an update. It is an error if the semaphores can't be listed at all. Later failures are retried and
    /// shown.
    pub(crate) fn take(&mut self, update: Update, now: Timestamp) -> Result<(), Failure> {
        match update {
            Update::Semaphore(event) => {
                self.works(&ResourceKind::Semaphores, &event);
                self.semaphores.take(*event, |object| {
                    let key = (object.namespace().unwrap_or_default(), object.name_any());
                    (key, Some(Item::read(&object)))
                });
            }
            Update::Job(event) => {
                self.works(&ResourceKind::Workloads(Kind::Job), &event);
                let wanted = self.target.semaphore.as_deref();
                self.jobs.take(*event, |job| {
                    let workload = TrackedWorkload::read(&job, Moment::default());
                    let ours =
                        workload.filter(|workload| wanted.is_some_and(|name| workload.names(name)));
                    (job.name_any(), ours)
                });
            }
            Update::Noted(event) => {
                self.works(&ResourceKind::Events, &event);
                self.noted.take(*event, |event| {
                    (event.name_any(), RecordedEvent::read(&event))
                });
                self.noted.keep(KEPT_EVENTS, |recorded| recorded.time);
            }
            Update::Failed(what, error) => return self.failed(what, &error, now),
        }
        Ok(())
    }

    /// Records that a watch works. The event `Init` does not show that, because it comes before the API server is even
    /// called.
    fn works<K>(&mut self, what: &ResourceKind, event: &Event<K>) {
        if !matches!(event, Event::Init) {
            self.troubles.remove(what);
        }
    }

    fn failed(
        &mut self,
        what: ResourceKind,
        error: &watcher::Error,
        now: Timestamp,
    ) -> Result<(), Failure> {
        let right = |verb| NeededRight {
            verb,
            toward: None,
            what: what.clone(),
            namespace: self.target.namespace.clone(),
        };
        let failure = match error {
            watcher::Error::InitialListFailed(error) => Failure::of_call(&right("list"), error),
            watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
                Failure::of_call(&right("watch"), error)
            }
            // The last version that was seen is too old to resume from, so everything is listed again.
            watcher::Error::WatchError(status) if status.code == 410 => return Ok(()),
            watcher::Error::WatchError(status) => {
                Failure::of_call(&right("watch"), &kube::Error::Api(status.clone()))
            }
            watcher::Error::NoResourceVersion => Failure::impossible(error.to_string()),
        };
        if what == ResourceKind::Semaphores && !self.semaphores.is_listed() {
            return Err(failure);
        }
        self.troubles.insert(what, (now, failure));
        Ok(())
    }

    /// Whether the output can be shown, because each watch has received its list or has failed.
    pub(crate) fn is_complete(&self) -> bool {
        let update = |what: &ResourceKind, listed: bool| listed || self.troubles.contains_key(what);
        let around = self.target.semaphore.is_none()
            || (update(&ResourceKind::Workloads(Kind::Job), self.jobs.is_listed())
                && update(&ResourceKind::Events, self.noted.is_listed()));
        self.semaphores.is_listed() && around
    }

    /// Whether the one watched semaphore exists. If all are watched, this is true.
    pub(crate) fn has_semaphore(&self) -> bool {
        self.target.semaphore.is_none() || self.semaphores.values().next().is_some()
    }

    /// Returns what can't be shown, or may be out of date.
    pub(crate) fn gaps(&self, now: Timestamp) -> Vec<String> {
        let lasting = self.troubles.iter().filter(|(_, (since, _))| {
            let age = now.as_second().saturating_sub(since.as_second());
            u64::try_from(age).is_ok_and(|age| age <= RECOVERED_AFTER.as_secs())
        });
        let recorded = lasting.map(|(what, (_, failure))| match what {
            ResourceKind::Semaphores => {
                format!("this may be out of date; trying again: {}", failure.message)
            }
            ResourceKind::Workloads(_) | ResourceKind::CronJobs => gap("Jobs", &failure.message),
            ResourceKind::Events => gap("events", &failure.message),
        });
        recorded.collect()
    }

    pub(crate) fn text(&self, now: Timestamp) -> Text {
        let gaps = self.gaps(now);
        let Some(name) = &self.target.semaphore else {
            return self.all(&gaps, now);
        };
        let semaphore = match self.semaphores.values().next() {
            Some(Item::Semaphore(semaphore)) => semaphore,
            Some(Item::Unreadable { why, .. }) => {
                let what = note(&format!("the ConsulSemaphore {name} can't be read: {why}"));
                return below(&gaps, what);
            }
            None => return below(&gaps, note(&format!("the ConsulSemaphore {name} is gone"))),
        };
        let workloads: Vec<TrackedWorkload> = self.jobs.values().cloned().collect();
        let recorded: Vec<RecordedEvent> = self.noted.values().cloned().collect();
        let queue = queue_of(semaphore, &workloads, &recorded, SHOWN_JOBS);
        let names = names(semaphore, &queue, &workloads);
        let events = recent(&recorded, name, &names, SHOWN_EVENTS);
        let shown = SemaphoreDetails {
            semaphore,
            queue: &queue,
            events: &events,
            gaps: &gaps,
        };
        show::show(&shown, now)
    }

    /// Returns the list of all semaphores, one on each line.
    fn all(&self, gaps: &[String], now: Timestamp) -> Text {
        let columns = Columns {
            namespace: self.target.namespace.is_none(),
            wide: false,
        };
        let mut text = list::list(self.semaphores.values(), columns, now);
        if self.semaphores.values().next().is_none() {
            text = note("there are no ConsulSemaphores");
        }
        below(gaps, text)
    }

    /// Returns the state whose changes are reported.
    pub(crate) fn reported_state(&self) -> ReportedState {
        let Some(name) = &self.target.semaphore else {
            return ReportedState::of(self.semaphores.values(), []);
        };
        let Some(Item::Semaphore(semaphore)) = self.semaphores.values().next() else {
            return ReportedState::of(self.semaphores.values(), []);
        };
        let workloads: Vec<TrackedWorkload> = self.jobs.values().cloned().collect();
        let recorded: Vec<RecordedEvent> = self.noted.values().cloned().collect();
        let queue = queue_of(semaphore, &workloads, &recorded, SHOWN_JOBS);
        let names = names(semaphore, &queue, &workloads);
        let events = recent(&recorded, name, &names, KEPT_EVENTS);
        ReportedState::of(self.semaphores.values(), events)
    }
}

/// Puts the gaps first, because the end of the output may be cut off.
fn below(gaps: &[String], shown: Text) -> Text {
    let mut text = Text::default();
    text.extend(gaps.iter().map(|gap| Line::of(Tone::Doubt, gap)));
    text.extend(shown.lines);
    text
}

fn note(words: &str) -> Text {
    let mut text = Text::default();
    text.push(Line::of(Tone::Doubt, words));
    text
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:30:00Z".parse().unwrap()
    }

    fn world(semaphore: Option<&str>) -> World {
        World::new(WatchTarget {
            namespace: Some("batch".to_owned()),
            semaphore: semaphore.map(str::to_owned),
            selector: None,
        })
    }

    fn semaphore(name: &str) -> DynamicObject {
        let semaphore = json!({
            "apiVersion": "consul-semaphore.io/v1alpha1", "kind": "ConsulSemaphore",
            "metadata": { "name": name, "namespace": "batch" },
            "spec": { "limit": 2 },
            "status": { "waiting": 1, "queue": [{ "kind": "Job", "name": "a" }] },
        });
        from_value(semaphore).unwrap()
    }

    fn job(semaphore: &Value) -> Job {
        let job = json!({
            "metadata": {
                "name": "a", "namespace": "batch", "uid": "u", "resourceVersion": "7",
                "annotations": { "consul-semaphore.io/semaphore": semaphore, "consul-semaphore.io/priority": "7" },
            },
            "spec": { "suspend": true, "template": {} },
        });
        from_value(job).unwrap()
    }

    fn listed<K>(objects: Vec<K>, update: fn(Box<Event<K>>) -> Update) -> Vec<Update> {
        let objects = objects.into_iter().map(Event::InitApply);
        let events = [Event::Init]
            .into_iter()
            .chain(objects)
            .chain([Event::InitDone]);
        events.map(|event| update(Box::new(event))).collect()
    }

    fn apply(world: &mut World, update: Vec<Update>) {
        for update in update {
            world.take(update, now()).unwrap();
        }
    }

    fn refusal(code: u16) -> watcher::Error {
        let status = Status::failure("no", "Reason").with_code(code);
        watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn one_semaphore_is_shown_when_all_of_it_is_known() {
        let mut world = world(Some("db"));
        apply(&mut world, listed(vec![semaphore("db")], Update::Semaphore));
        assert!(!world.is_complete());
        apply(
            &mut world,
            listed(vec![job(&json!("db")), job(&json!("other"))], Update::Job),
        );
        apply(&mut world, listed(Vec::new(), Update::Noted));
        assert!(world.is_complete() && world.has_semaphore());
        let text = world.text(now()).render(false);
        assert!(
            text.starts_with("batch/db\n") && text.contains("1   a"),
            "{text}"
        );
    }

    #[test]
    fn a_job_that_asks_for_another_one_is_forgotten() {
        let mut world = world(Some("db"));
        apply(&mut world, listed(vec![semaphore("db")], Update::Semaphore));
        apply(&mut world, listed(vec![job(&json!("db"))], Update::Job));
        assert_eq!(world.jobs.values().count(), 1);
        apply(
            &mut world,
            vec![Update::Job(Box::new(Event::Apply(job(&json!("other")))))],
        );
        assert_eq!(world.jobs.values().count(), 0);
    }

    #[test]
    fn objects_that_may_not_be_read_are_reported_as_gaps() {
        let mut world = world(Some("db"));
        apply(&mut world, listed(vec![semaphore("db")], Update::Semaphore));
        apply(
            &mut world,
            vec![Update::Failed(
                ResourceKind::Workloads(Kind::Job),
                refusal(403),
            )],
        );
        apply(
            &mut world,
            vec![Update::Failed(ResourceKind::Events, refusal(403))],
        );
        assert!(world.is_complete());
        let gaps = world.gaps(now());
        assert_eq!(gaps.len(), 2);
        assert!(gaps[0].contains("ClusterRole view"), "{}", gaps[0]);
        // The watch has not failed since then, so it has recovered.
        let later = now().checked_add(RECOVERED_AFTER * 2).unwrap();
        assert_eq!(world.gaps(later).len(), 0);
        apply(&mut world, vec![Update::Job(Box::new(Event::Init))]);
        assert_eq!(world.gaps(now()).len(), 2);
        apply(&mut world, listed(Vec::new(), Update::Job));
        assert_eq!(world.gaps(now()).len(), 1);
    }

    #[test]
    fn without_semaphores_to_list_there_is_nothing_to_watch() {
        let mut world = world(None);
        let failed = |code| Update::Failed(ResourceKind::Semaphores, refusal(code));
        assert_eq!(world.take(failed(403), now()).unwrap_err().code(), 77);
        assert_eq!(world.take(failed(503), now()).unwrap_err().code(), 69);
        apply(&mut world, listed(vec![semaphore("db")], Update::Semaphore));
        world.take(failed(503), now()).unwrap();
        let text = world.text(now()).render(false);
        assert!(
            text.contains("db") && text.contains("may be out of date"),
            "{text}"
        );
        let gone = Box::new(Status::failure("too old", "Gone").with_code(410));
        apply(&mut world, listed(Vec::new(), Update::Semaphore));
        let gone = Update::Failed(ResourceKind::Semaphores, watcher::Error::WatchError(gone));
        world.take(gone, now()).unwrap();
        assert_eq!(world.gaps(now()).len(), 0);
        assert!(world.text(now()).render(false).contains("there are no"));
    }
}
