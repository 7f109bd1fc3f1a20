//! Why a workload that was started has no pod that runs.

use consul_client::text::one_line;
use serde::Deserialize;

use crate::{
    object::or_default,
    pods::{Pod, PodStatusPart},
};

/// Longest reason that is kept, in characters. The scheduler and the kubelet write short words.
const LONGEST_REASON: usize = 64;

/// Longest message that is kept, in characters.
const LONGEST_MESSAGE: usize = 200;

/// Reason of a pod that neither the scheduler nor the kubelet has written about yet.
const PENDING: &str = "Pending";

/// Reason of a workload without a pod.
const NO_POD: &str = "NoPod";

/// Reasons that each pod may have for some seconds before it starts. A Pod that waited for a slot has the last one until
/// the scheduler writes about it again.
const PASSING: [&str; 5] = [
    PENDING,
    NO_POD,
    "ContainerCreating",
    "PodInitializing",
    "SchedulingGated",
];

/// The reason why a workload that was started has no pod that runs or has ended. A pod counts as started once its
/// phase is no longer `Pending`, so it does not count while only its init containers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotStarted {
    /// Reason in CamelCase: that of the pod's condition `PodScheduled`, such as `Unschedulable`, or that of a container
    /// that waits, such as `ImagePullBackOff`.
    pub reason: Box<str>,
    /// Explanation for people; may be empty.
    pub message: Box<str>,
}

/// The part of a condition of a pod that is needed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodConditionPart {
    #[serde(rename = "type", deserialize_with = "or_default")]
    type_: String,
    #[serde(deserialize_with = "or_default")]
    status: String,
    #[serde(deserialize_with = "or_default")]
    reason: String,
    #[serde(deserialize_with = "or_default")]
    message: String,
}

/// The part of the status of a container that is needed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerPart {
    #[serde(deserialize_with = "or_default")]
    state: ContainerStatePart,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerStatePart {
    waiting: Option<WaitingPart>,
}

/// Why a container waits.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WaitingPart {
    #[serde(deserialize_with = "or_default")]
    reason: String,
    #[serde(deserialize_with = "or_default")]
    message: String,
}

impl NotStarted {
    /// Returns why a pod has not started; `None` if it has.
    pub fn of(pod: &Pod) -> Option<Self> {
        let status = &pod.status;
        let phase = status.phase.as_deref().unwrap_or(PENDING);
        if phase != PENDING {
            return None;
        }
        let (reason, message) = status.obstacle().unwrap_or((PENDING, ""));
        Some(Self {
            reason: one_line(reason, LONGEST_REASON).into(),
            message: one_line(message, LONGEST_MESSAGE).into(),
        })
    }

    /// Returns the reason of a workload that has no pod.
    pub fn without_pod() -> Self {
        Self {
            reason: NO_POD.into(),
            message: "no pod exists for it: its events may say why, for example a ResourceQuota"
                .into(),
        }
    }

    /// Whether every workload may be in this state for some seconds after its start.
    pub fn is_passing(&self) -> bool {
        PASSING.contains(&&*self.reason)
    }
}

