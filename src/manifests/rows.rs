//! What differs between kinds, in CEL. `it` is an object of the kind.

use consul_semaphore_workload::Kind;

/// Which policies hold and guard a kind.
pub(super) enum Life {
    /// Those in `config/policies`.
    OfJobs,
    /// None: nobody but Kueue makes and changes it.
    OfKueue,
    /// Those that follow from its row.
    Own(Row),
}

/// How a kind is held, and when it has ended.
pub(super) struct Row {
    /// Whether it is held.
    pub(super) held: &'static str,
    /// What holds it.
    pub(super) hold: Hold,
    /// Whether it does not run, or can't be held, though it is not held.
    pub(super) exempt: &'static str,
    /// The value of `spec.managedBy` for its own controller, if it has that field.
    pub(super) manager: Option<&'static str>,
    /// Whether it has ended.
    pub(super) ended: &'static str,
    /// Whether it can be held again while it runs.
    pub(super) again: bool,
    /// The annotations and labels of the templates of its pods, to be added to a list.
    pub(super) templates: &'static str,
    /// When it is a copy, beside that it was just made, and by nobody else's controller.
    pub(super) copied: &'static str,
}

/// What holds a kind.
pub(super) enum Hold {
    /// A field and its value, for a JSON Patch: the schemas of some kinds know too little for the other.
    Field(&'static str, &'static str),
    /// A spec, for an apply configuration. A JSON Patch that adds an item to a list of structs makes an API server of
    /// version 1.36.3 drop the connection.
    Spec(&'static str),
}

/// What the operator may write to a kind.
pub(super) struct Writes {
    /// The resources that it is about.
    pub(super) resources: &'static [&'static str],
    /// The fields of its spec in which it may change something.
    pub(super) spec: &'static [&'static str],
    /// The same of its status.
    pub(super) status: &'static [&'static str],
    /// The annotations that record its grant, to be added to a list, if these are not its own.
    pub(super) grant: &'static str,
    /// What it may not change in these, to be added to a list of maps.
    pub(super) rest: String,
    /// What may be written to a field, as a condition of `oldObject` and `object`.
    pub(super) allowed: Vec<(&'static str, String)>,
}

/// Whether another controller decides when it runs. The makers of one workload after another don't.
pub(super) fn owned(it: &str) -> String {
    format!(
        "{it}.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller.orValue(false)
  && !(owner.kind in ['CronJob', 'CronWorkflow', 'ScheduledSparkApplication']))"
    )
}

/// Whether another controller than its own starts it.
pub(super) fn managed(life: &Row) -> String {
    let queued = "'kueue.x-k8s.io/queue-name' in it.metadata.?labels.orValue({})";
    match life.manager {
        Some(own) => format!("(it.?spec.?managedBy.orValue('{own}') != '{own}'\n  || {queued})"),
        None => queued.to_owned(),
    }
}

const SUCCEEDED_IS_KNOWN: &str = "it.?status.?conditions.orValue([])
  .exists(condition, condition.type == 'Succeeded' && condition.status in ['True', 'False'])";

