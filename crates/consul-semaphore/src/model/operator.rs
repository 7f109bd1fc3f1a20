//! The engine in a small world, with a minimal caller around it that does one thing after another.
//!
//! It decides nothing. It shows the engine what a watch would show, carries out what the engine asks for, and loses
//! answers, repeats them or delays them as the script says.

mod act;
mod hung;
mod step;
mod trace;
mod view;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

pub(super) use self::{hung::Lost, step::Step};
use self::{
    hung::{About, End},
    view::{Store, View},
};
use super::{
    consul::Refused,
    flaws::Flaw,
    outside::{Outside, Reach},
    requests::{self, Patch},
};
use crate::{
    Identity, LastProof, Plan, Proved, SessionState, Turns, Uid, Workload,
    engine::{
        Action, Answer, Call, CallId, ConsulAccess, Duty, Effect, Engine, Known, Lookup, Now,
        Outcome, Queue, QueueRef, SemaphoreRef, Spec, Write,
    },
    plan::Stop,
};
use consul_client::{self as consul, Behavior, Listing, Session, SessionId, clock::Moment};

/// How many answers and listings may arrive once more.
const ECHOES: usize = 4;

/// How many passes may be needed until nothing more can be answered at once.
const PROMPT: usize = 20;

/// One process: a crash loses all of this.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    /// The flaw in its algorithm.
    flaw: Option<Flaw>,
    /// Whether no time passes between events, so that only answers are waited for.
    timeless: bool,
    engine: Engine,
    /// The one queue of the one semaphore.
    reference: QueueRef,
    store: Store,
    /// The generation that the engine knows of.
    generation: u64,
    /// How many operations the operator believes Consul to take.
    operations: usize,
    /// What is still to be carried out, in order.
    pending: VecDeque<Step>,
    /// The calls that hang.
    hung: Vec<End>,
    /// Whether a workload has changed since the last pass.
    woken: bool,
    /// What was known of sessions at the last pass.
    lives: BTreeSet<(SessionId, bool)>,
    /// Workloads that were stopped and have not been seen since.
    stopped: BTreeSet<Uid>,
    /// The last answers, and what the watch last returned: each may arrive once more.
    answered: VecDeque<(CallId, Answer)>,
    brought: VecDeque<Listing>,
    /// When the latest listing was read.
    listed: Moment,
    /// Whether another replica has taken over.
    pub(super) deposed: bool,
    /// What an earlier process recorded.
    last_proof: Option<LastProof>,
}

/// The present.
fn now(outside: &Outside) -> Now {
    Now {
        moment: outside.now(),
        time: jiff::Timestamp::from_second(outside.workloads.clock).unwrap_or_default(),
        jitter: 0.0,
    }
}

/// Whether no workload has changed.
fn alike(before: &[Arc<Workload>], after: &[Arc<Workload>]) -> bool {
    let same = |(before, after): (&Arc<Workload>, &Arc<Workload>)| {
        let seen = after.seen;
        Workload {
            seen,
            ..(**before).clone()
        } == **after
    };
    before.len() == after.len() && before.iter().zip(after).all(same)
}

/// A session as Consul shows it.
fn session(outside: &Outside, id: &SessionId, identity: &Identity) -> Session {
    Session {
        id: id.clone(),
        name: identity.session_name(),
        node: "k8s".into(),
        ttl: outside.settings.ttl,
        lock_delay: Duration::ZERO,
        behavior: Behavior::Delete,
        create_index: 1,
    }
}

/// A call was not answered.
fn no_answer() -> consul::Error {
    consul::Error::Unreachable {
        message: "it is away".into(),
        undecided: true,
    }
}

impl Default for Operator {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Operator {
    /// A new process.
    pub(super) fn new(flaw: Option<Flaw>) -> Self {
        let semaphore = SemaphoreRef {
            namespace: "n".into(),
            name: "db".into(),
        };
        Self {
            flaw,
            timeless: false,
            engine: Engine::default(),
            reference: QueueRef::new(&semaphore, None),
            store: Store::default(),
            generation: 0,
            operations: 0,
            pending: VecDeque::new(),
            hung: Vec::new(),
            woken: false,
            lives: BTreeSet::new(),
            stopped: BTreeSet::new(),
            answered: VecDeque::new(),
            brought: VecDeque::new(),
            listed: Moment::default(),
            deposed: false,
            last_proof: None,
        }
    }

    /// A new process that knows what an earlier one recorded.
    pub(super) fn after(last_proof: Option<LastProof>) -> Self {
        Self {
            last_proof,
            ..Self::default()
        }
    }

