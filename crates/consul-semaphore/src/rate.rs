//! Keeps the slots of a rate: a semaphore whose slots count starts, so that at most `limit` starts lie in any period.
//!
//! Each slot is held from its grant until its stamp, whatever its workload does in the meantime. The stamp stands in
//! the contender's body. At first it is the latest possible time of the start plus the period. Once the start is
//! known to have been made, the stamp is one period after that. Whether the workload runs decides nothing.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::{
    fate::OwnContender,
    identity::{ContenderBody, Identity},
    policy::LONGEST_PERIOD,
    reading::Reading,
};
use consul_client::{SessionId, clock::Moment};

/// The time after its grant in which a workload may be started in a slot.
pub const START_WITHIN: Duration = Duration::from_secs(30);

/// The largest difference between the clocks of two operators of one cluster. A slot that another process stamped is
/// held for so much longer.
pub const CLOCKS_APART: Duration = Duration::from_secs(30);

/// The longest TTL of Consul's sessions.
const LONGEST_TTL: Duration = Duration::from_hours(24);

/// Returns the TTL of the sessions of a rate: when an operator stops, its sessions outlive the stamps of their slots.
pub fn ttl(period: Duration) -> Duration {
    (period * 2 + START_WITHIN * 2).min(LONGEST_TTL)
}

/// The time until which a slot is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    /// The end in the wall-clock time of the contender's body.
    until: Timestamp,
    /// The end by the clock of this process, which nobody can set.
    end: Moment,
}

impl Stamp {
    fn after(duration: Duration, now: Moment, time: Timestamp) -> Self {
        Self {
            until: later(time, duration),
            end: now + duration,
        }
    }
}

/// Returns the stamp of a slot that is granted at `time`.
pub(super) fn stamp_of_grant(time: Timestamp, period: Duration) -> Timestamp {
    later(time, START_WITHIN + period)
}

/// Returns the stamp of a slot whose start became known at `time`.
pub(super) fn stamp_of_start(time: Timestamp, period: Duration) -> Timestamp {
    later(time, period)
}

fn later(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// The progress of the start in a slot, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StartStage {
    /// The start was not sent, or surely not made.
    Unsent,
    /// The start is sent.
    Sent,
    /// The start may have been made: there was no answer, or another process may have sent it.
    Unknown,
    /// The start was made.
    Made,
}

/// The outcome of a start that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartAnswer {
    /// The start was made.
    Made,
    /// The start was surely not made: the API server refused it, or it was never sent.
    NotMade,
    /// The start had no answer, so it may have been made.
    Unknown,
}

/// A slot of a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RateSlot {
    /// The owner of the session that was granted the slot.
    pub(super) identity: Arc<Identity>,
    /// Time of the grant, by the clock of the operator that granted the slot.
    granted: Timestamp,
    /// The period of the grant.
    period: Duration,
    stamp: Stamp,
    /// A stamp that is being written.
    moved: Option<Stamp>,
    /// Time until which the workload may be started in the slot.
    start_by: Moment,
    stage: StartStage,
    /// The version of the contender that this slot was read from; 0 before it was read.
    index: u64,
}

impl RateSlot {
    /// Time at which the slot is free.
    pub(super) fn end(&self) -> Moment {
        self.stamp.end
    }

    /// Whether a workload may still be started in the slot: there is time, and no start is known to have been made.
    pub(super) fn may_start(&self, now: Moment) -> bool {
        self.stage != StartStage::Made && now < self.start_by
    }

    /// Whether surely no start was made in the slot, and none is under way.
    pub(super) fn is_unused(&self) -> bool {
        self.stage == StartStage::Unsent
    }

    /// Returns a stamp that is earlier than the written one, if the start is known to have been made, which it was by
    /// `time`. This compares stamps as they are written, and not the ends of the slots. Each of two operators holds a
    /// slot that the other one stamped for longer than the stamp says, so they would take turns to write the stamp
    /// anew for ever.
    pub(super) fn earlier_stamp(&self, time: Timestamp) -> Option<Timestamp> {
        let until = stamp_of_start(time, self.period);
        let earlier =
            self.stage == StartStage::Made && later(until, MIN_STAMP_GAIN) < self.stamp.until;
        earlier.then_some(until)
    }

