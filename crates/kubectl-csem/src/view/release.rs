//! The consequences for a holder whose session is ended. The user reads them before confirming.

use std::time::Duration;

use consul_semaphore::Phase;
use consul_semaphore::{Mode, OnSlotLost};

use crate::workload_name::WorkloadName;

/// The facts about a holder and its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotToRelease {
    /// `namespace/name` of the `ConsulSemaphore`, with the key of a keyed one.
    pub(crate) semaphore: String,
    pub(crate) session: String,
    /// Address of Consul.
    pub(crate) consul: String,
    pub(crate) mode: Mode,
    /// Time for which the slot stays blocked after its holder is dead.
    pub(crate) rest: Duration,
    pub(crate) holder: SessionOwner,
}

/// The workload or program for which a holder's session was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionOwner {
    /// A workload of this cluster.
    Workload {
        namespace: String,
        named: WorkloadName,
        phase: Phase,
        can_be_suspended: bool,
        /// The setting for a lost slot; `None` if it can't be read.
        on_slot_lost: Option<OnSlotLost>,
    },
    /// A workload that is not, or no longer, in this cluster. Its kind comes before its name.
    Elsewhere { cluster: String, workload: String },
    /// A workload that can't be read here, so only its name is known.
    Unseen { cluster: String, workload: String },
    /// A command of `exec`.
    Process { host: String, command: String },
    /// Another program, by its name.
    Program(String),
}

/// Returns all that the user should know before confirming, in paragraphs.
pub(crate) fn consequences(holding: &SlotToRelease) -> String {
    let SlotToRelease {
        semaphore,
        session,
        consul,
        mode,
        rest,
        holder,
    } = holding;
    let asked = format!(
        "This releases a slot of {semaphore}: it destroys the session {session} in the Consul at {consul}."
    );
    let rest = rest.as_secs();
    let then = match mode {
        Mode::Semaphore => format!(
            "Operators grant the slot again after spec.session.lockDelay ({rest}s here); Consul's Go client can take \
             it at once."
        ),
        Mode::Mutex => {
            format!("Consul lets nobody lock the key for the session's lock-delay ({rest}s).")
        }
    };
    let fate = fate(holder);
    format!("{asked}\n{fate}\n{then}")
}

fn fate(holder: &SessionOwner) -> String {
    match holder {
        SessionOwner::Workload {
            namespace,
            named,
            phase,
            can_be_suspended,
            on_slot_lost,
        } => match phase {
            Phase::Running => {
                let then = when_lost(*on_slot_lost, *can_be_suspended);
                let (title, type_, name) = (named.title(), named.type_(), &named.name);
                format!(
                    "The {title} of this cluster RUNS in this slot. {then}. To end it and free its slot, delete it \
                     instead: kubectl delete {type_} {name} -n {namespace}"
                )
            }
            _ => fate_of_one_that_does_not_run(&named.title(), *phase),
        },
        SessionOwner::Elsewhere { cluster, workload } => format!(
            "It is held for the {workload} of the cluster {cluster}, which does not exist here: it belongs to another \
             cluster, or was deleted. Its pods may still run. If they do, and their operator works, the \
             onSlotLost of its own ConsulSemaphore decides what happens to them; without an operator \
             nothing stops them."
        ),
        SessionOwner::Unseen { cluster, workload } => format!(
            "It is held for the {workload} of the cluster {cluster}. It is unknown whether it runs: it can't \
             be read here. If it runs, the onSlotLost of its ConsulSemaphore decides whether it gets a slot again, is \
             suspended, or continues without a slot."
        ),
        SessionOwner::Process { host, command } => format!(
            "It is held by `exec` on {host}, which runs {command}. `exec` ends the command and exits with code 79; \
             with --on-slot-lost continue the command continues, in another slot if one is free."
        ),
        SessionOwner::Program(name) => format!(
            "It is held by another program ({name}), which itself decides what to do after it has lost its session: \
             `consul lock` ends its command, but scripts may continue."
        ),
    }
}

/// Returns what happens to a running workload that loses its slot.
fn when_lost(on_slot_lost: Option<OnSlotLost>, can_be_suspended: bool) -> String {
    let stops = if can_be_suspended {
        "it is suspended, which ends its pods, and is first in the queue"
    } else {
        "it is ended, because it can't be suspended"
    };
    match on_slot_lost {
        None => "The onSlotLost of its ConsulSemaphore, which can't be read here, decides whether it gets a slot \
                 again, is stopped, or continues without a slot"
            .to_owned(),
        Some(OnSlotLost::Reacquire) => format!(
            "spec.onSlotLost is Reacquire: it gets a slot again at once if one is free, most likely this one; \
             otherwise {stops}"
        ),
        Some(OnSlotLost::Suspend) => format!("spec.onSlotLost is Suspend: {stops}"),
        Some(OnSlotLost::Continue) => {
            "spec.onSlotLost is Continue: it continues, with another slot if one is free, and without one otherwise"
                .to_owned()
        }
    }
}

