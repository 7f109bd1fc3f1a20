//! `why`: from a Job's name to what it waits for, and what to do.

use serde_json::json;
use testbed::Bed;

use crate::stage::User;

#[tokio::test]
async fn a_job_is_told_why_it_waits_or_does_not() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-why").await;
    let user = User::admin(&bed, &team);
    let db = team.semaphore("db").limit(1).create().await;
    let job = |name: &str| team.job(name).semaphore("db").runs("1h");
    let first = job("first").create().await;
    first.is_running().await;
    job("next").priority(5).create().await;
    job("last").create().await;
    job("later").hold().create().await;
    team.job("nowhere").semaphore("dbs").create().await;
    team.job("plain").runs("1h").create().await;
    db.shows(json!({ "held": 1, "waiting": 2 })).await;
    db.has_condition("SlotsAvailable", "False", "AllSlotsHeld")
        .await;

    let name = team.name();
    let bump = format!("kubectl csem bump last 6 -n {name}");
    let holder = format!("{name}/first");
    for (job, words) in [
        (
            "job/last",
            &["2 of 2 in the queue", "Behind: behind next", &holder, &bump][..],
        ),
        (
            "next",
            &["1 of 2 in the queue", "AllSlotsHeld: 1 of 1 slots are held"][..],
        ),
        ("first", &["runs in a slot of ConsulSemaphore db"][..]),
        ("later", &["is on hold", "kubectl csem unhold later"][..]),
        (
            "nowhere",
            &[
                "ConsulSemaphore dbs, which does not exist",
                "The namespace has db",
            ][..],
        ),
        (
            "plain",
            &["does not ask for a slot", "kubectl annotate job plain"][..],
        ),
    ] {
        let said = user.csem(&["why", job]).await;
        said.is(0, words);
        assert!(said.out.lines().count() <= 24, "more than a screen: {said}");
    }
    let read = user.reads(&["why", "last"]).await;
    assert_eq!(read["state"], "Waiting");
    assert_eq!((&read["place"], &read["queued"]), (&json!(2), &json!(2)));
    assert_eq!(read["holders"][0]["name"], holder.as_str());
    assert_eq!(read["gaps"], json!([]));
    first.finish().await;
    user.csem(&["why", "first"]).await.is(0, &["is done"]);
    user.csem(&["why", "none"]).await.is(
        66,
        &["\"none\" not found", name, "select another one with -n"],
    );

    let listed = user.sees(&["list"]).await;
    let missing =
        format!("1 Job names a ConsulSemaphore that does not exist: {name}/nowhere (dbs)");
    assert!(listed.contains(&missing), "{listed}");
}
