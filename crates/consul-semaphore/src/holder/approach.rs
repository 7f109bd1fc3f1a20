//! Lets a program whose turn is far wait: the program looks at intervals how many contenders are still before it.
//!
//! A look reads `.lock` and, if that has changed, the keys below the prefix, without the values that make a full
//! reading large. Both show which contenders have stopped waiting: `.lock` names the contenders that were granted a
//! slot, and a contender that is gone has no key. The connection is closed after each look. Once the turn is near the
//! program watches the prefix.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{sync::mpsc, time::sleep};

use super::{program::Program, request::SlotsOf, watched::News};
use crate::{ContenderBody, Lock, Reading, reading::LOCK};
use consul_client::{self as consul, Backoff, Client, SessionId, clock::Moment};

/// A program is near its turn if others wait before it for at most this many slots, whatever the limit is. The number
/// is enough to be ready while the first ones are served.
pub(super) const SLOTS_NEAR_TURN: usize = 4;

/// The most slots for which others may wait before a program that is near its turn. In a long queue the number is the
/// limit, between [`SLOTS_NEAR_TURN`] and this; in a queue that is not long it is this many, so that all these programs
/// see at once that a queue that stood still begins to move.
pub(super) const MOST_SLOTS_NEAR_TURN: usize = 16;

/// A queue of more contenders than this is long: Consul sends all of them for each change.
pub(super) const LONG_QUEUE: usize = 40;

/// Time in which one slot comes free in the fastest queue. A queue that stands still may begin to move at any time,
/// and a turn that is not taken passes after [`WINDOW`](crate::turns::WINDOW).
const FASTEST_SLOT_INTERVAL: Duration = Duration::from_millis(30);

/// The longest time that a program pauses for each slot that must come free, however slowly the queue moves. A slow
/// queue may become fast at any time, and then a program that pauses for longer would sleep through its turn.
const SLOWEST_SLOT_INTERVAL: Duration = Duration::from_millis(90);

/// The shortest pause between two looks while the queue moves.
const MIN_PAUSE_WHILE_MOVING: Duration = Duration::from_millis(100);

/// The shortest pause between two looks once the queue has stood still for some looks.
const MIN_PAUSE_WHILE_STILL: Duration = Duration::from_secs(1);

/// The longest pause between two looks.
const LONGEST_LOOK_PAUSE: Duration = Duration::from_secs(30);

/// Number of looks in a row that find `.lock` unchanged before the keys are read all the same, because others may
/// have left the queue.
const MOST_UNCHANGED_LOOKS: u32 = 4;

/// Pauses between looks that fail. Consul may be busy because of the many programs that look.
const LOOK_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), LONGEST_LOOK_PAUSE);

/// Number of failures in a row after which the program is told.
const TELL_AFTER_FAILURES: u32 = 3;

/// The contenders at the prefix, as the program found them when others were before it.
#[derive(Debug)]
pub(super) struct OthersAhead {
    /// Number of slots for which others wait before the program.
    before: usize,
    /// Number of slots that must come free until the turn is near.
    left: usize,
    /// Number of slots for which each of the other contenders waits, including the contenders behind the program.
    waiting: BTreeMap<SessionId, usize>,
    /// The program's own contender.
    own: SessionId,
    /// The limit in that reading; `None` while `.lock` can't be read.
    limit: Option<usize>,
    /// Number of slots that were free in the reading. The program could not have these slots, for example because a
    /// window is closed.
    free: usize,
}

impl OthersAhead {
    /// Returns what a reading shows to a program before which others wait for `before` slots; `None` if the reading
    /// does not show the program's contender yet, or if there is no order.
    pub(super) fn of(reading: &Reading, before: usize, program: &Program) -> Option<Self> {
        if !has_order(reading.lock()) {
            return None;
        }
        let mut sessions = program.sessions.keys();
        let own = sessions.find(|session| reading.contender(session).is_some())?;
        Some(Self::behind(reading, before, own))
    }

