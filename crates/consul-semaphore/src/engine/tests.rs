//! Several semaphores and keys in one engine, with a small fake of Consul.

mod admission;
mod clusters;
mod deleted;
mod doubt;
mod kept;
mod reach;
mod several;
mod tenants;
mod together;
mod troubles;
mod waits;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::*;
use crate::{
    Identity, Phase, SessionState, Settings, SlotRequest, Termination, Uid, Workload,
    model::consul::{Consul, Refused},
    plan::{Failed, GiveBack, Start},
    samples,
};
use consul_client::{Op, OpError};

/// What the engine reads: the workloads of each queue.
#[derive(Default)]
struct Store {
    workloads: BTreeMap<QueueRef, Vec<Arc<Workload>>>,
    opened: RefCell<BTreeSet<QueueRef>>,
    /// The workloads that have come and were not admitted.
    unadmitted: RefCell<BTreeSet<Uid>>,
    /// Whether all workloads are being listed anew.
    lists: bool,
}

struct OfQueue<'a> {
    store: &'a Store,
    queue: &'a QueueRef,
}

impl Stores for Store {
    type Of<'a> = OfQueue<'a>;

    fn of<'a>(&'a self, queue: &'a QueueRef) -> OfQueue<'a> {
        OfQueue { store: self, queue }
    }

    fn keys(&self, semaphore: &SemaphoreRef) -> Vec<Option<Key>> {
        let all = self.workloads.keys();
        let queues = all.filter(|queue| queue.semaphore == *semaphore);
        queues.map(|queue| queue.key.clone()).collect()
    }

    fn open(&self, queue: &QueueRef) {
        self.opened.borrow_mut().insert(queue.clone());
    }

    fn close(&self, queue: &QueueRef) -> bool {
        let empty = self.workloads.get(queue).is_none_or(Vec::is_empty);
        if empty {
            self.opened.borrow_mut().remove(queue);
        }
        empty
    }

    fn keeps(&self, _session: &SessionId) -> bool {
        false
    }
}

impl<'a> OfQueue<'a> {
    /// The workloads that ask for the same, in any namespace: semaphores of one name use the same credential.
    fn alike(
        &self,
        workload: &Workload,
    ) -> impl Iterator<Item = (&'a QueueRef, &'a Arc<Workload>)> {
        let store: &'a Store = self.store;
        let name = self.queue.semaphore.name.clone();
        let all = store.workloads.iter();
        let queues = all.filter(move |(queue, _)| queue.semaphore.name == name);
        let workloads = queues.flat_map(|(queue, workloads)| {
            let workloads = workloads.iter();
            workloads.map(move |workload| (queue, workload))
        });
        let requests = workload.requests.clone();
        workloads.filter(move |(_, other)| other.requests == requests)
    }

    fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.store.workloads.get(self.queue).into_iter().flatten()
    }

    fn queued(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads().filter(|workload| workload.is_queued())
    }
}

