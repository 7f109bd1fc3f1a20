//! Represents what Consul shows of the use of a semaphore: who holds its slots, who waits, and how many are free. Text
//! that others wrote there is shortened and stripped of control characters.
//!
//! The fields are those of `-o json` of `consul-semaphore list` and `show`, which `docs/slots.md` describes.

mod names;

use std::{
    cmp::Reverse,
    fmt::{self, Display, Formatter},
};

use jiff::Timestamp;
use serde::{Serialize, Serializer};

pub use self::names::SessionNames;
use crate::{ContenderBody, Identity, Lock, Mode, Place, Prefix, Reading, identity::NONE};
use consul_client::{Entry, Session, SessionId, text::one_line};

/// The longest name that is shown, in characters: more than Kubernetes and Consul need.
const LONGEST_NAME: usize = 128;

/// The kind of a semaphore, as its lock key shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SemaphoreKind {
    /// The lock key has a body with a limit and the holders' sessions, or does not exist.
    Semaphore,
    /// The lock key is locked by its holder.
    Mutex,
    /// The semaphore's holders count as starts for a period each. A rate that nobody holds a slot of looks like a
    /// semaphore.
    Rate,
    /// The lock key is used for something else.
    Unreadable,
}

impl SemaphoreKind {
    /// Returns the word for the kind, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Semaphore => "semaphore",
            Self::Mutex => "mutex",
            Self::Rate => "rate",
            Self::Unreadable => "unreadable",
        }
    }
}

/// The use of a semaphore in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UsageSummary {
    /// The prefix of the semaphore.
    pub prefix: Prefix,
    /// The kind of the semaphore.
    pub kind: SemaphoreKind,
    /// The number of slots; `None` if nobody has written a limit yet, or the lock key is unreadable.
    pub limit: Option<u32>,
    /// The number of held slots, including those of dead holders.
    pub held: usize,
    /// The number of waiting contenders; `None` if that can't be seen, as at a mutex.
    pub waiting: Option<usize>,
    /// The longest period of a holder of a rate, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<u64>,
    /// The reason why a number is missing here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The use of a semaphore at one moment: who holds its slots, and who waits. [`Semaphore::usage`] returns it.
///
/// [`Semaphore::usage`]: crate::Semaphore::usage
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Usage {
    /// The numbers.
    #[serde(flatten)]
    pub summary: UsageSummary,
    /// The holders in the order of their grants, dead holders last.
    pub holders: Vec<UsageHolder>,
    /// The waiting contenders, in the order in which slots are granted.
    pub waiters: Vec<UsageWaiter>,
}

/// The description of a contender. Contenders write their names and times themselves, and Consul does not check these.
///
/// `Display` describes the contender in a few words, such as `Job batch/migrate-1 on prod-eu`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UsageContender {
    /// The session of the contender. Anybody who can write the lock key can write any text here, so show people
    /// [`SessionId::shown`].
    #[serde(serialize_with = "shown")]
    pub session: SessionId,
    /// `Job` or another workload's kind; `Process` for a command of `consul-semaphore exec`; `Lease` for slots of
    /// `consul-semaphore acquire`; `Program` for another program; or `Unknown`.
    pub kind: String,
    /// `namespace/name` of a workload, the name of a command or a program, or the name of a program's session. It may
    /// be empty.
    pub name: String,
    /// The cluster of a workload, the host of a command or a program, or the Consul node of a program's session. It may
    /// be empty.
    pub r#where: String,
    /// The time at which the contender was granted its slot or joined the queue, by the contender's own clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// A contender that holds a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UsageHolder {
    /// The contender.
    #[serde(flatten)]
    pub contender: UsageContender,
    /// The fencing token of the grant, if it can still be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// The number of the slot among all slots of the semaphore, from 0; `None` for a holder that numbers nothing, and
    /// for a slot of a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot_index: Option<u32>,
    /// The name that the holder was granted with this index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot_name: Option<String>,
    /// Whether the session has ended, or no longer locks its contender.
    pub dead: bool,
    /// The time until which the slot stays held although its work is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cools_until: Option<Timestamp>,
    /// Whether the session has no TTL.
    pub never_expires: bool,
}

/// A contender that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UsageWaiter {
    /// The contender.
    #[serde(flatten)]
    pub contender: UsageContender,
    /// The priority of the contender, where higher ones go first; `None` for a contender that follows no order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The number of slots that the contender waits for here.
    pub slots: u32,
}

fn shown<S: Serializer>(session: &SessionId, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(session.shown())
}

