//! Makes the calls that the engine asks for. Each is a separate task, bounded in time, and none waits for another.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    call::CALL_TIMEOUT,
    controller::{
        Context, LOW_PRIORITY,
        consul_target::ConsulTarget,
        session_manager::{ManagedSession, SessionDurations, SessionUser},
        unfailable::hold_instead,
    },
    crash::{self, Point},
    workload::{Urgency, WorkloadWrite, WriteError},
};
use consul_client::{
    self as consul, SessionId,
    clock::{self, Moment},
};
use consul_semaphore::{
    engine::{Answer, Call, QueueRef, Write},
    plan::Transaction,
};
use consul_semaphore_workload::{Kind, Shape, TrackedWorkload};

/// Largest number of sessions that are read one by one.
const MOST_SESSIONS_READ_SINGLY: usize = 8;

/// Everything that a call needs.
#[derive(Clone)]
pub(super) struct CallContext {
    pub(super) context: Arc<Context>,
    pub(super) queue: QueueRef,
    /// Target of the queue in Consul; `None` while there is no access.
    pub(super) target: Option<ConsulTarget>,
    /// Client to list the prefix with, while the prefix is watched.
    pub(super) lister: Option<consul::Client>,
    /// Folder with which all keys below the prefix begin.
    pub(super) folder: String,
    /// Keys below the prefix, as the watch showed them.
    pub(super) known: consul::Entries,
    /// Turns to call Consul, which all queues of a semaphore share.
    pub(super) turns: Arc<Semaphore>,
}

/// Result of a call.
pub(super) enum CallDone {
    /// The answer for the engine.
    Answer(Answer),
    /// A session was created, and is renewed from then on.
    Session(Result<(SessionId, ManagedSession), consul::Error>),
    /// A workload was written. The result has its current state.
    Written(Write, Result<Option<TrackedWorkload>, WriteError>),
}

impl CallContext {
    /// Returns the user of the sessions of the queue.
    pub(super) fn user(&self) -> SessionUser {
        let queue = self.queue.clone();
        let on_change = Arc::new(self.context.index.on_session_change(queue.clone()));
        SessionUser { queue, on_change }
    }

    fn namespace(&self) -> &Arc<str> {
        &self.queue.semaphore.namespace
    }

    /// Makes a call.
    pub(super) async fn make(self, call: Call) -> CallDone {
        let consul = match call {
            Call::Write {
                write,
                timeout,
                not_after,
            } => {
                let written = self.write(&write, timeout, not_after).await;
                return CallDone::Written(write, written);
            }
            Call::CreateSession {
                name,
                ttl,
                lock_delay,
                ahead,
            } => {
                if ahead {
                    sleep(LOW_PRIORITY).await;
                }
                let durations = SessionDurations { ttl, lock_delay };
                return CallDone::Session(self.create_session(name, durations).await);
            }
            Call::Prove(identity) => Answer::Proof(self.context.workloads.prove(&identity).await),
            Call::AskAccess => {
                let end = Moment::now() + CALL_TIMEOUT;
                Answer::Access(
                    self.context
                        .workloads
                        .may_write(self.namespace(), end)
                        .await,
                )
            }
            Call::Read { not_after } => Answer::Listing(
                self.in_turn(not_after, async |target| {
                    let lister = self.lister.as_ref().unwrap_or(&target.consul);
                    lister.list_over(&self.folder, &self.known).await
                })
                .await,
            ),
            Call::Transact {
                transaction,
                not_after,
            } => self.transact(&transaction, not_after).await,
            Call::Resolve {
                sessions,
                not_after,
            } => Answer::Resolved(
                self.in_turn(not_after, async |target| resolve(target, &sessions).await)
                    .await,
            ),
            Call::Describe(session) => Answer::Described(
                self.in_turn(None, async |target| target.consul.session(&session).await)
                    .await,
            ),
        };
        CallDone::Answer(consul)
    }

    /// Calls Consul when it is this queue's turn, because a thousand keys may be seen for the first time at once. A
    /// call that is too late by then is not sent, and a call that becomes too late meanwhile gives up its turn.
    async fn in_turn<T>(
        &self,
        not_after: Option<Moment>,
        call: impl AsyncFnOnce(&ConsulTarget) -> Result<T, consul::Error>,
    ) -> Result<T, consul::Error> {
        let Some(target) = &self.target else {
            return Err(consul::Error::NotSent("no access to Consul".into()));
        };
        // The semaphore of turns is never closed, so this can't fail.
        let _turn = self.turns.acquire().await;
        let Some(not_after) = not_after else {
            return call(target).await;
        };
        let left = not_after.since(Moment::now());
        if left.is_zero() {
            return Err(consul::Error::NotSent("too late to send it".into()));
        }
        let given_up = |_| {
            Err(consul::Error::Unreachable {
                message: "no answer before a running Job must be suspended".into(),
                undecided: true,
            })
        };
        timeout(left, call(target)).await.unwrap_or_else(given_up)
    }

