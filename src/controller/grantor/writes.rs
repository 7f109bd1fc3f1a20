//! Writes to Jobs: each is begun by a pass, goes on beside the passes, and its outcome is the cause
//! of another one.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;
use tokio::task::JoinSet;

use super::{
    Grantor,
    refusals::{Refusals, Withheld},
};
use crate::{
    controller::{
        call::CALL_TIMEOUT,
        events::Reason,
        job::Kept,
        patch::{self, JobWrite, PatchError},
    },
    crash::{self, Point},
};
use consul_client::clock::Moment;
use consul_semaphore::{
    Standing, Uid,
    plan::{GiveBack, Rename, Skip, Start, Suspend, Suspended, Target},
};
use consul_semaphore_api::annotations;

/// A write to a Job.
#[derive(Clone, Debug)]
pub(super) enum Write {
    /// It is started in its slot.
    Start(Start),
    /// It is suspended.
    Suspend(Suspend),
    /// It is told that it gives its slot back.
    GiveBack(GiveBack),
    /// Its annotation is set to the session that holds its slot now.
    Rename(Rename),
    /// It is deleted, for this reason.
    Skip(Skip, String),
}

impl Write {
    pub(super) fn job(&self) -> &Target {
        match self {
            Self::Start(Start { job, .. })
            | Self::Suspend(Suspend { job, .. })
            | Self::GiveBack(GiveBack { job, .. })
            | Self::Rename(Rename { job, .. })
            | Self::Skip(Skip { job, .. }, _) => job,
        }
    }

    /// The merge patch; `None` if the Job is deleted.
    fn body(&self) -> Option<Value> {
        Some(match self {
            Self::Start(start) => patch::start(start),
            Self::Suspend(suspend) => patch::suspend(suspend),
            Self::GiveBack(give_back) => patch::give_back(give_back),
            Self::Rename(rename) => patch::rename(rename),
            Self::Skip(..) => return None,
        })
    }

    /// The point after it; `None` where nothing is left to be done.
    fn point(&self) -> Option<Point> {
        match self {
            Self::Start(_) => Some(Point::Started),
            Self::Suspend(_) => Some(Point::Suspended),
            Self::GiveBack(_) => Some(Point::GivenBack),
            Self::Rename(_) => Some(Point::Renamed),
            Self::Skip(..) => None,
        }
    }

    /// Whether the Job, read again, shows that the write was done though its answer was lost.
    fn is_done_in(&self, kept: &Kept) -> bool {
        let Self::Start(start) = self else {
            return false;
        };
        // One that lost its slot names the session in its template already, but does not report it.
        kept.job.started_by(start.slot.session()) && !kept.job.lost()
    }
}

/// How a write ended.
pub(super) type Written = (Write, Result<Option<Kept>, PatchError>);

/// The writes that are under way, and what became of those before.
#[derive(Default)]
pub(in crate::controller) struct Writes {
    pub(super) under_way: JoinSet<Written>,
    busy: BTreeSet<Uid>,
    pub(in crate::controller) refusals: Refusals,
    /// Whether the operator may write to Jobs, while that is asked.
    pub(super) asked: JoinSet<Option<bool>>,
}

impl Writes {
    /// Whether nothing is being written.
    pub(super) fn is_idle(&self) -> bool {
        self.busy.is_empty() && self.under_way.is_empty()
    }

    /// Whether a Job is being written to.
    pub(super) fn is_busy(&self, uid: &Uid) -> bool {
        self.busy.contains(uid)
    }

    /// The Jobs that are left alone for now, or can't be started.
    pub(super) fn withheld(&self, now: Moment) -> Withheld {
        let mut withheld = self.refusals.withheld(now);
        withheld.busy.extend(self.busy.iter().cloned());
        withheld
    }
}

impl Grantor {
    /// How long a PATCH may take: short beside the TTL, so that there is time for it.
    pub(super) fn patch_timeout(&self) -> Duration {
        CALL_TIMEOUT.min(self.settings.span() / 4)
    }

