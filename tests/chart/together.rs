//! The objects of a release match: each object refers to what the others define.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::chart::{CHART, cases, objects, template};

/// The objects of a kind.
fn of<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let of = |object: &&Value| object["kind"] == kind;
    objects.iter().filter(of).collect()
}

/// Whether a selector matches labels.
fn is_found(labels: &Value, selector: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object().expect("labels");
    let mut expressions = selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten();
    wanted.iter().all(|(name, value)| labels[name] == *value)
        && expressions.all(|expression| {
            assert_eq!(expression["operator"], "In", "{expression}");
            let label = &labels[expression["key"].as_str().expect("a key")];
            expression["values"]
                .as_array()
                .expect("values")
                .contains(label)
        })
}

#[tokio::test]
async fn prometheus_scrapes_the_metrics_and_not_the_page() {
    let mut scraped = 0;
    for case in cases() {
        let objects = case.objects().await;
        for monitor in of(&objects, "ServiceMonitor") {
            let spec = &monitor["spec"];
            let ports = of(&objects, "Service")
                .into_iter()
                .filter(|service| is_found(&service["metadata"]["labels"], &spec["selector"]))
                .flat_map(|service| service["spec"]["ports"].as_array().expect("ports"))
                .filter(|port| port["name"] == spec["endpoints"][0]["port"]);
            let targets: Vec<_> = ports.map(|port| &port["targetPort"]).collect();
            assert_eq!(targets, ["http"], "{}", case.name);
            scraped += 1;
        }
    }
    assert!(scraped > 0, "no values file turns the ServiceMonitor on");
}

/// The pod of `helm test` runs where the operator's pods do, reaches what they reach, and is not mistaken for one.
#[tokio::test]
async fn helm_tests_where_the_operator_runs() {
    for case in cases() {
        let objects = case.objects().await;
        let [deployment] = of(&objects, "Deployment")[..] else {
            panic!("{}: a Deployment", case.name)
        };
        let operator = &deployment["spec"]["template"];
        let [check] = of(&objects, "Pod")[..] else {
            panic!("{}: a Pod", case.name)
        };
        let labels = [operator, check].map(|pod| &pod["metadata"]["labels"]);
        for policy in of(&objects, "NetworkPolicy") {
            let selector = &policy["spec"]["podSelector"];
            let found = labels.map(|labels| is_found(labels, selector));
            assert_eq!(found, [true; 2], "{}", case.name);
        }
        for budget in of(&objects, "PodDisruptionBudget") {
            let selector = &budget["spec"]["selector"];
            let found = labels.map(|labels| is_found(labels, selector));
            assert_eq!(found, [true, false], "{}", case.name);
        }
        let [theirs, ours] = labels.map(|labels| labels.as_object().expect("labels").iter());
        let theirs: Vec<_> = theirs
            .filter(|(name, _)| !name.ends_with("/name"))
            .collect();
        let ours: Vec<_> = ours.collect();
        assert!(
            theirs.iter().all(|label| ours.contains(label)),
            "{}: {theirs:?} {ours:?}",
            case.name
        );
        let settings = [
            "initContainers",
            "nodeSelector",
            "tolerations",
            "dnsConfig",
            "volumes",
        ];
        for path in settings.into_iter().map(|name| format!("/spec/{name}")) {
            assert_eq!(
                operator.pointer(&path),
                check.pointer(&path),
                "{}",
                case.name
            );
        }
        for name in ["nodeAffinity", "podAffinity"] {
            let path = format!("/spec/affinity/{name}");
            assert_eq!(
                operator.pointer(&path),
                check.pointer(&path),
                "{}",
                case.name
            );
        }
    }
}

/// Kubernetes substitutes a variable's value only after its definition.
#[tokio::test]
async fn variables_name_those_before_them() {
    let mut named = 0;
    for case in cases() {
        let objects = case.objects().await;
        for pod in of(&objects, "Deployment")
            .into_iter()
            .chain(of(&objects, "Pod"))
        {
            let spec = pod.pointer("/spec/template/spec").unwrap_or(&pod["spec"]);
            let mut known = Vec::new();
            for variable in spec["containers"][0]["env"].as_array().expect("variables") {
                let value = variable["value"].as_str().unwrap_or_default();
                for part in value.split("$(").skip(1) {
                    let name = part.split(')').next().expect("a name");
                    assert!(known.contains(&name), "{}: {name} in {variable}", case.name);
                    named += 1;
                }
                known.push(variable["name"].as_str().expect("a name"));
            }
        }
    }
    assert!(named > 0, "no values file names a variable");
}

/// What can exist only once in a cluster belongs to one release; it is left out here.
const ALL_BUT_WHAT_IS_THERE_ONCE: &str = "crds.enabled=false,rbac.userRoles=false,\
    admissionPolicies.suspend.enabled=false,admissionPolicies.guard.enabled=false,\
    web.enabled=true,metrics.auth=kubernetes,flowControl.enabled=true,rbac.tokenSecrets.team={token},networkPolicy.enabled=true,\
    serviceMonitor.enabled=true,serviceMonitor.namespace=monitoring,\
    prometheusRule.enabled=true,prometheusRule.namespace=monitoring,\
    grafanaDashboard.enabled=true,grafanaDashboard.namespace=monitoring";

/// Two operators in one cluster, each a release with the same name.
#[tokio::test]
async fn releases_of_one_name_share_nothing() {
    for scope in ["scope.namespaces={team}", "scope.semaphoreSelector=shard=a"] {
        let mut known = BTreeSet::new();
        for namespace in ["first", "second"] {
            let values = format!("{ALL_BUT_WHAT_IS_THERE_ONCE},{scope}");
            let rendered = template(&["--namespace", namespace, "--set", &values]).await;
            for object in objects(&rendered.expect("the chart")) {
                let metadata = &object["metadata"];
                let name = format!(
                    "{} {} {}",
                    object["kind"], metadata["namespace"], metadata["name"]
                );
                assert!(known.insert(name.clone()), "both have {name}");
            }
        }
        assert!(known.len() > 30, "{scope}: {known:?}");
    }
}

