//! Kinds other than Job: what is read of them, and what is written to them.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so"
)]

mod argo;
mod job_set;
mod kueue;
mod pod;
mod rows;
mod tekton;

use std::sync::Arc;

use consul_client::{Entry, clock::Moment};
use consul_semaphore::{
    Identity, Phase, Workload,
    engine::Write,
    plan::{End, Ended, Grant, Start, Suspend, Suspended, Target, Transaction},
};
use consul_semaphore_workload::{Kind, Request, TrackedWorkload};
use serde_json::{Value, json};

const UID: &str = "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48";
const HOLDER: &str = "consul-semaphore.io/holder";
const SLOT_NAME: &str = "consul-semaphore.io/slot-name";
const SESSION: &str = "4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5";
const KEY: &str = "semaphores/batch/db/4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5";

/// An object that asks for a slot.
fn object(spec: &Value) -> Value {
    json!({
        "metadata": {
            "name": "train", "namespace": "batch", "uid": UID, "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:10Z",
            "labels": { "consul-semaphore.io/waits": "true" },
            "annotations": { "consul-semaphore.io/semaphore": "db" },
        },
        "spec": spec,
    })
}

/// Whose slot a workload of this kind holds that is called `a`.
fn identity(kind: &str) -> Identity {
    Identity {
        cluster: "c".into(),
        namespace: "batch".into(),
        semaphore: "db".into(),
        key: None,
        kind: kind.into(),
        workload: "a".into(),
        uid: UID.into(),
        ordinal: 0,
    }
}

/// What is kept of it.
fn tracked(kind: &Kind, object: &Value) -> TrackedWorkload {
    let read = TrackedWorkload::parse(kind, &object.to_string(), Moment::default());
    read.expect("it can be read").expect("it asks for a slot")
}

fn workload(kind: &Kind, object: &Value) -> Arc<Workload> {
    tracked(kind, object).workload
}

fn phase(kind: &Kind, object: &Value) -> Phase {
    workload(kind, object).phase
}

/// The start that follows from Consul's answer to a grant.
fn started(workload: &Workload) -> Start {
    let grant = Grant {
        workload: workload.into(),
        sessions: [(0, SESSION.into())].into(),
        starts: true,
        whole: true,
        since: 0,
    };
    let granted = Transaction {
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

/// What is sent for a write to this object.
fn sent(kind: &Kind, object: &Value, write: impl FnOnce(Target) -> Write) -> Request {
    let tracked = tracked(kind, object);
    let write = write((&tracked.workload).into());
    let now = "2026-01-01T00:00:20.5Z".parse().expect("a time");
    let request = kind.request(&write, &tracked.shape, now);
    request.expect("it can be said")
}

/// The request that ends an object that has lost its slot and can't be held again.
fn loses_its_slot(kind: &Kind, object: &Value) -> Request {
    sent(kind, object, |workload| {
        let lost = Suspend {
            workload: workload.clone(),
            why: Suspended::SlotLost,
            session: None,
            since: 0,
        };
        let why = Ended::Lost(Box::new(lost));
        Write::End(End { workload, why })
    })
}

/// The object after it was granted its slot.
fn granted(kind: &Kind, object: &Value) -> Value {
    let start = started(&workload(kind, object));
    applied(object, &sent(kind, object, |_| Write::Start(start)))
}

/// The object after a request, as the API server applies it: as far as these requests go.
fn applied(object: &Value, request: &Request) -> Value {
    let mut object = object.clone();
    match request {
        Request::Patch(patch) => merge(&mut object, patch),
        Request::Json(patch) | Request::Status(patch) => {
            for step in patch.as_array().expect("a list") {
                apply(&mut object, step);
            }
        }
        Request::Delete => panic!("it is deleted"),
    }
    object
}

/// RFC 7396
fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, value) in patch {
        if value.is_null() {
            object.as_object_mut().expect("an object").remove(name);
        } else {
            merge(&mut object[name], value);
        }
    }
}

/// RFC 6902: `add`, `replace` and `remove`, of which the last two need something there.
fn apply(object: &mut Value, step: &Value) {
    let path = step["path"].as_str().expect("a path");
    let (parent, name) = path.rsplit_once('/').expect("a path");
    let name = name.replace("~1", "/").replace("~0", "~");
    let there = object.pointer(path).is_some();
    let parent = object.pointer_mut(parent);
    let parent = parent.unwrap_or_else(|| panic!("nothing is at the parent of {path}"));
    match (parent, step["op"].as_str()) {
        (Value::Array(list), Some("add")) if name == "-" => list.push(step["value"].clone()),
        (Value::Object(map), Some("add")) => {
            map.insert(name, step["value"].clone());
        }
        (Value::Object(map), Some("replace")) if there => {
            map.insert(name, step["value"].clone());
        }
        (Value::Object(map), Some("remove")) if there => {
            map.remove(&name);
        }
        (Value::Array(list), Some("remove")) if there => {
            list.remove(name.parse().expect("a place"));
        }
        _ => panic!("this can't be applied: {step}"),
    }
}

/// Adds the name of a slot wherever a grant is written.
fn name_its_slot(object: &mut Value) {
    match object {
        Value::Object(map) => {
            if map.contains_key("consul-semaphore.io/granted-to") {
                map.insert(SLOT_NAME.to_owned(), "gpu-c".into());
            }
            map.values_mut().for_each(name_its_slot);
        }
        Value::Array(list) => list.iter_mut().for_each(name_its_slot),
        _ => {}
    }
}

/// A grant, once written, is read back as this workload's, and a copy's grant is nobody's. Its slot has no name, so no
/// name of an earlier grant is left.
fn reads_its_grant_back(kind: &Kind, object: &Value) {
    let granted = granted(kind, object);
    assert!(!granted.to_string().contains(SLOT_NAME), "{granted}");
    let read = workload(kind, &granted);
    assert!(read.started_by(&SESSION.into()), "{granted}");
    assert!(read.started_at("semaphores/batch/db/.lock"), "{granted}");
    assert_eq!(read.reported, [SESSION.into()]);
    assert_eq!(read.phase, Phase::Running, "{granted}");
    let mut copy = granted.clone();
    copy["metadata"]["uid"] = "another".into();
    assert_eq!(workload(kind, &copy).granted, None);
    // Its session changes while it runs: the grant stays what it was.
    let renamed = sent(kind, &granted, |workload| {
        let sessions = vec!["another".into()];
        Write::Rename(consul_semaphore::plan::Rename { workload, sessions })
    });
    let renamed = workload(kind, &applied(&granted, &renamed));
    assert!(renamed.started_by(&SESSION.into()));
    assert_eq!(renamed.reported, ["another".into()]);
}

/// A workload that gives its slot back has no grant any more, and says which session it had.
fn forgets_its_grant(kind: &Kind, granted: &Value) {
    let give_back = sent(kind, granted, |workload| {
        Write::GiveBack(consul_semaphore::plan::GiveBack {
            workload,
            sessions: vec![SESSION.into()],
            hold: true,
            began: None,
        })
    });
    let after = applied(granted, &give_back);
    assert_eq!(
        after["metadata"]["annotations"]["consul-semaphore.io/hold"],
        "true"
    );
    let read = workload(kind, &after);
    assert_eq!(read.granted, None);
    assert_eq!(read.reported, [SESSION.into()]);
}
