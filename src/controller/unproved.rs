//! Workloads that were stopped for want of a slot, or only to fail, and whose status does not show when their pods are
//! gone. No contender speaks for these pods, so they are asked for here. So are those of Jobs whose status still says
//! that they were started.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{Context, events::Reason, tasks::Tasks};
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
    holding::Setback,
    plan::{GiveBack, Target},
};
use consul_semaphore_api::annotations::HOLD;
use consul_semaphore_workload::{Kind, Request, TrackedWorkload};

/// How many are asked about at once.
const CONCURRENCY: usize = 16;

/// For how long it is remembered that something was done about a workload: what is to be done again by then waits for a
/// pause, which grows each time, because its controller may undo it at once.
const REMEMBERED: Duration = Duration::from_mins(1);

/// When to look again if pods are left and none is seen to end.
const AGAIN: Duration = Duration::from_secs(5);

/// For how long at most the slots are looked for that an evicted workload still has: Consul may be away.
const PATIENCE: Duration = Duration::from_secs(30);

/// Proves that their pods are gone, for as long as this replica leads.
pub(super) async fn run(context: Arc<Context>) {
    let mut pauses: HashMap<Uid, Pause> = HashMap::new();
    let mut tasks = Tasks::new(CONCURRENCY);
    loop {
        let now = Moment::now();
        pauses.retain(|uid, pause| {
            context.index.is_unproved(uid) || pause.until() + REMEMBERED > now
        });
        let its_turn = |uid: &Uid| pauses.get(uid).is_none_or(|pause| pause.until() <= now);
        let busy = |uid: &Uid| tasks.has(uid);
        let due = context
            .index
            .unproved(tasks.free(), tasks.last(), busy, its_turn);
        for tracked in due {
            let (uid, context) = (tracked.workload.uid.clone(), context.clone());
            tasks.start(uid, async move { settle(&context, &tracked).await });
        }
        // Those that are due now wait for a task to end.
        let next = pauses.values().map(Pause::until);
        let next = next.filter(|until| *until > now).min();
        let wait = next.map_or(Duration::MAX, |next| next.since(now));
        tokio::select! {
            () = context.index.unproved_changed() => {}
            Some((uid, outcome)) = tasks.next() => {
                let before = pauses.remove(&uid);
                pauses.insert(uid, outcome.pause(before.as_ref(), Moment::now()));
            }
            () = sleep(wait) => {}
        }
    }
}

/// Why a workload is left alone for a while.
enum Pause {
    Again(Moment),
    Undone(Setback),
}

impl Pause {
    fn until(&self) -> Moment {
        match self {
            Self::Again(until) => *until,
            Self::Undone(setback) => setback.until,
        }
    }
}

/// What came of a question about a workload.
enum Outcome {
    Settled,
    Changed,
    PodsLeft,
    /// Its controller may still make pods until then.
    TooSoon(Moment),
    Failed,
}

impl Outcome {
    fn pause(&self, before: Option<&Pause>, now: Moment) -> Pause {
        let before = match before {
            Some(Pause::Undone(before)) => Some(before),
            Some(Pause::Again(_)) | None => None,
        };
        match self {
            // Its controller may undo at once what was written here, and again.
            Self::Settled | Self::Changed => Pause::Undone(Setback::outrun(before, now)),
            Self::PodsLeft => Pause::Again(now + AGAIN),
            Self::TooSoon(until) => Pause::Again(*until),
            Self::Failed => Pause::Undone(Setback::after(before, now)),
        }
    }
}

/// Looks for pods of a workload. When none is left, it counts as its status shows it.
async fn settle(context: &Context, tracked: &TrackedWorkload) -> Outcome {
    let (namespace, workload) = (&tracked.namespace, &tracked.workload);
    let counts = context.index.proof_counts_from(tracked);
    if let Some(counts) = counts.filter(|counts| *counts > Moment::now()) {
        return Outcome::TooSoon(counts);
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
            tracing::warn!(workload = %name, %error, "whether pods of a workload without a slot are left is unknown");
            return Outcome::Failed;
        }
        // What was asked about is not what is there.
        Ok((Some(now), _)) if now.version != workload.version => return Outcome::Changed,
        Ok((_, pods)) if !pods.is_empty() => return Outcome::PodsLeft,
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
        if matches!(forgotten, Outcome::Changed) {
            return forgotten;
        }
    }
    context.index.proved(tracked);
    Outcome::Settled
}

