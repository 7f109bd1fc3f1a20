//! The chart's defaults are the objects of config/default and, if the API server supports them, of config/policies.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use crate::chart::{CHART, cases, objects, read, template};

/// What only Helm sets on its objects, and what only kustomize sets.
const BESIDE: [&str; 6] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
    "helm.sh/chart",
    "helm.sh/resource-policy",
];

/// Removes these differences, and what is empty without them.
fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for name in BESIDE {
                fields.remove(name);
            }
            fields.values_mut().for_each(strip);
            fields.retain(|_, value| value.as_object().is_none_or(|fields| !fields.is_empty()));
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

/// The objects by kind, namespace and name. `helm install --create-namespace` creates the namespace, and only Helm
/// has tests.
fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let others = objects
        .into_iter()
        .filter(|object| object["kind"] != "Namespace")
        .filter(|object| object["metadata"]["annotations"]["helm.sh/hook"] != "test");
    others
        .map(|mut object| {
            strip(&mut object);
            let name = &object["metadata"];
            let name = format!("{} {}/{}", object["kind"], name["namespace"], name["name"]);
            (name, object)
        })
        .collect()
}

#[tokio::test]
async fn the_defaults_are_those_of_kustomize() {
    let default = cases().into_iter().find(|case| case.name == "default");
    let ours = default.expect("the defaults").objects().await;
    are_those_of(ours, &["config/default", "config/policies"]).await;
}

/// Kustomize puts each kind's flag behind the other arguments, and the chart puts all into one.
#[tokio::test]
async fn so_are_the_workloads() {
    let plurals = [
        "jobsets",
        "kueue",
        "mpijobs",
        "pipelineruns",
        "pods",
        "rayjobs",
        "sparkapplications",
        "taskruns",
        "trainjobs",
        "workflows",
    ];
    let on = plurals.map(|plural| format!("workloads.{plural}.enabled=true"));
    let rendered = template(&["--set", &on.join(",")]).await;
    let mut ours = objects(&rendered.expect("the chart"));
    let deployment = |object: &Value| object["kind"] == "Deployment";
    let operator = ours.iter().find(|object| deployment(object));
    let operator = operator.expect("a Deployment").to_string();
    let flag = format!("--workloads={}", plurals.join(","));
    assert!(operator.contains(&flag), "{operator}");
    ours.retain(|object| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        plurals.iter().any(|plural| name.contains(plural))
    });
    are_those_of(ours, &["config/workloads"]).await;
}

/// Both have the same objects, of these folders.
async fn are_those_of(ours: Vec<Value>, folders: &[&str]) {
    let ours = by_name(ours);
    let mut theirs = Vec::new();
    for folder in folders {
        let kustomized = testbed::kubectl_alone(["kustomize", folder]).await;
        theirs.extend(objects(&kustomized.expect(folder)));
    }
    let theirs = by_name(theirs);
    assert!(theirs.len() > 9, "{:?}", theirs.keys());
    assert_eq!(
        ours.keys().collect::<Vec<_>>(),
        theirs.keys().collect::<Vec<_>>()
    );
    let yaml = |object: &Value| serde_saphyr::to_string(object).expect("YAML");
    for (name, ours) in ours {
        let theirs = &theirs[&name];
        assert!(
            ours == *theirs,
            "{name} of the chart:\n{}\nof config/:\n{}",
            yaml(&ours),
            yaml(theirs)
        );
    }
}

/// Helm can't read files outside of the chart.
#[test]
fn the_charts_policies_are_those_of_config() {
    for name in ["suspend.yaml", "guard.yaml", "cronjobs.yaml", "refuse.yaml"] {
        let ours = read(&format!("files/policies/{name}"));
        let theirs = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("config/policies")
            .join(name);
        let theirs = fs::read_to_string(theirs).expect(name);
        assert!(
            ours == theirs,
            "cp config/policies/{name} {CHART}/files/policies/"
        );
    }
}
