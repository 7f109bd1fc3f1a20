//! `list` and `show`: what the operator wrote, with an order and reasons that people can read.

use futures::future::join_all;
use serde_json::{Value, json};
use testbed::{Bed, eventually, same};

use crate::stage::User;

#[tokio::test]
async fn who_holds_who_waits_and_why() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-show").await;
    let user = User::admin(&bed, &team);
    let db = team.semaphore("db").limit(1).create().await;
    let job = |name: &str| team.job(name).semaphore("db").runs("1h");
    let first = job("first").create().await;
    first.is_running().await;
    job("next").create().await;
    job("urgent").priority(10).create().await;
    job("later").hold().create().await;
    job("wrong")
        .annotation("consul-semaphore.io/priority", "high")
        .create()
        .await;
    db.shows(json!({ "held": 1, "waiting": 2 })).await;
    db.has_condition("SlotsAvailable", "False", "AllSlotsHeld")
        .await;

    // Events arrive separately from the status.
    first.has_event("SlotGranted").await;

    let session = first.session().await.expect("it holds a slot");
    let shown = user.sees(&["show", "db"]).await;
    let line = |words: &[&str]| {
        let found = shown
            .lines()
            .any(|line| words.iter().all(|word| line.contains(word)));
        assert!(found, "{words:?} are in no line of:\n{shown}");
    };
    line(&[&format!("{}/db", team.name())]);
    line(&["Ready", "True", "Reconciled"]);
    line(&["Slots", "1 of 1 held, 1 of them by a Job of this cluster"]);
    line(&["1", &format!("{}/first", team.name()), "Job", &session]);
    line(&["1", "urgent", "10", "AllSlotsHeld", "1 of 1 slots are held"]);
    line(&["2", "next", "0", "Behind", "behind urgent"]);
    line(&["later", "OnHold"]);
    line(&["wrong", "Malformed", "whole number"]);
    line(&["Normal", "SlotGranted", "Job/first"]);
    let place = |word: &str| {
        shown
            .find(word)
            .unwrap_or_else(|| panic!("no {word} in:\n{shown}"))
    };
    assert!(place("HOLDERS") < place("QUEUE") && place("QUEUE") < place("NOT QUEUED"));
    assert!(place("NOT QUEUED") < place("EVENTS"));
    assert!(!shown.contains('\u{1b}'), "colour, and no terminal");

    let read = user.reads(&["show", "db"]).await;
    assert_eq!(read["semaphore"]["status"]["waiting"], 2);
    assert_eq!(read["holders"][0]["session"], session.as_str());
    assert_eq!(read["holders"][0]["kind"], "Job");
    let reasons: Vec<_> = list(&read["queue"], |place| {
        (place["name"].clone(), place["reason"].clone())
    });
    let expected = [
        (json!("urgent"), json!("AllSlotsHeld")),
        (json!("next"), json!("Behind")),
    ];
    assert_eq!(reasons, expected);
    assert_eq!(read["gaps"], json!([]));
    let yaml = user.sees(&["show", "db", "-o", "yaml"]).await;
    let yaml: Value = serde_saphyr::from_str(&yaml).expect("YAML");
    assert_eq!(yaml["holders"], read["holders"]);

    // A holder whose slot was released is no longer listed.
    first.finish().await;
    team.job("urgent").is_running().await;
    eventually("the next one is shown", || async {
        let read = user.reads(&["show", "db"]).await;
        let urgent = format!("{}/urgent", team.name());
        same(read["holders"][0]["name"].clone(), json!(urgent))?;
        same(read["queue"][0]["name"].clone(), json!("next"))
    })
    .await;
}

#[tokio::test]
async fn the_queue_continues_where_the_status_ends() {
    const JOBS: usize = 25;
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-line").await;
    let user = User::admin(&bed, &team);
    let db = team.semaphore("db").limit(1).paused(true).create().await;
    let jobs = (0..JOBS).map(|number| {
        let job = team.job(&format!("job-{number:02}")).semaphore("db");
        // The last Jobs have the highest priority, so that the tail of the queue is not simply the newest Jobs.
        job.priority(i64::try_from(number / 10).unwrap_or(0))
            .create()
    });
    join_all(jobs).await;
    db.shows(json!({ "waiting": JOBS })).await;
    db.has_condition("Ready", "True", "Paused").await;

    let read = user.reads(&["show", "db"]).await;
    let queue = list(&read["queue"], |place| place["name"].clone());
    assert_eq!((queue.len(), read["moreInQueue"].clone()), (JOBS, json!(0)));
    let status = list(&read["semaphore"]["status"]["queue"], |place| {
        place["name"].clone()
    });
    assert_eq!(queue[..status.len()], status);
    let places = list(&read["queue"], |place| {
        let priority = place["priority"].as_i64().expect("a priority");
        (
            -priority,
            place["since"].as_str().map(str::to_owned),
            place["name"].to_string(),
        )
    });
    assert!(places.is_sorted(), "{places:?}");
    let reasons = list(&read["queue"], |place| place["reason"].clone());
    assert_eq!(reasons, vec![json!("Paused"); JOBS]);
    let shown = user.sees(&["show", "db"]).await;
    let last = queue.last().and_then(Value::as_str).expect("a name");
    assert!(shown.contains(&format!("25   {last}")), "{shown}");
}

