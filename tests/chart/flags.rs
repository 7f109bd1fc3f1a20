//! Each flag of `run` can be set with a value of the chart.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

use crate::chart::{cases, read};

/// The flags in `run --help`, with their environment variables.
fn flags() -> Vec<(String, Option<String>)> {
    let help = Command::new(env!("CARGO_BIN_EXE_consul-semaphore-operator"))
        .args(["run", "--help"])
        .output()
        .expect("the program starts");
    let help = String::from_utf8(help.stdout).expect("text");
    let mut flags: Vec<(String, Option<String>)> = Vec::new();
    for line in help.lines() {
        let first = line.split_whitespace().find(|word| word.starts_with('-'));
        if line.trim_start().starts_with('-')
            && let Some(flag) = first.filter(|word| word.starts_with("--"))
        {
            flags.push((flag.to_owned(), None));
        }
        let variable = line
            .split_once("[env: ")
            .and_then(|(_, rest)| rest.split([']', '=']).next());
        if let (Some(variable), Some((_, of))) = (variable, flags.last_mut()) {
            *of = Some(variable.to_owned());
        }
    }
    assert!(flags.len() > 20, "{help}");
    flags
}

/// The flags and variables of the operator's container.
fn said(objects: &[Value]) -> BTreeSet<String> {
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
    let pod = &deployment.expect("a Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let texts = |list: &Value, field: Option<&str>| {
        let list = list.as_array().cloned().unwrap_or_default().into_iter();
        let text = move |item: Value| field.map_or(item.clone(), |field| item[field].clone());
        list.map(text).collect::<Vec<_>>()
    };
    let words = texts(&container["args"], None);
    let words = words
        .into_iter()
        .chain(texts(&container["env"], Some("name")));
    words
        .filter_map(|word| Some(word.as_str()?.split('=').next()?.to_owned()))
        .collect()
}

#[tokio::test]
async fn a_value_sets_each() {
    let mut set = BTreeSet::new();
    for case in cases() {
        set.extend(said(&case.objects().await));
    }
    let values = read("values.yaml");
    for (flag, variable) in flags() {
        let known = set.contains(&flag) || variable.is_some_and(|variable| set.contains(&variable));
        assert!(
            known || values.contains(&format!("{flag} ")),
            "no value sets {flag}: make one, and set it in a file of ci/; or name it at extraArgs"
        );
    }
}
