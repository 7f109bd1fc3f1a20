use serde_json::json;
use testbed::Bed;

use crate::{page::Page, shell::Shell};

const PAGE: &str = "docs/tasks.md";

#[tokio::test]
async fn tasks() {
    let bed = Bed::shared().await;
    let team = bed.namespace("tasks").await;
    let mut shell = Shell::with(&bed, team.name()).await;
    shell.instead_of("semaphores/demo/", &format!("semaphores/{}/", team.name()));
    shell.write("semaphore.yaml", &Page::file(PAGE, "semaphore.yaml"));
    let migrate = Page::file(PAGE, "migrate.yaml").replacen(
        "  template:\n",
        "  template:\n    metadata: {annotations: {bed.consul-semaphore.io/runs: 1h}}\n",
        1,
    );
    shell.write("migrate.yaml", &migrate);
    shell.write("several.yaml", &Page::file(PAGE, "several.yaml"));
    let mut page = Page::open("docs/tasks.md");

    page.run(&shell, "kubectl apply -f semaphore.yaml").await;
    let migrate = team.job("migrate");
    migrate.is_running().await;

    // The same again, behind two others.
    shell.run("kubectl delete job migrate").await;
    let long = |name| team.job(name).semaphore("db-migrations").runs("1h");
    let import = long("import").create().await;
    let report = long("report").create().await;
    import.is_running().await;
    report.is_running().await;
    shell.run("kubectl apply -f migrate.yaml").await;
    let db = team.semaphore("db-migrations");
    // Not only the number: `report` waited like this too, and a status may be that old.
    let behind_both =
        json!({ "held": 2, "waiting": 1, "queue": [{ "kind": "Job", "name": "migrate" }] });
    db.shows(behind_both.clone()).await;
    let shown = page.run(&shell, "kubectl get csem,jobs").await;
    assert_eq!(shown.matches("holds  ").count(), 2, "{shown}");
    assert_eq!(shown.matches("waits  ").count(), 1, "{shown}");
    migrate.has_event("SlotWaiting").await;
    let events = page.run(&shell, "kubectl events").await;
    assert!(events.contains("SlotWaiting"), "{events}");

    page.run(
        &shell,
        "kubectl annotate job migrate consul-semaphore.io/priority",
    )
    .await;
    page.run(
        &shell,
        "kubectl annotate job migrate consul-semaphore.io/hold=true",
    )
    .await;
    db.shows(json!({ "waiting": 0 })).await;
    page.run(
        &shell,
        "kubectl annotate job migrate consul-semaphore.io/hold-",
    )
    .await;
    db.shows(json!({ "waiting": 1 })).await;

    report.delete().await;
    migrate.is_running().await;
    page.run(&shell, "kubectl patch job migrate").await;
    let other = long("other").create().await;
    other.is_running().await;
    page.run(
        &shell,
        "kubectl annotate job migrate consul-semaphore.io/hold-",
    )
    .await;
    db.shows(behind_both).await;

    page.run(
        &shell,
        "kubectl annotate job migrate consul-semaphore.io/semaphore-",
    )
    .await;
    migrate.is_running().await;
    db.shows(json!({ "held": 2, "waiting": 0 })).await;

    migrate.finish().await;
    page.run(&shell, "kubectl wait --for=jsonpath='{.spec.suspend}'")
        .await;
    page.run(&shell, "until ended=").await;

    import.delete().await;
    page.run(&shell, "kubectl apply -f several.yaml").await;
    shell.program("./migrate", r#"echo "in a slot""#);
    assert_eq!(
        page.run(&shell, "consul-semaphore exec").await,
        "in a slot\n"
    );

    other.delete().await;
    for change in [
        r#"{"paused":true}"#,
        r#"{"paused":false}"#,
        r#"{"windows":[{"#,
        r#"{"windows":null"#,
        r#"{"limit":3}"#,
    ] {
        let command = "kubectl patch csem db-migrations --type=merge -p";
        page.run(&shell, &format!("{command} '{{\"spec\":{change}"))
            .await;
    }
    db.shows(json!({ "limit": 3 })).await;
    page.run(&shell, "kubectl apply -f - <<'END'").await;
    page.run(&shell, "kubectl delete csem").await;
    db.is_gone().await;
}
