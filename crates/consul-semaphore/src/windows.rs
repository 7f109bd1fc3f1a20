//! Decides when slots are granted: in windows that open by a schedule.
//!
//! A schedule is read as the clock on a wall in its time zone shows the time, so a change to or from daylight saving
//! time neither skips nor doubles a window. If a time does not exist on a day, the window opens at the moment of the
//! change. If a time comes twice, the window opens at the first of the two, even with a schedule of every hour.

use std::{sync::Arc, time::Duration};

use cronexpr::{Crontab, FallbackTimezoneOption, MakeTimestamp, ParseOptions};
use jiff::{
    SignedDuration, Timestamp,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};

/// The pause between two readings of the wall clock before a window opens or closes, because somebody may set the
/// clock.
const READ_CLOCK_AGAIN_AFTER: Duration = Duration::from_mins(5);

/// The longest text of a schedule, in bytes.
pub const LONGEST_SCHEDULE: usize = 100;

/// A window, as a user writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowSpec {
    /// The schedule by which the window opens: the five fields of cron.
    pub schedule: String,
    /// The time for which the window stays open.
    pub duration: Duration,
    /// The name of the schedule's time zone in the IANA database; `None`: UTC.
    pub time_zone: Option<String>,
    /// The number of slots that may be held after a grant in the window; `None`: as many as the semaphore has.
    pub limit: Option<u32>,
}

/// The reason why a window never opens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeverOpens {
    /// The schedule can't be read.
    #[error(
        "the schedule {0:?} is not valid: it must be five fields, minute, hour, day of month, month and day of week, such as \"0 22 * * *\""
    )]
    Schedule(String),
    /// The time zone is not known.
    #[error(
        "the time zone {0:?} is not known: it must be a name of the IANA database, such as Europe/Berlin"
    )]
    TimeZone(String),
    /// No time fits the schedule.
    #[error("no time within four years fits the schedule {0:?}")]
    NoTime(String),
}

/// A window whose schedule was understood.
#[derive(Clone, Debug)]
struct ValidWindow {
    /// The schedule, on a clock that knows no time zone.
    schedule: Crontab,
    zone: TimeZone,
    duration: SignedDuration,
    limit: Option<u32>,
}

/// The windows of a semaphore. Without any, slots are always granted.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    /// The windows as they were read, which the clones of all keys of a semaphore share.
    read: Arc<WindowList>,
    /// The last result, and the time for which it was evaluated. The result holds until it may change.
    known: Option<(Timestamp, Opening)>,
}

/// Windows as they were read.
#[derive(Debug, Default)]
struct WindowList {
    specs: Vec<WindowSpec>,
    understood: Vec<ValidWindow>,
    /// The windows that never open, by their place in the list.
    invalid: Vec<(usize, NeverOpens)>,
}

impl PartialEq for Windows {
    fn eq(&self, other: &Self) -> bool {
        self.read.specs == other.read.specs
    }
}

impl Eq for Windows {}

/// Whether slots are granted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Slots are granted at any time, because there are no windows.
    Always,
    /// Slots are granted, because a window is open.
    Open {
        /// The number of slots that may be held after a grant; `None`: as many as the semaphore has.
        limit: Option<u32>,
        /// Time at which this state may change.
        until: Timestamp,
    },
    /// Slots are not granted, because no window is open.
    Closed {
        /// Time at which the next window opens, if one ever does.
        until: Option<Timestamp>,
    },
}

impl Opening {
    /// Whether slots are granted.
    pub fn is_open(&self) -> bool {
        !matches!(self, Self::Closed { .. })
    }

    /// Returns how many slots of a semaphore with this limit may be held after a grant.
    pub fn limit(&self, limit: u32) -> u32 {
        match self {
            Self::Always | Self::Open { limit: None, .. } => limit,
            Self::Open {
                limit: Some(here), ..
            } => limit.min(*here),
            Self::Closed { .. } => 0,
        }
    }

    /// Whether slots are granted now or later.
    pub fn can_open(&self) -> bool {
        !matches!(self, Self::Closed { until: None })
    }

    /// Returns how long it takes until this state may change, or until the wall clock must be read again, because
    /// somebody may set it; `None`: the state never changes.
    pub fn changes_in(&self, now: Timestamp) -> Option<Duration> {
        let left = self.until()?.duration_since(now);
        Some(
            Duration::try_from(left)
                .unwrap_or_default()
                .min(READ_CLOCK_AGAIN_AFTER),
        )
    }

    /// Returns when this state may change; `None`: never.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Always => None,
            Self::Open { until, .. } => Some(*until),
            Self::Closed { until } => *until,
        }
    }
}

