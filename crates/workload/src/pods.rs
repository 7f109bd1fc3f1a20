//! The pods of workloads that hold slots. The pods of a started workload have a label with its uid.

use consul_semaphore::{Granted, KindName, Uid, lock_key_of};
use consul_semaphore_api::annotations::{HOLDER_LABEL, LOCK_KEY};
use k8s_openapi::{
    api::core::v1 as core,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube_derive::Resource;
use serde::Deserialize;

use crate::{
    Kind, NotStarted,
    not_started::{ContainerPart, PodConditionPart},
    object::or_default,
    read,
};

/// The label selector of all pods of workloads in slots.
pub const OF_ANY: &str = HOLDER_LABEL;

/// The field selector of pods that may still run.
pub const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// The part of a pod that is needed. The rest of its spec and status is skipped.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = core::Pod, crates(kube_core = kube_core))]
pub struct Pod {
    /// Metadata of the pod.
    #[serde(default, deserialize_with = "or_default")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "or_default")]
    spec: PodSpecPart,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) status: PodStatusPart,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpecPart {
    node_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodStatusPart {
    pub(crate) phase: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) conditions: Vec<PodConditionPart>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) init_container_statuses: Vec<ContainerPart>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) container_statuses: Vec<ContainerPart>,
}

/// Returns the label selector of the pods of one workload.
pub fn of(workload: &Uid) -> String {
    format!("{HOLDER_LABEL}={workload}")
}

/// Returns the grant that a pod names, if the grant was made for the workload with this uid.
pub fn granted(pod: &Pod, workload: &Uid) -> Option<Granted> {
    let annotations = pod.metadata.annotations.as_ref()?;
    read::granted_to(workload.as_ref(), annotations)
}

/// A LIST of objects that belong to a workload: its pods, or the workloads that make its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnQuery {
    /// A label selector.
    pub labels: String,
    /// The objects with the labels that count, if the labels say too little.
    pub(crate) which: Which,
}

/// The rule that decides which of the objects with some labels belong to a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All objects with the labels belong to the workload.
    All,
    /// Objects that the workload owns.
    Owned(Uid),
    /// Objects that the workload owns, and objects whose pods get the holder label with its uid, because objects of
    /// others may have the same labels.
    OwnedOrHeld(Uid),
    /// All objects but those of another workload of this kind, because a copy of the workload has its labels, too.
    NotOfAnother(KindName, Uid),
    /// The workload itself.
    Itself(Uid),
    /// Objects that the workload made, directly or through an object that it made. An earlier or a later workload of
    /// the same name, or a copy, has the same labels.
    MadeBy(Maker),
}

/// A workload, as the objects that it makes refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    /// Kind of the workload.
    pub(crate) kind: KindName,
    /// The API group of the workload's kind.
    pub(crate) group: String,
    /// Uid of the workload.
    pub(crate) uid: Uid,
    /// The label in which the workload's controller writes the uid, if there is one. Older controllers may not write
    /// it.
    pub(crate) uid_label: Option<&'static str>,
}

/// The facts in an object that show whether it belongs to a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum Belongs {
    /// The object belongs to the workload.
    Yes,
    /// The object belongs to another workload.
    No,
    /// The object belongs to the workload if its controller does.
    AsItsController {
        /// The controller of the object.
        controller: OwnerReference,
        /// Whether the object counts if its controller is gone or can't be read.
        otherwise: bool,
    },
}

impl From<bool> for Belongs {
    fn from(belongs: bool) -> Self {
        if belongs { Self::Yes } else { Self::No }
    }
}

impl From<String> for OwnQuery {
    fn from(labels: String) -> Self {
        let which = Which::All;
        Self { labels, which }
    }
}

impl OwnQuery {
    /// Returns the query for the objects with these labels that this workload made.
    pub(crate) fn made_by(labels: String, maker: &Maker) -> Self {
        let which = Which::MadeBy(maker.clone());
        Self { labels, which }
    }

    /// Whether the query asks for the pod, or the controller, with this metadata. The labels are already known to
    /// match.
    pub fn finds(&self, metadata: &ObjectMeta) -> Belongs {
        let holder = metadata.labels.as_ref().and_then(|it| it.get(HOLDER_LABEL));
        self.finds_part(metadata, holder.map(String::as_str))
    }

    /// Whether the query asks for the object with this metadata, whose pods get this holder label. The labels are
    /// already known to match.
    pub fn finds_part(&self, metadata: &ObjectMeta, holder: Option<&str>) -> Belongs {
        let mut owners = metadata.owner_references.iter().flatten();
        match &self.which {
            Which::All => Belongs::Yes,
            Which::Owned(uid) => owners.any(|owner| owner.uid == uid.as_ref()).into(),
            Which::OwnedOrHeld(uid) => {
                let uid = uid.as_ref();
                (holder == Some(uid) || owners.any(|owner| owner.uid == uid)).into()
            }
            Which::NotOfAnother(kind, uid) => {
                let of_another = owners.any(|owner| {
                    owner.controller == Some(true)
                        && owner.kind == kind.as_str()
                        && owner.uid != uid.as_ref()
                });
                (!of_another).into()
            }
            Which::Itself(own) => (metadata.uid.as_deref() == Some(own.as_ref())).into(),
            Which::MadeBy(maker) => maker.made(metadata, false),
        }
    }

    /// Whether the query asks for the objects that this controller, which has this metadata, controls.
    pub fn finds_by(&self, controller: &OwnerReference, metadata: &ObjectMeta) -> Belongs {
        match &self.which {
            Which::MadeBy(maker) => maker.made(metadata, maker.is_alike(controller)),
            _ => self.finds(metadata),
        }
    }

