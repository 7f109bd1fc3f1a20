//! The bed with the policies in force, and the people who use it.

use std::fmt::Debug;

use k8s_openapi::{api::batch::v1 as batch, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{Bed, Namespace, Policy, proof::SEMAPHORE};
use tokio::sync::OnceCell;

/// The operator, as the API server knows it.
pub(crate) const OPERATOR: &str =
    "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator";

/// The policies of `kubectl apply -k config/policies`.
pub(crate) const BOTH: [Policy; 2] = [Policy::Suspend, Policy::Guard];

/// The beginning of the policy's message when it refuses a change.
pub(crate) const GUARD: &str = "ValidatingAdmissionPolicy 'guard.consul-semaphore.io'";

/// What is refused to everybody except the operator, and the beginning of the reason.
pub(crate) const STARTS: &str = "only the operator starts a Job that names a semaphore";
pub(crate) const WRITES: &str = "only the operator changes ";
pub(crate) const HOLDS: &str = "this Job holds a slot until its pods are gone";
pub(crate) const RUNS: &str = "this Job runs: suspend it first, or in the same change";
pub(crate) const WAITS: &str = "can only be Wait on an existing Job";
pub(crate) const SKIPS: &str = "so the operator may delete or end it";

/// What only the operator may write.
pub(crate) const REPORTS: [&str; 7] = [
    "consul-semaphore.io/session",
    "consul-semaphore.io/lock-key",
    "consul-semaphore.io/lock-index",
    "consul-semaphore.io/fencing-token",
    "consul-semaphore.io/granted-to",
    "consul-semaphore.io/holder",
    FAILED,
];

/// What it writes on a Job that it has fail; a grant writes the others.
pub(crate) const FAILED: &str = "consul-semaphore.io/failed";

/// The bed that all tests here share, with the policies in force.
pub(crate) async fn bed() -> Bed {
    static IN_FORCE: OnceCell<()> = OnceCell::const_new();
    let bed = Bed::shared().await;
    IN_FORCE.get_or_init(|| install(&bed)).await;
    bed
}

/// Installs the policies as docs/admission.md says, and waits until they are in force.
pub(crate) async fn install(bed: &Bed) {
    bed.kubectl(["apply", "-k", "config/policies"]).await;
    bed.namespace("in-force").await.policies_are(&BOTH).await;
}

/// Excludes a namespace, or includes it again, as docs/admission.md says, and waits until these policies apply that.
pub(crate) async fn leave_out(bed: &Bed, team: &Namespace, policies: &[Policy], out: bool) {
    let label = "consul-semaphore.io/admission";
    let label = if out {
        format!("{label}=disabled")
    } else {
        format!("{label}-")
    };
    bed.kubectl(["label", "namespace", team.name(), &label])
        .await;
    team.policies_are(if out { &[] } else { policies }).await;
}

/// Somebody who creates and changes Jobs in a namespace.
pub(crate) struct Person(Api<batch::Job>);

impl Person {
    /// An admin, who may do everything.
    pub(crate) fn admin(bed: &Bed, team: &Namespace) -> Self {
        Self::with(bed.client().clone(), team)
    }

    /// A user, who may edit what is in the namespace.
    pub(crate) async fn user(bed: &Bed, team: &Namespace) -> Self {
        let name = "user";
        team.kubectl(["create", "serviceaccount", name]).await;
        let account = format!("--serviceaccount={}:{name}", team.name());
        let binding = [
            "create",
            "rolebinding",
            name,
            "--clusterrole=edit",
            &account,
        ];
        team.kubectl(binding).await;
        let user = format!("system:serviceaccount:{}:{name}", team.name());
        team.lets(&user, ["patch", "jobs.batch"], true).await;
        let kubeconfig = bed.kubeconfig_of(team, name).await;
        Self::with(bed.client_of(&kubeconfig).await, team)
    }

    /// The operator's own account.
    pub(crate) async fn operator(bed: &Bed, team: &Namespace) -> Self {
        Self::with(bed.client_of(bed.operator_kubeconfig()).await, team)
    }

    fn with(client: Client, team: &Namespace) -> Self {
        Self(Api::namespaced(client, team.name()))
    }

    /// Creates a Job; the error is the API server's message.
    pub(crate) async fn create(&self, job: &Value) -> Result<batch::Job, String> {
        self.make(job, false).await
    }

    /// The Job that would be created: a dry run.
    pub(crate) async fn would_create(&self, job: &Value) -> Result<batch::Job, String> {
        self.make(job, true).await
    }

    async fn make(&self, job: &Value, dry_run: bool) -> Result<batch::Job, String> {
        let job = serde_json::from_value(job.clone()).expect("a Job");
        let params = PostParams {
            dry_run,
            ..PostParams::default()
        };
        self.0
            .create(&params, &job)
            .await
            .map_err(|error| error.to_string())
    }

    /// Changes a Job by a merge patch; the error is the API server's message.
    pub(crate) async fn change(&self, job: &str, change: Value) -> Result<batch::Job, String> {
        self.patch(job, change, PatchParams::default()).await
    }

    /// The Job after a change: a dry run.
    pub(crate) async fn would_change(
        &self,
        job: &str,
        change: Value,
    ) -> Result<batch::Job, String> {
        self.patch(job, change, PatchParams::default().dry_run())
            .await
    }

    /// Like [`Self::would_change`], through the status.
    pub(crate) async fn would_change_status(
        &self,
        job: &str,
        change: &Value,
    ) -> Result<batch::Job, String> {
        let params = PatchParams::default().dry_run();
        let change = Patch::Merge(change);
        let patched = self.0.patch_status(job, &params, &change).await;
        patched.map_err(|error| error.to_string())
    }

    async fn patch(
        &self,
        job: &str,
        change: Value,
        params: PatchParams,
    ) -> Result<batch::Job, String> {
        let patched = self.0.patch(job, &params, &Patch::Merge(change)).await;
        patched.map_err(|error| error.to_string())
    }

    /// Deletes a Job, and its pods after it.
    pub(crate) async fn delete(&self, job: &str) -> Result<(), String> {
        let deleted = self.0.delete(job, &DeleteParams::background()).await;
        deleted.map(drop).map_err(|error| error.to_string())
    }

    /// Changes a Job by replacing it, whatever its current version.
    pub(crate) async fn replace(&self, mut job: batch::Job) -> Result<batch::Job, String> {
        job.metadata.resource_version = None;
        let name = job.metadata.name.clone().expect("a name");
        let replaced = self.0.replace(&name, &PostParams::default(), &job).await;
        replaced.map_err(|error| error.to_string())
    }
}

/// Those who are not the operator: a user and an admin, with their names.
pub(crate) async fn people(bed: &Bed, team: &Namespace) -> [(&'static str, Person); 2] {
    [
        ("a user", Person::user(bed, team).await),
        ("an admin", Person::admin(bed, team)),
    ]
}

/// A change was refused by the policy, with this reason.
#[track_caller]
pub(crate) fn is_refused<T: Debug>(answer: Result<T, String>, because: &str) {
    let refusal = answer.expect_err("it is refused");
    assert!(
        refusal.contains(GUARD) && refusal.contains(because),
        "{refusal}"
    );
}

/// The Job, as `kubectl create` sends it.
pub(crate) fn job(name: &str, suspend: Option<bool>) -> Value {
    let mut job = stranger(name, suspend);
    job["metadata"]["annotations"] = json!({ SEMAPHORE: "db" });
    job
}

/// A Job that asks for no slot.
pub(crate) fn stranger(name: &str, suspend: Option<bool>) -> Value {
    let mut job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "name": name },
        "spec": { "template": {
            "metadata": { "annotations": { "bed.consul-semaphore.io/runs": "1h" } },
            "spec": {
                "restartPolicy": "Never",
                "containers": [{ "name": "work", "image": "none" }],
            },
        } },
    });
    if let Some(suspend) = suspend {
        job["spec"]["suspend"] = suspend.into();
    }
    job
}

/// The change that unsuspends a Job.
pub(crate) fn unsuspended() -> Value {
    json!({ "spec": { "suspend": false } })
}

/// The change that sets or removes an annotation of a Job.
pub(crate) fn annotated(name: &str, value: Option<&str>) -> Value {
    json!({ "metadata": { "annotations": { name: value } } })
}

pub(crate) fn suspend(job: &batch::Job) -> Option<bool> {
    job.spec.as_ref()?.suspend
}

/// The metadata of a Job and of its pod template.
pub(crate) fn metadata(job: &batch::Job) -> [ObjectMeta; 2] {
    let template = job.spec.as_ref().map(|spec| spec.template.clone());
    let template = template.and_then(|template| template.metadata);
    [job.metadata.clone(), template.unwrap_or_default()]
}
