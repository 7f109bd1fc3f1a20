//! The parts of the output that `show` and `why` share.

use consul_client::text::one_line;
use consul_semaphore_api::{
    ConsulSemaphore, HolderStatus, NotStartedStatus,
    conditions::{self, ConditionType, Reason},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{
    age::{age, until},
    item::{condition, count, kind_of, outdated, phase, status},
    list::limit,
    table::Table,
    text::{Line, Span, Text, Tone},
};

/// The width of the names in the summary at the top.
const LABEL_WIDTH: usize = 18;

/// The indent of the lines below a heading.
pub(super) const INDENT: usize = 2;

/// The length of what is said of a holder that has no pod that runs, in characters.
const LONGEST_START: usize = 160;

/// Returns a line of the summary at the top.
pub(super) fn labelled(label: &str, mut spans: Vec<Span>) -> Line {
    let label = format!("{:INDENT$}{label:LABEL_WIDTH$}", "");
    spans.insert(0, Span::new(Tone::Dim, label));
    Line(spans)
}

/// Returns a line that asks for attention.
pub(super) fn note(words: &str) -> Line {
    Line(vec![
        Span::plain("  "),
        Span::new(Tone::Doubt, format!("! {words}")),
    ])
}

pub(super) fn dim(words: &str) -> Line {
    Line(vec![Span::plain("  "), Span::new(Tone::Dim, words)])
}

/// Adds a line with the number of entries that are not shown.
pub(super) fn more(text: &mut Text, number: usize) {
    if number > 0 {
        text.push(dim(&format!("… and {number} more")));
    }
}

/// Adds the reasons why the status may not describe the semaphore as it is now, and the conditions that say more than
/// that all is well. `said` is a message that is shown already.
pub(super) fn reported(text: &mut Text, semaphore: &ConsulSemaphore, said: Option<&str>) {
    if semaphore.status.is_none() {
        text.push(note(
            "the operator has not reported anything yet: does it run?",
        ));
    }
    if let Some(seen) = outdated(semaphore) {
        let at = semaphore.metadata.generation.unwrap_or_default();
        text.push(note(&format!(
            "this report is about generation {seen} of the spec, which is now at {at}"
        )));
    }
    if semaphore.metadata.deletion_timestamp.is_some() {
        text.push(note("it is being deleted"));
    }
    let ready = condition(semaphore, ConditionType::Ready);
    for condition in ConditionType::ALL
        .into_iter()
        .filter_map(|type_| condition(semaphore, type_))
    {
        // The condition Ready has the reason of the condition that is to blame, and mostly also its message.
        let is_ready = condition.type_ == ConditionType::Ready.as_str();
        if is_ready || ready.is_none_or(|ready| ready.reason != condition.reason) {
            text.extend(condition_line(condition, said));
        }
    }
}

/// Returns the line for a condition, unless the condition only says that all is well. Its message is left out if it was
/// `said` already.
fn condition_line(condition: &Condition, said: Option<&str>) -> Option<Line> {
    let is = |type_: ConditionType| condition.type_ == type_.as_str();
    let plain = !is(ConditionType::Ready) && conditions::is_normal(condition);
    if plain && !is(ConditionType::SlotsAvailable) {
        return None;
    }
    let mut word = phase(Some(condition));
    if plain {
        // A semaphore without a free slot is not in error.
        word = Span::plain(&condition.status);
    }
    let reason = if said == Some(&condition.message) {
        format!(", {}", condition.reason)
    } else {
        format!(", {}: {}", condition.reason, condition.message)
    };
    Some(labelled(&condition.type_, vec![word, Span::plain(reason)]))
}

/// Returns what the limit applies to: `Semaphore`, `Mutex`, or for example `Rate/1m`.
pub(super) fn mode(semaphore: &ConsulSemaphore) -> String {
    let mode = semaphore.spec.mode;
    let period = semaphore.spec.period;
    period.map_or_else(
        || format!("{mode:?}"),
        |period| format!("{mode:?}/{period}"),
    )
}

/// Returns how many slots are held. The limit of a keyed semaphore is for each key.
pub(super) fn slots(semaphore: &ConsulSemaphore) -> Line {
    let reported = status(semaphore);
    let by_jobs = count(reported.held_here, "of them by a Job", "of them by Jobs");
    let here = Span::plain(format!(", {by_jobs} of this cluster"));
    let spans = if semaphore.spec.keyed {
        let held = count(reported.held, "slot", "slots");
        let keys = count(reported.keys_in_use.unwrap_or(0), "key", "keys");
        let limit = limit(semaphore);
        vec![
            Span::plain(format!("{held} held across {keys}, limit ")),
            limit,
            Span::plain(" for each"),
            here,
        ]
    } else {
        let held = format!("{} of ", reported.held);
        vec![
            Span::plain(held),
            limit(semaphore),
            Span::plain(" held"),
            here,
        ]
    };
    labelled("Slots", spans)
}

/// Adds when slots are granted, and to whom, if that is restricted.
pub(super) fn restrictions(text: &mut Text, semaphore: &ConsulSemaphore, now: Timestamp) {
    let (reported, spec) = (status(semaphore), &semaphore.spec);
    let windows = if let Some(opens) = &reported.window_opens {
        let (in_time, at) = (until(opens.0, now), opens.0);
        format!("closed, the next one opens in {in_time}, at {at:.0}")
    } else if let Some(limit) = reported.window_limit {
        format!("open, for {limit} of {} slots", spec.limit)
    } else {
        let available = condition(semaphore, ConditionType::SlotsAvailable);
        let closed = |condition: &Condition| condition.reason == Reason::OutsideWindow.as_str();
        if available.is_some_and(closed) {
            "closed, and no window ever opens".to_owned()
        } else {
            "open".to_owned()
        }
    };
    if !spec.windows.is_empty() && semaphore.status.is_some() {
        text.push(labelled("Windows", vec![Span::plain(windows)]));
    }
    if let Some(reserved) = &spec.reserved {
        let (slots, least) = (reserved.slots, reserved.min_priority);
        let line = format!("the last {slots}, for Jobs of priority {least} and above");
        text.push(labelled("Reserved", vec![Span::plain(line)]));
    }
}

/// Adds the heading and the holders. `number_more` is the number of further holders.
pub(super) fn holders(
    text: &mut Text,
    holders: &[&HolderStatus],
    number_more: usize,
    now: Timestamp,
) {
    text.heading("HOLDERS");
    if holders.is_empty() && number_more == 0 {
        text.push(dim("none"));
        return;
    }
    let mut table = Table::new([
        "#", "HOLDER", "KIND", "WHERE", "KEY", "AGE", "SESSION", "NOTE",
    ]);
    for (index, holder) in holders.iter().enumerate() {
        let HolderStatus {
            session,
            key,
            holder: who,
            slot_index: _,
            slot_name: _,
            since,
            cools_until: _,
            never_expires: _,
            not_started: _,
        } = holder;
        table.row([
            Span::plain((index + 1).to_string()),
            Span::plain(who.path().as_deref().unwrap_or("-")),
            Span::plain(kind_of(who)),
            Span::plain(who.place().unwrap_or_default()),
            Span::plain(key.as_deref().unwrap_or_default()),
            Span::plain(age(since.as_ref().map(|time| time.0), now)),
            Span::plain(session),
            Span::new(Tone::Doubt, remark(holder, now)),
        ]);
    }
    text.extend(table.indented(INDENT).lines());
    more(text, number_more);
}

/// Returns why a holder has no pod that runs, for people.
pub(super) fn words(start: &NotStartedStatus) -> String {
    one_line(&start.to_string(), LONGEST_START)
}

/// Returns the remarks about a holder.
fn remark(holder: &HolderStatus, now: Timestamp) -> String {
    let mut remarks = Vec::new();
    if let Some(name) = &holder.slot_name {
        remarks.push(format!("slot {name}"));
    }
    if let Some(end) = &holder.cools_until {
        remarks.push(if end.0 > now {
            format!("done, cools for {} more", until(end.0, now))
        } else {
            "done, has cooled".to_owned()
        });
    }
    if let Some(start) = &holder.not_started {
        remarks.push(format!("no running pod: {}", words(start)));
    }
    if holder.never_expires {
        remarks.push("its session never expires".to_owned());
    }
    remarks.join("; ")
}
