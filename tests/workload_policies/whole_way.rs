//! The policies beside the real controllers with their webhooks, which change the same objects: on a separate bed.

use testbed::{Bed, Controller, eventually};

use crate::stage::{Kind, Person, annotation, in_force, owned_by};

#[tokio::test]
async fn what_is_granted_its_slot_is_started_and_its_pods_know_it() {
    let controllers = [Controller::JobSet, Controller::Tekton, Controller::Argo];
    let bed = Bed::builder().without_operator().controllers(controllers);
    let bed = bed.start().await;
    in_force(&bed, &Kind::CODED).await;
    let operator = bed.another_operator("operator", ["--workloads=all"], []);
    operator.start().await;
    let team = bed.namespace("granted").await;
    let admin = Person::admin(&bed, &team);
    // The pod of a Workflow may have its name.
    let name = |kind: Kind| format!("{kind:?}").to_lowercase();
    for kind in Kind::CODED {
        admin
            .create(kind, &kind.running(&name(kind)))
            .await
            .unwrap();
        let mut held = kind.running("held");
        held["metadata"]["annotations"]["consul-semaphore.io/hold"] = "true".into();
        admin.create(kind, &held).await.unwrap();
    }
    let _db = team.semaphore("db").limit(10).create().await;
    for kind in Kind::CODED {
        let what = format!("the pods of the {kind:?} have its grant");
        eventually(&what, || async {
            let now = admin.get(kind, &name(kind)).await?;
            let uid = now["metadata"]["uid"].as_str().unwrap_or_default();
            let pods = format!("consul-semaphore.io/holder={uid}");
            let pods = team.pods_with(&pods).await;
            let session = annotation(&now, "consul-semaphore.io/session");
            let known = pods.first().is_some_and(|pod| {
                let pod = serde_json::to_value(pod).unwrap_or_default();
                session.is_some() && annotation(&pod, "consul-semaphore.io/session") == session
            });
            if known { Ok(()) } else { Err(now.to_string()) }
        })
        .await;
        let held = admin.get(kind, "held").await.unwrap();
        assert!(kind.is_held(&held), "{held}");
    }
    // A part with an annotation of its own is told whose part it is.
    let part = owned_by(Kind::TaskRun.running("part"), "Whole");
    admin.create(Kind::TaskRun, &part).await.unwrap();
    let part = team.object("tekton.dev/v1", "TaskRun", "part").await;
    eventually("its user is told", || async {
        let about = format!("regarding.name={}", part.name());
        let listed = team
            .kubectl([
                "get",
                "events.events.k8s.io",
                "-o",
                "json",
                "--field-selector",
                &about,
            ])
            .await;
        let told = listed.contains("Whole owner");
        if told { Ok(()) } else { Err(listed) }
    })
    .await;
    operator.stop().await;
}
