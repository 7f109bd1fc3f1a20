//! Implements the queue of one lock key: the only code that grants and releases its slots.
//!
//! A queue consists of parts, each with the methods that read or change it: what Consul says ([`Knowledge`]), the
//! sessions of its contenders ([`Sessions`]), the slots that its workloads hold ([`SlotsHeld`]), the limit
//! ([`LimitState`]), the writes to workloads ([`WorkloadWrites`]), what is asked together with other lock keys
//! ([`JointRequests`]), the calls without an answer ([`PendingCalls`]) and the time of the next pass ([`Schedule`]).
//! The queue itself shows each event to the parts that it concerns, and makes the passes: it observes, decides with
//! [`decide()`], carries out the plan, and draws the [`Conclusion`].

mod conclusion;
mod facts;
mod joint_requests;
mod limits;
mod schedule;
#[cfg(test)]
mod shadow;
mod start_evidence;
#[cfg(test)]
mod tests;
mod writes;

use std::{sync::Arc, time::Duration};

pub use self::{conclusion::Conclusion, schedule::IDLE};
use self::{
    facts::Facts, joint_requests::JointRequests, limits::LimitState, schedule::Schedule,
    start_evidence::StartEvidence, writes::WorkloadWrites,
};
use super::{
    ConsulTrouble, Lookup, Owner,
    active::Active,
    calls::{Blocks, Pending, PendingCalls},
    capacity::OPERATIONS_ALWAYS_TAKEN,
    held::SlotsHeld,
    knowledge::Knowledge,
    message::{Action, Answer, Call, CallId, Event, Now, Outcome, Write},
    outcomes,
    sessions::Sessions,
};
use crate::{
    ContenderName, Cooldowns, Defence, Evidence, LastProof, Plan, Reading, Settings, SlotRequest,
    Turns, Uid, decide,
    plan::{Fail, HeldSlot, Start, Transaction},
};
use consul_client::{self as consul, Entry, OpError, SessionId, clock::Moment};

/// The state of one lock key.
#[derive(Clone, Debug)]
pub struct Queue {
    settings: Settings,
    pub(crate) limits: LimitState,
    pub(crate) knowledge: Knowledge,
    pub(crate) sessions: Sessions,
    pub(crate) held: SlotsHeld,
    pub(super) active: Active,
    pub(crate) writes: WorkloadWrites,
    pub(super) joint: JointRequests,
    pub(super) calls: PendingCalls,
    pub(super) schedule: Schedule,
    #[cfg(test)]
    pub(crate) plan: Plan,
    #[cfg(test)]
    shadow: shadow::Shadow,
}

/// State that the operator and other users of the engine read.
impl Queue {
    /// Returns the settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the prefix as Consul last showed it, or `None` while it is unknown or Consul fails to tell the owners
    /// of its contenders.
    pub fn reading(&self) -> Option<&Reading> {
        self.knowledge.resolved_reading()
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

    /// Returns whether Consul's index went back.
    pub fn went_back(&self) -> bool {
        self.knowledge.went_back
    }

    /// Returns how many operations a transaction may have, or `None` while Consul can't be used.
    pub fn operations(&self) -> Option<usize> {
        self.knowledge.capacity.operations()
    }

    /// Returns whether the lock key is a mutex in its lock-delay, because its last holder died.
    pub fn is_delayed(&self, now: Moment) -> bool {
        self.knowledge.memory.mutex.is_delayed(now)
    }

    /// Returns the workload that a contender's session was made for, as far as that is known.
    pub fn owner(&self, session: &SessionId) -> Option<&Owner> {
        self.sessions.owner(session)
    }

    /// Returns the sessions that are renewed for this queue.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        self.sessions.kept.iter()
    }

    /// Returns the sessions that were made ahead and have no contender yet.
    pub fn sessions_ahead(&self) -> impl Iterator<Item = &SessionId> {
        self.sessions.ahead.values()
    }

    /// Returns the name and the node of another program's session, if Consul has answered.
    pub fn holder_name(&self, session: &SessionId) -> Option<&ContenderName> {
        self.held.foreign.name(session)
    }

    /// Returns when the slots of finished workloads become free.
    pub fn cooldowns(&self) -> &Cooldowns {
        &self.held.cooldowns
    }

    /// Returns whether a workload is being written to in a way that may end its wait: a record of the beginning of
    /// its wait does not count.
    pub fn is_leaving(&self, uid: &Uid) -> bool {
        self.writes.is_leaving(uid)
    }

    /// Returns what the API server said when it refused several starts in a row.
    pub fn refusal(&self) -> Option<&str> {
        self.writes.refusals.message()
    }

