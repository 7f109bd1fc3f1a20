//! What is written to a Job, as sent to the API server, and what is read of a Job that another build has written to.
//!
//! After an upgrade, the operator finds Jobs that the previous build started. The admission policies stop anybody
//! else from writing these names, and the containers of a Job read them by the downward API. So none of them changes.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so"
)]

use consul_client::{Entry, Op, clock::Moment};
use consul_semaphore::{
    SlotRequest, WaitBegan,
    engine::Write,
    plan::{
        End, Ended, Fail, Failed, GiveBack, Grant, RecordWait, Rename, Skip, Skipped, Start, Stop,
        Suspend, Suspended, Target, Transaction,
    },
};
use consul_semaphore_api::annotations::OF_THE_OPERATOR;
use consul_semaphore_workload::{Kind, Request, Shape, TrackedWorkload, pods};
use serde_json::{Value, json};

const UID: &str = "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48";
const SESSION: &str = "4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5";
const KEY: &str = "semaphores/batch/db/4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5";

fn target() -> Target {
    Target {
        kind: consul_semaphore::KindName::default(),
        name: "migrate-42".into(),
        uid: UID.into(),
        version: "81234".into(),
    }
}

/// The start that follows from Consul's answer to a grant.
fn started() -> Start {
    let grant = Grant {
        workload: target(),
        sessions: [(0, SESSION.into())].into(),
        starts: true,
        whole: true,
        since: 0,
    };
    let body = r#"{"cluster":"c","clusterId":"c","kind":"Job","namespace":"batch","name":"a","uid":"a","semaphore":"db","time":"2026-03-01T12:00:00Z","slotIndex":2,"slotName":"gpu-c"}"#;
    let granted = Transaction {
        operations: vec![Op::Lock {
            key: KEY.to_owned(),
            value: body.into(),
            flags: 0,
            session: SESSION.into(),
        }],
        grants: vec![grant],
        ..Transaction::default()
    };
    let answer = [Entry {
        key: KEY.to_owned(),
        value: Vec::new(),
        flags: 0,
        session: Some(SESSION.into()),
        lock_index: 1,
        create_index: 70,
        modify_index: 71,
    }];
    granted.starts(&answer).pop().expect("it was granted")
}

/// The merge patch.
fn patch(request: Request) -> Value {
    match request {
        Request::Patch(body) => body,
        other => panic!("it is no merge patch: {other:?}"),
    }
}

/// What is sent for a write to a Job.
fn asked(write: &Write) -> Request {
    let now = jiff::Timestamp::UNIX_EPOCH;
    let request = Kind::Job.request(write, &Shape::default(), now);
    request.expect("it can be said")
}

fn written(write: &Write) -> Value {
    patch(asked(write))
}

/// A recorded JSON text.
fn literal(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// The containers find the sequencer by these names, and another build finds the grant: without it the Job seems to
/// run though nobody started it, and is suspended.
///
/// Builds up to 2026-11-24 had "true" as the label's value: see `what_an_older_build_started`.
#[test]
fn the_patch_that_starts_a_job() {
    let expected = r#"{
        "metadata": {
            "uid": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48",
            "resourceVersion": "81234",
            "annotations": { "consul-semaphore.io/session": "4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5" }
        },
        "spec": {
            "suspend": false,
            "template": { "metadata": {
                "labels": { "consul-semaphore.io/holder": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48" },
                "annotations": {
                    "consul-semaphore.io/lock-key": "semaphores/batch/db/4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5",
                    "consul-semaphore.io/session": "4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5",
                    "consul-semaphore.io/lock-index": "1",
                    "consul-semaphore.io/fencing-token": "71",
                    "consul-semaphore.io/slot-index": "2",
                    "consul-semaphore.io/slot-name": "gpu-c",
                    "consul-semaphore.io/slots": null,
                    "consul-semaphore.io/granted-to": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48"
                }
            } }
        }
    }"#;
    assert_eq!(written(&Write::Start(started())), literal(expected));
}

/// A missing session next to a grant puts the Job at the head of the queue, in any build.
#[test]
fn the_patch_that_suspends_a_job_that_lost_its_slot() {
    let suspend = Suspend {
        workload: target(),
        why: Suspended::SlotLost,
        session: Some(SESSION.into()),
        since: 0,
    };
    let expected = r#"{
        "metadata": {
            "uid": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48",
            "resourceVersion": "81234",
            "annotations": { "consul-semaphore.io/session": null }
        },
        "spec": { "suspend": true }
    }"#;
    assert_eq!(written(&Write::Suspend(suspend)), literal(expected));
}

