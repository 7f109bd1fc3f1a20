//! The three-way rule on limits: what the spec says, what Consul says, and what we wrote before.

use crate::api::LimitPolicy;

/// How often a limit is enforced before its spec changes again: whoever overwrites it twice means
/// it, and nobody rewrites a limit in turn.
pub const ENFORCEMENTS: u32 = 2;

/// What the rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Consul's limit is the spec's.
    Agreed,
    /// The spec's limit is to be written to Consul.
    Write {
        /// Whether that overwrites a limit which is not ours.
        enforced: bool,
    },
    /// Consul holds this other limit: grant nothing.
    Conflict {
        /// Consul's limit.
        theirs: u32,
    },
}

/// Compares the spec's limit with Consul's (`None`: Consul has none yet).
///
/// `applied` are the limits that this `ConsulSemaphore` wrote to Consul, or was about to write;
/// `enforced` is how often it has enforced its limit since its spec last changed.
pub fn agree(
    ours: u32,
    theirs: Option<u32>,
    applied: &[u32],
    policy: LimitPolicy,
    enforced: u32,
) -> Agreement {
    match theirs {
        None => Agreement::Write { enforced: false },
        Some(theirs) if theirs == ours => Agreement::Agreed,
        Some(theirs) if applied.contains(&theirs) => Agreement::Write { enforced: false },
        Some(_) if policy == LimitPolicy::Enforce && enforced < ENFORCEMENTS => {
            Agreement::Write { enforced: true }
        }
        Some(theirs) => Agreement::Conflict { theirs },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LimitPolicy::{Enforce, Refuse};

    #[test]
    fn the_rule_case_by_case() {
        let write = |enforced| Agreement::Write { enforced };
        let conflict = Agreement::Conflict { theirs: 5 };
        for (theirs, applied, policy, enforced, expected) in [
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
            let said = agree(3, theirs, applied, policy, enforced);
            assert_eq!(
                said, expected,
                "{theirs:?} {applied:?} {policy:?} {enforced}"
            );
        }
    }
}
