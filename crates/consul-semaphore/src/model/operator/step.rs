//! Steps that are still to be carried out.

use super::super::{outside::Outside, requests::Patch};
use crate::{
    engine::{Call, CallId},
    plan::Transaction,
};
use consul_client::{Op, SessionId, clock::Moment};

/// A call that the engine asks for, or that follows from the result of a pass.
#[derive(Clone, Debug)]
pub(in super::super) enum Step {
    /// The status records these limits as ours.
    Record {
        limits: Vec<u32>,
    },
    /// The finalizer is added, or removed.
    Finalizer {
        added: bool,
    },
    /// Lists the sessions.
    ListSessions,
    Transact {
        id: CallId,
        transaction: Transaction,
    },
    Patch {
        /// `None` for a call that the engine does not know.
        id: Option<CallId>,
        patch: Patch,
        read: Moment,
        not_after: Option<Moment>,
    },
    MakeSession {
        id: CallId,
        name: String,
    },
    Destroy(SessionId),
    /// A question, which changes nothing.
    Ask {
        id: CallId,
        call: Call,
    },
}

impl Step {
    /// Whether the step is a question.
    pub(in super::super) fn changes_nothing(&self) -> bool {
        matches!(self, Self::Ask { .. })
    }

    /// The call arrives once more, or late; nobody waits for its answer.
    pub(in super::super) fn land(&self, outside: &mut Outside) {
        match self {
            Self::Transact { transaction, .. } => {
                let _ignored = outside.transact(transaction, outside.generation);
            }
            Self::Patch { patch, read, .. } => {
                outside.patch(patch, *read, false);
            }
            Self::Record { .. }
            | Self::Finalizer { .. }
            | Self::ListSessions
            | Self::MakeSession { .. }
            | Self::Destroy(_)
            | Self::Ask { .. } => {}
        }
    }

    /// Whether the step is refused, now and at any time, because it names an outdated version of a workload, an
    /// outdated index of a key, or a dead session.
    pub(in super::super) fn comes_too_late(&self, outside: &Outside) -> bool {
        let consul = &outside.consul;
        match self {
            Self::Transact { transaction, .. } => {
                transaction.operations.iter().any(|op| match op {
                    Op::Cas { key, index, .. } | Op::CheckIndex { key, index } => {
                        let now = consul.get(key).map_or(0, |entry| entry.modify_index);
                        *index != 0 && *index != now
                    }
                    Op::Lock { session, .. } => !consul.is_alive(session),
                    _ => false,
                })
            }
            Self::Patch { patch, .. } => {
                let target = patch.target();
                !outside.workloads.is_at(&target.uid, &target.version)
            }
            Self::Record { .. }
            | Self::Finalizer { .. }
            | Self::ListSessions
            | Self::MakeSession { .. }
            | Self::Destroy(_)
            | Self::Ask { .. } => false,
        }
    }
}
