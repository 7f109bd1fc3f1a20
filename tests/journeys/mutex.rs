//! `mode: Mutex`: the key itself is locked, as `consul lock` and scripts with `?acquire` do it.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use testbed::{
    Bed, Consul, Job, Namespace, SEMAPHORE_FLAGS, Semaphore, eventually,
    proof::{Grant, grant_of},
    same,
};

/// The flags of Consul's mutex.
pub(crate) const MUTEX_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// A mutex with this lock-delay for dead holders.
pub(crate) async fn mutex(team: &Namespace, lock_delay: &str) -> Semaphore {
    let spec = json!({ "mode": "Mutex", "session": { "lockDelay": lock_delay } });
    team.semaphore("db").spec(spec).create().await
}

pub(crate) fn key_of(db: &Semaphore) -> String {
    format!("{}/.lock", db.lock_prefix())
}

/// Waits until a Job runs with the mutex, and checks both sides: its template names the key, and Consul has the key
/// locked by that session.
pub(crate) async fn runs_with(bed: &Bed, db: &Semaphore, job: &Job, flags: u64) -> Grant {
    job.is_running().await;
    let grant = grant_of(job).await.expect("the grant");
    let key = key_of(db);
    assert_eq!(grant.lock_key, key);
    let entry = bed.consul().kv(&key).await.expect("the key");
    assert_eq!(entry.session.as_ref(), Some(&grant.session));
    assert_eq!(entry.flags, flags);
    assert_eq!(entry.lock_index, grant.lock_index);
    assert_eq!(entry.modify_index, grant.fencing_token);
    let body = entry.json();
    assert_eq!(
        (&body["kind"], &body["name"]),
        (&json!("Job"), &json!(job.name()))
    );
    let below = bed.consul().list(&format!("{}/", db.lock_prefix())).await;
    assert_eq!(below.len(), 1, "those who wait own no key");
    grant
}

/// Waits until the next Job has a session, so that the mutex is handed over to it.
async fn is_next(bed: &Bed, team: &Namespace, job: &Job) {
    let made_for = format!("/{}/db/{}/", team.name(), job.name());
    eventually("a session is made ahead", || async {
        let sessions = bed.consul().sessions().await;
        let named = |session: &Value| {
            session["Name"]
                .as_str()
                .is_some_and(|n| n.contains(&made_for))
        };
        sessions.iter().any(named)
    })
    .await;
}

/// Waits until the key and the session of this grant no longer exist.
async fn nothing_is_left(bed: &Bed, db: &Semaphore, grant: &Grant) {
    eventually("nothing is left", || async {
        let ours = |session: &Value| session["ID"] == json!(grant.session);
        let sessions = bed.consul().sessions().await;
        let left = sessions.iter().any(ours);
        same((bed.consul().kv(&key_of(db)).await, left), (None, false))
    })
    .await;
}

/// A script with plain `?acquire` and `?release`, which writes no flags.
struct Script {
    consul: Consul,
    key: String,
    session: String,
}

impl Script {
    async fn new(bed: &Bed, db: &Semaphore, lock_delay: &str) -> Self {
        let session = json!({ "LockDelay": lock_delay, "TTL": "24h" });
        Self {
            consul: bed.consul().clone(),
            key: key_of(db),
            session: bed.consul().create_session(session).await,
        }
    }

    async fn asks(&self, what: &str, flags: u64) -> Value {
        let Self { key, session, .. } = self;
        let path = format!("kv/{key}?{what}={session}&flags={flags}");
        self.consul
            .put_json(&path, json!({ "by": "a script" }))
            .await
    }

    async fn acquires(&self) {
        assert_eq!(self.asks("acquire", 0).await, json!(true));
    }

    async fn releases(&self) {
        assert_eq!(self.asks("release", 0).await, json!(true));
    }
}

/// `consul lock` with one holder, whose command runs until it is told to end.
struct Visit {
    came: PathBuf,
    goes: PathBuf,
}

impl Visit {
    fn new(bed: &Bed, team: &Namespace) -> Self {
        let file = |what| bed.folder().path().join(format!("{}-{what}", team.name()));
        Self {
            came: file("came"),
            goes: file("goes"),
        }
    }

    /// Runs it, until its command has ended and the key is unlocked.
    async fn run(&self, bed: &Bed, db: &Semaphore) {
        let (came, goes) = (self.came.display(), self.goes.display());
        let command = format!("touch {came}; until [ -e {goes} ]; do sleep 0.1; done");
        bed.consul_tool(["lock", &db.lock_prefix(), &command]).await;
    }

    async fn came(&self) {
        eventually("consul lock has the mutex", || async {
            same(self.came.exists(), true)
        })
        .await;
    }