    /// Whether a controller of this kind may stand between an object and its workload, or be such a workload itself.
    /// The operator may read no other controllers.
    pub fn may_ask(&self, kind: &Kind, controller: &OwnerReference) -> bool {
        let between = matches!(kind, Kind::Job | Kind::JobSet);
        let is_alike = match &self.which {
            Which::MadeBy(maker) => maker.is_alike(controller),
            _ => false,
        };
        (between || is_alike) && kind.resource().group == group_of(&controller.api_version)
    }
}

impl Maker {
    /// Whether the workload made an object. `is_alike` says that the object is of the workload's own kind. An owner
    /// reference to the workload counts first, because no manifest can be copied with it. Next comes the label that the
    /// workload's controller writes, and then the operator's own label, which a pod has from the template with which
    /// its workload was started.
    fn made(&self, metadata: &ObjectMeta, is_alike: bool) -> Belongs {
        let own = self.uid.as_ref();
        let mut owners = metadata.owner_references.iter().flatten();
        if owners.clone().any(|owner| owner.uid == own) {
            return Belongs::Yes;
        }
        let label = |name: &str| metadata.labels.as_ref()?.get(name);
        if let Some(uid) = self.uid_label.and_then(label) {
            return (uid == own).into();
        }
        let holder = label(HOLDER_LABEL);
        if holder.is_some_and(|holder| holder == own) {
            return Belongs::Yes;
        }
        let otherwise = holder.is_none();
        match owners.find(|owner| owner.controller == Some(true)) {
            Some(controller) => Belongs::AsItsController {
                controller: controller.clone(),
                otherwise,
            },
            None => (otherwise && !is_alike).into(),
        }
    }

    fn is_alike(&self, owner: &OwnerReference) -> bool {
        owner.kind == self.kind.as_str() && group_of(&owner.api_version) == self.group
    }
}

/// Returns the group of an `apiVersion`; empty for the core group.
pub fn group_of(api_version: &str) -> &str {
    api_version
        .split_once('/')
        .map_or("", |(group, _version)| group)
}

/// A pod of a workload in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPod {
    /// Namespace of the pod, which is the workload's.
    pub namespace: String,
    /// Uid of the workload that the pod belongs to.
    pub workload: Uid,
    /// The lock key of the semaphore that granted the slot.
    pub lock_key: String,
    /// Whether no container of the pod runs or will run.
    pub ended: bool,
    /// The grant that the workload had when it made the pod.
    pub granted: Option<Granted>,
    /// The reason why the pod has not started; `None` if it has.
    pub not_started: Option<NotStarted>,
}

impl OwnPod {
    /// Reads a pod; `None` if it is not a pod of a workload in a slot.
    pub fn read(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let workload = Uid::from(metadata.labels.as_ref()?.get(HOLDER_LABEL)?.as_str());
        let key = metadata.annotations.as_ref()?.get(LOCK_KEY)?;
        Some(Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            granted: granted(pod, &workload),
            workload,
            lock_key: lock_key_of(key),
            ended: has_ended(pod),
            not_started: NotStarted::of(pod),
        })
    }
}

/// Whether no container of a pod runs or will run.
fn has_ended(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// Returns the name of a pod and its node, for people.
pub fn title(pod: &Pod) -> String {
    let node = pod.spec.node_name.as_deref();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    format!("{name} on node {}", node.unwrap_or("(none yet)"))
}

#[cfg(test)]
mod tests {
    use consul_semaphore::Identity;
    use serde_json::{Value, json};

    use super::*;
    use crate::Kind;

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
            granted: None,
            not_started: None,
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
    fn the_pods_of_a_copy_are_not_those_of_the_original() {
        let of_holder = |kind: Kind| kind.pods(&identity(kind.name())).remove(0);
        let owned_by = |kind: &str, uid: &str| {
            let owner = json!({ "apiVersion": "x/v1", "kind": kind, "name": "a", "uid": uid, "controller": true });
            pod(|pod| pod["metadata"]["ownerReferences"] = json!([owner]))
        };
        let workflow = of_holder(Kind::Workflow);
        let finds = |query: &OwnQuery, pod: &Pod| query.finds(&pod.metadata) == Belongs::Yes;
        assert!(finds(&workflow, &owned_by("Workflow", "u")));
        assert!(finds(&workflow, &owned_by("Job", "x")), "it made a Job");
        assert!(finds(&workflow, &pod(|_| {})), "it was orphaned");
        assert!(!finds(&workflow, &owned_by("Workflow", "copy")));
        let itself = |uid: &str| {
            let pod = pod(|pod| pod["metadata"]["uid"] = uid.into());
            finds(&of_holder(Kind::Pod), &pod)
        };
        assert_eq!((itself("u"), itself("copy")), (true, false));
        // The Job may have been adopted while it ran.
        assert!(finds(&of_holder(Kind::Job), &owned_by("Job", "x")));
    }

    fn identity(kind: KindName) -> Identity {
        Identity {
            cluster: "c".into(),
            namespace: "batch".into(),
            semaphore: "db".into(),
            key: None,
            kind,
            workload: "a".into(),
            uid: "u".into(),
            ordinal: 0,
        }
    }

    #[test]
    fn people_read_where_it_is() {
        assert_eq!(title(&pod(|_| {})), "a-x on node n");
        let unscheduled = pod(|pod| pod["spec"]["nodeName"] = Value::Null);
        assert_eq!(title(&unscheduled), "a-x on node (none yet)");
    }
}
