//! What happens to a workload when it is created.

use serde_json::{Value, json};

use crate::stage::{
    HOLD, HOLDER, KUEUE, Kind, Person, REPORTS, SEMAPHORE, WAITS, annotation, bed, label, owned_by,
};

#[tokio::test]
async fn what_names_a_semaphore_is_held_and_labelled() {
    let bed = bed().await;
    let team = bed.namespace("made").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        let made = admin.create(kind, &kind.running("new")).await;
        let made = made.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert!(kind.is_held(&made), "{kind:?}");
        assert_eq!(label(&made, WAITS), Some("true"), "{kind:?}");
        assert_eq!(annotation(&made, HOLD), None, "{kind:?}");
    }
}

/// It is its user's, unless that says otherwise.
#[tokio::test]
async fn what_arrives_held_is_put_on_hold() {
    let bed = bed().await;
    let team = bed.namespace("held").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        let made = admin.create(kind, &kind.held("held")).await.unwrap();
        assert!(kind.is_held(&made), "{kind:?}");
        assert_eq!(label(&made, WAITS), Some("true"), "{kind:?}");
        assert_eq!(annotation(&made, HOLD), Some("true"), "{kind:?}");
        let mut queued = kind.held("queued");
        queued["metadata"]["annotations"][HOLD] = "false".into();
        let made = admin.create(kind, &queued).await.unwrap();
        assert_eq!(annotation(&made, HOLD), Some("false"), "{kind:?}");
    }
}

/// As a manifest for Kubernetes before 1.36 is written, and as a copy of what waits comes.
#[tokio::test]
async fn what_arrives_held_with_the_label_is_queued() {
    let bed = bed().await;
    let team = bed.namespace("labelled").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        let mut queued = kind.held("queued");
        queued["metadata"]["labels"] = json!({ WAITS: "true" });
        let made = admin.create(kind, &queued).await.unwrap();
        assert!(kind.is_held(&made), "{kind:?}");
        assert_eq!(annotation(&made, HOLD), None, "{kind:?}");
    }
}

/// So that the operator sees it, and tells its user.
#[tokio::test]
async fn what_has_a_misspelt_annotation_is_labelled_and_not_held() {
    let bed = bed().await;
    let team = bed.namespace("misspelt").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        let mut misspelt = kind.stranger("misspelt");
        misspelt["metadata"]["annotations"] = json!({ "consul-semaphore.io/semaphor": "db" });
        let made = admin.would_create(kind, &misspelt).await.unwrap();
        assert!(!kind.is_held(&made), "{kind:?}");
        assert_eq!(label(&made, WAITS), Some("true"), "{kind:?}");
        let part = owned_by(misspelt, "Whole");
        let part = admin.would_create(kind, &part).await.unwrap();
        assert_eq!(label(&part, WAITS), None, "{kind:?}");
    }
}

/// Argo takes these locks before the Workflow has its slot.
#[tokio::test]
async fn a_workflow_with_locks_of_its_own_is_refused() {
    let bed = bed().await;
    let team = bed.namespace("locks").await;
    let admin = Person::admin(&bed, &team);
    let kind = Kind::Workflow;
    let locks = json!({ "mutexes": [{ "name": "x" }] });
    let mut locked = kind.running("locked");
    locked["spec"]["synchronization"] = locks.clone();
    let refusal = admin.would_create(kind, &locked).await.unwrap_err();
    assert!(
        refusal.contains("'refuse.") && refusal.contains("remove spec.synchronization"),
        "{refusal}"
    );
    let mut unnamed = kind.stranger("unnamed");
    unnamed["spec"]["synchronization"] = locks.clone();
    admin.would_create(kind, &unnamed).await.unwrap();
    let mut template = kind.running("template");
    template["spec"]["templates"][0]["synchronization"] = locks;
    admin.would_create(kind, &template).await.unwrap();
}

