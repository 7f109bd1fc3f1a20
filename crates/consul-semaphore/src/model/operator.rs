//! The engine in a small world: what a caller does around it, one thing after another.
//!
//! It decides nothing. It shows the engine what a watch would, carries out what the engine asks for, and loses
//! answers, doubles them or delays them as the script says.

mod step;
mod trace;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

pub(super) use self::step::Step;
use super::{
    consul::Refused,
    flaws::Flaw,
    outside::Outside,
    requests::{self, Patch},
};
use crate::{
    Defence, Job, Life, Plan, Turns, Uid,
    engine::{
        Action, Answer, Call, CallId, Event, Lookup, News, Now, Queue, Slice, Write, Written,
    },
    limit,
    plan::Stop,
};
use consul_client::{self as consul, Behavior, OpError, Session, SessionId, clock::Moment};

/// How many answers and listings may come once more.
const ECHOES: usize = 4;

/// How many passes it may take until nothing more can be answered at once.
const PROMPT: usize = 20;

/// The answer to a call is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    /// Whether the call was carried out.
    pub(super) done: bool,
}

/// One process: all of this is gone when it crashes.
#[derive(Clone, Debug, Default)]
pub(super) struct Operator {
    /// What is wrong with its algorithm.
    flaw: Option<Flaw>,
    /// Whether there is no time between what happens, so that nothing has to be waited for but what is told.
    timeless: bool,
    /// Made by the first pass.
    queue: Option<Queue>,
    store: Store,
    /// The generation that the engine knows of.
    generation: u64,
    /// What is still to be carried out, in order.
    pending: VecDeque<Step>,
    /// Jobs that were stopped and have not been seen since.
    stopped: BTreeSet<Uid>,
    /// The last answers, and what the watch brought last: each may come once more.
    answered: VecDeque<(CallId, Answer)>,
    brought: VecDeque<News>,
    /// Whether another replica has taken over.
    pub(super) deposed: bool,
}

/// What a process keeps for the engine.
#[derive(Clone, Debug, Default)]
struct Store {
    jobs: Vec<Arc<Job>>,
    /// When the last good renewal of each session was sent; `None` if Consul said that it is gone.
    renewals: BTreeMap<SessionId, Option<Moment>>,
}

/// The same as the engine looks it up.
struct View<'a> {
    store: &'a Store,
    outside: &'a Outside,
}

impl Lookup for View<'_> {
    fn slice(&self, head: usize) -> Slice {
        let settings = &self.outside.settings;
        let lock_key = settings.prefix.lock_key();
        let asks = |job: &Job| job.wants.as_deref() == Some(settings.name.as_str());
        let jobs = || self.store.jobs.iter().cloned();
        let mut waiting: Vec<_> = jobs().filter(|job| job.in_line() && asks(job)).collect();
        waiting.sort_by_key(|job| job.place());
        let mut position = 0..;
        waiting.retain(|job| position.next() < Some(head) || job.is_impatient());
        Slice {
            bound: jobs().filter(|job| job.started_at(&lock_key)).collect(),
            waiting,
        }
    }

    fn workload(&self, uid: &Uid) -> Option<Arc<Job>> {
        let mut jobs = self.store.jobs.iter();
        jobs.find(|job| job.uid == *uid).cloned()
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Job>>> {
        uids.iter().map(|uid| self.workload(uid)).collect()
    }

    /// Pods may have ended at any time.
    fn touched(&self) -> BTreeSet<Uid> {
        let contenders = self.outside.sight().contenders;
        contenders.into_values().flatten().collect()
    }

    fn life(&self, session: &SessionId) -> Option<Life> {
        let outside = self.outside;
        let alive = outside.consul.is_alive(session);
        let Some(ttl) = outside.settings.ttl.filter(|_| outside.timed) else {
            return Some(if alive || outside.away {
                Life::Endless
            } else {
                Life::Gone
            });
        };
        Some(match self.store.renewals.get(session) {
            Some(Some(sent)) => Life::Renewed { sent: *sent, ttl },
            Some(None) => Life::Gone,
            None => Life::Unknown,
        })
    }
}

/// The present.
fn now(outside: &Outside) -> Now {
    Now {
        moment: outside.now(),
        time: jiff::Timestamp::from_second(outside.jobs.clock).unwrap_or_default(),
        jitter: 0.0,
    }
}

/// Nothing was heard of a call.
fn unheard() -> consul::Error {
    consul::Error::Unreachable {
        message: "it is away".into(),
        undecided: true,
    }
}

impl Operator {
    /// In a world in which only the order of things counts.
    pub(super) fn timeless(flaw: Option<Flaw>) -> Self {
        Self {
            flaw,
            timeless: true,
            ..Self::default()
        }
    }

