//! The alerts fire when they should, and only then: promtool runs `alerts.yaml` over the rules of the chart.

use std::{env, fs, path::Path, process::Command};

use testbed::{Folder, servers};

use crate::chart::{objects, template};

#[tokio::test]
async fn each_alert_fires_when_it_should() {
    if env::var_os("WITHOUT_PROMTOOL").is_some() {
        eprintln!("the alerts are not tested: WITHOUT_PROMTOOL is set");
        return;
    }
    let rendered = template(&["--set", "prometheusRule.enabled=true"]).await;
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
    let folder = Folder::new().expect("a folder");
    fs::copy(tests, folder.path().join("tests.yaml")).expect("the tests");
    fs::write(folder.path().join("rules.yaml"), rules.to_string()).expect("the rules");
    let mut promtool = Command::new(servers().join("promtool"));
    let tested = promtool
        .args(["test", "rules", "tests.yaml"])
        .current_dir(folder.path())
        .output();
    let tested = tested.expect("promtool, which `make servers` brings");
    let said = String::from_utf8_lossy(&tested.stdout) + String::from_utf8_lossy(&tested.stderr);
    assert!(tested.status.success(), "{said}");
}
