//! The Job controller is away, so the status of a Job says nothing of the pods that it has.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use testbed::{
    Bed, Job, Namespace, eventually,
    proof::{is_warned, nothing_is_left, running_pods, runs_in_a_slot},
    same,
};

/// A Job is started and loses its slot at once. Its controller has made its pod, and was ended before it could say so:
/// the status of the Job still says that it is suspended and has no pods, from the time before the start.
#[tokio::test]
async fn a_slot_that_is_lost_at_once_counts_while_a_pod_runs_that_no_status_shows() {
    let bed = Bed::start().await;
    let team = bed.namespace("unreported").await;
    let job = |name| team.job(name).semaphore("db").runs("1h").grace(1);
    let (a, b) = (job("a").create().await, job("b").create().await);
    let witness = |name| job(name).priority(-1).hold();
    let witnesses = [witness("c").create().await, witness("d").create().await];
    for waiting in [&a, &b].into_iter().chain(&witnesses) {
        waiting.is_at_rest().await;
    }
    let kubernetes = bed.kubernetes().expect("the bed's own");
    let [_api_server, _etcd, controllers, ..] = kubernetes.processes();
    controllers.end("KILL").await.expect("its end");

    let spec = json!({ "onSlotLost": "Suspend", "session": { "lockDelay": "0s" } });
    let db = team.semaphore("db").limit(1).spec(spec).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    a.is("started", |job| {
        let spec = job.spec.as_ref();
        spec.is_some_and(|spec| spec.suspend == Some(false))
    })
    .await;
    let session = a.session().await.expect("it was started in a slot");
    let pod = make_pod(&bed, &team, &a).await;
    eventually("its pod runs", || async {
        same(running_pods(&a).await, vec![pod.clone()])
    })
    .await;
    let contender = format!("kv/{}/{session}?release={session}", db.lock_prefix());
    bed.consul().put_json(&contender, json!(null)).await;
    is_warned(&a, "SlotLost", "suspended, first in the queue").await;
    // The pass that notices the second one began when everything before the first was known.
    for witness in &witnesses {
        witness.annotate("consul-semaphore.io/hold", None).await;
        witness.has_event("SlotWaiting").await;
    }
    let holders = bed.consul().holders(&db.lock_prefix()).await;
    assert_eq!(holders, [session.clone()].into(), "its pod runs");
    a.is_suspended().await;

    controllers.start_again().expect("a start");
    let again = runs_in_a_slot(&bed, &db, &a).await;
    assert_ne!(again.session, session);
    a.finish().await;
    runs_in_a_slot(&bed, &db, &b).await;
    b.finish().await;
    for witness in &witnesses {
        witness.delete().await;
    }
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
}

/// Makes the pod of a Job as its controller does, and returns its name.
async fn make_pod(bed: &Bed, team: &Namespace, job: &Job) -> String {
    let job = job.get().await.expect("it is there");
    let (metadata, spec) = (job.metadata, job.spec.expect("a spec"));
    let of = metadata.name.expect("a name");
    let name = format!("{of}-pod");
    let mut pod: Value = serde_json::to_value(spec.template).expect("JSON");
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": of,
        "uid": metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    }]);
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let pods = Api::<Pod>::namespaced(bed.client().clone(), team.name());
    pods.create(&PostParams::default(), &pod)
        .await
        .expect("a new pod");
    name
}
