//! The rules in docs/consul-acl.md, in a Consul that denies by default and restricts the listing of keys: with them
//! everything works, and each missing rule is named.

use serde_json::{Value, json};
use testbed::{
    Bed, Consul, Namespace, Operator,
    helpers::{cluster_id, documented_rules},
    proof::nothing_is_left,
};

use crate::consul_token::denied;

const MANAGEMENT: &str = "00000000-1111-4222-8333-444444444444";

/// A policy, and the one token that has it.
struct Policy {
    name: &'static str,
    id: String,
    token: String,
    rules: Vec<String>,
}

struct Stage {
    bed: Bed,
    team: Namespace,
    /// The placeholders in the rules, with their values here.
    names: [(&'static str, String); 3],
}

impl Stage {
    async fn new() -> Self {
        let listing = json!({ "acl": { "enable_key_list_policy": true } });
        let bed = Bed::builder()
            .consul(Consul::builder().acls(MANAGEMENT).config(listing))
            .without_operator()
            .start()
            .await;
        let team = bed.namespace("policy").await;
        let names = [
            (
                "72ae35f8-3282-451b-b1ca-51957e931009",
                cluster_id(&bed).await,
            ),
            ("team-a", team.name().to_owned()),
            ("vm-7", "bed".to_owned()),
        ];
        Self { bed, team, names }
    }

    /// A token with the rules in these blocks of the documentation.
    async fn policy(&self, name: &'static str, blocks: &[&str]) -> Policy {
        let names = self.names.each_ref().map(|(from, to)| (*from, &**to));
        let rules: Vec<_> = blocks
            .iter()
            .flat_map(|block| documented_rules(block, &names))
            .collect();
        let consul = self.bed.consul();
        let policy = json!({ "Name": name, "Rules": rules.join("\n") });
        let policy = consul.put_json("acl/policy", policy).await;
        let token = json!({ "Policies": [{ "Name": name }] });
        let token = consul.put_json("acl/token", token).await;
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        Policy {
            name,
            id: text(&policy["ID"]),
            token: text(&token["SecretID"]),
            rules,
        }
    }

    /// Sets the rules of a policy.
    async fn allow(&self, policy: &Policy, rules: &[&String]) {
        let rules: Vec<_> = rules.iter().map(|rule| rule.as_str()).collect();
        let rules = json!({ "Name": policy.name, "Rules": rules.join("\n") });
        let path = format!("acl/policy/{}", policy.id);
        self.bed.consul().put_json(&path, rules).await;
    }

    fn operator(&self, name: &str, election: &str, own: &Policy) -> Operator {
        let token = [("CONSUL_HTTP_TOKEN", own.token.clone())];
        self.bed
            .another_operator(name, ["--leader-election", election], token)
    }
}

/// How Consul names the permission that a rule gives: `'key:`, and the name.
fn denial(rule: &str) -> [String; 2] {
    let (kind, name) = rule.split_once(' ').expect("a kind");
    let name = name.split('"').nth(1).expect("a name");
    [
        format!("'{}:", kind.trim_end_matches("_prefix")),
        format!("\"{name}"),
    ]
}

#[tokio::test]
async fn the_documented_rules_suffice_and_each_is_named_when_it_is_missing() {
    let stage = Stage::new().await;
    let own = stage
        .policy("operator", &["operator.hcl", "election.hcl"])
        .await;
    let operator = stage.operator("left-out", "off", &own);
    // It registers its node when it starts.
    let without_node = own.rules.iter().filter(|rule| !rule.starts_with("node"));
    stage.allow(&own, &without_node.collect::<Vec<_>>()).await;
    operator.start().await;
    let operators: Vec<_> = own.rules[..3].to_vec();
    each_is_named_when_it_is_missing(&stage, &own, &operators, json!({})).await;
    tenants_rules(&stage).await;
    assert!(operator.stop().await.success());
    the_identity_has_a_rule_of_its_own(&stage, &own).await;

    let elected = stage.operator("elected", "consul", &own);
    elected.start().await;
    a_semaphore_lives_and_goes(&stage).await;
    others_take_part(&stage).await;
    others_take_part_in_one_of_many(&stage).await;
    assert!(elected.stop().await.success());
}

/// Leaves out one rule after another; a semaphore with this spec reports it, and recovers.
async fn each_is_named_when_it_is_missing(
    stage: &Stage,
    policy: &Policy,
    rules: &[String],
    spec: Value,
) {
    assert_eq!(rules.len(), 3, "{rules:?}");
    let mut order: Vec<_> = rules.iter().collect();
    // A registered node is not registered again.
    order.sort_by_key(|rule| !rule.starts_with("node"));
    for (number, left_out) in order.iter().enumerate() {
        let rest: Vec<_> = policy
            .rules
            .iter()
            .filter(|rule| rule != left_out)
            .collect();
        stage.allow(policy, &rest).await;
        let name = format!("{}-{number}", policy.name);
        let db = stage
            .team
            .semaphore(&name)
            .spec(spec.clone())
            .create()
            .await;
        let job = stage.team.job(&name).semaphore(&name).create().await;
        for words in denial(left_out) {
            denied(&db, &words).await;
        }
        job.is_waiting().await;
        stage
            .allow(policy, &policy.rules.iter().collect::<Vec<_>>())
            .await;
        job.is_complete().await;
        job.has_event("SlotReleased").await;
        db.delete().await;
        db.is_gone().await;
    }
}

/// Without the rule for the operator's own key nothing is granted with its token, until the rule is there. A namespace with
/// a token of its own is not affected.
async fn the_identity_has_a_rule_of_its_own(stage: &Stage, own: &Policy) {
    let mark = own.rules[3].split('"').nth(1).expect("a prefix");
    for key in stage.bed.consul().list(mark).await {
        let session = key.session.expect("it is locked");
        stage.bed.consul().destroy_session(&session).await;
    }
    let rest: Vec<_> = own.rules[..3].iter().collect();
    stage.allow(own, &rest).await;
    let operator = stage.operator("without-identity", "off", own);
    operator.start().await;
    let db = stage.team.semaphore("identity").create().await;
    let job = stage.team.job("identity").semaphore("identity");
    let job = job.create().await;
    denied(&db, mark).await;
    job.is_waiting().await;
    let rules = own.rules.iter().collect::<Vec<_>>();
    stage.allow(own, &rules).await;
    job.is_complete().await;
    job.has_event("SlotReleased").await;
    assert!(operator.stop().await.success());
}

/// The same for a namespace with its own token.
async fn tenants_rules(stage: &Stage) {
    let team = &stage.team;
    let tenant = stage.policy("tenant", &["tenant.hcl"]).await;
    let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/config/token-secret");
    team.kubectl(["apply", "-k", manifests]).await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "consul-token" },
        "stringData": { "token": tenant.token },
    });
    team.apply(secret).await;
    let spec = json!({
        "prefix": "shared/db", "consul": { "tokenSecretRef": { "name": "consul-token" } },
    });
    each_is_named_when_it_is_missing(stage, &tenant, &tenant.rules, spec).await;
}

