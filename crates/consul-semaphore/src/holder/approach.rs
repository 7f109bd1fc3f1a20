//! How a program waits that is not next: it finds out how many of those before it are left.
//!
//! It reads `.lock` and, if that has changed, the keys below the prefix, without the values that make a full reading
//! large. Both say who does not wait any more: who was granted a slot is in `.lock`, and who is gone has no key. While its
//! turn is far it looks now and then, and closes the connection after each look. Once its turn is near it waits for a
//! change of `.lock`, which Consul tells at a price that does not depend on how many wait. Only who is next watches the
//! whole prefix.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{sync::mpsc, time::sleep};

use super::{program::Program, request::SlotsOf, watched::News};
use crate::{ContenderBody, Lock, Reading};
use consul_client::{self as consul, Backoff, Client, Entry, SessionId, WatchOptions};

/// This many are near whatever the limit is: enough to be ready while the first ones are served.
const NEAR: usize = 4;

/// Where the limit is greater so are the numbers of those who are near, up to this.
const MOST_NEAR: usize = 16;

/// How long it takes for a slot to come free in the fastest queue. A queue that stands still may begin to move at any time,
/// and a turn that is not taken passes after [`WINDOW`](crate::turns::WINDOW).
const FASTEST: Duration = Duration::from_millis(30);

/// The shortest time from one look to the next, while the queue moves and while it stands still, and the longest.
const MOVING: Duration = Duration::from_millis(100);
const STILL: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// After so many looks that found `.lock` unchanged the keys are read all the same: others may have left the queue.
const UNCHANGED: u32 = 4;

/// How long a wait for a change of `.lock` lasts, after which it counts as unchanged. A slot that is free for so long is
/// free for those who come after the first, too.
const WAIT: Duration = Duration::from_millis(500);

/// Between looks that fail. Consul may be busy because of those who look.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), LONGEST);

/// After so many failures in a row the program is told.
const TOLD_AFTER: u32 = 3;

/// Those who wait at the prefix, when the program found that others are before it.
#[derive(Debug)]
pub(super) struct Ahead {
    /// For how many slots others wait before.
    before: usize,
    /// For how many slots each of the others waits, also those who come after.
    waiting: BTreeMap<SessionId, usize>,
    /// The program's own contender.
    own: SessionId,
    /// `None` while `.lock` can't be read.
    limit: Option<u32>,
    /// How many slots were free in that reading. The program could not have them, as when a window is closed.
    free: usize,
}

impl Ahead {
    /// What a reading shows to a program before which others wait for this many slots; `None` if it does not show the
    /// program's contender yet, or if there is no order.
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
        Self {
            before,
            waiting: waiting.collect(),
            own: own.clone(),
            limit: limit_of(reading.lock()),
            free: free(reading.lock()),
        }
    }

    /// Where the program stands, given the keys below the prefix and `.lock`; `None` if only a reading can tell. Everyone
    /// who does not wait any more counts as one who came before: that is too soon rather than too late.
    fn place(&self, keys: &[String], lock: &Lock) -> Option<Place> {
        let names = keys.iter().filter_map(|key| Some(key.rsplit_once('/')?.1));
        let there: BTreeSet<&str> = names.collect();
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
        let gone = |session: &SessionId| !exists(session) || served.contains(session);
        let gone = self.waiting.iter().filter(|(session, _)| gone(session));
        let gone: usize = gone.map(|(_, slots)| slots).sum();
        let before = self.before.saturating_sub(gone);
        Some(Place {
            before,
            left: before.saturating_sub(free.saturating_sub(self.free)),
            is_free: free > 0,
        })
    }
}

/// Whether those who wait are served in an order, as far as is known.
pub(super) fn has_order(lock: &Lock) -> bool {
    matches!(lock, Lock::Semaphore { .. } | Lock::Unreadable(_))
}

/// The limit that says how many are near; `None` while `.lock` can't be read.
pub(super) fn limit_of(lock: &Lock) -> Option<u32> {
    match lock {
        Lock::Semaphore { body, .. } => Some(body.limit()),
        Lock::Absent { .. } | Lock::Mutex { .. } | Lock::Unreadable(_) => None,
    }
}

/// How many slots are free.
pub(super) fn free(lock: &Lock) -> usize {
    match lock {
        Lock::Semaphore { body, .. } => body.room(),
        Lock::Absent { .. } | Lock::Mutex { .. } | Lock::Unreadable(_) => 0,
    }
}

/// Those for whom at most this many slots must come free before they are next are near.
pub(super) fn near(limit: Option<u32>) -> usize {
    let limit = limit.map_or(0, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    limit.clamp(NEAR, MOST_NEAR)
}

/// Where a program stands among those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// For how many slots others wait before.
    before: usize,
    /// How many slots must come free until it is next.
    left: usize,
    /// Whether a slot is free.
    is_free: bool,
}

/// How long until the next look, while the turn is far.
#[derive(Debug)]
struct Pause {
    /// How many slots had to come free at the last look.
    left: usize,
    shortest: Duration,
}

