//! The waiting Jobs in their order, and why each waits, according to the status, the conditions and the events.

use std::collections::{HashMap, HashSet};

use consul_semaphore::{Blocked, Phase, WaitTimeout, Workload};
use consul_semaphore_api::{
    ConsulSemaphore, QueueStatus, annotations::HOLD, conditions, waiting::WaitReason,
};
use consul_semaphore_workload::TrackedWorkload;
use jiff::Timestamp;
use serde::Serialize;

use super::{
    item::status,
    recorded::{RecordedEvent, last_words},
};

/// A Job in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueuedJob {
    pub(crate) kind: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// All slots that the Job asks for, if it asks for more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) asks_for: Option<String>,
    /// The slots that are not free, if the Job asks for slots of several semaphores and this is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lacks: Option<String>,
    /// Priority of the Job; unknown if Jobs can't be listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
    /// Earliest time at which the Job fails if it has no slot by then; `None` if it does not fail, or if the time is
    /// not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fails: Option<Timestamp>,
    /// Time at which the Job is likely to start; `None` if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expected: Option<Timestamp>,
    /// The reason in one word, for programs.
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// A Job that names the semaphore, has not started, and is not in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Outside {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// The kind and the name of a workload. They identify it in its namespace.
pub(crate) type Id<'a> = (&'a str, &'a str);

/// Returns the kind and the name of a known workload.
pub(crate) fn id(workload: &TrackedWorkload) -> Id<'_> {
    let workload = &workload.workload;
    (workload.kind.as_str(), &workload.name)
}

impl QueuedJob {
    pub(crate) fn id(&self) -> Id<'_> {
        (&self.kind, &self.name)
    }
}

impl Outside {
    pub(crate) fn id(&self) -> Id<'_> {
        (&self.kind, &self.name)
    }
}

/// The workloads that want a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueView {
    pub(crate) places: Vec<QueuedJob>,
    /// Number of Jobs that wait behind these.
    pub(crate) more: usize,
    pub(crate) outside: Vec<Outside>,
    /// Number of Jobs outside the queue beyond these.
    pub(crate) more_outside: usize,
}

/// Returns when the wait of a workload ends, as far as this semaphore shows it.
pub(crate) fn fails(semaphore: &ConsulSemaphore, workload: &Workload) -> Option<Timestamp> {
    let default = semaphore.spec.wait_timeout.map(WaitTimeout::get);
    let timeout = workload.wait.timeout.or(default)?;
    let since = Timestamp::from_second(workload.waits_since()?).ok()?;
    let blocked = Blocked::recorded(status(semaphore).blocked());
    Blocked::deadline([&blocked], since, timeout)
}

impl QueueView {
    /// Adds, for each Job that waits because of another semaphore than `name`, what that semaphore says. `all` are the
    /// known semaphores of the namespace.
    pub(crate) fn look_elsewhere(&mut self, name: &str, all: &[ConsulSemaphore]) {
        let others = || {
            all.iter()
                .filter(|semaphore| semaphore.metadata.name.as_deref() != Some(name))
        };
        let waits_elsewhere = |place: &&mut QueuedJob| is_elsewhere(&place.reason);
        for place in self.places.iter_mut().filter(waits_elsewhere) {
            for other in others() {
                let mut queue = other.status.iter().flat_map(|status| &status.queue);
                let said = queue
                    .find(|queued| id_of(queued) == place.id())
                    .map(|queued| reason_of(queued, None))
                    .filter(|(reason, _)| {
                        !is_elsewhere(reason) && reason != WaitReason::Next.as_str()
                    });
                if let Some((_, message)) = said {
                    let other = other.metadata.name.as_deref().unwrap_or_default();
                    place.message = format!("{}; {other}: {message}", place.message);
                }
            }
        }
    }
}

