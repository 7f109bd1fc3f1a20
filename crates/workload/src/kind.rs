//! The kinds of workloads. A kind is one row of a table, and each row is a file:
//!
//! | kind | file |
//! |---|---|
//! | `batch/v1` Job | `kind/job.rs` |
//! | JobSet | `kind/job_set.rs` |
//! | `PipelineRun` | `kind/pipeline_run.rs`, `kind/tekton.rs` |
//! | `TaskRun` | `kind/task_run.rs`, `kind/tekton.rs` |
//! | Workflow of Argo | `kind/workflow.rs` |
//! | Pod | `kind/pod.rs` |
//! | Workload of Kueue | `kind/kueue.rs` |
//! | any other | a [`Row`], read by `kind/row.rs`; some come with the operator, in `kind/rows/` |

pub(crate) mod job;
mod job_set;
pub mod kueue;
mod pipeline_run;
mod pod;
pub mod row;
mod task_run;
mod tekton;
mod workflow;

use std::{collections::BTreeSet, fmt, str::FromStr, sync::Arc};

use consul_semaphore::{
    Identity, KindName, Phase,
    engine::Write,
    plan::{Stop, Target},
};
use consul_semaphore_api::annotations::WAITS_LABEL;
use kube_core::ApiResource;

use self::row::Row;
use crate::{
    Object,
    pods::{self, OwnQuery},
    read::{self, Read},
    request::{EndBelow, Request, hold, suspend_ungranted},
    shape::Shape,
};

/// The label selector of the workloads that are no Jobs. Objects of these kinds without the label cost the operator
/// nothing.
pub const WAITING: &str = "consul-semaphore.io/waits=true";

/// A kind of workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `batch/v1` Job.
    Job,
    /// `JobSet` of `jobset.x-k8s.io`.
    JobSet,
    /// `PipelineRun` of `tekton.dev`.
    PipelineRun,
    /// `TaskRun` of `tekton.dev`.
    TaskRun,
    /// `Workflow` of `argoproj.io`.
    Workflow,
    /// `v1` Pod.
    Pod,
    /// `Workload` of `kueue.x-k8s.io`.
    KueueWorkload,
    /// A kind that is known only as data.
    Listed(Arc<Row>),
}

impl From<Row> for Kind {
    fn from(row: Row) -> Self {
        Self::Listed(Arc::new(row))
    }
}

impl Kind {
    /// The kinds that are known in code.
    const CODED: [Self; 7] = [
        Self::Job,
        Self::JobSet,
        Self::PipelineRun,
        Self::TaskRun,
        Self::Workflow,
        Self::Pod,
        Self::KueueWorkload,
    ];

    /// Returns all kinds that come with the operator.
    pub fn all() -> Vec<Self> {
        let listed = row::BUILT_IN.iter().cloned();
        Self::CODED.into_iter().chain(listed).collect()
    }

    /// Returns the name of the kind, as in sessions, contenders, events and logs.
    pub fn name(&self) -> KindName {
        self.as_str().into()
    }

    fn as_str(&self) -> &str {
        match self {
            Self::Job => "Job",
            Self::JobSet => "JobSet",
            Self::PipelineRun => "PipelineRun",
            Self::TaskRun => "TaskRun",
            Self::Workflow => "Workflow",
            Self::Pod => "Pod",
            Self::KueueWorkload => "Workload",
            Self::Listed(row) => row.kind(),
        }
    }

    /// Returns the name that switches the kind on: its plural, or `kueue` for Kueue's Workloads, because `workloads`
    /// says too little.
    pub fn switch(&self) -> String {
        match self {
            Self::KueueWorkload => "kueue".to_owned(),
            kind => kind.resource().plural,
        }
    }