impl Lookup for OfQueue<'_> {
    fn bound(&self) -> Vec<Arc<Workload>> {
        let bound = self.workloads().filter(|workload| workload.is_bound());
        bound.cloned().collect()
    }

    fn waiting(&self, reach: &Reach<'_>) -> Vec<Arc<Workload>> {
        let mut list = WaitingList::default();
        for workload in self.workloads().filter(|workload| workload.is_queued()) {
            let requests = workload.requests.iter();
            let queues: Vec<QueueRef> = requests
                .map(|request| QueueRef::new(&semaphore(&request.semaphore), request.key.clone()))
                .collect();
            let class = RequestClass::of(workload, self.queue, &queues);
            list.insert(workload.place(), class);
        }
        let read = list.read(reach).into_iter();
        read.filter_map(|place| self.workload(place.uid()))
            .collect()
    }

    fn workload(&self, uid: &Uid) -> Option<Arc<Workload>> {
        let mut all = self.store.workloads.values().flatten();
        all.find(|workload| workload.uid == *uid).cloned()
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Workload>>> {
        uids.iter().map(|uid| self.workload(uid)).collect()
    }

    fn touched(&self) -> BTreeSet<Uid> {
        BTreeSet::new()
    }

    fn life(&self, _session: &SessionId) -> Option<SessionState> {
        Some(SessionState::Endless)
    }

    fn overdue(&self, now: jiff::Timestamp, most: usize) -> Vec<Overdue> {
        let waiting = self.workloads().filter(|workload| workload.is_queued());
        let overdue = waiting.filter_map(|workload| {
            let timeout = workload.wait.timeout?;
            let ends = workload.waits_since()? + i64::try_from(timeout.as_secs()).unwrap();
            (ends <= now.as_second()).then(|| Overdue {
                workload: workload.clone(),
                timeout,
            })
        });
        overdue.take(most).collect()
    }

    fn unrecorded(&self, most: usize) -> Vec<Arc<Workload>> {
        let unrecorded = self
            .workloads()
            .filter(|workload| workload.wait_to_record().is_some());
        unrecorded.take(most).cloned().collect()
    }

    fn superseded(&self, most: usize) -> Vec<Superseded> {
        let waiting = self
            .workloads()
            .filter(|workload| workload.is_replaceable());
        let superseded = waiting.filter_map(|workload| {
            let alike = self.alike(workload);
            let replaceable = alike.filter(|(_, other)| other.is_replaceable());
            let mut newer: Vec<_> = replaceable
                .filter(|(_, other)| other.age() > workload.age())
                .collect();
            newer.sort_by_key(|(_, other)| std::cmp::Reverse(other.age()));
            (!newer.is_empty()).then(|| Superseded {
                workload: workload.clone(),
                newer: newer.into_iter().map(located).collect(),
            })
        });
        superseded.take(most).collect()
    }

    fn unadmitted(&self, most: usize) -> Vec<Arc<Workload>> {
        let unadmitted = self.store.unadmitted.borrow();
        let newcomers = self
            .queued()
            .filter(|workload| unadmitted.contains(&workload.uid));
        let mut newcomers: Vec<_> = newcomers.cloned().collect();
        newcomers.sort_by_key(|workload| workload.arrival());
        newcomers.truncate(most);
        newcomers
    }

    fn admit(&self, workload: &Uid) {
        self.store.unadmitted.borrow_mut().remove(workload);
    }

    fn count_waiting(&self) -> usize {
        self.queued().count()
    }

    fn count_admitted(&self, apart: &BTreeSet<Uid>) -> Option<usize> {
        let unadmitted = self.store.unadmitted.borrow();
        let is_left_out = |uid: &Uid| apart.contains(uid) || unadmitted.contains(uid);
        let admitted = self.queued().filter(|workload| !is_left_out(&workload.uid));
        (!self.store.lists).then(|| admitted.count())
    }

    fn replaceable(&self, by: &Workload) -> Vec<Located> {
        let running = self
            .alike(by)
            .filter(|(_, other)| other.phase == Phase::Running && other.on_contention.replaces());
        running.map(located).collect()
    }
}

/// The bytes of a value that is written.
fn size(operation: &consul::Op) -> usize {
    match operation {
        consul::Op::Lock { value, .. } | consul::Op::Cas { value, .. } => value.len(),
        _ => 0,
    }
}

fn located((queue, workload): (&QueueRef, &Arc<Workload>)) -> Located {
    Located {
        namespace: queue.semaphore.namespace.clone(),
        workload: workload.clone(),
    }
}

/// An engine, the world around it, and the engine's requests.
#[derive(Default)]
struct World {
    engine: Engine,
    store: Store,
    consul: Consul,
    /// How many passes were made, and transactions sent.
    passes: usize,
    transactions: usize,
    /// The queues whose transactions are not answered.
    hung: BTreeSet<QueueRef>,
    /// Whether the PATCHes that start workloads are not answered.
    starts_are_lost: bool,
    /// Whether the API server refuses to start workloads.
    starts_are_refused: bool,
    /// The workload that it refuses to start.
    refuses_to_start: Option<&'static str>,
    /// The prefix where another program is always faster.
    busy: Option<&'static str>,
    /// The prefix that can't be read.
    unread: Option<&'static str>,
    /// Whether Consul fails to say whose sessions are.
    resolves_fail: bool,
    /// How often the prefix was read, and Consul was asked whose sessions are.
    reads: usize,
    resolves: usize,
    /// The semaphores whose token may only read.
    read_only: BTreeSet<SemaphoreRef>,
    /// The workload whose sessions are still being made.
    no_sessions_for: Option<&'static str>,
    /// The semaphore for which Consul makes no sessions.
    refuses_sessions: Option<&'static str>,
    /// How many transactions go through that are never answered.
    answers_are_lost: usize,
    /// How many bytes of values Consul takes in a transaction.
    most_bytes: Option<usize>,
    too_large: Vec<String>,
    duties: Vec<Duty>,
    started: Vec<String>,
    given_back: Vec<String>,
    failed: Vec<(String, Failed)>,
    ended: Vec<String>,
    closed: Vec<QueueRef>,
    seconds: u64,
}