    /// Whether the API server has refused to start this workload, and has not started it since.
    pub fn refuses_start(&self, workload: &Uid) -> bool {
        self.writes.refusals.refuses_start(workload)
    }

    /// Returns which part of the request of a workload that asks for slots at several lock keys is not free.
    pub fn lacking(&self, workload: &Uid) -> &[SlotRequest] {
        self.joint.lacking(workload)
    }

    /// Returns whether a slot is being granted to a workload.
    pub fn is_granting(&self, uid: &Uid) -> bool {
        self.calls.is_granting(uid)
    }

    /// Returns whether an answer of Consul is awaited before anything else is decided from its entries.
    pub fn is_blocked(&self) -> bool {
        self.calls.blocking().is_some()
    }

    /// Returns the next action.
    pub fn next_action(&mut self) -> Option<Action> {
        self.calls.next_action()
    }

    /// Returns when the next pass is due, if nothing happens before.
    pub fn next_timeout(&self) -> Moment {
        self.schedule.next()
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
            limits: LimitState::new(recorded, defence),
            sessions: Sessions::default(),
            held: SlotsHeld::default(),
            active: Active::default(),
            writes: WorkloadWrites::default(),
            joint: JointRequests::default(),
            calls: PendingCalls::default(),
            schedule: Schedule::default(),
            #[cfg(test)]
            plan: Plan::default(),
            #[cfg(test)]
            shadow: shadow::Shadow::default(),
        }
    }

    /// Takes over what an earlier process recorded about the proofs of the workloads that this process finds running.
    pub(super) fn recall(&mut self, last: Option<LastProof>) {
        self.held.evidence = Evidence::after(last);
        #[cfg(test)]
        self.shadow.recall(last);
    }

    /// Records an event. The next pass decides what follows from it, except for starts, which are sent at once.
    pub fn handle(&mut self, event: Event, now: Now, lookup: &impl Lookup) {
        match event {
            Event::Spec { settings, changed } => {
                self.settings = *settings;
                self.restrict();
                if changed {
                    self.limits.spec_changed();
                }
            }
            Event::Recorded(limits) => self.limits.recorded(limits),
            Event::Found(limits) => self.limits.found(limits),
            Event::Access(operations) => {
                // A pending transaction is not sent again over the old access, but it may have arrived.
                if let Some(transaction) = self.calls.access_changed() {
                    self.knowledge.transaction_lost(&transaction, now);
                    self.sessions
                        .end_joined(&transaction, now.moment, &mut self.calls);
                }
                self.knowledge.start_anew(operations);
            }
            Event::Capacity(operations) => self.knowledge.capacity.set(operations),
            Event::Listed(news) => {
                if news.as_ref().is_ok_and(|news| news.reset) {
                    self.knowledge.note_reset();
                }
                if self.is_blocked() {
                    self.calls.put_off(news);
                } else {
                    self.knowledge.listed(news, now);
                }
            }
            Event::Abandoned => {
                self.active.look_at_all();
                self.sessions.abandon(&mut self.calls);
            }
            Event::Answered(id, answer) => self.answered(id, answer, now, lookup),
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

    fn answered(&mut self, id: CallId, answer: Answer, now: Now, lookup: &impl Lookup) {
        let Some(blocks) = self.calls.take_blocking(id) else {
            let pending = self.calls.take_other(id);
            return self.answered_other(pending, answer, now, lookup);
        };
        match (blocks, answer) {
            (Blocks::Read, Answer::Listing(Ok(listing))) => self.knowledge.accept(listing, now),
            (Blocks::Resolve(sessions), Answer::Resolved(Ok(found))) => {
                self.sessions.resolved(sessions, found, &self.settings);
            }
            (_, Answer::Listing(Err(error))) => self.knowledge.read_failed(error, now),
            (_, Answer::Resolved(Err(error))) => self.knowledge.resolve_failed(error, now),
            (Blocks::Transact(transaction), Answer::Transacted { sent, result }) => {
                self.transacted(&transaction, sent, result, now, lookup);
            }
            _ => self.knowledge.invalidate(),
        }
        self.catch_up(now);
    }

    /// Takes over the answer to a call that does not block; `None` if no call waits for the answer.
    fn answered_other(
        &mut self,
        pending: Option<Pending>,
        answer: Answer,
        now: Now,
        lookup: &impl Lookup,
    ) {
        match (pending, answer) {
            (Some(Pending::Session(request)), Answer::SessionMade(made)) => {
                let sessions = &mut self.sessions;
                match sessions.made(&request, made, &self.settings, &mut self.calls) {
                    Ok(()) => self.knowledge.writing_works(),
                    Err(error) => self.knowledge.write_failed(error, now),
                }
            }
            (Some(Pending::Describe(session)), Answer::Described(answer)) => {
                self.held.foreign.answered(session, answer, now);
            }
            (Some(Pending::Write(write)), Answer::Written(written)) => {
                if let Write::Start(start) = &write {
                    let answer = write.start_answer(&written);
                    self.held.starts.answered(start.sessions(), answer);
                }
                let calls = &mut self.calls;
                if self.writes.answered(write, written, now, lookup, calls) {
                    self.schedule.retry_soon(now);
                }
            }
            (Some(Pending::Proof(question)), Answer::Proof(answer)) => {
                let identity = question.identity.clone();
                let remark = self.held.proved(question, answer, now, lookup);
                if let Some(remark) = remark {
                    self.calls.report(outcomes::about_pods(identity, remark));
                }
            }
            (Some(Pending::Access), Answer::Access(may_write)) => {
                self.writes.refusals.answered(may_write, now);
            }
            // No call waits for this session any more, and nobody else would destroy it.
            (_, Answer::SessionMade(Ok(session))) if !self.sessions.kept.contains(&session) => {
                self.calls.act(Action::Destroy(session));
            }
            _ => {}
        }
    }

    /// Takes over what the watch brought in the meantime, because no call blocks any more.
    fn catch_up(&mut self, now: Now) {
        if let Some(news) = self.calls.take_news() {
            self.knowledge.listed(news, now);
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
            let calls = &mut self.calls;
            return self.writes.too_large(grant, message, now, calls);
        }
        let too_long = transaction.operations.len() > self.operations().unwrap_or(0);
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
                    self.knowledge.capacity.be_cautious();
                }
                self.knowledge.lost_race(now);
                self.drop_gone(transaction, &errors);
            }
            // Later transactions have fewer operations.
            Err(consul::Error::TooLarge(_)) if too_long => {}
            Err(consul::Error::TooLarge(_))
                if transaction.operations.len() > OPERATIONS_ALWAYS_TAKEN =>
            {
                self.knowledge.capacity.be_cautious();
            }
            Err(error) => self.transaction_failed(transaction, error, now),
        }
    }

    fn transaction_failed(&mut self, transaction: &Transaction, error: consul::Error, now: Now) {
        if error.may_have_been_applied() {
            self.sessions
                .end_joined(transaction, now.moment, &mut self.calls);
        }
        self.knowledge.transaction_failed(transaction, error, now);
    }

    /// Forgets the sessions that a refused transaction found gone, before their renewal did.
    fn drop_gone(&mut self, transaction: &Transaction, errors: &[OpError]) {
        let calls = &mut self.calls;
        if self.sessions.drop_gone(transaction, errors, calls) {
            self.active.look_at_all();
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
        self.calls.committed();
        // The reading shows the limit and the released contenders only until the transaction is applied to it.
        let reading = self.knowledge.reading.as_ref();
        let moved =
            reading.and_then(|reading| limits::moved_by(transaction, reading, &self.sessions));
        let released: Vec<Outcome> = transaction
            .releases
            .iter()
            .map(|release| {
                let body = self.knowledge.body(&release.session);
                outcomes::released(release, body.as_ref())
            })
            .collect();
        self.knowledge.committed(transaction, answer, sent, now);
        // Starts come first, because workloads wait for them.
        for start in transaction.starts(answer) {
            self.start(&start, now, lookup);
        }
        for (release, outcome) in transaction.releases.iter().zip(released) {
            self.held.proofs.forget(&release.session);
            self.sessions.end(&release.session, &mut self.calls);
            if release.held {
                self.calls.report(outcome);
            }
        }
        for (gone, session) in &transaction.replaced {
            self.sessions.replaced(gone, session, &mut self.calls);
        }
        let limit_written = self.limits.committed(transaction);
        let outcomes = outcomes::cooled_and_pruned(transaction)
            .chain(limit_written)
            .chain(moved.map(Outcome::LimitMoved));
        outcomes.for_each(|outcome| self.calls.report(outcome));
        for (_, slots) in transaction.slots(answer) {
            self.held.note_tokens(&slots);
        }
        for grant in &transaction.grants {
            self.sessions.granted(grant, &mut self.calls);
            let first = grant.sessions.values().next();
            let body = first.and_then(|session| self.knowledge.body(session));
            self.calls.report(Outcome::Granted {
                lost: self.held.granted(grant),
                at: body.map(|body| body.time),
                grant: grant.clone(),
            });
        }
    }
}

