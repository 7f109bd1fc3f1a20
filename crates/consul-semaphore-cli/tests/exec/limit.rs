//! How many commands run at once.

use serde_json::{Value, json};
use testbed::eventually;

use crate::stage::{PREFIX, Stage};

/// Changes the limit in Consul, as the operator does when the limit of a `ConsulSemaphore` changes.
pub(crate) async fn change_limit(stage: &Stage, limit: u32) {
    eventually("nobody else writes meanwhile", || async {
        let key = format!("{PREFIX}/.lock");
        let lock = stage.consul.kv(&key).await.expect("it is used");
        let mut body: Value = serde_json::from_slice(&lock.value).expect("JSON");
        body["Limit"] = json!(limit);
        let path = format!(
            "kv/{key}?flags={}&cas={}",
            testbed::SEMAPHORE_FLAGS,
            lock.modify_index
        );
        stage.consul.put_json(&path, body).await == json!(true)
    })
    .await;
}

#[tokio::test]
async fn who_waits_and_who_holds_goes_by_a_limit_that_is_changed() {
    let stage = Stage::new().await;
    let mut holders = [
        stage.exec("--limit 2", "note first; wait_for end"),
        stage.exec("--limit 2", "note second; wait_for end"),
    ];
    stage.noted("first").await;
    stage.noted("second").await;
    let mut waiter = stage.exec("--limit 2", "note third; wait_for end");
    waiter.says("2 of 2 held").await;
    let two = stage.command_with("--semaphore prefix=shared/db,limit=2,slots=2", "note never");
    let mut many = stage.start(two);
    many.says("waiting").await;
    change_limit(&stage, 3).await;
    stage.noted("third").await;
    waiter
        .says("the limit of shared/db in Consul has changed from 2 to 3")
        .await;
    let said = stage.exec("--limit 2", "note never").ends_with(78).await;
    assert!(said.contains("is 3 in Consul, not 2"), "{said}");
    // No program writes the earlier limit back, and a program that asks for more slots than there are is told so.
    change_limit(&stage, 1).await;
    let said = many.ends_with(78).await;
    assert!(said.contains("is 1 in Consul, not 3"), "{said}");
    stage.open("end");
    for running in holders.iter_mut().chain([&mut waiter]) {
        running.ends_with(0).await;
    }
    stage.exec("--limit 1", "note last").ends_with(0).await;
    assert!(!stage.journal().contains(&"never".to_owned()));
    stage.is_clean().await;
}

#[tokio::test]
async fn who_goes_by_the_limit_in_consul_needs_none_of_its_own() {
    let stage = Stage::new().await;
    let said = stage
        .exec("--limit consul", "note never")
        .ends_with(78)
        .await;
    assert!(
        said.contains("nobody uses a semaphore at shared/db"),
        "{said}"
    );
    let mut first = stage.exec("--limit 2", "note first; wait_for end");
    stage.noted("first").await;
    let mut second = stage.exec("--limit consul", "note second; wait_for end");
    stage.noted("second").await;
    let mut third = stage.exec("--limit consul", "note third");
    third.says("2 of 2 held").await;
    change_limit(&stage, 3).await;
    third.ends_with(0).await;
    stage.open("end");
    first.ends_with(0).await;
    second.ends_with(0).await;
    let said = stage.exec("--limit most", "note never").ends_with(2).await;
    assert!(
        said.contains("or consul for the limit that Consul has"),
        "{said}"
    );
    assert!(!stage.journal().contains(&"never".to_owned()));
    stage.is_clean().await;
}

/// The most commands that ran at once, from their journal: each notes `begin` and `end`.
fn most_at_once(journal: &[String]) -> usize {
    let (mut running, mut most) = (0_usize, 0);
    for line in journal {
        if line.starts_with("begin") {
            running += 1;
        } else {
            running -= 1;
        }
        most = most.max(running);
    }
    most
}

#[tokio::test]
async fn the_limit_is_kept_together_with_consuls_own_tool() {
    let stage = Stage::new().await;
    // The first waits for a second one, which has a free slot.
    let script = |name: &str| {
        format!(
            r#"note begin {name}
            until [ $(grep -c begin "$FOLDER/journal") -ge 2 ]; do sleep 0.05; done
            sleep 0.2; note end {name}"#
        )
    };
    let mut all = Vec::new();
    for number in 0..5 {
        all.push(stage.exec("--limit 2", &script(&format!("exec-{number}"))));
        if number < 3 {
            all.push(stage.consul_lock(2, &script(&format!("lock-{number}"))));
        }
    }
    for running in &mut all {
        running.ends_with(0).await;
    }
    let journal = stage.journal();
    assert_eq!(journal.len(), 16, "{journal:?}");
    assert_eq!(most_at_once(&journal), 2, "{journal:?}");
    // Each of the last two may have left the deletion of the lock key to the other.
    assert_eq!(stage.consul.holders(PREFIX).await.len(), 0);
    assert_eq!(stage.consul.contenders(PREFIX).await, []);
    assert_eq!(stage.sessions().await.len(), 0);
}

#[tokio::test]
async fn a_mutex_is_shared_with_consuls_own_tool() {
    let stage = Stage::new().await;
    let mut theirs = stage.consul_lock(1, "note theirs; wait_for theirs");
    stage.noted("theirs").await;
    let said = stage
        .exec("--mode mutex --try", "note never")
        .ends_with(75)
        .await;
    assert!(said.contains("1 of 1 held, by session"), "{said}");
    let program = env!("CARGO_BIN_EXE_consul-semaphore");
    let script = format!("note ours $CONSUL_SEMAPHORE_LOCK_KEY; {program} held; note $?");
    let mut ours = stage.exec("--mode mutex", &script);
    ours.says("waiting").await;
    stage.open("theirs");
    theirs.ends_with(0).await;
    ours.ends_with(0).await;
    assert_eq!(stage.journal(), ["theirs", "ours shared/db/.lock", "0"]);
    stage.is_clean().await;
    stage.consul_lock(1, "note theirs again").ends_with(0).await;
}
