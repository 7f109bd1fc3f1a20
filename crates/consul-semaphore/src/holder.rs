//! One slot for one program: the [engine](crate::engine) with one workload in it, and the Consul client that carries
//! out its calls.
//!
//! To the engine the program is a workload like a Job: idle while it waits, running once it has its slot, finished
//! when it gives the slot back. The order, the limit, pruning and lost slots are decided by the same code as for
//! Jobs. Nothing here decides about slots.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use consul_client::{Client, Config};
//! use consul_semaphore::{Mode, OnSlotLost, holder::{Holder, SessionSettings, Settings}};
//!
//! # async fn work() {}
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = Settings {
//!     prefix: "semaphores/batch/db".parse()?,
//!     mode: Mode::Semaphore,
//!     limit: 2,
//!     priority: 0,
//!     fair: true,
//!     wait: true,
//!     host: "ci-7".to_owned(),
//!     program: "migrate".to_owned(),
//!     session: SessionSettings {
//!         node: None,
//!         ttl: Duration::from_secs(60),
//!         lock_delay: Duration::from_secs(15),
//!     },
//!     cooldown: Duration::ZERO,
//!     on_slot_lost: OnSlotLost::Suspend,
//!     grace: Duration::from_secs(10),
//! };
//! let consul = Client::new(Config::default())?;
//! let mut holder = Holder::new(settings, consul, |notice| println!("{notice:?}"));
//! let slot = holder.acquire().await?;
//! holder.started(&slot);
//! tokio::select! {
//!     () = work() => {}
//!     why = holder.hold() => println!("{why:?}: the work has to end within the grace"),
//! }
//! holder.finished();
//! holder.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `calls` | the calls to Consul, and the sessions that are renewed |
//! | `program` | the program as the engine sees it |
//! | `obstacle` | why there is no slot, or none yet |

mod calls;
mod obstacle;
mod program;

use std::{collections::BTreeSet, time::Duration};

use tokio::{sync::mpsc, time::sleep};

use self::{
    calls::{Calls, Done},
    program::Program,
};
pub use self::{
    obstacle::AcquireError,
    program::{SessionSettings, Settings},
};
use crate::{
    Lock, Phase, Reading, Workload,
    engine::{
        Action, Answer, Call, CallId, Conclusion, Duty, Effect, Engine, IDLE, Outcome, Queue,
        QueueRef, Write, Written,
    },
    evidence::LATE,
    holding::now,
    plan::{Start, Suspended},
};
use consul_client::{self as consul, Client, Listing, WatchOptions, clock::Moment};

/// How long a release may take, beside the cooldown of the slot. Anything left then expires with the session.
const RELEASE: Duration = Duration::from_secs(10);

/// Something to report to the user, once each time that it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It waits for a slot: others hold them, or come first.
    Waiting {
        /// Who holds them, for people.
        holders: String,
    },
    /// It has a slot.
    Granted {
        /// How long it waited for others; `None` if it had not to.
        waited: Option<Duration>,
        /// Whether the prefix was unused before: it may be misspelt.
        created: bool,
    },
    /// It waits for the lock-delay of a dead holder.
    Resting,
    /// Consul can't be used. The holder tries again.
    Trouble {
        /// The problem.
        error: consul::Error,
        /// Whether a slot is held meanwhile.
        holding: bool,
    },
    /// The slot was lost, and another one was granted.
    Regained,
    /// The slot is lost and no other one is free, and the work continues because of [`Settings::on_slot_lost`].
    Unheld,
}

/// A slot or place could not be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Consul does not answer")]
pub struct NotReleased;

/// What a holder that ends now leaves in Consul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remains {
    /// Whether it is a slot; otherwise it is a place in the queue.
    pub slot: bool,
    /// After how long the session has expired, at the latest.
    pub within: Duration,
}

/// What the engine wants done with the program.
#[derive(Clone, Debug)]
enum Wanted {
    Start(Start),
    Stop(Suspended),
    /// A request that can't be carried out now. The next pass makes it again, so it is answered only once something
    /// has happened.
    Nothing,
}