    /// Returns the body for a contender that takes this slot over from a session that is gone.
    pub(super) fn body(&self, mut body: ContenderBody) -> ContenderBody {
        body.time = self.granted;
        body.period = self.period.as_secs();
        body.cools_until = Some(self.stamp.until);
        body
    }

    /// Creates a slot that another process granted, or that this process granted so late that it had given the slot
    /// up.
    fn found(
        identity: &Arc<Identity>,
        body: Option<&ContenderBody>,
        (now, time): (Moment, Timestamp),
        period: Duration,
    ) -> Self {
        let period = body.map_or(period, |body| body.rate_period().unwrap_or(period));
        let granted = body.map_or(time, |body| body.time);
        let stamped = body.and_then(|body| body.cools_until);
        let until = stamped.unwrap_or_else(|| stamp_of_grant(time, period));
        let left = time_left(until, time).min(START_WITHIN + period);
        let moved = until != stamp_of_grant(granted, period);
        let start_by = now + time_left(later(granted, START_WITHIN), time).min(START_WITHIN);
        Self {
            identity: identity.clone(),
            granted,
            period,
            stamp: Stamp {
                until,
                end: now + left + CLOCKS_APART,
            },
            moved: None,
            start_by: if stamped.is_none() { now } else { start_by },
            stage: if moved {
                StartStage::Made
            } else {
                StartStage::Unknown
            },
            index: 0,
        }
    }

    /// Takes over what the contender's body says at this reading.
    fn read(&mut self, body: Option<&ContenderBody>, clock: (Moment, Timestamp), index: u64) {
        let until = body.and_then(|body| body.cools_until);
        let known = [Some(self.stamp), self.moved];
        let same = known
            .into_iter()
            .flatten()
            .find(|stamp| Some(stamp.until) == until);
        if let Some(stamp) = same {
            self.stamp = stamp;
        } else {
            // Another process wrote the body, or an earlier transaction of this process wrote it late: the stamp is
            // for an earlier start than the one that was to follow.
            let found = Self::found(&self.identity, body, clock, self.period);
            *self = Self {
                start_by: self.start_by.min(found.start_by),
                stage: self.stage.max(found.stage),
                ..found
            };
        }
        self.index = index;
        self.moved = None;
    }
}

/// The least by which a stamp must be earlier than the written one to be written anew.
const MIN_STAMP_GAIN: Duration = Duration::from_secs(1);

/// Returns how long it is until then; zero if that time is past.
fn time_left(until: Timestamp, time: Timestamp) -> Duration {
    let left: SignedDuration = until.duration_since(time);
    Duration::try_from(left).unwrap_or_default()
}

impl ContenderBody {
    /// Returns the period of the rate that granted this slot; `None` if no rate granted it. The result is no more
    /// than a spec can ask for, because everybody who may write the key may have written anything there.
    pub fn rate_period(&self) -> Option<Duration> {
        let seconds = self.period.min(LONGEST_PERIOD);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }
}

/// The slots of a rate that are ours.
#[derive(Clone, Debug, Default)]
pub struct Starts(BTreeMap<SessionId, RateSlot>);

impl Starts {
    pub(super) fn get(&self, session: &SessionId) -> Option<&RateSlot> {
        self.0.get(session)
    }

    /// Returns the time at which each slot is free, by session.
    pub fn ends(&self) -> impl Iterator<Item = (&SessionId, Moment)> {
        self.0.iter().map(|(session, slot)| (session, slot.end()))
    }

