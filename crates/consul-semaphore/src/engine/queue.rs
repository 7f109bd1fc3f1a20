//! Implements the queue of one lock key: the only code that grants and releases its slots.

mod facts;
#[cfg(test)]
mod shadow;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use self::facts::Facts;
use super::{
    ConsulTrouble, Lookup, Owner,
    active::Active,
    calls::{Blocking, Blocks, Pending, PendingCalls},
    holders::ForeignHolders,
    joint::OPERATIONS_ALWAYS_TAKEN,
    knowledge::Knowledge,
    message::{Action, Answer, Call, CallId, Event, Moved, Now, Outcome, Write, Written},
    proofs::{self, Proofs, Remark},
    refusals::WriteRefusals,
    sessions::Sessions,
    waiting::{Reach, head},
};
use crate::{
    Agreement, Asked, ContenderBody, ContenderName, Cooldowns, Defence, Evidence, Excluded,
    Identity, LastProof, Lock, OwnContender, Phase, Plan, Proved, Reading, SessionState, Settings,
    SlotRequest, Starts, Turns, Uid, Workload, decide,
    evidence::{LATE, tenure},
    limit::followed,
    plan::{
        End, Fail, Failed, GiveBack, Grant, HeldSlot, Part, RecordWait, Release, SessionRequest,
        Skip, Skipped, Stance, Start, Target, Transaction,
    },
    rate::{START_WITHIN, StartAnswer},
};
use consul_client::{self as consul, Entry, OpError, Session, SessionId, clock::Moment};

/// Time until the next pass when nothing is due.
pub const IDLE: Duration = Duration::from_hours(1);

/// Shortest time between two passes that are caused only by the passing of time.
const MIN_PASS_INTERVAL: Duration = Duration::from_millis(10);

/// Time after which the queue tries again what no event announces.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Least time that a call to Consul may take, however soon a running workload has to be suspended. A call that lasts
/// longer than [`LATE`] would make the next pass believe that the process has slept.
const MIN_CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// Largest number of sessions that are made at once for a queue: about as many as the slots that one transaction
/// grants. Each call takes memory while it waits for those before it, and thousands of workloads may be able to have
/// a slot.
const MOST_SESSIONS_MADE_AT_ONCE: usize = 64;

/// Time that a write to a workload may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Result of a pass.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each asked for by itself"
)]
pub struct Conclusion {
    /// Whether the pass knew what Consul says; if not, the other fields mean nothing.
    pub certain: bool,
    /// Value that `status.appliedLimits` must have before the limit can be written to Consul.
    pub record: Option<Vec<u32>>,
    /// Agreement of the spec and Consul on the limit; `None` while `.lock` can't be read.
    pub agreement: Option<Agreement>,
    /// Whether the semaphore is being deleted and nothing of it is left in Consul.
    pub finished: bool,
    /// Running workloads that continue without a slot.
    pub unheld: Vec<Target>,
    /// Whether no workload here runs in a slot or may have one.
    pub nothing_held: bool,
    /// Limit, if nothing in Consul still depends on another limit of ours.
    pub settled: Option<u32>,
    /// Whether there is no waiting workload and no holder, and nothing is left to do.
    pub idle: bool,
    /// State here of workloads that also ask for slots at other lock keys and have not been started.
    pub parts: BTreeMap<Uid, Part>,
    /// Whether slots are granted here now.
    pub open: bool,
    /// Waiting workloads that can have what they ask for here.
    pub in_reach: BTreeSet<Uid>,
    /// Number of slots that others wait for before the first of the waiting workloads; `None` if none waits.
    pub before: Option<usize>,
}

/// The state of one lock key.
#[derive(Clone, Debug)]
pub struct Queue {
    settings: Settings,
    /// Number of operations that a transaction may have; `None` while Consul can't be used.
    operations: Option<usize>,
    /// Whether a transaction of this queue was too large, so that the next ones have few operations.
    cautious: bool,
    limits: LimitState,
    pub(crate) knowledge: Knowledge,
    pub(crate) sessions: Sessions,
    pub(crate) held: SlotsHeld,
    active: Active,
    pub(crate) writes: WorkloadWrites,
    /// Stances towards workloads that ask for several slots and can't have all of them yet.
    stances: BTreeMap<Uid, Stance>,
    /// Longest cooldown of all semaphores of a workload, for workloads that ask for several semaphores and must not
    /// wait.
    longest_cooldowns: BTreeMap<Uid, Duration>,
    /// Whole requests of workloads that ask for slots at several lock keys.
    requests: BTreeMap<Uid, Asked>,
    /// Part of the request of workloads that ask for several slots, as far as it is not free.
    lacking: BTreeMap<Uid, Vec<SlotRequest>>,
    /// Failures of workloads that must not wait, as the last pass decided.
    fails: Vec<Fail>,
    calls: PendingCalls,
    schedule: Schedule,
    #[cfg(test)]
    pub(crate) plan: Plan,
    #[cfg(test)]
    shadow: shadow::Shadow,
}

/// State of the limit, as far as it is known.
#[derive(Clone, Debug, Default)]
struct LimitState {
    /// Limits that are ours: `status.appliedLimits`.
    recorded: Vec<u32>,
    /// Record of what happened to the limit since the spec last changed.
    defence: Defence,
    /// Whether `.lock` was written since a write of a limit was last sent.
    fenced: bool,
}

/// State of the held slots, including those in their cooldown.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotsHeld {
    pub(crate) evidence: Evidence,
    pub(crate) cooldowns: Cooldowns,
    /// Slots of a rate.
    pub(crate) starts: Starts,
    pub(crate) proofs: Proofs,
    /// Running workloads that were reported to continue without a slot.
    unheld: BTreeSet<Uid>,
    /// Greatest fencing token that was seen.
    fencing_token: Option<u64>,
    /// Names of the foreign holders.
    foreign: ForeignHolders,
}

/// Times at which passes are due.
#[derive(Clone, Copy, Debug, Default)]
struct Schedule {
    /// Time of the last pass over everything.
    passed: Moment,
    next: Moment,
}

/// State of the writes to workloads.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkloadWrites {
    /// Workloads that are being written to.
    pub(crate) busy: BTreeSet<Uid>,
    /// Workloads in `busy` for which the pending write only records the beginning of their wait.
    recorded: BTreeSet<Uid>,
    pub(crate) refusals: WriteRefusals,
    /// Time at which to retry a write that could not be sent.
    again: Option<Moment>,
}

/// State that other modules can read.
impl Queue {
    /// Returns the settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the prefix as Consul last showed it, or `None` while it is unknown or Consul fails to tell the owners
    /// of its contenders.
    pub fn reading(&self) -> Option<&Reading> {
        let reading = self.knowledge.reading.as_ref();
        reading.filter(|_| !self.knowledge.troubles.resolving_fails())
    }

    /// Returns the prefix as it was known last, for reports. Nothing is decided from it while [`Self::reading`] is
    /// `None`.
    pub fn last_reading(&self) -> Option<&Reading> {
        self.knowledge.last_reading()
    }

    /// Returns why Consul can't be used, if it can't.
    pub fn trouble(&self) -> Option<&ConsulTrouble> {
        self.knowledge.troubles.first()
    }

    /// Returns the time since which some kind of call to Consul has failed without a break.
    pub(super) fn troubled_since(&self) -> Option<Moment> {
        self.knowledge.troubles.since()
    }

    /// Returns the workload that a contender's session was made for, as far as that is known.
    pub fn owner(&self, session: &SessionId) -> Option<&Owner> {
        self.sessions.owners.get(session)
    }

    /// Returns the name and the node of another program's session, if Consul has answered.
    pub fn holder_name(&self, session: &SessionId) -> Option<&ContenderName> {
        self.held.foreign.name(session)
    }

    /// Returns when the slots of finished workloads become free.
    pub fn cooldowns(&self) -> &Cooldowns {
        &self.held.cooldowns
    }

