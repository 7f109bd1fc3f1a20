//! Has the differences between kinds, in CEL. `it` is an object of the kind.

use std::borrow::Cow;

use consul_semaphore_workload::{
    Kind,
    owner::{OwnerKind, OwnersThatDecide},
};

use super::listed;

/// The policies that hold and guard a kind.
pub(super) enum Policies {
    /// The policies in `config/policies`.
    OfJobs,
    /// No policies, because only Kueue makes and changes the kind.
    OfKueue,
    /// Policies that are made from the way in which the kind is held and ends.
    Own(Box<LifeExpressions>),
}

/// The way in which a kind is held, and in which it ends.
pub(super) struct LifeExpressions {
    /// Whether the object is held.
    pub(super) held: Cow<'static, str>,
    /// The change that holds the object.
    pub(super) hold: HoldChange,
    /// Whether the object is not held, and nothing else says that it is to end, so that its controller starts it.
    pub(super) freed: Cow<'static, str>,
    /// Whether the object does not run, or can't be held, although it is not held.
    pub(super) exempt: Cow<'static, str>,
    /// The field that names the object's controller, if the kind has one, and the value that stands for the kind's
    /// own controller.
    pub(super) manager: Option<(Cow<'static, str>, Cow<'static, str>)>,
    /// Whether the object has ended.
    pub(super) ended: Cow<'static, str>,
    /// Whether the object can be held again while it runs.
    pub(super) again: bool,
    /// The annotations and labels of the templates of the object's pods, to be added to a list.
    pub(super) templates: Cow<'static, str>,
    /// A further condition for an object to count as a copy. The others are that it was just made, and not by a
    /// controller of somebody else.
    pub(super) copied: Cow<'static, str>,
}

/// The change that holds an object of a kind.
pub(super) enum HoldChange {
    /// A field and its value, for a JSON Patch. The schemas of some kinds know too little for an apply configuration.
    Field(&'static str, &'static str),
    /// A list of JSON Patches, which also makes the parents of the field.
    Patches(String),
    /// A spec, for an apply configuration. A JSON Patch that adds an item to a list of structs makes an API server of
    /// version 1.36.3 drop the connection.
    Spec(&'static str),
}

/// The parts of a kind's objects that the operator may write.
pub(super) struct Writes {
    /// Resources that the policy is about.
    pub(super) resources: Vec<String>,
    /// Fields of the spec in which the operator may change something.
    pub(super) spec: Vec<String>,
    /// Fields of the status in which the operator may change something.
    pub(super) status: Vec<String>,
    /// Annotations that record the grant, to be added to a list, if they are not annotations of the object itself.
    pub(super) grant: &'static str,
    /// Parts of these fields that the operator may not change, to be added to a list of maps.
    pub(super) rest: String,
    /// Conditions of `oldObject` and `object` on what the operator may write, each with the path of its field.
    pub(super) allowed: Vec<(String, String)>,
}

/// Returns whether another controller decides when the object runs.
pub(super) fn owned(kind: &Kind) -> String {
    let decides = match kind.owners_that_decide() {
        OwnersThatDecide::Only(kinds) => format!("({})", any_of(kinds)),
        OwnersThatDecide::AllBut(kinds) => format!("!({})", any_of(kinds)),
    };
    format!(
        "it.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller.orValue(false)
  && {decides})"
    )
}

/// Returns whether an owner is of one of these kinds.
fn any_of(kinds: &[OwnerKind]) -> String {
    let each = kinds.iter().map(|OwnerKind { group, kind }| {
        format!("owner.apiVersion.startsWith('{group}/') && owner.kind == '{kind}'")
    });
    each.collect::<Vec<_>>().join("\n    || ")
}

/// Returns whether another controller than the kind's own starts the object.
pub(super) fn managed(life: &LifeExpressions) -> String {
    let queued = "'kueue.x-k8s.io/queue-name' in it.metadata.?labels.orValue({})";
    match &life.manager {
        Some((field, own)) => format!("(it.{field}.orValue('{own}') != '{own}'\n  || {queued})"),
        None => queued.to_owned(),
    }
}

const SUCCEEDED_IS_KNOWN: &str = "it.?status.?conditions.orValue([])
  .exists(condition, condition.type == 'Succeeded' && condition.status in ['True', 'False'])";

/// Returns the field in which most kinds name their controller, and its value for their own controller.
fn managed_by(own: &'static str) -> (Cow<'static, str>, Cow<'static, str>) {
    ("?spec.?managedBy".into(), own.into())
}

