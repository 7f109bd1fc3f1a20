//! The lists of the reference are made from the code, so that they can't say anything else; the dashboard and the alerts
//! know the metrics that there are. `UPDATE_DOCS=1 cargo test --test docs generated` writes the lists.

use std::{collections::BTreeSet, env, fs, path::Path, process::Command, time::Duration};

use consul_semaphore_api::{annotations::FINALIZER, waiting::WaitReason};
use consul_semaphore_operator::telemetry::{JobEnd, Metrics, SemaphoreLabels, SemaphoreTimes};
use serde_json::Value;
use testbed::operator_program;

use crate::page::{root, text_of};

const REFERENCE: &str = "docs/reference.md";
const CHART_FILES: &str = "charts/consul-semaphore-operator/files";

/// Items of a source file with their doc comments, in order, each comment as one line.
fn documented<'a>(
    source: &'a str,
    item: impl Fn(&'a str) -> Option<&'a str>,
) -> Vec<(&'a str, String)> {
    let mut found = Vec::new();
    let mut comment = Vec::new();
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim());
        } else {
            if let Some(name) = item(line)
                && !comment.is_empty()
            {
                found.push((name, comment.join(" ")));
            }
            comment.clear();
        }
    }
    found
}

/// The variants of an enum, each with its doc comment.
fn variants(file: &str, name: &str) -> Vec<(String, String)> {
    let text = text_of(Path::new(file));
    let (_, after) = text
        .split_once(&format!("enum {name} {{\n"))
        .unwrap_or_else(|| panic!("{file} has no {name}"));
    let (body, _) = after.split_once("\n}").expect("its end");
    let variants = documented(body, |line| line.strip_suffix(','));
    assert_eq!(
        variants.len(),
        body.lines()
            .filter(|line| line.ends_with(',') && !line.contains("///"))
            .count(),
        "{file}: a variant of {name} has no doc comment"
    );
    let owned = variants.into_iter();
    owned.map(|(name, text)| (name.to_owned(), text)).collect()
}

/// An entry of a list: a name, a note on it, which may be empty, and what it means.
type Entry = [String; 3];

/// A list, because the texts are too long for the columns of a table.
fn list(entries: impl IntoIterator<Item = Entry>) -> String {
    let entries = entries.into_iter().map(|[name, note, meaning]| {
        assert!(!meaning.contains('\n'), "{name}: {meaning}");
        let note = if note.is_empty() {
            note
        } else {
            format!(" ({note})")
        };
        format!("- {name}{note}: {meaning}\n")
    });
    entries.collect()
}

/// The beginnings of a comment on a name of `annotations.rs`, and who writes it.
const AUTHORS: [&str; 2] = ["its user", "the operator"];

/// What users write on a Job, or what the operator writes: the constants say on what, and by whom.
fn annotations(by: &str) -> String {
    const FILE: &str = "crates/api/src/annotations.rs";
    let source = text_of(Path::new(FILE));
    let constants = named_texts(&source);
    let described = documented(&source, |line| {
        constants.iter().copied().find(|one| *one == line)
    });
    let rows = constants.iter().filter_map(|line| {
        let (_, name) = line.split_once("&str = \"")?;
        let name = name.strip_suffix("\";")?;
        if name == FINALIZER {
            return None;
        }
        let described = described.iter().find(|(one, _)| one == line);
        let text = described.map_or("", |(_, text)| text);
        let entry = annotation(text).unwrap_or_else(|| {
            panic!(
                "{FILE}: the comment on {name} must begin with \"On a Job, by its user: \" or \"On the pod template, by \
                 the operator: \", because docs/reference.md lists it under one of these: {text:?}"
            )
        });
        let (place, author, meaning) = entry;
        (author == by).then(|| [format!("`{name}`"), clause(place), sentence(meaning)])
    });
    list(rows)
}

/// The lines that declare a text.
fn named_texts(source: &str) -> Vec<&str> {
    let lines = source.lines().map(str::trim);
    lines
        .filter(|line| line.starts_with("pub const ") && line.contains(": &str = \""))
        .collect()
}

/// On what it is, who writes it, and what it means.
fn annotation(text: &str) -> Option<(&str, &str, &str)> {
    let (place, meaning) = text.split_once(": ")?;
    let (place, author) = place.split_once(", by ")?;
    AUTHORS
        .contains(&author)
        .then_some((place, author, meaning))
}

#[test]
fn a_comment_on_an_annotation_says_where_it_is_and_who_writes_it() {
    let expected = Some(("On a Job", "its user", "a number"));
    assert_eq!(annotation("On a Job, by its user: a number"), expected);
    for text in [
        "",
        "A number.",
        "On a Job: a number",
        "On a Job, by anybody: a number",
    ] {
        assert_eq!(annotation(text), None, "{text}");
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(letters).collect()
}

fn clause(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_lowercase);
    first.into_iter().flatten().chain(letters).collect()
}

