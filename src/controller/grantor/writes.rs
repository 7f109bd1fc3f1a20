//! Writes to Jobs: each is begun by a pass, goes on beside the passes, and its outcome is the cause
//! of another one.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use serde_json::Value;
use tokio::task::JoinSet;

use super::Grantor;
use crate::{
    api::annotations,
    clock::Moment,
    controller::{
        backoff::Setback,
        call::CALL_TIMEOUT,
        events::Reason,
        job::Kept,
        patch::{self, JobWrite, PatchError},
    },
    crash::{self, Point},
    semaphore::{
        Standing, Uid,
        plan::{GiveBack, Rename, Start, Suspend, Suspended, Target},
    },
};

/// How long the API server may still do what it has not answered: its own bound on a request.
const UNDECIDED: Duration = Duration::from_mins(1);

/// How long a Job is left alone that can't be changed at all: long beside the time for which it
/// keeps a slot before that is known.
const LEFT_ALONE: Duration = Duration::from_mins(10);

/// After how many refusals of starts in a row it is not about the Jobs.
const REFUSALS: u32 = 3;

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
}

impl Write {
    fn job(&self) -> &Target {
        match self {
            Self::Start(Start { job, .. })
            | Self::Suspend(Suspend { job, .. })
            | Self::GiveBack(GiveBack { job, .. })
            | Self::Rename(Rename { job, .. }) => job,
        }
    }

    fn body(&self) -> Value {
        match self {
            Self::Start(start) => patch::start(start),
            Self::Suspend(suspend) => patch::suspend(suspend),
            Self::GiveBack(give_back) => patch::give_back(give_back),
            Self::Rename(rename) => patch::rename(rename),
        }
    }

    /// The point after it.
    fn point(&self) -> Point {
        match self {
            Self::Start(_) => Point::Started,
            Self::Suspend(_) => Point::Suspended,
            Self::GiveBack(_) => Point::GivenBack,
            Self::Rename(_) => Point::Renamed,
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
pub(super) type Written = (Write, Result<Kept, PatchError>);

/// A Job that could not be written to.
#[derive(Debug)]
struct Trouble {
    setback: Setback,
    refused: Option<Refused>,
}

/// What the API server refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// To have the Job started.
    Start,
    /// Also to have it told that it gives its slot back, since then.
    GiveBack(Moment),
    /// The same for so long that no start which was sent before can be on its way any more, also
    /// not another replica's.
    Everything,
}

impl Refused {
    /// What is refused now that this write was refused, too.
    fn after(before: Option<Self>, write: &Write, now: Moment) -> Option<Self> {
        match (write, before) {
            (Write::Start(_), _) => Some(Self::Start),
            (Write::GiveBack(_), Some(Self::Start)) => Some(Self::GiveBack(now)),
            (Write::GiveBack(_), Some(Self::GiveBack(since))) if since + UNDECIDED <= now => {
                Some(Self::Everything)
            }
            (_, before) => before,
        }
    }
}

/// The Jobs that are not written to as they otherwise would be.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    /// They are being written to, or left alone for now.
    pub(super) busy: BTreeSet<Uid>,
    /// They can't be started for now, and give back the slot that they have.
    pub(super) barred: BTreeSet<Uid>,
    /// Those of them whose slot goes without their being told, because that is refused, too.
    pub(super) immovable: BTreeSet<Uid>,
}

/// The writes that are under way, and what became of those before.
#[derive(Default)]
pub(in crate::controller) struct Writes {
    pub(super) under_way: JoinSet<Written>,
    busy: BTreeSet<Uid>,
    troubles: HashMap<Uid, Trouble>,
    /// How many starts were refused in a row.
    refusals: u32,
    /// Why no Job is started for now, and until when.
    closed: Option<(Setback, String)>,
}

impl Writes {
    /// Whether a Job is being written to.
    pub(super) fn is_busy(&self, uid: &Uid) -> bool {
        self.busy.contains(uid)
    }

    /// The Jobs that are left alone for now, or can't be started.
    pub(super) fn withheld(&self, now: Moment) -> Withheld {
        let mut withheld = Withheld {
            busy: self.busy.clone(),
            ..Withheld::default()
        };
        for (uid, trouble) in &self.troubles {
            let waits = trouble.setback.until > now;
            match trouble.refused {
                None | Some(Refused::GiveBack(_)) if waits => {
                    withheld.busy.insert(uid.clone());
                }
                Some(Refused::Start) if waits => {
                    withheld.barred.insert(uid.clone());
                }
                Some(Refused::GiveBack(_)) => {
                    withheld.barred.insert(uid.clone());
                }
                Some(Refused::Everything) if waits => {
                    withheld.barred.insert(uid.clone());
                    withheld.immovable.insert(uid.clone());
                }
                _ => {}
            }
        }
        withheld
    }

    /// Whether no Job is started for now, because one after another was refused.
    pub(super) fn is_closed(&self, now: Moment) -> bool {
        self.closed
            .as_ref()
            .is_some_and(|(setback, _)| setback.until > now)
    }

    /// What the API server said when it refused one start after another.
    pub(in crate::controller) fn refusal(&self) -> Option<&str> {
        self.closed.as_ref().map(|(_, message)| message.as_str())
    }

    /// When something is tried again.
    pub(super) fn due(&self) -> impl Iterator<Item = Moment> {
        let jobs = self.troubles.values().map(|trouble| trouble.setback.until);
        jobs.chain(self.closed.iter().map(|(setback, _)| setback.until))
    }

    fn started(&mut self) {
        self.refusals = 0;
        self.closed = None;
    }

