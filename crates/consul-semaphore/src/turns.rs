//! Decides whose turn it is among the contenders that wait for a slot at one prefix: the fair order of
//! `docs/protocol.md`.
//!
//! Every program that waits has a live contender that is not in `Holders`. Programs that follow this protocol leave a
//! free slot to the contender before them in the order, but only for a while: a contender that does not take the slot
//! by then is passed over. If a contender asks for several slots and says so, the other programs keep as many slots
//! as come free for it, for as long as it goes on saying so.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    identity::ContenderBody, lock::Lock, reading::Reading, settings::Restrictions,
    windows::Opening, workload::Place,
};
use consul_client::{Entry, SessionId, clock::Moment};

/// The default time for which a free slot is left to the contenders before: many times what it takes to learn of the
/// slot and to write once.
pub const WINDOW: Duration = Duration::from_secs(2);

/// The number of windows for which a contender that let its turn pass is passed over. A contender that was only asleep
/// gets its next turn after that, and a dead one costs a window now and then.
const WINDOWS_PASSED_OVER: u32 = 30;

/// The time for which slots are kept for a contender that asks for that, from each write of the contender.
pub const KEEP_SLOTS_FOR: Duration = Duration::from_mins(1);

/// The pause between two writes of a contender for which slots are kept. Two writes in a row may come too late.
pub const REWRITE_CONTENDER_AFTER: Duration = Duration::from_secs(20);

/// The turn of each waiting contender, which begins once a slot is free for it.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// The length of a turn; `None`: there are no turns.
    window: Option<Duration>,
    /// The restrictions of the semaphore, which operators follow, and its limit.
    restrictions: Restrictions,
    limit: u32,
    /// The number of slots that were free at the last reading.
    room: usize,
    began: BTreeMap<SessionId, Turn>,
    /// The contenders that wait.
    waiting: BTreeMap<SessionId, Waiting>,
}

/// A contender that waits.
#[derive(Clone, Debug)]
struct Waiting {
    /// The contender's `ModifyIndex`, and when it was first seen. The time that a write counts begins then, by this
    /// process's clock alone.
    index: u64,
    seen: Moment,
    /// The time at which the contender first asked others to keep slots.
    first: Option<Moment>,
    says: Statement,
    /// Whether the contender's session is of another semaphore of this cluster.
    neighbour: bool,
}

/// What a waiting contender says of itself. It is read once for each write of the contender, because there may be
/// thousands of contenders, and a pass considers all of them.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    /// Place in the queue, if the contender states it as this program's contenders do.
    pub(super) place: Option<Place>,
    /// The id of the cluster that the contender says it is of.
    pub(super) cluster_id: Option<Arc<str>>,
    /// Number of slots that the contender waits for.
    pub(super) awaited: u32,
    /// Number of slots that the contender asks others to keep for it.
    kept: u32,
}

impl Statement {
    pub(super) fn of(contender: &Entry) -> Self {
        let read = ContenderBody::read(&contender.value);
        let body = read.as_ref();
        Self {
            place: body.and_then(ContenderBody::place),
            cluster_id: body.map(|body| body.cluster_id.as_str().into()),
            awaited: body.map_or(1, ContenderBody::slots_awaited),
            kept: body.map_or(0, ContenderBody::slots_kept),
        }
    }
}

impl Waiting {
    /// Returns a contender that is seen now. `before` is what was known of it, if anything.
    fn of(contender: &Entry, before: Option<Self>, now: Moment) -> Self {
        let index = contender.modify_index;
        let (first, neighbour) = match before {
            Some(same) if same.index == index => return same,
            Some(before) => (before.first, before.neighbour),
            None => (None, false),
        };
        let says = Statement::of(contender);
        Self {
            index,
            seen: now,
            first: first.or((says.kept > 0).then_some(now)),
            says,
            neighbour,
        }
    }
}

/// A turn that has begun.
#[derive(Clone, Copy, Debug)]
struct Turn {
    ends: Moment,
    /// The contender's `ModifyIndex` when a slot was last free. If the contender writes its key anew after that, it
    /// shows that it is alive.
    index: u64,
}

impl Turn {
    fn forgotten(&self, window: Duration) -> Moment {
        self.ends + window * WINDOWS_PASSED_OVER
    }
}

impl Turns {
    /// Creates turns of this length; `None`: there are no turns.
    pub fn new(window: Option<Duration>) -> Self {
        Self {
            window,
            ..Self::default()
        }
    }

    /// Sets the restrictions of a semaphore with this limit. A slot that a contender may not have because of them
    /// does not count as free for it. Only contenders that say their priority follow the restrictions, as operators
    /// do.
    pub fn restrict(&mut self, limit: u32, restrictions: &Restrictions) {
        self.limit = limit;
        self.restrictions = restrictions.clone();
    }