fn semaphore(name: &str) -> SemaphoreRef {
    SemaphoreRef {
        namespace: "batch".into(),
        name: name.into(),
    }
}

fn queue(name: &str, key: Option<&str>) -> QueueRef {
    QueueRef::new(&semaphore(name), key.map(|key| key.parse().unwrap()))
}

/// The spec of the semaphore `db`, with this limit.
fn spec(limit: u32, keyed: bool) -> Spec {
    Spec {
        settings: Settings {
            ttl: None,
            fair: None,
            ..samples::settings(limit)
        },
        generation: Some(i64::from(limit)),
        keyed,
    }
}

fn terminating(spec: Spec) -> Spec {
    Spec {
        settings: Settings {
            pass_over: Duration::from_mins(1),
            terminating: true,
            ..spec.settings
        },
        ..spec
    }
}

fn no_answer() -> consul::Error {
    consul::Error::Unreachable {
        message: "no answer".into(),
        undecided: true,
    }
}

/// Whether any of these operations is below this prefix.
fn touches(operations: &[Op], prefix: &str) -> bool {
    let mut keys = operations.iter().map(Op::key);
    keys.any(|key| key.split('/').next() == Some(prefix))
}

/// Consul's error. What rests is a mutex.
fn refusal(refused: Refused, operations: &[Op]) -> consul::Error {
    let locks = |op: &Op| matches!(op, Op::Lock { key, .. } if key.ends_with("/.lock"));
    let first_lock = operations.iter().position(locks);
    let rests = first_lock.filter(|_| refused == Refused::Rests);
    let errors = rests.map(|operation| OpError {
        operation,
        what: "can't be locked due to lock delay".into(),
    });
    consul::Error::Conflict(errors.into_iter().collect())
}

const GRANTED: ConsulAccess = ConsulAccess::Granted { operations: 64 };

impl World {
    fn now(&self) -> Now {
        Now {
            moment: Moment::from_boot(Duration::from_secs(1_000 + self.seconds)),
            time: samples::time(self.seconds),
            jitter: 0.0,
        }
    }

    fn put(&mut self, spec: Spec, finalizer: bool, access: ConsulAccess) {
        let known = || (Known::default(), access);
        let now = self.now();
        let db = semaphore("db");
        self.engine
            .put(&db, spec, finalizer, known, now, &self.store);
    }

    /// A workload joins a queue.
    fn workload(&mut self, name: &str, of: &QueueRef) {
        let workload = Workload {
            requests: vec![SlotRequest::one("db", of.key.clone())],
            ..samples::workload(name, Phase::Idle, None, None)
        };
        let workloads = self.store.workloads.entry(of.clone()).or_default();
        workloads.push(Arc::new(workload));
        let now = self.now();
        self.engine.touched(of, now, &self.store);
    }

    /// The watch brings what is in Consul.
    fn list(&mut self) {
        self.seconds += 1;
        let now = self.now();
        let prefix = spec(1, false).settings.prefix;
        let listing = self.consul.list(&prefix, now.moment);
        let db = semaphore("db");
        self.engine.listed(&db, Ok(listing), now, &self.store);
    }

    /// Runs until there is nothing more to do.
    fn settle(&mut self) {
        self.run(1);
    }

    /// Runs until there is nothing more to do, with so many seconds for each pass.
    fn run(&mut self, seconds: u64) {
        assert!(self.runs_for(1_000, seconds), "it does not come to rest");
    }

    /// Runs for so many passes of so many seconds, or until there is nothing more to do: returns whether that is so.
    fn runs_for(&mut self, times: usize, seconds: u64) -> bool {
        for _ in 0..times {
            self.seconds += seconds;
            let now = self.now();
            let mut any = self.engine.pass(now, &self.store).is_some();
            self.passes += usize::from(any);
            while let Some(effect) = self.engine.next_effect() {
                any = true;
                match effect {
                    Effect::Queue(queue, Action::Call(id, call)) => self.call(&queue, id, call),
                    Effect::Queue(_, Action::Report(Outcome::TooLarge { workload, .. })) => {
                        self.too_large.push(workload.name.to_string());
                    }
                    Effect::Queue(..) => {}
                    Effect::Closed(queue) => self.closed.push(queue),
                    Effect::Semaphore(_, duty) => self.duties.push(duty),
                }
            }
            if !any {
                return true;
            }
        }
        false
    }

