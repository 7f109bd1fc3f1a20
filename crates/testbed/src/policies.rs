//! Waits until admission policies take effect: the API server applies each of them about a second after it is
//! created, changed or deleted.
use std::panic::Location;

use anyhow::{Context as _, Result};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};

use crate::{kubeconfig, namespace::Namespace, story::story, wait};

/// An admission policy of `config/policies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Suspends new Jobs, and strips what only the operator may write.
    Suspend,
    /// Refuses changes that only the operator may make.
    Guard,
    /// Refuses new Jobs that are not suspended. Together with [`Policy::Suspend`] it has nothing to refuse, so
    /// nothing shows whether it is in effect.
    Refuse,
}

/// What only the operator may write: annotations of a Job and of its pod template.
const REPORTS: [&str; 2] = [
    "consul-semaphore.io/session",
    "consul-semaphore.io/granted-to",
];

/// A label of the pod template that only the operator may write.
const REPORTED: &str = "consul-semaphore.io/holder";

impl Namespace {
    /// Waits until exactly these policies act on the Jobs of this namespace. Each is checked by its own effect: it is
    /// a mistake to wait for one of them and rely on another.
    ///
    /// The checks are dry runs. The guard needs an existing Job, so this creates one that names no semaphore, which
    /// operators ignore, though they might change it, and deletes it again.
    #[track_caller]
    pub fn policies_are(&self, policies: &[Policy]) -> impl Future<Output = ()> {
        let what = format!("in {} just these policies act: {policies:?}", self.name());
        let expected = Acts::of(policies);
        story(Location::caller(), async move {
            let probe = Probe::new(self).await?;
            let outcome = wait::until(&what, wait::PATIENCE, || async {
                let acts = probe.acts().await.map_err(|error| format!("{error:#}"))?;
                wait::same(&acts, &expected).map(drop)
            })
            .await;
            probe.end().await?;
            outcome
        })
    }

    /// Waits until the guard accepts this user as an operator, or no longer does, after a change of its list.
    #[track_caller]
    pub fn guard_lets(&self, user: &str, lets: bool) -> impl Future<Output = ()> {
        let what = format!("in {} the guard lets {user} through: {lets}", self.name());
        let user = user.to_owned();
        story(Location::caller(), async move {
            let probe = Probe::new(self).await?;
            let client = kubeconfig::client_as(self.kubeconfig(), &user).await?;
            let jobs = Api::namespaced(client, self.name());
            let outcome = wait::until(&what, wait::PATIENCE, || async {
                let guards = probe.is_guarded(&jobs).await;
                let guards = guards.map_err(|error| format!("{error:#}"))?;
                wait::same(!guards, lets).map(drop)
            })
            .await;
            probe.end().await?;
            outcome
        })
    }
}

/// What happens to a new Job that names a semaphore and is not suspended.
#[derive(Debug, PartialEq, Eq)]
enum Made {
    Running,
    Suspended,
    Refused,
}

/// The effects of the policies.
#[derive(Debug, PartialEq, Eq)]
struct Acts {
    /// By [`Policy::Suspend`] and [`Policy::Refuse`].
    made: Made,
    /// By [`Policy::Suspend`].
    reports_are_stripped: bool,
    /// By [`Policy::Guard`].
    changes_are_guarded: bool,
}

impl Acts {
    /// The expected effects of exactly these policies.
    fn of(policies: &[Policy]) -> Self {
        let has = |policy| policies.contains(&policy);
        Self {
            made: match (has(Policy::Suspend), has(Policy::Refuse)) {
                (true, _) => Made::Suspended,
                (false, true) => Made::Refused,
                (false, false) => Made::Running,
            },
            reports_are_stripped: has(Policy::Suspend),
            changes_are_guarded: has(Policy::Guard),
        }
    }
}

/// An existing Job, for the dry runs.
struct Probe {
    jobs: Api<Job>,
    name: String,
}

impl Probe {
    async fn new(namespace: &Namespace) -> Result<Self> {
        let jobs = namespace.api::<Job>();
        let job = serde_json::from_value(job(true, &["consul-semaphore.io/hold"]))?;
        let made = jobs.create(&PostParams::default(), &job).await?;
        let name = made.metadata.name.context("a Job without a name")?;
        Ok(Self { jobs, name })
    }

    async fn end(self) -> Result<()> {
        let params = DeleteParams::background();
        self.jobs.delete(&self.name, &params).await?;
        Ok(())
    }

    async fn acts(&self) -> Result<Acts> {
        let semaphore = "consul-semaphore.io/semaphore";
        let made = match self.would_make(&job(false, &[semaphore])).await? {
            Some(job) if job["spec"]["suspend"] == true => Made::Suspended,
            Some(_) => Made::Running,
            None => Made::Refused,
        };
        // Suspended, so that no policy refuses it.
        let reported = job(true, &[semaphore, REPORTS[0], REPORTS[1]]);
        let reported = self.would_make(&reported).await?;
        let reported = reported.context("a suspended Job is refused, too")?;
        Ok(Acts {
            made,
            reports_are_stripped: !bears_reports(&reported),
            changes_are_guarded: self.is_guarded(&self.jobs).await?,
        })
    }

    /// The Job that would be created; `None` if it is refused because it would run.
    async fn would_make(&self, job: &Value) -> Result<Option<Value>> {
        let job = serde_json::from_value(job.clone())?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match self.jobs.create(&dry_run, &job).await {
            Ok(made) => Ok(Some(serde_json::to_value(made)?)),
            Err(error) if is_by(&error, "refuse.consul-semaphore.io") => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the guard denies the user of this client to write a report on the existing Job.
    async fn is_guarded(&self, jobs: &Api<Job>) -> Result<bool> {
        let report = json!({ "metadata": { "annotations": { REPORTS[0]: "probe" } } });
        let params = PatchParams::default().dry_run();
        let patched = jobs.patch(&self.name, &params, &Patch::Merge(report)).await;
        match patched {
            Ok(_) => Ok(false),
            Err(error) if is_by(&error, "guard.consul-semaphore.io") => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether this policy refused the request.
fn is_by(error: &kube::Error, policy: &str) -> bool {
    matches!(error, kube::Error::Api(status) if status.message.contains(policy))
}

/// A Job with these annotations. Reports among them are also on its pod template, together with the label.
fn job(suspended: bool, annotations: &[&str]) -> Value {
    let probe = |name: &&str| ((*name).to_owned(), json!("probe"));
    let all: Map<_, _> = annotations.iter().map(probe).collect();
    let reports: Map<_, _> = annotations
        .iter()
        .filter(|name| REPORTS.contains(name))
        .map(probe)
        .collect();
    let label = (!reports.is_empty()).then(|| (REPORTED.to_owned(), json!("true")));
    let labels: Map<_, _> = label.into_iter().collect();
    json!({
        "metadata": { "generateName": "probe-of-policies-", "annotations": all },
        "spec": {
            "suspend": suspended,
            "template": {
                "metadata": { "annotations": reports, "labels": labels },
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{ "name": "work", "image": "none" }],
                },
            },
        },
    })
}

/// Whether any report is left on a Job.
fn bears_reports(job: &Value) -> bool {
    let template = &job["spec"]["template"]["metadata"];
    let places = [&job["metadata"]["annotations"], &template["annotations"]];
    let annotated = places
        .iter()
        .any(|place| REPORTS.iter().any(|name| !place[*name].is_null()));
    annotated || !template["labels"][REPORTED].is_null()
}
