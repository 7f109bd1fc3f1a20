//! Workloads in no queue whose wait ends: because their semaphore does not exist, or can never give them what they ask
//! for.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use jiff::Timestamp;

use super::{
    Context,
    index::Unclaimed,
    shell::{ended, explain_failure},
    tasks::Tasks,
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
    holding::Setback,
    plan::{Fail, Failed},
};
use consul_semaphore_workload::{Shape, TrackedWorkload};

/// When to look again whether a semaphore can grant anything.
const LATER: Duration = Duration::from_secs(10);

/// How many of them fail at once.
const CONCURRENCY: usize = 16;

/// The workloads in no queue whose waits end.
pub(super) struct Unqueued {
    /// Since when this replica leads.
    started: Timestamp,
    setbacks: HashMap<Uid, Setback>,
    /// Each returns what [`make_fail`] does.
    fails: Tasks<bool>,
}

impl Unqueued {
    pub(super) fn new() -> Self {
        Self {
            started: clock::time(),
            setbacks: HashMap::new(),
            fails: Tasks::new(CONCURRENCY),
        }
    }

    /// Begins to make those of these workloads fail whose time is over, in turns; they are ordered by their uids.
    /// `why` says what keeps one out of the queue. Returns how long until the next one is due.
    pub(super) fn end(
        &mut self,
        context: &Arc<Context>,
        unclaimed: &[TrackedWorkload],
        why: impl Fn(&TrackedWorkload, &Unclaimed) -> String,
    ) -> Option<Duration> {
        let there: HashSet<&Uid> = unclaimed
            .iter()
            .map(|tracked| &tracked.workload.uid)
            .collect();
        self.setbacks.retain(|uid, _| there.contains(uid));
        let (now, moment) = (clock::time(), Moment::now());
        let mut next: Option<Duration> = None;
        let last = self.fails.last();
        let turn = unclaimed.partition_point(|tracked| Some(&tracked.workload.uid) <= last);
        let (later, first) = unclaimed.split_at(turn);
        for tracked in first.iter().chain(later) {
            let uid = &tracked.workload.uid;
            if self.fails.has(uid) {
                continue;
            }
            let Some((ends, timeout)) = context.index.unclaimed_ends(tracked, self.started) else {
                continue;
            };
            let wait = ends.map_or(LATER, |ends| {
                Duration::try_from(ends.duration_since(now)).unwrap_or_default()
            });
            let setback = self.setbacks.get(uid);
            let pause = setback.map_or(Duration::ZERO, |setback| setback.until.since(moment));
            let wait = wait.max(pause);
            let obstacle = context.index.why_unclaimed(tracked);
            let Some(obstacle) = obstacle.filter(Unclaimed::ends_waits) else {
                continue;
            };
            if !wait.is_zero() || self.fails.free() == 0 {
                let wait = wait.max(Duration::from_secs(1));
                next = next.into_iter().chain([wait]).min();
                continue;
            }
            let fail = Fail {
                workload: (&tracked.workload).into(),
                why: Failed::Unqueued {
                    timeout,
                    why: why(tracked, &obstacle),
                },
            };
            let (context, namespace) = (context.clone(), tracked.namespace.clone());
            let shape = tracked.shape.clone();
            self.fails.start(uid.clone(), async move {
                make_fail(&context, &namespace, fail, &shape).await
            });
        }
        next
    }

    /// Waits until one of those that were begun is done, and whatever else is done by then; `None` if there is none.
    pub(super) async fn ended(&mut self) -> Option<()> {
        let mut ended = Some(self.fails.next().await?);
        while let Some((uid, done)) = ended {
            let (before, now) = (self.setbacks.remove(&uid), Moment::now());
            let setback = if done {
                Setback::outrun(before.as_ref(), now)
            } else {
                Setback::after(before.as_ref(), now)
            };
            self.setbacks.insert(uid, setback);
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
