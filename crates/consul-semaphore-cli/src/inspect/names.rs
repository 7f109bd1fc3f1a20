//! Looks up the sessions of contenders whose keys do not say who they are, such as those of `consul lock`.

use std::collections::{BTreeMap, BTreeSet};

use consul_client::{self as consul, Client, Session, SessionId};
use consul_semaphore::{ContenderBody, Reading};
use futures::{StreamExt as _, TryStreamExt as _, stream};

/// Largest number of sessions that are looked up for one answer, because each takes a call.
const MOST_LOOKUPS: usize = 100;

/// Number of look-ups of sessions that run at once.
const LOOKUPS_AT_ONCE: usize = 8;

/// Sessions that were looked up.
#[derive(Debug, Default)]
pub(super) struct SessionNames(BTreeMap<SessionId, Option<Session>>);

impl SessionNames {
    /// Looks up the sessions of contenders in these readings whose bodies do not say who they are, unless the
    /// sessions are known already. Forgets all other sessions. If the token may not read sessions, the contenders
    /// stay without a name.
    ///
    /// # Errors
    /// Consul can't be asked.
    pub(super) async fn learn<'a>(
        &mut self,
        client: &Client,
        readings: impl IntoIterator<Item = &'a Reading>,
    ) -> Result<(), consul::Error> {
        let unnamed: BTreeSet<SessionId> = readings
            .into_iter()
            .flat_map(Reading::contenders)
            .filter(|(session, entry)| {
                session.is_genuine() && ContenderBody::read(&entry.value).is_none()
            })
            .map(|(session, _)| session.clone())
            .collect();
        self.0.retain(|session, _| unnamed.contains(session));
        let unknown: Vec<_> = unnamed
            .into_iter()
            .filter(|session| !self.0.contains_key(session))
            .take(MOST_LOOKUPS)
            .collect();
        let lookups = stream::iter(unknown).map(async |id| match client.session(&id).await {
            Ok(session) => Ok((id, session)),
            Err(consul::Error::Denied(_)) => Ok((id, None)),
            Err(error) => Err(error),
        });
        let found: Vec<_> = lookups.buffered(LOOKUPS_AT_ONCE).try_collect().await?;
        self.0.extend(found);
        Ok(())
    }

    /// Returns the names with one session, which is `None` if it is unknown.
    pub(super) fn of(session: &SessionId, known: Option<Session>) -> Self {
        Self([(session.clone(), known)].into())
    }

    /// Returns a session, if it was found.
    pub(super) fn get(&self, session: &SessionId) -> Option<&Session> {
        self.0.get(session)?.as_ref()
    }
}
