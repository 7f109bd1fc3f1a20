//! The policies and the operator say the same about who decides when a workload runs that another object made.

use consul_client::clock::Moment;
use consul_semaphore_workload::{Kind as WorkloadKind, Obstacle, TrackedWorkload};
use serde_json::json;

use crate::stage::{Kind, Person, bed};

const OWNERS: [(&str, &str); 13] = [
    ("batch/v1", "CronJob"),
    ("example.com/v1", "CronJob"),
    ("argoproj.io/v1alpha1", "CronWorkflow"),
    ("argoproj.io/v1alpha1", "Workflow"),
    ("sparkoperator.k8s.io/v1beta2", "ScheduledSparkApplication"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    ("kubeflow.org/v2beta1", "MPIJob"),
    ("ray.io/v1", "RayJob"),
    ("tekton.dev/v1", "PipelineRun"),
    ("tekton.dev/v1", "TaskRun"),
    ("batch/v1", "Job"),
    ("v1", "ConfigMap"),
];

#[tokio::test]
async fn what_the_operator_leaves_to_its_owner_is_not_held_and_all_else_is() {
    let bed = bed().await;
    let team = bed.namespace("owners").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        let name = format!("{kind:?}");
        let known = WorkloadKind::all();
        let mut known = known.iter();
        let known = known.find(|known| known.name().as_str() == name);
        let known = known.expect("the operator knows it");
        for (api_version, owner) in OWNERS {
            for controller in [true, false] {
                let mut object = kind.running("made");
                object["metadata"]["ownerReferences"] = json!([{
                    "apiVersion": api_version, "kind": owner, "name": "owner", "uid": "u",
                    "controller": controller,
                }]);
                let mut made = admin.would_create(kind, &object).await.unwrap();
                let is_held = kind.is_held(&made);
                // A dry run gives it none.
                made["metadata"]["resourceVersion"] = "1".into();
                let read = TrackedWorkload::parse(known, &made.to_string(), Moment::default());
                let read = read.expect("an object").expect("it names a semaphore");
                let is_owned = matches!(read.obstacle, Some(Obstacle::Owned(_)));
                assert_eq!(
                    is_held, !is_owned,
                    "{name} of {api_version} {owner}, controller: {controller}"
                );
            }
        }
    }
}
