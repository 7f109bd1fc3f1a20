//! Tracks which operators write the status of a semaphore. Two operators that manage it keep its limit, and do all
//! other work twice.
//!
//! Each operator writes its name into the status. A name that changes proves nothing by itself, because a new leader
//! has a new name, and a write of the earlier leader may arrive late. So another operator counts only after several
//! writes of its own.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use consul_client::clock::Moment;

/// Number of writes that show that another operator works. A process that ends has at most one write under way.
const WRITES_THAT_SHOW_WORK: u32 = 3;

/// Time for which another operator counts after its last write.
const COUNTS_AS_WORKING_FOR: Duration = Duration::from_mins(10);

/// Number of other operators that are remembered.
const MOST_OTHER_OPERATORS: usize = 4;

/// Longest name of a replica, in bytes.
const LONGEST_NAME: usize = 253;

/// Time after which the warning is logged again. Each further pause is twice as long.
const REMINDER: Duration = Duration::from_mins(1);

/// Longest time between two log lines.
const LONGEST_REMINDER: Duration = Duration::from_hours(1);

/// Operators that write one status.
#[derive(Debug)]
pub(super) struct Operators {
    /// Name of this replica.
    own: Arc<str>,
    others: BTreeMap<String, Other>,
    /// Time at which the warning is logged again, and the pause after that.
    reminder: Option<(Moment, Duration)>,
}

/// Operator other than this one.
#[derive(Clone, Copy, Debug)]
struct Other {
    writes: u32,
    last: Moment,
}

/// Consequences of another operator's write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    /// Whether this write is the one that makes clear that the other operator works.
    pub(super) is_news: bool,
    /// Whether a warning about it should be logged.
    pub(super) is_to_be_logged: bool,
}

impl Operators {
    /// Creates the set with only this operator.
    pub(super) fn new(own: Arc<str>) -> Self {
        Self {
            own,
            others: BTreeMap::new(),
            reminder: None,
        }
    }

    /// Returns the other operator that wrote a status with these names; `None` if this operator wrote it, or if the
    /// writer is unknown.
    pub(super) fn writer<'a>(&self, names: &'a [String]) -> Option<&'a str> {
        let name = names.first()?;
        let is_one = !name.is_empty()
            && name.len() <= LONGEST_NAME
            && !name.chars().any(char::is_control)
            && **name != *self.own;
        is_one.then_some(name)
    }

    /// Records a write of another operator that came after this operator was seen at work.
    pub(super) fn note(&mut self, name: &str, now: Moment) -> Noted {
        if !self.others.contains_key(name) && self.others.len() >= MOST_OTHER_OPERATORS {
            let oldest = self.others.iter().min_by_key(|(_, other)| other.last);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.others.remove(&oldest);
            }
        }
        let entry = self.others.entry(name.to_owned());
        let other = entry.or_insert(Other {
            writes: 0,
            last: now,
        });
        let worked = other.works();
        other.writes = other.writes.saturating_add(1).min(WRITES_THAT_SHOW_WORK);
        other.last = now;
        let works = other.works();
        Noted {
            is_news: works && !worked,
            is_to_be_logged: works && self.is_due(now),
        }
    }

    fn is_due(&mut self, now: Moment) -> bool {
        let (due, pause) = self.reminder.unwrap_or((now, REMINDER));
        let is_due = due <= now;
        if is_due {
            self.reminder = Some((now + pause, (pause * 2).min(LONGEST_REMINDER)));
        }
        is_due
    }

    /// Returns the names of the operators that manage the semaphore, as the status lists them: this replica first.
    pub(super) fn names(&self) -> Vec<String> {
        let own = std::iter::once(self.own.to_string());
        own.chain(self.working().map(ToOwned::to_owned)).collect()
    }

    /// Whether a status with these names says what this operator knows. The order of the names, and so the writer,
    /// does not matter. Otherwise each new leader would write all statuses, and two operators would write in turn for
    /// ever.
    pub(super) fn are_said(&self, names: &[String]) -> bool {
        let mut others = self.working().peekable();
        if others.peek().is_none() {
            return names.len() <= 1;
        }
        let is_said = |name: &str| names.iter().any(|said| said == name);
        is_said(&self.own) && others.all(is_said)
    }

    /// Returns when the next operator ceases to count, if it does not write until then.
    pub(super) fn until(&self) -> Moment {
        let working = self.others.values().filter(|other| other.works());
        let ends = working.map(|other| other.last + COUNTS_AS_WORKING_FOR);
        ends.min().unwrap_or(Moment::END)
    }

    /// Ends the counting of operators that have not written for long. The next write of such an operator shows that it
    /// still works.
    pub(super) fn expire(&mut self, now: Moment) {
        for other in self.others.values_mut() {
            if other.works() && other.last + COUNTS_AS_WORKING_FOR <= now {
                other.writes = WRITES_THAT_SHOW_WORK - 1;
            }
        }
    }

    fn working(&self) -> impl Iterator<Item = &str> {
        let working = self.others.iter().filter(|(_, other)| other.works());
        working.map(|(name, _)| name.as_str())
    }

    /// Returns the warning for people. Each of the operators gives it the same words.
    pub(super) fn warning(&self) -> String {
        let mut names = self.names();
        names.sort();
        format!(
            "more than one operator manages this ConsulSemaphore: {}. They keep its limit and start no Job twice, \
             but each emits all events and writes the status. Stop all but one, or give each a part of the cluster: \
             --semaphore-selector or --namespaces",
            names.join(", ")
        )
    }
}