    /// Returns the sessions that are gone although their slots are still held, each with its slot.
    pub(super) fn orphaned<'a>(
        &'a self,
        reading: &'a Reading,
    ) -> impl Iterator<Item = (&'a SessionId, &'a RateSlot)> {
        let slots = self.0.iter();
        slots.filter(|(session, _)| reading.is_named(session) && !reading.holds(session))
    }

    /// Records that a transaction is sent that grants a slot to this session.
    pub(super) fn granting(
        &mut self,
        session: SessionId,
        identity: Arc<Identity>,
        period: Duration,
        (now, time): (Moment, Timestamp),
    ) {
        let slot = RateSlot {
            identity,
            granted: time,
            period,
            stamp: Stamp::after(START_WITHIN + period, now, time),
            moved: None,
            start_by: now + START_WITHIN,
            stage: StartStage::Unsent,
            index: 0,
        };
        self.0.insert(session, slot);
    }

    /// Records that a transaction is sent that writes the stamp of a start that has become known.
    pub(super) fn moving(&mut self, session: &SessionId, (now, time): (Moment, Timestamp)) {
        if let Some(slot) = self.0.get_mut(session) {
            slot.moved = Some(Stamp::after(slot.period, now, time));
        }
    }

    /// Records that a transaction is sent that gives a slot to another session, because the first session is gone.
    pub(super) fn replacing(&mut self, gone: &SessionId, by: SessionId) {
        if let Some(slot) = self.0.get(gone) {
            let slot = RateSlot {
                index: 0,
                ..slot.clone()
            };
            self.0.insert(by, slot);
        }
    }

    /// Records what this reading says, and forgets the slots that are not held any more.
    pub fn observe(
        &mut self,
        reading: &Reading,
        ours: &[OwnContender],
        period: Duration,
        clock: (Moment, Timestamp),
    ) {
        // While the lock can't be read, nothing shows that a slot is free.
        if !reading.is_readable() {
            return;
        }
        self.0.retain(|session, _| reading.is_named(session));
        for own in ours.iter().filter(|own| reading.holds(&own.session)) {
            let Some(contender) = reading.contender(&own.session) else {
                continue;
            };
            let known = self.0.get(&own.session);
            let is_read = known.is_some_and(|slot| slot.index == contender.modify_index);
            let body = (!is_read)
                .then(|| ContenderBody::read(&contender.value))
                .flatten();
            let slot = self
                .0
                .entry(own.session.clone())
                .or_insert_with(|| RateSlot::found(&own.identity, body.as_ref(), clock, period));
            if !is_read {
                slot.read(body.as_ref(), clock, contender.modify_index);
            }
            let workload = own.workload.as_ref();
            if workload.is_some_and(|workload| workload.started_by(&own.session)) {
                slot.stage = StartStage::Made;
            }
        }
    }

    /// Returns the time by which a start in these slots must have been made; `None` if they are no slots of this
    /// rate.
    pub(super) fn start_by<'a>(
        &self,
        sessions: impl Iterator<Item = &'a SessionId>,
    ) -> Option<Moment> {
        sessions
            .filter_map(|session| self.0.get(session))
            .map(|slot| slot.start_by)
            .min()
    }

    /// Records that a start in these slots is sent.
    pub(super) fn sent<'a>(&mut self, sessions: impl Iterator<Item = &'a SessionId>) {
        for session in sessions {
            if let Some(slot) = self.0.get_mut(session)
                && slot.stage == StartStage::Unsent
            {
                slot.stage = StartStage::Sent;
            }
        }
    }

    /// Records the outcome of the start in these slots. If a later start was not made, that says nothing of an
    /// earlier start without an answer.
    pub(super) fn answered<'a>(
        &mut self,
        sessions: impl Iterator<Item = &'a SessionId>,
        answer: StartAnswer,
    ) {
        for session in sessions {
            let Some(slot) = self.0.get_mut(session) else {
                continue;
            };
            slot.stage = match (answer, slot.stage) {
                (StartAnswer::Made, _) | (_, StartStage::Made) => StartStage::Made,
                (StartAnswer::NotMade, StartStage::Sent | StartStage::Unsent) => StartStage::Unsent,
                (StartAnswer::NotMade, StartStage::Unknown) | (StartAnswer::Unknown, _) => {
                    StartStage::Unknown
                }
            };
        }
    }
}
