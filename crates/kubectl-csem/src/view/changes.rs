//! The changes of semaphores, one on each line, for a watch without a terminal.

use std::collections::{BTreeMap, BTreeSet};

use consul_client::text::one_line;
use consul_semaphore_api::conditions::ConditionType;

use super::{
    elsewhere,
    item::{Item, condition, status, title},
    queue::is_elsewhere,
    recorded::RecordedEvent,
};

/// The greatest length of a line, in characters. Some words of a line are foreign.
const LONGEST_LINE: usize = 8_192;

/// The part of the watched state whose changes are reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportedState {
    /// A summary of each semaphore, by its name.
    semaphores: BTreeMap<String, ReportedSemaphore>,
    /// The events that were already reported.
    recorded: BTreeSet<(jiff::Timestamp, String)>,
}

/// The part of one semaphore's state whose changes are reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReportedSemaphore {
    phase: String,
    /// The holders' names, by session.
    holders: BTreeMap<String, String>,
    queue: Vec<String>,
    /// The reason why each Job in the queue that asks for slots of several semaphores waits, by the Job's name.
    several: BTreeMap<String, String>,
    /// Whether slots are granted; empty if the semaphore has no windows.
    windows: String,
    /// The names of the contenders that wait in other clusters and programs.
    elsewhere: Vec<String>,
}

impl ReportedState {
    pub(crate) fn of<'a>(
        items: impl IntoIterator<Item = &'a Item>,
        recorded: impl IntoIterator<Item = &'a RecordedEvent>,
    ) -> Self {
        let semaphores = items.into_iter().map(summary).collect();
        let recorded = recorded
            .into_iter()
            .map(|recorded| (recorded.time, line(recorded)));
        Self {
            semaphores,
            recorded: recorded.collect(),
        }
    }

    /// Returns what is new since `before`. With `details`, the lines include changes of holders and of the queue, and
    /// new events.
    pub(crate) fn since(&self, before: &Self, details: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, now) in &self.semaphores {
            let known = before.semaphores.get(name);
            if known.is_none_or(|known| known.phase != now.phase) {
                lines.push(format!("{name} {}", now.phase));
            }
            if details {
                let known = known.cloned().unwrap_or_default();
                now.details(&known, name, &mut lines);
            }
        }
        let gone = before
            .semaphores
            .keys()
            .filter(|name| !self.semaphores.contains_key(*name));
        lines.extend(gone.map(|name| format!("{name} is gone")));
        // Events from before the watch are not news.
        if details && !before.semaphores.is_empty() {
            let new = self.recorded.difference(&before.recorded);
            lines.extend(new.map(|(_, line)| line.clone()));
        }
        lines
            .iter()
            .map(|line| one_line(line, LONGEST_LINE))
            .collect()
    }
}

impl ReportedSemaphore {
    fn details(&self, before: &Self, name: &str, lines: &mut Vec<String>) {
        let difference = |of: &Self, from: &Self, sign: &str| -> Vec<String> {
            let other = of
                .holders
                .iter()
                .filter(|(session, _)| !from.holders.contains_key(*session));
            other
                .map(|(session, holder)| {
                    format!("{name} {sign} holder {holder} (session {session})")
                })
                .collect()
        };
        lines.extend(difference(before, self, "-"));
        lines.extend(difference(self, before, "+"));
        if self.queue != before.queue {
            let queue = if self.queue.is_empty() {
                "-".to_owned()
            } else {
                self.queue.join(" ")
            };
            lines.push(format!("{name} queue {queue}"));
        }
        if self.windows != before.windows && !self.windows.is_empty() {
            lines.push(format!("{name} {}", self.windows));
        }
        for (job, reason) in &self.several {
            if before.several.get(job) != Some(reason) {
                lines.push(format!("{name} {job} {reason}"));
            }
        }
        if self.elsewhere != before.elsewhere {
            let waiting = if self.elsewhere.is_empty() {
                "-".to_owned()
            } else {
                self.elsewhere.join(", ")
            };
            lines.push(format!("{name} other waiters {waiting}"));
        }
    }
}

fn summary(item: &Item) -> (String, ReportedSemaphore) {
    let semaphore = match item {
        Item::Semaphore(semaphore) => semaphore,
        Item::Unreadable {
            namespace,
            name,
            created: _,
            why,
        } => {
            let phase = format!("can't be read: {why}");
            let summary = ReportedSemaphore {
                phase,
                ..ReportedSemaphore::default()
            };
            return (format!("{namespace}/{name}"), summary);
        }
    };
    let metadata = &semaphore.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = format!(
        "{namespace}/{}",
        metadata.name.as_deref().unwrap_or_default()
    );
    let reported = status(semaphore);
    let ready = condition(semaphore, ConditionType::Ready);
    let limit = reported.limit.unwrap_or(semaphore.spec.limit);
    let held = if semaphore.spec.keyed {
        let keys = reported.keys_in_use.unwrap_or(0);
        format!("held {} keys {keys} limit {limit}/key", reported.held)
    } else {
        format!("held {}/{limit}", reported.held)
    };
    let phase = format!(
        "{held} waiting {} Ready={} {}",
        reported.waiting,
        ready.map_or("Unknown", |ready| ready.status.as_str()),
        ready.map_or("-", |ready| ready.reason.as_str()),
    );
    let windows = match &reported.window_opens {
        _ if semaphore.spec.windows.is_empty() => String::new(),
        Some(opens) => format!("windows closed until {:.0}", opens.0),
        None => "windows open".to_owned(),
    };
    let several = reported
        .queue
        .iter()
        .filter_map(|queued| {
            let lacks = queued
                .lacks
                .as_deref()
                .map_or_else(String::new, |lacks| format!(" waits for {lacks}"));
            let reason = queued
                .reason
                .as_deref()
                .filter(|reason| is_elsewhere(reason))?;
            let waiting = title(&queued.kind, &queued.name);
            Some((waiting, format!("{reason}{lacks}")))
        })
        .collect();
    let elsewhere = elsewhere::waiters(&reported, None)
        .into_iter()
        .map(|waiter| elsewhere::name(waiter, None))
        .collect();
    let holders = reported
        .holders
        .into_iter()
        .map(|listed| {
            let who = listed.holder.to_string();
            let shown = if who.is_empty() { "-".to_owned() } else { who };
            (listed.session, shown)
        })
        .collect();
    let summary = ReportedSemaphore {
        phase,
        holders,
        queue: reported
            .queue
            .into_iter()
            .map(|queued| title(&queued.kind, &queued.name))
            .collect(),
        several,
        windows,
        elsewhere,
    };
    (name, summary)
}

