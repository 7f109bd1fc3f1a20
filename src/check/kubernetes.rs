//! Reads Kubernetes: its version, the definition of our resource, rights and policies.

use std::collections::BTreeMap;

use futures::{StreamExt as _, stream};
pub(super) use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition as Definition;
use kube::{Client, Config};
use serde_json::{Value, json};

use super::{
    CheckSettings, NamespacedName,
    api_server::{Answer, ApiError, ApiServer},
    election::{LeaseSearchResult, Sought},
    rights::{Lease, Question, Served, questions},
};
use crate::{
    admission::{self, PolicyFinding},
    identity::{History, history_lease},
    leader, schema,
};
use consul_semaphore_api::{GROUP, annotations::SEMAPHORE, scope::Namespaces};
use consul_semaphore_workload::{Kinds, Table};

/// The number of objects of a kind that are read at once, and the number of such readings. Each object may have a
/// megabyte.
const PAGE: usize = 100;
const PAGES: usize = 100;

/// The most objects of a kind that are read, in each namespace of the scope or in the whole cluster.
pub(super) const MAX_READ_OBJECTS: usize = PAGE * PAGES;

/// The number of rights that are checked at once.
const RIGHTS_AT_ONCE: usize = 8;

/// The beginning of `system:serviceaccount:<namespace>:<name>`.
const ACCOUNT: &str = "system:serviceaccount:";

/// A cluster before any request.
pub(super) struct CheckedCluster {
    /// The API server, used as the user of the kubeconfig.
    pub(super) server: ApiServer,
    /// The API server, used as the user whose rights are checked.
    asker: ApiServer,
    /// The Lease of the operator.
    lease: Sought,
    /// The default namespace of the kubeconfig.
    pub(super) namespace: String,
    /// The address of the API server.
    url: String,
}

/// All facts that were read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KubernetesFacts {
    pub(super) url: String,
    pub(super) version: Answer<String>,
    /// All facts beside the version, if the API server answered.
    pub(super) rest: Option<Rest>,
}

/// The facts about an API server that answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rest {
    /// The uid of `kube-system`.
    pub(super) id: Answer<String>,
    /// The plurals of the kinds in our version of our group.
    pub(super) served: Answer<Vec<String>>,
    pub(super) definition: Answer<Definition>,
    /// The user whose rights were checked.
    pub(super) asker: Answer<String>,
    pub(super) rights: Vec<CheckedRight>,
    /// The table of kinds, if the operator has one.
    pub(super) table: Option<(NamespacedName, Answer<Table>)>,
    /// The state of the admission policies.
    pub(super) policies: Vec<PolicyFinding>,
    /// The Lease of the operator.
    pub(super) election: LeaseSearchResult,
    /// Whether the operator elects its leader by the Lease.
    pub(super) elects: bool,
    /// The marks in Consul that the operators of this API server have written.
    pub(super) history: Answer<History>,
    /// Whether the schemas have the fields that the kinds need.
    pub(super) schemas: Vec<schema::FieldFinding>,
    /// The `CronJobs` that have the annotation on their own metadata alone, where it has no effect.
    pub(super) cron_jobs: Answer<FoundObjects>,
    /// The `ConsulSemaphores` that several operators manage, each with the names of these operators.
    pub(super) contested: Answer<FoundObjects>,
}

/// The objects of a kind that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FoundObjects {
    /// The titles of the objects, for people.
    pub(super) titles: Vec<String>,
    /// Whether there are more objects than were read.
    pub(super) cut: bool,
}

/// The answer to a question about a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckedRight {
    pub(super) question: Question,
    /// The verbs that are refused.
    pub(super) denied: Vec<&'static str>,
    /// The reason why some of the verbs are unknown.
    pub(super) unknown: Option<ApiError>,
}

impl KubernetesFacts {
    /// Returns the cluster's id, if it is known.
    pub(super) fn id(&self) -> Option<&str> {
        let id = self.rest.as_ref()?.id.as_deref().ok()?;
        (!id.is_empty()).then_some(id)
    }
}

impl Served {
    /// Returns the given kinds, and the kinds of the table.
    fn new(kinds: &Kinds, table: Option<&(NamespacedName, Answer<Table>)>) -> Self {
        let mut kinds = kinds.clone();
        if let Some((_, Ok(table))) = table {
            let rows = table.kinds.values().cloned();
            rows.for_each(|row| kinds.replace(row));
        }
        Self {
            kinds,
            table: table.map(|(name, _)| name.clone()),
        }
    }
}

