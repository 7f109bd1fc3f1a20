//! How a program waits whose turn is far: it looks now and then how many of those before it are left.
//!
//! A look reads `.lock` and, if that has changed, the keys below the prefix, without the values that make a full reading
//! large. Both say who does not wait any more: who was granted a slot is in `.lock`, and who is gone has no key. The
//! connections are closed afterwards.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{sync::mpsc, time::sleep};

use super::{program::Program, request::SlotsOf};
use crate::{ContenderBody, Lock, Reading};
use consul_client::{self as consul, Backoff, Client, Listing, SessionId};

/// Those for whom fewer slots than this must come free first are near, whatever the limit is: enough for the next ones
/// to be ready while the first ones are served.
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

/// Between looks that fail. Consul may be busy because of those who look.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), LONGEST);

/// After so many failures in a row the program is told.
const TOLD_AFTER: u32 = 3;

/// Whether so many slots before a program make its turn far at a semaphore with this limit.
pub(super) fn is_far(before: usize, limit: u32) -> bool {
    before >= near(limit)
}

/// Fewer slots than this before a program make its turn near.
fn near(limit: u32) -> usize {
    usize::try_from(limit)
        .unwrap_or(usize::MAX)
        .clamp(NEAR, MOST_NEAR)
}

/// Those who wait at the prefix, when the program found that its turn is far.
#[derive(Debug)]
pub(super) struct Ahead {
    /// For how many slots others wait before.
    before: usize,
    /// For how many slots each of the others waits, also those who come after.
    waiting: BTreeMap<SessionId, usize>,
    /// The program's own contender.
    own: SessionId,
    limit: u32,
}

impl Ahead {
    /// What a reading shows to a program before which others wait for this many slots; `None` if it does not show the
    /// program's contender yet, or no semaphore.
    pub(super) fn of(reading: &Reading, before: usize, program: &Program) -> Option<Self> {
        let Lock::Semaphore { body, .. } = reading.lock() else {
            return None;
        };
        let mut sessions = program.sessions.keys();
        let own = sessions.find(|session| reading.contender(session).is_some())?;
        Some(Self::behind(reading, before, own, body.limit()))
    }

    fn behind(reading: &Reading, before: usize, own: &SessionId, limit: u32) -> Self {
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
            limit,
        }
    }

    /// How many slots must come free until the turn is near, given the keys below the prefix and `.lock`; `None` if only
    /// a reading can tell. Everyone who does not wait any more counts as one who came before: that is too soon rather
    /// than too late.
    fn left(&self, keys: &[String], lock: &Lock) -> Option<usize> {
        let Lock::Semaphore { body, .. } = lock else {
            return None;
        };
        let names = keys.iter().filter_map(|key| Some(key.rsplit_once('/')?.1));
        let there: BTreeSet<&str> = names.collect();
        if !there.contains(self.own.as_str()) || body.limit() != self.limit {
            return None;
        }
        let served = |session: &SessionId| !there.contains(session.as_str()) || body.holds(session);
        let gone = self.waiting.iter().filter(|(session, _)| served(session));
        let gone: usize = gone.map(|(_, slots)| slots).sum();
        let before = self.before.saturating_sub(gone);
        let left = before.saturating_sub(body.room());
        left.checked_sub(near(self.limit)).map(|left| left + 1)
    }
}

/// How long until the next look.
#[derive(Debug)]
struct Pause {
    /// How many slots must come free until the turn is near.
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

    /// The time in which the turn can't come near, shortened by up to a quarter so that not all look at once.
    fn length(&self, jitter: f64) -> Duration {
        let left = u32::try_from(self.left).unwrap_or(u32::MAX);
        let pause = FASTEST.saturating_mul(left);
        let pause = pause.max(self.shortest).min(LONGEST);
        pause.mul_f64(jitter.mul_add(-0.25, 1.0))
    }

    async fn wait(&self) {
        sleep(self.length(fastrand::f64())).await;
    }
}

type News = mpsc::Sender<Result<Listing, consul::Error>>;

