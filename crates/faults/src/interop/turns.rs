//! How long each kind waits, and which contenders overtake which: a pure function of a timeline, as the judge is.
//!
//! The rule is that of docs/protocol.md, for contenders that follow it: a contender that takes a slot leaves one for
//! each visible contender that waits ahead of it, unless a window has passed for that one.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{Place, Record, What};

/// How the names of this project's sessions begin.
const OURS: &str = "consul-semaphore-operator/";

/// How long a free slot is left to the first contender, in seconds, minus the possible delay of a record.
const WINDOW: f64 = 2.0 - 0.7;

/// The result for one kind.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// The waiting time of each grant, in seconds.
    pub waits: Vec<f64>,
    /// The longest time that a contender waited while slots were handed to others, in seconds. Contenders that wait
    /// to the end count too.
    pub starved: f64,
    /// The most slots that were handed to others while one contender waited.
    pub passed_by: usize,
    /// How often a contender was overtaken after it had let its window pass.
    pub passed_over: usize,
    /// Each time that a contender was overtaken and no window explains it: the second, which contender took the slot,
    /// and which was first.
    pub overtaken: Vec<(f64, String)>,
}

/// A contender that waits or has a slot.
#[derive(Clone, Debug, Default)]
struct Contender {
    kind: String,
    since: f64,
    /// Its place in the queue, if it has one.
    place: Option<Place>,
    /// Its contender key, once it waits with one.
    shown: Option<Shown>,
    /// When a slot was last handed to another contender, and how many were.
    others: Option<(f64, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Shown {
    /// When it was sent, and when it was visible.
    sent: f64,
    there: f64,
    /// How many revisions of `.lock` had been recorded by then.
    revision: usize,
    /// When a slot was first free for it. A reader of `.lock` may miss that the slot was taken in the meantime, so a
    /// window may have begun then.
    free: Option<f64>,
}

/// The state at one point of the timeline.
#[derive(Default)]
struct Line {
    kinds: BTreeMap<String, Turns>,
    /// The waiting contenders: Jobs and processes by their uids, other programs by their sessions.
    waiting: BTreeMap<String, Contender>,
    /// The owner of each session, and its kind.
    sessions: BTreeMap<String, (String, String)>,
    holders: BTreeSet<String>,
    limit: usize,
    revision: usize,
}

/// The turns of each kind. Jobs count by cluster and processes by host; other programs count by the name of their
/// session, without its trailing number.
pub fn turns(records: &[Record]) -> BTreeMap<String, Turns> {
    let mut line = Line::default();
    for record in records {
        match &record.what {
            What::Unwatched => break,
            what => line.take(record.t, what),
        }
    }
    line.end()
}

/// The owner of a session with this name, and its kind.
fn whose(session: &str, name: &str) -> (String, String) {
    let ours = name.strip_prefix(OURS);
    let ours = ours.and_then(|rest| Some((rest.rsplit('/').next()?, rest.split('/').next()?)));
    let (who, kind) = ours.unwrap_or((session, name));
    let kind = kind.trim_end_matches(|c: char| c.is_ascii_digit());
    (who.to_owned(), kind.trim_end_matches('-').to_owned())
}

impl Line {
    fn take(&mut self, t: f64, what: &What) {
        match what {
            What::Made { cluster, place } => {
                let contender = Contender {
                    kind: cluster.clone(),
                    since: t,
                    place: Some(place.clone()),
                    ..Contender::default()
                };
                self.waiting.insert(place.uid.clone(), contender);
            }
            What::Session { session, name } => {
                let (who, kind) = whose(session, name);
                self.sessions
                    .insert(session.clone(), (who.clone(), kind.clone()));
                self.waiting.entry(who).or_insert(Contender {
                    kind,
                    since: t,
                    ..Contender::default()
                });
            }
            What::Waits {
                session,
                place,
                sent,
                ..
            } => self.shows(t, session, place.as_ref(), *sent),
            What::Lock { body, .. } => {
                self.revision += 1;
                let limit = body.limit().unwrap_or_default();
                self.limit = usize::try_from(limit).unwrap_or(usize::MAX);
                self.lock(t, body.holders());
            }
            _ => {}
        }
    }

    fn is_free(&self) -> bool {
        self.holders.len() < self.limit
    }

    fn shows(&mut self, t: f64, session: &str, place: Option<&Place>, sent: f64) {
        let free = self.is_free().then_some(t);
        let who = self.sessions.get(session).map(|(who, _)| who);
        let Some(contender) = who.and_then(|who| self.waiting.get_mut(who)) else {
            return;
        };
        contender.place = place.or(contender.place.as_ref()).cloned();
        let first = contender.shown.map_or(sent, |shown| shown.sent);
        contender.shown = Some(Shown {
            sent: first,
            there: t,
            revision: self.revision,
            free,
        });
    }

    fn lock(&mut self, t: f64, holders: BTreeSet<String>) {
        let added: Vec<_> = holders.difference(&self.holders).cloned().collect();
        self.holders = holders;
        let granted: Vec<_> = added
            .iter()
            .filter_map(|session| {
                let (who, _) = self.sessions.get(session)?;
                self.waiting.remove_entry(who)
            })
            .collect();
        for (who, contender) in granted {
            self.handed_over(t, &who, &contender);
        }
        let free = self.is_free().then_some(t);
        for shown in self.waiting.values_mut().filter_map(|it| it.shown.as_mut()) {
            shown.free = shown.free.or(free);
        }
    }

    fn handed_over(&mut self, t: f64, who: &str, granted: &Contender) {
        for contender in self.waiting.values_mut() {
            let count = contender.others.map_or(0, |(_, count)| count);
            contender.others = Some((t, count + 1));
        }
        for (first, passed_over) in self.overtaken_by(t, granted) {
            let Some(first) = self.waiting.get(&first) else {
                continue;
            };
            let turns = self.kinds.entry(first.kind.clone()).or_default();
            if passed_over {
                turns.passed_over += 1;
            } else {
                let text = format!("{who} {granted:?} before {first:?}");
                turns.overtaken.push((t, text));
            }
        }
        let turns = self.kinds.entry(granted.kind.clone()).or_default();
        turns.waits.push(t - granted.since);
        turns.waited(granted);
    }

    /// The contenders ahead of this one for which it left no slot, against the rule, and whether a window has passed
    /// for each. A program without a place does not follow the rule, so it is not checked.
    fn overtaken_by(&self, t: f64, granted: &Contender) -> Vec<(String, bool)> {
        let Some(place) = &granted.place else {
            return Vec::new();
        };
        let before = |contender: &Contender| {
            let Some(shown) = contender.shown else {
                return false;
            };
            // A revision is written only after the one before it is recorded. So a contender that was visible when
            // the last but one was recorded was visible to every reader of the revision that this grant replaces.
            let seen = shown.revision + 3 <= self.revision;
            let first = match &contender.place {
                Some(theirs) => theirs < place,
                None => granted.shown.is_none_or(|own| shown.there < own.sent),
            };
            seen && first
        };
        let before = self.waiting.iter().filter(|(_, it)| before(it));
        let left = self.limit.saturating_sub(self.holders.len());
        let passed = |it: &Contender| {
            let free = it.shown.and_then(|shown| shown.free);
            free.is_some_and(|free| t - free >= WINDOW)
        };
        let (over, still): (Vec<_>, Vec<_>) = before.partition(|(_, it)| passed(it));
        let over = over.into_iter().map(|(who, _)| (who.clone(), true));
        let still = still.into_iter().skip(left);
        over.chain(still.map(|(who, _)| (who.clone(), false)))
            .collect()
    }

    fn end(mut self) -> BTreeMap<String, Turns> {
        for contender in self.waiting.values() {
            let turns = self.kinds.entry(contender.kind.clone()).or_default();
            turns.waited(contender);
        }
        self.kinds
    }
}

impl Turns {
    /// Records how long a contender waited while others got slots.
    fn waited(&mut self, contender: &Contender) {
        if let Some((last, count)) = contender.others {
            self.starved = self.starved.max(last - contender.since);
            self.passed_by = self.passed_by.max(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;
    use crate::record::{Body, Writer};

    fn place(uid: &str, since: i64) -> Place {
        Place {
            lost: Reverse(false),
            priority: Reverse(0),
            since,
            name: uid.to_owned(),
            uid: uid.to_owned(),
        }
    }

    /// A Job of this cluster with a session of the same name, whose contender is visible.
    fn waits(uid: &str, cluster: &str, since: i64) -> [What; 3] {
        let made = What::Made {
            cluster: cluster.into(),
            place: place(uid, since),
        };
        let session = What::Session {
            session: uid.into(),
            name: format!("{OURS}{cluster}/n/s/job/{uid}"),
        };
        [made, session, contender(uid, Some(place(uid, since)))]
    }

    fn contender(session: &str, place: Option<Place>) -> What {
        What::Waits {
            prefix: "p".into(),
            session: session.into(),
            place,
            sent: 0.0,
        }
    }

    fn lock(holders: &[&str]) -> What {
        let body = Body::Semaphore {
            index: 1,
            limit: 1,
            holders: holders.iter().map(|it| (*it).to_owned()).collect(),
        };
        What::Lock {
            prefix: "p".into(),
            writer: Writer::Operator,
            before: 1,
            after: 1,
            body,
            dead: BTreeSet::new(),
        }
    }

    /// The turns of the west when its `old` and the east's `new` wait, and then these events happen, each at its
    /// second.
    fn west(then: &[(f64, What)]) -> Turns {
        let both = [waits("old", "west", 1), waits("new", "east", 2)].concat();
        let records = both.into_iter().map(|what| (0.0, what));
        let records = records.chain(then.iter().cloned());
        let records: Vec<_> = records.map(|(t, what)| Record { t, what }).collect();
        turns(&records)["west"].clone()
    }

    #[test]
    fn one_who_is_first_and_could_be_seen_is_overtaken() {
        let west = west(&[(1.0, lock(&["x"])), (2.0, lock(&[])), (2.1, lock(&["new"]))]);
        assert_eq!((west.overtaken.len(), west.passed_over), (1, 0));
        assert_eq!((west.passed_by, west.starved), (1, 2.1));
    }

    #[test]
    fn one_who_came_after_what_was_read_is_not() {
        let west = west(&[(1.0, lock(&[])), (1.1, lock(&["new"]))]);
        assert_eq!((west.overtaken.len(), west.passed_over), (0, 0));
    }

    #[test]
    fn one_who_let_its_window_pass_is_passed_over() {
        let west = west(&[(1.0, lock(&["x"])), (2.0, lock(&[])), (4.1, lock(&["new"]))]);
        assert_eq!((west.overtaken.len(), west.passed_over), (0, 1));
    }

    #[test]
    fn a_kind_is_what_a_name_begins_with() {
        let exec = whose("s", "consul-semaphore-operator/exec-2/-/-/sh/id");
        assert_eq!(exec, ("id".to_owned(), "exec".to_owned()));
        assert_eq!(whose("s", "go-1"), ("s".to_owned(), "go".to_owned()));
    }
}