impl CheckedCluster {
    /// Returns the cluster of the kubeconfig, or the one that this process runs in.
    pub(super) async fn find(settings: &CheckSettings) -> Result<Self, String> {
        let mut config = Config::infer().await.map_err(|error| error.to_string())?;
        // Failures are reported at once, without retries.
        config.default_retry = false;
        config.connect_timeout = Some(settings.timeout);
        let patience = settings.timeout;
        let client = |config: Config| -> Result<ApiServer, String> {
            let client = Client::try_from(config).map_err(|error| error.to_string())?;
            Ok(ApiServer::new(client, patience))
        };
        let (url, namespace) = (
            config.cluster_url.to_string(),
            config.default_namespace.clone(),
        );
        let lease = Sought::new(
            &settings.operator.election,
            settings.as_user.as_deref(),
            &config,
        );
        let server = client(config.clone())?;
        let asker = match &settings.as_user {
            Some(user) => {
                config.auth_info.impersonate = Some(user.clone());
                client(config)?
            }
            None => server.clone(),
        };
        Ok(Self {
            server,
            asker,
            lease,
            namespace,
            url,
        })
    }

    /// Reads all facts.
    pub(super) async fn look(&self, settings: &CheckSettings) -> KubernetesFacts {
        let answer = self.server.get("/version").await;
        let version = answer.map(|info| text(&info["gitVersion"]));
        let rest = match version {
            // If the API server does not answer, each question would run into its timeout.
            Err(ApiError::Failed(_)) => None,
            _ => Some(self.look_closer(settings).await),
        };
        KubernetesFacts {
            url: self.url.clone(),
            version,
            rest,
        }
    }

    async fn look_closer(&self, settings: &CheckSettings) -> Rest {
        let server = &self.server;
        let id = server.get("/api/v1/namespaces/kube-system").await;
        let kinds = server.get(&format!("/apis/{GROUP}/v1alpha1")).await;
        let plurals = |list: Value| -> Vec<String> {
            let resources = list["resources"].as_array().into_iter().flatten();
            resources.map(|kind| text(&kind["name"])).collect()
        };
        let asker = self.who_asks().await;
        // The guard must know the operator, which is a service account; other users do not matter.
        let operator = asker.as_deref().ok().filter(|user| is_account(user));
        let election = self.lease.find(server).await;
        let lease = &election.lease;
        let elects = settings.operator.election.mode == leader::Mode::Kubernetes;
        let table = self.table(settings, elects.then_some(lease)).await;
        let all = Served::new(&settings.operator.workloads.kinds, table.as_ref());
        let history = self.history(lease).await;
        let (mut policies, mut schemas) = (Vec::new(), Vec::new());
        for kind in all.kinds.iter() {
            schemas.extend(schema::look(&server.client, kind, server.patience).await);
            let of_kind = admission::look(&server.client, kind, operator, server.patience);
            policies.extend(of_kind.await);
        }
        Rest {
            id: id.map(|namespace| text(&namespace["metadata"]["uid"])),
            served: kinds.map(plurals),
            definition: self.definition().await,
            asker,
            rights: self.rights(settings, &all, lease).await,
            table,
            policies,
            schemas,
            election,
            elects,
            history,
            cron_jobs: self
                .find_all(settings, "batch/v1", "cronjobs", mistaken)
                .await,
            contested: self
                .find_all(
                    settings,
                    &format!("{GROUP}/v1alpha1"),
                    "consulsemaphores",
                    contested,
                )
                .await,
        }
    }

    /// Reads the objects of a kind in the scope, page by page, and keeps what `title` makes of them.
    async fn find_all(
        &self,
        settings: &CheckSettings,
        group: &str,
        plural: &str,
        title: fn(&Value) -> Option<String>,
    ) -> Answer<FoundObjects> {
        let folders = match &settings.operator.scope.namespaces {
            Namespaces::All => vec![format!("/apis/{group}/{plural}")],
            Namespaces::Only(names) => {
                let folder = |name| format!("/apis/{group}/namespaces/{name}/{plural}");
                names.iter().map(folder).collect()
            }
        };
        let mut found = FoundObjects::default();
        for folder in folders {
            let mut next = String::new();
            for _ in 0..PAGES {
                let path = format!("{folder}?limit={PAGE}&continue={next}");
                let list = self.server.get(&path).await?;
                let items = list["items"].as_array().into_iter().flatten();
                found.titles.extend(items.filter_map(title));
                next = text(&list["metadata"]["continue"]);
                if next.is_empty() {
                    break;
                }
            }
            found.cut |= !next.is_empty();
        }
        Ok(found)
    }