#[tokio::test]
async fn what_names_none_is_not_touched() {
    let bed = bed().await;
    let team = bed.namespace("untouched").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        let made = admin.would_create(kind, &kind.stranger("a")).await.unwrap();
        assert!(!kind.is_held(&made), "{kind:?}");
        assert_eq!(label(&made, WAITS), None, "{kind:?}");
    }
}

#[tokio::test]
async fn what_another_controller_starts_is_not_held() {
    let bed = bed().await;
    let team = bed.namespace("managed").await;
    let admin = Person::admin(&bed, &team);
    let unheld = async |kind: Kind, object: Value| {
        let made = admin.would_create(kind, &object).await.unwrap();
        assert!(!kind.is_held(&made), "{object}");
        // So that the operator tells its user.
        assert_eq!(label(&made, WAITS), Some("true"), "{object}");
    };
    for kind in Kind::ALL {
        let mut queued = kind.running("queued");
        queued["metadata"]["labels"] = json!({ KUEUE: "batch" });
        unheld(kind, queued).await;
        unheld(kind, owned_by(kind.running("part"), "Whole")).await;
        for maker in ["CronJob", "CronWorkflow"] {
            let made = owned_by(kind.running("made"), maker);
            let made = admin.would_create(kind, &made).await.unwrap();
            assert!(kind.is_held(&made), "{kind:?} of a {maker}");
        }
    }
    for (kind, own) in [
        (Kind::JobSet, "jobset.sigs.k8s.io/jobset-controller"),
        (Kind::PipelineRun, "tekton.dev/pipeline"),
        (Kind::TaskRun, "tekton.dev/pipeline"),
    ] {
        let mut managed = kind.running("managed");
        managed["spec"]["managedBy"] = "example.com/other".into();
        unheld(kind, managed.clone()).await;
        managed["spec"]["managedBy"] = own.into();
        let made = admin.would_create(kind, &managed).await.unwrap();
        assert!(kind.is_held(&made), "{kind:?}");
    }
    let mut placed = Kind::Pod.running("placed");
    placed["spec"]["nodeName"] = "node".into();
    unheld(Kind::Pod, placed).await;
    for (kind, word) in [
        (Kind::PipelineRun, "Cancelled"),
        (Kind::TaskRun, "TaskRunCancelled"),
    ] {
        let mut cancelled = kind.running("cancelled");
        cancelled["spec"]["status"] = word.into();
        unheld(kind, cancelled).await;
    }
}

/// With the operator's annotations and label.
fn reported(mut object: Value) -> Value {
    for name in REPORTS {
        object["metadata"]["annotations"][name] = "brought".into();
    }
    object["metadata"]["labels"][HOLDER] = "brought".into();
    object
}

#[tokio::test]
async fn a_copy_brings_nothing_of_the_operators_with_it_and_a_part_keeps_it() {
    let bed = bed().await;
    let team = bed.namespace("copied").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        let copy = reported(kind.running("copy"));
        let made = admin.would_create(kind, &copy).await.unwrap();
        let part = owned_by(reported(kind.running("part")), "Whole");
        let part = admin.would_create(kind, &part).await.unwrap();
        for name in REPORTS {
            assert_eq!(annotation(&made, name), None, "{kind:?}");
            assert_eq!(annotation(&part, name), Some("brought"), "{kind:?}");
        }
        assert_eq!(label(&made, HOLDER), None, "{kind:?}");
        assert_eq!(label(&part, HOLDER), Some("brought"), "{kind:?}");
        assert_eq!(annotation(&made, SEMAPHORE), Some("db"));
    }
    // It may get its owner later, as a driver of Spark does, and has what a grant wrote into its template.
    let made = reported(Kind::Pod.stranger("driver"));
    let made = admin.would_create(Kind::Pod, &made).await.unwrap();
    assert_eq!(label(&made, HOLDER), Some("brought"));
}