    fn behind(reading: &Reading, before: usize, own: &SessionId) -> Self {
        let others = reading.waiting().filter(|(session, _)| *session != own);
        let waiting = others.map(|(session, entry)| {
            let slots = ContenderBody::read(&entry.value).map_or(1, |body| body.slots_awaited());
            (
                session.clone(),
                usize::try_from(slots).unwrap_or(usize::MAX),
            )
        });
        let near = near(reading.count_of_contenders(), reading.lock());
        Self {
            before,
            left: before.saturating_sub(near),
            waiting: waiting.collect(),
            own: own.clone(),
            limit: limit_of(reading.lock()),
            free: free(reading.lock()),
        }
    }

    /// Returns how many slots must come free until the turn is near, given the keys below the prefix and `.lock`;
    /// `None` if the turn is near, or if only a reading can tell. Every contender that has stopped waiting counts as
    /// one that came before the program, so the turn is found near too soon rather than too late.
    fn left(&self, keys: &[String], lock: &Lock) -> Option<usize> {
        let names = keys.iter().filter_map(|key| Some(key.rsplit_once('/')?.1));
        let there: BTreeSet<&str> = names.filter(|name| *name != LOCK).collect();
        let exists = |session: &SessionId| there.contains(session.as_str());
        if !exists(&self.own) || !has_order(lock) || limit_of(lock) != self.limit {
            return None;
        }
        let (mut free, mut served) = (free(lock), BTreeSet::new());
        if let Lock::Semaphore { body, .. } = lock {
            served = body.holders().collect();
            // A program that reads the whole prefix prunes dead holders, so their slots count as free.
            free += served.iter().filter(|holder| !exists(holder)).count();
        }
        let is_gone = |session: &SessionId| !exists(session) || served.contains(session);
        let gone: usize = self
            .waiting
            .iter()
            .filter(|(session, _)| is_gone(session))
            .map(|(_, slots)| slots)
            .sum();
        let before = self.before.saturating_sub(gone);
        let freed = free.saturating_sub(self.free);
        before
            .saturating_sub(freed)
            .checked_sub(near(there.len(), lock))
            .filter(|left| *left > 0)
    }
}

/// Whether the contenders at the lock key are served in an order, as far as is known.
pub(super) fn has_order(lock: &Lock) -> bool {
    matches!(lock, Lock::Semaphore { .. } | Lock::Unreadable(_))
}

/// Returns the limit, which decides how many contenders are near; `None` while `.lock` can't be read.
pub(super) fn limit_of(lock: &Lock) -> Option<usize> {
    match lock {
        Lock::Semaphore { body, .. } => Some(usize::try_from(body.limit()).unwrap_or(usize::MAX)),
        Lock::Absent { .. } | Lock::Mutex { .. } | Lock::Unreadable(_) => None,
    }
}

/// Returns how many slots are free.
pub(super) fn free(lock: &Lock) -> usize {
    match lock {
        Lock::Semaphore { body, .. } => body.room(),
        Lock::Absent { .. } | Lock::Mutex { .. } | Lock::Unreadable(_) => 0,
    }
}

/// Returns the number of slots for which others may wait before a program that is near its turn, in a queue of so
/// many contenders.
pub(super) fn near(contenders: usize, lock: &Lock) -> usize {
    if contenders > LONG_QUEUE {
        limit_of(lock)
            .unwrap_or(0)
            .clamp(SLOTS_NEAR_TURN, MOST_SLOTS_NEAR_TURN)
    } else {
        MOST_SLOTS_NEAR_TURN
    }
}

/// The pause until the next look.
#[derive(Debug)]
struct LookPause {
    /// Number of slots that must come free until the turn is near.
    left: usize,
    /// Time that the program pauses for each of these slots.
    for_each_slot: Duration,
    shortest: Duration,
}

impl LookPause {
    fn new(left: usize) -> Self {
        Self {
            left,
            for_each_slot: FASTEST_SLOT_INTERVAL,
            shortest: MIN_PAUSE_WHILE_MOVING,
        }
    }