    async fn definition(&self) -> Answer<Definition> {
        let path = format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/consulsemaphores.{GROUP}"
        );
        let definition = self.server.get(&path).await?;
        serde_json::from_value(definition).map_err(|error| ApiError::Failed(error.to_string()))
    }

    /// Returns the user whose rights are checked. Every user may ask for its own name.
    async fn who_asks(&self) -> Answer<String> {
        let review =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let review = self.asker.review(path, &review).await?;
        Ok(text(&review["status"]["userInfo"]["username"]))
    }

    /// Returns the table of kinds in the namespace where the operator runs; `None` if the operator has no table. The
    /// namespace is that of the Lease, else that of the account that is checked, else the default one.
    async fn table(
        &self,
        settings: &CheckSettings,
        lease: Option<&Lease>,
    ) -> Option<(NamespacedName, Answer<Table>)> {
        let workloads = &settings.operator.workloads;
        let account = || account_namespace(settings.as_user.as_deref()?);
        let namespace = lease.map(|lease| lease.namespace.clone()).or_else(account);
        let name = NamespacedName {
            namespace: namespace.unwrap_or_else(|| self.namespace.clone()),
            name: workloads.table.clone()?,
        };
        let path = format!(
            "/api/v1/namespaces/{}/configmaps/{}",
            name.namespace, name.name
        );
        let map = self.server.get(&path).await;
        let table = map.and_then(|map| {
            let read = match &map["data"] {
                Value::Null => Ok(BTreeMap::new()),
                data => serde_json::from_value(data.clone()),
            };
            let data = read.map_err(|error| ApiError::Failed(error.to_string()))?;
            Ok(Table::read(&data, &workloads.kinds))
        });
        Some((name, table))
    }

    /// Returns the marks that the operator with this Lease has written.
    async fn history(&self, lease: &Lease) -> Answer<History> {
        let Lease { namespace, name } = lease;
        let name = history_lease(name);
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
        match self.server.get(&path).await {
            Ok(lease) => Ok(History::in_annotations(&lease["metadata"]["annotations"])),
            // The operator has written no marks.
            Err(ApiError::NotThere) => Ok(History::default()),
            Err(why) => Err(why),
        }
    }

    /// Checks all rights of the operator with this `lease`.
    async fn rights(
        &self,
        settings: &CheckSettings,
        served: &Served,
        lease: &Lease,
    ) -> Vec<CheckedRight> {
        let namespaces = &settings.operator.scope.namespaces;
        let questions = questions(served, namespaces, Some(lease));
        let rights = questions.into_iter().map(|question| self.right(question));
        stream::iter(rights)
            .buffered(RIGHTS_AT_ONCE)
            .collect()
            .await
    }

    async fn right(&self, question: Question) -> CheckedRight {
        let mut denied = Vec::new();
        let mut unknown = None;
        for verb in question.rule.verbs {
            match self.may(&question, verb).await {
                Ok(true) => {}
                Ok(false) => denied.push(*verb),
                Err(why) => {
                    unknown = Some(why);
                    break;
                }
            }
        }
        CheckedRight {
            question,
            denied,
            unknown,
        }
    }

    /// Whether the user has this right.
    pub(super) async fn may(&self, question: &Question, verb: &str) -> Answer<bool> {
        let rule = &question.rule;
        let whole = rule.resource.as_ref();
        let (resource, subresource) = whole.split_once('/').unwrap_or((whole, ""));
        let attributes = json!({
            "group": rule.group,
            "resource": resource,
            "subresource": subresource,
            "verb": verb,
            "namespace": question.namespace.as_deref().unwrap_or_default(),
            "name": question.name.as_deref().unwrap_or_default(),
        });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": attributes },
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let review = self.asker.review(path, &review).await?;
        Ok(review["status"]["allowed"] == true)
    }
}

/// Returns the namespace of a `ServiceAccount`, from its user name.
pub(super) fn account_namespace(user: &str) -> Option<String> {
    let (namespace, _) = user.strip_prefix(ACCOUNT)?.split_once(':')?;
    Some(namespace.to_owned())
}

/// Whether this is the user of a `ServiceAccount`.
pub(super) fn is_account(user: &str) -> bool {
    account_namespace(user).is_some()
}

/// Returns the title of a `CronJob` that has the annotation on its own metadata, while its Jobs do not have it.
fn mistaken(cron_job: &Value) -> Option<String> {
    let asks = |metadata: &Value| metadata["annotations"][SEMAPHORE].is_string();
    let is_mistaken =
        asks(&cron_job["metadata"]) && !asks(&cron_job["spec"]["jobTemplate"]["metadata"]);
    is_mistaken.then(|| title(cron_job))
}

/// Returns the title of a `ConsulSemaphore` that several operators manage, as its status says.
fn contested(semaphore: &Value) -> Option<String> {
    let operators = semaphore["status"]["operators"].as_array()?;
    let names: Vec<&str> = operators.iter().filter_map(Value::as_str).collect();
    (names.len() > 1).then(|| format!("{} ({})", title(semaphore), names.join(", ")))
}

fn title(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!(
        "{}/{}",
        text(&metadata["namespace"]),
        text(&metadata["name"])
    )
}

/// Returns a text, or the empty text for any other value.
pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_semaphore_of_several_operators_is_found() {
        let semaphore = |operators: &[&str]| {
            json!({
                "metadata": { "namespace": "batch", "name": "db" },
                "status": { "operators": operators },
            })
        };
        let said = contested(&semaphore(&["a", "b"]));
        assert_eq!(said.as_deref(), Some("batch/db (a, b)"));
        assert_eq!(contested(&semaphore(&["a"])), None);
        assert_eq!(contested(&json!({})), None);
    }
}
