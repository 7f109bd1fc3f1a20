//! What Consul shows of a semaphore, as plain data. What others wrote there is cut, and has no control characters.
//!
//! The fields are those of `-o json`: `docs/slots.md` describes them.

use std::{cmp::Reverse, collections::BTreeMap};

use consul_client::{Entry, Session, SessionId, text::one_line};
use consul_semaphore::{
    ContenderBody, Identity, Lock, Mode, Place, Prefix, Reading, identity::NONE,
};
use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::names::Names;

/// How much of a name is shown: more than Kubernetes and Consul need.
const LONGEST: usize = 128;

/// How much of a [`Contender::title`] is shown.
pub(super) const LONGEST_TITLE: usize = 4 * LONGEST;

/// What is at a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// A body with a limit and the holders' sessions.
    Semaphore,
    /// A key that its holder has locked.
    Mutex,
    /// A semaphore with holders that count for a period each.
    Rate,
    /// The lock key is something else.
    Unreadable,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Semaphore => "semaphore",
            Self::Mutex => "mutex",
            Self::Rate => "rate",
            Self::Unreadable => "unreadable",
        }
    }
}

/// A semaphore in figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    /// Where it is.
    pub(super) prefix: Prefix,
    /// What it is.
    pub(super) kind: Kind,
    /// How many slots there are; `None` if nobody has written that yet.
    pub(super) limit: Option<u32>,
    /// How many are held, dead holders included.
    pub(super) held: usize,
    /// How many contenders wait; `None` if that can't be seen, as at a mutex.
    pub(super) waiting: Option<usize>,
    /// Of a rate: the longest period of a holder, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) period_seconds: Option<u64>,
    /// Why something is missing here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

/// A semaphore with all who take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Semaphore {
    #[serde(flatten)]
    pub(super) summary: Summary,
    /// The holders in the order of their grants, dead ones last.
    pub(super) holders: Vec<Holder>,
    /// Those that wait, in the order in which slots are granted.
    pub(super) waiters: Vec<Waiter>,
}

/// One that takes part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Contender {
    /// Its session.
    #[serde(serialize_with = "shown")]
    pub(super) session: SessionId,
    /// `Job` or another workload's kind; `Process` for a command of `exec`; `Program` for another program; `Unknown`.
    pub(super) kind: String,
    /// `namespace/name` of a workload, the command of a process, the name of a program's session.
    pub(super) name: String,
    /// The cluster of a workload, the host of a process, the Consul node of a program's session.
    pub(super) r#where: String,
    /// When it was granted its slot, or joined the queue, by its own clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Timestamp>,
}

/// A holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Holder {
    #[serde(flatten)]
    pub(super) contender: Contender,
    /// The raft index of its grant, if it still can be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fencing_token: Option<u64>,
    /// Whether its session has ended, or no longer locks its contender.
    pub(super) dead: bool,
    /// Until when the slot stays held although its workload is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cools_until: Option<Timestamp>,
    /// Whether the session has no TTL.
    pub(super) never_expires: bool,
}

/// One that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Waiter {
    #[serde(flatten)]
    pub(super) contender: Contender,
    /// Higher goes first; `None` for one that follows no order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<i32>,
    /// How many slots it waits for here.
    pub(super) slots: u32,
}

fn shown<S: Serializer>(session: &SessionId, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(session.shown())
}

