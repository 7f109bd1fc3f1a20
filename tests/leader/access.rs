//! The election in a Consul that denies by default: the rule that docs/operations.md adds suffices, and
//! what is missing without it is said.

use serde_json::json;
use testbed::{Bed, Consul, eventually};

use crate::{helpers::cluster_id, load::Load, replicas::leader_of};

const MANAGEMENT: &str = "00000000-1111-4222-8333-444444444444";
const OWN: &str = "5ec2e75e-1111-4222-8333-444444444444";
const ELECTION: &str = r#"key_prefix "service/consul-semaphore-operator/" { policy = "write" }"#;

#[tokio::test]
async fn one_rule_more_is_needed_for_a_lock_in_consul() {
    let consul = Consul::builder().acls(MANAGEMENT);
    let bed = Bed::builder().consul(consul).without_operator();
    let bed = bed.start().await;
    let node = format!("k8s-{}", cluster_id(&bed).await);
    let usual = format!(
        r#"key_prefix "semaphores/" {{ policy = "write" }}
           node "{node}" {{ policy = "write" }}
           session "{node}" {{ policy = "write" }}"#
    );
    let policy = json!({ "Name": "operator", "Rules": usual });
    let policy = bed.consul().put_json("acl/policy", policy).await;
    let token = json!({ "SecretID": OWN, "Policies": [{ "Name": "operator" }] });
    bed.consul().put_json("acl/token", token).await;
    let own = [("CONSUL_HTTP_TOKEN", OWN.to_owned())];
    let a = bed.another_operator("a", ["--leader-election", "consul"], own);

    let allowed = async {
        eventually("the missing rule is named", || async {
            let logs = a.logs();
            let named = logs.contains("the leader election does not work")
                && logs.contains("service/consul-semaphore-operator/")
                && logs.contains("lacks permission");
            named.then_some(()).ok_or(logs)
        })
        .await;
        let path = format!("acl/policy/{}", policy["ID"].as_str().expect("its id"));
        let rules = format!("{usual}\n{ELECTION}");
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
