//! Consul: the rights of the token, and the setup.

use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use testbed::{Consul, ConsulServer, Fault, PATIENCE, Proxy, eventually, eventually_within, same};
use tokio::time::timeout;
use wiremock::{Mock, MockServer, ResponseTemplate, matchers::path};

use crate::stage::{Said, program, variables};

const MANAGEMENT: &str = "00000000-1111-4222-8333-444444444444";

const NODE: [&str; 2] = ["--consul-node", "k8s-72ae35f8-3282-451b-b1ca-51957e931009"];

/// The rules that docs/consul-acl.md gives an operator, one each, for the node name in the document.
fn documented_rules() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/consul-acl.md");
    let page = fs::read_to_string(page).unwrap();
    let mut blocks = page.split("```");
    let block = blocks.find_map(|block| block.strip_prefix("hcl\n# operator.hcl\n"));
    block.unwrap().lines().map(str::to_owned).collect()
}

/// A token with these rules.
async fn token(consul: &Consul, name: &str, rules: &[&String]) -> Consul {
    let rules: Vec<_> = rules.iter().map(|rule| rule.as_str()).collect();
    let policy = json!({ "Name": name, "Rules": rules.join("\n") });
    consul.put_json("acl/policy", policy).await;
    let token = json!({ "Policies": [{ "Name": name }] });
    let token = consul.put_json("acl/token", token).await;
    consul.with_token(token["SecretID"].as_str().unwrap())
}

/// No session and no key exists.
async fn nothing_is_left(consul: &Consul) {
    assert_eq!(consul.sessions().await, Vec::<Value>::new());
    assert_eq!(consul.list("").await, []);
}

#[tokio::test]
async fn the_documented_rules_suffice_and_each_is_named_when_it_is_missing() {
    let consul = Consul::builder().acls(MANAGEMENT).start().await;
    let rules = documented_rules();
    assert_eq!(rules.len(), 4, "{rules:?}");
    let each = |kind: &str| {
        rules
            .iter()
            .filter(|rule| !rule.starts_with(kind))
            .collect::<Vec<_>>()
    };
    // The node first: it must be registered until it exists.
    let cases = [
        ("node ", vec!["external node"]),
        ("session ", vec!["session: make"]),
        (
            "key_prefix \"semaphores/",
            vec!["keys: list", "keys: write", "keys: lock"],
        ),
        (
            "key_prefix \"service/",
            vec!["identity: keys: list", "identity: keys: write"],
        ),
    ];
    let whole = token(&consul, "whole", &rules.iter().collect::<Vec<_>>()).await;
    for (kind, failing) in cases {
        let name: String = kind.chars().filter(char::is_ascii_alphanumeric).collect();
        let part = token(&consul, &format!("without-{name}"), &each(kind)).await;
        let said = Said::of(&NODE, &variables(&part)).await;
        let left_out = rules.iter().find(|rule| rule.starts_with(kind)).unwrap();
        for what in failing {
            said.assert(
                "consul",
                what,
                "failed",
                &[left_out.as_str(), "docs/consul-acl.md"],
            );
        }
        said.each_failure_says_what_to_do();
        assert_eq!(said.code, Some(1));
        nothing_is_left(&consul).await;
        // From now on it exists.
        Said::of(&NODE, &variables(&whole)).await;
    }
    let said = Said::of(&NODE, &variables(&whole)).await;
    assert_eq!(said.bad("consul"), ["version"]);
    said.assert("consul", "version", "unknown", &["does not need"]);
    said.assert("consul", "external node", "ok", &["is registered"]);
    said.assert("consul", "session TTL", "ok", &["accepts is 10 s"]);
    nothing_is_left(&consul).await;
}

