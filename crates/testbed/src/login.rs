//! Consul's auth methods that trust a Kubernetes.
use std::{fs, panic::Location};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{api_server::ApiServer, consul::Consul, kubeconfig, manifests, story::story, tools};

/// A type of Consul's auth methods. The auth method has the same name as its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMethod {
    /// Consul asks the API server about the token.
    Kubernetes,
    /// Consul has the key that the token must be signed with.
    Jwt,
}

impl AuthMethod {
    /// Its name in Consul.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Jwt => "jwt",
        }
    }

    /// The audience that a token needs, if it matters.
    fn audience(self) -> Option<&'static str> {
        (self == Self::Jwt).then_some("consul")
    }

    /// The selector of a binding rule that matches a login.
    fn selector(self, namespace: &str, name: &str) -> String {
        match self {
            Self::Kubernetes => format!(
                "serviceaccount.namespace == \"{namespace}\" and serviceaccount.name == \"{name}\""
            ),
            Self::Jwt => format!("value.namespace == \"{namespace}\" and value.name == \"{name}\""),
        }
    }
}

/// The account with which Consul reviews the tokens of others.
const REVIEWER: &str = "consul-auth-method";

impl ApiServer {
    /// Creates an auth method in Consul for holders of a token from this API server: the accounts that
    /// [`Self::let_log_in`] names. `lifetime` is how long Consul's tokens live (`60s` or more).
    #[track_caller]
    pub fn auth_method(
        &self,
        consul: &Consul,
        by: AuthMethod,
        lifetime: Option<&str>,
    ) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            let config = match by {
                AuthMethod::Kubernetes => self.kubernetes_config().await?,
                AuthMethod::Jwt => self.jwt_config()?,
            };
            let mut method = json!({ "Name": by.name(), "Type": by.name(), "Config": config });
            if let Some(lifetime) = lifetime {
                method["MaxTokenTTL"] = lifetime.into();
            }
            consul.try_put("acl/auth-method", method).await.map(drop)
        })
    }

    /// Lets Consul give tokens with these rules to a `ServiceAccount` that logs in. The role with the rules, and its
    /// policy, have the name of the account.
    #[track_caller]
    pub fn let_log_in<'a>(
        &self,
        consul: &'a Consul,
        by: AuthMethod,
        [namespace, name]: [&'a str; 2],
        rules: &'a str,
    ) -> impl Future<Output = ()> + 'a {
        story(Location::caller(), async move {
            let policy = json!({ "Name": name, "Rules": rules });
            consul.try_put("acl/policy", policy).await?;
            let role = json!({ "Name": name, "Policies": [{ "Name": name }] });
            consul.try_put("acl/role", role).await?;
            let binding = json!({
                "AuthMethod": by.name(), "Selector": by.selector(namespace, name),
                "BindType": "role", "BindName": name,
            });
            consul.try_put("acl/binding-rule", binding).await.map(drop)
        })
    }

    /// A token of a `ServiceAccount` to log in with, as one of its pods would have.
    #[track_caller]
    pub fn bearer_token(
        &self,
        by: AuthMethod,
        [namespace, name]: [&str; 2],
    ) -> impl Future<Output = String> {
        let args = ["create", "token", "-n", namespace, name];
        let mut args = args.map(str::to_owned).to_vec();
        args.extend(by.audience().map(|name| format!("--audience={name}")));
        story(Location::caller(), async move {
            let token = tools::kubectl(self.kubeconfig(), args).await?;
            Ok(token.trim().to_owned())
        })
    }

    async fn kubernetes_config(&self) -> Result<Value> {
        let name = json!({ "name": REVIEWER });
        let role = |role: &str, binding: &str| {
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": { "name": binding },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
                "subjects": [{ "kind": "ServiceAccount", "name": REVIEWER, "namespace": "default" }],
            })
        };
        let objects = [
            json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": { "name": REVIEWER, "namespace": "default" },
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": name,
                "rules": [{ "apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get"] }],
            }),
            role(REVIEWER, REVIEWER),
            role("system:auth-delegator", "consul-auth-delegator"),
        ];
        let client = kubeconfig::client(self.kubeconfig()).await?;
        let objects = objects.into_iter().map(serde_json::from_value);
        manifests::apply(&client, &objects.collect::<Result<Vec<_>, _>>()?).await?;
        let token = ["create", "token", "-n", "default", REVIEWER];
        let token = tools::kubectl(self.kubeconfig(), token).await?;
        Ok(json!({
            "Host": self.url(), "CACert": self.authority()?, "ServiceAccountJWT": token.trim(),
        }))
    }

    fn jwt_config(&self) -> Result<Value> {
        let key = self.folder().path().join("service-account.pub");
        let key = fs::read_to_string(&key).with_context(|| key.display().to_string())?;
        Ok(json!({
            "JWTValidationPubKeys": [key],
            "JWTSupportedAlgs": ["ES256"],
            "BoundIssuer": "https://kubernetes.default.svc",
            "BoundAudiences": AuthMethod::Jwt.audience().into_iter().collect::<Vec<_>>(),
            "ClaimMappings": {
                "/kubernetes.io/namespace": "namespace",
                "/kubernetes.io/serviceaccount/name": "name",
            },
        }))
    }
}
