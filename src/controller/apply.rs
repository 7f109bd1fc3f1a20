//! The second part of a pass: does what was decided. Nothing else writes.

use super::{
    CALL_TIMEOUT,
    events::Reason,
    grantor::Grantor,
    keeper::{Life, Session},
    steps::Step,
};
use crate::{
    clock::Moment,
    consul::{self, Entry, Op, OpError, SessionId},
    semaphore::{
        Plan,
        plan::{Grant, Release, Start, Transaction},
    },
};
use std::time::Duration;

impl Grantor {
    /// Does what was decided, and says whether there is more to decide at once. While Consul
    /// refuses to be written to (`blocked`), only Jobs are.
    pub(super) async fn apply(&mut self, plan: &Plan, blocked: bool) -> bool {
        self.forget_dead_sessions();
        if plan.reread {
            // The pass begins again with a new reading.
            self.reading = None;
            return !blocked;
        }
        let mut again = plan.again;
        self.troubles
            .retain(|uid, _| self.context.index.job(uid).is_some());
        if plan.record.is_some() {
            again &= self.record(plan).await;
        } else {
            self.applied.clone_from(&plan.applied);
        }
        if let Some(transaction) = plan.transaction.as_ref().filter(|_| !blocked) {
            again |= self.transact(transaction).await;
        }
        for start in &plan.starts {
            self.start(start.clone());
        }
        plan.suspends
            .iter()
            .for_each(|suspend| self.begin(Step::Suspend(suspend.clone())));
        plan.give_backs
            .iter()
            .for_each(|back| self.begin(Step::GiveBack(back.clone())));
        plan.renames
            .iter()
            .for_each(|rename| self.begin(Step::Rename(rename.clone())));
        if !blocked {
            plan.sessions
                .iter()
                .for_each(|job| self.begin(Step::Session(job.clone())));
            if plan.transaction.is_none() && plan.sessions.is_empty() && self.making.is_empty() {
                self.writing_works();
            }
        }
        for uid in &plan.surplus {
            if let Some(session) = self.ahead.remove(uid) {
                self.end_session(session);
            }
        }
        self.tell_newcomers();
        if plan.finished {
            self.finish().await;
        }
        again
    }

    /// Takes note of a limit as ours, in the status, before it is written to Consul.
    async fn record(&mut self, plan: &Plan) -> bool {
        let Some(record) = &plan.record else {
            return true;
        };
        let before = std::mem::replace(&mut self.applied, record.clone());
        let report = self.compose_report(plan);
        if let Err(error) = self.reporter.persist(report).await {
            tracing::warn!(semaphore = %self.reference, error, "a new limit waits for its record");
            self.applied = before;
            return false;
        }
        true
    }

    /// One write to Consul. An answer that was lost is looked up, not guessed.
    async fn transact(&mut self, transaction: &Transaction) -> bool {
        let sent = Moment::now();
        match self.consul.transaction(&transaction.operations).await {
            Ok(answer) => {
                self.conflicts = 0;
                self.writing_works();
                self.committed(transaction, &answer, sent);
                true
            }
            Err(consul::Error::Conflict(errors)) => {
                tracing::debug!(semaphore = %self.reference, ?errors, "somebody else was faster");
                self.drop_invalid_sessions(transaction, &errors);
                self.look_again().await
            }
            // There are fewer at once from now on.
            Err(consul::Error::TooLarge(_))
                if transaction.operations.len() > self.consul.transaction_capacity() =>
            {
                true
            }
            Err(error) => {
                if error.may_have_been_applied() {
                    self.reading = None;
                }
                self.write_failed(error);
                false
            }
        }
    }

    /// Has the prefix read again, after a pause that grows while others are faster.
    async fn look_again(&mut self) -> bool {
        self.reading = None;
        self.conflicts = self.conflicts.saturating_add(1);
        let longest = Duration::from_millis(5) * (1 << self.conflicts.min(8));
        tokio::time::sleep(longest.mul_f64(fastrand::f64())).await;
        true
    }

    fn committed(&mut self, transaction: &Transaction, answer: &[Entry], sent: Moment) {
        if let Some(reading) = self.reading.take() {
            let reading = reading.after(&transaction.operations, answer, sent);
            self.deaths.observe(&reading, Moment::now());
            self.reading = Some(reading);
        }
        transaction
            .releases
            .iter()
            .for_each(|release| self.released(release));
        for session in &transaction.prunes {
            tracing::info!(semaphore = %self.reference, %session, "pruned a dead holder");
        }
        if let Some(limit) = transaction.limit {
            tracing::info!(semaphore = %self.reference, limit, enforced = transaction.enforced, "limit written");
            self.enforced += u32::from(transaction.enforced);
        }
        transaction
            .grants
            .iter()
            .for_each(|grant| self.granted(grant));
        let prefix = &self.settings.prefix;
        let starts = transaction.starts(answer, &prefix.lock_key(), |session| {
            prefix.contender_key(session)
        });
        for start in starts {
            self.fencing_token = self.fencing_token.max(Some(start.slot.fencing_token()));
            self.start(start);
        }
    }

