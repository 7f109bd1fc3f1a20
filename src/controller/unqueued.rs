//! Workloads in no queue whose wait ends: because their semaphore does not exist, or can never give them what they ask
//! for.

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
    plan::{Fail, Failed},
};
use consul_semaphore_workload::{Shape, TrackedWorkload};

/// When to look again whether a semaphore can grant anything, or a workload may still hold a slot.
const LATER: Duration = Duration::from_secs(10);

/// How long after at most the wall clock is read again, by which a wait ends: somebody may set it.
const CLOCK_IS_READ_AGAIN: Duration = Duration::from_mins(1);

/// How many of them fail at once.
const CONCURRENCY: usize = 16;

/// The workloads in no queue whose waits end.
pub(super) struct Unqueued {
    /// Since when this replica leads.
    started: Timestamp,
    /// Each returns what [`make_fail`] does.
    fails: Tasks<bool>,
}

impl Unqueued {
    pub(super) fn new() -> Self {
        Self {
            started: clock::time(),
            fails: Tasks::new(CONCURRENCY),
        }
    }

    /// A workload has come to be in no queue, has changed there, or is in one.
    pub(super) fn look_at(&mut self, workload: &Uid) {
        self.fails.plan(workload, Moment::now());
    }

    /// Begins to make those fail whose time is over, in turns. `why` says what keeps one out of the queue.
    pub(super) async fn end(
        &mut self,
        context: &Arc<Context>,
        why: impl Fn(&TrackedWorkload, &Unclaimed) -> String,
    ) {
        let now = Moment::now();
        while let Some(uid) = self.fails.take_due(now) {
            // There may be many.
            tokio::task::consume_budget().await;
            let Some((tracked, obstacle)) = context.index.unclaimed(&uid) else {
                self.fails.rest(&uid, now);
                continue;
            };
            let ends = context.index.unclaimed_ends(&tracked, self.started);
            let Some((ends, timeout)) = ends.filter(|_| obstacle.ends_waits()) else {
                self.fails.rest(&uid, now);
                continue;
            };
            let wait = ends.map_or(LATER, |ends| {
                Duration::try_from(ends.duration_since(clock::time())).unwrap_or_default()
            });
            if !wait.is_zero() {
                let wait = wait.clamp(Duration::from_secs(1), CLOCK_IS_READ_AGAIN);
                self.fails.plan(&uid, now + wait);
                continue;
            }
            if !self.fails.may_start(&uid, &tracked.namespace) {
                continue;
            }
            let fail = Fail {
                workload: (&tracked.workload).into(),
                why: Failed::Unqueued {
                    timeout,
                    why: why(&tracked, &obstacle),
                },
            };
            let (context, namespace) = (context.clone(), tracked.namespace.clone());
            self.fails.start(uid, namespace, async move {
                make_fail(&context, &tracked.namespace, fail, &tracked.shape).await
            });
        }
    }

    /// How long until another one may be due.
    pub(super) fn wait(&self) -> Duration {
        self.fails.wait(Moment::now())
    }

    /// Waits until one of those that were begun is done, and whatever else is done by then; `None` if there is none.
    pub(super) async fn ended(&mut self) -> Option<()> {
        let mut ended = Some(self.fails.next().await?);
        while let Some((uid, done)) = ended {
            let now = Moment::now();
            self.fails.pause(&uid, |before| {
                if done {
                    Pause::outrun(before, now)
                } else {
                    Pause::after_failure(before, now)
                }
            });
            ended = self.fails.next().now_or_never().flatten();
        }
        Some(())
    }
}

/// Makes a workload fail. Returns whether it did, or has changed since.
async fn make_fail(context: &Context, namespace: &Arc<str>, fail: Fail, shape: &Shape) -> bool {
    let target = fail.workload.clone();
    let why = fail.why.clone();
    let kind = context.workloads.kind(&target.kind);
    let (write, now) = (Write::Fail(fail), clock::time());
    let Some(request) = kind.and_then(|kind| kind.request(&write, shape, now)) else {
        return false;
    };
    let write = WorkloadWrite {
        namespace: namespace.clone(),
        request,
        below: Vec::new(),
        urgency: Urgency::Usual,
        target: target.clone(),
        timeout: CALL_TIMEOUT,
        deadline: None,
        holds: false,
    };
    let written = match context.workloads.write(write).await {
        Err(error) => hold_instead(context, namespace, &target, error).await,
        written => written,
    };
    match written {
        Ok(now) => {
            context.index.written(&target.uid, now);
            let (reason, note) = explain_failure("", &why, ended(context, &target));
            let events = &context.shared.events;
            events.workload(namespace, &target, reason, note);
            true
        }
        Err(WriteError::Outdated(now)) => {
            context.index.reread(&target.uid, now.map(|now| *now));
            true
        }
        Err(error) => {
            let workload = format_args!("{namespace}/{}", target.name);
            tracing::warn!(%workload, %error, "can't make a Job fail that has waited for too long");
            false
        }
    }
}
