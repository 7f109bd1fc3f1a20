//! Who holds slots that others were given: what Consul knows of their sessions, for people to read.
//! Nothing is decided by it.

use std::collections::HashMap;

use tokio::task::JoinSet;

use super::{Grantor, Whose};
use crate::{
    api::LISTED,
    consul::{self, Session, SessionId},
    text::one_line,
};

/// How much of a session's name is shown.
const LONGEST: usize = 256;

/// What was asked about a session, and answered.
type Answer = (SessionId, Result<Option<Session>, consul::Error>);

/// What is known of the sessions of others.
#[derive(Default)]
pub(in crate::controller) struct Strangers {
    /// What Consul says of each; `None` while it was not answered, or nothing is to be known.
    known: HashMap<SessionId, Option<String>>,
    pub(super) asked: JoinSet<Answer>,
}

impl Strangers {
    /// The name and the node of a session, if Consul has told.
    pub(in crate::controller) fn name(&self, session: &SessionId) -> Option<String> {
        self.known.get(session)?.clone()
    }

    /// Takes note of an answer.
    pub(super) fn settle(&mut self, (id, answer): Answer) {
        let session = match answer {
            Ok(session) => session,
            Err(error) => {
                tracing::debug!(session = %id, %error, "nothing is known of the holder");
                None
            }
        };
        // It may hold nothing any more.
        if let Some(known) = self.known.get_mut(&id) {
            *known = session.as_ref().map(describe);
        }
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
    /// Asks Consul, beside the passes and once, who the holders are that were not seen before.
    pub(super) fn acquaint(&mut self) {
        let (Some(reading), Some(home)) = (&self.view.reading, &self.view.home) else {
            return;
        };
        let known = &mut self.strangers.known;
        known.retain(|session, _| reading.holds(session));
        let foreign = |session: &SessionId| {
            reading.holds(session) && self.sessions.whose(session) == Some(&Whose::Foreign)
        };
        let holders = reading.contenders().map(|(session, _)| session);
        for session in holders.filter(|session| foreign(session)) {
            if known.len() >= LISTED || known.contains_key(session) {
                continue;
            }
            known.insert(session.clone(), None);
            let (consul, id) = (home.consul.clone(), session.clone());
            self.strangers.asked.spawn(async move {
                let answer = consul.session(&id).await;
                (id, answer)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consul::Behavior;

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
        let mut strangers = Strangers::default();
        let id: SessionId = "s".into();
        let answer = |name| (id.clone(), Ok(Some(session(name))));
        strangers.settle(answer("gone by now"));
        assert_eq!(strangers.name(&id), None);
        strangers.known.insert(id.clone(), None);
        strangers.settle(answer("Consul lock\nforged"));
        let name = strangers.name(&id).unwrap();
        assert!(
            name.ends_with(" on web-1") && !name.contains('\n'),
            "{name}"
        );
        strangers.settle(answer(""));
        assert_eq!(strangers.name(&id).as_deref(), Some("on web-1"));
        strangers.settle((id.clone(), Ok(None)));
        assert_eq!(strangers.name(&id), None, "it may not be read");
    }
}
