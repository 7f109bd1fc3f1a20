//! Ends waits without a slot after a pass over a queue, because a workload must not wait, has waited for too long, or a
//! newer workload takes its place. Also ends running workloads that a newer workload replaces.
//!
//! The time at which such a wait began is recorded beside the workload if nothing else shows it.
//!
//! Workloads that come into a full queue fail, too: see [`admission`](super::admission).
//!
//! None of this is done to a workload whose grant or start is unanswered, or which holds a slot, in any of its queues.
//! Only a workload that is replaced holds slots.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::{Now, Owner, Queue, QueueRef, Stores, Write, lookup::Lookup, semaphores::Semaphores};
use crate::{
    Agreement, Blocked, ContenderBody, Identity, Lock, OnContention, Phase, Uid, Workload,
    decide::skip::takers,
    plan::{End, Ended, Fail, Failed, RecordWait},
};

/// The most workloads of one queue that are dealt with after one pass.
pub(super) const MOST_WAITS_PER_PASS: usize = 64;

/// The pause before another look at a workload about which something is not known yet.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The pause before another look at a workload whose time stands still, so the wait may end that much too late. Also
/// the pause before another look at a workload that a newer one would supersede if the newer one's semaphores could use
/// Consul.
const LOOK_AGAIN_WHILE_BLOCKED: Duration = Duration::from_secs(15);

/// The longest time between two records which show that an operator counts the time.
pub const HEARTBEAT: Duration = Duration::from_mins(5);

/// What one queue shows about a workload that waits in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitState {
    /// The contenders of the queue are not known, or a call has no answer yet.
    Unsure,
    /// The workload has slots here or may have some, it is being written to, or a write to it has failed.
    Engaged,
    /// The workload only waits.
    Waits,
}

/// Returns what all queues of a workload together show.
fn together(states: impl IntoIterator<Item = WaitState>) -> WaitState {
    let states: Vec<WaitState> = states.into_iter().collect();
    if states.contains(&WaitState::Engaged) {
        WaitState::Engaged
    } else if states.contains(&WaitState::Unsure) {
        WaitState::Unsure
    } else {
        WaitState::Waits
    }
}

/// A look at those who wait in a queue, after a pass over it.
pub(super) struct WaitPass<'a, S> {
    pub(super) semaphores: &'a mut Semaphores,
    pub(super) now: Now,
    pub(super) stores: &'a S,
}

