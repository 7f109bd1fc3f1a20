//! values.yaml and values.schema.json agree, and each value has a comment and is tested.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::chart::{Case, cases, file, notes, read, template};

/// A value for a parent chart; it has no default.
const OF_OTHERS: [&str; 1] = ["enabled"];

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

fn schema() -> Value {
    serde_json::from_str(&read("values.schema.json")).expect("the schema is JSON")
}

/// All values by their paths, such as `consul.token.file`: the schema says what is a value, and what is a group.
pub(crate) fn paths() -> BTreeSet<String> {
    fn add(schema: &Value, path: &str, paths: &mut BTreeSet<String>) {
        match properties(schema) {
            Some(properties) => {
                // The values of other charts are their own business.
                assert!(
                    schema["additionalProperties"] == false || path == "global",
                    "{path} takes anything"
                );
                for (name, schema) in properties {
                    let path = if path.is_empty() {
                        name.clone()
                    } else {
                        format!("{path}.{name}")
                    };
                    add(schema, &path, paths);
                }
            }
            None => drop(paths.insert(path.to_owned())),
        }
    }
    let mut paths = BTreeSet::new();
    add(&schema(), "", &mut paths);
    paths.retain(|path| !OF_OTHERS.contains(&&**path));
    assert!(paths.len() > 100, "only {} values", paths.len());
    paths
}

fn at<'a>(values: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(values, |values, name| values.get(name))
}

/// A line of values.yaml that has a key.
struct Line {
    path: String,
    /// The line before it.
    before: String,
}

fn lines() -> Vec<Line> {
    let mut lines = Vec::new();
    let mut above: Vec<(usize, String)> = Vec::new();
    let mut before = String::new();
    for line in read("values.yaml").lines() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        let key = text.split_once(':').map(|(key, _)| key);
        let is_key = |key: &&str| key.chars().all(char::is_alphanumeric);
        if let Some(key) = key.filter(is_key) {
            above.retain(|(of, _)| *of < indent);
            above.push((indent, key.to_owned()));
            let path: Vec<_> = above.iter().map(|(_, key)| key.as_str()).collect();
            let path = path.join(".");
            let before = before.clone();
            lines.push(Line { path, before });
        }
        text.clone_into(&mut before);
    }
    lines
}

#[test]
fn each_value_has_a_default_and_a_comment() {
    let lines = lines();
    for path in paths() {
        // Groups of Kubernetes' own fields: most of their fields are empty by default.
        let (group, _) = path.rsplit_once('.').unwrap_or_default();
        let of = if ["affinity", "resources"].contains(&group) {
            group
        } else {
            &path
        };
        let line = lines.iter().find(|line| line.path == of);
        let line = line.unwrap_or_else(|| panic!("{of} is not in values.yaml"));
        assert!(line.before.starts_with('#'), "no comment stands above {of}");
    }
}

#[test]
fn each_value_is_tried_in_a_values_file() {
    let tried: Vec<_> = cases().iter().map(Case::values).collect();
    let untried: Vec<_> = paths()
        .into_iter()
        .filter(|path| !path.starts_with("resources.claims"))
        .filter(|path| !tried.iter().any(|values| at(values, path).is_some()))
        .collect();
    assert!(
        untried.is_empty(),
        "set in no file of {}: {untried:?}",
        file("ci").display()
    );
}

/// The groups and values below a schema, and whether they are required.
fn with_required(schema: &Value, path: &str, found: &mut Vec<(String, bool, Value)>) {
    let Some(properties) = properties(schema) else {
        return;
    };
    for (name, property) in properties {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let required = schema["required"].as_array().into_iter().flatten();
        let required = required.into_iter().any(|of| of == name);
        with_required(property, &path, found);
        found.push((path, required, property.clone()));
    }
}

/// In Helm `null` removes a value's default. A number or a switch would then be 0 or false, which is never intended.
#[test]
fn numbers_and_switches_have_to_be_there() {
    let mut values = Vec::new();
    with_required(&schema(), "", &mut values);
    let mut seen = 0;
    for (path, required, schema) in values {
        let kind = &schema["type"];
        if OF_OTHERS.contains(&&*path) || !(kind == "integer" || kind == "boolean") {
            continue;
        }
        assert!(required, "{path} is not required");
        seen += 1;
    }
    assert!(seen > 20, "only {seen}");
}

#[tokio::test]
async fn optional_objects_can_be_turned_off() {
    let mut values = Vec::new();
    with_required(&schema(), "", &mut values);
    let optional = values.iter().filter(|(_, required, _)| !required);
    let optional: Vec<_> = optional
        .map(|(path, ..)| format!("{path}=null"))
        .filter(|value| value != "enabled=null" && value != "global=null")
        .collect();
    assert!(optional.len() > 70, "only {}", optional.len());
    // The budget needs one of its two values.
    let none = optional.join(",") + ",podDisruptionBudget.maxUnavailable=1";
    let monitoring =
        "serviceMonitor.enabled=true,prometheusRule.enabled=true,grafanaDashboard.enabled=true";
    let more = "web.enabled=true,networkPolicy.enabled=true,flowControl.enabled=true";
    for others in ["fairOrder=true", monitoring, more] {
        let values = format!("{none},{others}");
        let rendered = template(&["--set", &values]).await;
        let rendered = rendered.unwrap_or_else(|error| panic!("{others}: {error:#}"));
        assert!(
            !rendered.contains("<nil>") && !rendered.contains("<no value>"),
            "{rendered}"
        );
    }
    notes(&none).await;
}

#[test]
fn the_alerts_that_can_be_left_out_are_those_that_are_there() {
    let alerts: Value = serde_saphyr::from_str(&read("files/alerts.yaml")).expect("YAML");
    let alerts = alerts.as_array().expect("alerts").iter();
    let names: Value = alerts.map(|alert| alert["alert"].clone()).collect();
    let disabled = &schema()["properties"]["prometheusRule"]["properties"]["disabled"];
    assert_eq!(disabled["items"]["enum"], names);
}
