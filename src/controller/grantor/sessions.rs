//! The sessions of a grantor: those that hold slots, and those made ahead for the head of the line.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use tokio::task::JoinSet;

use super::Grantor;
use crate::{
    controller::{
        home::Home,
        keeper::{Session, Span},
    },
    crash::{self, Point},
};
use consul_client::{self as consul, OpError, SessionId, id::IdMap};
use consul_semaphore::{
    Identity, Job, Life, Reading, Standing, Uid,
    plan::{Release, Target, Transaction},
};

/// For whom a contender's session was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::controller) enum Whose {
    /// For this Job of this semaphore.
    Own(Arc<Identity>),
    /// For another `ConsulSemaphore` of this cluster on the same prefix.
    Neighbour,
    /// By somebody else.
    Foreign,
}

/// A session that was asked for, and what came of it.
pub(super) type Made = (Target, Result<(SessionId, Session), consul::Error>);

/// What is known of sessions.
#[derive(Default)]
pub(in crate::controller) struct Sessions {
    /// Those that are renewed here.
    pub(super) kept: IdMap<SessionId, Session>,
    /// Those of them that were made ahead, by their Job.
    pub(super) ahead: BTreeMap<Uid, SessionId>,
    /// Jobs that a session is being made for.
    making: BTreeSet<Uid>,
    pub(super) made: JoinSet<Made>,
    /// Whom each contender's session stands for.
    whose: IdMap<SessionId, Whose>,
}

impl Drop for Sessions {
    /// Those made ahead have no contender by which anybody would find them again.
    fn drop(&mut self) {
        for session in self.ahead.values() {
            if let Some(session) = self.kept.remove(session) {
                session.expire();
            }
        }
    }
}

impl Sessions {
    /// For whom a session was made, as far as that is known.
    pub(in crate::controller) fn whose(&self, session: &SessionId) -> Option<&Whose> {
        self.whose.get(session)
    }

    /// What is known of a session that is renewed here.
    pub(super) fn life(&self, session: &SessionId) -> Option<Life> {
        self.kept.get(session).map(Session::life)
    }

    /// Whether there are none, and none is being made.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.is_settled() && self.made.is_empty()
    }

    /// Whether nothing is being made.
    pub(super) fn is_settled(&self) -> bool {
        self.making.is_empty()
    }

    /// Forgets those made ahead of which Consul says that they are gone.
    pub(super) fn forget_dead(&mut self) {
        let kept = &mut self.kept;
        self.ahead.retain(|_, session| {
            let lives = kept
                .get(session)
                .is_some_and(|kept| kept.life() != Life::Gone);
            if !lives {
                kept.remove(session);
            }
            lives
        });
    }

    /// Whether Consul says that a session is gone whose contender this reading still shows.
    pub(super) fn outlive(&self, reading: &Reading) -> bool {
        let gone = |session: &SessionId| self.life(session) == Some(Life::Gone);
        reading.contenders().any(|(session, _)| gone(session))
    }

    /// Forgets those that a refused transaction found gone, before their renewal did.
    pub(super) fn drop_invalid(&mut self, transaction: &Transaction, errors: &[OpError]) {
        for session in transaction.gone_sessions(errors) {
            self.ahead.retain(|_, ahead| ahead != session);
            self.kept.remove(session);
        }
    }
}

/// How many sessions are asked about one by one.
const ASKED_APART: usize = 8;

/// Those of these sessions that are there and belong to our node.
async fn named(home: &Home, sessions: &[SessionId]) -> Result<Vec<consul::Session>, consul::Error> {
    let mut named = Vec::new();
    for id in sessions {
        let session = home.consul.session(id).await?;
        named.extend(session.filter(|session| *session.node == *home.node));
    }
    Ok(named)
}

impl Grantor {
    /// Finds out whom the sessions of contenders stand for that were not seen before.
    pub(super) async fn identify(&mut self) {
        let (Some(reading), Some(home)) = (&self.view.reading, &self.view.home) else {
            return;
        };
        let Sessions { whose, kept, .. } = &mut self.sessions;
        // Whose a session is never changes, so those that are gone are forgotten many at once.
        if whose.len() > 2 * kept.len() {
            whose.retain(|session, _| {
                reading.contender(session).is_some() || kept.contains_key(session)
            });
        }
        let sessions = reading.contenders().map(|(session, _)| session);
        let unknown = sessions.filter(|session| !whose.contains_key(*session));
        let unknown: Vec<SessionId> = unknown.cloned().collect();
        if unknown.is_empty() {
            return;
        }
        // Only those of our own node can be ours, and only they can be told apart by their names.
        // There may be thousands, of all semaphores.
        let call = async {
            if unknown.len() <= ASKED_APART {
                match named(home, &unknown).await {
                    // One of them is of another node, which nobody has to let us read.
                    Err(consul::Error::Denied(_)) => {}
                    named => return named,
                }
            }
            home.consul.node_sessions(&home.node).await
        };
        let sessions = match self.view.in_time(call).await {
            Ok(sessions) => sessions,
            // Whose they are decides what may be done, so nothing is done without it.
            Err(error) => return self.view.read_failed(error),
        };
        let names: HashMap<_, _> = sessions
            .into_iter()
            .map(|session| (session.id, session.name))
            .collect();
        for session in unknown {
            let identity = names.get(&session).and_then(|name| Identity::parse(name));
            let found = match identity {
                Some(identity) if self.settings.owns(&identity) => Whose::Own(Arc::new(identity)),
                Some(identity) if *identity.cluster == *self.settings.cluster.id => {
                    Whose::Neighbour
                }
                _ => Whose::Foreign,
            };
            whose.insert(session, found);
        }
    }

