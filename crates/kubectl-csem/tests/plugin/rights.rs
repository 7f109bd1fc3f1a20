//! Users with exactly the rights of a shipped role. What they may do works, and every refusal says which right is
//! missing and which role grants it.

use serde_json::json;
use testbed::{Bed, Namespace};

use crate::stage::User;

/// A user with these roles in the namespace, once they are in effect. Kubernetes' own view and edit are given by the
/// roles that they aggregate: the bed runs no controller that aggregates them.
async fn user(bed: &Bed, team: &Namespace, name: &str, roles: &[&str]) -> User {
    team.apply(json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name },
    }))
    .await;
    for role in roles {
        let role_name = role.replace(':', "-");
        team.apply(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": format!("{name}-{role_name}") },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": team.name() }],
        }))
        .await;
        let what = match *role {
            VIEWER => ["list", "consulsemaphores.consul-semaphore.io"],
            EDITOR => ["patch", "consulsemaphores.consul-semaphore.io"],
            VIEW => ["list", "events"],
            _ => ["patch", "jobs.batch"],
        };
        let account = format!("system:serviceaccount:{}:{name}", team.name());
        team.lets(&account, what, true).await;
    }
    User::with(&bed.kubeconfig_of(team, name).await, team)
}

const VIEWER: &str = "consul-semaphore-viewer";
const EDITOR: &str = "consul-semaphore-editor";
const VIEW: &str = "system:aggregate-to-view";
const EDIT: &str = "system:aggregate-to-edit";

#[tokio::test]
async fn each_role_may_do_what_it_is_for() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-rights").await;
    let db = team.semaphore("db").limit(1).create().await;
    let job = team.job("runs").semaphore("db").runs("1h").create().await;
    job.is_running().await;
    job.has_event("SlotGranted").await;
    team.job("waits").semaphore("db").create().await;
    db.shows(json!({ "held": 1, "waiting": 1 })).await;

    let nobody = user(&bed, &team, "nobody", &[]).await;
    for words in [&["list"][..], &["show", "db"], &["watch"], &["watch", "db"]] {
        let said = nobody.csem(words).await;
        said.is(
            77,
            &["You may not", "consulsemaphores", team.name(), VIEWER],
        );
    }
    nobody
        .csem(&["pause", "db"])
        .await
        .is(77, &["You may not get consulsemaphores", EDITOR]);
    nobody
        .csem(&["hold", "waits"])
        .await
        .is(77, &["You may not get jobs", "ClusterRole edit"]);

    // Semaphores only: the status shows the head of the queue, and the output says what is left out.
    let viewer = user(&bed, &team, "viewer", &[VIEWER]).await;
    viewer.csem(&["list"]).await.is(0, &["db", "True"]);
    let shown = viewer.csem(&["show", "db"]).await;
    shown.is(
        0,
        &[
            "runs",
            "waits",
            "AllSlotsHeld",
            "the Jobs are not shown",
            "You may not list jobs",
        ],
    );
    shown.is(
        0,
        &[
            "the events are not shown",
            "You may not list events",
            "ClusterRole view",
        ],
    );
    let read = viewer.reads(&["show", "db"]).await;
    assert_eq!(read["gaps"].as_array().map(Vec::len), Some(2), "{read}");
    viewer
        .csem(&["pause", "db"])
        .await
        .is(77, &["You may not patch consulsemaphores", EDITOR]);
    viewer.csem(&["resume", "db"]).await.is(0, &["not paused"]);
    viewer
        .csem(&["list", "-A"])
        .await
        .is(77, &["in all namespaces", "Without -A"]);
    // A user who may not list all namespaces gets the context's, which is the team's.
    let said = viewer.csem_anywhere(&["list"], "").await;
    said.is(0, &["you may not list", "those of", team.name(), "True"]);

    let editor = user(&bed, &team, "editor", &[EDITOR]).await;
    editor.csem(&["pause", "db"]).await.is(0, &["db paused"]);
    editor.csem(&["resume", "db"]).await.is(0, &["db resumed"]);
    editor
        .csem(&["hold", "waits"])
        .await
        .is(77, &["You may not get jobs"]);

    // With Kubernetes' own view, which includes the viewer role, nothing is left out.
    let looker = user(&bed, &team, "looker", &[VIEWER, VIEW]).await;
    let read = looker.reads(&["show", "db"]).await;
    assert_eq!(read["gaps"], json!([]), "{read}");
    assert_eq!(read["queue"][0]["priority"], 0);
    assert!(
        read["events"]
            .as_array()
            .is_some_and(|events| !events.is_empty()),
        "{read}"
    );
    looker
        .csem(&["hold", "waits"])
        .await
        .is(77, &["You may not patch jobs", "ClusterRole edit"]);
    looker
        .csem(&["bump", "waits", "--priority", "1"])
        .await
        .is(77, &["ClusterRole edit"]);

    let worker = user(&bed, &team, "worker", &[VIEWER, VIEW, EDIT]).await;
    worker.csem(&["hold", "waits"]).await.is(0, &["on hold"]);
    worker
        .csem(&["unhold", "waits"])
        .await
        .is(0, &["no longer on hold"]);
    worker
        .csem(&["bump", "waits", "--priority", "7"])
        .await
        .is(0, &["priority 7"]);
    worker.csem(&["pause", "db"]).await.is(77, &[EDITOR]);

    as_another_one(&bed, &team).await;
}

/// The administrator can impersonate other users.
async fn as_another_one(bed: &Bed, team: &Namespace) {
    let admin = User::admin(bed, team);
    let viewer = format!("--as=system:serviceaccount:{}:viewer", team.name());
    admin.csem(&["list", &viewer]).await.is(0, &["db", "True"]);
    admin
        .csem(&["pause", "db", &viewer])
        .await
        .is(77, &["You may not patch consulsemaphores", "viewer"]);
    let group = ["--as=somebody", "--as-group=system:masters"];
    admin
        .csem(&[&["pause", "db"], &group[..]].concat())
        .await
        .is(0, &["db paused"]);
    admin.csem(&["resume", "db"]).await.is(0, &["db resumed"]);
}
