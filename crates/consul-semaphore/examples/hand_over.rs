//! The cost of a hand-over in the engine, by step: `hand_over <holders> <waiting> [hand-overs]`.
//!
//! It plays the caller of one queue: workloads that end, answers from Consul and from the API server, and the watch.
//! It prints the shortest time of each step, in microseconds.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "it is a measurement, and ends when something fails"
)]

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    hint::black_box,
    sync::Arc,
    time::Duration,
};

use consul_client::{Behavior, Entry, Listing, Op, Session, SessionId, clock::Moment};
use consul_semaphore::{
    Cluster, Defence, Granted, LimitPolicy, Mode, OnContention, OnSlotLost, Phase, Place,
    Restrictions, SessionState, Settings, SlotRequest, Uid, Workload,
    engine::{
        Action, Answer, Call, CallId, Changes, Event, Lookup, Now, Queue, Reach, Write, Written,
    },
    lock::SEMAPHORE_FLAGS,
    plan::Target,
};

const OPERATIONS: usize = 128;

/// Workloads as in an index.
#[derive(Default)]
struct Store {
    workloads: BTreeMap<Uid, Arc<Workload>>,
    bound: BTreeSet<Uid>,
    waiting: BTreeMap<Place, Uid>,
    contending: RefCell<BTreeSet<Uid>>,
    changes: RefCell<Option<Changes>>,
    now: Moment,
}

impl Store {
    fn put(&mut self, workload: Workload) {
        let uid = workload.uid.clone();
        if let Some(before) = self.workloads.get(&uid) {
            self.waiting.remove(&before.place());
        }
        self.bound.remove(&uid);
        if workload.is_queued() {
            self.waiting.insert(workload.place(), uid.clone());
        } else if !workload.has_ended() {
            self.bound.insert(uid.clone());
        }
        if let Some(changes) = self.changes.get_mut() {
            changes.workloads.insert(uid.clone());
        }
        self.workloads.insert(uid, Arc::new(workload));
    }

    fn change(&mut self, uid: &Uid, change: impl FnOnce(&mut Workload)) {
        let mut workload = Workload::clone(&self.workloads[uid]);
        change(&mut workload);
        let version: u64 = workload.version.parse().expect("a number");
        workload.version = (version + 1).to_string().into();
        self.put(workload);
    }
}

impl Lookup for Store {
    fn bound(&self) -> Vec<Arc<Workload>> {
        let workload = |uid| self.workloads.get(uid).cloned();
        self.bound.iter().filter_map(workload).collect()
    }

    fn workload(&self, uid: &Uid) -> Option<Arc<Workload>> {
        self.workloads.get(uid).cloned()
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Workload>>> {
        let mut contending = self.contending.borrow_mut();
        if contending.len() != uids.len() || !uids.iter().all(|uid| contending.contains(*uid)) {
            *contending = uids.iter().copied().cloned().collect();
        }
        uids.iter().map(|uid| self.workload(uid)).collect()
    }

    fn touched(&self) -> BTreeSet<Uid> {
        BTreeSet::new()
    }

    fn life(&self, _session: &SessionId) -> Option<SessionState> {
        Some(SessionState::Renewed {
            sent: self.now,
            ttl: Duration::from_mins(2),
        })
    }

    fn changes(&self) -> Option<Changes> {
        self.changes.borrow_mut().replace(Changes::default())
    }

    fn started(&self, uid: &Uid) -> Option<Arc<Workload>> {
        self.workload(uid).filter(|_| self.bound.contains(uid))
    }

    fn waiting(&self, reach: &Reach<'_>) -> Vec<Arc<Workload>> {
        let workload = |uid| self.workloads.get(uid).cloned();
        self.waiting
            .values()
            .take(reach.most)
            .filter_map(workload)
            .collect()
    }

    fn contends(&self, uid: &Uid, session: Option<&SessionId>) -> Option<Arc<Workload>> {
        let mut contending = self.contending.borrow_mut();
        if session.is_some() {
            contending.insert(uid.clone());
        } else {
            contending.remove(uid);
        }
        self.workload(uid).filter(|_| session.is_some())
    }
}

/// A minimal Consul.
#[derive(Default)]
struct Consul {
    entries: BTreeMap<String, Entry>,
    index: u64,
    sessions: u64,
}

impl Consul {
    fn put(&mut self, key: &str, value: Vec<u8>, session: Option<SessionId>) -> Entry {
        let created = self.entries.get(key).map(|entry| entry.create_index);
        let entry = Entry {
            key: key.to_owned(),
            value,
            flags: SEMAPHORE_FLAGS,
            session,
            lock_index: 1,
            create_index: created.unwrap_or(self.index),
            modify_index: self.index,
        };
        self.entries.insert(key.to_owned(), entry.clone());
        Entry {
            value: Vec::new(),
            ..entry
        }
    }

