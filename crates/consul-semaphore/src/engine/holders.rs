//! Keeps what Consul knows of the sessions of foreign holders, to show it to people. The only decision that depends
//! on it is how long a skipped workload waits for a name before it is deleted.

use std::collections::BTreeMap;

use super::{
    Now,
    calls::{Pending, PendingCalls},
    message::Call,
};
use crate::{ContenderName, Reading, holding::Setback, plan::Skipped};
use consul_client::{self as consul, Session, SessionId, clock::Moment};

/// Largest number of holders that Consul is asked about: as many as a status lists.
const MOST_NAMES_ASKED: usize = 20;

/// Answer of Consul about a session.
#[derive(Clone, Debug)]
enum HolderAnswer {
    /// The question is pending. The setback is the failure before it, if there was one.
    Asked(Option<Setback>),
    /// The question failed, and is repeated when the setback is over.
    Failed(Setback),
    /// Name and node of the session; `None` if there is nothing to learn.
    Name(Option<ContenderName>),
}

/// Answers about foreign sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForeignHolders(BTreeMap<SessionId, HolderAnswer>);

impl ForeignHolders {
    /// Returns the name and the node of a session, if Consul has answered.
    pub(super) fn name(&self, session: &SessionId) -> Option<&ContenderName> {
        match self.0.get(session)? {
            HolderAnswer::Name(name) => name.as_ref(),
            HolderAnswer::Asked(_) | HolderAnswer::Failed(_) => None,
        }
    }

    /// Returns when to ask Consul again about sessions whose question failed.
    pub(super) fn due(&self) -> impl Iterator<Item = Moment> {
        self.0.values().filter_map(|known| match known {
            HolderAnswer::Failed(setback) => Some(setback.until),
            HolderAnswer::Asked(_) | HolderAnswer::Name(_) => None,
        })
    }

    /// Forgets all sessions that no longer hold a slot.
    fn retain(&mut self, reading: &Reading) {
        self.0.retain(|session, _| reading.holds(session));
    }

    /// Asks Consul for the names of these holders in a reading, as far as the names are not known yet.
    pub(super) fn ask<'a>(
        &mut self,
        foreign: impl Iterator<Item = &'a SessionId>,
        reading: &Reading,
        calls: &mut PendingCalls,
        now: Moment,
    ) {
        self.retain(reading);
        for session in foreign.filter(|session| reading.holds(session)) {
            if self.is_to_ask(session, now) {
                let call = Call::Describe(session.clone());
                calls.ask(Pending::Describe(session.clone()), call);
            }
        }
    }

    /// Names the holders of the slots, as far as Consul has answered. Returns false while Consul is being asked.
    pub(super) fn name_takers(&self, why: &mut Skipped) -> bool {
        let Skipped::Taken { by, .. } = why else {
            return true;
        };
        if by.iter().any(|taker| self.is_asked(&taker.session)) {
            return false;
        }
        for taker in by {
            let name = self.name(&taker.session).cloned();
            taker.holder = taker.holder.take().or(name);
        }
        true
    }

    /// Returns whether to ask Consul about this session now, and if so records that it is being asked.
    fn is_to_ask(&mut self, session: &SessionId, now: Moment) -> bool {
        let before = match self.0.get(session) {
            None if self.0.len() >= MOST_NAMES_ASKED => return false,
            None => None,
            Some(HolderAnswer::Failed(setback)) if setback.until <= now => Some(*setback),
            Some(_) => return false,
        };
        self.0.insert(session.clone(), HolderAnswer::Asked(before));
        true
    }

    /// Returns whether Consul is being asked about this session.
    fn is_asked(&self, session: &SessionId) -> bool {
        matches!(self.0.get(session), Some(HolderAnswer::Asked(_)))
    }

    /// Records an answer. If the session holds nothing any more, the next pass forgets it.
    pub(super) fn answered(
        &mut self,
        id: SessionId,
        answer: Result<Option<Session>, consul::Error>,
        now: Now,
    ) {
        let known = match (answer, self.0.remove(&id)) {
            (Ok(session), _) => HolderAnswer::Name(session.as_ref().map(ContenderName::of_session)),
            (Err(_), Some(name @ HolderAnswer::Name(_))) => name,
            (Err(_), before) => {
                let before = match before {
                    Some(HolderAnswer::Asked(Some(setback)) | HolderAnswer::Failed(setback)) => {
                        Some(setback)
                    }
                    _ => None,
                };
                HolderAnswer::Failed(Setback::with_jitter(
                    before.as_ref(),
                    now.moment,
                    now.jitter,
                ))
            }
        };
        self.0.insert(id, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consul_client::Behavior;

    const NOW: Now = Now {
        moment: Moment::END,
        time: jiff::Timestamp::UNIX_EPOCH,
        jitter: 0.5,
    };

    fn session(name: &str) -> Session {
        Session {
            id: "s".into(),
            name: name.into(),
            node: "web-1".into(),
            ttl: None,
            lock_delay: std::time::Duration::ZERO,
            behavior: Behavior::Release,
            create_index: 1,
        }
    }

    #[test]
    fn a_holder_is_known_by_its_sessions_name_and_node() {
        let mut holders = ForeignHolders::default();
        let id: SessionId = "s".into();
        assert_eq!(holders.name(&id), None);
        assert!(holders.is_to_ask(&id, NOW.moment));
        assert!(!holders.is_to_ask(&id, NOW.moment), "once");
        holders.answered(id.clone(), Ok(Some(session("Consul lock\nforged"))), NOW);
        let expected = ContenderName {
            kind: Some("Program".into()),
            node: Some("web-1".into()),
            name: Some("Consul lock forged".into()),
            ..ContenderName::default()
        };
        assert_eq!(holders.name(&id), Some(&expected));
        assert_eq!(expected.to_string(), "Consul lock forged on web-1");
        holders.answered(id.clone(), Err(consul::Error::Gone), NOW);
        assert!(holders.name(&id).is_some(), "it was asked twice at once");
        holders.answered(id.clone(), Ok(Some(session(""))), NOW);
        let expected = ContenderName {
            name: None,
            ..expected
        };
        assert_eq!(holders.name(&id), Some(&expected));
        assert_eq!(expected.to_string(), "on web-1");
        holders.answered(id.clone(), Ok(None), NOW);
        assert_eq!(holders.name(&id), None, "it may not be read");
        assert!(!holders.is_to_ask(&id, Moment::END), "that is known");
    }

    #[test]
    fn where_no_answer_came_it_is_asked_again_after_a_pause() {
        let mut holders = ForeignHolders::default();
        let id: SessionId = "s".into();
        let early = Now {
            moment: Moment::default(),
            ..NOW
        };
        for _ in 0..2 {
            assert!(holders.is_to_ask(&id, Moment::END));
            holders.answered(id.clone(), Err(consul::Error::Gone), early);
            assert!(!holders.is_to_ask(&id, early.moment), "not at once");
            assert!(holders.due().next().is_some());
        }
        assert!(holders.is_to_ask(&id, Moment::END));
        holders.answered(id.clone(), Ok(Some(session("db"))), early);
        let name = holders.name(&id).map(ToString::to_string);
        assert_eq!(name.as_deref(), Some("db on web-1"));
    }
}
