//! The chart, and its values files in `ci/`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::Value;

/// The chart's folder for helm, which runs in the root of the workspace.
pub(crate) const CHART: &str = "charts/consul-semaphore-operator";

/// The release in docs/install.md, and its namespace.
pub(crate) const RELEASE: &str = "consul-semaphore-operator";
pub(crate) const NAMESPACE: &str = "consul-semaphore-system";

/// The description of the cluster for `helm template`, which does not read it from one.
const CLUSTER: [&str; 8] = [
    "--kube-version=1.37.2",
    "--api-versions=monitoring.coreos.com/v1/ServiceMonitor",
    "--api-versions=monitoring.coreos.com/v1/PodMonitor",
    "--api-versions=monitoring.coreos.com/v1/PrometheusRule",
    "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
    "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicyBinding",
    "--namespace",
    NAMESPACE,
];

/// A file of the chart.
pub(crate) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(CHART).join(path)
}

/// The text of a file of the chart.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(file(path)).expect(path)
}

/// A values file of `ci/`.
pub(crate) struct Case {
    /// The name in `ci/<name>-values.yaml`.
    pub(crate) name: String,
    pub(crate) path: String,
}

/// All values files, in order.
pub(crate) fn cases() -> Vec<Case> {
    let entries = fs::read_dir(file("ci")).expect("the values files");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut cases: Vec<_> = names
        .filter_map(|name| {
            let name = name.to_str()?.strip_suffix("-values.yaml")?.to_owned();
            let path = format!("{CHART}/ci/{name}-values.yaml");
            Some(Case { name, path })
        })
        .collect();
    assert!(cases.len() > 3, "only {} values files", cases.len());
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

impl Case {
    pub(crate) fn values(&self) -> Value {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&self.path);
        let text = fs::read_to_string(path).expect("the values file");
        serde_saphyr::from_str(&text).expect("the values are YAML")
    }

    /// The output of `helm template` with it.
    pub(crate) async fn text(&self) -> String {
        let rendered = template(&["--values", &self.path]).await;
        rendered.unwrap_or_else(|error| panic!("{}: {error:#}", self.name))
    }

    /// The rendered objects.
    pub(crate) async fn objects(&self) -> Vec<Value> {
        objects(&self.text().await)
    }
}

/// Runs `helm template` for a cluster that has everything that the chart needs.
pub(crate) async fn template(args: &[&str]) -> Result<String> {
    let all = ["template", RELEASE, CHART].into_iter().chain(CLUSTER);
    testbed::helm_alone(all.chain(args.iter().copied())).await
}

/// The notes that `helm install` prints.
pub(crate) async fn notes(values: &str) -> String {
    let install = ["install", RELEASE, CHART, "--namespace", NAMESPACE];
    let install = install
        .into_iter()
        .chain(["--dry-run=client", "--set", values]);
    let said = testbed::helm_alone(install).await;
    let said = said.unwrap_or_else(|error| panic!("{values}: {error:#}"));
    let (_, notes) = said.split_once("\nNOTES:\n").expect("notes");
    notes.to_owned()
}

/// The objects in a YAML text.
pub(crate) fn objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).expect("YAML")
}