    fn goes(&self) {
        fs::write(&self.goes, "").expect("a file");
    }
}

#[tokio::test]
async fn consul_lock_and_jobs_take_turns() {
    let bed = Bed::shared().await;
    let team = bed.namespace("consul-lock").await;
    let db = mutex(&team, "15s").await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    let grant = runs_with(&bed, &db, &a, MUTEX_FLAGS).await;
    db.shows(json!({ "limit": 1, "held": 1, "heldHere": 1, "appliedLimits": [] }))
        .await;

    let visit = Visit::new(&bed, &team);
    let story = async {
        eventually("consul lock waits", || async {
            let sessions = bed.consul().sessions().await;
            let named = |session: &Value| {
                let name = session["Name"].as_str().unwrap_or_default();
                name.contains(&db.lock_prefix()) && name.contains("onsul")
            };
            // Ours contain the namespace too, but not the prefix.
            same(sessions.iter().any(named), true)
        })
        .await;
        assert!(!visit.came.exists());
        a.finish().await;
        visit.came().await;
        let b = team.job("b").semaphore("db").create().await;
        b.has_event("SlotWaiting").await;
        db.shows(json!({ "held": 1, "heldHere": 0, "waiting": 1 }))
            .await;
        b.is_waiting().await;
        assert_eq!(observer.seen().jobs, [].into(), "no pod beside consul lock");
        visit.goes();
        b
    };
    let ((), b) = tokio::join!(visit.run(&bed, &db), story);
    // It destroys the key, and no lock-delay interferes.
    b.is_complete().await;
    let later = grant_of(&b).await.expect("its grant");
    assert!(later.fencing_token > grant.fencing_token);
    nothing_is_left(&bed, &db, &later).await;
    assert_eq!(observer.peak_jobs(), 1);

    // It works the other way round as well.
    visit.run(&bed, &db).await;
    team.job("c")
        .semaphore("db")
        .create()
        .await
        .is_complete()
        .await;
}

#[tokio::test]
async fn a_script_with_acquire_and_jobs_take_turns() {
    let bed = Bed::shared().await;
    let team = bed.namespace("acquire").await;
    let db = team.semaphore("db");
    let script = Script::new(&bed, &db, "15s").await;
    script.acquires().await;
    let db = mutex(&team, "15s").await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    a.has_event("SlotWaiting").await;
    db.shows(json!({ "limit": 1, "held": 1, "heldHere": 0, "waiting": 1 }))
        .await;
    db.is_ready().await;
    let holders = db.status().await["holders"].clone();
    assert_eq!(holders[0]["session"], json!(script.session));
    a.is_waiting().await;

    // The script leaves the key, with flags 0, and they stay.
    script.releases().await;
    runs_with(&bed, &db, &a, 0).await;
    assert_eq!(script.asks("acquire", 0).await, json!(false));
    let b = team.job("b").semaphore("db").runs("1h").create().await;
    is_next(&bed, &team, &b).await;
    a.finish().await;
    let grant = runs_with(&bed, &db, &b, 0).await;
    assert_eq!(grant.lock_index, 3, "it is handed over as it is");
    b.finish().await;
    nothing_is_left(&bed, &db, &grant).await;
    script.acquires().await;
    script.consul.destroy_session(&script.session).await;
}

#[tokio::test]
async fn the_lock_delay_of_a_dead_holder_is_obeyed_and_wakes_nobody() {
    let bed = Bed::shared().await;
    let team = bed.namespace("lock-delay").await;
    let script = Script::new(&bed, &team.semaphore("db"), "45s").await;
    script.acquires().await;
    let db = mutex(&team, "0s").await;
    let job = team.job("a").semaphore("db").create().await;
    job.has_event("SlotWaiting").await;
    script.consul.destroy_session(&script.session).await;
    eventually("the condition says why", || async {
        let condition = db.condition("SlotsAvailable").await;
        let message = condition["message"].as_str().unwrap_or_default().to_owned();
        message.contains("lock-delay").then_some(()).ok_or(message)
    })
    .await;
    assert_eq!(db.condition("Ready").await["status"], "True");
    // Consul would have refused it earlier.
    job.is_complete().await;
}

