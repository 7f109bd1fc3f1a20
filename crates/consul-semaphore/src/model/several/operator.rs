//! The engine with several semaphores, with a minimal caller around it: see the [operator](super::super::operator) of
//! one semaphore.

mod view;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use self::view::{Store, View};
use super::{
    super::{
        consul::Refused,
        operator::Lost,
        requests::{self, Patch},
    },
    flaws::Flaw,
    outside::{Delivery, Outside, Written},
};
use crate::{
    Identity, Phase, Uid, Workload,
    engine::{
        Action, Answer, Call, CallId, ConsulAccess, Duty, Effect, Engine, Known, Now, Queue,
        QueueRef, QueueState, SemaphoreRef, Spec, Write, Written as PatchAnswer,
    },
    plan::{Fail, Failed, Stance, Transaction},
};
use consul_client::{
    self as consul, Behavior, Listing, Op, OpError, Session, SessionId, clock::Moment,
};

/// How many answers may arrive once more.
const ECHOES: usize = 4;

/// How many steps and passes an operator may take while nothing else happens.
pub(super) const PROMPT: usize = 400;

/// Something that is still to be carried out.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// The status is written, with the limits that are ours at that moment.
    Record(usize),
    ListSessions(usize),
    Transact {
        id: CallId,
        written: Written,
        /// When the engine gives up waiting for the answer.
        until: Option<Moment>,
    },
    Patch {
        id: CallId,
        patch: Patch,
        read: Moment,
        not_after: Option<Moment>,
    },
    MakeSession {
        id: CallId,
        name: String,
    },
    Destroy(SessionId),
    /// A question, which changes nothing.
    Ask {
        id: CallId,
        place: usize,
        call: Call,
    },
}

impl Step {
    /// Whether the step asks for pods, as an operator does again and again while there are any.
    pub(super) fn asks_for_pods(&self) -> bool {
        matches!(
            self,
            Self::Ask {
                call: Call::Prove(_),
                ..
            }
        )
    }

    /// Whether the step changes who holds a slot, or a workload. A contender that keeps slots says so again and again.
    pub(super) fn moves(&self) -> bool {
        match self {
            Self::Transact { written, .. } => {
                let mut operations = written.operations.iter();
                operations.any(|operation| matches!(operation, Op::Cas { .. }))
            }
            other => other.counts(),
        }
    }

    /// Whether the step changes what workloads or holders are seen to do.
    pub(super) fn counts(&self) -> bool {
        matches!(self, Self::Transact { .. } | Self::Patch { .. })
    }
}

/// One process: a crash loses all of this.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    pub(super) flaw: Option<Flaw>,
    /// Whether only the order of events counts, so that every pass looks at everything.
    timeless: bool,
    engine: Engine,
    store: Store,
    pub(super) pending: Vec<Step>,
    /// The answers of calls that hang: nobody gets them.
    hung: Vec<(CallId, Answer)>,
    lives: BTreeSet<(SessionId, bool)>,
    answered: VecDeque<(CallId, Answer)>,
    /// The workloads that it must have admitted, as the [judge](Self::note_admitted) of its decisions finds.
    admitted: BTreeSet<Uid>,
    /// Which status of each semaphore it has read.
    recorded: Vec<u64>,
    /// What the watch of each semaphore last returned, for a flaw.
    listed: Vec<Option<Listing>>,
    /// The index of that.
    watched: Vec<u64>,
}

fn now(outside: &Outside) -> Now {
    Now {
        moment: outside.now(),
        time: jiff::Timestamp::from_second(outside.workloads.clock).unwrap_or_default(),
        jitter: 0.0,
    }
}

pub(super) fn semaphore(outside: &Outside, place: usize) -> SemaphoreRef {
    SemaphoreRef {
        namespace: "n".into(),
        name: outside.places[place].settings.name.as_str().into(),
    }
}

fn queue(outside: &Outside, place: usize) -> QueueRef {
    QueueRef::new(&semaphore(outside, place), None)
}

fn no_answer() -> consul::Error {
    consul::Error::Unreachable {
        message: "it is away".into(),
        undecided: true,
    }
}

