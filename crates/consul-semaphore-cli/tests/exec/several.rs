//! Slots of several semaphores at once, and several slots of one.

use serde_json::Value;
use testbed::{eventually, same};

use crate::stage::{Running, Stage};

const DB: &str = "shared/db";
const LICENSES: &str = "shared/licenses";

/// A slot of the database, and two of three licenses.
const BOTH: &str =
    "--semaphore prefix=shared/db,limit=1 --semaphore prefix=shared/licenses,limit=3,slots=2";

const ONE_LICENSE: &str = "--semaphore prefix=shared/licenses,limit=3";

const DB_ONLY: &str = "--semaphore prefix=shared/db,limit=1";

impl Stage {
    /// A script in slots of the semaphores that the flags name.
    fn exec_several(&self, flags: &str, script: &str) -> Running {
        self.start(self.command_with(flags, script))
    }

    /// Checks how many slots are held.
    async fn held(&self, db: usize, licenses: usize) {
        let held = [
            self.consul.holders(DB).await.len(),
            self.consul.holders(LICENSES).await.len(),
        ];
        assert_eq!(held, [db, licenses]);
    }

    /// Checks that nothing is left of both semaphores.
    async fn both_are_clean(&self) {
        assert_eq!(self.consul.list("shared").await, []);
        assert_eq!(self.sessions().await, Vec::<Value>::new());
    }
}

