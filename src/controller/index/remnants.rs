//! Keeps the workloads that may have pods left which their status does not show. Each of them counts as stopping
//! until a LIST has shown that no pod is left. Until then, the workload is not started again and nobody else gets its
//! slots.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tokio::sync::Notify;

use super::dirty_set::DirtySet;
use consul_client::clock::Moment;
use consul_semaphore::{Granted, Phase, Uid, Workload, engine::START_SETTLE_TIME};
use consul_semaphore_workload::TrackedWorkload;

/// Workloads of which pods may be left, and the proofs that none is left.
#[derive(Default)]
pub(super) struct Remnants {
    unproved: HashMap<Uid, Unproved>,
    /// Unproved workloads to be looked at: they are new or have changed, or one of their pods has ended.
    changed: DirtySet<Uid>,
    /// Grants from which no pod is left, each with the workload's time in the queue after it. The time is needed
    /// because Kueue's Workloads name no grant.
    proved: HashMap<Uid, (Option<Granted>, i64)>,
    /// Time at which each workload that runs or stops was first seen as started.
    starts: HashMap<Uid, Moment>,
}

struct Unproved {
    /// The workload as its status shows it.
    tracked: TrackedWorkload,
    /// Whether a pod of the workload has ended since the workload was last taken.
    touched: bool,
    /// Whether no pod is left and that can't be written to the workload. Its slots are then free, but the workload is
    /// not started again before that is written.
    has_ended: bool,
}

impl Remnants {
    /// Returns a workload with the phase that it counts with.
    pub(super) fn judge(&mut self, tracked: TrackedWorkload) -> TrackedWorkload {
        let uid = &tracked.workload.uid;
        if tracked.workload.phase == Phase::Running {
            self.proved.remove(uid);
        }
        let Workload {
            granted,
            since,
            phase,
            seen,
            ..
        } = &*tracked.workload;
        let proved = self.proved.get(uid);
        // The proof does not count while a change that follows from it is still to be written to the workload.
        let is_proved = proved.is_some_and(|proved| *granted == proved.0 && *since == proved.1)
            && !tracked.shape.is_to_fail()
            && !tracked.shape.is_started()
            && !tracked.shape.is_reset();
        let is_unproved = !is_proved && tracked.may_have_pods();
        if is_unproved || matches!(phase, Phase::Running | Phase::Stopping) {
            self.starts.entry(uid.clone()).or_insert(*seen);
        } else {
            self.starts.remove(uid);
        }
        if !is_unproved {
            self.unproved.remove(uid);
            return tracked;
        }
        let known = self.unproved.get(uid);
        let touched = known.is_some_and(|known| known.touched);
        let has_ended = known.is_some_and(|known| known.has_ended)
            && (tracked.shape.is_reset() || tracked.shape.is_started());
        let phase = if has_ended {
            Phase::Finished { at_rest: true }
        } else {
            Phase::Stopping
        };
        let judged = TrackedWorkload {
            workload: Arc::new(Workload {
                phase,
                ..Workload::clone(&tracked.workload)
            }),
            ..tracked.clone()
        };
        let unproved = Unproved {
            tracked,
            touched,
            has_ended,
        };
        let uid = &judged.workload.uid;
        self.unproved.insert(uid.clone(), unproved);
        self.changed.mark(uid.clone());
        judged
    }

    pub(super) fn contains(&self, uid: &Uid) -> bool {
        self.unproved.contains_key(uid)
    }

    /// Returns all unproved workloads, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Uid, &TrackedWorkload)> {
        let unproved = self.unproved.iter();
        unproved.map(|(uid, known)| (uid, &known.tracked))
    }

    /// Notes that a pod in this namespace has ended that says it belongs to a workload. Whoever may make pods may
    /// name any workload, so the namespace must be the workload's.
    pub(super) fn touch(&mut self, namespace: &str, uid: &Uid) {
        let known = self.unproved.get_mut(uid);
        if let Some(known) = known.filter(|known| *known.tracked.namespace == *namespace) {
            known.touched = true;
            self.changed.mark(uid.clone());
        }
    }

    /// Whether a pod of an unproved workload has ended since the workload was last taken.
    pub(super) fn is_touched(&self, uid: &Uid) -> bool {
        let known = self.unproved.get(uid);
        known.is_some_and(|known| known.touched)
    }

    /// Marks a workload to be looked at, if it is unproved.
    pub(super) fn mark(&mut self, uid: &Uid) {
        if self.contains(uid) {
            self.changed.mark(uid.clone());
        }
    }

    /// Takes the workloads to be looked at. Some of them may have been forgotten since they were marked.
    pub(super) fn take_changed(&mut self) -> BTreeSet<Uid> {
        self.changed.take()
    }

    /// Returns the `Notify` that is notified when a workload is to be looked at.
    pub(super) fn wake(&self) -> Arc<Notify> {
        self.changed.wake()
    }

    /// Returns an unproved workload, whose pods the caller asks about. The note that a pod has ended is cleared.
    pub(super) fn take(&mut self, uid: &Uid) -> Option<TrackedWorkload> {
        let known = self.unproved.get_mut(uid)?;
        known.touched = false;
        Some(known.tracked.clone())
    }

    /// Returns the time from which the absence of pods proves that no pod of a workload is left. Before that time,
    /// its controller may still make pods.
    pub(super) fn counts_from(&self, tracked: &TrackedWorkload) -> Option<Moment> {
        tracked.workload.granted.as_ref()?;
        let started = self.starts.get(&tracked.workload.uid)?;
        Some(*started + START_SETTLE_TIME)
    }

    /// Notes that no pod of a workload is left from the grant that the workload names. Returns its known version.
    pub(super) fn proved(&mut self, tracked: &TrackedWorkload) -> Option<TrackedWorkload> {
        let Workload {
            uid,
            granted,
            since,
            ..
        } = &*tracked.workload;
        // The workload may have been deleted meanwhile.
        let known = self.unproved.get(uid)?.tracked.clone();
        self.proved.insert(uid.clone(), (granted.clone(), *since));
        Some(known)
    }

    /// Notes that no pod of a workload is left, and that this can't be written to the workload. Returns its known
    /// version, if this is news.
    pub(super) fn let_slots_go(&mut self, workload: &Workload) -> Option<TrackedWorkload> {
        let known = self.unproved.get_mut(&workload.uid)?;
        let is_it = known.tracked.workload.version == workload.version && !known.has_ended;
        known.has_ended |= is_it;
        is_it.then(|| known.tracked.clone())
    }

    pub(super) fn remove(&mut self, uid: &Uid) {
        self.unproved.remove(uid);
        self.proved.remove(uid);
        self.starts.remove(uid);
    }
}