    pub(super) fn flaw(&self) -> Option<Flaw> {
        self.flaw
    }

    /// What it does next.
    pub(super) fn next_step(&self) -> Option<&Step> {
        self.pending.front()
    }

    /// Whether it has a session made ahead for this Job.
    pub(super) fn has_session(&self, uid: &Uid) -> bool {
        let queue = self.queue.as_ref();
        queue.is_some_and(|queue| queue.sessions.ahead.contains_key(uid))
    }

    /// Whether something is still to be carried out.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// When it passes if nothing happens before.
    pub(super) fn next_timeout(&self) -> Moment {
        self.queue
            .as_ref()
            .map_or(Moment::default(), Queue::next_timeout)
    }

    /// Whether nothing that has failed is waited for, so that a plan says all that is to be done.
    pub(super) fn is_undisturbed(&self, outside: &Outside) -> bool {
        self.queue.as_ref().is_some_and(|queue| {
            let refusals = queue.writes.refusals.due();
            let mut paused = refusals.chain(queue.held.proofs.due());
            queue.reading().is_some()
                && queue.trouble().is_none()
                && !queue.is_blocked()
                && paused.all(|due| due <= outside.now())
        })
    }

    /// Something happens that the engine is shown.
    fn handle(&mut self, outside: &Outside, event: Event) {
        if let (Event::Answered(id, answer), false) = (&event, self.timeless) {
            self.answered.push_front((*id, answer.clone()));
            self.answered.truncate(ECHOES);
        }
        if let Some(queue) = &mut self.queue {
            let store = &self.store;
            queue.handle(event, now(outside), &View { store, outside });
            self.collect(outside);
        }
    }

    /// The watch brings the Jobs.
    pub(super) fn see_jobs(&mut self, outside: &Outside) {
        let seen = |uid: &Uid, version: &str| {
            let mut known = self.store.jobs.iter();
            let known = known.find(|job| job.uid == *uid && *job.version == *version);
            known.map_or(outside.now(), |job| job.seen)
        };
        let jobs = outside.jobs.objects().filter_map(|object| {
            let mut job = outside.jobs.read(&object.uid, outside.now())?;
            job.seen = seen(&job.uid, &job.version);
            Some(job)
        });
        self.store.jobs = jobs.map(Arc::new).collect();
        self.stopped.clear();
    }

    /// The watch brings the prefix.
    pub(super) fn see_consul(&mut self, outside: &Outside) {
        let listing = outside.consul.list(&outside.settings.prefix, outside.now());
        let news = if outside.away {
            Err(unheard())
        } else {
            Ok(News::from(listing))
        };
        if let (Ok(news), false) = (&news, self.timeless) {
            self.brought.push_front(news.clone());
            self.brought.truncate(ECHOES);
        }
        self.handle(outside, Event::Listed(news));
    }

    /// Something that came before comes once more, or late: an answer, or a listing that the watch brought.
    pub(super) fn echo(&mut self, outside: &Outside, choice: usize) {
        let answer = self.answered.get(choice / 2).cloned();
        let listing = self.brought.get(choice / 2).cloned();
        match (choice % 2, answer, listing) {
            (0, Some((id, answer)), _) => self.handle(outside, Event::Answered(id, answer)),
            (1, _, Some(news)) => self.handle(outside, Event::Listed(Ok(news))),
            _ => {}
        }
    }

    /// The watch fails.
    pub(super) fn lose_the_watch(&mut self, outside: &Outside) {
        self.handle(outside, Event::Listed(Err(unheard())));
    }