    fn is_without_session(&self, session_name: &str) -> bool {
        let identity = Identity::parse(session_name);
        let name = identity.map(|identity| identity.workload);
        name.is_some() && name.as_deref() == self.no_sessions_for
    }

    fn call(&mut self, queue: &QueueRef, id: CallId, call: Call) {
        let now = self.now();
        let answer = match call {
            Call::Read { .. } if self.unread == Some(&*queue.semaphore.name) => {
                Answer::Listing(Err(no_answer()))
            }
            Call::Read { .. } => {
                self.reads += 1;
                let prefix = self.engine.queue(queue).unwrap().settings().prefix.clone();
                Answer::Listing(Ok(self.consul.list(&prefix, now.moment)))
            }
            Call::Transact { .. } if self.hung.contains(queue) => return,
            Call::Transact { .. } if self.read_only.contains(&queue.semaphore) => {
                Answer::Transacted {
                    sent: now.moment,
                    result: Err(consul::Error::Denied("no write".into())),
                }
            }
            Call::Transact { transaction, .. } => {
                self.transactions += 1;
                assert!(transaction.operations.len() <= 64, "{transaction:?}");
                let operations = &transaction.operations;
                let bytes: usize = operations.iter().map(size).sum();
                let mut result = if self.most_bytes.is_some_and(|most| bytes > most) {
                    Err(consul::Error::TooLarge("too many bytes".into()))
                } else if self.busy.is_some_and(|busy| touches(operations, busy)) {
                    Err(consul::Error::Conflict(Vec::new()))
                } else {
                    let result = self.consul.transact(operations);
                    result.map_err(|refused| refusal(refused, operations))
                };
                if let Some(left) = self.answers_are_lost.checked_sub(1) {
                    self.answers_are_lost = left;
                    result = Err(no_answer());
                }
                Answer::Transacted {
                    sent: now.moment,
                    result,
                }
            }
            Call::CreateSession { name, .. } if self.is_without_session(&name) => return,
            Call::CreateSession { .. } if self.refuses_sessions == Some(&*queue.semaphore.name) => {
                Answer::SessionMade(Err(no_answer()))
            }
            Call::CreateSession { name, .. } => {
                Answer::SessionMade(Ok(self.consul.make_session(&name)))
            }
            // As the shell does: an answer could come too late.
            Call::Write {
                timeout,
                not_after: Some(not_after),
                ..
            } if self.now().moment + timeout > not_after => Answer::Written(Written::NotSent),
            Call::Write { write, .. } => match self.write(queue, &write) {
                Some(written) => Answer::Written(written),
                None => return,
            },
            Call::Resolve { .. } => {
                self.resolves += 1;
                Answer::Resolved(if self.resolves_fail {
                    Err(no_answer())
                } else {
                    Ok(self.own_sessions())
                })
            }
            Call::Describe(_) => Answer::Described(Ok(None)),
            Call::Prove(identity) => {
                let workload = self.workload_with(&identity.uid);
                Answer::Proof(Ok((workload, Vec::new())))
            }
            Call::AskAccess => return,
        };
        self.engine.answered(id, answer, now, &self.store);
    }

    /// Carries out a write to a workload, and says what becomes of it; nothing if the answer is lost.
    fn write(&mut self, queue: &QueueRef, write: &Write) -> Option<Written> {
        match write {
            Write::Start(_) if self.starts_are_lost => return None,
            Write::Start(start)
                if self.starts_are_refused
                    || self.refuses_to_start == Some(&*start.workload.name) =>
            {
                return Some(Written::Refused {
                    message: "no".into(),
                    forbidden: false,
                });
            }
            Write::Start(start) => self.start(start),
            Write::GiveBack(give_back) => self.give_back(give_back),
            Write::Suspend(suspend) => self.change(&suspend.workload.uid, |workload| {
                workload.phase = Phase::Idle;
                workload.reported.clear();
            }),
            Write::Rename(rename) => self.change(&rename.workload.uid, |workload| {
                workload.reported.clone_from(&rename.sessions);
            }),
            Write::RecordWait(record) => {
                let asked = self.engine.queue(queue).unwrap();
                let leaves = asked.is_leaving(&record.workload.uid);
                assert!(!leaves, "it goes on waiting meanwhile");
                self.change(&record.workload.uid, |workload| {
                    workload.wait.recorded = Some(record.began);
                });
            }
            Write::Skip(_) => {}
            Write::Fail(fail) => {
                let name = fail.workload.name.to_string();
                self.failed.push((name, fail.why.clone()));
                self.change(&fail.workload.uid, |workload| {
                    workload.phase = Phase::Finished { at_rest: true };
                });
            }
            Write::End(end) => {
                self.ended.push(end.workload.name.to_string());
                self.change(&end.workload.uid, |workload| {
                    workload.wait.failing = Some(Termination::Graceful);
                });
            }
        }
        Some(Written::Done)
    }

