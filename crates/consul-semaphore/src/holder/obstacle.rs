//! Explains why there is no slot, or none yet.

use super::{program::Program, request::SlotsOf, watched::Watched};
use crate::{
    Agreement, Lock, Prefix, Reading,
    engine::{Conclusion, Engine, Queue, QueueRef},
    lock::Unreadable,
    plan::Taker,
    windows::Opening,
};
use consul_client::{self as consul, SessionId, clock};

/// Number of holders that a message names.
const MOST_NAMED_HOLDERS: usize = 5;

/// The reason why there is no slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Other contenders hold the slots of these semaphores, or come first.
    #[error("{}", sentences(.0))]
    Taken(Vec<Missing>),
    /// Consul does not answer, or has no leader.
    #[error(transparent)]
    Unreachable(consul::Error),
    /// Consul answers with a refusal.
    #[error(transparent)]
    Refused(consul::Error),
    /// Nobody uses the prefix, but [`HolderSettings::must_exist`](super::HolderSettings::must_exist) is set.
    #[error("there is no semaphore at {0} now: nobody holds a slot there or waits for one")]
    Absent(Prefix),
    /// Other users of the prefix have a different limit.
    #[error(
        "the limit of {prefix} is {theirs} in Consul, not {ours}: all users of the prefix must have the same limit"
    )]
    Limit {
        /// The prefix.
        prefix: Prefix,
        /// The limit that was asked for.
        ours: u32,
        /// The limit in Consul.
        theirs: u32,
    },
    /// The prefix is used for another purpose.
    #[error("{prefix}/.lock: {why}")]
    Unusable {
        /// The prefix.
        prefix: Prefix,
        /// The reason why `.lock` can't be used.
        why: Unreadable,
    },
}

/// The slots of a semaphore that are not free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The semaphore, and how many of its slots were asked for.
    pub of: SlotsOf,
    /// The holders of the slots, or the reason why the slots are missing, for people.
    pub holders: String,
}

impl Missing {
    /// Returns the missing slots in words, for people: `no slot of shared/db`, or `no 2 slots of shared/db`.
    pub fn none(&self) -> String {
        let SlotsOf { prefix, slots, .. } = &self.of;
        match slots.get() {
            1 => format!("no slot of {prefix}"),
            slots => format!("no {slots} slots of {prefix}"),
        }
    }
}

fn sentences(missing: &[Missing]) -> String {
    let sentences = missing.iter().map(|missing| {
        let are = if missing.of.slots.get() == 1 {
            "is"
        } else {
            "are"
        };
        format!("{} {are} free: {}", missing.none(), missing.holders)
    });
    sentences.collect::<Vec<_>>().join("; ")
}

impl AcquireError {
    /// Returns the error of a failed call: `Unreachable` if waiting may help, otherwise `Refused`.
    pub(super) fn of(error: &consul::Error) -> Self {
        if error.may_pass() {
            Self::Unreachable(error.clone())
        } else {
            Self::Refused(error.clone())
        }
    }

    /// Returns the error while Consul has not answered yet.
    pub(super) fn unanswered() -> Self {
        Self::Unreachable(consul::Error::Unreachable {
            message: "it has not answered yet".to_owned(),
            undecided: false,
        })
    }

    /// Returns the error if the prefix is used in another way than was asked for, because all users of a prefix must
    /// agree.
    pub(super) fn conflict(view: &SemaphoreView<'_>, agreement: Option<Agreement>) -> Option<Self> {
        let SlotsOf { prefix, limit, .. } = view.asked;
        let prefix = prefix.clone();
        match (view.reading.map(Reading::lock), agreement) {
            // A key that was left behind is removed after the lock-delay.
            (Some(Lock::Unreadable(why)), _) if !matches!(why, Unreadable::LeftOver { .. }) => {
                let why = why.clone();
                Some(Self::Unusable { prefix, why })
            }
            (_, Some(Agreement::Conflict { theirs })) => Some(Self::Limit {
                prefix,
                ours: *limit,
                theirs,
            }),
            _ => None,
        }
    }
}

