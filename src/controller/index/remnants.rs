//! Workloads of which pods may be left that their status does not show. Each of them counts as stopping until a LIST
//! has shown that none is left: so it is not started beside them, and nobody else gets their slots.

use std::{collections::HashMap, sync::Arc};

use consul_semaphore::{Granted, Phase, Uid, Workload};
use consul_semaphore_workload::TrackedWorkload;

/// What is known of them.
#[derive(Default)]
pub(super) struct Remnants {
    unproved: HashMap<Uid, Unproved>,
    /// The grants from which no pod is left, and the time in the queue that followed: Kueue's Workloads name no grant.
    proved: HashMap<Uid, (Option<Granted>, i64)>,
}

struct Unproved {
    /// As its status shows it.
    tracked: TrackedWorkload,
    /// Whether a pod of it has ended since it was last taken.
    touched: bool,
}

impl Remnants {
    /// A workload as it counts.
    pub(super) fn judge(&mut self, tracked: TrackedWorkload) -> TrackedWorkload {
        let uid = &tracked.workload.uid;
        if tracked.workload.phase == Phase::Running {
            self.proved.remove(uid);
        }
        let Workload { granted, since, .. } = &*tracked.workload;
        let proved = self.proved.get(uid);
        // What is to be written then is waited for.
        let is_proved = proved.is_some_and(|proved| *granted == proved.0 && *since == proved.1)
            && !tracked.shape.is_to_fail()
            && !tracked.shape.is_reset();
        if is_proved || !tracked.may_have_pods() {
            self.unproved.remove(uid);
            return tracked;
        }
        let stopping = TrackedWorkload {
            workload: Arc::new(Workload {
                phase: Phase::Stopping,
                ..Workload::clone(&tracked.workload)
            }),
            ..tracked.clone()
        };
        let touched = self.unproved.get(uid).is_some_and(|known| known.touched);
        self.unproved
            .insert(uid.clone(), Unproved { tracked, touched });
        stopping
    }

    pub(super) fn contains(&self, uid: &Uid) -> bool {
        self.unproved.contains_key(uid)
    }

    /// A pod of a workload has ended. Returns whether that matters here.
    pub(super) fn touch(&mut self, uid: &Uid) -> bool {
        let known = self.unproved.get_mut(uid);
        known.map(|known| known.touched = true).is_some()
    }

    /// Some of them: at most this many, of those whose turn it is or of which a pod has ended.
    pub(super) fn take(
        &mut self,
        most: usize,
        its_turn: impl Fn(&Uid) -> bool,
    ) -> Vec<TrackedWorkload> {
        let due = self.unproved.iter_mut();
        let due = due.filter(|(uid, known)| known.touched || its_turn(uid));
        due.take(most)
            .map(|(_, known)| {
                known.touched = false;
                known.tracked.clone()
            })
            .collect()
    }

    /// No pod is left of a workload from the grant that it names. Returns it as it is known now.
    pub(super) fn proved(&mut self, tracked: &TrackedWorkload) -> Option<TrackedWorkload> {
        let Workload {
            uid,
            granted,
            since,
            ..
        } = &*tracked.workload;
        self.proved.insert(uid.clone(), (granted.clone(), *since));
        Some(self.unproved.get(uid)?.tracked.clone())
    }

    pub(super) fn remove(&mut self, uid: &Uid) {
        self.unproved.remove(uid);
        self.proved.remove(uid);
    }
}
