//! The second part of a pass: does what was decided. Nothing else writes.

use std::time::Duration;

use super::{Grantor, writes::Write};
use crate::{
    controller::{events::Reason, job::Kept},
    crash::{self, Point},
};
use consul_client::{
    Entry,
    clock::{self, Moment},
};
use consul_semaphore::{
    Life, Plan, Uid,
    evidence::tenure,
    holding::Outcome,
    plan::{Cooling, Grant, Release, Start, Target, Transaction},
};
use consul_semaphore_api::annotations;

impl Grantor {
    /// Does what was decided, and says whether there is more to decide at once. While Consul is
    /// left in peace, only Jobs are written to.
    pub(super) async fn apply(&mut self, plan: &Plan) -> bool {
        for suspend in &plan.suspends {
            self.write(Write::Suspend(suspend.clone()), None);
        }
        if plan.reread {
            self.view.doubt();
            return !self.view.is_blocked();
        }
        let blocked = self.view.is_blocked();
        let mut again = plan.again && !blocked;
        if let Some(transaction) = plan.transaction.as_ref().filter(|_| !blocked) {
            again |= self.transact(transaction).await;
        }
        for start in &plan.starts {
            self.start(start.clone());
        }
        for give_back in &plan.give_backs {
            self.write(Write::GiveBack(give_back.clone()), None);
        }
        for rename in &plan.renames {
            self.write(Write::Rename(rename.clone()), None);
        }
        if !blocked {
            plan.sessions.iter().for_each(|job| self.make_session(job));
            if plan.transaction.is_none() && plan.sessions.is_empty() && self.sessions.is_settled()
            {
                self.view.writing_works();
            }
        }
        self.skip(&plan.skips);
        for uid in &plan.surplus {
            if let Some(session) = self.sessions.ahead.get(uid).cloned() {
                self.end_session(session);
            }
        }
        self.tell_unheld(&plan.unheld);
        self.tell_newcomers();
        again
    }

    /// Says once of each running Job without a slot that it goes on.
    fn tell_unheld(&mut self, unheld: &[Target]) {
        let told = std::mem::take(&mut self.unheld);
        for job in unheld.iter().filter(|job| !told.contains(&job.uid)) {
            self.context.metrics.lost(&self.labels);
            self.trace_loss(&job.uid, "the slot was lost; the Job goes on");
            tracing::warn!(job = %job.name, semaphore = %self.reference, "slot lost, goes on");
            let note = format!(
                "its slot of {} was lost, or can't be shown to be held, and there is no other one: \
                 it goes on, as spec.onSlotLost says",
                self.reference.title()
            );
            self.tell_job(&job.name, &job.uid, Reason::SlotLost, note);
        }
        self.unheld = unheld.iter().map(|job| job.uid.clone()).collect();
    }

    /// One write to Consul. Says whether to decide again at once.
    async fn transact(&mut self, transaction: &Transaction) -> bool {
        if transaction.removes_lock {
            crash::reach(Point::LockUnused, &self.reference.namespace).await;
        }
        let moved = self.leaves_behind(transaction);
        let ending = self.ending(transaction);
        match self.view.transact(transaction).await {
            Outcome::Committed(answer) => {
                self.crash_after(transaction).await;
                self.committed(transaction, &answer);
                self.trace(transaction, ending);
                self.moved = moved.or(self.moved);
                true
            }
            Outcome::Refused(errors) => {
                tracing::debug!(semaphore = %self.reference, ?errors, "not written");
                self.sessions.drop_invalid(transaction, &errors);
                true
            }
            Outcome::Failed => false,
        }
    }

    async fn crash_after(&self, transaction: &Transaction) {
        let grants = &transaction.grants;
        for (point, reached) in [
            (Point::LimitWritten, transaction.limit.is_some()),
            (Point::Pruned, !transaction.prunes.is_empty()),
            (Point::Cooling, !transaction.coolings.is_empty()),
            (Point::Released, !transaction.releases.is_empty()),
            (Point::Granted, grants.iter().any(|grant| grant.starts)),
            (Point::Regranted, grants.iter().any(|grant| !grant.starts)),
        ] {
            if reached {
                crash::reach(point, &self.reference.namespace).await;
            }
        }
    }

    fn committed(&mut self, transaction: &Transaction, answer: &[Entry]) {
        self.fenced |= transaction.writes_lock();
        // Before all that others do not wait for.
        for start in transaction.starts(answer) {
            self.start(start);
        }
        for release in &transaction.releases {
            self.released(release);
        }
        for cooling in &transaction.coolings {
            self.tell_cooling(cooling);
        }
        for session in &transaction.prunes {
            let session = session.shown();
            tracing::info!(semaphore = %self.reference, %session, "pruned a dead holder");
        }
        if let Some(limit) = transaction.limit {
            let enforced = transaction.enforced;
            tracing::info!(semaphore = %self.reference, limit, enforced, "limit written");
            self.defence.holds(enforced);
        }
        for (_, slot) in transaction.slots(answer) {
            self.fencing_token = self.fencing_token.max(Some(slot.fencing_token()));
        }
        transaction.grants.iter().for_each(|g| self.granted(g));
    }

