//! What single values change in the objects.

use serde_json::{Value, json};

use crate::chart::{cases, objects, template};

/// The objects with these values.
async fn with(args: &[&str]) -> Vec<Value> {
    let rendered = template(args).await;
    objects(&rendered.unwrap_or_else(|error| panic!("{args:?}: {error:#}")))
}

/// The only object of a kind.
fn the<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut of = objects.iter().filter(|object| object["kind"] == kind);
    let found = of.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(of.next().is_none(), "more than one {kind}");
    found
}

/// A release with `namespaceOverride` is the same as a release in that namespace.
#[tokio::test]
async fn the_namespace_can_be_another_than_the_releases() {
    for case in cases() {
        let values = ["--values", &case.path];
        let elsewhere = ["--namespace", "a", "--set", "namespaceOverride=b"];
        let there = ["--namespace", "b", "--set", "namespaceOverride="];
        let elsewhere = with(&[values.as_slice(), &elsewhere].concat()).await;
        let there = with(&[values.as_slice(), &there].concat()).await;
        assert_eq!(elsewhere, there, "{}", case.name);
    }
}

#[tokio::test]
async fn extra_objects_are_templates() {
    let object = r#"extraObjects=[
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-a"}},
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: b\n  labels: {replicas: {{ .Values.replicaCount | quote }}}\n"
    ]"#;
    let objects = with(&["--set-json", object]).await;
    let secret = the(&objects, "Secret");
    assert_eq!(secret["metadata"]["name"], "consul-semaphore-operator-a");
    let config_map = the(&objects, "ConfigMap");
    assert_eq!(config_map["metadata"]["labels"], json!({"replicas": "2"}));
}

