//! Represents what Consul shows of a semaphore as plain data. Text that others wrote there is shortened and stripped
//! of control characters.
//!
//! The fields are those of `-o json`, which `docs/slots.md` describes.

use std::{cmp::Reverse, collections::BTreeMap};

use consul_client::{Entry, Session, SessionId, text::one_line};
use consul_semaphore::{
    ContenderBody, Identity, Lock, Mode, Place, Prefix, Reading, identity::NONE,
};
use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::names::SessionNames;

/// Longest name that is shown, in characters: more than Kubernetes and Consul need.
const LONGEST_NAME: usize = 128;

/// Longest [`SeenContender::title`] that is shown.
pub(super) const LONGEST_TITLE: usize = 4 * LONGEST_NAME;

/// Kind of the lock at a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SemaphoreKind {
    /// A lock key whose body has a limit and the holders' sessions.
    Semaphore,
    /// A lock key that its holder has locked.
    Mutex,
    /// A semaphore whose holders count for a period each.
    Rate,
    /// A lock key that is used for something else.
    Unreadable,
}

impl SemaphoreKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Semaphore => "semaphore",
            Self::Mutex => "mutex",
            Self::Rate => "rate",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Numbers of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SemaphoreSummary {
    /// Prefix of the semaphore.
    pub(super) prefix: Prefix,
    /// Kind of the semaphore.
    pub(super) kind: SemaphoreKind,
    /// Number of slots; `None` if nobody has written a limit yet.
    pub(super) limit: Option<u32>,
    /// Number of held slots, including those of dead holders.
    pub(super) held: usize,
    /// Number of waiting contenders; `None` if that can't be seen, as at a mutex.
    pub(super) waiting: Option<usize>,
    /// Longest period of a holder of a rate, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) period_seconds: Option<u64>,
    /// Reason why a number is missing here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

/// A semaphore with its holders and waiting contenders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SeenSemaphore {
    #[serde(flatten)]
    pub(super) summary: SemaphoreSummary,
    /// Holders in the order of their grants, dead holders last.
    pub(super) holders: Vec<SeenHolder>,
    /// Waiting contenders, in the order in which slots are granted.
    pub(super) waiters: Vec<SeenWaiter>,
}

/// Description of a contender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SeenContender {
    /// Session of the contender.
    #[serde(serialize_with = "shown")]
    pub(super) session: SessionId,
    /// `Job` or another workload's kind; `Process` for a command of `exec`; `Program` for another program; or
    /// `Unknown`.
    pub(super) kind: String,
    /// `namespace/name` of a workload, the command of a process, or the name of a program's session.
    pub(super) name: String,
    /// Cluster of a workload, host of a process, or Consul node of a program's session.
    pub(super) r#where: String,
    /// Time at which the contender was granted its slot or joined the queue, by the contender's own clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Timestamp>,
}

/// Contender that holds a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SeenHolder {
    #[serde(flatten)]
    pub(super) contender: SeenContender,
    /// Raft index of the grant, if it can still be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fencing_token: Option<u64>,
    /// Whether the session has ended, or no longer locks its contender.
    pub(super) dead: bool,
    /// Time until which the slot stays held although its workload is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cools_until: Option<Timestamp>,
    /// Whether the session has no TTL.
    pub(super) never_expires: bool,
}

/// Contender that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SeenWaiter {
    #[serde(flatten)]
    pub(super) contender: SeenContender,
    /// Priority of the contender, where higher ones go first; `None` for a contender that follows no order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<i32>,
    /// Number of slots that the contender waits for here.
    pub(super) slots: u32,
}

fn shown<S: Serializer>(session: &SessionId, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(session.shown())
}

impl SeenSemaphore {
    /// Returns the semaphore that a reading shows.
    pub(super) fn of(reading: &Reading, names: &SessionNames) -> Self {
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
        let summary = SemaphoreSummary {
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

    /// Takes from an earlier reading what this one can't show: the owner of a dead holder's session, which Consul
    /// forgets, and everything while the lock key is unreadable.
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

    /// Returns whether the lock key is unreadable, so that nobody can say who holds slots.
    pub(super) fn is_unreadable(&self) -> bool {
        self.summary.kind == SemaphoreKind::Unreadable
    }

    /// Returns whether the prefix is unused.
    pub(super) fn is_unused(&self) -> bool {
        let SemaphoreSummary { kind, limit, .. } = &self.summary;
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

fn holders(reading: &Reading, names: &SessionNames) -> Vec<SeenHolder> {
    let mut sessions: Vec<_> = sessions(reading.lock())
        .map(|session| (session, reading.contender(session)))
        .collect();
    sessions.sort_by_key(|(_, entry)| entry.map_or(u64::MAX, |entry| entry.modify_index));
    sessions
        .into_iter()
        .map(|(session, entry)| SeenHolder::of(session, entry, names))
        .collect()
}

/// Returns the waiting contenders in the order of `docs/protocol.md`: contenders that say their place in the queue
/// are sorted by that place, and keep as a group the positions that they have among all others by age.
fn waiters(reading: &Reading, names: &SessionNames) -> Vec<SeenWaiter> {
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
    let mut placed: Vec<(Place, SeenWaiter)> = Vec::new();
    let mut all: Vec<Option<SeenWaiter>> = Vec::new();
    for (session, _, body) in waiting {
        let place = body.as_ref().and_then(ContenderBody::place);
        let waiter = SeenWaiter::of(session, body.as_ref(), names);
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

impl SeenHolder {
    fn of(session: &SessionId, entry: Option<&Entry>, names: &SessionNames) -> Self {
        let body = entry.and_then(|entry| ContenderBody::read(&entry.value));
        let said = body.as_ref();
        // Only a contender that follows the protocol is locked together with the grant, and only a cooling contender
        // is written again later.
        let granted = said.filter(|body| body.waiting.is_none() && body.cools_until.is_none());
        Self {
            contender: SeenContender::of(session, said, names),
            fencing_token: granted.and(entry).map(|entry| entry.modify_index),
            dead: entry.is_none(),
            cools_until: said.and_then(|body| body.cools_until),
            never_expires: said.is_some_and(|body| body.endless),
        }
    }
}

impl SeenWaiter {
    fn of(session: &SessionId, body: Option<&ContenderBody>, names: &SessionNames) -> Self {
        let claim = body.and_then(|body| body.waiting.as_ref());
        let mut contender = SeenContender::of(session, body, names);
        contender.since = claim.map(|claim| claim.since).or(contender.since);
        Self {
            contender,
            priority: claim.map(|claim| claim.priority),
            slots: body.map_or(1, ContenderBody::slots_awaited),
        }
    }
}

impl SeenContender {
    /// Describes a contender by its body, or by its session if there is no body. Anybody who may write the key can
    /// have written the body.
    pub(super) fn of(
        session: &SessionId,
        body: Option<&ContenderBody>,
        names: &SessionNames,
    ) -> Self {
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

    /// Describes the contender in a few words.
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
        one_line(name, LONGEST_NAME)
    } else {
        one_line(&format!("{namespace}/{name}"), 2 * LONGEST_NAME)
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
        let waiters = waiters(&reading, &SessionNames::default());
        let order: Vec<_> = waiters
            .iter()
            .map(|waiter| waiter.contender.session.as_str())
            .collect();
        assert_eq!(order, ["urgent", "mute", "late", "old"]);
    }
}