    /// Returns the sessions that are renewed for this queue.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        self.sessions.kept.iter()
    }

    /// Returns the sessions that were made ahead and have no contender yet.
    pub fn sessions_ahead(&self) -> impl Iterator<Item = &SessionId> {
        self.sessions.ahead.values()
    }

    /// Returns whether a session is being made.
    pub fn makes_sessions(&self) -> bool {
        !self.sessions.making.is_empty()
    }

    /// Takes over what an earlier process recorded about the proofs of the workloads that this process finds running.
    pub(super) fn recall(&mut self, last: Option<LastProof>) {
        self.held.evidence = Evidence::after(last);
        #[cfg(test)]
        self.shadow.recall(last);
    }

    /// Returns the oldest proof of the running workloads.
    pub(super) fn oldest_proof(
        &self,
        life: impl Fn(&SessionId) -> Option<SessionState>,
    ) -> Option<Proved> {
        self.held.evidence.oldest(life)
    }

    /// Makes the absence of pods count at once, because no Job controller can still act on an older state.
    pub fn believe_at_once(&mut self) {
        self.held.proofs.start_settle_time = Duration::ZERO;
    }

    /// Returns the number that identifies the calls of this queue.
    pub(super) fn number(&self) -> u64 {
        self.calls.queue
    }

    /// Gives the calls of this queue a number that no other queue has.
    pub(super) fn numbered(mut self, number: u64) -> Self {
        self.calls.queue = number;
        self
    }

    /// Returns whether there was a pass over everything at this moment.
    pub(super) fn has_passed(&self, now: Now) -> bool {
        self.schedule.passed == now.moment
    }

    /// Returns whether the lock key is a mutex in its lock-delay, because its last holder died.
    pub fn is_delayed(&self, now: Moment) -> bool {
        self.knowledge.memory.mutex.is_delayed(now)
    }

    /// Records that nobody follows the prefix for a while.
    pub(super) fn unfollowed(&mut self, now: Moment) {
        self.knowledge.memory.turns.interrupt(now);
    }

    /// Returns whether the last try to lock the mutex was refused because of its lock-delay, and nobody has locked it
    /// since.
    pub fn is_in_lock_delay(&self) -> bool {
        self.knowledge.memory.mutex.rests_until().is_some()
    }

    /// Returns whether a workload is being written to.
    pub fn is_busy(&self, uid: &Uid) -> bool {
        self.writes.busy.contains(uid)
    }

    /// Returns whether a workload is being written to in a way that may end its wait: a record of the beginning of
    /// its wait does not count.
    pub fn is_leaving(&self, uid: &Uid) -> bool {
        self.is_busy(uid) && !self.writes.recorded.contains(uid)
    }

    /// Returns whether a slot is being granted to a workload.
    pub fn is_granting(&self, uid: &Uid) -> bool {
        let blocking = self.calls.blocking.as_ref();
        blocking.is_some_and(|blocking| match &blocking.what {
            Blocks::Transact(transaction) => {
                let mut grants = transaction.grants.iter();
                grants.any(|grant| grant.workload.uid == *uid)
            }
            Blocks::Read | Blocks::Resolve(_) => false,
        })
    }

    /// Returns what the API server said when it refused several starts in a row.
    pub fn refusal(&self) -> Option<&str> {
        self.writes.refusals.message()
    }

    /// Whether the API server has refused to start this workload, and has not started it since.
    pub fn refuses_start(&self, workload: &Uid) -> bool {
        self.writes.refusals.refuses_start(workload)
    }

    /// Returns the greatest fencing token that was seen.
    pub fn fencing_token(&self) -> Option<u64> {
        self.held.fencing_token
    }

    /// Returns whether Consul's index went back.
    pub fn went_back(&self) -> bool {
        self.knowledge.went_back
    }

    /// Returns how many operations a transaction may have, or `None` while Consul can't be used.
    pub fn operations(&self) -> Option<usize> {
        self.operations
    }

    /// Returns whether an answer of Consul is awaited before anything else is decided from its entries.
    pub fn is_blocked(&self) -> bool {
        self.calls.blocking.is_some()
    }

    /// Returns the next action.
    pub fn next_action(&mut self) -> Option<Action> {
        self.calls.actions.pop_front()
    }

    /// Returns when the next pass is due, if nothing happens before.
    pub fn next_timeout(&self) -> Moment {
        self.schedule.next
    }
}

/// Events that the engine reports to the queue.
impl Queue {
    /// Returns a queue that knows nothing yet and has no access to Consul.
    pub fn new(settings: Settings, recorded: Vec<u32>, defence: Defence) -> Self {
        let mut turns = Turns::new(settings.fair);
        turns.restrict(settings.limit, &settings.restrictions);
        Self {
            knowledge: Knowledge::new(settings.prefix.clone(), settings.mode, turns),
            settings,
            operations: None,
            cautious: false,
            limits: LimitState {
                recorded,
                defence,
                fenced: false,
            },
            sessions: Sessions::default(),
            held: SlotsHeld::default(),
            active: Active::default(),
            writes: WorkloadWrites::default(),
            stances: BTreeMap::new(),
            longest_cooldowns: BTreeMap::new(),
            requests: BTreeMap::new(),
            lacking: BTreeMap::new(),
            fails: Vec::new(),
            calls: PendingCalls::default(),
            schedule: Schedule::default(),
            #[cfg(test)]
            plan: Plan::default(),
            #[cfg(test)]
            shadow: shadow::Shadow::default(),
        }
    }

    /// Records an event. The next pass decides what follows from it, except for starts, which are sent at once.
    pub fn handle(&mut self, event: Event, now: Now, lookup: &impl Lookup) {
        match event {
            Event::Spec { settings, changed } => {
                self.settings = *settings;
                self.restrict();
                if changed {
                    self.limits.defence = Defence::default();
                }
            }
            Event::Recorded(limits) => self.limits.recorded = limits,
            Event::Found(limits) => {
                self.limits.recorded = limits;
                self.limits.fenced = false;
            }
            Event::Access(operations) => {
                self.operations = operations;
                self.cautious = false;
                self.calls.news = None;
                // A pending transaction is not sent again over the old access, but it may have arrived.
                if let Some(blocking) = self.calls.blocking.take()
                    && let Blocks::Transact(transaction) = blocking.what
                {
                    self.knowledge.transaction_lost(&transaction, now);
                    self.end_joined(&transaction);
                }
                self.knowledge.start_anew();
            }
            Event::Capacity(operations) => self.set_capacity(operations),
            Event::Listed(news) if self.calls.blocking.is_some() => {
                if news.as_ref().is_ok_and(|news| news.reset) {
                    self.knowledge.note_reset();
                }
                self.calls.put_off(news);
            }
            Event::Listed(news) => self.knowledge.listed(news, now),
            Event::Abandoned => self.abandon_sessions(),
            Event::Answered(id, answer) => self.answered(id, answer, now, lookup),
        }
    }

    fn abandon_sessions(&mut self) {
        self.active.look_at_all();
        // A session that is being made is destroyed once its answer arrives.
        let others = &mut self.calls.others;
        others.retain(|_, pending| !matches!(pending, Pending::Session(_)));
        for session in std::mem::take(&mut self.sessions).kept {
            self.calls.actions.push_back(Action::Forget(session));
        }
    }

    fn answered(&mut self, id: CallId, answer: Answer, now: Now, lookup: &impl Lookup) {
        if let Some(blocking) = self.calls.blocking.take_if(|blocking| blocking.id == id) {
            match (blocking.what, answer) {
                (Blocks::Read, Answer::Listing(Ok(listing))) => self.knowledge.accept(listing, now),
                (Blocks::Resolve(sessions), Answer::Resolved(Ok(found))) => {
                    self.resolved(sessions, found);
                }
                (_, Answer::Listing(Err(error))) => self.knowledge.read_failed(error, now),
                (_, Answer::Resolved(Err(error))) => self.knowledge.resolve_failed(error, now),
                (Blocks::Transact(transaction), Answer::Transacted { sent, result }) => {
                    self.transacted(&transaction, sent, result, now, lookup);
                }
                _ => self.knowledge.invalidate(),
            }
            return self.catch_up(now);
        }
        match (self.calls.others.remove(&id), answer) {
            (Some(Pending::Session(request)), Answer::SessionMade(made)) => {
                self.session_made(&request, made, now);
            }
            (Some(Pending::Describe(session)), Answer::Described(answer)) => {
                self.held.foreign.answered(session, answer, now);
            }
            (Some(Pending::Write(write)), Answer::Written(written)) => {
                self.written(write, written, now, lookup);
            }
            (Some(Pending::Proof(question)), Answer::Proof(answer)) => {
                self.proved(question, answer, now, lookup);
            }
            (Some(Pending::Access), Answer::Access(may_write)) => {
                self.writes.refusals.answered(may_write, now);
            }
            // No call waits for this session any more, and nobody else would destroy it.
            (_, Answer::SessionMade(Ok(session))) if !self.sessions.kept.contains(&session) => {
                self.calls.actions.push_back(Action::Destroy(session));
            }
            _ => {}
        }
    }

