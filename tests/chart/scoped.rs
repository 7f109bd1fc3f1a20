//! A release for some namespaces, with almost no rights in the cluster; it logs in to Consul over TLS.

use std::fs;

use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use testbed::{AuthMethod, Consul, ConsulServer, Container, Kubernetes, Namespace, eventually};

use crate::{
    chart::CHART,
    operator::{RULES, Release, a_job_goes_its_way, stop},
};

const MANAGEMENT: &str = "00000000-1111-4222-8333-444444444444";
const TENANT: &str = "22222222-1111-4222-8333-444444444444";

/// The name of the release and of its account.
const NAME: &str = "semaphores";

struct Stage {
    kubernetes: Kubernetes,
    consul: ConsulServer,
    /// Its TLS address.
    address: String,
}

impl Stage {
    /// Consul uses the API server's own certificate, and gives tokens to the release's account.
    async fn new(home: &str) -> Self {
        let kubernetes = Kubernetes::start_with_deployments().await;
        let certificate = kubernetes.authority_file();
        let port = testbed::lasting_port().expect("a free port");
        let tls = json!({
            "ports": { "https": port },
            "tls": { "https": { "cert_file": certificate, "key_file": certificate.with_extension("key") } },
        });
        let consul = Consul::builder().acls(MANAGEMENT).config(tls).start().await;
        let by = AuthMethod::Kubernetes;
        kubernetes.auth_method(&consul, by, None).await;
        kubernetes
            .let_log_in(&consul, by, [home, NAME], RULES)
            .await;
        Self {
            kubernetes,
            consul,
            address: format!("https://127.0.0.1:{port}"),
        }
    }

    async fn install(&self, home: &str, values: &Value) {
        let file = self.kubernetes.folder().path().join("values.json");
        fs::write(&file, values.to_string()).expect("the values file");
        let file = file.display().to_string();
        let args = [
            "install",
            NAME,
            CHART,
            "-n",
            home,
            "--create-namespace",
            "-f",
            &file,
        ];
        self.kubernetes.helm(args).await;
        let authority = format!(
            "--from-file=ca.crt={}",
            self.kubernetes.authority_file().display()
        );
        let args = ["create", "configmap", "consul-ca", "-n", home, &authority];
        self.kubernetes.kubectl(args).await;
    }
}

#[tokio::test]
async fn works_where_it_may_and_has_no_rights_elsewhere() {
    let home = "operators";
    let stage = Stage::new(home).await;
    let kubernetes = &stage.kubernetes;
    let (team, other) = (
        kubernetes.namespace("team").await,
        kubernetes.namespace("other").await,
    );
    let values = json!({
        "fullnameOverride": NAME,
        "consul": {
            "address": stage.address,
            "login": { "authMethod": AuthMethod::Kubernetes.name() },
            "tls": { "ca": { "configMapName": "consul-ca" } },
        },
        "scope": { "namespaces": [team.name()] },
        "rbac": { "tokenSecrets": { (team.name()): ["consul-token"] } },
        "flowControl": { "enabled": true },
        "kinds": { "configMap": "kinds" },
    });
    stage.install(home, &values).await;
    let release = Release::new(kubernetes, home, NAME).await;
    let containers = release.run(kubernetes).await;
    let lease = format!("{home}-{NAME}");
    kubernetes
        .kubectl(["get", "lease", &lease, "-n", home])
        .await;

    names_a_wrong_row(kubernetes, home).await;
    team.semaphore("db").create().await;
    a_job_goes_its_way(&team, "db", "a").await;
    with_a_token_of_its_own(&stage, &team).await;
    let theirs = other.semaphore("db").create().await;
    may_do_no_more(&stage, &containers[0], [&team, &other]).await;
    has_a_level_of_its_own(&stage, &containers[0], &team).await;
    let theirs = theirs.get().await.expect("the semaphore");
    assert_eq!(theirs["status"], Value::Null, "nobody looks after it");
    stop(containers).await;
}