fn session(id: &SessionId, identity: &Identity) -> Session {
    Session {
        id: id.clone(),
        name: identity.session_name(),
        node: "k8s".into(),
        ttl: None,
        lock_delay: Duration::ZERO,
        behavior: Behavior::Delete,
        create_index: 1,
    }
}

impl Operator {
    /// A new process, which has seen the workloads.
    pub(super) fn new(flaw: Option<Flaw>, timeless: bool, outside: &Outside) -> Self {
        let mut operator = Self {
            flaw,
            timeless,
            engine: Engine::default(),
            store: Store::default(),
            pending: Vec::new(),
            hung: Vec::new(),
            lives: BTreeSet::new(),
            answered: VecDeque::new(),
            recorded: vec![0; outside.places.len()],
            admitted: BTreeSet::new(),
            listed: vec![None; outside.places.len()],
            watched: vec![0; outside.places.len()],
        };
        if let Some(distort) = flaw.and_then(Flaw::stance) {
            operator.engine.distort_stances(distort);
        }
        operator.see_workloads(outside);
        // What it finds counts as admitted.
        let found = operator.store.unadmitted.take();
        if !timeless {
            operator.admitted = found;
        }
        operator
    }

    fn tell(&mut self, outside: &Outside, tell: impl FnOnce(&mut Engine, Now, &View<'_>)) {
        let store = self.store.clone();
        let view = View {
            store: &store,
            outside,
            flaw: self.flaw,
        };
        tell(&mut self.engine, now(outside), &view);
        self.store.unadmitted = store.unadmitted;
        self.collect(outside);
    }

    fn answer(&mut self, outside: &Outside, id: CallId, answer: Answer) {
        if let Answer::SessionMade(Ok(session)) = &answer {
            self.store.kept.insert(session.clone());
        }
        if !self.timeless {
            self.answered.push_front((id, answer.clone()));
            self.answered.truncate(ECHOES);
        }
        self.tell(outside, |engine, now, view| {
            engine.answered(id, answer, now, view);
        });
    }

    /// An earlier answer arrives once more.
    pub(super) fn echo(&mut self, outside: &Outside, choice: usize) {
        if let Some((id, answer)) = self.answered.get(choice).cloned() {
            self.tell(outside, |engine, now, view| {
                engine.answered(id, answer, now, view);
            });
        }
    }

    /// The calls that hang are given up.
    pub(super) fn give_up(&mut self, outside: &Outside) {
        for (id, answer) in std::mem::take(&mut self.hung) {
            self.answer(outside, id, answer);
        }
    }

    /// The watch shows all workloads. The queues that a change concerns are told.
    pub(super) fn see_workloads(&mut self, outside: &Outside) {
        let seen = outside.workloads.objects().filter_map(|object| {
            let mut workload = outside.workloads.read(&object.uid, outside.now())?;
            let known = self.store.workload(&workload.uid);
            if let Some(known) = &known
                && known.version == workload.version
            {
                workload.seen = known.seen;
            }
            workload.note_wait(known.as_deref(), self::now(outside).time);
            Some(Arc::new(workload))
        });
        let seen: Vec<_> = seen.collect();
        let before = std::mem::replace(&mut self.store.workloads, seen);
        let known = |uid: &Uid| before.iter().any(|workload| workload.uid == *uid);
        let all = self.store.workloads.iter().map(|workload| &workload.uid);
        let newcomers = all.filter(|uid| !known(uid)).cloned();
        self.store.unadmitted.borrow_mut().extend(newcomers);
        let same = |one: &[Arc<Workload>], workload: &Workload| {
            one.iter()
                .any(|other| other.uid == workload.uid && other.version == workload.version)
        };
        let after = &self.store.workloads;
        let gone = before.iter().filter(|workload| !same(after, workload));
        let changed = gone.chain(after.iter().filter(|workload| !same(&before, workload)));
        let mut places = BTreeSet::new();
        for workload in changed {
            let asks = outside.asks(workload);
            places.extend((0..asks.len()).filter(|place| asks[*place] > 0));
            let granted = workload.granted.iter().flat_map(|granted| &granted.slots);
            places.extend(granted.filter_map(|slot| outside.place_of(&slot.lock_key)));
        }
        self.touch(outside, places);
    }

    fn touch(&mut self, outside: &Outside, places: impl IntoIterator<Item = usize>) {
        for place in places {
            let queue = queue(outside, place);
            self.tell(outside, |engine, now, view| {
                engine.touched(&queue, now, view);
            });
        }
    }

    /// The watch of a semaphore returns what is in Consul, or fails.
    pub(super) fn see_consul(&mut self, outside: &Outside, place: usize, fails: bool) {
        let place = place % outside.places.len();
        let mut listing = self.list(outside, place);
        if !self.timeless && !fails {
            let seen = std::mem::replace(&mut self.watched[place], listing.index);
            listing.reset = listing.index < seen;
        }
        let listing = if fails { Err(no_answer()) } else { Ok(listing) };
        let semaphore = semaphore(outside, place);
        self.tell(outside, |engine, now, view| {
            engine.listed(&semaphore, listing, now, view);
        });
    }

    /// What is below the prefix of a semaphore.
    fn list(&mut self, outside: &Outside, place: usize) -> Listing {
        let prefix = &outside.places[place].settings.prefix;
        let mut listing = outside.consul.list(prefix, outside.now());
        if self.flaw == Some(Flaw::StartsInAPart) {
            let mut entries: Vec<_> = listing
                .entries
                .iter()
                .map(|entry| (**entry).clone())
                .collect();
            entries.iter_mut().for_each(Flaw::forget_request);
            listing.entries = entries.into();
        }
        if self.flaw != Some(Flaw::JudgesOnAStaleReading) || place == 0 {
            return listing;
        }
        let before = self.listed[place].replace(listing.clone());
        before.map_or(listing, |before| Listing {
            sent: outside.now(),
            ..before
        })
    }

    /// The object of each semaphore, as its watch shows it.
    fn see_specs(&mut self, outside: &Outside) {
        for (place, of) in outside.places.iter().enumerate() {
            let mut settings = (*of.settings).clone();
            if self.flaw == Some(Flaw::PassesOverForEver) {
                settings.pass_over = Duration::from_hours(10_000);
            }
            let spec = Spec {
                settings,
                generation: Some(of.generation),
                keyed: false,
            };
            let operations = outside.operations;
            let known = || {
                let known = Known {
                    recorded: of.applied.clone(),
                    ..Known::default()
                };
                (known, ConsulAccess::Granted { operations })
            };
            let semaphore = semaphore(outside, place);
            self.tell(outside, |engine, now, view| {
                engine.put(&semaphore, spec, true, known, now, view);
            });
            if self.timeless
                && let Some(queue) = self.engine.queue_mut(&queue(outside, place))
            {
                queue.held.proofs.believe_at_once();
            }
        }
    }

    /// Another operator may have recorded limits as ours.
    fn see_recorded(&mut self, outside: &Outside) {
        for (place, of) in outside.places.iter().enumerate() {
            let before = std::mem::replace(&mut self.recorded[place], of.recorded);
            if before != of.recorded {
                let semaphore = semaphore(outside, place);
                self.tell(outside, |engine, now, view| {
                    engine.found_limits(&semaphore, &of.applied, now, view);
                });
            }
        }
    }

    /// Decides on what it has seen so far.
    pub(super) fn decide(&mut self, outside: &Outside) {
        self.see_specs(outside);
        self.see_recorded(outside);
        let lives = self.lives(outside);
        if !lives.is_subset(&self.lives) || self.timeless {
            self.touch(outside, 0..outside.places.len());
        }
        self.lives = lives;
        self.tell(
            outside,
            |engine, now, view| {
                while engine.pass(now, view).is_some() {}
            },
        );
        if !self.timeless {
            self.note_admitted(outside);
        }
    }

    /// Notes the workloads that it has seen wait while all that wait had room. These wait on from now on.
    fn note_admitted(&mut self, outside: &Outside) {
        let waiting = self.store.waiting(outside);
        let has_room = |place: usize| {
            let most = outside.places[place].settings.wait.max_waiting;
            let there = waiting
                .iter()
                .filter(|other| outside.asks(other)[place] > 0);
            most.is_none_or(|most| there.count() <= usize::try_from(most).unwrap())
        };
        let admitted = waiting.iter().filter(|workload| {
            let asks = outside.asks(workload);
            (0..outside.places.len()).all(|place| asks[place] == 0 || has_room(place))
        });
        let admitted: Vec<Uid> = admitted.map(|workload| workload.uid.clone()).collect();
        self.admitted.extend(admitted);
    }

    /// No workload fails in a full queue that was admitted or holds a slot, and none while fewer others wait than may.
    fn judge_failure(&self, outside: &Outside, fail: &Fail) {
        let Failed::QueueFull { semaphore, .. } = &fail.why else {
            return;
        };
        let uid = &fail.workload.uid;
        assert!(!self.admitted.contains(uid), "it was admitted: {fail:?}");
        let mut places = 0..outside.places.len();
        let place = places.find(|place| queue(outside, *place).title() == *semaphore);
        let place = place.expect("a semaphore");
        let known = self.engine.queue(&queue(outside, place));
        let reading = known.and_then(Queue::last_reading).expect("a reading");
        let contenders = outside.sight(place).contenders;
        let holds = |uid: &Uid| {
            let mut own = contenders.iter().filter(|(_, of)| of.as_ref() == Some(uid));
            own.any(|(session, _)| reading.holds(session))
        };
        let others = self.store.waiting(outside).into_iter().filter(|other| {
            other.uid != *uid && outside.asks(other)[place] > 0 && !holds(&other.uid)
        });
        let most = outside.places[place].settings.wait.max_waiting;
        let most = usize::try_from(most.unwrap_or(u32::MAX)).unwrap();
        let waiting = others.count();
        assert!(
            waiting >= most,
            "the queue has room: {waiting} wait, {fail:?}"
        );
    }

    fn lives(&self, outside: &Outside) -> BTreeSet<(SessionId, bool)> {
        let kept = self.store.kept.iter();
        kept.map(|session| (session.clone(), !outside.consul.is_alive(session)))
            .collect()
    }

    /// For how many workloads it keeps free slots.
    pub(super) fn keeps_for(&self) -> usize {
        let queues = self.engine.queues();
        let states = queues.filter_map(|(queue, _)| {
            let semaphore = self.engine.semaphore(&queue.semaphore)?;
            semaphore.queues().get(&queue.key)
        });
        let kept: BTreeSet<Uid> = states
            .flat_map(QueueState::stances)
            .filter(|(_, stance)| *stance == Stance::Keeps)
            .map(|(workload, _)| workload.clone())
            .collect();
        kept.len()
    }

    /// Whether the operator renews a session.
    pub(super) fn keeps(&self, session: &SessionId) -> bool {
        self.store.kept.contains(session)
    }

    fn collect(&mut self, outside: &Outside) {
        while let Some(effect) = self.engine.next_effect() {
            let step = match effect {
                Effect::Queue(queue, action) => self.step_of(outside, &queue, action),
                Effect::Semaphore(semaphore, duty) => {
                    let place = outside.place_of(&semaphore.name).expect("a semaphore");
                    match duty {
                        Duty::RecordLimits(_) => {
                            (!self.is_recording(place)).then_some(Step::Record(place))
                        }
                        Duty::ListSessions => Some(Step::ListSessions(place)),
                        Duty::EndSession(session) => Some(Step::Destroy(session)),
                        Duty::AddFinalizer
                        | Duty::RemoveFinalizer
                        | Duty::LeaveBehind
                        | Duty::ListPrefix => {
                            unreachable!("nothing is deleted: {duty:?}")
                        }
                    }
                }
                Effect::Closed(_) => None,
            };
            self.pending.extend(step);
        }
    }

    fn step_of(&mut self, outside: &Outside, queue: &QueueRef, action: Action) -> Option<Step> {
        let place = outside.place_of(&queue.semaphore.name)?;
        match action {
            Action::Call(
                id,
                Call::Transact {
                    transaction,
                    not_after: until,
                },
            ) => {
                let written = self.written(outside, &transaction);
                let is_spoilt = written.operations.is_empty();
                (!is_spoilt).then_some(Step::Transact { id, written, until })
            }
            Action::Call(
                id,
                Call::Write {
                    write, not_after, ..
                },
            ) => {
                if let Write::Fail(fail) = &write {
                    self.judge_failure(outside, fail);
                }
                Some(Step::Patch {
                    id,
                    read: self.last_read(&write.target().uid, outside),
                    patch: write.into(),
                    not_after,
                })
            }
            Action::Call(id, Call::CreateSession { name, .. }) => {
                Some(Step::MakeSession { id, name })
            }
            Action::Call(id, call) => Some(Step::Ask { id, place, call }),
            Action::Adopt(session) => {
                self.store.kept.insert(session);
                None
            }
            Action::Forget(session) => {
                self.store.kept.remove(&session);
                None
            }
            Action::Destroy(session) => {
                self.store.kept.remove(&session);
                Some(Step::Destroy(session))
            }
            Action::Report(_) => None,
        }
    }

    /// When the oldest reading was sent of those that a decision about this workload is based on.
    fn last_read(&self, uid: &Uid, outside: &Outside) -> Moment {
        let workload = self.store.workload(uid);
        let asks = workload.map_or([1; 3], |workload| outside.asks(&workload));
        let places = (0..outside.places.len()).filter(|place| asks[*place] > 0);
        let sent = places.filter_map(|place| {
            let queue = self.engine.queue(&queue(outside, place))?;
            queue.reading().map(|reading| reading.sent)
        });
        sent.min().unwrap_or_default()
    }

    fn written(&self, outside: &Outside, transaction: &Transaction) -> Written {
        let mut operations = transaction.operations.clone();
        if let Some(flaw) = self.flaw {
            flaw.spoil(&mut operations);
        }
        let locked = operations.iter().filter_map(|operation| match operation {
            Op::Lock { session, .. } => outside.consul.identity(session),
            _ => None,
        });
        let uids: BTreeSet<Uid> = locked.map(|identity| identity.uid.clone()).collect();
        let known = uids.iter().filter_map(|uid| self.store.workload(uid));
        let idle = known.filter(|workload| workload.phase == Phase::Idle);
        let firsts: Vec<_> = idle.collect();
        let most = firsts
            .iter()
            .map(|workload| outside.most(workload.priority));
        Written {
            most: most.collect(),
            firsts,
            operations,
        }
    }

    /// Takes one of the pending steps.
    pub(super) fn act(&mut self, position: usize, outside: &mut Outside, lost: Option<Lost>) {
        if self.pending.is_empty() {
            return;
        }
        let step = self.pending.remove(position % self.pending.len());
        let done = lost.is_none_or(|lost| lost.done);
        match step {
            Step::Record(place) => self.record(place, outside, lost),
            Step::ListSessions(place) => {
                let all = outside.consul.sessions();
                let sessions = all.map(|(id, identity)| session(id, identity));
                let sessions = if lost.is_some() {
                    Err(no_answer())
                } else {
                    Ok(sessions.collect())
                };
                let semaphore = semaphore(outside, place);
                self.tell(outside, |engine, now, view| {
                    engine.listed_sessions(&semaphore, sessions, now, view);
                });
            }
            Step::Transact { id, written, until } => {
                let sent = outside.now();
                let delivery = match until {
                    Some(until) if until <= sent => Delivery::Late,
                    _ if lost.is_some() => Delivery::Unanswered,
                    _ => Delivery::Answered,
                };
                let answer = done.then(|| outside.transact(&written, delivery));
                let result = match answer.filter(|_| lost.is_none()) {
                    Some(answer) => answer.map_err(refusal),
                    None => Err(no_answer()),
                };
                if !done {
                    outside.late.push(written);
                }
                self.end(outside, id, Answer::Transacted { sent, result }, lost);
            }
            Step::Patch {
                id,
                patch,
                read,
                not_after,
            } => {
                let late = not_after.is_some_and(|not_after| not_after <= outside.now());
                let answer = (done && !late).then(|| outside.patch(&patch, read));
                let written = match answer.filter(|_| lost.is_none()) {
                    _ if late => PatchAnswer::NotSent,
                    Some(answer) => patched(outside, &patch, answer),
                    None => PatchAnswer::Unanswered("it is away".into()),
                };
                self.end(outside, id, Answer::Written(written), lost);
            }
            Step::MakeSession { id, name } => {
                let new = done.then(|| outside.consul.make_session(&name));
                let made = new.filter(|_| lost.is_none()).ok_or_else(no_answer);
                self.end(outside, id, Answer::SessionMade(made), lost);
            }
            Step::Destroy(session) => outside.destroy(&session),
            Step::Ask { id, place, call } => {
                let answer = self.answer_to(outside, place, &call, lost.is_some());
                self.end(outside, id, answer, lost);
            }
        }
    }

    fn is_recording(&self, place: usize) -> bool {
        let mut pending = self.pending.iter();
        pending.any(|step| matches!(step, Step::Record(of) if *of == place))
    }

    /// Writes the status of a semaphore, unless somebody wrote it since this operator read it. It is read then, and
    /// written again once that is known. It is also written again until that is answered.
    fn record(&mut self, place: usize, outside: &mut Outside, lost: Option<Lost>) {
        let is_known = self.recorded[place] == outside.places[place].recorded;
        if !is_known {
            self.see_specs(outside);
            self.see_recorded(outside);
        }
        let semaphore = semaphore(outside, place);
        let known = self.engine.semaphore(&semaphore).expect("a semaphore");
        let limits = known.applied_limits().to_vec();
        if is_known && lost.is_none_or(|lost| lost.done) {
            let of = &mut outside.places[place];
            of.applied.clone_from(&limits);
            of.recorded += 1;
            self.recorded[place] = of.recorded;
        }
        if is_known && lost.is_none() {
            self.tell(outside, |engine, now, view| {
                engine.recorded(&semaphore, &limits, now, view);
            });
        } else if !self.is_recording(place) {
            self.pending.push(Step::Record(place));
        }
    }

    /// A call has ended, or hangs.
    fn end(&mut self, outside: &Outside, id: CallId, answer: Answer, lost: Option<Lost>) {
        if lost.is_some_and(|lost| lost.hangs) {
            return self.hung.push((id, answer));
        }
        self.answer(outside, id, answer);
    }

    fn answer_to(&mut self, outside: &Outside, place: usize, call: &Call, lost: bool) -> Answer {
        let known = |id: &SessionId| Some(session(id, outside.consul.identity(id)?));
        match call {
            Call::Read { .. } if lost => Answer::Listing(Err(no_answer())),
            Call::Read { .. } => Answer::Listing(Ok(self.list(outside, place))),
            Call::Resolve { .. } if lost => Answer::Resolved(Err(no_answer())),
            Call::Resolve { sessions, .. } => {
                Answer::Resolved(Ok(sessions.iter().filter_map(known).collect()))
            }
            Call::Describe(_) if lost => Answer::Described(Err(no_answer())),
            Call::Describe(id) => Answer::Described(Ok(known(id))),
            Call::Prove(_) if lost => Answer::Proof(Err("it is away".into())),
            Call::Prove(identity) => {
                let workload = outside.workloads.read(&identity.uid, outside.now());
                let has_pods = outside.workloads.has_pods(&identity.uid);
                let left = has_pods.then(|| "a pod".to_owned());
                Answer::Proof(Ok((workload.map(Arc::new), left.into_iter().collect())))
            }
            _ => Answer::Access(Some(true)),
        }
    }
}

/// The meaning of an answer to a PATCH. After a conflict the workload is read again.
fn patched(outside: &Outside, patch: &Patch, answer: requests::Answer) -> PatchAnswer {
    let target = patch.target();
    let now = outside.workloads.read(&target.uid, outside.now());
    match answer {
        requests::Answer::Done => PatchAnswer::Done,
        requests::Answer::Conflict if !now.as_ref().is_some_and(|now| target.is_still(now)) => {
            PatchAnswer::Outdated(now.map(Arc::new))
        }
        requests::Answer::Conflict | requests::Answer::Refused => PatchAnswer::Refused {
            message: "no".into(),
            forbidden: false,
        },
    }
}

/// Consul's error for a transaction that it refuses.
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
