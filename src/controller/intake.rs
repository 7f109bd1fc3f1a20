//! Jobs that no grantor looks after: their semaphore does not exist, their annotations can't be
//! read, or something else manages them. They are told so, and those that must wait are suspended.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    CALL_TIMEOUT, Context,
    events::Reason,
    index::Stray,
    job::Obstacle,
    patch::{self, PatchError},
};
use crate::{
    clock::Moment,
    semaphore::{
        Uid,
        plan::{Suspend, Suspended, Target},
    },
};

/// How long a semaphore that is made together with its Jobs may come after them.
const GRACE: Duration = Duration::from_secs(2);

/// When to try again what could not be done.
const AGAIN: Duration = Duration::from_secs(5);

struct Told {
    since: Moment,
    note: Option<String>,
}

/// Looks after the strays for ever.
pub(super) async fn run(context: Arc<Context>) {
    let mut told: HashMap<Uid, Told> = HashMap::new();
    loop {
        let strays = context.index.strays();
        told.retain(|uid, _| strays.iter().any(|stray| stray.kept.job.uid == *uid));
        let mut next = Duration::from_hours(1);
        for stray in &strays {
            if stray.must_wait && !suspend(&context, stray).await {
                next = next.min(AGAIN);
            }
            let (reason, note, grace) = explain(stray);
            let job = &stray.kept.job;
            let known = told.entry(job.uid.clone()).or_insert_with(|| Told {
                since: Moment::now(),
                note: None,
            });
            let age = Moment::now().since(known.since);
            if known.note.as_ref() == Some(&note) {
                continue;
            }
            if age < grace {
                next = next.min(grace.saturating_sub(age));
                continue;
            }
            context.events.job(
                &stray.kept.namespace,
                &job.name,
                &job.uid,
                reason,
                note.clone(),
            );
            known.note = Some(note);
        }
        tokio::select! {
            () = context.index.strays_changed() => {}
            () = tokio::time::sleep(next) => {}
        }
    }
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
        None => {
            let wanted = stray.kept.job.wants.as_deref().unwrap_or_default();
            let note = format!(
                "this Job stays suspended: there is no ConsulSemaphore {wanted} in its namespace"
            );
            (Reason::NoSemaphore, note, GRACE)
        }
    }
}

/// Suspends a Job that runs although it has no slot; says whether that is done.
async fn suspend(context: &Arc<Context>, stray: &Stray) -> bool {
    let job = &stray.kept.job;
    let order = Suspend {
        job: Target::from(job),
        why: Suspended::NotGranted,
        unhold: false,
    };
    let namespace = stray.kept.namespace.clone();
    let body = patch::suspend(&order);
    match patch::write(
        context.clone(),
        namespace.clone(),
        order.job,
        body,
        CALL_TIMEOUT,
    )
    .await
    {
        Ok(kept) => {
            let note = "suspended: it asks for a slot of a semaphore and has none";
            context.events.job(
                &namespace,
                &job.name,
                &job.uid,
                Reason::Suspended,
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