    /// Returns the API resource of the kind.
    pub fn resource(&self) -> ApiResource {
        match self {
            Self::Job => job::resource(),
            Self::JobSet => job_set::resource(),
            Self::PipelineRun => pipeline_run::resource(),
            Self::TaskRun => task_run::resource(),
            Self::Workflow => workflow::resource(),
            Self::Pod => pod::resource(),
            Self::Listed(row) => row.resource(),
            Self::KueueWorkload => kueue::resource(),
        }
    }

    /// Whether the two kinds can't be served at once, because they have a name in common.
    pub fn is_alike(&self, other: &Self) -> bool {
        let (one, other) = (self.resource(), other.resource());
        one.kind == other.kind || one.plural == other.plural
    }

    /// Returns the queries for the pods of such a workload. Each query finds some or all of the pods.
    pub fn pods(&self, workload: &Identity) -> Vec<OwnQuery> {
        let uid = &workload.uid;
        match self {
            Self::Job => vec![pods::of(uid).into()],
            Self::JobSet => job_set::pods(workload),
            Self::PipelineRun => pipeline_run::pods(uid),
            Self::TaskRun => task_run::pods(uid),
            Self::Workflow => workflow::pods(workload),
            Self::Pod => pod::pods(uid),
            Self::Listed(row) => row.pods(workload),
            Self::KueueWorkload => kueue::pods(uid),
        }
    }

    /// Returns the kinds of the workloads that such a workload is made of, and that make its pods. The query beside
    /// each kind finds some or all of these workloads. While one of them runs, more pods may come.
    pub fn parts(&self, workload: &Identity) -> Vec<(Self, OwnQuery)> {
        match self {
            Self::JobSet => job_set::parts(workload),
            Self::PipelineRun => {
                let parts = [Self::PipelineRun, Self::TaskRun].into_iter();
                let of_it = || pods::of(&workload.uid).into();
                parts.map(|part| (part, of_it())).collect()
            }
            Self::Listed(row) => row.parts(workload),
            Self::KueueWorkload => kueue::parts(&workload.uid),
            Self::Job | Self::TaskRun | Self::Workflow | Self::Pod => Vec::new(),
        }
    }

    /// Returns what else to end after this write to such a workload of this shape.
    pub fn ends_below(&self, write: &Write, shape: &Shape) -> Vec<EndBelow> {
        match write {
            Write::End(end) => self.below(&end.workload, shape),
            _ => Vec::new(),
        }
    }

    fn below(&self, workload: &Target, shape: &Shape) -> Vec<EndBelow> {
        match self {
            Self::PipelineRun => tekton::ends_below(workload, shape),
            Self::Job
            | Self::JobSet
            | Self::TaskRun
            | Self::Workflow
            | Self::Pod
            | Self::KueueWorkload
            | Self::Listed(_) => Vec::new(),
        }
    }

    /// Reads an object of this kind and passes the result to `then`.
    pub(crate) fn read<T>(
        &self,
        object: &Object,
        then: impl FnOnce(&dyn Read) -> T,
    ) -> serde_json::Result<T> {
        Ok(match self {
            Self::Job => then(&object.job()?),
            Self::JobSet => then(&job_set::JobSet::of(object)?),
            Self::PipelineRun => then(&pipeline_run::read(object)?),
            Self::TaskRun => then(&task_run::read(object)?),
            Self::Workflow => then(&workflow::Workflow::of(object)?),
            Self::Pod => then(&pod::Pod::of(object)?),
            Self::Listed(row) => then(&row::RowObject::of(self, row, object)),
            Self::KueueWorkload => then(&kueue::KueueWorkload::of(object)?),
        })
    }

    /// Returns what to send at `now` for a write that the engine asks for, to a workload of this shape. `None` means
    /// that no request can make the write, for example because the shape belongs to another kind.
    pub fn request(&self, write: &Write, shape: &Shape, now: jiff::Timestamp) -> Option<Request> {
        match self {
            Self::Job => Some(job::request(write)),
            Self::JobSet => job_set::request(write, shape, now),
            Self::PipelineRun => pipeline_run::request(write, shape),
            Self::TaskRun => task_run::request(write, shape),
            Self::Workflow => workflow::request(write),
            Self::Pod => pod::request(write, shape),
            Self::KueueWorkload => kueue::request(write, shape, now),
            Self::Listed(row) => row::request(row, write, shape),
        }
    }

