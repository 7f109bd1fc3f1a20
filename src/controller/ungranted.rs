//! Suspends workloads that run without a grant, because they were created unsuspended without the admission policy,
//! or because somebody unsuspended them. They are suspended whatever the state of their semaphore.

use std::sync::Arc;

use tokio::time::sleep;

use super::{
    Context,
    events::Reason,
    tasks::{Pause, Tasks},
};
use crate::{
    call::CALL_TIMEOUT,
    crash::{self, Point},
    workload::{Urgency, WorkloadWrite, WriteError},
};
use consul_client::clock::{self, Moment};
use consul_semaphore::plan::Stop;
use consul_semaphore_workload::{Kind, TrackedWorkload};

/// Number of workloads that are suspended at once.
const CONCURRENCY: usize = 16;

/// Suspends workloads that run without a grant, and never returns.
pub(super) async fn run(context: Arc<Context>) {
    let mut tasks = Tasks::new(CONCURRENCY);
    loop {
        let now = Moment::now();
        for uid in context.index.take_ungranted() {
            tasks.plan(&uid, now);
        }
        while let Some(uid) = tasks.take_due(now) {
            let Some(workload) = context.index.ungranted(&uid) else {
                tasks.rest(&uid, now);
                continue;
            };
            let (context, namespace) = (context.clone(), workload.namespace.clone());
            if tasks.may_start(&uid, &namespace) {
                let task = async move { suspend(&context, &workload).await };
                tasks.start(uid, namespace, task);
            }
        }
        let wait = tasks.wait(now);
        tokio::select! {
            () = context.index.ungranted_changed() => {}
            Some((uid, result)) = tasks.next() => {
                let now = Moment::now();
                tasks.pause(&uid, |before| match result {
                    // Another controller may start the workload again at once, and again.
                    Ok(()) | Err(Undone::Conflict) => Pause::outrun(before, now),
                    Err(Undone::Failed) => Pause::after_failure(before, now),
                });
            }
            () = sleep(wait) => {}
        }
    }
}

/// The reason why a workload was not suspended.
enum Undone {
    /// The workload has been changed by somebody else in the meantime.
    Conflict,
    /// The API server refuses the write, or does not answer.
    Failed,
}

/// Suspends a workload, unless this is no longer necessary.
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
    let Some(kind) = context.workloads.kind(&stop.workload.kind) else {
        return Ok(());
    };
    let Some(request) = kind.stop(&stop, shape, clock::time()) else {
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
        holds: kind != Kind::KueueWorkload,
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
            let held = match kind {
                Kind::KueueWorkload => {
                    "Annotate a workload before you put it into a queue of Kueue".to_owned()
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
                    "it runs without a slot of {semaphore}, and can't be suspended: {message}"
                );
                emit(Reason::StartRefused, note);
            }
            Err(Undone::Failed)
        }
    }
}
