//! `Workload` of Kueue, with its owner beside it.

use std::{collections::BTreeMap, sync::Arc};

use consul_client::clock::Moment;
use consul_semaphore::{
    Blocked, Granted, Phase, Workload,
    engine::Write,
    plan::{Fail, Failed, GiveBack, Rename, Start, Stop, Suspend, Suspended},
};
use consul_semaphore_workload::{
    Kind, Object, Obstacle, Request, TrackedWorkload,
    kueue::{self, AdmissionCheck, Asked, Beside, Earlier},
};
use serde_json::{Value, json};

use crate::{SESSION, UID, applied, started};

const OTHERS: &str = "provisioning";
const OURS: &str = "slots";
const NEW: &str = "7e0b6a1c-2d9f-4c55-8a41-90c3f1d2b6e7";

fn now() -> jiff::Timestamp {
    "2026-01-01T00:00:20.5Z".parse().expect("a time")
}

fn condition(of: &str, status: &str) -> Value {
    json!({ "type": of, "status": status, "lastTransitionTime": "2026-01-01T00:01:00Z" })
}

/// One that has its quota, with another controller's check before ours.
fn reserved() -> Value {
    json!({
        "metadata": {
            "name": "job-train-3c2a1", "namespace": "batch", "uid": "its-own", "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:10Z",
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": UID, "controller": true,
            }],
        },
        "spec": { "active": true, "podSets": [
            { "name": "driver", "template": { "spec": { "terminationGracePeriodSeconds": 5 } } },
            { "name": "workers", "template": { "spec": { "terminationGracePeriodSeconds": 90 } } },
        ] },
        "status": {
            "conditions": [condition("QuotaReserved", "True")],
            "admissionChecks": [
                { "name": OTHERS, "state": "Ready", "message": "" },
                { "name": OURS, "state": "Pending", "message": "" },
            ],
        },
    })
}

fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut object = reserved();
    change(&mut object);
    object
}

/// With what its owner asks for.
fn beside(annotations: &[(&str, &str)]) -> Beside {
    let annotations = annotations.iter();
    let annotations = annotations
        .map(|(name, value)| (format!("consul-semaphore.io/{name}"), (*value).to_owned()));
    Beside {
        checks: Arc::new([OURS.to_owned()].into()),
        annotations: annotations.collect(),
        earlier: Earlier::Unknown,
    }
}

fn asks() -> Beside {
    beside(&[("semaphore", "db")])
}

fn object(object: &Value, beside: Beside) -> Object {
    let mut object: Object = serde_json::from_str(&object.to_string()).expect("an object");
    object.beside = Some(Arc::new(beside));
    object
}

fn read(value: &Value, beside: Beside) -> Option<TrackedWorkload> {
    let object = object(value, beside);
    TrackedWorkload::read_object(&Kind::KueueWorkload, &object, Moment::default()).expect("one")
}

fn tracked(value: &Value) -> TrackedWorkload {
    read(value, asks()).expect("it asks for a slot")
}

fn phase(value: &Value) -> Phase {
    tracked(value).workload.phase
}

fn sent(value: &Value, write: impl FnOnce(&TrackedWorkload) -> Write) -> Request {
    let tracked = tracked(value);
    let request = Kind::KueueWorkload.request(&write(&tracked), &tracked.shape, now());
    request.expect("it can be said")
}

fn start(tracked: &TrackedWorkload) -> Start {
    started(&tracked.workload)
}

fn granted() -> Value {
    let start = sent(&reserved(), |tracked| Write::Start(start(tracked)));
    applied(&reserved(), &start)
}

#[test]
fn it_waits_as_its_owner_says_once_it_has_its_quota() {
    let annotations = [
        ("semaphore", "db:2"),
        ("priority", "7"),
        ("wait-timeout", "30m"),
    ];
    let tracked = read(&reserved(), beside(&annotations)).expect("it asks");
    let workload = tracked.workload;
    assert!(workload.is_queued());
    assert_eq!(workload.uid, UID.into(), "it is its owner's");
    assert_eq!(
        (&*workload.name, workload.kind.as_str()),
        ("job-train-3c2a1", "Workload")
    );
    assert_eq!((workload.priority, workload.slots_asked()), (7, 2));
    assert_eq!(workload.grace.as_secs(), 90);
    // Of two that ask for the same, the one that was made later is the newer.
    let reserved = "2026-01-01T00:01:00Z"
        .parse::<jiff::Timestamp>()
        .expect("a time");
    assert_eq!(workload.since, reserved.as_second());
    assert_eq!(workload.wait.created + 50, reserved.as_second());
    assert_eq!(tracked.obstacle, None);
}