impl Semaphore {
    /// What a reading shows.
    pub(super) fn of(reading: &Reading, names: &Names) -> Self {
        let (holders, waiters) = (holders(reading, names), waiters(reading, names));
        let (kind, limit, problem) = match reading.lock() {
            Lock::Semaphore { body, .. } => {
                let kind = match period(reading) {
                    Some(_) => Kind::Rate,
                    None => Kind::Semaphore,
                };
                (kind, Some(body.limit()), None)
            }
            Lock::Mutex { .. } => (Kind::Mutex, Some(1), None),
            Lock::Absent { .. } => (Kind::Semaphore, None, None),
            Lock::Unreadable(why) => (
                Kind::Unreadable,
                None,
                Some(one_line(&why.to_string(), LONGEST)),
            ),
        };
        let summary = Summary {
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

    /// Takes from an earlier reading what this one can't show: whose session a dead holder had, which Consul forgets, and
    /// everything while the lock key can't be read.
    pub(super) fn remember(&mut self, before: Option<&Self>) {
        if self.is_unreadable() {
            self.summary.limit = before.and_then(|before| before.summary.limit);
            self.holders = before.map_or_else(Vec::new, |before| before.holders.clone());
            self.waiters = before.map_or_else(Vec::new, |before| before.waiters.clone());
            return;
        }
        let Some(before) = before else { return };
        let known: BTreeMap<_, _> = before
            .holders
            .iter()
            .map(|holder| (&holder.contender.session, &holder.contender))
            .collect();
        for holder in self.holders.iter_mut().filter(|holder| holder.dead) {
            if let Some(contender) = known.get(&holder.contender.session) {
                holder.contender = (*contender).clone();
            }
        }
    }

    /// Whether nobody can say who holds.
    pub(super) fn is_unreadable(&self) -> bool {
        self.summary.kind == Kind::Unreadable
    }

    /// Whether nobody uses the prefix.
    pub(super) fn is_unused(&self) -> bool {
        let Summary { kind, limit, .. } = &self.summary;
        *kind == Kind::Semaphore && limit.is_none() && self.waiters.is_empty()
    }
}

/// The longest period of a holder, in seconds.
fn period(reading: &Reading) -> Option<u64> {
    let holding = reading
        .contenders()
        .filter(|(session, _)| reading.holds(session));
    let periods = holding.filter_map(|(_, entry)| Some(ContenderBody::read(&entry.value)?.period));
    periods.max().filter(|period| *period > 0)
}

/// Who holds a slot, dead holders included.
fn sessions(lock: &Lock) -> impl Iterator<Item = &SessionId> {
    let (body, holder) = match lock {
        Lock::Semaphore { body, .. } => (Some(body.holders()), None),
        Lock::Mutex { holder, .. } => (None, holder.as_ref()),
        Lock::Absent { .. } | Lock::Unreadable(_) => (None, None),
    };
    body.into_iter().flatten().chain(holder)
}

fn holders(reading: &Reading, names: &Names) -> Vec<Holder> {
    let mut sessions: Vec<_> = sessions(reading.lock())
        .map(|session| (session, reading.contender(session)))
        .collect();
    sessions.sort_by_key(|(_, entry)| entry.map_or(u64::MAX, |entry| entry.modify_index));
    let holder = |(session, entry): (&SessionId, Option<&Entry>)| Holder::of(session, entry, names);
    sessions.into_iter().map(holder).collect()
}

/// Those that wait, in the order of `docs/protocol.md`: those that say their place by it, among all others by age.
fn waiters(reading: &Reading, names: &Names) -> Vec<Waiter> {
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
    let mut placed: Vec<(Place, Waiter)> = Vec::new();
    let mut all: Vec<Option<Waiter>> = Vec::new();
    for (session, _, body) in waiting {
        let place = body.as_ref().and_then(ContenderBody::place);
        let waiter = Waiter::of(session, body.as_ref(), names);
        match place {
            Some(place) => {
                placed.push((place, waiter));
                all.push(None);
            }
            None => all.push(Some(waiter)),
        }
    }
    // From the end, so that the first is popped first.
    placed.sort_by_cached_key(|(place, _)| Reverse(place.clone()));
    let mut next = || placed.pop().map(|(_, waiter)| waiter);
    all.into_iter()
        .filter_map(|waiter| waiter.or_else(&mut next))
        .collect()
}

impl Holder {
    fn of(session: &SessionId, entry: Option<&Entry>, names: &Names) -> Self {
        let body = entry.and_then(|entry| ContenderBody::read(&entry.value));
        let said = body.as_ref();
        // Only who follows the protocol locks its contender with the grant, and only a cooling one is written again.
        let granted = said.filter(|body| body.waiting.is_none() && body.cools_until.is_none());
        Self {
            contender: Contender::of(session, said, names),
            fencing_token: granted.and(entry).map(|entry| entry.modify_index),
            dead: entry.is_none(),
            cools_until: said.and_then(|body| body.cools_until),
            never_expires: said.is_some_and(|body| body.endless),
        }
    }
}

impl Waiter {
    fn of(session: &SessionId, body: Option<&ContenderBody>, names: &Names) -> Self {
        let claim = body.and_then(|body| body.waiting.as_ref());
        let mut contender = Contender::of(session, body, names);
        contender.since = claim.map(|claim| claim.since).or(contender.since);
        Self {
            contender,
            priority: claim.map(|claim| claim.priority),
            slots: body.map_or(1, ContenderBody::slots_awaited),
        }
    }
}

impl Contender {
    /// By the body of its contender, which anybody who may write the key can have written; without one by its session.
    pub(super) fn of(session: &SessionId, body: Option<&ContenderBody>, names: &Names) -> Self {
        let unnamed = |kind: &str| Self {
            session: session.clone(),
            kind: one_line(kind, LONGEST),
            name: String::new(),
            r#where: String::new(),
            since: None,
        };
        if let Some(body) = body {
            return Self {
                name: name(&body.namespace, &body.name),
                r#where: one_line(&body.cluster, LONGEST),
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
                r#where: one_line(&identity.cluster, LONGEST),
                ..unnamed(identity.holder_kind())
            },
            None => Self {
                name: one_line(&session.name, LONGEST),
                r#where: one_line(&session.node, LONGEST),
                ..unnamed("Program")
            },
        }
    }

    /// In a few words.
    pub(super) fn title(&self) -> String {
        let Self {
            kind,
            name,
            r#where,
            ..
        } = self;
        match (name.is_empty(), r#where.is_empty()) {
            (true, true) => kind.clone(),
            (false, true) => format!("{kind} {name}"),
            (true, false) => format!("{kind} on {where}", r#where = r#where),
            (false, false) => format!("{kind} {name} on {where}", r#where = r#where),
        }
    }
}

fn name(namespace: &str, name: &str) -> String {
    if namespace == NONE {
        one_line(name, LONGEST)
    } else {
        one_line(&format!("{namespace}/{name}"), 2 * LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use consul_client::{Listing, clock::Moment};
    use consul_semaphore::lock::SEMAPHORE_FLAGS;
    use serde_json::json;

    use super::*;

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
            sent: Moment::now(),
            reset: false,
        };
        let reading = Reading::found("p".parse().unwrap(), listing);
        let waiters = waiters(&reading, &Names::default());
        let order: Vec<_> = waiters
            .iter()
            .map(|waiter| waiter.contender.session.as_str())
            .collect();
        assert_eq!(order, ["urgent", "mute", "late", "old"]);
    }
}
