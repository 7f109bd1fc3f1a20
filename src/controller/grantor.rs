//! The queue of one lock key at work: the engine that decides, and the calls that it asks for.
//!
//! It knows nothing of the `ConsulSemaphore` but its [`Settings`]. It shows the
//! [engine](consul_semaphore::engine) what happens, has it pass, and carries out what it asks for; what a pass
//! came to is for whoever is responsible for the semaphore.

mod calls;
mod outcome;
mod stages;
mod tenures;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, Semaphore},
    task::{AbortHandle, JoinError, JoinSet},
};

pub(super) use self::tenures::Tenures;
use self::{
    calls::{Done, Means},
    outcome::Ended,
};
use super::{
    Context,
    events::Reason,
    feed::Feed,
    home::Home,
    index::{Index, LineRef},
    job::Kept,
    keeper::{Keeper, Session},
    patch::PatchError,
};
use crate::telemetry::SemaphoreLabels;
use consul_client::{SessionId, clock::Moment, id::IdMap};
use consul_semaphore::{
    Defence, Job, Life, Settings, Uid,
    engine::{
        Action, Answer, Call, CallId, Conclusion, Event, IDLE, Lookup, Moved, Queue, Slice, Write,
        Written,
    },
    holding::now,
};
use consul_semaphore_api::annotations;

/// What the engine looks up.
struct Stores<'a> {
    index: &'a Index,
    keeper: &'a Keeper,
    reference: &'a LineRef,
}

impl Lookup for Stores<'_> {
    fn slice(&self, head: usize) -> Slice {
        self.index.slice(self.reference, head)
    }

    fn workload(&self, uid: &Uid) -> Option<Arc<Job>> {
        self.index.job(uid)
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Job>>> {
        self.index.jobs_of(self.reference, uids)
    }

    fn touched(&self) -> BTreeSet<Uid> {
        self.index.touched(self.reference)
    }

    fn life(&self, session: &SessionId) -> Option<Life> {
        self.keeper.life(session)
    }
}

/// The queue of one lock key at work.
pub(super) struct Grantor {
    pub(super) context: Arc<Context>,
    /// Whose slots it grants.
    pub(super) reference: LineRef,
    pub(super) queue: Queue,
    pub(super) home: Option<Home>,
    labels: SemaphoreLabels,
    wake: Arc<Notify>,
    /// Turns to call Consul, which all queues of a semaphore share.
    turns: Arc<Semaphore>,
    /// Up to where it has heard of what the watch brought.
    heard: u64,
    /// How many operations a transaction may have, as the engine knows it.
    capacity: Option<usize>,
    /// The sessions that are renewed for it.
    kept: IdMap<SessionId, Session>,
    under_way: JoinSet<(CallId, Done)>,
    /// The call to Consul that the engine waits for.
    awaited: Option<AbortHandle>,
    pub(super) tenures: Tenures,
    /// A limit of which it is still to be told that it was moved.
    moved: Option<Moved>,
    /// Whether the waiting Jobs were told that the semaphore goes.
    told: bool,
}

impl Drop for Grantor {
    /// Sessions made ahead have no contender by which anybody would find them again.
    fn drop(&mut self) {
        self.expire_what_is_ahead();
    }
}

impl Grantor {
    /// Nothing is known yet. `wake` is notified when something has happened that calls for a pass, and `turns` are
    /// to be had to call Consul.
    pub(super) fn new(
        context: Arc<Context>,
        reference: LineRef,
        settings: Settings,
        applied: Vec<u32>,
        defence: Defence,
        wake: Arc<Notify>,
        turns: Arc<Semaphore>,
    ) -> Self {
        Self {
            labels: SemaphoreLabels::new(reference.namespace.as_ref(), reference.name.as_ref()),
            context,
            reference,
            queue: Queue::new(settings, applied, defence),
            home: None,
            wake,
            turns,
            heard: 0,
            capacity: None,
            kept: IdMap::default(),
            under_way: JoinSet::new(),
            awaited: None,
            tenures: Tenures::default(),
            moved: None,
            told: false,
        }
    }

