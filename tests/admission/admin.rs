//! What an admin may do, but only on purpose.

use std::fs;

use testbed::{
    Bed,
    proof::{End, HOLD, is_warned, nothing_is_left, pods_end, queue_is, runs_in_a_slot},
};

use crate::stage::{
    BOTH, GUARD, OPERATOR, Person, STARTS, annotated, bed, is_refused, leave_out, unsuspended,
};

/// The arguments of a `kubectl` command in docs/admission.md, with these names in place of its own.
fn documented(beginning: &str, names: &[(&str, &str)]) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/admission.md");
    let page = fs::read_to_string(page)
        .expect("the page")
        .replace("\\\n", " ");
    let line = page
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with(beginning));
    let mut line = line.expect(beginning).to_owned();
    for (from, to) in names {
        line = line.replace(from, to);
    }
    let words = line.split_whitespace().skip(1);
    words
        .map(|word| word.trim_matches('\'').to_owned())
        .collect()
}

#[tokio::test]
async fn to_act_as_the_operator_has_to_be_meant_and_is_not_for_everybody() {
    let bed = bed().await;
    let team = bed.namespace("as-the-operator").await;
    let db = team.semaphore("db").limit(1).create().await;
    let holder = team.job("holder").semaphore("db").runs("1h").create().await;
    runs_in_a_slot(&bed, &db, &holder).await;
    let waits = team.job("waits").semaphore("db").runs("1h").create().await;
    queue_is(&db, [&waits]).await;
    let user = {
        Person::user(&bed, &team).await;
        bed.kubeconfig_of(&team, "user").await.display().to_string()
    };
    let names = [("job migrate", "job waits")];
    let start = documented("kubectl patch job migrate", &names);
    assert_eq!(
        start.last().map(String::as_str),
        Some(&*format!("--as={OPERATOR}"))
    );
    let run = async |bed: &Bed, who: &[&str], command: &[String]| {
        let command = command.iter().map(String::as_str);
        let args = ["-n", team.name()]
            .into_iter()
            .chain(who.iter().copied())
            .chain(command);
        let ran = bed.try_kubectl(args).await;
        ran.map_err(|error| format!("{error:#}"))
    };
    let as_itself = &start[..start.len() - 1];
    for who in [&[][..], &["--kubeconfig", &user][..]] {
        let refusal = run(&bed, who, as_itself).await.expect_err("it is refused");
        assert!(
            refusal.contains(GUARD) && refusal.contains(STARTS),
            "{refusal}"
        );
    }
    let refusal = run(&bed, &["--kubeconfig", &user], &start).await;
    let refusal = refusal.expect_err("a user is nobody else");
    assert!(refusal.contains("cannot impersonate"), "{refusal}");

    run(&bed, &[], &start).await.expect("an admin may");
    // The operator suspends it anyway.
    is_warned(&waits, "RanWithoutSlot", "it ran without a slot of db").await;
    waits.is_waiting().await;
    queue_is(&db, [&waits]).await;
    for [job, next] in [[&holder, &waits]] {
        pods_end(&team, job, End::Succeeded).await;
        runs_in_a_slot(&bed, &db, next).await;
    }
    pods_end(&team, &waits, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
}

#[tokio::test]
async fn a_namespace_may_be_left_out_and_taken_in_again() {
    let bed = bed().await;
    let team = bed.namespace("in-and-out").await;
    let admin = Person::admin(&bed, &team);
    let waits = team.job("waits").semaphore("db").create().await;
    waits.has_event("NoSemaphore").await;
    is_refused(admin.would_change("waits", unsuspended()).await, STARTS);
    let label = documented("kubectl label", &[]);
    assert!(
        label.contains(&"consul-semaphore.io/admission=disabled".to_owned()),
        "{label:?}"
    );
    leave_out(&bed, &team, &BOTH, true).await;
    admin
        .would_change("waits", unsuspended())
        .await
        .expect("nobody keeps it from it");
    // A user of the namespace can't do that.
    let user = Person::user(&bed, &team).await;
    let kubeconfig = bed.kubeconfig_of(&team, "user").await.display().to_string();
    let args = [
        "--kubeconfig",
        &kubeconfig,
        "label",
        "namespace",
        team.name(),
        "a=b",
    ];
    let refusal = format!(
        "{:#}",
        bed.try_kubectl(args).await.expect_err("it is refused")
    );
    assert!(refusal.contains("forbidden"), "{refusal}");
    leave_out(&bed, &team, &BOTH, false).await;
    is_refused(user.would_change("waits", unsuspended()).await, STARTS);
    user.change("waits", annotated(HOLD, Some("true")))
        .await
        .expect("it is its user's");
}
