use serde_json::json;
use testbed::{Bed, Policy};

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn admission() {
    let bed = Bed::start().await;
    let team = bed.namespace_named("demo").await;
    let shell = Shell::with(&bed, team.name()).await;
    let mut page = Page::open("docs/admission.md");

    page.run(&shell, "kubectl apply -k config/policies").await;
    team.policies_are(&[Policy::Suspend, Policy::Guard]).await;

    team.semaphore("db").limit(1).create().await;
    let holder = team.job("holder").semaphore("db").runs("1h").create().await;
    holder.is_running().await;
    let migrate = team.job("migrate").semaphore("db").create().await;
    migrate.is_waiting().await;
    let start = page.commands("kubectl patch job migrate");
    let (as_itself, _) = start
        .split_once(" \\\n")
        .expect("its last line says as whom");
    let [code, _, refusal] = shell.end_of(as_itself).await;
    assert_eq!(code, "1", "{refusal}");
    shell.run(&start).await;
    migrate.has_event("RanWithoutSlot").await;

    let left_out = page
        .commands("kubectl label namespace team-c")
        .replace("team-c", team.name());
    shell.run(&left_out).await;
    team.policies_are(&[]).await;
    page.run(&shell, "kubectl delete -k config/policies").await;
    let left = bed
        .kubectl([
            "get",
            "mutatingadmissionpolicies,validatingadmissionpolicies",
            "-o",
            "json",
        ])
        .await;
    let left: serde_json::Value = serde_json::from_str(&left).expect("JSON");
    assert_eq!(left["items"], json!([]));

    // The alternative for older versions of Kubernetes.
    shell
        .run("kubectl label namespace demo consul-semaphore.io/admission-")
        .await;
    let template = team.job("report").semaphore("db").unsuspended();
    let yearly = json!({ "schedule": "0 0 1 1 *" });
    template.create_cron_job(yearly).await;
    let to_mend = page.run(&shell, "kubectl get cronjobs").await;
    assert_eq!(to_mend.trim(), "demo/report");
    page.run(&shell, "kubectl apply -f config/policies").await;
    let by_hand = "kubectl create job by-hand --from=cronjob/report --dry-run=server";
    team.policies_are(&[Policy::Guard, Policy::Refuse]).await;
    let [code, _, refusal] = shell.end_of(by_hand).await;
    assert_eq!(code, "1", "{refusal}");
    assert!(refusal.contains("spec.suspend: true"), "{refusal}");
    page.run(&shell, "kubectl delete -f config/policies").await;
    team.policies_are(&[Policy::Guard]).await;
    shell.run(by_hand).await;
}
