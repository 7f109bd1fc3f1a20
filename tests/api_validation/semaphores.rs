//! `ConsulSemaphore`s as users can write them.

use consul_semaphore_api::{ConsulSemaphore, ConsulSemaphoreStatus, crd_yaml};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::eventually;

/// The resource without the checks of our own types.
pub(crate) struct Semaphores {
    untyped: Api<DynamicObject>,
    typed: Api<ConsulSemaphore>,
}

impl Semaphores {
    /// Installs the resource as it is shipped, and waits until it is served.
    pub(crate) async fn install(client: &Client) -> Self {
        let crd = serde_saphyr::from_str(&crd_yaml().expect("YAML")).expect("a CRD");
        let crds = Api::<CustomResourceDefinition>::all(client.clone());
        crds.create(&PostParams::default(), &crd)
            .await
            .expect("the API server takes the CRD");
        let resource = ApiResource::erase::<ConsulSemaphore>(&());
        let this = Self {
            untyped: Api::default_namespaced_with(client.clone(), &resource),
            typed: Api::default_namespaced(client.clone()),
        };
        let all = ListParams::default();
        eventually("the resource is served", || this.typed.list(&all)).await;
        this
    }

    pub(crate) async fn create(&self, spec: &Value) -> kube::Result<DynamicObject> {
        let mut object = DynamicObject::new("", &ApiResource::erase::<ConsulSemaphore>(&()));
        object.metadata.name = None;
        object.metadata.generate_name = Some("case-".to_owned());
        object.data = json!({ "spec": spec });
        self.untyped.create(&PostParams::default(), &object).await
    }

    /// Creates one with the first spec and replaces it with the second.
    pub(crate) async fn update(
        &self,
        before: &Value,
        after: &Value,
    ) -> kube::Result<DynamicObject> {
        let mut object = self.create(before).await.expect("the first spec is valid");
        object.data["spec"] = after.clone();
        self.untyped
            .replace(&object.name_any(), &PostParams::default(), &object)
            .await
    }

    pub(crate) async fn apply_status(
        &self,
        name: &str,
        status: &ConsulSemaphoreStatus,
    ) -> ConsulSemaphore {
        let body = json!({ "apiVersion": "consul-semaphore.io/v1alpha1", "kind": "ConsulSemaphore", "status": status });
        let params = PatchParams::apply("api-validation").force();
        let written = self
            .typed
            .patch_status(name, &params, &Patch::Apply(body))
            .await;
        written.expect("the status is valid")
    }

    /// The stored form of a valid spec, read by our types.
    pub(crate) async fn accept(&self, spec: Value) -> ConsulSemaphore {
        let made = self
            .create(&spec)
            .await
            .unwrap_or_else(|error| panic!("{spec}: {error}"));
        made.try_parse()
            .unwrap_or_else(|error| panic!("{spec}: {error}"))
    }

    /// Asserts that the API server calls each spec invalid, in a message that names the field and says what is
    /// allowed.
    pub(crate) async fn refuse(
        &self,
        specs: impl IntoIterator<Item = Value>,
        field: &str,
        allowed: &str,
    ) {
        for spec in specs {
            assert_invalid(self.create(&spec).await, &spec, [field, allowed]);
        }
    }

    /// Asserts that the API server refuses each change from one spec to the other, because this field says where the
    /// semaphore lives.
    pub(crate) async fn refuse_to_move(
        &self,
        changes: impl IntoIterator<Item = (&Value, &Value)>,
        field: &str,
    ) {
        let path = format!("spec.{field}");
        let allowed = format!(
            "{field} can't be changed, added or removed: create another ConsulSemaphore instead"
        );
        for (before, after) in changes {
            assert_invalid(
                self.update(before, after).await,
                &json!([before, after]),
                [&path, &allowed],
            );
        }
    }
}

fn assert_invalid(result: kube::Result<DynamicObject>, case: &Value, words: [&str; 2]) {
    let status = match result {
        Err(kube::Error::Api(status)) => status,
        Err(error) => panic!("{case}: {error}"),
        Ok(_) => panic!("{case} was accepted"),
    };
    let message = &status.message;
    assert_eq!(
        (status.code, status.reason.as_str()),
        (422, "Invalid"),
        "{case}: {message}"
    );
    for word in words {
        assert!(
            message.contains(word),
            "{case}: {word:?} is missing in: {message}"
        );
    }
}