/// Whether a word in `status.queue` is a reason that lies in another semaphore.
pub(crate) fn is_elsewhere(reason: &str) -> bool {
    let mut all = WaitReason::ALL_OF_THE_QUEUE.into_iter();
    all.any(|known| known.is_elsewhere() && known.as_str() == reason)
}

/// Returns the queue of a semaphore. The head of the queue comes from the status. If the status lists only a part, the
/// rest comes from the known Jobs. The result has at most `most` Jobs in the queue and at most `most` outside it.
pub(crate) fn queue_of(
    semaphore: &ConsulSemaphore,
    workloads: &[TrackedWorkload],
    recorded: &[RecordedEvent],
    most: usize,
) -> QueueView {
    let words = last_words(recorded);
    let keyed = semaphore.spec.keyed;
    let name = semaphore.metadata.name.as_deref().unwrap_or_default();
    let status = status(semaphore);
    let waiting = usize::try_from(status.waiting).unwrap_or(0);
    let known: HashMap<Id<'_>, &TrackedWorkload> = workloads
        .iter()
        .map(|workload| (id(workload), workload))
        .collect();
    let last_word = |workload: &TrackedWorkload| {
        let uid: &str = workload.workload.uid.as_ref();
        words.get(&(&*workload.workload.name, uid)).copied()
    };
    let mut places: Vec<QueuedJob> = Vec::new();
    for queued in status.queue.iter().take(most) {
        let workload = known.get(&id_of(queued)).copied();
        let (reason, message) = reason_of(queued, workload.and_then(last_word));
        let own = || {
            Some(format!(
                "{name}:{}",
                queued.slots.filter(|slots| *slots > 1)?
            ))
        };
        places.push(QueuedJob {
            kind: queued.kind.clone(),
            name: queued.name.clone(),
            key: queued.key.clone(),
            asks_for: workload
                .and_then(all_slots)
                .or_else(|| queued.asks_for.clone())
                .or_else(own),
            lacks: queued.lacks.clone(),
            expected: queued.expected.as_ref().map(|time| time.0),
            priority: workload.map(|workload| workload.workload.priority),
            since: queued.since.as_ref().map(|time| time.0),
            fails: workload.and_then(|workload| fails(semaphore, &workload.workload)),
            reason,
            message,
        });
    }

    let listed: HashSet<Id<'_>> = status.queue.iter().map(id_of).collect();
    let behind = waiting.saturating_sub(status.queue.len());
    let unlisted = || {
        workloads
            .iter()
            .filter(|workload| !listed.contains(&id(workload)))
    };
    let mut rest: Vec<&TrackedWorkload> = unlisted()
        .filter(|workload| {
            workload.workload.is_queued() && workload.obstacle_in(name, keyed).is_none()
        })
        .collect();
    rest.sort_by_cached_key(|workload| workload.workload.place());
    rest.truncate(behind);
    let in_rest: HashSet<Id<'_>> = rest.iter().map(|workload| id(workload)).collect();
    for workload in rest.iter().take(most.saturating_sub(places.len())) {
        let request = workload.workload.asks_for(name, None);
        let key = request
            .and_then(|request| request.key.as_ref())
            .map(AsRef::as_ref)
            .filter(|_| keyed);
        let (reason, message) = unlisted_reason(semaphore, &places, key);
        places.push(QueuedJob {
            kind: workload.workload.kind.to_string(),
            name: workload.workload.name.to_string(),
            key: key.map(str::to_owned),
            asks_for: all_slots(workload),
            lacks: None,
            expected: None,
            priority: Some(workload.workload.priority),
            since: Timestamp::from_second(workload.workload.since).ok(),
            fails: fails(semaphore, &workload.workload),
            reason,
            message,
        });
    }

    let mut outside: Vec<Outside> = unlisted()
        .filter(|workload| !in_rest.contains(&id(workload)))
        .filter_map(|workload| outsider(workload, name, keyed, last_word(workload)))
        .collect();
    outside.sort_by(|a, b| a.id().cmp(&b.id()));
    let more_outside = outside.len().saturating_sub(most);
    outside.truncate(most);
    QueueView {
        more: waiting.max(status.queue.len()).saturating_sub(places.len()),
        places,
        outside,
        more_outside,
    }
}

