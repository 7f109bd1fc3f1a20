//! Turns an outcome into an event, a log line, a metric and a span. This is the only place that does so, and it
//! decides nothing.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::stages::Passage;
use crate::{
    controller::{
        Context,
        events::Reason,
        semaphore::{GrantObstacle, Need},
    },
    telemetry::{JobEnd, SemaphoreLabels, SpanRef},
    workload::Subject,
};
use consul_client::{SessionId, clock};
use consul_semaphore::{
    KindName, Settings, Uid, Workload,
    engine::{Outcome, QueueRef, Write},
    plan::{
        self, Cooling, Fail, Failed, Grant, Release, Skip, Skipped, Start, Suspend, Suspended,
        Taker, Target,
    },
};
use consul_semaphore_api::annotations::{HOLD, KEY, ON_CONTENTION};
use consul_semaphore_workload::TrackedWorkload;

/// Spans of the slots that a transaction gave back. The spans of its grants link to them.
pub(super) type Ended = Vec<SpanRef>;

/// Reporter of what happens in a queue.
pub(super) struct Emitter<'a> {
    pub(super) context: &'a Context,
    pub(super) reference: &'a QueueRef,
    pub(super) settings: &'a Settings,
    pub(super) labels: &'a SemaphoreLabels,
}

impl Emitter<'_> {
    /// Reports an outcome. `ended` has the spans that ended before it in the same transaction.
    pub(super) fn emit(&self, outcome: Outcome, ended: &mut Ended) {
        let semaphore = self.reference;
        match outcome {
            Outcome::Granted { grant, at, lost } => self.emit_grant(&grant, at, lost, ended),
            Outcome::Written(write) => self.emit_write(&write),
            Outcome::GoesOn(workload) => self.emit_keeps_running(&workload),
            Outcome::Released {
                release,
                granted,
                done,
            } => self.emit_release(&release, granted, done, ended),
            Outcome::Cools(cooling) => self.emit_cooling(&cooling),
            Outcome::Pruned(session) => {
                let session = session.shown();
                tracing::info!(%semaphore, %session, "pruned a dead holder");
            }
            Outcome::LimitWritten { limit, enforced } => {
                tracing::info!(%semaphore, limit, enforced, "limit written");
            }
            // The event about the limit is emitted on the semaphore.
            Outcome::LimitMoved(_) => {}
            Outcome::Refused { workload, message } => {
                tracing::warn!(workload = %workload.name, %semaphore, why = %message, "a write was refused");
                let note = format!(
                    "the API server refuses to change this {}: {message}",
                    workload.kind
                );
                self.emit_event(&workload, Reason::StartRefused, note);
            }
            Outcome::TooLarge { workload, message } => {
                tracing::warn!(workload = %workload.name, %semaphore, why = %message, "a grant is too large");
                let note = format!(
                    "the locks of the semaphores that it asks for are too large to be written in one transaction: \
                     {message}. The operator retries later; ask for slots of semaphores with fewer holders"
                );
                self.emit_event(&workload, Reason::Unsatisfiable, note);
            }
            Outcome::Unanswered { workload, why } => {
                tracing::warn!(workload = %workload.name, %semaphore, why, "a write had no answer, and is repeated");
            }
            Outcome::PodsRemain { identity, pods } => {
                let note = pods_remain(&semaphore.title(), &identity.kind, &pods);
                tracing::warn!(workload = %identity.workload, %semaphore, "{note}");
                self.emit_event(&*identity, Reason::PodsRemain, note);
            }
            Outcome::PodsUnknown {
                identity,
                why,
                overdue,
            } => {
                let workload = &identity.workload;
                tracing::warn!(%workload, error = %why, "can't find out whether pods are left");
                if overdue {
                    let note = pods_unknown(&semaphore.title(), &identity.kind, &why);
                    self.emit_event(&*identity, Reason::PodsUnknown, note);
                }
            }
            Outcome::Adopted { identity, session } => {
                let workload = format_args!("{}/{}", identity.namespace, identity.workload);
                tracing::info!(%workload, %semaphore, %session, "adopted");
            }
        }
    }

    fn emit_grant(&self, grant: &Grant, at: Option<Timestamp>, lost: bool, ended: &Ended) {
        let Grant {
            workload,
            sessions,
            starts,
            since,
            whole: _,
        } = grant;
        let Some(session) = sessions.values().next() else {
            return;
        };
        tracing::info!(
            workload = %format_args!("{}/{}", self.reference.semaphore.namespace, workload.name),
            semaphore = %self.reference,
            %session,
            "granted"
        );
        if *starts {
            let waited = clock::time().as_second().saturating_sub(*since);
            let waited = Duration::from_secs(waited.try_into().unwrap_or(0));
            let slots = sessions.len();
            self.context
                .shared
                .metrics
                .semaphores()
                .granted(self.labels, slots, waited);
        } else {
            if lost {
                self.context.shared.metrics.semaphores().lost(self.labels);
                self.trace_loss(&workload.uid, "the slot was lost; the Job has another one");
            }
            let note = format!(
                "lost its slot of {} while it ran, and has a slot again under session {session}",
                self.reference.title()
            );
            self.emit_event(workload, Reason::SlotLost, note);
        }
        if self.context.shared.traces.are_on() {
            let granted = at.unwrap_or_else(clock::time);
            // A workload that already runs did not wait: it lost its slot, and has another one.
            let since = Timestamp::from_second(*since).ok().filter(|_| *starts);
            let links = if *starts { ended.clone() } else { Vec::new() };
            let passage = self.passage(&workload.name, &workload.uid, session);
            if let Some(span) = passage.waiting(since.unwrap_or(granted), granted, links) {
                self.context.shared.traces.emit(span);
            }
        }
    }

    fn emit_release(
        &self,
        release: &Release,
        granted: Option<Timestamp>,
        done: Option<Timestamp>,
        ended: &mut Ended,
    ) {
        let Release {
            identity, session, ..
        } = release;
        tracing::info!(
            workload = %format_args!("{}/{}", identity.namespace, identity.workload),
            semaphore = %self.reference,
            %session,
            "released"
        );
        let now = clock::time();
        // The clock may have been set back since then.
        let held = granted
            .map(|granted| Duration::try_from(now.duration_since(granted)).unwrap_or_default());
        self.context
            .shared
            .metrics
            .semaphores()
            .released(self.labels, held);
        let note = format!(
            "released its slot of {} (session {session})",
            self.reference.title()
        );
        self.emit_event(&**identity, Reason::SlotReleased, note);
        let traced = granted.filter(|_| self.context.shared.traces.are_on());
        let passage = self.passage(&identity.workload, &identity.uid, session);
        if let Some(granted) = traced
            && let Some(mut span) = passage.holding(granted, now.max(granted))
        {
            span.events.extend(done.map(|time| ("job done", time)));
            ended.push(span.this);
            self.context.shared.traces.emit(span);
        }
    }

    fn emit_cooling(&self, cooling: &Cooling) {
        let Cooling {
            identity,
            session,
            until,
        } = cooling;
        tracing::info!(
            workload = %format_args!("{}/{}", identity.namespace, identity.workload),
            semaphore = %self.reference,
            %session,
            %until,
            "cooldown started"
        );
        let note = format!(
            "done; its slot of {} stays held until {until:.0}, because spec.cooldown was set when the slot was \
             granted (session {session})",
            self.reference.title()
        );
        self.emit_event(&**identity, Reason::SlotCooling, note);
    }

    fn emit_keeps_running(&self, workload: &Target) {
        self.context.shared.metrics.semaphores().lost(self.labels);
        self.trace_loss(&workload.uid, "the slot was lost; the Job continues");
        tracing::warn!(workload = %workload.name, semaphore = %self.reference, "slot lost, the workload continues");
        let note = format!(
            "lost its slot of {}, or the operator can't confirm the slot, and no other slot is free: \
             it continues, because spec.onSlotLost is Continue",
            self.reference.title()
        );
        self.emit_event(workload, Reason::SlotLost, note);
    }

    fn emit_write(&self, write: &Write) {
        let (semaphore, kind) = (self.reference.title(), &write.target().kind);
        let (reason, note) = match write {
            Write::Start(start) => {
                self.context.shared.metrics.started(kind.as_str());
                (Reason::SlotGranted, self.started_in(start))
            }
            Write::Suspend(suspend) => {
                self.context.shared.metrics.semaphores().lost(self.labels);
                let then = "suspended, first in the queue";
                (Reason::SlotLost, self.emit_suspension(suspend, then))
            }
            Write::GiveBack(give_back) if give_back.hold => {
                let note = format!(
                    "was suspended while it held a slot of {semaphore}: the slot is released, and the {kind} is on \
                     hold. To queue it again, remove the annotation {HOLD}"
                );
                (Reason::PutOnHold, note)
            }
            Write::Skip(skip) => return self.emit_skip(skip),
            Write::Fail(fail) => self.failed(fail),
            Write::End(end) => match &end.why {
                plan::Ended::Replaced { by } => {
                    let note = format!(
                        "ended, because {ON_CONTENTION} is ReplaceRunning in the newer {by}, which asks for the same slots"
                    );
                    self.count(JobEnd::Replaced);
                    (Reason::Replaced, note)
                }
                plan::Ended::Lost(suspend) => {
                    self.context.shared.metrics.semaphores().lost(self.labels);
                    let then = "ended, because it can't be suspended while it runs";
                    (Reason::SlotLost, self.emit_suspension(suspend, then))
                }
            },
            Write::GiveBack(_) | Write::Rename(_) | Write::RecordWait(_) => return,
        };
        self.emit_event(write.target(), reason, note);
    }

    fn started_in(&self, start: &Start) -> String {
        let session = start.slot.session();
        let workload = self.context.index.workload(&start.workload.uid);
        match workload.filter(|_| !start.others.is_empty()) {
            Some(workload) => format!(
                "started in its slots of {} (first session {session})",
                workload.asked()
            ),
            None => format!(
                "started in a slot of {} (session {session})",
                self.reference.title()
            ),
        }
    }

    fn emit_suspension(&self, suspend: &Suspend, then: &str) -> String {
        let (semaphore, workload) = (self.reference.title(), &suspend.workload);
        let (said, why, note) = match suspend.why {
            Suspended::SlotLost => (
                "slot lost",
                "the slot was lost; the Job is suspended",
                format!("lost its slot of {semaphore} while it ran: {then}"),
            ),
            Suspended::Unproved => (
                "slot no longer proved",
                "the operator can't confirm that the slot is still held; the Job is suspended",
                format!(
                    "the operator could not confirm for too long that it still holds its slot of {semaphore}: {then}"
                ),
            ),
        };
        tracing::warn!(workload = %workload.name, semaphore = %self.reference, "{said}");
        if let Some(session) = &suspend.session {
            self.trace_end(workload, session, suspend.since, why);
        }
        note
    }

    /// Returns the reason and the note of the event for a workload that fails while it waits.
    fn failed(&self, fail: &Fail) -> (Reason, String) {
        let semaphore = self.reference.title();
        let ended = ended(self.context, &fail.workload);
        let why = explain_failure(&semaphore, &fail.why, ended);
        tracing::info!(workload = %fail.workload.name, semaphore, why = why.1, "failed");
        self.count(match &fail.why {
            Failed::Contended(_) => JobEnd::Contended,
            Failed::TimedOut { .. } | Failed::Unqueued { .. } => JobEnd::WaitTimedOut,
            Failed::Superseded { .. } => JobEnd::Superseded,
            Failed::QueueFull { .. } => JobEnd::QueueFull,
        });
        why
    }

    /// Counts a workload that was ended because of the slots that it asks for.
    fn count(&self, how: JobEnd) {
        self.context
            .shared
            .metrics
            .semaphores()
            .ended(self.labels, how);
    }

    /// Emits events on the deleted workload, and on the `CronJob` that created it.
    fn emit_skip(&self, skip: &Skip) {
        let Skip {
            workload,
            cron_job,
            why,
        } = skip;
        let why = explain(&self.reference.title(), why);
        tracing::info!(workload = %workload.name, semaphore = %self.reference, why, "skipped");
        self.count(JobEnd::Skipped);
        let note = format!("deleted, because {ON_CONTENTION} is Skip: {why}");
        self.emit_event(workload, Reason::Skipped, note);
        if let Some(cron_job) = cron_job {
            let note = format!("its {} {} was deleted: {why}", workload.kind, workload.name);
            let (events, namespace) = (
                &self.context.shared.events,
                &self.reference.semaphore.namespace,
            );
            events.cron_job(namespace, cron_job, Reason::Skipped, note);
        }
    }

    /// Traces that a workload lost its slot while it still runs.
    fn trace_loss(&self, uid: &Uid, why: &'static str) {
        if let Some(workload) = self.context.index.workload(uid)
            && let Some(session) = workload.held_by().next()
        {
            self.trace_end(&(&*workload).into(), session, workload.since, why);
        }
    }

    /// Traces the end of a slot whose contender was deleted. Only the workload's status says since when the workload
    /// ran, in seconds since 1970.
    fn trace_end(&self, workload: &Target, session: &SessionId, since: i64, error: &'static str) {
        if !self.context.shared.traces.are_on() {
            return;
        }
        let passage = self.passage(&workload.name, &workload.uid, session);
        let since = Timestamp::from_second(since).ok();
        let span = since.and_then(|since| passage.holding(since, clock::time()));
        if let Some(mut span) = span {
            span.error = Some(error);
            self.context.shared.traces.emit(span);
        }
    }

    fn passage<'a>(&self, workload: &str, uid: &'a Uid, session: &'a SessionId) -> Passage<'a> {
        Passage::new(self.settings, workload, uid, session)
    }

    pub(super) fn emit_event<'a>(
        &self,
        workload: impl Into<Subject<'a>>,
        reason: Reason,
        note: String,
    ) {
        let (events, namespace) = (
            &self.context.shared.events,
            &self.reference.semaphore.namespace,
        );
        events.workload(namespace, workload, reason, note);
    }

    /// Emits the event that a workload waits, for the workloads that were queued and not granted a slot at once.
    /// `waits` says whether a workload is one of these, `queues` returns the queues that it waits in, and `obstacle`
    /// returns why it has no slots there. When the semaphore starts to be deleted, `all` waiting workloads get an
    /// event, once.
    pub(super) fn announce_newcomers(
        &self,
        all: bool,
        waits: impl Fn(&Uid) -> bool,
        queues: impl Fn(&Workload) -> Vec<QueueRef>,
        obstacle: impl Fn(&QueueRef, &Workload) -> Option<GrantObstacle>,
    ) {
        let name = self.reference.title();
        let newcomers = self.context.index.newcomers(self.reference);
        self.warn_of_useless_keys(&newcomers);
        let workloads = newcomers.iter().map(|tracked| tracked.workload.clone());
        let waiting: Vec<_> = if self.settings.terminating && all {
            self.context.index.all_waiting(self.reference)
        } else {
            workloads.collect()
        };
        // Thousands of workloads may have the same need, so each obstacle is determined once.
        let mut obstacles = BTreeMap::new();
        for workload in waiting.iter().filter(|workload| waits(&workload.uid)) {
            if self.settings.terminating {
                let note = format!(
                    "ConsulSemaphore {name} is being deleted: this {} stays suspended until you create a ConsulSemaphore \
                     with that name again",
                    workload.kind
                );
                self.emit_event(&**workload, Reason::NoSemaphore, note);
                continue;
            }
            let (note, needs_repair) = if workload.asks_for_several() {
                let queues = queues(workload);
                // The workload gets one event for all of its queues, from the first one.
                if queues.first() != Some(self.reference) {
                    continue;
                }
                waits_for_several(workload, &queues, &obstacle)
            } else {
                let need = Need::of(self.settings, workload);
                let obstacle = obstacles
                    .entry(need)
                    .or_insert_with(|| obstacle(self.reference, workload));
                waits_for_one(&name, need.slots, obstacle.as_ref())
            };
            let events = &self.context.shared.events;
            let about = events.about(&self.reference.semaphore.namespace, &**workload);
            if needs_repair {
                events.warn(about, Reason::SlotWaiting, note);
            } else {
                events.emit(about, Reason::SlotWaiting, note);
            }
        }
    }

    /// Warns workloads that name a key although their semaphore is not keyed.
    fn warn_of_useless_keys(&self, newcomers: &[TrackedWorkload]) {
        if self.settings.key.is_some() {
            return;
        }
        let useless = newcomers
            .iter()
            .filter(|tracked| self.context.index.ignores_key(tracked));
        for TrackedWorkload { workload, .. } in useless {
            let note = format!(
                "the annotation {} has no effect: ConsulSemaphore {} is not keyed, and all its workloads share \
                 its slots. Remove the annotation, or name a ConsulSemaphore with spec.keyed: true",
                KEY, self.reference.semaphore.name
            );
            self.emit_event(&**workload, Reason::AnnotationIgnored, note);
        }
    }
}

