//! Jobs that no grantor looks after: their semaphore does not exist, their annotations can't be
//! read, or something else manages them. They are told so, and those that must wait are suspended.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};

use super::{
    Context,
    backoff::Setback,
    call::CALL_TIMEOUT,
    events::Reason,
    index::Stray,
    job::{Kept, Obstacle},
    patch::{self, JobWrite, PatchError},
};
use crate::{
    clock::Moment,
    crash::{self, Point},
    semaphore::{
        Uid,
        plan::{Suspend, Suspended, Target},
    },
};

/// How long a semaphore that is made together with its Jobs may come after them.
const GRACE: Duration = Duration::from_secs(2);

/// How many Jobs are suspended at once.
const CONCURRENCY: usize = 16;

/// How long changes are collected.
const COALESCE: Duration = Duration::from_millis(200);

struct Told {
    since: Moment,
    note: Option<String>,
}

/// Looks after the strays for ever.
pub(super) async fn run(context: Arc<Context>) {
    let mut told: HashMap<Uid, Told> = HashMap::new();
    let mut setback: Option<Setback> = None;
    loop {
        let strays = context.index.strays();
        let there: HashSet<&Uid> = strays.iter().map(|stray| &stray.kept.job.uid).collect();
        told.retain(|uid, _| there.contains(uid));
        let running: Vec<Stray> = strays
            .iter()
            .filter(|stray| stray.must_wait)
            .cloned()
            .collect();
        let suspended: Vec<bool> = stream::iter(running)
            .map(|stray| suspend(context.clone(), stray))
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        let failed = suspended.contains(&false);
        setback = failed.then(|| Setback::after(setback.as_ref(), Moment::now()));
        let retry = setback.map(|setback| setback.until.since(Moment::now()));
        let wait = retry
            .into_iter()
            .chain(tell(&context, &strays, &mut told))
            .min();
        tokio::time::sleep(COALESCE).await;
        tokio::select! {
            () = context.index.strays_changed() => {}
            () = tokio::time::sleep(wait.unwrap_or(Duration::from_hours(1))) => {}
        }
    }
}

/// Says about each stray, once, what is to be said. Returns when there will be more to say.
fn tell(context: &Context, strays: &[Stray], told: &mut HashMap<Uid, Told>) -> Option<Duration> {
    let mut next = None;
    for stray in strays {
        let Kept { namespace, job, .. } = &stray.kept;
        let (reason, note, grace) = explain(stray);
        let known = told.entry(job.uid.clone()).or_insert_with(|| Told {
            since: Moment::now(),
            note: None,
        });
        let age = Moment::now().since(known.since);
        if known.note.as_ref() == Some(&note) {
            continue;
        }
        if age < grace {
            let wait = grace.saturating_sub(age);
            next = Some(next.map_or(wait, |next: Duration| next.min(wait)));
            continue;
        }
        context
            .events
            .job(namespace, &job.name, &job.uid, reason, note.clone());
        known.note = Some(note);
    }
    next
}

/// What is to be said about a stray, and how long to wait before it is said.
fn explain(stray: &Stray) -> (Reason, String, Duration) {
    match &stray.kept.obstacle {
        Some(Obstacle::Malformed(error)) => {
            let note = format!("this Job stays suspended: {error}");
            (Reason::Malformed, note, Duration::ZERO)
        }
        Some(Obstacle::Managed(manager)) => {
            let note = format!(
                "this Job is left alone, and gets no slot: {manager}. Remove either that or the \
                 annotation {}",
                crate::api::annotations::SEMAPHORE
            );
            (Reason::ManagedElsewhere, note, Duration::ZERO)
        }
        None if let Some(granted) = &stray.kept.job.granted => {
            let note = format!(
                "this Job was started in a slot of {}, which no ConsulSemaphore of its namespace \
                 stands for any more: nobody renews that slot",
                granted.lock_key
            );
            (Reason::NoSemaphore, note, GRACE)
        }
        None => {
            let wanted = stray.kept.job.wants.as_deref().unwrap_or_default();
            let note = format!(
                "this Job stays suspended: there is no ConsulSemaphore {wanted} in namespace {}. Make \
                 one of that name there, or correct the annotation {}; one of another namespace can't \
                 be used",
                stray.kept.namespace,
                crate::api::annotations::SEMAPHORE
            );
            (Reason::NoSemaphore, note, GRACE)
        }
    }
}

/// Suspends a Job that runs although it has no slot; says whether that is done.
async fn suspend(context: Arc<Context>, stray: Stray) -> bool {
    let Kept { namespace, job, .. } = &stray.kept;
    let order = Suspend {
        job: Target::from(job),
        why: Suspended::NotGranted,
        unhold: false,
    };
    let write = JobWrite {
        namespace: namespace.clone(),
        body: patch::suspend(&order),
        job: order.job,
        timeout: CALL_TIMEOUT,
        deadline: None,
    };
    match patch::write(&context, write).await {
        Ok(kept) => {
            crash::reach(Point::StraySuspended, namespace).await;
            let note = "suspended: it asks for a slot of a semaphore and has none";
            context.events.job(
                namespace,
                &job.name,
                &job.uid,
                Reason::RanWithoutSlot,
                note.into(),
            );
            context.index.refresh(kept);
            true
        }
        Err(PatchError::Outdated(now)) => {
            match now {
                Some(now) => context.index.refresh(*now),
                None => context.index.remove(&job.uid),
            }
            true
        }
        Err(error) => {
            tracing::warn!(job = %job.name, %error, "a Job without a slot can't be suspended");
            false
        }
    }
}