impl Usage {
    /// Returns the use that a reading shows. Contenders whose keys do not say who they are have no names unless `names`
    /// has their sessions.
    pub fn of(reading: &Reading, names: &SessionNames) -> Self {
        let (holders, waiters) = (holders(reading, names), waiters(reading, names));
        let (kind, limit, problem) = match reading.lock() {
            Lock::Semaphore { body, .. } => {
                let kind = match period(reading) {
                    Some(_) => SemaphoreKind::Rate,
                    None => SemaphoreKind::Semaphore,
                };
                (kind, Some(body.limit()), None)
            }
            Lock::Mutex { .. } => (SemaphoreKind::Mutex, Some(1), None),
            Lock::Absent { .. } => (SemaphoreKind::Semaphore, None, None),
            Lock::Unreadable(why) => (
                SemaphoreKind::Unreadable,
                None,
                Some(one_line(&why.to_string(), LONGEST_NAME)),
            ),
        };
        let summary = UsageSummary {
            prefix: reading.prefix().clone(),
            kind,
            limit,
            held: holders.len(),
            waiting: (reading.mode() != Mode::Mutex).then_some(waiters.len()),
            period_seconds: period(reading),
            problem,
        };
        Self {
            summary,
            holders,
            waiters,
        }
    }

    /// Returns how many slots are free: the limit without the held slots. `None` means that nobody has written a limit
    /// yet, so all slots are free, or that the lock key is unreadable. A free slot may be another's by the time that it
    /// is asked for, or may be meant for a contender that waits.
    pub fn free(&self) -> Option<u32> {
        let held = u32::try_from(self.summary.held).unwrap_or(u32::MAX);
        self.summary.limit.map(|limit| limit.saturating_sub(held))
    }

    /// Whether the lock key is unreadable, so that nobody can say who holds slots.
    pub fn is_unreadable(&self) -> bool {
        self.summary.kind == SemaphoreKind::Unreadable
    }

    /// Whether nobody uses the prefix.
    pub fn is_unused(&self) -> bool {
        let UsageSummary { kind, limit, .. } = &self.summary;
        *kind == SemaphoreKind::Semaphore && limit.is_none() && self.waiters.is_empty()
    }
}

/// Returns the longest period of a holder, in seconds.
fn period(reading: &Reading) -> Option<u64> {
    let holding = reading
        .contenders()
        .filter(|(session, _)| reading.holds(session));
    let periods = holding.filter_map(|(_, entry)| Some(ContenderBody::read(&entry.value)?.period));
    periods.max().filter(|period| *period > 0)
}

/// Returns the sessions that hold a slot, dead holders included.
fn sessions(lock: &Lock) -> impl Iterator<Item = &SessionId> {
    let (body, holder) = match lock {
        Lock::Semaphore { body, .. } => (Some(body.holders()), None),
        Lock::Mutex { holder, .. } => (None, holder.as_ref()),
        Lock::Absent { .. } | Lock::Unreadable(_) => (None, None),
    };
    body.into_iter().flatten().chain(holder)
}

fn holders(reading: &Reading, names: &SessionNames) -> Vec<UsageHolder> {
    let mut sessions: Vec<_> = sessions(reading.lock())
        .map(|session| (session, reading.contender(session)))
        .collect();
    sessions.sort_by_key(|(_, entry)| entry.map_or(u64::MAX, |entry| entry.modify_index));
    sessions
        .into_iter()
        .map(|(session, entry)| UsageHolder::of(session, entry, names))
        .collect()
}

/// Returns the waiting contenders in the order of `docs/protocol.md`: contenders that say their place in the queue
/// are sorted by that place, and keep as a group the positions that they have among all others by age.
fn waiters(reading: &Reading, names: &SessionNames) -> Vec<UsageWaiter> {
    let read = |(session, entry): (_, &Entry)| {
        (
            session,
            entry.create_index,
            ContenderBody::read(&entry.value),
        )
    };
    let mut waiting: Vec<(&SessionId, u64, Option<ContenderBody>)> =
        reading.waiting().map(read).collect();
    waiting.sort_by_key(|(_, created, _)| *created);
    let mut placed: Vec<(Place, UsageWaiter)> = Vec::new();
    let mut all: Vec<Option<UsageWaiter>> = Vec::new();
    for (session, _, body) in waiting {
        let place = body.as_ref().and_then(ContenderBody::place);
        let waiter = UsageWaiter::of(session, body.as_ref(), names);
        match place {
            Some(place) => {
                placed.push((place, waiter));
                all.push(None);
            }
            None => all.push(Some(waiter)),
        }
    }
    // The places are sorted from last to first, so that the first one is popped first.
    placed.sort_by_cached_key(|(place, _)| Reverse(place.clone()));
    let mut next = || placed.pop().map(|(_, waiter)| waiter);
    all.into_iter()
        .filter_map(|waiter| waiter.or_else(&mut next))
        .collect()
}

