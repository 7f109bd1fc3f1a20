//! What the operator's `ServiceAccount` may and may not do in Kubernetes.

use std::{collections::BTreeSet, fmt, fs};

use consul_semaphore_workload::Kind;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use testbed::{Bed, Namespace, eventually, proof::nothing_is_left};

use crate::restart::{contend, hold};

/// Its `ServiceAccount`.
const NAMESPACE: &str = "consul-semaphore-system";
const ACCOUNT: &str = "consul-semaphore-operator";

/// The API server's log of the operator's requests, in the bed's folder.
const AUDIT_LOG: &str = "audit.log";

#[tokio::test]
async fn the_operator_may_do_no_more_than_it_needs() {
    let bed = Bed::shared().await;
    let team = bed.namespace("access").await;
    team.job("a").create().await;
    let kubeconfig = bed.operator_kubeconfig().display().to_string();
    let as_operator = |args: &[&str]| {
        let own = ["--kubeconfig", kubeconfig.as_str(), "-n", team.name()];
        let args: Vec<_> = own.iter().chain(args).map(ToString::to_string).collect();
        let bed = &bed;
        async move { bed.try_kubectl(args).await }
    };

    let merge = [
        "--type=merge",
        "--patch",
        "{\"metadata\":{\"labels\":{\"a\":\"b\"}}}",
    ];
    let patch = |what: &[&'static str]| [&["patch"], what, &merge].concat();
    let patches = [
        patch(&["cronjob", "a"]),
        patch(&["namespace", "default"]),
        patch(&["serviceaccount", "default"]),
        patch(&["role", "a"]),
        patch(&["clusterrole", "consul-semaphore-operator"]),
    ];
    let forbidden: [&[&str]; 13] = [
        &["get", "secrets"],
        &["get", "secrets", "--all-namespaces"],
        &["get", "secret", "a"],
        &["get", "secret", "consul-token"],
        &["create", "secret", "generic", "a"],
        &["create", "token", "default"],
        &["get", "jobs", "--as=system:admin"],
        &["get", "configmaps"],
        &["get", "nodes"],
        &["get", "namespace", "default"],
        &["create", "job", "b", "--image=none"],
        &["delete", "pod", "a"],
        &["delete", "consulsemaphore", "db"],
    ];
    let forbidden = forbidden
        .into_iter()
        .chain(patches.iter().map(Vec::as_slice));
    for args in forbidden {
        let refusal = as_operator(args).await.expect_err("it is forbidden");
        assert!(format!("{refusal:#}").contains("forbidden"), "{refusal:#}");
    }
    for args in [
        ["get", "jobs"],
        ["get", "pods"],
        ["get", "consulsemaphores"],
    ] {
        as_operator(&args).await.expect("it is allowed");
    }

    // Nothing else: every user may ask for its own rights, and see what the server offers; since 1.37 every
    // ServiceAccount may read trust bundles.
    let everyone = ["selfsubject", "clustertrustbundles.certificates.k8s.io "];
    let rules = as_operator(&["auth", "can-i", "--list", "--no-headers"])
        .await
        .expect("its rules");
    let rules: BTreeSet<_> = rules
        .lines()
        .filter(|rule| !rule.starts_with(char::is_whitespace))
        .filter(|rule| !everyone.iter().any(|name| rule.starts_with(name)))
        .map(|rule| rule.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = [
        "consulsemaphores.consul-semaphore.io [] [] [get list watch patch]",
        "consulsemaphores.consul-semaphore.io/status [] [] [patch]",
        "events.events.k8s.io [] [] [create patch]",
        "jobs.batch [] [] [get list watch patch delete]",
        "jobs.batch/status [] [] [patch]",
        "namespaces [] [kube-system] [get]",
        "pods [] [] [get list watch]",
        // Of kinds that are off it reads what holds a slot.
        "jobsets.jobset.x-k8s.io [] [] [get]",
        "mpijobs.kubeflow.org [] [] [get]",
        "pipelineruns.tekton.dev [] [] [get list]",
        "rayjobs.ray.io [] [] [get]",
        "sparkapplications.sparkoperator.k8s.io [] [] [get]",
        "taskruns.tekton.dev [] [] [get list]",
        "trainjobs.trainer.kubeflow.org [] [] [get]",
        "workflows.argoproj.io [] [] [get]",
    ];
    // Only its own admission policies, by name.
    let policies = [
        ("mutating", "suspend"),
        ("validating", "cronjobs"),
        ("validating", "guard"),
        ("validating", "operator.jobs"),
        ("validating", "refuse"),
    ]
    .into_iter()
    .flat_map(|(kind, name)| {
        ["policies", "policybindings"].map(|what| {
            format!("{kind}admission{what}.admissionregistration.k8s.io [] [{name}.consul-semaphore.io] [get]")
        })
    });
    let expected: BTreeSet<_> = expected
        .map(str::to_owned)
        .into_iter()
        .chain(policies)
        .collect();
    assert_eq!(rules, expected);
}

/// One verb of a rule, for one name or for any.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    group: String,
    /// With its subresource: `jobs/status`.
    resource: String,
    verb: String,
    name: Option<String>,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            group,
            resource,
            verb,
            name,
        } = self;
        let name = name.as_deref().unwrap_or("*");
        write!(f, "{verb} {resource}.{group} {name}")
    }
}

