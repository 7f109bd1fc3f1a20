//! Sessions of this semaphore that nothing stands for: the answer that made them was lost, or the
//! operator died before they had a contender. Those with a TTL end by themselves.

use std::{collections::HashMap, time::Duration};

use super::{Grantor, Whose};
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
        let (Some(reading), Some(home)) = (&self.view.reading, &self.view.home) else {
            return;
        };
        let own = |session| matches!(self.sessions.whose(session), Some(Whose::Own(_)));
        let ends = self.settings.terminating && !reading.contenders().any(|(id, _)| own(id));
        let due = self.orphans.due(&self.settings);
        if !ends && due.is_none_or(|due| due > now) {
            return;
        }
        let call = home.consul.node_sessions(&home.node);
        let sessions = match self.view.in_time(call).await {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::semaphore::samples;

    fn settings(ttl: Option<Duration>, terminating: bool) -> Settings {
        Settings {
            terminating,
            ttl,
            ..samples::settings(1)
        }
    }

    #[test]
    fn they_get_ten_minutes_old_except_at_the_end() {
        let age = |terminating| Orphans::age(&settings(None, terminating));
        assert_eq!(age(false), Duration::from_mins(10));
        assert_eq!(age(true), Duration::ZERO);
    }

    #[test]
    fn they_are_looked_for_where_there_can_be_any() {
        let (none, some) = (
            settings(None, false),
            settings(Some(Duration::from_mins(2)), false),
        );
        let mut orphans = Orphans::default();
        assert_eq!(orphans.due(&none), Some(Moment::default()), "at once");
        assert_eq!(orphans.due(&some), None);
        let now = Moment::now();
        orphans.looked = Some(now);
        assert_eq!(orphans.due(&none), Some(now + Duration::from_mins(5)));
        orphans.found.insert("s".into(), now);
        let next = Some(now + Duration::from_mins(2));
        assert_eq!(orphans.due(&some), next, "some were found before");
    }
}