/// Returns what a workload waits for in one queue, and whether somebody must repair something first.
fn waits_for_one(semaphore: &str, asked: u32, obstacle: Option<&GrantObstacle>) -> (String, bool) {
    let slots = match asked {
        1 => "a slot".to_owned(),
        slots => format!("{slots} slots"),
    };
    let why = obstacle
        .map(|obstacle| format!(": {}", obstacle.message))
        .unwrap_or_default();
    let note = format!("waiting for {slots} of ConsulSemaphore {semaphore}{why}");
    (note, obstacle.is_some_and(|obstacle| obstacle.needs_repair))
}

/// Returns what a workload waits for in several queues with the obstacles there, and whether somebody must repair
/// something first.
fn waits_for_several(
    workload: &Workload,
    queues: &[QueueRef],
    obstacle: impl Fn(&QueueRef, &Workload) -> Option<GrantObstacle>,
) -> (String, bool) {
    let mut note = format!("waiting for slots of ConsulSemaphores {}", workload.asked());
    let mut needs_repair = false;
    for queue in queues {
        if let Some(why) = obstacle(queue, workload) {
            note = format!("{note}; {}: {}", queue.title(), why.message);
            needs_repair |= why.needs_repair;
        }
    }
    (note, needs_repair)
}

/// Returns the note that a workload's slot is still held because nothing is known of its pods.
fn pods_unknown(semaphore: &str, kind: &KindName, why: &str) -> String {
    format!(
        "the slot of {semaphore} stays held: for 90 seconds the operator could not find out whether pods of this {kind} \
         are left: {why}. If you have removed the row of this kind or switched the kind off, undo this until all its \
         slots are released"
    )
}

