//! Scripts that follow `HashiCorp`'s guide step by step, beside Jobs: holders are a list, and its `?cas=` leaves no
//! flags. Consul's Go client can't read such a semaphore, with or without Jobs in it.

use serde_json::{Value, json};
use testbed::{Bed, Consul, eventually};

/// A contender as in the guide.
struct Contender<'a> {
    consul: &'a Consul,
    prefix: &'a str,
    session: String,
}

impl<'a> Contender<'a> {
    /// Creates its session and its contender entry.
    async fn new(consul: &'a Consul, prefix: &'a str) -> Self {
        let session = consul
            .create_session(json!({ "Name": "db-semaphore" }))
            .await;
        let acquire = format!("kv/{prefix}/{session}?acquire={session}");
        let made = consul.put_json(&acquire, json!("web-1")).await;
        assert_eq!(made, json!(true));
        Self {
            consul,
            prefix,
            session,
        }
    }

    /// The lock's body and its index.
    async fn lock(&self) -> (Value, u64) {
        let key = format!("{}/.lock", self.prefix);
        let lock = self.consul.kv(&key).await.expect("the lock");
        (lock.json(), lock.modify_index)
    }

    /// Writes the lock's body, if nobody else has since it was read.
    async fn update(&self, body: &Value, index: u64) -> bool {
        let path = format!("kv/{}/.lock?cas={index}", self.prefix);
        self.consul.put_json(&path, body.clone()).await == json!(true)
    }

    /// Takes a slot as soon as one is free. It keeps what it reads of others.
    async fn acquire(&self) {
        eventually("a slot is free for the guide's contender", || async {
            let (mut body, index) = self.lock().await;
            let limit = body["Limit"].as_u64().expect("a limit");
            let holders = body["Holders"].as_array_mut().expect("a list of holders");
            holders.push(json!(self.session));
            holders.len() as u64 <= limit && self.update(&body, index).await
        })
        .await;
    }

    /// Removes its session from the holders, then deletes its contender key and its session.
    async fn release(self) {
        eventually("the guide's contender has released its slot", || async {
            let (mut body, index) = self.lock().await;
            let holders = body["Holders"].as_array_mut().expect("a list of holders");
            holders.retain(|holder| *holder != json!(self.session));
            self.update(&body, index).await
        })
        .await;
        let contender = format!("{}/{}", self.prefix, self.session);
        self.consul.delete(&contender).await;
        self.consul.destroy_session(&self.session).await;
    }
}

#[tokio::test]
async fn the_guides_steps_beside_jobs() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("the-guide").await;
    let prefix = team.semaphore("db").lock_prefix();
    let first = Contender::new(consul, &prefix).await;
    let lock = json!({ "Limit": 2, "Holders": [first.session] });
    assert!(first.update(&lock, 0).await, "it is the first");

    let db = team.semaphore("db").limit(2).create().await;
    let observer = bed.watch_limit(&prefix).await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    a.is_running().await;
    let b = team.job("b").semaphore("db").create().await;
    b.has_event("SlotWaiting").await;
    let second = Contender::new(consul, &prefix).await;
    db.shows(json!({ "limit": 2, "held": 2, "heldHere": 1, "waiting": 1 }))
        .await;
    b.is_waiting().await;
    let ours = a.session().await.expect("its session");
    let expected = json!({ "Limit": 2, "Holders": [first.session, ours] });
    assert_eq!(first.lock().await.0, expected);

    // In turns, and many at once.
    first.release().await;
    second.acquire().await;
    a.delete().await;
    let mut jobs = vec![b];
    for number in 1..=6 {
        let job = team.job(&format!("job-{number}")).semaphore("db");
        jobs.push(job.runs("100ms").create().await);
    }
    second.release().await;
    for _ in 0..5 {
        let next = Contender::new(consul, &prefix).await;
        next.acquire().await;
        next.release().await;
    }
    for job in &jobs {
        job.is_complete().await;
        job.has_event("SlotReleased").await;
    }
    let lock = consul
        .kv(&format!("{prefix}/.lock"))
        .await
        .expect("the lock");
    assert_eq!(lock.flags, 0);
    assert_eq!(lock.json(), json!({ "Limit": 2, "Holders": [] }));
    assert_eq!(observer.peak_holders(), 2);
    assert!(observer.peak_jobs() <= 2, "{:?}", observer.seen());
    db.is_ready().await;
}
