//! The program as its user meets it: flags, environment, help. No server is needed.

use std::fs;

use testbed::{
    Folder,
    command_line::{Program, assert_says, text},
};

const PROGRAM: Program = Program::at(env!("CARGO_BIN_EXE_consul-semaphore"));

#[test]
fn without_a_command_it_shows_its_commands() {
    let said = PROGRAM.refusal(&[], &[]);
    assert_says(
        &said,
        &[
            "exec", "acquire", "renew", "held", "list", "show", "watch", "release",
        ],
    );
    assert!(!said.contains("become"), "{said}");
}

#[test]
fn what_a_command_in_a_slot_needs_is_asked_for() {
    let exec = |flags: &[&'static str]| {
        let needed = ["exec", "--prefix=a/b", "--limit=1"];
        [&needed[..], flags, &["--", "true"]].concat()
    };
    assert_says(
        &PROGRAM.refusal(&["exec", "--", "true"], &[]),
        &["--prefix", "--limit"],
    );
    assert_says(&PROGRAM.refusal(&exec(&[])[..3], &[]), &["<COMMAND>"]);
    for (flag, allowed) in [
        ("--prefix=a//b", "a//b"),
        ("--limit=0", "from 1 to 5000"),
        ("--key=a/b", "a key has"),
        ("--mode=lock", "possible values: semaphore, mutex"),
        ("--ttl=9s", "from 10s to 86400s"),
        ("--lock-delay=61s", "from 0s to 60s"),
        ("--on-slot-lost=die", "possible values: terminate, continue"),
        ("--kill-after=30s", "set at most 29s"),
        ("--name=a/b", "1 to 63 letters"),
    ] {
        let flags = match flag.split_once('=') {
            Some(("--prefix", _)) => vec!["exec", flag, "--limit=1", "--", "true"],
            Some(("--limit", _)) => vec!["exec", flag, "--prefix=a", "--", "true"],
            _ => exec(&[flag]),
        };
        assert_says(&PROGRAM.refusal(&flags, &[]), &[allowed]);
    }
    assert_says(
        &PROGRAM.refusal(&exec(&["--try", "--wait-for=1s"]), &[]),
        &["--try", "cannot be used with"],
    );
    let several = |flags: &[&'static str]| {
        let flags = [&["exec"], flags, &["--", "true"]].concat();
        PROGRAM.refusal(&flags, &[])
    };
    let db = "--semaphore=prefix=db,limit=2";
    for (flags, said) in [
        (vec![db, "--prefix=a"], "cannot be used with"),
        (vec![db, "--limit=1"], "cannot be used with"),
        (vec![db, "--key=a"], "cannot be used with"),
        (vec![db, "--mode=mutex"], "cannot be used with"),
        (vec![db, db], "db is named twice"),
        (
            vec![
                db,
                "--semaphore=prefix=a,limit=1,key=b",
                "--semaphore=prefix=a/b,limit=1",
            ],
            "a/b is named twice",
        ),
        (vec![db; 9], "1 to 8 semaphores, not of 9"),
        (
            vec!["--semaphore=prefix=db,limit=2,slots=3"],
            "db has 2 slots",
        ),
        (
            vec!["--semaphore=prefix=db,limit=2,mode=mutex"],
            "db is a mutex, which has one slot",
        ),
        (
            vec![
                "--semaphore=prefix=a,limit=90,slots=50",
                "--semaphore=prefix=b,limit=1",
            ],
            "at most 50 slots in all, not for 51",
        ),
        (
            vec!["--semaphore=prefix=db,limit=2,lock=1"],
            "\"lock\" is unknown: write prefix=PREFIX",
        ),
    ] {
        assert_says(&several(&flags), &["--semaphore", said]);
    }
    // Without a token, anybody may end anybody's sessions.
    let elsewhere = ("CONSUL_HTTP_ADDR", "consul.example:8500");
    for (flags, variables) in [
        (vec![], vec![elsewhere, ("CONSUL_HTTP_TOKEN", "s3cr3t")]),
        (vec!["--consul-token-file=/t"], vec![elsewhere]),
        (vec!["--consul-auth-method=jwt"], vec![elsewhere]),
        (
            vec!["--no-node-checks"],
            vec![("CONSUL_HTTP_TOKEN", "s3cr3t")],
        ),
    ] {
        let flags = [&["--try"], &flags[..]].concat();
        let said = PROGRAM.refusal(&exec(&flags), &variables);
        assert_says(&said, &["--node", "exec-team-a"]);
        assert!(!said.contains("s3cr3t"), "{said}");
    }
    let ttl = ("CONSUL_SEMAPHORE_TTL", "1s");
    assert_says(
        &PROGRAM.refusal(&exec(&[]), &[ttl]),
        &["environment variable CONSUL_SEMAPHORE_TTL"],
    );
}

