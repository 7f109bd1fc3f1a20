//! What the engine asks for, done for the one process: calls to Consul are tasks, and what it wants done with the
//! process is what this program does next.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::contender::{Contender, Step, Store};
use consul_client::{self as consul, Client, ExternalNode, NewSession, SessionId, clock::Moment};
use consul_semaphore::{
    Job, Life, Standing, Uid,
    engine::{Action, Answer, Call, CallId, Event, Lookup, Outcome, Slice, Write, Written},
    holding::Renewal,
};

/// The address of our external node: Consul wants one, and nobody connects to it.
const ADDRESS: &str = "127.0.0.1";

/// What a call came to.
pub(super) enum Done {
    /// As the engine is to hear it.
    Answer(Answer),
    /// A session was made that was asked for then.
    Session {
        sent: Moment,
        ttl: Duration,
        made: Result<SessionId, consul::Error>,
    },
}

/// For what a Job needs the API server for, the process is here.
impl Lookup for Store {
    fn slice(&self, _head: usize) -> Slice {
        let ended = matches!(self.job.standing, Standing::Finished { .. });
        let only_if = |there: bool| there.then(|| self.job.clone()).into_iter().collect();
        Slice {
            bound: only_if(self.job.granted.is_some() && !ended),
            waiting: only_if(self.job.in_line()),
        }
    }

    fn workload(&self, uid: &Uid) -> Option<Arc<Job>> {
        (self.job.uid == *uid).then(|| self.job.clone())
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Job>>> {
        uids.iter().map(|uid| self.workload(uid)).collect()
    }

    fn touched(&self) -> BTreeSet<Uid> {
        BTreeSet::new()
    }

    fn life(&self, session: &SessionId) -> Option<Life> {
        self.kept.get(session).map(Renewal::life)
    }
}

impl Contender {
    /// Does what the engine asks for; what it wants done with the process is left to be done.
    pub(super) fn carry_out(&mut self) {
        while let Some(action) = self.queue.next_action() {
            match action {
                Action::Call(id, Call::Write { write, .. }) => self.asked = Some((id, write)),
                Action::Call(id, call) => self.call(id, call),
                Action::Destroy(session) => {
                    if self.forget(&session) {
                        let consul = self.consul.clone();
                        self.ending.spawn(async move {
                            if let Err(error) = consul.destroy_session(&session).await {
                                tracing::debug!(%session, %error, "the session can't be destroyed");
                            }
                        });
                    }
                }
                Action::Forget(session) => drop(self.forget(&session)),
                Action::Report(Outcome::Granted { grant, .. }) if !grant.starts => {
                    self.stderr.say("the slot was lost, and there is one again");
                }
                // All else is told by what this program does.
                Action::Adopt(_) | Action::Report(_) => {}
            }
        }
    }

    /// Stops renewing a session, unless that is known to be gone; says whether it is to be ended.
    fn forget(&mut self, session: &SessionId) -> bool {
        let kept = self.store.kept.remove(session);
        kept.is_some_and(|renewal| {
            renewal.stop();
            renewal.life() != Life::Gone
        })
    }

    fn call(&mut self, id: CallId, call: Call) {
        let consul = self.consul.clone();
        match call {
            Call::Read { .. } => {
                let folder = self.queue.settings().prefix.folder();
                self.under_way.spawn(async move {
                    let listing = consul.list(&folder).await;
                    (id, Done::Answer(Answer::Listing(listing)))
                });
            }
            Call::Transact { transaction, .. } => {
                self.under_way.spawn(async move {
                    let sent = Moment::now();
                    let result = consul.transaction(&transaction.operations).await;
                    (id, Done::Answer(Answer::Transacted { sent, result }))
                });
            }
            Call::CreateSession {
                name,
                ttl,
                lock_delay,
            } => {
                let request = NewSession {
                    name,
                    node: self.node.clone(),
                    ttl,
                    lock_delay,
                };
                self.under_way.spawn(async move {
                    let sent = Moment::now();
                    let made = create_session(&consul, request).await;
                    let ttl = ttl.unwrap_or_default();
                    (id, Done::Session { sent, ttl, made })
                });
            }
            call => {
                let answer = self.answer(&call);
                self.answered = true;
                self.handle(Event::Answered(id, answer));
            }
        }
    }