    fn granted(&mut self, grant: &Grant) {
        let Grant {
            job,
            session,
            starts,
            since,
        } = grant;
        self.sessions.ahead.remove(&job.uid);
        tracing::info!(
            job = %format_args!("{}/{}", self.reference.namespace, job.name),
            semaphore = %self.reference,
            %session,
            "granted"
        );
        if *starts {
            let waited = clock::time().as_second().saturating_sub(*since);
            let waited = Duration::from_secs(waited.try_into().unwrap_or(0));
            self.context.metrics.granted(&self.labels, waited);
        } else {
            if !self.unheld.contains(&job.uid) {
                self.context.metrics.lost(&self.labels);
                self.trace_loss(&job.uid, "the slot was lost; the Job has another one");
            }
            let note = format!(
                "the slot of {} was lost while this Job ran, and it has one again under session \
                 {session}",
                self.reference.title()
            );
            self.tell_job(&job.name, &job.uid, Reason::SlotLost, note);
        }
    }

    fn released(&mut self, release: &Release) {
        self.proofs.forget(&release.session);
        self.end_session(release.session.clone());
        if release.held {
            self.tell_release(release);
        }
    }

    fn tell_cooling(&self, cooling: &Cooling) {
        let Cooling {
            identity,
            session,
            until,
        } = cooling;
        tracing::info!(
            job = %format_args!("{}/{}", identity.namespace, identity.job),
            semaphore = %self.reference,
            %session,
            %until,
            "cools"
        );
        let note = format!(
            "done; its slot of {} stays held until {until:.0}, as spec.cooldown said when it was \
             granted (session {session})",
            self.reference.title()
        );
        self.tell_job(&identity.job, &identity.uid, Reason::SlotCooling, note);
    }

    pub(super) fn tell_release(&self, release: &Release) {
        let Release {
            identity, session, ..
        } = release;
        tracing::info!(
            job = %format_args!("{}/{}", identity.namespace, identity.job),
            semaphore = %self.reference,
            %session,
            "released"
        );
        self.context.metrics.released(&self.labels);
        let note = format!(
            "gave its slot of {} back (session {session})",
            self.reference.title()
        );
        self.tell_job(&identity.job, &identity.uid, Reason::SlotReleased, note);
    }

    /// Sends the PATCH that starts a Job, unless the evidence for its slot may end before the PATCH
    /// is answered, or is so old that the Job would be suspended again.
    fn start(&mut self, start: Start) {
        self.fencing_token = self.fencing_token.max(Some(start.slot.fencing_token()));
        let job = self.context.index.job(&start.job.uid);
        let grace = job.as_ref().map_or(Duration::ZERO, |job| job.grace);
        // One that was suspended for want of evidence is not started only to be suspended again: by
        // the time that the next proof is due it must have been enough.
        let due = if job.is_some_and(|job| job.lost()) {
            3
        } else {
            8
        };
        let now = Moment::now();
        let enough = |sent: Moment, ttl: Duration| {
            let end = sent + ttl;
            let lasts = sent + tenure(ttl, grace) > now + ttl / due;
            (lasts && end > now + self.patch_timeout()).then_some(end)
        };
        let reading = self.view.reading.as_ref();
        let seen = reading.and_then(|reading| enough(reading.sent, self.settings.span()));
        let lives = match self.sessions.life(start.slot.session()) {
            Some(Life::Renewed { sent, ttl }) => enough(sent, ttl),
            Some(Life::Endless) => Some(Moment::END),
            Some(Life::Unknown | Life::Gone) | None => None,
        };
        match (seen, lives) {
            (Some(seen), Some(lives)) => self.write(Write::Start(start), Some(seen.min(lives))),
            (None, _) => {
                self.view.doubt();
                self.retry_soon();
            }
            // Its next renewal brings it back.
            (_, None) => self.retry_soon(),
        }
    }

    /// Tells those that came in line, and were not granted a slot at once, that they wait.
    fn tell_newcomers(&mut self) {
        let name = self.reference.title();
        let newcomers = self.context.index.newcomers(&self.reference);
        self.tell_useless_keys(&newcomers);
        let (told, reason, note) = if self.settings.terminating {
            let first = !std::mem::replace(&mut self.told, true);
            let all = if first {
                self.context.index.line(&self.reference)
            } else {
                newcomers.into_iter().map(|kept| kept.job).collect()
            };
            let note = format!(
                "ConsulSemaphore {name} is being deleted: this Job stays suspended until there is \
                 one of that name again"
            );
            (all, Reason::NoSemaphore, note)
        } else {
            (
                newcomers.into_iter().map(|kept| kept.job).collect(),
                Reason::SlotWaiting,
                format!("in line for a slot of ConsulSemaphore {name}"),
            )
        };
        for job in told.iter().filter(|job| !self.writes.is_busy(&job.uid)) {
            self.tell_job(&job.name, &job.uid, reason, note.clone());
        }
    }

    /// Tells Jobs that name a key of a semaphore which has none.
    fn tell_useless_keys(&self, newcomers: &[Kept]) {
        if self.settings.key.is_some() {
            return;
        }
        let names_one = |kept: &&Kept| kept.job.key.is_some() || kept.no_key.is_some();
        for Kept { job, .. } in newcomers.iter().filter(names_one) {
            let note = format!(
                "the annotation {} is not heeded: ConsulSemaphore {} is not keyed, and all its Jobs share \
                 its slots. Remove it, or name a ConsulSemaphore with spec.keyed: true",
                annotations::KEY,
                self.reference.name
            );
            self.tell_job(&job.name, &job.uid, Reason::Malformed, note);
        }
    }

    pub(super) fn tell_job(&self, name: &str, uid: &Uid, reason: Reason, note: String) {
        self.context
            .events
            .job(&self.reference.namespace, name, uid, reason, note);
    }
}