    /// In a world in which only the order of events counts.
    pub(super) fn timeless(flaw: Option<Flaw>) -> Self {
        Self {
            timeless: true,
            ..Self::new(flaw)
        }
    }

    pub(super) fn flaw(&self) -> Option<Flaw> {
        self.flaw
    }

    fn queue(&self) -> Option<&Queue> {
        self.engine.queue(&self.reference)
    }

    /// The oldest proof of the workloads that it runs.
    pub(super) fn oldest_proof(&self, outside: &Outside) -> Option<Proved> {
        let view = View {
            store: &self.store,
            outside,
            flaw: self.flaw,
        };
        let semaphore = self.engine.semaphore(&self.reference.semaphore)?;
        semaphore.oldest_proof(|session| (&view).life(session))
    }

    /// What the operator does next.
    pub(super) fn next_step(&self) -> Option<&Step> {
        self.pending.front()
    }

    /// Whether the operator has a session made ahead for this workload.
    pub(super) fn has_session(&self, uid: &Uid) -> bool {
        self.queue().is_some_and(|queue| {
            queue
                .sessions
                .ahead
                .keys()
                .any(|slot| slot.workload == *uid)
        })
    }

    /// Whether something is still to be carried out.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether the operator is about to remove the finalizer of a semaphore that is deleted.
    pub(super) fn lets_go(&self) -> bool {
        let mut pending = self.pending.iter();
        pending.any(|step| matches!(step, Step::Finalizer { added: false }))
    }

    /// When the operator passes if nothing happens before.
    pub(super) fn next_timeout(&self) -> Moment {
        self.queue().map_or(Moment::default(), Queue::next_timeout)
    }

    /// Whether no retry is pending, so that a plan says all that is to be done.
    pub(super) fn is_undisturbed(&self, outside: &Outside) -> bool {
        self.queue().is_some_and(|queue| {
            let refusals = queue.writes.refusals.due();
            let mut paused = refusals.chain(queue.held.proofs.due());
            queue.reading().is_some()
                && queue.trouble().is_none()
                && !queue.is_blocked()
                && paused.all(|due| due <= outside.now())
        })
    }