/// Returns the note that a workload's slot is still held because these pods have not ended.
fn pods_remain(semaphore: &str, kind: &KindName, pods: &[String]) -> String {
    format!(
        "the slot of {semaphore} is kept because pods of this {kind} have not ended: {}. If a node is lost, switch it \
         off, because the pod may still run there, and then delete its Node object or force-delete the pod",
        pods.join(", ")
    )
}

/// Returns what has become of a workload that was to fail.
pub(in crate::controller) fn ended(context: &Context, workload: &Target) -> &'static str {
    let kind = context.workloads.kind(&workload.kind);
    let now = context.index.workload(&workload.uid);
    if kind.is_some_and(|kind| !kind.can_fail()) || now.is_some_and(|now| now.hold) {
        "put on hold"
    } else {
        "failed"
    }
}

/// Returns the reason and the note of the event for a workload that has `ended` instead of waiting on.
pub(in crate::controller) fn explain_failure(
    semaphore: &str,
    why: &Failed,
    ended: &str,
) -> (Reason, String) {
    let waited = |timeout: &Duration| {
        let timeout = jiff::SignedDuration::try_from(*timeout).unwrap_or_default();
        format!("{ended}, because it has waited for {timeout:#}")
    };
    match why {
        Failed::Contended(why) => {
            let why = explain(semaphore, why);
            let note = format!("{ended}, because {ON_CONTENTION} is Fail: {why}");
            (Reason::Contended, note)
        }
        Failed::TimedOut {
            timeout,
            asked,
            taken,
        } => {
            let mut note = format!("{} for {asked}", waited(timeout));
            for (semaphore, taken) in taken {
                if let Skipped::Taken { by, others } = taken
                    && !by.is_empty()
                {
                    note = format!("{note}; {semaphore} is held by {}", listed(by, *others));
                }
            }
            (Reason::WaitTimedOut, note)
        }
        Failed::Unqueued { timeout, why } => {
            let note = format!("{}: {why}", waited(timeout));
            (Reason::WaitTimedOut, note)
        }
        Failed::Superseded { by } => {
            let note = format!("{ended}, because the newer {by} waits for the same slots");
            (Reason::Superseded, note)
        }
        Failed::QueueFull {
            semaphore,
            waiting,
            most,
        } => {
            let note = format!(
                "{ended}, because {waiting} workloads of this cluster wait for {semaphore}, and spec.maxWaiting is \
                 {most}. Create it again when fewer wait, or raise spec.maxWaiting"
            );
            (Reason::QueueFull, note)
        }
    }
}