    fn granted(&mut self, grant: &Grant) {
        let Grant {
            job,
            session,
            starts,
            since,
        } = grant;
        self.ahead.remove(&job.uid);
        let waited = jiff::Timestamp::now().as_second().saturating_sub(*since);
        let waited = Duration::from_secs(waited.try_into().unwrap_or(0));
        tracing::info!(
            job = %format_args!("{}/{}", self.reference.namespace, job.name),
            semaphore = %self.reference,
            %session,
            "granted"
        );
        if *starts {
            self.context.metrics.granted(&self.labels, waited);
        } else {
            self.context.metrics.lost(&self.labels);
            let note = format!(
                "the slot of {} was lost while this Job ran, and it has one again under session {session}",
                self.reference.name
            );
            self.tell_job(&job.name, &job.uid, Reason::SlotLost, note);
        }
    }

    fn released(&mut self, release: &Release) {
        let Release {
            identity,
            session,
            held,
        } = release;
        self.ahead.retain(|_, ahead| ahead != session);
        self.proofs.remove(session);
        self.end_session(session.clone());
        if !held {
            return;
        }
        tracing::info!(
            job = %format_args!("{}/{}", identity.namespace, identity.job),
            semaphore = %self.reference,
            %session,
            "released"
        );
        self.context.metrics.released(&self.labels);
        let note = format!(
            "gave its slot of {} back (session {session})",
            self.reference.name
        );
        self.tell_job(&identity.job, &identity.uid, Reason::SlotReleased, note);
    }

    /// Sends the PATCH that starts a Job, if the evidence for its slot outlives the PATCH.
    fn start(&mut self, start: Start) {
        let deadline = Moment::now() + self.patch_timeout();
        let life = self.sessions.get(start.slot.session()).map(Session::life);
        let seen = self.reading.as_ref().map(|reading| reading.sent + self.ttl);
        if seen.is_some_and(|end| end <= deadline) {
            self.reading = None;
        }
        if self.reading.is_some() && matches!(life, Some(Life::Until(end)) if end > deadline) {
            self.begin(Step::Start(start));
        } else {
            // A new reading, or a renewal, brings it back.
            self.retry_soon();
        }
    }

    /// How long a PATCH may take: short beside the TTL, so that there is time for it.
    pub(super) fn patch_timeout(&self) -> Duration {
        CALL_TIMEOUT.min(self.ttl / 4)
    }

    /// Stops renewing a session and ends it.
    pub(super) fn end_session(&mut self, session: SessionId) {
        if self.sessions.remove(&session).is_some() {
            self.context.keeper.destroy(&self.consul, session);
        }
    }

    /// Forgets the sessions of which Consul says that they are gone.
    fn forget_dead_sessions(&mut self) {
        self.sessions
            .retain(|_, session| session.life() != Life::Gone);
        let sessions = &self.sessions;
        self.ahead
            .retain(|_, session| sessions.contains_key(session));
    }

    /// A session that was made ahead can be gone before its renewal has found out.
    fn drop_invalid_sessions(&mut self, transaction: &Transaction, errors: &[OpError]) {
        for error in errors {
            if let Some(Op::Lock { session, .. }) = transaction.operations.get(error.operation)
                && error.what.contains("invalid session")
            {
                self.ahead.retain(|_, ahead| ahead != session);
                self.sessions.remove(session);
            }
        }
    }

    fn tell_newcomers(&mut self) {
        let name = &self.reference.name;
        let newcomers = self.context.index.newcomers(&self.reference);
        if self.settings.terminating {
            let told = std::mem::replace(&mut self.told, true);
            let untold = if told {
                newcomers
            } else {
                self.context.index.line(&self.reference)
            };
            for job in untold {
                let note = format!(
                    "ConsulSemaphore {name} is being deleted: this Job stays suspended until \
                     there is one of that name again"
                );
                self.tell_job(&job.name, &job.uid, Reason::NoSemaphore, note);
            }
            return;
        }
        for job in newcomers {
            if self.busy.contains(&job.uid) {
                continue;
            }
            let note = format!("in line for a slot of ConsulSemaphore {name}");
            self.tell_job(&job.name, &job.uid, Reason::SlotWaiting, note);
        }
    }

    pub(super) fn tell_job(
        &self,
        name: &str,
        uid: &crate::semaphore::Uid,
        reason: Reason,
        note: String,
    ) {
        self.context
            .events
            .job(&self.reference.namespace, name, uid, reason, note);
    }
}