#[tokio::test]
async fn where_all_is_allowed_all_is_known() {
    let consul = Consul::start().await;
    let said = Said::of(&NODE, &variables(&consul)).await;
    assert_eq!(said.bad("consul"), Vec::<String>::new());
    said.assert("consul", "external node", "ok", &["is now registered"]);
    said.assert("consul", "version", "ok", &["tested with"]);
    nothing_is_left(&consul).await;
    let said = Said::of(&NODE, &variables(&consul)).await;
    said.assert("consul", "external node", "ok", &["is registered"]);
}

#[tokio::test]
async fn a_token_that_consul_does_not_know_is_reported() {
    let consul = Consul::builder().acls(MANAGEMENT).start().await;
    let stranger = consul.with_token("00000000-0000-4000-8000-000000000000");
    let said = Said::of(&NODE, &variables(&stranger)).await;
    said.assert("consul", "reachable", "ok", &[]);
    let words = ["ACL not found", "a token that this Consul knows"];
    said.assert("consul", "keys: write", "failed", &words);
    said.each_failure_says_what_to_do();
}

/// Without a cluster and without a node name, no node could own the sessions.
#[tokio::test]
async fn without_a_node_no_session_is_tried() {
    let consul = Consul::start().await;
    let said = Said::of(&[], &variables(&consul)).await;
    for what in [
        "external node",
        "session: make",
        "session: renew",
        "keys: lock",
        "session: end",
    ] {
        said.assert("consul", what, "unknown", &["not tried"]);
    }
    said.assert("consul", "keys: write", "ok", &[]);
    nothing_is_left(&consul).await;
}

#[tokio::test]
async fn the_node_of_an_agent_is_left_alone() {
    let consul = Consul::start().await;
    // An agent completes its node's entry a moment after its start.
    let before = eventually("the agent has registered its node", async || {
        let node = consul.get("catalog/node/bed").await;
        let meta = &node["Node"]["Meta"]["consul-network-segment"];
        meta.is_string().then_some(node.clone()).ok_or(node)
    })
    .await;
    let said = Said::of(&["--consul-node", "bed"], &variables(&consul)).await;
    said.assert(
        "consul",
        "external node",
        "unknown",
        &["an agent runs on that node"],
    );
    let after = consul.get("catalog/node/bed").await;
    assert_eq!(after["Node"]["Address"], before["Node"]["Address"]);
    assert_eq!(after["Node"]["Meta"], before["Node"]["Meta"]);
    nothing_is_left(&consul).await;
}

#[tokio::test]
async fn an_election_in_consul_needs_a_rule_more() {
    let consul = Consul::builder().acls(MANAGEMENT).start().await;
    let rules = documented_rules();
    let whole = token(&consul, "whole", &rules.iter().collect::<Vec<_>>()).await;
    let arguments = [&NODE[..], &["--leader-election", "consul"]].concat();
    let said = Said::of(&arguments, &variables(&whole)).await;
    let rule = r#"key_prefix "service/consul-semaphore-operator/" { policy = "write" }"#;
    said.assert("consul", "election: keys: write", "failed", &[rule]);
    nothing_is_left(&consul).await;
}

#[tokio::test]
async fn the_shortest_ttl_is_found_out() {
    for (floor, seconds, outcome, words) in [
        ("30s", 30, "ok", "session_ttl_min"),
        (
            "3m",
            180,
            "failed",
            "set spec.session.ttl of all ConsulSemaphores to 180s",
        ),
    ] {
        let config = json!({ "session_ttl_min": floor });
        let consul = Consul::builder().config(config).start().await;
        let said = Said::of(&NODE, &variables(&consul)).await;
        let from = format!("accepts is {seconds} s");
        said.assert("consul", "session TTL", outcome, &[words, &from]);
        said.assert("consul", "session: make", "ok", &[]);
        nothing_is_left(&consul).await;
    }
}