    /// Returns the request that makes such a workload fail once no pod of it is left; `None` if the workload is not
    /// held only to fail.
    pub fn failure(
        &self,
        workload: &Target,
        shape: &Shape,
        now: jiff::Timestamp,
    ) -> Option<Request> {
        match self {
            Self::Listed(row) => row::failure(row, workload, shape, now),
            Self::Workflow => workflow::shut_down(workload, shape),
            _ => None,
        }
    }

    /// Returns the request that clears the start time in the status of such a workload once no pod of it is left;
    /// `None` if the kind has no such status.
    pub fn forget_start(&self, workload: &Target) -> Option<Request> {
        match self {
            Self::Job => Some(job::forget_start(workload)),
            _ => None,
        }
    }

    /// Returns the request that removes the mark for failures from such a workload, because it has failed; `None` if
    /// the kind has no such mark.
    pub fn unmark(&self, workload: &Target) -> Option<Request> {
        match self {
            Self::Listed(_) => Some(row::unmark(workload)),
            _ => None,
        }
    }

    /// Returns the request that puts such a workload on hold, because it was to fail and can't.
    pub fn hold(&self, workload: &Target) -> Request {
        match self {
            Self::Listed(_) => row::hold(workload),
            _ => hold(workload),
        }
    }

    /// Whether a waiting workload is made to fail by a write to its status. The API server may refuse this write
    /// although it allows all others; the workload can then be put on hold. A workload of a row's kind is first held to
    /// fail, and all other workloads fail by their specs as they start. A Workload of Kueue is put on hold through its
    /// owner.
    pub fn fails_by_status(&self) -> bool {
        matches!(self, Self::JobSet | Self::Pod)
    }

    /// Whether such a workload can fail. A workload that can't fail is put on hold instead.
    pub fn can_fail(&self) -> bool {
        match self {
            Self::Listed(row) => row.life.failed.is_some(),
            _ => true,
        }
    }

    /// Returns the request that suspends such a workload, which runs although no grant started it; `None` if it can't
    /// be suspended.
    pub fn stop(&self, stop: &Stop, shape: &Shape, now: jiff::Timestamp) -> Option<Request> {
        match self {
            Self::Listed(row) => Some(row::stop(row, stop)),
            Self::Job | Self::JobSet => Some(suspend_ungranted(stop)),
            Self::KueueWorkload => kueue::stop(&stop.workload, shape, now),
            Self::PipelineRun | Self::TaskRun | Self::Workflow | Self::Pod => None,
        }
    }

    /// Returns the fields that the schema of this kind must have in a cluster.
    pub fn needed(&self) -> Vec<Needed> {
        let field = |path: &str, since: &str, holds| Needed {
            path: path.to_owned(),
            since: Some(since.to_owned()),
            holds,
        };
        match self {
            // Jobs and Pods come with Kubernetes, and the version of Kueue's API shows that Workloads have the fields.
            Self::Job | Self::Pod | Self::KueueWorkload => Vec::new(),
            Self::JobSet => vec![
                field("spec.suspend", job_set::LEAST_VERSION, true),
                field(
                    "spec.replicatedJobs.dependsOn",
                    job_set::LEAST_VERSION,
                    false,
                ),
            ],
            Self::PipelineRun | Self::TaskRun => {
                vec![field("spec.status", tekton::LEAST_VERSION, true)]
            }
            Self::Workflow => vec![field("spec.suspend", workflow::LEAST_VERSION, true)],
            Self::Listed(row) => vec![Needed {
                path: row.life.hold.path.to_string(),
                since: row.needs.clone(),
                holds: true,
            }],
        }
    }

