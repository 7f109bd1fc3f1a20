//! A copy of a cluster beside it, with the same Consul: a restored backup, or a machine that was cloned.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use testbed::{
    Bed, Entry, Job, Namespace, Operator, Semaphore, eventually, eventually_within,
    proof::{holders_are, running_pods, runs_in_a_slot},
    same,
};
use tokio::process::Command;

/// What the conflict tells people, wherever it is said.
const REMEDY: &str = "--cluster-id";

/// A semaphore of one slot in a cluster or in its copy.
struct Team {
    namespace: Namespace,
    db: Semaphore,
}

impl Team {
    async fn new(bed: &Bed) -> Self {
        let namespace = bed.namespace("copied").await;
        let db = namespace.semaphore("db").limit(1).create().await;
        db.is_ready().await;
        Self { namespace, db }
    }

    fn copied(bed: &Bed, of: &Self) -> Self {
        let namespace = bed.copied_namespace(&of.namespace);
        let db = namespace.semaphore("db");
        Self { namespace, db }
    }

    /// A Job that runs until it is told to end, or waits for its slot.
    async fn job(&self, name: &str) -> Job {
        let job = self.namespace.job(name).semaphore("db");
        job.runs("1h").create().await
    }
}

/// The mark of the only operator in Consul.
async fn mark(bed: &Bed) -> Entry {
    let folder = "service/consul-semaphore-operator/";
    let marks = bed.consul().list(folder).await;
    let [mark] = <[Entry; 1]>::try_from(marks).expect("one mark");
    mark
}

/// Waits until the operator of this bed has written its mark once more.
async fn is_written_anew(bed: &Bed, before: &Entry) {
    let patience = Duration::from_mins(3);
    eventually_within(patience, "the mark is written anew", || async {
        let now = mark(bed).await.modify_index;
        (now > before.modify_index).then_some(()).ok_or(now)
    })
    .await;
}