impl Pause {
    fn new(left: usize) -> Self {
        Self {
            left,
            shortest: MOVING,
        }
    }

    /// So many slots must come free now.
    fn note(&mut self, left: usize) {
        self.shortest = if self.left == left {
            (self.shortest * 2).min(STILL)
        } else {
            MOVING
        };
        self.left = left;
    }

    /// The time in which the program can't be next, shortened by up to a quarter so that not all look at once.
    fn length(&self, jitter: f64) -> Duration {
        let left = u32::try_from(self.left).unwrap_or(u32::MAX);
        let pause = FASTEST.saturating_mul(left);
        let pause = pause.max(self.shortest).min(LONGEST);
        pause.mul_f64(jitter.mul_add(-0.25, 1.0))
    }
}

/// Begins to approach the turn. What is received closes once the program is next, or where only a reading can tell more;
/// before that, an error comes if Consul can't be asked for long.
pub(super) fn begin(consul: &Client, asked: &SlotsOf, ahead: Ahead) -> mpsc::Receiver<News> {
    let (news, receiver) = mpsc::channel(1);
    let approach = Approach {
        consul: consul.without_idle_connections(),
        asked: asked.clone(),
        place: Place {
            before: ahead.before,
            left: ahead.before,
            is_free: false,
        },
        ahead,
        changes: None,
        seen: Seen::default(),
    };
    tokio::spawn(async move {
        tokio::select! {
            () = news.closed() => {}
            () = approach.look_until_next(&news) => {}
        }
    });
    receiver
}

struct Approach {
    consul: Client,
    asked: SlotsOf,
    ahead: Ahead,
    place: Place,
    /// Follows `.lock`, while the turn is near.
    changes: Option<mpsc::Receiver<News>>,
    seen: Seen,
}

/// `.lock` as the last looks have seen it.
#[derive(Default)]
struct Seen {
    /// Its `ModifyIndex`.
    index: u64,
    /// How often it was unchanged since the keys were read.
    times: u32,
}

impl Approach {
    /// Looks until the program is next.
    async fn look_until_next(mut self, news: &mpsc::Sender<News>) {
        let mut pause = Pause::new(self.place.left);
        let (mut failures, mut told) = (BACKOFF, false);
        loop {
            match self.look(&pause).await {
                // Whoever was told of a failure is to know that it is over.
                Ok(Some(place)) if !told => {
                    failures.reset();
                    pause.note(place.left);
                    self.place = place;
                }
                Ok(_) => return,
                Err(error) => {
                    let wait = failures.pause();
                    if failures.tries() >= TOLD_AFTER {
                        told = true;
                        // An error means that nobody wants to know any more, which ends this.
                        let _ = news.send(Err(error)).await;
                    }
                    sleep(wait).await;
                }
            }
        }
    }

    /// Where the program stands at the next look; `None`: it is next, or only a reading can tell.
    async fn look(&mut self, pause: &Pause) -> Result<Option<Place>, consul::Error> {
        let is_near = self.place.left <= near(self.ahead.limit);
        let entry = if is_near {
            self.next_change().await?
        } else {
            self.changes = None;
            sleep(pause.length(fastrand::f64())).await;
            self.consul.get(&self.asked.prefix.lock_key()).await?
        };
        let index = entry.as_ref().map_or(0, |entry| entry.modify_index);
        let is_unchanged = self.seen.index == index;
        if is_unchanged && self.place.is_free && is_near {
            // Nobody has taken the free slot: the programs before this one may ask for more slots than are free.
            return Ok(None);
        }
        if is_unchanged && self.seen.times < UNCHANGED {
            self.seen.times += 1;
            return Ok(Some(self.place));
        }
        let keys = self.consul.keys(&self.asked.prefix.folder(), "").await?;
        self.seen = Seen { index, times: 0 };
        let lock = Lock::read(self.asked.mode, entry.as_ref());
        let place = self.ahead.place(&keys.keys, &lock);
        let becomes_ready = |place: &Place| {
            let is_ready = |before| self.asked.is_ready_behind(before);
            is_ready(place.before) && !is_ready(self.ahead.before)
        };
        // The engine finds out by a reading that the program has become ready. That ends this once at most, because
        // the program is ready at the next beginning.
        Ok(place.filter(|place| place.left > 0 && !becomes_ready(place)))
    }