/// Tekton copies a Pipeline's annotations to a run that has started.
#[tokio::test]
async fn what_is_annotated_later_is_labelled_and_goes_on() {
    let bed = bed().await;
    let team = bed.namespace("later").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        admin.create(kind, &kind.stranger("runs")).await.unwrap();
        let mut change = json!({ "metadata": { "annotations": { SEMAPHORE: "db" } } });
        if kind.can_be_suspended() {
            let refusal = admin.change(kind, "runs", &change).await.unwrap_err();
            assert!(refusal.contains("suspend it first"), "{refusal}");
            change["spec"] = kind.suspend(&true.into())["spec"].take();
        }
        let changed = admin.change(kind, "runs", &change).await.unwrap();
        assert_eq!(label(&changed, WAITS), Some("true"), "{kind:?}");
        assert_eq!(kind.is_held(&changed), kind.can_be_suspended(), "{kind:?}");
        if !kind.can_be_suspended() {
            // Its controller may copy this, too, and must be able to write what it knows.
            let also = json!({ "metadata": { "annotations": {
                "consul-semaphore.io/on-contention": "Fail", "consul-semaphore.io/key": "k",
            } } });
            admin.would_change(kind, "runs", &also).await.unwrap();
        }
        // It stays: without it the operator would lose sight of it.
        let unlabelled = json!({ "metadata": { "labels": { WAITS: null } } });
        let changed = admin.would_change(kind, "runs", &unlabelled).await.unwrap();
        assert_eq!(label(&changed, WAITS), Some("true"), "{kind:?}");
    }
}

/// Each message says what to change.
#[tokio::test]
async fn what_its_controller_can_t_hold_is_refused() {
    let bed = bed().await;
    let team = bed.namespace("unfit").await;
    let admin = Person::admin(&bed, &team);
    for (kind, path, value, message) in [
        (
            Kind::RayJob,
            "/spec/shutdownAfterJobFinishes",
            json!(false),
            "set spec.shutdownAfterJobFinishes to true",
        ),
        (
            Kind::RayJob,
            "/spec/clusterSelector",
            json!({ "a": "b" }),
            "remove spec.clusterSelector",
        ),
        (
            Kind::RayJob,
            "/spec/submissionMode",
            json!("InteractiveMode"),
            "or set it to K8sJobMode or HTTPMode",
        ),
        (
            Kind::MPIJob,
            "/spec/runPolicy/cleanPodPolicy",
            json!("None"),
            "set spec.runPolicy.cleanPodPolicy to Running or All",
        ),
        (
            Kind::MPIJob,
            "/spec/runPolicy",
            json!(null),
            "set spec.runPolicy.cleanPodPolicy to Running or All",
        ),
    ] {
        let unfit = |mut object: Value| {
            let (parent, field) = path.rsplit_once('/').unwrap();
            let parent = object.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            match &value {
                Value::Null => parent.remove(field),
                value => parent.insert(field.to_owned(), value.clone()),
            };
            object
        };
        let refusal = admin.would_create(kind, &unfit(kind.running("a"))).await;
        let refusal = refusal.unwrap_err();
        assert!(
            refusal.contains("'refuse.") && refusal.contains(message),
            "{refusal}"
        );
        let unnamed = unfit(kind.stranger("b"));
        admin.create(kind, &unnamed).await.unwrap();
        let mut named = json!({ "metadata": { "annotations": { SEMAPHORE: "db" } } });
        if kind != Kind::MPIJob {
            named["spec"] = kind.suspend(&true.into())["spec"].take();
        }
        let refusal = admin.would_change(kind, "b", &named).await.unwrap_err();
        assert!(
            refusal.contains("refuse.") || refusal.contains("guard."),
            "{refusal}"
        );
        // What its owner starts is the owner's.
        let part = owned_by(unfit(kind.running("part")), "Whole");
        admin.would_create(kind, &part).await.unwrap();
        let team = team.name();
        let object = format!("{kind:?}/b").to_lowercase();
        bed.kubectl(["delete", "-n", team, "--wait=false", &object])
            .await;
    }
}