/// Waits for a slot, holds it and gives it back.
///
/// Its futures may be dropped at any time: the next one picks up what was under way. While none of them is awaited,
/// sessions are still renewed, but nothing else is done. A dropped holder lets its sessions expire.
pub struct Holder {
    settings: Settings,
    engine: Engine,
    queue: QueueRef,
    program: Program,
    calls: Calls,
    wanted: Option<(CallId, Wanted)>,
    /// Readings of the prefix, once a future waits for one.
    readings: Option<mpsc::Receiver<Result<Listing, consul::Error>>>,
    notices: Notices,
    /// Since when it waits for others.
    waits_since: Option<Moment>,
    /// Whether the prefix was unused when it was last read, before there was a slot.
    unused: bool,
    /// When a release is given up.
    given_up: Moment,
}

/// The public interface.
impl Holder {
    /// Does nothing in Consul yet. `on_notice` is called with each notice for the user.
    pub fn new(
        settings: Settings,
        consul: Client,
        on_notice: impl Fn(Notice) + Send + 'static,
    ) -> Self {
        let (program, queue) = (Program::new(&settings), program::queue());
        let mut engine = Engine::default();
        let (semaphore, capacity) = (settings.semaphore(), consul.transaction_capacity());
        engine.add_standalone(&queue.semaphore, semaphore, capacity, now(), &program);
        Self {
            engine,
            queue,
            program,
            calls: Calls::new(consul, settings.session.node.clone()),
            wanted: None,
            readings: None,
            notices: Notices {
                on: Box::new(on_notice),
                reported: BTreeSet::new(),
            },
            waits_since: None,
            unused: false,
            given_up: Moment::END,
            settings,
        }
    }

    /// Waits for all that it asks for. Call [`Self::started`] when the work has begun.
    ///
    /// # Errors
    /// Waiting is useless, or the settings say not to wait.
    pub async fn acquire(&mut self) -> Result<Start, AcquireError> {
        loop {
            self.work();
            if let Some((_, Wanted::Start(start))) = &self.wanted {
                let waited = self.waits_since.map(|since| Moment::now().since(since));
                let created = self.unused;
                (self.notices.on)(Notice::Granted { waited, created });
                return Ok(start.clone());
            }
            self.unused = self.unused_before().unwrap_or(self.unused);
            if let Some(error) = self.hopeless() {
                return Err(error);
            }
            self.report_waiting();
            self.something().await;
        }
    }

    /// The work has begun in these slots.
    pub fn started(&mut self, start: &Start) {
        self.change(|workload| {
            workload.phase = Phase::Running;
            workload.granted = Some(start.granted());
            workload.reported = start.sessions().cloned().collect();
        });
    }

    /// Holds the slot while the work continues; returns when the work must end, within [`Settings::grace`].
    pub async fn hold(&mut self) -> Suspended {
        loop {
            self.work();
            if let Some((_, Wanted::Stop(why))) = self.wanted {
                return why;
            }
            self.report_trouble(true);
            self.something().await;
        }
    }

    /// The work has ended, or will not begin: [`Self::release`] gives back what is held.
    pub fn finished(&mut self) {
        self.change(|workload| {
            workload.phase = if workload.granted.is_some() {
                Phase::Finished { at_rest: true }
            } else {
                Phase::Deleting
            };
        });
        self.given_up = Moment::now() + RELEASE;
    }

    /// Gives back what is held: a slot once it has cooled down, or the place in the queue. Call [`Self::finished`]
    /// first.
    ///
    /// # Errors
    /// Consul has not answered for too long: [`Self::remains`] says what stays.
    pub async fn release(&mut self) -> Result<(), NotReleased> {
        while self.has_anything() {
            self.work();
            if let Some(end) = self.cools_until() {
                self.given_up = self.given_up.max(end + RELEASE);
            }
            if self.given_up <= Moment::now() {
                return Err(NotReleased);
            }
            if self.has_anything() {
                self.something().await;
            }
        }
        Ok(())
    }