    /// How long a watch waits for news before it answers all the same.
    ///
    /// A reading counts from when it was asked for, and the next one comes when that has waited
    /// too: so it is up to two waits old. Jobs whose pods end slowly are suspended when their
    /// evidence is half a TTL old, that of the spec or of the shortest session.
    pub(super) fn watch_wait(&self) -> Duration {
        let ttls = self
            .kept
            .values()
            .filter_map(|session| match session.life() {
                Life::Renewed { ttl, .. } => Some(ttl),
                _ => None,
            });
        let span = self.queue.settings().span();
        ttls.chain([span]).min().unwrap_or(IDLE) / 5
    }

    /// Shows the engine something that happened.
    pub(super) fn handle(&mut self, event: Event) {
        let stores = Stores {
            index: &self.context.index,
            keeper: &self.context.keeper,
            reference: &self.reference,
        };
        self.queue.handle(event, now(), &stores);
        self.carry_out();
    }

    /// Goes another way to Consul from now on, or none. Sessions made before are renewed with the
    /// token that they were made with.
    pub(super) fn move_to(&mut self, home: Option<Home>) {
        self.capacity = home.as_ref().map(|home| home.consul.transaction_capacity());
        self.home = home;
        // What was to go the way before does not go it any more.
        if let Some(awaited) = self.awaited.take() {
            awaited.abort();
        }
        self.handle(Event::Reach(self.capacity));
    }

    /// Lets go of all sessions, which leaves them in Consul: nothing more is to be done there.
    pub(super) fn abandon_sessions(&mut self) {
        self.expire_what_is_ahead();
        self.handle(Event::Abandoned);
    }

    fn expire_what_is_ahead(&mut self) {
        for session in self.queue.sessions_ahead() {
            if let Some(session) = self.kept.remove(session) {
                session.expire();
            }
        }
    }

    /// Takes what the watch has brought since it was last asked; returns up to where that is.
    pub(super) fn hear(&mut self, feed: &Feed) -> u64 {
        let key = self.queue.settings().key.clone();
        if let Some(news) = feed.news(&key, &mut self.heard) {
            self.handle(Event::Listed(news));
        }
        self.heard
    }

    /// Whether it sees what the watch showed last.
    pub(super) fn sees(&self, feed: &Feed) -> bool {
        let reading = self.queue.reading();
        reading.is_some_and(|reading| reading.shows(&feed.entries(&self.queue.settings().key)))
    }

    /// Waits until a call has ended, and shows the engine that and all else that has ended by then.
    pub(super) async fn progress(&mut self) {
        match self.under_way.join_next().await {
            Some(ended) => self.settle(ended),
            None => std::future::pending().await,
        }
        while let Some(ended) = self.under_way.try_join_next() {
            self.settle(ended);
        }
    }

    /// One pass over all that is known.
    pub(super) fn pass(&mut self) -> Conclusion {
        let started = Moment::now();
        self.note_capacity();
        let stores = Stores {
            index: &self.context.index,
            keeper: &self.context.keeper,
            reference: &self.reference,
        };
        let conclusion = self.queue.pass(now(), &stores);
        self.carry_out();
        if let Some(reading) = self.queue.reading() {
            self.tenures.observe(reading);
        }
        let trouble = self.queue.trouble();
        // While an answer is waited for there is nothing to decide.
        if conclusion.certain || (trouble.is_some() && !self.queue.is_blocked()) {
            let result = trouble.map_or(Ok(()), |trouble| Err(trouble.error.reason()));
            self.context
                .metrics
                .pass(Moment::now().since(started), result);
        }
        conclusion
    }

    /// Consul may take fewer operations than was known.
    fn note_capacity(&mut self) {
        let capacity = self
            .home
            .as_ref()
            .map(|home| home.consul.transaction_capacity());
        if let Some(capacity) = capacity
            && self.capacity.replace(capacity) != Some(capacity)
        {
            self.handle(Event::Capacity(capacity));
        }
    }

    /// Does what the engine asks for.
    fn carry_out(&mut self) {
        let mut ended = Ended::new();
        while let Some(action) = self.queue.next_action() {
            match action {
                Action::Call(id, call) => {
                    let blocks = matches!(
                        call,
                        Call::Read { .. } | Call::Transact { .. } | Call::Resolve { .. }
                    );
                    let call = self.means().make(call);
                    let task = self.under_way.spawn(async move { (id, call.await) });
                    if blocks {
                        self.awaited = Some(task);
                    }
                }
                Action::Adopt(session) => self.adopt(session),
                Action::Destroy(session) => {
                    if let Some(kept) = self.kept.remove(&session) {
                        self.context.keeper.destroy(kept.consul(), session);
                    }
                }
                Action::Forget(session) => drop(self.kept.remove(&session)),
                Action::Report(outcome) => self.tell(outcome, &mut ended),
            }
        }
    }

