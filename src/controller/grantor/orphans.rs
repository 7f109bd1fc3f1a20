//! Sessions of this semaphore that nothing stands for: the answer that made them was lost, or the
//! operator died before they had a contender. Those with a TTL end by themselves.

use std::{collections::HashMap, time::Duration};

use super::Grantor;
use crate::{
    clock::Moment,
    consul::SessionId,
    semaphore::{Identity, Settings},
};

/// The sessions without a TTL and without a contender that were found, and when.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    found: HashMap<SessionId, Moment>,
    /// When they were last looked for.
    looked: Option<Moment>,
}

impl Orphans {
    /// When they are to be looked for again; `None` where there can be none.
    pub(super) fn due(&self, settings: &Settings) -> Option<Moment> {
        let any = settings.ttl.is_none() || !self.found.is_empty();
        let next = |looked| looked + settings.span();
        any.then(|| self.looked.map_or(Moment::default(), next))
    }

    /// How old one gets: another replica may have made it a moment ago, except at the end.
    fn age(settings: &Settings) -> Duration {
        if settings.terminating {
            Duration::ZERO
        } else {
            settings.span() * 2
        }
    }
}

impl Grantor {
    /// Looks for sessions without a TTL that have been without a contender for long, and ends them.
    pub(super) async fn sweep(&mut self) {
        let now = Moment::now();
        let due = self.orphans.due(&self.settings);
        let due = due.is_some_and(|due| due <= now || self.settings.terminating);
        let reading = self.view.reading.as_ref().filter(|_| due);
        let (Some(reading), Some(home)) = (reading, &self.view.home) else {
            return;
        };
        let sessions = match home.consul.node_sessions(&home.node).await {
            Ok(sessions) => sessions,
            Err(error) => return self.view.read_failed(error),
        };
        self.orphans.looked = Some(now);
        let orphans = sessions.into_iter().filter(|session| {
            let own = Identity::parse(&session.name);
            session.ttl.is_none()
                && own.is_some_and(|identity| self.settings.owns(&identity))
                && reading.contender(&session.id).is_none()
                && !self.sessions.kept.contains_key(&session.id)
        });
        let before = std::mem::take(&mut self.orphans.found);
        for session in orphans {
            let found = before.get(&session.id).copied().unwrap_or(now);
            if found + Orphans::age(&self.settings) <= now {
                tracing::info!(session = %session.id, semaphore = %self.reference, "ended a session that nothing stands for");
                self.context.keeper.destroy(&home.consul, session.id);
            } else {
                self.orphans.found.insert(session.id, found);
            }
        }
    }
}
