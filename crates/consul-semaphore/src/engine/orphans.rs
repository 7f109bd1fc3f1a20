//! Searches for sessions of a semaphore without a contender. Such a session exists if the answer that created it was
//! lost, or if the process died before the session had a contender. A session with a TTL expires. This module
//! searches for the sessions without a TTL, for all lock keys at once, because an unused key has no queue. Before a
//! semaphore is deleted, it searches for all sessions.

use std::{collections::BTreeMap, time::Duration};

use super::{Now, Obstacle};
use crate::{Identity, Settings, holding::Setback};
use consul_client::{self as consul, Session, SessionId, clock::Moment};

/// Sessions without a TTL and without a contender that were found, and when.
#[derive(Clone, Debug, Default)]
pub(super) struct Orphans {
    found: BTreeMap<SessionId, Moment>,
    /// Time of the last search.
    looked: Option<Moment>,
    setback: Option<Setback>,
    /// Reason why the final search fails.
    pub(super) obstacle: Option<Obstacle>,
    /// When the answer came to a search that found no session after everything else was deleted.
    pub(super) done: Option<Moment>,
    asked: Option<SessionSearch>,
}

/// A question to Consul: which sessions exist.
#[derive(Clone, Copy, Debug)]
struct SessionSearch {
    sent: Moment,
    /// Whether nothing of this semaphore was left but such sessions.
    last: bool,
}

impl Orphans {
    /// Returns when to search again, or `None` if there can be no orphan. `last` says that nothing else of the
    /// semaphore is left.
    pub(super) fn due(&self, settings: &Settings, last: bool) -> Option<Moment> {
        let any = settings.ttl.is_none() || !self.found.is_empty();
        if self.asked.is_some() || (last && self.done.is_some()) || !(last || any) {
            return None;
        }
        let next = match (self.setback, self.looked) {
            (Some(setback), _) => setback.until,
            (None, Some(looked)) if !last => looked + settings.span(),
            _ => Moment::default(),
        };
        Some(next)
    }

    /// Records that a question to Consul has been sent.
    pub(super) fn ask(&mut self, now: Now, last: bool) {
        let sent = now.moment;
        self.asked = Some(SessionSearch { sent, last });
    }

    /// Returns how long an orphan must be known before it is ended. Another replica may have just created it, except
    /// when nothing else of the semaphore is left.
    fn age(settings: &Settings, last: bool) -> Duration {
        if last {
            Duration::ZERO
        } else {
            settings.span() * 2
        }
    }

