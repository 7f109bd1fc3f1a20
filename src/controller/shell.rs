//! Runs the shell around the engine, which passes events to the engine and carries out what the engine asks for. The
//! shell decides nothing.
//!
//! All semaphores are in one engine, so one loop feeds it. Calls are tasks of their own, bounded in time, and do not
//! wait for each other. A call that hangs delays only what depends on its answer.

mod calls;
mod duties;
mod lookup;
mod outcome;
mod reports;
mod stages;

use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    task::{AbortHandle, JoinError, JoinSet, yield_now},
    time::{sleep, timeout},
};

use self::{
    calls::{CallContext, CallDone},
    duties::{Duties, DutyDone},
    lookup::EngineStores,
    outcome::{Emitter, Ended},
    reports::Reports,
};
pub(super) use self::{
    duties::SemaphoreObject,
    outcome::{ended, explain_failure},
};
use super::{
    Context, SharedState,
    index::Index,
    semaphore::{Need, SemaphoreController},
    session_manager::ManagedSession,
};
use crate::workload::WriteError;
use consul_client::{self as consul, Listing, SessionId, clock::Moment, id::IdMap};
use consul_semaphore::{
    Uid, Workload,
    engine::{
        Action, Answer, Call, CallId, ConsulAccess, Duty, Effect, Engine, Outcome, Passed, Queue,
        QueueRef, QueueState, SemaphoreRef, SemaphoreState, Write, Written,
    },
    evidence::LATE,
    holding::now,
};
use consul_semaphore_api::ConsulSemaphore;
use consul_semaphore_workload::TrackedWorkload;

/// Number of inputs that may wait for the loop. If there are more, their senders wait.
const INPUT_CAPACITY: usize = 16;

/// Time for which the loop makes passes, and then statuses, before it takes new inputs.
const TIME_BETWEEN_INPUTS: Duration = Duration::from_millis(5);

/// Longest time that the answers to the last writes may take when the process ends, because another replica waits for
/// that.
pub(super) const LAST_WRITES: Duration = Duration::from_secs(1);

/// Input of the loop: something that happened to a semaphore.
pub(super) enum Input {
    /// A semaphore exists, or has changed.
    Put(Arc<ConsulSemaphore>),
    /// This operator no longer manages a semaphore. The sender waits until the shell has removed it. The state of the
    /// semaphore in Consul stays as it is, for the next operator that manages it.
    Removed(SemaphoreRef, oneshot::Sender<()>),
    /// The watch with this number, of a semaphore's prefix, returned a listing or an error.
    Listed(SemaphoreRef, u64, Result<Listing, consul::Error>),
    /// The access to Consul may have changed.
    AccessChanged(SemaphoreRef),
    /// A status was written.
    StatusWritten(SemaphoreRef),
}

/// Running work for a queue.
#[derive(Default)]
struct QueueTasks {
    /// Sessions that are renewed for the queue.
    sessions: IdMap<SessionId, ManagedSession>,
    /// Call to Consul that the engine waits for.
    awaited: Option<AbortHandle>,
    /// Whether the waiting workloads have received the event that the semaphore is being deleted.
    deletion_announced: bool,
}

/// Shell around the engine.
pub(super) struct Shell {
    context: Arc<Context>,
    engine: Engine,
    semaphores: HashMap<SemaphoreRef, SemaphoreController>,
    queues: BTreeMap<QueueRef, QueueTasks>,
    /// Calls that only ask.
    reads: JoinSet<(CallId, CallDone)>,
    /// Calls that change something in Consul or in a workload.
    writes: JoinSet<(CallId, CallDone)>,
    duties: Duties,
    inputs: (mpsc::Sender<Input>, mpsc::Receiver<Input>),
    reports: Reports,
    /// Whether the engine has decided about all that existed at the start, so that every running workload is known.
    settled: bool,
    /// Time of the next update of the record of the last proofs.
    notes: Moment,
}

impl Drop for Shell {
    /// Lets sessions that were made ahead expire. They have no contender, so nobody would find them again.
    fn drop(&mut self) {
        let queues = self.engine.queues();
        let ahead = queues.flat_map(|(reference, queue)| {
            let sessions = queue.sessions_ahead().cloned();
            sessions.map(move |session| (reference.clone(), session))
        });
        for (queue, session) in ahead.collect::<Vec<_>>() {
            self.expire(&queue, &session);
        }
    }
}

