//! The answer to `why`: why a workload waits, or what it does instead.

use consul_semaphore::Phase;
use consul_semaphore_api::{
    ConsulSemaphore, HolderStatus, NotStartedStatus,
    annotations::{SEMAPHORE, WAITS_LABEL},
};
use consul_semaphore_workload::{KIND, TrackedWorkload};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use super::{
    age::{age, until},
    document::{ContenderEntry, HolderEntry},
    elsewhere,
    item::status,
    parts::{self, INDENT, dim, labelled, note, words},
    queue::{Id, QueueView, QueuedJob},
    remedy::{Situation, remedies},
    text::{Line, Span, Text, Tone},
};
use crate::workload_name::WorkloadName;

/// The number of holders in the text, so that the text fits on one screen.
const SHOWN_HOLDERS: usize = 10;

/// The name of the kind of Kueue's Workloads.
const KUEUE_WORKLOAD_KIND: &str = "Workload";

/// The facts about the workload.
pub(crate) struct WhyFacts<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a WorkloadName,
    /// The workload as the operator reads it; `None` if it neither asks for a slot nor was started in one.
    pub(crate) workload: Option<&'a TrackedWorkload>,
    /// The semaphore that the answer is about.
    pub(crate) semaphore: Option<&'a str>,
    pub(crate) phase: Phase,
    /// Whether the operator sees the workload. A workload of another kind than Job needs a label for that.
    pub(crate) is_seen: bool,
    /// The advice about annotations that have no effect.
    pub(crate) advice: Option<String>,
    /// The `CronJob` that made the workload, if it has the annotation in the wrong place.
    pub(crate) cron_job: Option<&'a str>,
    /// Kueue's Workload for this workload, if Kueue manages it. The Workload waits for the slot.
    pub(crate) of_kueue: Option<&'a OfKueue>,
    pub(crate) named: Named<'a>,
    /// The objects that could not be read, and why.
    pub(crate) gaps: &'a [String],
}

/// A Workload of Kueue.
pub(crate) struct OfKueue {
    pub(crate) name: String,
    /// The state that Kueue has the Workload in, for people.
    pub(crate) does: String,
}

/// The semaphore that the workload names.
pub(crate) enum Named<'a> {
    /// The workload names no semaphore.
    Nothing,
    /// No semaphore of that name exists, but these do.
    Missing(&'a [String]),
    /// The semaphore was stored before its schema and can't be read. The text says why.
    Unreadable(&'a str),
    Semaphore(&'a ConsulSemaphore, &'a QueueView),
}

impl WhyFacts<'_> {
    fn is(&self, id: Id<'_>) -> bool {
        let kind = self.name.kind.name();
        let of_kueue = self.of_kueue.map(|it| (KUEUE_WORKLOAD_KIND, &*it.name));
        id == (kind.as_str(), &*self.name.name) || Some(id) == of_kueue
    }
}

/// The state of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum WorkloadState {
    /// The workload is in the queue.
    Waiting,
    /// The workload asks for a slot, and is not in the queue.
    NotQueued,
    /// The workload does not ask for a slot.
    NotAnnotated,
    Running,
    Finished,
    Deleting,
}

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WhyAnswer<'a> {
    namespace: &'a str,
    kind: String,
    name: &'a str,
    state: WorkloadState,
    /// The reason in one word, for programs.
    reason: String,
    message: String,
    /// All slots that the workload asks for, if it asks for several.
    #[serde(skip_serializing_if = "Option::is_none")]
    asks_for: Option<String>,
    /// The slots that are not free, if the workload asks for slots of several semaphores and this is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    lacks: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    semaphore: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Place of the workload in the queue, from 1, and the number of Jobs of this cluster in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queued: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    /// Earliest time at which the workload fails if it has no slot by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    fails: Option<Timestamp>,
    /// Time at which the workload is likely to start, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<Timestamp>,
    holders: Vec<HolderEntry>,
    /// Number of holders beyond these; in a keyed semaphore, of all keys.
    more_holders: usize,
    waiting_elsewhere: Vec<ContenderEntry>,
    conditions: Vec<Condition>,
    to_do: Vec<String>,
    gaps: &'a [String],
    #[serde(skip)]
    of: Option<&'a ConsulSemaphore>,
    /// Number of slots of the semaphore that the workload asks for.
    #[serde(skip)]
    slots: u32,
}