impl Right {
    /// Everything that a rule allows.
    fn of(rule: &PolicyRule) -> Vec<Self> {
        let names = rule.resource_names.iter().flatten().cloned().map(Some);
        let mut names: Vec<_> = names.collect();
        if names.is_empty() {
            names.push(None);
        }
        let mut all = Vec::new();
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    all.extend(names.iter().map(|name| Self {
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                        name: name.clone(),
                    }));
                }
            }
        }
        all
    }

    /// Whether a request in the audit log needs it.
    fn is_for(&self, request: &Value) -> bool {
        let object = &request["objectRef"];
        let word = |name: &str| object[name].as_str().unwrap_or_default();
        let resource = match word("subresource") {
            "" => word("resource").to_owned(),
            subresource => format!("{}/{subresource}", word("resource")),
        };
        let named = self.name.as_deref().is_none_or(|name| name == word("name"));
        request["verb"] == self.verb.as_str()
            && word("apiGroup") == self.group
            && resource == self.resource
            && named
    }
}

/// Everything that the cluster's bindings give the operator.
async fn rights(bed: &Bed) -> BTreeSet<Right> {
    let all = ListParams::default();
    let client = || bed.client().clone();
    let everywhere = Api::<ClusterRoleBinding>::all(client()).list(&all).await;
    let somewhere = Api::<RoleBinding>::all(client()).list(&all).await;
    let everywhere = everywhere.expect("the ClusterRoleBindings").items;
    let somewhere = somewhere.expect("the RoleBindings").items;
    let everywhere = everywhere
        .into_iter()
        .map(|binding| (None, binding.role_ref, binding.subjects));
    let somewhere = somewhere.into_iter().map(|binding| {
        let namespace = binding.metadata.namespace;
        (namespace, binding.role_ref, binding.subjects)
    });
    let is_operator = |subject: &Subject| {
        subject.kind == "ServiceAccount"
            && subject.namespace.as_deref() == Some(NAMESPACE)
            && subject.name == ACCOUNT
    };
    let mut rights = BTreeSet::new();
    for (namespace, role, subjects) in everywhere.chain(somewhere) {
        if subjects.into_iter().flatten().any(|who| is_operator(&who)) {
            let rules = rules(bed, namespace.as_deref(), &role).await;
            rights.extend(rules.iter().flat_map(Right::of));
        }
    }
    rights
}

async fn rules(bed: &Bed, namespace: Option<&str>, role: &RoleRef) -> Vec<PolicyRule> {
    let client = bed.client().clone();
    let rules = if role.kind == "Role" {
        let namespace = namespace.expect("a RoleBinding's namespace");
        let roles = Api::<Role>::namespaced(client, namespace);
        roles.get(&role.name).await.expect("the Role").rules
    } else {
        let roles = Api::<ClusterRole>::all(client);
        roles.get(&role.name).await.expect("the ClusterRole").rules
    };
    rules.unwrap_or_default()
}

/// The operator's requests to the API server so far.
fn requests(bed: &Bed) -> Vec<Value> {
    let log = bed.folder().path().join(AUDIT_LOG);
    let log = fs::read_to_string(log).unwrap_or_default();
    // The last line may be incomplete.
    let lines = log.lines().map(serde_json::from_str);
    lines.filter_map(Result::ok).collect()
}

