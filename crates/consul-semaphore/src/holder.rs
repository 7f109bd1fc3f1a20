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
//! use consul_semaphore::{Mode, OnSlotLost, holder::{Holder, HolderKind, Request, SessionSettings, Settings}};
//!
//! # async fn work() {}
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = Settings {
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
//! | `obstacle` | why there is no slot, or none yet |
//! | `request` | the slots that are asked for, of one or several semaphores |
//! | `standing` | whether the slots still count as held, by the clock |
//! | `watched` | one of these semaphores, and how its prefix is followed |

mod approach;
mod calls;
mod obstacle;
mod program;
mod request;
mod standing;
mod watched;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::sleep;

pub(crate) use self::standing::Standing;
use self::{
    calls::{Calls, Done},
    obstacle::{View, conclusion},
    program::Program,
    standing::Held,
    watched::{Watched, next_reading},
};
pub use self::{
    obstacle::{AcquireError, Missing},
    program::{HolderKind, SessionSettings, Settings},
    request::{InvalidRequest, Request, SlotsOf},
};
use crate::{
    OnSlotLost, Phase, Prefix, Workload,
    engine::{
        Action, Answer, Call, CallId, Duty, Effect, Engine, IDLE, Outcome, Queue, Write, Written,
    },
    evidence::LATE,
    holding::now,
    lock_key_of,
    plan::{self, Start, Suspended, Transaction},
};
use consul_client::{self as consul, Client, SessionId, clock::Moment};

/// How long a release may take, beside the cooldown of the slot. Anything left then expires with the session.
const RELEASE: Duration = Duration::from_secs(10);

/// Something to report to the user, once each time that it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It waits for slots of this semaphore: others hold them or come first, or it is outside its windows.
    Waiting(Missing),
    /// It waits in the [fair order](Settings::fair), and would be granted its slots if all holders ended now: what is
    /// needed then can be made ready. Not for slots of a mutex, which have no order, or of a rate.
    Near,
    /// It has all its slots.
    Granted {
        /// How long it waited for others; `None` if it had not to.
        waited: Option<Duration>,
        /// The prefixes that were unused before: they may be misspelt.
        created: Vec<Prefix>,
    },
    /// It waits for the lock-delay of a dead holder at this prefix.
    Resting(Prefix),
    /// Consul can't be used. The holder tries again.
    Trouble {
        /// The problem.
        error: consul::Error,
        /// Whether slots are held meanwhile.
        holding: bool,
    },
    /// A slot at this prefix was lost, and another one was granted.
    Regained(Prefix),
    /// A slot at this prefix is lost and no other one is free, and the work continues because of
    /// [`Settings::on_slot_lost`].
    Unheld(Prefix),
}

/// Why the work must end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", match why {
    Suspended::SlotLost => format!("the slot of {prefix} is lost"),
    Suspended::Unproved => format!("nothing shows any more that the slot of {prefix} is held"),
})]
pub struct Lost {
    /// The semaphore whose slot is lost.
    pub prefix: Prefix,
    /// How that is known.
    pub why: Suspended,
}

/// A slot or place could not be given back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NotReleased {
    /// What was wrong with Consul when the release was given up.
    pub why: consul::Error,
}

/// What a holder that ends now leaves in Consul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remains {
    /// Whether these are slots; otherwise it is a place in the queue.
    pub slots: bool,
    /// After how long the session has expired, at the latest.
    pub within: Duration,
}

/// What the engine wants done with the program.
#[derive(Clone, Debug)]
enum Wanted {
    /// The work is to begin, before this moment.
    Start(Start, Moment),
    Stop(Lost),
}

/// Waits for slots, holds them and gives them back.
///
/// Its futures may be dropped at any time: the next one picks up what was under way. While none of them is awaited,
/// sessions are still renewed, but nothing else is done. A dropped holder lets its sessions expire.
pub struct Holder {
    settings: Settings,
    engine: Engine,
    semaphores: Vec<Watched>,
    program: Program,
    calls: Calls,
    wanted: Option<(CallId, Wanted)>,
    /// Requests that can't be carried out now. The next pass makes them again, so they are answered only once
    /// something has happened.
    put_off: Vec<CallId>,
    notices: Notices,
    /// Since when it waits for others.
    waits_since: Option<Moment>,
    /// When a release is given up.
    given_up: Moment,
    /// Whether the slots that the work runs in still count as held.
    standing: Standing,
    returned: Returned,
}