/// Returns the policies of this kind.
pub(super) fn policies(kind: &Kind) -> Policies {
    let life = match kind {
        Kind::Job => return Policies::OfJobs,
        Kind::KueueWorkload => return Policies::OfKueue,
        Kind::Listed(row) => listed::life(row),
        Kind::JobSet => LifeExpressions {
            held: "it.?spec.?suspend.orValue(false)".into(),
            hold: HoldChange::Field("/spec/suspend", "true"),
            freed: "!it.?spec.?suspend.orValue(false)".into(),
            exempt: "false".into(),
            manager: Some(managed_by("jobset.sigs.k8s.io/jobset-controller")),
            ended: "it.?status.?conditions.orValue([])
  .exists(condition, condition.type in ['Completed', 'Failed'] && condition.status == 'True')".into(),
            again: true,
            templates: "+ it.?spec.?replicatedJobs.orValue([]).map(job,
  job.?template.?spec.?template.?metadata.?annotations.orValue({}))
+ it.?spec.?replicatedJobs.orValue([]).map(job,
  job.?template.?spec.?template.?metadata.?labels.orValue({}))".into(),
            copied: "".into(),
        },
        Kind::PipelineRun => LifeExpressions {
            held: "it.?spec.?status.orValue('') == 'PipelineRunPending'".into(),
            hold: HoldChange::Field("/spec/status", "'PipelineRunPending'"),
            freed: "it.?spec.?status.orValue('') == ''".into(),
            exempt: "it.?spec.?status.orValue('') == 'Cancelled'".into(),
            manager: Some(managed_by("tekton.dev/pipeline")),
            ended: SUCCEEDED_IS_KNOWN.into(),
            again: false,
            templates: "".into(),
            copied: "".into(),
        },
        Kind::TaskRun => LifeExpressions {
            held: "it.?spec.?status.orValue('') == 'TaskRunPending'".into(),
            hold: HoldChange::Field("/spec/status", "'TaskRunPending'"),
            freed: "it.?spec.?status.orValue('') == ''".into(),
            exempt: "it.?spec.?status.orValue('') == 'TaskRunCancelled'".into(),
            manager: Some(managed_by("tekton.dev/pipeline")),
            ended: SUCCEEDED_IS_KNOWN.into(),
            again: false,
            templates: "".into(),
            copied: "".into(),
        },
        Kind::Workflow => LifeExpressions {
            held: "it.?spec.?suspend.orValue(false) && it.?status.?progress.orValue('') in ['', '0/0']".into(),
            hold: HoldChange::Field("/spec/suspend", "true"),
            freed: "!it.?spec.?suspend.orValue(false) && it.?spec.?shutdown.orValue('') == ''".into(),
            exempt: "!it.?spec.?suspend.orValue(false) && it.?spec.?shutdown.orValue('') == 'Terminate'".into(),
            manager: None,
            ended: "it.?status.?phase.orValue('') in ['Succeeded', 'Failed', 'Error']".into(),
            again: false,
            templates: "+ [it.?spec.?podMetadata.?annotations.orValue({}), it.?spec.?podMetadata.?labels.orValue({})]".into(),
            copied: "".into(),
        },
        Kind::Pod => LifeExpressions {
            held: "it.?spec.?schedulingGates.orValue([]).exists(gate, gate.name == 'consul-semaphore.io/slot')".into(),
            hold: HoldChange::Spec(
                "Object.spec{schedulingGates: [Object.spec.schedulingGates{name: 'consul-semaphore.io/slot'}]}",
            ),
            freed: "!it.?spec.?schedulingGates.orValue([]).exists(gate, gate.name == 'consul-semaphore.io/slot')".into(),
            exempt: "it.?spec.?nodeName.orValue('') != ''".into(),
            manager: None,
            ended: "it.?status.?phase.orValue('') in ['Succeeded', 'Failed']".into(),
            again: false,
            templates: "".into(),
            // Pods of other workloads may get their owner later. A copy has the annotations that a grant wrote into a
            // template.
            copied: " && variables.names".into(),
        },
    };
    Policies::Own(Box::new(life))
}

/// A kind whose objects make workloads of another kind, one after another.
pub(super) struct Maker {
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    /// The annotations that the made workloads get, as the rest of an expression on the maker's spec.
    pub(super) annotations: &'static str,
    /// The place of these annotations, for people.
    pub(super) place: &'static str,
}

/// Returns the kind that makes workloads of this kind, if their annotations are in another place than its own.
pub(super) fn maker(kind: &Kind) -> Option<Maker> {
    match kind {
        Kind::Job => Some(Maker {
            kind: "CronJob",
            plural: "cronjobs",
            annotations: "jobTemplate.?metadata.?annotations",
            place: "spec.jobTemplate.metadata.annotations",
        }),
        Kind::Workflow => Some(Maker {
            kind: "CronWorkflow",
            plural: "cronworkflows",
            annotations: "?workflowMetadata.?annotations",
            place: "spec.workflowMetadata.annotations",
        }),
        _ => None,
    }
}

