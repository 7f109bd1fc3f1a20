//! Advice about a workload that waits, or does not wait as it should.

use consul_semaphore_api::annotations::{HOLD, HOLDER_LABEL, SEMAPHORE, WAITS_LABEL};
use consul_semaphore_workload::{Kind, kueue::CONTROLLER};

use crate::workload_name::WorkloadName;

/// The number of existing semaphores that are named.
const NAMED_SEMAPHORES: usize = 5;

/// A workload and its situation.
pub(super) struct Situation<'a> {
    pub(super) namespace: &'a str,
    pub(super) workload: &'a WorkloadName,
    pub(super) semaphore: Option<&'a str>,
    /// The reason for the situation, in one word.
    pub(super) reason: &'a str,
    /// The advice about annotations that have no effect.
    pub(super) advice: Option<&'a str>,
    /// The `CronJob` that has the annotation in the wrong place.
    pub(super) cron_job: Option<&'a str>,
    /// The semaphores of the namespace, if the named one does not exist.
    pub(super) others: &'a [String],
    /// The highest priority of the Jobs ahead of the workload.
    pub(super) highest: i32,
}

/// Returns what to do, the most important first.
pub(super) fn remedies(situation: &Situation<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(cron_job) = situation.cron_job {
        lines.push(format!(
            "The CronJob {cron_job} has the annotation {SEMAPHORE} on its own metadata, where it has no effect. \
             Move it to spec.jobTemplate.metadata.annotations"
        ));
    }
    lines.extend(situation.advice.map(capital));
    // The lines above already say what to do about an annotation that is ignored.
    if situation.reason != "AnnotationIgnored" {
        let special = of_another_kind(situation).map(|line| vec![line]);
        lines.extend(special.unwrap_or_else(|| remedy(situation)));
    }
    lines
}

fn remedy(situation: &Situation<'_>) -> Vec<String> {
    let Situation {
        namespace,
        workload,
        semaphore,
        reason,
        others,
        highest,
        ..
    } = situation;
    if let Some(line) = of_the_queue(reason).or_else(|| of_the_operator(reason)) {
        return vec![line.to_owned()];
    }
    let name = semaphore.unwrap_or("NAME");
    // The first name is for this program, the second for kubectl.
    let (job, type_) = (workload.argument(), workload.type_());
    let (kind, bare) = (workload.kind.name(), &workload.name);
    let annotate = |value: &str| {
        format!("kubectl annotate {type_} {bare} {SEMAPHORE}={value} --overwrite -n {namespace}")
    };
    let line = match *reason {
        "Reserved" => format!(
            "Wait for a slot that is not reserved, or give the {kind} the priority that the semaphore names: \
             kubectl csem bump {job} PRIORITY -n {namespace}"
        ),
        "RunningWithoutSlot" => format!(
            "Wait: Jobs that lost their slot get one first. kubectl csem show {name} -n {namespace} lists the events"
        ),
        "Behind" => match highest.checked_add(1) {
            Some(priority) => {
                format!("Wait, or put it first: kubectl csem bump {job} {priority} -n {namespace}")
            }
            None => "Wait: the Jobs ahead of it have the highest priority that there is".to_owned(),
        },
        "Next" => format!(
            "Wait a moment. If it does not start, see its events: kubectl events --for {type_}/{bare} -n {namespace}"
        ),
        "Paused" => format!("Resume the semaphore: kubectl csem resume {name} -n {namespace}"),
        "OnHold" => format!("Queue it again: kubectl csem unhold {job} -n {namespace}"),
        "Malformed" => {
            format!("Correct the annotation: kubectl edit {type_} {bare} -n {namespace}")
        }
        "InKueue" => format!(
            "Wait for Kueue. It asks for the slot once it has reserved the quota, if the ClusterQueue names an \
             AdmissionCheck with the controllerName {CONTROLLER}: without one, the operator leaves the {kind} alone"
        ),
        "ManagedElsewhere" => {
            format!(
                "Either let that controller manage the {kind} and remove the annotation {SEMAPHORE}, or remove \
                 spec.managedBy or the label kueue.x-k8s.io/queue-name from the {kind}"
            )
        }
        "NoSemaphore" if others.is_empty() => format!(
            "Create the ConsulSemaphore {name} in the namespace {namespace}, which has no ConsulSemaphores: a {kind} \
             can't use a ConsulSemaphore of another namespace"
        ),
        "NoSemaphore" => {
            return vec![
                format!(
                    "Correct the name: {}. The namespace has {}",
                    annotate("NAME"),
                    some(others)
                ),
                format!(
                    "Or create the ConsulSemaphore {name}: a {kind} can't use a ConsulSemaphore of another namespace"
                ),
            ];
        }
        "InvalidSemaphore" => {
            format!("Correct it: kubectl edit consulsemaphore {name} -n {namespace}")
        }
        "NotAnnotated" => format!(
            "To make it wait for a slot, name a ConsulSemaphore: {}",
            annotate("NAME")
        ),
        "Stopping" => format!(
            "Wait until its pods are gone: kubectl get pods -l batch.kubernetes.io/job-name={job} -n {namespace}"
        ),
        "PutOnHold" => {
            format!("Remove the annotation {HOLD}: kubectl csem unhold {job} -n {namespace}")
        }
        "LimitConflict" => format!(
            "Set spec.limit of {name} to Consul's limit, or have all others use yours, or set spec.limitPolicy to \
             Enforce"
        ),
        "NotStarted" if workload.kind == Kind::Job => format!(
            "Correct what keeps its pods from starting: kubectl describe pods -l batch.kubernetes.io/job-name={job} -n \
             {namespace}. To correct the image, delete the Job and create it again"
        ),
        "SlotGranted" | "Finished" | "Deleting" => return Vec::new(),
        _ => format!(
            "Follow the message. kubectl csem show {name} -n {namespace} shows the whole semaphore"
        ),
    };
    vec![line]
}

