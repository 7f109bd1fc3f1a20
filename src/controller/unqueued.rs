//! Workloads in no queue, because their semaphore does not exist or can never give them what they ask for: their waits
//! end, and what the engine records of the waits in its queues is recorded of theirs, too.

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
    plan::{Fail, Failed, RecordWait},
};
use consul_semaphore_workload::{Shape, TrackedWorkload};

/// When to look again whether a semaphore can grant anything.
const LATER: Duration = Duration::from_secs(10);

/// How many of them are written to at once.
const CONCURRENCY: usize = 16;

/// The workloads in no queue whose waits end.
pub(super) struct Unqueued {
    /// Since when this replica leads.
    started: Timestamp,
    setbacks: HashMap<Uid, Setback>,
    /// Each returns what [`carry_out`] does.
    writes: Tasks<bool>,
}

impl Unqueued {
    pub(super) fn new() -> Self {
        Self {
            started: clock::time(),
            setbacks: HashMap::new(),
            writes: Tasks::new(CONCURRENCY),
        }
    }

    /// Begins to write to those of these workloads for which that is due, in turns; they are ordered by their uids. `why`
    /// says what keeps one out of the queue. Returns how long until the next one is due.
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
        let moment = Moment::now();
        let mut next: Option<Duration> = None;
        let last = self.writes.last();
        let turn = unclaimed.partition_point(|tracked| Some(&tracked.workload.uid) <= last);
        let (later, first) = unclaimed.split_at(turn);
        for tracked in first.iter().chain(later) {
            let uid = &tracked.workload.uid;
            if self.writes.has(uid) {
                continue;
            }
            let Some((wait, write)) = self.next_write(context, tracked, &why) else {
                continue;
            };
            let setback = self.setbacks.get(uid);
            let pause = setback.map_or(Duration::ZERO, |setback| setback.until.since(moment));
            let wait = wait.max(pause);
            if !wait.is_zero() || self.writes.free() == 0 {
                let wait = wait.max(Duration::from_secs(1));
                next = next.into_iter().chain([wait]).min();
                continue;
            }
            let (context, namespace) = (context.clone(), tracked.namespace.clone());
            let shape = tracked.shape.clone();
            self.writes.start(uid.clone(), async move {
                carry_out(&context, &namespace, write, &shape).await
            });
        }
        next
    }

    /// What is to be written to a workload, and how long it is until then.
    fn next_write(
        &self,
        context: &Context,
        tracked: &TrackedWorkload,
        why: impl Fn(&TrackedWorkload, &Unclaimed) -> String,
    ) -> Option<(Duration, Write)> {
        let obstacle = context.index.why_unclaimed(tracked);
        let obstacle = obstacle.filter(Unclaimed::ends_waits)?;
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
            why: why(tracked, &obstacle),
        };
        Some((wait, Write::Fail(Fail { workload, why })))
    }

    /// Waits until one of those that were begun is done, and whatever else is done by then; `None` if there is none.
    pub(super) async fn ended(&mut self) -> Option<()> {
        let mut ended = Some(self.writes.next().await?);
        while let Some((uid, done)) = ended {
            let (before, now) = (self.setbacks.remove(&uid), Moment::now());
            let setback = if done {
                Setback::outrun(before.as_ref(), now)
            } else {
                Setback::after(before.as_ref(), now)
            };
            self.setbacks.insert(uid, setback);
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