/// Returns what an object must be like to wait for a slot, in CEL and for people; `None` if anything will do.
pub(super) fn requires(kind: &Kind) -> Option<Vec<(String, String)>> {
    match kind {
        Kind::Listed(row) => listed::requires(row),
        // Argo takes the locks of a Workflow before it checks whether the Workflow is suspended. It takes the locks
        // of a template when the template starts, and so in a slot.
        Kind::Workflow => Some(vec![(
            "!it.?spec.?synchronization.hasValue()".to_owned(),
            "remove spec.synchronization. Argo takes these locks while the Workflow waits for its slot, so two
Workflows can wait for each other forever. Ask for a slot of one more ConsulSemaphore instead, or use
spec.templates[].synchronization, which Argo takes when the template starts"
                .to_owned(),
        )]),
        _ => None,
    }
}

/// Returns the parts of a template's metadata that the operator may not change, as three maps.
pub(super) fn rest_of(metadata: &str) -> [String; 3] {
    let [annotations, labels] = others_names(metadata);
    let others = format!(
        "dyn({metadata}.orValue({{}}))
  .transformMap(name, value, !(name in ['annotations', 'labels', 'creationTimestamp']), value)"
    );
    [others, annotations, labels]
}

/// Returns the annotations and the labels that are not the operator's.
fn others_names(metadata: &str) -> [String; 2] {
    ["annotations", "labels"].map(|part| {
        format!(
            "dyn({metadata}.?{part}.orValue({{}}))
  .transformMap(name, value, !name.startsWith('consul-semaphore.io/'), value)"
        )
    })
}

/// Returns maps as an addition to a list of maps.
pub(super) fn added(maps: &[String]) -> String {
    format!("+ [\n{}\n]", maps.join(",\n"))
}

/// Returns a map without one of its fields.
pub(super) fn without(map: &str, field: &str) -> String {
    format!("dyn({map}.orValue({{}})).transformMap(name, value, name != '{field}', value)")
}

/// Returns the condition that a field is unchanged, or has one of these values.
pub(super) fn as_it_was_or(path: &str, values: &str) -> String {
    format!("object.{path} in [oldObject.{path}, {values}]")
}

/// Returns the condition that the hold of a run of Tekton is unchanged, removed, or replaced by its end.
fn status_of_run(pending: &str, ended: &str) -> String {
    format!(
        "object.?spec.?status == oldObject.?spec.?status
|| object.?spec.?status.orValue('') in [{ended}]
|| object.?spec.?status.orValue('') == '' && oldObject.?spec.?status.orValue('') in [{pending}]"
    )
}

/// Returns what the operator may write to this kind.
pub(super) fn writes(kind: &Kind) -> Writes {
    match kind {
        Kind::Job => Writes {
            resources: names(&["jobs"]),
            spec: names(&[
                "suspend",
                "parallelism",
                "activeDeadlineSeconds",
                "template",
            ]),
            status: names(&["startTime"]),
            grant: "+ [oldObject.spec.template.?metadata.?annotations.orValue({})]",
            rest: added(&[without("it.?spec.?template", "metadata")])
                + "\n"
                + &added(&rest_of("it.?spec.?template.?metadata")),
            allowed: vec![
                (
                    "spec.parallelism".into(),
                    as_it_was_or("?spec.?parallelism", "optional.of(dyn(0))"),
                ),
                (
                    "spec.activeDeadlineSeconds".into(),
                    as_it_was_or("?spec.?activeDeadlineSeconds", "optional.of(dyn(1))"),
                ),
                (
                    "status.startTime".into(),
                    "object.?status.?startTime == oldObject.?status.?startTime
|| !object.?status.?startTime.hasValue() && object.?spec.?suspend.orValue(false)"
                        .into(),
                ),
            ],
        },
        Kind::JobSet => job_set(),
        // Nested runs are ended together with the TaskRuns in them.
        Kind::PipelineRun => Writes {
            resources: names(&["pipelineruns", "taskruns"]),
            spec: names(&["status"]),
            status: names(&[]),
            grant: "",
            rest: String::new(),
            allowed: vec![(
                "spec.status".into(),
                status_of_run(
                    "'PipelineRunPending', 'TaskRunPending'",
                    "'Cancelled', 'CancelledRunFinally', 'StoppedRunFinally', 'TaskRunCancelled'",
                ),
            )],
        },
        Kind::TaskRun => Writes {
            resources: names(&["taskruns"]),
            spec: names(&["status"]),
            status: names(&[]),
            grant: "",
            rest: String::new(),
            allowed: vec![(
                "spec.status".into(),
                status_of_run("'TaskRunPending'", "'TaskRunCancelled'"),
            )],
        },
        Kind::Workflow => Writes {
            resources: names(&["workflows"]),
            spec: names(&["suspend", "shutdown", "podMetadata"]),
            status: names(&[]),
            grant: "",
            rest: added(&rest_of("it.?spec.?podMetadata")),
            allowed: vec![
                (
                    "spec.suspend".into(),
                    as_it_was_or("?spec.?suspend", "optional.none(), optional.of(dyn(false))"),
                ),
                (
                    "spec.shutdown".into(),
                    as_it_was_or(
                        "?spec.?shutdown",
                        "optional.of(dyn('Terminate')), optional.of(dyn('Stop'))",
                    ),
                ),
            ],
        },
        Kind::Pod => pod(),
        Kind::KueueWorkload => kueue_workload(),
        Kind::Listed(row) => listed::writes(kind, row),
    }
}