/// Handling of events and inputs.
impl Shell {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            engine: Engine::default(),
            semaphores: HashMap::new(),
            queues: BTreeMap::new(),
            reads: JoinSet::new(),
            writes: JoinSet::new(),
            duties: Duties::default(),
            inputs: mpsc::channel(INPUT_CAPACITY),
            reports: Reports::default(),
            settled: false,
            notes: Moment::default(),
        }
    }

    /// Returns the sender for inputs.
    pub(super) fn inputs(&self) -> mpsc::Sender<Input> {
        self.inputs.0.clone()
    }

    /// Runs the loop until `shutdown`. Ends soon after that.
    pub(super) async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut inputs = Vec::new();
        loop {
            self.work().await;
            self.note_proofs();
            self.report_what_is_due();
            let next = self.next();
            let context = self.context.clone();
            tokio::select! {
                () = &mut shutdown => break,
                () = context.index.marked() => self.take_marked(),
                1.. = self.inputs.1.recv_many(&mut inputs, INPUT_CAPACITY) => {
                    inputs.drain(..).for_each(|input| self.take(input));
                }
                Some(ended) = self.reads.join_next() => self.settle(ended),
                Some(ended) = self.writes.join_next() => self.settle(ended),
                Some(ended) = self.duties.next() => self.settle_duty(ended),
                () = sleep(next.since(Moment::now())) => {}
            }
            // Calls that have ended meanwhile are settled before the next pass, too.
            while let Some(ended) = self
                .writes
                .try_join_next()
                .or_else(|| self.reads.try_join_next())
            {
                self.settle(ended);
            }
            self.take_marked();
        }
        self.report_last_writes().await;
    }

    /// Waits for the answers to the writes that were sent, and reports what they changed. The next process finds that
    /// done already, so it reports nothing about it.
    async fn report_last_writes(&mut self) {
        let end = Moment::now() + LAST_WRITES;
        while let Ok(Some(ended)) = timeout(end.since(Moment::now()), self.writes.join_next()).await
        {
            self.settle(ended);
        }
    }

    /// Returns when there is something to do even if no input comes.
    fn next(&self) -> Moment {
        let now = Moment::now();
        let report = self.reports.next();
        let times = self.engine.next_timeout(now).into_iter().chain(report);
        // Timers stop while the machine sleeps, but sessions do not. So the loop checks the time now and then, which
        // costs nothing if nothing is due.
        times.fold(now + LATE, Ord::min)
    }

    fn take_marked(&mut self) {
        let (context, now) = (self.context.clone(), now());
        for queue in context.index.take_marked() {
            self.engine
                .touched(&queue, now, &EngineStores::of(&context));
        }
        self.carry_out();
    }

    fn take(&mut self, input: Input) {
        let context = self.context.clone();
        let stores = EngineStores::of(&context);
        match input {
            Input::Put(semaphore) => self.put(semaphore),
            Input::Removed(semaphore, removed) => {
                self.remove(&semaphore);
                let _ = removed.send(());
            }
            Input::Listed(semaphore, number, listing) => {
                let controller = self.semaphores.get(&semaphore);
                if controller.is_some_and(|controller| controller.watches(number)) {
                    self.engine.listed(&semaphore, listing, now(), &stores);
                }
            }
            Input::AccessChanged(semaphore) => {
                let controller = self.semaphores.get_mut(&semaphore);
                let access = controller.and_then(SemaphoreController::regain_access);
                if let Some(access) = access {
                    self.set_access(&semaphore, access);
                }
                self.reports.changed(semaphore);
            }
            Input::StatusWritten(semaphore) => {
                self.confirm(&semaphore);
                self.take_over_limits(&semaphore);
            }
        }
        self.carry_out();
    }

    fn put(&mut self, object: Arc<ConsulSemaphore>) {
        let reference = super::watches::reference_of(object.as_ref());
        let context = self.context.clone();
        let access = if let Some(known) = self.semaphores.get_mut(&reference) {
            known.update(object)
        } else {
            let inputs = self.inputs.0.clone();
            let controller = SemaphoreController::new(context.clone(), object, inputs);
            self.reports
                .schedule(reference.clone(), controller.patience());
            self.semaphores.insert(reference.clone(), controller);
            None
        };
        let Some(controller) = self.semaphores.get(&reference) else {
            return;
        };
        let known = || (controller.known(), controller.consul_access());
        let (spec, finalizer) = (controller.spec(), controller.has_finalizer());
        let stores = EngineStores::of(&context);
        self.engine
            .put(&reference, spec, finalizer, known, now(), &stores);
        if let Some(access) = access {
            self.set_access(&reference, access);
        }
        self.take_over_limits(&reference);
        self.watch(&reference);
    }

    /// Takes over limits that another operator has recorded as ours.
    fn take_over_limits(&mut self, semaphore: &SemaphoreRef) {
        let controller = self.semaphores.get_mut(semaphore);
        let Some(limits) = controller.and_then(SemaphoreController::take_found) else {
            return;
        };
        let stores = EngineStores::of(&self.context);
        self.engine.found_limits(semaphore, &limits, now(), &stores);
        // A report that takes these limits into account may remove them again.
        self.reports.changed(semaphore.clone());
    }

    fn remove(&mut self, semaphore: &SemaphoreRef) {
        let context = self.context.clone();
        let stores = EngineStores::of(&context);
        for (queue, session) in self.engine.remove(semaphore, now(), &stores) {
            self.expire(&queue, &session);
        }
        let gone = self.queues_of(semaphore).map(|(queue, _)| queue.clone());
        for queue in gone.collect::<Vec<_>>() {
            self.queues.remove(&queue);
        }
        self.reports.forget(semaphore);
        if let Some(gone) = self.semaphores.remove(semaphore) {
            self.context
                .shared
                .metrics
                .semaphores()
                .forget(gone.labels());
        }
    }

    /// Sets the access of a semaphore to Consul. Earlier sessions are renewed with the token that created them.
    fn set_access(&mut self, semaphore: &SemaphoreRef, access: ConsulAccess) {
        // The engine no longer waits for calls with the old access, so they are aborted.
        for (_, tasks) in self.queues_of(semaphore) {
            if let Some(awaited) = tasks.awaited.take() {
                awaited.abort();
            }
        }
        if matches!(access, ConsulAccess::Refused { .. }) {
            self.expire_ahead(semaphore);
        }
        let context = self.context.clone();
        let stores = EngineStores::of(&context);
        self.engine.set_access(semaphore, access, now(), &stores);
        self.watch(semaphore);
    }

    /// Returns the running work for the queues of a semaphore.
    fn queues_of(
        &mut self,
        semaphore: &SemaphoreRef,
    ) -> impl Iterator<Item = (&QueueRef, &mut QueueTasks)> {
        let first = QueueRef::new(semaphore, None);
        let queues = self.queues.range_mut(first..);
        queues.take_while(move |(queue, _)| queue.semaphore == *semaphore)
    }

    /// Lets sessions expire that were made ahead for a semaphore and have no contender.
    fn expire_ahead(&mut self, semaphore: &SemaphoreRef) {
        let Some(state) = self.engine.semaphore(semaphore) else {
            return;
        };
        let queues = state.queues().iter();
        let ahead = queues.flat_map(|(key, QueueState { queue, .. })| {
            let reference = QueueRef::new(semaphore, key.clone());
            let sessions = queue.sessions_ahead().cloned();
            sessions.map(move |session| (reference.clone(), session))
        });
        for (queue, session) in ahead.collect::<Vec<_>>() {
            self.expire(&queue, &session);
        }
    }

    fn expire(&mut self, queue: &QueueRef, session: &SessionId) {
        let tasks = self.queues.get_mut(queue);
        if let Some(session) = tasks.and_then(|tasks| tasks.sessions.remove(session)) {
            session.expire();
        }
    }

    fn watch(&mut self, semaphore: &SemaphoreRef) {
        let controller = self.semaphores.get_mut(semaphore);
        if let (Some(controller), Some(state)) = (controller, self.engine.semaphore(semaphore)) {
            controller.watch(state);
        }
    }
}

