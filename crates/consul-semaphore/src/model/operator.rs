//! The engine in a small world: what a caller does around it, one thing after another.
//!
//! It decides nothing. It shows the engine what a watch would, carries out what the engine asks for, and loses
//! answers, doubles them or delays them as the script says.

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
    jobs::Object,
    outside::{Outside, Reach},
    requests::{self, Patch},
};
use crate::{
    Defence, Job, Plan, Turns, Uid,
    engine::{Action, Answer, Call, CallId, Event, News, Now, Queue, Write, Written},
    limit,
    plan::Stop,
};
use consul_client::{self as consul, Behavior, OpError, Session, SessionId, clock::Moment};

/// How many answers and listings may come once more.
const ECHOES: usize = 4;

/// How many passes it may take until nothing more can be answered at once.
const PROMPT: usize = 20;

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
    /// How many operations it knows Consul to take.
    operations: usize,
    /// What is still to be carried out, in order.
    pending: VecDeque<Step>,
    /// The calls of which nothing is heard.
    hung: Vec<End>,
    /// Jobs that were stopped and have not been seen since.
    stopped: BTreeSet<Uid>,
    /// The last answers, and what the watch brought last: each may come once more.
    answered: VecDeque<(CallId, Answer)>,
    brought: VecDeque<News>,
    /// Whether another replica has taken over.
    pub(super) deposed: bool,
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
    /// A process that has just begun.
    pub(super) fn new(flaw: Option<Flaw>) -> Self {
        Self {
            flaw,
            ..Self::default()
        }
    }

    /// In a world in which only the order of things counts.
    pub(super) fn timeless(flaw: Option<Flaw>) -> Self {
        Self {
            timeless: true,
            ..Self::new(flaw)
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
            let view = View {
                store: &self.store,
                outside,
                flaw: self.flaw,
            };
            queue.handle(event, now(outside), &view);
            self.collect(outside);
        }
    }

    /// All Jobs are listed.
    pub(super) fn see_jobs(&mut self, outside: &Outside) {
        let now = outside.now();
        let asked = (self.flaw != Some(Flaw::BelievesNoSmallerVersion)).then_some(now);
        let seen = |object: &Object| {
            let mut job = outside.jobs.read(&object.uid, now)?;
            let mut known = self.store.jobs.iter();
            match known.find(|known| known.uid == job.uid) {
                Some(known) if !known.gives_way_to(&job, asked) => return Some(known.clone()),
                Some(known) if known.version == job.version => job.seen = known.seen,
                _ => {}
            }
            Some(Arc::new(job))
        };
        self.store.jobs = outside.jobs.objects().filter_map(seen).collect();
        self.stopped.clear();
    }

    /// The watch brings the prefix.
    pub(super) fn see_consul(&mut self, outside: &Outside) {
        let listing = outside.consul.list(&outside.settings.prefix, outside.now());
        let news = if outside.is_away() {
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
        let (Some(ttl), false) = (outside.settings.ttl, outside.is_away()) else {
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
                self.ask(outside, id, &call, None);
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
        if self.waits_for_proof() {
            return Plan::default();
        }
        let Some(queue) = &mut self.queue else {
            return Plan::default();
        };
        if self.flaw == Some(Flaw::StandsBackForEver) {
            queue.knowledge.memory.turns = Turns::new(outside.settings.fair);
        }
        let view = View {
            store: &self.store,
            outside,
            flaw: self.flaw,
        };
        let conclusion = queue.pass(now(outside), &view);
        let plan = queue.plan.clone();
        let forgets = conclusion.record.is_none() && self.flaw != Some(Flaw::ClaimsOldLimits);
        let settled = conclusion.settled.filter(|_| forgets);
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
            self.operations = outside.operations;
            self.handle(outside, Event::Reach(Some(self.operations)));
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
                    let fits = transaction.operations.len() <= self.operations;
                    assert!(fits, "too many operations: {transaction:?}");
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

    /// What it is told of something that can be answered without anything changing outside.
    fn answer(&self, outside: &Outside, call: &Call) -> Answer {
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
            if outside.is_away() {
                Err(unheard())
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
                let job = outside.jobs.read(&identity.uid, outside.now());
                let pods = outside.jobs.has_pods(&identity.uid);
                let pods = pods && self.flaw != Some(Flaw::ReleasesEarly);
                let left = pods.then(|| "a pod".to_owned());
                Answer::Proof(Ok((job.map(Arc::new), left.into_iter().collect())))
            }
            Call::AskAccess => Answer::Access(Some(true)),
            // These are no questions.
            Call::Transact { .. } | Call::Write { .. } | Call::CreateSession { .. } => {
                Answer::Access(None)
            }
        }
    }

    /// A question of which nothing is heard.
    fn no_answer(call: &Call) -> Answer {
        match call {
            Call::Read { .. } => Answer::Listing(Err(unheard())),
            Call::Resolve { .. } => Answer::Resolved(Err(unheard())),
            Call::Describe(_) => Answer::Described(Err(unheard())),
            Call::Prove(_) => Answer::Proof(Err("it is away".into())),
            _ => Answer::Access(None),
        }
    }

    /// Puts a question.
    fn ask(&mut self, outside: &Outside, id: CallId, call: &Call, lost: Option<Lost>) {
        let silent = match call {
            Call::Prove(_) => outside.pods_hidden,
            Call::AskAccess => false,
            _ => outside.reach == Reach::Silent,
        };
        let answer = if lost.is_some() || silent {
            Self::no_answer(call)
        } else {
            self.answer(outside, call)
        };
        let end = End {
            id,
            answer,
            about: About::question(call),
        };
        self.end(outside, end, silent || lost.is_some_and(|lost| lost.hangs));
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
        let away = outside.is_away() && !matches!(step, Step::Record { .. } | Step::Patch { .. });
        let hangs = lost.is_some_and(|lost| lost.hangs) || outside.reach == Reach::Silent && away;
        let done = lost.is_none_or(|lost| lost.done) && !away;
        let unheard_of = lost.is_some() || away;
        match step {
            Step::Record { was, limits } => {
                let unchanged = outside.applied == was;
                if unchanged {
                    outside.record(limits);
                }
                self.handle(outside, Event::Recorded(outside.applied.clone()));
                unchanged
            }
            Step::Transact { id, transaction } => {
                let sent = outside.now();
                let answer = done.then(|| outside.transact(&transaction, self.generation));
                let went_through = matches!(answer, Some(Ok(_))) && !unheard_of;
                let result = match answer {
                    Some(Ok(entries)) if !unheard_of => Ok(entries),
                    Some(Err(refused)) if !unheard_of => {
                        self.learn_capacity(outside, refused);
                        Err(refusal(refused))
                    }
                    _ => Err(unheard()),
                };
                let end = End {
                    id,
                    answer: Answer::Transacted { sent, result },
                    about: About::All,
                };
                self.end(outside, end, hangs);
                if unheard_of && transaction.limit.is_some() {
                    outside.observer.forget_enforcements();
                }
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
                let written = match answer {
                    _ if late => Written::NotSent,
                    Some(answer) if !unheard_of => self.written(outside, &patch, answer),
                    _ => Written::Unanswered("it is away".into()),
                };
                let outdated = matches!(written, Written::Outdated(_));
                if let Some(id) = id {
                    let end = End {
                        id,
                        answer: Answer::Written(written),
                        about: About::Write(patch.target().uid.clone()),
                    };
                    self.end(outside, end, hangs);
                }
                if outdated && self.flaw == Some(Flaw::NeverPauses) {
                    let queue = self.queue.as_mut();
                    drop(queue.map(|queue| std::mem::take(&mut queue.writes.refusals)));
                }
                answer == Some(requests::Answer::Done) && !unheard_of
            }
            Step::MakeSession { id, name } => {
                let made = done.then(|| outside.consul.make_session(&name));
                if let Some(session) = made.as_ref().filter(|_| outside.timed) {
                    outside.renewed.insert(session.clone(), outside.now());
                    let renewed = Some(outside.now());
                    self.store.renewals.insert(session.clone(), renewed);
                }
                let made = made.filter(|_| !unheard_of).ok_or_else(unheard);
                let end = End {
                    id,
                    answer: Answer::SessionMade(made),
                    about: About::All,
                };
                self.end(outside, end, hangs);
                !unheard_of
            }
            Step::Destroy(session) => {
                if !away {
                    outside.destroy(&session);
                }
                !away
            }
            Step::Ask { id, call } => {
                self.ask(outside, id, &call, lost);
                lost.is_none()
            }
        }
    }

    /// What the answer to a PATCH means. After a conflict the Job is read again.
    fn written(&self, outside: &Outside, patch: &Patch, answer: requests::Answer) -> Written {
        let now = outside.jobs.read(&patch.target().uid, outside.now());
        let same = |now: &Job| patch.target().is_still(now) && self.flaw != Some(Flaw::NeverPauses);
        match answer {
            requests::Answer::Done => Written::Done,
            requests::Answer::Conflict if !now.as_ref().is_some_and(same) => {
                Written::Outdated(now.map(Arc::new))
            }
            requests::Answer::Conflict | requests::Answer::Refused => Written::Refused {
                message: "no".into(),
                forbidden: false,
            },
        }
    }

    /// Consul takes fewer operations at once than was known.
    fn learn_capacity(&mut self, outside: &Outside, refused: Refused) {
        if refused == Refused::TooLarge {
            self.operations = outside.operations;
            self.handle(outside, Event::Capacity(self.operations));
        }
    }
}

/// What Consul says of a transaction that it refuses.
fn refusal(refused: Refused) -> consul::Error {
    let what = match refused {
        Refused::Condition => "index is stale",
        Refused::Rests => "can't be locked due to lock delay",
        Refused::TooLarge => return consul::Error::TooLarge("too many operations".into()),
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