/// The pod of `helm test` ends by itself, so it has no probes and no hooks.
#[tokio::test]
async fn probes_and_hooks_are_the_operators() {
    let probe = r#"{"httpGet": {"path": "/livez", "port": "http"}, "failureThreshold": 30}"#;
    let hook = r#"{"preStop": {"sleep": {"seconds": 5}}}"#;
    let objects = with(&[
        "--set-json",
        &format!("startupProbe={probe}"),
        "--set-json",
        &format!("lifecycle={hook}"),
        // Another kind of probe, in place of the default.
        "--set-json",
        r#"livenessProbe={"httpGet": null, "tcpSocket": {"port": "http"}}"#,
        "--set-json",
        r#"readinessProbe={"periodSeconds": 60}"#,
    ])
    .await;
    let pod = &the(&objects, "Deployment")["spec"]["template"]["spec"];
    let operator = &pod["containers"][0];
    let parsed = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    assert_eq!(operator["startupProbe"], parsed(probe));
    assert_eq!(operator["lifecycle"], parsed(hook));
    assert_eq!(
        operator["livenessProbe"],
        json!({"tcpSocket": {"port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5})
    );
    assert_eq!(
        operator["readinessProbe"],
        json!({"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 60, "timeoutSeconds": 5})
    );
    let check = &the(&objects, "Pod")["spec"]["containers"][0];
    for field in [
        "startupProbe",
        "livenessProbe",
        "readinessProbe",
        "lifecycle",
    ] {
        assert!(check.get(field).is_none(), "{check}");
    }
}

/// The certificate is mounted, and whoever asks the port asks over TLS.
#[tokio::test]
async fn the_endpoints_speak_tls() {
    let objects = with(&[
        "--set",
        "http.tls.secretName=operator-http,metrics.auth=kubernetes,serviceMonitor.enabled=true",
        // Of another port.
        "--set-json",
        r#"startupProbe={"httpGet": {"path": "/", "port": 9999}}"#,
    ])
    .await;
    let pod = &the(&objects, "Deployment")["spec"]["template"]["spec"];
    let operator = &pod["containers"][0];
    for probe in ["livenessProbe", "readinessProbe"] {
        assert_eq!(operator[probe]["httpGet"]["scheme"], "HTTPS", "{probe}");
    }
    assert!(operator["startupProbe"]["httpGet"]["scheme"].is_null());
    let args = operator["args"].as_array().expect("arguments");
    for arg in [
        "--http-tls-cert-file=/etc/http-tls/tls.crt",
        "--http-tls-key-file=/etc/http-tls/tls.key",
        "--metrics-auth=kubernetes",
    ] {
        assert!(args.contains(&arg.into()), "{arg} is not in {args:?}");
    }
    let volumes = pod["volumes"].as_array().expect("volumes");
    let mounted = |volume: &&Value| volume["secret"]["secretName"] == "operator-http";
    let volume = volumes.iter().find(mounted).expect("its volume");
    let mounts = operator["volumeMounts"].as_array().expect("mounts");
    let mount = json!({"name": volume["name"], "mountPath": "/etc/http-tls", "readOnly": true});
    assert!(mounts.contains(&mount), "{mounts:?}");
    let endpoint = &the(&objects, "ServiceMonitor")["spec"]["endpoints"][0];
    assert_eq!(endpoint["scheme"], "https");
    assert_eq!(
        endpoint["tlsConfig"],
        json!({
            "ca": {"secret": {"name": "operator-http", "key": "ca.crt"}},
            "serverName": "consul-semaphore-operator.consul-semaphore-system.svc",
        })
    );
    assert_eq!(
        endpoint["bearerTokenFile"],
        "/var/run/secrets/kubernetes.io/serviceaccount/token"
    );
}

#[tokio::test]
async fn the_service_account_has_more_labels() {
    let labels = "serviceAccount.labels.team=platform,serviceAccount.labels.app\\.kubernetes\\.io/instance=other";
    let objects = with(&["--set", labels]).await;
    let labels = &the(&objects, "ServiceAccount")["metadata"]["labels"];
    assert_eq!(labels["team"], "platform");
    let instance = &labels["app.kubernetes.io/instance"];
    assert_eq!(instance, "consul-semaphore-operator");
}

#[tokio::test]
async fn the_service_has_the_ip_families_that_are_asked_for() {
    let families = "service.ipFamilyPolicy=RequireDualStack,service.ipFamilies={IPv6,IPv4}";
    for (values, policy, families) in [
        ("service.port=80", None, None),
        (families, Some("RequireDualStack"), Some(["IPv6", "IPv4"])),
    ] {
        let objects = with(&["--set", values]).await;
        let spec = &the(&objects, "Service")["spec"];
        assert_eq!(spec.get("ipFamilyPolicy"), policy.map(Value::from).as_ref());
        let families = families.map(|families| json!(families));
        assert_eq!(spec.get("ipFamilies"), families.as_ref());
    }
}

/// The rule for each server has its ports and its peers, and no others.
#[tokio::test]
async fn the_network_policy_names_the_servers() {
    let consul =
        json!([{"namespaceSelector": {"matchLabels": {"team": "consul"}}, "podSelector": {}}]);
    let api_server =
        json!([{"ipBlock": {"cidr": "10.0.0.10/32"}}, {"ipBlock": {"cidr": "fd00::10/128"}}]);
    let collector = json!([{"podSelector": {"matchLabels": {"app": "collector"}}}]);
    let dns = json!([{"ipBlock": {"cidr": "169.254.20.10/32"}}]);
    let peers = json!({
        "enabled": true, "apiServerPorts": [6443], "dnsPorts": [53],
        "consulTo": consul, "apiServerTo": api_server, "collectorTo": collector, "dnsTo": dns,
    });
    let objects = with(&[
        "--set",
        "traces.exporter=otlp,traces.endpoint=http://collector:4318",
        "--set-json",
        &format!("networkPolicy={peers}"),
    ])
    .await;
    let egress = &the(&objects, "NetworkPolicy")["spec"]["egress"];
    let tcp = |port: u16| json!({"protocol": "TCP", "port": port});
    assert_eq!(
        *egress,
        json!([
            {"ports": [{"protocol": "UDP", "port": 53}, tcp(53)], "to": dns},
            {"ports": [tcp(6443)], "to": api_server},
            {"ports": [tcp(8500)], "to": consul},
            {"ports": [tcp(4318)], "to": collector},
        ])
    );
}

#[tokio::test]
async fn the_custom_resource_can_be_left_out() {
    for (value, installed) in [("true", true), ("false", false)] {
        let objects = with(&["--set", &format!("crds.enabled={value}")]).await;
        let is_crd = |object: &Value| object["kind"] == "CustomResourceDefinition";
        assert_eq!(objects.iter().any(is_crd), installed, "{value}");
    }
}

/// What exists once in a cluster can be a release of its own, beside operators for some namespaces.
#[tokio::test]
async fn a_release_can_have_no_operator() {
    let alone =
        "replicaCount=0,rbac.create=false,service.enabled=false,podDisruptionBudget.enabled=false";
    let objects = with(&["--set", alone]).await;
    let roles = objects.iter().filter(|object| {
        let kind = object["kind"].as_str().unwrap_or_default();
        kind.contains("Role")
    });
    let roles: Vec<_> = roles.map(|role| &role["metadata"]["name"]).collect();
    assert_eq!(
        roles,
        ["consul-semaphore-viewer", "consul-semaphore-editor"]
    );
    assert_eq!(the(&objects, "Deployment")["spec"]["replicas"], 0);
    the(&objects, "CustomResourceDefinition");
    the(&objects, "MutatingAdmissionPolicy");
    for binding in &objects {
        if binding["kind"] == "ValidatingAdmissionPolicyBinding" {
            assert!(!binding.to_string().contains("\"In\""), "{binding}");
        }
    }
}

/// By default, a label of a namespace keeps the policies from it; what limits the operator never heeds it.
#[tokio::test]
async fn the_policies_can_leave_no_namespace_out() {
    let workloads = "workloads.pods.enabled=true,workloads.workflows.enabled=true";
    let refuse = "admissionPolicies.refuse.enabled=true";
    for (scope, expressions) in [("", 1), ("scope.namespaces={team-a},", 2)] {
        for allowed in [true, false] {
            let exempt = format!("admissionPolicies.allowExemption={allowed}");
            let values = format!("{scope}{workloads},{refuse},{exempt}");
            let objects = with(&["--set", &values]).await;
            let bindings = objects.iter().filter(|object| {
                let kind = object["kind"].as_str().unwrap_or_default();
                kind.ends_with("AdmissionPolicyBinding")
            });
            let mut heed = 0;
            for binding in bindings {
                let selector = &binding["spec"]["matchResources"]["namespaceSelector"];
                let of = selector["matchExpressions"].as_array().expect("a selector");
                assert_eq!(of.len(), expressions, "{binding}");
                heed += usize::from(of[0]["key"] == "consul-semaphore.io/admission");
            }
            assert_eq!(heed > 7, allowed, "{values}: {heed}");
            assert!(allowed || heed == 0, "{values}: {heed}");
        }
    }
}
