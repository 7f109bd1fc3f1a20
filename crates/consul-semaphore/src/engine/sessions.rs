//! Keeps the sessions of a queue: the sessions that hold slots, and the sessions made ahead for the head of the queue.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    Lookup,
    calls::{Pending, PendingCalls},
    message::{Action, Call, Outcome},
    outcomes,
};
use crate::{
    Identity, Reading, SessionState, Settings,
    plan::{Grant, SessionRequest, Transaction},
    reading::Changed,
    workload::SlotId,
};
use consul_client::{
    self as consul, OpError, Session, SessionId,
    clock::Moment,
    id::{IdMap, IdSet},
};

/// Largest number of sessions that are made at once for a queue: about as many as the slots that one transaction
/// grants. Each call takes memory while it waits for those before it, and thousands of workloads may be able to have
/// a slot.
pub(super) const MOST_SESSIONS_MADE_AT_ONCE: usize = 64;

/// The workload that a contender's session was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The queue made the session for this workload.
    Own(Arc<Identity>),
    /// The queue made the session, and has ended it because the transaction that brought it in had no answer. Its
    /// contender may be seen for a while, but the session is not taken up again meanwhile, because nothing is to be
    /// granted to a session that is being destroyed.
    Ended,
    /// Another semaphore of this cluster on the same prefix made the session.
    Neighbour,
    /// Another program or cluster made the session.
    Foreign,
}