/// A foreign dead holder is pruned, Jobs get the slot one after another, and in the end nothing is left.
async fn a_semaphore_lives_and_goes(stage: &Stage) {
    let (team, consul) = (&stage.team, stage.bed.consul());
    let quick = json!({ "session": { "lockDelay": "0s" } });
    let db = team.semaphore("db").limit(1).spec(quick).create().await;
    db.is_ready().await;
    let other = consul.take_slot(&db.lock_prefix(), 1).await;
    let first = team.job("first").semaphore("db").create().await;
    let second = team.job("second").semaphore("db").create().await;
    first.has_event("SlotWaiting").await;
    first.is_waiting().await;
    consul.destroy_session(&other).await;
    first.is_complete().await;
    second.is_complete().await;
    nothing_is_left(&stage.bed, team, &db).await;
    db.delete().await;
    db.is_gone().await;
    assert_eq!(consul.list(&format!("{}/", db.lock_prefix())).await, []);
}

/// `consul lock` on a semaphore in which a Job holds a slot.
async fn others_take_part(stage: &Stage) {
    let lock = stage.policy("consul-lock", &["consul-lock.hcl"]).await;
    let db = stage.team.semaphore("db").limit(2).create().await;
    let job = stage.team.job("beside").semaphore("db").runs("1h");
    job.create().await.is_running().await;
    let prefix = db.lock_prefix();
    let command = [
        "lock",
        "-token",
        &lock.token,
        "-n",
        "2",
        &prefix,
        "echo has a slot",
    ];
    let said = stage.bed.consul_tool(command).await;
    assert_eq!(said.trim(), "has a slot");
    db.shows(json!({ "held": 1, "heldHere": 1 })).await;
    db.is_ready().await;
}

/// Another program holds the slot of one key with a session that the operator's token may not read.
async fn others_take_part_in_one_of_many(stage: &Stage) {
    let (team, consul) = (&stage.team, stage.bed.consul());
    let tasks = team.semaphore("tasks").limit(1);
    let tasks = tasks.spec(json!({ "keyed": true })).create().await;
    let prefix = format!("{}/k", tasks.lock_prefix());
    let other = consul.take_slot(&prefix, 1).await;
    let job = team.job("of-a-key").semaphore("tasks");
    let job = job.annotation("consul-semaphore.io/key", "k");
    let job = job.create().await;
    job.has_event("SlotWaiting").await;
    tasks.shows(json!({ "held": 1, "heldHere": 0 })).await;
    tasks.is_ready().await;
    consul.give_back(&prefix, &other).await;
    job.is_complete().await;
}
