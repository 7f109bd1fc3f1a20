//! A semaphore for programs, as JSON or YAML.

use consul_semaphore::ContenderName;
use consul_semaphore_api::{HolderStatus, NotStartedStatus, WaiterStatus};
use jiff::Timestamp;
use kube::api::DynamicObject;
use serde::Serialize;

use super::{
    item::{kind_of, status},
    queue::{Outside, QueuedJob},
    recorded::RecordedEvent,
    show::SemaphoreDetails,
};

/// A semaphore with its queue.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SemaphoreDocument<'a> {
    /// The object as it is stored.
    semaphore: &'a DynamicObject,
    holders: Vec<HolderEntry>,
    /// Number of holders beyond these.
    more_holders: usize,
    /// The Jobs in the queue. The next one to get a slot is first.
    queue: &'a [QueuedJob],
    /// Number of Jobs that wait behind these.
    more_in_queue: usize,
    /// The contenders of other clusters and programs that wait.
    waiting_elsewhere: Vec<ContenderEntry>,
    not_queued: &'a [Outside],
    /// Number of Jobs outside the queue beyond these.
    more_not_queued: usize,
    events: &'a [&'a RecordedEvent],
    /// The objects that could not be read, and why.
    gaps: &'a [String],
}

/// A holder with its contender.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HolderEntry {
    #[serde(flatten)]
    contender: ContenderEntry,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cools_until: Option<Timestamp>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    never_expires: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_started: Option<NotStartedStatus>,
}

/// A contender.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContenderEntry {
    session: String,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#where: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl<'a> SemaphoreDocument<'a> {
    pub(crate) fn of(object: &'a DynamicObject, shown: &SemaphoreDetails<'a>) -> Self {
        let status = status(shown.semaphore);
        let held = usize::try_from(status.held).unwrap_or(0);
        Self {
            semaphore: object,
            more_holders: held.saturating_sub(status.holders.len()),
            holders: status.holders.iter().map(HolderEntry::of).collect(),
            queue: &shown.queue.places,
            more_in_queue: shown.queue.more,
            waiting_elsewhere: status
                .waiting_elsewhere
                .iter()
                .map(ContenderEntry::waiting)
                .collect(),
            not_queued: &shown.queue.outside,
            more_not_queued: shown.queue.more_outside,
            events: shown.events,
            gaps: shown.gaps,
        }
    }
}

impl HolderEntry {
    pub(super) fn of(holder: &HolderStatus) -> Self {
        let (session, key) = (&holder.session, &holder.key);
        Self {
            contender: ContenderEntry::new(session, key.as_ref(), &holder.holder),
            slot_index: holder.slot_index,
            slot_name: holder.slot_name.clone(),
            since: holder.since.as_ref().map(|time| time.0),
            cools_until: holder.cools_until.as_ref().map(|time| time.0),
            never_expires: holder.never_expires,
            not_started: holder.not_started.clone(),
        }
    }
}

impl ContenderEntry {
    /// Returns a contender of another cluster or program that waits.
    pub(super) fn waiting(waiter: &WaiterStatus) -> Self {
        Self::new(&waiter.session, waiter.key.as_ref(), &waiter.waiter)
    }

    fn new(session: &str, key: Option<&String>, who: &ContenderName) -> Self {
        Self {
            session: session.to_owned(),
            kind: kind_of(who).to_owned(),
            name: who.path(),
            r#where: who.place().map(ToOwned::to_owned),
            key: key.cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;
    use crate::view::{
        queue::queue_of,
        samples::{recorded, semaphore, workload},
    };

    #[test]
    fn a_program_finds_what_people_see() {
        let semaphore = semaphore(&json!({
            "waiting": 2, "queue": [{ "kind": "Job", "name": "a", "since": "2026-01-01T00:29:00Z" }],
            "waitingElsewhere": [{ "session": "s", "kind": "Process", "host": "ci-runner", "name": "deploy" }],
        }));
        let object: DynamicObject = from_value(to_value(&semaphore).unwrap()).unwrap();
        let workloads = [
            workload("a", &json!({})),
            workload("b", &json!({ "consul-semaphore.io/hold": "true" })),
        ];
        let events = [recorded(1, "Job", "a", "uid-a", "SlotWaiting")];
        let queue = queue_of(&semaphore, &workloads, &events, 99);
        let events: Vec<&RecordedEvent> = events.iter().collect();
        let shown = SemaphoreDetails {
            semaphore: &semaphore,
            queue: &queue,
            events: &events,
            gaps: &[],
        };
        let document = to_value(SemaphoreDocument::of(&object, &shown)).unwrap();
        assert_eq!(document["semaphore"]["spec"]["limit"], 2);
        let expected = json!({
            "session": "9704f651-b12d-3412-5f37-488d4d7d4b4d", "kind": "Job", "name": "batch/migrate-1",
            "where": "prod-eu", "since": "2026-01-01T00:28:00Z",
        });
        assert_eq!(document["holders"][0], expected);
        let expected = json!([{
            "kind": "Job", "name": "a", "priority": 0, "since": "2026-01-01T00:29:00Z",
            "reason": "AllSlotsHeld", "message": "2 of 2 slots are held",
        }]);
        assert_eq!(document["queue"], expected);
        assert_eq!(document["moreInQueue"], 1);
        let expected =
            json!([{ "session": "s", "kind": "Process", "name": "deploy", "where": "ci-runner" }]);
        assert_eq!(document["waitingElsewhere"], expected);
        assert_eq!(document["notQueued"][0]["reason"], "OnHold");
        assert_eq!(document["events"][0]["reason"], "SlotWaiting");
    }
}
