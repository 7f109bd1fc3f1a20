//! Sessions of this semaphore that nothing stands for: the answer that made them was lost, or the
//! operator died before they had a contender. Those with a TTL end by themselves; the others are
//! looked for here, at once for all lock keys, because a key that nobody uses has no branch.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::task::JoinSet;

use super::{Overseer, branch::Obstacle};
use consul_client::{self as consul, Session, SessionId, clock::Moment};
use consul_semaphore::{Identity, Settings, holding::Setback};

/// What was asked, and answered.
pub(super) struct Answer {
    sent: Moment,
    /// Whether nothing of this semaphore was left but these.
    last: bool,
    sessions: Result<Vec<Session>, consul::Error>,
}

/// The sessions without a TTL and without a contender that were found, and when.
#[derive(Default)]
pub(super) struct Orphans {
    found: HashMap<SessionId, Moment>,
    /// When they were last looked for.
    looked: Option<Moment>,
    setback: Option<Setback>,
    /// Why they can't be looked for at the end.
    pub(super) obstacle: Option<Obstacle>,
    /// Whether they were looked for after all else was gone.
    pub(super) done: bool,
    pub(super) asked: JoinSet<Answer>,
}

impl Orphans {
    /// When they are to be looked for again; `None` where there can be none. `last` says that nothing
    /// else of the semaphore is left.
    fn due(&self, settings: &Settings, last: bool) -> Option<Moment> {
        let any = settings.ttl.is_none() || !self.found.is_empty();
        if !self.asked.is_empty() || (last && self.done) || !(last || any) {
            return None;
        }
        let next = match (self.setback, self.looked) {
            (Some(setback), _) => setback.until,
            (None, Some(looked)) if !last => looked + settings.span(),
            _ => Moment::default(),
        };
        Some(next)
    }

    /// How old one gets: another replica may have made it a moment ago, except at the end.
    fn age(settings: &Settings, last: bool) -> Duration {
        if last {
            Duration::ZERO
        } else {
            settings.span() * 2
        }
    }

    /// Takes note of an answer, and says which of these sessions are to be ended. Those `in_use` have
    /// somebody to look after them.
    fn settle(
        &mut self,
        settings: &Settings,
        answer: Answer,
        in_use: impl Fn(&SessionId) -> bool,
    ) -> Vec<SessionId> {
        let Answer {
            sent,
            last,
            sessions,
        } = answer;
        self.looked = Some(sent);
        let sessions = match sessions {
            Ok(sessions) => sessions,
            Err(error) => {
                self.failed(settings, &error, last);
                return Vec::new();
            }
        };
        let before = self.setback.take();
        let orphans = sessions.into_iter().filter(|session| {
            let own = Identity::parse(&session.name);
            session.ttl.is_none()
                && own.is_some_and(|identity| settings.owns_of_any_key(&identity))
                && !in_use(&session.id)
        });
        let known = std::mem::take(&mut self.found);
        let mut ends = Vec::new();
        for session in orphans {
            let found = known.get(&session.id).copied().unwrap_or(sent);
            if found + Self::age(settings, last) <= sent {
                ends.push(session.id);
            } else {
                self.found.insert(session.id, found);
            }
        }
        // Listed is not ended: only a look that finds none shows that none is left.
        self.done |= last && ends.is_empty();
        let obstacle = self.obstacle.take();
        if last && !ends.is_empty() {
            self.setback = Some(Setback::after(before.as_ref(), Moment::now()));
            self.obstacle = Some(Obstacle {
                since: obstacle.map_or(sent, |before| before.since),
                nowhere: false,
                why: format!("{} of its sessions have not ended yet", ends.len()),
            });
        }
        ends
    }

    fn failed(&mut self, settings: &Settings, error: &consul::Error, last: bool) {
        let (semaphore, now) = (&settings.name, Moment::now());
        if self.setback.is_none() {
            tracing::warn!(%semaphore, namespace = %settings.namespace, %error, "sessions that nothing stands for can't be looked for");
        }
        self.setback = Some(Setback::after(self.setback.as_ref(), now));
        if last {
            let since = self.obstacle.take().map_or(now, |before| before.since);
            self.obstacle = Some(Obstacle {
                since,
                nowhere: matches!(error, consul::Error::Unsupported(_)),
                why: error.to_string(),
            });
        }
    }
}

impl Overseer {
    /// When sessions that nothing stands for are to be looked for: only while it is known what the
    /// contenders are.
    pub(super) fn orphans_due(&self) -> Option<Moment> {
        if self.home.is_none() || !self.feed.is_known() {
            return None;
        }
        self.orphans.due(&self.settings, self.is_cleaned_up())
    }

