//! The `make` targets that the docs mention exist.

use std::{collections::BTreeSet, process::Command};

use crate::page::{pages, root, text_of};

/// The targets that a text mentions: in `code`, or at the beginning of a command.
fn targets_of(text: &str) -> BTreeSet<String> {
    let mut targets = BTreeSet::new();
    for line in text.lines() {
        let spans = line.split('`').skip(1).step_by(2);
        for command in spans.chain([line.trim_start_matches("$ ")]) {
            let words = command.split_whitespace();
            let mut words = words.skip_while(|word| word.contains('='));
            if words.next() == Some("make") {
                let target = words.next().filter(|word| {
                    !word.contains(|c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c)))
                });
                targets.extend(target.map(str::to_owned));
            }
        }
    }
    targets
}

#[test]
fn make_targets_in_the_docs_exist() {
    let targets: BTreeSet<_> = pages()
        .iter()
        .flat_map(|page| targets_of(&text_of(page)))
        .collect();
    assert!(targets.len() > 8, "{targets:?}");
    for target in targets {
        let mut make = Command::new("make");
        let output = make
            .args(["--dry-run", &target])
            .current_dir(root())
            .output()
            .expect("make");
        assert!(
            output.status.success(),
            "make {target}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn it_finds_them_in_prose_and_in_commands() {
    let found = targets_of(
        "Run `make a`, or `N=4 make b X=1`, to make sure.\n$ make c-1.8   # c\nmake d\n`make`",
    );
    assert_eq!(found, ["a", "b", "c-1.8", "d"].map(str::to_owned).into());
}
