//! Applies the three-way rule on limits, which compares the spec's limit, Consul's limit, and the limits that we
//! wrote before.

use crate::LimitPolicy;

/// Number of times that an enforced limit is overwritten before the operator takes that for intended, and does not
/// write the limit again.
const MOST_OVERWRITES: u32 = 2;

/// The history of the limit in Consul since the spec last changed, which ensures that two operators that enforce
/// different limits don't overwrite each other for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Defence {
    /// Whether Consul was last known to have the spec's limit.
    there: bool,
    /// Number of times that another limit replaced the spec's limit and was overwritten.
    overwritten: u32,
}

impl Defence {
    /// Returns the history as an operator that starts knows it: whether the limit is recorded as ours, and whether
    /// enforcing the limit was given up.
    pub fn resumed(recorded: bool, given_up: bool) -> Self {
        Self {
            there: recorded,
            overwritten: if given_up { MOST_OVERWRITES } else { 0 },
        }
    }

    /// Records that Consul has the spec's limit. `enforced` says whether that limit overwrote one that is not ours.
    pub fn holds(&mut self, enforced: bool) {
        if enforced {
            self.overwritten = self.losses();
        }
        self.there = true;
    }

    /// Whether Consul was last known to have the spec's limit.
    pub fn agreed(self) -> bool {
        self.there
    }

    /// Returns how many times the spec's limit was overwritten, if Consul has another limit at present.
    fn losses(self) -> u32 {
        self.overwritten + u32::from(self.there)
    }
}

/// The result of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Consul's limit is the spec's.
    Agreed,
    /// The spec's limit has to be written to Consul.
    Write {
        /// Whether the write overwrites a limit that is not ours.
        enforced: bool,
    },
    /// Consul has this other limit, so nothing is granted.
    Conflict {
        /// Consul's limit.
        theirs: u32,
    },
}

/// Compares the spec's limit with Consul's (`None`: Consul has none).
///
/// `applied` are the limits that this `ConsulSemaphore` wrote to Consul, or was about to write.
pub fn agree(
    ours: u32,
    theirs: Option<u32>,
    applied: &[u32],
    policy: LimitPolicy,
    defence: Defence,
) -> Agreement {
    match theirs {
        None => Agreement::Write { enforced: false },
        Some(theirs) if theirs == ours => Agreement::Agreed,
        Some(theirs) if applied.contains(&theirs) => Agreement::Write { enforced: false },
        Some(theirs) => match policy {
            LimitPolicy::Enforce if defence.losses() < MOST_OVERWRITES => {
                Agreement::Write { enforced: true }
            }
            LimitPolicy::Enforce | LimitPolicy::Refuse | LimitPolicy::Follow => {
                Agreement::Conflict { theirs }
            }
        },
    }
}

/// Returns Consul's limit if it replaces ours, because the policy is to follow it. A limit that Consul had from the start
/// does not: the program was given the wrong limit then, and that is a conflict.
pub fn followed(
    ours: u32,
    theirs: Option<u32>,
    policy: LimitPolicy,
    defence: Defence,
) -> Option<u32> {
    let follows = policy == LimitPolicy::Follow && defence.agreed();
    theirs.filter(|theirs| follows && *theirs != ours)
}

/// Returns the new `status.appliedLimits` once no lock key in Consul has another limit than the spec's. This
/// `ConsulSemaphore` may not replace any other limit after that. The spec's own limit stays in the list only if it
/// was written here; a limit that was in Consul before is agreed with, and is not ours.
pub fn settled(applied: &[u32], limit: u32) -> Vec<u32> {
    let applied = applied.iter().copied();
    applied.filter(|applied| *applied == limit).collect()
}

/// Returns the limits that are ours, once others are found in `status.appliedLimits`: another operator of this
/// `ConsulSemaphore` recorded the others, and may have written them to Consul.
pub fn with_found(applied: &[u32], found: &[u32]) -> Vec<u32> {
    let news = found.iter().filter(|limit| !applied.contains(limit));
    applied.iter().chain(news).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use LimitPolicy::{Enforce, Follow, Refuse};

    #[test]
    fn a_limit_that_was_ours_is_not_ours_once_the_spec_agrees_with_another() {
        assert_eq!(settled(&[3, 5], 5), [5], "moved");
        assert_eq!(settled(&[3], 5), [0; 0], "somebody else wrote 5");
        assert_eq!(settled(&[], 5), [0; 0]);
    }

    #[test]
    fn the_rule_case_by_case() {
        let write = |enforced| Agreement::Write { enforced };
        let conflict = Agreement::Conflict { theirs: 5 };
        for (theirs, applied, policy, overwritten, expected) in [
            (None, &[][..], Refuse, 0, write(false)),
            (Some(3), &[], Refuse, 0, Agreement::Agreed),
            (Some(5), &[], Refuse, 0, conflict),
            (Some(5), &[5], Refuse, 0, write(false)),
            (Some(5), &[5, 3], Refuse, 0, write(false)),
            (Some(5), &[4, 3], Refuse, 0, conflict),
            (Some(5), &[], Enforce, 0, write(true)),
            (Some(5), &[], Enforce, 1, write(true)),
            (Some(5), &[], Enforce, 2, conflict),
            (Some(5), &[5], Enforce, 2, write(false)),
        ] {
            let defence = Defence {
                there: false,
                overwritten,
            };
            let said = agree(3, theirs, applied, policy, defence);
            assert_eq!(
                said, expected,
                "{theirs:?} {applied:?} {policy:?} {overwritten}"
            );
        }
    }

    #[test]
    fn only_who_has_agreed_with_consul_follows_another_limit() {
        let mut agreed = Defence::default();
        agreed.holds(false);
        for (theirs, policy, defence, expected) in [
            (Some(5), Follow, agreed, Some(5)),
            (Some(5), Follow, Defence::default(), None),
            (Some(5), Refuse, agreed, None),
            (Some(5), Enforce, agreed, None),
            (Some(3), Follow, agreed, None),
            (None, Follow, agreed, None),
        ] {
            let limit = followed(3, theirs, policy, defence);
            assert_eq!(limit, expected, "{theirs:?} {policy:?} {defence:?}");
        }
    }

    /// Number of times that a limit is written again that is always overwritten.
    fn written_again(mut defence: Defence) -> usize {
        let enforced = Agreement::Write { enforced: true };
        let mut times = 0;
        while agree(3, Some(5), &[3], Enforce, defence) == enforced {
            defence.holds(true);
            times += 1;
            assert!(times < 9, "for ever");
        }
        times
    }

    #[test]
    fn whoever_overwrites_it_twice_is_not_fought() {
        assert_eq!(
            written_again(Defence::default()),
            2,
            "theirs was there first"
        );
        let mut ours = Defence::default();
        ours.holds(false);
        assert_eq!(written_again(ours), 1, "ours was there first");
        assert_eq!(written_again(Defence::resumed(true, false)), 1);
        let mut given_up = Defence::resumed(true, true);
        assert_eq!(written_again(given_up), 0);
        given_up.holds(false);
        assert_eq!(written_again(given_up), 0, "it came back by itself");
    }
}