    /// `.lock` once it has changed, or has not for a while.
    async fn next_change(&mut self) -> Result<Option<Entry>, consul::Error> {
        let key = self.asked.prefix.lock_key();
        let consul = &self.consul;
        let changes = self.changes.get_or_insert_with(|| {
            let options = WatchOptions {
                wait: WAIT,
                shares_turns: true,
                ..WatchOptions::default()
            };
            consul.readings(&key, options)
        });
        let Some(listing) = changes.recv().await else {
            return Ok(None);
        };
        let listing = listing?;
        let entry = listing.entries.iter().find(|entry| entry.key == key);
        Ok(entry.map(|entry| Entry::clone(entry)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, samples};
    use consul_client::{Listing, clock::Moment};

    /// `p` with two slots, these holders, and these who wait.
    fn reading(holders: &[&str], waiting: &[String]) -> Reading {
        let contender = |name: &str| samples::entry(&format!("p/{name}"), Some(name), "");
        let mut entries = vec![samples::entry("p/.lock", None, &body(2, holders))];
        entries.extend(holders.iter().map(|name| contender(name)));
        entries.extend(waiting.iter().map(|name| contender(name)));
        let listing = Listing {
            entries: entries.into(),
            index: 9,
            sent: Moment::now(),
            reset: false,
        };
        Reading::new("p".parse().unwrap(), Mode::Semaphore, listing)
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

    /// The last of ten who wait, behind two holders.
    fn last_of_ten() -> Ahead {
        let reading = reading(&["h", "i"], &waiting(10));
        Ahead::behind(&reading, 9, &"w9".into())
    }

    /// Where the last of ten stands once so many of those before are gone.
    fn place(gone: usize, lock: &Lock) -> Option<Place> {
        let mut names = waiting(10).split_off(gone);
        names.extend(["h", "i"].map(str::to_owned));
        last_of_ten().place(&keys(&names), lock)
    }

    fn left(gone: usize, lock: &Lock) -> Option<usize> {
        place(gone, lock).map(|place| place.left)
    }

    #[test]
    fn how_many_are_near_follows_the_limit_within_bounds() {
        let limits = [Some(1), Some(9), Some(5000), None];
        assert_eq!(limits.map(near), [4, 9, 16, 4]);
    }

    #[test]
    fn who_was_served_or_left_is_not_ahead_any_more() {
        let holds = lock(2, &["h", "i"]);
        assert_eq!(left(0, &holds), Some(9));
        assert_eq!(left(2, &holds), Some(7));
        // Granted, and there.
        assert_eq!(left(2, &lock(2, &["w2", "w3"])), Some(5));
        assert_eq!(left(9, &holds), Some(0), "it is next");
    }

    #[test]
    fn free_slots_and_those_of_the_dead_bring_everybody_nearer() {
        assert_eq!(left(0, &lock(2, &["h"])), Some(8));
        assert_eq!(left(0, &lock(2, &[])), Some(7));
        let dead = place(0, &lock(2, &["h", "gone"])).unwrap();
        assert_eq!((dead.left, dead.is_free), (8, true));
        assert!(!place(0, &lock(2, &["h", "i"])).unwrap().is_free);
    }

    #[test]
    fn slots_that_were_free_and_not_for_it_bring_nobody_nearer() {
        let ahead = Ahead::behind(&reading(&["h"], &waiting(10)), 9, &"w9".into());
        let all = keys(&[waiting(10), vec!["h".to_owned()]].concat());
        let left = |lock| ahead.place(&all, &lock).map(|place| place.left);
        assert_eq!(left(lock(2, &["h"])), Some(9));
        assert_eq!(left(lock(2, &[])), Some(8));
        assert_eq!(left(lock(2, &["h", "w0"])), Some(8));
    }

    #[test]
    fn what_only_a_reading_can_tell_ends_it() {
        let holds = ["h", "i"];
        assert_eq!(left(0, &lock(3, &holds)), None, "the limit");
        assert_eq!(left(0, &Lock::read(Mode::Semaphore, None)), None);
        let without_own = keys(&waiting(9));
        let place = last_of_ten().place(&without_own, &lock(2, &holds));
        assert_eq!(place, None, "its session");
    }

    #[test]
    fn nobody_comes_nearer_while_the_lock_cannot_be_read() {
        let broken = || {
            let entry = samples::entry("p/.lock", None, "{");
            Lock::read(Mode::Semaphore, Some(&entry))
        };
        let ahead = Ahead {
            limit: limit_of(&broken()),
            ..last_of_ten()
        };
        let all = keys(&waiting(10));
        let left = |lock| ahead.place(&all, &lock).map(|place| place.left);
        assert_eq!(left(broken()), Some(9));
        assert_eq!(left(Lock::read(Mode::Semaphore, None)), None);
        assert_eq!(left(lock(2, &["h", "i"])), None, "it can be read again");
    }

    #[test]
    fn the_next_look_comes_before_the_turn_can_be_near() {
        let mut pause = Pause::new(100);
        assert_eq!(pause.length(0.0), 100 * FASTEST);
        assert_eq!(pause.length(1.0), 75 * FASTEST);
        pause.note(2);
        assert_eq!(pause.length(0.0), MOVING);
        let still: Vec<_> = (0..5)
            .map(|_| {
                pause.note(2);
                pause.length(0.0).as_millis()
            })
            .collect();
        assert_eq!(still, [200, 400, 800, 1000, 1000], "it stands still");
        pause.note(1);
        assert_eq!(pause.length(0.0), MOVING);
        assert_eq!(Pause::new(usize::MAX).length(0.0), LONGEST);
        assert!(
            STILL < crate::turns::WINDOW,
            "nobody sleeps through its turn"
        );
    }
}