/// Passes, and what follows from them.
impl Shell {
    /// Makes the passes that are due, for a while, and carries out their effects. The calls of a pass are sent before
    /// the next pass.
    async fn work(&mut self) {
        let context = self.context.clone();
        let stores = EngineStores::of(&context);
        let mut worked = Duration::ZERO;
        loop {
            let started = Moment::now();
            let passed = self.engine.pass(now(), &stores);
            let took = Moment::now().since(started);
            let calls = self.reads.len() + self.writes.len();
            self.carry_out();
            let Some(passed) = passed else {
                self.settled |= !self.semaphores.is_empty();
                break;
            };
            self.passed(&passed, took);
            worked += Moment::now().since(started);
            if self.reads.len() + self.writes.len() > calls {
                yield_now().await;
            }
            if worked > TIME_BETWEEN_INPUTS {
                break;
            }
        }
        while let Some(semaphore) = self.engine.take_changed() {
            self.reports.changed(semaphore);
        }
    }

    fn passed(&mut self, passed: &Passed, took: Duration) {
        let reference = &passed.queue;
        if let Some(controller) = self.semaphores.get_mut(&reference.semaphore) {
            controller.changed(&reference.key);
        }
        let Some(queue) = self.engine.queue(reference) else {
            return;
        };
        if passed.certain {
            self.context.shared.session_manager.settle(reference);
        }
        let trouble = queue.trouble();
        // While an answer is pending, the pass had nothing to decide and does not count.
        if passed.certain || (trouble.is_some() && !queue.is_blocked()) {
            let result = trouble.map_or(Ok(()), |trouble| Err(trouble.error.reason()));
            self.context.shared.metrics.pass(took, result);
        }
        let terminating = queue.settings().terminating;
        let announced = &mut self
            .queues
            .entry(reference.clone())
            .or_default()
            .deletion_announced;
        let all = terminating && !std::mem::replace(announced, terminating);
        let waits = |uid: &Uid| !queue.is_leaving(uid) && !queue.is_granting(uid);
        if let Some(controller) = self.semaphores.get(&reference.semaphore) {
            let emitter = Emitter {
                context: &self.context,
                reference,
                settings: queue.settings(),
                labels: controller.labels(),
            };
            let queues = |workload: &Workload| {
                self.engine
                    .queues_for(&reference.semaphore.namespace, workload)
            };
            let obstacle = |reference: &QueueRef, workload: &Workload| {
                let controller = self.semaphores.get(&reference.semaphore)?;
                let semaphore = self.engine.semaphore(&reference.semaphore)?;
                let need = Need::of(self.engine.queue(reference)?.settings(), workload);
                let outlook = controller.outlook(semaphore, &reference.key, need)?;
                outlook.obstacle
            };
            emitter.announce_newcomers(all, waits, queues, obstacle);
        }
    }