    /// Takes over what the watch brought in the meantime, because no call blocks any more.
    fn catch_up(&mut self, now: Now) {
        if let Some(news) = self.calls.news.take() {
            self.knowledge.listed(news, now);
        }
    }

    fn resolved(&mut self, asked: Vec<SessionId>, found: Vec<Session>) {
        let names: BTreeMap<_, _> = found
            .into_iter()
            .map(|session| (session.id, session.name))
            .collect();
        for session in asked {
            let identity = names.get(&session).and_then(|name| Identity::parse(name));
            let owner = match identity {
                Some(identity) if self.settings.owns(&identity) => Owner::Own(Arc::new(identity)),
                Some(identity) if *identity.cluster == *self.settings.cluster.id => {
                    Owner::Neighbour
                }
                _ => Owner::Foreign,
            };
            self.sessions.owners.insert(session, owner);
        }
    }

    fn transacted(
        &mut self,
        transaction: &Transaction,
        sent: Moment,
        result: Result<Vec<Entry>, consul::Error>,
        now: Now,
        lookup: &impl Lookup,
    ) {
        if let (Err(consul::Error::TooLarge(message)), Some(grant)) = (&result, transaction.part())
        {
            return self.too_large(grant, message, now);
        }
        let too_long = transaction.operations.len() > self.operations.unwrap_or(0);
        match result {
            Ok(answer) => self.committed(transaction, &answer, sent, now, lookup),
            // Nobody was faster, and the key is still as it is known.
            Err(consul::Error::Conflict(errors))
                if !errors.is_empty() && errors.iter().all(OpError::is_lock_delay) =>
            {
                self.knowledge.delayed(now);
                self.drop_gone(transaction, &errors);
            }
            Err(consul::Error::Conflict(errors)) => {
                if errors.is_empty() {
                    // The transaction had more operations than every Consul accepts.
                    self.be_cautious();
                }
                self.knowledge.lost_race(now);
                self.drop_gone(transaction, &errors);
            }
            // Later transactions have fewer operations.
            Err(consul::Error::TooLarge(_)) if too_long => {}
            Err(consul::Error::TooLarge(_))
                if transaction.operations.len() > OPERATIONS_ALWAYS_TAKEN =>
            {
                self.be_cautious();
            }
            Err(error) => self.transaction_failed(transaction, error, now),
        }
    }

    fn transaction_failed(&mut self, transaction: &Transaction, error: consul::Error, now: Now) {
        if error.may_have_been_applied() {
            self.end_joined(transaction);
        }
        self.knowledge.transaction_failed(transaction, error, now);
    }

    /// Ends the sessions that a transaction without an answer brought into the queue. While such a session lives, the
    /// transaction could write the contender late, when the session is a dead holder, and bring it back to life.
    fn end_joined(&mut self, transaction: &Transaction) {
        for session in &transaction.joins {
            self.end_session(session);
        }
    }

    fn set_capacity(&mut self, operations: usize) {
        let most = if self.cautious {
            operations.min(OPERATIONS_ALWAYS_TAKEN)
        } else {
            operations
        };
        self.operations = self.operations.and(Some(most));
    }

    /// Limits the next transactions of this queue to the number of operations that every Consul accepts. A
    /// transaction with more operations was too large, and its bytes may be the reason.
    fn be_cautious(&mut self) {
        self.cautious = true;
        self.set_capacity(self.operations.unwrap_or(OPERATIONS_ALWAYS_TAKEN));
    }

    /// Records that a workload can't be granted its slots at several lock keys in one transaction. Other workloads
    /// are not affected.
    fn too_large(&mut self, grant: &Grant, message: &str, now: Now) {
        if self.writes.refusals.too_large(&grant.workload.uid, now) {
            self.calls.report(Outcome::TooLarge {
                workload: grant.workload.clone(),
                message: message.to_owned(),
            });
        }
    }

    /// Forgets the sessions that a refused transaction found gone, before their renewal did.
    fn drop_gone(&mut self, transaction: &Transaction, errors: &[OpError]) {
        for session in transaction.gone_sessions(errors) {
            if self.sessions.remove(session) {
                let forget = Action::Forget(session.clone());
                self.calls.actions.push_back(forget);
                self.active.look_at_all();
            }
        }
    }

    fn committed(
        &mut self,
        transaction: &Transaction,
        answer: &[Entry],
        sent: Moment,
        now: Now,
        lookup: &impl Lookup,
    ) {
        self.calls.in_doubt = false;
        let moved = self.limit_moved_for(transaction);
        let releases: Vec<_> = transaction
            .releases
            .iter()
            .map(|release| self.release_of(release))
            .collect();
        self.knowledge.committed(transaction, answer, sent, now);
        self.limits.fenced |= transaction.writes_lock();
        // Starts come first, because workloads wait for them.
        for start in transaction.starts(answer) {
            self.start(start, now, lookup);
        }
        for (release, outcome) in transaction.releases.iter().zip(releases) {
            self.held.proofs.forget(&release.session);
            self.end_session(&release.session);
            if release.held {
                self.calls.report(outcome);
            }
        }
        for (gone, session) in &transaction.replaced {
            let ahead = &mut self.sessions.ahead;
            ahead.retain(|_, other| other != session);
            // The slot was not released, because another session holds it from now on.
            self.end_session(gone);
        }
        let cooldowns = transaction.cooldowns.iter().cloned().map(Outcome::Cools);
        let prunes = transaction.prunes.iter().cloned().map(Outcome::Pruned);
        for outcome in cooldowns.chain(prunes) {
            self.calls.report(outcome);
        }
        if let Some(limit) = transaction.limit {
            let enforced = transaction.enforced;
            self.limits.defence.holds(enforced);
            self.calls.report(Outcome::LimitWritten { limit, enforced });
        }
        if let Some(moved) = moved {
            self.calls.report(Outcome::LimitMoved(moved));
        }
        for (_, slots) in transaction.slots(answer) {
            self.note_tokens(&slots);
        }
        for grant in &transaction.grants {
            self.granted(grant);
        }
    }