impl<S: Stores> WaitPass<'_, S> {
    /// Ends the waits in a queue that are over.
    pub(super) fn run(&mut self, queue: &QueueRef) {
        self.end_contended(queue);
        self.end_superseded(queue);
        self.admit_newcomers(queue);
        self.end_overdue(queue);
        self.replace_running(queue);
        self.record_waits(queue);
        self.semaphores.drain(queue);
    }

    /// Records beside the workloads when their waits began. Nothing else depends on the record, so no other write waits
    /// for it.
    fn record_waits(&mut self, queue: &QueueRef) {
        for workload in self.stores.of(queue).unrecorded(MOST_WAITS_PER_PASS) {
            let Some(began) = workload.wait_to_record() else {
                continue;
            };
            let queues = self
                .semaphores
                .queues_for(&queue.semaphore.namespace, &workload);
            // A workload that is about to be started no longer waits.
            let in_reach = queues
                .iter()
                .all(|queue| self.semaphores.reaches(queue, &workload.uid));
            if in_reach || self.wait_state(&queues, &workload.uid) == WaitState::Engaged {
                // The result of the grant or write makes a pass due.
                continue;
            }
            if let Some(queue) = self.semaphores.queue_mut(queue) {
                let workload = (&workload).into();
                queue.write(Write::RecordWait(RecordWait { workload, began }));
            }
        }
    }

    /// Ends the waits of workloads that must not wait.
    fn end_contended(&mut self, queue: &QueueRef) {
        let fails = self.semaphores.queue_mut(queue).map(Queue::take_fails);
        for fail in fails.into_iter().flatten() {
            let Some(workload) = self.stores.of(queue).workload(&fail.workload.uid) else {
                continue;
            };
            if workload.version == fail.workload.version {
                let queues = self
                    .semaphores
                    .queues_for(&queue.semaphore.namespace, &workload);
                self.fail(queue, &queues, fail);
            }
        }
    }

    /// Ends the waits of older workloads that wait for the same as a newer one.
    fn end_superseded(&mut self, queue: &QueueRef) {
        for superseded in self.stores.of(queue).superseded(MOST_WAITS_PER_PASS) {
            match self.newest_that_may_be_granted(&superseded.newer) {
                Ok(Some(newer)) => {
                    let fail = Fail {
                        workload: (&superseded.workload).into(),
                        why: Failed::Superseded { by: newer.title() },
                    };
                    let queues = self
                        .semaphores
                        .queues_for(&queue.semaphore.namespace, &superseded.workload);
                    self.fail(queue, &queues, fail);
                }
                Ok(None) => {}
                Err(later) => self.look_again(queue, later),
            }
        }
    }

    /// Returns the first of these workloads that waits and may be granted its slots. A workload whose semaphores can't
    /// read or write in Consul supersedes nothing, however new it is. `Err` says how much later to ask again, because
    /// the answer is not known yet.
    fn newest_that_may_be_granted<'a>(
        &self,
        newer: &'a [Located],
    ) -> Result<Option<&'a Located>, Duration> {
        let mut soonest = None;
        for newer in newer {
            let queues = self
                .semaphores
                .queues_for(&newer.namespace, &newer.workload);
            let may = queues.iter().all(|queue| {
                let known = self.semaphores.queue(queue);
                known.is_none_or(|known| known.knowledge.is_usable())
            });
            let later = match self.wait_state(&queues, &newer.workload.uid) {
                // The workload no longer waits, or can't be started.
                WaitState::Engaged => continue,
                _ if !may => LOOK_AGAIN_WHILE_BLOCKED,
                WaitState::Unsure => LOOK_AGAIN_AFTER,
                WaitState::Waits => return Ok(Some(newer)),
            };
            soonest = soonest.into_iter().chain([later]).min();
        }
        soonest.map_or(Ok(None), Err)
    }

    /// Ends the waits of workloads that have waited for as long as they may.
    fn end_overdue(&mut self, queue: &QueueRef) {
        for overdue in self
            .stores
            .of(queue)
            .overdue(self.now.time, MOST_WAITS_PER_PASS)
        {
            let uid = &overdue.workload.uid;
            let queues = self
                .semaphores
                .queues_for(&queue.semaphore.namespace, &overdue.workload);
            let later = match self.is_overdue(&overdue, &queues) {
                Ok((timeout, ended)) if self.has_read_since(&queues, ended) => {
                    let fail = self.timed_out(&overdue.workload, &queues, timeout);
                    self.fail(queue, &queues, fail);
                    LOOK_AGAIN_AFTER
                }
                Ok(_) => LOOK_AGAIN_AFTER,
                Err(later) => later,
            };
            let until = SignedDuration::try_from(later)
                .ok()
                .and_then(|later| self.now.time.checked_add(later).ok());
            self.stores
                .of(queue)
                .postpone(uid, until.unwrap_or(Timestamp::MAX));
        }
        if let Some(next) = self.stores.of(queue).next_overdue() {
            let wait = Duration::try_from(next.duration_since(self.now.time)).unwrap_or_default();
            let due = self.now.moment + wait.clamp(LOOK_AGAIN_AFTER, HEARTBEAT);
            if let Some(queue) = self.semaphores.queue_mut(queue) {
                queue.schedule.wake_by(due);
            }
        }
    }

    /// Returns how long such a workload may wait and when that time was over. `Err` says how much later to ask again.
    fn is_overdue(
        &self,
        overdue: &Overdue,
        queues: &[QueueRef],
    ) -> Result<(Duration, Timestamp), Duration> {
        let Overdue { workload, timeout } = overdue;
        let semaphores = queues
            .iter()
            .map(|queue| self.semaphores.states.get(&queue.semaphore))
            .collect::<Option<Vec<_>>>()
            .ok_or(LOOK_AGAIN_WHILE_BLOCKED)?;
        let blocked = semaphores
            .iter()
            .map(|semaphore| semaphore.blocked())
            .chain([&workload.wait.kept_out]);
        let seconds = workload.waits_since().ok_or(LOOK_AGAIN_WHILE_BLOCKED)?;
        let since = Timestamp::from_second(seconds).map_err(|_| HEARTBEAT)?;
        let ends = Blocked::deadline(blocked, since, *timeout).ok_or(LOOK_AGAIN_WHILE_BLOCKED)?;
        if ends > self.now.time {
            let left = Duration::try_from(ends.duration_since(self.now.time));
            return Err(left.unwrap_or(LOOK_AGAIN_AFTER));
        }
        let in_reach = queues
            .iter()
            .all(|queue| self.semaphores.reaches(queue, &workload.uid));
        if in_reach || self.wait_state(queues, &workload.uid) != WaitState::Waits {
            return Err(LOOK_AGAIN_AFTER);
        }
        Ok((*timeout, ends))
    }

    /// Whether all these queues have read the prefix since `time`, as for [`Self::have_read_within`].
    fn has_read_since(&mut self, queues: &[QueueRef], time: Timestamp) -> bool {
        let age = Duration::try_from(self.now.time.duration_since(time)).unwrap_or_default();
        self.have_read_within(queues, age)
    }

    /// Whether the latest reading of each of these queues was sent at most `age` ago. Queues without such a reading are
    /// marked for a pass that reads the prefix again, unless they await an answer already. A queue that does not exist
    /// has nothing to read.
    pub(super) fn have_read_within(&mut self, queues: &[QueueRef], age: Duration) -> bool {
        let mut all = true;
        for queue in queues {
            let known = self.semaphores.queue_mut(queue);
            let Some(known) =
                known.filter(|known| !known.knowledge.has_read_within(age, self.now.moment))
            else {
                continue;
            };
            if !known.is_blocked() {
                known.knowledge.invalidate();
            }
            self.semaphores.agenda.mark(queue);
            all = false;
        }
        all
    }

    fn timed_out(&self, workload: &Workload, queues: &[QueueRef], timeout: Duration) -> Fail {
        let taken = queues.iter().filter_map(|queue| {
            let reading = self.semaphores.queue(queue)?.reading()?;
            Some((queue.title(), takers(reading)))
        });
        Fail {
            workload: workload.into(),
            why: Failed::TimedOut {
                timeout,
                asked: workload.asked(),
                taken: taken.collect(),
            },
        }
    }

    /// Makes a workload fail, if it is certain that the workload only waits.
    pub(super) fn fail(&mut self, queue: &QueueRef, queues: &[QueueRef], fail: Fail) {
        if self.only_waits(queue, queues, &fail.workload.uid)
            && let Some(queue) = self.semaphores.queue_mut(queue)
        {
            queue.fail(fail, self.now);
        }
    }

    /// Whether it is certain that a workload only waits. If that is not known yet, the next pass over this queue, which
    /// looks again, is scheduled.
    pub(super) fn only_waits(
        &mut self,
        queue: &QueueRef,
        queues: &[QueueRef],
        workload: &Uid,
    ) -> bool {
        let state = self.wait_state(queues, workload);
        if state == WaitState::Unsure {
            self.look_again(queue, LOOK_AGAIN_AFTER);
        }
        state == WaitState::Waits
    }

    /// Returns what all queues of a workload together show about it.
    fn wait_state(&self, queues: &[QueueRef], workload: &Uid) -> WaitState {
        together(queues.iter().map(|queue| {
            let known = self.semaphores.queue(queue);
            known.map_or(WaitState::Unsure, |known| {
                wait_state(known, workload, self.now)
            })
        }))
    }

    fn look_again(&mut self, queue: &QueueRef, later: Duration) {
        if let Some(queue) = self.semaphores.queue_mut(queue) {
            queue.schedule.wake_by(self.now.moment + later);
        }
    }

    /// Ends running workloads for the first in the queue, if that workload replaces them and nothing else can let it
    /// start.
    fn replace_running(&mut self, queue: &QueueRef) {
        let Some(workload) = self.stores.of(queue).first().filter(|first| {
            first.on_contention == OnContention::ReplaceRunning && first.is_replaceable()
        }) else {
            return;
        };
        let queues = self
            .semaphores
            .queues_for(&queue.semaphore.namespace, &workload);
        let is_first = |queue: &QueueRef| {
            let first = self.stores.of(queue).first();
            first.is_some_and(|first| first.uid == workload.uid)
        };
        if !queues.iter().all(is_first)
            || self.wait_state(&queues, &workload.uid) != WaitState::Waits
            || queues
                .iter()
                .all(|queue| self.semaphores.reaches(queue, &workload.uid))
        {
            return;
        }
        let Some(lacks) = self.ends_lacking(&queues, &workload) else {
            return;
        };
        let running = self.stores.of(queue).replaceable(&workload);
        let theirs = |victim: &Located| {
            self.semaphores
                .queues_for(&victim.namespace, &victim.workload)
        };
        let ends = |victim: &&Located| {
            let workload = &victim.workload;
            let busy = |queue: &QueueRef| {
                let known = self.semaphores.queue(queue);
                known.is_some_and(|known| known.writes.is_busy(&workload.uid))
            };
            workload.wait.failing.is_some() || theirs(victim).iter().any(busy)
        };
        let lacks = lacks.saturating_sub(running.iter().filter(ends).count());
        let (mut victims, mut soonest) = (Vec::new(), None);
        for victim in &running {
            let queues = theirs(victim);
            match self.replaceable_since(&queues, &victim.workload) {
                Ok(Some(granted)) => victims.push((granted, &victim.workload, queues)),
                Ok(None) => {}
                Err(later) => soonest = soonest.into_iter().chain([later]).min(),
            }
        }
        if victims.len() < lacks {
            if let Some((later, queue)) = soonest.zip(self.semaphores.queue_mut(queue)) {
                queue
                    .schedule
                    .wake_by(self.now.moment + later.max(LOOK_AGAIN_AFTER));
            }
            return;
        }
        // A reading from before the workload existed does not count for it.
        let age = self.now.moment.since(workload.seen);
        if lacks == 0 || !self.have_read_within(&queues, age) {
            return;
        }
        victims.sort_by(|(a, first, _), (b, second, _)| (a, &first.uid).cmp(&(b, &second.uid)));
        for (_, victim, queues) in victims.into_iter().take(lacks) {
            let end = End {
                workload: victim.into(),
                why: Ended::Replaced {
                    by: title(&queue.semaphore.namespace, &workload),
                },
            };
            if let Some(theirs) = queues.first()
                && let Some(known) = self.semaphores.queue_mut(theirs)
            {
                known.write(Write::End(end));
                self.semaphores.drain(theirs);
            }
        }
    }

    /// Returns how many workloads that hold the same slots must end for this one to have its slots in all queues;
    /// `None` if something other than holders is in its way. Workloads that end anyway are counted off.
    fn ends_lacking(&self, queues: &[QueueRef], workload: &Workload) -> Option<usize> {
        let mut lacks = 0;
        for queue in queues {
            let state = self.semaphores.states.get(&queue.semaphore)?;
            let conclusion = state.queues.get(&queue.key)?.last()?;
            // A limit that is about to be raised may make room.
            let agreed = conclusion.agreement == Some(Agreement::Agreed);
            if !conclusion.certain || !conclusion.open || !agreed || state.blocked().lasts() {
                return None;
            }
            let known = self
                .semaphores
                .queue(queue)
                .filter(|known| known.knowledge.is_usable())?;
            lacks = lacks.max(ends_lacking(
                known,
                workload,
                self.now,
                &self.stores.of(queue),
            )?);
        }
        Some(lacks)
    }

    /// Returns when a running workload got its slots, or `None` if it may not be replaced. `Err` says how much later
    /// that may change.
    fn replaceable_since(
        &self,
        queues: &[QueueRef],
        victim: &Workload,
    ) -> Result<Option<Timestamp>, Duration> {
        let mut since = None;
        for queue in queues {
            let held = self
                .semaphores
                .queue(queue)
                .and_then(|queue| held_since(queue, victim));
            let Some(held) = held else {
                return Ok(None);
            };
            since = since.max(Some(held));
        }
        let after = queues
            .iter()
            .filter_map(|queue| self.semaphores.queue(queue))
            .map(|queue| queue.settings().wait.replace_after)
            .max();
        let (Some(since), Some(after)) = (since, after) else {
            return Ok(None);
        };
        // A time in the future says nothing about the age.
        let age = Duration::try_from(self.now.time.duration_since(since)).unwrap_or_default();
        if age < after {
            return Err(after.saturating_sub(age));
        }
        Ok(Some(since))
    }
}