#[tokio::test]
async fn slots_of_several_semaphores_are_granted_at_one_raft_index_or_not_at_all() {
    let stage = Stage::new().await;
    let mut first = stage.exec_several(DB_ONLY, "note first; wait_for first");
    stage.noted("first").await;
    let mut second = stage.exec_several(BOTH, r#"note "$CONSUL_SEMAPHORE_SLOTS"; wait_for second"#);
    second
        .says("waiting for a slot of shared/db: 1 of 1 held")
        .await;
    // It holds no license while it waits.
    stage.held(1, 0).await;
    stage.open("first");
    first.ends_with(0).await;
    let slots = eventually("it runs", async || stage.journal().get(1).cloned()).await;
    let said = second.said();
    assert!(said.contains("got slots after"), "{said}");
    let slots: Vec<Value> = serde_json::from_str(&slots).unwrap();
    let mut entries = stage.consul.contenders(DB).await;
    entries.extend(stage.consul.contenders(LICENSES).await);
    assert_eq!(slots.len(), 3);
    for (slot, entry) in slots.iter().zip(&entries) {
        let entry = entries
            .iter()
            .find(|entry| slot["lockKey"] == *entry.key)
            .unwrap_or(entry);
        assert_eq!(slot["lockKey"], *entry.key);
        assert_eq!(slot["session"], entry.session.clone().unwrap());
        assert_eq!(slot["fencingToken"], entry.modify_index);
        assert_eq!(slot["fencingToken"], slots[0]["fencingToken"]);
    }
    assert!(slots[0]["lockKey"].as_str().unwrap().starts_with(DB));
    stage.open("second");
    second.ends_with(0).await;
    stage.both_are_clean().await;
}

#[tokio::test]
async fn who_waits_for_several_keeps_no_slot_from_others() {
    let stage = Stage::new().await;
    let mut db = stage.exec_several(DB_ONLY, "note db; wait_for db");
    stage.noted("db").await;
    let mut both = stage.exec_several(BOTH, "note both");
    both.says("waiting for a slot of shared/db").await;
    // Licenses are free, and go to others meanwhile; also to Consul's own tool.
    for _ in 0..3 {
        stage
            .exec_several(ONE_LICENSE, "note license")
            .ends_with(0)
            .await;
    }
    let mut lock = stage.consul_lock_at(LICENSES, 3, "note theirs; wait_for theirs");
    stage.noted("theirs").await;
    stage.open("db");
    db.ends_with(0).await;
    // Two of three are left.
    both.ends_with(0).await;
    stage.open("theirs");
    lock.ends_with(0).await;
    let expected = ["db", "license", "license", "license", "theirs", "both"];
    assert_eq!(stage.journal(), expected);
    assert_eq!(stage.sessions().await, Vec::<Value>::new());
}

#[tokio::test]
async fn all_that_wait_for_several_get_them_in_the_end() {
    let stage = Stage::new().await;
    let script = |name: &str| format!("note begin {name}; sleep 0.1; note end {name}");
    let ring = ["a b", "b c", "c a", "a b", "b c", "c a"];
    let mut all = Vec::new();
    for (number, pair) in ring.into_iter().enumerate() {
        let flags: Vec<_> = pair
            .split(' ')
            .map(|name| format!("--semaphore prefix=ring/{name},limit=1"))
            .collect();
        all.push(stage.exec_several(&flags.join(" "), &script(&number.to_string())));
    }
    for running in &mut all {
        running.ends_with(0).await;
    }
    // Any two of them share a semaphore: they run one after the other.
    let journal = stage.journal();
    assert_eq!(journal.len(), 2 * ring.len(), "{journal:?}");
    for pair in journal.chunks(2) {
        assert_eq!(pair[0].replace("begin", "end"), pair[1], "{journal:?}");
    }
    assert_eq!(stage.sessions().await, Vec::<Value>::new());
}

#[tokio::test]
async fn who_does_not_wait_says_what_is_missing_and_leaves_nothing() {
    let stage = Stage::new().await;
    let mut licenses = stage.exec_several(
        "--name ci-7 --semaphore prefix=shared/licenses,limit=3,slots=2",
        "note licenses; wait_for end",
    );
    stage.noted("licenses").await;
    let try_both = format!("{BOTH} --try");
    let said = stage
        .exec_several(&try_both, "note never")
        .ends_with(75)
        .await;
    let missing = "no 2 slots of shared/licenses are free: 2 of 3 held, by ci-7 sh";
    assert!(said.contains(missing), "{said}");
    assert!(!said.contains("shared/db is"), "{said}");
    let patient = format!("{BOTH} --wait-for 5s");
    let said = stage
        .exec_several(&patient, "note never")
        .ends_with(124)
        .await;
    assert!(
        said.contains("waiting for 2 of 3 slots of shared/licenses"),
        "{said}"
    );
    assert!(
        said.contains("no 2 slots of shared/licenses within 5s"),
        "{said}"
    );
    let must_exist = "--must-exist --semaphore prefix=shared/licenses,limit=3 --semaphore prefix=shared/bd,limit=1";
    let said = stage
        .exec_several(must_exist, "note never")
        .ends_with(78)
        .await;
    assert!(said.contains("no semaphore at shared/bd"), "{said}");
    let other = "--semaphore prefix=shared/db,limit=1 --semaphore prefix=shared/licenses,limit=4";
    let said = stage.exec_several(other, "note never").ends_with(78).await;
    assert!(
        said.contains("the limit of shared/licenses is 3 in Consul, not 4"),
        "{said}"
    );
    stage.held(0, 2).await;
    assert_eq!(stage.sessions().await.len(), 2);
    stage.open("end");
    licenses.ends_with(0).await;
    stage
        .exec_several(&try_both, "note both")
        .ends_with(0)
        .await;
    assert_eq!(stage.journal(), ["licenses", "both"]);
    stage.both_are_clean().await;
}

const UNTIL_TERM: &str = "trap 'note end; exit 0' TERM; note begin; while :; do sleep 0.05; done";

#[tokio::test]
async fn a_command_that_lost_one_of_several_slots_is_ended_and_the_others_are_given_back() {
    let stage = Stage::new().await;
    for (prefix, ends) in [(DB, 1), (LICENSES, 2)] {
        let mut running = stage.exec_several(BOTH, UNTIL_TERM);
        eventually("it runs", async || {
            let begun = stage
                .journal()
                .iter()
                .filter(|line| *line == "begin")
                .count();
            same(begun, ends)
        })
        .await;
        stage.held(1, 2).await;
        let holders = stage.consul.holders(prefix).await;
        stage.consul.destroy_session(holders.first().unwrap()).await;
        let said = running.ends_with(79).await;
        assert!(
            said.contains(&format!("a slot of {prefix} is lost: ending")),
            "{said}"
        );
        assert_eq!(stage.sessions().await, Vec::<Value>::new());
    }
    assert_eq!(stage.journal(), ["begin", "end", "begin", "end"]);
}

#[tokio::test]
async fn one_that_may_go_on_has_the_lost_slot_again_and_keeps_the_others() {
    let stage = Stage::new().await;
    let flags = format!("{BOTH} --on-slot-lost continue");
    let mut running = stage.exec_several(&flags, "note begin; wait_for end");
    stage.noted("begin").await;
    let (db, before) = (
        stage.consul.holders(DB).await,
        stage.consul.holders(LICENSES).await,
    );
    stage.consul.destroy_session(before.first().unwrap()).await;
    running.says("a slot of shared/licenses was lost").await;
    let after = stage.consul.holders(LICENSES).await;
    assert_eq!(after.intersection(&before).count(), 1);
    assert_eq!(after.len(), 2);
    assert_eq!(stage.consul.holders(DB).await, db);
    stage.open("end");
    running.ends_with(0).await;
    stage.both_are_clean().await;
}

#[tokio::test]
async fn a_mutex_is_one_of_several() {
    let stage = Stage::new().await;
    let mut theirs = stage.consul_lock_at(DB, 1, "note theirs; wait_for theirs");
    stage.noted("theirs").await;
    let flags = "--semaphore prefix=shared/licenses,limit=3,slots=3 --semaphore prefix=shared/db,limit=1,mode=mutex";
    let mut ours = stage.exec_several(flags, "note ours; wait_for ours");
    ours.says("waiting for a slot of shared/db").await;
    assert_eq!(stage.consul.holders(LICENSES).await.len(), 0);
    stage.open("theirs");
    theirs.ends_with(0).await;
    stage.noted("ours").await;
    assert_eq!(stage.consul.holders(LICENSES).await.len(), 3);
    stage.open("ours");
    ours.ends_with(0).await;
    stage.both_are_clean().await;
}

/// Eight semaphores and fifty slots: 58 operations, where Consul before 1.14 takes 64.
#[tokio::test]
async fn the_most_slots_of_the_most_semaphores_are_granted_in_one_transaction() {
    let stage = Stage::new().await;
    let flags: Vec<_> = (0..8)
        .map(|number| {
            let slots = if number == 0 { 8 } else { 6 };
            format!("--semaphore prefix=wide/{number},limit=9,slots={slots}")
        })
        .collect();
    let mut wide = stage.exec_several(
        &flags.join(" "),
        r#"note "$CONSUL_SEMAPHORE_SLOTS"; wait_for end"#,
    );
    // A line of this length is not written at once.
    let slots: Vec<Value> = eventually("it runs", async || {
        serde_json::from_str(&stage.journal().pop()?).ok()
    })
    .await;
    assert_eq!(slots.len(), 50);
    let first = &slots[0]["fencingToken"];
    assert!(
        slots.iter().all(|slot| slot["fencingToken"] == *first),
        "{slots:?}"
    );
    stage.open("end");
    wide.ends_with(0).await;
    assert_eq!(stage.consul.list("wide").await, []);
    assert_eq!(stage.sessions().await, Vec::<Value>::new());
}

#[tokio::test]
async fn all_of_several_slots_are_checked_and_another_exec_inside_has_its_own() {
    let stage = Stage::new().await;
    let program = env!("CARGO_BIN_EXE_consul-semaphore");
    let inner = "--prefix inner --limit 1";
    let script = format!(
        r#"{program} held; note held $?
        {program} exec {inner} -- sh -c '{program} held; echo inner $? "$CONSUL_SEMAPHORE_SLOTS" >>"$FOLDER/journal"'
        wait_for lost; {program} held; note lost $?"#
    );
    let flags = format!("{BOTH} --on-slot-lost continue");
    let mut running = stage.exec_several(&flags, &script);
    eventually("both were asked", async || same(stage.journal().len(), 2)).await;
    assert_eq!(stage.journal(), ["held 0", "inner 0 "]);
    // The last of its slots, which the variables for one slot do not name.
    let licenses = stage.consul.contenders(LICENSES).await;
    let last = licenses.last().and_then(|entry| entry.session.clone());
    stage.consul.destroy_session(&last.unwrap()).await;
    running.says("the command has a slot again").await;
    stage.open("lost");
    running.ends_with(0).await;
    assert_eq!(stage.journal()[2], "lost 1");
}
