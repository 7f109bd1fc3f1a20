//! The output about one semaphore: who holds its slots, who waits and why, and what happened last.

use consul_semaphore_api::{ConsulSemaphore, HolderStatus};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::{
    age::{age, until},
    elsewhere,
    item::{count, status, title},
    parts::{self, INDENT, dim, labelled, more, note},
    queue::{Outside, QueueView, QueuedJob},
    recorded::RecordedEvent,
    table::Table,
    text::{Line, Span, Text, Tone},
};

/// The data that is shown of a semaphore.
pub(crate) struct SemaphoreDetails<'a> {
    pub(crate) semaphore: &'a ConsulSemaphore,
    pub(crate) queue: &'a QueueView,
    /// The last events, oldest first.
    pub(crate) events: &'a [&'a RecordedEvent],
    /// The objects that can't be shown, and why.
    pub(crate) gaps: &'a [String],
}

pub(crate) fn show(shown: &SemaphoreDetails<'_>, now: Timestamp) -> Text {
    let SemaphoreDetails {
        semaphore,
        queue,
        events,
        gaps,
    } = shown;
    let mut text = top(semaphore, now);
    text.extend(gaps.iter().map(|gap| note(gap)));
    holders(&mut text, semaphore, now);
    waiting(&mut text, semaphore, queue, now);
    outside(&mut text, queue);
    recorded(&mut text, events, now);
    text
}

/// Returns the summary at the top.
fn top(semaphore: &ConsulSemaphore, now: Timestamp) -> Text {
    let mut text = Text::default();
    let (namespace, name) = (
        semaphore.namespace().unwrap_or_default(),
        semaphore.name_any(),
    );
    text.push(Line::of(Tone::Strong, format!("{namespace}/{name}")));
    parts::reported(&mut text, semaphore, None);
    text.push(parts::slots(semaphore));
    parts::restrictions(&mut text, semaphore, now);
    let waiting = count(
        status(semaphore).waiting,
        "Job of this cluster",
        "Jobs of this cluster",
    );
    text.push(labelled("Waiting", vec![Span::plain(waiting)]));
    let place = format!("{} ({})", semaphore.prefix(), parts::mode(semaphore));
    text.push(labelled("Consul", vec![Span::plain(place)]));
    text
}

fn holders(text: &mut Text, semaphore: &ConsulSemaphore, now: Timestamp) {
    let reported = status(semaphore);
    let held = usize::try_from(reported.held).unwrap_or(0);
    let more = held.saturating_sub(reported.holders.len());
    let listed: Vec<&HolderStatus> = reported.holders.iter().collect();
    parts::holders(text, &listed, more, now);
}

fn waiting(text: &mut Text, semaphore: &ConsulSemaphore, queue: &QueueView, now: Timestamp) {
    text.heading("QUEUE");
    let elsewhere = elsewhere::line(&status(semaphore), None);
    if queue.places.is_empty() && queue.more == 0 {
        text.push(dim(elsewhere.as_deref().unwrap_or("none")));
        return;
    }
    let mut table = Table::new([
        "#", "JOB", "KEY", "ASKS FOR", "PRIORITY", "WAITS", "EXPECTED", "REASON", "MESSAGE",
    ]);
    for (index, place) in queue.places.iter().enumerate() {
        let QueuedJob {
            kind,
            name,
            key,
            asks_for,
            lacks: _,
            priority,
            since,
            fails,
            expected,
            reason,
            message,
        } = place;
        let tone = if reason == "Behind" {
            Tone::Dim
        } else {
            Tone::Plain
        };
        table.row([
            Span::plain((index + 1).to_string()),
            Span::plain(title(kind, name)),
            Span::plain(key.as_deref().unwrap_or_default()),
            Span::plain(asks_for.as_deref().unwrap_or_default()),
            Span::plain(priority.map_or_else(String::new, |priority| priority.to_string())),
            Span::plain(waits(*since, *fails, now)),
            Span::plain(expected.map_or_else(String::new, |at| soon(at, now))),
            Span::new(tone, reason),
            Span::new(tone, message),
        ]);
    }
    text.extend(table.indented(INDENT).lines());
    more(text, queue.more);
    text.extend(elsewhere.map(|line| dim(&line)));
}

/// Returns in how long something is likely to happen.
fn soon(at: Timestamp, now: Timestamp) -> String {
    if at <= now {
        "soon".to_owned()
    } else {
        format!("in {}", until(at, now))
    }
}

