use consul_semaphore::{
    Phase,
    engine::Write,
    plan::{End, Ended, Fail, Failed},
};
use consul_semaphore_workload::{Kind, Obstacle};
use serde_json::{Value, json};

use super::{
    SESSION, UID, applied, forgets_its_grant, granted, object, phase, reads_its_grant_back, sent,
    tracked, workload,
};

const KIND: Kind = Kind::Workflow;

/// One that waits: Argo says that it runs.
fn waiting(change: impl FnOnce(&mut Value)) -> Value {
    let mut workflow = object(&json!({ "suspend": true, "entrypoint": "main" }));
    workflow["status"] = json!({ "phase": "Running", "progress": "0/0" });
    change(&mut workflow);
    workflow
}

#[test]
fn what_it_is_doing() {
    assert_eq!(phase(&KIND, &waiting(|_| {})), Phase::Idle);
    assert_eq!(
        phase(&KIND, &waiting(|workflow| workflow["status"] = Value::Null)),
        Phase::Idle
    );
    // It was suspended later, and goes on with the pods that it has.
    let late = waiting(|workflow| workflow["status"]["progress"] = "1/3".into());
    assert_eq!(phase(&KIND, &late), Phase::Running);
    assert!(matches!(
        tracked(&KIND, &late).obstacle,
        Some(Obstacle::Started(_))
    ));
    for ended in ["Succeeded", "Failed", "Error"] {
        let ended = waiting(|workflow| workflow["status"]["phase"] = ended.into());
        assert_eq!(phase(&KIND, &ended), Phase::Finished { at_rest: false });
    }
}

#[test]
fn a_grant_reaches_its_pods() {
    let workflow = waiting(|workflow| {
        workflow["spec"]["podMetadata"] = json!({ "labels": { "a": "b" } });
    });
    reads_its_grant_back(&KIND, &workflow);
    let mut granted = granted(&KIND, &workflow);
    assert_eq!(granted["spec"]["suspend"], Value::Null);
    let pods = &granted["spec"]["podMetadata"];
    assert_eq!(
        pods["labels"],
        json!({ "a": "b", "consul-semaphore.io/holder": UID })
    );
    assert_eq!(pods["annotations"]["consul-semaphore.io/session"], SESSION);
    // Its user suspends it later: it keeps its slot.
    granted["spec"]["suspend"] = true.into();
    assert_eq!(phase(&KIND, &granted), Phase::Running);
    forgets_its_grant(&KIND, &granted);
}

/// After its slot was given back, it has no grant: what `argo retry` runs runs without a slot.
#[test]
fn it_may_run_again() {
    let ended = waiting(|workflow| workflow["status"]["phase"] = "Failed".into());
    assert!(workload(&KIND, &ended).traits.runs_again);
    let mut again = ended;
    again["metadata"]["annotations"]["consul-semaphore.io/session"] = SESSION.into();
    again["spec"]["suspend"] = Value::Null;
    again["status"] = json!({ "phase": "Running", "progress": "1/2" });
    assert!(matches!(
        tracked(&KIND, &again).obstacle,
        Some(Obstacle::Started(_))
    ));
}

#[test]
fn it_is_shut_down_where_others_are_suspended_or_fail() {
    let workflow = waiting(|_| {});
    let fail = sent(&KIND, &workflow, |workload| {
        let why = Failed::Superseded { by: String::new() };
        Write::Fail(Fail { workload, why })
    });
    let failed = applied(&workflow, &fail);
    assert_eq!(
        failed["spec"],
        json!({ "entrypoint": "main", "shutdown": "Terminate" })
    );
    assert_eq!(phase(&KIND, &failed), Phase::Stopping);
    let mut again = failed;
    again["spec"]["shutdown"] = Value::Null;
    assert_eq!(phase(&KIND, &again), Phase::Running, "by `argo retry`");
    let mut granted = granted(&KIND, &workflow);
    granted["spec"]["suspend"] = true.into();
    let end = sent(&KIND, &granted, |workload| {
        let why = Ended::Replaced { by: String::new() };
        Write::End(End { workload, why })
    });
    let ended = applied(&granted, &end);
    assert_eq!(ended["spec"]["shutdown"], "Terminate");
    assert_eq!(
        ended["spec"]["suspend"],
        Value::Null,
        "Argo shuts down nothing that is suspended"
    );
}
