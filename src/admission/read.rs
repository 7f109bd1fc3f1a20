//! Reads the policies from the API server.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use tokio::time::timeout;

use super::{Answer, Policy, PolicyFinding, judge, policies_of, worth_reporting};
use consul_client::text::one_line;
use consul_semaphore_workload::Kind;

/// Reads the state of the policies of a kind of workload. It never fails. `operator` is the operator's user name, if
/// known; `patience` is how long each answer may take, including the client's own retries.
pub async fn look(
    client: &Client,
    kind: &Kind,
    operator: Option<&str>,
    patience: Duration,
) -> Vec<PolicyFinding> {
    let mut findings = Vec::new();
    for policy in policies_of(kind) {
        findings.push(find(client, policy, operator, patience).await);
    }
    worth_reporting(findings)
}

async fn find(
    client: &Client,
    policy: Policy,
    user: Option<&str>,
    patience: Duration,
) -> PolicyFinding {
    let type_ = policy.type_();
    let get = async |type_: &str, plural| {
        let got = timeout(patience, get(client, type_, plural, policy.name())).await;
        got.unwrap_or_else(|_| Answer::Unknown("the API server did not answer in time".to_owned()))
    };
    let read = get(type_, policy.resource()).await;
    let binding = get(&format!("{type_}Binding"), policy.binding()).await;
    judge(policy, &read, &binding, user)
}

/// Gets an object of a kind that older API servers don't have.
async fn get(client: &Client, kind: &str, plural: &str, name: &str) -> Answer {
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    match objects.get(name).await {
        Ok(object) => Answer::Found(object.data),
        Err(kube::Error::Api(status)) if status.code == 404 => Answer::NotThere,
        Err(error) => Answer::Unknown(one_line(&error.to_string(), 300)),
    }
}

/// Returns this process's user name, as the API server knows it. Every user may ask for that.
pub(super) async fn user(client: &Client, patience: Duration) -> Option<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let (params, review) = (PostParams::default(), SelfSubjectReview::default());
    let answer = timeout(patience, reviews.create(&params, &review)).await;
    answer.ok()?.ok()?.status?.user_info?.username
}