    fn note_tokens<'a>(&mut self, slots: impl IntoIterator<Item = &'a HeldSlot>) {
        let greatest = slots.into_iter().map(HeldSlot::fencing_token).max();
        self.held.fencing_token = self.held.fencing_token.max(greatest);
    }

    fn granted(&mut self, grant: &Grant) {
        let (workload, sessions) = (&grant.workload.uid, &grant.sessions);
        let mut others = Vec::new();
        self.sessions.ahead.retain(|slot, ahead| {
            let granted = sessions
                .get(&slot.ordinal)
                .filter(|_| slot.workload == *workload);
            // The contender of another operator may have been granted the slot.
            others.extend(
                granted
                    .filter(|granted| *granted != ahead)
                    .map(|_| ahead.clone()),
            );
            granted.is_none()
        });
        for other in others {
            self.end_session(&other);
        }
        let first = sessions.values().next();
        let at = first
            .and_then(|session| self.body(session))
            .map(|body| body.time);
        let reported = self.held.unheld.remove(&grant.workload.uid);
        let lost = !grant.starts && !reported;
        let grant = grant.clone();
        self.calls.report(Outcome::Granted { grant, at, lost });
    }

    /// Returns what a contender says of itself.
    fn body(&self, session: &SessionId) -> Option<ContenderBody> {
        let reading = self.knowledge.reading.as_ref()?;
        ContenderBody::read(&reading.contender(session)?.value)
    }

    /// Returns the outcome of a release. The contender must still exist, because its body is read.
    fn release_of(&self, release: &Release) -> Outcome {
        let body = self.body(&release.session);
        Outcome::Released {
            release: release.clone(),
            granted: body.as_ref().map(|body| body.time),
            done: body.as_ref().and_then(done),
        }
    }

    /// Returns the change of a limit that others use, if a transaction replaces such a limit.
    fn limit_moved_for(&self, transaction: &Transaction) -> Option<Moved> {
        let (to, reading) = (transaction.limit?, self.knowledge.reading.as_ref()?);
        let Lock::Semaphore { body, .. } = reading.lock() else {
            return None;
        };
        let foreign =
            |session| !matches!(self.owner(session), Some(Owner::Own(_) | Owner::Neighbour));
        let others = reading.contenders().filter(|(id, _)| foreign(id)).count();
        let from = body.limit();
        (others > 0 && from != to).then_some(Moved { from, to, others })
    }

    fn session_made(
        &mut self,
        request: &SessionRequest,
        made: Result<SessionId, consul::Error>,
        now: Now,
    ) {
        let slot = request.slot();
        self.sessions.making.remove(&slot);
        let id = match made {
            Ok(id) => id,
            Err(error) => return self.knowledge.write_failed(error, now),
        };
        self.knowledge.writing_works();
        let identity = self.settings.identity(&request.workload, request.ordinal);
        let own = Owner::Own(Arc::new(identity));
        self.sessions.owners.insert(id.clone(), own);
        self.sessions.kept.insert(id.clone());
        if self.settings.is_program() {
            self.sessions.unused.insert(id.clone());
        }
        if let Some(other) = self.sessions.ahead.insert(slot, id) {
            self.end_session(&other);
        }
    }

    /// Stops renewing a session and destroys it.
    fn end_session(&mut self, session: &SessionId) {
        if self.sessions.remove(session) {
            let destroy = Action::Destroy(session.clone());
            self.calls.actions.push_back(destroy);
        }
    }

    fn written(&mut self, write: Write, written: Written, now: Now, lookup: &impl Lookup) {
        if let Write::Start(start) = &write {
            self.note_start_answer(start, answer_to(&write, &written));
        }
        let (workload, refusals) = (write.target().clone(), &mut self.writes.refusals);
        self.writes.busy.remove(&workload.uid);
        self.writes.recorded.remove(&workload.uid);
        match written {
            Written::Outdated(seen) if !write.is_done_in(seen.as_deref()) => {
                refusals.lost_race(&workload.uid, now);
            }
            Written::Done | Written::Outdated(_) => {
                refusals.done(&write);
                self.calls.report(Outcome::Written(write));
            }
            Written::NotSent => self.retry_soon(now),
            Written::Refused { message, forbidden } => {
                refusals.refused(&write, message.clone(), forbidden, now);
                self.calls.report(Outcome::Refused { workload, message });
            }
            Written::Unanswered(why) => {
                refusals.failed(&write, false, now);
                self.calls.report(Outcome::Unanswered { workload, why });
            }
        }
        self.writes.refusals.retain(|uid| {
            let workload = lookup.workload(uid);
            workload.is_some_and(|workload| !matches!(workload.phase, Phase::Finished { .. }))
        });
    }

    fn proved(
        &mut self,
        question: proofs::PodQuestion,
        answer: Result<(Option<Arc<Workload>>, Vec<String>), String>,
        now: Now,
        lookup: &impl Lookup,
    ) {
        let identity = question.identity.clone();
        let known = lookup.workload(&identity.uid);
        let answer = answer.map(|(mut workload, pods)| {
            // The workload as it was read for the proof may be written to, so it must know its wait.
            if let Some(workload) = &mut workload {
                Arc::make_mut(workload).note_wait(known.as_deref(), now.time);
            }
            (workload, pods)
        });
        let remark = self.held.proofs.answered(question, answer, known, now);
        self.calls.report(match remark {
            None => return,
            Some(Remark::Overdue(pods)) => Outcome::PodsRemain { identity, pods },
            Some(Remark::Unknown(why)) => Outcome::PodsUnknown {
                identity,
                why,
                overdue: false,
            },
            Some(Remark::LongUnknown(why)) => Outcome::PodsUnknown {
                identity,
                why,
                overdue: true,
            },
        });
    }
}

/// Passes: each observes, decides and applies.
impl Queue {
    /// Decides what follows from all that is known, and returns the result. The effects come next, except for the
    /// transaction: see [`Self::transact`].
    pub fn pass(&mut self, now: Now, lookup: &impl Lookup) -> Conclusion {
        if self.is_to_wait(now) {
            return Conclusion::default();
        }
        self.calls.unsent = None;
        self.schedule.passed = now.moment;
        self.writes.again = None;
        self.settings.restrictions.windows.refresh(now.time);
        self.follow_limit();
        #[cfg(test)]
        let lookup = &self.shadow.tell_changes(&self.sessions, lookup);
        let facts = self.observe(now, lookup);
        if facts.unsure {
            self.writes.again = Some(now.moment + RETRY_AFTER);
        }
        let plan = decide(&facts.observed(self, None));
        #[cfg(test)]
        {
            self.check(&facts, &plan, lookup);
            self.plan = plan.clone();
        }
        self.knowledge.deadline = plan.deadline;
        self.apply(&plan, facts.certain, now, lookup);
        self.schedule.next = self.next_time(&plan, now);
        self.conclude(&facts, plan, lookup)
    }

    /// Returns whether there is nothing to decide before Consul answers. This saves checking thousands of workloads
    /// each time one of them changes, and never lasts long.
    fn is_to_wait(&mut self, now: Now) -> bool {
        let Some(blocking) = &self.calls.blocking else {
            return false;
        };
        // The call is awaited past the deadline at the time when it was sent, because its answer, or a listing that
        // came meanwhile, may show what is needed.
        let given_up = blocking.until.or(self.knowledge.deadline);
        let looked = self.schedule.passed + LATE;
        let next = given_up.map_or(looked, |given_up| given_up.min(looked));
        if next > now.moment {
            self.schedule.next = next;
        }
        next > now.moment
    }

    /// Gathers the facts, and requests those that are missing.
    fn observe(&mut self, now: Now, lookup: &impl Lookup) -> Facts {
        self.give_up(now);
        self.knowledge
            .detect_sleep(now.moment, self.settings.patience());
        for session in self.sessions.forget_dead(lookup) {
            self.calls.actions.push_back(Action::Forget(session));
        }
        let mut excluded = self.excluded(now);
        let (evidence, settings) = (&mut self.held.evidence, &self.settings);
        let aged = evidence.aged(now.moment, settings, |session| lookup.life(session));
        let due = aged.into_iter().chain(excluded.busy.iter().cloned());
        let (knowledge, sessions) = (&mut self.knowledge, &self.sessions);
        let may_settle = self
            .active
            .note_changes(due, evidence, knowledge, sessions, lookup);
        let certain = self.calls.blocking.is_none() && self.look(now, lookup);
        let mut ours = Vec::new();
        if certain {
            self.adopt(lookup);
            let (evidence, knowledge) = (&mut self.held.evidence, &mut self.knowledge);
            self.active
                .note_contenders(evidence, knowledge, &self.sessions, lookup);
            let contenders = &self.active.contenders;
            let contends = |uid: &Uid| contenders.values().any(|own| own.uid == *uid);
            self.writes.refusals.contend(contends);
            excluded = self.excluded(now);
            self.describe_holders(now);
            let owners = &self.sessions.owners;
            let is_neighbour = |session: &SessionId| owners.get(session) == Some(&Owner::Neighbour);
            self.knowledge.memory.turns.note_neighbours(is_neighbour);
            ours = self.ours(&excluded, now, lookup);
            if let Some(reading) = &self.knowledge.reading {
                let (held, clock) = (&mut self.held, (now.moment, now.time));
                if let Some(period) = self.settings.period {
                    held.starts.observe(reading, &ours, period, clock);
                    held.cooldowns.take(held.starts.ends());
                } else {
                    held.cooldowns.observe(reading, &ours, now.moment, now.time);
                }
            }
        }
        if self.writes.refusals.is_to_ask(now.moment) && !self.asks_access() {
            self.calls.ask(Pending::Access, Call::AskAccess);
        }
        let waiting = self.read_waiting(&ours, &excluded, lookup);
        self.update_evidence(now, certain, &ours, lookup);
        if let Some(reading) = self
            .knowledge
            .reading
            .as_ref()
            .filter(|_| certain && may_settle)
        {
            let (held, settings) = (&mut self.held, &self.settings);
            self.active
                .settle(&mut ours, held, reading, settings, &excluded);
        }
        let bound = self
            .active
            .bound
            .values()
            .filter(|workload| self.decides_about(workload))
            .cloned()
            .collect();
        Facts {
            now,
            certain,
            bound,
            unsure: self.settings.is_rate() && self.is_unsure(&ours, lookup),
            brief: self.brief(&ours, now, lookup),
            ours,
            steady: self.held.evidence.count_of_steady(),
            waiting,
            excluded,
        }
    }

