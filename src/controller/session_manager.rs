//! Creates, renews and ends the sessions of this process.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};

use tokio::{task::AbortHandle, time::sleep};

use crate::{
    controller::{LOW_PRIORITY, consul_target::ConsulTarget},
    crash::{self, Point},
    telemetry::Metrics,
};
use consul_client::{
    self as consul, Client, ExternalNode, NewSession, Scope, SessionId, clock::Moment,
};
use consul_semaphore::{
    SessionState,
    engine::QueueRef,
    holding::{KnownLife, OnChange, Renewal, backoff},
};

/// Time for which a replica that leads again renews earlier sessions of queues that it has not read.
pub(super) const RENEW_EARLIER_SESSIONS_FOR: Duration = Duration::from_mins(10);

/// Manager that creates, renews and ends the sessions of this operator. Clones share one manager.
#[derive(Clone)]
pub(super) struct SessionManager(Arc<SessionManagerInner>);

struct SessionManagerInner {
    /// Nodes that were registered, each with the part of Consul in which that was done.
    registered: Mutex<HashSet<(Scope, Arc<str>)>>,
    tracked: Mutex<Tracked>,
    left: Mutex<Left>,
    metrics: Metrics,
}

/// Tracked sessions. A session may be there twice for a moment: for a semaphore that is being deleted, and for the
/// next semaphore with the same name.
type Tracked = HashMap<SessionId, Vec<KnownLife>>;

/// Sessions that are still renewed after the lead is lost, until a replica leads again. A renewal changes nothing,
/// and without a leader nobody else would renew these sessions. An outage of the API server that is longer than a TTL
/// must not cost a slot.
#[derive(Default)]
struct Left {
    /// Whether sessions are still renewed when they are dropped.
    leaving: bool,
    /// Renewals of these sessions, each with the queue that its session was for.
    renewing: HashMap<SessionId, (QueueRef, AbortHandle)>,
}

/// User of a session.
pub(super) struct SessionUser {
    pub(super) queue: QueueRef,
    /// Callback for when something about the session changes.
    pub(super) on_change: OnChange,
}

/// Durations of a session: how long it lives, and how long its keys stay locked.
#[derive(Clone, Copy)]
pub(super) struct SessionDurations {
    /// Time that the session lives without a renewal; `None` means for ever.
    pub(super) ttl: Option<Duration>,
    /// Time for which nobody else may lock a key that the session held when it ended.
    pub(super) lock_delay: Duration,
}

/// Session that is renewed for as long as this exists, if it has a TTL. Dropping this leaves the session in Consul.
pub(super) struct ManagedSession {
    id: SessionId,
    /// Client with the token that renews the session, even if its semaphore has another token by now.
    consul: Client,
    renewal: Renewal,
    queue: QueueRef,
    /// Whether the session is still renewed when the lead is lost.
    matters: bool,
    manager: SessionManager,
}

impl ManagedSession {
    /// Lets the session expire, even if the lead is being lost, because nothing depends on it and nobody would adopt
    /// it.
    pub(super) fn expire(mut self) {
        self.matters = false;
    }

    /// Returns the client that may end the session.
    pub(super) fn consul(&self) -> &Client {
        &self.consul
    }
}

impl Drop for ManagedSession {
    fn drop(&mut self) {
        let mut left = self.manager.left();
        if left.leaving && self.matters {
            let renewing = (self.queue.clone(), self.renewal.handle());
            left.renewing.insert(self.id.clone(), renewing);
        } else {
            self.renewal.stop();
        }
        drop(left);
        self.manager
            .forget_session(&self.id, &self.renewal.known_life());
    }
}

