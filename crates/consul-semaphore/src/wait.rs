//! Finds out what ends a workload's wait, other than its slots, and when that wait began.
//!
//! A wait counts from the time at which the workload joined the queue: when it was made, or when its user took it off
//! hold. Nothing in Kubernetes says when a hold was taken off, nor whether a workload that has given its slots back
//! had been started in them, so the operator records both beside the workload. If a workload gave its slots back and
//! bears no such record, it counts as started, because its wait should rather end too late than too early.

use std::{fmt, str::FromStr, time::Duration};

use jiff::Timestamp;

use crate::{Blocked, Workload};

/// The facts that end a workload's wait, other than its slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// The time that the workload may wait before it fails, by its own annotation.
    pub timeout: Option<Duration>,
    /// Time at which the workload was created, in seconds since 1970. Of two workloads that ask for the same slots,
    /// the one with the later time is the newer.
    pub created: i64,
    /// How the workload ends, if this operator has made it fail and it has not ended yet.
    pub failing: Option<Termination>,
    /// Whether something other than a hold keeps the workload out of the queue for a while. During that time the
    /// workload's phase is that of a workload that has ended.
    pub interrupted: bool,
    /// The beginning of the wait, as this operator recorded it beside the workload.
    pub recorded: Option<WaitBegan>,
    /// The beginning of the wait, as [`Workload::note_wait`] found it; `None`: the time at which the workload joined
    /// the queue.
    pub began: Option<WaitBegan>,
    /// The times since the beginning in which the wait was interrupted, while this operator knew the workload.
    pub kept_out: Blocked,
}

/// How the controller of a workload ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// The workload still runs its exit handlers or finally tasks, in its slots.
    Graceful,
    /// The workload starts no more pods.
    Immediate,
}

/// The beginning of the wait of a workload that was never started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitBegan {
    /// The wait began at this time, in seconds since 1970.
    At(i64),
    /// The wait has not begun: the workload is on hold, or was when the operator last saw it.
    OnHold,
}

impl WaitBegan {
    /// The text that records a hold.
    const ON_HOLD: &str = "OnHold";
}

/// Writes the beginning as it is recorded.
impl fmt::Display for WaitBegan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(seconds) => match Timestamp::from_second(*seconds) {
                Ok(time) => write!(f, "{time}"),
                // No time that was read is out of range, so this does not happen.
                Err(_) => f.write_str(Self::ON_HOLD),
            },
            Self::OnHold => f.write_str(Self::ON_HOLD),
        }
    }
}

/// Error: the text records no beginning of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidWaitBegan;

impl FromStr for WaitBegan {
    type Err = InvalidWaitBegan;

    fn from_str(text: &str) -> Result<Self, InvalidWaitBegan> {
        if text == Self::ON_HOLD {
            return Ok(Self::OnHold);
        }
        let time: Timestamp = text.parse().map_err(|_| InvalidWaitBegan)?;
        Ok(Self::At(time.as_second()))
    }
}

/// Methods for the wait of a workload.
impl Workload {
    /// Whether the workload may have been started in its slots, which ends its wait for good.
    pub fn may_have_been_started(&self) -> bool {
        let given_back = !self.reported.is_empty() && self.wait.recorded.is_none();
        self.granted.is_some() || given_back
    }

    /// Finds when the workload's wait began, given the version of the workload that was known before, if there was
    /// one.
    ///
    /// A hold ends the wait, and the next wait begins when the operator sees that the hold was taken off. An
    /// interruption does not end the wait, so the time at which the workload last joined the queue says nothing after
    /// one.
    pub fn note_wait(&mut self, earlier: Option<&Self>, now: Timestamp) {
        self.wait.began = None;
        self.wait.kept_out = Blocked::default();
        if !self.may_wait() {
            return;
        }
        let earlier = earlier.filter(|earlier| earlier.may_wait());
        // The beginning that was found before counts until it is recorded.
        let recorded = self.wait.recorded;
        let found = match earlier {
            Some(earlier) if earlier.wait.recorded == recorded => earlier.began_before(self.since),
            _ => recorded,
        };
        self.wait.began = match found {
            _ if self.hold => Some(WaitBegan::OnHold),
            Some(WaitBegan::OnHold) => Some(WaitBegan::At(now.as_second())),
            found => found,
        };
        if let Some(earlier) = earlier {
            self.wait.kept_out.clone_from(&earlier.wait.kept_out);
        }
        self.wait.kept_out.note(self.wait.interrupted, now);
    }

    /// Whether the workload was never started and has not ended.
    fn may_wait(&self) -> bool {
        !self.may_have_been_started() && (self.wait.interrupted || !self.has_ended())
    }