    /// When the slot becomes free, if it cools down.
    pub fn cools_until(&self) -> Option<Moment> {
        let cooldowns = self.queue()?.cooldowns();
        let sessions = self.program.sessions.keys();
        sessions.filter_map(|session| cooldowns.end(session)).max()
    }

    /// What stays in Consul if this ends now; `None` if that is nothing. (A session without a key expires.)
    pub fn remains(&self) -> Option<Remains> {
        (!self.program.sessions.is_empty()).then(|| Remains {
            slot: self.program.workload.granted.is_some(),
            // Consul ends a session between one and two TTLs after it was last renewed.
            within: self.settings.session.ttl * 2,
        })
    }

    /// Why there is no slot yet.
    pub fn why_waiting(&self) -> AcquireError {
        match self.queue().and_then(Queue::trouble) {
            Some(trouble) => AcquireError::of(&trouble.error),
            None => self.taken(),
        }
    }
}

/// State.
impl Holder {
    fn queue(&self) -> Option<&Queue> {
        self.engine.queue(&self.queue)
    }

    fn reading(&self) -> Option<&Reading> {
        self.queue()?.reading()
    }

    /// The result of the last pass, if it knew what Consul says.
    fn conclusion(&self) -> Option<&Conclusion> {
        let semaphore = self.engine.semaphore(&self.queue.semaphore)?;
        let (conclusion, _) = semaphore.queues().get(&None)?.concluded.as_ref()?;
        conclusion.certain.then_some(conclusion)
    }

    /// Whether a session exists that is not ended yet, or one may be being made.
    fn has_anything(&self) -> bool {
        !self.program.sessions.is_empty()
            || self.calls.is_ending_sessions()
            || self.queue().is_some_and(Queue::makes_sessions)
    }

    /// Why waiting for a slot is useless, if it is.
    fn hopeless(&self) -> Option<AcquireError> {
        // A pending call may bring a slot, or a better error.
        if self.calls.are_under_way() {
            return None;
        }
        let queue = self.queue()?;
        let once = !self.settings.wait;
        if let Some(trouble) = queue.trouble() {
            let error = AcquireError::of(&trouble.error);
            let refused = matches!(error, AcquireError::Refused(_));
            return (once || refused).then_some(error);
        }
        if self.settings.must_exist && self.unused {
            return Some(AcquireError::Absent(self.settings.prefix.clone()));
        }
        let agreement = self.conclusion().and_then(|last| last.agreement);
        let conflict = AcquireError::conflict(&self.settings, queue.reading(), agreement);
        conflict.or_else(|| {
            // A slot that is granted already is ready once its session has been renewed.
            let seen = queue
                .reading()
                .is_some_and(|reading| !self.program.is_among(reading));
            (once && seen && !self.rests()).then(|| self.taken())
        })
    }

    /// Whether the prefix is unused, as it was last read; `None` if it was not read, or the reading has this
    /// program's own slot.
    fn unused_before(&self) -> Option<bool> {
        let reading = self.reading()?;
        let absent = matches!(reading.lock(), Lock::Absent { .. });
        (!self.program.is_among(reading)).then(|| absent && !self.others_wait(reading))
    }

    /// Whether others have contenders at the prefix.
    fn others_wait(&self, reading: &Reading) -> bool {
        let mut contenders = reading.contenders();
        contenders.any(|(session, _)| !self.program.sessions.contains_key(session))
    }

    /// Whether somebody prevents a slot, as far as is known.
    fn others_are_in_the_way(&self) -> bool {
        let Some(reading) = self.reading() else {
            return false;
        };
        let free = match reading.lock() {
            Lock::Semaphore { body, .. } => body.room() > 0 && !self.others_wait(reading),
            Lock::Absent { .. } => !self.others_wait(reading),
            Lock::Mutex { .. } | Lock::Unreadable(_) => false,
        };
        !free && !self.program.is_among(reading)
    }

