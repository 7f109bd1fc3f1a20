//! What the election may do, in a Consul that denies by default and in Kubernetes: the rules that are shipped, or
//! that docs/consul-acl.md adds, suffice, and what is missing without them is reported.

use std::pin::pin;

use serde_json::json;
use testbed::{
    Bed, Consul, Operator, eventually,
    helpers::{cluster_id, documented_rules},
};

use crate::{load::Load, replicas::leader_of};

const MANAGEMENT: &str = "00000000-1111-4222-8333-444444444444";
const OWN: &str = "5ec2e75e-1111-4222-8333-444444444444";

/// Waits until the log says, in one line with these words, why the election does not work.
async fn is_named(operator: &Operator, words: &[&str]) {
    says(operator, &[&["the leader election fails"], words].concat()).await;
}

/// Waits until a line of the log has all of these words.
async fn says(operator: &Operator, words: &[&str]) {
    eventually(&format!("it says {words:?}"), async || {
        let logs = operator.logs();
        let mut lines = logs.lines();
        let said = lines.any(|line| words.iter().all(|word| line.contains(word)));
        said.then_some(()).ok_or(logs)
    })
    .await;
}

#[tokio::test]
async fn one_rule_more_is_needed_for_a_lock_in_consul() {
    let consul = Consul::builder().acls(MANAGEMENT);
    let bed = Bed::builder().consul(consul).without_operator();
    let bed = bed.start().await;
    let cluster = [(
        "72ae35f8-3282-451b-b1ca-51957e931009",
        &*cluster_id(&bed).await,
    )];
    let usual = documented_rules("operator.hcl", &cluster).join("\n");
    let election = documented_rules("election.hcl", &[]).join("\n");
    let policy = json!({ "Name": "operator", "Rules": usual });
    let policy = bed.consul().put_json("acl/policy", policy).await;
    let token = json!({ "SecretID": OWN, "Policies": [{ "Name": "operator" }] });
    bed.consul().put_json("acl/token", token).await;
    let own = [("CONSUL_HTTP_TOKEN", OWN.to_owned())];
    let a = bed.another_operator("a", ["--leader-election", "consul"], own);

    let allowed = async {
        let key = "service/consul-semaphore-operator/";
        is_named(&a, &[key, "lacks permission"]).await;
        let path = format!("acl/policy/{}", policy["ID"].as_str().expect("its id"));
        let rules = format!("{usual}\n{election}");
        let policy = json!({ "Name": "operator", "Rules": rules });
        bed.consul().put_json(&path, policy).await;
    };
    tokio::join!(a.start(), allowed);
    leader_of(&[&a]).await;
    let mut load = Load::start(&bed, "120s").await;
    load.goes_on().await;
    load.was_kept().await;
    assert!(!a.logs().contains(OWN), "no token in the log");
}

/// If the Role for the Lease is left out, the operator reports which right is missing; and nothing has to be
/// restarted once it exists.
#[tokio::test]
async fn a_right_that_is_missing_for_the_lease_is_named() {
    const NAMESPACE: &str = "consul-semaphore-system";
    let role = "consul-semaphore-operator-leader-election";
    let shipped = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/config/rbac/leader_election_role.yaml"
    );
    let bed = Bed::builder().without_operator().start().await;
    let kubectl = |args: Vec<&'static str>| {
        let bed = &bed;
        async move { bed.kubectl([vec!["-n", NAMESPACE], args].concat()).await }
    };
    kubectl(vec!["delete", "rolebinding", role]).await;
    let user = format!("system:serviceaccount:{NAMESPACE}:consul-semaphore-operator");
    let leases = ["create", "leases.coordination.k8s.io"];
    bed.lets(&user, leases, Some(NAMESPACE), false).await;
    let a = bed.another_operator("a", [""; 0], []);

    let allowed = async {
        let lease = "Lease consul-semaphore-system/consul-semaphore-operator";
        let leases = r#"resource \"leases\" in API group"#;
        is_named(&a, &[lease, "cannot", leases]).await;
        kubectl(vec!["apply", "-f", shipped]).await;
    };
    tokio::join!(a.start(), allowed);
    leader_of(&[&a]).await;
    let mut load = Load::start(&bed, "120s").await;
    load.goes_on().await;
    load.was_kept().await;
}

/// A new version serves one kind more, which it may not list: its rollout stops, and if it leads nevertheless, Jobs go
/// on.
#[tokio::test]
async fn a_kind_that_may_not_be_listed_holds_up_the_rollout_and_no_job() {
    let bed = Bed::builder().without_operator().start().await;
    let a = bed.another_operator("a", [""; 0], []);
    let b = bed.another_operator("b", ["--workloads=jobsets"], []);
    a.start().await;
    let mut load = Load::start(&bed, "120s").await;
    load.goes_on().await;

    let mut ready = pin!(b.start());
    let unready = async {
        says(&b, &["another replica leads"]).await;
        a.stop().await;
        says(&b, &["this replica leads"]).await;
        load.goes_on().await;
    };
    tokio::select! {
        () = &mut ready => panic!("it is ready though it can't list all:\n{}", b.logs()),
        () = unready => {}
    }
    let name = "lists-jobsets";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": name },
        "rules": [{ "apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["list", "watch"] }],
    });
    let file = bed.folder().path().join("role.json");
    std::fs::write(&file, role.to_string()).expect("a file");
    bed.kubectl(["create", "-f", &file.display().to_string()])
        .await;
    let user = "--serviceaccount=consul-semaphore-system:consul-semaphore-operator";
    let role = format!("--clusterrole={name}");
    bed.kubectl(["create", "clusterrolebinding", name, &role, user])
        .await;
    ready.await;
    leader_of(&[&b]).await;
    load.goes_on().await;
    load.was_kept().await;
}