/// The state of the workload, and the reason for it.
struct WorkloadVerdict {
    state: WorkloadState,
    reason: String,
    message: String,
}

impl WorkloadVerdict {
    fn new(state: WorkloadState, reason: &str, message: impl Into<String>) -> Self {
        Self {
            state,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// Answers from the facts that are known.
pub(crate) fn answer<'a>(facts: &WhyFacts<'a>) -> WhyAnswer<'a> {
    let (of, queue) = match facts.named {
        Named::Semaphore(semaphore, queue) => (Some(semaphore), Some(queue)),
        Named::Nothing | Named::Missing(_) | Named::Unreadable(_) => (None, None),
    };
    let places = queue.map_or(&[][..], |queue| &queue.places);
    let index = places.iter().position(|place| facts.is(place.id()));
    let place = index.map(|index| &places[index]);
    let WorkloadVerdict {
        state,
        reason,
        message,
    } = verdict(facts, place, queue);
    let index = index.filter(|_| state == WorkloadState::Waiting);
    let key = key(facts, place, of);

    // Each key has its own queue.
    let same = |other: &&QueuedJob| key.is_none() || other.key == key;
    let ahead: Vec<&QueuedJob> = places[..index.unwrap_or(0)].iter().filter(same).collect();
    let more = queue.map_or(0, |queue| queue.more);
    let queued = match key {
        // The Jobs that are not listed may wait for any key.
        Some(_) if more > 0 => None,
        _ => Some(places.iter().filter(same).count() + more),
    };
    let highest = ahead.iter().filter_map(|place| place.priority).max();
    let name = facts.semaphore;
    let priority = facts.workload.map(|workload| workload.workload.priority);
    let to_do = remedies(&Situation {
        namespace: facts.namespace,
        workload: facts.name,
        semaphore: name,
        reason: &reason,
        advice: facts.advice.as_deref(),
        cron_job: facts.cron_job,
        others: match facts.named {
            Named::Missing(others) => others,
            Named::Nothing | Named::Unreadable(_) | Named::Semaphore(..) => &[],
        },
        highest: highest.or(priority).unwrap_or(0),
    });
    let status = of.map(status).unwrap_or_default();
    let held = usize::try_from(status.held).unwrap_or(0);
    let shown = |holder: &&HolderStatus| key.is_none() || holder.key == key;
    let elsewhere = elsewhere::waiters(&status, key.as_deref());
    WhyAnswer {
        namespace: facts.namespace,
        kind: facts.name.kind.name().to_string(),
        name: &facts.name.name,
        state,
        reason,
        message,
        asks_for: facts
            .workload
            .filter(|workload| workload.workload.asks_for_many())
            .map(|workload| workload.workload.asked()),
        semaphore: name.map(ToString::to_string),
        place: index.map(|_| ahead.len() + 1),
        queued: queued.filter(|_| index.is_some()),
        priority,
        since: place
            .filter(|_| index.is_some())
            .and_then(|place| place.since),
        fails: place
            .filter(|_| index.is_some())
            .and_then(|place| place.fails),
        expected: place
            .filter(|_| index.is_some())
            .and_then(|place| place.expected),
        lacks: place
            .filter(|_| index.is_some())
            .and_then(|place| place.lacks.clone()),
        holders: status
            .holders
            .iter()
            .filter(shown)
            .map(HolderEntry::of)
            .collect(),
        more_holders: held.saturating_sub(status.holders.len()),
        waiting_elsewhere: elsewhere.into_iter().map(ContenderEntry::waiting).collect(),
        conditions: status.conditions.clone(),
        to_do,
        gaps: facts.gaps,
        key,
        of,
        slots: slots(facts),
    }
}

/// Returns how many slots the workload asks for at the semaphore that the answer is about.
fn slots(facts: &WhyFacts<'_>) -> u32 {
    let request = facts
        .workload
        .zip(facts.semaphore)
        .and_then(|(workload, name)| workload.workload.asks_for(name, None));
    request.map_or(1, |request| request.slots.get())
}

fn key(
    facts: &WhyFacts<'_>,
    place: Option<&QueuedJob>,
    of: Option<&ConsulSemaphore>,
) -> Option<String> {
    let semaphore = of.filter(|semaphore| semaphore.spec.keyed)?;
    if let Some(key) = place.and_then(|place| place.key.clone()) {
        return Some(key);
    }
    let name = semaphore.metadata.name.as_deref().unwrap_or_default();
    let request = facts.workload?.workload.asks_for(name, None)?;
    request.key.as_ref().map(ToString::to_string)
}

fn verdict(
    facts: &WhyFacts<'_>,
    place: Option<&QueuedJob>,
    queue: Option<&QueueView>,
) -> WorkloadVerdict {
    let of_phase = match facts.phase {
        Phase::Finished { .. } => Some((WorkloadState::Finished, "Finished", "it is done")),
        Phase::Deleting => Some((WorkloadState::Deleting, "Deleting", "it is being deleted")),
        Phase::Idle | Phase::Stopping | Phase::Running => None,
    };
    if let Some((state, reason, message)) = of_phase {
        return WorkloadVerdict::new(state, reason, message);
    }
    let Some(workload) = facts.workload else {
        return not_annotated(facts);
    };
    let WhyFacts { phase, named, .. } = facts;
    if workload.is_managed()
        && let Some(obstacle) = &workload.obstacle
    {
        if let Some(of_kueue) = facts.of_kueue {
            return with_kueue(facts, workload, of_kueue, place);
        }
        let message = format!("the operator leaves it alone: {obstacle}");
        return WorkloadVerdict::new(WorkloadState::NotQueued, obstacle.reason(), message);
    }
    let granted = workload.workload.granted.is_some();
    if *phase == Phase::Running && granted {
        return if workload.workload.lost() {
            let message = "it lost its slot and continues until it gets another one";
            WorkloadVerdict::new(WorkloadState::Running, "RunningWithoutSlot", message)
        } else if let Some(start) = own_start(facts, workload) {
            let message = format!("it holds its slot, with no running pod: {}", words(start));
            WorkloadVerdict::new(WorkloadState::Running, "NotStarted", message)
        } else {
            WorkloadVerdict::new(WorkloadState::Running, "SlotGranted", "it runs in its slot")
        };
    }
    if !facts.is_seen {
        let message = format!("the operator does not see it: it has no label {WAITS_LABEL}=true");
        return WorkloadVerdict::new(WorkloadState::NotQueued, "Unlabelled", message);
    }
    let obstacle = match named {
        Named::Semaphore(semaphore, _) => {
            let name = semaphore.metadata.name.as_deref().unwrap_or_default();
            workload.obstacle_in(name, semaphore.spec.keyed)
        }
        Named::Nothing | Named::Missing(_) | Named::Unreadable(_) => workload.obstacle.clone(),
    };
    if let Some(obstacle) = obstacle {
        return WorkloadVerdict::new(
            WorkloadState::NotQueued,
            obstacle.reason(),
            obstacle.to_string(),
        );
    }
    match named {
        Named::Nothing => return not_annotated(facts),
        Named::Missing(_) => {
            let name = facts.semaphore.unwrap_or_default();
            let message = format!(
                "the namespace {} has no ConsulSemaphore {name}",
                facts.namespace
            );
            return WorkloadVerdict::new(WorkloadState::NotQueued, "NoSemaphore", message);
        }
        Named::Unreadable(why) => {
            let message = format!("its ConsulSemaphore can't be read: {why}");
            return WorkloadVerdict::new(WorkloadState::NotQueued, "InvalidSemaphore", message);
        }
        Named::Semaphore(..) => {}
    }
    if *phase == Phase::Running {
        let message = "it was not started in a slot: the operator suspends and queues it";
        return WorkloadVerdict::new(WorkloadState::Running, "RanWithoutSlot", message);
    }
    if let Some(place) = place {
        return WorkloadVerdict::new(WorkloadState::Waiting, &place.reason, &place.message);
    }
    let outside = queue.and_then(|queue| queue.outside.iter().find(|one| facts.is(one.id())));
    match outside {
        Some(one) => WorkloadVerdict::new(WorkloadState::NotQueued, &one.reason, &one.message),
        None => WorkloadVerdict::new(
            WorkloadState::NotQueued,
            "Unseen",
            "the operator has not queued it yet",
        ),
    }
}

/// Returns why no pod of the workload runs, if the status of its semaphore says so.
fn own_start<'a>(facts: &WhyFacts<'a>, workload: &TrackedWorkload) -> Option<&'a NotStartedStatus> {
    let Named::Semaphore(semaphore, _) = facts.named else {
        return None;
    };
    let sessions = &workload.workload.reported;
    let mut holders = semaphore.status.iter().flat_map(|status| &status.holders);
    let own = holders.find(|holder| sessions.iter().any(|own| own.as_str() == holder.session))?;
    own.not_started.as_ref()
}

