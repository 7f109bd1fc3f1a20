//! Waits until RBAC takes effect: the API server applies a new or deleted binding with a delay.
use std::panic::Location;

use anyhow::{Context as _, Result};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    rbac::v1::{ClusterRole, PolicyRule, Role, RoleRef, Subject},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, PostParams},
};

use crate::{bed::Bed, namespace::Namespace, story::story, wait};

impl Namespace {
    /// Waits until this user may do this here, or may not any more. `what` is a verb, and a resource with its group
    /// and, if it is about a single object, the name, such as `["patch", "jobs.batch/migrate"]`.
    #[track_caller]
    pub fn lets(&self, user: &str, what: [&str; 2], lets: bool) -> impl Future<Output = ()> {
        let asked = asked(what, Some(self.name()));
        story(
            Location::caller(),
            await_access(self.client(), user.to_owned(), asked, lets),
        )
    }
}

impl Bed {
    /// Like [`Namespace::lets`], in another namespace than the test's own, or in the whole cluster.
    #[track_caller]
    pub fn lets(
        &self,
        user: &str,
        what: [&str; 2],
        namespace: Option<&str>,
        lets: bool,
    ) -> impl Future<Output = ()> {
        let asked = asked(what, namespace);
        story(
            Location::caller(),
            await_access(self.client().clone(), user.to_owned(), asked, lets),
        )
    }
}

fn asked([verb, what]: [&str; 2], namespace: Option<&str>) -> ResourceAttributes {
    let (what, name) = what
        .split_once('/')
        .map_or((what, None), |(what, name)| (what, Some(name)));
    let (resource, group) = what.split_once('.').unwrap_or((what, ""));
    ResourceAttributes {
        verb: Some(verb.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        name: name.map(str::to_owned),
        namespace: namespace.map(str::to_owned),
        ..Default::default()
    }
}

/// Waits until all `ServiceAccounts` that a binding names have all the rights of its role.
pub(crate) async fn is_in_force(client: &Client, binding: &DynamicObject) -> Result<()> {
    let namespace = binding.namespace();
    let role: RoleRef = serde_json::from_value(binding.data["roleRef"].clone())?;
    let subjects: Vec<Subject> = serde_json::from_value(binding.data["subjects"].clone())?;
    for rule in rules(client, &role, namespace.as_deref()).await? {
        for account in subjects.iter().filter(|it| it.kind == "ServiceAccount") {
            let home = account.namespace.as_deref().unwrap_or_default();
            let user = format!("system:serviceaccount:{home}:{}", account.name);
            let asked = one_of(&rule, namespace.clone());
            await_access(client.clone(), user, asked, true).await?;
        }
    }
    Ok(())
}

/// The rules of a role that are about resources.
async fn rules(
    client: &Client,
    role: &RoleRef,
    namespace: Option<&str>,
) -> Result<Vec<PolicyRule>> {
    let rules = if role.kind == "ClusterRole" {
        let roles = Api::<ClusterRole>::all(client.clone());
        roles.get(&role.name).await?.rules
    } else {
        let namespace = namespace.context("a Role is bound in a namespace")?;
        let roles = Api::<Role>::namespaced(client.clone(), namespace);
        roles.get(&role.name).await?.rules
    };
    let mut rules = rules.unwrap_or_default();
    rules.retain(|rule| rule.resources.is_some());
    Ok(rules)
}

/// One request that a rule allows. If this one is allowed, the whole rule is in effect.
fn one_of(rule: &PolicyRule, namespace: Option<String>) -> ResourceAttributes {
    let first = |of: &Option<Vec<String>>| of.iter().flatten().next().cloned();
    let resource = first(&rule.resources).unwrap_or_default();
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, sub)) => (resource.to_owned(), Some(sub.to_owned())),
        None => (resource, None),
    };
    ResourceAttributes {
        verb: rule.verbs.first().cloned(),
        group: first(&rule.api_groups),
        resource: Some(resource),
        subresource,
        name: first(&rule.resource_names),
        namespace,
        ..Default::default()
    }
}

/// Waits until the API server allows a user to do this, or denies it.
async fn await_access(
    client: Client,
    user: String,
    asked: ResourceAttributes,
    lets: bool,
) -> Result<()> {
    let what = format!(
        "{user} may, or may not: {lets}: {}",
        serde_json::to_string(&asked)?
    );
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user),
            resource_attributes: Some(asked),
            ..Default::default()
        },
        ..Default::default()
    };
    let reviews = Api::<SubjectAccessReview>::all(client);
    wait::until(&what, wait::PATIENCE, || async {
        let answer = reviews.create(&PostParams::default(), &review).await;
        let status = answer.map_err(|error| error.to_string())?.status;
        wait::same(status.is_some_and(|status| status.allowed), lets).map(drop)
    })
    .await
}
