//! Proves that the pods of stopped workloads are gone where their status does not show it: workloads that were
//! stopped because they had no slot, or only in order to fail. No contender stands for these pods, so this module
//! asks the API server for them. It also does so for Jobs whose status still says that they were started.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{
    Context,
    events::Reason,
    tasks::{Pause, Tasks},
};
use crate::{
    call::CALL_TIMEOUT,
    workload::{Urgency, WorkloadWrite, WriteError},
};
use consul_client::{
    SessionId,
    clock::{self, Moment},
};
use consul_semaphore::{
    Identity, MOST_SLOTS, Phase, Uid, Workload,
    engine::Write,
    plan::{GiveBack, Target},
};
use consul_semaphore_api::annotations::HOLD;
use consul_semaphore_workload::{Kind, Request, TrackedWorkload};

/// Number of workloads whose pods are asked for at once.
const CONCURRENCY: usize = 16;

/// Time after which to look again if pods are left and the watch shows none that ends.
const LOOK_FOR_PODS_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Longest time to look for the slots that an evicted workload still has. Consul may be away for longer.
const GIVE_UP_LOOKING_FOR_SLOTS_AFTER: Duration = Duration::from_secs(30);

/// Proves that the pods of these workloads are gone, for as long as this replica leads.
pub(super) async fn run(context: Arc<Context>) {
    let mut tasks = Tasks::new(CONCURRENCY);
    loop {
        let now = Moment::now();
        for uid in context.index.take_unproved() {
            plan(&context, &mut tasks, &uid, now);
        }
        while let Some(uid) = tasks.take_due(now) {
            let Some(tracked) = context.index.unproved(&uid) else {
                tasks.rest(&uid, now);
                continue;
            };
            let (context, namespace) = (context.clone(), tracked.namespace.clone());
            if tasks.may_start(&uid, &namespace) {
                let task = async move { settle(&context, &tracked).await };
                tasks.start(uid, namespace, task);
            }
        }
        let wait = tasks.wait(now);
        tokio::select! {
            () = context.index.unproved_changed() => {}
            Some((uid, outcome)) = tasks.next() => {
                let now = Moment::now();
                tasks.pause(&uid, |before| outcome.pause(before, now));
                plan(&context, &mut tasks, &uid, now);
            }
            () = sleep(wait) => {}
        }
    }
}

/// Makes a workload due when its pause is over, or at once if one of its pods has ended.
fn plan(context: &Context, tasks: &mut Tasks<PodCheckOutcome>, uid: &Uid, now: Moment) {
    if context.index.is_touched(uid) {
        tasks.hurry(uid, now);
    } else {
        tasks.plan(uid, now);
    }
}

/// The outcome of a question about a workload.
enum PodCheckOutcome {
    Settled,
    Changed,
    PodsLeft,
    /// Too early to ask: the controller of the workload may still make pods until this moment.
    TooSoon(Moment),
    Failed,
}

impl PodCheckOutcome {
    fn pause(&self, before: Option<&Pause>, now: Moment) -> Pause {
        match self {
            // The controller of the workload may undo at once what was written here, again and again.
            Self::Settled | Self::Changed => Pause::outrun(before, now),
            Self::PodsLeft => Pause::Again(now + LOOK_FOR_PODS_AGAIN_AFTER),
            Self::TooSoon(until) => Pause::Again(*until),
            Self::Failed => Pause::after_failure(before, now),
        }
    }
}

/// Looks for pods of a workload. When none is left, the workload counts as its status shows it.
async fn settle(context: &Context, tracked: &TrackedWorkload) -> PodCheckOutcome {
    let (namespace, workload) = (&tracked.namespace, &tracked.workload);
    let counts = context.index.proof_counts_from(tracked);
    if let Some(counts) = counts.filter(|counts| *counts > Moment::now()) {
        return PodCheckOutcome::TooSoon(counts);
    }
    let identity = Identity {
        cluster: context.shared.cluster.id.as_str().into(),
        namespace: namespace.clone(),
        semaphore: tracked.semaphores().next().cloned().unwrap_or_default(),
        key: None,
        kind: workload.kind.clone(),
        workload: workload.name.clone(),
        uid: workload.uid.clone(),
        ordinal: 0,
    };
    let name = format!("{namespace}/{}", workload.name);
    match context.workloads.prove(&identity).await {
        Err(error) => {
            tracing::warn!(
                workload = %name,
                %error,
                "can't find out whether pods of a workload without a slot are left"
            );
            return PodCheckOutcome::Failed;
        }
        // The answer is about another version of the workload than the question.
        Ok((Some(now), _)) if now.version != workload.version => return PodCheckOutcome::Changed,
        Ok((_, pods)) if !pods.is_empty() => return PodCheckOutcome::PodsLeft,
        Ok(_) => {}
    }
    if tracked.shape.is_to_fail() {
        return fail(context, tracked).await;
    }
    if tracked.shape.is_reset() {
        return return_to_queue(context, tracked).await;
    }
    if tracked.shape.is_started() {
        return forget_start(context, tracked).await;
    }
    if matches!(workload.phase, Phase::Finished { .. }) {
        let forgotten = forget(context, tracked).await;
        if matches!(forgotten, PodCheckOutcome::Changed) {
            return forgotten;
        }
    }
    context.index.proved(tracked);
    PodCheckOutcome::Settled
}

