//! The list of all semaphores, one on each line.

use consul_semaphore_api::{ConsulSemaphore, conditions::ConditionType};
use jiff::Timestamp;

use super::{
    age::age,
    item::{Item, condition, outdated, phase, status, title},
    parts,
    table::Table,
    text::{Span, Text, Tone},
};

/// The text for a missing name or number. Each cell except a message is one word and none is empty, so `awk` can count
/// the cells.
const NO_VALUE: &str = "-";

/// The columns that depend on the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) namespace: bool,
    pub(crate) wide: bool,
}

pub(crate) fn list<'a>(
    items: impl IntoIterator<Item = &'a Item>,
    columns: Columns,
    now: Timestamp,
) -> Text {
    let mut table = Table::new([
        "NAMESPACE",
        "NAME",
        "LIMIT",
        "HELD",
        "WAITING",
        "KEYS",
        "READY",
        "REASON",
        "NEXT",
        "AGE",
        "HERE",
        "MODE",
        "PREFIX",
        "MESSAGE",
    ]);
    let items: Vec<&Item> = items.into_iter().collect();
    let keyed = items
        .iter()
        .any(|item| matches!(item, Item::Semaphore(semaphore) if semaphore.spec.keyed));
    for item in items {
        let mut cells = match item {
            Item::Semaphore(semaphore) => readable(semaphore, now),
            Item::Unreadable {
                namespace,
                name,
                created,
                why,
            } => unreadable([namespace, name, why], &age(*created, now)),
        };
        if !columns.namespace {
            cells[0] = Span::default();
        }
        if !keyed {
            cells[5] = Span::default();
        }
        if !columns.wide {
            cells.truncate(10);
        }
        table.row(cells);
    }
    let mut text = Text::default();
    text.extend(table.lines());
    text
}

fn readable(semaphore: &ConsulSemaphore, now: Timestamp) -> Vec<Span> {
    let metadata = &semaphore.metadata;
    let reported = status(semaphore);
    let ready = condition(semaphore, ConditionType::Ready);
    let current_reason = ready.map_or("-", |ready| ready.reason.as_str());
    let outdated = outdated(semaphore);
    let reason = match outdated {
        Some(generation) => format!("{current_reason}(generation:{generation})"),
        None => current_reason.to_owned(),
    };
    let tone = if outdated.is_some() {
        Tone::Doubt
    } else {
        Tone::Plain
    };
    let next = reported.queue.first().map_or_else(
        || NO_VALUE.to_owned(),
        |queued| title(&queued.kind, &queued.name),
    );
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
    let figure = |figure: i32| {
        let said = semaphore.status.is_some();
        Span::plain(if said {
            figure.to_string()
        } else {
            "-".to_owned()
        })
    };
    let keys = reported
        .keys_in_use
        .map_or_else(|| NO_VALUE.to_owned(), |keys| keys.to_string());
    vec![
        Span::plain(metadata.namespace.as_deref().unwrap_or_default()),
        Span::plain(metadata.name.as_deref().unwrap_or_default()),
        limit_cell(semaphore),
        figure(reported.held),
        figure(reported.waiting),
        Span::plain(keys),
        phase(ready),
        Span::new(tone, reason),
        Span::plain(next),
        Span::plain(age(created, now)),
        figure(reported.held_here),
        Span::plain(parts::mode(semaphore)),
        Span::plain(semaphore.prefix()),
        Span::plain(ready.map_or("", |ready| ready.message.as_str())),
    ]
}

/// Returns the limit. A keyed semaphore has this limit for each key.
fn limit_cell(semaphore: &ConsulSemaphore) -> Span {
    let limit = limit(semaphore);
    if semaphore.spec.keyed {
        limit.followed_by("/key")
    } else {
        limit
    }
}

/// Returns the limit of the spec, with Consul's limit if that differs.
pub(super) fn limit(semaphore: &ConsulSemaphore) -> Span {
    let ours = semaphore.spec.limit;
    match status(semaphore).limit {
        Some(theirs) if theirs != ours => Span::new(Tone::Bad, format!("{ours}(Consul:{theirs})")),
        _ => Span::plain(ours.to_string()),
    }
}

fn unreadable([namespace, name, why]: [&String; 3], age: &str) -> Vec<Span> {
    let unknown = || Span::plain(NO_VALUE);
    let mut cells = vec![
        Span::plain(namespace),
        Span::plain(name),
        unknown(),
        unknown(),
        unknown(),
        unknown(),
        phase(None),
        Span::new(Tone::Bad, "Unreadable"),
        unknown(),
        Span::plain(age),
    ];
    cells.resize(13, unknown());
    cells.push(Span::plain(why));
    cells
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::samples::{now, semaphore};

    fn shown(items: &[Item], namespace: bool, wide: bool) -> String {
        list(items, Columns { namespace, wide }, now()).render(false)
    }

    fn items() -> Vec<Item> {
        let waiting = semaphore(
            &json!({ "waiting": 2, "queue": [{ "kind": "Job", "name": "migrate-3" }, { "kind": "Job", "name": "b" }] }),
        );
        let mut conflict = semaphore(&json!({
            "limit": 3, "held": 0, "heldHere": 0, "holders": [], "observedGeneration": 3,
            "conditions": [{
                "type": "Ready", "status": "False", "reason": "LimitConflict",
                "message": "Consul's limit is 3 and spec.limit is 2",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }));
        conflict.metadata.name = Some("partner-api".to_owned());
        conflict.metadata.generation = Some(4);
        let mut new = semaphore(&json!({}));
        new.metadata.name = Some("new".to_owned());
        new.metadata.namespace = Some("web".to_owned());
        new.status = None;
        let unreadable = Item::Unreadable {
            namespace: "web".to_owned(),
            name: "old".to_owned(),
            created: None,
            why: "unknown variant".to_owned(),
        };
        let mut items: Vec<_> = [waiting, conflict, new]
            .into_iter()
            .map(|semaphore| Item::Semaphore(Box::new(semaphore)))
            .collect();
        items.push(unreadable);
        items
    }

    #[test]
    fn in_one_namespace() {
        let expected = include_str!("expected/list.txt");
        assert_eq!(shown(&items()[..2], false, false), expected);
    }

    #[test]
    fn over_all_namespaces_with_all_there_is() {
        let expected = include_str!("expected/list-wide.txt");
        assert_eq!(shown(&items(), true, true), expected);
    }

    #[test]
    fn where_one_is_keyed_the_keys_are_a_column() {
        let mut keyed = semaphore(&json!({ "limit": 1, "keysInUse": 2 }));
        keyed.spec.limit = 1;
        keyed.spec.keyed = true;
        let plain = Item::Semaphore(Box::new(semaphore(&json!({}))));
        let text = shown(&[Item::Semaphore(Box::new(keyed)), plain], false, false);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|row| row.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows[0][..6],
            ["NAME", "LIMIT", "HELD", "WAITING", "KEYS", "READY"]
        );
        assert_eq!(rows[1][..5], ["db", "1/key", "2", "0", "2"]);
        assert_eq!(rows[2][..5], ["db", "2", "2", "0", "-"]);
    }
}