/// The fields of the spec or the status, as the `CustomResourceDefinition` has them.
fn fields(part: &str) -> String {
    let crd = text_of(Path::new("crds/consulsemaphores.consul-semaphore.io.yaml"));
    let crd: Value = serde_saphyr::from_str(&crd).expect("YAML");
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part];
    let mut rows = Vec::new();
    fields_of(schema, "", &mut rows);
    list(rows)
}

fn fields_of(schema: &Value, parent: &str, rows: &mut Vec<Entry>) {
    let required = schema["required"].as_array();
    let is_required =
        |name: &str| required.is_some_and(|names| names.iter().any(|one| one == name));
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{parent}{name}");
        let mut value = vec![field["type"].as_str().unwrap_or_default().to_owned()];
        let words = field["enum"].as_array().into_iter().flatten();
        let words: Vec<_> = words
            .filter_map(Value::as_str)
            .map(|word| format!("`{word}`"))
            .collect();
        if !words.is_empty() {
            value = vec![words.join(", ")];
        }
        if let (Some(least), Some(most)) = (field["minimum"].as_i64(), field["maximum"].as_i64()) {
            value = vec![format!("{least} to {most}")];
        }
        match &field["default"] {
            Value::Null if is_required(name) => value.push("required".to_owned()),
            Value::Null | Value::Object(_) => {}
            default => value.push(format!(
                "default `{}`",
                default.to_string().trim_matches('"')
            )),
        }
        let meaning = field["description"]
            .as_str()
            .unwrap_or_default()
            // It is plain text: Markdown would take `<key>` for HTML, and not show it.
            .replace('<', r"\<");
        rows.push([format!("`{path}`"), value.join(", "), meaning]);
        if name != "conditions" {
            fields_of(field, &format!("{path}."), rows);
            fields_of(&field["items"], &format!("{path}[]."), rows);
        }
    }
}

fn conditions() -> String {
    let types = variants("crates/api/src/conditions.rs", "ConditionType");
    assert_eq!(types.len(), 4);
    list(types.into_iter().map(named_word))
}

fn reasons() -> String {
    let reasons = variants("crates/api/src/conditions.rs", "Reason");
    assert!(reasons.len() > 20, "{reasons:?}");
    list(reasons.into_iter().map(named_word))
}

fn named_word((name, meaning): (String, String)) -> Entry {
    [format!("**{name}**"), String::new(), meaning]
}

/// The events, and which of them are warnings.
fn events() -> String {
    const FILE: &str = "src/controller/events.rs";
    let source = text_of(Path::new(FILE));
    let (_, body) = source
        .split_once("fn is_warning")
        .expect("which are warnings");
    let (normal, _) = body.split_once("=> false").expect("those that are not");
    let events = variants(FILE, "Reason");
    assert!(events.len() > 15, "{events:?}");
    let rows = events.into_iter().map(|(name, text)| {
        let is_normal = normal.contains(&format!("Self::{name}\n"))
            || normal.contains(&format!("Self::{name} "));
        let kind = if is_normal { "Normal" } else { "Warning" };
        [format!("**{name}**"), kind.to_owned(), text]
    });
    list(rows)
}

/// The metrics, after everything has happened once.
fn metrics_list() -> String {
    let page = metrics();
    let mut rows = Vec::new();
    for block in page.split("# HELP ").skip(1) {
        let (name, rest) = block.split_once(' ').expect("a name and a text");
        let (help, rest) = rest.split_once('\n').expect("its line");
        let (_, kind) = rest
            .split_once(&format!("# TYPE {name} "))
            .expect("its type");
        let (kind, rest) = kind.split_once('\n').expect("its line");
        let labels = rest
            .lines()
            .find_map(|line| line.split_once('{')?.1.split_once('}'));
        let labels = labels.map_or(String::new(), |(labels, _)| {
            let names = labels.split(',').filter_map(|label| label.split_once('='));
            let names = names.map(|(name, _)| name).filter(|name| *name != "le");
            names.fold(String::new(), |labels, name| labels + ", " + name)
        });
        let end = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        rows.push([
            format!("`{name}{end}`"),
            format!("{kind}{labels}"),
            help.to_owned(),
        ]);
    }
    list(rows)
}

/// What the operator's program says of its flags.
fn flags() -> String {
    let mut program = Command::new(operator_program().expect("the operator's program"));
    let help = program
        .args(["run", "--help"])
        .env_clear()
        .output()
        .expect("its help");
    let help = String::from_utf8(help.stdout).expect("UTF-8");
    let lines: Vec<_> = help.lines().map(str::trim_end).collect();
    format!("```text\n{}\n```\n", lines.join("\n").trim_end())
}