    /// Returns whether there is anything to decide about a workload that was started here. A rate leaves a workload
    /// alone while it runs.
    fn decides_about(&self, started: &Workload) -> bool {
        !self.settings.is_rate() || !matches!(started.phase, Phase::Running | Phase::Stopping)
    }

    /// Returns the sessions of workloads that wait for a rate, if the sessions may end before a slot granted now
    /// does.
    fn brief(&self, ours: &[OwnContender], now: Now, lookup: &impl Lookup) -> BTreeSet<SessionId> {
        let Some(period) = self.settings.period else {
            return BTreeSet::new();
        };
        let stamp = now.moment + START_WITHIN + period;
        ours.iter()
            .map(|ours| &ours.session)
            .filter(|session| self.held.starts.get(session).is_none())
            .chain(self.sessions.ahead.values())
            .filter(|session| {
                let end = lookup.life(session).and_then(SessionState::end);
                end.is_some_and(|end| end <= stamp)
            })
            .cloned()
            .collect()
    }

    /// Takes Consul's limit instead of ours where the policy says so.
    fn follow_limit(&mut self) {
        let Settings { limit, policy, .. } = self.settings;
        let theirs = match self.knowledge.reading.as_ref().map(Reading::lock) {
            Some(Lock::Semaphore { body, .. }) => Some(body.limit()),
            _ => None,
        };
        if let Some(theirs) = followed(limit, theirs, policy, self.limits.defence) {
            self.settings.limit = theirs;
            // The earlier limit is not ours any more, because this queue must not write it back.
            self.limits.recorded = vec![theirs];
            self.restrict();
        }
    }

    /// Lets all turns and passes go by the limit and the restrictions that the settings have now.
    fn restrict(&mut self) {
        let Settings {
            limit,
            restrictions,
            ..
        } = &self.settings;
        self.knowledge.memory.turns.restrict(*limit, restrictions);
        self.active.look_at_all();
    }

    /// Returns whether nothing is known yet of the session of a waiting workload, so that nothing can be granted.
    fn is_unsure(&self, ours: &[OwnContender], lookup: &impl Lookup) -> bool {
        let mut waiting = ours.iter().map(|ours| &ours.session);
        waiting.any(|session| {
            let waits = self.held.starts.get(session).is_none();
            waits && matches!(lookup.life(session), None | Some(SessionState::Unknown))
        })
    }

    /// Gives up a call that has no answer at the time when a running workload has to be suspended. A write may have
    /// been applied, so the prefix is read again.
    fn give_up(&mut self, now: Now) {
        let overdue =
            |blocking: &mut Blocking| blocking.until.is_some_and(|until| until <= now.moment);
        let Some(blocking) = self.calls.blocking.take_if(overdue) else {
            return;
        };
        let error = consul::Error::Unreachable {
            message: "no answer before a running Job must be suspended".into(),
            undecided: true,
        };
        match blocking.what {
            Blocks::Read => self.knowledge.read_failed(error, now),
            Blocks::Resolve(_) => self.knowledge.resolve_failed(error, now),
            Blocks::Transact(transaction) => {
                self.transaction_failed(&transaction, error, now);
            }
        }
        self.catch_up(now);
    }

    /// Returns until when to wait for a call that blocks.
    fn patience_for_calls(&self, now: Now) -> Option<Moment> {
        let deadline = self.knowledge.deadline?;
        Some(deadline.max(now.moment + MIN_CALL_TIMEOUT))
    }

    /// Requests what is unknown: the prefix, and the owners of the contenders. Returns whether all of that is known.
    fn look(&mut self, now: Now, lookup: &impl Lookup) -> bool {
        let until = self.patience_for_calls(now);
        if let Some(reading) = &self.knowledge.reading
            && self.sessions.outlived(reading, &self.active.gone, lookup)
        {
            // A renewal found out before the watch that a session is gone.
            self.knowledge.invalidate();
        }
        let Some(reading) = &self.knowledge.reading else {
            if self.operations.is_some() && self.knowledge.is_to_be_read(now.moment) {
                let call = Call::Read { not_after: until };
                self.calls.block(Blocks::Read, call, until);
            }
            return false;
        };
        let unknown = self.sessions.unknown(reading);
        if unknown.is_empty() {
            self.knowledge.resolving_works();
            return true;
        }
        if self.may_use_consul(now) {
            let call = Call::Resolve {
                sessions: unknown.clone(),
                not_after: until,
            };
            self.calls.block(Blocks::Resolve(unknown), call, until);
        }
        false
    }

    /// Renews the sessions of our contenders that are not renewed yet, as after a start of this process, before
    /// anything else. Sessions whose contender is deleted are destroyed.
    fn adopt(&mut self, lookup: &impl Lookup) {
        let Some(reading) = &self.knowledge.reading else {
            return;
        };
        let found = self.sessions.found(reading);
        let gone: Vec<_> = self
            .sessions
            .without_contender(reading)
            .into_iter()
            .map(|session| (reading.is_named(&session), session))
            .collect();
        for (session, identity) in found {
            self.sessions.kept.insert(session.clone());
            let adopt = Action::Adopt(session.clone());
            self.calls.actions.push_back(adopt);
            self.calls.report(Outcome::Adopted { identity, session });
        }
        for (named, session) in gone {
            self.end_session(&session);
            self.report_if_given_back(session, named, lookup);
        }
    }

    /// Reports a slot that was released by a transaction whose answer was lost, or by hand. A contender that only
    /// waited had nothing to give back. A workload that has pods, or that was suspended because its slot was lost,
    /// gave nothing back.
    fn report_if_given_back(&mut self, session: SessionId, named: bool, lookup: &impl Lookup) {
        let Some(Owner::Own(identity)) = self.owner(&session).cloned() else {
            return;
        };
        let workload = lookup.workload(&identity.uid);
        let started_by_it = |workload: &Arc<Workload>| workload.held_by().any(|by| *by == session);
        let held = named || workload.as_ref().is_some_and(started_by_it);
        let lost = |workload: &Arc<Workload>| {
            workload.lost() || matches!(workload.phase, Phase::Running | Phase::Stopping)
        };
        if !held || workload.as_ref().is_some_and(lost) {
            return;
        }
        let ended = workload.filter(|workload| workload.has_ended());
        self.calls.report(Outcome::Released {
            release: Release {
                identity,
                session,
                held: true,
            },
            granted: ended.and_then(|workload| Timestamp::from_second(workload.since).ok()),
            done: None,
        });
    }

    /// Asks Consul for the names of the holders that are not known yet.
    fn describe_holders(&mut self, now: Now) {
        let Some(reading) = &self.knowledge.reading else {
            return;
        };
        self.held.foreign.retain(reading);
        let foreign = self.active.foreign.iter();
        for session in foreign.filter(|session| reading.holds(session)) {
            if self.held.foreign.is_to_ask(session, now.moment) {
                let call = Call::Describe(session.clone());
                self.calls.ask(Pending::Describe(session.clone()), call);
            }
        }
    }