impl Other {
    fn works(self) -> bool {
        self.writes >= WRITES_THAT_SHOW_WORK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
        names.map(str::to_owned).to_vec()
    }

    fn operators() -> Operators {
        Operators::new("a".into())
    }

    /// Returns operators of which another one works.
    fn with_another() -> Operators {
        let mut operators = operators();
        for second in 1..=3 {
            operators.note("b", at(second));
        }
        operators
    }

    #[test]
    fn only_an_operator_that_writes_again_and_again_counts() {
        let mut operators = operators();
        let nothing = Noted::default();
        // These leaders have ended, and each has one write that comes late.
        for name in ["b", "c", "d", "e", "f"] {
            assert_eq!(operators.note(name, at(1)), nothing);
        }
        assert_eq!(operators.names(), names(["a"]));
        assert_eq!(operators.until(), Moment::END);
        assert_eq!(operators.note("f", at(2)), nothing);
        let noted = operators.note("f", at(3));
        assert!(noted.is_news && noted.is_to_be_logged, "{noted:?}");
        assert_eq!(operators.names(), names(["a", "f"]));
        assert_eq!(operators.note("f", at(4)), nothing);
        assert_eq!(operators.others.len(), MOST_OTHER_OPERATORS);
    }

    #[test]
    fn the_writer_comes_first_unless_that_is_nobodys_name() {
        let operators = operators();
        assert_eq!(operators.writer(&names(["b", "a"])), Some("b"));
        let long = "b".repeat(LONGEST_NAME + 1);
        for nobody in [
            names([]),
            names(["a", "b"]),
            names([""]),
            names(["b\n"]),
            vec![long],
        ] {
            assert_eq!(operators.writer(&nobody), None, "{nobody:?}");
        }
    }

    #[test]
    fn one_alone_does_not_write_because_of_the_name() {
        let operators = operators();
        // No status yet, one from before an upgrade, one of this operator, and one of an earlier leader.
        for said in [names([]), names(["a"]), names(["b"])] {
            assert!(operators.are_said(&said), "{said:?}");
        }
        // Both operators in this status are gone.
        assert!(!operators.are_said(&names(["b", "c"])));
    }

    #[test]
    fn two_agree_whoever_wrote_it() {
        let operators = with_another();
        for said in [names(["a", "b"]), names(["b", "a"]), names(["b", "c", "a"])] {
            assert!(operators.are_said(&said), "{said:?}");
        }
        for said in [names(["a"]), names(["b"]), names(["b", "c"])] {
            assert!(!operators.are_said(&said), "{said:?}");
        }
    }

    #[test]
    fn one_that_has_ended_is_forgotten_and_one_that_works_again_is_not() {
        let mut operators = with_another();
        let until = operators.until();
        assert_eq!(until, at(3) + COUNTS_AS_WORKING_FOR);
        operators.expire(at(4));
        assert_eq!(operators.names(), names(["a", "b"]));
        operators.expire(until);
        assert_eq!(operators.names(), names(["a"]));
        assert!(!operators.are_said(&names(["a", "b"])));
        assert!(operators.note("b", until).is_news);
    }

    #[test]
    fn it_is_logged_less_and_less_often() {
        let mut operators = with_another();
        let mut logged = Vec::new();
        for second in 4..1000 {
            if operators.note("b", at(second)).is_to_be_logged {
                logged.push(second);
            }
        }
        assert_eq!(logged, [63, 183, 423, 903]);
    }

    #[test]
    fn both_say_the_same() {
        let mut other = Operators::new("b".into());
        for second in 1..=3 {
            other.note("a", at(second));
        }
        assert_eq!(with_another().warning(), other.warning());
        assert!(other.warning().contains(": a, b. "));
        assert!(other.warning().len() < 1000);
    }
}
