//! Tracks how long the slots of finished workloads stay held.
//!
//! The contender's body has the cooldown from the grant on. When the workload is proved to be done, the operator also
//! writes the end of the cooldown there. The end is wall-clock time, for people, for other programs, and for the
//! operator after a restart.

use std::{collections::BTreeMap, time::Duration};

use super::{fate::OwnContender, identity::ContenderBody, reading::Reading, workload::Phase};
use crate::LONGEST_COOLDOWN;
use consul_client::{SessionId, clock::Moment};

impl ContenderBody {
    /// Returns how long the slot stays held once the workload is done. The result is no more than a spec can ask for,
    /// because everyone who may write the key may have written anything there.
    pub fn cooldown(&self) -> Duration {
        Duration::from_secs(self.cooldown).min(Duration::from_secs(LONGEST_COOLDOWN))
    }

    /// Returns how much longer the slot cools down, if the end is written. The result is at most one cooldown,
    /// however wrong the clock is.
    fn left(&self, time: jiff::Timestamp) -> Option<Duration> {
        let left = self.cools_until?.duration_since(time);
        Some(
            Duration::try_from(left)
                .unwrap_or_default()
                .min(self.cooldown()),
        )
    }
}

/// Ends of the cooldowns of our slots.
///
/// The wall clock is read once, when this process first reads the end of a cooldown. After that the process uses its
/// monotonic clock, which nobody can set, so a jump of the wall clock changes nothing while the process lives. After
/// a restart the slot may be free too early, or too late by one cooldown at most.
#[derive(Clone, Debug, Default)]
pub struct Cooldowns(BTreeMap<SessionId, Moment>);

impl Cooldowns {
    /// Records what this reading says about our contenders, and forgets those that no longer exist. `time` is the
    /// current wall-clock time.
    pub fn observe(
        &mut self,
        reading: &Reading,
        ours: &[OwnContender],
        now: Moment,
        time: jiff::Timestamp,
    ) {
        let mut before = std::mem::take(&mut self.0);
        for ours in ours {
            let known = before.remove(&ours.session);
            let end = known.or_else(|| end_of(reading, ours, now, time));
            if let Some(end) = end {
                self.0.insert(ours.session.clone(), end);
            }
        }
    }

    /// Takes over when the slots of a rate become free, because they stay held like slots in their cooldown.
    pub fn take<'a>(&mut self, ends: impl Iterator<Item = (&'a SessionId, Moment)>) {
        self.0 = ends.map(|(session, end)| (session.clone(), end)).collect();
    }

    /// Returns the number of our slots that cool down.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns when each of these slots becomes free.
    pub fn ends(&self) -> impl Iterator<Item = Moment> {
        self.0.values().copied()
    }

    /// Returns when the slot of this session becomes free, or `None` if the slot is not in its cooldown.
    pub fn end(&self, session: &SessionId) -> Option<Moment> {
        self.0.get(session).copied()
    }
}

/// Returns when a contender's slot becomes free, if the end is written.
fn end_of(
    reading: &Reading,
    ours: &OwnContender,
    now: Moment,
    time: jiff::Timestamp,
) -> Option<Moment> {
    let phase = ours.workload.as_ref().map(|workload| workload.phase);
    // There can be no end yet. This check saves parsing the bodies of all holders again and again.
    if let Some(Phase::Running | Phase::Stopping) = phase {
        return None;
    }
    let contender = reading.contender(&ours.session)?;
    let left = ContenderBody::read(&contender.value)?.left(time)?;
    Some(now + left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, lock::SEMAPHORE_FLAGS, samples};
    use consul_client::{Entry, Listing};

    const COOLDOWN: u64 = 60;

    fn time(second: i64) -> jiff::Timestamp {
        samples::time(0) + jiff::SignedDuration::from_secs(second)
    }

    fn second(since: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(since))
    }

    fn body(cools_until: Option<jiff::Timestamp>) -> ContenderBody {
        let settings = samples::settings(1);
        let ours = samples::ours("s", None);
        ContenderBody {
            cooldown: COOLDOWN,
            cools_until,
            ..ContenderBody::new(&settings.cluster, &ours.identity, time(0), false)
        }
    }

    fn reading(body: &ContenderBody) -> Reading {
        let contender = Entry {
            key: "p/s".into(),
            value: serde_json::to_vec(body).unwrap(),
            flags: SEMAPHORE_FLAGS,
            session: Some("s".into()),
            lock_index: 1,
            create_index: 3,
            modify_index: 5,
        };
        let listing = Listing {
            entries: vec![contender].into(),
            index: 5,
            sent: second(0),
            reset: false,
        };
        Reading::new("p".parse().unwrap(), Mode::Semaphore, listing)
    }

    /// Returns when the slot becomes free for a process that first reads the end at `read`, while its wall clock
    /// shows `clock`.
    fn end(until: Option<jiff::Timestamp>, read: u64, clock: i64) -> Option<Moment> {
        let mut cooldowns = Cooldowns::default();
        let ours = [samples::ours("s", None)];
        cooldowns.observe(&reading(&body(until)), &ours, second(read), time(clock));
        cooldowns.end(&"s".into())
    }

    #[test]
    fn the_end_is_what_is_written_wherever_the_clock_is_right() {
        assert_eq!(end(Some(time(60)), 100, 0), Some(second(160)));
        assert_eq!(end(Some(time(60)), 100, 45), Some(second(115)));
        assert_eq!(end(Some(time(60)), 100, 60), Some(second(100)));
        assert_eq!(end(None, 100, 0), None);
    }

    #[test]
    fn a_clock_that_jumped_over_a_restart_frees_it_now_or_after_one_cooldown() {
        assert_eq!(end(Some(time(60)), 100, 9_999), Some(second(100)));
        let late = Some(second(100 + COOLDOWN));
        assert_eq!(end(Some(time(60)), 100, -9_999), late);
        assert_eq!(end(Some(jiff::Timestamp::MAX), 100, 0), late);
    }

    #[test]
    fn a_clock_that_jumps_changes_nothing_while_the_process_lives() {
        let mut cooldowns = Cooldowns::default();
        let ours = [samples::ours("s", None)];
        let reading = reading(&body(Some(time(60))));
        cooldowns.observe(&reading, &ours, second(100), time(0));
        for clock in [9_999, -9_999] {
            cooldowns.observe(&reading, &ours, second(101), time(clock));
            assert_eq!(cooldowns.end(&"s".into()), Some(second(160)));
        }
        cooldowns.observe(&reading, &[], second(102), time(2));
        assert_eq!(cooldowns.end(&"s".into()), None, "it is gone");
    }

    #[test]
    fn nobody_has_a_slot_cool_for_longer_than_a_spec_can() {
        let long = ContenderBody {
            cooldown: u64::MAX,
            ..body(None)
        };
        assert_eq!(long.cooldown(), Duration::from_hours(24));
    }
}