    fn means(&self) -> Means {
        Means {
            context: self.context.clone(),
            namespace: self.reference.namespace.clone(),
            home: self.home.clone(),
            folder: self.queue.settings().prefix.folder(),
            turns: self.turns.clone(),
            wake: self.wake.clone(),
        }
    }

    fn adopt(&mut self, session: SessionId) {
        if let Some(home) = &self.home {
            let (keeper, wake) = (&self.context.keeper, self.wake.clone());
            let adopted = keeper.adopt(&home.consul, session.clone(), wake);
            self.kept.insert(session, adopted);
        }
    }

    /// Shows the engine how a call ended.
    fn settle(&mut self, ended: Result<(CallId, Done), JoinError>) {
        let (id, done) = match ended {
            Ok(ended) => ended,
            // That a task has panicked is a bug, and ends who waits for it, too.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_aborted) => return,
        };
        self.note_capacity();
        let answer = match done {
            Done::Answer(answer) => answer,
            Done::Session(made) => Answer::SessionMade(made.map(|(id, session)| {
                self.kept.insert(id.clone(), session);
                id
            })),
            Done::Written(write, written) => Answer::Written(self.written(&write, written)),
        };
        self.handle(Event::Answered(id, answer));
    }

    /// What a write to a Job came to. The Job as it is now is known from then on.
    fn written(&self, write: &Write, written: Result<Option<Kept>, PatchError>) -> Written {
        let (index, uid) = (&self.context.index, &write.target().uid);
        match written {
            Ok(kept) => {
                index.written(uid, kept);
                Written::Done
            }
            Err(PatchError::Outdated(kept)) => {
                let job = kept.as_ref().map(|kept| kept.job.clone());
                index.reread(uid, kept.map(|kept| *kept));
                Written::Outdated(job)
            }
            Err(PatchError::TooLate) => Written::NotSent,
            Err(PatchError::Refused { message, forbidden }) => {
                Written::Refused { message, forbidden }
            }
            Err(PatchError::Unanswered(why)) => Written::Unanswered(why),
        }
    }

    /// Tells those that came in line, and were not granted a slot at once, that they wait.
    pub(super) fn tell_newcomers(&mut self) {
        let name = self.reference.title();
        let newcomers = self.context.index.newcomers(&self.reference);
        self.tell_useless_keys(&newcomers);
        let (told, reason, note) = if self.queue.settings().terminating {
            let first = !std::mem::replace(&mut self.told, true);
            let all = if first {
                self.context.index.line(&self.reference)
            } else {
                newcomers.into_iter().map(|kept| kept.job).collect()
            };
            let note = format!(
                "ConsulSemaphore {name} is being deleted: this Job stays suspended until there is \
                 one of that name again"
            );
            (all, Reason::NoSemaphore, note)
        } else {
            (
                newcomers.into_iter().map(|kept| kept.job).collect(),
                Reason::SlotWaiting,
                format!("in line for a slot of ConsulSemaphore {name}"),
            )
        };
        let waits = |uid: &Uid| !self.queue.is_busy(uid) && !self.queue.is_granting(uid);
        for job in told.iter().filter(|job| waits(&job.uid)) {
            self.tell_job(&job.name, &job.uid, reason, note.clone());
        }
    }

    /// Tells Jobs that name a key of a semaphore which has none.
    fn tell_useless_keys(&self, newcomers: &[Kept]) {
        if self.queue.settings().key.is_some() {
            return;
        }
        let names_one = |kept: &&Kept| kept.job.key.is_some() || kept.no_key.is_some();
        for Kept { job, .. } in newcomers.iter().filter(names_one) {
            let note = format!(
                "the annotation {} is not heeded: ConsulSemaphore {} is not keyed, and all its Jobs share \
                 its slots. Remove it, or name a ConsulSemaphore with spec.keyed: true",
                annotations::KEY,
                self.reference.name
            );
            self.tell_job(&job.name, &job.uid, Reason::Malformed, note);
        }
    }
}