impl SessionManager {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self(Arc::new(SessionManagerInner {
            registered: Mutex::default(),
            tracked: Mutex::default(),
            left: Mutex::default(),
            metrics,
        }))
    }

    /// Notes that the lead is lost. Sessions that are dropped from then on are still renewed.
    pub(super) fn leave(&self) {
        self.left().leaving = true;
    }

    /// Notes that this replica leads again. It renews the sessions that it adopts, and until it adopts them also the
    /// sessions that it left renewing.
    pub(super) fn come_back(&self) {
        self.left().leaving = false;
    }

    /// Stops all renewals that were left running, because another replica leads and renews the sessions that it
    /// adopts.
    pub(super) fn hand_over(&self) {
        for (_, (_, renewing)) in self.left().renewing.drain() {
            renewing.abort();
        }
    }

    /// Notes that a queue has adopted all sessions that have a contender. So the sessions that were left renewing for
    /// it have none, for example because their slot was being released when the lead was lost. These sessions expire.
    pub(super) fn settle(&self, queue: &QueueRef) {
        let mut left = self.left();
        if left.leaving || left.renewing.is_empty() {
            return;
        }
        let of_queue = left.renewing.extract_if(|_, (of, _)| of == queue);
        of_queue.for_each(|(_, (_, renewing))| renewing.abort());
    }

    /// Waits until this replica has led long enough to have adopted what it can ([`RENEW_EARLIER_SESSIONS_FOR`]).
    /// Then the remaining sessions from before it lost the lead expire, because their semaphores were deleted.
    pub(super) async fn settle_in(self, settled: Duration) {
        sleep(settled).await;
        self.hand_over();
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.left.lock()
    }

    /// Stops a renewal that was left running, because somebody else renews the session, or nobody should.
    fn take_back(&self, id: &SessionId) {
        if let Some((_, renewing)) = self.left().renewing.remove(id) {
            renewing.abort();
        }
    }

    /// Creates a session with this name, on the node of this target, and renews it.
    pub(super) async fn create(
        &self,
        target: &ConsulTarget,
        name: String,
        SessionDurations { ttl, lock_delay }: SessionDurations,
        user: SessionUser,
    ) -> Result<(SessionId, ManagedSession), consul::Error> {
        let request = NewSession {
            name,
            node: Some(target.node.as_ref().into()),
            ttl,
            lock_delay,
        };
        self.register(target).await?;
        let create = || async {
            let sent = Moment::now();
            let id = target.consul.create_session(&request).await?;
            Ok((id, sent))
        };
        let mut created = in_turn(create).await;
        if matches!(created, Err(consul::Error::MissingNode)) {
            self.forget_node(target);
            self.register(target).await?;
            created = in_turn(create).await;
        }
        let (id, sent) = created?;
        let life = ttl.map_or(SessionState::Endless, |ttl| SessionState::Renewed {
            sent,
            ttl,
        });
        let session = self.track(&target.consul, id.clone(), life, user);
        Ok((id, session))
    }

    /// Renews an existing session. The first renewal is sent at once.
    pub(super) fn adopt(
        &self,
        consul: &Client,
        id: SessionId,
        user: SessionUser,
    ) -> ManagedSession {
        self.track(consul, id, SessionState::Unknown, user)
    }

    /// Ends a session that nothing depends on any more, in the background. A session that can't be ended expires.
    pub(super) fn destroy(&self, consul: &Client, id: SessionId) {
        self.take_back(&id);
        let consul = consul.clone();
        tokio::spawn(async move {
            sleep(LOW_PRIORITY).await;
            for pause in backoff(Duration::from_secs(5)).pauses().take(5) {
                let Err(error) = in_turn(|| consul.destroy_session(&id)).await else {
                    return crash::reach(Point::SessionDestroyed, "").await;
                };
                tracing::debug!(session = %id, %error, "can't destroy the session yet");
                sleep(pause).await;
            }
        });
    }

    fn track(
        &self,
        consul: &Client,
        id: SessionId,
        life: SessionState,
        SessionUser { queue, on_change }: SessionUser,
    ) -> ManagedSession {
        self.take_back(&id);
        let renewal = Renewal::start(consul.clone(), id.clone(), life, on_change);
        self.note_session(&id, renewal.known_life());
        ManagedSession {
            id,
            consul: consul.clone(),
            renewal,
            queue,
            matters: true,
            manager: self.clone(),
        }
    }

    /// Registers the node if it was not registered yet.
    async fn register(&self, target: &ConsulTarget) -> Result<(), consul::Error> {
        let here = (target.place.clone(), target.node.clone());
        if self.registered(|registered| registered.contains(&here)) {
            return Ok(());
        }
        let node = ExternalNode::named(&*target.node);
        in_turn(|| target.consul.register_node(&node)).await?;
        crash::reach(Point::NodeRegistered, "").await;
        self.registered(|registered| registered.insert(here));
        Ok(())
    }

    fn forget_node(&self, target: &ConsulTarget) {
        let here = (target.place.clone(), target.node.clone());
        self.registered(|registered| registered.remove(&here));
    }

    fn registered<T>(&self, with: impl FnOnce(&mut HashSet<(Scope, Arc<str>)>) -> T) -> T {
        with(&mut self.0.registered.lock())
    }

    /// Whether this process renews a session.
    pub(super) fn tracks(&self, id: &SessionId) -> bool {
        self.tracked().contains_key(id)
    }

    /// Returns what is known of a session that this process renews, for any semaphore.
    pub(super) fn life(&self, id: &SessionId) -> Option<SessionState> {
        let tracked = self.tracked();
        Some(tracked.get(id)?.last()?.get())
    }

    fn note_session(&self, id: &SessionId, life: KnownLife) {
        let mut tracked = self.tracked();
        tracked.entry(id.clone()).or_default().push(life);
        self.0.metrics.consul().set_sessions(tracked.len());
    }

    fn forget_session(&self, id: &SessionId, life: &KnownLife) {
        let mut tracked = self.tracked();
        if let Some(lives) = tracked.get_mut(id) {
            lives.retain(|known| !known.is(life));
            if lives.is_empty() {
                tracked.remove(id);
            }
        }
        self.0.metrics.consul().set_sessions(tracked.len());
    }

    fn tracked(&self) -> MutexGuard<'_, Tracked> {
        self.0.tracked.lock()
    }
}