/// Passes: each observes, decides and applies.
impl Queue {
    /// Decides what follows from all that is known, and returns the result. The effects come next, except for the
    /// transaction: see [`Self::transact`].
    pub fn pass(&mut self, now: Now, lookup: &impl Lookup) -> Conclusion {
        if let Some(blocking) = self.calls.blocking()
            && self
                .schedule
                .waits_for(blocking, self.knowledge.deadline, now)
        {
            return Conclusion::default();
        }
        self.calls.unsent = None;
        self.schedule.begin_pass(now);
        self.settings.restrictions.windows.refresh(now.time);
        let reading = self.knowledge.reading.as_ref();
        if self.limits.follow(&mut self.settings, reading) {
            self.restrict();
        }
        #[cfg(test)]
        let lookup = &self.shadow.tell_changes(&self.sessions, lookup);
        let facts = Facts::gather(self, now, lookup);
        if facts.unsure {
            self.schedule.retry_soon(now);
        }
        let plan = decide(&facts.observed(self, None));
        #[cfg(test)]
        {
            self.check(&facts, &plan, lookup);
            self.plan = plan.clone();
        }
        self.knowledge.deadline = plan.deadline;
        self.apply(&plan, facts.certain, now, lookup);
        self.limits.observe(plan.agreement);
        self.schedule_next(&plan, now);
        Conclusion::of(self, &facts, plan, lookup)
    }

