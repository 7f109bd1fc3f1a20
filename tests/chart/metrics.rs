//! The dashboard is rendered as it is in its file, and the alerts link to existing pages.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use crate::chart::{cases, read};

#[tokio::test]
async fn the_dashboard_is_the_file() {
    for case in cases() {
        for object in case.objects().await {
            let Some(text) = object["data"]["consul-semaphore-operator.json"].as_str() else {
                continue;
            };
            let dashboard: Value = serde_json::from_str(text).expect("the dashboard is JSON");
            let panels = dashboard["panels"].as_array().expect("panels");
            assert!(panels.len() > 15, "{} panels", panels.len());
            assert_eq!(text.trim_end(), read("files/dashboard.json").trim_end());
            return;
        }
    }
    panic!("no values file turns the dashboard on");
}

/// GitHub's link anchor for a heading.
fn anchor(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    title
        .chars()
        .filter(kept)
        .collect::<String>()
        .replace(' ', "-")
}

#[test]
fn the_runbook_has_a_heading_for_each_alert() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
    let page = fs::read_to_string(page).expect("the page");
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchors: BTreeSet<_> = headings.map(anchor).collect();
    let alerts: Value = serde_saphyr::from_str(&read("files/alerts.yaml")).expect("YAML");
    for alert in alerts.as_array().expect("alerts") {
        let (name, url) = (
            &alert["alert"],
            alert["annotations"]["runbook_url"].as_str(),
        );
        let heading = url.and_then(|url| url.strip_prefix("<runbook>#"));
        let heading = heading.unwrap_or_else(|| panic!("{name} leads to {url:?}"));
        assert!(anchors.contains(heading), "{name} leads to {heading}");
    }
    for name in alerts
        .as_array()
        .expect("alerts")
        .iter()
        .map(|alert| &alert["alert"])
    {
        let name = name.as_str().expect("a name");
        assert!(
            page.contains(name),
            "docs/operations.md does not know {name}"
        );
    }
}
