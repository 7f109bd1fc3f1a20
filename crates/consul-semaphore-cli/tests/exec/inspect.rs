//! Who holds slots and who waits, and slots that are taken from their holders.

use std::{
    fs,
    io::{BufRead as _, BufReader, pipe},
    os::fd::OwnedFd,
    process::{Output, Stdio},
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags, open},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::{Value, json};
use testbed::{Consul, SEMAPHORE_FLAGS, eventually};
use tokio::time::sleep;

use crate::stage::{PREFIX, Running, Stage};

/// What our program answers.
async fn asked(stage: &Stage, arguments: &str) -> Output {
    let arguments: Vec<_> = arguments.split_whitespace().collect();
    stage.program(&arguments).output().await.unwrap()
}

/// The answer, which must be a good one.
async fn told(stage: &Stage, arguments: &str) -> String {
    let output = asked(stage, arguments).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

async fn json_of(stage: &Stage, arguments: &str) -> Value {
    serde_json::from_str(&told(stage, &format!("{arguments} -o json")).await).unwrap()
}

/// The exit code and what it says, of a command that can't do what it was asked to.
async fn refused(stage: &Stage, arguments: &str) -> (i32, String) {
    let output = asked(stage, arguments).await;
    assert_eq!(output.stdout, b"", "{arguments}");
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), said)
}

/// A terminal that a program can read from, and its other side, on which a person types.
fn terminal() -> (OwnedFd, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let terminal = open(
        name.as_c_str(),
        OFlags::RDWR | OFlags::NOCTTY,
        Mode::empty(),
    )
    .unwrap();
    (ours, terminal)
}

