//! A kind of workload as data. A row says as data what the other files of this folder say in code.
//!
//! | file | subject |
//! |---|---|
//! | `row/path.rs` | where in an object something is, and how it is read there |
//! | `row/value.rs` | the values that a row compares and writes |
//! | `row/object.rs` | an object, as its row has it read and written to |
//! | `rows/*.yaml` | the rows that come with the operator |

mod object;
mod path;
mod value;

use std::{collections::BTreeMap, sync::LazyLock};

use consul_semaphore::{Identity, Uid};
use kube_core::ApiResource;
use serde::Deserialize;

pub(super) use self::object::{RowObject, failure, hold, request, stop, unmark};
pub use self::{
    path::{Path, Step},
    value::{Scalar, Value},
};
use super::Kind;
use crate::{
    pods::{self, Maker, OwnQuery, Which},
    yaml,
};

/// The greatest size of the text of a row, in bytes.
const MOST_ROW_BYTES: usize = 16 * 1024;

/// The greatest number of items in each list of a row.
const MOST_ITEMS: usize = 16;

/// The greatest length of a name, in bytes.
const MOST_NAME: usize = 63;

/// A kind of workload, as data.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Row {
    /// API group and version of the kind.
    api_version: String,
    /// Name of the kind.
    kind: String,
    /// Name of the kind in URLs.
    plural: String,
    /// The life of a workload: how it is held, and when it has ended.
    pub life: Life,
    /// The labels and paths that concern the pods of a workload.
    pub pods: Pods,
    /// The field that says that something other than the kind's own controller runs a workload.
    pub managed_by: Option<ManagedBy>,
    /// Conditions that a workload must meet to be held at all.
    #[serde(default)]
    pub requires: Vec<Requirement>,
    /// The least version of the kind's controller, for people, as in `Spark operator 2.4`.
    pub needs: Option<String>,
}

/// The life of a workload: how it is held, and when it has ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Life {
    /// The field that holds a workload. A workload can be held again while it runs; its controller then ends its pods.
    pub hold: Hold,
    /// Facts of which any shows that the controller has seen the hold.
    pub suspended: Vec<Check>,
    /// Facts of which any shows that the workload has ended.
    pub finished: Vec<Check>,
    /// Whether the same object may run again after it has ended.
    #[serde(default)]
    pub runs_again: bool,
    /// The parts of the status that say that a workload failed while it was held. Without this the workload is put on
    /// hold instead.
    pub failed: Option<Failed>,
}

/// The field that holds a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Path of the field in the spec.
    pub path: Path,
    /// Value of the field while the workload is held.
    pub held: Scalar,
    /// Value of the field once the workload may run; without a value, the field is removed.
    pub started: Option<Scalar>,
}

/// A fact about an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "CheckFields")]
pub enum Check {
    /// A condition of this type is in the status and True.
    Condition(String),
    /// A field has one of these values.
    Field(Path, Vec<Scalar>),
    /// A field exists, whatever its value is.
    Present(Path),
}

/// A [`Check`] as it is written in a row.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct CheckFields {
    condition: Option<String>,
    path: Option<Path>,
    #[serde(default)]
    one_of: Vec<Scalar>,
    #[serde(default)]
    present: bool,
}

impl TryFrom<CheckFields> for Check {
    type Error = &'static str;

    fn try_from(fields: CheckFields) -> Result<Self, Self::Error> {
        let CheckFields {
            condition,
            path,
            one_of,
            present,
        } = fields;
        let path = path.filter(|path| !path.has_each());
        match (condition, path, one_of.len(), present) {
            (Some(condition), None, 0, false) if is_name(&condition, "") => {
                Ok(Self::Condition(condition))
            }
            (None, Some(path), 1..=MOST_ITEMS, false) => Ok(Self::Field(path, one_of)),
            (None, Some(path), 0, true) => Ok(Self::Present(path)),
            _ => Err(
                "set either condition, with letters and digits, or path, without [*] and with at least one value in \
                 oneOf or with present: true",
            ),
        }
    }
}

