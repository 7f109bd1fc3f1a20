//! Keeps the sessions of a queue: the sessions that hold slots, and the sessions made ahead for the head of the queue.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Lookup;
use crate::{Identity, Reading, SessionState, reading::Changed, workload::SlotId};
use consul_client::{
    SessionId,
    id::{IdMap, IdSet},
};

/// The workload that a contender's session was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The queue made the session for this workload.
    Own(Arc<Identity>),
    /// Another semaphore of this cluster on the same prefix made the session.
    Neighbour,
    /// Another program or cluster made the session.
    Foreign,
}

/// Knowledge about sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    /// The sessions that are renewed for this queue.
    pub(super) kept: IdSet<SessionId>,
    /// The renewed sessions that were made ahead, by slot.
    pub(crate) ahead: BTreeMap<SlotId, SessionId>,
    /// The renewed sessions that no transaction was sent for yet, by anybody: only a program can know that.
    pub(crate) unused: IdSet<SessionId>,
    /// The slots that a session is being made for.
    pub(super) making: BTreeSet<SlotId>,
    /// Sessions that no longer exist although a reading showed their contender; the prefix was read again because of
    /// that.
    outlived: BTreeSet<SessionId>,
    /// The workload that each contender's session was made for.
    pub(super) owners: IdMap<SessionId, Owner>,
}

impl Sessions {
    /// Whether no session is renewed, and none is being made.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.making.is_empty()
    }

    /// Returns what is known of a session, if it is renewed for this queue.
    pub(super) fn life(&self, session: &SessionId, lookup: &impl Lookup) -> Option<SessionState> {
        let kept = self.kept.contains(session);
        kept.then(|| lookup.life(session).unwrap_or(SessionState::Unknown))
    }

    /// Forgets the sessions made ahead that Consul says are gone, or that are no longer renewed. Returns the
    /// forgotten sessions that were still being renewed.
    pub(super) fn forget_dead(&mut self, lookup: &impl Lookup) -> Vec<SessionId> {
        let mut dead = Vec::new();
        self.ahead.retain(|_, session| {
            let gone = lookup.life(session) == Some(SessionState::Gone);
            let lives = self.kept.contains(session) && !gone;
            if !lives && self.kept.remove(session) {
                self.unused.remove(session);
                dead.push(session.clone());
            }
            lives
        });
        dead
    }

    /// Whether Consul says that a session is gone whose contender this reading still shows. Each such session is
    /// reported once. `gone` has the sessions that were reported as gone since the last call.
    pub(super) fn outlived(
        &mut self,
        reading: &Reading,
        gone: &BTreeSet<SessionId>,
        lookup: &impl Lookup,
    ) -> bool {
        self.outlived.retain(|session| self.kept.contains(session));
        let is_gone = |session: &&SessionId| self.life(session, lookup) == Some(SessionState::Gone);
        let contenders = reading.changed_contenders().map(|(session, _)| session);
        let others = gone.iter().filter(|id| reading.contender(id).is_some());
        let gone: Vec<SessionId> = contenders.chain(others).filter(is_gone).cloned().collect();
        let before = self.outlived.len();
        self.outlived.extend(gone);
        self.outlived.len() > before
    }

    /// Returns the contenders whose owner is unknown. The owner of a session never changes.
    pub(super) fn unknown(&mut self, reading: &Reading) -> Vec<SessionId> {
        let Self { owners, kept, .. } = self;
        // Old sessions are forgotten in batches.
        if owners.len() > 2 * kept.len().max(reading.count_of_contenders()) {
            owners.retain(|session, _| {
                reading.contender(session).is_some() || kept.contains(session)
            });
        }
        let sessions = reading.changed_contenders().map(|(session, _)| session);
        sessions
            .filter(|session| !owners.contains_key(*session))
            .cloned()
            .collect()
    }

    /// Returns our contenders that are not renewed yet, for example after a start.
    pub(super) fn found(&mut self, reading: &Reading) -> Vec<(SessionId, Arc<Identity>)> {
        let Self {
            owners,
            kept,
            ahead,
            ..
        } = self;
        ahead.retain(|_, session| reading.contender(session).is_none());
        let contenders = reading.changed_contenders();
        let own = contenders.filter_map(|(session, _)| match owners.get(session) {
            Some(Owner::Own(identity)) => Some((session, identity)),
            _ => None,
        });
        own.filter(|(session, _)| !kept.contains(*session))
            .map(|(session, identity)| (session.clone(), identity.clone()))
            .collect()
    }

    /// Returns the renewed sessions that have no contender, because an answer of Consul was lost, or because somebody
    /// deleted or unlocked the key. Sessions made ahead don't count.
    pub(super) fn without_contender(&self, reading: &Reading) -> Vec<SessionId> {
        let ahead: BTreeSet<_> = self.ahead.values().collect();
        let is_without =
            |session: &&SessionId| !ahead.contains(session) && reading.contender(session).is_none();
        match reading.changed() {
            Changed::All => self.kept.iter().filter(is_without).cloned().collect(),
            Changed::Only(changed) => {
                let kept = changed
                    .iter()
                    .filter(|session| self.kept.contains(*session));
                kept.filter(is_without).cloned().collect()
            }
        }
    }

    /// Returns the renewed sessions that Consul says are gone.
    pub(super) fn gone(&self, lookup: &impl Lookup) -> Vec<SessionId> {
        let kept = self.kept.iter();
        kept.filter(|session| lookup.life(session) == Some(SessionState::Gone))
            .cloned()
            .collect()
    }

    /// Forgets a session; returns whether it was renewed for this queue.
    pub(super) fn remove(&mut self, session: &SessionId) -> bool {
        self.ahead.retain(|_, ahead| ahead != session);
        self.unused.remove(session);
        self.kept.remove(session)
    }
}