    /// Returns the contenders of ours to check, each with its workload, and with a proof where its fate depends on
    /// one.
    fn ours(&mut self, excluded: &Excluded, now: Now, lookup: &impl Lookup) -> Vec<OwnContender> {
        let Some(reading) = &self.knowledge.reading else {
            return Vec::new();
        };
        let contenders = self.active.contenders.iter();
        let mut ours: Vec<OwnContender> = contenders
            .map(|(session, identity)| OwnContender {
                session: session.clone(),
                identity: identity.clone(),
                workload: lookup.contends(&identity.uid, Some(session)),
                pods_gone: false,
            })
            .collect();
        let SlotsHeld {
            proofs, evidence, ..
        } = &mut self.held;
        let all = ours.len() + evidence.count_of_steady();
        proofs.retain(all, |session| reading.contender(session).is_some());
        let touched = lookup.touched();
        let steady = touched.iter().flat_map(|uid| evidence.steady_sessions(uid));
        steady.for_each(|session| proofs.touch(session));
        for contender in &ours {
            if touched.contains(&contender.identity.uid) {
                proofs.touch(&contender.session);
            }
        }
        proofs.note_starts(&ours, now.moment);
        let mut questions = Vec::new();
        for contender in &mut ours {
            let workload = contender.workload.as_ref();
            let may_start = workload.is_some_and(|workload| self.settings.may_start(workload))
                && !excluded.immovable.contains(&contender.identity.uid);
            let held = reading.holds(&contender.session);
            if !self.settings.is_rate() && contender.needs_proof(held, may_start) {
                questions.extend(proofs.apply(contender, now.moment));
            }
        }
        for question in questions {
            let call = Call::Prove(question.identity.clone());
            self.calls.ask(Pending::Proof(question), call);
        }
        ours
    }

    /// Returns the waiting workloads that this pass decides about. A workload that can't be granted its slots now and
    /// keeps nothing does not count against how far the pass reads.
    fn read_waiting(
        &self,
        ours: &[OwnContender],
        excluded: &Excluded,
        lookup: &impl Lookup,
    ) -> Vec<Arc<Workload>> {
        let contend: BTreeSet<&Uid> = ours.iter().map(|ours| &ours.identity.uid).collect();
        let passed_over = |stance: &Stance| matches!(stance, Stance::PassedOver | Stance::Stopped);
        lookup.waiting(&Reach {
            most: head(self.settings.limit, self.operations.unwrap_or(0)),
            apart: &|uid| {
                contend.contains(uid)
                    || excluded.busy.contains(uid)
                    || excluded.barred.contains(uid)
            },
            passed_over: &|uid| self.stances.get(uid).is_some_and(passed_over),
        })
    }

    /// Returns the workloads that are left alone for now, or can't be started.
    fn excluded(&self, now: Now) -> Excluded {
        let mut excluded = self.writes.refusals.excluded(now.moment);
        excluded.busy.extend(self.writes.busy.iter().cloned());
        excluded
    }

    fn asks_access(&self) -> bool {
        let mut pending = self.calls.others.values();
        pending.any(|pending| matches!(pending, Pending::Access))
    }

    /// Brings the evidence for the slots of running workloads up to date.
    fn update_evidence(
        &mut self,
        now: Now,
        certain: bool,
        ours: &[OwnContender],
        lookup: &impl Lookup,
    ) {
        let lock_key = self.settings.prefix.lock_key();
        let runs = |workload: &&Workload| {
            self.decides_about(workload)
                && workload.phase == Phase::Running
                && workload.started_at(&lock_key)
        };
        let bound = self.active.bound.values();
        let running: Vec<&Workload> = bound.map(AsRef::as_ref).filter(runs).collect();
        let reading = self.knowledge.reading.as_ref().filter(|_| certain);
        let evidence = &mut self.held.evidence;
        evidence.observe(
            now.moment,
            &self.settings,
            &running,
            reading,
            ours,
            |session| lookup.life(session),
        );
    }

    /// Carries out the plan. While Consul is unavailable, only workloads are written to.
    fn apply(&mut self, plan: &Plan, certain: bool, now: Now, lookup: &impl Lookup) {
        for suspend in &plan.suspends {
            self.write(Write::Suspend(suspend.clone()), None);
        }
        for end in &plan.ends {
            self.write(Write::End(end.clone()), None);
        }
        if plan.reread {
            self.knowledge.invalidate();
            self.retry_soon(now);
            self.look(now, lookup);
            return;
        }
        let blocked = !self.may_use_consul(now);
        let transaction = plan.transaction.as_ref().filter(|_| !blocked);
        self.calls.unsent = transaction.cloned().map(Arc::new);
        for start in &plan.starts {
            self.start(start.clone(), now, lookup);
        }
        for give_back in &plan.give_backs {
            self.write(Write::GiveBack(give_back.clone()), None);
        }
        for rename in &plan.renames {
            self.write(Write::Rename(rename.clone()), None);
        }
        if certain && !blocked {
            plan.sessions
                .iter()
                .for_each(|request| self.make_session(request));
            if plan.transaction.is_none() && self.sessions.making.is_empty() {
                self.knowledge.writing_works();
            }
        }
        self.skip(&plan.skips);
        self.fails.clone_from(&plan.fails);
        for slot in &plan.surplus {
            if let Some(session) = self.sessions.ahead.get(slot).cloned() {
                self.end_session(&session);
            }
        }
        self.report_unheld(plan, certain);
    }

    /// Returns whether the last pass decided to free slots with a transaction that is not sent yet.
    pub(super) fn is_to_free_slots(&self) -> bool {
        let unsent = self.calls.unsent.as_ref();
        unsent.is_some_and(|unsent| {
            let mut releases = unsent.releases.iter();
            releases.any(|release| release.held) || !unsent.prunes.is_empty()
        })
    }