    /// A refusal of every start is no reason to try them all, one after another.
    fn refused(&mut self, message: String, forbidden: bool) {
        self.refusals = self.refusals.saturating_add(1);
        if forbidden || self.refusals >= REFUSALS {
            let before = self.closed.as_ref().map(|(setback, _)| setback);
            self.closed = Some((Setback::after(before, Moment::now()), message));
        }
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
        let job_write = JobWrite {
            namespace: self.reference.namespace.clone(),
            job,
            body: write.body(),
            timeout: self.patch_timeout(),
            deadline,
        };
        let (context, namespace) = (self.context.clone(), self.reference.namespace.clone());
        self.writes.under_way.spawn(async move {
            let written = patch::write(&context, job_write).await;
            if written.is_ok() {
                crash::reach(write.point(), &namespace).await;
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
                self.done(&write, *kept);
            }
            Err(PatchError::Outdated(now)) => {
                self.writes.troubles.remove(&uid);
                match now {
                    Some(now) => self.context.index.refresh(*now),
                    None => self.context.index.remove(&uid),
                }
            }
            Err(PatchError::TooLate) => self.retry_soon(),
            Err(PatchError::Refused { message, forbidden }) => {
                self.refused(&write, message, forbidden);
            }
            Err(PatchError::Unanswered(why)) => {
                let job = &write.job().name;
                tracing::warn!(%job, semaphore = %self.reference, why, "a write is to be repeated");
                self.note_trouble(&write, false);
            }
        }
        let index = &self.context.index;
        self.writes.troubles.retain(|uid, _| {
            let job = index.job(uid);
            job.is_some_and(|job| !matches!(job.standing, Standing::Finished { .. }))
        });
    }

    fn refused(&mut self, write: &Write, message: String, forbidden: bool) {
        let Target { name, uid, .. } = write.job();
        tracing::warn!(job = %name, semaphore = %self.reference, message, "a write was refused");
        let note = format!("the API server refuses to have this Job changed: {message}");
        self.tell_job(name, uid, Reason::StartRefused, note);
        if matches!(write, Write::Start(_)) {
            self.writes.refused(message, forbidden);
        }
        self.note_trouble(write, true);
    }

    fn note_trouble(&mut self, write: &Write, refused: bool) {
        let now = Moment::now();
        let before = self.writes.troubles.get(&write.job().uid);
        let mut setback = Setback::after(before.map(|before| &before.setback), now);
        let known = before.and_then(|before| before.refused);
        let refused = match write {
            write if refused => Refused::after(known, write, now),
            // Whether it is refused is not known any more.
            Write::Start(_) => None,
            _ => known,
        };
        if refused == Some(Refused::Everything) {
            setback.until = now + LEFT_ALONE;
        }
        let trouble = Trouble { setback, refused };
        self.writes
            .troubles
            .insert(write.job().uid.clone(), trouble);
    }

    fn done(&mut self, write: &Write, kept: Kept) {
        let Target { name, uid, .. } = write.job();
        match self.writes.troubles.get_mut(uid) {
            // That it gives its slot back is no reason to start it at once.
            Some(trouble) if trouble.refused.is_some() && matches!(write, Write::GiveBack(_)) => {
                trouble.refused = Some(Refused::Start);
            }
            _ => drop(self.writes.troubles.remove(uid)),
        }
        self.context.index.refresh(kept);
        let semaphore = &self.reference.name;
        let (reason, note) = match write {
            Write::Start(start) => {
                self.writes.started();
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
            Write::GiveBack(_) | Write::Rename(_) => return,
        };
        self.tell_job(name, uid, reason, note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::semaphore::Uid;

    fn give_back() -> Write {
        Write::GiveBack(GiveBack {
            job: Target {
                name: "a".into(),
                uid: Uid::from("a"),
                version: "1".into(),
            },
            session: "s".into(),
            hold: false,
        })
    }

    #[test]
    fn a_job_that_cannot_be_changed_keeps_its_slot_until_no_start_can_come() {
        let first = Moment::from_boot(Duration::from_secs(100));
        let again = |before, now| Refused::after(before, &give_back(), now);
        let told = again(Some(Refused::Start), first);
        assert_eq!(told, Some(Refused::GiveBack(first)));
        let later = first + Duration::from_secs(59);
        assert_eq!(again(told, later), told);
        assert_eq!(again(told, first + UNDECIDED), Some(Refused::Everything));
        // One that was never refused a start holds its slot for another reason.
        assert_eq!(again(None, later), None);
    }

    #[test]
    fn what_is_withheld_follows_from_what_was_refused() {
        let now = Moment::from_boot(Duration::from_secs(100));
        let withheld = |refused, at| {
            let trouble = Trouble {
                setback: Setback::after(None, now),
                refused,
            };
            let writes = Writes {
                troubles: HashMap::from([("a".into(), trouble)]),
                ..Writes::default()
            };
            let Withheld {
                busy,
                barred,
                immovable,
            } = writes.withheld(at);
            (busy.len(), barred.len(), immovable.len())
        };
        let later = now + Duration::from_hours(1);
        for (refused, soon, then) in [
            (None, (1, 0, 0), (0, 0, 0)),
            (Some(Refused::Start), (0, 1, 0), (0, 0, 0)),
            (Some(Refused::GiveBack(now)), (1, 0, 0), (0, 1, 0)),
            (Some(Refused::Everything), (0, 1, 1), (0, 0, 0)),
        ] {
            assert_eq!(withheld(refused, now), soon, "{refused:?}");
            assert_eq!(withheld(refused, later), then, "{refused:?}, later");
        }
    }
}