impl Windows {
    /// Reads windows. A window that can't be read never opens.
    pub fn new(specs: Vec<WindowSpec>, now: Timestamp) -> Self {
        let (mut understood, mut invalid) = (Vec::new(), Vec::new());
        for (place, spec) in specs.iter().enumerate() {
            match ValidWindow::new(spec, now) {
                Ok(window) => understood.push(window),
                Err(why) => invalid.push((place, why)),
            }
        }
        let read = WindowList {
            specs,
            understood,
            invalid,
        };
        Self {
            read: Arc::new(read),
            known: None,
        }
    }

    /// Returns the windows that never open, by their place in the list, which begins at 0.
    pub fn invalid(&self) -> &[(usize, NeverOpens)] {
        &self.read.invalid
    }

    /// Whether there are no windows.
    pub fn is_empty(&self) -> bool {
        self.read.specs.is_empty()
    }

    /// Returns the largest number of slots that any window allows, of a semaphore with this limit.
    pub fn most(&self, limit: u32) -> u32 {
        let windows = self.read.understood.iter();
        let limits = windows.map(|window| window.limit.map_or(limit, |here| here.min(limit)));
        limits.max().unwrap_or(limit)
    }

    /// Whether slots are granted at this time. If several windows are open, the largest of their limits counts.
    pub fn at(&self, now: Timestamp) -> Opening {
        self.known_at(now).unwrap_or_else(|| self.evaluate(now))
    }

    /// Evaluates the schedules, unless the last result still holds. Until the result changes, [`Self::at`] then
    /// evaluates nothing, however often it is called.
    pub fn refresh(&mut self, now: Timestamp) {
        if self.known_at(now).is_none() {
            self.known = Some((now, self.evaluate(now)));
        }
    }

    /// Returns the last result, if it also holds at this time. Somebody may have set the clock back.
    fn known_at(&self, now: Timestamp) -> Option<Opening> {
        if self.is_empty() {
            return Some(Opening::Always);
        }
        let (from, opening) = self.known?;
        let holds = from <= now && opening.until().is_none_or(|until| now < until);
        holds.then_some(opening)
    }

    fn evaluate(&self, now: Timestamp) -> Opening {
        let (mut limits, mut until) = (Vec::new(), None::<Timestamp>);
        for window in &self.read.understood {
            let Some(opens) = window.first_open_after(now) else {
                continue;
            };
            let changes = if opens <= now {
                limits.push(window.limit);
                opens.checked_add(window.duration).unwrap_or(Timestamp::MAX)
            } else {
                opens
            };
            until = Some(until.map_or(changes, |until| until.min(changes)));
        }
        match (limits.is_empty(), until) {
            (false, Some(until)) => Opening::Open {
                limit: limits
                    .into_iter()
                    .try_fold(0, |most, limit| Some(limit?.max(most))),
                until,
            },
            _ => Opening::Closed { until },
        }
    }
}

impl ValidWindow {
    fn new(spec: &WindowSpec, now: Timestamp) -> Result<Self, NeverOpens> {
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::UTC;
        let text = &spec.schedule;
        // A sixth field would be a time zone.
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let known = fields.len() == 5 && fields.iter().all(|field| is_of_cron(field));
        let schedule = (text.len() <= LONGEST_SCHEDULE && known)
            .then(|| cronexpr::parse_crontab_with(text, options).ok())
            .flatten()
            .ok_or_else(|| NeverOpens::Schedule(text.clone()))?;
        let zone = match &spec.time_zone {
            None => TimeZone::UTC,
            Some(name) => {
                TimeZone::get(name).map_err(|_unknown| NeverOpens::TimeZone(name.clone()))?
            }
        };
        let window = Self {
            schedule,
            zone,
            duration: SignedDuration::try_from(spec.duration).unwrap_or(SignedDuration::MAX),
            limit: spec.limit,
        };
        match window.opens_after(now) {
            Some(_) => Ok(window),
            None => Err(NeverOpens::NoTime(text.clone())),
        }
    }

    /// Returns the first opening of the window that is not over by `now`: the window is open then, or opens next.
    fn first_open_after(&self, now: Timestamp) -> Option<Timestamp> {
        let begun = now.checked_sub(self.duration).unwrap_or(Timestamp::MIN);
        self.opens_after(begun)
    }

    /// Returns the first time after this one at which the window opens.
    fn opens_after(&self, after: Timestamp) -> Option<Timestamp> {
        // The clock has already shown this time and all times before it. It may have shown later ones, if it was set
        // back.
        let shown = self.zone.to_datetime(after);
        let from = TimeZone::UTC.to_timestamp(shown).ok()?;
        let times = self.schedule.iter_after(MakeTimestamp(from)).ok()?;
        let mut opens = times
            .map_while(Result::ok)
            .filter_map(|time| self.on_the_clock(time.datetime()));
        opens.find(|opens| *opens > after)
    }

