//! Two operators at once that don't know of each other.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use parking_lot::Mutex;
use testbed::{Consul, Job};
use tokio::task::JoinSet;

use crate::ALWAYS_ACTIVE;

/// How many Jobs each of the three semaphores has.
const JOBS: usize = 50;

#[tokio::test]
async fn two_active_operators_keep_the_limit_and_start_each_job_once() {
    let _turn = crate::turn().await;
    let bed = crate::bed().await;
    bed.operator().start().await;
    let second = bed.another_operator("second", ALWAYS_ACTIVE, []);
    second.start().await;
    let team = bed.namespace("two-operators").await;
    let mut observers = Vec::new();
    for limit in [2_u8, 3, 5] {
        let name = format!("db-{limit}");
        // No Job starts before all wait: so all slots are taken at once, however slowly Jobs are created.
        let db = team.semaphore(&name).limit(limit.into()).paused(true);
        let db = db.create().await;
        observers.push((limit, bed.watch_limit(&db.lock_prefix()).await, db));
    }
    let twice = TwoSlots::default();
    let mut following: JoinSet<()> = observers
        .iter()
        .map(|(_, _, db)| twice.clone().follow(bed.consul().clone(), db.lock_prefix()))
        .collect();
    let mut jobs = Vec::new();
    for number in 0..JOBS {
        for (limit, ..) in &observers {
            let name = format!("job-{limit}-{number}");
            let job = team.job(&name).semaphore(&format!("db-{limit}"));
            jobs.push(job.runs("50ms").create().await);
        }
    }
    for (_, _, db) in &observers {
        db.resume().await;
    }
    // The last of each queue come last: a minute is for one, not for all.
    for job in &jobs {
        job.is_complete().await;
    }
    let ended = following.try_join_next();
    assert!(ended.is_none(), "each looked to the end: {ended:?}");
    drop(following);
    assert_eq!(twice.lasting(), [""; 0]);
    for (limit, observer, db) in &observers {
        let seen = observer.seen();
        let limit = usize::from(*limit);
        assert_eq!(seen.peak_holders, limit, "{}", db.name());
        assert!(seen.peak_jobs <= limit, "{seen:?}");
        let of = jobs
            .iter()
            .filter(|job| job.name().starts_with(&format!("job-{limit}-")));
        assert_eq!(Job::sessions(of).await.len(), JOBS, "one session a Job");
        assert_eq!(observer.errors(), Vec::<String>::new());
    }
    let pods = team
        .api::<Pod>()
        .list(&ListParams::default())
        .await
        .unwrap();
    let mut of_job: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods {
        let labels = pod.metadata.labels.unwrap_or_default();
        *of_job
            .entry(labels["batch.kubernetes.io/job-name"].clone())
            .or_default() += 1;
    }
    assert_eq!(of_job.len(), jobs.len());
    assert!(of_job.values().all(|pods| *pods == 1), "{of_job:?}");
    join_all(observers.iter().map(|(_, _, db)| async {
        db.delete().await;
        db.is_gone().await;
    }))
    .await;
    // Both must have taken part, or this proves nothing.
    for operator in [bed.operator(), &second] {
        let granted = operator.logs().matches(" granted ").count();
        assert!(granted > 0, "{granted}");
    }
    second.stop().await;
}

/// Jobs that had two slots, and in which versions of the lock.
#[derive(Clone, Default)]
struct TwoSlots(Arc<Mutex<HashMap<Vec<String>, Vec<u64>>>>);

impl TwoSlots {
    /// Reads a semaphore repeatedly.
    async fn follow(self, consul: Consul, prefix: String) {
        loop {
            let entries = consul.list(&format!("{prefix}/")).await;
            let lock = entries.iter().find(|entry| entry.key.ends_with("/.lock"));
            let Some(lock) = lock else { continue };
            let holders = lock.json()["Holders"].clone();
            let mut slots: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for entry in &entries {
                let session = entry.session.clone().unwrap_or_default();
                if holders[&session] == true {
                    let uid = entry.json()["uid"].as_str().unwrap_or_default().to_owned();
                    slots.entry(uid).or_default().push(session);
                }
            }
            let twice = slots.into_values().filter(|sessions| sessions.len() > 1);
            for sessions in twice {
                let mut seen = self.0.lock();
                seen.entry(sessions).or_default().push(lock.modify_index);
            }
        }
    }

    /// Those that kept both over a write to the lock: the writer has seen both.
    fn lasting(&self) -> Vec<String> {
        let seen = self.0.lock();
        let lasting = seen
            .iter()
            .filter(|(_, versions)| versions.first() != versions.last());
        lasting
            .map(|(sessions, versions)| format!("{sessions:?} in {versions:?}"))
            .collect()
    }
}