    /// Returns the warning for the users of such an object that waits, if its controller counts it as running
    /// meanwhile.
    ///
    /// # Errors
    /// The object can't be read as one of this kind.
    pub fn caution(&self, object: &Object) -> serde_json::Result<Option<String>> {
        match self {
            Self::Workflow => workflow::caution(object),
            _ => Ok(None),
        }
    }

    /// Returns what such an object is doing, whether it asks for a slot or not.
    ///
    /// # Errors
    /// The object can't be read as one of this kind.
    pub fn phase(&self, object: &Object) -> serde_json::Result<Phase> {
        self.read(object, |read| read.phase(read::granted(read).is_some()))
    }

    /// Whether the operator sees such an object: a Job, or an object with the label of [`WAITING`]. The result says
    /// nothing about Workloads, which Kueue makes without the label.
    pub fn is_seen(&self, object: &Object) -> bool {
        let labels = object.metadata.labels.as_ref();
        let waits = labels.and_then(|labels| labels.get(WAITS_LABEL));
        *self == Self::Job || waits.is_some_and(|waits| waits == "true")
    }

    /// Whether such an object may still make pods: it runs, or it is not known to be done.
    pub fn may_make_pods(&self, object: &Object) -> bool {
        let is_done = self.read(object, |read| {
            // Before Kubernetes 1.36 a suspended Job may be at rest while its status still has a start time.
            read.shape().is_started()
                || matches!(read.phase(true), Phase::Idle | Phase::Finished { .. })
        });
        !is_done.unwrap_or(false)
    }

    /// Returns the holder label that the pods of such an object get from it.
    pub fn holder_of_pods(&self, object: &Object) -> Option<String> {
        match self {
            Self::Job => job::holder_of_pods(object),
            _ => None,
        }
    }

    /// Returns the kind and name of such an object, for people.
    pub fn title(&self, object: &Object) -> String {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        format!("{} {name}", self.name())
    }
}

/// A field that the schema of a kind must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Path of the field, as in `spec.suspend`. The path does not name a step into a list.
    pub path: String,
    /// The least version of the kind's controller that has the field, for people; `None` if the row of a user does not
    /// say.
    pub since: Option<String>,
    /// Whether the field is the one that holds the workload; otherwise the field only shows the version.
    pub holds: bool,
}

/// Returns an API resource with these names.
fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: match group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// The kinds that an operator serves. Job is always among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kinds(BTreeSet<Kind>);

impl Kinds {
    /// The word that switches on all kinds.
    pub(crate) const ALL: &str = "all";

    /// Returns the kinds, Job first.
    pub fn iter(&self) -> impl Iterator<Item = &Kind> {
        self.0.iter()
    }

    /// Adds a kind, in place of a kind with the same name.
    pub fn replace(&mut self, kind: Kind) {
        self.0.retain(|one| one.as_str() != kind.as_str());
        self.0.insert(kind);
    }

    /// Removes a kind.
    pub fn remove(&mut self, kind: &Kind) {
        self.0.remove(kind);
    }

    /// Whether the kind is one of these kinds.
    pub fn contains(&self, kind: &Kind) -> bool {
        self.0.contains(kind)
    }

    /// Returns the kind of this name.
    pub fn named(&self, name: &KindName) -> Option<&Kind> {
        self.iter().find(|kind| kind.as_str() == name.as_str())
    }

    /// Returns all kinds that come with the operator.
    pub fn all() -> Self {
        Self(Kind::all().into_iter().collect())
    }
}

impl Default for Kinds {
    fn default() -> Self {
        Self(BTreeSet::from([Kind::Job]))
    }
}

impl FromIterator<Self> for Kinds {
    /// Returns the union of several sets of kinds.
    fn from_iter<T: IntoIterator<Item = Self>>(several: T) -> Self {
        let mut all = Self::default();
        for Self(kinds) in several {
            all.0.extend(kinds);
        }
        all
    }
}

