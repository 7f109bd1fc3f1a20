//! Emits events for workloads that are in no queue: either no semaphore claims them, because their semaphore does not
//! exist, their annotations can't be read, or something else manages them; or they are on hold.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Context, due_times::DueTimes, events::Reason, index::Unclaimed, unqueued::Unqueued};
use consul_client::clock::Moment;
use consul_semaphore::{Uid, Workload};
use consul_semaphore_api::annotations::{HOLD, SEMAPHORE, WAITS_LABEL};
use consul_semaphore_workload::{Kind, Obstacle, TrackedWorkload};

/// Time that a semaphore may arrive later than its workloads if both are created together.
const SEMAPHORE_GRACE: Duration = Duration::from_secs(2);

/// Time for which changes are collected.
const COALESCE: Duration = Duration::from_millis(200);

/// Time after which the task looks again if nothing is planned.
const IDLE_INTERVAL: Duration = Duration::from_hours(1);

/// Reports to the users of workloads in no queue why they wait, for as long as this replica leads.
pub(super) async fn run(context: Arc<Context>) {
    let mut reports = UnclaimedReports::default();
    let mut unqueued = Unqueued::new();
    loop {
        report_held_back(&context);
        for uid in context.index.take_unclaimed() {
            // There may be many workloads when the operator starts and does not know their semaphores yet. So a
            // workload that needs no look is not planned.
            tokio::task::consume_budget().await;
            if reports.knows(&uid) || context.index.unclaimed(&uid).is_some() {
                reports.due.set(&uid, Moment::now());
                unqueued.look_at(&uid);
            }
        }
        reports.report(&context).await;
        let why = |tracked: &TrackedWorkload, why: &Unclaimed| explain(tracked, why).1;
        unqueued.end(&context, why).await;
        tokio::time::sleep(COALESCE).await;
        let wait = reports.wait().min(unqueued.wait()).min(IDLE_INTERVAL);
        tokio::select! {
            () = context.index.unclaimed_changed() => {}
            () = context.index.held_back_changed() => {}
            Some(()) = unqueued.ended() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Emits the event for each workload that was put on hold.
fn report_held_back(context: &Context) {
    for tracked in context.index.take_held_back() {
        let workload = &*tracked.workload;
        let events = &context.shared.events;
        let about = events.about(&tracked.namespace, workload);
        // The admission policies put no Job on hold, only workloads of other kinds.
        let by_policy = workload.kind != Kind::Job.name()
            && context.index.is_held_from_the_start(&workload.uid);
        let note = why_held_back(workload, by_policy);
        if by_policy {
            events.warn(about, Reason::OnHold, note);
        } else {
            events.emit(about, Reason::OnHold, note);
        }
    }
}

/// Returns the text of the event for a workload on hold. `by_policy` says that the workload was on hold when it was
/// created, and its user may not know of that.
fn why_held_back(workload: &Workload, by_policy: bool) -> String {
    let (kind, semaphores) = (&workload.kind, workload.semaphores());
    if by_policy {
        return format!(
            "created on hold: it is not in the queue of ConsulSemaphore {semaphores}. If a {kind} is created held and \
             without the label {WAITS_LABEL}: \"true\", the admission policy puts it on hold. To queue it, remove the \
             annotation {HOLD}; in manifests, add that label"
        );
    }
    format!(
        "on hold because of the annotation {HOLD}: it is not in the queue of ConsulSemaphore {semaphores}. Remove the \
         annotation to queue the {kind}"
    )
}

/// Reports about workloads in no queue: what was said of each, and which are due another look.
#[derive(Default)]
struct UnclaimedReports {
    reported: BTreeMap<Uid, ReportedWait>,
    due: DueTimes<Moment>,
}

struct ReportedWait {
    since: Moment,
    note: Option<String>,
}

impl UnclaimedReports {
    /// Whether a workload was found in no queue before, and not in one since.
    fn knows(&self, workload: &Uid) -> bool {
        self.reported.contains_key(workload)
    }

    /// Emits the event for each workload that is due, once. Forgets workloads that are in a queue or gone.
    async fn report(&mut self, context: &Context) {
        let now = Moment::now();
        while let Some(uid) = self.due.take_due(now) {
            // There may be many workloads, so this leaves the thread to other tasks now and then.
            tokio::task::consume_budget().await;
            let Some((tracked, why)) = context.index.unclaimed(&uid) else {
                self.reported.remove(&uid);
                continue;
            };
            let (reason, note, grace) = explain(&tracked, &why);
            let entry = self.reported.entry(uid.clone());
            let reported = entry.or_insert(ReportedWait {
                since: now,
                note: None,
            });
            if reported.note.as_ref() == Some(&note) {
                continue;
            }
            let ends = reported.since + grace;
            if ends > now {
                self.due.set(&uid, ends);
                continue;
            }
            let events = &context.shared.events;
            events.workload(&tracked.namespace, &*tracked.workload, reason, note.clone());
            reported.note = Some(note);
        }
    }

    /// Returns the time until the next workload is due.
    fn wait(&self) -> Duration {
        let next = self.due.next();
        next.map_or(Duration::MAX, |next| next.since(Moment::now()))
    }
}

/// Returns the event for a workload, and how long to wait before it is emitted.
fn explain(tracked: &TrackedWorkload, why: &Unclaimed) -> (Reason, String, Duration) {
    let kind = &tracked.workload.kind;
    if let Some(granted) = &tracked.workload.granted
        && tracked.obstacle.is_none()
    {
        let note = format!(
            "this {kind} holds a slot of {}, but its ConsulSemaphore no longer exists: nobody renews the slot. \
             Create the ConsulSemaphore again",
            granted.lock_keys()
        );
        return (Reason::NoSemaphore, note, SEMAPHORE_GRACE);
    }
    let obstacle = match why {
        Unclaimed::Missing(missing) => {
            let hook = if tracked.is_hook {
                format!(
                    ". This {kind} is a hook of Helm or Argo CD, and such hooks run before the other objects of the \
                     same chart or sync are created: create the ConsulSemaphore earlier, or as a hook that runs \
                     before this one"
                )
            } else {
                String::new()
            };
            let note = format!(
                "this {kind} stays suspended: namespace {} has no ConsulSemaphore {}. Create it, or correct \
                 the annotation {SEMAPHORE}. A {kind} can't use a ConsulSemaphore of another namespace{hook}",
                tracked.namespace,
                missing.join(", "),
            );
            return (Reason::NoSemaphore, note, SEMAPHORE_GRACE);
        }
        Unclaimed::Obstacle(obstacle) => obstacle,
    };
    let stays = || format!("this {kind} stays suspended: {obstacle}");
    match obstacle {
        Obstacle::Managed(manager) => {
            let note = format!(
                "the operator leaves this {kind} alone, and it gets no slot: {manager}. Remove either that setting or \
                 the annotation {SEMAPHORE}"
            );
            (Reason::ManagedElsewhere, note, Duration::ZERO)
        }
        Obstacle::Owned(owner) => {
            let note = format!(
                "the operator leaves this {kind} alone, and it gets no slot: {owner} created it, and decides when it \
                 runs. Annotate {owner} instead"
            );
            (Reason::ManagedElsewhere, note, Duration::ZERO)
        }
        Obstacle::Started(_) => (Reason::RanWithoutSlot, obstacle.to_string(), Duration::ZERO),
        Obstacle::Malformed(_)
        | Obstacle::NoKey(_)
        | Obstacle::NotKeyed(_)
        | Obstacle::SameLockKey(..)
        | Obstacle::Unfit(_) => (Reason::Malformed, stays(), Duration::ZERO),
        Obstacle::TwoOperators(..)
        | Obstacle::Apart(..)
        | Obstacle::Unsatisfiable { .. }
        | Obstacle::TooLarge(_) => (Reason::Unsatisfiable, stays(), Duration::ZERO),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn workload(annotations: &Value, managed_by: Option<&str>) -> TrackedWorkload {
        let mut all = json!({ SEMAPHORE: "db" });
        for (name, value) in annotations.as_object().unwrap() {
            all[name] = value.clone();
        }
        let workload = json!({
            "metadata": {
                "name": "a", "namespace": "batch", "uid": "u", "resourceVersion": "7", "annotations": all,
            },
            "spec": { "suspend": true, "managedBy": managed_by, "template": {} },
        });
        TrackedWorkload::read(
            &serde_json::from_value(workload).unwrap(),
            Moment::default(),
        )
        .unwrap()
    }

    /// The plugin shows the same word before there is an event, so the two must agree.
    #[test]
    fn an_event_has_the_word_of_the_obstacle() {
        let plain = json!({});
        for workload in [
            workload(&plain, None),
            workload(&plain, Some("example.com/queue")),
            workload(&json!({ "consul-semaphore.io/key": "a/b" }), None),
            workload(&json!({ "consul-semaphore.io/priority": "high" }), None),
        ] {
            let obstacle = workload.obstacle_in("db", true).unwrap();
            let (reason, ..) = explain(&workload, &Unclaimed::Obstacle(obstacle.clone()));
            assert_eq!(format!("{reason:?}"), obstacle.reason(), "{obstacle}");
        }
        let unsatisfiable = Obstacle::Unsatisfiable {
            semaphore: "db".into(),
            slots: 4,
            most: 3,
        };
        let workload = workload(&plain, None);
        let (reason, note, _) = explain(&workload, &Unclaimed::Obstacle(unsatisfiable));
        assert_eq!(reason, Reason::Unsatisfiable);
        assert!(
            note.contains("4 slots of db, but can have at most 3"),
            "{note}"
        );
        let missing = Unclaimed::Missing(vec!["db".into(), "licenses".into()]);
        let (reason, note, _) = explain(&workload, &missing);
        assert_eq!(reason, Reason::NoSemaphore);
        assert!(note.contains("ConsulSemaphore db, licenses"), "{note}");
    }
}
