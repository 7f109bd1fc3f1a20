//! Workloads that must not wait: if one would have to, it is deleted, and the holder does its work; or it fails.

use std::time::Duration;

use super::{Observed, Pass, SessionId};
use crate::{
    limit::Agreement,
    lock::Lock,
    plan::{Fail, Failed, Skip, Skipped, Taker},
    policy::OnContention,
    reading::Reading,
    workload::Workload,
};

/// How many holders of the slots to name.
const NAMED: usize = 3;

impl Pass<'_> {
    /// Decides which workloads are deleted, or fail, because they must not wait. Another holder must have taken a slot at a
    /// time when the workload existed; every other obstacle means that it waits.
    pub(super) fn skip(&mut self) {
        let settings = self.observed.settings;
        let obstacle = settings.paused || settings.terminating || self.observed.closed;
        let agreed = match (self.plan.agreement, self.reading.lock()) {
            (Some(Agreement::Agreed), _) => true,
            // An unused key of a keyed semaphore: its limit is written with the first holder.
            (Some(Agreement::Write { .. }), Lock::Absent { .. }) => settings.key.is_some(),
            _ => false,
        };
        // What is written now may free a slot: the next pass sees it.
        let settled = agreed && self.plan.record.is_none() && self.composer.is_idle();
        if obstacle || !self.opening.is_open() || !settled || self.plan.reread {
            return;
        }
        // A window's limit counts like the semaphore's own. Slots that are reserved for others count as free.
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
                // It waits for a window with so many.
                continue;
            }
            let asks = usize::try_from(asks).unwrap_or(usize::MAX);
            if late.is_none() && room.is_none_or(|room| room >= asks) {
                continue;
            }
            if workload.seen > self.reading.sent {
                // What Consul said before the workload existed does not count against it.
                self.plan.reread = true;
                return;
            }
            let why = late.map(Skipped::Late);
            let why =
                why.unwrap_or_else(|| taken.get_or_insert_with(|| takers(self.reading)).clone());
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
            || self.observed.barred.contains(&workload.uid)
            || self.is_busy(&workload.uid);
        workload.is_skippable() && self.observed.settings.may_start(workload) && !left_alone
    }

    /// How late such a workload is, if that is longer than the cooldown, or the longest of its semaphores: had another
    /// cluster done its work, nothing would show that any more.
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

/// The holders of the slots, for people.
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
    let named = holders.iter().take(NAMED);
    Skipped::Taken {
        by: named
            .map(|session| Taker::new(session, reading.contender(session)))
            .collect(),
        others: holders.len().saturating_sub(NAMED),
    }
}