/// What an operator knows of its wait that sees these versions, each at so many seconds after it was made.
fn waits(versions: &[(i64, Value)]) -> Workload {
    let mut known: Option<Workload> = None;
    for (second, version) in versions {
        let mut later = Workload::clone(&tracked(version).workload);
        later.note_wait(known.as_ref(), after(*second));
        known = Some(later);
    }
    known.expect("a version")
}

/// So many seconds after it was made.
fn after(seconds: i64) -> jiff::Timestamp {
    let made: jiff::Timestamp = "2026-01-01T00:00:10Z".parse().expect("a time");
    made + jiff::SignedDuration::from_secs(seconds)
}

/// It has its quota since so many seconds after it was made, or has lost it then.
fn quota(status: &str, since: i64) -> Value {
    with(|it| {
        it["status"]["conditions"] = json!([{
            "type": "QuotaReserved", "status": status, "lastTransitionTime": after(since).to_string(),
        }]);
    })
}

#[test]
fn its_wait_goes_on_when_it_has_its_quota_again() {
    let first = after(50).as_second();
    let churned = waits(&[
        (50, quota("True", 50)),
        (100, quota("False", 100)),
        (200, quota("True", 200)),
        (210, quota("False", 210)),
        (300, quota("True", 300)),
    ]);
    assert_eq!(
        churned.waits_since(),
        Some(first),
        "it has waited since then"
    );
    assert!(
        churned.wait_to_record().is_none(),
        "there is no place for it"
    );
    // It had its quota for 60 of these 250 seconds.
    let minutes = std::time::Duration::from_mins(2);
    let ends = Blocked::deadline([&churned.wait.kept_out], after(50), minutes);
    assert_eq!(ends, Some(after(360)));
}

#[test]
fn its_wait_begins_when_it_has_its_quota_and_anew_when_it_is_made_active_again() {
    let late = waits(&[(10, quota("False", 5)), (90, quota("True", 90))]);
    assert_eq!(late.waits_since(), Some(after(90).as_second()));
    let inactive = |since: i64| {
        let mut object = quota("False", since);
        object["spec"]["active"] = json!(false);
        object
    };
    let anew = waits(&[
        (50, quota("True", 50)),
        (100, inactive(100)),
        (150, quota("False", 100)),
        (200, quota("True", 200)),
    ]);
    assert_eq!(anew.waits_since(), Some(after(200).as_second()));
}

#[test]
fn what_its_owner_can_not_ask_for_is_an_obstacle_and_no_annotation_asks_for_nothing() {
    let long = "a".repeat(300_000);
    for wrong in ["", "db:x", &long] {
        let owner = json!({ "annotations": { "consul-semaphore.io/semaphore": wrong } });
        let owner = serde_json::from_value(owner).expect("metadata");
        let annotations = kueue::annotations(&owner);
        assert!(annotations.values().all(|value| value.len() <= 4096));
        let beside = Beside {
            annotations,
            ..beside(&[])
        };
        let tracked = read(&reserved(), beside).expect("it asks");
        assert!(matches!(tracked.obstacle, Some(Obstacle::Malformed(_))));
    }
    assert_eq!(read(&reserved(), beside(&[])), None);
    // What the operator writes is nothing that a user says.
    let annotations = BTreeMap::from([("consul-semaphore.io/failed".to_owned(), String::new())]);
    let owner = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        annotations: Some(annotations),
        ..Default::default()
    };
    assert!(kueue::annotations(&owner).is_empty());
}

#[test]
fn it_is_queued_only_while_it_may_run_and_our_check_is_pending() {
    let ended = Phase::Finished { at_rest: false };
    let conditions = |conditions: Value| with(|it| it["status"]["conditions"] = conditions);
    let reserved = || condition("QuotaReserved", "True");
    for (object, expected) in [
        (reserved_with("Pending"), Phase::Idle),
        (reserved_with("Ready"), Phase::Running),
        (reserved_with("Retry"), ended),
        (reserved_with("Rejected"), ended),
        (conditions(json!([])), ended),
        (
            conditions(json!([condition("QuotaReserved", "False")])),
            ended,
        ),
        (
            conditions(json!([reserved(), condition("Evicted", "True")])),
            ended,
        ),
        (
            conditions(json!([reserved(), condition("Evicted", "False")])),
            Phase::Idle,
        ),
        (
            conditions(json!([reserved(), condition("Finished", "True")])),
            ended,
        ),
        // Our check came when it was admitted already.
        (
            conditions(json!([reserved(), condition("Admitted", "True")])),
            Phase::Running,
        ),
        (with(|it| it["spec"]["active"] = false.into()), ended),
        (
            with(|it| it["metadata"]["deletionTimestamp"] = "2026-01-01T00:02:00Z".into()),
            Phase::Deleting,
        ),
    ] {
        assert_eq!(phase(&object), expected, "{object}");
    }
}

