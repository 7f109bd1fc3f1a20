//! Values that make no sense are refused, with what is wrong and what to do.

use crate::chart::template;

async fn refusal(args: &[&str]) -> String {
    match template(args).await {
        Ok(rendered) => panic!("{args:?} are taken:\n{rendered}"),
        Err(error) => format!("{error:#}"),
    }
}

/// Values that the schema refuses, each with where and why.
const REFUSED: &[(&str, [&str; 2])] = &[
    (
        "replicas=3",
        ["at ''", "additional properties 'replicas' not allowed"],
    ),
    (
        "consul.adress=consul",
        ["at '/consul'", "additional properties 'adress' not allowed"],
    ),
    (
        "replicaCount=two",
        ["at '/replicaCount'", "got string, want integer"],
    ),
    (
        "log.format=xml",
        ["at '/log/format'", "value must be one of 'json', 'text'"],
    ),
    (
        "leaderElection.mode=off",
        ["at '/leaderElection/mode'", "one of 'kubernetes', 'consul'"],
    ),
    (
        "consul.maxWatches=0",
        ["at '/consul/maxWatches'", "minimum: got 0, want 1"],
    ),
    (
        "clusterName=prod eu",
        ["at '/clusterName'", "'prod eu' does not match pattern"],
    ),
    (
        "scope.namespaces={*}",
        ["at '/scope/namespaces/0'", "'*' does not match pattern"],
    ),
    (
        "rbac.tokenSecrets.team-a={}",
        [
            "at '/rbac/tokenSecrets/team-a/0'",
            "'' does not match pattern",
        ],
    ),
    (
        "consul.token.file=token",
        ["at '/consul/token/file'", "does not match pattern"],
    ),
    (
        "prometheusRule.disabled={Nothing}",
        ["at '/prometheusRule/disabled/0'", "must be one of"],
    ),
    (
        "serviceAccount.name=Semaphores",
        ["at '/serviceAccount/name'", "does not match pattern"],
    ),
    (
        "imagePullSecrets[0].name=my_registry",
        ["at '/imagePullSecrets/0/name'", "does not match pattern"],
    ),
    (
        "initContainers[0].name=a.b",
        ["at '/initContainers/0/name'", "does not match pattern"],
    ),
    (
        "http.host=localhost",
        ["at '/http/host'", "does not match pattern"],
    ),
    ("http.port=null", ["at '/http'", "missing property 'port'"]),
    (
        "networkPolicy=null",
        ["at ''", "missing property 'networkPolicy'"],
    ),
    ("http.port=70000", ["at '/http/port'", "maximum"]),
    (
        "crds.install=false",
        ["at '/crds'", "additional properties 'install' not allowed"],
    ),
    (
        "namespaceOverride=Team_A",
        ["at '/namespaceOverride'", "does not match pattern"],
    ),
    (
        "extraObjects={1}",
        ["at '/extraObjects/0'", "got number, want"],
    ),
    (
        "prometheusRule.aggregationLabels={a-b}",
        [
            "at '/prometheusRule/aggregationLabels/0'",
            "does not match pattern",
        ],
    ),
    ("startupProbe=5s", ["at '/startupProbe'", "want object"]),
    ("lifecycle=none", ["at '/lifecycle'", "want object"]),
    (
        "serviceAccount.labels.a=1",
        ["at '/serviceAccount/labels/a'", "want string"],
    ),
    (
        "service.ipFamilies={ipv6}",
        ["at '/service/ipFamilies/0'", "one of 'IPv4', 'IPv6'"],
    ),
    (
        "service.ipFamilyPolicy=DualStack",
        ["at '/service/ipFamilyPolicy'", "'PreferDualStack'"],
    ),
    (
        "networkPolicy.consulTo[0].cidr=10.0.0.0/8",
        [
            "at '/networkPolicy/consulTo/0'",
            "additional properties 'cidr' not allowed",
        ],
    ),
    (
        "networkPolicy.apiServerTo[0].ipBlock.cidr=10.0.0.1",
        [
            "at '/networkPolicy/apiServerTo/0/ipBlock/cidr'",
            "does not match pattern",
        ],
    ),
    (
        "extraEnv[0].value=a",
        ["at '/extraEnv/0'", "missing property 'name'"],
    ),
];