/// A finished workload forgets its grant, as if it had given the slot back, and that it was to fail: then another process
/// does not ask again, and what may run again does so without a grant, and is queued. If that can't be written, it is
/// finished all the same.
async fn forget(context: &Context, tracked: &TrackedWorkload) -> Outcome {
    let workload = &tracked.workload;
    let kind = context.workloads.kind(&workload.kind);
    let unmark = || kind.and_then(|kind| kind.unmark(&(&**workload).into()));
    let forgotten = if workload.granted.is_some() {
        give_back(context, tracked).await
    } else if let Some(request) = unmark() {
        record(context, tracked, request).await
    } else {
        Ok(Outcome::Settled)
    };
    forgotten.unwrap_or(Outcome::Settled)
}

/// Records that an evicted workload gave its slots back, so that it may wait again. If that is refused, nobody else waits
/// for them: they are free, as no pod is left.
async fn return_to_queue(context: &Context, tracked: &TrackedWorkload) -> Outcome {
    // A contender that is not known yet would be taken for one whose start was cut short.
    let asked = Moment::now().since(tracked.workload.seen);
    if !context.index.knows_contenders(tracked) && asked < PATIENCE {
        return Outcome::PodsLeft;
    }
    let error = match give_back(context, tracked).await {
        Ok(sent) => return sent,
        Err(error) => error,
    };
    let advice = match error.is_unwanted() {
        Some(_) => "allow the operator to change the status of its Workload",
        // Such as a webhook that is away.
        None => "it is tried again",
    };
    if let WriteError::Refused { message, .. } = error {
        let note = format!(
            "it was evicted, and the API server refuses to record that it gave its slots back: {message}. They are \
             free, but it does not wait again: {advice}"
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
    Outcome::Failed
}

/// Clears the start time of a suspended Job, with which it can't be started again in a slot. If that is refused, nobody
/// else waits for its slot: it is free, as no pod is left.
async fn forget_start(context: &Context, tracked: &TrackedWorkload) -> Outcome {
    let (namespace, workload) = (&tracked.namespace, &tracked.workload);
    let kind = context.workloads.kind(&workload.kind);
    let request = kind.and_then(|kind| kind.forget_start(&(&**workload).into()));
    let Some(request) = request else {
        return Outcome::Settled;
    };
    let error = match send(context, tracked, request).await {
        Ok(sent) => return sent,
        Err(error) => error,
    };
    let name = format_args!("{namespace}/{}", workload.name);
    tracing::warn!(workload = %name, %error, "can't clear the start time of a suspended Job");
    if let WriteError::Refused { message, .. } = error {
        let note = format!(
            "it is suspended, and the API server refuses to clear its status.startTime: {message}. Its slot is free, but \
             it can't be started again in one: allow the operator to patch jobs/status, by RBAC and by admission \
             policies"
        );
        let events = &context.shared.events;
        events.workload(namespace, &**workload, Reason::StartRefused, note);
        context.index.let_slots_go(tracked);
    }
    Outcome::Failed
}

/// The sessions of all slots that a workload had: as it says itself, and as Consul does.
fn sessions_of(context: &Context, workload: &Workload) -> Vec<SessionId> {
    let reported = &workload.reported;
    let granted = workload.granted.as_ref();
    let said = granted.map_or_else(|| reported.clone(), |granted| granted.latest(reported));
    // Those that may still have a slot come first.
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
async fn give_back(context: &Context, tracked: &TrackedWorkload) -> Result<Outcome, WriteError> {
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
        None => Ok(Outcome::Settled),
    }
}

/// Records that a workload has no slot any more, or is not to fail any more.
async fn record(
    context: &Context,
    tracked: &TrackedWorkload,
    request: Request,
) -> Result<Outcome, WriteError> {
    let (namespace, workload) = (&tracked.namespace, &tracked.workload);
    let sent = send(context, tracked, request).await;
    if let Err(error) = &sent {
        let workload = format_args!("{namespace}/{}", workload.name);
        tracing::warn!(%workload, %error, "can't record that a workload is done with its slot");
    }
    sent
}

/// Has the status of a workload say that it failed. If its controller overwrites that, the watch shows it here again.
/// Where it may not say so, the workload is put on hold instead.
async fn fail(context: &Context, tracked: &TrackedWorkload) -> Outcome {
    let (namespace, workload) = (&tracked.namespace, &tracked.workload);
    let (target, now) = (Target::from(&**workload), clock::time());
    let Some(kind) = context.workloads.kind(&workload.kind) else {
        return Outcome::Failed;
    };
    let failed = match kind.failure(&target, &tracked.shape, now) {
        Some(request) => send(context, tracked, request).await,
        // Its row says no more how.
        None if !kind.can_fail() => {
            return put_on_hold(context, tracked, &kind, "its row has no life.failed").await;
        }
        None => return Outcome::Failed,
    };
    let error = match failed {
        Ok(Outcome::Settled) => {
            if tracked.shape.is_shut_down() {
                let note = "its user shut it down while it waited for a slot: it ends without one";
                let events = &context.shared.events;
                events.workload(namespace, &**workload, Reason::ShutDown, note.to_owned());
            }
            return Outcome::PodsLeft;
        }
        Ok(other) => return other,
        Err(error) => error,
    };
    let refused = context.unfailable.refused_for_good(&workload.uid, &error);
    if let Some(why) = refused {
        let why = format!("the API server refuses to let its status say that it failed: {why}");
        return put_on_hold(context, tracked, &kind, &why).await;
    }
    let workload = format_args!("{namespace}/{}", workload.name);
    tracing::warn!(%workload, %error, "can't write to a status that a workload failed: it stays held");
    Outcome::Failed
}

/// Puts a workload on hold that was to fail and can't.
async fn put_on_hold(
    context: &Context,
    tracked: &TrackedWorkload,
    kind: &Kind,
    why: &str,
) -> Outcome {
    let (namespace, workload) = (&tracked.namespace, &tracked.workload);
    let name = format!("{namespace}/{}", workload.name);
    tracing::warn!(workload = %name, why, "a workload can't fail: it is put on hold");
    let reason = match tracked.shape.fails_for() {
        Some("Contended") => Reason::Contended,
        Some("Superseded") => Reason::Superseded,
        Some("Replaced") => Reason::Replaced,
        _ => Reason::WaitTimedOut,
    };
    let request = kind.hold(&(&**workload).into());
    match send(context, tracked, request).await {
        Ok(Outcome::Settled) => {
            let note = format!(
                "put on hold, because {why}. To queue it again, remove the annotation {HOLD}"
            );
            let events = &context.shared.events;
            events.workload(namespace, &**workload, reason, note);
            Outcome::Settled
        }
        Ok(other) => other,
        Err(error) => {
            tracing::warn!(workload = %name, %error, "can't put a workload on hold: it stays held");
            Outcome::Failed
        }
    }
}

/// Writes to a workload, unless it has changed since. Returns whether it did.
async fn send(
    context: &Context,
    tracked: &TrackedWorkload,
    request: Request,
) -> Result<Outcome, WriteError> {
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
            Ok(Outcome::Settled)
        }
        Err(WriteError::Outdated(now)) => {
            context.index.reread(&workload.uid, now.map(|now| *now));
            Ok(Outcome::Changed)
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
        for outcome in [Outcome::Changed, Outcome::Settled] {
            let first = outcome.pause(None, now);
            assert!(first.until() == now);
            let second = outcome.pause(Some(&first), now);
            assert!(second.until() > now);
        }
    }
}