    /// Gives up a call that has no answer at the time when a running workload has to be suspended. A write may have
    /// been applied, so the prefix is read again.
    fn give_up(&mut self, now: Now) {
        let Some(blocks) = self.calls.take_overdue(now) else {
            return;
        };
        let error = consul::Error::Unreachable {
            message: "no answer before a running Job must be suspended".into(),
            undecided: true,
        };
        match blocks {
            Blocks::Read => self.knowledge.read_failed(error, now),
            Blocks::Resolve(_) => self.knowledge.resolve_failed(error, now),
            Blocks::Transact(transaction) => self.transaction_failed(&transaction, error, now),
        }
        self.catch_up(now);
    }

    /// Carries out the plan. While Consul is unavailable, only workloads are written to.
    fn apply(&mut self, plan: &Plan, certain: bool, now: Now, lookup: &impl Lookup) {
        for suspend in &plan.suspends {
            self.write(Write::Suspend(suspend.clone()));
        }
        for end in &plan.ends {
            self.write(Write::End(end.clone()));
        }
        if plan.reread {
            self.knowledge.invalidate();
            self.schedule.retry_soon(now);
            let (sessions, gone) = (&mut self.sessions, &self.active.gone);
            self.knowledge
                .request_missing(sessions, gone, &mut self.calls, now, lookup);
            return;
        }
        let may_use_consul = self.knowledge.may_use_consul(now.moment);
        let transaction = plan.transaction.as_ref().filter(|_| may_use_consul);
        self.calls.unsent = transaction.cloned().map(Arc::new);
        for start in &plan.starts {
            self.start(start, now, lookup);
        }
        for give_back in &plan.give_backs {
            self.write(Write::GiveBack(give_back.clone()));
        }
        for rename in &plan.renames {
            self.write(Write::Rename(rename.clone()));
        }
        if certain && may_use_consul {
            for request in &plan.sessions {
                let calls = &mut self.calls;
                self.sessions.make(request, &self.settings, calls);
            }
            if plan.transaction.is_none() && !self.sessions.is_making() {
                self.knowledge.writing_works();
            }
        }
        // While Consul has a problem, the workloads that must not wait do wait.
        if self.trouble().is_none() {
            let (foreign, settings) = (&self.held.foreign, &self.settings);
            self.writes
                .skip(&plan.skips, foreign, settings, &mut self.calls);
        }
        self.writes.set_fails(&plan.fails);
        for slot in &plan.surplus {
            self.sessions.end_ahead(slot, &mut self.calls);
        }
        self.held.report_unheld(plan, certain, &mut self.calls);
    }

    /// Schedules the next pass for the earliest time at which something is due.
    fn schedule_next(&mut self, plan: &Plan, now: Now) {
        let times = self
            .knowledge
            .troubles
            .due()
            .chain(self.calls.blocking().and_then(|blocking| blocking.until))
            .chain(plan.wake)
            .chain(plan.anew)
            .chain(plan.deadline)
            .chain(self.writes.refusals.due())
            .chain(self.held.foreign.due())
            .chain(self.held.proofs.due())
            .chain(self.sessions.next_failed_end());
        let quiet_until = self.knowledge.quiet_until;
        self.schedule.set_next(times, quiet_until, now);
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
        self.calls.send(id, call);
    }

