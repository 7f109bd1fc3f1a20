//! Decides about workloads that must not wait: if such a workload would have to wait, it is deleted because the
//! holder does its work, or it fails.

use std::time::Duration;

use super::{Observed, Pass, SessionId};
use crate::{
    lock::Lock,
    plan::{Fail, Failed, Skip, Skipped, Taker},
    policy::OnContention,
    reading::Reading,
    workload::Workload,
};

/// Number of holders of the slots that are named.
const MOST_NAMED_TAKERS: usize = 3;

impl Pass<'_> {
    /// Decides which workloads are deleted or fail because they must not wait. This requires that another holder has
    /// taken a slot while the workload existed; with every other obstacle the workload waits.
    pub(super) fn skip(&mut self) {
        let settings = self.observed.settings;
        let obstacle = settings.paused || settings.terminating || self.observed.closed;
        // A transaction of this pass may free a slot, so the next pass decides.
        let settled = self.is_limit_agreed() && self.composer.is_idle();
        if obstacle || !self.opening.is_open() || !settled || self.plan.reread {
            return;
        }
        // The limit of a window counts like the semaphore's own limit. Slots that are reserved for others count as
        // free.
        let in_force = self.opening.limit(settings.limit);
        let withheld = settings.limit - in_force;
        let withheld = usize::try_from(withheld).unwrap_or(usize::MAX);
        let room = match self.reading.lock() {
            Lock::Semaphore { body, .. } => Some(body.room().saturating_sub(withheld)),
            Lock::Mutex { holder, .. } => Some(usize::from(holder.is_none())),
            Lock::Absent { .. } | Lock::Unreadable(_) => None,
        };
        let mut taken = None;
        for workload in self.observed.queue {
            if !self.may_be_skipped(workload) {
                continue;
            }
            let late = self.lateness(workload);
            let asks = self.slots_for(workload);
            if late.is_none() && asks > in_force {
                // The workload waits for a window with that many slots.
                continue;
            }
            let asks = usize::try_from(asks).unwrap_or(usize::MAX);
            if late.is_none() && room.is_none_or(|room| room >= asks) {
                continue;
            }
            if workload.seen > self.reading.sent {
                // An answer of Consul from before the workload existed does not count against the workload.
                self.plan.reread = true;
                return;
            }
            let why = late.map_or_else(
                || taken.get_or_insert_with(|| takers(self.reading)).clone(),
                Skipped::Late,
            );
            let target = workload.into();
            if workload.on_contention == OnContention::Fail {
                self.plan.fails.push(Fail {
                    workload: target,
                    why: Failed::Contended(why),
                });
            } else {
                self.plan.skips.push(Skip {
                    workload: target,
                    cron_job: workload.cron_job.clone(),
                    why,
                });
            }
        }
    }

    fn may_be_skipped(&self, workload: &Workload) -> bool {
        let left_alone = self.has_settled(&workload.uid)
            || self.observed.excluded.barred.contains(&workload.uid)
            || self.is_busy(&workload.uid);
        workload.is_skippable() && self.observed.settings.may_start(workload) && !left_alone
    }

    /// Returns how late a workload that must not wait is, if that is longer than the cooldown, or longer than the
    /// longest cooldown of its semaphores. If another cluster had done its work, nothing would show that any more.
    pub(super) fn lateness(&self, workload: &Workload) -> Option<Duration> {
        let Observed {
            settings,
            longest_cooldowns,
            ..
        } = self.observed;
        let longest = longest_cooldowns.get(&workload.uid).copied();
        let cooldown = settings.cooldown.max(longest.unwrap_or_default());
        let scheduled = workload.cron_job.as_ref()?.scheduled?;
        let since = self.observed.time.duration_since(scheduled);
        let since = Duration::try_from(since).ok()?;
        (workload.is_skippable() && !cooldown.is_zero() && since > cooldown).then_some(since)
    }
}

/// Returns the holders of the slots, for people.
pub(crate) fn takers(reading: &Reading) -> Skipped {
    let mut holders: Vec<&SessionId> = match reading.lock() {
        Lock::Semaphore { body, .. } => body.holders().collect(),
        Lock::Mutex { holder, .. } => holder.iter().collect(),
        Lock::Absent { .. } | Lock::Unreadable(_) => Vec::new(),
    };
    holders.sort_by_key(|session| {
        let contender = reading.contender(session);
        (
            contender.is_none(),
            contender.map(|entry| entry.modify_index),
        )
    });
    let named = holders.iter().take(MOST_NAMED_TAKERS);
    Skipped::Taken {
        by: named
            .map(|session| Taker::new(session, reading.contender(session)))
            .collect(),
        others: holders.len().saturating_sub(MOST_NAMED_TAKERS),
    }
}
