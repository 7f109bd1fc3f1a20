use consul_semaphore::{
    Phase,
    engine::Write,
    plan::{End, Ended, Fail, Failed},
};
use consul_semaphore_workload::{Kind, Obstacle, Request};
use serde_json::{Value, json};

use super::{UID, applied, granted, object, phase, reads_its_grant_back, sent, tracked, workload};

const KIND: Kind = Kind::Pod;

fn waiting(change: impl FnOnce(&mut Value)) -> Value {
    let gates = json!([{ "name": "a" }, { "name": "consul-semaphore.io/slot" }, { "name": "b" }]);
    let mut pod = object(&json!({ "schedulingGates": gates, "terminationGracePeriodSeconds": 7 }));
    pod["status"] = json!({ "phase": "Pending" });
    change(&mut pod);
    pod
}

#[test]
fn what_it_is_doing() {
    let pod = waiting(|_| {});
    assert_eq!(phase(&KIND, &pod), Phase::Idle);
    assert_eq!(workload(&KIND, &pod).grace.as_secs(), 7);
    let free = waiting(|pod| pod["spec"]["schedulingGates"] = json!([]));
    assert_eq!(phase(&KIND, &free), Phase::Running);
    assert!(matches!(
        tracked(&KIND, &free).obstacle,
        Some(Obstacle::Started(_))
    ));
    let placed = waiting(|pod| pod["spec"]["nodeName"] = "n".into());
    assert_eq!(phase(&KIND, &placed), Phase::Running);
    for ended in ["Succeeded", "Failed"] {
        let ended = waiting(|pod| pod["status"]["phase"] = ended.into());
        assert_eq!(phase(&KIND, &ended), Phase::Finished { at_rest: false });
    }
    let owned = waiting(|pod| {
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r",
            "controller": true,
        }]);
    });
    let obstacle = tracked(&KIND, &owned).obstacle;
    assert_eq!(obstacle, Some(Obstacle::Owned("ReplicaSet web".to_owned())));
}

#[test]
fn a_grant_removes_our_gate_only() {
    let pod = waiting(|_| {});
    reads_its_grant_back(&KIND, &pod);
    let granted = granted(&KIND, &pod);
    assert_eq!(
        granted["spec"]["schedulingGates"],
        json!([{ "name": "a" }, { "name": "b" }])
    );
    assert_eq!(
        granted["metadata"]["labels"]["consul-semaphore.io/holder"],
        UID
    );
}

#[test]
fn it_fails_by_its_status_and_is_ended_by_its_deadline() {
    let pod = waiting(|_| {});
    let fail = sent(&KIND, &pod, |workload| {
        let why = Failed::Superseded { by: String::new() };
        Write::Fail(Fail { workload, why })
    });
    assert!(matches!(fail, Request::Status(_)));
    let failed = applied(&pod, &fail);
    assert_eq!(failed["status"]["phase"], "Failed");
    assert_eq!(failed["status"]["reason"], "Superseded");
    let granted = granted(&KIND, &pod);
    let end = sent(&KIND, &granted, |workload| {
        let why = Ended::Replaced { by: String::new() };
        Write::End(End { workload, why })
    });
    assert_eq!(applied(&granted, &end)["spec"]["activeDeadlineSeconds"], 1);
}

/// Its status may not be written.
#[test]
fn one_that_cannot_fail_is_put_on_hold() {
    let pod = waiting(|_| {});
    let target = (&*workload(&KIND, &pod)).into();
    let held = applied(&pod, &KIND.hold(&target));
    assert!(KIND.fails_by_status() && workload(&KIND, &held).is_held_back());
}