/// Clears the grant of a finished workload, as if it had given the slot back, and the mark that it was to fail. Then
/// another process does not ask for its pods again, and a workload that may run again does so without a grant, and is
/// queued. If the write fails, the workload counts as finished all the same.
async fn forget(context: &Context, tracked: &TrackedWorkload) -> PodCheckOutcome {
    let workload = &tracked.workload;
    let kind = context.workloads.kind(&workload.kind);
    let unmark = || kind.and_then(|kind| kind.unmark(&(&**workload).into()));
    let forgotten = if workload.granted.is_some() {
        give_back(context, tracked).await
    } else if let Some(request) = unmark() {
        record(context, tracked, request).await
    } else {
        Ok(PodCheckOutcome::Settled)
    };
    forgotten.unwrap_or(PodCheckOutcome::Settled)
}

/// Records that an evicted workload gave its slots back, so that it may wait again. If the API server refuses this,
/// no other workload has to wait for the slots: they are freed, because no pod is left.
async fn return_to_queue(context: &Context, tracked: &TrackedWorkload) -> PodCheckOutcome {
    // A contender that is not known yet would later look like one whose start was interrupted.
    let asked = Moment::now().since(tracked.workload.seen);
    if !context.index.knows_contenders(tracked) && asked < GIVE_UP_LOOKING_FOR_SLOTS_AFTER {
        return PodCheckOutcome::PodsLeft;
    }
    let error = match give_back(context, tracked).await {
        Ok(sent) => return sent,
        Err(error) => error,
    };
    let advice = match error.is_unwanted() {
        Some(_) => "allow the operator to change the status of its Workload",
        // For example, a webhook is away.
        None => "the operator retries",
    };
    if let WriteError::Refused { message, .. } = error {
        let note = format!(
            "it was evicted, and the API server refuses to record that it gave its slots back: {message}. The slots \
             are free, but the workload does not wait again: {advice}"
        );
        let events = &context.shared.events;
        events.workload(
            &tracked.namespace,
            &*tracked.workload,
            Reason::StartRefused,
            note,
        );
        context.index.let_slots_go(tracked);
    }
    PodCheckOutcome::Failed
}

/// Clears the start time of a suspended Job, because a Job that has one can't be started again in a slot. If the API
/// server refuses this, no other workload has to wait for the Job's slot: the slot is freed, because no pod is left.
async fn forget_start(context: &Context, tracked: &TrackedWorkload) -> PodCheckOutcome {
    let (namespace, workload) = (&tracked.namespace, &tracked.workload);
    let kind = context.workloads.kind(&workload.kind);
    let request = kind.and_then(|kind| kind.forget_start(&(&**workload).into()));
    let Some(request) = request else {
        return PodCheckOutcome::Settled;
    };
    let error = match send(context, tracked, request).await {
        Ok(sent) => return sent,
        Err(error) => error,
    };
    let name = format_args!("{namespace}/{}", workload.name);
    tracing::warn!(workload = %name, %error, "can't clear the start time of a suspended Job");
    if let WriteError::Refused { message, .. } = error {
        let note = format!(
            "it is suspended, and the API server refuses to clear its status.startTime: {message}. Its slot is free, \
             but the Job can't be started again in a slot: allow the operator to patch jobs/status, by RBAC and by \
             admission policies"
        );
        let events = &context.shared.events;
        events.workload(namespace, &**workload, Reason::StartRefused, note);
        context.index.let_slots_go(tracked);
    }
    PodCheckOutcome::Failed
}

/// Returns the sessions of all slots that a workload had, both those that its annotations name and those that Consul
/// lists.
fn sessions_of(context: &Context, workload: &Workload) -> Vec<SessionId> {
    let reported = &workload.reported;
    let granted = workload.granted.as_ref();
    let said = granted.map_or_else(|| reported.clone(), |granted| granted.latest(reported));
    // Sessions that may still have a slot come first.
    let mut all = context.index.contending_sessions(&workload.uid);
    for session in said {
        if !all.contains(&session) {
            all.push(session);
        }
    }
    all.truncate(usize::try_from(MOST_SLOTS).unwrap_or(usize::MAX));
    all
}

/// Records that a workload gave its slots back.
async fn give_back(
    context: &Context,
    tracked: &TrackedWorkload,
) -> Result<PodCheckOutcome, WriteError> {
    let workload = &tracked.workload;
    let sessions = sessions_of(context, workload);
    let write = GiveBack {
        workload: (&**workload).into(),
        sessions,
        hold: false,
        began: workload.wait_given_back(),
    };
    let kind = context.workloads.kind(&workload.kind);
    let (write, now) = (Write::GiveBack(write), clock::time());
    match kind.and_then(|kind| kind.request(&write, &tracked.shape, now)) {
        Some(request) => record(context, tracked, request).await,
        None => Ok(PodCheckOutcome::Settled),
    }
}