/// How this kind is held and ends.
pub(super) fn life(kind: &Kind) -> Life {
    let held = match kind {
        Kind::Job => return Life::OfJobs,
        Kind::KueueWorkload => return Life::OfKueue,
        Kind::JobSet => Row {
            held: "it.?spec.?suspend.orValue(false)",
            hold: Hold::Field("/spec/suspend", "true"),
            exempt: "false",
            manager: Some("jobset.sigs.k8s.io/jobset-controller"),
            ended: "it.?status.?conditions.orValue([])
  .exists(condition, condition.type in ['Completed', 'Failed'] && condition.status == 'True')",
            again: true,
            templates: "+ it.?spec.?replicatedJobs.orValue([]).map(job,
  job.?template.?spec.?template.?metadata.?annotations.orValue({}))
+ it.?spec.?replicatedJobs.orValue([]).map(job,
  job.?template.?spec.?template.?metadata.?labels.orValue({}))",
            copied: "",
        },
        Kind::PipelineRun => Row {
            held: "it.?spec.?status.orValue('') == 'PipelineRunPending'",
            hold: Hold::Field("/spec/status", "'PipelineRunPending'"),
            exempt: "it.?spec.?status.orValue('') == 'Cancelled'",
            manager: Some("tekton.dev/pipeline"),
            ended: SUCCEEDED_IS_KNOWN,
            again: false,
            templates: "",
            copied: "",
        },
        Kind::TaskRun => Row {
            held: "it.?spec.?status.orValue('') == 'TaskRunPending'",
            hold: Hold::Field("/spec/status", "'TaskRunPending'"),
            exempt: "it.?spec.?status.orValue('') == 'TaskRunCancelled'",
            manager: Some("tekton.dev/pipeline"),
            ended: SUCCEEDED_IS_KNOWN,
            again: false,
            templates: "",
            copied: "",
        },
        Kind::Workflow => Row {
            held: "it.?spec.?suspend.orValue(false) && it.?status.?progress.orValue('') in ['', '0/0']",
            hold: Hold::Field("/spec/suspend", "true"),
            exempt: "!it.?spec.?suspend.orValue(false) && it.?spec.?shutdown.orValue('') == 'Terminate'",
            manager: None,
            ended: "it.?status.?phase.orValue('') in ['Succeeded', 'Failed', 'Error']",
            again: false,
            templates: "+ [it.?spec.?podMetadata.?annotations.orValue({}), it.?spec.?podMetadata.?labels.orValue({})]",
            copied: "",
        },
        Kind::Pod => Row {
            held: "it.?spec.?schedulingGates.orValue([]).exists(gate, gate.name == 'consul-semaphore.io/slot')",
            hold: Hold::Spec(
                "Object.spec{schedulingGates: [Object.spec.schedulingGates{name: 'consul-semaphore.io/slot'}]}",
            ),
            exempt: "it.?spec.?nodeName.orValue('') != ''",
            manager: None,
            ended: "it.?status.?phase.orValue('') in ['Succeeded', 'Failed']",
            again: false,
            templates: "",
            // Pods of other workloads may get their owner later: they have what a grant wrote into a template.
            copied: " && variables.names",
        },
    };
    Life::Own(held)
}

/// What of the metadata of a template the operator may not change: three maps.
fn rest_of(metadata: &str) -> [String; 3] {
    let [annotations, labels] = others_names(metadata);
    let others = format!(
        "dyn({metadata}.orValue({{}}))
  .transformMap(name, value, !(name in ['annotations', 'labels', 'creationTimestamp']), value)"
    );
    [others, annotations, labels]
}

/// The annotations and the labels that are not ours.
fn others_names(metadata: &str) -> [String; 2] {
    ["annotations", "labels"].map(|part| {
        format!(
            "dyn({metadata}.?{part}.orValue({{}}))
  .transformMap(name, value, !name.startsWith('consul-semaphore.io/'), value)"
        )
    })
}

/// Maps to be added to a list of maps.
fn added(maps: &[String]) -> String {
    format!("+ [\n{}\n]", maps.join(",\n"))
}

/// A map without one of its fields.
fn without(map: &str, field: &str) -> String {
    format!("dyn({map}.orValue({{}})).transformMap(name, value, name != '{field}', value)")
}

/// A field is as it was, or has one of these values.
fn as_it_was_or(path: &str, values: &str) -> String {
    format!("object.{path} in [oldObject.{path}, {values}]")
}

/// The hold of a run of Tekton may be removed, and replaced by its end.
fn status_of_run(pending: &str, ended: &str) -> String {
    format!(
        "object.?spec.?status == oldObject.?spec.?status
|| object.?spec.?status.orValue('') in [{ended}]
|| object.?spec.?status.orValue('') == '' && oldObject.?spec.?status.orValue('') in [{pending}]"
    )
}