    /// Returns when the wait began, if a later version of the workload joined the queue at `since`.
    fn began_before(&self, since: i64) -> Option<WaitBegan> {
        let moved = self.since != since && !self.wait.interrupted;
        let first = moved.then_some(WaitBegan::At(self.since));
        self.wait.began.or(first)
    }

    /// Returns the time from which the workload's wait counts, in seconds since 1970; `None` if a start has ended the
    /// wait, or if the wait does not count at the moment.
    pub fn waits_since(&self) -> Option<i64> {
        if self.may_have_been_started() || self.hold {
            return None;
        }
        match self.wait.began.or(self.wait.recorded) {
            None => Some(self.since),
            // A record may say anything if somebody else wrote it.
            Some(WaitBegan::At(began)) => Some(began.max(self.wait.created)),
            Some(WaitBegan::OnHold) => None,
        }
    }

    /// Returns the beginning of the wait that is to be recorded beside the workload; `None` if it is recorded
    /// already.
    pub fn wait_to_record(&self) -> Option<WaitBegan> {
        let is_open = self.traits.bears_a_record && !self.has_ended();
        let began = self.wait.began.filter(|_| is_open);
        began.filter(|began| self.wait.recorded != Some(*began))
    }

    /// Returns what is recorded of the wait when the workload gives its slots back: nothing if it was started in
    /// them.
    pub fn wait_given_back(&self) -> Option<WaitBegan> {
        let Wait {
            began, recorded, ..
        } = self.wait;
        if self.may_have_been_started() {
            None
        } else if self.hold {
            Some(WaitBegan::OnHold)
        } else {
            Some(began.or(recorded).unwrap_or(WaitBegan::At(self.since)))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Granted, Phase, samples};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Returns a workload that was made at second 100.
    fn made() -> Workload {
        let mut workload = samples::workload("a", Phase::Idle, None, None);
        (workload.since, workload.wait.created) = (100, 100);
        workload
    }

    /// A change that a user makes to a workload.
    type Change<'a> = &'a dyn Fn(&mut Workload);

    /// Returns what an operator knows that sees these versions at these seconds, one after the other.
    fn seen(versions: &[(i64, Change<'_>)]) -> Workload {
        let (mut read, mut known) = (made(), None);
        for (second, change) in versions {
            change(&mut read);
            let mut later = read.clone();
            later.note_wait(known.as_ref(), at(*second));
            read.wait.recorded = later.wait_to_record().or(read.wait.recorded);
            known = Some(later);
        }
        known.unwrap()
    }

    #[test]
    fn it_counts_from_when_it_was_made_or_taken_off_hold() {
        let plain = |_: &mut Workload| ();
        let hold = |workload: &mut Workload| workload.hold = true;
        let unhold = |workload: &mut Workload| workload.hold = false;
        assert_eq!(seen(&[(110, &plain)]).waits_since(), Some(100));
        assert_eq!(seen(&[(110, &plain)]).wait_to_record(), None);
        let stopped = seen(&[(110, &plain), (120, &hold)]);
        assert_eq!(stopped.waits_since(), None);
        assert_eq!(stopped.wait_to_record(), Some(WaitBegan::OnHold));
        let freed = seen(&[(110, &hold), (120, &unhold)]);
        assert_eq!(freed.waits_since(), Some(120));
        assert_eq!(freed.wait_to_record(), Some(WaitBegan::At(120)));
        assert_eq!(
            seen(&[(110, &hold), (120, &unhold), (130, &plain)]).waits_since(),
            Some(120)
        );
        let anew = seen(&[(110, &hold), (120, &unhold), (130, &hold), (140, &unhold)]);
        assert_eq!(anew.waits_since(), Some(140));
    }

    /// The write that records the hold may fail for as long as it likes.
    #[test]
    fn a_hold_that_could_not_be_recorded_does_not_count_either() {
        let mut known = made();
        for (second, hold) in [(110, true), (120, false), (130, false)] {
            let mut later = Workload { hold, ..made() };
            later.note_wait(Some(&known), at(second));
            known = later;
        }
        assert_eq!(known.waits_since(), Some(120));
        assert_eq!(known.wait_to_record(), Some(WaitBegan::At(120)));
    }

    #[test]
    fn only_a_start_ends_it() {
        let mut given_back = made();
        given_back.wait.recorded = given_back.wait_given_back();
        given_back.reported = vec!["s".into()];
        given_back.note_wait(None, at(150));
        assert_eq!(given_back.waits_since(), Some(100));
        given_back.granted = Some(Granted::by("p/s", "s"));
        given_back.note_wait(None, at(160));
        assert_eq!(given_back.waits_since(), None, "it was started");
        assert_eq!(given_back.wait_given_back(), None);
        given_back.granted = None;
        given_back.wait.recorded = None;
        given_back.note_wait(None, at(170));
        assert_eq!(given_back.waits_since(), None, "in the slot before");
        assert_eq!(given_back.wait_given_back(), None, "and ever after");
    }

    /// Kueue evicts workloads in this way.
    #[test]
    fn what_leaves_the_queue_for_a_while_goes_on_waiting_when_it_is_back() {
        let away = |workload: &mut Workload| {
            workload.phase = Phase::Finished { at_rest: false };
            workload.wait.interrupted = true;
            workload.since = 200;
        };
        let back = |workload: &mut Workload| {
            workload.phase = Phase::Idle;
            workload.wait.interrupted = false;
            workload.since = 300;
        };
        let ended = |workload: &mut Workload| {
            workload.phase = Phase::Finished { at_rest: false };
        };
        let plain = |_: &mut Workload| ();
        let again = seen(&[(110, &plain), (200, &away), (300, &back)]);
        assert_eq!(again.waits_since(), Some(100));
        let left = Duration::from_mins(5);
        let ends = Blocked::deadline([&again.wait.kept_out], at(100), left);
        assert_eq!(ends, Some(at(500)), "100 seconds did not count");
        let late = seen(&[(200, &away), (300, &back)]);
        assert_eq!(late.waits_since(), Some(300), "it had not waited before");
        let anew = seen(&[(110, &plain), (200, &ended), (300, &back)]);
        assert_eq!(anew.waits_since(), Some(300), "its user made it wait again");
    }

    #[test]
    fn what_is_recorded_is_read_as_it_was() {
        for began in [WaitBegan::At(1_772_366_340), WaitBegan::OnHold] {
            assert_eq!(began.to_string().parse(), Ok(began));
        }
        assert_eq!(WaitBegan::At(0).to_string(), "1970-01-01T00:00:00Z");
        assert_eq!("soon".parse::<WaitBegan>(), Err(InvalidWaitBegan));
        let mut forged = made();
        forged.wait.recorded = Some(WaitBegan::At(0));
        forged.note_wait(None, at(110));
        assert_eq!(forged.waits_since(), Some(100), "not before it was made");
    }

    #[derive(Clone, Copy, Debug)]
    enum Happens {
        Hold(bool),
        /// A grant is given back before the first start.
        GivenBack,
        /// The operator looks at the workload, and records the beginning if `records` is set.
        Looks {
            records: bool,
        },
        Restarts,
    }

    fn happens() -> impl Strategy<Value = Happens> {
        prop_oneof![
            any::<bool>().prop_map(Happens::Hold),
            Just(Happens::GivenBack),
            any::<bool>().prop_map(|records| Happens::Looks { records }),
            Just(Happens::Restarts),
        ]
    }

    proptest! {
        /// An operator that looks after each change and records the beginning knows the same after a restart at any
        /// point as one that never restarts. Giving slots back before the first start does not change when the wait
        /// ends. While the records fail, a restart makes the wait end later, and never earlier.
        #[test]
        fn neither_a_restart_nor_a_give_back_changes_when_a_wait_ends(
            steps in prop::collection::vec((1..50_i64, happens()), 0..40),
        ) {
            let (mut object, mut known, mut now) = (made(), None, 100);
            let (mut began, mut exact) = (100, true);
            for (seconds, step) in steps {
                now += seconds;
                let mut records = true;
                match step {
                    Happens::Hold(hold) => {
                        if object.hold && !hold {
                            began = now;
                        }
                        object.hold = hold;
                    }
                    Happens::GivenBack => {
                        let known: &Workload = known.as_ref().unwrap_or(&object);
                        object.wait.recorded = known.wait_given_back();
                        object.reported.push("s".into());
                    }
                    Happens::Looks { records: works } => records = works,
                    Happens::Restarts => {
                        exact &= known.as_ref().is_none_or(|known| known.wait_to_record().is_none());
                        known = None;
                    }
                }
                let mut later = object.clone();
                later.note_wait(known.as_ref(), at(now));
                if records {
                    object.wait.recorded = later.wait_to_record().or(object.wait.recorded);
                    later.wait.recorded = object.wait.recorded;
                }
                let since = later.waits_since();
                prop_assert_eq!(since.is_none(), object.hold);
                if let Some(since) = since {
                    prop_assert!(since >= began, "{} before {}", since, began);
                    prop_assert!(!exact || since == began, "{} and not {}", since, began);
                }
                known = Some(later);
            }
        }
    }
}
