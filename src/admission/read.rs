//! Asks the API server.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use tokio::time::timeout;

use super::{Answer, Finding, Policy, judge};
use crate::text::one_line;

/// How long one answer may take, with the client's own repetitions.
const PATIENCE: Duration = Duration::from_secs(10);

/// How both policies stand. It takes a moment, and never fails. `operator` is who the API server takes the
/// operator for, if that is known: [`user`].
pub async fn look(client: &Client, operator: Option<&str>) -> [Finding; 2] {
    let suspend = find(client, Policy::Suspend, operator).await;
    let guard = find(client, Policy::Guard, operator).await;
    [suspend, guard]
}

async fn find(client: &Client, policy: Policy, user: Option<&str>) -> Finding {
    let (policies, bindings) = match policy {
        Policy::Suspend => (
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
        ),
        Policy::Guard => (
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ),
    };
    let kind = policy.kind();
    let read = get(client, kind, policies, policy.name()).await;
    let binding = get(client, &format!("{kind}Binding"), bindings, policy.name()).await;
    judge(policy, &read, &binding, user)
}

/// Gets an object of a kind that older API servers don't have.
async fn get(client: &Client, kind: &str, plural: &str, name: &str) -> Answer {
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    match timeout(PATIENCE, objects.get(name)).await {
        Ok(Ok(object)) => Answer::Found(object.data),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Answer::NotThere,
        Ok(Err(error)) => Answer::Unknown(one_line(&error.to_string(), 300)),
        Err(_) => Answer::Unknown("the API server did not answer in time".to_owned()),
    }
}

/// Who the API server takes this process for. Everybody may ask that.
pub async fn user(client: &Client) -> Option<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let (params, review) = (PostParams::default(), SelfSubjectReview::default());
    let answer = timeout(PATIENCE, reviews.create(&params, &review)).await;
    answer.ok()?.ok()?.status?.user_info?.username
}
