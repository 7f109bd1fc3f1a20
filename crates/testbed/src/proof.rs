//! Proofs that many journeys need: a Job's grant as its pods see it, the same grant in Consul, and that nothing of it
//! is left in the end.
#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a step of a story fails the story"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{Bed, Job, Namespace, Object, Semaphore, eventually, same, until};
use k8s_openapi::api::{batch::v1 as batch, core::v1::Pod};
use kube::api::{Patch, PatchParams};
use serde_json::json;

/// For how long an operator that has listed all Jobs may say nothing of a new one.
const NOTICED: Duration = Duration::from_secs(20);

/// The annotation that asks for a semaphore. This name of the contract and those below are repeated here, because a
/// test must not take them from the code that it tests.
pub const SEMAPHORE: &str = "consul-semaphore.io/semaphore";
/// The annotation for the priority of a Job.
pub const PRIORITY: &str = "consul-semaphore.io/priority";
/// The annotation that puts a Job on hold.
pub const HOLD: &str = "consul-semaphore.io/hold";
/// The annotation that names the session of a slot.
pub const SESSION: &str = "consul-semaphore.io/session";
/// The annotation that names the contender key of a slot.
pub const LOCK_KEY: &str = "consul-semaphore.io/lock-key";
/// The annotation with the lock index of a slot.
pub const LOCK_INDEX: &str = "consul-semaphore.io/lock-index";
/// The annotation with the fencing token of a slot.
pub const FENCING_TOKEN: &str = "consul-semaphore.io/fencing-token";
/// The annotation with the uid of the Job that a slot was granted to.
pub const GRANTED_TO: &str = "consul-semaphore.io/granted-to";
const HOLDER_LABEL: &str = "consul-semaphore.io/holder";

/// A grant, as the Job's pods read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The contender key.
    pub lock_key: String,
    /// The session that holds the slot.
    pub session: String,
    /// How often the contender key was locked.
    pub lock_index: u64,
    /// Consul's index of the grant.
    pub fencing_token: u64,
    /// The uid of the Job.
    pub granted_to: String,
}

impl Grant {
    fn read(annotations: &BTreeMap<String, String>) -> Option<Self> {
        Some(Self {
            lock_key: annotations.get(LOCK_KEY)?.clone(),
            session: annotations.get(SESSION)?.clone(),
            lock_index: annotations.get(LOCK_INDEX)?.parse().ok()?,
            fencing_token: annotations.get(FENCING_TOKEN)?.parse().ok()?,
            granted_to: annotations.get(GRANTED_TO)?.clone(),
        })
    }
}

/// The grant in the template of a Job, if there is one.
pub async fn grant_of(job: &Job) -> Option<Grant> {
    Grant::read(&template(&job.get().await?).annotations?)
}

/// Waits until a Job runs in a slot, and proves it on both sides: the Job and its pods name the lock, and Consul
/// lists that very session as a holder, which has locked the contender key.
pub async fn runs_in_a_slot(bed: &Bed, db: &Semaphore, job: &Job) -> Grant {
    // Boxed, because the future of a test is large already.
    let grant = Box::pin(grant_on_both_job_and_pods(job)).await;
    let contender = format!("{}/{}", db.lock_prefix(), grant.session);
    assert_eq!(grant.lock_key, contender);
    Box::pin(is_held_in_consul(bed, db, job, &grant)).await;
    grant
}

async fn grant_on_both_job_and_pods(job: &Job) -> Grant {
    job.is_running().await;
    let grant = eventually("a pod has the grant", || async {
        let pods = job.pods().await;
        let read = |pod: &Pod| Grant::read(pod.metadata.annotations.as_ref()?);
        // Only running pods: tests compare the names of those.
        let runs = |pod: &&Pod| phase(pod) == Some("Running");
        pods.iter().filter(runs).find_map(read)
    })
    .await;
    let object = job.get().await.expect("a Job that runs is there");
    let template = template(&object);
    let on_template = Grant::read(&template.annotations.unwrap_or_default());
    assert_eq!(on_template.as_ref(), Some(&grant));
    assert_eq!(
        template.labels.unwrap_or_default()[HOLDER_LABEL],
        grant.granted_to
    );
    let annotations = object.metadata.annotations.unwrap_or_default();
    assert_eq!(annotations[SESSION], grant.session);
    assert_eq!(object.metadata.uid.as_ref(), Some(&grant.granted_to));
    grant
}