/// Returns the kind and the name of a workload in the status.
pub(crate) fn id_of(queued: &QueueStatus) -> Id<'_> {
    (&queued.kind, &queued.name)
}

/// Returns all slots that a Job asks for, if it asks for more than one.
fn all_slots(workload: &TrackedWorkload) -> Option<String> {
    let workload = &workload.workload;
    workload.asks_for_many().then(|| workload.asked())
}

/// Returns why a Job in the status waits, as a word and a message. The Job's last event says more of a refused start.
fn reason_of(queued: &QueueStatus, word: Option<&RecordedEvent>) -> (String, String) {
    let Some(reason) = queued.reason.clone() else {
        let message = "the operator has not said yet why it waits";
        return ("Unseen".to_owned(), message.to_owned());
    };
    let refused =
        word.filter(|word| reason == WaitReason::StartRefused.as_str() && word.reason == reason);
    let message = refused.map_or_else(
        || queued.message.clone().unwrap_or_default(),
        |refused| refused.message.clone(),
    );
    (reason, message)
}

/// Returns why a Job waits that is behind those in the status: `places`.
fn unlisted_reason(
    semaphore: &ConsulSemaphore,
    places: &[QueuedJob],
    key: Option<&str>,
) -> (String, String) {
    if let Some(stop) = conditions::stop(&status(semaphore).conditions) {
        return (stop.reason.clone(), stop.message.clone());
    }
    let mut nearest_first = places.iter().rev();
    let before = nearest_first.find(|place| place.key.as_deref() == key);
    let message = before.map_or_else(
        || "behind the Jobs that the status lists".to_owned(),
        |before| format!("behind {}", before.name),
    );
    (WaitReason::Behind.as_str().to_owned(), message)
}

