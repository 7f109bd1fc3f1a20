//! Keeps what is known of the limit: which limits are ours, and what happened to the limit in Consul.

use crate::{
    Agreement, Defence, Lock, Reading, Settings,
    engine::{
        message::{Moved, Outcome},
        sessions::{Owner, Sessions},
    },
    limit::followed,
    plan::Transaction,
};

/// State of the limit, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitState {
    /// Limits that are ours: `status.appliedLimits`.
    pub(super) recorded: Vec<u32>,
    /// Record of what happened to the limit since the spec last changed.
    pub(crate) defence: Defence,
    /// Whether `.lock` was written since a write of a limit was last sent.
    pub(crate) fenced: bool,
}

impl LimitState {
    pub(super) fn new(recorded: Vec<u32>, defence: Defence) -> Self {
        Self {
            recorded,
            defence,
            fenced: false,
        }
    }

    /// Records that the spec has changed, so that nothing has happened to its limit yet.
    pub(super) fn spec_changed(&mut self) {
        self.defence = Defence::default();
    }

    /// Takes over the limits that are ours, because the status records them now.
    pub(super) fn recorded(&mut self, limits: Vec<u32>) {
        self.recorded = limits;
    }

    /// Takes over the limits that are ours. Another operator recorded some of them, and may have sent a write of them.
    pub(super) fn found(&mut self, limits: Vec<u32>) {
        self.recorded = limits;
        self.fenced = false;
    }

    /// Takes Consul's limit instead of ours where the policy says so. Returns whether the settings have changed.
    pub(super) fn follow(&mut self, settings: &mut Settings, reading: Option<&Reading>) -> bool {
        let theirs = match reading.map(Reading::lock) {
            Some(Lock::Semaphore { body, .. }) => Some(body.limit()),
            _ => None,
        };
        let followed = followed(settings.limit, theirs, settings.policy, self.defence);
        if let Some(theirs) = followed {
            settings.limit = theirs;
            // The earlier limit is not ours any more, because this queue must not write it back.
            self.recorded = vec![theirs];
        }
        followed.is_some()
    }

    /// Records that a transaction is sent.
    pub(super) fn sent(&mut self, transaction: &Transaction) {
        self.fenced &= transaction.limit.is_none();
    }

    /// Records that a transaction was applied, and returns what to report of the limit that it wrote.
    pub(super) fn committed(&mut self, transaction: &Transaction) -> Option<Outcome> {
        self.fenced |= transaction.writes_lock();
        let (limit, enforced) = (transaction.limit?, transaction.enforced);
        self.defence.holds(enforced);
        Some(Outcome::LimitWritten { limit, enforced })
    }

    /// Records how the spec and Consul agree on the limit, as a pass found.
    pub(super) fn observe(&mut self, agreement: Option<Agreement>) {
        if agreement == Some(Agreement::Agreed) {
            self.defence.holds(false);
        }
    }
}

/// Returns the change of a limit that others use, if a transaction replaces such a limit in this reading.
pub(super) fn moved_by(
    transaction: &Transaction,
    reading: &Reading,
    sessions: &Sessions,
) -> Option<Moved> {
    let to = transaction.limit?;
    let Lock::Semaphore { body, .. } = reading.lock() else {
        return None;
    };
    let foreign = |session| {
        !matches!(
            sessions.owner(session),
            Some(Owner::Own(_) | Owner::Ended | Owner::Neighbour)
        )
    };
    let others = reading.contenders().filter(|(id, _)| foreign(id)).count();
    let from = body.limit();
    (others > 0 && from != to).then_some(Moved { from, to, others })
}
