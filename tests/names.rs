//! How the sources are written: each type of a crate has a name of its own, a value that changes gets a new name, and
//! a doc comment is true without the line above it.
//!
//! The checks read lines, not syntax. Tests, benchmarks, and crates that only tests use are left out.
#![allow(clippy::expect_used, reason = "a test that cannot go on says so")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The folders with the sources of the product, a crate each.
const CRATES: &[&str] = &[
    "src",
    "crates/api/src",
    "crates/command-line/src",
    "crates/consul-client/src",
    "crates/consul-semaphore/src",
    "crates/consul-semaphore-cli/src",
    "crates/consul-semaphore-python/src",
    "crates/kubectl-csem/src",
    "crates/workload/src",
];

/// A source: its path from the root of the workspace, and its lines without the tests at its end.
struct Source {
    path: String,
    lines: Vec<String>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the sources of a crate.
fn sources(of: &str) -> Vec<Source> {
    let mut files = Vec::new();
    collect(&root().join(of), &mut files);
    assert!(!files.is_empty(), "{of} has no sources");
    files.sort();
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).expect("a source is readable");
        let path = file.strip_prefix(root()).expect("below the root");
        Source {
            path: path.display().to_string(),
            lines: without_tests(&text),
        }
    };
    files.into_iter().map(read).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder is readable") {
        let path = entry.expect("an entry is readable").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        // The model of the engine is a test, too.
        if ["tests", "model"].contains(&&*name) {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn without_tests(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let is_start = |pair: &[String]| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    };
    if let Some(start) = lines.windows(2).position(is_start) {
        lines.truncate(start);
    }
    lines
}

/// Returns the rest of a line after one of these words.
fn after<'a>(line: &'a str, words: &[&str]) -> Option<&'a str> {
    words
        .iter()
        .find_map(|word| line.strip_prefix(word)?.strip_prefix(' '))
}

/// Returns the identifier at the start of a text.
fn identifier(text: &str) -> &str {
    let end = text.find(|character: char| !character.is_alphanumeric() && character != '_');
    &text[..end.unwrap_or(text.len())]
}

/// Returns the name of the type that a line declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let declaration = match line.strip_prefix("pub") {
        None => line,
        Some(rest) => match rest.strip_prefix('(') {
            None => rest.trim_start(),
            Some(scoped) => scoped.split_once(')')?.1.trim_start(),
        },
    };
    after(declaration, &["struct", "enum", "union"]).map(identifier)
}

/// Returns the name that a line binds, and the expression.
fn bound(line: &str) -> Option<(&str, &str)> {
    let pattern = after(line.trim(), &["let"])?;
    let pattern = pattern.strip_prefix("mut ").unwrap_or(pattern);
    let name = identifier(pattern);
    let (before, expression) = pattern.split_once(" = ")?;
    let is_plain = before == name || before[name.len()..].starts_with(':');
    (is_plain && !name.is_empty()).then_some((name, expression))
}

/// Whether the second line gives the value of the first a new value under the same name.
fn is_rebound(first: &str, second: &str) -> bool {
    let (Some((name, _)), Some((again, expression))) = (bound(first), bound(second)) else {
        return false;
    };
    first.ends_with(';') && name == again && identifier(expression) == name
}

/// Whether a doc comment begins with a reference to what stands above it.
fn leans(comment: &str) -> bool {
    let is_space = |character: char| !character.is_alphanumeric();
    let words: Vec<_> = comment.split(is_space).take(2).collect();
    match words.as_slice() {
        ["The", second] => ["same", "other", "others"].contains(second),
        ["As", second] => ["it", "that", "those"].contains(second),
        [first, ..] => [
            "It", "Its", "That", "Those", "These", "They", "Does", "Of", "Also", "Likewise", "And",
        ]
        .contains(first),
        [] => false,
    }
}

#[track_caller]
fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

#[test]
fn each_type_of_a_crate_has_a_name_of_its_own() {
    let mut twice = Vec::new();
    for of in CRATES {
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for Source { path, lines } in sources(of) {
            for (number, line) in (1..).zip(&lines) {
                if let Some(name) = declared(line) {
                    let place = format!("{path}:{number}");
                    places.entry(name.to_owned()).or_default().push(place);
                }
            }
        }
        places.retain(|_, places| places.len() > 1);
        twice.extend(
            places
                .iter()
                .map(|(name, places)| format!("{name}: {}", places.join(", "))),
        );
    }
    assert_none(
        "say what distinguishes types that have the same name",
        &twice,
    );
}

#[test]
fn a_value_that_changes_gets_a_new_name() {
    let mut rebound = Vec::new();
    for Source { path, lines } in CRATES.iter().flat_map(|of| sources(of)) {
        for (number, pair) in (2..).zip(lines.windows(2)) {
            if is_rebound(&pair[0], &pair[1]) {
                rebound.push(format!("{path}:{number}: {}", pair[1].trim()));
            }
        }
    }
    assert_none("write a chain, or name what the value is now", &rebound);
}

#[test]
fn a_doc_comment_is_true_without_the_line_above() {
    let mut leaning = Vec::new();
    for Source { path, lines } in CRATES.iter().flat_map(|of| sources(of)) {
        let doc = |line: &str| line.trim_start().strip_prefix("/// ").map(str::to_owned);
        let mut above = None;
        for (number, line) in (1..).zip(&lines) {
            let comment = doc(line);
            if above.is_none() && comment.as_deref().is_some_and(leans) {
                leaning.push(format!("{path}:{number}: {}", line.trim()));
            }
            above = comment.or_else(|| (line.trim() == "///").then(String::new));
        }
    }
    assert_none("begin these doc comments with a subject", &leaning);
}

#[test]
fn declarations_are_found() {
    assert_eq!(declared("struct A {"), Some("A"));
    assert_eq!(declared("    pub(in crate::x) enum B<T> {"), Some("B"));
    assert_eq!(declared("pub struct C;"), Some("C"));
    assert_eq!(declared("// struct D;"), None);
    assert_eq!(declared("fn structure() {}"), None);
}

#[test]
fn rebound_names_are_found() {
    assert!(is_rebound("let a = b();", "let a = a.map(c);"));
    assert!(is_rebound("    let mut a: X = b();", "    let a = a?;"));
    assert!(!is_rebound("let a = b();", "let a = b.map(c);"));
    assert!(!is_rebound("let a = b();", "let ab = a.map(c);"));
    assert!(!is_rebound("let (a, b) = c();", "let a = a.map(c);"));
}

#[test]
fn leaning_comments_are_found() {
    assert!(leans("The same, without taking it."));
    assert!(leans("It is ended."));
    assert!(!leans("The slot is given back."));
    assert!(!leans("Italic text."));
}
