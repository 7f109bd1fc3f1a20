//! The contender for one process's slot: a queue of one. What it waits for, and when.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time::sleep,
};

use super::{Failure, Patience, Settings, calls::Done};
use crate::stderr::Stderr;
use consul_client::{
    self as consul, Client, Listing, SessionId, WatchOptions,
    clock::{self, Moment},
};
use consul_semaphore::OnContention;
use consul_semaphore::{
    Agreement, Cluster, Defence, Granted, Job, LimitPolicy, Lock, OnSlotLost, Reading, Standing,
    engine::{CallId, Conclusion, Event, News, Queue, Write, Written},
    evidence::LATE,
    holding::{Renewal, now},
    identity,
    lock::Unreadable,
    plan::{Slot, Suspended, Taker},
    settings,
    turns::WINDOW,
};

/// How many holders a message names.
const NAMED: usize = 5;

/// What a pass came to.
pub(super) enum Step {
    /// Nothing more is to be done before something happens, at the latest at this moment.
    Rest(Moment),
    /// There is more to do.
    Again,
    /// The slot is granted.
    Granted(Slot),
    /// The process must end.
    Stop(Suspended),
}

/// What the engine looks up: the process, as the algorithm sees it, and its sessions.
pub(super) struct Store {
    pub(super) job: Arc<Job>,
    /// The sessions that are renewed: one, and while a lost slot is had again two.
    pub(super) kept: BTreeMap<SessionId, Renewal>,
}

/// Waits for a slot, holds it and gives it back.
pub(super) struct Contender {
    /// How long to wait for a slot.
    patience: Patience,
    /// The external node that owns the sessions; `None`: the agent's.
    pub(super) node: Option<String>,
    pub(super) consul: Client,
    pub(super) queue: Queue,
    pub(super) store: Store,
    /// What the engine wants done with the process.
    pub(super) asked: Option<(CallId, Write)>,
    /// Whether a question was answered on the spot, so that there is more to decide.
    pub(super) answered: bool,
    /// What the last pass came to that knew what Consul says.
    conclusion: Conclusion,
    /// Readings of the prefix, once somebody waits for one.
    readings: Option<mpsc::Receiver<Result<Listing, consul::Error>>>,
    pub(super) under_way: JoinSet<(CallId, Done)>,
    /// Sessions that are being ended.
    pub(super) ending: JoinSet<()>,
    /// Notified when something about a session changes.
    pub(super) wake: Arc<Notify>,
    /// Where people are told things.
    pub(super) stderr: Stderr,
    /// What was told, as long as it is so.
    told: BTreeSet<&'static str>,
}

impl Contender {
    pub(super) fn new(settings: &Settings, consul: Client, stderr: Stderr) -> Self {
        let program = settings.command.first().map(Path::new);
        let program = program.and_then(Path::file_name).unwrap_or_default();
        let uid = format!("{}-{:08x}", std::process::id(), fastrand::u32(..));
        let policy = settings::Settings {
            cluster: Cluster {
                name: settings.host.clone(),
                id: settings.host.clone(),
            },
            namespace: identity::NONE.to_owned(),
            name: identity::NONE.to_owned(),
            key: None,
            prefix: settings.prefix.clone(),
            mode: settings.mode,
            limit: settings.limit,
            policy: LimitPolicy::Refuse,
            paused: false,
            terminating: false,
            on_slot_lost: if settings.goes_on {
                OnSlotLost::Continue
            } else {
                OnSlotLost::Suspend
            },
            ttl: Some(settings.ttl),
            lock_delay: settings.lock_delay,
            cooldown: settings.cooldown,
            transient: true,
            fair: settings.fair.then_some(WINDOW),
        };
        let job = Job {
            name: identity::name_of(&program.to_string_lossy()).into(),
            uid: uid.as_str().into(),
            version: Arc::default(),
            seen: Moment::now(),
            wants: Some(policy.name.as_str().into()),
            key: None,
            // Nothing is made for who does not wait.
            on_contention: if settings.patience == Patience::None {
                OnContention::Skip
            } else {
                OnContention::Wait
            },
            cron_job: None,
            priority: settings.priority,
            hold: false,
            since: clock::time().as_second(),
            standing: Standing::Idle,
            grace: settings.kill_after + LATE,
            was_suspended: false,
            granted: None,
            reported: None,
        };
        // Only what this process asks for is its own: it moves nobody's limit.
        let mut queue = Queue::new(policy, vec![settings.limit], Defence::default());
        queue.believe_at_once();
        let mut contender = Self {
            patience: settings.patience,
            node: settings.node.clone(),
            queue,
            store: Store {
                job: Arc::new(job),
                kept: BTreeMap::new(),
            },
            asked: None,
            answered: false,
            conclusion: Conclusion::default(),
            readings: None,
            under_way: JoinSet::new(),
            ending: JoinSet::new(),
            wake: Arc::new(Notify::new()),
            stderr,
            told: BTreeSet::new(),
            consul,
        };
        let capacity = contender.consul.transaction_capacity();
        contender.handle(Event::Reach(Some(capacity)));
        contender
    }