impl PodStatusPart {
    /// Returns the reason and the message of the first thing that keeps the pod from starting, as the scheduler or the
    /// kubelet reports it.
    fn obstacle(&self) -> Option<(&str, &str)> {
        let mut conditions = self.conditions.iter();
        let unscheduled = conditions.find(|it| it.type_ == "PodScheduled" && it.status == "False");
        if let Some(it) = unscheduled.filter(|it| !it.reason.is_empty()) {
            return Some((&it.reason, &it.message));
        }
        let init = self.init_container_statuses.iter();
        let containers = init.chain(&self.container_statuses);
        let waiting = containers.filter_map(|container| container.state.waiting.as_ref());
        let with_reason = waiting.filter(|waiting| !waiting.reason.is_empty());
        // A container that fails says more than one that waits for it.
        let first = with_reason.min_by_key(|waiting| PASSING.contains(&&*waiting.reason))?;
        Some((&first.reason, &first.message))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn not_started(status: &Value) -> Option<(String, String)> {
        let pod = json!({ "metadata": { "name": "a" }, "status": status });
        let pod: Pod = from_value(pod).unwrap();
        let why = NotStarted::of(&pod)?;
        Some((why.reason.into(), why.message.into()))
    }

    fn waits(status: &Value) -> (String, String) {
        not_started(status).unwrap()
    }

    fn pair(reason: &str, message: &str) -> (String, String) {
        (reason.to_owned(), message.to_owned())
    }

    #[test]
    fn a_pod_that_runs_or_has_run_has_started() {
        for phase in ["Running", "Succeeded", "Failed", "Unknown"] {
            assert_eq!(not_started(&json!({ "phase": phase })), None, "{phase}");
        }
    }

    #[test]
    fn the_scheduler_says_why_a_pod_has_no_node() {
        let scheduled = |status: &str| {
            json!({ "phase": "Pending", "conditions": [
                { "type": "PodReadyToStartContainers", "status": "False", "reason": "Other" },
                { "type": "PodScheduled", "status": status, "reason": "Unschedulable", "message": "0/3 nodes are free" },
            ] })
        };
        let why = pair("Unschedulable", "0/3 nodes are free");
        assert_eq!(waits(&scheduled("False")), why);
        assert_eq!(waits(&scheduled("True")), pair("Pending", ""));
    }

    #[test]
    fn the_container_that_fails_is_named_before_one_that_is_only_created() {
        let waiting = |reason: &str| json!({ "state": { "waiting": { "reason": reason } } });
        let status = json!({
            "phase": "Pending",
            "initContainerStatuses": [{ "state": { "terminated": {} } }, {}],
            "containerStatuses": [
                waiting("ContainerCreating"), waiting("ImagePullBackOff"), waiting("ErrImagePull"),
            ],
        });
        assert_eq!(waits(&status), pair("ImagePullBackOff", ""));
        let init = json!({
            "phase": "Pending",
            "initContainerStatuses": [waiting("CreateContainerConfigError")],
            "containerStatuses": [waiting("PodInitializing")],
        });
        assert_eq!(waits(&init), pair("CreateContainerConfigError", ""));
        let creating =
            json!({ "phase": "Pending", "containerStatuses": [waiting("ContainerCreating")] });
        assert_eq!(waits(&creating), pair("ContainerCreating", ""));
    }

    #[test]
    fn what_says_nothing_is_pending() {
        let nothing = [
            json!({}),
            json!({ "phase": "Pending" }),
            json!({ "phase": "Pending", "conditions": null, "containerStatuses": null }),
            json!({ "containerStatuses": [{ "state": null }, { "state": { "waiting": {} } }] }),
            json!({ "containerStatuses": [{ "state": { "waiting": { "reason": null, "message": null } } }] }),
        ];
        for status in nothing {
            assert_eq!(waits(&status), pair("Pending", ""), "{status}");
        }
    }

    #[test]
    fn whatever_is_written_is_kept_short() {
        let long = "x".repeat(5_000);
        let status = json!({ "containerStatuses": [
            { "state": { "waiting": { "reason": long, "message": format!("{long}\n") } } },
        ] });
        let (reason, message) = waits(&status);
        let lengths = (reason.chars().count(), message.chars().count());
        assert_eq!(lengths, (LONGEST_REASON, LONGEST_MESSAGE));
    }

    #[test]
    fn only_what_fails_is_no_passing_state() {
        let at = |reason: &str| NotStarted {
            reason: reason.into(),
            message: "".into(),
        };
        assert!(NotStarted::without_pod().is_passing());
        assert!(at("PodInitializing").is_passing());
        assert!(!at("Unschedulable").is_passing());
    }
}
