//! What a command gets in its environment, and what others see of it in Consul.

use std::fs;

use serde_json::{Value, json};
use testbed::Consul;

use crate::stage::{PREFIX, Stage};

#[tokio::test]
async fn the_environment_says_what_the_slot_is_called_in_consul() {
    let stage = Stage::new().await;
    let script = r#"note "$CONSUL_SEMAPHORE_LOCK_KEY $CONSUL_SEMAPHORE_SESSION $CONSUL_SEMAPHORE_LOCK_INDEX $CONSUL_SEMAPHORE_SLOT_INDEX $CONSUL_SEMAPHORE_FENCING_TOKEN"; wait_for end"#;
    let mut first = stage.exec("--name ci-7 --key customer-42", script);
    let prefix = format!("{PREFIX}/customer-42");
    testbed::eventually("it runs", async || stage.journal().pop()).await;
    let contender = stage.consul.contenders(&prefix).await.remove(0);
    let session = contender.session.clone().unwrap();
    let expected = format!(
        "{} {session} {} 0 {}",
        contender.key, contender.lock_index, contender.modify_index
    );
    assert_eq!(stage.journal(), [expected]);
    let body = contender.json();
    for (field, value) in [("kind", "Process"), ("cluster", "ci-7"), ("name", "sh")] {
        assert_eq!(body[field], json!(value), "{body}");
    }
    stage.open("end");
    first.ends_with(0).await;

    // A later grant has a greater token.
    stage.exec("--key customer-42", script).ends_with(0).await;
    let journal = stage.journal();
    let token = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(token(&journal[1]) > token(&journal[0]), "{journal:?}");
}

/// The only session while a command runs with these flags.
async fn session_with(stage: &Stage, flags: &str) -> Value {
    let mut running = stage.exec(flags, &format!("note {flags:?}; wait_for {}", flags.len()));
    stage.noted(flags).await;
    let session = stage.sessions().await.remove(0);
    stage.open(&flags.len().to_string());
    running.ends_with(0).await;
    session
}

#[tokio::test]
async fn a_session_has_the_checks_of_the_local_agent_unless_that_is_unwanted() {
    let stage = Stage::new().await;
    let session = session_with(&stage, "--name ci-7").await;
    assert_eq!(session["Node"], "bed");
    assert_eq!(session["NodeChecks"], json!(["serfHealth"]));
    assert_eq!(session["TTL"], "60s");
    let name = session["Name"].as_str().unwrap();
    assert!(
        name.starts_with("consul-semaphore-operator/ci-7/-/-/sh/"),
        "{name}"
    );

    let session = session_with(&stage, "--no-node-checks --ttl 90s").await;
    assert_eq!(session["Node"], "consul-semaphore-exec");
    assert!(
        session["NodeChecks"].as_array().is_none_or(Vec::is_empty),
        "{session}"
    );
    assert_eq!(session["TTL"], "90s");
    // The agent's node need not be in a datacenter that is named.
    let session = session_with(&stage, "--consul-datacenter dc1").await;
    assert_eq!(session["Node"], "consul-semaphore-exec");
    let session = session_with(&stage, "--node ci-runners").await;
    assert_eq!(session["Node"], "ci-runners");
    assert!(
        session["NodeChecks"].as_array().is_none_or(Vec::is_empty),
        "{session}"
    );
}

/// The names of the variables about Consul in the environments of a command with these flags, of its guard, and of
/// what it starts.
async fn environments_with(stage: &Stage, flags: &str) -> Vec<String> {
    let file = stage.folder().join("token");
    fs::write(&file, "root").unwrap();
    let names = r"tr '\0' '\n' | grep ^CONSUL_ | grep -v ^CONSUL_SEMAPHORE_ | cut -d = -f 1 | sort";
    let script = format!(
        r"note $(</proc/$PPID/environ {names}); note $(</proc/$$/environ {names}); note $(env -0 | {names})"
    );
    let mut command = stage.command(flags, &script);
    command
        .env("CONSUL_HTTP_TOKEN", "another")
        .env("CONSUL_HTTP_TOKEN_FILE", file)
        .env("CONSUL_HTTP_AUTH", "user:password")
        .env("CONSUL_LOGIN_META", "pod=a");
    stage.start(command).ends_with(0).await;
    stage.journal()
}

#[tokio::test]
async fn what_consul_knows_this_program_by_is_passed_on_only_if_that_is_asked_for() {
    let stage = Stage::with(Consul::builder().acls("root")).await;
    let without = ["CONSUL_HTTP_ADDR"; 3];
    assert_eq!(environments_with(&stage, "").await, without);

    let all = "CONSUL_HTTP_ADDR CONSUL_HTTP_AUTH CONSUL_HTTP_TOKEN CONSUL_HTTP_TOKEN_FILE CONSUL_LOGIN_META";
    let flags = "--pass-consul-credentials";
    let with = environments_with(&stage, flags).await.split_off(3);
    assert_eq!(with, [all; 3]);
}

/// The bed's Consul has no ACLs, so it takes any token.
#[tokio::test]
async fn a_token_that_is_sent_in_plain_text_is_warned_of_in_one_line() {
    let stage = Stage::new().await;
    let here = stage.consul.address();
    // It is reached there, but that is not a loopback address.
    let elsewhere = here.replace("127.0.0.1", "0.0.0.0");
    assert_ne!(here, elsewhere);
    for (flags, address, warnings) in [
        ("", elsewhere.as_str(), 1),
        ("--quiet", &elsewhere, 0),
        ("", here, 0),
    ] {
        let mut command = stage.command(&format!("--node runners {flags}"), "true");
        command
            .env("CONSUL_HTTP_ADDR", address)
            .env("CONSUL_HTTP_TOKEN", "s3cr3t");
        let said = stage.start(command).ends_with(0).await;
        let warned = said.lines().filter(|line| line.contains("warning: "));
        assert_eq!(warned.count(), warnings, "{said}");
        assert_eq!(said.matches("in plain text to").count(), warnings, "{said}");
        assert!(!said.contains("s3cr3t"), "{said}");
    }
}
