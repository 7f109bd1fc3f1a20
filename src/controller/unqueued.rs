//! Workloads in no queue, because their semaphore does not exist or can never give them what they ask for: their waits
//! end, and what the engine records of the waits in its queues is recorded of theirs, too.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use jiff::Timestamp;

use super::{
    Context,
    index::Unclaimed,
    shell::{ended, explain_failure},
    tasks::{Pause, Tasks},
    unfailable::hold_instead,
};
use crate::{
    call::CALL_TIMEOUT,
    workload::{Urgency, WorkloadWrite, WriteError},
};
use consul_client::clock::{self, Moment};
use consul_semaphore::{
    Uid,
    engine::Write,
    plan::{Fail, Failed, RecordWait},
};
use consul_semaphore_workload::{Shape, TrackedWorkload};

/// When to look again whether a semaphore can grant anything, or a workload may still hold a slot.
const LATER: Duration = Duration::from_secs(10);

/// How long after at most the wall clock is read again, by which a wait ends: somebody may set it.
const CLOCK_IS_READ_AGAIN: Duration = Duration::from_mins(1);

/// How many of them are written to at once.
const CONCURRENCY: usize = 16;

/// The workloads in no queue whose waits end.
pub(super) struct Unqueued {
    /// Since when this replica leads.
    started: Timestamp,
    /// Each returns what [`carry_out`] does.
    writes: Tasks<bool>,
}

impl Unqueued {
    pub(super) fn new() -> Self {
        Self {
            started: clock::time(),
            writes: Tasks::new(CONCURRENCY),
        }
    }

    /// A workload has come to be in no queue, has changed there, or is in one.
    pub(super) fn look_at(&mut self, workload: &Uid) {
        self.writes.plan(workload, Moment::now());
    }

    /// Begins to write to those for which that is due, in turns. `why` says what keeps one out of the queue.
    pub(super) async fn end(
        &mut self,
        context: &Arc<Context>,
        why: impl Fn(&TrackedWorkload, &Unclaimed) -> String,
    ) {
        let now = Moment::now();
        while let Some(uid) = self.writes.take_due(now) {
            // There may be many.
            tokio::task::consume_budget().await;
            let unclaimed = context.index.unclaimed(&uid);
            let next = unclaimed.and_then(|(tracked, obstacle)| {
                let (wait, write) = self.next_write(context, &tracked, &obstacle, &why)?;
                Some((tracked, wait, write))
            });
            let Some((tracked, wait, write)) = next else {
                self.writes.rest(&uid, now);
                continue;
            };
            if !wait.is_zero() {
                let wait = wait.clamp(Duration::from_secs(1), CLOCK_IS_READ_AGAIN);
                self.writes.plan(&uid, now + wait);
                continue;
            }
            if !self.writes.may_start(&uid, &tracked.namespace) {
                continue;
            }
            let (context, namespace) = (context.clone(), tracked.namespace.clone());
            self.writes.start(uid, namespace, async move {
                carry_out(&context, &tracked.namespace, write, &tracked.shape).await
            });
        }
    }

    /// How long until another one may be due.
    pub(super) fn wait(&self) -> Duration {
        self.writes.wait(Moment::now())
    }

    /// What is to be written to a workload, and how long it is until then.
    fn next_write(
        &self,
        context: &Context,
        tracked: &TrackedWorkload,
        obstacle: &Unclaimed,
        why: impl Fn(&TrackedWorkload, &Unclaimed) -> String,
    ) -> Option<(Duration, Write)> {
        if !obstacle.ends_waits() {
            return None;
        }
        let workload = (&tracked.workload).into();
        if let Some(began) = tracked.workload.wait_to_record() {
            let record = RecordWait { workload, began };
            return Some((Duration::ZERO, Write::RecordWait(record)));
        }
        let (ends, timeout) = context.index.unclaimed_ends(tracked, self.started)?;
        let wait = ends.map_or(LATER, |ends| {
            Duration::try_from(ends.duration_since(clock::time())).unwrap_or_default()
        });
        let why = Failed::Unqueued {
            timeout,
            why: why(tracked, obstacle),
        };
        Some((wait, Write::Fail(Fail { workload, why })))
    }

    /// Waits until one of those that were begun is done, and whatever else is done by then; `None` if there is none.
    pub(super) async fn ended(&mut self) -> Option<()> {
        let mut ended = Some(self.writes.next().await?);
        while let Some((uid, done)) = ended {
            let now = Moment::now();
            self.writes.pause(&uid, |before| {
                if done {
                    Pause::outrun(before, now)
                } else {
                    Pause::after_failure(before, now)
                }
            });
            ended = self.writes.next().now_or_never().flatten();
        }
        Some(())
    }
}

/// Writes to a workload. Returns whether it did, or the workload has changed since.
async fn carry_out(context: &Context, namespace: &Arc<str>, write: Write, shape: &Shape) -> bool {
    let target = write.target().clone();
    let kind = context.workloads.kind(&target.kind);
    let request = kind.and_then(|kind| kind.request(&write, shape, clock::time()));
    let Some(request) = request else {
        return false;
    };
    let workload_write = WorkloadWrite {
        namespace: namespace.clone(),
        request,
        below: Vec::new(),
        urgency: Urgency::Usual,
        target: target.clone(),
        timeout: CALL_TIMEOUT,
        deadline: None,
        holds: false,
    };
    let written = match context.workloads.write(workload_write).await {
        Err(error) if matches!(write, Write::Fail(_)) => {
            hold_instead(context, namespace, &target, error).await
        }
        written => written,
    };
    match written {
        Ok(now) => {
            context.index.written(&target.uid, now);
            if let Write::Fail(fail) = &write {
                let (reason, note) = explain_failure("", &fail.why, ended(context, &target));
                let events = &context.shared.events;
                events.workload(namespace, &target, reason, note);
            }
            true
        }
        Err(WriteError::Outdated(now)) => {
            context.index.reread(&target.uid, now.map(|now| *now));
            true
        }
        Err(error) => {
            let workload = format_args!("{namespace}/{}", target.name);
            let what = match write {
                Write::RecordWait(_) => "can't record since when a Job waits",
                _ => "can't make a Job fail that has waited for too long",
            };
            tracing::warn!(%workload, %error, "{what}");
            false
        }
    }
}