#[tokio::test]
async fn the_schema_says_what_is_allowed() {
    for (value, where_and_why) in REFUSED {
        let refusal = refusal(&["--set", value]).await;
        for words in where_and_why {
            assert!(
                refusal.contains(words),
                "{value}: {words:?} is not in:\n{refusal}"
            );
        }
    }
}

/// Each of these lists of values is refused, with the words that say what to do.
async fn are_refused(all: &[(&str, &str)]) {
    for (values, what_to_do) in all {
        let refusal = refusal(&["--set", values]).await;
        assert!(
            refusal.contains(what_to_do),
            "{values}: {what_to_do:?} is not in:\n{refusal}"
        );
    }
}

#[tokio::test]
async fn values_for_consul_that_do_not_go_together_are_refused() {
    are_refused(&[
        (
            "consul.login.authMethod=jwt,consul.token.file=/token",
            "leave one of the two out",
        ),
        (
            "consul.tls.ca.secretName=a,consul.tls.ca.configMapName=b",
            "leave one of the two out",
        ),
        (
            "consul.tls.ca.secretName=a",
            "write https://consul-server.consul.svc:8500, or leave consul.tls out",
        ),
        (
            "consul.tls.ca.configMapName=a,consul.address=consul:8501",
            "consul.address has consul:8501, which is plain HTTP: write https://consul:8501",
        ),
        (
            "consul.tls.client.secretName=a,consul.address=https://a:8501\\, b:8501",
            "write https://b:8501",
        ),
        ("consul.tls.serverName=a", "which is plain HTTP"),
        ("consul.tls.verify=false", "which is plain HTTP"),
        (
            "consul.login.audience=consul",
            "set consul.login.authMethod, or leave consul.login.audience out",
        ),
        (
            "consul.login.bearerTokenFile=/token",
            "set consul.login.authMethod",
        ),
        (
            "consul.login.authMethod=jwt,consul.login.audience=a,consul.login.bearerTokenFile=/token",
            "leave one of the two out",
        ),
    ])
    .await;
}

#[tokio::test]
async fn values_that_do_not_go_together_are_refused() {
    are_refused(&[
        (
            "serviceAccount.create=false",
            "name an existing ServiceAccount",
        ),
        (
            "image.tag=0.1.0,image.digest=sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "set image.digest to an empty text",
        ),
        (
            "consul.memory=400",
            "set resources.limits.memory to at least 480Mi",
        ),
        (
            "consul.memory=177",
            "at least 257Mi, or lower consul.memory",
        ),
        ("resources.limits.memory=64Mi", "at least 120Mi"),
        ("resources.limits.memory=125000000", "at least 120Mi"),
        ("leaderElection.enabled=false", "Set replicaCount to 1"),
        (
            "replicaCount=1,leaderElection.enabled=false,leaderElection.mode=consul",
            "enable it, or leave the mode out",
        ),
        (
            "scope.semaphoreSelector=shard=a,leaderElection.leaseName=consul-semaphore-operator",
            "set another name, or leave it empty",
        ),
        ("web.enabled=true,web.port=8080", "change one of the two"),
        (
            "traces.endpoint=http://a:4318",
            "set traces.exporter to otlp",
        ),
        ("podDisruptionBudget.minAvailable=2", "lower minAvailable"),
        ("podDisruptionBudget.minAvailable=51%", "lower minAvailable"),
        (
            "replicaCount=1,podDisruptionBudget.minAvailable=1%",
            "lower minAvailable",
        ),
        ("podDisruptionBudget.maxUnavailable=0", "at least 1"),
        ("podDisruptionBudget.maxUnavailable=0%", "at least 1"),
        ("podDisruptionBudget.maxUnavailable=null", "at least 1"),
        (
            "networkPolicy.enabled=true,consul.address=consul:$(PORT)",
            "set networkPolicy.consulPorts",
        ),
        (
            "serviceMonitor.enabled=true,service.enabled=false",
            "needs service.enabled",
        ),
        (
            "serviceMonitor.enabled=true,serviceMonitor.namespace=monitoring,http.tls.secretName=tls",
            "set serviceMonitor.tlsConfig",
        ),
        (
            "podMonitor.enabled=true,metrics.auth=kubernetes",
            "set podMonitor.authorization",
        ),
        (
            "serviceMonitor.enabled=true,podMonitor.enabled=true",
            "disable one of the two",
        ),
        (
            "extraEnv[0].name=CONSUL_HTTP_ADDR,extraEnv[0].value=consul",
            "use the chart's value for it",
        ),
        (
            "clusterName=a,extraArgs={--cluster-name=b}",
            "use the chart's value for it",
        ),
    ])
    .await;
}

