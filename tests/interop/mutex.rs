//! `api.Lock`, `consul lock` with one holder and Jobs of a mutex, concurrently on one key.

use std::time::Duration;

use k8s_openapi::api::{batch::v1 as batch, core::v1::Pod};
use kube::{ResourceExt as _, api::ListParams};
use serde_json::{Value, json};
use testbed::{Bed, Consul, Job, Namespace, Semaphore, eventually, same};

async fn mutex(team: &Namespace) -> Semaphore {
    let db = team.semaphore("db").spec(json!({ "mode": "Mutex" }));
    let db = db.create().await;
    db.is_ready().await;
    db
}

/// Guards the mutex: reads both sides repeatedly, and compares their states at the same time.
struct Guard<'a> {
    consul: &'a Consul,
    team: &'a Namespace,
    key: String,
    /// How often a pod was seen running, and how often another program.
    seen: [u32; 2],
}

impl<'a> Guard<'a> {
    fn new(bed: &'a Bed, team: &'a Namespace, db: &Semaphore) -> Self {
        Self {
            consul: bed.consul(),
            team,
            key: format!("{}/.lock", db.lock_prefix()),
            seen: [0; 2],
        }
    }

    /// Checks until it is dropped.
    async fn watch(&mut self) -> ! {
        loop {
            self.look().await;
        }
    }

    /// While nobody locks or unlocks the key, the running pods are those of the Job whose session has it locked.
    async fn look(&mut self) {
        let before = self.consul.kv(&self.key).await;
        let working = self.working().await;
        let after = self.consul.kv(&self.key).await;
        if before != after {
            return;
        }
        let session = before.and_then(|entry| entry.session);
        let guarded = working.iter().all(|of| *of == session);
        assert!(guarded, "{working:?} work while {session:?} has the mutex");
        let other = match &session {
            Some(session) if working.is_empty() => self.is_of_another_program(session).await,
            _ => false,
        };
        self.seen[0] += u32::from(!working.is_empty());
        self.seen[1] += u32::from(other);
    }

    /// Whether a live session is not the operator's.
    async fn is_of_another_program(&self, session: &str) -> bool {
        let info = self.consul.get(&format!("session/info/{session}")).await;
        let name = info[0]["Name"].as_str();
        name.is_some_and(|name| !name.starts_with("consul-semaphore-operator/"))
    }

    /// The sessions of the pods that have not ended.
    async fn working(&self) -> Vec<Option<String>> {
        let pods = self.team.api::<Pod>().list(&ListParams::default()).await;
        let pods = pods.expect("the pods").items.into_iter();
        let at_work = pods.filter(|pod| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            !matches!(phase, Some("Succeeded" | "Failed"))
        });
        let session = |pod: Pod| {
            pod.annotations()
                .get("consul-semaphore.io/session")
                .cloned()
        };
        at_work.map(session).collect()
    }
}

#[tokio::test]
async fn jobs_and_programs_of_others_take_turns() {
    let bed = Bed::shared().await;
    let team = bed.namespace("mutex-together").await;
    let db = mutex(&team).await;
    let prefix = db.lock_prefix();
    let mut guard = Guard::new(&bed, &team, &db);
    let hold = Duration::from_millis(500);
    let story = async {
        let mut others = Vec::new();
        for number in 1..=2 {
            let go = bed.go_lock(&format!("go-{number}"), &format!("{prefix}/.lock"));
            others.push(go.hold(hold).times(5).start().await);
            let cli = bed.consul_lock(&format!("cli-{number}"), &prefix, 1);
            others.push(cli.hold(hold).times(3).start().await);
        }
        let mut jobs = Vec::new();
        for number in 1..=10 {
            let job = team.job(&format!("job-{number}")).semaphore("db");
            jobs.push(job.runs("100ms").create().await);
        }
        for job in &jobs {
            job.is_complete().await;
            job.has_event("SlotReleased").await;
        }
        for other in &others {
            // It panics at any error message.
            other.is_done().await;
        }
        db.shows(json!({ "held": 0, "waiting": 0 })).await;
        db.is_ready().await;
    };
    tokio::select! {
        () = story => {}
        () = guard.watch() => {}
    }
    let [pods, others] = guard.seen;
    assert!(pods > 0 && others > 0, "{pods}, {others}");
}

/// A client that waits for a mutex has no key: nobody sees it.
#[tokio::test]
async fn who_waits_behind_a_long_line_has_his_turn_before_its_end() {
    let bed = Bed::shared().await;
    let team = bed.namespace("mutex-line").await;
    let db = mutex(&team).await;
    let first = team.job("first").semaphore("db").runs("1h").create().await;
    first.is_running().await;
    let mut line: Vec<Job> = Vec::new();
    for number in 0..40 {
        let job = team.job(&format!("job-{number:02}")).semaphore("db");
        line.push(job.runs("10ms").create().await);
    }
    db.shows(json!({ "held": 1, "waiting": 40 })).await;
    let waits = bed.consul_lock("waits", &db.lock_prefix(), 1);
    let waits = waits.hold(Duration::from_millis(100)).start().await;
    eventually("consul lock waits", || async {
        let sessions = bed.consul().sessions().await;
        let named = |session: &Value| session["Name"] == json!("waits");
        same(sessions.iter().any(named), true)
    })
    .await;

    first.finish().await;
    eventually("consul lock has its turn", || async {
        !waits.waits().is_empty()
    })
    .await;
    // All at once: the queue moves on meanwhile.
    let jobs = team.api::<batch::Job>().list(&ListParams::default()).await;
    let started = |job: &&batch::Job| {
        let status = job.status.as_ref();
        job.name_any().starts_with("job-") && status.is_some_and(|it| it.start_time.is_some())
    };
    let before = jobs.expect("the Jobs").items.iter().filter(started).count();
    assert!(before < 40, "the line was over");
    waits.is_done().await;
    for job in &line {
        job.is_complete().await;
    }
    eprintln!("{before} of 40 Jobs went before a `consul lock` that waits for a mutex");
}
