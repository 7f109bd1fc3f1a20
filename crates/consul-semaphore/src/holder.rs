//! Slots for one program: the [engine](crate::engine) with one workload in it, and the Consul client that carries
//! out its calls.
//!
//! To the engine the program is a workload like a Job: idle while it waits, running once it has its slots, finished
//! when it gives them back. The order, the limit, pruning and lost slots are decided by the same code as for
//! Jobs. Nothing here decides about slots.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use consul_client::{Client, Config};
//! use consul_semaphore::{Mode, OnSlotLost, holder::{Holder, HolderKind, Request, SessionSettings, HolderSettings}};
//!
//! # async fn work() {}
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = HolderSettings {
//!     request: Request::one("semaphores/batch/db".parse()?, Mode::Semaphore, 2)?,
//!     priority: 0,
//!     fair: true,
//!     wait: true,
//!     must_exist: false,
//!     kind: HolderKind::Program,
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
//! let slots = holder.acquire().await?;
//! holder.started(&slots);
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
//! | `approach` | the wait behind others |
//! | `calls` | the calls to Consul, and the sessions that are renewed |
//! | `program` | the program as the engine sees it |
//! | `obstacle` | the reason why there is no slot, or none yet |
//! | `request` | the slots that are asked for, of one or several semaphores |
//! | `slot_watch` | whether the slots still count as held, by the clock |
//! | `watched` | one of these semaphores, and how its prefix is followed |

mod approach;
mod calls;
mod obstacle;
mod program;
mod request;
mod slot_watch;
mod watched;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::sleep;

pub(crate) use self::slot_watch::SlotWatch;
use self::{
    calls::{CallResult, ConsulCalls},
    obstacle::{SemaphoreView, conclusion},
    program::Program,
    slot_watch::SlotInUse,
    watched::{Watched, next_reading},
};
pub use self::{
    obstacle::{AcquireError, Missing},
    program::{HolderKind, HolderSettings, SessionSettings},
    request::{InvalidRequest, Request, SlotsOf},
};
use crate::{
    Granted, GrantedSlot, OnSlotLost, Phase, Prefix, SessionState, Uid, Workload,
    engine::{
        Action, Answer, Call, CallId, Duty, Effect, Engine, IDLE, Outcome, Queue, Write, Written,
    },
    evidence::LATE,
    holding::now,
    lock_key_of,
    plan::{self, Start, Suspended, Transaction},
};
use consul_client::{self as consul, Client, Session, SessionId, clock::Moment};

/// The shortest time that a release may take, beside the cooldown of the slot. The model's programs and their Consul
/// share one thread, which may have to wait for longer than ten seconds beside a machine that is busy with other work.
const SHORTEST_RELEASE_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 300 } else { 10 });

/// The longest time that a release may take, beside the cooldown of the slot, because the program waits for it.
const LONGEST_RELEASE_TIMEOUT: Duration = Duration::from_mins(if cfg!(test) { 5 } else { 1 });

/// Something to report to the user, once each time that it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The program waits for slots of this semaphore, because others hold them or come first, or because no window is
    /// open.
    Waiting(Missing),
    /// The program waits in the [fair order](HolderSettings::fair), and would be granted its slots if all holders ended now.
    /// The program can get ready what it will need then. There is no such notice for slots of a mutex, which have no
    /// order, or of a rate.
    Near,
    /// The program has all its slots.
    Granted {
        /// The time for which the program waited for others; `None` if it did not have to wait.
        waited: Option<Duration>,
        /// The prefixes that were unused before, because they may be misspelt.
        created: Vec<Prefix>,
    },
    /// The program waits for the lock-delay of a dead holder at this prefix.
    Resting(Prefix),
    /// Consul can't be used. The holder tries again.
    Trouble {
        /// The problem.
        error: consul::Error,
        /// Whether slots are held meanwhile.
        holding: bool,
    },
    /// Another program has changed the limit of this semaphore in Consul, and this program uses the new limit from now
    /// on.
    LimitChanged {
        /// The semaphore.
        prefix: Prefix,
        /// The limit that this program used before.
        from: u32,
        /// The limit that this program uses from now on.
        to: u32,
    },
    /// A slot at this prefix was lost, and another one was granted.
    Regained(Prefix),
    /// A slot at this prefix is lost and no other one is free, and the work continues because of
    /// [`HolderSettings::on_slot_lost`].
    Unheld(Prefix),
    /// A slot, or a place in the queue, could not be given back, and no call returns that as an error.
    StillHeld(StillHeld),
}