/// Returns why a Job is not in the queue; `None` if it has started or is done.
fn outsider(
    workload: &TrackedWorkload,
    semaphore: &str,
    keyed: bool,
    word: Option<&RecordedEvent>,
) -> Option<Outside> {
    let stopping = match workload.workload.phase {
        Phase::Idle => false,
        Phase::Stopping => true,
        Phase::Running | Phase::Finished { .. } | Phase::Deleting => return None,
    };
    let (reason, message) = if let Some(obstacle) = workload.obstacle_in(semaphore, keyed) {
        (obstacle.reason().to_owned(), obstacle.to_string())
    } else if workload.workload.hold {
        let message = format!("the annotation {HOLD} is true");
        ("OnHold".to_owned(), message)
    } else if let Some(warning) = word.filter(|recorded| recorded.warning) {
        (warning.reason.clone(), warning.message.clone())
    } else if stopping {
        let message = "pods of its earlier run still exist, or its status does not show yet that they have ended";
        ("Stopping".to_owned(), message.to_owned())
    } else {
        let message = "the operator has not queued it yet, or does not run";
        ("Unseen".to_owned(), message.to_owned())
    };
    Some(Outside {
        kind: workload.workload.kind.to_string(),
        name: workload.workload.name.to_string(),
        reason,
        message,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::view::samples::{recorded, semaphore, workload};

    fn reasons(line: &QueueView) -> Vec<(&str, &str, &str)> {
        let places = line.places.iter();
        places
            .map(|place| (&*place.name, &*place.reason, &*place.message))
            .collect()
    }

    fn queue(jobs: &[&str]) -> Value {
        jobs.iter()
            .map(|job| json!({ "kind": "Job", "name": job }))
            .collect()
    }

    #[test]
    fn the_first_waits_for_a_slot_and_the_others_for_those_before_them() {
        let semaphore = semaphore(&json!({ "waiting": 3, "queue": queue(&["a", "b", "c"]) }));
        let workloads = [workload(
            "b",
            &json!({ "consul-semaphore.io/priority": "7" }),
        )];
        let line = queue_of(&semaphore, &workloads, &[], 99);
        let held = "2 of 2 slots are held";
        let expected = [
            ("a", "AllSlotsHeld", held),
            ("b", "Behind", "behind a"),
            ("c", "Behind", "behind b"),
        ];
        assert_eq!(reasons(&line), expected);
        let priorities: Vec<_> = line.places.iter().map(|place| place.priority).collect();
        assert_eq!(priorities, [None, Some(7), None]);
        assert_eq!((line.more, line.outside.len()), (0, 0));
    }

    /// A `JobSet` waits, and so does a Job of the same name.
    #[test]
    fn a_workload_of_another_kind_is_named_with_it() {
        let waiting = json!([{ "kind": "JobSet", "name": "a" }, { "kind": "Job", "name": "a" }]);
        let semaphore = semaphore(&json!({ "waiting": 2, "queue": waiting }));
        let job = workload("a", &json!({ "consul-semaphore.io/priority": "7" }));
        let line = queue_of(&semaphore, &[job], &[], 99);
        let places: Vec<_> = line
            .places
            .iter()
            .map(|place| (&*place.kind, place.priority))
            .collect();
        assert_eq!(places, [("JobSet", None), ("Job", Some(7))]);
        assert_eq!(line.outside, []);
    }

    #[test]
    fn one_that_waits_because_of_another_semaphore_is_told_what_that_one_says() {
        let entry = |reason: &str, message: &str| json!([{ "kind": "Job", "name": "a", "reason": reason, "message": message }]);
        let of = |reason, elsewhere: Value| {
            let queue = entry(reason, "it waits for licenses:2");
            let db = semaphore(&json!({ "waiting": 1, "queue": queue }));
            let mut licenses = semaphore(&json!({ "queue": elsewhere }));
            licenses.metadata.name = Some("licenses".to_owned());
            let mut queue = queue_of(&db, &[], &[], 99);
            queue.look_elsewhere("db", &[db.clone(), licenses]);
            queue.places.remove(0).message
        };
        let held = entry("AllSlotsHeld", "3 of 3 slots are held");
        assert_eq!(
            of("PassedOver", held.clone()),
            "it waits for licenses:2; licenses: 3 of 3 slots are held"
        );
        let alone = "it waits for licenses:2";
        assert_eq!(of("Behind", held), alone);
        for says_nothing in [
            entry("Next", "a slot is free"),
            entry("PassedOver", "b"),
            json!([]),
        ] {
            assert_eq!(of("OthersStopped", says_nothing), alone);
        }
    }

    #[test]
    fn those_that_the_status_does_not_list_wait_for_the_last_one_or_for_what_stops_all() {
        let mut status = json!({ "waiting": 2, "queue": queue(&["a"]) });
        let last = |status: &Value| {
            let line = queue_of(&semaphore(status), &[workload("z", &json!({}))], &[], 99);
            let QueuedJob {
                reason, message, ..
            } = line.places.last().unwrap();
            format!("{reason}: {message}")
        };
        assert_eq!(last(&status), "Behind: behind a");
        status["conditions"] = json!([{
            "type": "Ready", "status": "True", "reason": "Paused", "message": "spec.paused is true",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        assert_eq!(last(&status), "Paused: spec.paused is true");
    }

    #[test]
    fn the_last_event_says_more_of_a_refused_start() {
        let refused = json!([{ "kind": "Job", "name": "a", "reason": "StartRefused", "message": "see its events" }]);
        let semaphore = semaphore(&json!({ "waiting": 1, "queue": refused }));
        let message = |events: &[RecordedEvent]| {
            let line = queue_of(&semaphore, &[workload("a", &json!({}))], events, 99);
            line.places[0].message.clone()
        };
        assert_eq!(message(&[]), "see its events");
        let event = recorded(1, "Job", "a", "uid-a", "StartRefused");
        assert_eq!(message(std::slice::from_ref(&event)), event.message);
        let older = recorded(1, "Job", "a", "uid-a", "SlotWaiting");
        assert_eq!(message(&[older]), "see its events");
    }

    #[test]
    fn where_the_status_is_cut_off_the_jobs_say_who_is_next() {
        let semaphore = semaphore(&json!({ "waiting": 5, "queue": queue(&["a", "b"]) }));
        let with = |name, priority: &str| {
            workload(name, &json!({ "consul-semaphore.io/priority": priority }))
        };
        let workloads = [
            with("a", "0"),
            with("z-low", "-5"),
            with("d", "0"),
            with("b", "0"),
            with("e-high", "9"),
            workload("held", &json!({ "consul-semaphore.io/hold": "true" })),
        ];
        let all = queue_of(&semaphore, &workloads, &[], 99);
        let jobs = |line: &QueueView| -> Vec<String> {
            line.places.iter().map(|place| place.name.clone()).collect()
        };
        assert_eq!(jobs(&all), ["a", "b", "e-high", "d", "z-low"]);
        assert_eq!(all.places[2].message, "behind b");
        assert_eq!(all.more, 0);
        let outside: Vec<_> = all
            .outside
            .iter()
            .map(|one| (&*one.name, &*one.reason))
            .collect();
        assert_eq!(outside, [("held", "OnHold")]);

        let few = queue_of(&semaphore, &workloads, &[], 3);
        assert_eq!((jobs(&few).len(), few.more), (3, 2));
        let none = queue_of(&semaphore, &[], &[], 99);
        assert_eq!((none.places.len(), none.more), (2, 3));
    }

    #[test]
    fn a_job_outside_the_queue_is_shown_with_the_reason() {
        let semaphore = semaphore(&json!({ "waiting": 0 }));
        let workloads = [
            workload("held", &json!({ "consul-semaphore.io/hold": "true" })),
            workload(
                "malformed",
                &json!({ "consul-semaphore.io/priority": "high" }),
            ),
            workload("new", &json!({})),
            workload("stray", &json!({})),
        ];
        let events = [recorded(1, "Job", "stray", "uid-stray", "NoSemaphore")];
        let line = queue_of(&semaphore, &workloads, &events, 99);
        let words: Vec<_> = line
            .outside
            .iter()
            .map(|one| (&*one.name, &*one.reason))
            .collect();
        let expected = [
            ("held", "OnHold"),
            ("malformed", "Malformed"),
            ("new", "Unseen"),
            ("stray", "NoSemaphore"),
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn of_a_keyed_one_each_key_has_a_queue() {
        let entry = |name: &str, key: &str| json!({ "kind": "Job", "name": name, "key": key, "reason": "AllSlotsHeld", "message": "" });
        let queue = json!([entry("a", "k1"), entry("b", "k2")]);
        let mut semaphore = semaphore(&json!({ "waiting": 4, "queue": queue }));
        semaphore.spec.keyed = true;
        let asks = |name, key: &str| workload(name, &json!({ "consul-semaphore.io/key": key }));
        let line = queue_of(&semaphore, &[asks("y", "k1"), asks("z", "k3")], &[], 99);
        let behind: Vec<_> = line
            .places
            .iter()
            .skip(2)
            .map(|place| &*place.message)
            .collect();
        assert_eq!(
            behind,
            ["behind a", "behind the Jobs that the status lists"]
        );
    }

    #[test]
    fn without_an_operator_nobody_knows() {
        let mut semaphore = semaphore(&json!({ "waiting": 0 }));
        semaphore.status = None;
        let line = queue_of(&semaphore, &[workload("a", &json!({}))], &[], 99);
        assert_eq!(line.outside[0].reason, "Unseen");
    }
}
