//! Makes the calls to Consul: each is a task with a time limit, and none waits for another one.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::{JoinError, JoinSet},
};

use crate::{
    SessionState,
    engine::{Answer, CallId},
    holding::Renewal,
    plan::Transaction,
};
use consul_client::{self as consul, Client, Entries, NewSession, SessionId, clock::Moment};

/// The result of a call.
pub(super) enum CallResult {
    /// The answer for the engine.
    Answer(Answer),
    /// A session was made, and is in this state.
    Session(Result<(SessionId, SessionState), consul::Error>),
}

/// The pending calls.
pub(super) struct ConsulCalls {
    /// The client of a program whose turn is near. It keeps connections for seconds only, because many programs that
    /// arrive at once are near until others have come before them.
    pub(super) consul: Client,
    /// A client like `consul` that keeps no idle connections, for a program that makes few calls: see
    /// [`Self::keep_connections`].
    sparing: Client,
    keeps_connections: bool,
    /// The external node that owns the sessions; `None`: the node of the agent.
    node: Option<String>,
    under_way: JoinSet<(CallId, CallResult)>,
    /// Sessions that are being ended.
    ending: JoinSet<()>,
    /// Notified when something about a session changes.
    changed: Arc<Notify>,
}

impl ConsulCalls {
    pub(super) fn new(consul: Client, node: Option<String>) -> Self {
        Self {
            sparing: consul.without_idle_connections(),
            consul: consul.with_brief_connections(),
            keeps_connections: false,
            node,
            under_way: JoinSet::new(),
            ending: JoinSet::new(),
            changed: Arc::new(Notify::new()),
        }
    }

    /// Sets whether connections are kept for further calls. Programs that wait far behind keep none, because
    /// thousands of them may share one agent, which accepts only a few connections.
    pub(super) fn keep_connections(&mut self, keeps: bool) {
        self.keeps_connections = keeps;
    }

    fn client(&self) -> &Client {
        if self.keeps_connections {
            &self.consul
        } else {
            &self.sparing
        }
    }

    /// Whether a call is unanswered.
    pub(super) fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Whether a session is being ended.
    pub(super) fn is_ending_sessions(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Lists a folder, of which these entries are known, and sets the known entries.
    pub(super) fn list(
        &mut self,
        id: CallId,
        folder: String,
        known: watch::Sender<Entries>,
        not_after: Option<Moment>,
    ) {
        let consul = self.by(not_after);
        self.under_way.spawn(async move {
            let before = known.borrow().clone();
            let listing = consul.list_over(&folder, &before).await;
            if let Ok(listing) = &listing {
                known.send_replace(listing.entries.clone());
            }
            (id, CallResult::Answer(Answer::Listing(listing)))
        });
    }

    /// Writes to Consul.
    pub(super) fn transact(
        &mut self,
        id: CallId,
        transaction: Arc<Transaction>,
        not_after: Option<Moment>,
    ) {
        let consul = self.by(not_after);
        self.under_way.spawn(async move {
            let sent = Moment::now();
            let result = consul.transaction(&transaction.operations).await;
            (id, CallResult::Answer(Answer::Transacted { sent, result }))
        });
    }

    /// Makes the session that a slot is held with.
    pub(super) fn create_session(
        &mut self,
        id: CallId,
        name: String,
        ttl: Option<Duration>,
        lock_delay: Duration,
    ) {
        let consul = self.client().clone();
        let request = NewSession {
            name,
            node: self.node.clone(),
            ttl,
            lock_delay,
        };
        self.under_way.spawn(async move {
            let sent = Moment::now();
            let life = ttl.map_or(SessionState::Endless, |ttl| SessionState::Renewed {
                sent,
                ttl,
            });
            let made = consul.create_session_on_node(&request).await;
            (id, CallResult::Session(made.map(|session| (session, life))))
        });
    }

    /// Starts to renew a session.
    pub(super) fn renew(&self, session: SessionId, life: SessionState) -> Renewal {
        let changed = self.changed.clone();
        let on_change = Arc::new(move || changed.notify_one());
        // A third of a TTL lies between two renewals, too long for a connection to be kept.
        Renewal::start(self.sparing.clone(), session, life, on_change)
    }

    /// Destroys a session. If that fails, it expires.
    pub(super) fn end_session(&mut self, session: SessionId) {
        let consul = self.client().clone();
        self.ending.spawn(async move {
            if let Err(error) = consul.destroy_session(&session).await {
                tracing::debug!(%session, %error, "the session can't be destroyed");
            }
        });
    }

    /// Waits for the end of a call; `None` if something about a session has changed.
    pub(super) async fn next(&mut self) -> Option<(CallId, CallResult)> {
        tokio::select! {
            Some(ended) = self.under_way.join_next() => Some(whole(ended).await),
            Some(ended) = self.ending.join_next() => {
                whole(ended).await;
                None
            }
            () = self.changed.notified() => None,
        }
    }

    /// Returns a client whose calls end by `not_after`.
    fn by(&self, not_after: Option<Moment>) -> Client {
        match not_after {
            Some(not_after) => self.client().by(not_after),
            None => self.client().clone(),
        }
    }
}

/// Returns the result of a task. A panic in the task is a bug, and is propagated. A task that was cancelled has no
/// result: the runtime shuts down, and the caller that waits here ends with it.
async fn whole<T>(ended: Result<T, JoinError>) -> T {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(result) => result,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_cancelled)) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_the_end_of_the_runtime_cancels_has_no_result() {
        let cancelled = tokio::spawn(std::future::pending::<()>());
        cancelled.abort();
        let ended = whole(cancelled.await);
        let settled = tokio::time::timeout(Duration::ZERO, ended).await;
        assert!(settled.is_err());
    }
}