impl Notice {
    /// Whether the notice only says how the wait goes on, and nothing goes wrong.
    pub fn is_progress(&self) -> bool {
        matches!(
            self,
            Self::Waiting(_) | Self::Granted { .. } | Self::Resting(_) | Self::LimitChanged { .. }
        )
    }
}

/// The reason why the work must end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", match why {
    Suspended::SlotLost => format!("the slot of {prefix} is lost"),
    Suspended::Unproved => format!("it can no longer be confirmed that the slot of {prefix} is held"),
})]
pub struct Lost {
    /// The semaphore whose slot is lost.
    pub prefix: Prefix,
    /// The sign of the loss.
    pub why: Suspended,
}

/// The error of a release: a slot or a place in the queue could not be given back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NotReleased {
    /// The last error of Consul when the release was given up.
    pub why: consul::Error,
}

/// The error of a slot that could not be released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{why}: the slot is free once its session has expired, {}s from now at the latest{}{advice}",
    expires.as_secs(),
    if advice.is_empty() { "" } else { ". " }
)]
#[non_exhaustive]
pub struct StillHeld {
    /// The last error of Consul.
    pub why: consul::Error,
    /// The time after which Consul has ended the session, at the latest.
    pub expires: Duration,
    /// Advice about the error: a sentence, or nothing.
    pub advice: String,
}

/// The data that a holder leaves in Consul if it ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remains {
    /// Whether slots are left; otherwise it is a place in the queue.
    pub slots: bool,
    /// The time after which the session has expired, at the latest.
    pub within: Duration,
}

/// A change of the work that the engine wants.
#[derive(Clone, Debug)]
enum WantedChange {
    /// The work is to begin, before this moment.
    Start(Start, Moment),
    Stop(Lost),
}

/// Waits for slots, holds them and gives them back.
///
/// The futures of a holder may be dropped at any time, and the next one continues the work. While no future is awaited,
/// sessions are still renewed, but nothing else is done. A dropped holder lets its sessions expire.
pub struct Holder {
    settings: HolderSettings,
    engine: Engine,
    semaphores: Vec<Watched>,
    program: Program,
    calls: ConsulCalls,
    wanted: Option<(CallId, WantedChange)>,
    /// Requests that can't be carried out now. The next pass makes them again, so they are answered only once
    /// something has happened.
    put_off: Vec<CallId>,
    notices: Notices,
    /// The time since which the program waits for others.
    waits_since: Option<Moment>,
    /// The time at which a release is given up.
    given_up: Moment,
    /// Whether the slots that the work runs in still count as held.
    slot_watch: SlotWatch,
    returned: Returned,
}

/// The slots that were given back while they were held.
#[derive(Default)]
struct Returned {
    /// The sessions that calls under way give back.
    pending: BTreeMap<CallId, Vec<SessionId>>,
    sessions: BTreeSet<SessionId>,
    /// Whether a release without an answer may have been carried out, so that nobody knows which slots were given back.
    in_doubt: bool,
}

impl Returned {
    /// Records that a transaction is sent.
    fn note_sent(&mut self, id: CallId, transaction: &Transaction) {
        let held = transaction.releases.iter().filter(|release| release.held);
        let sessions: Vec<_> = held.map(|release| release.session.clone()).collect();
        if !sessions.is_empty() {
            self.pending.insert(id, sessions);
        }
    }

    /// Records the end of a call.
    fn note_answer(&mut self, id: CallId, answer: &Answer) {
        let Some(sessions) = self.pending.remove(&id) else {
            return;
        };
        match answer {
            Answer::Transacted { result: Ok(_), .. } => self.sessions.extend(sessions),
            Answer::Transacted {
                result: Err(error), ..
            } => self.in_doubt |= error.may_have_been_applied(),
            _ => {}
        }
    }
}

/// The public interface.
impl Holder {
    /// Makes a holder that has done nothing in Consul yet. `on_notice` is called with each notice for the user.
    pub fn new(
        settings: HolderSettings,
        consul: Client,
        on_notice: impl Fn(Notice) + Send + 'static,
    ) -> Self {
        let (program, semaphores) = (Program::new(&settings), Watched::all(&settings.request));
        let (mut engine, capacity) = (Engine::default(), consul.transaction_capacity());
        for watched in &semaphores {
            let (name, semaphore) = (&watched.queue.semaphore, settings.semaphore(watched));
            engine.add_standalone(name, semaphore, capacity, now(), &program);
        }
        Self {
            engine,
            semaphores,
            program,
            calls: ConsulCalls::new(consul, settings.session.node.clone()),
            wanted: None,
            put_off: Vec::new(),
            notices: Notices {
                on: Box::new(on_notice),
                reported: BTreeSet::new(),
            },
            waits_since: None,
            given_up: Moment::END,
            slot_watch: SlotWatch::new(settings.grace + LATE),
            returned: Returned::default(),
            settings,
        }
    }

