//! The alerts fire when they should, and only then: promtool runs `alerts.yaml` over the rules of the chart.

use std::{env, fs, path::Path, process::Command};

use testbed::{Folder, server};

use crate::chart::{RELEASE, objects, template};

/// The hash of the `ReplicaSet` in `alerts.yaml`.
const HASH: &str = "7d9c4f8b56";

#[tokio::test]
async fn each_alert_fires_when_it_should() {
    fire_as_they_should(RELEASE).await;
}

/// The longest allowed name: Kubernetes truncates it in the names of its pods.
#[tokio::test]
async fn also_where_the_name_is_long() {
    fire_as_they_should(&"operator-".repeat(6)[..51]).await;
}

/// The name of a Deployment's pods in Kubernetes, without the random suffix.
fn pods_of(deployment: &str) -> String {
    let mut name = format!("{deployment}-{HASH}-");
    name.truncate(58);
    name
}

/// The alerts of a release whose Deployment has this name.
#[expect(clippy::print_stderr, reason = "what is left out is told")]
async fn fire_as_they_should(name: &str) {
    if env::var_os("WITHOUT_PROMTOOL").is_some() {
        eprintln!("the alerts are not tested: WITHOUT_PROMTOOL is set");
        return;
    }
    let overridden = format!("prometheusRule.enabled=true,fullnameOverride={name}");
    let rendered = template(&["--set", &overridden]).await;
    let rendered = objects(&rendered.expect("the chart"));
    let rule = rendered
        .iter()
        .find(|object| object["kind"] == "PrometheusRule");
    let rules = &rule.expect("a PrometheusRule")["spec"];
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart/alerts.yaml");
    let text = fs::read_to_string(&tests).expect("the tests");
    for alert in rules["groups"][0]["rules"].as_array().expect("alerts") {
        let name = alert["alert"].as_str().expect("a name");
        assert!(
            text.contains(&format!("alertname=\"{name}\"")),
            "no test of {name}"
        );
    }
    let text = text
        .replace(
            &format!("pod=\"{}", pods_of(RELEASE)),
            &format!("pod=\"{}", pods_of(name)),
        )
        .replace(&format!("pod=\"{RELEASE}-"), &format!("pod=\"{name}-"));
    let folder = Folder::new().expect("a folder");
    fs::write(folder.path().join("tests.yaml"), text).expect("the tests");
    fs::write(folder.path().join("rules.yaml"), rules.to_string()).expect("the rules");
    let mut promtool = Command::new(server("promtool").expect("promtool"));
    let tested = promtool
        .args(["test", "rules", "tests.yaml"])
        .current_dir(folder.path())
        .output();
    let tested = tested.expect("promtool, which `make servers` brings");
    let said = String::from_utf8_lossy(&tested.stdout) + String::from_utf8_lossy(&tested.stderr);
    assert!(tested.status.success(), "{said}");
}