/// The state of one of the program's semaphores, as the program sees it.
#[derive(Clone, Copy)]
pub(super) struct SemaphoreView<'a> {
    asked: &'a SlotsOf,
    /// The prefix as it was last read, if it was.
    reading: Option<&'a Reading>,
    program: &'a Program,
    /// Whether the windows of the semaphore allow a grant at present.
    opening: Opening,
    /// The conclusion of the last pass, if the pass knew what Consul says.
    conclusion: Option<&'a Conclusion>,
    /// Whether the semaphore is a mutex that Consul does not let anybody lock yet, because the last holder died.
    is_in_lock_delay: bool,
}

/// Returns the conclusion of a queue's last pass, if the pass knew what Consul says.
pub(super) fn conclusion<'a>(engine: &'a Engine, queue: &QueueRef) -> Option<&'a Conclusion> {
    let semaphore = engine.semaphore(&queue.semaphore)?;
    let conclusion = semaphore.queues().get(&queue.key)?.last()?;
    conclusion.certain.then_some(conclusion)
}

impl<'a> SemaphoreView<'a> {
    pub(super) fn of(watched: &'a Watched, engine: &'a Engine, program: &'a Program) -> Self {
        let queue = engine.queue(&watched.queue);
        let settings = queue.map(Queue::settings);
        let opening = settings.map_or(Opening::Always, |settings| {
            settings.restrictions.windows.at(clock::time())
        });
        Self {
            asked: &watched.asked,
            reading: queue.and_then(Queue::reading),
            program,
            opening,
            conclusion: conclusion(engine, &watched.queue),
            is_in_lock_delay: queue.is_some_and(|queue| queue.knowledge.is_in_lock_delay()),
        }
    }

    /// Whether the semaphore grants nothing because it is outside its windows.
    pub(super) fn is_closed(&self) -> bool {
        !self.opening.is_open() && !self.is_held()
    }

    /// Whether the prefix was read, and a pass has decided what follows.
    pub(super) fn is_known(&self) -> bool {
        self.reading.is_some() && self.conclusion.is_some()
    }

    /// Whether the program has a slot of the semaphore.
    pub(super) fn is_held(&self) -> bool {
        self.reading
            .is_some_and(|reading| self.program.is_among(reading))
    }

    /// Whether the prefix is unused; `None` if the prefix was not read, or if the reading has this program's own
    /// slot.
    pub(super) fn is_unused(&self) -> Option<bool> {
        let reading = self.reading.filter(|_| !self.is_held())?;
        Some(matches!(reading.lock(), Lock::Absent { .. }) && !self.others_contend(reading))
    }

    /// Whether other contenders prevent the program's slots, as far as is known.
    pub(super) fn is_taken(&self) -> bool {
        let Some(reading) = self.reading else {
            return false;
        };
        let free = match reading.lock() {
            Lock::Semaphore { body, .. } => self.is_enough(body.room()),
            Lock::Absent { .. } => {
                self.is_enough(usize::try_from(self.asked.limit).unwrap_or(usize::MAX))
            }
            Lock::Mutex { holder, .. } => self.is_enough(usize::from(holder.is_none())),
            Lock::Unreadable(_) => false,
        };
        !free && !self.is_held()
    }

    /// Whether `room` free slots are enough for the program and for the contenders that come before it.
    fn is_enough(&self, room: usize) -> bool {
        let before = self.conclusion.and_then(|last| last.before);
        room >= self
            .room_needed()
            .saturating_add(before.unwrap_or_default())
    }