    /// Returns how many slots must be free beside those that a contender can have.
    fn withheld_from(&self, contender: &Entry, opening: Opening) -> usize {
        if self.restrictions == Restrictions::default() {
            return 0;
        }
        let claim = ContenderBody::read(&contender.value).and_then(|body| body.waiting);
        let most = claim.map_or(self.limit, |claim| {
            self.restrictions.limit(self.limit, opening, claim.priority)
        });
        usize::try_from(self.limit - most).unwrap_or(usize::MAX)
    }

    /// Records a reading. While a slot is free, all contenders that wait have their turn. A contender that let its
    /// turn pass is passed over for a while, unless it holds a slot or writes its contender key again.
    pub fn observe(&mut self, reading: &Reading, now: Moment, time: jiff::Timestamp) {
        let Some(window) = self.window else {
            return;
        };
        let room = match reading.lock() {
            Lock::Absent { .. } => usize::MAX,
            Lock::Semaphore { body, .. } => body.room(),
            Lock::Mutex { .. } | Lock::Unreadable(_) => 0,
        };
        let before = std::mem::replace(&mut self.room, room);
        self.restrictions.windows.refresh(time);
        let opening = self.restrictions.windows.at(time);
        let mut began = std::mem::take(&mut self.began);
        began.retain(|session, turn| {
            let Some(contender) = reading.contender(session) else {
                return false;
            };
            if room.min(before) > self.withheld_from(contender, opening) {
                // No contender has a second turn for the same slot, however often it writes.
                turn.index = contender.modify_index;
                return !reading.holds(session);
            }
            let passed = turn.ends <= now && now < turn.forgotten(window);
            passed && contender.modify_index == turn.index && !reading.holds(session)
        });
        let in_turn = reading
            .waiting()
            .filter(|(_, entry)| room > self.withheld_from(entry, opening));
        for (session, entry) in in_turn {
            let turn = Turn {
                ends: now + window,
                index: entry.modify_index,
            };
            began.entry(session.clone()).or_insert(turn);
        }
        self.began = began;
        let mut before = std::mem::take(&mut self.waiting);
        let waiting = reading.waiting().map(|(session, entry)| {
            let waiting = Waiting::of(entry, before.remove(session), now);
            (session.clone(), waiting)
        });
        self.waiting = waiting.collect();
    }

    /// Forgets the turns that have begun and not ended, because the prefix is not followed for a while. A slot that
    /// is free afterwards need not have been free all the time, so no contender has let its turn pass.
    pub(super) fn interrupt(&mut self, now: Moment) {
        self.began.retain(|_, turn| turn.ends <= now);
        self.room = 0;
    }

    /// Records which contenders belong to other semaphores of this cluster, by their sessions.
    pub(super) fn note_neighbours(&mut self, is_neighbour: impl Fn(&SessionId) -> bool) {
        for (session, waiting) in &mut self.waiting {
            waiting.neighbour = is_neighbour(session);
        }
    }

    /// Returns what a waiting contender says of itself.
    pub(super) fn statement(&self, session: &SessionId) -> Option<&Statement> {
        self.waiting.get(session).map(|waiting| &waiting.says)
    }

    /// Returns how many slots are kept for this contender, and until when. A contender that `claims` to be of this
    /// cluster and is not may be a copy of what our operator wrote once. Such a contender is believed only once,
    /// however often it is written.
    pub fn kept(&self, session: &SessionId, claims: bool) -> Option<(u32, Moment)> {
        let known = self.waiting.get(session);
        let waiting = known.filter(|waiting| waiting.says.kept > 0)?;
        let doubted = claims && !waiting.neighbour;
        let since = waiting.first.filter(|_| doubted).unwrap_or(waiting.seen);
        Some((waiting.says.kept, since + KEEP_SLOTS_FOR))
    }

    /// Returns when a contender must be written anew so that others go on keeping slots for it.
    pub fn anew(&self, session: &SessionId) -> Option<Moment> {
        let waiting = self.waiting.get(session);
        waiting.map(|waiting| waiting.seen + REWRITE_CONTENDER_AFTER)
    }

    /// Returns when the turn of this contender ends, if a slot is free for it. The contenders after it take no slot
    /// before that.
    pub fn ends(&self, session: &SessionId) -> Option<Moment> {
        self.began.get(session).map(|turn| turn.ends)
    }

    /// Whether the turn that this contender had is forgotten.
    #[cfg(test)]
    pub(super) fn is_forgotten(&self, session: &SessionId, now: Moment) -> bool {
        let turn = self.began.get(session).zip(self.window);
        turn.is_none_or(|(turn, window)| turn.forgotten(window) <= now)
    }

