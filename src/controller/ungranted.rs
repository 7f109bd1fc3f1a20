//! Workloads that run without a grant: created unsuspended without the admission policy, or unsuspended by somebody.
//! They are suspended, whatever the state of their semaphore.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{Context, events::Reason, tasks::Tasks};
use crate::{
    call::CALL_TIMEOUT,
    crash::{self, Point},
    workload::{Urgency, WorkloadWrite, WriteError},
};
use consul_client::clock::{self, Moment};
use consul_semaphore::{Uid, holding::Setback, plan::Stop};
use consul_semaphore_workload::{Kind, TrackedWorkload};

/// How many of them are suspended at once.
const CONCURRENCY: usize = 16;

/// Suspends them, and never returns.
pub(super) async fn run(context: Arc<Context>) {
    let mut tasks = Tasks::new(CONCURRENCY);
    let mut setbacks: HashMap<Uid, Setback> = HashMap::new();
    loop {
        let now = Moment::now();
        setbacks.retain(|uid, _| context.index.is_ungranted(uid));
        let due = |uid: &Uid| setbacks.get(uid).is_none_or(|setback| setback.until <= now);
        let its_turn = |uid: &Uid| !tasks.has(uid) && due(uid);
        for workload in context
            .index
            .ungranted(tasks.free(), tasks.last(), its_turn)
        {
            let (uid, context) = (workload.workload.uid.clone(), context.clone());
            tasks.start(uid, async move { suspend(&context, &workload).await });
        }
        let waits = setbacks.values().map(|setback| setback.until);
        let next = waits.filter(|until| *until > now).min();
        let wait = next.map_or(Duration::MAX, |until| until.since(now));
        tokio::select! {
            () = context.index.ungranted_changed() => {}
            Some((uid, result)) = tasks.next() => {
                let (before, now) = (setbacks.remove(&uid), Moment::now());
                let setback = match result {
                    Ok(()) => None,
                    Err(Undone::Conflict) => Some(Setback::outrun(before.as_ref(), now)),
                    Err(Undone::Failed) => Some(Setback::after(before.as_ref(), now)),
                };
                setbacks.extend(setback.map(|setback| (uid, setback)));
            }
            () = sleep(wait) => {}
        }
    }
}

/// Why a workload was not suspended.
enum Undone {
    /// Somebody else has changed it in the meantime.
    Conflict,
    /// The API server refuses, or does not answer.
    Failed,
}

/// Suspends a workload, unless that is no longer needed.
async fn suspend(context: &Context, workload: &TrackedWorkload) -> Result<(), Undone> {
    let TrackedWorkload {
        namespace,
        workload,
        shape,
        ..
    } = workload;
    let Some(stop) = Stop::of(workload) else {
        return Ok(());
    };
    let kind = context.workloads.kind(&stop.workload.kind);
    let request = kind.and_then(|kind| kind.stop(&stop, shape, clock::time()));
    let Some(request) = request else {
        return Ok(());
    };
    let write = WorkloadWrite {
        namespace: namespace.clone(),
        request,
        below: Vec::new(),
        urgency: Urgency::Suspends,
        target: stop.workload,
        timeout: CALL_TIMEOUT,
        deadline: None,
    };
    let emit = |reason, note| {
        let events = &context.shared.events;
        events.workload(namespace, &**workload, reason, note);
    };
    let semaphore = match workload.semaphores() {
        none if none.is_empty() => "its semaphore".to_owned(),
        semaphores => semaphores,
    };
    match context.workloads.write(write).await {
        Ok(now) => {
            crash::reach(Point::Stopped, namespace).await;
            let held = match context.workloads.kind(&workload.kind) {
                Some(Kind::KueueWorkload) => {
                    "Annotate what you put in a queue of Kueue before you do".to_owned()
                }
                _ => format!("Create {}s with spec.suspend: true", workload.kind),
            };
            let note = format!("suspended because it ran without a slot of {semaphore}. {held}");
            emit(Reason::RanWithoutSlot, note);
            context.index.written(&workload.uid, now);
            Ok(())
        }
        Err(WriteError::Outdated(now)) => {
            context.index.reread(&workload.uid, now.map(|now| *now));
            Err(Undone::Conflict)
        }
        Err(error) => {
            tracing::warn!(workload = %format_args!("{namespace}/{}", workload.name), %error, "can't suspend a Job without a slot");
            if let WriteError::Refused { message, .. } = error {
                let note = format!(
                    "it runs without a slot of {semaphore}, and the API server refuses to suspend it: \
                     {message}"
                );
                emit(Reason::StartRefused, note);
            }
            Err(Undone::Failed)
        }
    }
}
