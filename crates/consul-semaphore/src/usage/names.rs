//! Remembers the sessions of contenders whose keys do not say who they are, such as those of `consul lock`.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ContenderBody, Reading};
use consul_client::{Session, SessionId};

/// The largest number of sessions that are looked up for one answer, because each takes a call.
const MOST_LOOKUPS: usize = 100;

/// The sessions that name contenders whose keys do not say who they are.
#[derive(Clone, Debug, Default)]
pub struct SessionNames(BTreeMap<SessionId, Option<Session>>);

impl SessionNames {
    /// Returns the names with one session, which is `None` if it is unknown.
    pub fn of(session: &SessionId, known: Option<Session>) -> Self {
        Self([(session.clone(), known)].into())
    }

    /// Returns a session, if it was found.
    pub fn get(&self, session: &SessionId) -> Option<&Session> {
        self.0.get(session)?.as_ref()
    }

    /// Returns the sessions to look up, at most 100: those of contenders in these readings whose bodies do not say who
    /// they are, unless the sessions are known already. Forgets all other sessions.
    pub(crate) fn missing<'a>(
        &mut self,
        readings: impl IntoIterator<Item = &'a Reading>,
    ) -> Vec<SessionId> {
        let unnamed: BTreeSet<SessionId> = readings
            .into_iter()
            .flat_map(Reading::contenders)
            .filter(|(session, entry)| {
                session.is_genuine() && ContenderBody::read(&entry.value).is_none()
            })
            .map(|(session, _)| session.clone())
            .collect();
        self.0.retain(|session, _| unnamed.contains(session));
        unnamed
            .into_iter()
            .filter(|session| !self.0.contains_key(session))
            .take(MOST_LOOKUPS)
            .collect()
    }

    /// Adds sessions that were looked up, which are `None` if they are unknown.
    pub(crate) fn extend(&mut self, found: impl IntoIterator<Item = (SessionId, Option<Session>)>) {
        self.0.extend(found);
    }
}