/// The `NetworkPolicy` lets the pods reach the servers that they are configured for.
#[tokio::test]
async fn the_way_to_consul_and_to_the_collector_is_open() {
    let collector = "traces.exporter=otlp,traces.endpoint=http://collector";
    for (values, ports) in [
        (
            "consul.address=https://consul-server.consul.svc:8501",
            vec![8501],
        ),
        ("consul.address=http://$(HOST_IP):8500", vec![8500]),
        (
            "consul.address=consul:18500\\,https://[fd00::1]:8501/consul",
            vec![18500, 8501],
        ),
        (
            "consul.address=https://a.example.com\\, https://b.example.com:443",
            vec![443],
        ),
        ("consul.address=http://consul/path:1", vec![80]),
        ("consul.address=unix:///run/consul.sock", vec![]),
        ("networkPolicy.consulPorts={8502}", vec![8502]),
        (&format!("{collector}:4318"), vec![8500, 4318]),
        (&format!("{collector}/otlp"), vec![8500, 80]),
        (
            &format!("{collector},networkPolicy.collectorPorts={{4318}}"),
            vec![8500, 4318],
        ),
        ("traces.exporter=otlp", vec![8500]),
    ] {
        let values = format!("networkPolicy.enabled=true,{values}");
        let rendered = objects(&template(&["--set", &values]).await.expect("the chart"));
        let [policy] = of(&rendered, "NetworkPolicy")[..] else {
            panic!("{values}: a NetworkPolicy")
        };
        let rules = policy["spec"]["egress"].as_array().expect("rules");
        // After those for DNS and the API server.
        let open = rules[2..]
            .iter()
            .flat_map(|rule| rule["ports"].as_array().expect("ports"));
        let open: Vec<_> = open
            .map(|port| port["port"].as_u64().expect("a port"))
            .collect();
        assert_eq!(open, ports, "{values}");
    }
}

/// Replaces the registry in the repository, if there is one.
#[tokio::test]
async fn the_image_comes_from_the_registry_of_all_parts() {
    let everywhere = "global.imageRegistry=registry.example.com:5000";
    for (values, repository) in [
        ("image.repository=tools/operator", "tools/operator"),
        (
            everywhere,
            "registry.example.com:5000/consul-semaphore-operator",
        ),
        (
            &format!("{everywhere},image.repository=ghcr.io/tools/operator"),
            "registry.example.com:5000/tools/operator",
        ),
        (
            &format!("{everywhere}/mirror,image.repository=tools/operator"),
            "registry.example.com:5000/mirror/tools/operator",
        ),
    ] {
        let secrets =
            "global.imagePullSecrets[0]=a,imagePullSecrets[0].name=b,imagePullSecrets[1].name=a";
        let values = format!("image.tag=v1,{secrets},{values}");
        let rendered = objects(&template(&["--set", &values]).await.expect("the chart"));
        let deployment = of(&rendered, "Deployment")[0].pointer("/spec/template/spec");
        for pod in [deployment.expect("a pod"), &of(&rendered, "Pod")[0]["spec"]] {
            assert_eq!(
                pod["containers"][0]["image"],
                format!("{repository}:v1"),
                "{values}"
            );
            assert_eq!(
                pod["imagePullSecrets"],
                json!([{ "name": "a" }, { "name": "b" }])
            );
        }
    }
}

/// Counts the names in an object, none of which may be a number.
fn names_in(value: &Value, path: &str) -> usize {
    let mut names = 0;
    for (key, field) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        let ends = ["name", "Name", "namespace", "instance", "key"];
        if ends.iter().any(|end| key.ends_with(end)) && !field.is_object() {
            assert!(field.is_string(), "{path} is {field}");
            names += 1;
        }
        names += names_in(field, &path);
    }
    for item in value.as_array().into_iter().flatten() {
        assert!(!item.is_number(), "{path} has {item}");
        names += names_in(item, path);
    }
    names
}

/// Kubernetes accepts digits as names, and YAML reads such names as numbers.
#[tokio::test]
async fn names_are_texts() {
    let numbers = "nameOverride=1,fullnameOverride=2e3,consul.token.secretName=4,consul.token.secretKey=5,\
        serviceAccount.name=6,scope.namespaces={7,8},consul.tls.ca.secretName=9,consul.tls.client.secretName=10,\
        consul.address=https://consul:8501,consul.httpAuth.secretName=11,priorityClassName=12,runtimeClassName=13,\
        imagePullSecrets[0].name=14,rbac.tokenSecrets.15={16},leaderElection.leaseName=17,clusterName=18,namespaceOverride=19,http.tls.secretName=20";
    let more = "networkPolicy.enabled=true,flowControl.enabled=true,grafanaDashboard.enabled=true,web.enabled=true,\
        metrics.auth=kubernetes";
    let args = [
        "template",
        "42",
        CHART,
        "--namespace",
        "43",
        "--set",
        more,
        "--set-string",
        numbers,
    ];
    let rendered = testbed::helm_alone(args).await.expect("the chart");
    let mut names = 0;
    for object in objects(&rendered) {
        // Copied unchanged.
        if object["kind"] != "CustomResourceDefinition" {
            names += names_in(&object, object["kind"].as_str().expect("a kind"));
        }
    }
    assert!(names > 100, "{names}");
}
