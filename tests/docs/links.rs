//! Each link within the documentation leads to an existing place.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::page::{pages, root, text_of};

/// The text without code blocks, in which `](` and `#` have another meaning.
fn prose(page: &Path) -> String {
    let text = text_of(page);
    let mut code = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// GitHub's link anchors for the headings of a page.
fn anchors(page: &Path) -> BTreeSet<String> {
    let text = prose(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
        title
            .chars()
            .filter(kept)
            .collect::<String>()
            .replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn each_link_leads_somewhere() {
    let mut broken = Vec::new();
    let mut followed = 0;
    for page in pages() {
        let text = prose(&page);
        for part in text.split("](").skip(1) {
            let link = part.split(')').next().unwrap_or_default();
            if link.starts_with("http") {
                continue;
            }
            followed += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(path)
            };
            let there = root().join(&target).exists()
                && (anchor.is_empty() || anchors(&target).contains(anchor));
            if !there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new());
    assert!(followed > 10, "only {followed} links were found");
}

/// What SUMMARY.md does not list is not on the site, and readers don't find it.
#[test]
fn the_summary_lists_each_page() {
    let summary = Path::new("docs/SUMMARY.md");
    let text = text_of(summary);
    let links = text.split("](").skip(1);
    let mut listed: Vec<_> = links
        .map(|part| part.split(')').next().unwrap_or_default())
        .map(|link| match link.strip_prefix("../") {
            Some(of_the_root) => PathBuf::from(of_the_root),
            None => Path::new("docs").join(link),
        })
        .collect();
    listed.sort();
    let mut expected = pages();
    expected.retain(|page| page != summary);
    assert_eq!(listed, expected);
}