    /// Shows the engine something that happened.
    pub(super) fn handle(&mut self, event: Event) {
        self.queue.handle(event, now(), &self.store);
        self.carry_out();
    }

    /// One pass, and what comes of it.
    pub(super) fn pass(&mut self) -> Step {
        self.handle(Event::Capacity(self.consul.transaction_capacity()));
        let conclusion = self.queue.pass(now(), &self.store);
        if conclusion.certain {
            self.conclusion = conclusion;
        }
        self.carry_out();
        let unheld = "the slot is lost, and there is no other one: the command goes on";
        let goes_on = !self.conclusion.unheld.is_empty();
        self.tell("unheld", goes_on.then_some(unheld));
        let rest = if std::mem::take(&mut self.answered) {
            Step::Again
        } else {
            Step::Rest(self.queue.next_timeout())
        };
        self.step().unwrap_or(rest)
    }

    /// The process has changed.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Job)) {
        let job = Arc::make_mut(&mut self.store.job);
        change(job);
        // What was proved of it before counts no more.
        job.version = format!("{:?}", Moment::now()).into();
    }

    /// Waits for a slot.
    ///
    /// This and the others may be dropped at any time: what was under way is looked up by the next.
    pub(super) async fn acquire(&mut self) -> Result<Slot, Failure> {
        loop {
            match self.pass() {
                Step::Granted(slot) => return Ok(slot),
                Step::Rest(next) => {
                    if let Some(failure) = self.hopeless() {
                        return Err(failure);
                    }
                    self.tell_waiting();
                    self.something(next).await;
                }
                Step::Again | Step::Stop(_) => {}
            }
        }
    }

    /// The process runs in this slot.
    pub(super) fn runs(&mut self, slot: &Slot) {
        self.change(|job| {
            job.standing = Standing::Running;
            job.granted = Some(Granted::by(slot.key(), slot.session().as_str()));
            job.reported = Some(slot.session().clone());
        });
        self.answer_what_was_asked(Written::Done);
    }

    /// Holds the slot while the process runs; returns when the process must end.
    pub(super) async fn hold(&mut self) -> Suspended {
        loop {
            match self.pass() {
                Step::Stop(why) => {
                    self.change(|job| job.standing = Standing::Stopping);
                    return why;
                }
                Step::Rest(next) => {
                    self.tell_trouble("the command goes on for now");
                    self.something(next).await;
                }
                Step::Again | Step::Granted(_) => {}
            }
        }
    }

    /// What to say when there was no slot for as long as was to be waited.
    pub(super) fn out_of_patience(&self) -> Failure {
        let Patience::Until(patience) = self.patience else {
            return self.taken();
        };
        match self.queue.trouble() {
            Some(trouble) => Failure::of(&trouble.error),
            None => Failure::OutOfPatience {
                prefix: self.queue.settings().prefix.clone(),
                patience,
                holders: self.holders(),
            },
        }
    }

    /// Why there is no use in waiting for a slot, if there is none.
    fn hopeless(&self) -> Option<Failure> {
        // What is under way may bring one, or tell more.
        if !self.under_way.is_empty() {
            return None;
        }
        let once = self.patience == Patience::None;
        if let Some(trouble) = self.queue.trouble() {
            let failure = Failure::of(&trouble.error);
            return (once || matches!(failure, Failure::Refused(_))).then_some(failure);
        }
        let prefix = &self.queue.settings().prefix;
        match self.queue.reading().map(Reading::lock) {
            // What is left over is removed once it has rested.
            Some(Lock::Unreadable(why)) if !matches!(why, Unreadable::LeftOver { .. }) => {
                let remedy = match why {
                    Unreadable::Mutex => "Give --mode mutex, or another --prefix",
                    Unreadable::Semaphore => "Leave --mode mutex out, or give another --prefix",
                    _ => "Give another --prefix, or delete the key if nobody needs it",
                };
                let text = format!("{prefix}/.lock: {why}. {remedy}");
                return Some(Failure::Conflict(text));
            }
            _ => {}
        }
        if let Some(Agreement::Conflict { theirs }) = self.conclusion.agreement {
            let ours = self.queue.settings().limit;
            return Some(Failure::Conflict(format!(
                "the limit of {prefix} is {theirs} in Consul, not {ours}: all who use it must have \
                 the same. Give --limit {theirs}, or delete {prefix}/.lock once nobody uses it"
            )));
        }
        // One that is granted already is had when its session has been renewed.
        let own = |reading: &Reading| self.store.kept.keys().any(|own| reading.holds(own));
        let seen = self.queue.reading().is_some_and(|reading| !own(reading));
        (once && seen && !self.rests()).then(|| self.taken())
    }

    /// Whether nothing else is in the way of a slot than what somebody who is gone has left, which goes
    /// when it has rested. That is waited for also by who does not wait: where nobody waited for it, it
    /// would never go.
    fn rests(&self) -> bool {
        let Some(reading) = self.queue.reading() else {
            return false;
        };
        match reading.lock() {
            Lock::Unreadable(Unreadable::LeftOver { .. }) => true,
            Lock::Semaphore { body, .. } => {
                let live = body.held() - reading.dead_holders().len();
                body.room() == 0 && live < usize::try_from(body.limit()).unwrap_or(usize::MAX)
            }
            _ => false,
        }
    }

    fn taken(&self) -> Failure {
        Failure::Taken {
            prefix: self.queue.settings().prefix.clone(),
            holders: self.holders(),
        }
    }

    /// Who holds the slots, for people.
    fn holders(&self) -> String {
        let Some(reading) = self.queue.reading() else {
            return "nobody knows who holds them".to_owned();
        };
        let (limit, holders): (_, Vec<_>) = match reading.lock() {
            Lock::Semaphore { body, .. } if body.room() > 0 => {
                return "others wait who come first".to_owned();
            }
            Lock::Semaphore { body, .. } => (body.limit(), body.holders().collect()),
            Lock::Mutex { holder, .. } if holder.is_none() => {
                return "its lock-delay runs".to_owned();
            }
            Lock::Mutex { holder, .. } => (1, holder.iter().collect()),
            Lock::Absent { .. } | Lock::Unreadable(_) => return "nobody holds one".to_owned(),
        };
        let name =
            |session: &SessionId| Taker::new(session, reading.contender(session)).describe(None);
        let held = holders.len();
        let mut named: Vec<_> = holders.into_iter().take(NAMED).map(name).collect();
        if held > NAMED {
            named.push(format!("{} more", held - NAMED));
        }
        format!("{held} of {limit} held, by {}", named.join("; by "))
    }

    fn tell_waiting(&mut self) {
        let prefix = &self.queue.settings().prefix;
        let text = format!("waiting for a slot of {prefix}");
        let rest = format!("waiting until what is left at {prefix} has rested");
        let (works, rests) = (self.queue.trouble().is_none(), self.rests());
        self.tell("rest", rests.then_some(rest));
        self.tell("waiting", (works && !rests).then_some(text));
        self.tell_trouble("waiting");
    }

    fn tell_trouble(&mut self, meanwhile: &str) {
        let trouble = self.queue.trouble();
        let text = trouble.map(|trouble| format!("{}; {meanwhile}", trouble.error));
        self.tell("trouble", text.as_ref());
    }

    /// Says once what is so about something, until it is not so any more.
    pub(super) fn tell(&mut self, about: &'static str, text: Option<impl AsRef<str>>) {
        match text {
            Some(text) if self.told.insert(about) => self.stderr.say(text.as_ref()),
            Some(_) => {}
            None => {
                self.told.remove(about);
            }
        }
    }

    /// Waits until something happens, or until then. While a slot is held it is looked at the time every
    /// second, which asks Consul nothing: what wakes this task does not run while the machine sleeps, and
    /// the session does.
    pub(super) async fn something(&mut self, next: Moment) {
        let mut left = next.since(Moment::now());
        if self.store.job.granted.is_some() {
            left = left.min(LATE);
        }
        let wait = self.queue.settings().span() / 5;
        let readings = self.readings.get_or_insert_with(|| {
            let options = WatchOptions {
                wait,
                ..WatchOptions::default()
            };
            self.consul
                .readings(&self.queue.settings().prefix.folder(), options)
        });
        tokio::select! {
            Some(listing) = readings.recv() => self.handle(Event::Listed(listing.map(News::from))),
            Some(ended) = self.under_way.join_next() => match ended {
                Ok(ended) => self.settle(ended),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
            Some(_) = self.ending.join_next() => {}
            () = self.wake.notified() => {}
            () = sleep(left) => {}
        }
    }
}
