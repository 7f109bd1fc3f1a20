//! Remembers the facts about a mutex, between passes, that its key does not show: the contenders for a mutex own
//! nothing that can be seen, and the lock-delay of a dead holder shows only when somebody tries to lock the key.

use std::time::Duration;

use super::{
    Reading,
    lock::{Lock, Unreadable},
};
use consul_client::{SessionId, clock::Moment};

/// Number of times in a row that this operator takes the key while others may be waiting for it.
pub const MOST_TURNS_IN_A_ROW: u32 = 8;

/// Time for which the key is left to others after so many turns in a row: many times what a waiting client needs to
/// see that the key is free.
const LEAVE_TO_OTHERS_FOR: Duration = Duration::from_millis(500);

/// The pauses between tries to lock a key in its lock-delay: from the first to the longest.
const LOCK_RETRY_PAUSES: (Duration, Duration) =
    (Duration::from_millis(250), Duration::from_secs(2));

/// The remembered facts about one mutex.
#[derive(Clone, Debug, Default)]
pub struct MutexMemory {
    /// The index of the key while the key is unlocked or the semaphore there is unused, and the time since when this
    /// was seen.
    unused: Option<(u64, Moment)>,
    /// The session with which this operator last locked the key.
    last: Option<SessionId>,
    /// Number of times in a row that this operator locked the key.
    in_a_row: u32,
    /// The time until which not to try the key again, and the length of the pause, if Consul refused to lock the key
    /// because its last holder died.
    delayed: Option<(Moment, Duration)>,
}

impl MutexMemory {
    /// Records who has locked the key.
    pub fn observe(&mut self, reading: &Reading, now: Moment) {
        let unused = match reading.lock() {
            Lock::Mutex {
                holder: None,
                index,
                ..
            }
            | Lock::Unreadable(Unreadable::LeftOver { index }) => Some(*index),
            Lock::Semaphore { body, index }
                if body.held() == 0 && reading.contenders().next().is_none() =>
            {
                Some(*index)
            }
            _ => None,
        };
        let since = self.unused.filter(|(index, _)| unused == Some(*index));
        self.unused = unused.map(|index| since.unwrap_or((index, now)));
        if let Lock::Mutex {
            holder: Some(holder),
            ..
        } = reading.lock()
        {
            self.delayed = None;
            if self.last.as_ref() != Some(holder) {
                self.in_a_row = 0;
            }
        }
    }

    /// Records that the key was locked for this session.
    pub fn took(&mut self, session: &SessionId, now: Moment) {
        let left = self.left_until().is_some_and(|until| until <= now);
        self.in_a_row = if left { 1 } else { self.in_a_row + 1 };
        self.last = Some(session.clone());
    }

