//! `ttl: None`: a slot stays held until its Job is done or a person frees it, whatever is down. And the other setting
//! for a dead holder, the lock-delay.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testbed::{
    Bed, SEMAPHORE_FLAGS, Semaphore, eventually,
    helpers::cluster_id,
    proof::{all_is_decided, is_warned, nothing_is_left, running_pods, runs_in_a_slot},
    same,
};

async fn session(bed: &Bed, id: &str) -> Option<Value> {
    let sessions = bed.consul().sessions().await;
    sessions.into_iter().find(|session| session["ID"] == id)
}

/// The TTL of a session in Consul: empty for none.
async fn ttl_of(bed: &Bed, id: &str) -> String {
    let session = session(bed, id).await.expect("the session");
    session["TTL"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_slot_without_a_ttl_outlives_its_operator_until_somebody_frees_it() {
    let bed = Bed::start().await;
    let (operator, consul) = (bed.operator(), bed.consul());
    let team = bed.namespace("no-ttl").await;
    let db = team.semaphore("db").limit(1).ttl("None").create().await;
    let prefix = db.lock_prefix();
    let observer = bed.watch_limit(&prefix).await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    let grant = runs_in_a_slot(&bed, &db, &a).await;
    assert_eq!(ttl_of(&bed, &grant.session).await, "");
    let holder = json!({ "session": grant.session, "neverExpires": true });
    eventually("the status says so", || async {
        let status = db.status().await;
        let shown = &status["holders"][0];
        same(
            json!({ "session": shown["session"], "neverExpires": shown["neverExpires"] }),
            holder.clone(),
        )
    })
    .await;
    let pods = running_pods(&a).await;

    // The operator dies: nobody can get the slot. It is back: everything is as before.
    operator.kill().await;
    let refused = consul.get(&format!("kv/{prefix}/{}", grant.session)).await;
    assert_eq!(refused[0]["Session"], grant.session.as_str());
    operator.start().await;
    all_is_decided(&team, &db).await;
    assert_eq!(
        consul.holders(&prefix).await,
        [grant.session.clone()].into()
    );

    // It dies for good, and a person frees the slot, by the id in the status. Another program has it now. The session
    // that the operator had made ahead for a deleted Job has ended before: the sessions that it leaves end only when
    // somebody destroys them.
    let of_db = format!("/{}/{}/", team.name(), db.name());
    eventually("its session is the only one", || async {
        let mut sessions = consul.sessions().await;
        sessions.retain(|session| session["Name"].as_str().is_some_and(|n| n.contains(&of_db)));
        let ids: Vec<_> = sessions
            .iter()
            .map(|session| session["ID"].clone())
            .collect();
        same(ids, vec![json!(grant.session)])
    })
    .await;
    operator.kill().await;
    let shown = db.status().await["holders"][0]["session"].clone();
    consul.destroy_session(shown.as_str().expect("an id")).await;
    consul
        .put(
            &format!("{prefix}/.lock"),
            SEMAPHORE_FLAGS,
            r#"{"Limit":1,"Holders":{}}"#,
        )
        .await;
    let other = consul.take_slot(&prefix, 1).await;
    operator.start().await;
    is_warned(&a, "SlotLost", "suspended, first in the queue").await;
    a.is_waiting().await;
    assert_eq!(consul.holders(&prefix).await, [other.clone()].into());
    consul.give_back(&prefix, &other).await;
    runs_in_a_slot(&bed, &db, &a).await;
    assert_ne!(running_pods(&a).await, pods);
    a.finish().await;
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!(observer.peak_holders(), 1);
}

#[tokio::test]
async fn a_ttl_can_come_and_go_while_jobs_hold_slots() {
    let bed = Bed::shared().await;
    let team = bed.namespace("ttl-changes").await;
    let db = team.semaphore("db").limit(3).ttl("None").create().await;
    let mut jobs = Vec::new();
    let mut grants = Vec::new();
    for (name, ttl, expected) in [("a", "None", ""), ("b", "10s", "10s"), ("c", "None", "")] {
        db.patch(json!({ "spec": { "session": { "ttl": ttl } } }))
            .await;
        db.is_ready().await;
        let job = team.job(name).semaphore("db").runs("1h");
        let job = job.grace(1).create().await;
        let grant = runs_in_a_slot(&bed, &db, &job).await;
        assert_eq!(ttl_of(&bed, &grant.session).await, expected, "{name}");
        grants.push(grant.session);
        jobs.push((running_pods(&job).await, job));
    }
    // A session with a TTL is renewed for as long as its Job runs, whatever the spec says by now.
    let renewed = eventually("it is renewed", || async {
        let page = bed.operator().get("/metrics").await;
        testbed::helpers::metric(
            &page,
            "consul_calls_total{kind=\"session_renew\",result=\"ok\"}",
        )
    })
    .await;
    eventually("it is renewed again and again", || async {
        let page = bed.operator().get("/metrics").await;
        let now = testbed::helpers::metric(
            &page,
            "consul_calls_total{kind=\"session_renew\",result=\"ok\"}",
        );
        same(now >= Some(renewed + 6.0), true)
    })
    .await;
    let holders: BTreeSet<_> = grants.into_iter().collect();
    assert_eq!(bed.consul().holders(&db.lock_prefix()).await, holders);
    for (pods, job) in &jobs {
        assert_eq!(&running_pods(job).await, pods, "{}", job.name());
        job.finish().await;
    }
    nothing_is_left(&bed, &team, &db).await;
}

#[tokio::test]
async fn sessions_without_a_contender_are_destroyed_with_their_semaphore() {
    let bed = Bed::shared().await;
    let (consul, cluster) = (bed.consul(), cluster_id(&bed).await);
    let team = bed.namespace("no-ttl-orphans").await;
    for ttl in ["None", "10s"] {
        let db = team.semaphore(&format!("db-{}", ttl.to_lowercase()));
        let db = db.ttl("None").create().await;
        let job = team.job(db.name()).semaphore(db.name()).create().await;
        job.has_event("SlotReleased").await;
        db.patch(json!({ "spec": { "session": { "ttl": ttl } } }))
            .await;
        let make = async |semaphore: &str| {
            let owner = format!("{}/{semaphore}/gone/0", team.name());
            let name = format!("consul-semaphore-operator/{cluster}/{owner}");
            let node = format!("k8s-{cluster}");
            let session = json!({ "Name": name, "Node": node, "NodeChecks": [] });
            consul.create_session(session).await
        };
        let (own, others) = (make(db.name()).await, make("another").await);
        db.delete().await;
        db.is_gone().await;
        eventually("its session is gone", || async {
            same(session(&bed, &own).await, None)
        })
        .await;
        assert_ne!(session(&bed, &others).await, None);
        consul.destroy_session(&others).await;
    }
}

#[tokio::test]
async fn sessions_of_unused_keys_are_destroyed_with_their_semaphore() {
    let bed = Bed::shared().await;
    let (consul, cluster) = (bed.consul(), cluster_id(&bed).await);
    let team = bed.namespace("no-ttl-keyed-orphans").await;
    let tasks = team.semaphore("tasks").spec(json!({ "keyed": true }));
    let tasks = tasks.ttl("None").create().await;
    let job = team.job("a").semaphore("tasks");
    let job = job.annotation("consul-semaphore.io/key", "used");
    let job = job.create().await;
    job.has_event("SlotReleased").await;
    let make = async |semaphore: &str| {
        let owner = format!("{}/{semaphore}/gone/0", team.name());
        let name = format!("consul-semaphore-operator/{cluster}/{owner}");
        let node = format!("k8s-{cluster}");
        let session = json!({ "Name": name, "Node": node, "NodeChecks": [] });
        consul.create_session(session).await
    };
    let (own, others) = (make("tasks:unused").await, make("another:unused").await);
    tasks.delete().await;
    tasks.is_gone().await;
    eventually("its session is gone", || async {
        same(session(&bed, &own).await, None)
    })
    .await;
    assert_ne!(session(&bed, &others).await, None);
    consul.destroy_session(&others).await;
}

/// A semaphore whose only slot is held by a dead holder, and a Job that waits for it.
async fn behind_a_dead_holder(bed: &Bed, db: Semaphore, lock_delay: &str) -> Semaphore {
    let spec = json!({ "session": { "lockDelay": lock_delay } });
    let db = db.spec(spec).create().await;
    db.is_ready().await;
    let body = r#"{"Limit":1,"Holders":{"dead":true}}"#;
    let key = format!("{}/.lock", db.lock_prefix());
    bed.consul().put(&key, SEMAPHORE_FLAGS, body).await;
    db.shows(json!({ "held": 1 })).await;
    db
}

#[tokio::test]
async fn the_slot_of_a_dead_holder_is_free_after_the_lock_delay() {
    let bed = Bed::shared().await;
    let team = bed.namespace("lock-delay").await;
    let none = behind_a_dead_holder(&bed, team.semaphore("none"), "60s").await;
    none.patch(json!({ "spec": { "session": { "lockDelay": "0s" } } }))
        .await;
    let at_once = team.job("at-once").semaphore("none").create().await;
    at_once.is_complete().await;
    let long = behind_a_dead_holder(&bed, team.semaphore("long"), "60s").await;
    let waits = team.job("waits").semaphore("long").create().await;
    all_is_decided(&team, &long).await;
    waits.is_waiting().await;
    assert_eq!(
        bed.consul().holders(&long.lock_prefix()).await,
        ["dead".to_owned()].into()
    );
    // Under the new setting it has been dead long enough.
    long.patch(json!({ "spec": { "session": { "lockDelay": "0s" } } }))
        .await;
    waits.is_complete().await;
}