/// Values that look like one of the above, but are valid.
#[tokio::test]
async fn values_that_go_together_are_taken() {
    for values in [
        "consul.tls.ca.secretName=a,consul.address=https://a:8501\\,unix:///run/consul.sock",
        "consul.tls.ca.secretName=a,consul.address=a:8501,extraEnv[0].name=CONSUL_HTTP_SSL,extraEnv[0].value=true",
        "podDisruptionBudget.minAvailable=50%",
        "podDisruptionBudget.minAvailable=2,replicaCount=0",
        "podDisruptionBudget.minAvailable=2,podDisruptionBudget.enabled=false",
        "podDisruptionBudget.minAvailable=1,podDisruptionBudget.maxUnavailable=0",
        "web.port=8080",
        "consul.memory=176",
        "consul.memory=900,resources.limits.memory=1.5Gi",
        "consul.memory=400,resources.limits.memory=null",
        "resources.limits.memory=130000000",
        "affinity=null,antiAffinity=none",
    ] {
        let taken = template(&["--set", values]).await;
        taken.unwrap_or_else(|error| panic!("{values}: {error:#}"));
    }
}

#[tokio::test]
async fn a_cluster_without_what_is_asked_for_is_refused() {
    let monitoring = "install the Prometheus Operator first";
    for (value, kind, advice) in [
        (
            "serviceMonitor",
            "monitoring.coreos.com/v1 ServiceMonitor",
            monitoring,
        ),
        (
            "podMonitor",
            "monitoring.coreos.com/v1 PodMonitor",
            monitoring,
        ),
        (
            "prometheusRule",
            "monitoring.coreos.com/v1 PrometheusRule",
            monitoring,
        ),
        (
            "admissionPolicies.suspend",
            "admissionregistration.k8s.io/v1 MutatingAdmissionPolicy",
            "set it to auto or false",
        ),
    ] {
        // Without information about the cluster, helm assumes one with only Kubernetes' own kinds.
        let value = format!("{value}.enabled=true");
        let args = ["template", "a", crate::chart::CHART, "--set", &value];
        let refusal = testbed::helm_alone(args).await.expect_err("no such kind");
        let refusal = format!("{refusal:#}");
        for words in [&format!("the cluster has no {kind}"), advice] {
            assert!(refusal.contains(words), "{words}: {refusal}");
        }
    }
    for old in ["1.30.9", "1.28.0-gke.1"] {
        let refusal = refusal(&[&format!("--kube-version={old}")]).await;
        assert!(
            refusal.contains("chart requires kubeVersion: >=1.31.0-0"),
            "{refusal}"
        );
    }
    // The policies that limit the operator have expressions of 1.33.
    for (served, limited) in [
        ("1.31.0", false),
        ("1.32.9", false),
        ("1.33.4-eks-abcdef", true),
        ("1.37.2", true),
    ] {
        let version = format!("--kube-version={served}");
        let rendered = template(&[&version, "--set=workloads.pods.enabled=true"]).await;
        let rendered = rendered.unwrap_or_else(|error| panic!("{served}: {error:#}"));
        for policy in ["operator.jobs", "operator.pods"] {
            let name = format!("name: {policy}.consul-semaphore.io");
            assert_eq!(rendered.contains(&name), limited, "{served}: {policy}");
        }
    }
}