/// Returns the verdict on a workload in a queue of Kueue. Kueue may or may not ask the operator for the slot.
fn with_kueue(
    facts: &WhyFacts<'_>,
    workload: &TrackedWorkload,
    of_kueue: &OfKueue,
    place: Option<&QueuedJob>,
) -> WorkloadVerdict {
    let OfKueue { name, does } = of_kueue;
    let message = format!("Workload {name}: {does}");
    match (facts.phase, place) {
        (Phase::Running, _) if workload.workload.granted.is_some() => {
            WorkloadVerdict::new(WorkloadState::Running, "SlotGranted", message)
        }
        (Phase::Running, _) => WorkloadVerdict::new(WorkloadState::Running, "InKueue", message),
        (_, Some(place)) => {
            WorkloadVerdict::new(WorkloadState::Waiting, &place.reason, &place.message)
        }
        (_, None) => WorkloadVerdict::new(WorkloadState::NotQueued, "InKueue", message),
    }
}

/// Returns the verdict on a workload that does not ask for a slot.
fn not_annotated(facts: &WhyFacts<'_>) -> WorkloadVerdict {
    let does = match facts.phase {
        Phase::Running => "it runs without a slot",
        _ => "the operator leaves it alone",
    };
    let mistaken = facts.advice.is_some() || facts.cron_job.is_some();
    let reason = if mistaken {
        "AnnotationIgnored"
    } else {
        "NotAnnotated"
    };
    let message = format!("it has no annotation {SEMAPHORE}: {does}");
    WorkloadVerdict::new(WorkloadState::NotAnnotated, reason, message)
}