fn reserved_with(state: &str) -> Value {
    with(|it| it["status"]["admissionChecks"][1]["state"] = state.into())
}

#[test]
fn a_grant_is_one_patch_of_our_entry_and_reaches_all_pods() {
    let sent = sent(&reserved(), |tracked| Write::Start(start(tracked)));
    assert!(matches!(sent, Request::Status(_)), "{sent:?}");
    let granted = granted();
    let mut rest = granted.clone();
    rest["status"]["admissionChecks"][1] = reserved()["status"]["admissionChecks"][1].clone();
    assert_eq!(rest, reserved(), "nothing else changes");
    let entry = &granted["status"]["admissionChecks"][1];
    assert_eq!(
        (&entry["name"], &entry["state"]),
        (&json!(OURS), &json!("Ready"))
    );
    assert_eq!(entry["lastTransitionTime"], "2026-01-01T00:00:20Z");
    let updates = entry["podSetUpdates"].as_array().expect("a list");
    let names: Vec<&Value> = updates.iter().map(|update| &update["name"]).collect();
    assert_eq!(names, ["driver", "workers"]);
    for update in updates {
        assert_eq!(update["labels"]["consul-semaphore.io/holder"], UID);
        assert_eq!(update["annotations"]["consul-semaphore.io/granted-to"], UID);
        assert_eq!(
            update["annotations"]["consul-semaphore.io/session"],
            SESSION
        );
    }
}

#[test]
fn a_grant_is_read_back_and_anothers_is_nobodys() {
    let workload = tracked(&granted()).workload;
    assert_eq!(workload.phase, Phase::Running);
    assert!(workload.started_by(&SESSION.into()));
    assert_eq!(workload.reported, [SESSION.into()]);
    // Also when nothing is known of its owner.
    let unknown = read(&granted(), beside(&[])).expect("it was granted");
    assert!(unknown.workload.started_by(&SESSION.into()));
    let mut copy = granted();
    copy["metadata"]["ownerReferences"][0]["uid"] = "another".into();
    assert_eq!(tracked(&copy).workload.granted, None);
    // Its session changes while it runs: the grant stays what it was.
    let renamed = sent(&granted(), |tracked| {
        let (workload, sessions) = ((&tracked.workload).into(), vec![NEW.into()]);
        Write::Rename(Rename { workload, sessions })
    });
    let renamed = tracked(&applied(&granted(), &renamed)).workload;
    assert!(renamed.started_by(&SESSION.into()));
    assert_eq!(renamed.reported, [NEW.into()]);
    assert_eq!(renamed.phase, Phase::Running);
}

/// As Kueue evicts it: our entry is reset, and it may have its quota again while its pods terminate.
fn evicted(before: &str) -> Value {
    with(|it| {
        let message = format!("Reset to Pending after eviction. Previously: {before}");
        it["status"]["admissionChecks"][1]["message"] = message.into();
    })
}

fn earlier() -> Earlier {
    Earlier::of(Granted::by(&format!("p/{SESSION}"), SESSION), &[NEW.into()])
}

fn read_beside(value: &Value, earlier: Earlier) -> Option<TrackedWorkload> {
    let beside = Beside { earlier, ..asks() };
    read(value, beside)
}

#[test]
fn what_was_evicted_keeps_its_slots_until_its_pods_are_gone_and_that_is_written() {
    for (before, lost, reported) in [
        ("Ready", false, vec![NEW.into()]),
        ("Retry", true, Vec::new()),
    ] {
        let tracked = read_beside(&evicted(before), earlier()).expect("it asks");
        let workload = &tracked.workload;
        assert!(tracked.may_have_pods() && workload.started_by(&SESSION.into()));
        assert_eq!(workload.phase, Phase::Stopping);
        assert_eq!((workload.lost(), &workload.reported), (lost, &reported));

        let give_back = Write::GiveBack(GiveBack {
            workload: (&**workload).into(),
            sessions: vec![NEW.into()],
            hold: false,
            began: None,
        });
        let request = Kind::KueueWorkload.request(&give_back, &tracked.shape, now());
        let after = applied(&evicted(before), &request.expect("it can be said"));
        let tracked = read_beside(&after, earlier()).expect("it asks");
        assert!(tracked.workload.is_queued());
        assert_eq!(tracked.workload.granted, None);
        assert_eq!(tracked.workload.reported, [NEW.into()]);
    }
}

