//! Before Kubernetes 1.36, where no policy can make Jobs suspended: a separate bed with `guard.yaml` and
//! `refuse.yaml` only.

use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use serde_json::json;
use testbed::{
    Bed, Policy, eventually, eventually_within,
    helpers::event_reasons,
    proof::{End, nothing_is_left, pods_end, queue_is, runs_in_a_slot},
};

use crate::{
    controllers::{SCHEDULE, first_job},
    stage::{STARTS, is_refused, job, leave_out, people, stranger, unsuspended},
};

const INSTALLED: [Policy; 2] = [Policy::Guard, Policy::Refuse];

const REFUSE: &str = "ValidatingAdmissionPolicy 'refuse.consul-semaphore.io'";
const MADE_RUNNING: &str =
    "this Job names a semaphore, so its pods must not run before it has a slot";

fn says(refusal: &str) -> bool {
    refusal.contains(REFUSE) && refusal.contains(MADE_RUNNING)
}

#[tokio::test]
async fn a_job_created_without_suspend_is_refused() {
    let bed = Bed::builder().without_operator().start().await;
    for file in ["guard", "refuse"] {
        let file = format!("config/policies/{file}.yaml");
        bed.kubectl(["apply", "-f", &file]).await;
    }
    let (team, without) = (bed.namespace("team").await, bed.namespace("without").await);
    let people = people(&bed, &team).await;
    let [(_, user), _] = &people;
    team.policies_are(&INSTALLED).await;

    let operator = bed.another_operator("operator", [""; 0], []);
    operator.start().await;
    eventually("the operator misses nothing", || async {
        let logs = operator.logs();
        let refused = ["guard", "refuse"].map(|policy| {
            let words =
                format!("ValidatingAdmissionPolicy {policy}.consul-semaphore.io is in force");
            logs.contains(&words)
        });
        if refused == [true, true] {
            Ok(())
        } else {
            Err(logs)
        }
    })
    .await;
    assert!(!operator.logs().contains("MutatingAdmissionPolicy"));

    for (who, person) in &people {
        for (how, given) in [("unset", None), ("running", Some(false))] {
            let name = format!("{}-{how}", who.replace(' ', "-"));
            let refusal = person.create(&job(&name, given)).await.expect_err(&name);
            assert!(says(&refusal), "{refusal}");
        }
        person
            .would_create(&stranger("stranger", None))
            .await
            .expect("it asks for no slot");
        let mut managed = job("managed", None);
        managed["spec"]["managedBy"] = "example.com/multikueue".into();
        person.would_create(&managed).await.expect("that starts it");
        let mut managed = job("managed", None);
        managed["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": "batch" });
        person.would_create(&managed).await.expect("that starts it");
    }
    for out in [true, false] {
        leave_out(&bed, &without, &INSTALLED, out).await;
    }

    // The CronJob's events show the refusal; once corrected, it makes Jobs that wait.
    let db = team.semaphore("db").limit(1).create().await;
    let template = team.job("report").semaphore("db").unsuspended().runs("1h");
    template
        .create_cron_job(json!({ "schedule": "* * * * *" }))
        .await;
    let of_the_cron_job = ListParams::default().fields("involvedObject.kind=CronJob");
    let events = team.api::<Event>();
    eventually_within(SCHEDULE, "the CronJob tells of it", || async {
        let events = events.list(&of_the_cron_job).await;
        let events = events.map_err(|error| error.to_string())?.items;
        let mut texts = events.iter().filter_map(|event| event.message.as_deref());
        if texts.any(says) {
            Ok(())
        } else {
            Err(format!("{events:?}"))
        }
    })
    .await;
    assert_eq!(team.jobs().await, [""; 0]);
    let mended = json!({ "spec": { "jobTemplate": { "spec": { "suspend": true } } } }).to_string();
    team.kubectl(["patch", "cronjob", "report", "--patch", &mended])
        .await;
    let first = first_job(&team).await;
    let stopped = r#"{"spec":{"suspend":true}}"#;
    team.kubectl(["patch", "cronjob", "report", "--patch", stopped])
        .await;
    runs_in_a_slot(&bed, &db, &first).await;

    user.create(&job("job", Some(true))).await.expect("a Job");
    let waiting = team.job("job");
    queue_is(&db, [&waiting]).await;
    is_refused(user.change("job", unsuspended()).await, STARTS);
    pods_end(&team, &first, End::Succeeded).await;
    runs_in_a_slot(&bed, &db, &waiting).await;
    pods_end(&team, &waiting, End::Succeeded).await;
    for job in [&first, &waiting] {
        assert!(
            !event_reasons(job)
                .await
                .contains(&"RanWithoutSlot".to_owned())
        );
    }
    nothing_is_left(&bed, &team, &db).await;
    operator.stop().await;
}