/// Returns the answer as text for one screen.
pub(crate) fn text(answer: &WhyAnswer<'_>, now: Timestamp) -> Text {
    let WhyAnswer {
        reason,
        message,
        key,
        priority,
        since,
        fails,
        expected,
        lacks,
        to_do,
        gaps,
        of,
        ..
    } = answer;
    let mut text = Text::default();
    text.push(Line::of(Tone::Strong, headline(answer)));
    let said = Span::plain(format!("{reason}: {message}"));
    text.push(labelled("Reason", vec![said]));
    if let Some(asks_for) = &answer.asks_for {
        text.push(labelled("Asks for", vec![Span::plain(asks_for.clone())]));
    }
    if let Some(lacks) = lacks {
        text.push(labelled("Not free", vec![Span::plain(lacks.clone())]));
    }
    if answer.state == WorkloadState::Waiting {
        text.push(labelled("Waits", vec![Span::plain(age(*since, now))]));
        if let Some(expected) = expected.filter(|expected| *expected > now) {
            let start = format!(
                "to start in {}, at {expected:.0}, if slots are held for as long as the last ones",
                until(expected, now)
            );
            text.push(labelled("Expected", vec![Span::plain(start)]));
        }
        if let Some(fails) = fails {
            let when = format!("in {}, at {fails:.0}, or later", until(*fails, now));
            text.push(labelled("Fails", vec![Span::plain(when)]));
        }
        let priority = priority.unwrap_or(0).to_string();
        text.push(labelled("Priority", vec![Span::plain(priority)]));
    }
    let asks = matches!(
        answer.state,
        WorkloadState::Waiting | WorkloadState::NotQueued | WorkloadState::Running
    );
    let of = of.filter(|_| asks);
    if let Some(semaphore) = of {
        parts::reported(&mut text, semaphore, Some(message));
        text.push(parts::slots(semaphore));
        parts::restrictions(&mut text, semaphore, now);
    }
    text.extend(gaps.iter().map(|gap| note(gap)));
    if let Some(semaphore) = of.filter(|_| answer.state == WorkloadState::Waiting) {
        let status = status(semaphore);
        let shown: Vec<_> = status
            .holders
            .iter()
            .filter(|holder| key.is_none() || holder.key == *key)
            .collect();
        let listed = shown.len().min(SHOWN_HOLDERS);
        // The status does not say how many of the other holders are of this key.
        let not_in_status = answer.more_holders * usize::from(key.is_none());
        let more = not_in_status + shown.len() - listed;
        parts::holders(&mut text, &shown[..listed], more, now);
        if let Some(line) = elsewhere::line(&status, key.as_deref()) {
            text.heading("WAITING ELSEWHERE");
            text.push(dim(&line));
        }
    }
    if !to_do.is_empty() {
        text.heading("WHAT TO DO");
        let indent = " ".repeat(INDENT);
        text.extend(
            to_do
                .iter()
                .map(|line| Line::of(Tone::Plain, format!("{indent}{line}"))),
        );
    }
    text
}