    fn own_sessions(&self) -> Vec<Session> {
        let all = self.consul.sessions();
        let sessions = all.map(|(id, identity)| Session {
            id: id.clone(),
            name: identity.session_name(),
            node: String::new(),
            ttl: None,
            lock_delay: Duration::ZERO,
            behavior: consul::Behavior::Delete,
            create_index: 0,
        });
        sessions.collect()
    }

    fn workload_with(&self, uid: &Uid) -> Option<Arc<Workload>> {
        let mut workloads = self.store.workloads.values().flatten();
        workloads.find(|workload| workload.uid == *uid).cloned()
    }

    fn workload_in(&self, semaphore: &str, name: &str) -> &Workload {
        let mut workloads = self.store.workloads[&queue(semaphore, None)].iter();
        workloads.find(|workload| &*workload.name == name).unwrap()
    }

    /// Changes a workload, and reports that to all of its queues.
    fn change(&mut self, uid: &Uid, change: impl Fn(&mut Workload)) {
        let now = self.now();
        let mut queues = Vec::new();
        for (queue, workloads) in &mut self.store.workloads {
            for workload in workloads.iter_mut().filter(|workload| workload.uid == *uid) {
                change(Arc::make_mut(workload));
                queues.push(queue.clone());
            }
        }
        for queue in queues {
            self.engine.touched(&queue, now, &self.store);
        }
    }

    fn start(&mut self, start: &Start) {
        self.started.push(start.workload.name.to_string());
        self.change(&start.workload.uid, |workload| {
            workload.phase = Phase::Running;
            workload.granted = Some(start.granted());
            workload.reported = start.sessions().cloned().collect();
        });
    }

    fn give_back(&mut self, give_back: &GiveBack) {
        self.given_back.push(give_back.workload.name.to_string());
        self.change(&give_back.workload.uid, |workload| {
            workload.granted = None;
            workload.reported.clone_from(&give_back.sessions);
            workload.wait.recorded = give_back.began;
        });
    }

    /// A workload joins all of its queues.
    fn joins(&mut self, workload: &Arc<Workload>) {
        let now = self.now();
        self.store
            .unadmitted
            .borrow_mut()
            .insert(workload.uid.clone());
        for request in &workload.requests {
            let queue = queue(&request.semaphore, None);
            let there = self.store.workloads.entry(queue.clone()).or_default();
            there.push(workload.clone());
            there.sort_by_key(|workload| workload.place());
            self.engine.touched(&queue, now, &self.store);
        }
    }

    /// A semaphore is paused, or not.
    fn pauses(&mut self, name: &str, paused: bool) {
        let (now, queue) = (self.now(), queue(name, None));
        self.engine.touched(&queue, now, &self.store);
        let known = self.engine.queue_mut(&queue).unwrap();
        let settings = Settings {
            paused,
            ..known.settings().clone()
        };
        let event = Event::Spec {
            settings: Box::new(settings),
            changed: false,
        };
        known.handle(event, now, &self.store.of(&queue));
    }

    /// The watches of all prefixes bring what is there.
    fn list_all(&mut self) {
        let now = self.now();
        let queues: Vec<QueueRef> = self.engine.queues().map(|(queue, _)| queue).collect();
        for queue in queues {
            let prefix = self.engine.queue(&queue).unwrap().settings().prefix.clone();
            let listing = self.consul.list(&prefix, now.moment);
            self.engine
                .listed(&queue.semaphore, Ok(listing), now, &self.store);
        }
    }

    /// The work of a workload ends.
    fn ends(&mut self, name: &str) {
        self.change(&Uid::from(name), |workload| {
            workload.phase = Phase::Finished { at_rest: true };
        });
        self.settle();
    }