    /// Records that the key can't be locked yet. The pause before the next attempt grows each time, and is shortened
    /// by up to a half: `jitter` is from 0 to 1.
    pub fn delay(&mut self, now: Moment, jitter: f64) {
        let (first, longest) = LOCK_RETRY_PAUSES;
        // The last attempt no longer counts if it was long ago.
        let before = self.delayed.filter(|(until, _)| *until + longest > now);
        let pause = before.map_or(first, |(_, before)| (before * 2).min(longest));
        let shortened = pause.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0);
        self.delayed = Some((now + shortened, pause));
    }

    /// Whether the key is in its lock-delay, as far as is known, because its last holder died.
    pub fn is_delayed(&self, now: Moment) -> bool {
        self.rests_until().is_some_and(|until| until > now)
    }

    /// Returns the time until which the key is not tried, because of its lock-delay.
    pub(super) fn rests_until(&self) -> Option<Moment> {
        self.delayed.map(|(until, _)| until)
    }

    /// Returns the time since when the key is unlocked, or the semaphore there is unused, as far as was seen.
    pub(super) fn unused_since(&self) -> Option<Moment> {
        self.unused.map(|(_, since)| since)
    }

    /// Whether this operator has taken the key so many times in a row that it is the others' turn.
    pub(super) fn is_others_turn(&self) -> bool {
        self.in_a_row >= MOST_TURNS_IN_A_ROW
    }

    /// Returns the time until which the key is left to others, if it is their turn; `None` while the key is locked.
    pub(super) fn left_until(&self) -> Option<Moment> {
        self.unused_since().map(|since| since + LEAVE_TO_OTHERS_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, lock::MUTEX_FLAGS};
    use consul_client::{Entry, Listing};

    fn at(millis: u64) -> Moment {
        Moment::from_boot(Duration::from_millis(millis))
    }

    /// The key, locked or not, last written at this index; 0: it does not exist.
    fn key(index: u64, holder: Option<&str>) -> Reading {
        let entry = Entry {
            key: "p/.lock".into(),
            value: Vec::new(),
            flags: MUTEX_FLAGS,
            session: holder.map(Into::into),
            lock_index: 1,
            create_index: 1,
            modify_index: index,
        };
        let listing = Listing {
            entries: (index > 0).then_some(entry).into_iter().collect(),
            index: 1,
            sent: at(0),
            reset: false,
        };
        Reading::new("p".parse().unwrap(), Mode::Mutex, listing)
    }

    #[test]
    fn after_many_turns_in_a_row_it_is_others_turn() {
        let mut memory = MutexMemory::default();
        for turn in 1..=MOST_TURNS_IN_A_ROW {
            assert!(!memory.is_others_turn(), "{turn}");
            let session = format!("s{turn}");
            memory.took(&session.as_str().into(), at(1));
            memory.observe(&key(7, Some(&session)), at(1));
        }
        assert!(memory.is_others_turn());
        assert_eq!(memory.left_until(), None, "it is held");
        memory.observe(&key(0, None), at(2));
        memory.observe(&key(0, None), at(300));
        assert_eq!(memory.left_until(), Some(at(502)), "since it is free");

        let mut left_to_others = memory.clone();
        left_to_others.took(&"s".into(), at(502));
        assert!(!left_to_others.is_others_turn(), "nobody came");
        memory.observe(&key(9, Some("other")), at(400));
        assert!(!memory.is_others_turn(), "somebody came");
    }

    #[test]
    fn turns_count_whether_or_not_the_key_was_free_for_a_moment_between() {
        let mut memory = MutexMemory::default();
        for _ in 0..MOST_TURNS_IN_A_ROW {
            memory.observe(&key(0, None), at(1));
            memory.took(&"s".into(), at(2));
            memory.observe(&key(7, Some("s")), at(2));
        }
        assert!(memory.is_others_turn());
    }

    #[test]
    fn a_key_that_is_written_again_is_unused_since_then() {
        let mut memory = MutexMemory::default();
        memory.observe(&key(7, None), at(1));
        memory.observe(&key(7, None), at(2));
        assert_eq!(memory.unused_since(), Some(at(1)));
        memory.observe(&key(8, None), at(3));
        assert_eq!(memory.unused_since(), Some(at(3)));
    }

    #[test]
    fn a_key_that_rests_is_asked_for_at_growing_pauses() {
        let mut memory = MutexMemory::default();
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            memory.delay(now, 0.0);
            let until = memory.rests_until().unwrap();
            pauses.push(until.since(now).as_millis());
            now = until;
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 2000, 2000]);
        memory.delay(now, 1.0);
        assert_eq!(memory.rests_until(), Some(now + Duration::from_secs(1)));
        memory.observe(&key(0, None), now);
        assert!(memory.is_delayed(now), "that it is free does not end it");
        memory.observe(&key(9, Some("other")), now);
        assert!(!memory.is_delayed(now));

        memory.delay(now, 0.0);
        now = now + Duration::from_mins(1);
        memory.delay(now, 0.0);
        let pause = memory.rests_until().unwrap().since(now);
        assert_eq!(pause, Duration::from_millis(250), "it is another death");
    }
}