    /// Records which proofs the running workloads have, about once a second.
    fn note_proofs(&mut self) {
        let now = Moment::now();
        if now < self.notes || !self.settled {
            return;
        }
        self.notes = now + LATE;
        let SharedState {
            session_manager,
            proof_record,
            ..
        } = &*self.context.shared;
        let proved = self
            .semaphores
            .iter()
            .filter_map(|(reference, controller)| {
                let semaphore = self.engine.semaphore(reference)?;
                let proved = semaphore.oldest_proof(|session| session_manager.life(session))?;
                let asked = semaphore.spec().settings.ttl;
                Some((controller.proof_group(asked, proved.ttl), proved))
            });
        proof_record.note(now, proved);
    }

    /// Makes the statuses that are due, for a while. There are thousands of them when Consul is away, and new inputs
    /// come first.
    fn report_what_is_due(&mut self) {
        let begun = Moment::now();
        while Moment::now().since(begun) < TIME_BETWEEN_INPUTS
            && let Some(semaphore) = self.reports.take_due(Moment::now())
        {
            self.report(&semaphore);
        }
    }

    fn report(&mut self, semaphore: &SemaphoreRef) {
        let controller = self.semaphores.get_mut(semaphore);
        if let (Some(controller), Some(state)) = (controller, self.engine.semaphore(semaphore)) {
            controller.report(state);
            self.reports.made(semaphore, Moment::now());
            if let Some(due) = SemaphoreController::changes_at(state) {
                self.reports.schedule(semaphore.clone(), due);
            }
            self.confirm(semaphore);
        }
    }

    /// Confirms limits that had to be recorded first, if the written status has them.
    fn confirm(&mut self, semaphore: &SemaphoreRef) {
        let Some(controller) = self.semaphores.get_mut(semaphore) else {
            return;
        };
        let Some(limits) = controller.take_recorded() else {
            return;
        };
        self.duties.record(controller, limits);
    }
}

