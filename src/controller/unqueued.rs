//! Ends the waits of workloads that are in no queue, because their semaphore does not exist or can never give them
//! what they ask for. It also records their waits, as the engine does for those in its queues.

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

/// Time after which to look again whether a semaphore can grant anything, or whether a workload may still hold a
/// slot.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Longest time between two readings of the wall clock, which decides when a wait ends. Somebody may set the clock.
const CLOCK_IS_READ_AGAIN: Duration = Duration::from_mins(1);

/// Number of workloads that are written to at once.
const CONCURRENCY: usize = 16;

/// The workloads that are in no queue, and whose waits end.
pub(super) struct Unqueued {
    /// Time since which this replica leads.
    started: Timestamp,
    /// Writes to workloads; each returns what [`carry_out`] returns.
    writes: Tasks<bool>,
}

impl Unqueued {
    pub(super) fn new() -> Self {
        Self {
            started: clock::time(),
            writes: Tasks::new(CONCURRENCY),
        }
    }

    /// Notes that a workload left its queue, changed while it was in none, or came into one.
    pub(super) fn look_at(&mut self, workload: &Uid) {
        self.writes.plan(workload, Moment::now());
    }

    /// Begins the writes that are due, in turns. `why` says what keeps a workload out of the queue.
    pub(super) async fn end(
        &mut self,
        context: &Arc<Context>,
        why: impl Fn(&TrackedWorkload, &Unclaimed) -> String,
    ) {
        let now = Moment::now();
        while let Some(uid) = self.writes.take_due(now) {
            // There may be many workloads.
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

    /// Returns the time until another write may be due.
    pub(super) fn wait(&self) -> Duration {
        self.writes.wait(Moment::now())
    }

    /// Returns the next write to a workload, and the time until it is due.
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
        let wait = ends.map_or(LOOK_AGAIN_AFTER, |ends| {
            Duration::try_from(ends.duration_since(clock::time())).unwrap_or_default()
        });
        let why = Failed::Unqueued {
            timeout,
            why: why(tracked, obstacle),
        };
        Some((wait, Write::Fail(Fail { workload, why })))
    }

    /// Waits until a write ends, and handles all others that have ended by then; returns `None` if no write runs.
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

/// Writes to a workload. Returns whether the write succeeded or the workload has changed since.
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
                _ => "can't end a Job that has waited for too long",
            };
            tracing::warn!(%workload, %error, "{what}");
            false
        }
    }
}