    /// Takes over slots that an earlier holder was granted and left held. Call [`Self::finished`] and
    /// [`Self::release`] next.
    ///
    /// `slots` has all slots that were granted together, in the order in which they were asked for: the key that the
    /// slot's session has locked, and the session. `uid`, and the host and the program of the settings, are those in
    /// the names of these sessions.
    pub fn take_over(&mut self, uid: &Uid, slots: Vec<(String, Session)>) {
        let (keys, inherited): (Vec<_>, Vec<_>) = slots.into_iter().unzip();
        for session in &inherited {
            let renewal = self.calls.renew(session.id.clone(), SessionState::Unknown);
            self.program.sessions.insert(session.id.clone(), renewal);
        }
        let slots = keys
            .iter()
            .zip(&inherited)
            .map(|(key, session)| GrantedSlot {
                lock_key: lock_key_of(key).into(),
                session: session.id.clone(),
                // The slots are given back, and never granted again.
                index: None,
            });
        let granted = Granted {
            slots: slots.collect(),
        };
        self.program.inherited = inherited;
        self.change(|workload| {
            workload.uid = uid.clone();
            workload.phase = Phase::Running;
            workload.reported = granted.latest(&[]);
            workload.granted = Some(granted);
        });
    }

    /// Waits for all slots that the settings ask for. Call [`Self::started`] when the work has begun.
    ///
    /// # Errors
    /// Waiting is useless, or the settings say not to wait.
    pub async fn acquire(&mut self) -> Result<Start, AcquireError> {
        loop {
            self.work();
            if let Some((_, WantedChange::Start(start, _))) = &self.wanted {
                let waited = self.waits_since.map(|since| Moment::now().since(since));
                let created = self.created();
                (self.notices.on)(Notice::Granted { waited, created });
                return Ok(start.clone());
            }
            self.note_unused();
            if let Some(error) = self.hopeless() {
                return Err(error);
            }
            self.report_waiting();
            self.something().await;
        }
    }

    /// Records that these slots are handed to the code that works in them, which may take a while. [`Self::hold`] says
    /// meanwhile whether one of the slots is lost. [`Self::started`] or [`Self::finished`] follows. Returns the time at
    /// which it is too late to start, because the slots of a rate must be used soon after they were granted.
    pub(crate) fn offered(&mut self, start: &Start) -> Moment {
        self.rely_on(start);
        let counted = |of: &Watched| of.asked.period.is_some();
        match &self.wanted {
            Some((_, WantedChange::Start(_, by))) if self.semaphores.iter().any(counted) => *by,
            _ => Moment::END,
        }
    }

    /// Makes the loss of these slots count from now on.
    fn rely_on(&mut self, start: &Start) {
        let held = start.slots().filter_map(|slot| self.held(slot));
        self.slot_watch.begin(held.collect());
    }

    /// Records that the work has begun in these slots.
    pub fn started(&mut self, start: &Start) {
        if !self.slot_watch.has_begun() {
            self.rely_on(start);
        }
        self.change(|workload| {
            workload.phase = Phase::Running;
            workload.granted = Some(start.granted());
            workload.reported = start.sessions().cloned().collect();
        });
    }

    /// Holds the slots while the work continues, or is about to begin; returns when the work must end, within
    /// [`HolderSettings::grace`], because one of them is lost.
    pub async fn hold(&mut self) -> Lost {
        loop {
            if let Some(lost) = self.look().or_else(|| self.unproved()) {
                return lost;
            }
            self.report_trouble(true);
            self.something().await;
        }
    }

    /// Records that the work has ended, or will not begin. [`Self::release`] then gives back what is held.
    pub fn finished(&mut self) {
        if self.program.workload.phase == Phase::Running {
            // The slots that Consul has already reported lost were lost while the work ran.
            self.look();
        }
        self.change(|workload| {
            workload.phase = if workload.granted.is_some() {
                Phase::Finished { at_rest: true }
            } else {
                Phase::Deleting
            };
        });
        for watched in &self.semaphores {
            watched.read_before_release(&mut self.engine);
        }
        let granted = self.program.workload.granted.as_ref();
        let cooldown = granted.map_or(Duration::ZERO, |_| self.settings.cooldown());
        // The slots cool down even if Consul can't be reached.
        self.given_up = Moment::now() + cooldown + self.release_timeout();
    }