/// The parts of a status that say that a workload failed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failed {
    /// A condition that becomes True.
    pub condition: Option<FailedCondition>,
    /// Fields of the status and their values. The parents of these fields exist while the workload is held.
    #[serde(default)]
    pub fields: BTreeMap<Path, Value>,
}

/// A condition of a workload that failed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// Reason of the condition. By default it is why the operator ended the workload, but a controller may demand
    /// another reason.
    #[serde(default = "Value::reason")]
    pub reason: Value,
}

/// The labels and paths that concern the pods of a workload: how the pods are found, and where their metadata and grace
/// periods are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Pods {
    /// The paths to the maps that contain the `labels` and `annotations` of the pods.
    #[serde(default)]
    pub metadata: Vec<Path>,
    /// Fields with the number of seconds that the pods may take to terminate.
    #[serde(default)]
    pub grace: Vec<Path>,
    /// Further label selectors of the pods.
    #[serde(default)]
    pub labels: Vec<Selector>,
    /// Label selectors of the Jobs that make the pods. While one of these Jobs may run, more pods may come.
    #[serde(default)]
    pub jobs: Vec<Selector>,
    /// Label selectors of Jobs that make the pods and whose pods get the metadata at the paths of `metadata`. Other
    /// Jobs may have the selected labels, too.
    #[serde(default)]
    pub jobs_with_holder: Vec<Selector>,
}

/// The field that says that something other than the kind's own controller runs a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManagedBy {
    /// The field with the name of the controller.
    pub path: Path,
    /// Value of the field for the kind's own controller.
    pub own: String,
}

/// The demand on a field of a workload that is to be held.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Requirement {
    /// Path of the field.
    pub path: Path,
    /// The allowed values. If there are none, the field must be absent.
    pub one_of: Vec<Scalar>,
    /// Whether the field may also be absent.
    #[serde(default)]
    pub optional: bool,
}

impl Requirement {
    /// Returns what the requirement demands, for people.
    pub fn title(&self) -> String {
        let values: Vec<String> = self.one_of.iter().map(ToString::to_string).collect();
        let path = &self.path;
        match (values.as_slice(), self.optional) {
            ([], _) => format!("remove {path}"),
            (values, false) => format!("set {path} to {}", values.join(" or ")),
            (values, true) => format!("remove {path}, or set it to {}", values.join(" or ")),
        }
    }
}

/// A label selector in which `{name}` and `{uid}` stand for the name and uid of a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Selector(String);

impl TryFrom<String> for Selector {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_label = |label: &str| {
            let (name, value) = label.split_once('=')?;
            let usual = |c: char| c.is_ascii_alphanumeric() || "-._/".contains(c);
            let value = value.replace("{name}", "").replace("{uid}", "");
            (!name.is_empty() && name.chars().all(usual) && value.chars().all(usual)).then_some(())
        };
        let of_one = text.contains("{name}") || text.contains("{uid}");
        let labels = text.split(',').all(|label| is_label(label).is_some());
        if text.len() <= 4 * MOST_NAME && labels && of_one {
            return Ok(Self(text));
        }
        Err(format!(
            "{:?} is not a selector: write label=value, several pairs joined by commas, at most 252 bytes, with the \
             workload's {{name}} or {{uid}} in a value",
            shown(&text)
        ))
    }
}

impl Selector {
    /// Returns the selector for the workload of this name and uid; `None` if a label can't have such a value.
    fn of(&self, name: &str, uid: &str) -> Option<String> {
        let selector = self.0.replace("{name}", name).replace("{uid}", uid);
        let mut labels = selector.split(',');
        let fits = |label: &str| {
            let value = label.split_once('=').map_or("", |(_, value)| value);
            value.len() <= MOST_NAME
        };
        labels.all(fits).then_some(selector)
    }
}

/// The reason why a text is not a row. It says which field is wrong, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RowError(String);

