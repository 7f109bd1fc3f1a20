//! Renders semaphores as text.

use command_line::{
    age::{age, until},
    table::Table,
    text::{Line, Span, Text, Tone},
};
use consul_semaphore::usage::{Usage, UsageContender, UsageHolder, UsageSummary, UsageWaiter};
use jiff::Timestamp;

/// Indent of the lines below a heading.
const INDENT: usize = 2;

/// Text of a cell whose value is unknown. Each cell but the last is one word and none is empty, so that `awk` can
/// count them.
const UNKNOWN_VALUE: &str = "-";

/// Renders semaphores, one on each line.
pub(super) fn list(all: &[&UsageSummary]) -> Text {
    let mut table = Table::new(["PREFIX", "KIND", "LIMIT", "HELD", "WAITING", "PROBLEM"]);
    for summary in all {
        let UsageSummary {
            prefix,
            kind,
            limit,
            held,
            waiting,
            problem,
            ..
        } = summary;
        table.row([
            Span::plain(prefix),
            Span::plain(kind.as_str()),
            Span::plain(limit.map_or_else(|| UNKNOWN_VALUE.to_owned(), |limit| limit.to_string())),
            Span::plain(held.to_string()),
            Span::plain(
                waiting.map_or_else(|| UNKNOWN_VALUE.to_owned(), |waiting| waiting.to_string()),
            ),
            Span::new(Tone::Bad, problem.as_deref().unwrap_or_default()),
        ]);
    }
    let mut text = Text::default();
    text.extend(table.lines());
    text
}

/// Renders one semaphore with its holders and waiting contenders.
pub(super) fn show(usage: &Usage, now: Timestamp) -> Text {
    let Usage {
        summary,
        holders,
        waiters,
        ..
    } = usage;
    let mut text = Text::default();
    text.push(Line::of(Tone::Strong, &summary.prefix));
    text.push(Line::of(Tone::Plain, in_words(summary)));
    if let Some(problem) = &summary.problem {
        text.push(Line::of(Tone::Bad, format!("! {problem}")));
    }
    text.heading("HOLDERS");
    text.extend(of_holders(holders, now));
    text.heading("WAITING");
    if summary.waiting.is_none() {
        text.push(Line::of(
            Tone::Dim,
            "  unknown, because Consul does not show who waits for a mutex",
        ));
    } else {
        text.extend(of_waiters(waiters, now));
    }
    text
}

fn in_words(summary: &UsageSummary) -> String {
    let UsageSummary {
        kind,
        limit,
        held,
        waiting,
        period_seconds,
        ..
    } = summary;
    let of = limit.map_or_else(String::new, |limit| format!(" of {limit}"));
    let waiting = waiting.map_or_else(String::new, |waiting| format!(", {waiting} waiting"));
    let period = period_seconds.map_or_else(String::new, |period| format!(" for {period}s each"));
    format!("  {}: {held}{of} held{period}{waiting}", kind.as_str())
}

fn of_holders(holders: &[UsageHolder], now: Timestamp) -> Vec<Line> {
    let mut table = Table::new(["KIND", "NAME", "WHERE", "AGE", "SESSION", "TOKEN", "STATE"]);
    for holder in holders {
        let [kind, name, place, age, session] = cells(&holder.contender, now);
        let token = holder
            .fencing_token
            .map_or_else(|| UNKNOWN_VALUE.to_owned(), |token| token.to_string());
        let state = state(holder, now);
        table.row([kind, name, place, age, session, Span::plain(token), state]);
    }
    lines(table, holders.is_empty())
}

fn of_waiters(waiters: &[UsageWaiter], now: Timestamp) -> Vec<Line> {
    let mut table = Table::new([
        "#", "KIND", "NAME", "WHERE", "AGE", "SESSION", "PRIORITY", "SLOTS",
    ]);
    for (index, waiter) in waiters.iter().enumerate() {
        let [kind, name, place, age, session] = cells(&waiter.contender, now);
        let priority = waiter
            .priority
            .map_or_else(|| UNKNOWN_VALUE.to_owned(), |priority| priority.to_string());
        let (number, slots) = ((index + 1).to_string(), waiter.slots.to_string());
        let [number, priority, slots] = [number, priority, slots].map(Span::plain);
        table.row([number, kind, name, place, age, session, priority, slots]);
    }
    lines(table, waiters.is_empty())
}

fn lines(table: Table, is_empty: bool) -> Vec<Line> {
    if is_empty {
        vec![Line::of(Tone::Dim, "  none")]
    } else {
        table.indented(INDENT).lines()
    }
}

fn cells(contender: &UsageContender, now: Timestamp) -> [Span; 5] {
    let UsageContender {
        session,
        kind,
        name,
        r#where,
        since,
        ..
    } = contender;
    let known = |text: &str| Span::plain(if text.is_empty() { UNKNOWN_VALUE } else { text });
    [
        known(kind),
        known(name),
        known(r#where),
        Span::plain(age(*since, now)),
        Span::plain(session.shown()),
    ]
}

fn state(holder: &UsageHolder, now: Timestamp) -> Span {
    match holder.cools_until {
        _ if holder.dead => Span::new(Tone::Bad, "dead"),
        Some(end) => Span::new(Tone::Dim, format!("held for {} more", until(end, now))),
        None if holder.never_expires => Span::new(Tone::Doubt, "never expires"),
        None => Span::default(),
    }
}