    /// Gives back the slots, once they have cooled down, or the place in the queue. Call [`Self::finished`] first.
    ///
    /// # Errors
    /// Consul has not answered, or has refused, for too long: [`Self::remains`] says what stays.
    pub async fn release(&mut self) -> Result<(), NotReleased> {
        while self.has_anything() {
            self.work();
            self.forget_what_others_released();
            if let Some(end) = self.cools_until() {
                self.given_up = self.given_up.max(end + self.release_timeout());
            }
            if self.given_up <= Moment::now() {
                return Err(self.not_released());
            }
            if self.has_anything() {
                self.something().await;
            }
        }
        self.note_what_was_not_released();
        Ok(())
    }

    /// Returns the time that a release may take, beside the cooldown. What is left after that expires with the session,
    /// so a release is tried for longer if that would take long.
    fn release_timeout(&self) -> Duration {
        (self.settings.session.ttl / 6).clamp(SHORTEST_RELEASE_TIMEOUT, LONGEST_RELEASE_TIMEOUT)
    }

    /// Forgets the sessions that were taken over and whose slots are gone from Consul, although this holder has not
    /// released them.
    fn forget_what_others_released(&mut self) {
        let inherited = self.program.inherited.iter().map(|session| &session.id);
        let ours = |session: &&SessionId| {
            let mut pending = self.returned.pending.values().flatten();
            self.returned.sessions.contains(*session) || pending.any(|one| one == *session)
        };
        let is_gone = |session: &&SessionId| {
            self.queues().all(|queue| {
                let reading = queue.reading();
                reading.is_some_and(|reading| reading.contender(session).is_none())
            })
        };
        let gone: Vec<_> = inherited
            .filter(|session| !ours(session) && is_gone(session))
            .cloned()
            .collect();
        for session in &gone {
            self.program.forget(session);
        }
    }

    fn not_released(&self) -> NotReleased {
        let trouble = self.queues().find_map(Queue::trouble);
        let silent = || consul::Error::Unreachable {
            message: "it does not answer".to_owned(),
            undecided: true,
        };
        let why = trouble.map_or_else(silent, |trouble| trouble.error.clone());
        NotReleased { why }
    }

    /// Returns a handle that says whether the slots still count as held, also while this holder works and afterwards.
    pub(crate) fn slot_watch(&self) -> SlotWatch {
        self.slot_watch.clone()
    }

    /// Returns what was lost first, if a slot is lost: others may have had the slot while the work ran. Ask when the
    /// work has ended, before [`Self::finished`], because only until then the clock counts. Ask again after
    /// [`Self::release`], which may be the first to find a loss. With a cooldown the release does not find it.
    pub fn lost(&self) -> Option<Lost> {
        if self.program.workload.phase == Phase::Running {
            self.slot_watch.lost()
        } else {
            self.slot_watch.lost_before()
        }
    }

    /// Returns when the last of the slots becomes free, if they cool down.
    pub fn cools_until(&self) -> Option<Moment> {
        let sessions = || self.program.sessions.keys();
        let ends = self.queues().flat_map(|queue| {
            let cooldowns = queue.cooldowns();
            sessions().filter_map(|session| cooldowns.end(session))
        });
        ends.max()
    }

    /// Returns what stays in Consul if this holder ends now, or `None` if nothing stays. (A session without a key
    /// expires.)
    pub fn remains(&self) -> Option<Remains> {
        (!self.program.sessions.is_empty()).then(|| Remains {
            slots: self.program.workload.granted.is_some(),
            within: self.settings.expires(),
        })
    }

    /// Returns why there are no slots yet.
    pub fn why_waiting(&self) -> AcquireError {
        if let Some(trouble) = self.queues().find_map(Queue::trouble) {
            return AcquireError::of(&trouble.error);
        }
        // Slots that nobody prevents are being granted, and Consul has not answered yet.
        if self.views().any(|view| view.is_taken() || view.rests()) {
            self.taken()
        } else {
            AcquireError::unanswered()
        }
    }
}

