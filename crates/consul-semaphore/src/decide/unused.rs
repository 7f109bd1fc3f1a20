//! Ends a lock key: deletes `.lock` when the key is unused, or when its semaphore is deleted.

use std::time::Duration;

use super::{Observed, Pass};
use crate::{Lock, OwnContender, Phase};

/// Time for which an unused `.lock` is left to its maker: another `ConsulSemaphore`, which would make it again at
/// once, or a program that is about to take a slot.
pub(super) const LEAVE_UNUSED_LOCK_FOR: Duration = Duration::from_secs(20);

impl Pass<'_> {
    /// Removes the `.lock` of an unused key, so that no key keeps an old limit or a value that `api.Lock` left
    /// behind. Our last release deletes `.lock`; a `.lock` that others left behind is deleted later. While somebody
    /// waits, a `.lock` with the right limit stays. For a whole prefix `.lock` is deleted only as part of our last
    /// release, because otherwise a `ConsulSemaphore` may have made it, with its own limit.
    pub(super) fn remove_unused(&mut self) {
        let Observed {
            settings,
            queue,
            bound,
            evidence,
            ..
        } = *self.observed;
        let started = !bound.is_empty() || evidence.count_of_steady() > 0;
        let looked_after = settings.terminating || started || self.plan.reread;
        if !settings.transient || looked_after {
            return;
        }
        let (index, serves) = match self.reading.lock() {
            // A program that needs a list wrote the body as one, and nobody else would write it so again.
            Lock::Semaphore { body, .. } if body.is_list() && settings.key.is_none() => return,
            Lock::Semaphore { body, index } => (*index, body.limit() == settings.limit),
            Lock::Mutex {
                holder: None,
                index: index @ 1..,
                ..
            } => (*index, true),
            _ => return,
        };
        if !self.composer.leaves_nobody() || (!queue.is_empty() && serves) {
            return;
        }
        let rested = self
            .observed
            .memory
            .mutex
            .unused_since()
            .map(|since| since + LEAVE_UNUSED_LOCK_FOR);
        if settings.key.is_none() && (rested.is_some() || !serves) {
            return;
        }
        match rested {
            Some(due) if queue.is_empty() && due > self.observed.now => self.wake_at(due),
            _ => self.composer.remove_lock(index),
        }
    }

    /// Cleans up a semaphore that is being deleted, once no workload of ours uses it any more.
    pub(super) fn finish(&mut self) {
        let bound = self.observed.bound.iter().any(|workload| {
            matches!(workload.phase, Phase::Running | Phase::Stopping)
                && self.started_here(workload)
        });
        // The slots of a rate stay held until their sessions end.
        let counts = |ours: &OwnContender| self.observed.starts.get(&ours.session).is_some();
        let any_holds =
            !self.observed.ours.iter().all(counts) || self.observed.evidence.count_of_steady() > 0;
        if !self.observed.settings.terminating || bound || any_holds {
            return;
        }
        let used = self.reading.contenders().next().is_some();
        match self.reading.lock() {
            Lock::Absent { index: 0, .. } | Lock::Mutex { index: 0, .. } | Lock::Unreadable(_) => {
                self.plan.finished = true;
            }
            _ if used => self.plan.finished = true,
            Lock::Absent { index, .. } | Lock::Mutex { index, .. } => {
                self.composer.remove_lock(*index);
            }
            Lock::Semaphore { body, index } if body.held() == 0 => {
                self.composer.remove_lock(*index);
            }
            // Only dead holders are left, and they are pruned first.
            Lock::Semaphore { .. } => {}
        }
    }
}