/// To any build, a session without a grant means that the slot was given back. Everything that a start writes is
/// removed.
#[test]
fn the_patch_by_which_a_job_gives_its_slot_back() {
    let give_back = |hold| {
        written(&Write::GiveBack(GiveBack {
            workload: target(),
            sessions: vec![SESSION.into()],
            hold,
            began: None,
        }))
    };
    let expected = r#"{
        "metadata": {
            "uid": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48",
            "resourceVersion": "81234",
            "annotations": {
                "consul-semaphore.io/session": "4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5",
                "consul-semaphore.io/waits-since": null
            }
        },
        "spec": { "template": { "metadata": {
            "labels": { "consul-semaphore.io/holder": null },
            "annotations": {
                "consul-semaphore.io/lock-key": null,
                "consul-semaphore.io/session": null,
                "consul-semaphore.io/lock-index": null,
                "consul-semaphore.io/fencing-token": null,
                "consul-semaphore.io/slot-index": null,
                "consul-semaphore.io/slot-name": null,
                "consul-semaphore.io/slots": null,
                "consul-semaphore.io/granted-to": null
            }
        } } }
    }"#;
    let mut expected = literal(expected);
    assert_eq!(give_back(false), expected);
    // Its user suspended it: it stays out of the queue until its user unsuspends it.
    expected["metadata"]["annotations"]["consul-semaphore.io/hold"] = json!("true");
    assert_eq!(give_back(true), expected);
}

/// When the wait of a Job began that was on hold or gave its slots back before it was started. A Job that gave its slots
/// back and does not have it counts as started.
#[test]
fn the_patch_that_records_since_when_a_job_waits() {
    for (began, recorded) in [
        (WaitBegan::At(1_772_366_340), "2026-03-01T11:59:00Z"),
        (WaitBegan::OnHold, "OnHold"),
    ] {
        let record = RecordWait {
            workload: target(),
            began,
        };
        let expected = r#"{
            "metadata": {
                "uid": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48",
                "resourceVersion": "81234",
                "annotations": { "consul-semaphore.io/waits-since": "" }
            }
        }"#;
        let mut expected = literal(expected);
        expected["metadata"]["annotations"]["consul-semaphore.io/waits-since"] = json!(recorded);
        assert_eq!(written(&Write::RecordWait(record)), expected);
    }
}

/// The session of a running Job that has its slot again with another session.
#[test]
fn the_patch_that_names_another_session() {
    let rename = Rename {
        workload: target(),
        sessions: vec![SESSION.into()],
    };
    let expected = r#"{
        "metadata": {
            "uid": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48",
            "resourceVersion": "81234",
            "annotations": { "consul-semaphore.io/session": "4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5" }
        }
    }"#;
    assert_eq!(written(&Write::Rename(rename)), literal(expected));
}

/// A Job that runs though nobody started it.
#[test]
fn the_patch_that_suspends_a_job_without_a_grant() {
    let stopped = |unhold| {
        let order = Stop {
            workload: target(),
            unhold,
        };
        let stop = Kind::Job.stop(&order, &Shape::Plain, jiff::Timestamp::UNIX_EPOCH);
        patch(stop.expect("a known kind"))
    };
    let expected = r#"{
        "metadata": {
            "uid": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48",
            "resourceVersion": "81234",
            "annotations": {}
        },
        "spec": { "suspend": true }
    }"#;
    let mut expected = literal(expected);
    assert_eq!(stopped(false), expected);
    // Its user unsuspended it: it is queued again.
    expected["metadata"]["annotations"]["consul-semaphore.io/hold"] = json!(null);
    assert_eq!(stopped(true), expected);
}

/// A name that the operator writes is recorded above, with the patch that writes it.
#[test]
fn every_name_that_the_operator_writes_is_recorded() {
    let recorded = include_str!("golden.rs");
    for name in OF_THE_OPERATOR {
        assert!(
            recorded.contains(&format!("\"{name}\": ")),
            "no patch above writes {name}"
        );
    }
}

