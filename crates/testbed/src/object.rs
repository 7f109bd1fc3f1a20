//! An object of any kind, as JSON: workloads other than Jobs, of whose types this crate has none.
use std::{
    fmt::{self, Display, Formatter},
    panic::Location,
};

use anyhow::Result;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{Request, TypeMeta},
};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

use crate::{
    namespace::Namespace,
    story::{reads, story},
    wait,
};

/// An existing object of a namespace.
#[derive(Clone, Debug)]
pub struct Object {
    team: Namespace,
    api: Api<DynamicObject>,
    types: TypeMeta,
    name: String,
}

/// What the API server answers instead of doing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub code: u16,
    /// What it says.
    pub message: String,
}

impl Namespace {
    /// Creates an object. A step that is refused fails the test.
    #[track_caller]
    pub fn create(&self, object: Value) -> impl Future<Output = Object> {
        story(Location::caller(), async move {
            let object: DynamicObject = serde_json::from_value(object)?;
            let types = object.types.clone().unwrap_or_default();
            let api = self.api_of(&types).await?;
            let made = api.create(&PostParams::default(), &object).await?;
            Ok(Object {
                team: self.clone(),
                api,
                types,
                name: made.name_any(),
            })
        })
    }

    /// An object that is there, or will be: it may be another's.
    #[track_caller]
    pub fn object(
        &self,
        api_version: &str,
        kind: &str,
        name: &str,
    ) -> impl Future<Output = Object> {
        let types = TypeMeta {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        };
        let name = name.to_owned();
        story(Location::caller(), async move {
            Ok(Object {
                team: self.clone(),
                api: self.api_of(&types).await?,
                types,
                name,
            })
        })
    }

    /// The pods with these labels, in the order of their names.
    #[track_caller]
    pub fn pods_with(&self, labels: &str) -> impl Future<Output = Vec<Pod>> {
        let labels = ListParams::default().labels(labels);
        reads(Location::caller(), "pods", move || {
            let (pods, labels) = (self.api::<Pod>(), labels.clone());
            async move {
                let mut pods = pods.list(&labels).await?.items;
                pods.sort_by_key(ResourceExt::name_any);
                Ok(pods)
            }
        })
    }
}

impl Object {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// It, as it is now.
    #[track_caller]
    pub fn get(&self) -> impl Future<Output = Value> {
        reads(Location::caller(), &self.name, move || async move {
            Ok(serde_json::to_value(self.api.get(&self.name).await?)?)
        })
    }

    /// Its uid.
    #[track_caller]
    pub fn uid(&self) -> impl Future<Output = String> {
        reads(Location::caller(), &self.name, move || async move {
            Ok(self.api.get(&self.name).await?.uid().unwrap_or_default())
        })
    }

    /// Waits until it is so, and returns it.
    #[track_caller]
    pub fn is(&self, what: &str, so: impl Fn(&Value) -> bool) -> impl Future<Output = Value> {
        let what = format!("{} {} is {what}", self.types.kind, self.name);
        story(Location::caller(), async move {
            wait::until(&what, wait::PATIENCE, || async {
                let object = self.api.get(&self.name).await;
                let object = object.map_err(|error| error.to_string())?;
                let object = serde_json::to_value(object).map_err(|error| error.to_string())?;
                if so(&object) {
                    Ok(object)
                } else {
                    Err(format!("{} {}", object["spec"], object["status"]))
                }
            })
            .await
        })
    }

    /// The events about it, in no order; those about others of its name are not among them.
    #[track_caller]
    pub fn events(&self) -> impl Future<Output = Vec<Event>> {
        reads(Location::caller(), &self.name, move || async move {
            let uid = self.api.get(&self.name).await?.uid().unwrap_or_default();
            let ours = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
            Ok(self.team.api::<Event>().list(&ours).await?.items)
        })
    }

