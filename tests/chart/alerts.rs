//! The alerts fire when they should, and only then: promtool runs `alerts.yaml` over the rules of the chart.

use std::{env, fs, path::Path, process::Command};

use serde_json::Value;
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

/// One Prometheus has the series of several clusters.
#[tokio::test]
async fn also_where_there_are_several_clusters() {
    let values = "prometheusRule.enabled=true,prometheusRule.aggregationLabels={cluster},\
        prometheusRule.matchers=cluster!=\"other\"";
    let rules = rules(values).await;
    run(&rules, &tests("alerts_of_clusters.yaml"));
}

/// The name of a Deployment's pods in Kubernetes, without the random suffix.
fn pods_of(deployment: &str) -> String {
    let mut name = format!("{deployment}-{HASH}-");
    name.truncate(58);
    name
}

/// The alerts of a release whose Deployment has this name.
async fn fire_as_they_should(name: &str) {
    let overridden = format!("prometheusRule.enabled=true,fullnameOverride={name}");
    let rules = rules(&overridden).await;
    let text = tests("alerts.yaml");
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
    run(&rules, &text);
}

/// The rules of a release with these values.
async fn rules(values: &str) -> Value {
    let rendered = template(&["--set", values]).await;
    let rendered = objects(&rendered.expect("the chart"));
    let rule = rendered
        .iter()
        .find(|object| object["kind"] == "PrometheusRule");
    rule.expect("a PrometheusRule")["spec"].clone()
}

/// A file of tests beside this one.
fn tests(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart");
    fs::read_to_string(path.join(name)).expect("the tests")
}

/// Runs the tests over the rules.
#[expect(clippy::print_stderr, reason = "what is left out is told")]
fn run(rules: &Value, tests: &str) {
    if env::var_os("WITHOUT_PROMTOOL").is_some() {
        eprintln!("the alerts are not tested: WITHOUT_PROMTOOL is set");
        return;
    }
    let folder = Folder::new().expect("a folder");
    fs::write(folder.path().join("tests.yaml"), tests).expect("the tests");
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