#[tokio::test]
async fn a_consul_without_a_leader_is_reported() {
    let consul = Consul::start().await;
    let proxy = Proxy::start(consul.address()).await;
    proxy.faults(|call| (call.path == "/v1/status/leader").then_some(Fault::Refused(200, "\"\"")));
    let said = Said::of(&NODE, &[("CONSUL_HTTP_ADDR", proxy.address())]).await;
    said.assert("consul", "leader", "failed", &["a majority"]);
    // Nothing was tried.
    assert!(proxy.calls().iter().all(|call| call.method == "GET"));
}

#[tokio::test]
async fn clocks_that_differ_are_reported() {
    let consul = MockServer::start().await;
    let answer = ResponseTemplate::new(200)
        .set_body_string("\"\"")
        .insert_header("Date", "Wed, 01 Jan 2020 00:00:00 GMT");
    Mock::given(path("/v1/status/leader"))
        .respond_with(answer)
        .mount(&consul)
        .await;
    let said = Said::of(&NODE, &[("CONSUL_HTTP_ADDR", consul.uri())]).await;
    said.assert(
        "consul",
        "clock",
        "warning",
        &["s behind", "cooldown", "NTP"],
    );
}

/// The sessions that checks have created.
async fn scratch(consul: &Consul) -> Vec<Value> {
    let mut sessions = consul.sessions().await;
    sessions.retain(|session| {
        let name = session["Name"].as_str().unwrap_or_default();
        name.starts_with("consul-semaphore-operator check-")
    });
    sessions
}

/// A check that this signal ends while it tries its token.
async fn ended_by(signal: &str) -> (ConsulServer, Option<i32>) {
    let consul = Consul::start().await;
    let proxy = Proxy::start(consul.address()).await;
    proxy.faults(|call| (call.path == "/v1/txn").then_some(Fault::Held));
    let arguments = [&NODE[..], &["--timeout", "5m"]].concat();
    let address = [("CONSUL_HTTP_ADDR", proxy.address())];
    let check = program(&arguments, &address).spawn().unwrap();
    eventually("it has a session", async || {
        let transactions = proxy
            .calls()
            .iter()
            .filter(|call| call.path == "/v1/txn")
            .count();
        same((scratch(&consul).await.len(), transactions), (1, 1))
    })
    .await;
    let session = scratch(&consul).await.remove(0);
    assert_eq!(session["TTL"], "10s");
    assert_eq!(session["Behavior"], "delete");
    let id = check.id().unwrap().to_string();
    let sent = Command::new("kill").args(["-s", signal, &id]).status();
    assert!(sent.unwrap().success());
    let ended = timeout(PATIENCE, check.wait_with_output()).await;
    let output = ended.expect("it comes to an end").unwrap();
    assert_eq!(output.stdout, b"");
    (consul, output.status.code())
}

/// It is tried again at the end.
#[tokio::test]
async fn nothing_is_left_where_an_end_is_refused() {
    let consul = Consul::start().await;
    let proxy = Proxy::start(consul.address()).await;
    let refused = AtomicBool::new(false);
    proxy.faults(move |call| {
        let ends = call.path.starts_with("/v1/session/destroy/");
        (ends && !refused.swap(true, Ordering::Relaxed)).then_some(Fault::Refused(403, "denied"))
    });
    let said = Said::of(&NODE, &[("CONSUL_HTTP_ADDR", proxy.address())]).await;
    said.assert("consul", "session: end", "failed", &["denie"]);
    nothing_is_left(&consul).await;
}

#[tokio::test]
async fn an_interrupted_check_leaves_nothing_in_consul() {
    for signal in ["INT", "TERM"] {
        let (consul, code) = ended_by(signal).await;
        assert_eq!(code, Some(1));
        nothing_is_left(&consul).await;
    }
}

/// Then only Consul can end its session.
#[tokio::test]
async fn a_killed_check_leaves_nothing_in_consul_for_long() {
    let (consul, code) = ended_by("KILL").await;
    assert_eq!(code, None);
    assert_eq!(consul.list("").await, []);
    eventually_within(Duration::from_mins(5), "it has expired", async || {
        same(scratch(&consul).await, Vec::new())
    })
    .await;
}