#[test]
fn what_was_evicted_is_known_to_have_run_when_nothing_else_is_known_of_that() {
    let unknown = read_beside(&evicted("Ready"), Earlier::Unknown).expect("it asks");
    assert_eq!(unknown.workload.phase, Phase::Stopping);
    // No pod of it is left, but its slots may be: that it gave them back is to be written.
    for (before, was_never_granted) in [("Ready", false), ("Retry", true)] {
        let gone = read_beside(&evicted(before), Earlier::Nothing).expect("it asks");
        assert_eq!(gone.workload.phase, Phase::Stopping, "{before}");
        assert!(gone.may_have_pods() && gone.shape.is_reset());
        let give_back = Write::GiveBack(GiveBack {
            workload: (&*gone.workload).into(),
            sessions: gone.workload.reported.clone(),
            hold: false,
            began: None,
        });
        let request = Kind::KueueWorkload.request(&give_back, &gone.shape, now());
        let after = applied(&evicted(before), &request.expect("it can be said"));
        let gone = read_beside(&after, Earlier::Nothing).expect("it asks");
        assert!(gone.workload.is_queued(), "{after}");
        assert_eq!(gone.workload.was_never_granted(), was_never_granted);
    }
    // It waited for too long.
    for (before, earlier) in [
        ("Rejected", Earlier::Nothing),
        ("Rejected", Earlier::Unknown),
    ] {
        let never = read_beside(&evicted(before), earlier).expect("it asks");
        assert!(never.workload.is_queued() && never.workload.was_never_granted());
    }
    let ended = read_beside(&evicted("Rejected"), earlier()).expect("it asks");
    assert_eq!(ended.workload.phase, Phase::Stopping);
}

#[test]
fn nobody_is_told_to_be_ready_while_pods_of_an_evicted_run_may_be_left() {
    let asked = |earlier| {
        let beside = Beside {
            earlier,
            ..beside(&[])
        };
        let asked = Asked::of(&object(&evicted("Ready"), beside)).expect("one");
        let asked = asked.expect("our check is asked");
        (asked.waits(), asked.looks_back())
    };
    assert_eq!(asked(Earlier::Unknown), (false, true));
    assert_eq!(asked(earlier()), (false, false));
    assert_eq!(asked(Earlier::Nothing), (true, false));
}

/// Another check of ours was named in its `ClusterQueue` before it was admitted.
#[test]
fn of_two_checks_of_ours_both_are_pending_again_when_it_gives_its_slot_back() {
    const SECOND: &str = "more-slots";
    let both = || Beside {
        checks: Arc::new([OURS, SECOND].map(str::to_owned).into()),
        ..asks()
    };
    let sent = |value: &Value, write: &dyn Fn(&TrackedWorkload) -> Write| {
        let tracked = read(value, both()).expect("it asks");
        let request = Kind::KueueWorkload.request(&write(&tracked), &tracked.shape, now());
        applied(value, &request.expect("it can be said"))
    };
    let asked = with(|it| {
        let entry = json!({ "name": SECOND, "state": "Pending", "message": "" });
        let entries = it["status"]["admissionChecks"].as_array_mut();
        entries.expect("a list").push(entry);
    });
    let mut half = sent(&asked, &|tracked| Write::Start(start(tracked)));
    let states = |value: &Value| {
        let entry = |place: usize| value["status"]["admissionChecks"][place]["state"].clone();
        [0, 1, 2].map(entry)
    };
    assert_eq!(states(&half), ["Ready", "Ready", "Ready"]);
    half["status"]["admissionChecks"][2] = asked["status"]["admissionChecks"][2].clone();
    let tracked = read(&half, both()).expect("it asks").workload;
    assert!(tracked.phase == Phase::Idle && tracked.granted.is_some());
    let after = sent(&half, &|tracked| {
        Write::GiveBack(GiveBack {
            workload: (&tracked.workload).into(),
            sessions: vec![SESSION.into()],
            hold: true,
            began: None,
        })
    });
    assert_eq!(states(&after), ["Ready", "Pending", "Pending"]);
    assert_eq!(
        after["status"]["admissionChecks"][1]["podSetUpdates"],
        json!([])
    );
    let tracked = read(&after, both()).expect("it asks").workload;
    assert_eq!(tracked.granted, None);
    assert!(tracked.is_queued() && tracked.reported == [SESSION.into()]);
}

