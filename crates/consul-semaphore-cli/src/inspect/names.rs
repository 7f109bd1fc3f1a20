//! The sessions of contenders that do not say whose they are, such as those of `consul lock`.

use std::collections::{BTreeMap, BTreeSet};

use consul_client::{self as consul, Client, Session, SessionId};
use consul_semaphore::{ContenderBody, Reading};
use futures::{StreamExt as _, TryStreamExt as _, stream};

/// How many sessions are looked up at most for one answer: it takes a call each.
const MOST: usize = 100;

/// How many of these calls run at once.
const AT_ONCE: usize = 8;

/// The sessions that were looked up.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeMap<SessionId, Option<Session>>);

impl Names {
    /// Looks up who takes part in these and does not say more, unless it is known; forgets all others. A token that
    /// may not read sessions leaves them without a name.
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
        let unknown = unnamed
            .into_iter()
            .filter(|session| !self.0.contains_key(session));
        let unknown: Vec<_> = unknown.take(MOST).collect();
        let found = stream::iter(unknown).map(async |id| match client.session(&id).await {
            Ok(session) => Ok((id, session)),
            Err(consul::Error::Denied(_)) => Ok((id, None)),
            Err(error) => Err(error),
        });
        let found: Vec<_> = found.buffered(AT_ONCE).try_collect().await?;
        self.0.extend(found);
        Ok(())
    }

    /// One session, if it is known.
    pub(super) fn of(session: &SessionId, known: Option<Session>) -> Self {
        Self([(session.clone(), known)].into())
    }

    /// A session, if it was found.
    pub(super) fn get(&self, session: &SessionId) -> Option<&Session> {
        self.0.get(session)?.as_ref()
    }
}
