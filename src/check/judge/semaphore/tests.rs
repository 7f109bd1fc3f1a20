mod facts;

use std::time::Duration;

use serde_json::{Value, json};

use self::facts::{Facts, condition, name};
use super::*;
use consul_client::{Error, Session};
use consul_semaphore_api::TokenSecretRef;

#[test]
fn where_all_is_well_nothing_is_to_be_done() {
    let lines = Facts::new().lines();
    let well = lines
        .iter()
        .all(|line| line.outcome == Outcome::Ok && line.todo.is_none());
    assert!(well, "{lines:#?}");
    let whats: Vec<_> = lines.iter().map(|line| line.what.as_str()).collect();
    assert_eq!(
        whats,
        [
            "object",
            "condition Ready",
            "prefix",
            "lock",
            "waiting Jobs"
        ]
    );
}

#[test]
fn one_that_is_not_there_is_reported() {
    for (refusal, outcome, words) in [
        (
            ApiError::NotThere,
            Outcome::Failed,
            "there is no ConsulSemaphore db",
        ),
        (
            ApiError::Forbidden("may not".to_owned()),
            Outcome::Unknown,
            "may not",
        ),
        (
            ApiError::Failed("spec.limit: bad".to_owned()),
            Outcome::Failed,
            "spec.limit: bad",
        ),
    ] {
        let lines = lines(&name(), &Err(refusal));
        assert_eq!((lines.len(), lines[0].outcome), (1, outcome));
        assert!(
            lines[0].message.contains(words) && lines[0].todo.is_some(),
            "{lines:?}"
        );
    }
}

#[test]
fn one_that_no_operator_knows_is_reported() {
    let mut elsewhere = Facts::new();
    elsewhere.in_scope = false;
    elsewhere.assert("object", Outcome::Warning, &["--semaphore-selector"]);
    let mut new = Facts::new();
    new.object["status"] = Value::Null;
    new.assert(
        "object",
        Outcome::Warning,
        &["no operator has seen", "kubectl get pods"],
    );
    let mut changed = Facts::new();
    changed.object["metadata"]["generation"] = 2.into();
    changed.assert("object", Outcome::Warning, &["an earlier spec"]);
}

#[test]
fn the_report_repeats_the_conditions() {
    let mut facts = Facts::new();
    facts.conditions(&[
        condition("Ready", "True", "Paused"),
        condition("ConsulReachable", "False", "PermissionDenied"),
        condition("LimitAgreed", "Unknown", "Starting"),
        condition("SlotsAvailable", "False", "Paused"),
    ]);
    facts.assert("condition Ready", Outcome::Ok, &["Paused: Paused it is"]);
    facts.assert(
        "condition ConsulReachable",
        Outcome::Failed,
        &["reason PermissionDenied"],
    );
    facts.assert("condition LimitAgreed", Outcome::Unknown, &["Starting"]);
    facts.assert(
        "condition SlotsAvailable",
        Outcome::Warning,
        &["Paused: Paused it is"],
    );
    facts.conditions(&[condition("SlotsAvailable", "False", "AllSlotsHeld")]);
    facts.assert("condition SlotsAvailable", Outcome::Ok, &["AllSlotsHeld"]);
}

#[test]
fn a_prefix_that_is_not_allowed_is_not_read() {
    let mut facts = Facts::new();
    facts.barred = Some("not below semaphores/batch/".to_owned());
    facts.assert(
        "prefix",
        Outcome::Failed,
        &["not below", "--trusted-namespaces"],
    );
    facts.assert("slots", Outcome::Unknown, &["was not asked"]);
}

#[test]
fn a_token_of_its_own_must_be_there_and_readable() {
    let token = |allowed| CheckedToken {
        from: TokenSecretRef {
            name: "consul-token".to_owned(),
            key: "token".to_owned(),
        },
        problem: Some("there is no Secret".to_owned()),
        allowed,
    };
    for (allowed, outcome) in [(Ok(true), Outcome::Ok), (Ok(false), Outcome::Failed)] {
        let mut facts = Facts::new();
        facts.token = Some(token(allowed));
        facts.assert("Secret", outcome, &["consul-token"]);
    }
    let mut facts = Facts::new();
    facts.token = Some(token(Ok(true)));
    facts.assert("token", Outcome::Unknown, &["there is no Secret"]);
}

#[test]
fn a_ttl_that_consul_refuses_is_reported() {
    let mut facts = Facts::new();
    facts.shortest = 180;
    facts.assert(
        "session TTL",
        Outcome::Failed,
        &["120 s", "180 s", "180s or more"],
    );
}

/// It opens once in four years.
const LEAP_DAY: &str = "0 0 29 2 *";