/// Returns how long a Job has waited, and when it fails.
fn waits(since: Option<Timestamp>, fails: Option<Timestamp>, now: Timestamp) -> String {
    let waits = age(since, now);
    match fails {
        Some(fails) => format!("{waits}, fails in {}", until(fails, now)),
        None => waits,
    }
}

fn outside(text: &mut Text, queue: &QueueView) {
    if queue.outside.is_empty() {
        return;
    }
    text.heading("NOT QUEUED");
    let mut table = Table::new(["JOB", "REASON", "MESSAGE"]);
    for Outside {
        kind,
        name,
        reason,
        message,
    } in &queue.outside
    {
        let title = title(kind, name);
        table.row([&title, reason, message].map(Span::plain));
    }
    text.extend(table.indented(INDENT).lines());
    more(text, queue.more_outside);
}

fn recorded(text: &mut Text, events: &[&RecordedEvent], now: Timestamp) {
    text.heading("EVENTS");
    if events.is_empty() {
        text.push(dim("none"));
        return;
    }
    let mut table = Table::new(["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
    for event in events {
        let (tone, type_) = if event.warning {
            (Tone::Bad, "Warning")
        } else {
            (Tone::Plain, "Normal")
        };
        let object = format!("{}/{}", event.kind, event.name);
        table.row([
            Span::plain(age(Some(event.time), now)),
            Span::new(tone, type_),
            Span::new(tone, &event.reason),
            Span::plain(object),
            Span::plain(&event.message),
        ]);
    }
    text.extend(table.indented(INDENT).lines());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::{
        queue::queue_of,
        samples::{now, recorded, semaphore, workload},
    };

    #[test]
    fn all_of_a_busy_one() {
        let semaphore = semaphore(&json!({
            "waiting": 3,
            "queue": [
                { "kind": "Job", "name": "urgent", "since": "2026-01-01T00:29:00Z" },
                { "kind": "Job", "name": "migrate-3", "since": "2026-01-01T00:20:00Z", "reason": "StartRefused" },
            ],
        }));
        let workloads = [
            workload("urgent", &json!({ "consul-semaphore.io/priority": "10" })),
            workload("migrate-3", &json!({})),
            workload("migrate-4", &json!({})),
            workload("later", &json!({ "consul-semaphore.io/hold": "true" })),
        ];
        let events = [
            recorded(1, "Job", "urgent", "uid-urgent", "SlotWaiting"),
            recorded(30, "Job", "migrate-3", "uid-migrate-3", "StartRefused"),
        ];
        let queue = queue_of(&semaphore, &workloads, &events, 99);
        let events: Vec<&RecordedEvent> = events.iter().collect();
        let shown = SemaphoreDetails {
            semaphore: &semaphore,
            queue: &queue,
            events: &events,
            gaps: &[],
        };
        let text = show(&shown, now()).render(false);
        assert_eq!(text, include_str!("expected/show.txt"));
    }

    #[test]
    fn what_each_job_asks_for_lacks_and_expects() {
        let mut semaphore = semaphore(&json!({
            "waiting": 3, "limit": 3, "held": 1, "windowLimit": 2,
            "queue": [
                { "kind": "Job", "name": "both", "since": "2026-01-01T00:20:00Z", "asksFor": "db, licenses:2", "lacks": "licenses:2",
                  "reason": "PassedOver", "message": "it waits for licenses:2; workloads behind it start meanwhile" },
                { "kind": "Job", "name": "pair", "since": "2026-01-01T00:21:00Z", "slots": 2, "expected": "2026-01-01T00:35:00Z",
                  "reason": "TooFewSlotsFree", "message": "1 of 2 slots are held, and it asks for 2: 1 more must become free" },
                { "kind": "Job", "name": "late", "since": "2026-01-01T00:22:00Z", "expected": "2026-01-01T00:29:00Z" },
            ],
        }));
        semaphore.spec.limit = 3;
        semaphore.spec.windows = serde_json::from_value(
            json!([{ "schedule": "0 22 * * *", "duration": "6h", "limit": 2 }]),
        )
        .unwrap();
        semaphore.spec.reserved =
            serde_json::from_value(json!({ "slots": 1, "minPriority": 10 })).unwrap();
        let several = json!({ "consul-semaphore.io/semaphore": "db, licenses:2" });
        let mut queue = queue_of(&semaphore, &[workload("both", &several)], &[], 99);
        let mut licenses = crate::view::samples::semaphore(&json!({
            "limit": 3, "held": 2,
            "queue": [{ "kind": "Job", "name": "both", "reason": "TooFewSlotsFree",
                        "message": "2 of 3 slots are held, and it asks for 2: 1 more must become free" }],
        }));
        licenses.metadata.name = Some("licenses".to_owned());
        queue.look_elsewhere("db", &[licenses]);
        let text = text_of(&semaphore, &queue);
        assert_eq!(text, include_str!("expected/show-several.txt"));
        // The time is outside the windows.
        let opens = json!({ "waiting": 0, "windowOpens": "2026-01-01T22:00:00Z" });
        let status = crate::view::samples::semaphore(&opens).status;
        semaphore.status = status;
        let text = text_of(&semaphore, &QueueView::default());
        let closed =
            "Windows           closed, the next one opens in 21h, at 2026-01-01T22:00:00Z\n";
        assert!(text.contains(closed), "{text}");
    }

    #[test]
    fn what_is_not_as_it_should_be_is_reported() {
        let mut semaphore = semaphore(&json!({
            "observedGeneration": 3, "limit": 3, "held": 23, "heldHere": 0,
            "holders": [
                { "session": "s-1", "kind": "Job", "cluster": "prod-eu", "namespace": "batch", "name": "done",
                  "since": "2026-01-01T00:00:00Z", "coolsUntil": "2026-01-01T00:34:00Z" },
                { "session": "s-2", "neverExpires": true,
                  "notStarted": { "reason": "ImagePullBackOff", "message": "Back-off" } },
                { "session": "s-3", "kind": "Program", "node": "web-1", "name": "Consul API Semaphore\u{1b}[2J" },
            ],
            "conditions": [
                { "type": "Ready", "status": "False", "reason": "LimitConflict", "message": "Consul's limit is 3",
                  "lastTransitionTime": "2026-01-01T00:00:00Z" },
                { "type": "ConsulReachable", "status": "True", "reason": "IndexWentBack", "message": "tokens start again",
                  "lastTransitionTime": "2026-01-01T00:00:00Z" },
            ],
        }));
        semaphore.metadata.generation = Some(4);
        let queue = queue_of(&semaphore, &[], &[], 99);
        let gaps = ["the Jobs are not shown: you may not list them".to_owned()];
        let shown = SemaphoreDetails {
            semaphore: &semaphore,
            queue: &queue,
            events: &[],
            gaps: &gaps,
        };
        let text = show(&shown, now()).render(false);
        assert_eq!(text, include_str!("expected/show-trouble.txt"));
    }

    fn text_of(semaphore: &ConsulSemaphore, queue: &QueueView) -> String {
        let shown = SemaphoreDetails {
            semaphore,
            queue,
            events: &[],
            gaps: &[],
        };
        show(&shown, now()).render(false)
    }

    #[test]
    fn one_that_nobody_looks_after() {
        let mut semaphore = semaphore(&json!({}));
        semaphore.status = None;
        let text = text_of(&semaphore, &QueueView::default());
        assert_eq!(text, include_str!("expected/show-new.txt"));
    }

    #[test]
    fn who_waits_elsewhere_is_in_the_queue() {
        let waiter =
            json!({ "session": "s", "kind": "Process", "host": "ci-runner", "name": "deploy" });
        let queued = json!([{ "kind": "Job", "name": "a" }]);
        for (waiting, queued, expected) in [
            (0, json!([]), "QUEUE\n  1 other waiter: ci-runner deploy\n"),
            (
                1,
                queued,
                "2 of 2 slots are held\n  1 other waiter: ci-runner deploy\n",
            ),
        ] {
            let semaphore = semaphore(
                &json!({ "waiting": waiting, "queue": queued, "waitingElsewhere": [waiter] }),
            );
            let queue = queue_of(&semaphore, &[], &[], 99);
            let text = text_of(&semaphore, &queue);
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn the_limit_of_a_keyed_one_is_for_each_key() {
        let mut semaphore = semaphore(&json!({ "limit": 1, "keysInUse": 2 }));
        semaphore.spec.limit = 1;
        semaphore.spec.keyed = true;
        let text = text_of(&semaphore, &QueueView::default());
        let expected =
            "2 slots held across 2 keys, limit 1 for each, 1 of them by a Job of this cluster";
        assert!(
            text.contains(expected) && !text.contains("2 of 1"),
            "{text}"
        );
    }
}