/// Effects that the engine asks for.
impl Shell {
    fn carry_out(&mut self) {
        let mut ended: Option<(QueueRef, Ended)> = None;
        while let Some(effect) = self.engine.next_effect() {
            match effect {
                Effect::Queue(queue, action) => {
                    // The spans of grants link to the spans that the same transaction ended.
                    let ended = match &mut ended {
                        Some((of, ended)) if *of == queue => ended,
                        ended => &mut ended.insert((queue.clone(), Ended::new())).1,
                    };
                    self.act(&queue, action, ended);
                }
                Effect::Closed(queue) => {
                    self.queues.remove(&queue);
                    if let Some(controller) = self.semaphores.get_mut(&queue.semaphore) {
                        controller.changed(&queue.key);
                    }
                }
                Effect::Semaphore(semaphore, duty) => self.do_duty(semaphore, duty),
            }
        }
    }

    fn act(&mut self, reference: &QueueRef, action: Action, ended: &mut Ended) {
        let Some(call_context) = self.call_context(reference) else {
            return;
        };
        let tasks = self.queues.entry(reference.clone()).or_default();
        match action {
            Action::Call(id, call) => {
                let blocks = matches!(
                    call,
                    Call::Read { .. } | Call::Transact { .. } | Call::Resolve { .. }
                );
                let calls = match call {
                    Call::Write { .. } | Call::Transact { .. } => &mut self.writes,
                    _ => &mut self.reads,
                };
                let call = call_context.make(call);
                let task = calls.spawn(async move { (id, call.await) });
                if blocks {
                    tasks.awaited = Some(task);
                }
            }
            Action::Adopt(session) => {
                if let Some(target) = &call_context.target {
                    let session_manager = &self.context.shared.session_manager;
                    let user = call_context.user();
                    let adopted = session_manager.adopt(&target.consul, session.clone(), user);
                    tasks.sessions.insert(session, adopted);
                }
            }
            Action::Destroy(session) => {
                if let Some(renewed) = tasks.sessions.remove(&session) {
                    self.context
                        .shared
                        .session_manager
                        .destroy(renewed.consul(), session);
                }
            }
            Action::Forget(session) => drop(tasks.sessions.remove(&session)),
            Action::Report(outcome) => self.emit(reference, outcome, ended),
        }
    }

    fn call_context(&self, reference: &QueueRef) -> Option<CallContext> {
        let controller = self.semaphores.get(&reference.semaphore)?;
        let queue = self.engine.queue(reference)?;
        let semaphore = self.engine.semaphore(&reference.semaphore)?;
        Some(CallContext {
            context: self.context.clone(),
            queue: reference.clone(),
            target: controller.target().cloned(),
            lister: controller.lister().cloned(),
            folder: queue.settings().prefix.folder(),
            known: semaphore.watched().entries(&reference.key),
            turns: controller.turns(),
        })
    }

    fn emit(&mut self, reference: &QueueRef, outcome: Outcome, ended: &mut Ended) {
        let controller = self.semaphores.get_mut(&reference.semaphore);
        let queue = self.engine.queue(reference).map(Queue::settings);
        if let (Some(controller), Some(settings)) = (controller, queue) {
            match outcome {
                Outcome::LimitMoved(moved) => {
                    controller.report_moved_limit(moved, reference.key.as_ref());
                }
                // Each slot of a workload would be reported, but one of them says as much as all.
                Outcome::Released {
                    granted: Some(granted),
                    ref release,
                    ..
                } if release.identity.ordinal == 0 => {
                    controller.released(&reference.key, granted);
                }
                Outcome::Cools(ref cooling) => {
                    let index = &self.context.index;
                    index.cools(reference, &cooling.identity.uid);
                }
                _ => {}
            }
            let emitter = Emitter {
                context: &self.context,
                reference,
                settings,
                labels: controller.labels(),
            };
            emitter.emit(outcome, ended);
        }
    }

    fn do_duty(&mut self, reference: SemaphoreRef, duty: Duty) {
        let semaphore = self.engine.semaphore(&reference);
        let controller = self.semaphores.get_mut(&reference);
        let (Some(controller), Some(semaphore)) = (controller, semaphore) else {
            return;
        };
        match duty {
            Duty::AddFinalizer => self.duties.add_finalizer(controller),
            Duty::RemoveFinalizer => {
                controller.report_leftovers(semaphore);
                self.duties.remove_finalizer(controller, true);
            }
            Duty::LeaveBehind => {
                controller.report_possible_leftovers(semaphore);
                self.duties.remove_finalizer(controller, false);
            }
            Duty::ListSessions => self.duties.list_sessions(controller),
            Duty::ListPrefix => controller.list_again(),
            Duty::EndSession(session) => {
                if let Some(target) = controller.target() {
                    tracing::info!(%session, semaphore = %reference, "destroyed a session without a contender");
                    self.context
                        .shared
                        .session_manager
                        .destroy(&target.consul, session);
                }
            }
            Duty::RecordLimits(limits) => {
                controller.record(limits);
                self.reports.hurry(reference);
            }
        }
    }
}

