use std::fs;

use serde_json::json;
use testbed::{Bed, Namespace, Policy};

use crate::{page::Page, shell::Shell};

const PAGE: &str = "docs/gitops.md";
/// An annotation for the bed's fake node.
const LONG: &str = "  template:\n    metadata: {annotations: {bed.consul-semaphore.io/runs: 1h}}\n";

#[tokio::test]
async fn gitops() {
    let bed = Bed::shared().await;
    let team = bed.namespace("gitops").await;
    team.semaphore("db-migrations").limit(9).create().await;
    let mut shell = Shell::with(&bed, team.name()).await;
    let mut page = Page::open("docs/gitops.md");
    let manifest = Page::file(PAGE, "migrate.yaml").replacen("  template:\n", LONG, 1);
    let with = |name: &str, suspend: &str| {
        manifest
            .replace("name: migrate\n", &format!("name: {name}\n"))
            .replacen("spec:\n", &format!("spec:\n{suspend}"), 1)
    };
    shell.write("migrate.yaml", &manifest);
    shell.write("suspend.yaml", &with("migrate", "  suspend: true\n"));
    shell.write(
        "server-side.yaml",
        &with("server-side", "  suspend: true\n"),
    );

    let rendered = page.run(&shell, "helm template").await;
    let policy = "kind: MutatingAdmissionPolicy\n";
    assert!(rendered.contains(policy), "{rendered}");

    // An apply does not touch fields that are not in Git.
    let migrate = team.job("migrate");
    shell.run("kubectl apply -f migrate.yaml").await;
    migrate.has_event("SlotGranted").await;
    let owner = r#"kubectl get job migrate --show-managed-fields -o json | jq -r '.metadata.managedFields[] | select(.fieldsV1["f:spec"]["f:suspend"]) | .manager'"#;
    assert_eq!(shell.run(owner).await, "consul-semaphore-operator\n");
    let again = shell.run("kubectl apply -f migrate.yaml").await;
    assert!(again.contains("unchanged"), "{again}");
    // Fields that are in Git are a user's decision.
    shell.run("kubectl apply -f suspend.yaml").await;
    migrate.is_on_hold().await;

    let server_side = "kubectl apply --server-side --field-manager=git -f server-side.yaml";
    shell.run(server_side).await;
    team.job("server-side").is_running().await;
    let [code, _, conflict] = shell.end_of(server_side).await;
    assert_eq!(code, "1", "{conflict}");
    assert!(
        conflict
            .contains(r#"conflict with "consul-semaphore-operator" using batch/v1: .spec.suspend"#),
        "{conflict}"
    );
    shell.run(&format!("{server_side} --force-conflicts")).await;
    team.job("server-side").is_on_hold().await;

    helm(
        &team,
        &mut shell,
        &mut page,
        &with("{{ .Release.Name }}", ""),
    )
    .await;
}

async fn helm(team: &Namespace, shell: &mut Shell, page: &mut Page, long: &str) {
    let templates = shell.path().join("batch/templates");
    fs::create_dir_all(&templates).expect("a chart");
    shell.write(
        "batch/Chart.yaml",
        "apiVersion: v2\nname: batch\nversion: 0.1.0\n",
    );
    shell.write("batch/templates/job.yaml", &long.replace("1h}}", "1s}}"));
    page.run(shell, "helm upgrade --install batch").await;
    team.job("batch").is_complete().await;

    // One that waits.
    let paused = team
        .semaphore("paused")
        .limit(1)
        .paused(true)
        .create()
        .await;
    paused.has_condition("Ready", "True", "Paused").await;
    // Created suspended: to Helm, a Job that the operator suspends has already started.
    let waits = long.replace("semaphore: db-migrations", "semaphore: paused");
    let waits = waits.replacen("spec:\n", "spec:\n  suspend: true\n", 1);
    shell.write("batch/templates/job.yaml", &waits);
    for (wait, code) in [
        ("--wait", "1"),
        ("--wait --wait-for-jobs", "1"),
        ("--wait=legacy", "0"),
        ("--wait=legacy --wait-for-jobs", "1"),
    ] {
        let name = format!("waits{}", wait.replace("--", "-").replace([' ', '='], ""));
        // A wait that succeeds may take long nevertheless.
        let timeout = if code == "0" { "100s" } else { "3s" };
        let install = format!("helm install {name} ./batch {wait} --timeout {timeout}");
        let [ended, _, error] = shell.end_of(&install).await;
        assert_eq!(ended, code, "{wait}: {error}");
    }

    // A Job that runs although its chart says suspended.
    let suspended = long.replacen("spec:\n", "spec:\n  suspend: true\n", 1);
    shell.write("batch/templates/job.yaml", &suspended);
    shell.run("helm install runs ./batch").await;
    team.job("runs").is_running().await;
    let [code, _, conflict] = shell.end_of("helm upgrade runs ./batch").await;
    assert_eq!(code, "1", "{conflict}");
    assert!(conflict.contains(".spec.suspend"), "{conflict}");
}

/// The first and the last row of the page's table, with the admission policies.
#[tokio::test]
async fn an_apply_leaves_a_field_alone_that_git_does_not_have() {
    let bed = Bed::start().await;
    let team = bed.namespace("git").await;
    let db = team.semaphore("db-migrations").limit(9).paused(true);
    let db = db.create().await;
    db.has_condition("Ready", "True", "Paused").await;
    let shell = Shell::with(&bed, team.name()).await;
    let manifest = Page::file(PAGE, "migrate.yaml").replacen("  template:\n", LONG, 1);
    shell.write("migrate.yaml", &manifest);
    shell.run("kubectl apply -k config/policies").await;
    team.policies_are(&[Policy::Suspend, Policy::Guard]).await;

    let ways = [
        ("client-side", "kubectl apply"),
        (
            "server-side",
            "kubectl apply --server-side --force-conflicts",
        ),
    ];
    for (name, apply) in ways {
        let file = format!("{name}.yaml");
        let mine = manifest.replace("name: migrate\n", &format!("name: {name}\n"));
        shell.write(&file, &mine);
        shell.write(
            "unsuspended.yaml",
            &mine.replacen("spec:\n", "spec:\n  suspend: false\n", 1),
        );
        let job = team.job(name);
        shell.run(&format!("{apply} -f {file}")).await;
        job.is_waiting().await;
        shell.run(&format!("{apply} -f {file}")).await;
        job.is_waiting().await;
        let [code, _, refusal] = shell.end_of(&format!("{apply} -f unsuspended.yaml")).await;
        assert_eq!(code, "1", "{refusal}");
        assert!(refusal.contains("guard.consul-semaphore.io"), "{refusal}");
    }
    db.resume().await;
    for (name, apply) in ways {
        let job = team.job(name);
        job.is_running().await;
        shell.run(&format!("{apply} -f {name}.yaml")).await;
        let job = job.get().await.expect("it is there");
        assert_eq!(job.spec.and_then(|spec| spec.suspend), Some(false));
    }
}

#[tokio::test]
async fn the_deadline_of_a_job_does_not_run_while_it_waits() {
    let bed = Bed::shared().await;
    let team = bed.namespace("deadline").await;
    let db = team.semaphore("db").limit(1).paused(true).create().await;
    db.has_condition("Ready", "True", "Paused").await;
    let deadline = json!({ "spec": { "activeDeadlineSeconds": 600 } });
    let job = team.job("job").semaphore("db").runs("1h").with(deadline);
    let job = job.create().await;
    job.is("suspended, without a start", |job| {
        let status = job.status.as_ref();
        status.is_some_and(|status| status.conditions.is_some() && status.start_time.is_none())
    })
    .await;
    db.resume().await;
    job.is_running().await;
    let started = job.get().await.and_then(|job| job.status?.start_time);
    assert!(started.is_some());
    job.suspend().await;
    job.is_on_hold().await;
    job.is("without a start", |job| {
        job.status
            .as_ref()
            .is_some_and(|status| status.start_time.is_none())
    })
    .await;
    job.annotate("consul-semaphore.io/hold", None).await;
    job.is_running().await;
    let again = job.get().await.and_then(|job| job.status?.start_time);
    // Of a later start, if there was one in between. Times are whole seconds.
    assert!(again >= started, "{again:?} after {started:?}");
}