#[tokio::test]
async fn all_semaphores_of_a_namespace_and_of_all() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-list").await;
    let user = User::admin(&bed, &team);
    let none = user.csem(&["list"]).await;
    none.is(
        0,
        &[
            "there are no ConsulSemaphores in the namespace",
            team.name(),
        ],
    );
    let db = team.semaphore("db").limit(2).create().await;
    let api = team
        .semaphore("partner-api")
        .limit(3)
        .paused(true)
        .create()
        .await;
    db.is_ready().await;
    api.has_condition("Ready", "True", "Paused").await;

    let listed = user.sees(&["list"]).await;
    let words: Vec<Vec<&str>> = listed
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let head = [
        "NAME", "LIMIT", "HELD", "WAITING", "READY", "REASON", "NEXT", "AGE",
    ];
    assert_eq!(words[0], head, "{listed}");
    assert_eq!(
        words[1][..6],
        ["db", "2", "0", "0", "True", "Reconciled"],
        "{listed}"
    );
    assert_eq!(
        words[2][..6],
        ["partner-api", "3", "0", "0", "True", "Paused"],
        "{listed}"
    );
    team.kubectl(["label", "csem", "partner-api", "team=b"])
        .await;
    let labelled = user.sees(&["list", "-l", "team in (a,b)"]).await;
    assert!(
        labelled.contains("partner-api") && !labelled.contains("db"),
        "{labelled}"
    );
    user.csem(&["list", "--selector=team=c"])
        .await
        .is(0, &["no ConsulSemaphores", "\"team=c\""]);
    let refused = user.csem(&["list", "-l", "in (a"]).await;
    refused.is(1, &["unable to parse requirement"]);
    let wide = user.sees(&["list", "-o", "wide"]).await;
    for word in [
        "MODE",
        "Semaphore",
        &db.lock_prefix(),
        "spec.paused is true",
    ] {
        assert!(wide.contains(word), "{word:?} is not in:\n{wide}");
    }
    for all in [
        user.csem(&["list", "-A"]).await,
        user.csem_anywhere(&["list"], "").await,
    ] {
        all.is(0, &["NAMESPACE", team.name(), "partner-api"]);
    }

    let read = user.reads(&["list"]).await;
    assert_eq!(
        (read["kind"].clone(), read["apiVersion"].clone()),
        (json!("List"), json!("v1"))
    );
    let names = list(&read["items"], |item| item["metadata"]["name"].clone());
    assert_eq!(names, [json!("db"), json!("partner-api")]);
    // The output can be given back to kubectl.
    assert_eq!(
        read["items"][0]["apiVersion"],
        "consul-semaphore.io/v1alpha1"
    );
}

#[tokio::test]
async fn what_is_not_there_is_said_with_a_code_of_its_own() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-none").await;
    let user = User::admin(&bed, &team);
    user.csem(&["show", "db"])
        .await
        .is(66, &["db", "not found", team.name(), "kubectl csem list"]);
    user.csem(&["watch", "db"])
        .await
        .is(66, &["no ConsulSemaphore db"]);
    user.csem(&["hold", "a"]).await.is(66, &["\"a\" not found"]);
    user.csem(&["show", "pod/db"])
        .await
        .is(2, &["kind of object"]);
    user.csem(&["list", "--context", "no-such-context"])
        .await
        .is(1, &["no-such-context"]);
    for flag in ["--cluster", "--user"] {
        user.csem(&["list", flag, "no-such-one"])
            .await
            .is(1, &["no-such-one"]);
    }
    let nowhere = User::admin(&bed, &team).set("KUBECONFIG", "/dev/null");
    nowhere
        .csem(&["list"])
        .await
        .is(1, &["no cluster is configured"]);
}

fn list<T>(of: &Value, read: impl Fn(&Value) -> T) -> Vec<T> {
    of.as_array().expect("a list").iter().map(read).collect()
}