/// A waiting workload whose time may be over.
#[derive(Clone, Debug)]
pub struct Overdue {
    /// The workload.
    pub workload: Arc<Workload>,
    /// The time that the workload may wait.
    pub timeout: Duration,
}

/// A waiting workload, and the newer workloads that wait for the same.
#[derive(Clone, Debug)]
pub struct Superseded {
    /// The workload.
    pub workload: Arc<Workload>,
    /// The newest workload of each semaphore, the newest first. Their semaphores use Consul with the same credential.
    pub newer: Vec<Located>,
}

/// A workload of any namespace.
#[derive(Clone, Debug)]
pub struct Located {
    /// The namespace of the workload.
    pub namespace: Arc<str>,
    /// The workload.
    pub workload: Arc<Workload>,
}

impl Located {
    fn title(&self) -> String {
        title(&self.namespace, &self.workload)
    }
}

/// Returns the kind, namespace and name of a workload, for people.
fn title(namespace: &str, workload: &Workload) -> String {
    format!("{} {namespace}/{}", workload.kind, workload.name)
}

/// Returns what one queue shows about a workload that asks for slots there.
fn wait_state(queue: &Queue, workload: &Uid, now: Now) -> WaitState {
    if queue.writes.is_busy(workload)
        || queue.is_granting(workload)
        || queue.writes.refusals.is_troubled(workload, now.moment)
    {
        return WaitState::Engaged;
    }
    let Some(reading) = queue.reading().filter(|_| !queue.is_blocked()) else {
        return WaitState::Unsure;
    };
    // Contenders that have come since the last pass are not among those that the pass checked.
    let mut newcomers = Vec::new();
    for (session, _) in reading.changed_contenders() {
        match queue.owner(session) {
            Some(Owner::Own(identity)) => newcomers.push((session, &**identity)),
            Some(Owner::Neighbour | Owner::Ended | Owner::Foreign) => {}
            None => return WaitState::Unsure,
        }
    }
    let holds = queue
        .active
        .own_contenders()
        .chain(newcomers)
        .any(|(session, identity)| identity.uid == *workload && reading.may_hold(session));
    if holds {
        WaitState::Engaged
    } else {
        WaitState::Waits
    }
}

