//! A lock key that does not belong to a semaphore, or can't be read: it is left alone.

use serde_json::json;
use testbed::{Bed, Entry, Job, Namespace, SEMAPHORE_FLAGS, Semaphore, eventually, same};

/// The flags of Consul's mutex.
const MUTEX_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// A semaphore that can't use its lock key, that key, and a waiting Job.
struct Refused {
    semaphore: Semaphore,
    job: Job,
    before: Entry,
    /// What its message must contain.
    words: &'static str,
}

impl Refused {
    async fn new(bed: &Bed, team: &Namespace, name: &str, words: &'static str) -> Self {
        let semaphore = team.semaphore(name).create().await;
        let job = team.job(name).semaphore(name).create().await;
        let key = lock_key(&semaphore);
        let before = bed.consul().kv(&key).await.expect("the key");
        Self {
            semaphore,
            job,
            before,
            words,
        }
    }
}

fn lock_key(semaphore: &Semaphore) -> String {
    format!("{}/.lock", semaphore.lock_prefix())
}

#[tokio::test]
async fn a_lock_key_of_another_use_is_left_alone_until_it_goes() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("lock-conflict").await;
    let mut all = Vec::new();
    for (name, flags, body, words) in [
        ("text", SEMAPHORE_FLAGS, "hello", "not JSON"),
        ("number", 0, "42", "not an object"),
        ("no-limit", SEMAPHORE_FLAGS, r#"{"Holders":{}}"#, "`Limit`"),
        ("text-limit", 0, r#"{"Limit":"3","Holders":{}}"#, "`Limit`"),
        ("holders", 0, r#"{"Limit":3,"Holders":7}"#, "`Holders`"),
        ("flags", 7, r#"{"Limit":1,"Holders":{}}"#, "flags 0x7"),
        ("mutex", MUTEX_FLAGS, "", "mutex"),
    ] {
        let key = lock_key(&team.semaphore(name));
        consul.put(&key, flags, body).await;
        all.push(Refused::new(&bed, &team, name, words).await);
    }
    // As from `consul lock -n 1` or a script with ?acquire.
    let session = consul.create_session(json!({ "TTL": "24h" })).await;
    let key = lock_key(&team.semaphore("locked"));
    consul
        .put_json(
            &format!("kv/{key}?acquire={session}"),
            json!({ "mine": true }),
        )
        .await;
    all.push(Refused::new(&bed, &team, "locked", "mutex").await);

    for Refused {
        semaphore, words, ..
    } in &all
    {
        let words = [*words, &*lock_key(semaphore)];
        semaphore
            .has_condition_that_says("Ready", "False", "LockConflict", &words)
            .await;
    }
    // Others are not affected.
    let other = team.semaphore("other").create().await;
    team.job("other").semaphore("other").create().await;
    team.job("other").is_complete().await;
    other.is_ready().await;
    for Refused {
        semaphore,
        job,
        before,
        ..
    } in &all
    {
        job.is_waiting().await;
        let after = consul.kv(&lock_key(semaphore)).await;
        assert_eq!(after.as_ref(), Some(before), "left as it was");
    }

    consul.destroy_session(&session).await;
    for Refused { semaphore, job, .. } in &all {
        consul.delete(&lock_key(semaphore)).await;
        job.is_complete().await;
        semaphore.is_ready().await;
        assert_eq!(consul.limit(&semaphore.lock_prefix()).await, Some(1));
    }
}

#[tokio::test]
async fn a_semaphore_on_another_uses_key_can_be_deleted() {
    let bed = Bed::shared().await;
    let team = bed.namespace("lock-conflict-deleted").await;
    let key = lock_key(&team.semaphore("db"));
    bed.consul().put(&key, MUTEX_FLAGS, "theirs").await;
    let db = team.semaphore("db").create().await;
    db.has_condition("Ready", "False", "LockConflict").await;
    db.delete().await;
    db.is_gone().await;
    let left = bed.consul().kv(&key).await.expect("their key");
    assert_eq!((left.flags, &left.value[..]), (MUTEX_FLAGS, &b"theirs"[..]));
}

#[tokio::test]
async fn a_mutex_that_is_unlocked_makes_room_for_a_semaphore() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("unlocked").await;
    let key = lock_key(&team.semaphore("db"));
    let session = consul.create_session(json!({ "TTL": "24h" })).await;
    consul
        .put_json(&format!("kv/{key}?acquire={session}"), json!(null))
        .await;
    let db = team.semaphore("db").limit(2).create().await;
    db.has_condition("Ready", "False", "LockConflict").await;
    // Unlocked by a script that leaves the key behind, empty.
    consul.put(&key, 0, "").await;
    consul
        .put_json(&format!("kv/{key}?release={session}"), json!(null))
        .await;
    consul.put(&key, 0, "").await;
    db.is_ready().await;
    // The script's last write may have come after the operator's first.
    eventually("the semaphore is there", || async {
        same(consul.limit(&db.lock_prefix()).await, Some(2))
    })
    .await;
    consul.destroy_session(&session).await;
}