/// Lost slots.
impl Holder {
    /// Returns a slot as the work relies on it, or `None` for a slot of a rate.
    fn held(&self, slot: &plan::HeldSlot) -> Option<SlotInUse> {
        let lock_key = lock_key_of(slot.key());
        let mut semaphores = self.semaphores.iter();
        let watched = semaphores.find(|watched| watched.asked.prefix.lock_key() == lock_key)?;
        let renewal = self.program.sessions.get(slot.session())?;
        let reading = self.engine.queue(&watched.queue).and_then(Queue::reading);
        let shown = reading
            .filter(|reading| reading.holds(slot.session()))
            .map(|reading| reading.sent);
        watched.asked.period.is_none().then(|| SlotInUse {
            prefix: watched.asked.prefix.clone(),
            session: slot.session().clone(),
            life: renewal.known_life(),
            // The latest reading may be older than the grant. The session was renewed about when the slot was granted.
            shown: shown.unwrap_or_else(|| renewal.sent()),
        })
    }

    /// Decides what follows, and returns what is lost, as the engine sees it.
    fn look(&mut self) -> Option<Lost> {
        self.work();
        for watched in &self.semaphores {
            let queue = self.engine.queue(&watched.queue);
            if let Some(reading) = queue.and_then(Queue::reading) {
                self.slot_watch.show(&watched.asked.prefix, reading);
            }
        }
        match &self.wanted {
            Some((_, WantedChange::Stop(lost))) => Some(self.slot_watch.lose(lost.clone())),
            _ => None,
        }
    }

    /// Returns what is lost by the clock. The engine, which may have been kept from running for long, would ask Consul
    /// first, but meanwhile the work would continue without a proof.
    fn unproved(&mut self) -> Option<Lost> {
        let must_end = self.settings.on_slot_lost == OnSlotLost::Suspend;
        let lost = must_end.then(|| self.slot_watch.lost()).flatten()?;
        if self.program.workload.phase == Phase::Running {
            self.change(|workload| workload.phase = Phase::Stopping);
        }
        Some(lost)
    }

    /// Records slots that could not be released because they were lost before, without anybody noticing while the work
    /// ran.
    fn note_what_was_not_released(&self) {
        // The session that held a slot may have been replaced while it cooled down.
        if self.returned.in_doubt || !self.settings.cooldown.is_zero() {
            return;
        }
        let granted = self.program.workload.granted.iter();
        for slot in granted.flat_map(|granted| &granted.slots) {
            let mut semaphores = self.semaphores.iter().map(|watched| &watched.asked);
            let of = semaphores.find(|asked| asked.prefix.lock_key() == *slot.lock_key);
            if let Some(asked) = of.filter(|asked| asked.period.is_none())
                && !self.returned.sessions.contains(&slot.session)
            {
                self.slot_watch.lose(Lost {
                    prefix: asked.prefix.clone(),
                    why: Suspended::SlotLost,
                });
            }
        }
    }
}

/// State.
impl Holder {
    /// The queues of the semaphores.
    fn queues(&self) -> impl Iterator<Item = &Queue> {
        let watched = self.semaphores.iter();
        watched.filter_map(|watched| self.engine.queue(&watched.queue))
    }

