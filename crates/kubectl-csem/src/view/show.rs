//! One semaphore: who holds its slots, who waits and why, what happened last.

use consul_semaphore_api::{
    ConsulSemaphore, HolderStatus,
    conditions::{ConditionType, Reason},
};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::{
    age::{age, until},
    holder::Who,
    item::{condition, count, outdated, phase, status},
    list::limit,
    queue::{Outside, Place, Queue},
    recorded::RecordedEvent,
    table::Table,
    text::{Line, Span, Text, Tone},
};

/// Everything that is shown of a semaphore.
pub(crate) struct Shown<'a> {
    pub(crate) semaphore: &'a ConsulSemaphore,
    pub(crate) queue: &'a Queue,
    /// The last events, oldest first.
    pub(crate) events: &'a [&'a RecordedEvent],
    /// What can't be shown, and why.
    pub(crate) gaps: &'a [String],
}

/// The width of the names in the summary at the top.
const LABEL: usize = 18;

/// The indent of the lines below a heading.
const INDENT: usize = 2;

pub(crate) fn show(shown: &Shown<'_>, now: Timestamp) -> Text {
    let Shown {
        semaphore,
        queue,
        events,
        gaps,
    } = shown;
    let mut text = top(semaphore);
    text.extend(gaps.iter().map(|gap| note(gap)));
    holders(&mut text, semaphore, now);
    waiting(&mut text, queue, now);
    outside(&mut text, queue);
    recorded(&mut text, events, now);
    text
}

/// The summary at the top.
fn top(semaphore: &ConsulSemaphore) -> Text {
    let reported = status(semaphore);
    let mut text = Text::default();
    let (namespace, name) = (
        semaphore.namespace().unwrap_or_default(),
        semaphore.name_any(),
    );
    text.push(Line::of(Tone::Strong, format!("{namespace}/{name}")));
    if semaphore.status.is_none() {
        text.push(note(
            "the operator has not reported anything yet: does it run?",
        ));
    }
    if let Some(seen) = outdated(semaphore) {
        let at = semaphore.metadata.generation.unwrap_or_default();
        text.push(note(&format!(
            "this was reported of generation {seen} of the spec, which is at {at} now"
        )));
    }
    if semaphore.metadata.deletion_timestamp.is_some() {
        text.push(note("it is being deleted"));
    }
    for type_ in ConditionType::ALL {
        if let Some(line) = condition_line(semaphore, type_) {
            text.push(line);
        }
    }
    let here = count(reported.held_here, "of them by a Job", "of them by Jobs");
    let mut slots = vec![
        Span::plain(format!("{} of ", reported.held)),
        limit(semaphore),
    ];
    let keyed = if semaphore.spec.keyed {
        " for each key"
    } else {
        ""
    };
    slots.push(Span::plain(format!("{keyed} held, {here} of this cluster")));
    text.push(labelled("Slots", slots));
    let waiting = count(
        reported.waiting,
        "Job of this cluster",
        "Jobs of this cluster",
    );
    text.push(labelled("Waiting", vec![Span::plain(waiting)]));
    if let Some(keys) = reported.keys_in_use {
        text.push(labelled("Keys in use", vec![Span::plain(keys.to_string())]));
    }
    let place = format!("{} ({:?})", semaphore.prefix(), semaphore.spec.mode);
    text.push(labelled("Consul", vec![Span::plain(place)]));
    text
}

/// A condition, unless it only says that all is well.
fn condition_line(semaphore: &ConsulSemaphore, type_: ConditionType) -> Option<Line> {
    let condition = condition(semaphore, type_)?;
    let well = [
        Reason::Reachable,
        Reason::LimitsMatch,
        Reason::SlotsFree,
        Reason::AllSlotsHeld,
    ];
    let plain = well
        .iter()
        .any(|reason| reason.as_str() == condition.reason);
    if plain && type_ != ConditionType::SlotsAvailable {
        return None;
    }
    let mut word = phase(Some(condition));
    if plain {
        // Holding all slots is not an error.
        word = Span::plain(&condition.status);
    }
    let said = format!(", {}: {}", condition.reason, condition.message);
    Some(labelled(type_.as_str(), vec![word, Span::plain(said)]))
}

fn labelled(label: &str, mut spans: Vec<Span>) -> Line {
    let label = format!("{:INDENT$}{label:LABEL$}", "");
    spans.insert(0, Span::new(Tone::Dim, label));
    Line(spans)
}

fn note(words: &str) -> Line {
    Line(vec![
        Span::plain("  "),
        Span::new(Tone::Doubt, format!("! {words}")),
    ])
}

fn dim(words: &str) -> Line {
    Line(vec![Span::plain("  "), Span::new(Tone::Dim, words)])
}

