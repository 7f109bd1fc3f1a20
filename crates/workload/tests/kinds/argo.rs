use consul_semaphore::{
    Phase, Termination,
    engine::Write,
    plan::{End, Ended, Fail, Failed},
};
use consul_semaphore_workload::{Kind, Obstacle};
use serde_json::{Value, json};

use super::{
    SESSION, UID, applied, forgets_its_grant, granted, loses_its_slot, name_its_slot, object,
    phase, reads_its_grant_back, sent, tracked, workload,
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
    // The next start replaces what is left of this one.
    let again = waiting(|workflow| {
        workflow["spec"]["podMetadata"] = granted["spec"]["podMetadata"].clone();
        name_its_slot(workflow);
    });
    reads_its_grant_back(&KIND, &again);
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

/// As `argo terminate` and `argo stop` do it: they leave `suspend` as it is.
#[test]
fn one_that_its_user_shuts_down_while_it_waits_ends_without_a_slot() {
    for strategy in ["Terminate", "Stop"] {
        let shut_down = waiting(|workflow| workflow["spec"]["shutdown"] = strategy.into());
        let it = tracked(&KIND, &shut_down);
        assert_eq!(it.workload.phase, Phase::Stopping, "it is in no queue");
        assert!(it.may_have_pods() && it.shape.is_to_fail());
        let target = (&*it.workload).into();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let request = KIND.failure(&target, &it.shape, now);
        let ended = applied(&shut_down, &request.expect("it is to fail"));
        assert_eq!(
            ended["spec"],
            json!({ "entrypoint": "main", "shutdown": "Terminate" })
        );
        let it = tracked(&KIND, &ended);
        assert_eq!(it.workload.phase, Phase::Stopping);
        assert!(!it.may_have_pods() && !it.shape.is_to_fail());
    }
    let waits = tracked(&KIND, &waiting(|_| {}));
    let target = (&*waits.workload).into();
    let now = jiff::Timestamp::UNIX_EPOCH;
    assert_eq!(KIND.failure(&target, &waits.shape, now), None);
    let mut granted = granted(&KIND, &waiting(|_| {}));
    granted["spec"]["shutdown"] = "Stop".into();
    assert_eq!(phase(&KIND, &granted), Phase::Running, "it has a slot");
}

#[test]
fn its_users_are_warned_of_what_argo_does_while_it_waits() {
    let warned = |change: &dyn Fn(&mut Value)| {
        let workflow = waiting(change).to_string();
        let object = serde_json::from_str(&workflow).expect("an object");
        KIND.caution(&object).expect("a Workflow")
    };
    let locks =
        |spec: &mut Value| spec["synchronization"] = json!({ "mutexes": [{ "name": "x" }] });
    let deadline = |spec: &mut Value| spec["activeDeadlineSeconds"] = 1800.into();
    assert_eq!(warned(&|_| {}), None);
    let said = warned(&|it| locks(&mut it["spec"])).expect("it holds a mutex");
    assert!(said.contains("spec.synchronization") && !said.contains("activeDeadline"));
    let said = warned(&|it| deadline(&mut it["spec"])).expect("its deadline runs");
    assert!(said.contains("spec.activeDeadlineSeconds") && !said.contains("locks"));
    // From its WorkflowTemplate.
    let both = |it: &mut Value| {
        it["status"]["storedWorkflowTemplateSpec"] = json!({});
        locks(&mut it["status"]["storedWorkflowTemplateSpec"]);
        deadline(&mut it["status"]["storedWorkflowTemplateSpec"]);
    };
    let said = warned(&both).expect("both");
    assert!(said.contains("synchronization") && said.contains("activeDeadlineSeconds"));
    let started = |it: &mut Value| {
        both(it);
        it["spec"]["suspend"] = Value::Null;
    };
    assert_eq!(warned(&started), None, "it waits no more");
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
    assert_eq!(ended["spec"]["shutdown"], "Stop", "its exit handler runs");
    assert_eq!(
        ended["spec"]["suspend"],
        Value::Null,
        "Argo shuts down nothing that is suspended"
    );
    let read = workload(&KIND, &ended);
    assert_eq!(read.wait.failing, Some(Termination::Graceful));
    let lost = applied(&ended, &loses_its_slot(&KIND, &ended));
    assert_eq!(
        lost["spec"]["shutdown"], "Terminate",
        "it has no slot for that"
    );
    let read = workload(&KIND, &lost);
    assert_eq!(read.wait.failing, Some(Termination::Immediate));
}