    /// Returns whether the last transaction that was sent is not known to have gone through.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.calls.in_doubt
    }

    /// Sends the transaction that the last pass decided on.
    pub fn transact(&mut self, now: Now) {
        let Some(transaction) = self.calls.unsent.take() else {
            return;
        };
        let (id, until) = self.await_transaction(&transaction, now);
        let call = Call::Transact {
            transaction,
            not_after: until,
        };
        self.send(id, call);
    }

    /// Returns whether Consul may be used now: the queue has access to Consul, and does not pause after a failure.
    fn may_use_consul(&self, now: Now) -> bool {
        self.operations.is_some() && !self.knowledge.is_blocked(now.moment)
    }

    /// Blocks decisions based on Consul's data until this transaction has been answered. The transaction is sent in
    /// place of the one that the last pass decided on. Returns the id of the call that sends it, and when the call
    /// counts as lost.
    pub(super) fn await_transaction(
        &mut self,
        transaction: &Arc<Transaction>,
        now: Now,
    ) -> (CallId, Option<Moment>) {
        self.limits.fenced &= transaction.limit.is_none();
        self.calls.in_doubt = true;
        for session in transaction.locked_by() {
            self.sessions.unused.remove(session);
        }
        self.note_starts(transaction, now);
        let until = self.patience_for_calls(now);
        if let Some(until) = until {
            self.wake_by(until);
        }
        let what = Blocks::Transact(transaction.clone());
        (self.calls.wait_for(what, until), until)
    }

    /// Notes until when the slots of a rate are held that this transaction grants.
    fn note_starts(&mut self, transaction: &Transaction, now: Now) {
        let Some(period) = self.settings.period else {
            return;
        };
        let (starts, clock) = (&mut self.held.starts, (now.moment, now.time));
        for grant in &transaction.grants {
            for (ordinal, session) in &grant.sessions {
                let identity = Arc::new(self.settings.identity(&grant.workload, *ordinal));
                starts.granting(session.clone(), identity, period, clock);
            }
        }
        for session in &transaction.stamped {
            starts.moving(session, clock);
        }
        for (gone, session) in &transaction.replaced {
            starts.replacing(gone, session.clone());
        }
    }

    /// Notes that a start in these slots is sent, by this queue or another one.
    pub(super) fn note_start(&mut self, start: &Start) {
        self.held.starts.sent(start.sessions());
    }

    /// Notes the result of a start in these slots.
    pub(super) fn note_start_answer(&mut self, start: &Start, answer: StartAnswer) {
        self.held.starts.answered(start.sessions(), answer);
    }

    /// Returns the start that an answer is about, and its result.
    pub(super) fn started_by(&self, id: CallId, answer: &Answer) -> Option<(Start, StartAnswer)> {
        match (self.calls.others.get(&id)?, answer) {
            (Pending::Write(write @ Write::Start(start)), Answer::Written(written)) => {
                Some((start.clone(), answer_to(write, written)))
            }
            _ => None,
        }
    }

    /// Sends the PATCH that starts a workload, unless the evidence for its slots may end before the PATCH is
    /// answered, or is so old that the workload would be suspended again.
    fn start(&mut self, start: Start, now: Now, lookup: &impl Lookup) {
        if let Some(end) = self.evidence_for(&start.workload.uid, start.slots(), now, lookup) {
            self.write(Write::Start(start), Some(end));
        }
    }

    /// Returns until when the evidence lasts for the slots in which a workload is to be started. Returns `None` if
    /// that is not long enough, and then schedules another try.
    pub(super) fn evidence_for<'a>(
        &mut self,
        workload: &Uid,
        slots: impl Iterator<Item = &'a HeldSlot> + Clone,
        now: Now,
        lookup: &impl Lookup,
    ) -> Option<Moment> {
        self.note_tokens(slots.clone());
        let start_by = self
            .held
            .starts
            .start_by(slots.clone().map(HeldSlot::session));
        let workload = lookup.workload(workload);
        let grace = workload
            .as_ref()
            .map_or(Duration::ZERO, |workload| workload.grace);
        // A workload that was suspended because evidence was missing must not be started only to be suspended again,
        // so the evidence must last until the next proof is due.
        let lost = workload.is_some_and(|workload| workload.lost());
        let due = if lost { 3 } else { 8 };
        let enough = |sent: Moment, ttl: Duration| {
            let end = sent + ttl;
            let lasts = sent + tenure(ttl, grace) > now.moment + ttl / due;
            (lasts && end > now.moment + self.write_timeout()).then_some(end)
        };
        let reading = self.knowledge.reading.as_ref();
        let seen = reading.and_then(|reading| enough(reading.sent, self.settings.span()));
        let lives = |slot: &HeldSlot| match self.sessions.life(slot.session(), lookup) {
            Some(SessionState::Renewed { sent, ttl }) => enough(sent, ttl),
            Some(SessionState::Endless) => Some(Moment::END),
            Some(SessionState::Unknown | SessionState::Gone) | None => None,
        };
        let lives: Option<Vec<Moment>> = slots.map(lives).collect();
        let end = seen.zip(lives).and_then(|(seen, lives)| {
            let lives = lives.into_iter().min()?;
            Some(seen.min(lives).min(start_by.unwrap_or(Moment::END)))
        });
        let soon_enough = |end: &Moment| *end > now.moment + self.write_timeout();
        let end = end.filter(soon_enough);
        if end.is_none() {
            // A new reading is needed only if this one is too old, because a session proves itself again with its
            // next renewal.
            if seen.is_none() {
                self.knowledge.invalidate();
            }
            self.retry_soon(now);
        }
        end
    }

    /// Returns how long a write to a workload may take: short compared with the TTL, so that the TTL leaves time for
    /// it.
    pub(super) fn write_timeout(&self) -> Duration {
        WRITE_TIMEOUT.min(self.settings.span() / 4)
    }

    /// Begins a write, unless another write to this workload is pending.
    fn write(&mut self, write: Write, not_after: Option<Moment>) {
        self.write_within(write, self.write_timeout(), not_after);
    }

    fn write_within(&mut self, write: Write, timeout: Duration, not_after: Option<Moment>) {
        if !self.writes.busy.insert(write.target().uid.clone()) {
            return;
        }
        match &write {
            Write::Start(start) => self.note_start(start),
            Write::RecordWait(record) => {
                self.writes.recorded.insert(record.workload.uid.clone());
            }
            _ => {}
        }
        let call = Call::Write {
            write: write.clone(),
            timeout,
            not_after,
        };
        self.calls.ask(Pending::Write(write), call);
    }

    /// Requests a session for a slot of a workload, unless one is being made already or too many are. In that case
    /// the pass after the next answer requests the session.
    fn make_session(&mut self, request: &SessionRequest) {
        let making = &mut self.sessions.making;
        if making.len() >= MOST_SESSIONS_MADE_AT_ONCE || !making.insert(request.slot()) {
            return;
        }
        let identity = self.settings.identity(&request.workload, request.ordinal);
        let call = Call::CreateSession {
            name: identity.session_name(),
            ttl: self.settings.ttl,
            lock_delay: self.settings.session_lock_delay(),
            ahead: request.ahead,
        };
        self.calls.ask(Pending::Session(request.clone()), call);
    }

    /// Deletes the workloads that must not wait. If Consul has a problem, they wait instead.
    ///
    /// The event names the holders, and can't be completed after the workload is deleted, so the workload stays while
    /// Consul is being asked for a name.
    fn skip(&mut self, skips: &[Skip]) {
        if self.trouble().is_some() {
            return;
        }
        for skip in skips {
            let mut skip = skip.clone();
            if self.name_takers(&mut skip.why) {
                self.write(Write::Skip(skip), None);
            }
        }
    }

    /// Names the holders of the slots, as far as Consul has answered. Returns false while Consul is being asked.
    fn name_takers(&self, why: &mut Skipped) -> bool {
        let Skipped::Taken { by, .. } = why else {
            return true;
        };
        let foreign = &self.held.foreign;
        if by.iter().any(|taker| foreign.is_asked(&taker.session)) {
            return false;
        }
        for taker in by {
            let name = foreign.name(&taker.session).cloned();
            taker.holder = taker.holder.take().or(name);
        }
        true
    }

    /// Reports each running workload that continues without a slot, once. A workload is known to have a slot again
    /// when one is granted to it, and only while Consul's entries are known.
    fn report_unheld(&mut self, plan: &Plan, certain: bool) {
        let mut known = std::mem::take(&mut self.held.unheld);
        for workload in &plan.unheld {
            if !known.contains(&workload.uid) {
                self.calls.report(Outcome::GoesOn(workload.clone()));
            }
        }
        if certain {
            let next = plan.sessions.iter().map(|request| &request.workload.uid);
            let soon: BTreeSet<&Uid> = plan
                .transaction
                .iter()
                .flat_map(|transaction| &transaction.grants)
                .map(|grant| &grant.workload.uid)
                .chain(next)
                .collect();
            known.retain(|uid| soon.contains(uid));
        }
        known.extend(plan.unheld.iter().map(|workload| workload.uid.clone()));
        self.held.unheld = known;
    }

    /// Schedules another try soon.
    fn retry_soon(&mut self, now: Now) {
        self.writes.again = Some(now.moment + RETRY_AFTER);
        self.schedule.next = self.schedule.next.min(now.moment + RETRY_AFTER);
    }

    /// Returns when the next pass is due, which is the earliest of all times. Everything that was due by now is done.
    fn next_time(&self, plan: &Plan, now: Now) -> Moment {
        let now = now.moment;
        let blocking = self.calls.blocking.iter();
        let troubles = self.knowledge.troubles.due();
        let times = troubles
            .chain(blocking.filter_map(|blocking| blocking.until))
            .chain(plan.wake)
            .chain(plan.anew)
            .chain(plan.deadline)
            .chain(self.writes.again)
            .chain(self.writes.refusals.due())
            .chain(self.held.foreign.due())
            .chain(self.held.proofs.due());
        let next = times
            .filter(|time| *time > now)
            .min()
            .unwrap_or(now + IDLE)
            .max(now + MIN_PASS_INTERVAL);
        // After a lost race the queue tries again before anything else is due.
        let quiet = self.knowledge.quiet_until.filter(|until| *until > now);
        quiet.map_or(next, |quiet| quiet.min(next))
    }

    fn conclude(&mut self, facts: &Facts, plan: Plan, lookup: &impl Lookup) -> Conclusion {
        let lock = self.knowledge.reading.as_ref().map(Reading::lock);
        let settles = lock.is_some_and(|lock| plan.settles(lock, &self.settings));
        let settled = settles.then_some(self.settings.limit);
        let Plan {
            record,
            agreement,
            finished,
            unheld,
            parts,
            open,
            in_reach,
            before,
            ..
        } = plan;
        if agreement == Some(Agreement::Agreed) {
            self.limits.defence.holds(false);
        }
        let ahead: BTreeSet<_> = self.sessions.ahead.values().collect();
        let lives = |session: &SessionId| {
            let end = lookup.life(session).and_then(SessionState::end);
            end.is_some_and(|end| end > facts.now.moment)
        };
        let mut kept = self.sessions.kept.iter();
        let holds = kept.any(|session| !ahead.contains(session) && lives(session));
        let can_write = !self.knowledge.troubles.writing_fails();
        // Slots of a rate end with their sessions.
        let holds = holds && !self.settings.is_rate();
        Conclusion {
            certain: facts.certain,
            record,
            agreement,
            // A session that is being made has to be destroyed first.
            finished: finished && self.sessions.making.is_empty(),
            unheld,
            settled,
            parts,
            open: open && can_write,
            in_reach,
            before,
            idle: facts.is_empty()
                && self.sessions.is_empty()
                && self.writes.busy.is_empty()
                && self.calls.blocking.is_none()
                && self.calls.unsent.is_none()
                && self.knowledge.is_unused(),
            nothing_held: !facts.any_runs() && !holds,
        }
    }
}