    fn state(&self) -> &SemaphoreState {
        self.engine.semaphore(&semaphore("db")).unwrap()
    }

    /// Someone else writes the limit of a semaphore that nobody uses.
    fn others_write(&mut self, limit: u32) {
        let body = format!(r#"{{"Limit":{limit},"Holders":{{}}}}"#);
        let flags = crate::lock::SEMAPHORE_FLAGS;
        self.consul.put("p/.lock", body.as_bytes(), flags, None);
        self.list();
        self.settle();
    }

    /// The limit in Consul.
    fn limit(&self) -> u32 {
        let lock = self.consul.get("p/.lock").unwrap();
        let body: serde_json::Value = serde_json::from_slice(&lock.value).unwrap();
        body["Limit"].as_u64().unwrap().try_into().unwrap()
    }

    /// Consul answers that our node has no sessions.
    fn sessions(&mut self) {
        let (now, db) = (self.now(), semaphore("db"));
        self.engine
            .listed_sessions(&db, Ok(Vec::new()), now, &self.store);
        self.settle();
    }

    /// Another operator has recorded these limits.
    fn found(&mut self, limits: &[u32]) -> bool {
        let (now, db) = (self.now(), semaphore("db"));
        self.engine.found_limits(&db, limits, now, &self.store)
    }

    /// The requested limits are recorded.
    fn record(&mut self) {
        let asked = self.state().applied_limits().to_vec();
        let (now, db) = (self.now(), semaphore("db"));
        assert!(self.engine.recorded(&db, &asked, now, &self.store));
        self.settle();
    }
}

#[test]
fn nothing_is_asked_of_consul_before_the_finalizer_is_there() {
    let mut world = World::default();
    world.put(spec(1, false), false, GRANTED);
    world.workload("a", &queue("db", None));
    world.settle();
    assert_eq!(world.duties, [Duty::AddFinalizer]);
    assert!(world.consul.index() == 0 && world.started.is_empty());
    let now = world.now();
    world
        .engine
        .added_finalizer(&semaphore("db"), true, now, &world.store);
    world.settle();
    world.record();
    assert_eq!(world.started, ["a"]);
}

#[test]
fn a_transaction_of_one_key_that_hangs_delays_no_other_key() {
    let mut world = World::default();
    let (a, b) = (queue("db", Some("a")), queue("db", Some("b")));
    world.hung.insert(a.clone());
    world.put(spec(1, true), true, GRANTED);
    world.list();
    world.settle();
    world.workload("stuck", &a);
    world.workload("quick", &b);
    world.settle();
    world.record();
    assert_eq!(world.started, ["quick"]);
}

#[test]
fn a_key_has_a_queue_while_somebody_uses_it() {
    let mut world = World::default();
    let a = queue("db", Some("a"));
    world.put(spec(1, true), true, GRANTED);
    world.workload("one", &a);
    world.settle();
    assert!(!world.state().is_known(), "the watch is silent");
    world.list();
    world.settle();
    world.record();
    assert_eq!(world.started, ["one"]);
    // Another program uses another key.
    let body = br#"{"Limit":1,"Holders":{}}"#;
    let flags = crate::lock::SEMAPHORE_FLAGS;
    world.consul.put("p/b/.lock", body, flags, None);
    world.list();
    world.settle();
    assert_eq!(world.state().queues().len(), 2);
    world.consul.delete("p/b/.lock");
    world.list();
    world.settle();
    assert_eq!(world.closed, [queue("db", Some("b"))]);
    assert_eq!(*world.store.opened.borrow(), [a].into());
}

#[test]
fn a_limit_is_ours_until_the_spec_agrees_with_another_one() {
    let mut world = World::default();
    world.put(spec(3, false), true, GRANTED);
    world.workload("a", &queue("db", None));
    world.settle();
    assert_eq!(world.duties, [Duty::RecordLimits(vec![3])]);
    assert!(
        world.consul.get("p/.lock").is_none(),
        "it is recorded first"
    );
    world.record();
    assert_eq!((world.limit(), world.started.len()), (3, 1));

    world.store.workloads.clear();
    world.others_write(5);
    world.put(spec(5, false), true, GRANTED);
    world.settle();
    assert!(world.state().applied_limits().is_empty());
    world.others_write(3);
    assert_eq!(world.limit(), 3, "it is nobody else's to move");
}

#[test]
fn the_finalizer_goes_when_nothing_is_left() {
    let mut world = World::default();
    world.put(spec(1, false), true, GRANTED);
    world.workload("a", &queue("db", None));
    world.settle();
    world.record();
    world.put(terminating(spec(1, false)), true, GRANTED);
    world.list();
    world.settle();
    assert_eq!(world.duties.pop(), Some(Duty::ListSessions), "now and then");
    world.sessions();
    world.duties.clear();
    assert!(world.consul.get("p/.lock").is_some(), "a workload runs");

    let workload = Arc::make_mut(&mut world.store.workloads.values_mut().next().unwrap()[0]);
    workload.phase = Phase::Finished { at_rest: true };
    let now = world.now();
    world.engine.touched(&queue("db", None), now, &world.store);
    world.settle();
    world.list();
    world.settle();
    assert!(world.consul.get("p/.lock").is_none());
    assert_eq!(world.duties, [Duty::ListSessions]);
    world.sessions();
    assert_eq!(world.duties, [Duty::ListSessions, Duty::ListPrefix]);
    world.list();
    world.settle();
    assert_eq!(world.duties.last(), Some(&Duty::RemoveFinalizer));
    let now = world.now();
    world
        .engine
        .removed_finalizer(&semaphore("db"), true, now, &world.store);
    world.settle();
    assert!(!world.state().has_begun());
}

#[test]
fn one_that_may_not_use_its_prefix_is_let_go_at_once() {
    let mut world = World::default();
    let since = world.now().moment;
    world.put(
        terminating(spec(1, false)),
        true,
        ConsulAccess::Refused { since },
    );
    world.workload("a", &queue("db", None));
    world.settle();
    assert_eq!(world.duties, [Duty::LeaveBehind]);
    assert_eq!(world.consul.index(), 0);
    assert_eq!(world.state().why_left_behind(Some("why".into())), None);
}

#[test]
fn an_answer_to_a_queue_that_is_gone_is_nobodys() {
    let mut world = World::default();
    world.put(spec(1, false), true, GRANTED);
    world.workload("a", &queue("db", None));
    let now = world.now();
    world.engine.pass(now, &world.store);
    let Some(Effect::Queue(_, Action::Call(id, _))) = world.engine.next_effect() else {
        panic!("it is read first");
    };
    assert!(world.engine.queue_of(id).is_some());
    let now = world.now();
    world.engine.remove(&semaphore("db"), now, &world.store);
    assert!(world.engine.queue_of(id).is_none());
    let answer = Answer::Listing(Err(consul::Error::Gone));
    world.engine.answered(id, answer, now, &world.store);
    world.settle();
}

/// A semaphore without an object belongs, for example, to a program that holds a slot for itself.
#[test]
fn one_without_an_object_waits_for_no_finalizer_and_has_no_duties() {
    let mut world = World::default();
    world.workload("a", &queue("db", None));
    let settings = Settings {
        ttl: Some(Duration::from_mins(1)),
        transient: true,
        ..spec(1, false).settings
    };
    let now = world.now();
    let db = semaphore("db");
    world
        .engine
        .add_standalone(&db, settings, 64, now, &world.store);
    world.settle();
    assert_eq!(world.started, ["a"]);
    assert_eq!(world.limit(), 1, "it is ours without being recorded");
    assert_eq!(world.duties, []);
}

#[test]
fn what_the_watch_shows_is_news_also_where_no_key_is_in_use() {
    let mut world = World::default();
    world.put(spec(1, true), true, GRANTED);
    world.settle();
    let is_news = |world: &mut World| {
        let news = world.engine.take_changed();
        world.settle();
        assert_eq!(world.engine.take_changed(), None);
        news.is_some()
    };
    assert!(is_news(&mut world) && !world.state().is_known());
    world.list();
    assert!(is_news(&mut world) && world.state().is_known());
    world.list();
    assert!(!is_news(&mut world), "it is as it was");
    let (now, db) = (world.now(), semaphore("db"));
    let gone = Err(consul::Error::Gone);
    world.engine.listed(&db, gone, now, &world.store);
    assert!(is_news(&mut world), "it can't be read");
    world.list();
    assert!(is_news(&mut world), "it can be read again");
}

#[test]
fn a_listing_from_before_a_transaction_that_was_given_up_tells_nothing() {
    let mut world = World::default();
    let db = queue("db", None);
    world.hung.insert(db.clone());
    world.put(spec(1, false), true, GRANTED);
    world.workload("a", &db);
    world.settle();
    world.record();
    assert!(world.engine.queue(&db).unwrap().is_granting(&"a".into()));
    world.list();
    let now = world.now();
    world
        .engine
        .set_access(&db.semaphore, GRANTED, now, &world.store);
    world.engine.pass(now, &world.store);
    let effects = std::iter::from_fn(|| world.engine.next_effect());
    let sent = effects.filter_map(|effect| match effect {
        Effect::Queue(_, Action::Call(_, call)) => Some(call),
        _ => None,
    });
    let calls: Vec<_> = sent.collect();
    assert!(matches!(calls[..], [Call::Read { .. }]), "{calls:?}");
}

#[test]
fn what_a_key_wanted_for_an_earlier_limit_undoes_nothing() {
    let mut world = World::default();
    let (a, b) = (queue("db", Some("a")), queue("db", Some("b")));
    world.put(spec(3, true), true, GRANTED);
    world.list();
    world.settle();
    world.workload("runs", &a);
    world.workload("ends", &b);
    world.settle();
    world.record();
    assert_eq!(world.started.len(), 2);
    // It gives its slot back and gets no answer, so it can only repeat that it wants 4.
    world.hung.insert(b.clone());
    let workload = &mut world.store.workloads.get_mut(&b).unwrap()[0];
    Arc::make_mut(workload).phase = Phase::Finished { at_rest: true };
    world.put(spec(4, true), true, GRANTED);
    world.settle();
    assert!(world.engine.queue(&b).unwrap().is_blocked());
    assert_eq!(world.duties.last(), Some(&Duty::RecordLimits(vec![3, 4])));
    world.put(spec(5, true), true, GRANTED);
    world.settle();
    world.record();
    assert_eq!(world.duties.last(), Some(&Duty::RecordLimits(vec![3, 5])));
    assert_eq!(world.state().applied_limits(), [3, 5]);
}

/// Another operator of this semaphore has seen the new spec first: it recorded the limit, and wrote it to Consul.
#[test]
fn a_limit_that_another_operator_recorded_is_ours() {
    let mut world = World::default();
    world.put(spec(2, false), true, GRANTED);
    world.workload("a", &queue("db", None));
    world.settle();
    world.record();
    world.store.workloads.clear();
    world.others_write(3);
    world.put(spec(3, false), true, GRANTED);
    world.settle();
    assert!(
        world.state().applied_limits().is_empty(),
        "for all it knows"
    );
    assert!(world.found(&[3]));
    assert!(!world.found(&[3]), "it knows");
    assert_eq!(world.state().applied_limits(), [3]);
    let back = Spec {
        generation: Some(9),
        ..spec(2, false)
    };
    world.put(back, true, GRANTED);
    world.settle();
    world.record();
    assert_eq!(world.limit(), 2);
    assert_eq!(world.state().applied_limits(), [2]);
}

#[test]
fn a_limit_that_is_found_while_another_is_recorded_stays_ours() {
    let mut world = World::default();
    world.put(spec(2, false), true, GRANTED);
    world.workload("a", &queue("db", None));
    world.settle();
    world.record();
    world.put(spec(3, false), true, GRANTED);
    world.settle();
    assert_eq!(world.state().applied_limits(), [2, 3]);
    assert!(world.found(&[2, 5]));
    assert_eq!(world.state().applied_limits(), [2, 3, 5]);
    let (now, db) = (world.now(), semaphore("db"));
    let engine = &mut world.engine;
    assert!(!engine.recorded(&db, &[2, 3], now, &world.store), "too few");
    world.record();
    assert_eq!(world.state().limits_now().0, [2, 3, 5]);
}

#[test]
fn a_limit_that_another_operator_recorded_is_dropped_once_nothing_needs_it() {
    let mut world = World::default();
    world.put(spec(2, false), true, GRANTED);
    world.workload("a", &queue("db", None));
    world.settle();
    world.record();
    world.list();
    world.settle();
    assert!(world.found(&[2, 5]));
    assert_eq!(world.state().applied_limits(), [2, 5]);
    let before = world.consul.index();
    world.settle();
    world.list();
    world.settle();
    assert_eq!(world.state().applied_limits(), [2]);
    assert_eq!(
        world.consul.index(),
        before + 1,
        "a write of 5 that is under way fails"
    );
}