    /// Records that `left` slots must still come free until the turn is near, this long after the look before. The
    /// program pauses for two thirds of the time in which the queue comes to it at that pace: a thousand programs that
    /// look more often than that slow Consul down, and with it the queue.
    fn note(&mut self, left: usize, later: Duration) {
        let freed = self.left.saturating_sub(left);
        if let Some(freed) = u32::try_from(freed).ok().filter(|freed| *freed > 0) {
            self.for_each_slot =
                (later * 2 / 3 / freed).clamp(FASTEST_SLOT_INTERVAL, SLOWEST_SLOT_INTERVAL);
        }
        self.shortest = if self.left == left {
            (self.shortest * 2).min(MIN_PAUSE_WHILE_STILL)
        } else {
            MIN_PAUSE_WHILE_MOVING
        };
        self.left = left;
    }

    /// Returns the time in which the turn can't come near, shortened by up to an eighth so that the programs do not
    /// all look at once.
    fn length(&self, jitter: f64) -> Duration {
        let left = u32::try_from(self.left).unwrap_or(u32::MAX);
        let pause = self
            .for_each_slot
            .saturating_mul(left)
            .max(self.shortest)
            .min(LONGEST_LOOK_PAUSE);
        pause.mul_f64(jitter.mul_add(-0.125, 1.0))
    }
}

/// Pauses for as long as the turn can't come near, and then closes the returned channel, so that the prefix is read
/// again. The reading that showed others ahead is older than the program's contender, and programs that have come at
/// the same time may be before it.
pub(super) fn pause(ahead: &OthersAhead) -> mpsc::Receiver<News> {
    let (news, receiver) = mpsc::channel(1);
    let pause = LookPause::new(ahead.left).length(fastrand::f64());
    tokio::spawn(async move {
        tokio::select! {
            () = news.closed() => {}
            () = sleep(pause) => {}
        }
    });
    receiver
}

/// Begins to approach the turn. The returned channel closes once the turn is near, or when only a reading can tell
/// more; before that, the channel gets an error if Consul has not answered for long.
pub(super) fn begin(consul: &Client, asked: &SlotsOf, ahead: OthersAhead) -> mpsc::Receiver<News> {
    let (news, receiver) = mpsc::channel(1);
    let approach = Approach {
        consul: consul.without_idle_connections(),
        asked: asked.clone(),
        ahead,
        seen: LastLooks::default(),
    };
    tokio::spawn(async move {
        tokio::select! {
            () = news.closed() => {}
            () = approach.look_until_near(&news) => {}
        }
    });
    receiver
}

struct Approach {
    consul: Client,
    asked: SlotsOf,
    ahead: OthersAhead,
    seen: LastLooks,
}

/// The state of `.lock` at the last looks.
#[derive(Default)]
struct LastLooks {
    /// The `ModifyIndex` of `.lock`.
    index: u64,
    /// Number of looks since the keys were read that found `.lock` unchanged.
    times: u32,
}

impl Approach {
    /// Looks at intervals until the turn is near.
    async fn look_until_near(mut self, news: &mpsc::Sender<News>) {
        let mut pause = LookPause::new(self.ahead.left);
        let (mut failures, mut told) = (LOOK_BACKOFF, false);
        let mut looked = Moment::now();
        loop {
            sleep(pause.length(fastrand::f64())).await;
            match self.look(pause.left).await {
                // A program that was told of a failure must learn that the failure is over, and it does when the
                // channel closes.
                Ok(Some(left)) if !told => {
                    failures.reset();
                    let before = std::mem::replace(&mut looked, Moment::now());
                    pause.note(left, looked.since(before));
                }
                Ok(_) => return,
                Err(error) => {
                    let wait = failures.pause();
                    if failures.tries() >= TELL_AFTER_FAILURES {
                        told = true;
                        // Sending fails only if the receiver is gone, and then the approach ends anyway.
                        let _ = news.send(Err(error)).await;
                    }
                    sleep(wait).await;
                }
            }
        }
    }