    fn views(&self) -> impl Iterator<Item = SemaphoreView<'_>> {
        let semaphores = self.semaphores.iter();
        semaphores.map(|watched| SemaphoreView::of(watched, &self.engine, &self.program))
    }

    /// Whether a session exists that is not ended yet, or one may be being made.
    fn has_anything(&self) -> bool {
        !self.program.sessions.is_empty()
            || self.calls.is_ending_sessions()
            || self.queues().any(|queue| queue.sessions.is_making())
    }

    /// Returns why waiting for slots is useless; `None` if it is not.
    fn hopeless(&self) -> Option<AcquireError> {
        let mut absent = self.semaphores.iter().filter(|watched| watched.is_absent());
        if let Some(watched) = absent.next().filter(|_| self.settings.must_exist) {
            return Some(AcquireError::Absent(watched.asked.prefix.clone()));
        }
        // A pending call may bring slots, or a better error.
        if self.calls.are_under_way() {
            return None;
        }
        let mut semaphores = self.semaphores.iter();
        semaphores
            .find_map(|watched| self.hopeless_at(watched))
            .or_else(|| self.taken_at_once())
    }

    /// Returns why this semaphore will never grant its slots; `None` if it may.
    fn hopeless_at(&self, watched: &Watched) -> Option<AcquireError> {
        let queue = self.engine.queue(&watched.queue)?;
        if let Some(trouble) = queue.trouble() {
            let error = AcquireError::of(&trouble.error);
            let refused = matches!(error, AcquireError::Refused(_));
            return (!self.settings.wait || refused).then_some(error);
        }
        let limit = queue.settings().limit;
        if limit != watched.asked.limit {
            // The limit has fallen below the number of slots that the program asks for.
            return Some(AcquireError::Limit {
                prefix: watched.asked.prefix.clone(),
                ours: watched.asked.limit,
                theirs: limit,
            });
        }
        let agreement = conclusion(&self.engine, &watched.queue).and_then(|last| last.agreement);
        let view = SemaphoreView::of(watched, &self.engine, &self.program);
        AcquireError::conflict(&view, agreement)
    }

    /// Returns what is missing, if the program does not wait for it.
    fn taken_at_once(&self) -> Option<AcquireError> {
        // Slots that are granted already are ready once their sessions have been renewed.
        let undecided = |view: SemaphoreView<'_>| !view.is_known() || view.is_held();
        if self.settings.wait || self.views().any(undecided) {
            return None;
        }
        let mut views = self.views();
        // A slot that is not taken, and not in a lock-delay, is about to be granted.
        let taken = views.any(|view| view.is_taken() && !view.rests());
        taken.then(|| self.taken())
    }

    /// Returns what is missing at the semaphores where others are known to be in the way, or else at all semaphores.
    fn taken(&self) -> AcquireError {
        let missing = |of: &dyn Fn(&SemaphoreView<'_>) -> bool| -> Vec<Missing> {
            let views = self.views().filter(|view| of(view));
            views.map(|view| view.missing()).collect()
        };
        let taken = missing(&|view| view.is_taken() && !view.rests());
        AcquireError::Taken(if taken.is_empty() {
            missing(&|_| true)
        } else {
            taken
        })
    }

    /// Returns the prefixes that this program is the first to use, as far as it saw.
    fn created(&self) -> Vec<Prefix> {
        let semaphores = self.semaphores.iter().enumerate();
        let created = semaphores.filter(|(place, watched)| {
            watched.unused && !self.notices.reported.contains(&("waiting", *place))
        });
        created
            .map(|(_, watched)| watched.asked.prefix.clone())
            .collect()
    }

    /// Remembers which prefixes are unused, before this program uses them.
    fn note_unused(&mut self) {
        let unused: Vec<_> = self.views().map(|view| view.is_unused()).collect();
        for (watched, unused) in self.semaphores.iter_mut().zip(unused) {
            watched.note_unused(unused);
        }
    }
}

impl Drop for Holder {
    /// Ends the belief in the slots, because nobody shows any more that they are held.
    fn drop(&mut self) {
        self.slot_watch.lose(Lost {
            prefix: self.settings.request.first().prefix.clone(),
            why: Suspended::Unproved,
        });
    }
}

/// Loop that passes events to the engine and carries out its effects.
impl Holder {
    /// Decides what follows from what has happened, and carries the decisions out.
    fn work(&mut self) {
        self.carry_out();
        while self.engine.pass(now(), &self.program).is_some() {
            self.carry_out();
        }
        self.note_places();
    }