fn line(recorded: &RecordedEvent) -> String {
    let RecordedEvent {
        warning,
        reason,
        kind,
        name,
        message,
        ..
    } = recorded;
    let type_ = if *warning { "Warning" } else { "Normal" };
    format!("event {type_} {reason} {kind}/{name}: {message}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::view::samples::{recorded, semaphore};

    fn seen(status: &Value, recorded: &[RecordedEvent]) -> ReportedState {
        let item = Item::Semaphore(Box::new(semaphore(status)));
        ReportedState::of([&item], recorded)
    }

    #[test]
    fn what_stays_the_same_is_not_reported() {
        let one = seen(&json!({}), &[]);
        assert_eq!(one.since(&one, true), Vec::<String>::new());
    }

    #[test]
    fn at_first_all_is_new() {
        let events = [recorded(1, "Job", "b", "u", "SlotWaiting")];
        let now = seen(&json!({ "holders": [] }), &events);
        let lines = now.since(&ReportedState::default(), true);
        assert_eq!(lines, ["batch/db held 2/2 waiting 0 Ready=True Reconciled"]);
    }

    #[test]
    fn a_hand_over_is_who_went_and_who_came() {
        let holder = |session: &str, job: &str| json!({ "session": session, "kind": "Job", "cluster": "eu", "namespace": "batch", "name": job });
        let before = seen(
            &json!({ "waiting": 1, "holders": [holder("s-1", "a")], "queue": [{ "kind": "Job", "name": "b" }] }),
            &[recorded(1, "Job", "b", "u", "SlotWaiting")],
        );
        let after = seen(
            &json!({ "waiting": 0, "holders": [holder("s-2", "b")], "queue": [] }),
            &[
                recorded(1, "Job", "b", "u", "SlotWaiting"),
                recorded(2, "Job", "b", "u", "SlotGranted"),
            ],
        );
        let expected = [
            "batch/db held 2/2 waiting 0 Ready=True Reconciled",
            "batch/db - holder eu batch/a (session s-1)",
            "batch/db + holder eu batch/b (session s-2)",
            "batch/db queue -",
            "event Normal SlotGranted Job/b: the note of SlotGranted",
        ];
        assert_eq!(after.since(&before, true), expected);
        assert_eq!(after.since(&before, false), expected[..1]);
    }

    #[test]
    fn what_becomes_of_jobs_that_ask_for_several_is_reported_and_whether_windows_are_open() {
        let with = |status: &Value| {
            let mut semaphore = semaphore(status);
            let windows = json!([{ "schedule": "0 22 * * *", "duration": "6h" }]);
            semaphore.spec.windows = serde_json::from_value(windows).unwrap();
            ReportedState::of([&Item::Semaphore(Box::new(semaphore))], [])
        };
        let of = |reason: &str| json!([{ "kind": "Job", "name": "b", "lacks": "licenses:2", "reason": reason }]);
        let before = with(&json!({
            "queue": of("PassedOver"), "windowOpens": "2026-01-01T22:00:00Z",
        }));
        let lines = before.since(&ReportedState::default(), true);
        let expected = [
            "batch/db windows closed until 2026-01-01T22:00:00Z",
            "batch/db b PassedOver waits for licenses:2",
        ];
        assert!(lines.ends_with(&expected.map(str::to_owned)), "{lines:?}");
        let after = with(&json!({ "queue": of("SlotsKept") }));
        let expected = [
            "batch/db windows open",
            "batch/db b SlotsKept waits for licenses:2",
        ];
        assert_eq!(after.since(&before, true), expected);
    }

    #[test]
    fn one_that_was_deleted_is_gone() {
        let lines = ReportedState::default().since(&seen(&json!({}), &[]), true);
        assert_eq!(lines, ["batch/db is gone"]);
    }

    #[test]
    fn who_waits_elsewhere_is_reported() {
        let waiter =
            json!({ "session": "s", "kind": "Process", "host": "ci-runner", "name": "deploy" });
        let before = seen(&json!({}), &[]);
        let after = seen(&json!({ "waitingElsewhere": [waiter] }), &[]);
        let line = "batch/db other waiters ci-runner deploy";
        assert_eq!(after.since(&before, true), [line]);
        assert_eq!(before.since(&after, true), ["batch/db other waiters -"]);
    }

    #[test]
    fn the_limit_of_a_keyed_one_is_for_each_key() {
        let mut semaphore = semaphore(&json!({ "limit": 1, "keysInUse": 2 }));
        semaphore.spec.keyed = true;
        let now = ReportedState::of([&Item::Semaphore(Box::new(semaphore))], []);
        let expected = "batch/db held 2 keys 2 limit 1/key waiting 0 Ready=True Reconciled";
        assert_eq!(now.since(&ReportedState::default(), false), [expected]);
    }
}