/// Returns a list of the takers of slots.
fn listed(by: &[Taker], others: usize) -> String {
    let takers: Vec<String> = by.iter().map(Taker::describe).collect();
    let others = match others {
        0 => String::new(),
        others => format!("; and {others} more"),
    };
    format!("{}{others}", takers.join("; by "))
}

/// Returns why a workload must not wait.
fn explain(semaphore: &str, why: &Skipped) -> String {
    match why {
        Skipped::Taken { by, others } => {
            format!(
                "all slots of {semaphore} are taken: by {}",
                listed(by, *others)
            )
        }
        Skipped::Late(late) => format!(
            "it was created {} s after its scheduled time, which is longer than spec.cooldown of \
             {semaphore}: another cluster may already have done its work",
            late.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consul_semaphore::ContenderName;
    use consul_semaphore_api::conditions::{ConditionType, Reason as Word};

    fn taker(session: &str, holder: Option<ContenderName>) -> Taker {
        Taker {
            session: session.into(),
            holder,
            rests: false,
            cools_until: None,
        }
    }

    fn job() -> ContenderName {
        ContenderName {
            kind: Some("Job".into()),
            cluster: Some("prod-eu".into()),
            namespace: Some("batch".into()),
            name: Some("a".into()),
            ..ContenderName::default()
        }
    }

    /// Returns the id of a session.
    fn id(number: u8) -> String {
        format!("00000000-0000-4000-8000-{number:012}")
    }

    #[test]
    fn a_note_says_who_takes_the_slots() {
        let program = ContenderName {
            kind: Some("Program".into()),
            node: Some("web-1".into()),
            name: Some("backup".into()),
            ..ContenderName::default()
        };
        let cools = Taker {
            cools_until: Timestamp::from_second(1_767_225_610).ok(),
            ..taker(&id(1), Some(job()))
        };
        let rests = Taker {
            rests: true,
            ..taker(&id(2), None)
        };
        let by = vec![cools, rests, taker(&id(3), Some(program))];
        let note = explain("db", &Skipped::Taken { by, others: 2 });
        assert_eq!(
            note,
            format!(
                "all slots of db are taken: by prod-eu batch/a (session {}), which is done and whose slot is in its \
                 cooldown until 2026-01-01T00:00:10Z; by session {}, which is dead and whose slot is blocked until \
                 the lock-delay is over; by backup on web-1 (session {}); and 2 more",
                id(1),
                id(2),
                id(3)
            )
        );
    }

    #[test]
    fn what_is_no_session_is_not_repeated() {
        let by = vec![Taker {
            rests: true,
            ..taker("x;id>PWNED;#", None)
        }];
        let note = explain("db", &Skipped::Taken { by, others: 0 });
        let rest = "which is dead and whose slot is blocked until the lock-delay is over";
        let expected =
            format!("all slots of db are taken: by an entry that is not a session, {rest}");
        assert_eq!(note, expected);
    }

    #[test]
    fn a_note_says_why_one_waits_and_whether_somebody_must_act() {
        let obstacle = |needs_repair| GrantObstacle {
            type_: ConditionType::SlotsAvailable,
            reason: Word::AllSlotsHeld,
            message: "why".to_owned(),
            needs_repair,
        };
        let waits =
            |asked, obstacle: Option<GrantObstacle>| waits_for_one("db", asked, obstacle.as_ref());
        for (asked, why, expected) in [
            (1, None, ("waiting for a slot of ConsulSemaphore db", false)),
            (
                2,
                Some(obstacle(false)),
                ("waiting for 2 slots of ConsulSemaphore db: why", false),
            ),
            (
                1,
                Some(obstacle(true)),
                ("waiting for a slot of ConsulSemaphore db: why", true),
            ),
        ] {
            let (note, needs_repair) = waits(asked, why);
            assert_eq!((note.as_str(), needs_repair), expected);
        }
    }

    #[test]
    fn a_note_says_how_late_a_workload_comes() {
        let note = explain("db", &Skipped::Late(Duration::from_secs(90)));
        assert!(note.contains("created 90 s after"), "{note}");
    }

    #[test]
    fn a_note_says_what_a_job_waited_for_and_who_held_it() {
        let by = vec![taker(&id(1), Some(job()))];
        let taken = vec![
            ("db".to_owned(), Skipped::Taken { by, others: 1 }),
            (
                "licenses".to_owned(),
                Skipped::Taken {
                    by: Vec::new(),
                    others: 0,
                },
            ),
        ];
        let why = Failed::TimedOut {
            timeout: Duration::from_mins(30),
            asked: "db, licenses:2".to_owned(),
            taken,
        };
        let (reason, note) = explain_failure("db", &why, "failed");
        assert_eq!(reason, Reason::WaitTimedOut);
        let expected = format!(
            "failed, because it has waited for 30m for db, licenses:2; db is held by prod-eu batch/a (session {}); \
             and 1 more",
            id(1)
        );
        assert_eq!(note, expected);
    }

    #[test]
    fn a_note_says_which_pods_keep_the_slot() {
        let note = pods_remain(
            "db",
            &KindName::default(),
            &["a-1 on n1".into(), "a-2 on n2".into()],
        );
        let expected = "the slot of db is kept because pods of this Job have not ended: a-1 on n1, a-2 on n2. If";
        assert!(note.starts_with(expected), "{note}");
    }
}