    fn rests(&self) -> bool {
        self.reading().is_some_and(obstacle::rests)
    }

    fn taken(&self) -> AcquireError {
        AcquireError::Taken {
            prefix: self.settings.prefix.clone(),
            holders: obstacle::holders(self.reading()),
        }
    }
}

/// The loop: passes events to the engine and carries out its effects.
impl Holder {
    /// Decides what follows from what has happened, and carries that out.
    fn work(&mut self) {
        self.carry_out();
        while self.engine.pass(now(), &self.program).is_some() {
            self.carry_out();
        }
        if let Some(last) = self.conclusion() {
            let unheld = !last.unheld.is_empty();
            if self.notices.begins("unheld", unheld) {
                (self.notices.on)(Notice::Unheld);
            }
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.engine.next_effect() {
            match effect {
                Effect::Queue(_, action) => self.act(action),
                // Nobody else reads the record.
                Effect::Semaphore(semaphore, Duty::RecordLimits(limits)) => {
                    self.engine
                        .recorded(&semaphore, &limits, now(), &self.program);
                }
                // There is no object, and the sessions have a TTL.
                Effect::Semaphore(
                    _,
                    Duty::AddFinalizer
                    | Duty::RemoveFinalizer
                    | Duty::LeaveBehind
                    | Duty::ListSessions
                    | Duty::EndSession(_),
                )
                | Effect::Closed(_) => {}
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Call(id, call) => self.call(id, call),
            Action::Destroy(session) => {
                if self.program.forget(&session) {
                    self.calls.end_session(session);
                }
            }
            Action::Forget(session) => drop(self.program.forget(&session)),
            Action::Report(Outcome::Granted { grant, .. }) if !grant.starts => {
                (self.notices.on)(Notice::Regained);
            }
            // The caller knows everything else from its own calls, and no foreign session is adopted.
            Action::Adopt(_) | Action::Report(_) => {}
        }
    }

    /// Makes a call, or answers it at once if it needs no request.
    fn call(&mut self, id: CallId, call: Call) {
        let answer = match call {
            Call::Read { not_after } => {
                let folder = self.settings.prefix.folder();
                return self.calls.list(id, folder, not_after);
            }
            Call::Transact {
                transaction,
                not_after,
            } => return self.calls.transact(id, transaction, not_after),
            Call::CreateSession {
                name,
                ttl,
                lock_delay,
            } => return self.calls.create_session(id, name, ttl, lock_delay),
            Call::Write { write, .. } => match self.write(id, write) {
                Some(written) => Answer::Written(written),
                None => return,
            },
            Call::Prove(_) => self.program.proof(),
            // Only the sessions that were made here are this program's.
            Call::Resolve { .. } => Answer::Resolved(Ok(Vec::new())),
            Call::Describe(_) => Answer::Described(Ok(None)),
            Call::AskAccess => Answer::Access(Some(true)),
        };
        self.answer(id, answer);
    }

    /// Asks the caller to start or stop the work; `None` means that there is no answer yet.
    fn write(&mut self, id: CallId, write: Write) -> Option<Written> {
        let wanted = match (write, self.program.workload.phase) {
            (Write::Start(start), Phase::Idle) => Wanted::Start(start),
            (Write::Suspend(suspend), Phase::Running) => Wanted::Stop(suspend.why),
            // It has ended in the meantime.
            (Write::Suspend(_), _) => return Some(Written::Done),
            (Write::Rename(rename), _) => {
                self.program
                    .change(|workload| workload.reported = rename.sessions);
                return Some(Written::Done);
            }
            // It is about to be given back.
            (Write::Start(_), _) => return Some(Written::NotSent),
            // [`Self::acquire`] returns an error to a caller that does not wait.
            (Write::GiveBack(_) | Write::Skip(_) | Write::Fail(_) | Write::End(_), _) => {
                Wanted::Nothing
            }
        };
        if let Wanted::Stop(_) = wanted {
            self.program
                .change(|workload| workload.phase = Phase::Stopping);
        }
        self.wanted = Some((id, wanted));
        None
    }

    /// The work has changed: what was wanted of it is done, or outdated.
    fn change(&mut self, change: impl FnOnce(&mut Workload)) {
        self.program.change(change);
        if let Some((id, _)) = self.wanted.take() {
            self.answer(id, Answer::Written(Written::Done));
        }
        self.engine.touched(&self.queue, now(), &self.program);
    }

    /// Waits until something happens, or until something is due. While a slot is held it wakes every second to read
    /// the clock, which asks Consul nothing: timers stand still while the machine sleeps, and the session does not.
    async fn something(&mut self) {
        let moment = Moment::now();
        let next = self.engine.next_timeout(moment).unwrap_or(moment + IDLE);
        let mut left = next.min(self.given_up).since(moment);
        if self.program.workload.granted.is_some() {
            left = left.min(LATE);
        }
        let readings = self.readings.get_or_insert_with(|| {
            let options = WatchOptions {
                wait: self.settings.session.ttl / 5,
                ..WatchOptions::default()
            };
            let folder = self.settings.prefix.folder();
            self.calls.consul.readings(&folder, options)
        });
        tokio::select! {
            Some(listing) = readings.recv() => {
                let semaphore = &self.queue.semaphore;
                self.engine.listed(semaphore, listing, now(), &self.program);
            }
            ended = self.calls.next() => match ended {
                Some((id, done)) => self.settle(id, done),
                None => self.engine.touched(&self.queue, now(), &self.program),
            },
            () = sleep(left) => {}
        }
        let nothing = |(_, wanted): &mut (CallId, Wanted)| matches!(wanted, Wanted::Nothing);
        if let Some((id, _)) = self.wanted.take_if(nothing) {
            self.answer(id, Answer::Written(Written::NotSent));
        }
    }

    /// Shows the engine how a call ended.
    fn settle(&mut self, id: CallId, done: Done) {
        let capacity = self.calls.consul.transaction_capacity();
        self.engine.capacity(id, capacity, now(), &self.program);
        let answer = match done {
            Done::Answer(answer) => answer,
            Done::Session(made) => Answer::SessionMade(made.map(|(session, life)| {
                let renewal = self.calls.renew(session.clone(), life);
                self.program.sessions.insert(session.clone(), renewal);
                session
            })),
        };
        self.answer(id, answer);
    }

    fn answer(&mut self, id: CallId, answer: Answer) {
        self.engine.answered(id, answer, now(), &self.program);
    }

    fn report_waiting(&mut self) {
        let works = self.queue().and_then(Queue::trouble).is_none();
        let rests = self.rests();
        if self.notices.begins("rest", rests) {
            (self.notices.on)(Notice::Resting);
        }
        let waits = works && !rests && self.others_are_in_the_way();
        if waits {
            self.waits_since.get_or_insert_with(Moment::now);
        }
        if self.notices.begins("waiting", waits) {
            let holders = obstacle::holders(self.reading());
            (self.notices.on)(Notice::Waiting { holders });
        }
        self.report_trouble(false);
    }

    fn report_trouble(&mut self, holding: bool) {
        let trouble = self.queue().and_then(Queue::trouble).is_some();
        if self.notices.begins("trouble", trouble)
            && let Some(trouble) = self.queue().and_then(Queue::trouble)
        {
            let error = trouble.error.clone();
            (self.notices.on)(Notice::Trouble { error, holding });
        }
    }
}

/// Reports to people.
struct Notices {
    on: Box<dyn Fn(Notice) + Send>,
    /// The kinds of notices that were reported and still hold.
    reported: BTreeSet<&'static str>,
}

impl Notices {
    /// Whether a notice is to be reported: once, until it no longer holds. It is worded only then.
    fn begins(&mut self, about: &'static str, holds: bool) -> bool {
        if holds {
            self.reported.insert(about)
        } else {
            self.reported.remove(about);
            false
        }
    }
}