#[test]
fn what_the_steps_of_a_pipeline_need_is_asked_for() {
    let acquire = |flags: &[&'static str]| {
        let needed = ["acquire", "--prefix=a/b", "--limit=1"];
        PROGRAM.refusal(&[&needed[..], flags].concat(), &[])
    };
    for (flags, said) in [
        (vec![], "--for <DURATION>"),
        (vec!["--for=25h"], "from 10s to 86400s"),
        (vec!["--for=9s"], "from 10s to 86400s"),
        (vec!["--for=1h", "--purpose=a/b"], "1 to 63 letters"),
        (
            vec!["--for=1h", "--output=xml"],
            "possible values: env, shell, json",
        ),
        (
            vec!["--for=1h", "--mode=rate", "--period=1m"],
            "can't be released",
        ),
    ] {
        assert_says(&acquire(&flags), &[said]);
    }
    assert_says(
        &PROGRAM.refusal(&["renew"], &[]),
        &["--lock-key", "--session"],
    );
    assert_says(
        &PROGRAM.refusal(&["release"], &[]),
        &["the prefix and the session", "`acquire` has printed"],
    );
    assert_says(&PROGRAM.refusal(&["release", "a/b"], &[]), &["<SESSION>"]);
}

#[test]
fn help_tells_of_every_environment_variable_of_consul() {
    for command in ["exec", "held", "list", "show", "watch", "release"] {
        let output = PROGRAM.run(&[command, "--help"], &[]);
        assert!(output.status.success());
        assert_says(
            &text(output.stdout),
            &[
                "[env: CONSUL_HTTP_ADDR]",
                "[env: CONSUL_HTTP_TOKEN_FILE]",
                "[env: CONSUL_CACERT]",
                "CONSUL_HTTP_TOKEN ",
                "CONSUL_TLS_SERVER_NAME",
                "CONSUL_NAMESPACE",
            ],
        );
    }
}

#[test]
fn the_help_of_each_command_has_an_example() {
    for command in [
        "exec",
        "acquire",
        "renew",
        "held",
        "list",
        "show",
        "watch",
        "release",
        "completion",
        "manual",
    ] {
        let help = text(PROGRAM.run(&[command, "--help"], &[]).stdout);
        let example = format!("\n  consul-semaphore {command}");
        let is_there = help.contains(&example) || help.contains("source <(consul-semaphore comp");
        assert!(help.contains("Example") && is_there, "{help}");
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = Folder::new().unwrap();
    let path = folder.path().to_str().unwrap();
    assert!(PROGRAM.run(&["manual", path], &[]).status.success());
    let page = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_says(&page("consul-semaphore.1"), &["exec", "acquire", "release"]);
    let exec = page("consul-semaphore-exec.1");
    assert_says(&exec, &["wait\\-for", "CONSUL_HTTP_ADDR", "Exit code"]);
    let hidden = folder.path().join("consul-semaphore-become.1");
    assert!(!hidden.exists(), "nobody calls it");

    let nowhere = PROGRAM.run(&["manual", "/nowhere/at/all"], &[]);
    assert_eq!(nowhere.status.code(), Some(71));
    assert_says(&text(nowhere.stderr), &["/nowhere/at/all: No such file"]);
}