fn kueue_workload() -> Writes {
    let names_in =
        |of: &str| format!("{of}.?status.?admissionChecks.orValue([]).map(check, check.name)");
    let ours = |part: &str| {
        format!("update.?{part}.orValue({{}}).all(name, name.startsWith('consul-semaphore.io/'))")
    };
    Writes {
        resources: names(&["workloads"]),
        spec: Vec::new(),
        status: names(&["admissionChecks"]),
        // The list has no name of the operator. The policy of the admission checks decides whether the Workload has
        // an entry of the operator.
        grant: "+ [{'consul-semaphore.io/slots': ''}]",
        rest: String::new(),
        allowed: vec![
            (
                "status.admissionChecks".to_owned(),
                format!("{} == {}", names_in("oldObject"), names_in("object")),
            ),
            (
                "podSetUpdates".to_owned(),
                format!(
                    "object.?status.?admissionChecks.orValue([]).all(check, check in oldObject.?status.?admissionChecks.orValue([])
  || check.?podSetUpdates.orValue([]).all(update,
    update.?nodeSelector.orValue({{}}) == {{}} && update.?tolerations.orValue([]) == []
    && {}
    && {}))",
                    ours("labels"),
                    ours("annotations")
                ),
            ),
        ],
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn job_set() -> Writes {
    let each = |part: String| format!("+ it.?spec.?replicatedJobs.orValue([]).map(job,\n  {part})");
    let parts = [
        "dyn(job).transformMap(name, value, name != 'template', value)".to_owned(),
        without("job.?template", "spec"),
        without("job.?template.?spec", "template"),
        without("job.?template.?spec.?template", "metadata"),
    ];
    let metadata = rest_of("job.?template.?spec.?template.?metadata");
    let rest: Vec<String> = parts.into_iter().chain(metadata).map(each).collect();
    let conditions = |of: &str, is: &str| {
        format!(
            "{of}.?status.?conditions.orValue([]).filter(condition, condition.type {is} 'Failed')"
        )
    };
    let (failures, others) = (|of| conditions(of, "=="), |of| conditions(of, "!="));
    Writes {
        resources: names(&["jobsets"]),
        spec: names(&["suspend", "replicatedJobs"]),
        status: names(&["conditions", "terminalState"]),
        grant: "",
        rest: rest.join("\n"),
        allowed: vec![
            (
                "status.conditions".into(),
                format!(
                    "{} == {}\n&& ({} == [] || {} == {})",
                    others("oldObject"),
                    others("object"),
                    failures("oldObject"),
                    failures("oldObject"),
                    failures("object")
                ),
            ),
            (
                "status.terminalState".into(),
                as_it_was_or("?status.?terminalState", "optional.of(dyn('Failed'))"),
            ),
        ],
    }
}

fn pod() -> Writes {
    let gates = |of: &str| {
        format!(
            "{of}.?spec.?schedulingGates.orValue([]).filter(gate, gate.name != 'consul-semaphore.io/slot')"
        )
    };
    Writes {
        resources: names(&["pods"]),
        spec: names(&["schedulingGates", "activeDeadlineSeconds"]),
        status: names(&["phase", "reason", "message"]),
        grant: "",
        rest: added(&others_names("it.metadata")),
        allowed: vec![
            (
                "spec.schedulingGates".into(),
                format!("{} == {}", gates("object"), gates("oldObject")),
            ),
            (
                "spec.activeDeadlineSeconds".into(),
                as_it_was_or("?spec.?activeDeadlineSeconds", "optional.of(dyn(1))"),
            ),
            (
                "status".into(),
                "object.?status == oldObject.?status
|| object.?status.?phase.orValue('') == 'Failed' && oldObject.?spec.?nodeName.orValue('') == ''"
                    .to_owned(),
            ),
        ],
    }
}