fn fate_of_one_that_does_not_run(title: &str, phase: Phase) -> String {
    let unguarded = "its pods may still be ending, and would run without a slot";
    let then = match phase {
        Phase::Finished { at_rest: true } => {
            "is done. If its slot is in its cooldown, the cooldown ends now".to_owned()
        }
        Phase::Finished { at_rest: false } => format!("is done, but {unguarded}"),
        Phase::Deleting => format!("is being deleted: {unguarded}"),
        Phase::Stopping | Phase::Running => format!(
            "is being suspended or started, and is neither running nor done: {unguarded}"
        ),
        Phase::Idle => "is suspended and has no pods: either the operator is about to start it, and then gives \
                        it another slot or queues it again, or the operator is releasing this slot"
            .to_owned(),
    };
    format!("The {title} of this cluster {then}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(holder: SessionOwner, mode: Mode) -> String {
        consequences(&SlotToRelease {
            semaphore: "batch/db".to_owned(),
            consul: "http://127.0.0.1:8500".to_owned(),
            session: "s-1".to_owned(),
            mode,
            rest: Duration::from_secs(15),
            holder,
        })
    }

    fn job(phase: Phase, on_slot_lost: OnSlotLost) -> SessionOwner {
        SessionOwner::Workload {
            namespace: "batch".to_owned(),
            named: WorkloadName::parse("migrate-1").unwrap(),
            phase,
            can_be_suspended: true,
            on_slot_lost: Some(on_slot_lost),
        }
    }

    #[track_caller]
    fn says(text: &str, words: &[&str]) {
        for word in words {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }

    #[test]
    fn what_becomes_of_a_running_job_is_up_to_the_spec() {
        let of = |on_slot_lost| recorded(job(Phase::Running, on_slot_lost), Mode::Semaphore);
        let delete = "kubectl delete job migrate-1 -n batch";
        says(
            &of(OnSlotLost::Reacquire),
            &["RUNS", "gets a slot again at once", delete, "15s here"],
        );
        says(
            &of(OnSlotLost::Suspend),
            &["it is suspended, which ends its pods", delete],
        );
        says(&of(OnSlotLost::Continue), &["it continues", delete]);
    }

    #[test]
    fn one_that_can_not_be_suspended_is_ended() {
        let pod = SessionOwner::Workload {
            namespace: "batch".to_owned(),
            named: WorkloadName::parse("pod/train").unwrap(),
            phase: Phase::Running,
            can_be_suspended: false,
            on_slot_lost: Some(OnSlotLost::Suspend),
        };
        says(
            &recorded(pod, Mode::Semaphore),
            &[
                "The Pod train",
                "RUNS",
                "is ended",
                "kubectl delete pod train -n batch",
            ],
        );
    }

    #[test]
    fn one_that_does_not_run_is_distinguished() {
        let done = Phase::Finished { at_rest: true };
        says(
            &recorded(job(done, OnSlotLost::Suspend), Mode::Semaphore),
            &["is done", "the cooldown ends now"],
        );
        for (phase, words) in [
            (
                Phase::Finished { at_rest: false },
                "is done, but its pods may still be ending",
            ),
            (
                Phase::Deleting,
                "is being deleted: its pods may still be ending",
            ),
            (
                Phase::Stopping,
                "neither running nor done: its pods may still be ending",
            ),
            (Phase::Idle, "is suspended and has no pods"),
        ] {
            says(
                &recorded(job(phase, OnSlotLost::Suspend), Mode::Semaphore),
                &[words],
            );
        }
    }

    #[test]
    fn of_what_is_elsewhere_no_more_is_said_than_is_known() {
        let elsewhere = SessionOwner::Elsewhere {
            cluster: "prod-eu".to_owned(),
            workload: "Job batch/x".to_owned(),
        };
        says(
            &recorded(elsewhere, Mode::Mutex),
            &[
                "another cluster",
                "Its pods may still run",
                "Consul lets nobody lock the key",
            ],
        );
        let process = SessionOwner::Process {
            host: "ci-7".to_owned(),
            command: "deploy".to_owned(),
        };
        says(&recorded(process, Mode::Semaphore), &["ci-7", "79"]);
        says(
            &recorded(
                SessionOwner::Program("lock on web-1".to_owned()),
                Mode::Semaphore,
            ),
            &["lock on web-1"],
        );
    }
}