/// What our program says at a terminal on which this is typed.
async fn answered(stage: &Stage, arguments: &str, answer: &str) -> (i32, String) {
    let (ours, terminal) = terminal();
    rustix::io::write(&ours, answer.as_bytes()).unwrap();
    let arguments: Vec<_> = arguments.split_whitespace().collect();
    let mut program = stage.program(&arguments);
    let output = program.stdin(Stdio::from(terminal)).output().await.unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// A holder that is ours, one that is not, and one of ours that waits.
async fn three(stage: &Stage) -> [Running; 3] {
    let ours = stage.exec("--limit 2 --name ci-7", "note ours; wait_for ours");
    stage.noted("ours").await;
    let theirs = stage.consul_lock(2, "note theirs; wait_for theirs");
    stage.noted("theirs").await;
    let waits = stage.exec("--limit 2 --priority 7", "note waited");
    eventually("it has a contender", async || {
        match stage.consul.contenders(PREFIX).await.len() {
            3 => Ok(()),
            other => Err(format!("{other} contenders")),
        }
    })
    .await;
    [ours, theirs, waits]
}

#[tokio::test]
async fn holders_and_those_who_wait_are_shown() {
    let stage = Stage::new().await;
    let _three = three(&stage).await;
    let _mutex = stage.consul_lock_at("shared/one", 1, "note one; wait_for one");
    stage.noted("one").await;
    let rate = "--prefix other/api --mode rate --limit 5 --period 1h";
    let _rate = stage.start(stage.command_with(rate, "note called"));
    stage.noted("called").await;

    let all = json_of(&stage, "list").await;
    let expected = json!([
        { "prefix": "other/api", "kind": "rate", "limit": 5, "held": 1, "waiting": 0, "periodSeconds": 3600 },
        { "prefix": PREFIX, "kind": "semaphore", "limit": 2, "held": 2, "waiting": 1 },
        { "prefix": "shared/one", "kind": "mutex", "limit": 1, "held": 1, "waiting": null },
    ]);
    assert_eq!(all, expected);
    assert_eq!(
        json_of(&stage, "list other")
            .await
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let table = told(&stage, "list shared").await;
    let rows: Vec<Vec<_>> = table
        .lines()
        .map(|row| row.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["PREFIX", "KIND", "LIMIT", "HELD", "WAITING"]);
    assert_eq!(rows[1], [PREFIX, "semaphore", "2", "2", "1"]);
    assert_eq!(rows[2], ["shared/one", "mutex", "1", "1", "-"]);

    let shown = json_of(&stage, &format!("show {PREFIX}")).await;
    let who = |of: &Value| {
        [&of["kind"], &of["name"], &of["where"]].map(|word| word.as_str().unwrap().to_owned())
    };
    let holders = shown["holders"].as_array().unwrap();
    assert_eq!(who(&holders[0]), ["Process", "sh", "ci-7"]);
    assert_eq!(who(&holders[1])[0], "Program");
    assert_eq!(who(&holders[1])[2], "bed", "the node of its session");
    assert!(
        holders[0]["fencingToken"].is_u64() && holders[1]["fencingToken"].is_null(),
        "{shown}"
    );
    let waiter = &shown["waiters"][0];
    assert_eq!(
        (&waiter["kind"], &waiter["priority"]),
        (&json!("Process"), &json!(7))
    );
    let text = told(&stage, &format!("show {PREFIX}")).await;
    for words in [
        "semaphore: 2 of 2 held, 1 waiting",
        holders[0]["session"].as_str().unwrap(),
        holders[1]["session"].as_str().unwrap(),
        waiter["session"].as_str().unwrap(),
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    let mutex = told(&stage, "show shared/one").await;
    assert!(
        mutex.contains("Consul does not show who waits for a mutex"),
        "{mutex}"
    );
}

#[tokio::test]
async fn a_slot_is_taken_from_its_holder_and_from_nobody_else() {
    let stage = Stage::new().await;
    let [mut ours, _theirs, mut waits] = three(&stage).await;
    let shown = json_of(&stage, &format!("show {PREFIX}")).await;
    let session = |of: &Value| of["session"].as_str().unwrap().to_owned();
    let (holder, other) = (session(&shown["holders"][0]), session(&shown["holders"][1]));
    let waiter = session(&shown["waiters"][0]);
    let nobody = "00000000-0000-4000-8000-000000000000";
    for (arguments, code, words) in [
        (format!("{PREFIX} {holder}"), 2, "set --yes"),
        (format!("{PREFIX} {waiter} --yes"), 1, "only waits"),
        (format!("{PREFIX} {nobody} --yes"), 1, "has no slot"),
        (format!("shared/none {holder} --yes"), 1, "has no slot"),
        (format!("{PREFIX} a/b --yes"), 2, "can't be a session's id"),
    ] {
        let (exit, said) = refused(&stage, &format!("release {arguments}")).await;
        assert_eq!(exit, code, "{said}");
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }

    let release = format!("release {PREFIX} {holder}");
    let (code, said) = answered(&stage, &release, "no\n").await;
    assert!(
        code == 1 && said.contains("the answer was not yes"),
        "{said}"
    );
    assert!(stage.consul.holders(PREFIX).await.contains(&holder));
    let (code, said) = answered(&stage, &release, "yes\n").await;
    assert!(code == 0 && said.contains("Process sh on ci-7"), "{said}");
    assert!(said.contains("exits with 79"), "{said}");
    ours.ends_with(79).await;
    // After the lock-delay.
    waits.ends_with(0).await;
    assert!(stage.consul.holders(PREFIX).await.contains(&other));
}

/// It was asked about a holder that lives: what is dead by now may hold something else with its session.
#[tokio::test]
async fn what_has_changed_while_it_was_asked_is_not_released() {
    let stage = Stage::new().await;
    let holder = stage.consul.take_slot(PREFIX, 1).await;
    let (ours, terminal) = terminal();
    let mut program = stage.program(&["release", PREFIX, &holder]);
    program.stdin(Stdio::from(terminal));
    let mut asks = stage.start(program);
    asks.says("Release it?").await;
    let contender = format!("{PREFIX}/{holder}");
    let path = format!("kv/{contender}?release={holder}");
    stage.consul.put_json(&path, json!({})).await;
    rustix::io::write(&ours, b"yes\n").unwrap();
    let said = asks.ends_with(1).await;
    assert!(said.contains("has changed"), "{said}");
    let sessions = stage.consul.sessions().await;
    assert!(sessions.iter().any(|session| session["ID"] == *holder));
    assert_eq!(stage.consul.holders(PREFIX).await, [holder].into());
}

/// All remove the same one, while others take slots and give them back.
#[tokio::test]
async fn a_dead_holder_is_removed_once_while_others_come_and_go() {
    let stage = Stage::new().await;
    let alive = stage.consul.take_slot(PREFIX, 3).await;
    let dead = stage.consul.take_slot(PREFIX, 3).await;
    stage.consul.destroy_session(&dead).await;
    let release = format!("release {PREFIX} {dead} --yes");
    let come_and_go = async {
        for _ in 0..3 {
            stage
                .exec("--limit 3 --lock-delay 60s", "true")
                .ends_with(0)
                .await;
        }
    };
    let (first, second, third, ()) = tokio::join!(
        asked(&stage, &release),
        asked(&stage, &release),
        asked(&stage, &release),
        come_and_go,
    );
    let mut removed = 0;
    for output in [first, second, third] {
        let said = String::from_utf8(output.stderr).unwrap();
        match output.status.code() {
            Some(0) => removed += 1,
            code => assert!(code == Some(1) && said.contains("has no slot"), "{said}"),
        }
    }
    assert!(removed > 0);
    assert_eq!(stage.consul.holders(PREFIX).await, [alive].into());
    assert_eq!(stage.consul.limit(PREFIX).await, Some(3));
}

#[tokio::test]
async fn a_dead_holder_is_removed_and_the_others_stay() {
    let stage = Stage::new().await;
    let alive = stage.consul.take_slot(PREFIX, 3).await;
    let dead = stage.consul.take_slot(PREFIX, 3).await;
    stage.consul.destroy_session(&dead).await;
    let shown = told(&stage, &format!("show {PREFIX}")).await;
    assert!(shown.contains("dead"), "{shown}");
    let said = told(&stage, &format!("release {PREFIX} {dead} --yes")).await;
    assert!(said.contains("removed"), "{said}");
    let left: Vec<_> = stage.consul.holders(PREFIX).await.into_iter().collect();
    assert_eq!(left, [alive]);
    assert_eq!(stage.consul.limit(PREFIX).await, Some(3));
    let (code, _) = refused(&stage, &format!("release {PREFIX} {dead} --yes")).await;
    assert_eq!(code, 1);

    // A mutex is its own lock key.
    let _mutex = stage.consul_lock_at("shared/one", 1, "note one; wait_for one");
    stage.noted("one").await;
    let shown = json_of(&stage, "show shared/one").await;
    let holder = shown["holders"][0]["session"].as_str().unwrap();
    told(&stage, &format!("release shared/one {holder} --yes")).await;
    let lock = stage.consul.kv("shared/one/.lock").await;
    assert!(lock.is_none_or(|lock| lock.session.is_none()));
}

#[tokio::test]
async fn changes_are_told_until_a_signal_comes() {
    let stage = Stage::new().await;
    let there = stage.consul.take_slot("shared/there", 1).await;
    let told = stage.folder().join("changes");
    let mut watch = stage.program(&["watch", "shared", "-o", "json"]);
    watch.stdout(fs::File::create(&told).unwrap());
    let mut watch = stage.start(watch);
    let changes = || -> Vec<Value> {
        let told = fs::read_to_string(&told).unwrap();
        // The last line may not be whole yet.
        told.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    };
    let happens = async |prefix: &str, change: &str, kind: &str| {
        eventually(&format!("{change} {kind} at {prefix}"), async || {
            let is_it = |one: &Value| {
                one["prefix"] == prefix
                    && one["change"] == change
                    && one["kind"].as_str().unwrap_or_default() == kind
            };
            if changes().iter().any(is_it) {
                Ok(())
            } else {
                Err(format!("{:?}", changes()))
            }
        })
        .await;
    };
    happens("shared/there", "held", "Program").await;

    let mut ours = stage.exec("", "note ours; wait_for ours");
    happens(PREFIX, "limit", "").await;
    happens(PREFIX, "granted", "Process").await;
    stage.open("ours");
    ours.ends_with(0).await;
    happens(PREFIX, "released", "Process").await;
    happens(PREFIX, "unused", "").await;
    stage.consul.destroy_session(&there).await;
    happens("shared/there", "dead", "Program").await;
    let body = json!({ "Limit": 4, "Holders": {} }).to_string();
    stage
        .consul
        .put("shared/there/.lock", SEMAPHORE_FLAGS, body)
        .await;
    happens("shared/there", "pruned", "Program").await;
    watch.signal("TERM").await;
    watch.ends_with(0).await;
    assert!(changes().iter().all(|change| change["time"].is_string()));
}

#[tokio::test]
async fn a_lock_key_that_can_not_be_read_tells_no_false_changes() {
    let stage = Stage::new().await;
    let holder = stage.consul.take_slot(PREFIX, 2).await;
    let told = stage.folder().join("changes");
    let mut watch = stage.program(&["watch", PREFIX]);
    watch.stdout(fs::File::create(&told).unwrap());
    let mut watch = stage.start(watch);
    let says = async |words: &str| {
        eventually(&format!("it says {words}"), async || {
            let said = fs::read_to_string(&told).unwrap();
            if said.contains(words) {
                Ok(())
            } else {
                Err(said)
            }
        })
        .await;
    };
    says("held").await;
    let lock = format!("{PREFIX}/.lock");
    stage.consul.put(&lock, SEMAPHORE_FLAGS, "junk").await;
    says("unreadable").await;
    let body = json!({ "Limit": 4, "Holders": { &holder: true } });
    stage
        .consul
        .put(&lock, SEMAPHORE_FLAGS, body.to_string())
        .await;
    says("limit 4").await;
    watch.signal("TERM").await;
    watch.ends_with(0).await;
    let said = fs::read_to_string(&told).unwrap();
    for word in [" released", " granted", " waiting", " dead", " left"] {
        assert!(!said.contains(word), "{said}");
    }
}

#[tokio::test]
async fn a_watch_needs_a_prefix() {
    let stage = Stage::new().await;
    let (code, said) = refused(&stage, "watch").await;
    assert!(code == 2 && said.contains("PREFIX"), "{said}");
}

#[tokio::test]
async fn what_the_token_may_not_read_is_said_beside_the_rest() {
    let stage = Stage::with(Consul::builder().acls("root")).await;
    let lock = json!({ "Limit": 3, "Holders": {} }).to_string();
    for prefix in ["team/open", "team/half"] {
        let lock_key = format!("{prefix}/.lock");
        let lock = lock.as_str();
        stage.consul.put(&lock_key, SEMAPHORE_FLAGS, lock).await;
    }
    let rules = r#"key_prefix "team/" { policy = "read" } key_prefix "team/half/secret" { policy = "deny" }"#;
    stage.consul.put("team/half/secret", 0, "x").await;
    let policy = json!({ "Name": "half", "Rules": rules });
    stage.consul.put_json("acl/policy", policy).await;
    let token = json!({ "Policies": [{ "Name": "half" }] });
    let token = stage.consul.put_json("acl/token", token).await;
    let mut list = stage.program(&["list", "team", "-o", "json"]);
    list.env("CONSUL_HTTP_TOKEN", token["SecretID"].as_str().unwrap());
    let output = list.output().await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("the token may not read some keys"), "{said}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all[0]["prefix"], "team/half");
    assert_eq!(
        (&all[0]["limit"], &all[0]["waiting"]),
        (&json!(3), &Value::Null)
    );
    let problem = all[0]["problem"].as_str().unwrap();
    assert!(problem.contains("the token may not read"), "{problem}");
    assert_eq!(
        (&all[1]["prefix"], &all[1]["waiting"]),
        (&json!("team/open"), &json!(0))
    );
}

#[tokio::test]
async fn a_watch_ends_with_its_reader() {
    let stage = Stage::new().await;
    let session = stage.consul.take_slot(PREFIX, 1).await;
    let (reader, writer) = pipe().unwrap();
    let mut watch = stage.program(&["watch", PREFIX]);
    watch.stdout(Stdio::from(writer));
    let mut watch = stage.start(watch);
    let first = tokio::task::spawn_blocking(|| {
        let mut lines = BufReader::new(reader).lines();
        lines.next().unwrap().unwrap()
    });
    let first = first.await.unwrap();
    assert!(first.ends_with("shared/db limit 1"), "{first}");
    stage.consul.give_back(PREFIX, &session).await;
    watch.ends_with(0).await;
}

/// Text of others that would control a terminal, or look like lines of the program's own.
const EVIL: &str = "\u{1b}[2J\u{202e}\nforged 1 of 1\r";

/// The same, and very long.
fn long() -> String {
    format!("{EVIL}{}", "x".repeat(100_000))
}

/// Panics unless what a command says is short and controls nothing.
fn is_harmless(command: &str, said: &str) {
    let controls = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(
        !said.contains(controls) && !said.contains("\nforged"),
        "{command}: {said:?}"
    );
    assert!(!said.contains("rm\""), "{said}");
    assert!(said.len() < 4000, "{command} says {} bytes", said.len());
}

/// Holders with all that others can write, of which two have sessions: these are returned.
async fn hostile_holders(stage: &Stage) -> [String; 2] {
    let consul = &stage.consul;
    let named = json!({ "Name": long()[..2000].to_owned() });
    let session = consul.create_session(named).await;
    let body = json!({
        "cluster": long(), "clusterId": long(), "kind": EVIL, "namespace": EVIL, "name": long(), "uid": EVIL,
        "semaphore": EVIL, "time": "2026-01-01T00:00:00Z",
    });
    let key = format!("kv/{PREFIX}/{session}?acquire={session}&flags={SEMAPHORE_FLAGS}");
    consul.put_json(&key, body).await;
    let named = json!({ "Name": format!("a{EVIL}b") });
    let unnamed = consul.create_session(named).await;
    let key = format!("kv/{PREFIX}/{unnamed}?acquire={unnamed}");
    consul.put_json(&key, json!(long())).await;
    let holders = json!({ &session: true, &unnamed: true, "no-session;rm": true });
    let lock = json!({ "Limit": 3, "Holders": holders }).to_string();
    let lock_key = format!("{PREFIX}/.lock");
    consul.put(&lock_key, SEMAPHORE_FLAGS, lock).await;
    [session, unnamed]
}

#[tokio::test]
async fn what_others_write_controls_nothing_where_a_slot_is_released_or_watched() {
    let stage = Stage::new().await;
    for session in hostile_holders(&stage).await {
        let release = format!("release {PREFIX} {session}");
        let (code, said) = answered(&stage, &release, "no\n").await;
        assert!(code == 1 && said.contains("The holder is"), "{said}");
        is_harmless(&release, &said);
    }
    for format in [&["watch", PREFIX][..], &["watch", PREFIX, "-o", "json"]] {
        let told = stage.folder().join("told");
        let mut watch = stage.program(format);
        watch.stdout(fs::File::create(&told).unwrap());
        let mut watch = stage.start(watch);
        eventually("all holders are told", async || {
            let said = fs::read_to_string(&told).unwrap();
            match said.lines().count() {
                4.. => Ok(()),
                _ => Err(said),
            }
        })
        .await;
        watch.signal("TERM").await;
        watch.ends_with(0).await;
        is_harmless("watch", &fs::read_to_string(&told).unwrap());
    }
}

#[tokio::test]
async fn what_others_write_is_cut_and_controls_nothing() {
    let stage = Stage::new().await;
    hostile_holders(&stage).await;
    let consul = &stage.consul;
    consul.put("shared/junk/.lock", 0, long()).await;
    consul.put("shared/a%20b/.lock", 0, "{}").await;
    // A little more than a listing may have.
    for number in 0..36 {
        let key = format!("shared/big/{number}");
        consul.put(&key, 0, "x".repeat(500_000)).await;
    }
    let big = json!({ "Limit": 1, "Holders": {} }).to_string();
    consul.put("shared/big/.lock", SEMAPHORE_FLAGS, big).await;

    for command in [
        "list",
        "list -o json",
        &format!("show {PREFIX}"),
        &format!("show {PREFIX} -o json"),
        "show shared/junk",
    ] {
        let output = asked(&stage, command).await;
        let said = format!(
            "{}{}",
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap()
        );
        assert!(output.status.success(), "{command}: {said}");
        is_harmless(command, &said);
    }
    let all = json_of(&stage, "list").await;
    let of = |prefix: &str| {
        all.as_array()
            .unwrap()
            .iter()
            .find(|one| one["prefix"] == prefix)
            .unwrap()
            .clone()
    };
    assert_eq!(of("shared/junk")["kind"], "unreadable");
    assert_eq!(of("shared/big")["waiting"], Value::Null, "{all}");
    assert_eq!(of(PREFIX)["held"], 3);
    let (code, said) = refused(&stage, "show shared/big").await;
    assert!(code == 78 && said.contains("a longer prefix"), "{said}");
    let (code, said) = refused(&stage, "release shared/junk a --yes").await;
    assert!(code == 1 && said.contains("is not JSON"), "{said}");
}

#[tokio::test]
async fn a_datacenter_that_is_named_is_asked() {
    let stage = Stage::new().await;
    told(&stage, "list --consul-datacenter dc1").await;
    let (code, said) = refused(&stage, "list --consul-datacenter dc9").await;
    assert!(code == 78 && said.contains("--consul-datacenter"), "{said}");
}

/// As a server that is busy beyond measure: it is asked because of that.
#[tokio::test]
async fn who_only_asks_waits_longer_than_a_holder_may() {
    let stage = Stage::new().await;
    stage.consul.pause().await;
    let mut list = stage.start(stage.program(&["list"]));
    // Longer than the call of a holder may take.
    sleep(Duration::from_secs(12)).await;
    stage.consul.resume().await;
    list.ends_with(0).await;
}

#[tokio::test]
async fn what_can_not_be_told_is_explained_with_an_exit_code() {
    let stage = Stage::with(Consul::builder().acls("root")).await;
    let without = "00000000-0000-4000-8000-00000000beef";
    for command in [
        "list",
        "list team",
        "show team/db",
        "watch team",
        "release team/db a --yes",
    ] {
        let (code, said) = refused(&stage, command).await;
        assert_eq!(
            (code, said.contains("docs/slots.md")),
            (77, true),
            "{command}: {said}"
        );
        let mut unknown = stage.program(&command.split_whitespace().collect::<Vec<_>>());
        let output = unknown
            .env("CONSUL_HTTP_TOKEN", without)
            .output()
            .await
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(77), "{said}");
        assert!(said.contains("does not know the token"), "{said}");
        let away = format!("{command} --consul-address 127.0.0.1:1");
        let (code, said) = refused(&stage, &away).await;
        assert_eq!(
            (code, said.contains("CONSUL_HTTP_ADDR")),
            (69, true),
            "{said}"
        );
    }
    let mut known = stage.program(&["list", "team"]);
    let output = known
        .env("CONSUL_HTTP_TOKEN", "root")
        .output()
        .await
        .unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "there are no semaphores below team/\n"
    );
    let mut known = stage.program(&["show", "team/db"]);
    let output = known
        .env("CONSUL_HTTP_TOKEN", "root")
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(78));
}

#[tokio::test]
async fn shells_are_told_how_to_complete() {
    let stage = Stage::new().await;
    for shell in ["bash", "zsh", "fish"] {
        let script = told(&stage, &format!("completion {shell}")).await;
        for word in ["release", "kill-after"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        assert!(!script.contains("become"), "{shell}");
    }
}