    fn transact(&mut self, operations: &[Op]) -> Vec<Entry> {
        self.index += 1;
        let mut answer = Vec::new();
        for operation in operations {
            match operation {
                Op::Delete { key } | Op::DeleteCas { key, .. } => drop(self.entries.remove(key)),
                Op::Lock {
                    key,
                    value,
                    session,
                    ..
                } => answer.push(self.put(key, value.clone(), Some(session.clone()))),
                Op::Cas { key, value, .. } => answer.push(self.put(key, value.clone(), None)),
                _ => {}
            }
        }
        answer
    }

    fn listing(&self, sent: Moment) -> Listing {
        Listing {
            entries: self.entries.values().cloned().collect(),
            index: self.index,
            sent,
            reset: false,
        }
    }

    fn session(&mut self) -> SessionId {
        self.sessions += 1;
        // Unordered, as in Consul.
        let number =
            u128::from(self.sessions).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        let mut id = format!("{number:032x}");
        for hyphen in [20, 16, 12, 8] {
            id.insert(hyphen, '-');
        }
        id.as_str().into()
    }
}

struct World {
    queue: Queue,
    store: Store,
    consul: Consul,
    names: BTreeMap<SessionId, String>,
    calls: Vec<(CallId, Call)>,
    times: BTreeMap<&'static str, Duration>,
}

impl World {
    fn now(&self) -> Now {
        Now {
            moment: self.store.now,
            time: jiff::Timestamp::UNIX_EPOCH,
            jitter: 0.0,
        }
    }

    fn timed<T>(&mut self, step: &'static str, does: impl FnOnce(&mut Self) -> T) -> T {
        let began = Moment::now();
        let result = black_box(does(self));
        let took = Moment::now().since(began);
        let least = self.times.entry(step).or_insert(took);
        *least = (*least).min(took);
        while let Some(action) = self.queue.next_action() {
            if let Action::Call(id, call) = action {
                self.calls.push((id, call));
            }
        }
        result
    }

    fn pass(&mut self, step: &'static str) {
        let now = self.now();
        self.timed(step, |world| {
            world.queue.pass(now, &world.store);
            world.queue.transact(now);
        });
    }

    fn answer(&mut self, step: &'static str, id: CallId, answer: Answer) {
        let now = self.now();
        let event = Event::Answered(id, answer);
        self.timed(step, |world| world.queue.handle(event, now, &world.store));
    }

    fn list(&mut self, step: &'static str) {
        let (now, listing) = (self.now(), self.consul.listing(self.store.now));
        let event = Event::Listed(Ok(listing.into()));
        self.timed(step, |world| world.queue.handle(event, now, &world.store));
    }