/// Records that a workload has no slot any more, or is not to fail any more.
async fn record(
    context: &Context,
    tracked: &TrackedWorkload,
    request: Request,
) -> Result<PodCheckOutcome, WriteError> {
    let (namespace, workload) = (&tracked.namespace, &tracked.workload);
    let sent = send(context, tracked, request).await;
    if let Err(error) = &sent {
        let workload = format_args!("{namespace}/{}", workload.name);
        tracing::warn!(%workload, %error, "can't record that a workload is done with its slot");
    }
    sent
}

/// Writes into the status of a workload that it failed. If its controller overwrites that, the watch shows the
/// workload here again. If the operator may not write the status, it puts the workload on hold instead.
async fn fail(context: &Context, tracked: &TrackedWorkload) -> PodCheckOutcome {
    let (namespace, workload) = (&tracked.namespace, &tracked.workload);
    let (target, now) = (Target::from(&**workload), clock::time());
    let Some(kind) = context.workloads.kind(&workload.kind) else {
        return PodCheckOutcome::Failed;
    };
    let failed = match kind.failure(&target, &tracked.shape, now) {
        Some(request) => send(context, tracked, request).await,
        // The row of the kind does not say any more how it fails.
        None if !kind.can_fail() => {
            return put_on_hold(context, tracked, &kind, "its row has no life.failed").await;
        }
        None => return PodCheckOutcome::Failed,
    };
    let error = match failed {
        Ok(PodCheckOutcome::Settled) => {
            if tracked.shape.is_shut_down() {
                let note = "its user shut it down while it waited for a slot: it ends without one";
                let events = &context.shared.events;
                events.workload(namespace, &**workload, Reason::ShutDown, note.to_owned());
            }
            return PodCheckOutcome::PodsLeft;
        }
        Ok(other) => return other,
        Err(error) => error,
    };
    let refused = context.unfailable.refused_for_good(&workload.uid, &error);
    if let Some(why) = refused {
        let why = format!("the API server refuses to mark it as failed in its status: {why}");
        return put_on_hold(context, tracked, &kind, &why).await;
    }
    let workload = format_args!("{namespace}/{}", workload.name);
    tracing::warn!(%workload, %error, "can't mark a workload as failed in its status: it stays held");
    PodCheckOutcome::Failed
}

/// Puts a workload on hold that was to fail and can't.
async fn put_on_hold(
    context: &Context,
    tracked: &TrackedWorkload,
    kind: &Kind,
    why: &str,
) -> PodCheckOutcome {
    let (namespace, workload) = (&tracked.namespace, &tracked.workload);
    let name = format!("{namespace}/{}", workload.name);
    tracing::warn!(workload = %name, why, "a workload can't fail: it is put on hold");
    let reason = match tracked.shape.fails_for() {
        Some("Contended") => Reason::Contended,
        Some("Superseded") => Reason::Superseded,
        Some("QueueFull") => Reason::QueueFull,
        Some("Replaced") => Reason::Replaced,
        _ => Reason::WaitTimedOut,
    };
    let request = kind.hold(&(&**workload).into());
    match send(context, tracked, request).await {
        Ok(PodCheckOutcome::Settled) => {
            let note = format!(
                "put on hold, because {why}. To queue it again, remove the annotation {HOLD}"
            );
            let events = &context.shared.events;
            events.workload(namespace, &**workload, reason, note);
            PodCheckOutcome::Settled
        }
        Ok(other) => other,
        Err(error) => {
            tracing::warn!(workload = %name, %error, "can't put a workload on hold: it stays held");
            PodCheckOutcome::Failed
        }
    }
}

/// Sends a write to a workload, unless the workload has changed since. Returns whether it was sent.
async fn send(
    context: &Context,
    tracked: &TrackedWorkload,
    request: Request,
) -> Result<PodCheckOutcome, WriteError> {
    let workload = &tracked.workload;
    let write = WorkloadWrite {
        namespace: tracked.namespace.clone(),
        request,
        below: Vec::new(),
        urgency: Urgency::Usual,
        target: (&**workload).into(),
        timeout: CALL_TIMEOUT,
        deadline: None,
        holds: false,
    };
    match context.workloads.write(write).await {
        Ok(now) => {
            context.index.written(&workload.uid, now);
            Ok(PodCheckOutcome::Settled)
        }
        Err(WriteError::Outdated(now)) => {
            context.index.reread(&workload.uid, now.map(|now| *now));
            Ok(PodCheckOutcome::Changed)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_keeps_changing_is_asked_about_at_once_and_then_after_pauses() {
        let now = Moment::now();
        for outcome in [PodCheckOutcome::Changed, PodCheckOutcome::Settled] {
            let first = outcome.pause(None, now);
            assert!(first.until() == now);
            let second = outcome.pause(Some(&first), now);
            assert!(second.until() > now);
        }
    }
}