/// Makes a call that may have to wait long for its turn, because thousands of sessions may be created or ended before
/// it. An attempt that was not sent is repeated at once, because it has waited nearly as long as a call may take.
async fn in_turn<T, F>(call: impl Fn() -> F) -> Result<T, consul::Error>
where
    F: Future<Output = Result<T, consul::Error>>,
{
    loop {
        match call().await {
            Err(consul::Error::NotSent(_)) => {}
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use wiremock::{
        Mock, MockServer, ResponseTemplate,
        matchers::{path, path_regex},
    };

    use consul_semaphore::engine::SemaphoreRef;
    use tokio::task::JoinHandle;

    use super::*;

    fn queue(name: &str) -> QueueRef {
        let semaphore = SemaphoreRef {
            namespace: "batch".into(),
            name: name.into(),
        };
        QueueRef::new(&semaphore, None)
    }

    fn user() -> SessionUser {
        SessionUser {
            queue: queue("db"),
            on_change: Arc::new(|| {}),
        }
    }

    /// Leaves a session of the semaphore `db` renewing.
    fn leave_one(session_manager: &SessionManager) -> JoinHandle<()> {
        let renewing = tokio::spawn(std::future::pending::<()>());
        let left = (queue("db"), renewing.abort_handle());
        session_manager.left().renewing.insert("s".into(), left);
        renewing
    }

    #[tokio::test]
    async fn a_session_that_is_not_adopted_expires() {
        let session_manager = SessionManager::new(Metrics::default());
        let renewing = leave_one(&session_manager);
        session_manager.clone().settle_in(Duration::ZERO).await;
        assert!(renewing.await.unwrap_err().is_cancelled());
        assert!(session_manager.left().renewing.is_empty());
    }

    #[tokio::test]
    async fn what_was_left_without_a_contender_expires_once_its_queue_is_read() {
        let session_manager = SessionManager::new(Metrics::default());
        let renewing = leave_one(&session_manager);
        session_manager.leave();
        session_manager.settle(&queue("db"));
        session_manager.come_back();
        session_manager.settle(&queue("other"));
        assert_eq!(session_manager.left().renewing.len(), 1);
        session_manager.settle(&queue("db"));
        assert!(renewing.await.unwrap_err().is_cancelled());
    }

    #[test]
    fn a_session_is_kept_until_the_last_who_keeps_it_is_gone() {
        let session_manager = SessionManager::new(Metrics::default());
        let id = "s".into();
        let (before, after) = (
            KnownLife::new(SessionState::Unknown),
            KnownLife::new(SessionState::Endless),
        );
        assert_eq!(session_manager.life(&id), None);
        session_manager.note_session(&id, before.clone());
        session_manager.note_session(&id, after.clone());
        session_manager.forget_session(&id, &before);
        assert!(session_manager.tracks(&id), "another one has taken it over");
        assert_eq!(session_manager.life(&id), Some(SessionState::Endless));
        session_manager.forget_session(&id, &after);
        assert!(!session_manager.tracks(&id));
    }

    #[tokio::test]
    async fn no_renewal_waits_behind_sessions_that_are_ended() {
        let server = MockServer::start().await;
        let never = ResponseTemplate::new(200).set_delay(Duration::from_hours(1));
        Mock::given(path_regex("/v1/session/destroy/.*"))
            .respond_with(never)
            .mount(&server)
            .await;
        let answer = r#"[{"ID":"s","Node":"n","TTL":"300s","CreateIndex":1}]"#;
        Mock::given(path("/v1/session/renew/s"))
            .respond_with(ResponseTemplate::new(200).set_body_string(answer))
            .mount(&server)
            .await;
        let consul = Client::new(consul::Config {
            addresses: vec![server.uri().parse().unwrap()],
            timeout: Duration::from_mins(30),
            ..consul::Config::default()
        })
        .unwrap();
        let session_manager = SessionManager::new(Metrics::default());
        for number in 0..1000 {
            session_manager.destroy(&consul, format!("gone-{number}").as_str().into());
        }
        let under_way = async {
            while server.received_requests().await.unwrap().is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let deadline = Duration::from_mins(1);
        tokio::time::timeout(deadline, under_way).await.unwrap();
        let id = SessionId::from("s");
        let _session = session_manager.adopt(&consul, id.clone(), user());
        let renewed = async {
            while !matches!(
                session_manager.life(&id),
                Some(SessionState::Renewed { .. })
            ) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let renewed = tokio::time::timeout(deadline, renewed).await;
        assert!(renewed.is_ok(), "it waits for its turn");
    }
}