/// Which slots were given back while they were held.
#[derive(Default)]
struct Returned {
    /// The sessions of those that calls under way give back.
    pending: BTreeMap<CallId, Vec<SessionId>>,
    sessions: BTreeSet<SessionId>,
    /// Whether such a call may have been carried out that was not answered: then it is unknown.
    in_doubt: bool,
}

impl Returned {
    /// A transaction is sent.
    fn note_sent(&mut self, id: CallId, transaction: &Transaction) {
        let held = transaction.releases.iter().filter(|release| release.held);
        let sessions: Vec<_> = held.map(|release| release.session.clone()).collect();
        if !sessions.is_empty() {
            self.pending.insert(id, sessions);
        }
    }

    /// A call has ended.
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
    /// Does nothing in Consul yet. `on_notice` is called with each notice for the user.
    pub fn new(
        settings: Settings,
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
            calls: Calls::new(consul, settings.session.node.clone()),
            wanted: None,
            put_off: Vec::new(),
            notices: Notices {
                on: Box::new(on_notice),
                reported: BTreeSet::new(),
            },
            waits_since: None,
            given_up: Moment::END,
            standing: Standing::new(settings.grace + LATE),
            returned: Returned::default(),
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
            if let Some((_, Wanted::Start(start, _))) = &self.wanted {
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

    /// These slots are handed to the one who works in them, which may take a while: [`Self::hold`] says meanwhile whether
    /// one of them is lost. [`Self::started`] follows, or [`Self::finished`]. Returns when it is too late to start: those
    /// of a rate must be used soon after they were granted.
    pub(crate) fn offered(&mut self, start: &Start) -> Moment {
        self.rely_on(start);
        let counted = |of: &Watched| of.asked.period.is_some();
        match &self.wanted {
            Some((_, Wanted::Start(_, by))) if self.semaphores.iter().any(counted) => *by,
            _ => Moment::END,
        }
    }

    /// From now on the loss of these slots counts.
    fn rely_on(&mut self, start: &Start) {
        let held = start.slots().filter_map(|slot| self.held(slot));
        self.standing.begin(held.collect());
    }

    /// The work has begun in these slots.
    pub fn started(&mut self, start: &Start) {
        if !self.standing.has_begun() {
            self.rely_on(start);
        }
        self.change(|workload| {
            workload.phase = Phase::Running;
            workload.granted = Some(start.granted());
            workload.reported = start.sessions().cloned().collect();
        });
    }

    /// Holds the slots while the work continues, or is about to begin; returns when the work must end, within
    /// [`Settings::grace`], because one of them is lost.
    pub async fn hold(&mut self) -> Lost {
        loop {
            if let Some(lost) = self.look().or_else(|| self.unproved()) {
                return lost;
            }
            self.report_trouble(true);
            self.something().await;
        }
    }

    /// The work has ended, or will not begin: [`Self::release`] gives back what is held.
    pub fn finished(&mut self) {
        if self.program.workload.phase == Phase::Running {
            // What Consul has said by now was lost while the work ran.
            self.look();
        }
        self.change(|workload| {
            workload.phase = if workload.granted.is_some() {
                Phase::Finished { at_rest: true }
            } else {
                Phase::Deleting
            };
        });
        let granted = self.program.workload.granted.as_ref();
        let cooldown = granted.map_or(Duration::ZERO, |_| self.settings.cooldown());
        // If Consul is away, the slots cool down nevertheless.
        self.given_up = Moment::now() + cooldown + RELEASE;
    }

    /// Gives back what is held: slots once they have cooled down, or the place in the queue. Call [`Self::finished`]
    /// first.
    ///
    /// # Errors
    /// Consul has not answered, or has refused, for too long: [`Self::remains`] says what stays.
    pub async fn release(&mut self) -> Result<(), NotReleased> {
        while self.has_anything() {
            self.work();
            if let Some(end) = self.cools_until() {
                self.given_up = self.given_up.max(end + RELEASE);
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

    fn not_released(&self) -> NotReleased {
        let trouble = self.queues().find_map(Queue::trouble);
        let silent = || consul::Error::Unreachable {
            message: "it does not answer".to_owned(),
            undecided: true,
        };
        let why = trouble.map_or_else(silent, |trouble| trouble.error.clone());
        NotReleased { why }
    }

    /// Whether the slots still count as held, for those who ask while this runs, and afterwards.
    pub(crate) fn standing(&self) -> Standing {
        self.standing.clone()
    }

    /// What was lost first, if a slot is lost: others may have had it while the work ran. Ask when the work has ended,
    /// before [`Self::finished`], because only until then the clock counts; and again after [`Self::release`], which may
    /// be the first to find out. With a cooldown it does not find out.
    pub fn lost(&self) -> Option<Lost> {
        if self.program.workload.phase == Phase::Running {
            self.standing.lost()
        } else {
            self.standing.lost_before()
        }
    }

    /// When the last of the slots becomes free, if they cool down.
    pub fn cools_until(&self) -> Option<Moment> {
        let sessions = || self.program.sessions.keys();
        let ends = self.queues().flat_map(|queue| {
            let cooldowns = queue.cooldowns();
            sessions().filter_map(|session| cooldowns.end(session))
        });
        ends.max()
    }

    /// What stays in Consul if this ends now; `None` if that is nothing. (A session without a key expires.)
    pub fn remains(&self) -> Option<Remains> {
        (!self.program.sessions.is_empty()).then(|| Remains {
            slots: self.program.workload.granted.is_some(),
            within: self.settings.expires(),
        })
    }

    /// Why there are no slots yet.
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
    /// A slot as the work relies on it, unless it is one of a rate.
    fn held(&self, slot: &plan::Slot) -> Option<Held> {
        let lock_key = lock_key_of(slot.key());
        let mut semaphores = self.semaphores.iter();
        let watched = semaphores.find(|watched| watched.asked.prefix.lock_key() == lock_key)?;
        let renewal = self.program.sessions.get(slot.session())?;
        let reading = self.engine.queue(&watched.queue).and_then(Queue::reading);
        let shown = reading.filter(|reading| reading.holds(slot.session()));
        let shown = shown.map(|reading| reading.sent);
        watched.asked.period.is_none().then(|| Held {
            prefix: watched.asked.prefix.clone(),
            session: slot.session().clone(),
            life: renewal.known_life(),
            // What is known of the prefix may be outdated. The session was renewed about when the slot was granted.
            shown: shown.unwrap_or_else(|| renewal.sent()),
        })
    }

    /// Decides what follows, and returns what is lost, as the engine sees it.
    fn look(&mut self) -> Option<Lost> {
        self.work();
        for watched in &self.semaphores {
            let queue = self.engine.queue(&watched.queue);
            if let Some(reading) = queue.and_then(Queue::reading) {
                self.standing.show(&watched.asked.prefix, reading);
            }
        }
        match &self.wanted {
            Some((_, Wanted::Stop(lost))) => Some(self.standing.lose(lost.clone())),
            _ => None,
        }
    }

    /// What is lost by the clock. The engine, which may have been kept from running for long, would ask Consul first;
    /// but the work would go on meanwhile, without a proof.
    fn unproved(&mut self) -> Option<Lost> {
        let must_end = self.settings.on_slot_lost == OnSlotLost::Suspend;
        let lost = must_end.then(|| self.standing.lost()).flatten()?;
        if self.program.workload.phase == Phase::Running {
            self.change(|workload| workload.phase = Phase::Stopping);
        }
        Some(lost)
    }

    /// A slot that could not be released was lost before that, without anybody noticing while the work ran.
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
                self.standing.lose(Lost {
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

    fn views(&self) -> impl Iterator<Item = View<'_>> {
        let semaphores = self.semaphores.iter();
        semaphores.map(|watched| View::of(watched, &self.engine, &self.program))
    }

    /// Whether a session exists that is not ended yet, or one may be being made.
    fn has_anything(&self) -> bool {
        !self.program.sessions.is_empty()
            || self.calls.is_ending_sessions()
            || self.queues().any(Queue::makes_sessions)
    }

    /// Why waiting for slots is useless, if it is.
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

    /// Why this semaphore will never grant its part.
    fn hopeless_at(&self, watched: &Watched) -> Option<AcquireError> {
        let queue = self.engine.queue(&watched.queue)?;
        if let Some(trouble) = queue.trouble() {
            let error = AcquireError::of(&trouble.error);
            let refused = matches!(error, AcquireError::Refused(_));
            return (!self.settings.wait || refused).then_some(error);
        }
        let agreement = conclusion(&self.engine, &watched.queue);
        let agreement = agreement.and_then(|last| last.agreement);
        AcquireError::conflict(&View::of(watched, &self.engine, &self.program), agreement)
    }

    /// What is missing, if the program does not wait for that.
    fn taken_at_once(&self) -> Option<AcquireError> {
        // Slots that are granted already are ready once their sessions have been renewed.
        let undecided = |view: View<'_>| !view.is_known() || view.is_held();
        if self.settings.wait || self.views().any(undecided) {
            return None;
        }
        let mut views = self.views();
        // What is neither taken nor rests is about to be granted.
        let taken = views.any(|view| view.is_taken() && !view.rests());
        taken.then(|| self.taken())
    }

    /// What is missing: where others are known to be in the way, or else anywhere.
    fn taken(&self) -> AcquireError {
        let missing = |of: &dyn Fn(&View<'_>) -> bool| -> Vec<Missing> {
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

    /// The prefixes that this program is the first to use, as far as it saw.
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
    /// Nobody shows any more that a slot is held.
    fn drop(&mut self) {
        self.standing.lose(Lost {
            prefix: self.settings.request.first().prefix.clone(),
            why: Suspended::Unproved,
        });
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
        self.note_places();
    }

    /// Takes note of what the last passes say of the program's places in the queues, and of its slots.
    fn note_places(&mut self) {
        let mut is_near = true;
        let mut is_ready = self.settings.wait && self.settings.fair;
        for (place, watched) in self.semaphores.iter_mut().enumerate() {
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
            // The caller knows everything else from its own calls, and no foreign session is adopted.
            Action::Adopt(_) | Action::Report(_) => {}
        }
    }

    /// Makes a call, or answers it at once if it needs no request.
    fn call(&mut self, prefix: &Prefix, id: CallId, call: Call) {
        let answer = match call {
            Call::Read { not_after } => return self.calls.list(id, prefix.folder(), not_after),
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
            // Only the sessions that were made here are this program's.
            Call::Resolve { .. } => Answer::Resolved(Ok(Vec::new())),
            Call::Describe(_) => Answer::Described(Ok(None)),
            Call::AskAccess => Answer::Access(Some(true)),
        };
        self.answer(id, answer);
    }

    /// Asks the caller to start or stop the work; `None` means that there is no answer yet. As with the API server, a
    /// start, or a change of what is reported, counts only for the version that it was decided on: the queues decide
    /// by themselves.
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
            (Write::Suspend(suspend), Phase::Running) => Wanted::Stop(Lost {
                prefix: prefix.clone(),
                why: suspend.why,
            }),
            // It has ended in the meantime, or another slot was lost first.
            (Write::Suspend(_), _) => return Some(Written::Done),
            // [`Self::acquire`] returns an error to a caller that does not wait.
            (Write::RecordWait(_) | Write::Skip(_) | Write::Fail(_) | Write::End(_), _) => {
                self.put_off.push(id);
                return None;
            }
            _ if outdated => return Some(Written::Outdated(Some(workload.clone()))),
            (Write::Start(start), Phase::Idle) => {
                Wanted::Start(start, not_after.unwrap_or(Moment::END))
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
            // It is about to be given back.
            (Write::Start(_) | Write::GiveBack(_), _) => return Some(Written::NotSent),
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
        self.changed();
    }

    fn changed(&mut self) {
        if let Some((id, wanted)) = self.wanted.take() {
            let made = self.program.workload.granted.is_some();
            let written = match wanted {
                Wanted::Start(..) if !made => Written::NotSent,
                Wanted::Start(..) | Wanted::Stop(_) => Written::Done,
            };
            self.answer(id, Answer::Written(written));
        }
        self.touch();
    }

    /// Every queue decides anew.
    fn touch(&mut self) {
        for watched in &self.semaphores {
            self.engine.touched(&watched.queue, now(), &self.program);
        }
    }

    /// Waits until something happens, or until something is due. While a slot is held it wakes every second to read
    /// the clock, which asks Consul nothing: timers stand still while the machine sleeps, and the session does not.
    async fn something(&mut self) {
        let moment = Moment::now();
        let next = self.engine.next_timeout(moment).unwrap_or(moment + IDLE);
        let mut left = next.min(self.given_up).since(moment);
        if self.standing.has_begun() {
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
    fn settle(&mut self, id: CallId, done: Done) {
        let capacity = self.calls.consul.transaction_capacity();
        self.engine.capacity(id, capacity, now(), &self.program);
        let answer = match done {
            Done::Answer(answer) => {
                self.returned.note_answer(id, &answer);
                answer
            }
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
        let works = self.queues().find_map(Queue::trouble).is_none();
        for (place, watched) in self.semaphores.iter().enumerate() {
            let view = View::of(watched, &self.engine, &self.program);
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
    /// Whether a notice is to be reported: once, until it no longer holds. It is worded only then.
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
