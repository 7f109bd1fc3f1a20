//! `helm package` makes a chart that works like the folder, and Chart.yaml describes it correctly for Artifact Hub.

use std::{fs, path::Path};

use consul_semaphore_operator::telemetry;
use serde_json::{Value, json};
use testbed::{Folder, helm_alone};

use crate::chart::{CHART, file, objects, read};

/// The address of the repository, with which all links begin.
const HOME: &str = "https://github.com/consul-semaphore/consul-semaphore-operator";

#[tokio::test]
async fn the_package_works_like_the_folder() {
    let folder = Folder::new().expect("a folder");
    let path = folder.path().display().to_string();
    let said = helm_alone(["package", CHART, "--destination", &path]).await;
    let said = said.expect("the chart can be packaged");
    let name = format!("consul-semaphore-operator-{}.tgz", telemetry::VERSION);
    assert!(said.contains(&name), "{said}");
    let package = format!("{path}/{name}");

    let linted = helm_alone(["lint", "--strict", &package]).await;
    let linted = linted.expect("helm lint accepts the package");
    assert!(
        !linted.contains("[WARNING]") && !linted.contains("[ERROR]"),
        "{linted}"
    );

    let values = "grafanaDashboard.enabled=true,admissionPolicies.refuse.enabled=true";
    let [packaged, here] = [package.as_str(), CHART]
        .map(|chart| helm_alone(["template", "a", chart, "--set", values]));
    let packaged = packaged.await.expect("the package renders");
    assert_eq!(packaged, here.await.expect("the folder renders"));

    let shown = helm_alone(["show", "all", &package]).await;
    let shown = shown.expect("helm shows the package");
    assert!(shown.contains("# Default values of the chart"), "{shown}");
}

fn chart() -> Value {
    serde_saphyr::from_str(&read("Chart.yaml")).expect("Chart.yaml is YAML")
}

/// An annotation whose value is YAML.
fn annotation(name: &str) -> Value {
    let chart = chart();
    let text = chart["annotations"][format!("artifacthub.io/{name}")].as_str();
    let text = text.unwrap_or_else(|| panic!("no annotation {name}"));
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn all_addresses_are_in_one_repository() {
    let chart = chart();
    assert_eq!(chart["home"], HOME);
    assert_eq!(chart["sources"], json!([HOME]));
    let links = annotation("links");
    let links = links.as_array().expect("links").iter();
    let maintainers = chart["maintainers"].as_array().expect("maintainers").iter();
    let mut followed = 0;
    for link in links.chain(maintainers) {
        assert!(link["name"].is_string(), "{link}");
        let path = link["url"].as_str().and_then(|url| url.strip_prefix(HOME));
        let path = path.unwrap_or_else(|| panic!("{link} is not in {HOME}"));
        let in_repository = ["/tree/main/", "/blob/main/"];
        if let Some(path) = in_repository.iter().find_map(|of| path.strip_prefix(of)) {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
            assert!(path.exists(), "{link}");
            followed += 1;
        }
    }
    assert!(followed > 3, "{followed}");
}

#[test]
fn artifact_hub_describes_the_custom_resource() {
    let crd = read("files/crds/consulsemaphores.consul-semaphore.io.yaml");
    let crd = &objects(&crd)[0];
    let versions = crd["spec"]["versions"].as_array().expect("versions");
    let crds = annotation("crds");
    let described: Vec<_> = crds.as_array().expect("a list").iter().collect();
    assert_eq!(described.len(), versions.len());
    for (described, version) in described.into_iter().zip(versions) {
        assert_eq!(described["name"], crd["metadata"]["name"]);
        assert_eq!(described["kind"], crd["spec"]["names"]["kind"]);
        assert_eq!(described["version"], version["name"]);
        for text in ["displayName", "description"] {
            assert!(described[text].is_string(), "{described}");
        }
    }
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/samples/consulsemaphore.yaml");
    let sample = fs::read_to_string(sample).expect("the sample");
    assert_eq!(annotation("crdsExamples"), json!(objects(&sample)));
}

/// Helm lint only recommends an icon, and accepts one that nobody can fetch.
#[test]
fn an_icon_has_a_public_address() {
    if let Some(icon) = chart().get("icon") {
        let icon = icon.as_str().unwrap_or_default();
        assert!(icon.starts_with("https://"), "{icon}");
    }
    assert!(file("../../docs/images/icon.svg").exists());
}
