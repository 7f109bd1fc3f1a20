//! What goes on beside the passes: writes to Jobs, and sessions in the making. Each is begun by a
//! pass, and its outcome is the cause of another one.

use super::{
    events::Reason,
    grantor::{Grantor, JobTrouble, Setback},
    job::Kept,
    keeper::Session,
    observe::Whose,
    patch::{self, PatchError},
};
use crate::{
    clock::Moment,
    consul::{self, SessionId},
    semaphore::{
        Uid,
        plan::{GiveBack, Rename, Start, Suspend, Suspended, Target},
    },
};

/// Something that takes a while.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A Job is started in its slot.
    Start(Start),
    /// A Job is suspended.
    Suspend(Suspend),
    /// A Job is told that it gives its slot back.
    GiveBack(GiveBack),
    /// A Job's annotation is set to the session that holds its slot now.
    Rename(Rename),
    /// A session is made for a Job at the head of the line.
    Session(Target),
}

impl Step {
    fn job(&self) -> &Target {
        match self {
            Self::Start(Start { job, .. })
            | Self::Suspend(Suspend { job, .. })
            | Self::GiveBack(GiveBack { job, .. })
            | Self::Rename(Rename { job, .. })
            | Self::Session(job) => job,
        }
    }
}

/// How a step ended.
pub(super) enum Outcome {
    /// The Job was written to.
    Written(Result<Kept, PatchError>),
    /// A session was made.
    Made(Result<(SessionId, Session), consul::Error>),
}

impl Grantor {
    /// Begins a step, unless one is under way for this Job.
    pub(super) fn begin(&mut self, step: Step) {
        let job = step.job().clone();
        if matches!(step, Step::Session(_)) {
            if self.making.insert(job.uid.clone()) {
                self.make_session(step, &job);
            }
            return;
        }
        if !self.busy.insert(job.uid.clone()) {
            return;
        }
        let body = match &step {
            Step::Start(start) => patch::start(start),
            Step::Suspend(suspend) => patch::suspend(suspend),
            Step::GiveBack(back) => patch::give_back(back),
            Step::Rename(rename) => patch::rename(rename),
            Step::Session(_) => return,
        };
        let namespace = self.reference.namespace.clone();
        let write = patch::write(
            self.context.clone(),
            namespace,
            job,
            body,
            self.patch_timeout(),
        );
        self.steps
            .spawn(async move { (step, Outcome::Written(write.await)) });
    }

    fn make_session(&mut self, step: Step, job: &Target) {
        let keeper = self.context.keeper.clone();
        let (consul, place, wake) = (self.consul.clone(), self.place.clone(), self.wake.clone());
        let (name, ttl) = (self.settings.identity(job).session_name(), self.ttl);
        self.steps.spawn(async move {
            let made = keeper.create(&consul, &place, name, ttl, wake).await;
            (step, Outcome::Made(made))
        });
    }

    /// Takes note of how a step ended.
    pub(super) fn settle(&mut self, step: &Step, outcome: Outcome) {
        let uid = step.job().uid.clone();
        match outcome {
            Outcome::Made(made) => {
                self.making.remove(&uid);
                self.made(step, made);
            }
            Outcome::Written(written) => {
                self.busy.remove(&uid);
                match written {
                    Ok(kept) => {
                        self.troubles.remove(&uid);
                        self.context.index.refresh(kept);
                        self.done(step);
                    }
                    Err(error) => self.not_done(step, &uid, error),
                }
            }
        }
    }

    fn made(&mut self, step: &Step, made: Result<(SessionId, Session), consul::Error>) {
        let job = step.job();
        match made {
            Ok((id, session)) => {
                self.writing_works();
                self.identities
                    .insert(id.clone(), Whose::Own(self.settings.identity(job)));
                self.sessions.insert(id.clone(), session);
                if let Some(other) = self.ahead.insert(job.uid.clone(), id) {
                    self.end_session(other);
                }
            }
            Err(error) => self.write_failed(error),
        }
    }

    fn done(&self, step: &Step) {
        let semaphore = &self.reference.name;
        let (reason, note) = match step {
            Step::Start(Start { slot, .. }) => (
                Reason::SlotGranted,
                format!(
                    "started in a slot of {semaphore} (session {})",
                    slot.session()
                ),
            ),
            Step::Suspend(Suspend {
                why: Suspended::NotGranted,
                ..
            }) => (
                Reason::Suspended,
                format!(
                    "suspended because it ran without a slot of {semaphore}; it is in line for one"
                ),
            ),
            Step::Suspend(Suspend {
                why: Suspended::SlotLost,
                ..
            }) => {
                self.context.metrics.lost(&self.labels);
                (
                    Reason::SlotLost,
                    format!(
                        "its slot of {semaphore} was lost and none is free: suspended, first in line"
                    ),
                )
            }
            Step::GiveBack(GiveBack { hold: true, .. }) => (
                Reason::PutOnHold,
                format!(
                    "was suspended while it held a slot of {semaphore}: the slot is given back, and \
                     the Job is on hold until the annotation {} is removed or the Job is unsuspended",
                    crate::api::annotations::HOLD
                ),
            ),
            Step::GiveBack(_) | Step::Rename(_) | Step::Session(_) => return,
        };
        if reason == Reason::SlotLost {
            tracing::warn!(job = %step.job().name, %semaphore, "slot lost");
        }
        let job = step.job();
        self.tell_job(&job.name, &job.uid, reason, note);
    }

    fn not_done(&mut self, step: &Step, uid: &Uid, error: PatchError) {
        let refused = match error {
            PatchError::Outdated(now) => {
                match now {
                    Some(now) => self.context.index.refresh(*now),
                    None => self.context.index.remove(uid),
                }
                return;
            }
            PatchError::Refused(why) => Some(why),
            PatchError::Unanswered(why) => {
                tracing::warn!(job = %step.job().name, semaphore = %self.reference, why, "a write is to be repeated");
                None
            }
        };
        let before = self.troubles.get(uid).map(|trouble| &trouble.setback);
        let setback = Setback::after(before, Moment::now());
        if let Some(why) = &refused {
            let job = step.job();
            tracing::warn!(job = %job.name, semaphore = %self.reference, why, "a write was refused");
            let note = format!("the API server refuses to have this Job changed: {why}");
            self.tell_job(&job.name, uid, Reason::StartRefused, note);
        }
        let refused = refused.is_some() && matches!(step, Step::Start(_));
        self.troubles
            .insert(uid.clone(), JobTrouble { setback, refused });
    }
}