impl UsageHolder {
    fn of(session: &SessionId, entry: Option<&Entry>, names: &SessionNames) -> Self {
        let body = entry.and_then(|entry| ContenderBody::read(&entry.value));
        let said = body.as_ref();
        // Only a contender that follows the protocol is locked together with the grant, and only a cooling contender
        // is written again later.
        let granted = said.filter(|body| body.waiting.is_none() && body.cools_until.is_none());
        Self {
            contender: UsageContender::of(session, said, names),
            fencing_token: granted.and(entry).map(|entry| entry.modify_index),
            slot_index: said.and_then(|body| body.slot_index),
            slot_name: said.and_then(ContenderBody::shown_slot_name),
            dead: entry.is_none(),
            cools_until: said.and_then(|body| body.cools_until),
            never_expires: said.is_some_and(|body| body.endless),
        }
    }
}

impl UsageWaiter {
    fn of(session: &SessionId, body: Option<&ContenderBody>, names: &SessionNames) -> Self {
        let claim = body.and_then(|body| body.waiting.as_ref());
        let mut contender = UsageContender::of(session, body, names);
        contender.since = claim.map(|claim| claim.since).or(contender.since);
        Self {
            contender,
            priority: claim.map(|claim| claim.priority),
            slots: body.map_or(1, ContenderBody::slots_awaited),
        }
    }
}

impl UsageContender {
    /// Describes a contender by its body, or by its session if there is no body. Anybody who may write the key can
    /// have written the body.
    pub fn of(session: &SessionId, body: Option<&ContenderBody>, names: &SessionNames) -> Self {
        let unnamed = |kind: &str| Self {
            session: session.clone(),
            kind: one_line(kind, LONGEST_NAME),
            name: String::new(),
            r#where: String::new(),
            since: None,
        };
        if let Some(body) = body {
            return Self {
                name: name(&body.namespace, &body.name),
                r#where: one_line(&body.cluster, LONGEST_NAME),
                since: Some(body.time),
                ..unnamed(&body.kind)
            };
        }
        match names.get(session) {
            Some(session) => Self::of_session(session, unnamed),
            None => unnamed("Unknown"),
        }
    }

    fn of_session(session: &Session, unnamed: impl Fn(&str) -> Self) -> Self {
        match Identity::parse(&session.name) {
            Some(identity) => Self {
                name: name(&identity.namespace, &identity.workload),
                r#where: one_line(&identity.cluster, LONGEST_NAME),
                ..unnamed(identity.holder_kind())
            },
            None => Self {
                name: one_line(&session.name, LONGEST_NAME),
                r#where: one_line(&session.node, LONGEST_NAME),
                ..unnamed("Program")
            },
        }
    }
}

impl Display for UsageContender {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            name,
            r#where,
            ..
        } = self;
        f.write_str(kind)?;
        if !name.is_empty() {
            write!(f, " {name}")?;
        }
        if !r#where.is_empty() {
            write!(f, " on {where}", r#where = r#where)?;
        }
        Ok(())
    }
}

fn name(namespace: &str, name: &str) -> String {
    if namespace == NONE {
        one_line(name, LONGEST_NAME)
    } else {
        one_line(&format!("{namespace}/{name}"), 2 * LONGEST_NAME)
    }
}

#[cfg(test)]
mod tests {
    use consul_client::{Listing, clock::Moment};
    use serde_json::json;

    use super::*;
    use crate::lock::SEMAPHORE_FLAGS;

    fn waiting(name: &str, created: u64, priority: Option<i32>) -> Entry {
        let time = "2026-01-01T00:00:00Z";
        let body = priority.map(|priority| {
            json!({
                "cluster": "eu", "clusterId": "c", "kind": "Job", "namespace": "batch", "name": name, "uid": name,
                "semaphore": "db", "time": time, "waiting": { "priority": priority, "since": time },
            })
        });
        Entry {
            key: format!("p/{name}"),
            value: body.map_or_else(Vec::new, |body| body.to_string().into_bytes()),
            flags: SEMAPHORE_FLAGS,
            session: Some(name.into()),
            lock_index: 1,
            create_index: created,
            modify_index: created,
        }
    }

    #[test]
    fn those_that_say_their_place_are_in_its_order_among_all_others_by_age() {
        let listing = Listing {
            entries: vec![
                waiting("late", 9, Some(7)),
                waiting("mute", 2, None),
                waiting("old", 1, Some(0)),
                waiting("urgent", 3, Some(9)),
            ]
            .into(),
            index: 9,
            sent: Moment::default(),
            reset: false,
        };
        let reading = Reading::found("p".parse().unwrap(), listing);
        let waiters = waiters(&reading, &SessionNames::default());
        let order: Vec<_> = waiters
            .iter()
            .map(|waiter| waiter.contender.session.as_str())
            .collect();
        assert_eq!(order, ["urgent", "mute", "late", "old"]);
    }
}