/// What the check of a cluster prints.
async fn check(bed: &Bed) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_consul-semaphore-operator"))
        .arg("check")
        .env("KUBECONFIG", bed.kubeconfig())
        .env("CONSUL_HTTP_ADDR", bed.consul().address())
        .env("TRUSTED_NAMESPACES", "*")
        .env("LEADER_ELECTION_NAMESPACE", "consul-semaphore-system")
        .output()
        .await
        .expect("check runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until it is said that nothing happens to this semaphore, and what to do about it.
async fn is_conflict_of(team: &Team, operator: &Operator) {
    team.db
        .has_condition_that_says("Ready", "False", "IdentityConflict", &[REMEDY])
        .await;
    assert!(team.db.has_event("IdentityConflict").await.contains(REMEDY));
    let logs = operator.logs();
    let said = logs
        .lines()
        .find(|line| line.contains("another API server uses"));
    assert!(said.is_some_and(|line| line.contains(REMEDY)), "{logs}");
}

/// A change of leader within a cluster goes on from the mark of the leader before, under the same session, so there is
/// nothing to wait for.
#[tokio::test]
async fn the_next_leader_continues_with_the_mark_of_the_last() {
    let bed = Bed::builder().without_operator().start().await;
    let [a, b] = ["a", "b"].map(|name| bed.another_operator(name, [] as [&str; 0], []));
    a.start().await;
    b.start().await;
    let team = Team::new(&bed).await;
    let job = team.job("first").await;
    let grant = runs_in_a_slot(&bed, &team.db, &job).await;
    let before = mark(&bed).await;

    a.stop().await;
    // A Job that is made while nobody leads gets no SlotWaiting.
    eventually("the next one leads", || async {
        let leads = mark(&bed).await.json()["replica"] == "b";
        leads.then_some(()).ok_or("not yet")
    })
    .await;
    let next = team.job("next").await;
    next.has_event("SlotWaiting").await;
    let after = mark(&bed).await;
    assert_eq!(after.session, before.session);
    assert_ne!(after.json()["writer"], before.json()["writer"]);
    assert_eq!(after.json()["replica"], "b");
    holders_are(&bed, &team.db, [&grant]).await;
    job.finish().await;
    runs_in_a_slot(&bed, &team.db, &next).await;
    for line in [
        "another API server",
        "held back",
        "may be written to Consul",
    ] {
        assert!(!b.logs().contains(line), "{line}: {}", b.logs());
    }

    // A process that was killed, and comes back with nothing in its memory.
    b.kill().await;
    b.start().await;
    let last = team.job("last").await;
    next.finish().await;
    runs_in_a_slot(&bed, &team.db, &last).await;
    assert_eq!(mark(&bed).await.session, before.session);

    // Without the mark the next one is written at once: nobody else has one.
    let session = before.session.expect("its session");
    bed.consul().destroy_session(&session).await;
    eventually("there is another one", || async {
        let folder = "service/consul-semaphore-operator/";
        let marks = bed.consul().list(folder).await;
        let held = marks.iter().any(|mark| mark.session.is_some());
        held.then_some(()).ok_or("none")
    })
    .await;
    let one_more = team.job("one-more").await;
    last.finish().await;
    runs_in_a_slot(&bed, &team.db, &one_more).await;
}

/// Without an election two operators share one mark: neither takes the other one for a copy, and none writes it more often
/// than it does alone.
#[tokio::test]
async fn operators_without_an_election_share_one_mark() {
    let bed = Bed::builder().without_operator().start().await;
    let alone = ["--leader-election=off"];
    let [a, b] = ["a", "b"].map(|name| bed.another_operator(name, alone, []));
    a.start().await;
    let before = mark(&bed).await;
    b.start().await;
    let team = Team::new(&bed).await;
    let job = team.job("a").await;
    runs_in_a_slot(&bed, &team.db, &job).await;
    let both = mark(&bed).await;
    assert_eq!(both.session, before.session);
    for _ in 0..2 {
        is_written_anew(&bed, &mark(&bed).await).await;
    }
    // Each writes once a minute, and a few times more when both write at once.
    let lease = "consul-semaphore-operator-identity";
    let path = r"-o=jsonpath={.metadata.annotations.consul-semaphore\.io/identity}";
    let history = ["get", "lease", lease, "-n", "consul-semaphore-system", path];
    let history = bed.kubectl(history).await;
    let written: Vec<Value> = serde_json::from_str(&history).expect("a list");
    let writes = written.iter().filter_map(|last| last["number"].as_u64());
    assert!(writes.sum::<u64>() < 15, "{history}");
    for operator in [&a, &b] {
        let logs = operator.logs();
        assert!(!logs.contains("another API server"), "{logs}");
    }
}

/// Has a session of somebody else hold the mark, as the operator of a copy does that took it while this one was away.
/// Returns the session.
async fn taken_by_a_copy(bed: &Bed) -> String {
    let Entry { key, session, .. } = mark(bed).await;
    let theirs = bed.consul().create_session(json!({ "Behavior": "delete" }));
    let theirs = theirs.await;
    let value = r#"{"writer":"of-the-copy","number":0,"cluster":"prod","replica":"r"}"#;
    let value = BASE64_STANDARD.encode(value);
    let operation = |verb: &str, session: &str| json!({ "KV": { "Verb": verb, "Key": key, "Value": value, "Session": session } });
    let ours = session.expect("it is held");
    let both = json!([operation("unlock", &ours), operation("lock", &theirs)]);
    bed.consul().put_json("txn", both).await;
    theirs
}

/// The original whose mark a copy took stops, too: its Jobs run on, and nothing is started, stopped or released until
/// the mark is free.
#[tokio::test]
async fn who_finds_its_mark_taken_stops_and_continues_when_it_is_free() {
    let bed = Bed::start().await;
    let team = Team::new(&bed).await;
    let running = team.namespace.job("running").semaphore("other");
    let other = team.namespace.semaphore("other").limit(1).create().await;
    let running = running.runs("1h").create().await;
    let kept = runs_in_a_slot(&bed, &other, &running).await;
    let pods = running_pods(&running).await;
    let done = team.job("done").await;
    let grant = runs_in_a_slot(&bed, &team.db, &done).await;

    let theirs = taken_by_a_copy(&bed).await;
    is_conflict_of(&team, bed.operator()).await;
    done.finish().await;
    let next = team.job("next").await;
    let unasked = team.job("unasked").await;
    unasked.unsuspend().await;
    unasked.is_running().await;
    let later = team.namespace.semaphore("later").create().await;
    let ready = ["Ready", "False", "IdentityConflict"];
    later.has_condition(ready[0], ready[1], ready[2]).await;
    let metrics = bed.operator().get("/metrics").await;
    assert!(!metrics.contains("namespace=\"copied"), "{metrics}");
    holders_are(&bed, &team.db, [&grant]).await;
    holders_are(&bed, &other, [&kept]).await;
    unasked.is_running().await;
    next.is_waiting().await;

    bed.consul().destroy_session(&theirs).await;
    team.db.is_ready().await;
    later.is_ready().await;
    unasked.is_waiting().await;
    runs_in_a_slot(&bed, &team.db, &next).await;
    holders_are(&bed, &other, [&kept]).await;
    assert_eq!(running_pods(&running).await, pods, "it ran all the time");
    let logs = bed.operator().logs();
    assert!(logs.contains("no other API server uses"), "{logs}");
}

#[tokio::test]
async fn a_copy_of_a_cluster_frees_and_grants_no_slot_of_it() {
    let original = Bed::start().await;
    let team = Team::new(&original).await;
    let other = team.namespace.semaphore("other").limit(1).create().await;
    other.is_ready().await;
    let before = mark(&original).await;
    assert!(before.session.is_some(), "a session keeps it");
    let copy = Bed::builder().copy_of(&original).without_operator();
    let copy = copy.start().await;
    let copied = Team::copied(&copy, &team);

    // These exist in the original alone.
    let job = team.job("of-the-original").await;
    let grant = runs_in_a_slot(&original, &team.db, &job).await;
    let waiting = copied.job("of-the-copy").await;
    let held_by_nobody = copied.namespace.job("free").semaphore("other");
    let free = held_by_nobody.runs("1h").create().await;
    is_written_anew(&original, &before).await;

    copy.operator().start().await;
    is_conflict_of(&copied, copy.operator()).await;
    // It answers a change, and does nothing else for as long as the next writing of the mark takes.
    copied
        .db
        .patch(json!({ "spec": { "cooldown": "7s" } }))
        .await;
    eventually("it has seen the change", || async {
        let status = copied.db.status().await;
        let object = copied.db.get().await.unwrap_or_default();
        same(
            status["observedGeneration"].clone(),
            object["metadata"]["generation"].clone(),
        )
    })
    .await;
    is_written_anew(&original, &mark(&original).await).await;
    holders_are(&original, &team.db, [&grant]).await;
    let checked = check(&copy).await;
    let said = |line: &str| line.contains("another API server uses") && line.contains(REMEDY);
    assert!(checked.lines().any(said), "{checked}");

    // Another Job of the original waits its turn, and gets the slot when the first one is done.
    let next = team.job("next").await;
    next.has_event("SlotWaiting").await;
    holders_are(&original, &team.db, [&grant]).await;
    job.finish().await;
    let grant = runs_in_a_slot(&original, &team.db, &next).await;
    holders_are(&original, &team.db, [&grant]).await;
    assert_eq!(
        (waiting.session().await, free.session().await),
        (None, None)
    );
    waiting.is_waiting().await;
    free.is_waiting().await;
    let of_other = original.consul().contenders(&other.lock_prefix()).await;
    assert!(of_other.is_empty(), "{of_other:?}");
    let lost = job.events().await;
    let lost = lost
        .iter()
        .filter(|event| event.reason.as_deref() == Some("SlotLost"));
    assert_eq!(lost.count(), 0);
    let checked = check(&original).await;
    assert!(checked.contains("no other API server does"), "{checked}");

    // With an identity of its own it works beside the original.
    copy.operator().stop().await;
    let args = ["--cluster-id", "copy-of-it"];
    let own = copy.another_operator("with-its-own-id", args, []);
    own.start().await;
    copied.db.is_ready().await;
    runs_in_a_slot(&copy, &copied.namespace.semaphore("other"), &free).await;
    holders_are(&original, &team.db, [&grant]).await;
    next.finish().await;
    runs_in_a_slot(&copy, &copied.db, &waiting).await;
    own.stop().await;
}