/// The rows that come with the operator.
pub(super) static BUILT_IN: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let texts = [
        include_str!("rows/rayjobs.yaml"),
        include_str!("rows/trainjobs.yaml"),
        include_str!("rows/mpijobs.yaml"),
        include_str!("rows/sparkapplications.yaml"),
    ];
    // A test shows that each of the texts is a row.
    let rows = texts.into_iter().filter_map(|text| Row::parse(text).ok());
    rows.map(Kind::from).collect()
});

impl Row {
    /// Reads a row from YAML.
    ///
    /// # Errors
    /// The text is not a row, or a field of the row has a value that is not allowed.
    pub fn parse(text: &str) -> Result<Self, RowError> {
        if text.len() > MOST_ROW_BYTES {
            let bytes = text.len();
            return Err(RowError(format!(
                "it has {bytes} bytes: at most {MOST_ROW_BYTES} are allowed"
            )));
        }
        let row: Self = yaml::parse(text).map_err(RowError)?;
        match row.mistake() {
            Some((field, allowed)) => Err(RowError(format!("{field}: {allowed}"))),
            None => Ok(row),
        }
    }

    /// Returns what is wrong with the row although each field can be read.
    fn mistake(&self) -> Option<Mistake> {
        let Self {
            api_version,
            kind,
            plural,
            life,
            pods,
            managed_by,
            requires,
            needs,
        } = self;
        let group = api_version.split_once('/');
        let is_group = |(group, version)| is_name(group, ".-") && is_name(version, "");
        let manager = managed_by.as_ref();
        let is_manager =
            |manager: &ManagedBy| !manager.path.has_each() && is_name(&manager.own, "./-");
        let own = first([
            (
                group.is_some_and(is_group),
                "apiVersion",
                "write group/version, as in ray.io/v1",
            ),
            (
                is_name(kind, ""),
                "kind",
                "write letters and digits, at most 63",
            ),
            (
                is_name(plural, "") && plural.to_lowercase() == *plural,
                "plural",
                "write lower case letters and digits, at most 63",
            ),
            (
                manager.is_none_or(is_manager),
                "managedBy",
                "name one field, and a controller with at most 63 letters, digits, dots, hyphens and slashes",
            ),
            (
                needs.as_ref().is_none_or(|needs| is_name(needs, " .-")),
                "needs",
                "write a version with at most 63 letters, digits, spaces, dots and hyphens",
            ),
            (
                requires.len() <= MOST_ITEMS && requires.iter().all(|one| !one.path.has_each()),
                "requires",
                "name at most 16 fields, without [*]",
            ),
        ]);
        own.or_else(|| life.mistake()).or_else(|| pods.mistake())
    }

    /// Returns the name of the kind.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the API resource of the kind.
    pub(super) fn resource(&self) -> ApiResource {
        let (group, version) = self.api_version.split_once('/').unwrap_or_default();
        super::resource(group, version, &self.kind, &self.plural)
    }

    /// Returns the queries for the pods of such a workload.
    pub(super) fn pods(&self, workload: &Identity) -> Vec<OwnQuery> {
        let maker = self.maker(&workload.uid);
        let selectors = selectors(&self.pods.labels, workload);
        let by_selector = selectors.map(|labels| OwnQuery::made_by(labels, &maker));
        let by_holder = OwnQuery::from(pods::of(&workload.uid));
        [by_holder].into_iter().chain(by_selector).collect()
    }

    /// Returns the queries for the Jobs that make the pods of such a workload.
    pub(super) fn parts(&self, workload: &Identity) -> Vec<(Kind, OwnQuery)> {
        let maker = self.maker(&workload.uid);
        let of_jobs = selectors(&self.pods.jobs, workload);
        let jobs = of_jobs.map(|labels| OwnQuery::made_by(labels, &maker));
        let of_jobs_with_holder = selectors(&self.pods.jobs_with_holder, workload);
        let jobs_with_holder = of_jobs_with_holder.map(|labels| OwnQuery {
            labels,
            which: Which::OwnedOrHeld(workload.uid.clone()),
        });
        let all = jobs.chain(jobs_with_holder);
        all.map(|query| (Kind::Job, query)).collect()
    }