    /// Begins a write, unless the Job is being written to. It is not sent if it could be answered
    /// only after `deadline`.
    pub(super) fn write(&mut self, write: Write, deadline: Option<Moment>) {
        let job = write.job().clone();
        if !self.writes.busy.insert(job.uid.clone()) {
            return;
        }
        let timeout = self.patch_timeout();
        let (context, namespace) = (self.context.clone(), self.reference.namespace.clone());
        self.writes.under_way.spawn(async move {
            let written = match write.body() {
                None => patch::delete(&context, &namespace, &job, timeout).await,
                Some(body) => {
                    let job_write = JobWrite {
                        namespace: namespace.clone(),
                        job,
                        body,
                        timeout,
                        deadline,
                    };
                    patch::write(&context, job_write).await.map(Some)
                }
            };
            if let (Ok(_), Some(point)) = (&written, write.point()) {
                crash::reach(point, &namespace).await;
            }
            (write, written)
        });
    }

    /// Takes note of how a write ended.
    pub(super) fn settle_write(&mut self, (write, written): Written) {
        let uid = write.job().uid.clone();
        self.writes.busy.remove(&uid);
        match written {
            Ok(kept) => self.done(&write, kept),
            Err(PatchError::Outdated(Some(kept))) if write.is_done_in(&kept) => {
                self.done(&write, Some(*kept));
            }
            // It is gone, by this or an attempt before it of which nothing was heard.
            Err(PatchError::Outdated(None)) if matches!(write, Write::Skip(..)) => {
                self.done(&write, None);
            }
            Err(PatchError::Outdated(now)) => {
                self.writes.refusals.outrun(&uid, Moment::now());
                self.context.index.reread(&uid, now.map(|now| *now));
            }
            Err(PatchError::TooLate) => self.retry_soon(),
            Err(PatchError::Refused { message, forbidden }) => {
                self.refused(&write, message, forbidden);
            }
            Err(PatchError::Unanswered(why)) => {
                let job = &write.job().name;
                tracing::warn!(%job, semaphore = %self.reference, why, "a write is to be repeated");
                self.writes.refusals.failed(&write, false, Moment::now());
            }
        }
        let index = &self.context.index;
        self.writes.refusals.retain(|uid| {
            let job = index.job(uid);
            job.is_some_and(|job| !matches!(job.standing, Standing::Finished { .. }))
        });
    }

    fn refused(&mut self, write: &Write, message: String, forbidden: bool) {
        let Target { name, uid, .. } = write.job();
        tracing::warn!(job = %name, semaphore = %self.reference, why = %message, "a write was refused");
        let note = format!("the API server refuses to have this Job changed: {message}");
        self.tell_job(name, uid, Reason::StartRefused, note);
        let (refusals, now) = (&mut self.writes.refusals, Moment::now());
        if matches!(write, Write::Start(_)) {
            refusals.start_refused(message, forbidden, now);
        }
        refusals.failed(write, true, now);
    }

    fn done(&mut self, write: &Write, kept: Option<Kept>) {
        let Target { name, uid, .. } = write.job();
        self.writes.refusals.done(write);
        self.context.index.written(uid, kept);
        if let Write::Suspend(suspend) = write {
            self.trace_suspension(suspend);
        }
        let semaphore = self.reference.title();
        let (reason, note) = match write {
            Write::Start(start) => {
                let session = start.slot.session();
                (
                    Reason::SlotGranted,
                    format!("started in a slot of {semaphore} (session {session})"),
                )
            }
            Write::Suspend(Suspend {
                why: Suspended::SlotLost,
                ..
            }) => {
                self.context.metrics.lost(&self.labels);
                tracing::warn!(job = %name, semaphore = %self.reference, "slot lost");
                let note = format!(
                    "its slot of {semaphore} was lost while it ran: suspended, first in line"
                );
                (Reason::SlotLost, note)
            }
            Write::Suspend(Suspend {
                why: Suspended::Unproved,
                ..
            }) => {
                self.context.metrics.lost(&self.labels);
                tracing::warn!(job = %name, semaphore = %self.reference, "slot not proved any more");
                let note = format!(
                    "nothing has shown for too long that its slot of {semaphore} is still held: \
                     suspended, first in line"
                );
                (Reason::SlotLost, note)
            }
            Write::GiveBack(GiveBack { hold: true, .. }) => {
                let note = format!(
                    "was suspended while it held a slot of {semaphore}: the slot is given back, and \
                     the Job is on hold until the annotation {} is removed or the Job is unsuspended",
                    annotations::HOLD
                );
                (Reason::PutOnHold, note)
            }
            Write::Skip(skip, note) => return self.tell_skip(skip, note),
            Write::GiveBack(_) | Write::Rename(_) => return,
        };
        self.tell_job(name, uid, reason, note);
    }
}
