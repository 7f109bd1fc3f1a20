//! Flawed algorithms: something is spoiled in what the engine receives or in what it decides. The checker must catch
//! each of them, or its verdict on the real algorithm is worth nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::plan::Transaction;
use consul_client::Op;

/// The rule that is broken when something happens, if one is.
pub(super) fn rule_broken(happens: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(happens)).err()?;
    let string = panic.downcast::<String>().map(|said| *said);
    let said = string.or_else(|panic| panic.downcast::<&str>().map(|said| said.to_string()));
    Some(said.unwrap_or_else(|_| "a panic".into()))
}

/// What is wrong with an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// A dead holder is pruned, and the transaction does not check that it is still dead.
    SkipsChecks,
    /// `.lock` is written even if it has changed since it was read.
    DropsIndex,
    /// The pods of a workload are assumed gone without a proof.
    ReleasesEarly,
    /// A holder's contender is written, but not locked by its session.
    LocksNothing,
    /// A workload that lost its slot is not suspended.
    SuspendsNobody,
    /// A workload that lost its slot is not given another one.
    RegrantsNobody,
    /// Nobody is granted a free slot.
    GrantsNobody,
    /// Dead holders are never pruned.
    PrunesNobody,
    /// A slot is left to earlier contenders for as long as they do not take it.
    NeverTakesTurn,
    /// A limit that was written once counts as ours for ever, even after the spec has agreed with another one.
    ClaimsOldLimits,
    /// When a workload is on hold and its session dies, its grant stays in its template.
    KeepsGrantOnHold,
    /// A conflict always counts as a change of the workload, and the write is retried at once.
    NeverPauses,
    /// A version that is smaller than the known one is never believed.
    BelievesNoSmallerVersion,
    /// While a proof that no pods are left is pending, nothing else is decided.
    WaitsForProofs,
    /// Contenders of waiting workloads that were overtaken are never removed.
    ShowsTheOvertaken,
}

impl Flaw {
    pub(super) const ALL: [Self; 15] = [
        Self::SkipsChecks,
        Self::DropsIndex,
        Self::ReleasesEarly,
        Self::LocksNothing,
        Self::SuspendsNobody,
        Self::RegrantsNobody,
        Self::GrantsNobody,
        Self::PrunesNobody,
        Self::NeverTakesTurn,
        Self::ClaimsOldLimits,
        Self::KeepsGrantOnHold,
        Self::NeverPauses,
        Self::BelievesNoSmallerVersion,
        Self::WaitsForProofs,
        Self::ShowsTheOvertaken,
    ];

    /// Spoils what was decided to be written; `None` if nothing remains to write.
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
            // These affect what is asked, shown, or written to workloads.
            Self::ReleasesEarly
            | Self::SuspendsNobody
            | Self::RegrantsNobody
            | Self::GrantsNobody
            | Self::PrunesNobody
            | Self::NeverTakesTurn
            | Self::ClaimsOldLimits
            | Self::KeepsGrantOnHold
            | Self::NeverPauses
            | Self::BelievesNoSmallerVersion
            | Self::WaitsForProofs
            | Self::ShowsTheOvertaken => {}
        }
        Some(transaction)
    }
}
