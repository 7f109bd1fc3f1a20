//! The events that the operator emitted about Jobs and semaphores.

use std::collections::{HashMap, HashSet};

use consul_semaphore_api::GROUP;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde::Serialize;

/// The name of the operator in its events, as the reporting component.
pub(crate) const REPORTER: &str = GROUP;

/// An event that the operator emitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RecordedEvent {
    /// Time at which the event last happened.
    pub(crate) time: Timestamp,
    pub(crate) warning: bool,
    pub(crate) reason: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    #[serde(skip)]
    pub(crate) uid: Option<String>,
    pub(crate) message: String,
    pub(crate) count: i32,
}

impl RecordedEvent {
    /// Parses an event; `None` if it has no time or no subject.
    pub(crate) fn read(event: &Event) -> Option<Self> {
        let series = event.series.as_ref();
        let times = [
            series
                .and_then(|series| series.last_observed_time.as_ref())
                .map(|time| time.0),
            event.last_timestamp.as_ref().map(|time| time.0),
            event.event_time.as_ref().map(|time| time.0),
            event
                .metadata
                .creation_timestamp
                .as_ref()
                .map(|time| time.0),
        ];
        let about = &event.involved_object;
        let count = series.and_then(|series| series.count).or(event.count);
        Some(Self {
            time: times.into_iter().flatten().max()?,
            warning: event.type_.as_deref() == Some("Warning"),
            reason: event.reason.clone().unwrap_or_default(),
            kind: about.kind.clone()?,
            name: about.name.clone()?,
            uid: about.uid.clone(),
            message: event.message.clone().unwrap_or_default(),
            count: count.unwrap_or(1),
        })
    }
}

/// Returns the last event of each object, by name and uid. A new object with the same name has another uid.
pub(crate) fn last_words(recorded: &[RecordedEvent]) -> HashMap<(&str, &str), &RecordedEvent> {
    let mut last: HashMap<(&str, &str), &RecordedEvent> = HashMap::new();
    for event in recorded {
        let Some(uid) = event.uid.as_deref() else {
            continue;
        };
        let known = last.entry((event.name.as_str(), uid)).or_insert(event);
        if known.time <= event.time {
            *known = event;
        }
    }
    last
}

/// Returns the last events of a semaphore and of these workloads, oldest first. Each workload is a kind and a name.
pub(crate) fn recent<'a>(
    recorded: &'a [RecordedEvent],
    semaphore: &str,
    workloads: &HashSet<(String, String)>,
    most: usize,
) -> Vec<&'a RecordedEvent> {
    let is_ours = |event: &&RecordedEvent| match event.kind.as_str() {
        "ConsulSemaphore" => event.name == semaphore,
        kind => workloads.contains(&(kind.to_owned(), event.name.clone())),
    };
    let mut ours: Vec<&RecordedEvent> = recorded.iter().filter(is_ours).collect();
    ours.sort_by(|a, b| (a.time, &a.name, &a.reason).cmp(&(b.time, &b.name, &b.reason)));
    ours.split_off(ours.len().saturating_sub(most))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::samples::recorded;

    #[test]
    fn an_event_is_as_old_as_its_last_time() {
        let event = |more: serde_json::Value| {
            let mut event = json!({
                "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z" },
                "involvedObject": { "kind": "Job", "name": "a", "uid": "u" },
                "reason": "SlotGranted", "type": "Normal",
            });
            for (name, value) in more.as_object().unwrap() {
                event[name] = value.clone();
            }
            RecordedEvent::read(&serde_json::from_value(event).unwrap())
        };
        let time = |more| event(more).unwrap().time.to_string();
        assert_eq!(time(json!({})), "2026-01-01T00:00:00Z");
        let micro = "2026-01-01T00:00:01.500000Z";
        assert_eq!(
            time(json!({ "eventTime": micro })),
            "2026-01-01T00:00:01.5Z"
        );
        let series =
            json!({ "series": { "count": 3, "lastObservedTime": "2026-01-01T00:00:09.000000Z" } });
        assert_eq!(time(series.clone()), "2026-01-01T00:00:09Z");
        assert_eq!(event(series).unwrap().count, 3);
        assert_eq!(event(json!({ "involvedObject": {} })), None);
    }

    #[test]
    fn the_last_word_on_a_job_counts_and_not_on_its_namesake() {
        let all = [
            recorded(9, "Job", "a", "u1", "StartRefused"),
            recorded(5, "Job", "a", "u1", "SlotWaiting"),
            recorded(1, "Job", "a", "u2", "NoSemaphore"),
        ];
        let last = last_words(&all);
        assert_eq!(last[&("a", "u1")].reason, "StartRefused");
        assert_eq!(last[&("a", "u2")].reason, "NoSemaphore");
    }

    #[test]
    fn the_last_of_ours_are_shown_the_newest_at_the_end() {
        let all = [
            recorded(3, "Job", "a", "u", "SlotGranted"),
            recorded(1, "Job", "a", "u", "SlotWaiting"),
            recorded(2, "ConsulSemaphore", "db", "s", "ShortTtl"),
            recorded(4, "Job", "another", "u", "SlotWaiting"),
            recorded(4, "JobSet", "a", "u", "SlotWaiting"),
            recorded(5, "ConsulSemaphore", "other", "s", "ShortTtl"),
        ];
        let jobs = HashSet::from([("Job".to_owned(), "a".to_owned())]);
        let reasons = |most| -> Vec<&str> {
            let recent = recent(&all, "db", &jobs, most);
            recent
                .iter()
                .map(|recorded| recorded.reason.as_str())
                .collect()
        };
        assert_eq!(reasons(9), ["SlotWaiting", "ShortTtl", "SlotGranted"]);
        assert_eq!(reasons(2), ["ShortTtl", "SlotGranted"]);
    }
}
