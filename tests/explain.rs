//! What `tests/run` says of a run that failed: `tests/explain` reads it from the output of the tests.
#![allow(clippy::expect_used, reason = "a test that cannot go on says so")]

use std::{
    env, fs,
    io::Write as _,
    process::{self, Command, Stdio},
};

/// What is said of this output of the tests.
fn explained(output: &str) -> String {
    let mut explain = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/explain"));
    let mut explain = explain
        .env_remove("KUBERNETES")
        .env("CONSUL", "1.20")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = explain.stdin.take().expect("a pipe");
    stdin.write_all(output.as_bytes()).expect("it reads");
    drop(stdin);
    let said = explain.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{}", said.status);
    String::from_utf8(said.stdout).expect("UTF-8")
}

const GOOD: &str = "
     Running tests/cli.rs (target/debug/deps/cli-1)

running 1 test
test it_lives ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

";

const FAILED: &str = "
     Running tests/journeys/main.rs (target/debug/deps/journeys-1)

running 3 tests
test fair::first ... ok
test hand_over::one ... FAILED
test rates::two ... FAILED

failures:

---- hand_over::one stdout ----
failures:
    not_a_test
thread 'hand_over::one' panicked at tests/journeys/hand_over.rs:7:5:
the servers' logs are kept in /tmp/bed-1-1

---- rates::two stdout ----
thread 'rates::two' panicked at tests/journeys/rates.rs:7:5:


failures:
    hand_over::one
    rates::two

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 9.01s

";

#[test]
fn each_test_that_failed_is_named_with_its_logs_and_the_command_that_runs_it() {
    let rerun = "error: test failed, to rerun pass `-p operator --test journeys`\n";
    let said = explained(&format!("{GOOD}{FAILED}{rerun}"));
    let expected = [
        "  hand_over::one, with the logs of its servers in /tmp/bed-1-1",
        "    CONSUL=1.20 cargo test --locked -p operator --test journeys -- --exact hand_over::one",
        "  rates::two, with the logs of its servers in /tmp/bed-1-1",
        "    CONSUL=1.20 cargo test --locked -p operator --test journeys -- --exact rates::two",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_process_that_ended_early_is_named() {
    let killed = "\
running 2 tests
test fair::first ... ok
error: test failed, to rerun pass `--test journeys`

Caused by:
  process didn't exit successfully: `/journeys` (signal: 9, SIGKILL: kill)
";
    let said = explained(&format!("{GOOD}{killed}"));
    let expected = [
        "  --test journeys ended before its tests did",
        "    CONSUL=1.20 cargo test --locked --test journeys",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_name_of_a_doc_test_is_quoted() {
    let failed = "\
failures:
    src/lib.rs - Holder (line 7)

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

error: doctest failed, to rerun pass `-p library --doc`
";
    let said = explained(failed);
    let expected = "-p library --doc -- --exact 'src/lib.rs - Holder (line 7)'\n";
    assert!(said.ends_with(expected), "{said}");
}

#[test]
fn nothing_is_said_of_what_passed() {
    assert_eq!(explained(GOOD), "");
}

/// A function that bash takes from its environment and calls in place of cargo. Tests of libraries and programs fail
/// with it, and all others pass.
const CARGO: [&str; 2] = [
    "BASH_FUNC_cargo%%",
    r#"() { echo "cargo $*"; [[ $* != *"--no-fail-fast --workspace --lib --bins" ]] || return 101; }"#,
];

#[test]
fn a_failure_fails_the_run_and_ends_neither_its_lane_nor_another() {
    let folder = env::temp_dir().join(format!("tests-run-{}", process::id()));
    let run = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run"))
        .args(["units", "outages"])
        .env(CARGO[0], CARGO[1])
        .env("CARGO_TARGET_DIR", &folder)
        .output()
        .expect("it runs");
    fs::remove_dir_all(&folder).expect("the folder is ours");
    let said = String::from_utf8(run.stdout).expect("UTF-8");
    assert_eq!(run.status.code(), Some(1), "{said}");
    for line in [
        "cargo test --locked --no-fail-fast --workspace --doc",
        "cargo test --locked --no-fail-fast --workspace --test together",
        "tests: outages passed after",
        "tests: units FAILED, and",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}