#[test]
fn it_is_described_for_people() {
    let described = |value: &Value| kueue::describe(&object(value, asks())).expect("one");
    assert_eq!(
        described(&reserved()),
        "Kueue has reserved its quota; of its admission checks provisioning is Ready, slots is Pending"
    );
    let unasked = with(|it| it["status"] = json!({}));
    let described = described(&unasked);
    assert!(described.starts_with("Kueue has not reserved its quota; it asks for no slot"));
    assert!(described.len() < 200, "{described}");
}

#[test]
fn an_elastic_job_is_told_that_it_can_not_wait() {
    let elastic = with(|it| {
        it["metadata"]["annotations"] = json!({ "kueue.x-k8s.io/elastic-job": "true" });
    });
    let tracked = tracked(&elastic);
    assert!(!tracked.workload.is_queued());
    let Some(Obstacle::Unfit(why)) = tracked.obstacle else {
        panic!("{tracked:?}");
    };
    assert!(why.contains("elastic"), "{why}");
    assert_eq!(read(&elastic, beside(&[])), None, "it asks for nothing");
}

#[test]
fn what_gives_its_slot_back_waits_on_and_says_so() {
    let give_back = sent(&reserved(), |tracked| {
        Write::GiveBack(GiveBack {
            workload: (&tracked.workload).into(),
            sessions: vec![SESSION.into(), NEW.into()],
            hold: false,
            began: None,
        })
    });
    let after = applied(&reserved(), &give_back);
    let workload = tracked(&after).workload;
    assert_eq!(workload.phase, Phase::Idle);
    assert_eq!(workload.reported, [SESSION.into(), NEW.into()]);
    assert_ne!(after, reserved(), "the next start names another version");
}

#[test]
fn what_lost_its_slot_is_retried_later_and_only_once() {
    let suspend = sent(&granted(), |tracked| {
        Write::Suspend(Suspend {
            workload: (&tracked.workload).into(),
            why: Suspended::SlotLost,
            session: None,
            since: 0,
        })
    });
    let after = applied(&granted(), &suspend);
    let entry = &after["status"]["admissionChecks"][1];
    assert_eq!(entry["state"], "Retry");
    assert_eq!(entry["requeueAfterSeconds"], 10);
    assert_eq!(entry["lastTransitionTime"], "2026-01-01T00:00:20Z");
    // Its pods count until Kueue has evicted it.
    let workload = tracked(&after).workload;
    assert_eq!((workload.phase, workload.lost()), (Phase::Stopping, true));
    assert_eq!(Stop::of(&workload), None);
}

#[test]
fn what_runs_without_a_grant_is_retried() {
    let tracked = tracked(&reserved_with("Ready"));
    assert_eq!(tracked.obstacle, None);
    let order = Stop::of(&tracked.workload).expect("it runs");
    let request = Kind::KueueWorkload.stop(&order, &tracked.shape, now());
    let request = request.expect("it can be stopped");
    let after = applied(&reserved_with("Ready"), &request);
    assert_eq!(after["status"]["admissionChecks"][1]["state"], "Retry");
}

#[test]
fn what_waits_too_long_is_rejected() {
    let fail = sent(&reserved(), |tracked| {
        Write::Fail(Fail {
            workload: (&tracked.workload).into(),
            why: Failed::Superseded { by: "x".to_owned() },
        })
    });
    let after = applied(&reserved(), &fail);
    let entry = &after["status"]["admissionChecks"][1];
    assert_eq!(
        (&entry["state"], &entry["message"]),
        (&json!("Rejected"), &json!("Superseded"))
    );
    assert_eq!(phase(&after), Phase::Finished { at_rest: false });
}

