//! Workloads of which pods may be left that their status does not show. Each of them counts as stopping until a LIST
//! has shown that none is left: so it is not started beside them, and nobody else gets their slots.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tokio::sync::Notify;

use super::dirty_set::DirtySet;
use consul_client::clock::Moment;
use consul_semaphore::{Granted, Phase, Uid, Workload, engine::START_SETTLE_TIME};
use consul_semaphore_workload::TrackedWorkload;

/// What is known of them.
#[derive(Default)]
pub(super) struct Remnants {
    unproved: HashMap<Uid, Unproved>,
    /// Those of them that are to be looked at: they are new or have changed, or a pod of them has ended.
    changed: DirtySet<Uid>,
    /// The grants from which no pod is left, and the time in the queue that followed: Kueue's Workloads name no grant.
    proved: HashMap<Uid, (Option<Granted>, i64)>,
    /// Since when each workload that runs or stops is known to have been started.
    starts: HashMap<Uid, Moment>,
}

struct Unproved {
    /// As its status shows it.
    tracked: TrackedWorkload,
    /// Whether a pod of it has ended since it was last taken.
    touched: bool,
    /// Whether none is left, and that can't be written to it: then it has ended as far as its slots are concerned, and
    /// is not started before that is written.
    has_ended: bool,
}

impl Remnants {
    /// A workload as it counts.
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
        // What is to be written then is waited for.
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

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Uid, &TrackedWorkload)> {
        let unproved = self.unproved.iter();
        unproved.map(|(uid, known)| (uid, &known.tracked))
    }

    /// A pod in this namespace says that it is of a workload, and has ended. Whoever may make pods may name any workload.
    pub(super) fn touch(&mut self, namespace: &str, uid: &Uid) {
        let known = self.unproved.get_mut(uid);
        if let Some(known) = known.filter(|known| *known.tracked.namespace == *namespace) {
            known.touched = true;
            self.changed.mark(uid.clone());
        }
    }

    /// Whether a pod of one of them has ended since it was last taken.
    pub(super) fn is_touched(&self, uid: &Uid) -> bool {
        let known = self.unproved.get(uid);
        known.is_some_and(|known| known.touched)
    }

    /// A workload is to be looked at, if it is one of them.
    pub(super) fn mark(&mut self, uid: &Uid) {
        if self.contains(uid) {
            self.changed.mark(uid.clone());
        }
    }

    /// Takes those that are to be looked at. Some may have been forgotten since.
    pub(super) fn take_changed(&mut self) -> BTreeSet<Uid> {
        self.changed.take()
    }

    /// Notified when one is to be looked at.
    pub(super) fn wake(&self) -> Arc<Notify> {
        self.changed.wake()
    }

    /// One of them, which is asked about now.
    pub(super) fn take(&mut self, uid: &Uid) -> Option<TrackedWorkload> {
        let known = self.unproved.get_mut(uid)?;
        known.touched = false;
        Some(known.tracked.clone())
    }

    /// From when on the absence of pods proves that none is left of one of them: its controller may still make them
    /// before.
    pub(super) fn counts_from(&self, tracked: &TrackedWorkload) -> Option<Moment> {
        tracked.workload.granted.as_ref()?;
        let started = self.starts.get(&tracked.workload.uid)?;
        Some(*started + START_SETTLE_TIME)
    }

    /// No pod is left of a workload from the grant that it names. Returns it as it is known now.
    pub(super) fn proved(&mut self, tracked: &TrackedWorkload) -> Option<TrackedWorkload> {
        let Workload {
            uid,
            granted,
            since,
            ..
        } = &*tracked.workload;
        // It may have been deleted meanwhile.
        let known = self.unproved.get(uid)?.tracked.clone();
        self.proved.insert(uid.clone(), (granted.clone(), *since));
        Some(known)
    }

    /// No pod is left of a workload, and that can't be written to it. Returns it as it is known now, if this is news.
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