#[test]
fn windows_say_when_they_open_and_which_never_do() {
    let window = |schedule: &str, limit: u32| json!({ "schedule": schedule, "duration": "1h", "limit": limit });
    let mut closed = Facts::new();
    closed
        .job("a", json!({}))
        .spec("windows", json!([window(LEAP_DAY, 1)]));
    let words = ["no slot is granted before 1972-02-29T00:00:00Z"];
    closed.assert("windows", Outcome::Ok, &words);
    closed.assert(
        "first: a",
        Outcome::Ok,
        &["outside spec.windows: no slot", "-02-29"],
    );

    let mut never = Facts::new();
    never.spec("windows", json!([window("0 0 30 2 *", 1)]));
    let lines = never.lines();
    let said: Vec<_> = lines.iter().filter(|line| line.what == "windows").collect();
    let [invalid, none] = said[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(invalid.outcome, Outcome::Warning);
    assert!(
        invalid
            .message
            .starts_with("spec.windows[0] never opens: no time")
    );
    assert_eq!(none.outcome, Outcome::Failed);

    let mut few = Facts::new();
    few.job("a", json!({}))
        .lock(&[LIVE])
        .contender(LIVE)
        .spec("windows", json!([window("* * * * *", 1)]));
    few.assert("windows", Outcome::Ok, &["a window is open, for 1 slots"]);
    let words = ["allows only 1 of 2 slots to be held", LIVE];
    few.assert("first: a", Outcome::Ok, &words);
}

#[test]
fn reserved_slots_that_leave_nothing_are_reported() {
    let mut all = Facts::new();
    all.spec("reserved", json!({ "slots": 2, "minPriority": 10 }));
    let words = [
        "leaves no slot for Jobs with a priority below 10",
        "fewer than 2",
    ];
    all.assert("reserved", Outcome::Warning, &words);
    let mut one = Facts::new();
    one.job("a", json!({}))
        .lock(&[LIVE])
        .contender(LIVE)
        .spec("reserved", json!({ "slots": 1, "minPriority": 10 }));
    one.assert("reserved", Outcome::Ok, &["the last 1 slots"]);
    one.assert("first: a", Outcome::Ok, &["1 of 2 slots to be held", LIVE]);
    one.jobs.clear();
    one.job("urgent", json!({ "consul-semaphore.io/priority": "10" }));
    one.assert(
        "first: urgent",
        Outcome::Warning,
        &["a slot is free and this Job is next"],
    );
}

#[test]
fn limits_that_differ_are_a_conflict_for_all() {
    let mut facts = Facts::new();
    facts
        .job("a", json!({}))
        .lock_of("semaphores/batch/db", 5, &[]);
    facts.assert(
        "lock",
        Outcome::Failed,
        &["limit is 5", "spec.limit is 2", "limitPolicy"],
    );
    facts.assert("first: a", Outcome::Ok, &["the limits don't agree"]);
    // A limit of ours, which may be changed.
    facts.object["status"]["appliedLimits"] = json!([2, 5]);
    facts.assert("lock", Outcome::Warning, &["will write the limit 2"]);
}

#[test]
fn a_lock_that_cannot_be_used_is_reported() {
    let mut facts = Facts::new();
    facts
        .job("a", json!({}))
        .entry("semaphores/batch/db/.lock", None, "mine");
    facts.assert(
        "lock",
        Outcome::Failed,
        &["is not JSON", "delete the key", "consul lock -n"],
    );
    facts.assert("first: a", Outcome::Ok, &["the lock can't be used"]);
}

#[test]
fn a_list_of_holders_is_reported() {
    let body = r#"{"Limit":2,"Holders":[]}"#;
    let mut facts = Facts::new();
    facts.entry("semaphores/batch/db/.lock", None, body);
    facts.assert("lock", Outcome::Ok, &["0 of 2 slots", "stored as a list"]);
}

const LIVE: &str = "00000000-0000-4000-8000-000000000001";
const DEAD: &str = "00000000-0000-4000-8000-000000000002";

#[test]
fn a_dead_holder_rests_and_takes_a_slot_until_then() {
    let mut facts = Facts::new();
    facts
        .job("a", json!({}))
        .lock(&[LIVE, DEAD])
        .contender(LIVE);
    facts.assert(
        "dead holders",
        Outcome::Warning,
        &["1 in Holders", DEAD, "15 s"],
    );
    let live = format!("session {LIVE}");
    facts.assert(
        "first: a",
        Outcome::Ok,
        &["no slot is free", &live, "which is dead"],
    );
}

#[test]
fn what_is_no_session_takes_a_slot_and_is_not_repeated() {
    let mut facts = Facts::new();
    facts
        .job("a", json!({}))
        .lock(&[LIVE, "x;id>PWNED;#"])
        .contender(LIVE);
    let words = ["1 in Holders", ": (no session). Their slots are free after"];
    facts.assert("dead holders", Outcome::Warning, &words);
    let words = [
        "no slot is free",
        "an entry that is not a session, which is dead",
    ];
    facts.assert("first: a", Outcome::Ok, &words);
}

#[test]
fn the_report_says_whose_turn_it_is() {
    let mut facts = Facts::new();
    facts.job("late", json!({}));
    facts.job("first", json!({ "consul-semaphore.io/priority": "5" }));
    facts.assert("waiting Jobs", Outcome::Ok, &["2, next first: first, late"]);
    facts.assert(
        "first: first",
        Outcome::Warning,
        &["this Job is next", "if this lasts"],
    );
    facts.lock(&["s1"]).contender("s1").contender("s2");
    facts.assert(
        "contenders of others",
        Outcome::Ok,
        &["1 of other clusters or programs wait: session s2"],
    );
    facts.assert(
        "first: first",
        Outcome::Ok,
        &["other clusters or programs wait (1)", "come first"],
    );
}

#[test]
fn a_contender_of_ours_is_not_one_of_others() {
    let mut facts = Facts::new();
    facts.job("a", json!({})).contender("s1");
    facts.sessions = Ok(vec![Session {
        id: "s1".into(),
        name: "consul-semaphore-operator/c-1/batch/db/a/uid-a".to_owned(),
        node: "k8s-c-1".to_owned(),
        ttl: None,
        lock_delay: Duration::ZERO,
        behavior: consul_client::Behavior::Delete,
        create_index: 3,
    }]);
    let lines = facts.lines();
    assert!(
        !lines.iter().any(|line| line.what == "contenders of others"),
        "{lines:#?}"
    );
    facts.assert("first: a", Outcome::Warning, &["this Job is next"]);
}

/// It may be the first Job's own.
#[test]
fn a_contender_that_may_be_ours_is_not_called_one_of_others() {
    let mut facts = Facts::new();
    facts.job("a", json!({})).contender("s1");
    facts.lock(&["s2"]).contender("s2");
    facts.sessions = Err(Unknown::Cluster);
    let others = "contenders of others";
    let words = ["may be this cluster's own", "the cluster id"];
    facts.assert(others, Outcome::Unknown, &words);
    facts.assert("first: a", Outcome::Unknown, &["see above"]);
    facts.sessions = Err(Error::TooManyRequests(String::new()).into());
    facts.assert(others, Outcome::Unknown, &["may be this cluster's own"]);
}

#[test]
fn what_the_spec_says_keeps_a_job_waiting() {
    let mut facts = Facts::new();
    facts.job("a", json!({})).spec("paused", true.into());
    facts.assert(
        "first: a",
        Outcome::Warning,
        &["spec.paused is true", "set spec.paused to false"],
    );
    let mut facts = Facts::new();
    facts.job("a", json!({}));
    facts.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    facts.assert("first: a", Outcome::Warning, &["is being deleted"]);
    let mut facts = Facts::new();
    facts.job("a", json!({})).entries.clear();
    facts.object["status"]["appliedLimits"] = json!([]);
    facts.assert(
        "first: a",
        Outcome::Warning,
        &["has not recorded the limit"],
    );
    facts.assert("lock", Outcome::Ok, &["does not exist yet"]);
}

#[test]
fn jobs_that_are_not_queued_are_reported() {
    let mut facts = Facts::new();
    facts.job("bad", json!({ "consul-semaphore.io/priority": "high" }));
    facts.job("held", json!({ "consul-semaphore.io/hold": "true" }));
    facts.assert(
        "Job not queued",
        Outcome::Warning,
        &["bad: ", "priority", "correct the Job"],
    );
    facts.assert("Jobs on hold", Outcome::Ok, &["held"]);
    facts.assert("waiting Jobs", Outcome::Ok, &["none"]);
}

#[test]
fn each_key_has_a_line_of_its_own() {
    let key = |key: &str| json!({ "consul-semaphore.io/key": key });
    let mut facts = Facts::new();
    facts.spec("keyed", true.into());
    facts
        .job("a", key("x"))
        .job("b", key("y"))
        .job("c", json!({}));
    let prefix = "semaphores/batch/db/x";
    facts.lock_of(prefix, 2, &["s1", "s2"]);
    facts.assert("x: first: a", Outcome::Ok, &["no slot is free"]);
    facts.assert("y: first: b", Outcome::Warning, &["this Job is next"]);
    facts.assert(
        "Job not queued",
        Outcome::Warning,
        &[
            "c: ConsulSemaphore db is keyed",
            "annotation consul-semaphore.io/key",
        ],
    );
    facts.assert("keys", Outcome::Ok, &["2 are in use"]);
}

#[test]
fn a_mutex_is_held_by_who_has_locked_it() {
    let mut facts = Facts::new();
    facts.spec("mode", "Mutex".into()).spec("limit", 1.into());
    facts.job("a", json!({})).entries.clear();
    facts.assert("lock", Outcome::Ok, &["the mutex", "is free"]);
    facts.assert("first: a", Outcome::Warning, &["this Job is next"]);
    facts.entry("semaphores/batch/db/.lock", Some(LIVE), "");
    facts.entries[0].flags = 0x2ddc_cbc0_58a5_0c18;
    let held = format!("held by session {LIVE}");
    facts.assert("lock", Outcome::Ok, &[&held]);
    facts.assert("first: a", Outcome::Ok, &["no slot is free"]);
}

#[test]
fn a_prefix_that_cannot_be_read_is_reported() {
    let mut facts = Facts::new();
    facts.unreadable = Some(Error::Denied("lacks 'key:read'".to_owned()));
    facts.assert(
        "slots",
        Outcome::Failed,
        &["lacks 'key:read'", "check the token"],
    );
}