    /// Whether a slot was free at the last reading.
    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.room > 0
    }

    /// Returns the contender's `ModifyIndex` when a slot was last free.
    #[cfg(test)]
    pub(super) fn index(&self, session: &SessionId) -> Option<u64> {
        self.began.get(session).map(|turn| turn.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, Reserved, identity::Claim, samples};
    use consul_client::{Entry, Listing};

    fn second(since: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(since))
    }

    /// Returns a prefix with one slot, which this session holds, and where `w` waits with a contender of this index.
    fn reading(holder: Option<&str>, index: u64) -> Reading {
        reading_with(holder, index, "")
    }

    /// Returns the same prefix as `reading`, with this body of the contender.
    fn reading_with(holder: Option<&str>, index: u64, waiter: &str) -> Reading {
        let entry = |key: &str, session: Option<&str>, value: &str| Entry {
            modify_index: index,
            ..samples::entry(key, session, value)
        };
        let holders = holder.map_or("{}".into(), |holder| format!(r#"{{"{holder}":true}}"#));
        let body = format!(r#"{{"Limit":1,"Holders":{holders}}}"#);
        let listing = Listing {
            entries: vec![
                entry("p/.lock", None, &body),
                entry("p/h", Some("h"), ""),
                entry("p/w", Some("w"), waiter),
            ]
            .into(),
            index,
            sent: second(1),
            reset: false,
        };
        Reading::new("p".parse().unwrap(), Mode::Semaphore, listing)
    }

    fn turn(readings: &[(u64, Reading)]) -> Option<Moment> {
        let mut turns = Turns::new(Some(WINDOW));
        for (now, reading) in readings {
            turns.observe(reading, second(*now), samples::time(*now));
        }
        turns.ends(&"w".into())
    }

    #[test]
    fn a_slot_that_is_not_for_a_contender_is_not_free_for_it() {
        let settings = samples::settings(1);
        let ours = samples::ours("w", None);
        let body = |priority| ContenderBody {
            waiting: Some(Claim {
                priority,
                since: samples::time(0),
                lost: false,
                slots: 1,
                keeps: 0,
            }),
            ..ContenderBody::new(&settings.cluster, &ours.identity, samples::time(0), false)
        };
        let turn_of = |body: &str| {
            let mut turns = Turns::new(Some(WINDOW));
            let reserved = Some(Reserved {
                slots: 1,
                min_priority: 10,
            });
            let restrictions = Restrictions {
                reserved,
                ..Restrictions::default()
            };
            turns.restrict(1, &restrictions);
            let reading = reading_with(None, 5, body);
            turns.observe(&reading, second(1), samples::time(1));
            turns.ends(&"w".into()).is_some()
        };
        let of = |priority| serde_json::to_string(&body(priority)).unwrap();
        assert_eq!(
            [9, 10].map(|priority| turn_of(&of(priority))),
            [false, true]
        );
        assert!(turn_of(""), "other programs do not know what is reserved");
    }

    #[test]
    fn a_turn_begins_when_a_slot_is_free() {
        let (taken, free) = (reading(Some("h"), 5), reading(None, 5));
        assert_eq!(turn(&[(1, taken.clone())]), None);
        let turns = [(1, taken.clone()), (2, free.clone()), (3, free.clone())];
        assert_eq!(turn(&turns), Some(second(2) + WINDOW));
        let again = [(1, free.clone()), (2, taken), (3, free)];
        assert_eq!(
            turn(&again),
            Some(second(3) + WINDOW),
            "somebody was faster"
        );
    }

    #[test]
    fn nobody_lets_a_turn_pass_that_is_not_followed() {
        let mut turns = Turns::new(Some(WINDOW));
        let free = reading(None, 5);
        turns.observe(&free, second(1), samples::time(1));
        turns.interrupt(second(2));
        assert_eq!(turns.ends(&"w".into()), None);
        turns.observe(&free, second(9), samples::time(9));
        assert_eq!(turns.ends(&"w".into()), Some(second(9) + WINDOW));
        turns.interrupt(second(20));
        turns.observe(&reading(Some("h"), 5), second(21), samples::time(21));
        assert_eq!(turns.ends(&"w".into()), Some(second(9) + WINDOW), "it did");
    }

    #[test]
    fn whoever_lets_a_turn_pass_is_passed_over_until_it_shows_that_it_is_alive() {
        let (taken, free) = (reading(Some("h"), 5), reading(None, 5));
        let passed = [(1, free.clone()), (3, taken.clone()), (9, free.clone())];
        assert_eq!(turn(&passed), Some(second(1) + WINDOW));
        let wrote = [(1, free.clone()), (3, taken), (9, reading(None, 6))];
        assert_eq!(turn(&wrote), Some(second(9) + WINDOW));
        let held = [
            (1, free.clone()),
            (3, reading(Some("w"), 5)),
            (9, free.clone()),
        ];
        assert_eq!(turn(&held), Some(second(9) + WINDOW));
        let later = [(1, free.clone()), (3, reading(Some("h"), 5)), (99, free)];
        assert_eq!(turn(&later), Some(second(99) + WINDOW), "not for ever");
    }

    #[test]
    fn nobody_has_a_second_turn_for_the_same_slot() {
        let writes = [(1, reading(None, 5)), (2, reading(None, 6))];
        assert_eq!(turn(&writes), Some(second(1) + WINDOW));
        let [first, second_one] = writes;
        let passed = [
            first,
            second_one,
            (4, reading(Some("h"), 6)),
            (5, reading(None, 6)),
        ];
        assert_eq!(turn(&passed), Some(second(1) + WINDOW));
    }
}
