//! The examples run, as their reader runs them.

use std::{env, path::PathBuf, process::Stdio};

use testbed::{PATIENCE, SEMAPHORE_FLAGS};
use tokio::{process::Command, time::timeout};

use crate::stage::Stage;

/// Where cargo puts the examples: beside the folder of this test.
fn example(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let target = test.ancestors().nth(2).unwrap();
    let program = target.join("examples").join(name);
    let built = program.is_file();
    assert!(
        built,
        "run cargo build --package consul-semaphore --examples"
    );
    program
}

/// What an example says until it ends.
async fn said(stage: &Stage, name: &str) -> String {
    let mut command = Command::new(example(name));
    command.env("CONSUL_HTTP_ADDR", stage.consul.address());
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(PATIENCE, command.output()).await;
    let output = output.expect("it ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    said
}

#[tokio::test]
async fn a_pool_of_workers() {
    let stage = Stage::new().await;
    let said = said(&stage, "worker_pool").await;
    let begun = said.lines().filter(|line| line.contains("begins")).count();
    assert_eq!(begun, 8, "{said}");
    assert_eq!(stage.consul.list("examples").await, []);
}

/// All of its workers fail, and none leaves its session behind.
#[tokio::test]
async fn a_pool_of_workers_that_fails() {
    let stage = Stage::new().await;
    let lock = r#"{"Limit":2,"Holders":{}}"#;
    let lock_key = "examples/worker-pool/.lock";
    stage.consul.put(lock_key, SEMAPHORE_FLAGS, lock).await;
    let mut command = Command::new(example("worker_pool"));
    command.env("CONSUL_HTTP_ADDR", stage.consul.address());
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("Limit"), "{said}");
    assert!(stage.consul.sessions().await.is_empty());
}

#[tokio::test]
async fn a_migration() {
    let stage = Stage::new().await;
    let said = said(&stage, "migration").await;
    assert!(said.contains("fencing token"), "{said}");
    assert!(said.ends_with("done\n"), "{said}");
    assert_eq!(stage.consul.list("examples").await, []);
}

#[tokio::test]
async fn a_client_that_keeps_to_a_rate() {
    let stage = Stage::new().await;
    let said = said(&stage, "rate_limited_client").await;
    let calls = said.lines().filter(|line| line.contains("call")).count();
    assert_eq!(calls, 6, "{said}");
    assert_eq!(stage.consul.list("examples").await, []);
}