    /// Answers all calls and the calls that follow from them, each with a pass.
    fn settle(&mut self) {
        while !self.calls.is_empty() {
            let (id, call) = self.calls.remove(0);
            match call {
                Call::Read { .. } => {
                    let listing = self.consul.listing(self.store.now);
                    self.answer("read answered", id, Answer::Listing(Ok(listing)));
                    self.pass("pass after read");
                }
                Call::Transact { transaction, .. } => {
                    let result = Ok(self.consul.transact(&transaction.operations));
                    let sent = self.store.now;
                    drop(transaction);
                    self.answer(
                        "2 transaction answered",
                        id,
                        Answer::Transacted { sent, result },
                    );
                    self.pass("3 pass after transaction");
                }
                Call::Resolve { sessions, .. } => {
                    let found = sessions.into_iter().filter_map(|id| {
                        Some(Session {
                            name: self.names.get(&id)?.clone(),
                            id,
                            node: "k8s-c".into(),
                            ttl: Some(Duration::from_mins(2)),
                            lock_delay: Duration::ZERO,
                            behavior: Behavior::Delete,
                            create_index: 1,
                        })
                    });
                    let found = found.collect();
                    self.answer("resolved", id, Answer::Resolved(Ok(found)));
                    self.pass("pass after resolve");
                }
                Call::CreateSession { name, .. } => {
                    let session = self.consul.session();
                    self.names.insert(session.clone(), name);
                    self.answer("6 session made", id, Answer::SessionMade(Ok(session)));
                    self.pass("7 pass after session");
                }
                Call::Write { write, .. } => {
                    let Write::Start(start) = &write else {
                        panic!("{write:?}");
                    };
                    let session = start.slot.session().clone();
                    let key = start.slot.key().to_owned();
                    self.store.change(&start.workload.uid, |workload| {
                        workload.phase = Phase::Running;
                        workload.granted = Some(Granted::by(&key, session.as_str()));
                        workload.reported = vec![session];
                    });
                    self.answer("4 start answered", id, Answer::Written(Written::Done));
                    self.pass("5 pass after start");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn workload(number: u64) -> Workload {
    Workload {
        kind: consul_semaphore::KindName::default(),
        name: format!("workload-{number:06}").into(),
        uid: format!("00000000-0000-4000-8000-{number:012}")
            .as_str()
            .into(),
        version: "1".into(),
        seen: Moment::default(),
        requests: vec![SlotRequest::one("db", None)],
        on_contention: OnContention::Wait,
        cron_job: None,
        priority: 0,
        hold: false,
        since: i64::try_from(number).expect("it fits"),
        phase: Phase::Idle,
        grace: Duration::from_secs(30),
        was_suspended: true,
        traits: consul_semaphore::Traits::default(),
        granted: None,
        reported: Vec::new(),
        wait: consul_semaphore::Wait::default(),
    }
}

fn settings(limit: u32) -> Settings {
    Settings {
        cluster: Cluster {
            name: "prod-eu".into(),
            id: "7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11".into(),
        },
        namespace: "batch".into(),
        name: "db".into(),
        key: None,
        prefix: "semaphores/batch/db".parse().expect("a prefix"),
        mode: Mode::Semaphore,
        period: None,
        limit,
        slot_names: Vec::new(),
        restrictions: Restrictions::default(),
        policy: LimitPolicy::Refuse,
        paused: false,
        fair: Some(Duration::from_secs(2)),
        pass_over: Duration::from_mins(1),
        terminating: false,
        on_slot_lost: OnSlotLost::Reacquire,
        ttl: Some(Duration::from_mins(2)),
        lock_delay: Duration::from_secs(15),
        cooldown: Duration::ZERO,
        transient: false,
        wait: consul_semaphore::WaitSettings::default(),
    }
}

/// A queue with this many holders in all slots and this many waiting workloads, as a new process finds it.
fn world(holders: u32, waiting: u64) -> World {
    let settings = settings(holders);
    let mut consul = Consul {
        index: 10,
        ..Consul::default()
    };
    let mut store = Store {
        now: Moment::from_boot(Duration::from_secs(1000)),
        ..Store::default()
    };
    let (mut names, mut held) = (BTreeMap::new(), Vec::new());
    for number in 0..u64::from(holders) + waiting {
        let mut workload = workload(number);
        if number < u64::from(holders) {
            let session = consul.session();
            let key = settings.prefix.contender_key(&session);
            let identity = settings.identity(&Target::from(&workload), 0);
            let body = consul_semaphore::ContenderBody::new(
                &settings.cluster,
                &identity,
                jiff::Timestamp::UNIX_EPOCH,
                false,
            );
            let body = serde_json::to_vec(&body).expect("JSON");
            consul.put(&key, body, Some(session.clone()));
            names.insert(session.clone(), identity.session_name());
            workload.phase = Phase::Running;
            workload.granted = Some(Granted::by(&key, session.as_str()));
            workload.reported = vec![session.clone()];
            held.push(format!("\"{session}\":true"));
        }
        store.put(workload);
    }
    let body = format!("{{\"Holders\":{{{}}},\"Limit\":{holders}}}", held.join(","));
    consul.put(&settings.prefix.lock_key(), body.into_bytes(), None);
    let mut world = World {
        queue: Queue::new(settings, vec![holders], Defence::default()),
        store,
        consul,
        names,
        calls: Vec::new(),
        times: BTreeMap::new(),
    };
    let now = world.now();
    world
        .queue
        .handle(Event::Access(Some(OPERATIONS)), now, &world.store);
    world.pass("first pass");
    world.settle();
    world.list("listed");
    world.pass("pass after listing");
    world.settle();
    world
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u32| {
        let argument = arguments.next();
        argument.map_or(default, |argument| argument.parse().expect("a number"))
    };
    let (holders, waiting, rounds) = (number(5000), number(10_000), number(50));
    let mut world = world(holders, waiting.into());
    world.times.clear();
    for round in 0..rounds {
        world.store.now = world.store.now + Duration::from_millis(20);
        let uid = workload(round.into()).uid;
        world.store.change(&uid, |workload| {
            workload.phase = Phase::Finished { at_rest: true }
        });
        world.pass("1 pass after end");
        world.settle();
        world.list("8 listed");
        world.pass("9 pass after listing");
        world.settle();
    }
    let sum: Duration = world.times.values().sum();
    for (step, took) in &world.times {
        println!("{:9.1} {step}", took.as_secs_f64() * 1e6);
    }
    println!(
        "{:9.1} all, {holders} hold, {waiting} wait",
        sum.as_secs_f64() * 1e6
    );
}