    /// Tells the engine something.
    fn tell(
        &mut self,
        outside: &Outside,
        tell: impl FnOnce(&mut Engine, &SemaphoreRef, Now, &View<'_>),
    ) {
        let view = View {
            store: &self.store,
            outside,
            flaw: self.flaw,
        };
        tell(
            &mut self.engine,
            &self.reference.semaphore,
            now(outside),
            &view,
        );
        self.collect(outside);
    }

    /// A call has been answered.
    fn answer(&mut self, outside: &Outside, id: CallId, answer: Answer) {
        if let Answer::Listing(Ok(listing)) = &answer {
            self.listed = self.listed.max(listing.sent);
        }
        if !self.timeless {
            self.answered.push_front((id, answer.clone()));
            self.answered.truncate(ECHOES);
        }
        self.tell(outside, |engine, _, now, view| {
            engine.answered(id, answer, now, view);
        });
    }

    /// The watch has returned something, or has failed.
    fn listed(&mut self, outside: &Outside, listing: Result<Listing, consul::Error>) {
        if let Ok(listing) = &listing {
            self.listed = self.listed.max(listing.sent);
        }
        if let (Ok(listing), false) = (&listing, self.timeless) {
            self.brought.push_front(listing.clone());
            self.brought.truncate(ECHOES);
        }
        self.tell(outside, |engine, semaphore, now, view| {
            engine.listed(semaphore, listing, now, view);
        });
    }

    /// All workloads are listed.
    pub(super) fn see_workloads(&mut self, outside: &Outside) {
        let objects = outside.workloads.objects();
        let workloads: Vec<_> = objects
            .filter_map(|object| self.seen(outside, &object.uid))
            .collect();
        self.woken |= !alike(&self.store.workloads, &workloads);
        self.store.workloads = workloads;
        self.stopped.clear();
    }

    /// The answer to a write shows a workload, if it is still known.
    fn see_workload(&mut self, outside: &Outside, uid: &Uid) {
        let seen = self.seen(outside, uid);
        let workloads = &mut self.store.workloads;
        if let Some(position) = workloads.iter().position(|known| known.uid == *uid) {
            match seen {
                Some(seen) => workloads[position] = seen,
                None => drop(workloads.remove(position)),
            }
        }
    }

    /// A workload as it is read now, or as it is known if that is newer.
    fn seen(&self, outside: &Outside, uid: &Uid) -> Option<Arc<Workload>> {
        let now = outside.now();
        let asked = (self.flaw != Some(Flaw::BelievesNoSmallerVersion)).then_some(now);
        let mut workload = outside.workloads.read(uid, now)?;
        let mut known = self.store.workloads.iter();
        let known = known.find(|known| known.uid == *uid);
        match known {
            Some(known) if !known.is_replaced_by(&workload, asked) => return Some(known.clone()),
            Some(known) if known.version == workload.version => workload.seen = known.seen,
            _ => {}
        }
        workload.note_wait(known.map(AsRef::as_ref), self::now(outside).time);
        Some(Arc::new(workload))
    }

    /// The watch returns the prefix.
    pub(super) fn see_consul(&mut self, outside: &Outside) {
        let listing = outside.consul.list(&outside.settings.prefix, outside.now());
        let listing = if outside.is_away() {
            Err(no_answer())
        } else {
            Ok(listing)
        };
        self.listed(outside, listing);
    }

    /// An earlier answer, or an earlier listing of the watch, arrives once more, or late.
    pub(super) fn echo(&mut self, outside: &Outside, choice: usize) {
        let answer = self.answered.get(choice / 2).cloned();
        let listing = self.brought.get(choice / 2).cloned();
        match (choice % 2, answer, listing) {
            (0, Some((id, answer)), _) => self.answer(outside, id, answer),
            (1, _, Some(listing)) => self.listed(outside, Ok(listing)),
            _ => {}
        }
    }

    /// The watch fails.
    pub(super) fn lose_the_watch(&mut self, outside: &Outside) {
        self.listed(outside, Err(no_answer()));
    }

    /// The sessions that are due are renewed.
    pub(super) fn renew(&mut self, outside: &mut Outside) {
        let (Some(ttl), false) = (outside.settings.ttl, outside.is_away()) else {
            return;
        };
        let now = outside.now();
        for session in &self.store.kept {
            let last = self.store.renewals.get(session).copied().flatten();
            if last.is_some_and(|last| now.since(last) < ttl / 3) {
                continue;
            }
            let renewed = outside.consul.is_alive(session).then_some(now);
            if renewed.is_some() {
                outside.renewed.insert(session.clone(), now);
            }
            self.store.renewals.insert(session.clone(), renewed);
        }
    }

    /// Decides on what it has seen so far. Answers whatever can be answered without a change outside.
    pub(super) fn decide(&mut self, outside: &Outside) -> Plan {
        self.see_spec(outside);
        let mut plan = Plan::default();
        for _ in 0..PROMPT {
            plan = self.pass(outside);
            let mut asked = false;
            while let Some(position) = self.pending.iter().position(Step::changes_nothing) {
                let Some(Step::Ask { id, call }) = self.pending.remove(position) else {
                    break;
                };
                asked = true;
                self.ask(outside, id, &call, None);
            }
            // While a write is in flight, it is not known what there is to do.
            if !asked || self.queue().is_some_and(Queue::is_blocked) {
                break;
            }
        }
        plan
    }

    /// Decides while calls are in flight, and answers none of them.
    pub(super) fn decide_at_once(&mut self, outside: &Outside) {
        self.see_spec(outside);
        self.pass(outside);
    }

    /// One pass.
    fn pass(&mut self, outside: &Outside) -> Plan {
        if self.waits_for_proof() {
            return Plan::default();
        }
        if self.flaw == Some(Flaw::NeverTakesTurn)
            && let Some(queue) = self.engine.queue_mut(&self.reference)
        {
            queue.knowledge.memory.turns = Turns::new(outside.settings.fair);
        }
        let (reference, lives) = (self.reference.clone(), self.lives(outside));
        let news = std::mem::take(&mut self.woken) || !lives.is_subset(&self.lives);
        self.lives = lives;
        // The exhaustive worlds ignore the cost of passes that find nothing to do.
        let woken = news || self.timeless;
        self.tell(outside, |engine, _, now, view| {
            if woken {
                engine.touched(&reference, now, view);
            }
            while engine.pass(now, view).is_some() {}
        });
        for stop in self.stops(outside).collect::<Vec<_>>() {
            self.stopped.insert(stop.workload.uid.clone());
            self.pending.push_back(Step::Patch {
                id: None,
                patch: Patch::Stop(stop),
                read: outside.now(),
                not_after: None,
            });
        }
        self.record(outside);
        let semaphore = self.engine.semaphore(&self.reference.semaphore);
        let queue = semaphore
            .filter(|semaphore| semaphore.has_begun())
            .and(self.queue());
        queue.map_or_else(Plan::default, |queue| queue.plan.clone())
    }

    /// The renewed sessions of which something is known, and whether they are gone.
    fn lives(&self, outside: &Outside) -> BTreeSet<(SessionId, bool)> {
        let view = View {
            store: &self.store,
            outside,
            flaw: self.flaw,
        };
        let lives = self.store.kept.iter().map(|session| {
            let life = (&view).life(session);
            (session.clone(), life)
        });
        lives
            .filter(|(_, life)| *life != Some(SessionState::Unknown))
            .map(|(session, life)| (session, life == Some(SessionState::Gone)))
            .collect()
    }

    /// Writes to the status which limits are ours, until the status says so.
    fn record(&mut self, outside: &Outside) {
        let semaphore = self.engine.semaphore(&self.reference.semaphore);
        let Some(semaphore) = semaphore.filter(|semaphore| semaphore.is_known()) else {
            return;
        };
        let mut limits = semaphore.applied_limits().to_vec();
        if self.flaw == Some(Flaw::ClaimsOldLimits) {
            let missing = outside
                .applied
                .iter()
                .filter(|limit| !limits.contains(limit));
            let forgotten: Vec<_> = missing.copied().collect();
            limits.splice(0..0, forgotten);
        }
        if self.is_recording() {
            return;
        }
        if limits == outside.applied {
            // Nothing has to be written: the status says so already.
            self.tell(outside, |engine, semaphore, now, view| {
                engine.recorded(semaphore, &limits, now, view);
            });
        } else {
            self.pending.push_back(Step::Record { limits });
        }
    }

    fn is_recording(&self) -> bool {
        let mut pending = self.pending.iter();
        pending.any(|step| matches!(step, Step::Record { .. }))
    }

    /// The watch of the object shows its spec, its finalizer, and at first its status.
    fn see_spec(&mut self, outside: &Outside) {
        if self.operations == 0 {
            self.operations = outside.operations;
        }
        self.generation = outside.generation;
        let (operations, last_proof) = (self.operations, self.last_proof);
        let known = || {
            let known = Known {
                recorded: outside.applied.clone(),
                last_proof,
                ..Known::default()
            };
            (known, ConsulAccess::Granted { operations })
        };
        let spec = Spec {
            settings: (*outside.settings).clone(),
            generation: i64::try_from(outside.generation).ok(),
            keyed: false,
        };
        self.tell(outside, |engine, semaphore, now, view| {
            engine.put(semaphore, spec, outside.finalizer, known, now, view);
        });
        if self.timeless
            && let Some(queue) = self.engine.queue_mut(&self.reference)
        {
            queue.held.proofs.believe_at_once();
        }
    }

    /// The workloads that run though no grant started them, as far as it has seen.
    pub(super) fn stops(&self, outside: &Outside) -> impl Iterator<Item = Stop> {
        let asking = self.store.workloads.iter().filter(|workload| {
            let busy = self
                .queue()
                .is_some_and(|queue| queue.writes.is_busy(&workload.uid));
            outside.settings.request(workload).is_some()
                && !busy
                && !self.stopped.contains(&workload.uid)
        });
        asking.filter_map(|workload| Stop::of(workload))
    }

    /// Queues what the engine asks for.
    fn collect(&mut self, outside: &Outside) {
        while let Some(effect) = self.engine.next_effect() {
            let step = match effect {
                Effect::Queue(_, action) => self.step_of(outside, action),
                Effect::Semaphore(_, duty) => match duty {
                    Duty::AddFinalizer => Some(Step::Finalizer { added: true }),
                    Duty::RemoveFinalizer | Duty::LeaveBehind => {
                        Some(Step::Finalizer { added: false })
                    }
                    Duty::ListSessions => Some(Step::ListSessions),
                    Duty::EndSession(session) => Some(Step::Destroy(session)),
                    // The status does that: see `record`. The watch brings a listing in any case.
                    Duty::RecordLimits(_) | Duty::ListPrefix => None,
                },
                Effect::Closed(_) => None,
            };
            self.pending.extend(step);
        }
    }

    fn step_of(&mut self, outside: &Outside, action: Action) -> Option<Step> {
        // The pass that decided on this may have discarded its reading.
        let reading = self
            .queue()
            .and_then(|queue| queue.knowledge.last_reading());
        // A transaction of its own shows that the holders are the same, and not that all their contenders are.
        let read = reading.map_or(outside.now(), |reading| reading.sent.min(self.listed));
        match action {
            Action::Call(id, Call::Transact { transaction, .. }) => {
                let transaction = (*transaction).clone();
                let fits = transaction.operations.len() <= self.operations;
                assert!(fits, "too many operations: {transaction:?}");
                let transaction = match self.flaw {
                    Some(flaw) => flaw.spoil(transaction)?,
                    None => transaction,
                };
                Some(Step::Transact { id, transaction })
            }
            Action::Call(
                id,
                Call::Write {
                    write, not_after, ..
                },
            ) => {
                let spoiled =
                    self.flaw == Some(Flaw::SuspendsNobody) && matches!(write, Write::Suspend(_));
                (!spoiled).then(|| Step::Patch {
                    id: Some(id),
                    patch: write.into(),
                    read,
                    not_after,
                })
            }
            Action::Call(id, Call::CreateSession { name, .. }) => {
                Some(Step::MakeSession { id, name })
            }
            Action::Call(id, call) => Some(Step::Ask { id, call }),
            Action::Adopt(session) => {
                self.store.kept.insert(session);
                None
            }
            Action::Forget(session) => {
                self.store.forget(&session);
                None
            }
            Action::Destroy(session) => {
                self.store.forget(&session);
                Some(Step::Destroy(session))
            }
            Action::Report(Outcome::Released { release, .. }) => {
                outside.observer.check_released(&release.session);
                None
            }
            Action::Report(_) => None,
        }
    }

    /// The answer to a call that can be answered without a change outside.
    fn answer_to(&self, outside: &Outside, call: &Call) -> Answer {
        let session = |id: &SessionId| {
            let identity = outside.consul.identity(id)?;
            Some(session(outside, id, identity))
        };
        let reached = |answer| {
            if outside.is_away() {
                Err(no_answer())
            } else {
                Ok(answer)
            }
        };
        match call {
            Call::Read { .. } => {
                let listing = outside.consul.list(&outside.settings.prefix, outside.now());
                Answer::Listing(reached(()).map(|()| listing))
            }
            Call::Resolve { sessions, .. } => {
                let found = sessions.iter().filter_map(session).collect();
                Answer::Resolved(reached(()).map(|()| found))
            }
            Call::Describe(id) => Answer::Described(reached(()).map(|()| session(id))),
            Call::Prove(identity) => {
                let workload = outside.workloads.read(&identity.uid, outside.now());
                let has_pods = outside.workloads.has_pods(&identity.uid);
                let pods = has_pods && self.flaw != Some(Flaw::ReleasesEarly);
                let left = pods.then(|| "a pod".to_owned());
                Answer::Proof(Ok((workload.map(Arc::new), left.into_iter().collect())))
            }
            Call::AskAccess => Answer::Access(Some(true)),
            // These change something.
            Call::Transact { .. } | Call::Write { .. } | Call::CreateSession { .. } => {
                Answer::Access(None)
            }
        }
    }

    /// A question without an answer.
    fn no_answer(call: &Call) -> Answer {
        match call {
            Call::Read { .. } => Answer::Listing(Err(no_answer())),
            Call::Resolve { .. } => Answer::Resolved(Err(no_answer())),
            Call::Describe(_) => Answer::Described(Err(no_answer())),
            Call::Prove(_) => Answer::Proof(Err("it is away".into())),
            _ => Answer::Access(None),
        }
    }

    /// Asks a question.
    fn ask(&mut self, outside: &Outside, id: CallId, call: &Call, lost: Option<Lost>) {
        let silent = match call {
            Call::Prove(_) => outside.pods_hidden,
            Call::AskAccess => false,
            _ => outside.reach == Reach::Silent,
        };
        let answer = if lost.is_some() || silent {
            Self::no_answer(call)
        } else {
            self.answer_to(outside, call)
        };
        let end = End {
            id,
            answer,
            about: About::question(call),
        };
        self.end(outside, end, silent || lost.is_some_and(|lost| lost.hangs));
    }
}

impl From<Write> for Patch {
    fn from(write: Write) -> Self {
        match write {
            Write::Start(start) => Self::Start(start),
            Write::Suspend(suspend) => Self::Suspend(suspend),
            Write::GiveBack(give_back) => Self::GiveBack(give_back),
            Write::Rename(rename) => Self::Rename(rename),
            Write::RecordWait(record) => Self::RecordWait(record),
            Write::Skip(skip) => Self::Skip(skip),
            Write::Fail(fail) => Self::Fail(fail),
            Write::End(end) => Self::End(end),
        }
    }
}