/// Holders of all kinds but Jobs, which this operator does not serve, have their slots released: there are no such
/// workloads.
async fn reads_what_holds_slots_of_kinds_that_are_off(bed: &Bed, team: &Namespace) {
    let kinds = Kind::all();
    let kinds = kinds.iter().filter(|kind| {
        // What owns a Workload of Kueue is not known while Kueue is off.
        !matches!(kind, Kind::Job | Kind::KueueWorkload)
    });
    let kinds: Vec<&Kind> = kinds.collect();
    let limit = i64::try_from(kinds.len()).expect("a few");
    let off = team.semaphore("off").limit(limit).create().await;
    // The node of the sessions is registered with the first.
    let first = team.job("first").semaphore("off").create().await;
    first.has_event("SlotReleased").await;
    let mut sessions = Vec::new();
    for kind in kinds {
        let uid = "00000000-0000-0000-0000-000000000000";
        sessions.push(contend(bed, team, &off, kind, "gone", uid).await);
    }
    hold(bed, &off, sessions.iter().map(String::as_str)).await;
    nothing_is_left(bed, team, &off).await;
    off.delete().await;
    off.is_gone().await;
}

/// A right that no call needs helps only somebody who steals the token. A new right needs a scene here.
#[tokio::test]
async fn the_operator_uses_all_that_it_may_do() {
    let root = env!("CARGO_MANIFEST_DIR");
    let policy = format!("--audit-policy-file={root}/tests/journeys/audit_of_the_operator.yaml");
    let bed = Bed::builder()
        .without_operator()
        // As before Kubernetes 1.34, where the operator has to read lists page by page.
        .api_server_args([
            policy,
            format!("--audit-log-path={AUDIT_LOG}"),
            "--feature-gates=WatchList=false".to_owned(),
        ])
        .start()
        .await;
    let team = bed.namespace("team").await;
    // The rights that are not in config/rbac: for tokens of tenants, and for the web page.
    let token = "--from-literal=token=00000000-0000-0000-0000-000000000001";
    team.kubectl(["create", "secret", "generic", "consul-token", token])
        .await;
    let secret = format!("{root}/config/token-secret");
    team.kubectl(["apply", "-k", &secret]).await;
    for file in ["role", "role_binding"] {
        let file = format!("{root}/config/web/{file}.yaml");
        bed.kubectl(["apply", "-f", &file]).await;
    }
    let rights = rights(&bed).await;
    assert!(rights.len() > 25, "{rights:?}");

    bed.operator().start().await;
    // It stands by, and watches the Lease.
    let page = testbed::lasting_port().expect("a free port");
    let page = format!("127.0.0.1:{page}");
    let standby = bed.another_operator("standby", ["--web-address", &page], []);
    standby.start().await;
    team.kubectl(["create", "serviceaccount", "reader"]).await;
    let token = team.kubectl(["create", "token", "reader"]).await;
    let http = testbed::http_client().build();
    let events = http.expect("a client").get(format!("http://{page}/events"));
    let shown = events.bearer_auth(token.trim()).send().await;
    assert_eq!(shown.expect("an answer").status(), 200);

    let reference = json!({ "consul": { "tokenSecretRef": { "name": "consul-token" } } });
    let db = team.semaphore("db").limit(1).spec(reference).create().await;
    let job = |name| team.job(name).semaphore("db").runs("1h");
    let holder = job("holder").create().await;
    holder.is_running().await;
    let skips = job("skips").annotation("consul-semaphore.io/on-contention", "Skip");
    skips.create().await.is_gone().await;
    // The same event twice is one event with a count.
    let waits = job("waits").create().await;
    for _ in 0..2 {
        waits.is_waiting().await;
        waits.unsuspend().await;
        waits.has_event("RanWithoutSlot").await;
    }
    waits.is_waiting().await;
    waits.set_start_time().await;
    waits
        .is("without a start time", |job| {
            let status = job.status.as_ref();
            status.is_some_and(|status| status.start_time.is_none())
        })
        .await;
    waits.delete().await;
    reads_what_holds_slots_of_kinds_that_are_off(&bed, &team).await;
    holder.delete().await;
    nothing_is_left(&bed, &team, &db).await;
    db.delete().await;
    db.is_gone().await;
    // Before it gives the Lease back, it checks whether it has it.
    assert!(bed.operator().stop().await.success());

    eventually("each right has been used", || async {
        let requests = requests(&bed);
        let unused = rights
            .iter()
            .filter(|right| !requests.iter().any(|request| right.is_for(request)));
        let unused: Vec<_> = unused.map(ToString::to_string).collect();
        if unused.is_empty() {
            Ok(())
        } else {
            Err(format!("never used: {unused:#?}"))
        }
    })
    .await;
    let refused = requests(&bed);
    let refused = refused
        .iter()
        .filter(|request| request["annotations"]["authorization.k8s.io/decision"] == "forbid");
    let refused: Vec<_> = refused.map(|request| &request["requestURI"]).collect();
    assert!(refused.is_empty(), "{refused:?}");
}