/// The page with what stands between these marks replaced.
fn replaced(page: &str, name: &str, text: &str) -> String {
    let begin = format!("<!-- generated: {name} -->\n");
    let (before, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{REFERENCE} has no {begin}"));
    let (_, after) = rest.split_once("<!-- end -->").expect("its end");
    format!("{before}{begin}\n{text}\n<!-- end -->{after}")
}

#[test]
fn the_reference_says_what_the_code_says() {
    let page = text_of(Path::new(REFERENCE));
    let mut expected = page.clone();
    for (name, text) in [
        ("annotations of users", annotations(AUTHORS[0])),
        ("annotations of the operator", annotations(AUTHORS[1])),
        ("spec", fields("spec")),
        ("status", fields("status")),
        ("conditions", conditions()),
        ("reasons", reasons()),
        ("events", events()),
        ("metrics", metrics_list()),
        ("flags", flags()),
    ] {
        expected = replaced(&expected, name, &text);
    }
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(root().join(REFERENCE), &expected).expect("the page is written");
    } else if page != expected {
        let differs = page
            .lines()
            .zip(expected.lines())
            .find(|(is, should)| is != should);
        panic!(
            "{REFERENCE} is not what the code says, from here on: {differs:#?}. Write it with: UPDATE_DOCS=1 cargo test --test docs generated"
        );
    }
}

/// The page of metrics, after everything has happened once.
fn metrics() -> String {
    let metrics = Metrics::new();
    let db = SemaphoreLabels::new("batch", "db");
    metrics.pass(Duration::ZERO, Err("Conflict"));
    metrics.semaphores().set_counts(&db, 1, 0, Some((1, 1)));
    metrics.semaphores().set_ready(&db, true, "Reconciled");
    metrics.semaphores().granted(&db, 1, Duration::ZERO);
    let time = Some(jiff::Timestamp::UNIX_EPOCH);
    let times = SemaphoreTimes {
        next_start: time,
        window_opens: time,
        longest_wait_since: time,
        longest_hold_since: time,
        longest_start_since: time,
    };
    metrics.semaphores().set_times(&db, times);
    metrics.started("Job");
    metrics.semaphores().released(&db, Some(Duration::ZERO));
    metrics.semaphores().ended(&db, JobEnd::Skipped);
    metrics.semaphores().lost(&db);
    metrics.consul().called("txn", "ok", Duration::ZERO);
    metrics.watch_failed("jobs");
    metrics.count_spans();
    metrics.consul().count_memory(1, || 1);
    metrics.encode()
}

#[test]
fn every_metric_has_happened() {
    let page = metrics();
    let ours = page.matches("# TYPE consul_semaphore_operator_").count();
    // What nothing has happened to yet is not encoded.
    let sources = [
        "src/telemetry/metrics.rs",
        "src/telemetry/metrics/consul.rs",
        "src/telemetry/metrics/semaphores.rs",
    ];
    let source = sources.map(|path| text_of(Path::new(path))).concat();
    let calls = [
        "register.plain(",
        "register.seconds(",
        "register.bytes(",
        "Info::new(",
    ];
    let made = calls.map(|call| source.matches(call).count());
    assert_eq!(ours, made.iter().sum::<usize>(), "{page}");
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
    let page = text_of(Path::new("docs/operations.md"));
    let (_, section) = page
        .split_once("\n## What to alert on\n")
        .expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| alert"));
    let documented: BTreeSet<_> = rows
        .filter_map(|row| row.split('|').nth(1))
        .map(|name| name.trim().trim_matches('`'))
        .collect();
    let expected: BTreeSet<_> = names.collect();
    assert!(expected.len() > 5, "{expected:?}");
    assert_eq!(documented, expected);
}

#[test]
fn why_waiting_explains_every_reason() {
    let page = text_of(Path::new("docs/why-waiting.md"));
    let words: BTreeSet<_> = page.split(|c: char| !c.is_alphanumeric()).collect();
    let reasons = [
        variants("crates/api/src/conditions.rs", "Reason"),
        variants("src/controller/events.rs", "Reason"),
    ];
    let reasons = reasons.into_iter().flatten().map(|(reason, _)| reason);
    let of_the_queue = WaitReason::ALL_OF_THE_QUEUE.map(|reason| reason.to_string());
    for reason in reasons.chain(of_the_queue) {
        let is_there = words.contains(reason.as_str());
        assert!(is_there, "docs/why-waiting.md does not explain {reason}");
    }
}
