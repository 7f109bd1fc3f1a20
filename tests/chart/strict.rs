//! A real API server accepts what the chart renders from each values file, without unknown fields.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};
use testbed::ApiServer;

use crate::chart::{NAMESPACE, cases};

/// An API group that Kubernetes itself does not serve.
const OF_OTHERS: &str = "monitoring.coreos.com/";

/// The API server refuses a pod that names missing objects, but accepts such a template.
fn template_of(object: &mut Value) {
    if object["kind"] == "Pod" {
        let pod = object.take();
        *object = json!({
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": pod["metadata"],
            "template": { "metadata": { "labels": pod["metadata"]["labels"] }, "spec": pod["spec"] },
        });
    }
}

#[tokio::test]
async fn the_api_server_knows_each_field() {
    let server = ApiServer::start().await;
    let mut namespaces = BTreeSet::from(["default".to_owned(), "kube-system".to_owned()]);
    for case in cases() {
        let mut objects = case.objects().await;
        objects.retain(|object| {
            !object["apiVersion"]
                .as_str()
                .is_some_and(|version| version.starts_with(OF_OTHERS))
        });
        assert!(objects.len() > 1, "{}", case.name);
        objects.iter_mut().for_each(template_of);
        let of = |object: &Value| object["metadata"]["namespace"].as_str().map(str::to_owned);
        for namespace in objects.iter().filter_map(of) {
            if namespaces.insert(namespace.clone()) {
                server.kubectl(["create", "namespace", &namespace]).await;
            }
        }
        let documents = objects.iter().map(|object| format!("---\n{object}\n"));
        let file = server.folder().path().join(format!("{}.yaml", case.name));
        fs::write(&file, documents.collect::<String>()).expect("the objects' file");
        let file = file.display().to_string();
        let args = [
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            &file,
        ];
        let said = server.try_kubectl(args).await;
        let said = said.unwrap_or_else(|error| panic!("{}: {error:#}", case.name));
        assert!(said.contains("deployment.apps/"), "{said}");
    }
    assert!(namespaces.contains(NAMESPACE));
}