    /// Whether slots are blocked only by what dead holders have left, which is removed after the lock-delay. Even a
    /// program that does not wait for slots waits for this removal, because otherwise nobody might ever remove the
    /// remains.
    pub(super) fn rests(&self) -> bool {
        let Some(reading) = self.reading else {
            return false;
        };
        match reading.lock() {
            Lock::Unreadable(Unreadable::LeftOver { .. }) => true,
            Lock::Semaphore { body, .. } => {
                let (room, dead) = (body.room(), reading.dead_holders().len());
                room < self.room_needed() && room + dead >= self.room_needed()
            }
            Lock::Mutex { holder: None, .. } => self.is_in_lock_delay,
            _ => false,
        }
    }

    /// Returns the slots of the semaphore that are missing.
    pub(super) fn missing(&self) -> Missing {
        Missing {
            of: self.asked.clone(),
            holders: self.holders(),
        }
    }

    /// Returns the reason why slots are missing, and the holders of the slots, for people.
    fn holders(&self) -> String {
        if let Opening::Closed { until } = self.opening {
            return until.map_or_else(
                || "none of its windows opens".to_owned(),
                |until| format!("outside its windows until {until:.0}"),
            );
        }
        let Some(reading) = self.reading else {
            return "the holders are unknown".to_owned();
        };
        let (limit, holders): (_, Vec<_>) = match reading.lock() {
            Lock::Semaphore { body, .. } if body.room() >= self.room_needed() => {
                return "other clients are ahead in the queue".to_owned();
            }
            Lock::Semaphore { body, .. } => (body.limit(), body.holders().collect()),
            Lock::Mutex { holder: None, .. } if self.is_in_lock_delay => {
                return "its lock-delay is not over yet".to_owned();
            }
            Lock::Mutex { holder, .. } => (1, holder.iter().collect()),
            Lock::Absent { .. } | Lock::Unreadable(_) => {
                return format!("nobody holds one{}", self.withheld_in_words());
            }
        };
        let name = |session: &SessionId| Taker::new(session, reading.contender(session)).describe();
        let held = holders.len();
        let mut named: Vec<_> = holders
            .into_iter()
            .take(MOST_NAMED_HOLDERS)
            .map(name)
            .collect();
        if held > MOST_NAMED_HOLDERS {
            named.push(format!("{} more", held - MOST_NAMED_HOLDERS));
        }
        let by = if held > 0 { ", by " } else { "" };
        let withheld = self.withheld_in_words();
        format!(
            "{held} of {limit} held{by}{}{withheld}",
            named.join("; by ")
        )
    }

    /// Returns the reason why not all free slots are for this program, for people.
    fn withheld_in_words(&self) -> String {
        let SlotsOf {
            limit,
            restrictions,
            ..
        } = self.asked;
        let mut words = String::new();
        let in_window = self.opening.limit(*limit);
        if in_window < *limit {
            words = format!("; its window allows {in_window}");
        }
        let priority = self.program.workload.priority;
        if let Some(reserved) = restrictions
            .reserved
            .filter(|reserved| priority < reserved.min_priority)
        {
            let (slots, least) = (reserved.slots, reserved.min_priority);
            words =
                format!("{words}; the last {slots} are reserved for priority {least} and above");
        }
        words
    }

    /// Returns how many slots must be free for the program to get the slots that it asks for.
    fn room_needed(&self) -> usize {
        let slots = usize::try_from(self.asked.slots.get()).unwrap_or(usize::MAX);
        slots.saturating_add(self.withheld())
    }

    /// Returns how many slots stay free for others when the program has the slots that it asks for.
    fn withheld(&self) -> usize {
        let SlotsOf {
            limit,
            restrictions,
            ..
        } = self.asked;
        let priority = self.program.workload.priority;
        let withheld = limit - restrictions.limit(*limit, self.opening, priority);
        usize::try_from(withheld).unwrap_or(usize::MAX)
    }

    /// Whether other contenders are visible at the prefix, which hold slots or wait for them.
    fn others_contend(&self, reading: &Reading) -> bool {
        let mut contenders = reading.contenders();
        contenders.any(|(session, _)| !self.program.sessions.contains_key(session))
    }
}
