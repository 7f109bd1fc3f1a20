//! The reasons why a command fails, with their exit codes.

use std::{error::Error as _, fmt::Write as _, time::Duration};

use consul_client::{self as consul, text::one_line};
use consul_semaphore_workload::Kind as WorkloadKind;
use kube::core::Status;

/// The number of characters of a foreign message that are repeated.
const LONGEST_SHOWN_MESSAGE: usize = 600;

/// The kind of a failure, as far as a script can distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The request can't be carried out.
    Impossible,
    /// The named object does not exist.
    NotThere,
    /// The cluster has no such kind of object at all.
    NotInstalled,
    /// The API server or Consul does not answer.
    Away,
    /// A right is missing.
    Denied,
}

/// A failure. The message says what went wrong, and what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn impossible(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Impossible, message)
    }

    pub(crate) fn not_there(message: impl Into<String>) -> Self {
        Self::new(FailureKind::NotThere, message)
    }

    pub(crate) fn not_installed() -> Self {
        let message = "ConsulSemaphores are not installed in this cluster: install the operator, or only their \
                       CustomResourceDefinition with `kubectl apply -f crds/`";
        Self::new(FailureKind::NotInstalled, message)
    }

    /// Returns the failure for a kind of workload that the API server does not know.
    fn no_such_kind(kind: &WorkloadKind) -> Self {
        let resource = kind.resource();
        let message = format!(
            "this cluster has no {}.{} of version {}: the CustomResourceDefinition of {} is not installed",
            resource.plural, resource.group, resource.version, resource.kind
        );
        Self::new(FailureKind::NotInstalled, message)
    }

    fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// Returns the exit code. The codes are those of `consul-semaphore exec`, from sysexits.h.
    pub(crate) fn code(&self) -> u8 {
        match self.kind {
            FailureKind::Impossible => 1,
            FailureKind::NotThere | FailureKind::NotInstalled => 66,
            FailureKind::Away => 69,
            FailureKind::Denied => 77,
        }
    }

    /// Returns the failure for a call to the API server that failed.
    pub(crate) fn of_call(right: &NeededRight, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_answer(right, status),
            error => Self::of_client(error),
        }
    }

    /// Returns the failure for an error that occurred before there was an answer.
    pub(crate) fn of_client(error: &kube::Error) -> Self {
        match error {
            kube::Error::ProxyProtocolDisabled { proxy_url, .. }
            | kube::Error::ProxyProtocolUnsupported { proxy_url } => {
                let host = proxy_url.host().unwrap_or_default();
                Self::impossible(format!(
                    "proxies are not supported, but HTTPS_PROXY or the kubeconfig's \
                     proxy-url names {host}: unset it"
                ))
            }
            error => {
                let mut why = error.to_string();
                let mut cause = error.source();
                while let Some(error) = cause {
                    // Writing to a string can't fail.
                    let _ = write!(why, ": {error}");
                    cause = error.source();
                }
                let why = one_line(&why, LONGEST_SHOWN_MESSAGE);
                let message = format!(
                    "the API server does not answer ({why}): check the server and the certificates in the \
                     kubeconfig with `kubectl config view --minify`"
                );
                Self::new(FailureKind::Away, message)
            }
        }
    }

    /// Returns the failure for an API server that did not answer in time.
    pub(crate) fn silent(patience: Duration) -> Self {
        let seconds = patience.as_secs();
        let message = format!("the API server did not answer within {seconds} s");
        Self::new(FailureKind::Away, message)
    }

    fn of_answer(right: &NeededRight, status: &Status) -> Self {
        let words = one_line(&status.message, LONGEST_SHOWN_MESSAGE);
        let named = status
            .details
            .as_ref()
            .is_some_and(|details| !details.name.is_empty());
        match status.code {
            401 => Self::new(
                FailureKind::Denied,
                format!(
                    "the API server does not accept your credentials: log in again, or check the kubeconfig ({words})"
                ),
            ),
            403 => Self::new(FailureKind::Denied, format!("{}. {words}", right.missing())),
            404 if !named && right.what == ResourceKind::Semaphores => Self::not_installed(),
            404 if !named && let ResourceKind::Workloads(kind) = &right.what => {
                Self::no_such_kind(kind)
            }
            404 => Self::not_there(words),
            409 => Self::impossible(format!(
                "it was changed or recreated in the meantime; try again: {words}"
            )),
            429 | 500.. => Self::new(FailureKind::Away, words),
            _ => Self::impossible(words),
        }
    }
}

impl From<consul::Error> for Failure {
    fn from(error: consul::Error) -> Self {
        let kind = match &error {
            consul::Error::Denied(_) => FailureKind::Denied,
            error if error.may_pass() => FailureKind::Away,
            _ => FailureKind::Impossible,
        };
        Self::new(kind, one_line(&error.to_string(), LONGEST_SHOWN_MESSAGE))
    }
}

/// The kind of object that a call is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ResourceKind {
    Semaphores,
    Workloads(WorkloadKind),
    CronJobs,
    Events,
}

impl ResourceKind {
    /// Returns the name of the resource in the API.
    pub(crate) fn resource(&self) -> String {
        match self {
            Self::Semaphores => "consulsemaphores".to_owned(),
            Self::Workloads(kind) => kind.resource().plural,
            Self::CronJobs => "cronjobs".to_owned(),
            Self::Events => "events".to_owned(),
        }
    }
}

/// The right that a call needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NeededRight {
    pub(crate) verb: &'static str,
    /// The verb for what will be done with the objects that are read, if that needs another right.
    pub(crate) toward: Option<&'static str>,
    pub(crate) what: ResourceKind,
    /// Namespace of the objects; `None` is all namespaces.
    pub(crate) namespace: Option<String>,
}