    /// Returns how many slots must come free until the turn is near, where `left` slots had to at the last look;
    /// `None` if the turn is near, or if only a reading can tell.
    async fn look(&mut self, left: usize) -> Result<Option<usize>, consul::Error> {
        let prefix = &self.asked.prefix;
        let entry = self.consul.get(&prefix.lock_key()).await?;
        let index = entry.as_ref().map_or(0, |entry| entry.modify_index);
        let is_unchanged = self.seen.index == index;
        if is_unchanged && self.seen.times < MOST_UNCHANGED_LOOKS {
            self.seen.times += 1;
            return Ok(Some(left));
        }
        let keys = self.consul.keys(&prefix.folder(), "").await?;
        self.seen = LastLooks { index, times: 0 };
        let lock = Lock::read(self.asked.mode, entry.as_ref());
        if is_unchanged && free(&lock) > 0 && left <= MOST_SLOTS_NEAR_TURN {
            // The programs that are near do not take the free slots, perhaps because they ask for more slots. While a
            // window is closed no program takes a slot, so the programs further behind go on looking.
            return Ok(None);
        }
        Ok(self.ahead.left(&keys.keys, &lock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, samples};

    /// `p` with two slots, these holders, and these who wait.
    fn reading(holders: &[&str], waiting: &[String]) -> Reading {
        let contender = |name: &str| samples::entry(&format!("p/{name}"), Some(name), "");
        let mut entries = vec![samples::entry("p/.lock", None, &body(2, holders))];
        entries.extend(holders.iter().map(|name| contender(name)));
        entries.extend(waiting.iter().map(|name| contender(name)));
        samples::reading(entries)
    }

    fn body(limit: u32, holders: &[&str]) -> String {
        let holders: Vec<_> = holders
            .iter()
            .map(|name| format!("\"{name}\":true"))
            .collect();
        format!(r#"{{"Limit":{limit},"Holders":{{{}}}}}"#, holders.join(","))
    }

    fn lock(limit: u32, holders: &[&str]) -> Lock {
        let entry = samples::entry("p/.lock", None, &body(limit, holders));
        Lock::read(Mode::Semaphore, Some(&entry))
    }

    fn waiting(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("w{number}")).collect()
    }

    fn keys(names: &[String]) -> Vec<String> {
        names.iter().map(|name| format!("p/{name}")).collect()
    }

    /// The last of sixty who wait, behind two holders.
    fn last_of_sixty() -> OthersAhead {
        let reading = reading(&["h", "i"], &waiting(60));
        OthersAhead::behind(&reading, 59, &"w59".into())
    }

    /// Returns how many slots must come free until the turn of the last of sixty is near, once so many of the
    /// contenders before it are gone.
    fn left(gone: usize, lock: &Lock) -> Option<usize> {
        let mut names = waiting(60).split_off(gone);
        names.extend(["h", "i", ".lock"].map(str::to_owned));
        last_of_sixty().left(&keys(&names), lock)
    }

    #[test]
    fn how_many_are_near_follows_the_limit_of_a_long_queue_within_bounds() {
        let locks = [lock(1, &[]), lock(9, &[]), lock(5000, &[]), broken()];
        assert_eq!(
            locks.each_ref().map(|lock| near(LONG_QUEUE + 1, lock)),
            [4, 9, 16, 4]
        );
        assert_eq!(locks.each_ref().map(|lock| near(LONG_QUEUE, lock)), [16; 4]);
    }

    #[test]
    fn who_was_served_or_left_is_not_ahead_any_more() {
        let holds = lock(2, &["h", "i"]);
        assert_eq!(last_of_sixty().left, 55);
        assert_eq!(left(0, &holds), Some(55));
        assert_eq!(left(2, &holds), Some(53));
        // The sessions were granted a slot, and still exist.
        assert_eq!(left(2, &lock(2, &["w2", "w3"])), Some(51));
        assert_eq!(left(21, &holds), Some(34), "still a long queue");
        assert_eq!(left(22, &holds), Some(21), "a short one");
        assert_eq!(left(42, &holds), Some(1));
        assert_eq!(left(43, &holds), None, "it is near");
    }

    #[test]
    fn free_slots_and_those_of_the_dead_bring_everybody_nearer() {
        assert_eq!(left(0, &lock(2, &["h"])), Some(54));
        assert_eq!(left(0, &lock(2, &[])), Some(53));
        assert_eq!(left(0, &lock(2, &["h", "gone"])), Some(54));
    }

    #[test]
    fn slots_that_were_free_and_not_for_it_bring_nobody_nearer() {
        let ahead = OthersAhead::behind(&reading(&["h"], &waiting(60)), 59, &"w59".into());
        let all = keys(&[waiting(60), vec!["h".to_owned()]].concat());
        let left = |lock| ahead.left(&all, &lock);
        assert_eq!(left(lock(2, &["h"])), Some(55));
        assert_eq!(left(lock(2, &[])), Some(54));
        assert_eq!(left(lock(2, &["h", "w0"])), Some(54));
    }

    #[test]
    fn what_only_a_reading_can_tell_ends_it() {
        let holds = ["h", "i"];
        assert_eq!(left(0, &lock(3, &holds)), None, "the limit");
        assert_eq!(left(0, &Lock::read(Mode::Semaphore, None)), None);
        let without_own = keys(&waiting(59));
        let left = last_of_sixty().left(&without_own, &lock(2, &holds));
        assert_eq!(left, None, "its session");
    }

    fn broken() -> Lock {
        let entry = samples::entry("p/.lock", None, "{");
        Lock::read(Mode::Semaphore, Some(&entry))
    }

    #[test]
    fn nobody_comes_nearer_while_the_lock_cannot_be_read() {
        let ahead = OthersAhead {
            limit: limit_of(&broken()),
            ..last_of_sixty()
        };
        let all = keys(&waiting(60));
        let left = |lock| ahead.left(&all, &lock);
        assert_eq!(left(broken()), Some(55));
        assert_eq!(left(Lock::read(Mode::Semaphore, None)), None);
        assert_eq!(left(lock(2, &["h", "i"])), None, "it can be read again");
    }

    #[test]
    fn two_thirds_of_the_way_are_paused_at_the_pace_of_the_queue_within_bounds() {
        let pause_after = |left: usize, seconds: u64| {
            let mut pause = LookPause::new(200);
            pause.note(left, Duration::from_secs(seconds));
            pause.length(0.0)
        };
        assert_eq!(pause_after(100, 12), Duration::from_secs(8));
        assert_eq!(pause_after(100, 1), 100 * FASTEST_SLOT_INTERVAL);
        assert_eq!(pause_after(100, 999), 100 * SLOWEST_SLOT_INTERVAL);
        assert_eq!(
            pause_after(200, 10),
            200 * FASTEST_SLOT_INTERVAL,
            "it stands still"
        );
    }

    #[test]
    fn the_next_look_comes_before_the_turn_can_be_near() {
        let mut pause = LookPause::new(100);
        assert_eq!(pause.length(0.0), 100 * FASTEST_SLOT_INTERVAL);
        assert_eq!(
            pause.length(1.0),
            Duration::from_millis(2625),
            "an eighth less"
        );
        pause.note(2, Duration::from_secs(3));
        assert_eq!(pause.length(0.0), MIN_PAUSE_WHILE_MOVING);
        let still: Vec<_> = (0..5)
            .map(|_| {
                pause.note(2, Duration::from_secs(1));
                pause.length(0.0).as_millis()
            })
            .collect();
        assert_eq!(still, [200, 400, 800, 1000, 1000], "it stands still");
        pause.note(1, Duration::from_secs(1));
        assert_eq!(pause.length(0.0), MIN_PAUSE_WHILE_MOVING);
        assert_eq!(LookPause::new(usize::MAX).length(0.0), LONGEST_LOOK_PAUSE);
        assert!(
            MIN_PAUSE_WHILE_STILL < crate::turns::WINDOW,
            "nobody sleeps through its turn"
        );
    }
}
