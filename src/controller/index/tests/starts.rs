//! What is shown of workloads that were started and have no pod that runs.

use super::*;
use consul_semaphore_workload::{NotStarted, pods::OwnPod};

fn pod(reason: Option<&str>) -> OwnPod {
    OwnPod {
        namespace: "batch".to_owned(),
        workload: "a".into(),
        lock_key: "db/.lock".to_owned(),
        ended: false,
        granted: Some(Granted::by("db/s", "s")),
        not_started: reason.map(|reason| NotStarted {
            reason: reason.into(),
            message: "".into(),
        }),
    }
}

/// The version of the Job `a` in this phase. Unless it is idle, it has been started in a slot.
fn job(version: &str, phase: Phase) -> TrackedWorkload {
    tracked("a", |tracked| {
        let workload = workload(tracked);
        (workload.version, workload.phase) = (version.into(), phase);
        workload.granted = (phase != Phase::Idle).then(|| Granted::by("db/s", "s"));
    })
}

fn started() -> Index {
    let index = with_db();
    put(&index, job("10", Phase::Idle));
    put(&index, job("11", Phase::Running));
    index.take_marked();
    index
}

impl Index {
    fn pod_seen_now(&self, pod: &OwnPod) {
        self.pod_seen(pod, false);
    }
}

/// What is shown of the Job `a`.
fn shown(index: &Index) -> Option<String> {
    let start = index.not_started(&"a".into())?;
    Some(start.reason.into())
}

/// What would be shown of the Job `a` an hour later.
fn later(index: &Index) -> Option<String> {
    let state = index.state();
    let hour = clock::time() + Duration::from_hours(1);
    let start = state.pod_starts.reported(&"a".into(), hour)?;
    Some(start.reason.to_string())
}

#[test]
fn a_pod_that_can_not_start_marks_the_queue_once() {
    let index = started();
    index.pod_seen_now(&pod(Some("ContainerCreating")));
    assert!(!marked(&index) && shown(&index).is_none());
    let fails = pod(Some("ImagePullBackOff"));
    index.pod_seen_now(&fails);
    assert!(marked(&index));
    assert_eq!(shown(&index).as_deref(), Some("ImagePullBackOff"));
    index.pod_seen_now(&fails);
    assert!(!marked(&index));
    index.pod_seen_now(&pod(None));
    assert!(marked(&index) && shown(&index).is_none());
    index.pod_seen_now(&fails);
    assert!(!marked(&index) && shown(&index).is_none());
}

#[test]
fn a_pod_that_starts_as_usual_marks_nothing() {
    let index = started();
    index.pod_seen_now(&pod(Some("Pending")));
    index.pod_seen_now(&pod(None));
    assert!(!marked(&index));
}

#[test]
fn a_job_that_is_started_again_has_no_pod_again() {
    let index = started();
    assert_eq!(later(&index).as_deref(), Some("NoPod"));
    index.pod_seen_now(&pod(None));
    assert_eq!(later(&index), None);
    put(&index, job("12", Phase::Stopping));
    // Its pods still run while they end.
    index.pod_seen_now(&pod(None));
    put(&index, job("13", Phase::Running));
    assert_eq!(later(&index).as_deref(), Some("NoPod"));
    index.remove(&"a".into());
    assert_eq!(later(&index), None);
}

#[test]
fn after_a_restart_it_is_known_once_the_pods_are_listed_which_jobs_have_none() {
    let index = with_db();
    put(&index, job("11", Phase::Running));
    assert_eq!(later(&index), None);
    index.pods_listed(&WatchScope::Namespace("elsewhere".into()));
    assert_eq!(later(&index), None);
    index.pods_listed(&WatchScope::Cluster);
    assert_eq!(later(&index).as_deref(), Some("NoPod"));
    put(&index, job("12", Phase::Finished { at_rest: true }));
    index.pods_listed(&WatchScope::Cluster);
    assert_eq!(later(&index), None);
}

#[test]
fn pods_of_what_is_not_known_are_not_kept() {
    let index = with_db();
    index.pod_seen_now(&pod(Some("Unschedulable")));
    put(&index, job("11", Phase::Running));
    assert_eq!(shown(&index), None);
    let mut elsewhere = pod(Some("Unschedulable"));
    elsewhere.namespace = "elsewhere".to_owned();
    index.pod_seen_now(&elsewhere);
    assert_eq!(shown(&index), None);
}

#[test]
fn a_pod_of_an_earlier_grant_says_nothing() {
    let index = started();
    let mut earlier = pod(None);
    earlier.granted = Some(Granted::by("db/r", "r"));
    index.pod_seen_now(&earlier);
    assert_eq!(later(&index).as_deref(), Some("NoPod"));
}

#[test]
fn a_pod_that_is_deleted_before_it_started_is_none() {
    let index = started();
    let fails = pod(Some("Unschedulable"));
    index.pod_seen_now(&fails);
    index.pod_seen(&fails, true);
    assert!(marked(&index) && shown(&index).is_none());
    assert_eq!(later(&index).as_deref(), Some("NoPod"));
}

#[test]
fn nothing_is_said_of_a_job_that_has_ended() {
    let index = started();
    put(&index, job("12", Phase::Finished { at_rest: true }));
    index.pod_seen_now(&pod(Some("Unschedulable")));
    assert_eq!(later(&index), None);
}