    /// The sessions that are due are renewed.
    pub(super) fn renew(&mut self, outside: &mut Outside) {
        let (Some(ttl), false) = (outside.settings.ttl, outside.away) else {
            return;
        };
        let now = outside.now();
        let kept = self.queue.iter().flat_map(Queue::sessions);
        for session in kept {
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

    /// Decides, by what it has seen so far. What can be answered without anything changing outside is.
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
                self.answer(outside, id, &call);
            }
            // While a write is under way, what there is to do is not known.
            if !asked || self.queue.as_ref().is_some_and(Queue::is_blocked) {
                break;
            }
        }
        plan
    }

    /// Decides while calls are under way: nothing is answered meanwhile.
    pub(super) fn decide_at_once(&mut self, outside: &Outside) {
        self.see_spec(outside);
        self.pass(outside);
    }

    /// One pass.
    fn pass(&mut self, outside: &Outside) -> Plan {
        let Some(queue) = &mut self.queue else {
            return Plan::default();
        };
        if self.flaw == Some(Flaw::StandsBackForEver) {
            queue.knowledge.memory.turns = Turns::new(outside.settings.fair);
        }
        let store = &self.store;
        let conclusion = queue.pass(now(outside), &View { store, outside });
        let plan = queue.plan.clone();
        let settled = conclusion.settled.filter(|_| conclusion.record.is_none());
        self.record(outside, conclusion.record);
        for stop in self.stops(outside).collect::<Vec<_>>() {
            self.stopped.insert(stop.job.uid.clone());
            self.pending.push_back(Step::Patch {
                id: None,
                patch: Patch::Stop(stop),
                read: outside.now(),
                not_after: None,
            });
        }
        self.collect(outside);
        self.record(
            outside,
            settled.map(|limit| limit::settled(&outside.applied, limit)),
        );
        plan
    }

    /// Has limits recorded in the status. One that is not ours any more is so at once; one that is to be ours
    /// is when that is recorded.
    fn record(&mut self, outside: &Outside, limits: Option<Vec<u32>>) {
        if let Some(limits) = limits
            && limits != outside.applied
            && !self.is_recording()
        {
            let was = outside.applied.clone();
            let known = limits.iter().filter(|limit| was.contains(limit));
            self.handle(outside, Event::Recorded(known.copied().collect()));
            self.pending.push_back(Step::Record { was, limits });
        }
    }

    fn is_recording(&self) -> bool {
        let mut pending = self.pending.iter();
        pending.any(|step| matches!(step, Step::Record { .. }))
    }

    /// The engine hears of the spec and of the status.
    fn see_spec(&mut self, outside: &Outside) {
        let settings = outside.settings.as_ref();
        if self.queue.is_none() {
            let recorded = outside.applied.clone();
            let mut queue = Queue::new(settings.clone(), recorded, Defence::default());
            if self.timeless {
                queue.believe_at_once();
            }
            self.queue = Some(queue);
            self.handle(outside, Event::Reach(Some(outside.operations)));
        }
        let changed = self.generation != outside.generation;
        self.generation = outside.generation;
        let settings = Box::new(settings.clone());
        self.handle(outside, Event::Spec { settings, changed });
        if !self.is_recording() {
            self.handle(outside, Event::Recorded(outside.applied.clone()));
        }
    }

    /// The Jobs that run though no grant started them, as far as it has seen.
    pub(super) fn stops(&self, outside: &Outside) -> impl Iterator<Item = Stop> {
        let asking = self.store.jobs.iter().filter(|job| {
            let busy = self
                .queue
                .as_ref()
                .is_some_and(|queue| queue.is_busy(&job.uid));
            job.wants.as_deref() == Some(outside.settings.name.as_str())
                && !busy
                && !self.stopped.contains(&job.uid)
        });
        asking.filter_map(|job| Stop::of(job))
    }

    /// Lines up what the engine asks for.
    fn collect(&mut self, outside: &Outside) {
        let Some(queue) = &mut self.queue else {
            return;
        };
        while let Some(action) = queue.next_action() {
            let read = queue
                .reading()
                .map_or(outside.now(), |reading| reading.sent);
            let step = match action {
                Action::Call(id, Call::Transact { transaction, .. }) => {
                    let transaction = (*transaction).clone();
                    match self.flaw {
                        Some(flaw) => flaw.spoil(transaction),
                        None => Some(transaction),
                    }
                    .map(|transaction| Step::Transact { id, transaction })
                }
                Action::Call(
                    id,
                    Call::Write {
                        write, not_after, ..
                    },
                ) => {
                    let spoiled = self.flaw == Some(Flaw::SuspendsNobody)
                        && matches!(write, Write::Suspend(_));
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
                Action::Destroy(session) => Some(Step::Destroy(session)),
                Action::Adopt(_) | Action::Forget(_) | Action::Report(_) => None,
            };
            self.pending.extend(step);
        }
    }

    /// Answers what can be answered without anything changing outside.
    fn answer(&mut self, outside: &Outside, id: CallId, call: &Call) {
        let session = |id: &SessionId| {
            let identity = outside.consul.identity(id)?;
            Some(Session {
                id: id.clone(),
                name: identity.session_name(),
                node: "k8s".into(),
                ttl: None,
                lock_delay: Duration::ZERO,
                behavior: Behavior::Delete,
                create_index: 1,
            })
        };
        let reached = |answer| {
            if outside.away {
                Err(unheard())
            } else {
                Ok(answer)
            }
        };
        let answer = match call {
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
                let job = outside.jobs.read(&identity.uid, outside.now());
                let pods = outside.jobs.has_pods(&identity.uid);
                let pods = pods && self.flaw != Some(Flaw::ReleasesEarly);
                let left = pods.then(|| "a pod".to_owned());
                Answer::Proof(Ok((job.map(Arc::new), left.into_iter().collect())))
            }
            Call::AskAccess => Answer::Access(Some(true)),
            Call::Transact { .. } | Call::Write { .. } | Call::CreateSession { .. } => return,
        };
        self.handle(outside, Event::Answered(id, answer));
    }

    /// A question has no answer.
    fn lose(&mut self, outside: &Outside, id: CallId, call: &Call) {
        let answer = match call {
            Call::Read { .. } => Answer::Listing(Err(unheard())),
            Call::Resolve { .. } => Answer::Resolved(Err(unheard())),
            Call::Describe(_) => Answer::Described(Err(unheard())),
            Call::Prove(_) => Answer::Proof(Err("it is away".into())),
            _ => Answer::Access(None),
        };
        self.handle(outside, Event::Answered(id, answer));
    }

    /// Does the next thing, and says whether it was done as planned.
    pub(super) fn act(&mut self, outside: &mut Outside, lost: Option<Lost>) -> bool {
        self.act_on(0, outside, lost)
    }

    /// Does one of the things that are to be done, whichever was to be first.
    pub(super) fn act_on(
        &mut self,
        position: usize,
        outside: &mut Outside,
        lost: Option<Lost>,
    ) -> bool {
        let position = position % self.pending.len().max(1);
        let Some(step) = self.pending.remove(position) else {
            return true;
        };
        let away = outside.away && !matches!(step, Step::Record { .. } | Step::Patch { .. });
        let done = lost.is_none_or(|lost| lost.done) && !away;
        let lost = lost.is_some() || away;
        match step {
            Step::Record { was, limits } => {
                let unchanged = outside.applied == was;
                if unchanged {
                    outside.applied = limits;
                }
                self.handle(outside, Event::Recorded(outside.applied.clone()));
                unchanged
            }
            Step::Transact { id, transaction } => {
                let sent = outside.now();
                let answer = done.then(|| outside.transact(&transaction, self.generation));
                let went_through = matches!(answer, Some(Ok(_))) && !lost;
                let result = match answer {
                    Some(Ok(entries)) if !lost => Ok(entries),
                    Some(Err(refused)) if !lost => Err(refusal(&refused)),
                    _ => Err(unheard()),
                };
                let answer = Answer::Transacted { sent, result };
                self.handle(outside, Event::Answered(id, answer));
                if !done {
                    outside.late.push((transaction, self.generation));
                }
                went_through
            }
            Step::Patch {
                id,
                patch,
                read,
                not_after,
            } => {
                let late = not_after.is_some_and(|not_after| not_after <= outside.now());
                let sent = done && !late;
                let answer = sent.then(|| outside.patch(&patch, read, self.deposed));
                let seen = outside.jobs.read(&patch.target().uid, outside.now());
                let written = match answer {
                    _ if late => Written::NotSent,
                    _ if lost => Written::Unanswered("it is away".into()),
                    Some(requests::Answer::Done) => Written::Done,
                    Some(requests::Answer::Conflict) => Written::Outdated(seen.map(Arc::new)),
                    Some(requests::Answer::Refused) | None => Written::Refused {
                        message: "no".into(),
                        forbidden: false,
                    },
                };
                if let Some(id) = id {
                    self.handle(outside, Event::Answered(id, Answer::Written(written)));
                }
                answer == Some(requests::Answer::Done) && !lost
            }
            Step::MakeSession { id, name } => {
                let made = done.then(|| outside.consul.make_session(&name));
                if let Some(session) = made.as_ref().filter(|_| outside.timed) {
                    outside.renewed.insert(session.clone(), outside.now());
                    let renewed = Some(outside.now());
                    self.store.renewals.insert(session.clone(), renewed);
                }
                let made = made.filter(|_| !lost).ok_or_else(unheard);
                self.handle(outside, Event::Answered(id, Answer::SessionMade(made)));
                !lost
            }
            Step::Destroy(session) => {
                if !away {
                    outside.destroy(&session);
                }
                !away
            }
            Step::Ask { id, call } if lost => {
                self.lose(outside, id, &call);
                false
            }
            Step::Ask { id, call } => {
                self.answer(outside, id, &call);
                true
            }
        }
    }
}

/// What Consul says of a transaction that it refuses.
fn refusal(refused: &Refused) -> consul::Error {
    let what = if refused.rests {
        "can't be locked due to lock delay"
    } else {
        "index is stale"
    };
    consul::Error::Conflict(vec![OpError {
        operation: 0,
        what: what.into(),
    }])
}

impl From<Write> for Patch {
    fn from(write: Write) -> Self {
        match write {
            Write::Start(start) => Self::Start(start),
            Write::Suspend(suspend) => Self::Suspend(suspend),
            Write::GiveBack(give_back) => Self::GiveBack(give_back),
            Write::Rename(rename) => Self::Rename(rename),
            Write::Skip(skip) => Self::Skip(skip),
        }
    }
}