/// A name that no kind has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a kind of workload: use one or more of {known}, separated by commas, or {ALL}",
    ALL = Kinds::ALL
)]
pub struct UnknownKind {
    name: String,
    known: Kinds,
}

impl FromStr for Kinds {
    type Err = UnknownKind;

    /// Reads the names that switch kinds on, separated by commas, or `all`.
    fn from_str(names: &str) -> Result<Self, UnknownKind> {
        Self::all().only(names)
    }
}

impl Kinds {
    /// Returns those of these kinds that are named, and Job.
    ///
    /// # Errors
    /// A name is none of these kinds' names.
    pub fn only(&self, names: &str) -> Result<Self, UnknownKind> {
        let mut kinds = Self::default();
        let each = names.split(',').map(str::trim);
        for name in each.filter(|name| !name.is_empty()) {
            let is_meant = |kind: &Kind| name == Self::ALL || kind.switch() == name;
            let meant: Vec<Kind> = self.iter().filter(|kind| is_meant(kind)).cloned().collect();
            if meant.is_empty() {
                return Err(UnknownKind {
                    name: name.chars().take(63).collect(),
                    known: self.clone(),
                });
            }
            kinds.0.extend(meant);
        }
        Ok(kinds)
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.iter().map(Kind::switch).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selector_is_of_the_label() {
        let label = consul_semaphore_api::annotations::WAITS_LABEL;
        assert_eq!(WAITING, format!("{label}=true"));
    }

    #[test]
    fn each_kind_is_found_by_its_name() {
        let kinds = Kinds::all();
        for kind in Kind::all() {
            assert_eq!(kind.resource().kind, kind.as_str());
            assert_eq!(kinds.named(&kind.name()), Some(&kind));
        }
        assert_eq!(kinds.named(&"Other".into()), None);
    }

    #[test]
    fn one_of_another_kind_than_job_is_seen_by_its_label() {
        let seen = |kind: &Kind, labels: &str| {
            let object = format!(r#"{{"metadata":{{"labels":{labels}}}}}"#);
            kind.is_seen(&serde_json::from_str(&object).unwrap())
        };
        for kind in Kind::all() {
            let label = r#"{"consul-semaphore.io/waits":"true"}"#;
            assert!(seen(&kind, label), "{kind:?}");
            for none in ["{}", r#"{"consul-semaphore.io/waits":"false"}"#] {
                assert_eq!(seen(&kind, none), kind == Kind::Job, "{kind:?}");
            }
        }
    }

    /// Before Kubernetes 1.36 a suspended Job keeps its start time.
    #[test]
    fn a_job_that_was_suspended_after_a_start_makes_no_pods() {
        let makes_pods = |suspend: bool, active: i32| {
            let job = serde_json::json!({
                "spec": { "suspend": suspend },
                "status": {
                    "startTime": "2026-01-01T00:00:00Z",
                    "active": active,
                    "conditions": [{ "type": "Suspended", "status": "True" }],
                },
            });
            Kind::Job.may_make_pods(&serde_json::from_value(job).unwrap())
        };
        assert!(!makes_pods(true, 0));
        assert!(makes_pods(true, 1), "it has one");
        assert!(makes_pods(false, 0), "it is unsuspended");
    }

    #[test]
    fn kinds_are_switched_on_by_their_plural_names() {
        let on = |names: &str| names.parse::<Kinds>().map(|kinds| kinds.to_string());
        assert_eq!(on("").unwrap(), "jobs");
        assert_eq!(on("jobsets").unwrap(), "jobs,jobsets");
        assert_eq!(on("all").unwrap(), Kinds::all().to_string());
        let unknown = on("jobsets, cronjobs").unwrap_err().to_string();
        assert!(
            unknown.contains("cronjobs") && unknown.contains("jobsets"),
            "{unknown}"
        );
    }
}