fn holders(text: &mut Text, semaphore: &ConsulSemaphore, now: Timestamp) {
    let reported = status(semaphore);
    text.heading("HOLDERS");
    if reported.holders.is_empty() && reported.held == 0 {
        text.push(dim("none"));
        return;
    }
    let mut table = Table::new([
        "#", "HOLDER", "KIND", "WHERE", "KEY", "AGE", "SESSION", "NOTE",
    ]);
    for (index, holder) in reported.holders.iter().enumerate() {
        let HolderStatus {
            session,
            key,
            holder: said,
            since,
            cools_until: _,
            never_expires: _,
        } = holder;
        let who = Who::read(said.as_deref());
        table.row([
            Span::plain((index + 1).to_string()),
            Span::plain(if who.name.is_empty() { "-" } else { &who.name }),
            Span::plain(who.kind.as_str()),
            Span::plain(who.place),
            Span::plain(key.as_deref().unwrap_or_default()),
            Span::plain(age(since.as_ref().map(|time| time.0), now)),
            Span::plain(session),
            Span::new(Tone::Doubt, remark(holder, now)),
        ]);
    }
    text.extend(table.indented(INDENT).lines());
    more(
        text,
        usize::try_from(reported.held)
            .unwrap_or(0)
            .saturating_sub(reported.holders.len()),
    );
}

/// Additional remarks about a holder.
fn remark(holder: &HolderStatus, now: Timestamp) -> String {
    let mut remarks = Vec::new();
    if let Some(end) = &holder.cools_until {
        remarks.push(if end.0 > now {
            format!("done, cools for {} more", until(end.0, now))
        } else {
            "done, has cooled".to_owned()
        });
    }
    if holder.never_expires {
        remarks.push("its session never expires".to_owned());
    }
    remarks.join("; ")
}

fn waiting(text: &mut Text, queue: &Queue, now: Timestamp) {
    text.heading("QUEUE");
    if queue.places.is_empty() && queue.more == 0 {
        text.push(dim("none"));
        return;
    }
    let mut table = Table::new(["#", "JOB", "KEY", "PRIORITY", "WAITS", "REASON", "MESSAGE"]);
    for (index, place) in queue.places.iter().enumerate() {
        let Place {
            job,
            key,
            priority,
            since,
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
            Span::plain(job),
            Span::plain(key.as_deref().unwrap_or_default()),
            Span::plain(priority.map_or_else(String::new, |priority| priority.to_string())),
            Span::plain(age(*since, now)),
            Span::new(tone, reason),
            Span::new(tone, message),
        ]);
    }
    text.extend(table.indented(INDENT).lines());
    more(text, queue.more);
}

fn outside(text: &mut Text, queue: &Queue) {
    if queue.outside.is_empty() {
        return;
    }
    text.heading("NOT QUEUED");
    let mut table = Table::new(["JOB", "REASON", "MESSAGE"]);
    for Outside {
        job,
        reason,
        message,
    } in &queue.outside
    {
        table.row([job, reason, message].map(Span::plain));
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

/// A line with the number of those that are not shown.
fn more(text: &mut Text, number: usize) {
    if number > 0 {
        text.push(dim(&format!("… and {number} more")));
    }
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
                { "job": "urgent", "since": "2026-01-01T00:29:00Z" },
                { "job": "migrate-3", "since": "2026-01-01T00:20:00Z" },
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
        let shown = Shown {
            semaphore: &semaphore,
            queue: &queue,
            events: &events,
            gaps: &[],
        };
        let text = show(&shown, now()).render(false);
        assert_eq!(text, include_str!("expected/show.txt"));
    }

    #[test]
    fn what_is_not_as_it_should_be_is_reported() {
        let mut semaphore = semaphore(&json!({
            "observedGeneration": 3, "limit": 3, "held": 23, "heldHere": 0,
            "holders": [
                { "session": "s-1", "holder": "prod-eu batch/done", "since": "2026-01-01T00:00:00Z",
                  "coolsUntil": "2026-01-01T00:34:00Z" },
                { "session": "s-2", "neverExpires": true },
                { "session": "s-3", "holder": "Consul API Semaphore\u{1b}[2J on web-1" },
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
        let shown = Shown {
            semaphore: &semaphore,
            queue: &queue,
            events: &[],
            gaps: &gaps,
        };
        let text = show(&shown, now()).render(false);
        assert_eq!(text, include_str!("expected/show-trouble.txt"));
    }

    #[test]
    fn one_that_nobody_looks_after() {
        let mut semaphore = semaphore(&json!({}));
        semaphore.status = None;
        let shown = Shown {
            semaphore: &semaphore,
            queue: &Queue::default(),
            events: &[],
            gaps: &[],
        };
        let text = show(&shown, now()).render(false);
        assert_eq!(text, include_str!("expected/show-new.txt"));
    }
}
