//! Who holds slots that others were given: what Consul knows of their sessions, for people to read.
//! Nothing is decided by it.

use std::collections::HashMap;

use tokio::task::JoinSet;

use super::{Grantor, Whose};
use consul_client::{self as consul, Session, SessionId, clock::Moment, text::one_line};
use consul_semaphore::holding::Setback;
use consul_semaphore_api::LISTED;

/// How much of a session's name is shown.
const LONGEST: usize = 256;

/// What was asked about a session, and answered.
type Answer = (SessionId, Result<Option<Session>, consul::Error>);

/// What Consul said of a session.
enum Told {
    /// It is being asked; after this failure, if there was one.
    Asked(Option<Setback>),
    /// It gave no answer, and is asked again when that is due.
    Failed(Setback),
    /// This is what it is called; `None` where there is nothing to be known.
    Name(Option<String>),
}

/// What is known of the sessions of others.
#[derive(Default)]
pub(in crate::controller) struct Strangers {
    known: HashMap<SessionId, Told>,
    pub(super) asked: JoinSet<Answer>,
}

impl Strangers {
    /// The name and the node of a session, if Consul has told.
    pub(in crate::controller) fn name(&self, session: &SessionId) -> Option<String> {
        match self.known.get(session)? {
            Told::Name(name) => name.clone(),
            Told::Asked(_) | Told::Failed(_) => None,
        }
    }

    /// When Consul is to be asked again about one of whom it gave no answer.
    pub(super) fn due(&self) -> Option<Moment> {
        let failed = self.known.values().filter_map(|told| match told {
            Told::Failed(setback) => Some(setback.until),
            Told::Asked(_) | Told::Name(_) => None,
        });
        failed.min()
    }

    /// Whether Consul is to be asked about this one now, which is noted.
    fn is_to_ask(&mut self, session: &SessionId, now: Moment) -> bool {
        let before = match self.known.get(session) {
            None if self.known.len() >= LISTED => return false,
            None => None,
            Some(Told::Failed(setback)) if setback.until <= now => Some(*setback),
            Some(_) => return false,
        };
        self.known.insert(session.clone(), Told::Asked(before));
        true
    }

    /// Whether Consul is being asked who it is.
    pub(super) fn is_asked(&self, session: &SessionId) -> bool {
        matches!(self.known.get(session), Some(Told::Asked(_)))
    }

    /// Takes note of an answer. That of one who holds nothing any more is forgotten at the next pass.
    pub(super) fn settle(&mut self, (id, answer): Answer) {
        let told = match (answer, self.known.remove(&id)) {
            (Ok(session), _) => Told::Name(session.as_ref().map(describe)),
            (Err(_), Some(name @ Told::Name(_))) => name,
            (Err(error), before) => {
                tracing::debug!(session = %id, %error, "nothing is known of the holder");
                let before = match before {
                    Some(Told::Asked(Some(setback)) | Told::Failed(setback)) => Some(setback),
                    _ => None,
                };
                Told::Failed(Setback::after(before.as_ref(), Moment::now()))
            }
        };
        self.known.insert(id, told);
    }
}

/// Both are of others' choice.
fn describe(session: &Session) -> String {
    let text = match session.name.as_str() {
        "" => format!("on {}", session.node),
        name => format!("{name} on {}", session.node),
    };
    one_line(&text, LONGEST)
}

impl Grantor {
    /// Asks Consul, beside the passes, who the holders are of whom it has not told. Each waits for a
    /// turn like all calls: a thousand keys may be seen for the first time at once.
    pub(super) fn acquaint(&mut self) {
        let (Some(reading), Some(home)) = (&self.view.reading, &self.view.home) else {
            return;
        };
        let strangers = &mut self.strangers;
        strangers.known.retain(|session, _| reading.holds(session));
        let now = Moment::now();
        let foreign = |session: &SessionId| {
            reading.holds(session) && self.sessions.whose(session) == Some(&Whose::Foreign)
        };
        let holders = reading.contenders().map(|(session, _)| session);
        for session in holders.filter(|session| foreign(session)) {
            if !strangers.is_to_ask(session, now) {
                continue;
            }
            let (consul, id) = (home.consul.clone(), session.clone());
            let turns = self.view.calls.clone();
            strangers.asked.spawn(async move {
                // Never closed.
                let _turn = turns.acquire().await;
                let answer = consul.session(&id).await;
                (id, answer)
            });
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use consul_client::Behavior;

    pub(in crate::controller) fn session(name: &str) -> Session {
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
        let mut strangers = Strangers::default();
        let id: SessionId = "s".into();
        let answer = |name| (id.clone(), Ok(Some(session(name))));
        assert_eq!(strangers.name(&id), None);
        assert!(strangers.is_to_ask(&id, Moment::now()));
        assert!(!strangers.is_to_ask(&id, Moment::now()), "once");
        strangers.settle(answer("Consul lock\nforged"));
        let name = strangers.name(&id).unwrap();
        assert!(
            name.ends_with(" on web-1") && !name.contains('\n'),
            "{name}"
        );
        strangers.settle((id.clone(), Err(consul::Error::Gone)));
        assert!(strangers.name(&id).is_some(), "it was asked twice at once");
        strangers.settle(answer(""));
        assert_eq!(strangers.name(&id).as_deref(), Some("on web-1"));
        strangers.settle((id.clone(), Ok(None)));
        assert_eq!(strangers.name(&id), None, "it may not be read");
        assert!(!strangers.is_to_ask(&id, Moment::END), "that is known");
    }

    #[test]
    fn where_no_answer_came_it_is_asked_again_after_a_pause() {
        let mut strangers = Strangers::default();
        let id: SessionId = "s".into();
        let mut pause = || {
            assert!(strangers.is_to_ask(&id, Moment::END));
            strangers.settle((id.clone(), Err(consul::Error::Gone)));
            let now = Moment::default();
            assert!(!strangers.is_to_ask(&id, now), "not at once");
            assert!(strangers.due().is_some());
        };
        pause();
        pause();
        assert!(strangers.is_to_ask(&id, Moment::END));
        strangers.settle((id.clone(), Ok(Some(session("db")))));
        assert_eq!(strangers.name(&id).as_deref(), Some("db on web-1"));
    }
}
