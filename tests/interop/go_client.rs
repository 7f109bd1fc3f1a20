//! The Go client's own tests of its semaphore pass while an operator uses the same prefix.
//!
//! Each of them starts the first `consul` on its PATH. Here that is a script which replaces an agent: it forwards
//! requests to a Consul that was started before, with a running operator, so that no test starts before both.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Stdio, time::Duration};

use serde_json::json;
use testbed::{Bed, Consul, Namespace, eventually, same, server};
use tokio::{process::Command, time::timeout};

const CONSUL: &str = r#"#!/usr/bin/env bash
case $1 in
  agent) exec "$GO_CLIENT" forward "$REAL_CONSUL" "$3" ;; # agent -config-file <file>
  *) exec "$CONSUL_TOOL" "$@" ;;
esac
"#;

/// How long one of the tests may take.
const PATIENCE: Duration = Duration::from_mins(2);

/// One of the Go client's tests, and what the operator does meanwhile.
struct Case {
    test: &'static str,
    /// The prefix of the operator's semaphore.
    prefix: &'static str,
    mode: &'static str,
    limit: i64,
    /// How many Jobs compete for its slots while the test runs.
    jobs: usize,
}

const fn case(test: &'static str, prefix: &'static str, limit: i64, jobs: usize) -> Case {
    Case {
        test,
        prefix,
        mode: "Semaphore",
        limit,
        jobs,
    }
}

/// All tests. Two use a prefix that a `ConsulSemaphore` can't have, `test/sema/.lock`: the operator uses the one
/// above it, whose lock key the client sees in its listing. In the one that removes the semaphore nobody else may
/// hold a slot of it. The last one holds a mutex on the key and then tries to use it as a semaphore, so the
/// operator's is a mutex, too.
const CASES: [Case; 9] = [
    case("AcquireRelease", "test/semaphore", 2, 6),
    case("ForceInvalidate", "test/semaphore", 2, 6),
    case("DeleteKey", "test/semaphore", 2, 6),
    case("Contend", "test/semaphore", 2, 2),
    case("BadLimit", "test/semaphore", 1, 3),
    case("Destroy", "test/semaphore", 2, 0),
    case("MonitorRetry", "test/sema", 2, 6),
    case("OneShot", "test/sema", 2, 6),
    Case {
        mode: "Mutex",
        ..case("Conflict", "test/sema", 1, 6)
    },
];

#[tokio::test]
async fn the_go_clients_own_tests_pass_beside_jobs() {
    let bed = Bed::builder().without_operator().start().await;
    let team = bed.namespace("go-client").await;
    let bin = bed.folder().path().join("bin");
    fs::create_dir(&bin).unwrap();
    let consul = bin.join("consul");
    fs::write(&consul, CONSUL).unwrap();
    fs::set_permissions(&consul, fs::Permissions::from_mode(0o700)).unwrap();
    for case in &CASES {
        // They have deadlines of a second, for which this machine may sometimes be too slow.
        let mut failures = Vec::new();
        while let Err(said) = Box::pin(passes(&bed, &team, case, failures.len())).await {
            failures.push(said);
            assert!(failures.len() < 3, "{failures:#?}");
        }
    }
}

/// Runs one of the tests, after this many failures; returns its output if it fails.
async fn passes(bed: &Bed, team: &Namespace, case: &Case, failed: usize) -> Result<(), String> {
    let name = format!("{}-{failed}", case.test.to_lowercase());
    // As the tests would start it.
    let connect = json!({ "connect": { "enabled": true } });
    let consul = Consul::builder().config(connect).start().await;
    let address = consul.address().to_owned();
    let off = ["--leader-election", "off"];
    let env = [("CONSUL_HTTP_ADDR", address.clone())];
    let operator = bed.another_operator(&name, off, env);
    operator.start().await;
    let semaphore = team.semaphore(&name).prefix(case.prefix).limit(case.limit);
    let semaphore = semaphore.spec(json!({ "mode": case.mode })).create().await;
    semaphore.is_ready().await;
    let mut jobs = Vec::new();
    for number in 1..=case.jobs {
        let job = team.job(&format!("{name}-{number}")).semaphore(&name);
        jobs.push(job.runs("100ms").create().await);
    }

    let (said, passed) = run(bed, case.test, &address).await;
    let ran = format!("--- PASS: TestAPI_Semaphore{}", case.test);
    assert!(!passed || said.contains(&ran), "{said}");

    for job in &jobs {
        job.is_complete().await;
    }
    semaphore.is_ready().await;
    lock_key_is_as_it_should(&consul, case).await;
    semaphore.delete().await;
    semaphore.is_gone().await;
    operator.stop().await;
    if passed { Ok(()) } else { Err(said) }
}

/// Waits until a semaphore's lock key exists, which a test may have removed at the end; a mutex that nobody holds has
/// none.
async fn lock_key_is_as_it_should(consul: &Consul, case: &Case) {
    let limit = u64::try_from(case.limit).ok();
    let expected = limit.filter(|_| case.mode == "Semaphore");
    eventually("the lock key is as it should", || async {
        same(consul.limit(case.prefix).await, expected)
    })
    .await;
}

/// Runs one of the tests. Returns its output, and whether it passed.
async fn run(bed: &Bed, test: &str, consul: &str) -> (String, bool) {
    let bin = bed.folder().path().join("bin");
    let path = std::env::var("PATH").unwrap();
    let program = |name| server(name).unwrap().canonicalize().unwrap();
    let mut command = Command::new(program("go-client.test"));
    command
        .args(["-test.v", "-test.run"])
        .arg(format!("^TestAPI_Semaphore{test}$"))
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("GO_CLIENT", program("go-client"))
        .env("CONSUL_TOOL", program("consul"))
        .env("REAL_CONSUL", consul.trim_start_matches("http://"))
        .current_dir(bed.folder().path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(PATIENCE, command.output()).await;
    let output = output.expect("an end in time").expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (said, output.status.success())
}