    /// Takes the answer, and returns which of these sessions to destroy. Sessions `in_use` belong to a contender or
    /// to this process.
    pub(super) fn answered(
        &mut self,
        settings: &Settings,
        sessions: Result<Vec<Session>, consul::Error>,
        now: Now,
        in_use: impl Fn(&SessionId) -> bool,
    ) -> Vec<SessionId> {
        let Some(SessionSearch { sent, last }) = self.asked.take() else {
            return Vec::new();
        };
        self.looked = Some(sent);
        let sessions = match sessions {
            Ok(sessions) => sessions,
            Err(error) => {
                self.failed(&error, now, last);
                return Vec::new();
            }
        };
        let before = self.setback.take();
        let orphans = sessions.into_iter().filter(|session| {
            let own = Identity::parse(&session.name);
            // Those with a TTL expire by themselves, but the end does not wait for that.
            (last || session.ttl.is_none())
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
        // A session that was just found still exists. Only a search that finds none shows that none is left.
        if last && ends.is_empty() {
            self.done.get_or_insert(now.moment);
        }
        let obstacle = self.obstacle.take();
        if last && !ends.is_empty() {
            let setback = Setback::with_jitter(before.as_ref(), now.moment, now.jitter);
            self.setback = Some(setback);
            self.obstacle = Some(Obstacle {
                since: obstacle.map_or(sent, |before| before.since),
                nowhere: false,
                why: format!("{} of its sessions have not ended yet", ends.len()),
            });
        }
        ends
    }

    fn failed(&mut self, error: &consul::Error, now: Now, last: bool) {
        let setback = Setback::with_jitter(self.setback.as_ref(), now.moment, now.jitter);
        self.setback = Some(setback);
        if last {
            let before = self.obstacle.take();
            self.obstacle = Some(Obstacle {
                since: before.map_or(now.moment, |before| before.since),
                nowhere: matches!(error, consul::Error::Unsupported(_)),
                why: error.to_string(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
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

    fn at(moment: Moment) -> Now {
        Now {
            moment,
            time: jiff::Timestamp::UNIX_EPOCH,
            jitter: 0.0,
        }
    }

    /// Returns sessions of these names.
    #[expect(clippy::unnecessary_wraps, reason = "as Consul answers")]
    fn sessions(names: &[&str]) -> Result<Vec<Session>, consul::Error> {
        let session = |name: &&str| Session {
            id: (*name).into(),
            name: format!("consul-semaphore-operator/c/{name}/uid"),
            node: "k8s-c".into(),
            ttl: None,
            lock_delay: Duration::ZERO,
            behavior: Behavior::Delete,
            create_index: 1,
        };
        Ok(names.iter().map(session).collect())
    }

    /// Searches at this minute. Only `kept` of the sessions that Consul returns is in use.
    fn look(
        orphans: &mut Orphans,
        settings: &Settings,
        (asked, last): (u64, bool),
        answer: Result<Vec<Session>, consul::Error>,
    ) -> Vec<SessionId> {
        let now = at(minute(asked));
        orphans.ask(now, last);
        let in_use = |id: &SessionId| id.as_str().ends_with("kept");
        orphans.answered(settings, answer, now, in_use)
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
        let mut look = |asked| look(&mut orphans, &none, (asked, false), sessions(&names));
        assert!(look(1).is_empty() && look(6).is_empty(), "not yet");
        let found = look(11);
        let ended: Vec<_> = found.iter().map(SessionId::as_str).collect();
        assert_eq!(ended, ["batch/db/a", "batch/db:k1/a"]);
    }

    #[test]
    fn at_the_end_they_are_looked_for_until_that_was_answered_and_end_at_once() {
        let (mut orphans, some) = (Orphans::default(), settings(Some(Duration::from_mins(2))));
        assert_eq!(orphans.due(&some, true), Some(Moment::default()));
        look(&mut orphans, &some, (1, true), Err(consul::Error::Gone));
        assert!(orphans.obstacle.is_some() && orphans.done.is_none());
        assert!(orphans.due(&some, true) > Some(Moment::default()), "later");
        let ended = look(&mut orphans, &some, (2, true), sessions(&[]));
        assert!(ended.is_empty() && orphans.obstacle.is_none() && orphans.done.is_some());
        assert_eq!(orphans.due(&some, true), None, "once");
    }

    #[test]
    fn at_the_end_those_that_were_listed_are_not_taken_for_ended() {
        let (mut orphans, some) = (Orphans::default(), settings(Some(Duration::from_mins(2))));
        for asked in [2, 3] {
            // Destroying the session fails at first.
            let ended = look(
                &mut orphans,
                &some,
                (asked, true),
                sessions(&["batch/db:k/a"]),
            );
            assert_eq!(ended.len(), 1);
            assert!(orphans.done.is_none(), "it is still there");
            assert!(orphans.due(&some, true) > Some(Moment::default()), "later");
            let obstacle = orphans.obstacle.as_ref().unwrap();
            assert_eq!(obstacle.since, minute(2), "for so long");
        }
        look(&mut orphans, &some, (4, true), sessions(&[]));
        assert!(orphans.obstacle.is_none() && orphans.done.is_some());
    }

    #[test]
    fn they_are_looked_for_where_there_can_be_any() {
        let (none, some) = (settings(None), settings(Some(Duration::from_mins(2))));
        let mut orphans = Orphans::default();
        let due = |orphans: &Orphans, settings| orphans.due(settings, false);
        assert_eq!(due(&orphans, &none), Some(Moment::default()), "at once");
        assert_eq!(due(&orphans, &some), None);
        look(&mut orphans, &none, (1, false), sessions(&["batch/db/a"]));
        assert_eq!(due(&orphans, &none), Some(minute(6)));
        assert_eq!(due(&orphans, &some), Some(minute(3)), "found before");
    }
}