/// Work for workloads that also ask for slots at other lock keys: see `joint`.
impl Queue {
    /// Returns the transaction that grants a workload its slots here with at most this many operations, or `None` if
    /// the slots can't be granted now.
    pub(super) fn share(
        &mut self,
        workload: &Uid,
        operations: usize,
        now: Now,
        lookup: &impl Lookup,
    ) -> Option<Arc<Transaction>> {
        if self.is_blocked() || !self.may_use_consul(now) {
            return None;
        }
        let facts = self.observe(now, lookup);
        let mut observed = facts.observed(self, Some(workload));
        observed.operations = observed.operations.min(operations);
        let transaction = decide(&observed).transaction?;
        let mut grants = transaction.grants.iter();
        let has_it = grants.any(|grant| grant.workload.uid == *workload && grant.starts);
        has_it.then(|| Arc::new(transaction))
    }

    /// Sets the stance towards this workload, which is `None` if none is decided. Returns whether that is new.
    pub(super) fn take_stance(&mut self, workload: &Uid, stance: Option<Stance>) -> bool {
        let before = match stance {
            Some(stance) => self.stances.insert(workload.clone(), stance),
            None => self.stances.remove(workload),
        };
        before != stance
    }

    /// Takes over the longest cooldowns of workloads that ask for several slots and must not wait.
    pub(super) fn note_longest_cooldowns(&mut self, longest: BTreeMap<Uid, Duration>) {
        self.longest_cooldowns = longest;
    }

    /// Takes over all that this workload asks for at several lock keys, or forgets it with `None`.
    pub(super) fn take_request(&mut self, workload: &Uid, asked: Option<&Asked>) {
        match asked {
            Some(asked) if self.requests.get(workload) == Some(asked) => {}
            Some(asked) => drop(self.requests.insert(workload.clone(), asked.clone())),
            None => drop(self.requests.remove(workload)),
        }
    }

    /// Takes over which part of this workload's request is not free. An empty list means that this is not known.
    /// Returns whether that is new.
    pub(super) fn note_lacking(&mut self, workload: &Uid, lacking: &[SlotRequest]) -> bool {
        let before = if lacking.is_empty() {
            self.lacking.remove(workload)
        } else {
            self.lacking.insert(workload.clone(), lacking.to_vec())
        };
        before.unwrap_or_default() != lacking
    }

    /// Returns the waiting workloads that ask for several slots, with the stances towards them.
    pub(super) fn stances(&self) -> impl Iterator<Item = (&Uid, Stance)> {
        let stances = self.stances.iter();
        stances.map(|(workload, stance)| (workload, *stance))
    }

    /// Returns which part of such a workload's request is not free, here or elsewhere.
    pub fn lacking(&self, workload: &Uid) -> &[SlotRequest] {
        self.lacking.get(workload).map_or(&[], Vec::as_slice)
    }

    /// Sends a transaction that contains this queue's part.
    pub(super) fn send(&mut self, id: CallId, call: Call) {
        self.calls.actions.push_back(Action::Call(id, call));
    }

    /// Starts a workload in the slots of all its lock keys, if that can be answered in time. The write may take no
    /// longer than it may at any of the lock keys.
    pub(super) fn start_by(&mut self, start: Start, timeout: Duration, not_after: Moment) {
        self.write_within(Write::Start(start), timeout, Some(not_after));
    }

    /// Makes a workload give back what it holds here, because it lost a part of its request.
    pub(super) fn give_back(&mut self, workload: &Workload, slots: &[HeldSlot]) {
        let sessions = slots.iter().map(|slot| slot.session().clone());
        self.write(
            Write::GiveBack(GiveBack {
                workload: workload.into(),
                sessions: workload.given_back_with(sessions.collect()),
                hold: false,
                began: workload.wait_given_back(),
            }),
            None,
        );
    }
}

/// Work that ends waits: see [`super::waits`].
impl Queue {
    /// Takes the failures of workloads that must not wait, as the last pass decided. They are dropped if Consul has a
    /// problem.
    pub(super) fn take_fails(&mut self) -> Vec<Fail> {
        if self.trouble().is_some() {
            self.fails.clear();
        }
        std::mem::take(&mut self.fails)
    }

    /// Makes a workload that waits fail, once Consul has answered who has the slots.
    pub(super) fn fail(&mut self, mut fail: Fail, now: Now) {
        let named = match &mut fail.why {
            Failed::Contended(why) => self.name_takers(why),
            Failed::TimedOut { taken, .. } => {
                let mut taken = taken.iter_mut();
                taken.all(|(_, why)| self.name_takers(why))
            }
            Failed::Unqueued { .. } | Failed::Superseded { .. } | Failed::QueueFull { .. } => true,
        };
        if named {
            self.write(Write::Fail(fail), None);
        } else {
            self.retry_soon(now);
        }
    }

    /// Records the beginning of a workload's wait beside the workload.
    pub(super) fn record_wait(&mut self, record: RecordWait) {
        self.write(Write::RecordWait(record), None);
    }

    /// Ends a running workload.
    pub(super) fn end(&mut self, end: End) {
        self.write(Write::End(end), None);
    }

    /// Returns the contenders of ours, except those of steady workloads.
    pub(super) fn own_contenders(&self) -> impl Iterator<Item = (&SessionId, &Identity)> {
        let contenders = self.active.contenders.iter();
        contenders.map(|(session, identity)| (session, &**identity))
    }

    /// Returns whether a write to a workload failed, so that the workload is left alone for now.
    pub(super) fn is_troubled(&self, workload: &Uid, now: Now) -> bool {
        self.writes.refusals.is_troubled(workload, now.moment)
    }

    /// Makes the next pass read the prefix again.
    pub(super) fn read_again(&mut self) {
        self.knowledge.invalidate();
    }

    /// Schedules a pass for this moment, unless one is due before.
    pub(super) fn wake_by(&mut self, due: Moment) {
        self.schedule.next = self.schedule.next.min(due);
    }
}

/// Returns the result of a start.
fn answer_to(write: &Write, written: &Written) -> StartAnswer {
    match written {
        Written::Done => StartAnswer::Made,
        Written::Outdated(seen) if write.is_done_in(seen.as_deref()) => StartAnswer::Made,
        Written::Outdated(_) | Written::NotSent | Written::Refused { .. } => StartAnswer::NotMade,
        Written::Unanswered(_) => StartAnswer::Unknown,
    }
}

/// Returns when a workload in its cooldown was done.
fn done(body: &ContenderBody) -> Option<Timestamp> {
    let cooldown = SignedDuration::from_secs(body.cooldown.try_into().ok()?);
    body.cools_until?.checked_sub(cooldown).ok()
}

/// State that tests compare.
#[cfg(test)]
impl Queue {
    /// Returns which workloads are left alone, can't be started, or can't be changed at all.
    pub(crate) fn excluded_now(&self, now: Moment) -> impl Fn(&Uid) -> [bool; 3] {
        let mut excluded = self.writes.refusals.excluded(now);
        excluded.busy.extend(self.writes.busy.iter().cloned());
        move |uid| {
            let Excluded {
                busy,
                barred,
                immovable,
            } = &excluded;
            [busy, barred, immovable].map(|set| set.contains(uid))
        }
    }

    /// Returns what happened to the limit, and whether `.lock` was written since a write of a limit was sent.
    pub(crate) fn defended(&self) -> (Defence, bool) {
        (self.limits.defence, self.limits.fenced)
    }
}
