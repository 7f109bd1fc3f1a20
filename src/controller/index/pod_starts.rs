//! Keeps which of the running workloads have no pod that runs yet, and why. This is only shown, and decides nothing.

use std::time::Duration;

use consul_client::id::{IdMap, IdSet};
use consul_semaphore::Uid;
use consul_semaphore_workload::NotStarted;
use jiff::Timestamp;

/// The time that a start may take before the status reports it, unless something fails.
pub(in crate::controller) const SLOW_START: Duration = Duration::from_secs(30);

/// What the pods of running workloads have shown. It has at most one entry for each running workload.
#[derive(Default)]
pub(super) struct PodStarts {
    /// Workloads of which a pod runs or has run.
    started: IdSet<Uid>,
    /// Workloads of which no pod runs or has run.
    not_started: IdMap<Uid, Start>,
    /// Time at which [`Self::take_slow`] was last called.
    looked: Timestamp,
}

/// The start of a workload that has no pod that runs yet.
struct Start {
    /// Time since which the start is known here.
    seen: Timestamp,
    why: NotStarted,
}

impl Start {
    /// Whether the start takes longer than [`SLOW_START`].
    fn is_slow(&self, now: Timestamp) -> bool {
        now.duration_since(self.seen) >= SLOW_START.try_into().unwrap_or_default()
    }
}

impl PodStarts {
    /// Notes that a workload runs, and has no pod as far as is known.
    pub(super) fn begin(&mut self, workload: &Uid, now: Timestamp) {
        if !self.not_started.contains_key(workload) {
            self.note(workload, Some(NotStarted::without_pod()), now);
        }
    }

    /// Notes why a pod of a workload has not started; `None` if it has. Returns whether that changes what the status
    /// reports.
    pub(super) fn note(&mut self, workload: &Uid, pod: Option<NotStarted>, now: Timestamp) -> bool {
        if self.started.contains(workload) {
            return false;
        }
        let before = self.not_started.remove(workload);
        let seen = before.as_ref().map_or(now, |before| before.seen);
        let reason = |start: Option<&Start>| {
            let start = start.filter(|start| is_reported(start, now));
            start.map(|start| start.why.reason.clone())
        };
        let start = pod.map(|why| Start { seen, why });
        let is_news = reason(before.as_ref()) != reason(start.as_ref());
        match start {
            Some(start) => drop(self.not_started.insert(workload.clone(), start)),
            None => drop(self.started.insert(workload.clone())),
        }
        is_news
    }

    /// Returns why a workload has no pod that runs, if something fails or its start is slow.
    pub(super) fn reported(&self, workload: &Uid, now: Timestamp) -> Option<&NotStarted> {
        let start = self.not_started.get(workload)?;
        is_reported(start, now).then_some(&start.why)
    }

    /// Returns the workloads whose start has become slow since the last call.
    pub(super) fn take_slow(&mut self, now: Timestamp) -> Vec<Uid> {
        let looked = std::mem::replace(&mut self.looked, now);
        let not_started = self.not_started.iter();
        let slow = not_started.filter(|(_, start)| start.is_slow(now) && !start.is_slow(looked));
        slow.map(|(workload, _)| workload.clone()).collect()
    }

    /// Forgets a workload that does not run any more.
    pub(super) fn forget(&mut self, workload: &Uid) {
        self.started.remove(workload);
        self.not_started.remove(workload);
    }
}

fn is_reported(start: &Start, now: Timestamp) -> bool {
    !start.why.is_passing() || start.is_slow(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn not_started(reason: &str) -> NotStarted {
        NotStarted {
            reason: reason.into(),
            message: "".into(),
        }
    }

    fn reason(starts: &PodStarts, at: i64) -> Option<&str> {
        let reported = starts.reported(&"a".into(), second(at))?;
        Some(&reported.reason)
    }

    #[test]
    fn what_fails_is_reported_at_once_and_what_is_slow_after_a_while() {
        let (mut starts, uid) = (PodStarts::default(), Uid::from("a"));
        starts.begin(&uid, second(100));
        assert_eq!(
            (reason(&starts, 129), reason(&starts, 130)),
            (None, Some("NoPod"))
        );
        assert!(!starts.note(&uid, Some(not_started("ContainerCreating")), second(110)));
        assert_eq!(reason(&starts, 129), None);
        assert_eq!(reason(&starts, 130), Some("ContainerCreating"));
        let fails = || Some(not_started("ImagePullBackOff"));
        assert!(starts.note(&uid, fails(), second(120)));
        assert!(!starts.note(&uid, fails(), second(121)));
        assert_eq!(reason(&starts, 121), Some("ImagePullBackOff"));
        assert!(starts.note(&uid, None, second(122)));
        assert_eq!(reason(&starts, 200), None);
    }

    #[test]
    fn a_workload_has_started_once_one_of_its_pods_has() {
        let (mut starts, uid) = (PodStarts::default(), Uid::from("a"));
        assert!(!starts.note(&uid, None, second(100)));
        assert!(!starts.note(&uid, Some(not_started("Unschedulable")), second(100)));
        starts.begin(&uid, second(100));
        assert_eq!(reason(&starts, 200), None);
        starts.forget(&uid);
        starts.begin(&uid, second(100));
        assert_eq!(reason(&starts, 200), Some("NoPod"), "it was started again");
    }

    #[test]
    fn each_slow_start_is_found_once() {
        let (mut starts, uid) = (PodStarts::default(), Uid::from("a"));
        starts.begin(&uid, second(100));
        let found = [120, 129, 131, 140].map(|at| starts.take_slow(second(at)).len());
        assert_eq!(found, [0, 0, 1, 0]);
    }
}