/// The event is in its own namespace, where the `ConfigMap` is.
async fn names_a_wrong_row(kubernetes: &Kubernetes, home: &str) {
    let row = "--from-literal=bad=plural: runs";
    let args = ["create", "configmap", "kinds", "-n", home, row];
    kubernetes.kubectl(args).await;
    let ask = "--field-selector=reason=InvalidKind,involvedObject.name=kinds";
    let said = [
        "get",
        "events",
        "-n",
        home,
        ask,
        "-o=jsonpath={.items[*].message}",
    ];
    eventually("the row is named", || async {
        let said = kubernetes.kubectl(said).await;
        let is_named = said.contains("the row bad is left out: missing field");
        is_named.then_some(()).ok_or(said)
    })
    .await;
}

/// The Secret that the operator may read, for a semaphore elsewhere in Consul.
async fn with_a_token_of_its_own(stage: &Stage, team: &Namespace) {
    let rules = format!(r#"{RULES} key_prefix "shared/" {{ policy = "write" }}"#);
    let policy = json!({ "Name": "tenant", "Rules": rules });
    stage.consul.put_json("acl/policy", policy).await;
    let token = json!({ "SecretID": TENANT, "Policies": [{ "Name": "tenant" }] });
    stage.consul.put_json("acl/token", token).await;
    let token = format!("--from-literal=token={TENANT}");
    team.kubectl(["create", "secret", "generic", "consul-token", &token])
        .await;
    let shared = team.semaphore("shared").prefix("shared/db");
    let shared = shared.spec(json!({ "consul": { "tokenSecretRef": { "name": "consul-token" } } }));
    shared.create().await;
    a_job_goes_its_way(team, "shared", "b").await;
}

/// Checked with the token of its pod.
async fn may_do_no_more(stage: &Stage, container: &Container, [team, other]: [&Namespace; 2]) {
    let kubeconfig = container.kubeconfig().display().to_string();
    let asks = async |args: &[&str]| {
        let all = ["--kubeconfig", &kubeconfig]
            .into_iter()
            .chain(args.iter().copied());
        stage.kubernetes.try_kubectl(all).await
    };
    let allowed: [&[&str]; 4] = [
        &["get", "jobs", "-n", team.name()],
        &["get", "secret", "consul-token", "-n", team.name()],
        &["get", "namespace", "kube-system"],
        &["get", "namespace", team.name()],
    ];
    for args in allowed {
        asks(args).await.expect("it is allowed");
    }
    let forbidden: [&[&str]; 8] = [
        &["get", "jobs", "-n", other.name()],
        &["get", "jobs", "--all-namespaces"],
        &["get", "namespaces"],
        &["get", "namespace", other.name()],
        &["get", "csem", "-n", other.name()],
        &["get", "secrets", "-n", team.name()],
        &["get", "secret", "another", "-n", team.name()],
        &["get", "secret", "consul-token", "-n", other.name()],
    ];
    for args in forbidden {
        let refusal = asks(args).await.expect_err("it is forbidden");
        assert!(
            format!("{refusal:#}").contains("forbidden"),
            "{args:?}: {refusal:#}"
        );
    }
}

/// The API server reports the `FlowSchema` of a request.
async fn has_a_level_of_its_own(stage: &Stage, container: &Container, team: &Namespace) {
    let kubeconfig = Kubeconfig::read_from(container.kubeconfig()).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let client = Client::try_from(config.expect("a configuration")).expect("a client");
    for (path, schema) in [
        (
            format!("/apis/batch/v1/namespaces/{}/jobs", team.name()),
            format!("operators-{NAME}"),
        ),
        (
            format!("/apis/coordination.k8s.io/v1/namespaces/operators/leases/operators-{NAME}"),
            format!("operators-{NAME}-leader-election"),
        ),
    ] {
        let request = http::Request::get(path)
            .body(Body::empty())
            .expect("a request");
        let answer = client.send(request).await.expect("an answer");
        assert!(answer.status().is_success(), "{}", answer.status());
        let by = answer.headers()["x-kubernetes-pf-flowschema-uid"]
            .to_str()
            .expect("text");
        let args = ["get", "flowschema", &schema, "-o=jsonpath={.metadata.uid}"];
        assert_eq!(by, stage.kubernetes.kubectl(args).await, "{schema}");
    }
}
