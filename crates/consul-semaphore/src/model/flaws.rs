//! Flawed algorithms: what the engine is told, or what it says, is spoiled.
//! The checker must find each of them out, or what it says of the real one is worth nothing.

use crate::plan::Transaction;
use consul_client::Op;

/// What is wrong with an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// A dead holder is dropped without a check in the transaction that it is still dead.
    SkipsChecks,
    /// `.lock` is written whatever it was written to since it was read.
    DropsIndex,
    /// The pods of a Job are taken to be gone without a proof.
    ReleasesEarly,
    /// A holder's contender is written, but not locked by its session.
    LocksNothing,
    /// A Job that lost its slot is not suspended.
    SuspendsNobody,
    /// A Job that lost its slot is not given another one.
    RegrantsNobody,
    /// Nobody is granted a free slot.
    GrantsNobody,
    /// What the Jobs of others hold is never pruned.
    PrunesNobody,
    /// A slot is left to those who come first for as long as they do not take it.
    StandsBackForEver,
}

impl Flaw {
    pub(super) const ALL: [Self; 9] = [
        Self::SkipsChecks,
        Self::DropsIndex,
        Self::ReleasesEarly,
        Self::LocksNothing,
        Self::SuspendsNobody,
        Self::RegrantsNobody,
        Self::GrantsNobody,
        Self::PrunesNobody,
        Self::StandsBackForEver,
    ];

    /// Spoils what was decided to be written; `None` if nothing is.
    pub(super) fn spoil(self, mut transaction: Transaction) -> Option<Transaction> {
        let operations = &mut transaction.operations;
        match self {
            Self::SkipsChecks => operations.retain(|operation| {
                !matches!(
                    operation,
                    Op::CheckNotExists { .. } | Op::CheckIndex { .. } | Op::CheckSession { .. }
                )
            }),
            Self::DropsIndex => {
                for operation in operations {
                    if let Op::Cas {
                        key, value, flags, ..
                    } = operation.clone()
                    {
                        *operation = Op::Set { key, value, flags };
                    }
                }
            }
            Self::LocksNothing => {
                for operation in operations {
                    if let Op::Lock {
                        key, value, flags, ..
                    } = operation.clone()
                    {
                        *operation = Op::Set { key, value, flags };
                    }
                }
            }
            Self::RegrantsNobody if transaction.grants.iter().any(|grant| !grant.starts) => {
                return None;
            }
            Self::GrantsNobody if transaction.grants.iter().any(|grant| grant.starts) => {
                return None;
            }
            Self::PrunesNobody if !transaction.prunes.is_empty() => return None,
            // These are about what is asked, or written to workloads.
            Self::ReleasesEarly
            | Self::SuspendsNobody
            | Self::RegrantsNobody
            | Self::GrantsNobody
            | Self::PrunesNobody
            | Self::StandsBackForEver => {}
        }
        Some(transaction)
    }
}