/// Returns what to do about a workload of another kind than Job, if that differs.
fn of_another_kind(situation: &Situation<'_>) -> Option<String> {
    let Situation {
        namespace,
        workload,
        reason,
        ..
    } = situation;
    if workload.kind == Kind::Job {
        return None;
    }
    let kind = workload.kind.name();
    let (type_, name) = (workload.type_(), &workload.name);
    Some(match *reason {
        "RanWithoutSlot" => {
            format!("Create each {kind} held, or install the admission policies, which hold it")
        }
        "Stopping" => format!(
            "Wait until its pods are gone: kubectl get pods -l {HOLDER_LABEL} -n {namespace}"
        ),
        "Unlabelled" => format!(
            "Give it the label: kubectl label {type_} {name} {WAITS_LABEL}=true --overwrite -n {namespace}"
        ),
        _ => return None,
    })
}

/// Returns what to do if it does not depend on the workload, because it is up to the operator, its semaphore or Consul.
fn of_the_operator(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "OutsideWindow" => "Wait until the window opens, or change spec.windows of the semaphore",
        "StartRefused" => {
            "Correct what refuses the start, such as a quota, a policy or a webhook: the operator retries automatically"
        }
        "RanWithoutSlot" => {
            "Create Jobs with suspend: true, or install the admission policies, which set it"
        }
        "Unseen" | "Starting" => {
            "Wait a moment. If nothing changes, ask an administrator whether an operator runs and serves this namespace: \
             kubectl get pods -A -l app.kubernetes.io/name=consul-semaphore-operator"
        }
        "ConsulUnreachable" | "NoLeader" | "TooManyRequests" | "UnexpectedAnswer" => {
            "Check Consul and the operator's connection to it: the operator retries automatically"
        }
        _ => return None,
    })
}

/// Returns what to do about a workload that waits for its turn in the queue.
fn of_the_queue(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "AllSlotsHeld" => "Wait: it starts automatically when a holder gives its slot back",
        "TooFewSlotsFree" => {
            "Wait: it starts automatically when enough slots are free at once, and nothing overtakes it for long"
        }
        "LeftToOthers" => {
            "Wait: it starts automatically when the contender that has waited longer has had its turn"
        }
        "PassedOver" => {
            "Wait: after a while, the operator keeps free slots for it. To see who holds the slots of a semaphore, run: \
             kubectl csem show NAME"
        }
        "SlotsKept" => {
            "Wait: free slots are kept for it until all are free at once, and nothing overtakes it"
        }
        "OthersStopped" => {
            "Find out why the other semaphore grants no slots: kubectl csem show NAME"
        }
        _ => return None,
    })
}

/// Returns the names, or the first [`NAMED_SEMAPHORES`] of them with dots.
fn some(names: &[String]) -> String {
    let mut shown: Vec<&str> = names
        .iter()
        .take(NAMED_SEMAPHORES)
        .map(String::as_str)
        .collect();
    if names.len() > NAMED_SEMAPHORES {
        shown.push("...");
    }
    shown.join(", ")
}

/// Returns the text with a capital first letter.
fn capital(text: &str) -> String {
    let mut rest = text.chars();
    let first = rest.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + rest.as_str()
}