    /// Answers what needs no call: only the sessions that were made here are this process's, which has no other pod
    /// than itself.
    fn answer(&self, call: &Call) -> Answer {
        match call {
            Call::Resolve { .. } => Answer::Resolved(Ok(Vec::new())),
            Call::Describe(_) => Answer::Described(Ok(None)),
            Call::Prove(_) => {
                // Whoever leaves has no process any more.
                let left = self.store.job.standing != Standing::Deleting;
                let left = left.then(|| "the process".to_owned());
                let job = Some(self.store.job.clone());
                Answer::Proof(Ok((job, left.into_iter().collect())))
            }
            _ => Answer::Access(Some(true)),
        }
    }

    /// Shows the engine how a call ended.
    pub(super) fn settle(&mut self, (id, done): (CallId, Done)) {
        self.handle(Event::Capacity(self.consul.transaction_capacity()));
        let answer = match done {
            Done::Answer(answer) => answer,
            Done::Session { sent, ttl, made } => Answer::SessionMade(made.inspect(|id| {
                let life = Life::Renewed { sent, ttl };
                let (consul, wake) = (self.consul.clone(), self.wake.clone());
                let wake = Arc::new(move || wake.notify_one());
                let renewal = Renewal::start(consul, id.clone(), life, wake);
                self.store.kept.insert(id.clone(), renewal);
            })),
        };
        self.handle(Event::Answered(id, answer));
    }

    /// What is to be done with the process, if anything is.
    pub(super) fn step(&mut self) -> Option<Step> {
        let (id, write) = self.asked.take()?;
        match write {
            // It is about to leave, and gives the slot back.
            Write::Start(_) if self.store.job.standing != Standing::Idle => {
                self.handle(Event::Answered(id, Answer::Written(Written::NotSent)));
                Some(Step::Again)
            }
            Write::Suspend(_) if self.store.job.standing != Standing::Running => {
                self.handle(Event::Answered(id, Answer::Written(Written::Done)));
                Some(Step::Again)
            }
            Write::Start(start) => {
                self.asked = Some((id, Write::Start(start.clone())));
                Some(Step::Granted(start.slot))
            }
            Write::Suspend(suspend) => {
                self.asked = Some((id, Write::Suspend(suspend.clone())));
                Some(Step::Stop(suspend.why))
            }
            Write::Rename(rename) => {
                self.change(|job| job.reported = Some(rename.session));
                self.handle(Event::Answered(id, Answer::Written(Written::Done)));
                Some(Step::Again)
            }
            // Who is not to wait is told so by whoever waits for it.
            Write::GiveBack(_) | Write::Skip(_) => {
                self.handle(Event::Answered(id, Answer::Written(Written::NotSent)));
                None
            }
        }
    }

    /// What was asked was done, or is out of date.
    pub(super) fn answer_what_was_asked(&mut self, written: Written) {
        if let Some((id, _)) = self.asked.take() {
            self.handle(Event::Answered(id, Answer::Written(written)));
        }
    }
}

/// Makes the session that a slot is held with.
async fn create_session(consul: &Client, request: NewSession) -> Result<SessionId, consul::Error> {
    let created = consul.create_session(&request).await;
    match (&request.node, created) {
        (Some(node), Err(consul::Error::MissingNode)) => {
            let node = ExternalNode {
                name: node.clone(),
                address: ADDRESS.to_owned(),
            };
            consul.register_node(&node).await?;
            consul.create_session(&request).await
        }
        (_, created) => created,
    }
}