    fn maker(&self, uid: &Uid) -> Maker {
        Maker {
            kind: self.kind.as_str().into(),
            group: pods::group_of(&self.api_version).to_owned(),
            uid: uid.clone(),
            uid_label: None,
        }
    }

    /// Whether such a workload makes its pods through a `JobSet`, which stands between the workload and its Jobs.
    pub fn makes_job_sets(&self) -> bool {
        let mut jobs = self.pods.jobs.iter();
        jobs.any(|Selector(labels)| labels.starts_with("jobset.sigs.k8s.io/"))
    }
}

/// Returns the selectors of a row for a workload, without those that no label can match. A workload for which one of
/// them is left out does not wait, because [`RowObject`] finds it unfit.
fn selectors(all: &[Selector], workload: &Identity) -> impl Iterator<Item = String> {
    let (name, uid) = (&workload.workload, workload.uid.as_ref());
    all.iter()
        .filter_map(move |selector| selector.of(name, uid))
}

impl Life {
    fn mistake(&self) -> Option<Mistake> {
        let Self {
            hold,
            suspended,
            finished,
            runs_again: _,
            failed,
        } = self;
        let some = 1..=MOST_ITEMS;
        first([
            (
                hold.path.is_in("spec") && !hold.path.has_each(),
                "life.hold.path",
                "name one field of the spec, without [*]",
            ),
            (
                hold.started.as_ref() != Some(&hold.held),
                "life.hold.started",
                "set a value other than held",
            ),
            (
                some.contains(&suspended.len()),
                "life.suspended",
                "say how its status shows that it is held, in 1 to 16 ways: otherwise nothing proves that no more pods come",
            ),
            (
                some.contains(&finished.len()),
                "life.finished",
                "say how its status shows that it has ended, in 1 to 16 ways",
            ),
            (
                failed.as_ref().is_none_or(Failed::is_sound),
                "life.failed",
                "name a condition with letters and digits, or 1 to 16 fields of the status without [*]",
            ),
        ])
    }
}

impl Failed {
    fn is_sound(&self) -> bool {
        let mut paths = self.fields.keys();
        let says = self.condition.is_some() || !self.fields.is_empty();
        let condition = self.condition.as_ref();
        says && self.fields.len() <= MOST_ITEMS
            && condition.is_none_or(|condition| is_name(&condition.type_, ""))
            && paths.all(|path| path.is_in("status") && !path.has_each())
    }
}

impl Pods {
    fn mistake(&self) -> Option<Mistake> {
        let Self {
            metadata,
            grace,
            labels,
            jobs,
            jobs_with_holder,
        } = self;
        let jobs_of_both = jobs.len() + jobs_with_holder.len();
        let lists = [metadata.len(), grace.len(), labels.len(), jobs_of_both];
        first([
            (
                metadata.iter().all(|path| path.is_in("spec")),
                "pods.metadata",
                "name fields of the spec",
            ),
            (
                !metadata.is_empty() || !labels.is_empty(),
                "pods",
                "name its metadata or labels: the operator finds its pods by them",
            ),
            (
                !metadata.is_empty() || jobs_with_holder.is_empty(),
                "pods.jobsWithHolder",
                "name pods.metadata, too: without it, no pod gets the holder label",
            ),
            (
                lists.into_iter().all(|items| items <= MOST_ITEMS),
                "pods",
                "a list has at most 16 items",
            ),
        ])
    }
}

/// A field, and the values that are allowed in it.
type Mistake = (&'static str, &'static str);

/// Returns the field of the first fact that does not hold.
fn first<const N: usize>(facts: [(bool, &'static str, &'static str); N]) -> Option<Mistake> {
    let mut facts = facts.into_iter();
    facts.find_map(|(so, field, allowed)| (!so).then_some((field, allowed)))
}

/// Whether a text is a name of 1 to 63 letters, digits and these other characters.
fn is_name(text: &str, more: &str) -> bool {
    let usual = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
    (1..=MOST_NAME).contains(&text.len()) && text.chars().all(usual)
}

/// Returns the beginning of a text that a user wrote.
fn shown(text: &str) -> String {
    text.chars().take(MOST_NAME).collect()
}
