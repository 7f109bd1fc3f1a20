//! Jobs that the controller of another workload makes, such as `JobSet`'s: they run in the slots of that.

use k8s_openapi::api::batch::v1 as batch;
use serde_json::{Value, json};

use crate::stage::{
    Person, REPORTS, WRITES, annotated, bed, is_refused, metadata, stranger, suspend, unsuspended,
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
        part["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "example.com/v1", "kind": owner, "name": "owner", "uid": "u",
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