fn headline(answer: &WhyAnswer<'_>) -> String {
    let WhyAnswer {
        namespace,
        kind,
        name: workload,
        state,
        reason,
        semaphore,
        key,
        place,
        queued,
        slots,
        ..
    } = answer;
    let name = semaphore.as_deref().unwrap_or_default();
    let key = key
        .as_deref()
        .map_or_else(String::new, |key| format!(", key {key}"));
    let does = match state {
        WorkloadState::Waiting => {
            let of = queued.map_or_else(String::new, |queued| format!(" of {queued}"));
            let place = place.unwrap_or(1);
            let slots = match slots {
                1 => "a slot".to_owned(),
                slots => format!("{slots} slots"),
            };
            format!("waits for {slots} of ConsulSemaphore {name}{key}: {place}{of} in the queue")
        }
        WorkloadState::NotQueued => match reason.as_str() {
            "OnHold" => format!("is on hold, and not in the queue of ConsulSemaphore {name}"),
            "NoSemaphore" => format!("names the ConsulSemaphore {name}, which does not exist"),
            "InKueue" => "is in a queue of Kueue".to_owned(),
            "ManagedElsewhere" => "is managed elsewhere, and not by the operator".to_owned(),
            _ if name.is_empty() => "is not in a queue".to_owned(),
            _ => format!("is not in the queue of ConsulSemaphore {name}"),
        },
        WorkloadState::NotAnnotated => "does not ask for a slot".to_owned(),
        WorkloadState::Running if reason == "SlotGranted" && name.is_empty() => {
            "runs in a slot".to_owned()
        }
        WorkloadState::Running if reason == "SlotGranted" => {
            format!("runs in a slot of ConsulSemaphore {name}{key}")
        }
        WorkloadState::Running if reason == "NotStarted" => {
            format!("holds a slot of ConsulSemaphore {name}{key}")
        }
        WorkloadState::Running => "runs without a slot".to_owned(),
        WorkloadState::Finished => "is done".to_owned(),
        WorkloadState::Deleting => "is being deleted".to_owned(),
    };
    let kind = match kind.as_str() {
        KIND => String::new(),
        kind => format!("{kind} "),
    };
    format!("{kind}{namespace}/{workload} {does}")
}

#[cfg(test)]
mod tests;