/// Nothing is written to a Job that does not wait: it is deleted.
#[test]
fn a_job_that_does_not_wait_is_deleted() {
    let skip = Skip {
        workload: target(),
        cron_job: None,
        why: Skipped::Taken {
            by: Vec::new(),
            others: 0,
        },
    };
    assert_eq!(asked(&Write::Skip(skip)), Request::Delete);
}

/// Started, but without pods and past its deadline: the Job controller makes it Failed.
#[test]
fn the_patch_that_makes_a_waiting_job_fail() {
    let expected = r#"{
        "metadata": {
            "annotations": { "consul-semaphore.io/failed": "WaitTimedOut" },
            "resourceVersion": "81234",
            "uid": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48"
        },
        "spec": { "suspend": false, "parallelism": 0, "activeDeadlineSeconds": 1 }
    }"#;
    let fail = Fail {
        workload: target(),
        why: Failed::Unqueued {
            timeout: std::time::Duration::from_secs(1),
            why: String::new(),
        },
    };
    assert_eq!(written(&Write::Fail(fail)), literal(expected));
}

/// The Job controller ends its pods.
#[test]
fn the_patch_that_ends_a_running_job() {
    let expected = r#"{
        "metadata": {
            "annotations": { "consul-semaphore.io/failed": "Replaced" },
            "resourceVersion": "81234",
            "uid": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48"
        },
        "spec": { "activeDeadlineSeconds": 1 }
    }"#;
    let end = End {
        workload: target(),
        why: Ended::Replaced {
            by: "Job batch/migrate-43".to_owned(),
        },
    };
    assert_eq!(written(&Write::End(end)), literal(expected));
}

/// A cluster's pods are watched, and those of a Job are listed, by the label that the start has put into the pod
/// template.
#[test]
fn the_selectors_of_pods() {
    assert_eq!(pods::OF_ANY, "consul-semaphore.io/holder");
    assert_eq!(
        pods::of(&UID.into()),
        "consul-semaphore.io/holder=0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48"
    );
}

/// A running Job from a build before 2026-11-24, with the value that the label had then. It is recognized as started
/// by this grant, and continues. Its pods are not found by the label: if such a Job is deleted while its pods run,
/// its slot is free at once.
#[test]
fn what_an_older_build_started() {
    let job = r#"{
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": "migrate-42", "namespace": "batch", "uid": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48",
            "resourceVersion": "81240", "creationTimestamp": "2026-03-01T11:59:00Z",
            "annotations": {
                "consul-semaphore.io/semaphore": "db",
                "consul-semaphore.io/key": "customer-7",
                "consul-semaphore.io/priority": "5",
                "consul-semaphore.io/session": "4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5"
            }
        },
        "spec": {
            "suspend": false,
            "template": {
                "metadata": {
                    "labels": { "consul-semaphore.io/holder": "true" },
                    "annotations": {
                        "consul-semaphore.io/lock-key": "semaphores/batch/db/4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5",
                        "consul-semaphore.io/session": "4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5",
                        "consul-semaphore.io/lock-index": "1",
                        "consul-semaphore.io/fencing-token": "71",
                        "consul-semaphore.io/granted-to": "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48"
                    }
                },
                "spec": { "containers": [] }
            }
        },
        "status": { "active": 1, "startTime": "2026-03-01T12:00:01Z" }
    }"#;
    let job = serde_json::from_value(literal(job)).expect("a Job");
    let tracked = TrackedWorkload::read(&job, Moment::default()).expect("a Job of ours");
    let workload = &tracked.workload;
    assert_eq!(tracked.obstacle, None);
    assert_eq!(workload.priority, 5);
    let key = "customer-7".parse().expect("a key");
    assert_eq!(workload.requests, [SlotRequest::one("db", Some(key))]);
    assert_eq!(workload.since, 1_772_366_340);
    assert!(workload.started_at("semaphores/batch/db/.lock"));
    assert!(workload.started_by(&SESSION.into()));
    assert_eq!(workload.reported, [SESSION.into()]);
    assert_eq!(Stop::of(workload), None, "it goes on");
}
