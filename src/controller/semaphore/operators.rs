//! Which operators write the status of a semaphore. Two that manage it keep its limit, and do all other work twice.
//!
//! Each writes its name into the status. A name that changes says nothing by itself: a new leader has a new name, and
//! a write of the earlier one may arrive late. So another operator counts only after several writes of its own.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use consul_client::clock::Moment;

/// How many writes show that another operator works. A process that ends has at most one under way.
const ENOUGH: u32 = 3;

/// How long another operator counts after its last write.
const LASTING: Duration = Duration::from_mins(10);

/// How many other operators are remembered.
const MOST: usize = 4;

/// The longest name of a replica, in bytes.
const LONGEST_NAME: usize = 253;

/// It is logged again after this time, then after twice that, and so on.
const REMINDER: Duration = Duration::from_mins(1);

/// The longest time between two log lines.
const LONGEST_REMINDER: Duration = Duration::from_hours(1);

/// The operators that write one status.
#[derive(Debug)]
pub(super) struct Operators {
    /// The name of this replica.
    own: Arc<str>,
    others: BTreeMap<String, Other>,
    /// When it is logged again, and how long after the previous time.
    reminder: Option<(Moment, Duration)>,
}

/// Another operator.
#[derive(Clone, Copy, Debug)]
struct Other {
    writes: u32,
    last: Moment,
}

/// What follows from another operator's write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    /// It is clear from now on that this other operator works.
    pub(super) is_news: bool,
    /// It should be logged.
    pub(super) is_to_be_logged: bool,
}

impl Operators {
    /// Only this one.
    pub(super) fn new(own: Arc<str>) -> Self {
        Self {
            own,
            others: BTreeMap::new(),
            reminder: None,
        }
    }

    /// The other operator that wrote a status with these names; `None` if it was this one or is unknown.
    pub(super) fn writer<'a>(&self, names: &'a [String]) -> Option<&'a str> {
        let name = names.first()?;
        let is_one = !name.is_empty()
            && name.len() <= LONGEST_NAME
            && !name.chars().any(char::is_control)
            && **name != *self.own;
        is_one.then_some(name)
    }

    /// Records a write of another operator, which came after this one was seen at work.
    pub(super) fn note(&mut self, name: &str, now: Moment) -> Noted {
        if !self.others.contains_key(name) && self.others.len() >= MOST {
            let oldest = self.others.iter().min_by_key(|(_, other)| other.last);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.others.remove(&oldest);
            }
        }
        let other = self.others.entry(name.to_owned());
        let other = other.or_insert(Other {
            writes: 0,
            last: now,
        });
        let worked = other.works();
        other.writes = other.writes.saturating_add(1).min(ENOUGH);
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

    /// Who manages the semaphore, as the status says it: this replica first.
    pub(super) fn names(&self) -> Vec<String> {
        let own = std::iter::once(self.own.to_string());
        own.chain(self.working().map(ToOwned::to_owned)).collect()
    }

    /// Whether a status with these names says what is known here. Who wrote it does not matter: otherwise each new
    /// leader would write all statuses, and two operators would write in turn for ever.
    pub(super) fn are_said(&self, names: &[String]) -> bool {
        let mut others = self.working().peekable();
        if others.peek().is_none() {
            return names.len() <= 1;
        }
        let is_said = |name: &str| names.iter().any(|said| said == name);
        is_said(&self.own) && others.all(is_said)
    }

    /// When an operator no longer counts, if it does not write until then.
    pub(super) fn until(&self) -> Moment {
        let working = self.others.values().filter(|other| other.works());
        let ends = working.map(|other| other.last + LASTING);
        ends.min().unwrap_or(Moment::END)
    }

    /// Those that have not written for long no longer count. The next write of one shows that it still works.
    pub(super) fn expire(&mut self, now: Moment) {
        for other in self.others.values_mut() {
            if other.works() && other.last + LASTING <= now {
                other.writes = ENOUGH - 1;
            }
        }
    }

    fn working(&self) -> impl Iterator<Item = &str> {
        let working = self.others.iter().filter(|(_, other)| other.works());
        working.map(|(name, _)| name.as_str())
    }

    /// What to tell people: the same words from each of the operators.
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
        self.writes >= ENOUGH
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

    /// Of an operator that works.
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
        // Leaders that ended: each has one write that comes late.
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
        assert_eq!(operators.others.len(), MOST);
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
        // No status yet, one from before an upgrade, its own, and an earlier leader's.
        for said in [names([]), names(["a"]), names(["b"])] {
            assert!(operators.are_said(&said), "{said:?}");
        }
        // Two that are no longer there.
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
        assert_eq!(until, at(3) + LASTING);
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
