//! Why there is no slot, or none yet.

use super::{program::Program, request::SlotsOf, watched::Watched};
use crate::{
    Agreement, Lock, Prefix, Reading,
    engine::{Conclusion, Engine, Queue, QueueRef},
    lock::Unreadable,
    plan::Taker,
    windows::Opening,
};
use consul_client::{self as consul, SessionId, clock};

/// How many holders a message names.
const NAMED: usize = 5;

/// Why there is no slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Others hold the slots of these semaphores, or come first.
    #[error("{}", sentences(.0))]
    Taken(Vec<Missing>),
    /// Consul does not answer, or has no leader.
    #[error(transparent)]
    Unreachable(consul::Error),
    /// Consul answers with a refusal.
    #[error(transparent)]
    Refused(consul::Error),
    /// Nobody uses the prefix, but [`Settings::must_exist`](super::Settings::must_exist) is set.
    #[error("there is no semaphore at {0} now: nobody holds a slot there or waits for one")]
    Absent(Prefix),
    /// Others use another limit.
    #[error(
        "the limit of {prefix} is {theirs} in Consul, not {ours}: all who use the prefix must have the same limit"
    )]
    Limit {
        /// The prefix.
        prefix: Prefix,
        /// The limit that was asked for.
        ours: u32,
        /// The limit in Consul.
        theirs: u32,
    },
    /// The prefix is used for something else.
    #[error("{prefix}/.lock: {why}")]
    Unusable {
        /// The prefix.
        prefix: Prefix,
        /// Why.
        why: Unreadable,
    },
}

/// The slots of a semaphore that are not free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The semaphore, and how many of its slots were asked for.
    pub of: SlotsOf,
    /// Who holds them, for people.
    pub holders: String,
}

impl Missing {
    /// What there is not, for people: `no slot of shared/db`, or `no 2 slots of shared/db`.
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
    /// Whether waiting may help against this error.
    pub(super) fn of(error: &consul::Error) -> Self {
        if error.may_pass() {
            Self::Unreachable(error.clone())
        } else {
            Self::Refused(error.clone())
        }
    }

    /// Consul has not said anything yet.
    pub(super) fn unanswered() -> Self {
        Self::Unreachable(consul::Error::Unreachable {
            message: "it has not answered yet".to_owned(),
            undecided: false,
        })
    }

    /// Whether the prefix is used in another way than was asked for: all users must agree.
    pub(super) fn conflict(view: &View<'_>, agreement: Option<Agreement>) -> Option<Self> {
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

/// What the program sees of one of its semaphores.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    asked: &'a SlotsOf,
    /// The prefix as it was last read, if it was.
    reading: Option<&'a Reading>,
    program: &'a Program,
    /// Whether slots are granted now, by its windows.
    opening: Opening,
    /// What the last pass found, if it knew what Consul says.
    conclusion: Option<&'a Conclusion>,
    /// Whether it is a mutex that Consul does not let anybody lock yet, because its last holder died.
    is_in_lock_delay: bool,
}

/// The result of a queue's last pass, if it knew what Consul says.
pub(super) fn conclusion<'a>(engine: &'a Engine, queue: &QueueRef) -> Option<&'a Conclusion> {
    let semaphore = engine.semaphore(&queue.semaphore)?;
    let (conclusion, _) = semaphore.queues().get(&queue.key)?.concluded.as_ref()?;
    conclusion.certain.then_some(conclusion)
}

impl<'a> View<'a> {
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
            is_in_lock_delay: queue.is_some_and(Queue::is_in_lock_delay),
        }
    }

    /// Whether nothing is granted here because it is outside the windows.
    pub(super) fn is_closed(&self) -> bool {
        !self.opening.is_open() && !self.is_held()
    }

    /// Whether the prefix was read, and a pass has decided what follows.
    pub(super) fn is_known(&self) -> bool {
        self.reading.is_some() && self.conclusion.is_some()
    }

    /// Whether the program has a slot here.
    pub(super) fn is_held(&self) -> bool {
        self.reading
            .is_some_and(|reading| self.program.is_among(reading))
    }

    /// Whether the prefix is unused; `None` if it was not read, or the reading has this program's own slot.
    pub(super) fn is_unused(&self) -> Option<bool> {
        let reading = self.reading.filter(|_| !self.is_held())?;
        Some(matches!(reading.lock(), Lock::Absent { .. }) && !self.others_contend(reading))
    }

    /// Whether somebody prevents slots here, as far as is known.
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

    /// Whether so many free slots are enough for the program, beside those that are left to others who come before it.
    fn is_enough(&self, room: usize) -> bool {
        let before = self.conclusion.and_then(|last| last.before);
        room >= self
            .room_needed()
            .saturating_add(before.unwrap_or_default())
    }

    /// Whether slots are blocked only by what dead holders have left, which is removed after the lock-delay. A holder
    /// that does not wait for slots waits for that, too: otherwise nobody might ever remove it.
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

    /// The slots that are missing here.
    pub(super) fn missing(&self) -> Missing {
        Missing {
            of: self.asked.clone(),
            holders: self.holders(),
        }
    }

    /// Why they are missing, and the holders of the slots, for people.
    fn holders(&self) -> String {
        if let Opening::Closed { until } = self.opening {
            return until.map_or_else(
                || "none of its windows opens".to_owned(),
                |until| format!("it is outside its windows until {until:.0}"),
            );
        }
        let Some(reading) = self.reading else {
            return "the holders are unknown".to_owned();
        };
        let (limit, holders): (_, Vec<_>) = match reading.lock() {
            Lock::Semaphore { body, .. } if body.room() >= self.room_needed() => {
                return "others that were queued before wait, too".to_owned();
            }
            Lock::Semaphore { body, .. } => (body.limit(), body.holders().collect()),
            Lock::Mutex { holder: None, .. } if self.is_in_lock_delay => {
                return "its lock-delay runs".to_owned();
            }
            Lock::Mutex { holder, .. } => (1, holder.iter().collect()),
            Lock::Absent { .. } | Lock::Unreadable(_) => {
                return format!("nobody holds one{}", self.withheld_in_words());
            }
        };
        let name =
            |session: &SessionId| Taker::new(session, reading.contender(session)).describe(None);
        let held = holders.len();
        let mut named: Vec<_> = holders.into_iter().take(NAMED).map(name).collect();
        if held > NAMED {
            named.push(format!("{} more", held - NAMED));
        }
        let by = if held > 0 { ", by " } else { "" };
        let withheld = self.withheld_in_words();
        format!(
            "{held} of {limit} held{by}{}{withheld}",
            named.join("; by ")
        )
    }

    /// Why not all free slots are for this program.
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

    /// How many slots must be free for the program to get those that it asks for.
    fn room_needed(&self) -> usize {
        let slots = usize::try_from(self.asked.slots.get()).unwrap_or(usize::MAX);
        slots.saturating_add(self.withheld())
    }

    /// How many slots stay free for others when the program has those that it asks for.
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

    /// Whether others hold slots at the prefix or wait for them, visibly.
    fn others_contend(&self, reading: &Reading) -> bool {
        let mut contenders = reading.contenders();
        contenders.any(|(session, _)| !self.program.sessions.contains_key(session))
    }
}