    /// Takes note of what the last passes say of the program's places in the queues, and of its slots.
    fn note_places(&mut self) {
        let mut is_near = true;
        let mut is_ready = self.settings.wait && self.settings.fair;
        for (place, watched) in self.semaphores.iter_mut().enumerate() {
            if let Some((from, to)) = watched.take_limit(&self.engine) {
                let prefix = watched.asked.prefix.clone();
                (self.notices.on)(Notice::LimitChanged { prefix, from, to });
            }
            is_near &= watched.follow(&mut self.engine, &self.program, &self.calls.consul);
            let Some(last) = conclusion(&self.engine, &watched.queue) else {
                is_ready = false;
                continue;
            };
            let before = last.before;
            is_ready &= before.is_some_and(|before| watched.asked.is_ready_behind(before));
            if self
                .notices
                .begins("unheld", place, !last.unheld.is_empty())
            {
                (self.notices.on)(Notice::Unheld(watched.asked.prefix.clone()));
            }
        }
        self.calls.keep_connections(is_near);
        if self.notices.begins("near", 0, is_near && is_ready) {
            (self.notices.on)(Notice::Near);
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.engine.next_effect() {
            match effect {
                Effect::Queue(queue, action) => {
                    if let Some(queue) = self.engine.queue(&queue) {
                        self.act(&queue.settings().prefix.clone(), action);
                    }
                }
                // The limits count as recorded at once, because nobody else reads the record.
                Effect::Semaphore(semaphore, Duty::RecordLimits(limits)) => {
                    self.engine
                        .recorded(&semaphore, &limits, now(), &self.program);
                }
                // Nothing is to be done, because there is no object, and the sessions have a TTL.
                Effect::Semaphore(
                    _,
                    Duty::AddFinalizer
                    | Duty::RemoveFinalizer
                    | Duty::LeaveBehind
                    | Duty::ListSessions
                    | Duty::ListPrefix
                    | Duty::EndSession(_),
                )
                | Effect::Closed(_) => {}
            }
        }
    }

    /// Carries out an action of the queue at this prefix.
    fn act(&mut self, prefix: &Prefix, action: Action) {
        match action {
            Action::Call(id, call) => self.call(prefix, id, call),
            Action::Destroy(session) => {
                if self.program.forget(&session) {
                    self.calls.end_session(session);
                }
            }
            Action::Forget(session) => drop(self.program.forget(&session)),
            Action::Report(Outcome::Granted { grant, .. }) if !grant.starts => {
                (self.notices.on)(Notice::Regained(prefix.clone()));
            }
            // Consul shows a contender of a session that was ended here. Its renewal finds out whether it still exists.
            Action::Adopt(session) if !self.program.sessions.contains_key(&session) => {
                let renewal = self.calls.renew(session.clone(), SessionState::Unknown);
                self.program.sessions.insert(session, renewal);
            }
            // The caller knows everything else from its own calls.
            Action::Adopt(_) | Action::Report(_) => {}
        }
    }

    /// Makes a call, or answers it at once if it needs no request.
    fn call(&mut self, prefix: &Prefix, id: CallId, call: Call) {
        let answer = match call {
            Call::Read { not_after } => {
                let mut semaphores = self.semaphores.iter();
                let watched = semaphores.find(|watched| watched.asked.prefix == *prefix);
                let known = watched.map(Watched::known).unwrap_or_default();
                return self.calls.list(id, prefix.folder(), known, not_after);
            }
            Call::Transact {
                transaction,
                not_after,
            } => {
                self.returned.note_sent(id, &transaction);
                return self.calls.transact(id, transaction, not_after);
            }
            Call::CreateSession {
                name,
                ttl,
                lock_delay,
                ..
            } => return self.calls.create_session(id, name, ttl, lock_delay),
            Call::Write {
                write, not_after, ..
            } => match self.write(prefix, id, write, not_after) {
                Some(written) => Answer::Written(written),
                None => return,
            },
            Call::Prove(_) => self.program.proof(),
            // This program owns no other sessions than those that it made itself, or that it has taken over.
            Call::Resolve { .. } => Answer::Resolved(Ok(self.program.inherited.clone())),
            Call::Describe(_) => Answer::Described(Ok(None)),
            Call::AskAccess => Answer::Access(Some(true)),
        };
        self.answer(id, answer);
    }

    /// Asks the caller to start or stop the work; `None` means that there is no answer yet. A start, or a change of
    /// what is reported, counts only for the version of the workload that it was decided on, as with the API server,
    /// because each queue decides by itself.
    fn write(
        &mut self,
        prefix: &Prefix,
        id: CallId,
        write: Write,
        not_after: Option<Moment>,
    ) -> Option<Written> {
        let workload = &self.program.workload;
        let outdated = write.target().version != workload.version;
        let wanted = match (write, workload.phase) {
            (Write::Suspend(suspend), Phase::Running) => WantedChange::Stop(Lost {
                prefix: prefix.clone(),
                why: suspend.why,
            }),
            // The work has ended in the meantime, or another slot was lost first.
            (Write::Suspend(_), _) => return Some(Written::Done),
            // [`Self::acquire`] returns an error to a caller that does not wait.
            (Write::RecordWait(_) | Write::Skip(_) | Write::Fail(_) | Write::End(_), _) => {
                self.put_off.push(id);
                return None;
            }
            _ if outdated => return Some(Written::Outdated(Some(workload.clone()))),
            (Write::Start(start), Phase::Idle) => {
                WantedChange::Start(start, not_after.unwrap_or(Moment::END))
            }
            (Write::Rename(rename), _) => {
                self.change(|workload| workload.reported = rename.sessions);
                return Some(Written::Done);
            }
            (Write::GiveBack(give_back), Phase::Idle) => {
                self.program.give_back(give_back.sessions);
                self.changed();
                return Some(Written::Done);
            }
            // The slot is about to be given back.
            (Write::Start(_) | Write::GiveBack(_), _) => return Some(Written::NotSent),
        };
        if let WantedChange::Stop(_) = wanted {
            self.program
                .change(|workload| workload.phase = Phase::Stopping);
        }
        self.wanted = Some((id, wanted));
        None
    }

    /// Changes the workload. What was wanted of the work is done then, or outdated.
    fn change(&mut self, change: impl FnOnce(&mut Workload)) {
        self.program.change(change);
        self.changed();
    }

    fn changed(&mut self) {
        if let Some((id, wanted)) = self.wanted.take() {
            let made = self.program.workload.granted.is_some();
            let written = match wanted {
                WantedChange::Start(..) if !made => Written::NotSent,
                WantedChange::Start(..) | WantedChange::Stop(_) => Written::Done,
            };
            self.answer(id, Answer::Written(written));
        }
        self.touch();
    }

    /// Makes every queue decide anew.
    fn touch(&mut self) {
        for watched in &self.semaphores {
            self.engine.touched(&watched.queue, now(), &self.program);
        }
    }

    /// Waits until something happens, or until something is due. While a slot is held this wakes every second to read
    /// the clock, which asks Consul nothing: timers stand still while the machine sleeps, and the end of the session
    /// does not wait.
    async fn something(&mut self) {
        let moment = Moment::now();
        let next = self.engine.next_timeout(moment).unwrap_or(moment + IDLE);
        let mut left = next.min(self.given_up).since(moment);
        if self.slot_watch.has_begun() {
            left = left.min(LATE);
        }
        for watched in &mut self.semaphores {
            watched.watch(&self.calls.consul, self.settings.session.ttl / 5);
        }
        tokio::select! {
            (semaphore, listing) = next_reading(&mut self.semaphores) => {
                if let Some(listing) = listing {
                    self.engine.listed(&semaphore, listing, now(), &self.program);
                }
            }
            ended = self.calls.next() => match ended {
                Some((id, done)) => self.settle(id, done),
                None => self.touch(),
            },
            () = sleep(left) => {}
        }
        for id in std::mem::take(&mut self.put_off) {
            self.answer(id, Answer::Written(Written::NotSent));
        }
    }

    /// Shows the engine how a call ended.
    fn settle(&mut self, id: CallId, done: CallResult) {
        let capacity = self.calls.consul.transaction_capacity();
        self.engine.capacity(id, capacity, now(), &self.program);
        let answer = match done {
            CallResult::Answer(answer) => {
                self.returned.note_answer(id, &answer);
                answer
            }
            CallResult::Session(made) => Answer::SessionMade(made.map(|(session, life)| {
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
        let works = self.queues().find_map(Queue::trouble).is_none();
        for (place, watched) in self.semaphores.iter().enumerate() {
            let view = SemaphoreView::of(watched, &self.engine, &self.program);
            let rests = view.rests();
            if self.notices.begins("rest", place, rests) {
                (self.notices.on)(Notice::Resting(watched.asked.prefix.clone()));
            }
            let closed = view.is_closed();
            if self.notices.begins("closed", place, works && closed) {
                self.waits_since.get_or_insert_with(Moment::now);
                (self.notices.on)(Notice::Waiting(view.missing()));
            }
            if works && !rests && !closed && view.is_taken() {
                self.waits_since.get_or_insert_with(Moment::now);
                // Slots of one semaphore come and go while others are missing.
                if self.notices.begins("waiting", place, true) {
                    (self.notices.on)(Notice::Waiting(view.missing()));
                }
            }
        }
        self.report_trouble(false);
    }

    fn report_trouble(&mut self, holding: bool) {
        let trouble = self.queues().find_map(Queue::trouble);
        let error = trouble.map(|trouble| trouble.error.clone());
        if self.notices.begins("trouble", 0, error.is_some())
            && let Some(error) = error
        {
            (self.notices.on)(Notice::Trouble { error, holding });
        }
    }
}

/// Reports to people.
struct Notices {
    on: Box<dyn Fn(Notice) + Send>,
    /// The kinds of notices that were reported and still hold, with the place of the semaphore.
    reported: BTreeSet<(&'static str, usize)>,
}

impl Notices {
    /// Whether a notice is to be reported: once, until it no longer holds. The caller makes its text only then.
    fn begins(&mut self, about: &'static str, place: usize, holds: bool) -> bool {
        if holds {
            self.reported.insert((about, place))
        } else {
            self.reported.remove(&(about, place));
            false
        }
    }
}

#[cfg(test)]
mod tests;