async fn is_held_in_consul(bed: &Bed, db: &Semaphore, job: &Job, grant: &Grant) {
    let (consul, prefix) = (bed.consul(), db.lock_prefix());
    let holders = consul.holders(&prefix).await;
    assert!(
        holders.contains(&grant.session),
        "{grant:?} is not in {holders:?}"
    );
    // As a workload would check its sequencer.
    let contender = consul.kv(&grant.lock_key).await;
    let contender = contender.expect("a holder has a contender");
    assert_eq!(contender.session.as_ref(), Some(&grant.session));
    assert_eq!(contender.flags, crate::SEMAPHORE_FLAGS);
    assert_eq!(contender.lock_index, grant.lock_index);
    // The raft index of the grant.
    assert_eq!(contender.modify_index, grant.fencing_token);
    let body = contender.json();
    assert_eq!(
        (&body["kind"], &body["name"], &body["uid"]),
        (&json!("Job"), &json!(job.name()), &json!(grant.granted_to))
    );
}

/// Waits until exactly these grants hold slots.
pub async fn holders_are<const N: usize>(bed: &Bed, db: &Semaphore, grants: [&Grant; N]) {
    let expected: BTreeSet<_> = grants
        .into_iter()
        .map(|grant| grant.session.clone())
        .collect();
    let what = format!("the holders of {}", db.lock_prefix());
    eventually(&what, || async {
        same(
            bed.consul().holders(&db.lock_prefix()).await,
            expected.clone(),
        )
    })
    .await;
}

/// Waits until nothing of a grant is left in Consul: no holder, no contender, no session.
pub async fn is_given_back(bed: &Bed, db: &Semaphore, grant: &Grant) {
    let prefix = &db.lock_prefix();
    let session = &grant.session;
    eventually("the slot is given back", || async {
        let holds = bed.consul().holders(prefix).await.contains(session);
        let contends = bed.consul().kv(&format!("{prefix}/{session}")).await;
        let lives = sessions(bed).await.iter().any(|(id, _)| id == session);
        same((holds, contends, lives), (false, None, false))
    })
    .await;
}

/// Waits until no Job has left anything of this semaphore in Consul. The lock stays, without holders.
pub async fn nothing_is_left(bed: &Bed, team: &Namespace, db: &Semaphore) {
    let prefix = &db.lock_prefix();
    let own = format!("/{}/{}/", team.name(), db.name());
    eventually("nothing is left in Consul but the lock", || async {
        let entries = bed.consul().list(&format!("{prefix}/")).await;
        let keys: Vec<_> = entries.into_iter().map(|entry| entry.key).collect();
        let holders = bed.consul().holders(prefix).await;
        let mut sessions = sessions(bed).await;
        sessions.retain(|(_, name)| name.contains(&own));
        same(
            (keys, holders, sessions),
            (vec![format!("{prefix}/.lock")], BTreeSet::new(), Vec::new()),
        )
    })
    .await;
}

/// Waits until no session is left for a Job, not even one that was made ahead of time.
pub async fn has_no_session(bed: &Bed, job: &str) {
    eventually(&format!("there is no session for {job}"), || async {
        let mut sessions = sessions(bed).await;
        sessions.retain(|(_, name)| name.ends_with(job));
        same(sessions, Vec::new())
    })
    .await;
}

/// The ids and names of all live sessions.
pub async fn sessions(bed: &Bed) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let sessions = bed.consul().sessions().await;
    sessions
        .iter()
        .map(|session| (text(&session["ID"]), text(&session["Name"])))
        .collect()
}

/// How the containers of a pod end.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// With success.
    Succeeded,
    /// With a failure.
    Failed,
}

/// Waits until a Job has running pods, and ends all of them now. A terminating pod is ended, too. For pods that run
/// for an hour, this lets the test decide when they are done.
pub async fn pods_end(team: &Namespace, job: &Job, end: End) {
    let running = eventually("a pod runs", || async {
        let running = running_pods(job).await;
        (!running.is_empty()).then_some(running)
    })
    .await;
    for pod in running {
        pod_ends(team, &pod, end).await;
    }
}

/// Ends a pod now.
pub async fn pod_ends(team: &Namespace, pod: &str, end: End) {
    let status = Patch::Merge(json!({ "status": { "phase": format!("{end:?}") } }));
    let (pods, params) = (team.api::<Pod>(), PatchParams::default());
    let ended = pods.patch_status(pod, &params, &status).await;
    ended.expect("a pod that runs can end");
}