/// Answers to calls.
impl Shell {
    /// Passes the result of a call to the engine.
    fn settle(&mut self, ended: Result<(CallId, CallDone), JoinError>) {
        let (id, done) = match ended {
            Ok(ended) => ended,
            // A task that panics is a bug, and ends the shell, too.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_aborted) => return,
        };
        let Some(queue) = self.engine.queue_of(id).cloned() else {
            if let CallDone::Session(Ok((session, renewed))) = done {
                self.context
                    .shared
                    .session_manager
                    .destroy(renewed.consul(), session);
            }
            return;
        };
        self.note_capacity(id, &queue);
        let answer = match done {
            CallDone::Answer(answer) => answer,
            CallDone::Session(made) => Answer::SessionMade(made.map(|(id, session)| {
                let tasks = self.queues.entry(queue).or_default();
                tasks.sessions.insert(id.clone(), session);
                id
            })),
            CallDone::Written(write, written) => {
                Answer::Written(written_of(&self.context.index, &write, written))
            }
        };
        let context = self.context.clone();
        let stores = EngineStores::of(&context);
        self.engine.answered(id, answer, now(), &stores);
        self.carry_out();
    }

    /// Notes the number of operations that Consul accepts, which may be lower than the known number.
    fn note_capacity(&mut self, call: CallId, queue: &QueueRef) {
        let controller = self.semaphores.get(&queue.semaphore);
        let target = controller.and_then(SemaphoreController::target);
        let known = self.engine.queue(queue).and_then(Queue::operations);
        if let (Some(target), Some(known)) = (target, known) {
            let capacity = target.consul.transaction_capacity();
            if capacity != known {
                let context = self.context.clone();
                let stores = EngineStores::of(&context);
                self.engine.capacity(call, capacity, now(), &stores);
            }
        }
    }

    fn settle_duty(&mut self, (of, done): (SemaphoreObject, DutyDone)) {
        // The duty is ignored if another semaphore has the name by now.
        let semaphore = of.semaphore.clone();
        let controller = self.semaphores.get_mut(&semaphore);
        let Some(controller) = controller.filter(|controller| controller.object() == of) else {
            return;
        };
        let context = self.context.clone();
        let (now, stores) = (now(), EngineStores::of(&context));
        match done {
            DutyDone::AddedFinalizer(answer) => {
                let state = self.engine.semaphore(&semaphore);
                let begun = state.is_some_and(SemaphoreState::has_begun);
                controller.report_finalizer(&answer, begun);
                let done = answer.is_ok();
                self.engine.added_finalizer(&semaphore, done, now, &stores);
                self.watch(&semaphore);
            }
            DutyDone::RemovedFinalizer(answer) => {
                if let Err(error) = &answer {
                    tracing::debug!(%semaphore, %error, "can't remove the finalizer yet");
                }
                let done = answer.is_ok();
                self.engine
                    .removed_finalizer(&semaphore, done, now, &stores);
            }
            DutyDone::Recorded(limits) => {
                self.engine.recorded(&semaphore, &limits, now, &stores);
            }
            DutyDone::Sessions(sessions) => {
                controller.report_session_listing(&sessions);
                self.engine
                    .listed_sessions(&semaphore, sessions, now, &stores);
            }
        }
        self.carry_out();
    }
}

/// Returns the result of a write to a workload, and stores the new state of the workload in the index.
fn written_of(
    index: &Index,
    write: &Write,
    written: Result<Option<TrackedWorkload>, WriteError>,
) -> Written {
    let uid = &write.target().uid;
    match written {
        Ok(now) => {
            index.written(uid, now);
            Written::Done
        }
        Err(WriteError::Outdated(now)) => {
            let workload = now.as_ref().map(|now| now.workload.clone());
            index.reread(uid, now.map(|now| *now));
            Written::Outdated(workload)
        }
        Err(WriteError::TooLate) => Written::NotSent,
        Err(WriteError::Refused {
            message, forbidden, ..
        }) => Written::Refused { message, forbidden },
        Err(WriteError::Unanswered(why)) => Written::Unanswered(why),
    }
}