/// Begins to approach the turn. What is received closes once the turn is near, or only a reading can tell whether it is;
/// before that, an error comes if Consul can't be asked for long.
pub(super) fn begin(
    consul: &Client,
    asked: &SlotsOf,
    ahead: Ahead,
) -> mpsc::Receiver<Result<Listing, consul::Error>> {
    let (news, receiver) = mpsc::channel(1);
    let approach = Approach {
        consul: consul.without_idle_connections(),
        asked: asked.clone(),
        news,
    };
    tokio::spawn(async move {
        tokio::select! {
            () = approach.news.closed() => {}
            () = approach.look_until_near(&ahead) => {}
        }
    });
    receiver
}

struct Approach {
    consul: Client,
    asked: SlotsOf,
    news: News,
}

impl Approach {
    /// Looks now and then, until the turn is near.
    async fn look_until_near(&self, ahead: &Ahead) {
        let left = (ahead.before + 1).saturating_sub(near(ahead.limit));
        let (mut pause, mut seen) = (Pause::new(left), Seen::default());
        let mut failures = BACKOFF;
        let mut told = false;
        pause.wait().await;
        loop {
            match self.look(ahead, &mut seen, pause.left).await {
                // Whoever was told of a failure is to know that it is over.
                Ok(Some(left)) if !told => {
                    failures.reset();
                    pause.note(left);
                    pause.wait().await;
                }
                Ok(_) => return,
                Err(error) => {
                    let wait = failures.pause();
                    if failures.tries() >= TOLD_AFTER {
                        told = true;
                        // An error means that nobody wants to know any more, which ends this.
                        let _ = self.news.send(Err(error)).await;
                    }
                    sleep(wait).await;
                }
            }
        }
    }

    /// How many slots must come free now, where it was so many at the last look; `None`: the turn is near, or only a
    /// reading can tell.
    async fn look(
        &self,
        ahead: &Ahead,
        seen: &mut Seen,
        before: usize,
    ) -> Result<Option<usize>, consul::Error> {
        let prefix = &self.asked.prefix;
        let entry = self.consul.get(&prefix.lock_key()).await?;
        let index = entry.as_ref().map_or(0, |entry| entry.modify_index);
        if seen.index == index && seen.times < UNCHANGED {
            seen.times += 1;
            return Ok(Some(before));
        }
        let keys = self.consul.keys(&prefix.folder(), "").await?;
        *seen = Seen { index, times: 0 };
        let lock = Lock::read(self.asked.mode, entry.as_ref());
        Ok(ahead.left(&keys.keys, &lock))
    }
}

/// `.lock` as the last looks have seen it.
#[derive(Default)]
struct Seen {
    /// Its `ModifyIndex`.
    index: u64,
    /// How often it was unchanged since the keys were read.
    times: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, samples};
    use consul_client::clock::Moment;

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
        Ahead::behind(&reading, 9, &"w9".into(), 2)
    }

    #[test]
    fn how_many_are_near_follows_the_limit_within_bounds() {
        let near = |limit| (0..100).filter(|before| !is_far(*before, limit)).count();
        assert_eq!([1, 2, 9, 5000].map(near), [4, 4, 9, 16]);
    }

    #[test]
    fn who_was_served_or_left_is_not_ahead_any_more() {
        let ahead = last_of_ten();
        let all = waiting(10);
        let left = |gone: usize, lock: &Lock| ahead.left(&keys(&all[gone..]), lock);
        let holds = lock(2, &["h", "i"]);
        assert_eq!(left(0, &holds), Some(6));
        assert_eq!(left(2, &holds), Some(4));
        // Granted, and there.
        assert_eq!(left(2, &lock(2, &["w2", "w3"])), Some(2));
        assert_eq!(left(5, &holds), Some(1));
        assert_eq!(left(6, &holds), None, "it is near");
    }

    #[test]
    fn free_slots_bring_everybody_nearer() {
        let ahead = last_of_ten();
        let left = |lock| ahead.left(&keys(&waiting(10)), &lock);
        assert_eq!(left(lock(2, &["h"])), Some(5));
        assert_eq!(left(lock(2, &[])), Some(4));
    }

    #[test]
    fn what_only_a_reading_can_tell_ends_it() {
        let ahead = last_of_ten();
        let all = keys(&waiting(10));
        assert_eq!(ahead.left(&all, &lock(3, &["h", "i"])), None, "the limit");
        assert_eq!(ahead.left(&all, &Lock::read(Mode::Semaphore, None)), None);
        assert_eq!(
            ahead.left(&all[..9], &lock(2, &["h", "i"])),
            None,
            "its session"
        );
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