    /// Returns when the clock on the wall first shows this time, or passes it over.
    fn on_the_clock(&self, time: DateTime) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(time);
        match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => {
                ambiguous.earlier().ok()
            }
            AmbiguousOffset::Gap { .. } => {
                let before = ambiguous.earlier().ok()?;
                let change = self.zone.following(before).next()?;
                Some(change.timestamp())
            }
        }
    }
}

/// Whether a field consists of numbers, names and signs of cron, as in a `CronJob`, and has no extension such as `L`
/// or `#`.
fn is_of_cron(field: &str) -> bool {
    let mut words = field.split(['*', ',', '-', '/']);
    words.all(|word| {
        let name = word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_alphabetic());
        name || word.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(schedule: &str, hours: u64, zone: &str, limit: Option<u32>) -> WindowSpec {
        WindowSpec {
            schedule: schedule.into(),
            duration: Duration::from_hours(hours),
            time_zone: Some(zone.into()),
            limit,
        }
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn windows(specs: impl IntoIterator<Item = WindowSpec>) -> Windows {
        Windows::new(specs.into_iter().collect(), time("2026-01-01T00:00:00Z"))
    }

    fn open(limit: Option<u32>, until: &str) -> Opening {
        let until = time(until);
        Opening::Open { limit, until }
    }

    fn closed(until: &str) -> Opening {
        Opening::Closed {
            until: Some(time(until)),
        }
    }

    #[test]
    fn without_windows_slots_are_always_granted() {
        assert_eq!(
            windows([]).at(time("2026-06-01T00:00:00Z")),
            Opening::Always
        );
        assert_eq!(Opening::Always.limit(3), 3);
    }

    #[test]
    fn a_window_opens_with_its_minute_and_closes_with_the_last_one() {
        let nights = windows([window("0 22 * * *", 6, "UTC", Some(2))]);
        let at = |text| nights.at(time(text));
        assert_eq!(
            at("2026-06-01T21:59:59.999Z"),
            closed("2026-06-01T22:00:00Z")
        );
        let inside = open(Some(2), "2026-06-02T04:00:00Z");
        assert_eq!(at("2026-06-01T22:00:00Z"), inside);
        assert_eq!(at("2026-06-02T03:59:59.999Z"), inside);
        assert_eq!(at("2026-06-02T04:00:00Z"), closed("2026-06-02T22:00:00Z"));
        assert_eq!((inside.limit(5), inside.limit(1)), (2, 1));
        assert_eq!(closed("2026-06-01T22:00:00Z").limit(5), 0);
    }

    #[test]
    fn it_goes_by_the_clock_of_its_time_zone() {
        for (zone, opens) in [
            ("Europe/Berlin", "2026-06-01T20:00:00Z"),
            ("America/New_York", "2026-06-02T02:00:00Z"),
            ("Asia/Kolkata", "2026-06-01T16:30:00Z"),
        ] {
            let nights = windows([window("0 22 * * *", 1, zone, None)]);
            assert_eq!(
                nights.at(time("2026-06-01T12:00:00Z")),
                closed(opens),
                "{zone}"
            );
        }
    }

    #[test]
    fn a_clock_that_is_set_forward_skips_no_window() {
        // Berlin's clocks go from 02:00 to 03:00.
        let early = windows([window("30 2 * * *", 1, "Europe/Berlin", None)]);
        assert_eq!(
            early.at(time("2026-03-29T00:00:00Z")),
            closed("2026-03-29T01:00:00Z")
        );
        let inside = open(None, "2026-03-29T02:00:00Z");
        assert_eq!(early.at(time("2026-03-29T01:00:00Z")), inside);
        assert_eq!(
            early.at(time("2026-03-29T02:00:00Z")),
            closed("2026-03-30T00:30:00Z")
        );
    }

    #[test]
    fn a_clock_that_is_set_back_doubles_no_window() {
        // Berlin's clocks go from 03:00 back to 02:00.
        let early = windows([window("30 2 * * *", 1, "Europe/Berlin", None)]);
        assert_eq!(
            early.at(time("2026-10-25T00:00:00Z")),
            closed("2026-10-25T00:30:00Z")
        );
        assert_eq!(
            early.at(time("2026-10-25T01:29:59Z")),
            open(None, "2026-10-25T01:30:00Z")
        );
        assert_eq!(
            early.at(time("2026-10-25T01:30:00Z")),
            closed("2026-10-26T01:30:00Z")
        );
    }

    #[test]
    fn what_was_evaluated_holds_until_it_may_change() {
        let anew = windows([
            window("0 22 * * *", 6, "Europe/Berlin", Some(2)),
            window("30 0 * * 6", 1, "UTC", None),
        ]);
        let mut kept = anew.clone();
        let mut evaluated = 0;
        for minute in 0..3 * 24 * 60 {
            let now = time("2026-06-05T00:00:00Z") + SignedDuration::from_mins(minute);
            let before = kept.known;
            kept.refresh(now);
            evaluated += u32::from(kept.known != before);
            assert_eq!(
                kept.known.map(|(_, opening)| opening),
                Some(anew.evaluate(now))
            );
            assert_eq!(kept.at(now), anew.at(now), "{now}");
        }
        // Each day one window opens and closes, and on one of the days another window does, too.
        assert_eq!(evaluated, 3 * 2 + 2 + 1);
        // The clock was set back.
        let back = time("2026-06-05T21:00:00Z");
        assert_eq!(kept.at(back), anew.at(back));
    }

    #[test]
    fn of_windows_that_overlap_the_largest_limit_counts() {
        let both = windows([
            window("0 22 * * *", 6, "UTC", Some(2)),
            window("0 0 * * *", 1, "UTC", Some(4)),
        ]);
        assert_eq!(
            both.at(time("2026-06-01T23:00:00Z")),
            open(Some(2), "2026-06-02T00:00:00Z")
        );
        assert_eq!(
            both.at(time("2026-06-02T00:30:00Z")),
            open(Some(4), "2026-06-02T01:00:00Z")
        );
        assert_eq!(
            both.at(time("2026-06-02T01:00:00Z")),
            open(Some(2), "2026-06-02T04:00:00Z")
        );
        assert_eq!((both.most(3), both.most(9)), (3, 4));
        let any = windows([
            window("0 22 * * *", 6, "UTC", Some(2)),
            window("0 22 * * *", 6, "UTC", None),
        ]);
        assert_eq!(
            any.at(time("2026-06-01T23:00:00Z")),
            open(None, "2026-06-02T04:00:00Z")
        );
    }

    #[test]
    fn a_window_that_is_longer_than_its_interval_is_always_open() {
        let always = windows([window("0 * * * *", 2, "UTC", None)]);
        for minute in 0..300 {
            let now = time("2026-06-01T00:00:00Z") + SignedDuration::from_mins(minute);
            let opening = always.at(now);
            assert!(opening.is_open(), "{opening:?}");
            assert!(opening.until() > Some(now), "{opening:?}");
        }
    }

    #[test]
    fn one_that_can_not_be_read_never_opens_and_stops_no_other() {
        let invalid = [
            window("0 22 * *", 1, "UTC", None),
            window("0 22 * * * UTC", 1, "UTC", None),
            window("61 22 * * *", 1, "UTC", None),
            window(&"1,".repeat(100), 1, "UTC", None),
            window("0 22 L * *", 1, "UTC", None),
            window("0 22 * * 5#2", 1, "UTC", None),
            window("0 22 * * *", 1, "Mars/Olympus", None),
            window("0 0 30 2 *", 1, "UTC", None),
        ];
        let count = invalid.len();
        let bad = windows(invalid.clone());
        assert_eq!(bad.invalid().len(), count);
        assert_eq!(
            bad.at(time("2026-06-01T22:30:00Z")),
            Opening::Closed { until: None }
        );
        let good = window("0 22 * * *", 1, "UTC", None);
        let some = windows(invalid.into_iter().chain([good]));
        assert!(some.at(time("2026-06-01T22:30:00Z")).is_open());
        let said: Vec<String> = bad
            .invalid()
            .iter()
            .map(|(_, why)| why.to_string())
            .collect();
        assert!(said[0].contains("five fields"), "{said:?}");
        assert!(said[6].contains("Europe/Berlin"), "{said:?}");
        assert!(said[7].contains("within four years"), "{said:?}");
    }

    #[test]
    fn nothing_changes_before_it_is_said_to() {
        let some = windows([
            window("30 2 * * *", 1, "Europe/Berlin", Some(1)),
            window("15 23 * * 5", 50, "America/New_York", Some(2)),
        ]);
        let mut now = time("2026-01-01T00:00:00Z");
        let mut opening = some.at(now);
        while now < time("2026-12-31T00:00:00Z") {
            now += SignedDuration::from_mins(30);
            let next = some.at(now);
            if opening.until().is_some_and(|until| now < until) {
                let (is, was) = (next.limit(9), opening.limit(9));
                assert_eq!(is, was, "{now}: {opening:?} {next:?}");
            }
            opening = next;
        }
    }
}