impl NeededRight {
    /// Returns a message that says which right is missing, and who can grant it.
    fn missing(&self) -> String {
        let Self {
            verb,
            toward: _,
            what,
            namespace,
        } = self;
        let resource = what.resource();
        let role = self.role();
        match namespace {
            Some(namespace) => format!(
                "You may not {verb} {resource} in the namespace {namespace}. The ClusterRole {role}; \
                 an administrator of the namespace can bind it to you there"
            ),
            None => format!(
                "You may not {verb} {resource} in all namespaces. The ClusterRole {role}; an \
                 administrator can bind it to you with a ClusterRoleBinding. Without -A only one namespace is read"
            ),
        }
    }

    /// Returns the role that is enough, as `config/rbac/user_roles.yaml` and Kubernetes itself define it.
    fn role(&self) -> &'static str {
        match (&self.what, self.toward.unwrap_or(self.verb)) {
            (ResourceKind::Semaphores, "get" | "list" | "watch") => {
                "consul-semaphore-viewer gives that right, and Kubernetes' roles view, edit and admin include it"
            }
            (ResourceKind::Semaphores, _) => {
                "consul-semaphore-editor gives that right, and no other role includes it"
            }
            (ResourceKind::Workloads(kind), "get" | "list" | "watch") if is_custom(kind) => {
                "view of Kubernetes gives that right if the software that installed these objects adds them to this \
                 role"
            }
            (ResourceKind::Workloads(kind), _) if is_custom(kind) => {
                "edit of Kubernetes gives that right if the software that installed these objects adds them to this \
                 role"
            }
            (_, "get" | "list" | "watch") => "view of Kubernetes gives that right",
            _ => "edit of Kubernetes gives that right",
        }
    }
}

/// Whether a kind does not come with Kubernetes itself.
fn is_custom(kind: &WorkloadKind) -> bool {
    !matches!(kind, WorkloadKind::Job | WorkloadKind::Pod)
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn right(verb: &'static str, what: ResourceKind, namespace: Option<&str>) -> NeededRight {
        NeededRight {
            verb,
            toward: None,
            what,
            namespace: namespace.map(str::to_owned),
        }
    }

    fn refused(right: &NeededRight, code: u16, message: &str) -> Failure {
        let status = Status::failure(message, "Reason").with_code(code);
        Failure::of_call(right, &kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn a_missing_right_is_reported_with_the_role_that_gives_it() {
        let cases = [
            (
                right("list", ResourceKind::Semaphores, Some("batch")),
                "consul-semaphore-viewer",
            ),
            (
                right("patch", ResourceKind::Semaphores, Some("batch")),
                "consul-semaphore-editor",
            ),
            (
                right(
                    "list",
                    ResourceKind::Workloads(WorkloadKind::Job),
                    Some("batch"),
                ),
                "ClusterRole view",
            ),
            (
                right(
                    "patch",
                    ResourceKind::Workloads(WorkloadKind::Job),
                    Some("batch"),
                ),
                "ClusterRole edit",
            ),
        ];
        for (right, role) in cases {
            let failure = refused(&right, 403, "x is forbidden: User \"eve\"");
            let said = &failure.message;
            assert_eq!(failure.code(), 77);
            for word in [role, right.verb, &right.what.resource(), "batch", "eve"] {
                assert!(said.contains(word), "{word:?} is not in: {said}");
            }
        }
        let first = NeededRight {
            toward: Some("patch"),
            ..right(
                "get",
                ResourceKind::Workloads(WorkloadKind::Job),
                Some("batch"),
            )
        };
        let said = refused(&first, 403, "x").message;
        assert!(
            said.contains("may not get") && said.contains("ClusterRole edit"),
            "{said}"
        );
        let everywhere = right("list", ResourceKind::Semaphores, None);
        let said = refused(&everywhere, 403, "x").message;
        assert!(
            said.contains("all namespaces") && said.contains("Without -A"),
            "{said}"
        );
    }

    #[test]
    fn what_is_not_installed_is_distinguished_from_what_does_not_exist() {
        let job_sets = right(
            "get",
            ResourceKind::Workloads(WorkloadKind::JobSet),
            Some("batch"),
        );
        let failure = refused(&job_sets, 404, "404 page not found");
        assert_eq!(failure.code(), 66);
        let missing = "no jobsets.jobset.x-k8s.io of version v1alpha2";
        assert!(failure.message.contains(missing), "{}", failure.message);
        let right = right("get", ResourceKind::Semaphores, Some("batch"));
        let failure = refused(&right, 404, "404 page not found");
        assert_eq!(failure.code(), 66);
        assert!(failure.message.contains("kubectl apply -f crds/"));
        let status =
            Status::failure("consulsemaphores \"db\" not found", "NotFound").with_code(404);
        let status = status.with_details(from_value(json!({ "name": "db" })).unwrap());
        let failure = Failure::of_call(&right, &kube::Error::Api(Box::new(status)));
        assert_eq!(
            (failure.code(), failure.message.contains("\"db\"")),
            (66, true)
        );
    }

    #[test]
    fn each_kind_has_an_exit_code() {
        let right = right(
            "patch",
            ResourceKind::Workloads(WorkloadKind::Job),
            Some("batch"),
        );
        let code = |status| refused(&right, status, "words").code();
        assert_eq!([401, 409, 422, 429, 503].map(code), [77, 1, 1, 69, 69]);
        assert_eq!(Failure::silent(Duration::from_secs(30)).code(), 69);
        let denied = consul::Error::Denied("no".to_owned());
        assert_eq!(Failure::from(denied).code(), 77);
    }
}