    /// Waits until it has an event with this reason, and returns its message.
    #[track_caller]
    pub fn has_event(&self, reason: &str) -> impl Future<Output = String> {
        let what = format!("{} {} has an event {reason}", self.types.kind, self.name);
        let kind = format!("involvedObject.kind={}", self.types.kind);
        let ours = format!("{kind},involvedObject.name={}", self.name);
        story(Location::caller(), async move {
            let (events, ours) = (
                self.team.api::<Event>(),
                ListParams::default().fields(&ours),
            );
            wait::until(&what, wait::PATIENCE, || async {
                let list = events.list(&ours).await;
                let list = list.map_err(|error| error.to_string())?.items;
                let found = list
                    .iter()
                    .find(|event| event.reason.as_deref() == Some(reason));
                let found = found.and_then(|event| event.message.clone());
                let reasons = || list.iter().filter_map(|event| event.reason.as_deref());
                found.ok_or_else(|| format!("{:?}", reasons().collect::<Vec<_>>()))
            })
            .await
        })
    }

    /// Waits until it is gone.
    #[track_caller]
    pub fn is_gone(&self) -> impl Future<Output = ()> {
        let what = format!("{} {} is gone", self.types.kind, self.name);
        story(Location::caller(), async move {
            wait::until(&what, wait::PATIENCE, || async {
                match self.api.get_opt(&self.name).await {
                    Ok(None) => Ok(()),
                    Ok(Some(object)) => Err(format!("{:?}", object.metadata)),
                    Err(error) => Err(error.to_string()),
                }
            })
            .await
        })
    }

    /// Sets one of its annotations, or removes it.
    #[track_caller]
    pub fn annotate(&self, name: &str, value: Option<&str>) -> impl Future<Output = ()> {
        let patch = json!({ "metadata": { "annotations": { name: value } } });
        story(Location::caller(), async move {
            let params = PatchParams::default();
            self.api
                .patch(&self.name, &params, &Patch::Merge(patch))
                .await?;
            Ok(())
        })
    }

    /// Changes it by a JSON Patch (RFC 6902).
    ///
    /// # Errors
    /// The API server, or a webhook, refuses it.
    pub async fn change(&self, patch: Value) -> Result<Value, Refusal> {
        self.patch(None, &patch).await
    }

    /// Changes its status by a JSON Patch (RFC 6902).
    ///
    /// # Errors
    /// Like those of [`Self::change`].
    pub async fn change_status(&self, patch: Value) -> Result<Value, Refusal> {
        self.patch(Some("status"), &patch).await
    }

    /// Runs a finished Workflow again under the same uid, as `argo retry` does: its status is no subresource.
    ///
    /// # Errors
    /// Like those of [`Self::change`].
    pub async fn retry_as_argo(&self) -> Result<Value, Refusal> {
        let unset = |path: &str| json!({ "op": "remove", "path": path });
        let set = |path: &str, value: &str| json!({ "op": "add", "path": path, "value": value });
        let label = |name: &str| format!("/metadata/labels/workflows.argoproj.io~1{name}");
        self.change(json!([
            unset("/spec/shutdown"),
            unset("/status/nodes"),
            unset("/status/message"),
            unset("/status/finishedAt"),
            set("/status/phase", "Running"),
            set(&label("phase"), "Running"),
            set(&label("completed"), "false"),
        ]))
        .await
    }

    async fn patch(&self, part: Option<&str>, operations: &Value) -> Result<Value, Refusal> {
        let params = PatchParams::default();
        let patch = Patch::Merge(operations);
        let request = Request::new(self.api.resource_url());
        let request = match part {
            None => request.patch(&self.name, &params, &patch),
            Some(part) => request.patch_subresource(part, &self.name, &params, &patch),
        };
        let answered = async {
            let mut request = request.map_err(kube::Error::BuildRequest)?;
            // Without its feature for it, kube writes the same for another kind of patch.
            let json_patch = HeaderValue::from_static("application/json-patch+json");
            request.headers_mut().insert(CONTENT_TYPE, json_patch);
            self.team.client().request(request).await
        };
        answered.await.map_err(Refusal::from)
    }

    /// Deletes it, and what it owns afterwards.
    #[track_caller]
    pub fn delete(&self) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            let params = DeleteParams::background();
            self.api.delete(&self.name, &params).await?;
            Ok(())
        })
    }

    /// Its namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.team
    }
}

impl From<kube::Error> for Refusal {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self {
                code: status.code,
                message: status.message,
            },
            // It was never asked.
            error => Self {
                code: 0,
                message: error.to_string(),
            },
        }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}