/// Time for which a contender may be seen whose session was ended. After that the end is taken to have failed or to be
/// undone, for example because Consul was restored from a backup, and the contender is ours again.
const ENDING: Duration = Duration::from_mins(1);

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
    making: BTreeSet<SlotId>,
    /// Sessions that no longer exist although a reading showed their contender; the prefix was read again because of
    /// that.
    outlived: BTreeSet<SessionId>,
    /// The sessions whose owner is [`Owner::Ended`], and when each was ended.
    ended: BTreeMap<SessionId, Moment>,
    /// The workload that each other contender's session was made for.
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

    /// Returns whether a session is being made.
    pub(crate) fn is_making(&self) -> bool {
        !self.making.is_empty()
    }

    /// Returns the workload that a contender's session was made for, as far as that is known.
    pub(super) fn owner(&self, session: &SessionId) -> Option<&Owner> {
        let ended = self.ended.contains_key(session).then_some(&Owner::Ended);
        ended.or_else(|| self.owners.get(session))
    }

    /// Returns whether a session that holds a slot, or may hold one, lives at this moment.
    pub(super) fn any_may_hold(&self, now: Moment, lookup: &impl Lookup) -> bool {
        let ahead: BTreeSet<_> = self.ahead.values().collect();
        let lives = |session: &SessionId| {
            let end = lookup.life(session).and_then(SessionState::end);
            end.is_some_and(|end| end > now)
        };
        let mut kept = self.kept.iter();
        kept.any(|session| !ahead.contains(session) && lives(session))
    }

    /// Stops renewing all sessions, and leaves them as they are. A session that is being made is destroyed once its
    /// answer arrives.
    pub(super) fn abandon(&mut self, calls: &mut PendingCalls) {
        calls.forget_made_sessions();
        for session in std::mem::take(self).kept {
            calls.act(Action::Forget(session));
        }
    }

    /// Requests a session for a slot of a workload, unless one is being made already or too many are. In that case
    /// the pass after the next answer requests the session.
    pub(super) fn make(
        &mut self,
        request: &SessionRequest,
        settings: &Settings,
        calls: &mut PendingCalls,
    ) {
        let making = &mut self.making;
        if making.len() >= MOST_SESSIONS_MADE_AT_ONCE || !making.insert(request.slot()) {
            return;
        }
        let identity = settings.identity(&request.workload, request.ordinal);
        let call = Call::CreateSession {
            name: identity.session_name(),
            ttl: settings.ttl,
            lock_delay: settings.session_lock_delay(),
            ahead: request.ahead,
        };
        calls.ask(Pending::Session(request.clone()), call);
    }

    /// Takes over the answer to the call that makes a session.
    pub(super) fn made(
        &mut self,
        request: &SessionRequest,
        made: Result<SessionId, consul::Error>,
        settings: &Settings,
        calls: &mut PendingCalls,
    ) -> Result<(), consul::Error> {
        let slot = request.slot();
        self.making.remove(&slot);
        let id = made?;
        let identity = settings.identity(&request.workload, request.ordinal);
        let own = Owner::Own(Arc::new(identity));
        self.owners.insert(id.clone(), own);
        self.kept.insert(id.clone());
        if settings.is_program() {
            self.unused.insert(id.clone());
        }
        if let Some(other) = self.ahead.insert(slot, id) {
            self.end(&other, calls);
        }
        Ok(())
    }

    /// Records that a transaction is sent, so that the sessions with which it locks keys may have contenders.
    pub(super) fn sent(&mut self, transaction: &Transaction) {
        for session in transaction.locked_by() {
            self.unused.remove(session);
        }
    }

    /// Records that a session has taken the slot of a dead one, so that it is not ahead any more.
    pub(super) fn replaced(
        &mut self,
        gone: &SessionId,
        session: &SessionId,
        calls: &mut PendingCalls,
    ) {
        self.ahead.retain(|_, other| other != session);
        // The slot was not released, because another session holds it from now on.
        self.end(gone, calls);
    }

    /// Records that slots were granted, and ends the sessions made ahead that no slot needs any more, because the
    /// contender of another operator was granted the slot.
    pub(super) fn granted(&mut self, grant: &Grant, calls: &mut PendingCalls) {
        let (workload, sessions) = (&grant.workload.uid, &grant.sessions);
        let mut others = Vec::new();
        self.ahead.retain(|slot, ahead| {
            let granted = sessions
                .get(&slot.ordinal)
                .filter(|_| slot.workload == *workload);
            others.extend(
                granted
                    .filter(|granted| *granted != ahead)
                    .map(|_| ahead.clone()),
            );
            granted.is_none()
        });
        for other in others {
            self.end(&other, calls);
        }
    }

    /// Ends the session that was made ahead for a slot, if there is one.
    pub(super) fn end_ahead(&mut self, slot: &SlotId, calls: &mut PendingCalls) {
        if let Some(session) = self.ahead.get(slot).cloned() {
            self.end(&session, calls);
        }
    }

    /// Ends the sessions that a transaction without an answer brought into the queue. While such a session lives, the
    /// transaction could write the contender late, when the session is a dead holder, and bring it back to life.
    pub(super) fn end_joined(
        &mut self,
        transaction: &Transaction,
        now: Moment,
        calls: &mut PendingCalls,
    ) {
        for session in &transaction.joins {
            self.end(session, calls);
            self.owners.remove(session);
            self.ended.insert(session.clone(), now);
        }
    }

    /// Forgets the ended sessions whose contender this reading shows no more, and those whose contender was seen for so
    /// long that their end must have failed. Returns whether there is any of the latter, whose owner is to be found
    /// out again.
    pub(super) fn forget_ended(&mut self, reading: &Reading, now: Moment) -> bool {
        let before = self.ended.len();
        self.ended.retain(|_, ended| *ended + ENDING > now);
        let any = self.ended.len() < before;
        self.ended.retain(|session, ended| {
            reading.contender(session).is_some() || reading.sent <= *ended
        });
        any
    }

    /// Returns when the next end of a session counts as failed.
    pub(super) fn next_failed_end(&self) -> Option<Moment> {
        self.ended.values().map(|ended| *ended + ENDING).min()
    }

    /// Stops renewing a session and destroys it.
    pub(super) fn end(&mut self, session: &SessionId, calls: &mut PendingCalls) {
        if self.remove(session) {
            calls.act(Action::Destroy(session.clone()));
        }
    }

    /// Forgets the sessions that a refused transaction found gone, before their renewal did. Returns whether there is
    /// one.
    pub(super) fn drop_gone(
        &mut self,
        transaction: &Transaction,
        errors: &[OpError],
        calls: &mut PendingCalls,
    ) -> bool {
        let mut any = false;
        for session in transaction.gone_sessions(errors) {
            if self.remove(session) {
                calls.act(Action::Forget(session.clone()));
                any = true;
            }
        }
        any
    }

    /// Takes over whose sessions these are, by the sessions that Consul found.
    pub(super) fn resolved(
        &mut self,
        asked: Vec<SessionId>,
        found: Vec<Session>,
        settings: &Settings,
    ) {
        let names: BTreeMap<_, _> = found
            .into_iter()
            .map(|session| (session.id, session.name))
            .collect();
        for session in asked {
            let identity = names.get(&session).and_then(|name| Identity::parse(name));
            let owner = match identity {
                Some(identity) if settings.owns(&identity) => Owner::Own(Arc::new(identity)),
                Some(identity) if *identity.cluster == *settings.cluster.id => Owner::Neighbour,
                _ => Owner::Foreign,
            };
            self.owners.insert(session, owner);
        }
    }

    /// Forgets the sessions made ahead that Consul says are gone, or that are no longer renewed.
    pub(super) fn forget_dead(&mut self, lookup: &impl Lookup, calls: &mut PendingCalls) {
        self.ahead.retain(|_, session| {
            let gone = lookup.life(session) == Some(SessionState::Gone);
            let lives = self.kept.contains(session) && !gone;
            if !lives && self.kept.remove(session) {
                self.unused.remove(session);
                calls.act(Action::Forget(session.clone()));
            }
            lives
        });
    }

    /// Renews the sessions of our contenders that are not renewed yet, as after a start of this process. Destroys the
    /// sessions whose contender is deleted, and reports what they gave back.
    pub(super) fn adopt(
        &mut self,
        reading: &Reading,
        calls: &mut PendingCalls,
        lookup: &impl Lookup,
    ) {
        let found = self.found(reading);
        let gone = self.without_contender(reading);
        for (session, identity) in found {
            self.kept.insert(session.clone());
            calls.act(Action::Adopt(session.clone()));
            calls.report(Outcome::Adopted { identity, session });
        }
        for session in gone {
            let owner = self.owner(&session).cloned();
            self.end(&session, calls);
            if let Some(Owner::Own(identity)) = owner {
                let workload = lookup.workload(&identity.uid);
                let contender = (identity, session);
                if let Some(outcome) = outcomes::given_back(contender, reading, workload.as_deref())
                {
                    calls.report(outcome);
                }
            }
        }
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
        self.forget_unseen(reading);
        let sessions = reading.changed_contenders().map(|(session, _)| session);
        sessions
            .filter(|session| self.owner(session).is_none())
            .cloned()
            .collect()
    }

    /// Forgets the owners of old sessions, in batches.
    fn forget_unseen(&mut self, reading: &Reading) {
        let Self { owners, kept, .. } = self;
        if owners.len() > 2 * kept.len().max(reading.count_of_contenders()) {
            owners.retain(|session, _| {
                reading.contender(session).is_some() || kept.contains(session)
            });
        }
    }

    /// Returns our contenders that are not renewed yet, for example after a start.
    fn found(&mut self, reading: &Reading) -> Vec<(SessionId, Arc<Identity>)> {
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
    fn without_contender(&self, reading: &Reading) -> Vec<SessionId> {
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
    fn remove(&mut self, session: &SessionId) -> bool {
        self.ahead.retain(|_, ahead| ahead != session);
        self.unused.remove(session);
        self.kept.remove(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn an_ended_session_is_left_alone_while_its_contender_is_seen_but_not_for_ever() {
        let contender = samples::entry("p/late", Some("late"), "");
        let shown = samples::reading(vec![contender]);
        let mut gone = samples::reading(Vec::new());
        let transaction = Transaction {
            joins: vec!["late".into()],
            ..Transaction::default()
        };
        let (mut sessions, mut calls) = (Sessions::default(), PendingCalls::default());
        let second = |n| Moment::from_boot(Duration::from_secs(n));

        sessions.end_joined(&transaction, second(5), &mut calls);
        assert!(
            !sessions.forget_ended(&gone, second(6)),
            "read before the end"
        );
        assert!(!sessions.forget_ended(&shown, second(64)));
        assert_eq!(sessions.unknown(&shown), []);
        assert_eq!(sessions.next_failed_end(), Some(second(65)));
        assert!(sessions.forget_ended(&shown, second(65)));
        assert_eq!(sessions.unknown(&shown), ["late".into()]);

        sessions.end_joined(&transaction, second(5), &mut calls);
        gone.confirm(second(6));
        assert!(!sessions.forget_ended(&gone, second(7)));
        assert_eq!(sessions.unknown(&shown), ["late".into()], "it came back");
    }
}
