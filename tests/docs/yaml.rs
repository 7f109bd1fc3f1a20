//! The API server accepts the manifests in the docs, and they match the files that they name.

use std::path::Path;

use serde_json::{Value, json};
use testbed::Bed;

use crate::{
    page::{blocks, pages, root, text_of},
    shell::Shell,
};

/// Kinds that this API server does not have: those of other programs, and kustomize's own.
const OTHERS: [&str; 4] = [
    "kustomize.config.k8s.io/",
    "argoproj.io/",
    "toolkit.fluxcd.io/",
    "kueue.x-k8s.io/",
];

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The manifest, if it is one for the API server, even if only the `spec` is shown.
fn manifest(mut document: Value) -> Option<Value> {
    if document["spec"]["limit"].is_number() && document["kind"].is_null() {
        document["apiVersion"] = "consul-semaphore.io/v1alpha1".into();
        document["kind"] = "ConsulSemaphore".into();
        document["metadata"] = json!({ "name": "shown" });
    }
    let version = document["apiVersion"].as_str()?;
    let of_others = OTHERS.iter().any(|group| version.contains(group));
    (!of_others).then_some(document)
}

#[tokio::test]
async fn the_manifests_are_what_the_api_server_takes() {
    let bed = Bed::shared().await;
    let team = bed.namespace("shown").await;
    let shell = Shell::with(&bed, team.name()).await;
    let mut taken = 0;
    for page in pages() {
        for block in blocks(&text_of(&page)) {
            if block.kind != "yaml" {
                continue;
            }
            for mut manifest in documents(&block.text).into_iter().filter_map(manifest) {
                // The documented namespace does not exist, or belongs to another scene.
                if manifest["metadata"]["namespace"].is_string() {
                    manifest["metadata"]["namespace"] = team.name().into();
                }
                shell.write("manifest.json", &manifest.to_string());
                let apply = "kubectl apply --dry-run=server --validate=strict -f manifest.json";
                let [code, _, error] = shell.end_of(apply).await;
                assert_eq!(code, "0", "{}: {error}", page.display());
                taken += 1;
            }
        }
    }
    assert!(taken > 8, "{taken}");
}

#[test]
fn a_block_that_names_a_file_is_what_the_file_holds() {
    let mut compared = 0;
    for page in pages() {
        for block in blocks(&text_of(&page)) {
            let first = block.text.lines().next().unwrap_or_default();
            let file = first
                .strip_prefix("# ")
                .filter(|name| root().join(name).is_file());
            if let Some(file) = file {
                assert_eq!(
                    documents(&block.text),
                    documents(&text_of(Path::new(file))),
                    "{}: {file}",
                    page.display()
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 1, "{compared}");
}
