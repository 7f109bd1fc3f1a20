//! Jobs that the controller of another workload makes, such as `JobSet`'s: they run in the slots of that.

use k8s_openapi::api::batch::v1 as batch;
use serde_json::{Value, json};
use testbed::proof::HOLD;

use crate::stage::{
    Person, REPORTS, WRITES, annotated, bed, is_refused, job, metadata, stranger, suspend,
    unsuspended,
};

/// What a grant writes into the template of such a Job.
fn grant(uid: &str) -> Value {
    json!({ "spec": { "template": { "metadata": {
        "annotations": { REPORTS[0]: "s", REPORTS[1]: "k", REPORTS[4]: uid },
        "labels": { REPORTS[5]: uid },
    } } } })
}

fn granted(job: &batch::Job) -> usize {
    let [_, template] = metadata(job);
    let names = template.annotations.into_iter().chain(template.labels);
    let names = names.flat_map(std::collections::BTreeMap::into_keys);
    names
        .filter(|name| REPORTS.contains(&name.as_str()))
        .count()
}

#[tokio::test]
async fn they_have_what_a_grant_wrote_for_their_pods() {
    let bed = bed().await;
    let team = bed.namespace("parts").await;
    let controller = Person::user(&bed, &team).await;
    let part = |name: &str, owner: &str| {
        let mut part = stranger(name, Some(true));
        let api_version = match owner {
            "CronJob" => "batch/v1",
            _ => "jobset.x-k8s.io/v1alpha2",
        };
        part["metadata"]["ownerReferences"] = json!([{
            "apiVersion": api_version, "kind": owner, "name": "owner", "uid": "u",
            "controller": true,
        }]);
        part
    };
    // One that is made before its owner is started, and one that is made later.
    let before = controller.create(&part("before", "JobSet")).await;
    let before = before.expect("a Job");
    team.job("before").is_at_rest().await;
    let mut change = grant("owner");
    change["spec"]["suspend"] = false.into();
    let started = controller.would_change("before", change).await;
    let started = started.expect("it is its owner's");
    assert_eq!((suspend(&started), granted(&started)), (Some(false), 4));
    let later = |name: &str, owner: &str| {
        let mut later = part(name, owner);
        let metadata = &mut later["spec"]["template"]["metadata"];
        let grant = grant("owner")["spec"]["template"]["metadata"].clone();
        for place in ["annotations", "labels"] {
            metadata[place] = grant[place].clone();
        }
        later
    };
    let made = controller.would_create(&later("later", "JobSet")).await;
    assert_eq!(granted(&made.expect("a Job")), 4);
    let made = controller.would_create(&later("copy", "CronJob")).await;
    assert_eq!(granted(&made.expect("a Job")), 0);

    // It was granted no slot itself, and nobody but the operator says that it was.
    let uid = before.metadata.uid.expect("a uid");
    is_refused(controller.would_change("before", grant(&uid)).await, WRITES);
    let session = annotated(REPORTS[0], Some("s"));
    is_refused(controller.would_change("before", session).await, WRITES);
    controller
        .would_change("before", unsuspended())
        .await
        .expect("it is its owner's");
}

/// `JobSet` suspends and resumes them, so the operator leaves them alone.
#[tokio::test]
async fn one_with_an_annotation_of_its_own_runs_as_its_owner_wants() {
    let bed = bed().await;
    let team = bed.namespace("annotated-parts").await;
    let controller = Person::user(&bed, &team).await;
    for (name, api_version, owner) in [
        ("of-job-set", "jobset.x-k8s.io/v1alpha2", "JobSet"),
        ("of-mpi-job", "kubeflow.org/v2beta1", "MPIJob"),
    ] {
        let mut part = job(name, Some(false));
        part["metadata"]["ownerReferences"] = json!([{
            "apiVersion": api_version, "kind": owner, "name": "owner", "uid": "u", "controller": true,
        }]);
        let made = controller.would_create(&part).await.expect("a Job");
        assert_eq!(suspend(&made), Some(false), "{owner}");
        part["spec"]["suspend"] = true.into();
        controller.create(&part).await.expect("a Job");
        let started = controller.would_change(name, unsuspended()).await;
        assert_eq!(suspend(&started.expect(owner)), Some(false));
        // The garbage collector does so when the owner is deleted and its parts are not.
        let orphaned = json!({ "metadata": { "ownerReferences": null } });
        controller.would_change(name, orphaned).await.expect(owner);
    }
    let mut foreign = job("foreign", Some(false));
    foreign["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "example.com/v1", "kind": "JobSet", "name": "owner", "uid": "u", "controller": true,
    }]);
    let made = controller.would_create(&foreign).await.expect("a Job");
    assert_eq!(suspend(&made), Some(true));
}

#[tokio::test]
async fn one_on_hold_that_is_unsuspended_stays_suspended_and_is_queued() {
    let bed = bed().await;
    let team = bed.namespace("freed").await;
    let user = Person::user(&bed, &team).await;
    let mut held = job("held", Some(true));
    held["metadata"]["annotations"][HOLD] = "true".into();
    user.create(&held).await.expect("a Job");
    let freed = user.would_change("held", unsuspended()).await;
    let freed = freed.expect("it is queued");
    assert_eq!(suspend(&freed), Some(true));
    let annotations = freed.metadata.annotations.unwrap_or_default();
    assert!(!annotations.contains_key(HOLD), "{annotations:?}");
}
