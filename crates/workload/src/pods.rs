//! The pods of workloads that hold slots. A started workload's pods have a label with its uid.

use consul_semaphore::{Uid, lock_key_of};
use consul_semaphore_api::annotations::{HOLDER_LABEL, LOCK_KEY};
use k8s_openapi::api::core::v1::Pod;

/// The label that all pods of workloads in slots have, as a label selector.
pub const OF_ANY: &str = HOLDER_LABEL;

/// The pods that may still run, as a field selector.
pub const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// The pods of one workload, as a label selector.
pub fn of(workload: &Uid) -> String {
    format!("{HOLDER_LABEL}={workload}")
}

/// Which pods to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodQuery {
    /// A label selector.
    pub labels: String,
    /// Who must own them, if the labels say too little.
    pub owner: Option<Uid>,
    /// Whose they may be by the holder label, if the other labels are also those of a later workload of that name.
    pub holder: Option<Uid>,
}

impl From<String> for PodQuery {
    fn from(labels: String) -> Self {
        Self {
            labels,
            owner: None,
            holder: None,
        }
    }
}

impl PodQuery {
    /// Those with these labels, unless they belong to another workload than this one.
    pub(crate) fn unless_of_another(labels: String, workload: &Uid) -> Self {
        Self {
            holder: Some(workload.clone()),
            ..labels.into()
        }
    }

    /// Whether it asks for this pod, which has the labels.
    pub fn finds(&self, pod: &Pod) -> bool {
        let labels = pod.metadata.labels.as_ref();
        let theirs = labels.and_then(|labels| labels.get(HOLDER_LABEL));
        let own = self.holder.as_ref().zip(theirs);
        if own.is_some_and(|(own, theirs)| own.as_ref() != theirs) {
            return false;
        }
        let mut owners = pod.metadata.owner_references.iter().flatten();
        let owner = self.owner.as_ref();
        owner.is_none_or(|uid| owners.any(|owner| owner.uid == uid.as_ref()))
    }
}

/// A pod of a workload in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPod {
    /// Its namespace, which is the workload's.
    pub namespace: String,
    /// The workload that it belongs to.
    pub workload: Uid,
    /// The lock key of the semaphore that granted the slot.
    pub lock_key: String,
    /// Whether none of its containers runs, or will run.
    pub ended: bool,
}

impl OwnPod {
    /// Reads a pod; `None` if it is not one of a workload in a slot.
    pub fn read(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let workload = metadata.labels.as_ref()?.get(HOLDER_LABEL)?;
        let key = metadata.annotations.as_ref()?.get(LOCK_KEY)?;
        Some(Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            workload: workload.as_str().into(),
            lock_key: lock_key_of(key),
            ended: has_ended(pod),
        })
    }
}

/// Whether none of a pod's containers runs, or will run.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The name of a pod and its node, for people.
pub fn title(pod: &Pod) -> String {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    format!("{name} on node {}", node.unwrap_or("(none yet)"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": "a-x", "namespace": "batch",
                "labels": { HOLDER_LABEL: "u" }, "annotations": { LOCK_KEY: "p/s" },
            },
            "spec": { "containers": [], "nodeName": "n" },
            "status": { "phase": "Running" },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn it_says_whose_pod_has_ended() {
        let running = OwnPod {
            namespace: "batch".to_owned(),
            workload: "u".into(),
            lock_key: "p/.lock".to_owned(),
            ended: false,
        };
        assert_eq!(OwnPod::read(&pod(|_| {})), Some(running.clone()));
        for phase in ["Succeeded", "Failed"] {
            let ended = pod(|pod| pod["status"]["phase"] = phase.into());
            let expected = OwnPod {
                ended: true,
                ..running.clone()
            };
            assert_eq!(OwnPod::read(&ended), Some(expected));
        }
        for part in ["labels", "annotations"] {
            assert_eq!(
                OwnPod::read(&pod(|pod| pod["metadata"][part] = json!({}))),
                None
            );
        }
    }

    #[test]
    fn people_read_where_it_is() {
        assert_eq!(title(&pod(|_| {})), "a-x on node n");
        let unscheduled = pod(|pod| pod["spec"]["nodeName"] = Value::Null);
        assert_eq!(title(&unscheduled), "a-x on node (none yet)");
    }
}