#[tokio::test]
async fn a_running_job_that_lost_the_mutex_has_it_again_or_is_suspended() {
    let bed = Bed::shared().await;
    let team = bed.namespace("lost-mutex").await;
    let db = mutex(&team, "0s").await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    let before = runs_with(&bed, &db, &a, MUTEX_FLAGS).await;
    let pods = a.pods().await.len();
    bed.consul().destroy_session(&before.session).await;
    let session = eventually("it has the mutex again", || async {
        let entry = bed.consul().kv(&key_of(&db)).await.ok_or("no key")?;
        let session = entry.session.ok_or("not locked")?;
        let reported = a.session().await;
        same(reported.as_ref(), Some(&session))?;
        Ok::<_, String>(session)
    })
    .await;
    assert_ne!(session, before.session);
    assert_eq!(a.pods().await.len(), pods, "it was not stopped");

    // With a lock-delay it can't get the key back at once.
    let patch = json!({ "spec": { "session": { "lockDelay": "6s" } } });
    db.patch(patch).await;
    // The change is in effect: the next session is created with it.
    db.is_ready().await;
    a.finish().await;
    let b = team.job("b").semaphore("db").runs("1h").create().await;
    let before = runs_with(&bed, &db, &b, MUTEX_FLAGS).await;
    let c = team.job("c").semaphore("db").priority(9).create().await;
    c.has_event("SlotWaiting").await;
    bed.consul().destroy_session(&before.session).await;
    b.has_event("SlotLost").await;
    // It is stopped, and started again after that, first in the queue.
    eventually("another grant has started it", || async {
        let grant = grant_of(&b).await.ok_or("no grant")?;
        (grant.session != before.session)
            .then_some(())
            .ok_or("the same")
    })
    .await;
    let after = runs_with(&bed, &db, &b, MUTEX_FLAGS).await;
    assert!(after.fencing_token > before.fencing_token);
    c.is_waiting().await;
    b.finish().await;
    c.is_complete().await;
}

#[tokio::test]
async fn a_semaphore_waits_until_nobody_holds_the_mutex() {
    let bed = Bed::shared().await;
    let team = bed.namespace("mutex-to-semaphore").await;
    let script = Script::new(&bed, &team.semaphore("db"), "0s").await;
    assert_eq!(script.asks("acquire", MUTEX_FLAGS).await, json!(true));
    let spec = json!({ "limit": 2, "session": { "lockDelay": "1s" } });
    let db = team.semaphore("db").spec(spec).create().await;
    let job = team.job("a").semaphore("db").create().await;
    db.has_condition("Ready", "False", "LockConflict").await;
    job.is_waiting().await;
    // Like api.Lock: the key stays, with its flags.
    assert_eq!(script.asks("release", MUTEX_FLAGS).await, json!(true));
    job.is_complete().await;
    db.is_ready().await;
    let lock = bed.consul().kv(&key_of(&db)).await.expect("the lock");
    assert_eq!(
        (lock.flags, lock.json()["Limit"].as_u64()),
        (SEMAPHORE_FLAGS, Some(2))
    );
    bed.consul().destroy_session(&script.session).await;
}

#[tokio::test]
async fn a_mutex_waits_until_the_semaphore_is_gone() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("semaphore-to-mutex").await;
    let prefix = team.semaphore("db").lock_prefix();
    let other = consul.take_slot(&prefix, 2).await;
    let db = mutex(&team, "0s").await;
    let job = team.job("a").semaphore("db").create().await;
    let words = ["used as a semaphore"];
    db.has_condition_that_says("Ready", "False", "LockConflict", &words)
        .await;
    let held = consul.kv(&key_of(&db)).await;
    job.is_waiting().await;
    assert_eq!(consul.kv(&key_of(&db)).await, held, "left as it was");
    // Like `consul lock -n 2` when the last one leaves.
    consul.give_back(&prefix, &other).await;
    consul.delete(&key_of(&db)).await;
    job.is_complete().await;
    db.is_ready().await;
}

#[tokio::test]
async fn a_deleted_mutex_leaves_nothing_and_takes_nothing_of_others() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("mutex-deleted").await;
    let db = mutex(&team, "15s").await;
    let note = format!("{}/note", db.lock_prefix());
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    let grant = runs_with(&bed, &db, &a, MUTEX_FLAGS).await;
    consul.put(&note, 7, "keep me").await;
    db.delete().await;
    db.has_condition("Ready", "False", "Terminating").await;
    a.is_running().await;
    a.finish().await;
    db.is_gone().await;
    nothing_is_left(&bed, &db, &grant).await;
    assert_eq!(consul.kv(&note).await.map(|note| note.flags), Some(7));

    let script = Script::new(&bed, &db, "0s").await;
    script.acquires().await;
    let held = consul.kv(&key_of(&db)).await;
    let db = mutex(&team, "15s").await;
    db.shows(json!({ "held": 1, "heldHere": 0 })).await;
    db.delete().await;
    db.is_gone().await;
    assert_eq!(consul.kv(&key_of(&db)).await, held);
    consul.destroy_session(&script.session).await;
}