/// Returns how many workloads that ask for the same as this one must end for it to have its slots in a queue; `None` if
/// the workload waits for something else, or if that is not known.
fn ends_lacking(
    queue: &Queue,
    workload: &Workload,
    now: Now,
    lookup: &impl Lookup,
) -> Option<usize> {
    let reading = queue.reading().filter(|_| !queue.is_blocked())?;
    let (limit, held) = match reading.lock() {
        Lock::Semaphore { body, .. } => (body.limit(), body.held()),
        Lock::Mutex { holder, .. } => (1, usize::from(holder.is_some())),
        Lock::Absent { .. } | Lock::Unreadable(_) => return None,
    };
    let own: BTreeMap<_, _> = queue.active.own_contenders().collect();
    // A slot that comes free may go to the contenders of others.
    if reading
        .waiting()
        .any(|(session, _)| !own.contains_key(session))
        || queue.is_delayed(now.moment)
    {
        return None;
    }
    // A workload that ends gives back no slot of a rate.
    if queue.settings().is_rate() {
        return None;
    }
    let restrictions = &queue.settings().restrictions;
    let opening = restrictions.windows.at(now.time);
    let limit = restrictions.limit(limit, opening, workload.priority);
    let limit = usize::try_from(limit).ok()?;
    let asks = queue.settings().request(workload)?.slots.get();
    let asks = usize::try_from(asks).ok()?;
    // The workload can't have its slots, whatever ends.
    if asks > limit {
        return None;
    }
    let ends = |identity: &Identity| {
        let workload = lookup.workload(&identity.uid);
        workload.is_none_or(|workload| workload.phase != Phase::Running)
    };
    let comes = own
        .iter()
        .filter(|(session, identity)| reading.holds(session) && ends(identity))
        .count();
    let lacks = (asks + held).saturating_sub(limit).saturating_sub(comes);
    Some(lacks.div_ceil(asks))
}

/// Returns when a running workload got the last of its slots in a queue; `None` if it does not hold all of them, is
/// being written to or made to fail, or if one of the slots has a cooldown.
fn held_since(queue: &Queue, workload: &Workload) -> Option<Timestamp> {
    let reading = queue.reading()?;
    if queue.writes.is_busy(&workload.uid)
        || workload.wait.failing.is_some()
        || workload.phase != Phase::Running
    {
        return None;
    }
    let lock_key = queue.settings().prefix.lock_key();
    let mut since = None;
    for mut sessions in workload.slots_at(&lock_key) {
        let session = sessions.find(|session| reading.holds(session))?;
        let body = ContenderBody::read(&reading.contender(session)?.value)?;
        if !body.cooldown().is_zero() {
            return None;
        }
        since = since.max(Some(body.time));
    }
    since
}
