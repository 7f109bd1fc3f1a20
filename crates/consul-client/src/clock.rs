//! Defines moments on a clock that never jumps and that also runs while the machine sleeps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The clock that runs while the machine sleeps. `CLOCK_MONOTONIC` does so on Apple's systems, but not on Linux.
#[cfg(target_vendor = "apple")]
const BOOT_CLOCK: ClockId = ClockId::Monotonic;
#[cfg(not(target_vendor = "apple"))]
const BOOT_CLOCK: ClockId = ClockId::Boottime;

/// A moment on the machine's boot-time clock (Linux `CLOCK_BOOTTIME`), with nanosecond resolution.
///
/// Evidence that a slot is held is judged by this clock: unlike [`std::time::Instant`] it continues during a suspend,
/// as Consul's timers do, and unlike the wall clock it can't be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

/// Time from the first moment to the boot of the machine: ten years. There are moments before the boot because what
/// another process recorded before the boot may still count.
const BEFORE_BOOT: Duration = Duration::from_hours(10 * 365 * 24);

impl Moment {
    /// The last moment that exists.
    pub const END: Self = Self(Duration::MAX);

    /// Returns the present moment.
    pub fn now() -> Self {
        let time = clock_gettime(BOOT_CLOCK);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Self(BEFORE_BOOT + Duration::new(seconds, nanos))
    }

    /// Returns the moment this long after the first one: for tests and models, which have a clock of their own.
    pub const fn from_boot(since: Duration) -> Self {
        Self(since)
    }

    /// Returns the moment this long before `self`, at the earliest the first one, years before the machine booted.
    #[must_use]
    pub fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }

    /// Returns the time from the moment `earlier` to `self`; zero if `earlier` is not before `self`.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Returns the wall-clock time, for people: in status, events, bodies and logs. `docs/guarantees.md` lists under
/// "Clocks" what may be decided by this time.
#[expect(clippy::disallowed_methods, reason = "the one place for the others")]
pub fn time() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_never_goes_back() {
        let earlier = Moment::now();
        assert!(Moment::now() >= earlier);
    }

    #[test]
    fn a_moment_before_the_boot_is_as_long_ago_as_it_was() {
        let (now, year) = (Moment::now(), Duration::from_hours(365 * 24));
        assert_eq!(now.since(now.before(year)), year);
    }

    #[test]
    fn an_interval_is_never_negative() {
        let boot = Moment::from_boot(Duration::ZERO);
        let later = boot + Duration::from_secs(3);
        assert_eq!(later.since(boot), Duration::from_secs(3));
        assert_eq!(boot.since(later), Duration::ZERO);
    }
}