/// What the operator may write to this kind.
pub(super) fn writes(kind: &Kind) -> Writes {
    match kind {
        Kind::Job => Writes {
            resources: &["jobs"],
            spec: &[
                "suspend",
                "parallelism",
                "activeDeadlineSeconds",
                "template",
            ],
            status: &[],
            grant: "+ [oldObject.spec.template.?metadata.?annotations.orValue({})]",
            rest: added(&[without("it.?spec.?template", "metadata")])
                + "\n"
                + &added(&rest_of("it.?spec.?template.?metadata")),
            allowed: vec![
                (
                    "spec.parallelism",
                    as_it_was_or("?spec.?parallelism", "optional.of(dyn(0))"),
                ),
                (
                    "spec.activeDeadlineSeconds",
                    as_it_was_or("?spec.?activeDeadlineSeconds", "optional.of(dyn(1))"),
                ),
            ],
        },
        Kind::JobSet => job_set(),
        // Nested ones are ended together with the TaskRuns in them.
        Kind::PipelineRun => Writes {
            resources: &["pipelineruns", "taskruns"],
            spec: &["status"],
            status: &[],
            grant: "",
            rest: String::new(),
            allowed: vec![(
                "spec.status",
                status_of_run(
                    "'PipelineRunPending', 'TaskRunPending'",
                    "'Cancelled', 'StoppedRunFinally', 'TaskRunCancelled'",
                ),
            )],
        },
        Kind::TaskRun => Writes {
            resources: &["taskruns"],
            spec: &["status"],
            status: &[],
            grant: "",
            rest: String::new(),
            allowed: vec![(
                "spec.status",
                status_of_run("'TaskRunPending'", "'TaskRunCancelled'"),
            )],
        },
        Kind::Workflow => Writes {
            resources: &["workflows"],
            spec: &["suspend", "shutdown", "podMetadata"],
            status: &[],
            grant: "",
            rest: added(&rest_of("it.?spec.?podMetadata")),
            allowed: vec![
                (
                    "spec.suspend",
                    as_it_was_or("?spec.?suspend", "optional.none(), optional.of(dyn(false))"),
                ),
                (
                    "spec.shutdown",
                    as_it_was_or("?spec.?shutdown", "optional.of(dyn('Terminate'))"),
                ),
            ],
        },
        Kind::Pod => pod(),
        Kind::KueueWorkload => kueue_workload(),
    }
}

fn kueue_workload() -> Writes {
    let names =
        |of: &str| format!("{of}.?status.?admissionChecks.orValue([]).map(check, check.name)");
    let ours = |part: &str| {
        format!("update.?{part}.orValue({{}}).all(name, name.startsWith('consul-semaphore.io/'))")
    };
    Writes {
        resources: &["workloads"],
        spec: &[],
        status: &["admissionChecks"],
        // It bears no name of ours: whether it has an entry of ours is for the policy of the admission checks.
        grant: "+ [{'consul-semaphore.io/slots': ''}]",
        rest: String::new(),
        allowed: vec![
            (
                "status.admissionChecks",
                format!("{} == {}", names("oldObject"), names("object")),
            ),
            (
                "podSetUpdates",
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
        resources: &["jobsets"],
        spec: &["suspend", "replicatedJobs"],
        status: &["conditions", "terminalState"],
        grant: "",
        rest: rest.join("\n"),
        allowed: vec![
            (
                "status.conditions",
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
                "status.terminalState",
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
        resources: &["pods"],
        spec: &["schedulingGates", "activeDeadlineSeconds"],
        status: &["phase", "reason", "message"],
        grant: "",
        rest: added(&others_names("it.metadata")),
        allowed: vec![
            (
                "spec.schedulingGates",
                format!("{} == {}", gates("object"), gates("oldObject")),
            ),
            (
                "spec.activeDeadlineSeconds",
                as_it_was_or("?spec.?activeDeadlineSeconds", "optional.of(dyn(1))"),
            ),
            (
                "status",
                "object.?status == oldObject.?status
|| object.?status.?phase.orValue('') == 'Failed' && oldObject.?spec.?nodeName.orValue('') == ''"
                    .to_owned(),
            ),
        ],
    }
}
