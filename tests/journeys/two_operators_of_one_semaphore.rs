//! Two operators that manage the same semaphore, as after a second one was started by hand: both say so.

use serde_json::json;
use testbed::{Bed, Operator, Semaphore, eventually, helpers::metric, same};

/// What an operator is started with by hand.
const ALONE: [&str; 1] = ["--leader-election=off"];

const WARNING: &str = "more than one operator manages this ConsulSemaphore";

/// The operators in the status, in the order of their names.
async fn operators(db: &Semaphore) -> Vec<String> {
    let status = db.status().await;
    let names = status["operators"].as_array().into_iter().flatten();
    let names = names.filter_map(|name| name.as_str());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

fn warnings(operator: &Operator) -> usize {
    operator.logs().matches(WARNING).count()
}

#[tokio::test]
async fn two_operators_of_one_semaphore_notice_each_other() {
    let bed = Bed::builder().without_operator().start().await;
    let (first, second) = (
        bed.another_operator("first", ALONE, []),
        bed.another_operator("second", ALONE, []),
    );
    first.start().await;
    let team = bed.namespace("twice").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    team.job("before")
        .semaphore("db")
        .create()
        .await
        .is_complete()
        .await;
    eventually("one operator is named", || async {
        same(operators(&db).await, vec!["first".to_owned()])
    })
    .await;

    // A restart and another leader are no second operator, and neither is a person who changes the status.
    first.kill().await;
    first.start().await;
    first.stop().await;
    second.start().await;
    team.job("after")
        .semaphore("db")
        .create()
        .await
        .is_complete()
        .await;
    for held in 1..=4 {
        db.patch_status(&serde_json::json!({ "held": held })).await;
        db.shows(serde_json::json!({ "held": 0 })).await;
    }
    assert_eq!(operators(&db).await, ["second"]);
    let said = || {
        let events = ["get", "events", "--field-selector=reason=AnotherOperator"];
        let messages = ["-o", "jsonpath={.items[*].message}"];
        team.kubectl([&events[..], &messages].concat())
    };
    assert_eq!(said().await, "");

    first.start().await;
    let mut number = 0;
    let both = ["first".to_owned(), "second".to_owned()];
    while operators(&db).await != both || warnings(&first) == 0 || warnings(&second) == 0 {
        number += 1;
        assert!(number < 100, "{}\n{}", first.logs(), second.logs());
        let job = team.job(&format!("job-{number}")).semaphore("db");
        job.create().await.is_complete().await;
    }
    let message = db.has_event("AnotherOperator").await;
    for words in [
        WARNING,
        ": first, second. ",
        "keep its limit",
        "--semaphore-selector",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }

    // Both emit the same event: it is one.
    assert_eq!(said().await, message);
    assert_eq!((observer.peak_holders(), observer.errors()), (1, vec![]));
}

/// One of them sees a changed limit only after the other one has recorded it and written it to Consul.
#[tokio::test]
async fn a_limit_that_the_other_operator_wrote_is_ours() {
    let bed = Bed::builder().without_operator().start().await;
    let (first, second) = (
        bed.another_operator("first", ALONE, []),
        bed.another_operator("second", ALONE, []),
    );
    first.start().await;
    second.start().await;
    let team = bed.namespace("twice-limit").await;
    let db = team.semaphore("db").limit(2).create().await;
    let runs = |name: &str| team.job(name).semaphore("db").runs("1h").create();
    runs("a").await.is_running().await;
    db.shows(json!({ "limit": 2, "appliedLimits": [2] })).await;
    first.pause().await;
    db.set_limit(3).await;
    db.shows(json!({ "limit": 3, "appliedLimits": [3] })).await;
    first.resume().await;
    let labels = format!("namespace=\"{}\",semaphore=\"db\"", team.name());
    let gauge = format!("limit_slots{{{labels}}}");
    eventually("it has seen it in Consul", || async {
        same(metric(&first.get("/metrics").await, &gauge), Some(3.0))
    })
    .await;
    second.kill().await;
    db.set_limit(2).await;
    db.shows(json!({ "limit": 2, "appliedLimits": [2] })).await;
    db.is_ready().await;
    assert_eq!(bed.consul().limit(&db.lock_prefix()).await, Some(2));
}