    async fn transact(&self, transaction: &Transaction, not_after: Option<Moment>) -> Answer {
        if transaction.removes_lock {
            crash::reach(Point::LockUnused, self.namespace()).await;
        }
        let mut sent = Moment::now();
        let result = self
            .in_turn(not_after, async |target| {
                sent = Moment::now();
                target.consul.transaction(&transaction.operations).await
            })
            .await;
        if result.is_ok() {
            self.crash_after(transaction).await;
        }
        Answer::Transacted { sent, result }
    }

    async fn crash_after(&self, transaction: &Transaction) {
        let grants = &transaction.grants;
        for (point, reached) in [
            (Point::LimitWritten, transaction.limit.is_some()),
            (Point::Pruned, !transaction.prunes.is_empty()),
            (Point::Cooling, !transaction.cooldowns.is_empty()),
            (Point::Released, !transaction.releases.is_empty()),
            (Point::Granted, grants.iter().any(|grant| grant.starts)),
            (Point::GrantedTogether, transaction.is_joint()),
            (Point::Regranted, grants.iter().any(|grant| !grant.starts)),
        ] {
            if reached {
                crash::reach(point, self.namespace()).await;
            }
        }
    }

    async fn create_session(
        &self,
        name: String,
        durations: SessionDurations,
    ) -> Result<(SessionId, ManagedSession), consul::Error> {
        let Some(target) = &self.target else {
            return Err(consul::Error::NotSent("no access to Consul".into()));
        };
        let session_manager = &self.context.shared.session_manager;
        let made = session_manager
            .create(target, name, durations, self.user())
            .await?;
        crash::reach(Point::SessionMade, self.namespace()).await;
        Ok(made)
    }

    async fn write(
        &self,
        write: &Write,
        timeout: Duration,
        deadline: Option<Moment>,
    ) -> Result<Option<TrackedWorkload>, WriteError> {
        let namespace = self.namespace();
        let target = write.target();
        let known = self.context.index.tracked(&target.uid);
        let current = known
            .as_ref()
            .filter(|known| target.is_still(&known.workload));
        let shape = current.map_or(Shape::Plain, |known| known.shape.clone());
        let kind = self.context.workloads.kind(&target.kind);
        let request = kind
            .as_ref()
            .and_then(|kind| kind.request(write, &shape, clock::time()));
        let (Some(kind), Some(request)) = (kind, request) else {
            // The request depends on the shape of the workload, which is known only for the current version.
            return Err(WriteError::Outdated(known.map(Box::new)));
        };
        let workload_write = WorkloadWrite {
            namespace: namespace.clone(),
            target: target.clone(),
            request,
            below: kind.ends_below(write, &shape),
            urgency: match write {
                Write::Suspend(_) => Urgency::Suspends,
                Write::End(end) if end.is_lost() => Urgency::Suspends,
                Write::Start(_)
                | Write::GiveBack(_)
                | Write::Rename(_)
                | Write::RecordWait(_)
                | Write::Skip(_)
                | Write::Fail(_)
                | Write::End(_) => Urgency::Usual,
            },
            timeout,
            deadline,
            holds: matches!(write, Write::Suspend(_)) && kind != Kind::KueueWorkload,
        };
        let written = match self.context.workloads.write(workload_write).await {
            Err(error) if matches!(write, Write::Fail(_)) => {
                hold_instead(&self.context, namespace, target, error).await?
            }
            written => written?,
        };
        if let Some(point) = point_after(write) {
            crash::reach(point, namespace).await;
        }
        Ok(written)
    }
}

/// Returns the crash point after a write; `None` if nothing is left to do after it.
fn point_after(write: &Write) -> Option<Point> {
    match write {
        Write::Start(_) => Some(Point::Started),
        Write::Suspend(_) => Some(Point::Suspended),
        Write::GiveBack(_) => Some(Point::GivenBack),
        Write::Rename(_) => Some(Point::Renamed),
        Write::Fail(_) => Some(Point::WaitEnded),
        Write::RecordWait(_) | Write::Skip(_) | Write::End(_) => None,
    }
}

/// Returns the sessions of this list that exist on our node. Only they can be ours, and only their names identify
/// them. The node may have thousands of sessions, of all semaphores.
async fn resolve(
    target: &ConsulTarget,
    sessions: &[SessionId],
) -> Result<Vec<consul::Session>, consul::Error> {
    if sessions.len() <= MOST_SESSIONS_READ_SINGLY {
        match one_by_one(target, sessions).await {
            // One of the sessions is on another node, which our token need not be allowed to read.
            Err(consul::Error::Denied(_)) => {}
            named => return named,
        }
    }
    target.consul.node_sessions(&target.node).await
}

async fn one_by_one(
    target: &ConsulTarget,
    sessions: &[SessionId],
) -> Result<Vec<consul::Session>, consul::Error> {
    let mut named = Vec::new();
    for id in sessions {
        let session = target.consul.session(id).await?;
        named.extend(session.filter(|session| *session.node == *target.node));
    }
    Ok(named)
}
