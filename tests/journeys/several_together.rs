//! Many who ask for slots of the same semaphores at once: two operators of one cluster, and two clusters. Nobody gets a
//! part of a request, no limit is exceeded, and nobody waits for ever, whatever the order of the names.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::json;
use testbed::{Bed, Job, LimitWatch, Namespace, Semaphore, proof::nothing_is_left};

use crate::several::slots_of;

/// How many Jobs make each request.
const TIMES: usize = 4;

/// Semaphores of a namespace, with what is seen of them.
struct Watched(Vec<(usize, LimitWatch, Semaphore)>);

impl Watched {
    /// Of these names and limits. No Job starts before all wait, so that they compete.
    async fn new(bed: &Bed, semaphores: impl IntoIterator<Item = (Semaphore, u8)>) -> Self {
        let mut all = Vec::new();
        for (semaphore, limit) in semaphores {
            let semaphore = semaphore.limit(limit.into()).paused(true).create().await;
            let observer = bed.watch_limit(&semaphore.lock_prefix()).await;
            all.push((limit.into(), observer, semaphore));
        }
        Self(all)
    }

    async fn resume(&self) {
        for (_, _, semaphore) in &self.0 {
            semaphore.resume().await;
        }
    }

    async fn limits_were_kept(&self, bed: &Bed, team: &Namespace) {
        for (limit, observer, semaphore) in &self.0 {
            let name = semaphore.name();
            assert!(
                observer.peak_holders() <= *limit,
                "{name}: {:?}",
                observer.seen()
            );
            assert_eq!(observer.errors(), Vec::<String>::new(), "{name}");
            nothing_is_left(bed, team, semaphore).await;
        }
    }
}

/// Makes Jobs with these requests.
async fn make<'a>(team: &Namespace, requests: impl IntoIterator<Item = &'a str>) -> Vec<Job> {
    let requests: Vec<&str> = requests.into_iter().collect();
    let mut jobs = Vec::new();
    for time in 0..TIMES {
        for (number, request) in requests.iter().enumerate() {
            let job = team.job(&format!("job-{number}-{time}"));
            let job = job.semaphore(request).runs("300ms").create().await;
            jobs.push(job);
        }
    }
    jobs
}

/// Each Job had all its slots by one transaction, and ran once.
async fn each_ran_once(team: &Namespace, jobs: &[Job]) {
    for job in jobs {
        job.is_complete().await;
        let slots = slots_of(job).await;
        let tokens = slots.iter().map(|slot| slot.token);
        let tokens: Vec<u64> = tokens.collect();
        assert!(tokens.iter().all(|token| *token == tokens[0]), "{slots:?}");
    }
    let pods: Api<Pod> = team.api();
    let mut of_job: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        let labels = pod.metadata.labels.unwrap_or_default();
        let job = labels["batch.kubernetes.io/job-name"].clone();
        *of_job.entry(job).or_default() += 1;
    }
    assert_eq!(of_job.len(), jobs.len());
    assert!(of_job.values().all(|pods| *pods == 1), "{of_job:?}");
}

#[tokio::test]
async fn two_operators_grant_requests_whole_and_once() {
    let bed = Bed::builder().without_operator().start().await;
    let operator = |name| bed.another_operator(name, ["--leader-election=off"], []);
    let (first, second) = (operator("first"), operator("second"));
    tokio::join!(first.start(), second.start());
    let team = bed.namespace("several-twice").await;
    let semaphores = [("db", 2), ("licenses", 3), ("tools", 2)];
    let semaphores = semaphores.map(|(name, limit)| (team.semaphore(name), limit));
    let watched = Watched::new(&bed, semaphores).await;
    let requests = [
        "db, licenses:2",
        "licenses, tools",
        "db:2",
        "tools, db, licenses",
    ];
    let jobs = make(&team, requests).await;
    watched.resume().await;
    each_ran_once(&team, &jobs).await;
    // Nothing of the two sets of sessions that they made is left either.
    watched.limits_were_kept(&bed, &team).await;
    for operator in [&first, &second] {
        let granted = operator.logs().matches(" granted ").count();
        assert!(granted > 0, "{} took part", operator.name());
    }
}

/// Two `ConsulSemaphores` on one prefix are to each other as those of two clusters.
#[tokio::test]
async fn two_clusters_that_name_them_in_another_order_wait_for_each_other_and_not_for_ever() {
    let bed = Bed::shared().await;
    let team = bed.namespace("several-clusters").await;
    let semaphore = |name: &str, of: &str| {
        let prefix = format!("shared/{}/{of}", team.name());
        let spec = json!({ "session": { "lockDelay": "0s" } });
        team.semaphore(name).prefix(&prefix).spec(spec)
    };
    let semaphores = [
        (semaphore("east-db", "db"), 1),
        (semaphore("west-db", "db"), 1),
        (semaphore("east-licenses", "licenses"), 3),
        (semaphore("west-licenses", "licenses"), 3),
    ];
    let watched = Watched::new(&bed, semaphores).await;
    let requests = [
        "east-db, east-licenses:2",
        "west-licenses:2, west-db",
        "west-licenses:3",
        "east-licenses:2",
    ];
    let jobs = make(&team, requests).await;
    watched.resume().await;
    each_ran_once(&team, &jobs).await;
    watched.limits_were_kept(&bed, &team).await;
}