    /// Has Consul asked, beside all else, which sessions there are, when that is due.
    pub(super) fn look_for_orphans(&mut self) {
        let sent = Moment::now();
        let due = self.orphans_due().is_some_and(|due| due <= sent);
        let Some(home) = self.home.clone().filter(|_| due) else {
            return;
        };
        let last = self.is_cleaned_up();
        self.orphans.asked.spawn(async move {
            let sessions = home.consul.node_sessions(&home.node).await;
            Answer {
                sent,
                last,
                sessions,
            }
        });
    }

    /// Ends those of these sessions that have been without a contender for long.
    pub(super) fn end_orphans(&mut self, answer: Answer) {
        let Some(home) = &self.home else {
            return;
        };
        let keeper = &self.context.keeper;
        let locking: HashSet<SessionId> = self.feed.sessions();
        let in_use = |id: &SessionId| locking.contains(id) || keeper.keeps(id);
        for session in self.orphans.settle(&self.settings, answer, in_use) {
            tracing::info!(%session, semaphore = %self.reference, "ended a session that nothing stands for");
            keeper.destroy(&home.consul, session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::samples;
    use consul_client::Behavior;

    fn settings(ttl: Option<Duration>) -> Settings {
        Settings {
            ttl,
            ..samples::settings(1)
        }
    }

    fn minute(minute: u64) -> Moment {
        Moment::from_boot(Duration::from_mins(minute))
    }

    /// What Consul answers that was asked at this minute: sessions of these names.
    fn answer(asked: u64, last: bool, names: &[&str]) -> Answer {
        let session = |name: &&str| Session {
            id: (*name).into(),
            name: format!("consul-semaphore-operator/c/{name}/uid"),
            node: "k8s-c".into(),
            ttl: None,
            lock_delay: Duration::ZERO,
            behavior: Behavior::Delete,
            create_index: 1,
        };
        Answer {
            sent: minute(asked),
            last,
            sessions: Ok(names.iter().map(session).collect()),
        }
    }

    #[test]
    fn those_of_any_key_end_when_they_are_ten_minutes_old() {
        let (mut orphans, none) = (Orphans::default(), settings(None));
        let names = [
            "batch/db/a",
            "batch/db:k1/a",
            "batch/db:k2/kept",
            "batch/other/a",
            "elsewhere/db/a",
        ];
        let in_use = |id: &SessionId| id.as_str().ends_with("kept");
        let mut look = |asked| orphans.settle(&none, answer(asked, false, &names), in_use);
        assert!(look(1).is_empty() && look(6).is_empty(), "not yet");
        let ended = look(11);
        let ended: Vec<_> = ended.iter().map(SessionId::as_str).collect();
        assert_eq!(ended, ["batch/db/a", "batch/db:k1/a"]);
    }

    #[test]
    fn at_the_end_they_are_looked_for_until_that_was_answered_and_end_at_once() {
        let (mut orphans, some) = (Orphans::default(), settings(Some(Duration::from_mins(2))));
        assert_eq!(orphans.due(&some, true), Some(Moment::default()));
        let failed = Answer {
            sessions: Err(consul::Error::Gone),
            ..answer(1, true, &[])
        };
        orphans.settle(&some, failed, |_| false);
        assert!(orphans.obstacle.is_some() && !orphans.done);
        assert!(orphans.due(&some, true) > Some(Moment::default()), "later");
        let ended = orphans.settle(&some, answer(2, true, &[]), |_| false);
        assert!(ended.is_empty() && orphans.obstacle.is_none() && orphans.done);
        assert_eq!(orphans.due(&some, true), None, "once");
    }

    #[test]
    fn at_the_end_those_that_were_listed_are_not_taken_for_ended() {
        let (mut orphans, some) = (Orphans::default(), settings(Some(Duration::from_mins(2))));
        for asked in [2, 3] {
            // It can't be destroyed at first.
            let ended = orphans.settle(&some, answer(asked, true, &["batch/db:k/a"]), |_| false);
            assert_eq!(ended.len(), 1);
            assert!(!orphans.done, "it is still there");
            assert!(orphans.due(&some, true) > Some(Moment::default()), "later");
            let obstacle = orphans.obstacle.as_ref().unwrap();
            assert_eq!(obstacle.since, minute(2), "for so long");
        }
        orphans.settle(&some, answer(4, true, &[]), |_| false);
        assert!(orphans.obstacle.is_none() && orphans.done);
    }

    #[test]
    fn they_are_looked_for_where_there_can_be_any() {
        let (none, some) = (settings(None), settings(Some(Duration::from_mins(2))));
        let mut orphans = Orphans::default();
        let due = |orphans: &Orphans, settings| orphans.due(settings, false);
        assert_eq!(due(&orphans, &none), Some(Moment::default()), "at once");
        assert_eq!(due(&orphans, &some), None);
        orphans.settle(&none, answer(1, false, &["batch/db/a"]), |_| false);
        assert_eq!(due(&orphans, &none), Some(minute(6)));
        assert_eq!(due(&orphans, &some), Some(minute(3)), "found before");
    }
}
