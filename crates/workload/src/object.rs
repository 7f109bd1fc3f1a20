//! Objects of any kind, as the API server sends them.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_core::{ApiResource, DynamicResourceScope, Resource};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::kind::{job::Job, kueue::Beside};

/// An object of any kind. The file of each kind reads the spec and the status. An object that can't be read there is
/// left alone and does not affect other objects.
#[derive(Clone, Debug, Deserialize)]
pub struct Object {
    /// Metadata of the object.
    #[serde(default)]
    pub metadata: ObjectMeta,
    spec: Option<Box<RawValue>>,
    status: Option<Box<RawValue>>,
    /// Facts from elsewhere that decide what a Workload of Kueue means; `None` for objects of other kinds.
    #[serde(skip)]
    pub beside: Option<Arc<Beside>>,
}

impl Object {
    pub(crate) fn spec(&self) -> Option<&RawValue> {
        self.spec.as_deref()
    }

    pub(crate) fn status(&self) -> Option<&RawValue> {
        self.status.as_deref()
    }

    /// Reads the object as a Job.
    pub(crate) fn job(&self) -> serde_json::Result<Job> {
        Ok(Job {
            metadata: self.metadata.clone(),
            spec: read(self.spec.as_deref())?,
            status: read(self.status.as_deref())?,
        })
    }
}

impl Resource for Object {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// An object with the fields of its spec and status that are needed.
pub(crate) struct Fields<'a, Spec, Status> {
    pub(crate) metadata: &'a ObjectMeta,
    pub(crate) spec: Spec,
    pub(crate) status: Status,
}

impl<'a, Spec, Status> Fields<'a, Spec, Status>
where
    Spec: DeserializeOwned + Default,
    Status: DeserializeOwned + Default,
{
    /// Reads the fields from an object.
    pub(crate) fn of(object: &'a Object) -> serde_json::Result<Self> {
        Ok(Self {
            metadata: &object.metadata,
            spec: read(object.spec.as_deref())?,
            status: read(object.status.as_deref())?,
        })
    }
}

/// Reads a part of an object that may be null, because any part that may be left out may also be null.
pub(crate) fn or_default<'de, D, T>(part: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(part).map(Option::unwrap_or_default)
}

fn read<T: DeserializeOwned + Default>(part: Option<&RawValue>) -> serde_json::Result<T> {
    part.map_or_else(|| Ok(T::default()), |part| serde_json::from_str(part.get()))
}

/// A condition in a status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type", deserialize_with = "or_default")]
    type_: String,
    #[serde(deserialize_with = "or_default")]
    status: String,
    pub(crate) last_transition_time: Option<Time>,
}

/// The part of a pod template's spec that is needed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpec {
    pub(crate) termination_grace_period_seconds: Option<i64>,
}

/// The conditions in a status.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Conditions(Option<Vec<Condition>>);

impl Conditions {
    /// Returns the condition of this type.
    pub(crate) fn get(&self, type_: &str) -> Option<&Condition> {
        let mut conditions = self.0.iter().flatten();
        conditions.find(|condition| condition.type_ == type_)
    }

    /// Returns the place of the condition of this type in the list.
    pub(crate) fn place(&self, type_: &str) -> Option<usize> {
        let mut conditions = self.0.iter().flatten();
        conditions.position(|condition| condition.type_ == type_)
    }

    /// Whether there is a list of conditions.
    pub(crate) fn are_there(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the condition of this type is True.
    pub(crate) fn is(&self, type_: &str) -> bool {
        self.has(type_, "True")
    }

    /// Whether the condition of this type is False.
    pub(crate) fn is_not(&self, type_: &str) -> bool {
        self.has(type_, "False")
    }

    fn has(&self, type_: &str, status: &str) -> bool {
        let condition = self.get(type_);
        condition.is_some_and(|condition| condition.status == status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::{OwnPod, Pod};
    use kube_core::WatchEvent;

    /// An object is read from an event of a watch without a copy in between.
    #[test]
    fn an_object_is_read_from_a_watch() {
        let text = r#"{"type":"ADDED","object":{"apiVersion":"a/v1","kind":"K",
            "metadata":{"name":"a"},"spec":{"x":[1,{}]}}}"#;
        let event: WatchEvent<Object> = serde_json::from_str(text).unwrap();
        let WatchEvent::Added(object) = event else {
            panic!("{event:?}");
        };
        assert_eq!(object.metadata.name.as_deref(), Some("a"));
        assert!(object.spec.is_some() && object.status.is_none());
    }

    /// Any part that may be left out may also be null.
    #[test]
    fn jobs_and_pods_are_read_with_nulls() {
        for part in [
            r#""metadata":null,"spec":null,"status":null"#,
            r#""spec":{"suspend":null,"template":null},"status":{"conditions":null}"#,
            r#""spec":{"template":{"metadata":null,"spec":null}},"status":{"conditions":[{"type":null,"status":null}]}"#,
            r#""spec":{"template":{"metadata":{"annotations":null}}}"#,
        ] {
            let event = format!(r#"{{"type":"ADDED","object":{{"kind":"K",{part}}}}}"#);
            let job: WatchEvent<Job> = serde_json::from_str(&event).unwrap();
            assert!(matches!(job, WatchEvent::Added(job) if job.template().is_none()));
            let pod: WatchEvent<Pod> = serde_json::from_str(&event).unwrap();
            assert!(matches!(pod, WatchEvent::Added(pod) if OwnPod::read(&pod).is_none()));
        }
    }
}
