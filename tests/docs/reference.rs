//! The docs, the dashboard and the alerts contain every word that the operator uses, and no other.

use std::{collections::BTreeSet, path::Path, time::Duration};

use consul_semaphore_operator::telemetry::{Metrics, SemaphoreLabels};

use crate::page::text_of;

const REFERENCE: &str = "docs/reference.md";
const CHART_FILES: &str = "charts/consul-semaphore-operator/files";

/// The variants of an enum, as in its source.
fn variants(file: &str, name: &str) -> BTreeSet<String> {
    let text = text_of(Path::new(file));
    let (_, after) = text
        .split_once(&format!("enum {name} {{\n"))
        .unwrap_or_else(|| panic!("{file} has no {name}"));
    let (body, _) = after.split_once("\n}").expect("its end");
    let code = body.lines().map(str::trim);
    code.filter(|line| !line.starts_with("//"))
        .map(|line| line.trim_end_matches(',').to_owned())
        .collect()
}

/// The rows of the tables in a section, without the header rows.
fn rows(page: &str, section: &str) -> Vec<Vec<String>> {
    let text = text_of(Path::new(page));
    let (_, after) = text
        .split_once(&format!("\n## {section}\n"))
        .unwrap_or_else(|| panic!("{page} has no {section}"));
    let section = after.split("\n## ").next().expect("a section");
    let lines: Vec<_> = section.lines().collect();
    let mut rows = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let above = lines.get(number + 1).unwrap_or(&"");
        if !line.starts_with('|') || line.starts_with("|---") || above.starts_with("|---") {
            continue;
        }
        let cells = line.trim_matches('|').split(" | ");
        rows.push(cells.map(|cell| cell.trim().to_owned()).collect());
    }
    rows
}

/// The words in the first column. All other columns must have text, except those that may be empty.
fn documented(page: &str, section: &str, may_be_empty: &[usize]) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for row in rows(page, section) {
        for (column, cell) in row.iter().enumerate() {
            assert!(
                !cell.is_empty() || may_be_empty.contains(&column),
                "{page}: {} says nothing in column {column}",
                row[0]
            );
        }
        words.extend(
            row[0]
                .split(", ")
                .map(|word| word.trim_matches('`').to_owned()),
        );
    }
    words
}

#[test]
fn it_has_every_condition_and_reason() {
    let mut expected = variants("crates/api/src/conditions.rs", "Reason");
    assert!(expected.len() > 20, "{expected:?}");
    expected.extend(variants("crates/api/src/conditions.rs", "ConditionType"));
    assert_eq!(
        documented(REFERENCE, "Conditions: what to do", &[]),
        expected
    );
}

#[test]
fn it_has_every_event() {
    let expected = variants("src/controller/events.rs", "Reason");
    assert!(expected.len() > 15, "{expected:?}");
    assert_eq!(documented(REFERENCE, "Events", &[1]), expected);
}

/// The page of metrics, after everything has happened once.
fn metrics() -> String {
    let metrics = Metrics::new();
    let db = SemaphoreLabels::new("batch", "db");
    metrics.pass(Duration::ZERO, Err("Conflict"));
    metrics.semaphore(&db, 1, 0, Some((1, 1)));
    metrics.ready(&db, true, "Reconciled");
    metrics.granted(&db, Duration::ZERO);
    metrics.released(&db);
    metrics.lost(&db);
    metrics.consul_call("txn", "ok", Duration::ZERO);
    metrics.watch_failed("jobs");
    metrics.count_spans();
    metrics.encode()
}

#[test]
fn it_has_every_metric() {
    let page = metrics();
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut expected = BTreeSet::new();
    for family in families {
        let (name, kind) = family.split_once(' ').expect("a name and a type");
        // Those of the process are listed in one sentence.
        let Some(name) = name.strip_prefix("consul_semaphore_operator_") else {
            continue;
        };
        let end = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        expected.insert(format!("{name}{end}"));
    }
    // Metrics without events are not encoded.
    let source = text_of(Path::new("src/telemetry/metrics.rs"));
    let made =
        ["make.plain(", "make.seconds(", "Info::new("].map(|call| source.matches(call).count());
    assert_eq!(expected.len(), made.iter().sum::<usize>(), "{expected:?}");
    assert_eq!(documented(REFERENCE, "Metrics", &[1]), expected);
}

/// The operator's metrics that a text names.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = ["consul_semaphore_operator_", "process_"];
    words
        .filter(|word| {
            ours.iter()
                .any(|prefix| word.starts_with(prefix) && word != prefix)
        })
        .collect()
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_what_there_is() {
    let page = metrics();
    let series = page.lines().filter(|line| !line.starts_with('#'));
    let series: BTreeSet<_> = series
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    for (file, least) in [("dashboard.json", 15), ("alerts.yaml", 5)] {
        let text = text_of(&Path::new(CHART_FILES).join(file));
        let named = named(&text);
        assert!(named.len() >= least, "{file} names {named:?}");
        for name in named {
            assert!(
                series.contains(name),
                "{file} names {name}, which is not in {series:?}"
            );
        }
    }
}

#[test]
fn operations_have_every_alert() {
    let alerts = text_of(&Path::new(CHART_FILES).join("alerts.yaml"));
    let names = alerts
        .lines()
        .filter_map(|line| line.strip_prefix("- alert: "));
    let expected: BTreeSet<_> = names.map(str::to_owned).collect();
    assert!(expected.len() > 5, "{expected:?}");
    assert_eq!(
        documented("docs/operations.md", "What to alert on", &[]),
        expected
    );
}
