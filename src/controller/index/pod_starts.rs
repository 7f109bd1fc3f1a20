//! Keeps which of the started workloads have no pod that runs yet, and why. This is only shown, and decides nothing.

use std::time::Duration;

use consul_client::id::{IdMap, IdSet};
use consul_semaphore::Uid;
use consul_semaphore_workload::NotStarted;
use jiff::Timestamp;

/// The time for which it is not worth a word that a workload has no pod that runs, unless something keeps its pod from
/// starting.
pub(in crate::controller) const SLOW_START: Duration = Duration::from_secs(30);

/// What the pods of started workloads have shown. It knows no other workloads, so what is kept is bounded by them.
#[derive(Default)]
pub(super) struct PodStarts {
    /// Workloads of which a pod runs or has run.
    started: IdSet<Uid>,
    not_started: IdMap<Uid, NotStarted>,
    /// Time at which [`Self::take_slow`] was last called.
    looked: Timestamp,
}

impl PodStarts {
    /// Notes that a workload was started at this time, and has no pod yet as far as is known.
    pub(super) fn begin(&mut self, workload: &Uid, now: Timestamp) {
        if !self.started.contains(workload) && !self.not_started.contains_key(workload) {
            let start = NotStarted::without_pod(now);
            self.not_started.insert(workload.clone(), start);
        }
    }

    /// Notes what a pod of a workload shows: why it has not started; `None` if it has. Returns whether that changes
    /// what is shown of the workload.
    pub(super) fn note(
        &mut self,
        workload: &Uid,
        pod: Option<&NotStarted>,
        now: Timestamp,
    ) -> bool {
        if self.started.contains(workload) {
            return false;
        }
        let before = self.shown(workload, now).cloned();
        if let Some(pod) = pod {
            self.not_started.insert(workload.clone(), pod.clone());
        } else {
            self.not_started.remove(workload);
            self.started.insert(workload.clone());
        }
        before.as_ref() != self.shown(workload, now)
    }

    /// Returns why a workload has no pod that runs, if that is worth a word.
    pub(super) fn shown(&self, workload: &Uid, now: Timestamp) -> Option<&NotStarted> {
        let start = self.not_started.get(workload)?;
        (!start.is_passing() || is_slow(start, now)).then_some(start)
    }

    /// Returns the workloads whose start has become slow since the last call.
    pub(super) fn take_slow(&mut self, now: Timestamp) -> Vec<Uid> {
        let looked = std::mem::replace(&mut self.looked, now);
        let not_started = self.not_started.iter();
        let slow = not_started.filter(|(_, start)| is_slow(start, now) && !is_slow(start, looked));
        slow.map(|(workload, _)| workload.clone()).collect()
    }

    /// Forgets a workload that does not run any more.
    pub(super) fn forget(&mut self, workload: &Uid) {
        self.started.remove(workload);
        self.not_started.remove(workload);
    }
}

/// Whether a workload has had no pod that runs for [`SLOW_START`].
fn is_slow(start: &NotStarted, now: Timestamp) -> bool {
    now.duration_since(start.since) >= SLOW_START.try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn not_started(reason: &str) -> NotStarted {
        NotStarted {
            since: second(100),
            reason: reason.into(),
            message: "".into(),
        }
    }

    fn reason(starts: &PodStarts, at: i64) -> Option<&str> {
        let shown = starts.shown(&"a".into(), second(at))?;
        Some(&shown.reason)
    }

    #[test]
    fn what_fails_is_shown_at_once_and_what_is_slow_after_a_while() {
        let (mut starts, uid) = (PodStarts::default(), Uid::from("a"));
        starts.begin(&uid, second(100));
        assert_eq!(
            (reason(&starts, 129), reason(&starts, 130)),
            (None, Some("NoPod"))
        );
        let creating = not_started("ContainerCreating");
        assert!(!starts.note(&uid, Some(&creating), second(110)));
        assert_eq!(reason(&starts, 129), None);
        assert_eq!(reason(&starts, 130), Some("ContainerCreating"));
        let fails = not_started("ImagePullBackOff");
        assert!(starts.note(&uid, Some(&fails), second(120)));
        assert!(!starts.note(&uid, Some(&fails), second(121)));
        assert_eq!(reason(&starts, 121), Some("ImagePullBackOff"));
        assert!(starts.note(&uid, None, second(122)));
        assert_eq!(reason(&starts, 200), None);
    }

    #[test]
    fn a_workload_has_started_once_one_of_its_pods_has() {
        let (mut starts, uid) = (PodStarts::default(), Uid::from("a"));
        assert!(!starts.note(&uid, None, second(100)));
        assert!(!starts.note(&uid, Some(&not_started("Unschedulable")), second(100)));
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