    /// Renews the sessions of our contenders that are not renewed yet: after a start, before
    /// anything else is done. Those whose contender is gone are ended: an answer of Consul's was lost,
    /// or somebody deleted or freed the key.
    pub(super) fn adopt(&mut self) {
        let (Some(reading), Some(home)) = (&self.view.reading, &self.view.home) else {
            return;
        };
        let Sessions {
            whose, kept, ahead, ..
        } = &mut self.sessions;
        let (mut found, mut there) = (Vec::new(), 0);
        for (session, _) in reading.contenders() {
            let Some(Whose::Own(identity)) = whose.get(session) else {
                continue;
            };
            ahead.retain(|_, ahead| ahead != session);
            if kept.contains_key(session) {
                there += 1;
            } else {
                found.push((session.clone(), identity.clone()));
            }
        }
        let mut gone: Vec<(SessionId, bool)> = Vec::new();
        if kept.len() > there + ahead.len() {
            let ahead: BTreeSet<_> = ahead.values().collect();
            let without = |session: &&SessionId| {
                !ahead.contains(session) && reading.contender(session).is_none()
            };
            let gone_now = kept.keys().filter(without);
            gone.extend(gone_now.map(|session| (session.clone(), reading.is_named(session))));
        }
        for (session, identity) in found {
            tracing::info!(
                job = %format_args!("{}/{}", identity.namespace, identity.job),
                semaphore = %self.reference,
                %session,
                "adopted"
            );
            let wake = self.wake.clone();
            let keeper = &self.context.keeper;
            let adopted = keeper.adopt(&home.consul, session.clone(), wake);
            self.sessions.kept.insert(session, adopted);
        }
        for (session, named) in gone {
            self.end_session(session.clone());
            let Some(Whose::Own(identity)) = self.sessions.whose(&session).cloned() else {
                continue;
            };
            let job = self.context.index.job(&identity.uid);
            let started_by_it = |job: &Arc<Job>| job.held_by().any(|by| *by == session);
            let held = named || job.as_ref().is_some_and(started_by_it);
            let lost = |job: &Arc<Job>| {
                job.lost() || matches!(job.standing, Standing::Running | Standing::Stopping)
            };
            // One that only waited had nothing to give back, and one that has pods or was suspended
            // because its slot was lost gave nothing back.
            if !held || job.as_ref().is_some_and(lost) {
                continue;
            }
            if let Some(job) = job.as_ref().filter(|job| job.has_ended()) {
                self.trace_end(&job.into(), &session, job.since, None);
            }
            self.tell_release(&Release {
                identity,
                session,
                held: true,
            });
        }
    }

    /// Has a session made for a Job, unless that is under way.
    pub(super) fn make_session(&mut self, job: &Target) {
        let Some(home) = self.view.home.clone() else {
            return;
        };
        if !self.sessions.making.insert(job.uid.clone()) {
            return;
        }
        let keeper = self.context.keeper.clone();
        let name = self.settings.identity(job).session_name();
        let span = Span {
            ttl: self.settings.ttl,
            lock_delay: self.settings.session_lock_delay(),
        };
        let (job, wake) = (job.clone(), self.wake.clone());
        let namespace = self.reference.namespace.clone();
        self.sessions.made.spawn(async move {
            let made = keeper.create(&home, name, span, wake).await;
            if made.is_ok() {
                crash::reach(Point::SessionMade, &namespace).await;
            }
            (job, made)
        });
    }

    /// Takes note of a session that was made, or was not.
    pub(super) fn settle_session(&mut self, (job, made): Made) {
        self.sessions.making.remove(&job.uid);
        let (id, session) = match made {
            Ok(made) => made,
            Err(error) => return self.view.write_failed(error),
        };
        self.view.writing_works();
        let own = Whose::Own(Arc::new(self.settings.identity(&job)));
        self.sessions.whose.insert(id.clone(), own);
        self.sessions.kept.insert(id.clone(), session);
        if let Some(other) = self.sessions.ahead.insert(job.uid, id) {
            self.end_session(other);
        }
    }

    /// Stops renewing a session and ends it.
    pub(super) fn end_session(&mut self, session: SessionId) {
        self.sessions.ahead.retain(|_, ahead| *ahead != session);
        if let Some(kept) = self.sessions.kept.remove(&session) {
            self.context.keeper.destroy(kept.consul(), session);
        }
    }
}
