//! What the chart renders from its values files: for two of them compared with a stored snapshot, which shows a
//! reviewer the effect of a template change.

use std::{env, fs, path::Path};

use consul_semaphore_operator::telemetry;

use crate::chart::{CHART, cases, file, read};

/// The values files with a stored snapshot: the others differ in what their own tests check.
const STORED: [&str; 2] = ["default", "everything"];

const AGAIN: &str = "write it anew with: UPDATE_SNAPSHOTS=1 cargo test --test chart";

#[tokio::test]
async fn it_is_what_is_stored() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart/snapshots");
    let write = env::var_os("UPDATE_SNAPSHOTS").is_some();
    let mut differ = Vec::new();
    let stored = cases()
        .into_iter()
        .filter(|case| STORED.contains(&case.name.as_str()));
    for case in stored {
        let rendered = abridged(&case.text().await);
        let snapshot = folder.join(format!("{}.yaml", case.name));
        if write {
            fs::write(&snapshot, &rendered).expect("the snapshot is written");
        }
        if fs::read_to_string(&snapshot).unwrap_or_default() != rendered {
            differ.push(case.name);
        }
    }
    assert!(
        differ.is_empty(),
        "{differ:?} are rendered in another way; look at it, and {AGAIN}"
    );
}

/// Without what is copied unchanged from `files/`, and compared elsewhere.
fn abridged(rendered: &str) -> String {
    let brought = [
        "templates/crds.yaml",
        "templates/grafana-dashboard.yaml",
        "templates/workload-policies.yaml",
    ];
    let mut kept = String::new();
    let (mut of_file, mut left_out) = (false, false);
    for line in rendered.lines() {
        if line == "---" {
            (of_file, left_out) = (false, false);
        } else if let Some(source) = line.strip_prefix("# Source: ") {
            of_file = brought.iter().any(|name| source.ends_with(name));
        }
        if left_out {
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
        if of_file && (line == "spec:" || line == "data:") {
            kept.push_str("  # as it is in files/\n");
            left_out = true;
        }
    }
    kept
}

#[tokio::test]
async fn helm_has_nothing_to_say_against_it() {
    for case in cases() {
        let linted = testbed::helm_alone(["lint", "--strict", CHART, "--values", &case.path]).await;
        let said = linted.unwrap_or_else(|error| panic!("{}: {error:#}", case.name));
        assert!(said.contains("0 chart(s) failed"), "{said}");
        assert!(
            !said.contains("[WARNING]") && !said.contains("[ERROR]"),
            "{said}"
        );
    }
}

/// A Secret with a certificate authority may also contain the authority's key.
#[tokio::test]
async fn the_pod_has_only_those_files_of_a_secret_that_it_reads() {
    let mut whole = 0;
    for case in cases() {
        for object in case.objects().await {
            let pod = match object["kind"].as_str() {
                Some("Deployment") => &object["spec"]["template"]["spec"],
                Some("Pod") => &object["spec"],
                _ => continue,
            };
            let volumes = pod["volumes"].as_array().into_iter().flatten();
            // The others are set by users.
            let own = volumes.filter(|volume| {
                let name = volume["name"].as_str().unwrap_or_default();
                name.starts_with("consul-")
            });
            for source in own.flat_map(|volume| [&volume["secret"], &volume["configMap"]]) {
                assert!(source.is_null() || source["items"].is_array(), "{source}");
                whole += usize::from(!source.is_null());
            }
        }
    }
    assert!(whole > 3, "{whole}");
}

#[test]
fn its_version_is_the_programs() {
    let chart: serde_json::Value =
        serde_saphyr::from_str(&read("Chart.yaml")).expect("the chart is YAML");
    assert_eq!(chart["version"], telemetry::VERSION);
    assert_eq!(chart["appVersion"], telemetry::VERSION);
}

/// Nothing else notices a file of the chart that is never rendered.
#[tokio::test]
async fn each_template_is_in_a_snapshot() {
    let mut rendered = String::new();
    for case in cases() {
        rendered.push_str(&case.text().await);
    }
    let templates = fs::read_dir(file("templates")).expect("the templates");
    for template in templates {
        let name = template.expect("a template").file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".yaml") {
            let source = format!("# Source: consul-semaphore-operator/templates/{name}\n");
            assert!(
                rendered.contains(&source),
                "no values file makes anything of {name}"
            );
        }
    }
}