    /// Blocks decisions based on Consul's data until this transaction has been answered. The transaction is sent in
    /// place of the one that the last pass decided on. Returns the id of the call that sends it, and when the call
    /// counts as lost.
    pub(super) fn await_transaction(
        &mut self,
        transaction: &Arc<Transaction>,
        now: Now,
    ) -> (CallId, Option<Moment>) {
        self.limits.sent(transaction);
        self.sessions.sent(transaction);
        self.held.sent(transaction, &self.settings, now);
        let until = self.knowledge.call_until(now);
        if let Some(until) = until {
            self.schedule.wake_by(until);
        }
        let calls = &mut self.calls;
        (
            calls.wait_for_transaction(transaction.clone(), until),
            until,
        )
    }
}

/// Writes to workloads, and the part of this queue in what is granted together with other lock keys.
impl Queue {
    /// Sends a write, unless another write to this workload is pending.
    pub(super) fn write(&mut self, write: Write) {
        self.writes.send(write, &self.settings, &mut self.calls);
    }

    /// Makes a workload that waits fail, once Consul has answered who has the slots.
    pub(super) fn fail(&mut self, fail: Fail, now: Now) {
        let (foreign, settings) = (&self.held.foreign, &self.settings);
        if !self.writes.fail(fail, foreign, settings, &mut self.calls) {
            self.schedule.retry_soon(now);
        }
    }

    /// Takes the failures of workloads that must not wait, as the last pass decided. They are dropped if Consul has a
    /// problem.
    pub(super) fn take_fails(&mut self) -> Vec<Fail> {
        let mut fails = self.writes.take_fails();
        if self.trouble().is_some() {
            fails.clear();
        }
        fails
    }

    /// Sends the PATCH that starts a workload, unless the evidence for its slots may end before the PATCH is
    /// answered, or is so old that the workload would be suspended again.
    fn start(&mut self, start: &Start, now: Now, lookup: &impl Lookup) {
        if let Some(end) = self.evidence_for(&start.workload.uid, start.slots(), now, lookup) {
            self.start_by(start, self.settings.write_timeout(), end);
        }
    }

    /// Starts a workload in the slots of all its lock keys, unless another write to it is pending. The write may take no
    /// longer than it may at any of the lock keys. Returns whether the start was sent.
    pub(super) fn start_by(&mut self, start: &Start, timeout: Duration, not_after: Moment) -> bool {
        let write = Write::Start(start.clone());
        let calls = &mut self.calls;
        let was_sent = self
            .writes
            .send_within(write, timeout, Some(not_after), calls);
        if was_sent {
            self.held.starts.sent(start.sessions());
        }
        was_sent
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
        self.held.note_tokens(slots.clone());
        let sessions = slots.map(HeldSlot::session);
        let start_by = self.held.starts.start_by(sessions.clone());
        let workload = lookup.workload(workload);
        let needed = StartEvidence::needed(workload.as_deref(), &self.settings, now);
        let reading = self.knowledge.reading.as_ref();
        let seen = reading.and_then(|reading| needed.end(reading.sent, self.settings.span()));
        let lives: Option<Vec<Moment>> = sessions
            .map(|session| needed.end_of_session(self.sessions.life(session, lookup)))
            .collect();
        let end = seen.zip(lives).and_then(|(seen, lives)| {
            let lives = lives.into_iter().min()?;
            Some(seen.min(lives).min(start_by.unwrap_or(Moment::END)))
        });
        let lasting = end.filter(|end| needed.is_soon_enough(*end));
        if lasting.is_none() {
            // A new reading is needed only if this one is too old, because a session proves itself again with its
            // next renewal.
            if seen.is_none() {
                self.knowledge.invalidate();
            }
            self.schedule.retry_soon(now);
        }
        lasting
    }

    /// Returns the transaction that grants a workload its slots here with at most this many operations, or `None` if
    /// the slots can't be granted now. The workload also asks for slots at other lock keys: see
    /// [`joint`](super::joint).
    pub(super) fn share(
        &mut self,
        workload: &Uid,
        operations: usize,
        now: Now,
        lookup: &impl Lookup,
    ) -> Option<Arc<Transaction>> {
        if self.is_blocked() || !self.knowledge.may_use_consul(now.moment) {
            return None;
        }
        let facts = Facts::gather(self, now, lookup);
        let mut observed = facts.observed(self, Some(workload));
        observed.operations = observed.operations.min(operations);
        let transaction = decide(&observed).transaction?;
        let mut grants = transaction.grants.iter();
        let has_it = grants.any(|grant| grant.workload.uid == *workload && grant.starts);
        has_it.then(|| Arc::new(transaction))
    }
}