/// The names of a Job's running pods, including terminating ones.
pub async fn running_pods(job: &Job) -> Vec<String> {
    let mut pods = job.pods().await;
    pods.retain(|pod| phase(pod) == Some("Running"));
    let names = pods.into_iter().filter_map(|pod| pod.metadata.name);
    names.collect()
}

/// Waits until this many pods of a Job run.
pub async fn pods_run(job: &Job, count: usize) {
    let what = format!("{count} pods of {} run", job.name());
    eventually(&what, || async {
        same(running_pods(job).await.len(), count)
    })
    .await;
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// Waits until the operator has acted on everything that has happened so far. Only then is it certain that what did
/// not happen will not happen later. No slot may be free.
///
/// Two Jobs are queued, the second after the first was noticed, so the pass that notices the second began when
/// everything before the first was known. Both are deleted again.
///
/// An operator that has just started lists all Jobs first, and says nothing of those that are there already: then
/// another one is queued.
pub async fn all_is_decided(team: &Namespace, db: &Semaphore) {
    for _ in 0..2 {
        eventually("a new Job is noticed", || is_noticed(team, db)).await;
    }
}

/// Whether the operator says of a new Job that it waits.
async fn is_noticed(team: &Namespace, db: &Semaphore) -> Result<(), String> {
    let name = format!("witness-{}", fresh());
    let witness = team.job(&name).semaphore(db.name());
    let witness = witness.priority(-1_000_000).create().await;
    let noticed = until("it waits", NOTICED, || async {
        let events = witness.events().await;
        let mut reasons = events.iter().filter_map(|event| event.reason.as_deref());
        reasons
            .any(|reason| reason == "SlotWaiting")
            .then_some(())
            .ok_or("it has no such event")
    })
    .await;
    witness.delete().await;
    witness.is_gone().await;
    noticed.map_err(|error| error.to_string())
}

/// The Workload that Kueue has of what has this uid, once it has one.
pub async fn kueue_workload(team: &Namespace, owner: &str) -> Object {
    let label = format!("kueue.x-k8s.io/job-uid={owner}");
    let name = eventually("it has a Workload", || async {
        let all = [
            "get",
            "workloads.kueue.x-k8s.io",
            "-o",
            "name",
            "-l",
            &label,
        ];
        let name = team.kubectl(all).await;
        let name = name.trim().strip_prefix("workload.kueue.x-k8s.io/");
        name.map(str::to_owned)
    })
    .await;
    let api = "kueue.x-k8s.io/v1beta2";
    team.object(api, "Workload", &name).await
}

fn fresh() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Waits until a Job has a Warning with this reason whose message contains `says`, and returns the message.
pub async fn is_warned(job: &Job, reason: &str, says: &str) -> String {
    gets_event(job, "Warning", reason, says).await
}

/// Waits until a Job has an event with this type and reason whose message contains `says`.
pub async fn gets_event(job: &Job, kind: &str, reason: &str, says: &str) -> String {
    let what = format!(
        "the Job {} has a {kind} {reason} that says {says:?}",
        job.name()
    );
    eventually(&what, || async {
        let events = job.events().await;
        let given = events.iter().find_map(|event| {
            let message = event.message.as_deref().unwrap_or_default();
            let is = event.type_.as_deref() == Some(kind)
                && event.reason.as_deref() == Some(reason)
                && message.contains(says);
            is.then(|| message.to_owned())
        });
        given.ok_or_else(|| {
            format!(
                "{:?}",
                events
                    .iter()
                    .map(|event| (&event.type_, &event.reason, &event.message))
                    .collect::<Vec<_>>()
            )
        })
    })
    .await
}

/// Waits until the queue in the status is this.
pub async fn queue_is<const N: usize>(db: &Semaphore, jobs: [&Job; N]) {
    let expected: Vec<_> = jobs.iter().map(|job| job.name().to_owned()).collect();
    let what = format!("the line of {}", db.name());
    eventually(&what, || async {
        let status = db.status().await;
        let queue = status["queue"].as_array().cloned().unwrap_or_default();
        let line: Vec<_> = queue
            .iter()
            .map(|place| place["name"].as_str().unwrap_or_default().to_owned())
            .collect();
        same(line, expected.clone())
    })
    .await;
}

/// A Job's uid.
pub async fn uid_of(job: &Job) -> String {
    let job = job.get().await.expect("the Job is there");
    job.metadata.uid.expect("every object has a uid")
}

/// The metadata of a Job's pod template.
fn template(job: &batch::Job) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
    job.spec
        .as_ref()
        .and_then(|spec| spec.template.metadata.clone())
        .unwrap_or_default()
}