#[test]
fn its_owner_is_its_controller_and_of_a_kind_that_is_known() {
    let owner = |change: &dyn Fn(&mut Value)| {
        let value = with(|it| change(&mut it["metadata"]["ownerReferences"][0]));
        kueue::owner(&object(&value, asks()))
    };
    let job = owner(&|_| {}).expect("a Job");
    assert_eq!(
        (job.kind, &*job.name, job.uid),
        (Kind::Job, "train", UID.into())
    );
    let set = owner(&|it| {
        it["apiVersion"] = "jobset.x-k8s.io/v1alpha2".into();
        it["kind"] = "JobSet".into();
    });
    assert_eq!(set.expect("a JobSet").kind, Kind::JobSet);
    for unknown in [
        owner(&|it| it["apiVersion"] = "example.com/v1".into()),
        owner(&|it| it["kind"] = "k".repeat(10_000).into()),
        owner(&|it| it["controller"] = false.into()),
    ] {
        let why = unknown.expect_err("it is not known");
        assert!(
            why.ends_with("these owners: Job, JobSet") && why.len() < 500,
            "{why}"
        );
    }
}

#[test]
fn what_asks_for_nothing_is_ready_and_what_can_not_be_read_says_why() {
    let asked = |value: &Value| Asked::of(&object(value, beside(&[]))).expect("one");
    let after = |value: &Value, request: Option<Request>| applied(value, &request.expect("news"));
    let waiting = asked(&reserved()).expect("our check is asked");
    assert!(waiting.waits());
    let ready = after(&reserved(), waiting.ready(now()));
    assert_eq!(ready["status"]["admissionChecks"][1]["state"], "Ready");
    assert_eq!(
        ready["status"]["admissionChecks"][1]["podSetUpdates"],
        Value::Null
    );
    assert!(!asked(&ready).expect("our check is asked").waits());

    let pending = after(&reserved(), waiting.pending("no owner", now()));
    assert_eq!(
        pending["status"]["admissionChecks"][1]["message"],
        "no owner"
    );
    let pending = asked(&pending).expect("our check is asked");
    assert!(pending.waits());
    assert_eq!(pending.pending("no owner", now()), None, "it is said once");

    let others = with(|it| it["status"]["admissionChecks"][1]["name"] = OTHERS.into());
    assert!(asked(&others).is_none());
}

#[test]
fn each_admission_check_of_ours_is_active() {
    let check = |status: Value, parameters: Value| {
        json!({
            "metadata": { "name": OURS, "resourceVersion": "9", "generation": 3 },
            "spec": { "controllerName": "consul-semaphore.io/slots", "parameters": parameters },
            "status": status,
        })
    };
    let read = |value: &Value| {
        AdmissionCheck::of(&object(value, asks()))
            .expect("one")
            .expect("ours")
    };
    let after = |value: Value| {
        let active = read(&value).active(now()).expect("news");
        assert_eq!(active["metadata"]["resourceVersion"], "9");
        let mut after = value;
        crate::merge(&mut after, &active);
        after
    };
    let new = after(check(Value::Null, Value::Null));
    let condition = &new["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("Active"), &json!("True"))
    );
    assert_eq!(condition["observedGeneration"], 3);
    assert_eq!(read(&new).active(now()), None, "it is said once");

    // Of an older generation, taken away, or beside another one.
    let mut older = new.clone();
    older["metadata"]["generation"] = 4.into();
    older["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z".into();
    let condition = after(older)["status"]["conditions"][0].clone();
    assert_eq!(condition["observedGeneration"], 4);
    assert_eq!(
        condition["lastTransitionTime"], "2026-01-01T00:00:00Z",
        "it changes with the status"
    );
    let taken =
        json!({ "conditions": [{ "type": "Other" }, { "type": "Active", "status": "False" }] });
    let again = after(check(taken, Value::Null));
    let types = again["status"]["conditions"]
        .as_array()
        .expect("a list")
        .iter();
    let types: Vec<_> = types
        .map(|condition| (&condition["type"], &condition["status"]))
        .collect();
    assert_eq!(
        types,
        [
            (&json!("Other"), &Value::Null),
            (&json!("Active"), &json!("True"))
        ]
    );

    let parameters = json!({ "apiGroup": "example.com", "kind": "Config", "name": "a" });
    let with = after(check(Value::Null, parameters));
    let message = with["status"]["conditions"][0]["message"]
        .as_str()
        .expect("a message");
    assert!(message.contains("ignores its parameters"), "{message}");
    let mut others = check(Value::Null, Value::Null);
    others["spec"]["controllerName"] = "example.com/other".into();
    assert!(
        AdmissionCheck::of(&object(&others, asks()))
            .expect("one")
            .is_none()
    );
}
