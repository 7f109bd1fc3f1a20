//! Lists what the operator must be allowed in Kubernetes: the rules of `config/rbac`, as questions.

use std::borrow::Cow;

use super::NamespacedName;
use crate::{admission, identity::history_lease, manifests::Source};
use consul_semaphore_api::scope::Namespaces;
use consul_semaphore_workload::{Kind, Kinds, row::Row};

/// A rule, and the consequence of its absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) group: Cow<'static, str>,
    /// The resource with its subresource: `jobs/status`.
    pub(crate) resource: Cow<'static, str>,
    pub(crate) verbs: &'static [&'static str],
    pub(super) place: RuleScope,
    /// The text that says what does not work without the rule.
    pub(super) without: &'static str,
    /// Whether slots are still granted and released without the rule.
    pub(super) optional: bool,
}

/// The place in which a rule must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RuleScope {
    /// The rule must hold in every namespace that the operator works in.
    Scope,
    /// The rule must hold for objects that are in no namespace.
    Cluster,
    /// The rule must hold for the one namespace `kube-system`.
    KubeSystem,
    /// The rule must hold for each namespace object that the operator works in, unless the operator works in all
    /// namespaces.
    Namespaces,
    /// The rule must hold in the namespace of the Lease, for any name, because a new object has none yet.
    Election,
    /// The rule must hold in the namespace of the Lease, for this Lease.
    Lease,
    /// The rule must hold in the namespace of the Lease, for the Lease of the identity.
    Identity,
    /// The rule must hold for this one of the operator's admission policies.
    Policy(Cow<'static, str>),
    /// The rule must hold for the one `ConfigMap` with rows of kinds.
    Table,
    /// The rule must hold in the namespace of the `ConfigMap` with rows of kinds.
    BesideTable,
}

const fn rule(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    place: RuleScope,
    without: &'static str,
) -> Rule {
    Rule {
        group: Cow::Borrowed(group),
        resource: Cow::Borrowed(resource),
        verbs,
        place,
        without,
        optional: false,
    }
}

const fn optional(mut rule: Rule) -> Rule {
    rule.optional = true;
    rule
}

/// Returns a rule for what the operator reads of a workload that holds a slot and whose kind is off.
const fn unserved(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> Rule {
    optional(rule(
        group,
        resource,
        verbs,
        RuleScope::Scope,
        "if you switch this kind off while a workload of this kind holds a slot, the workload keeps the slot forever",
    ))
}

const fn policy(resource: &'static str, name: Cow<'static, str>) -> Rule {
    optional(rule(
        "admissionregistration.k8s.io",
        resource,
        &["get"],
        RuleScope::Policy(name),
        "the operator does not report when it starts whether its admission policies are in force",
    ))
}

/// All rules, which `config/rbac` gives the operator's `ServiceAccount`. `tests/journeys/access_of_the_operator.rs`
/// shows that the operator uses each.
pub(super) const RULES: &[Rule] = &[
    rule(
        "",
        "namespaces",
        &["get"],
        RuleScope::KubeSystem,
        "the operator does not start, because it can't read the cluster's id, which is the uid of kube-system",
    ),
    rule(
        "consul-semaphore.io",
        "consulsemaphores",
        &["get", "list", "watch", "patch"],
        RuleScope::Scope,
        "no ConsulSemaphore is served",
    ),
    rule(
        "consul-semaphore.io",
        "consulsemaphores/status",
        &["patch"],
        RuleScope::Scope,
        "neither the status nor the limit is written, because the operator records the limit in the status first",
    ),
    rule(
        "batch",
        "jobs",
        &["get", "list", "watch", "patch", "delete"],
        RuleScope::Scope,
        "the operator does not find, start or suspend Jobs, nor delete Jobs with on-contention: Skip",
    ),
    optional(rule(
        "batch",
        "jobs/status",
        &["patch"],
        RuleScope::Scope,
        "before Kubernetes 1.36, Jobs that were suspended after a start stay suspended",
    )),
    rule(
        "",
        "pods",
        &["list", "watch"],
        RuleScope::Scope,
        "slots are not released: the operator can't find out whether pods are left",
    ),
    unserved("", "pods", &["get"]),
    unserved("jobset.x-k8s.io", "jobsets", &["get"]),
    unserved("tekton.dev", "pipelineruns", &["get", "list"]),
    unserved("tekton.dev", "taskruns", &["get", "list"]),
    unserved("argoproj.io", "workflows", &["get"]),
    unserved("ray.io", "rayjobs", &["get"]),
    unserved("trainer.kubeflow.org", "trainjobs", &["get"]),
    unserved("kubeflow.org", "mpijobs", &["get"]),
    unserved("sparkoperator.k8s.io", "sparkapplications", &["get"]),
    optional(rule(
        "events.k8s.io",
        "events",
        &["create", "patch"],
        RuleScope::Scope,
        "Jobs and ConsulSemaphores have no events",
    )),
    optional(rule(
        "",
        "namespaces",
        &["get"],
        RuleScope::Namespaces,
        "slots of a namespace that was deleted may stay held until the operator is started without this namespace",
    )),
    rule(
        "coordination.k8s.io",
        "leases",
        &["create"],
        RuleScope::Election,
        "nothing is granted or released: the operator can't create its Leases",
    ),
    rule(
        "coordination.k8s.io",
        "leases",
        &["get", "list", "watch", "update"],
        RuleScope::Lease,
        "with --leader-election=kubernetes no replica leads, so nothing happens; with other values, the operator treats \
         running Jobs after a restart as if Consul had just proved their slots",
    ),
    rule(
        "coordination.k8s.io",
        "leases",
        &["get", "update"],
        RuleScope::Identity,
        "nothing is granted or released: the operator can't see whether a copy of this cluster uses its identity",
    ),
];

/// Returns the rules by which the operator sees whether the policies of a kind are in force.
fn policies(kind: &Kind) -> impl Iterator<Item = Rule> {
    let policies = admission::policies_of(kind).into_iter();
    policies.flat_map(|it| {
        let name = || Cow::Owned(it.name().to_owned());
        [policy(it.resource(), name()), policy(it.binding(), name())]
    })
}

/// The extra rule for the `ConfigMap` with rows of kinds.
static TABLE: Rule = rule(
    "",
    "configmaps",
    &["get", "list", "watch"],
    RuleScope::Table,
    "the operator is not ready: it can't read the rows of --kinds",
);

/// The extra rule for the events about wrong rows.
static TABLE_EVENTS: Rule = optional(rule(
    "events.k8s.io",
    "events",
    &["create", "patch"],
    RuleScope::BesideTable,
    "wrong rows of --kinds are reported only in the log",
));

/// The verbs for workloads that are no Jobs.
const WRITES: &[&str] = &["get", "list", "watch", "patch", "delete"];

const fn workloads(group: &'static str, resource: &'static str) -> Rule {
    rule(
        group,
        resource,
        WRITES,
        RuleScope::Scope,
        "the operator does not find, start or end workloads of this kind",
    )
}

const fn ends(group: &'static str, resource: &'static str) -> Rule {
    optional(rule(
        group,
        resource,
        &["patch"],
        RuleScope::Scope,
        "the operator can't make workloads of this kind fail: they continue to wait",
    ))
}

/// Returns the rules that a kind of workload needs beside [`RULES`]. `--workloads` switches the kind on.
pub(crate) fn rules_of(kind: &Kind) -> Cow<'static, [Rule]> {
    const JOB_SETS: &[Rule] = &[
        workloads("jobset.x-k8s.io", "jobsets"),
        ends("jobset.x-k8s.io", "jobsets/status"),
    ];
    const PIPELINE_RUNS: &[Rule] = &[
        workloads("tekton.dev", "pipelineruns"),
        rule(
            "tekton.dev",
            "taskruns",
            &["list", "patch"],
            RuleScope::Scope,
            "slots of PipelineRuns are not released: the operator can't find out whether more pods come",
        ),
    ];
    const TASK_RUNS: &[Rule] = &[workloads("tekton.dev", "taskruns")];
    const WORKFLOWS: &[Rule] = &[workloads("argoproj.io", "workflows")];
    const PODS: &[Rule] = &[workloads("", "pods"), ends("", "pods/status")];
    const KUEUE: &[Rule] = &[
        rule(
            "kueue.x-k8s.io",
            "workloads",
            &["get", "list", "watch"],
            RuleScope::Scope,
            "Workloads of Kueue are not seen, and wait forever for their admission check",
        ),
        rule(
            "kueue.x-k8s.io",
            "workloads/status",
            &["patch"],
            RuleScope::Scope,
            "Workloads of Kueue wait forever for their admission check",
        ),
        rule(
            "kueue.x-k8s.io",
            "admissionchecks",
            &["get", "list", "watch"],
            RuleScope::Cluster,
            "Workloads of Kueue are not seen, and wait forever for their admission check",
        ),
        rule(
            "kueue.x-k8s.io",
            "admissionchecks/status",
            &["patch"],
            RuleScope::Cluster,
            "admission checks are not active, and neither are the ClusterQueues that require them",
        ),
        rule(
            "jobset.x-k8s.io",
            "jobsets",
            &["get", "list", "watch"],
            RuleScope::Scope,
            "JobSets in queues of Kueue wait forever for their admission check",
        ),
    ];
    let rules = match kind {
        Kind::Job => &[],
        Kind::JobSet => JOB_SETS,
        Kind::PipelineRun => PIPELINE_RUNS,
        Kind::TaskRun => TASK_RUNS,
        Kind::Workflow => WORKFLOWS,
        Kind::Pod => PODS,
        Kind::KueueWorkload => KUEUE,
        Kind::Listed(row) => return rules_of_row(kind, row).into(),
    };
    Cow::Borrowed(rules)
}

fn rules_of_row(kind: &Kind, row: &Row) -> Vec<Rule> {
    let resource = kind.resource();
    let of = |rule: Rule, resource: String, group: String| Rule {
        group: group.into(),
        resource: resource.into(),
        ..rule
    };
    let mut rules = vec![of(
        workloads("", ""),
        resource.plural.clone(),
        resource.group.clone(),
    )];
    if row.life.failed.is_some() {
        let status = format!("{}/status", resource.plural);
        rules.push(of(ends("", ""), status, resource.group));
    }
    if row.makes_job_sets() {
        rules.push(optional(rule(
            "jobset.x-k8s.io",
            "jobsets",
            &["get"],
            RuleScope::Scope,
            "slots stay held until the pods of later workloads with the same name have also ended",
        )));
    }
    rules
}

/// The extra rule for the token of a `ConsulSemaphore`.
pub(super) static SECRET: Rule = rule(
    "",
    "secrets",
    &["get"],
    RuleScope::Scope,
    "its token can't be read, so nothing is granted",
);

/// A rule to check in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) rule: Rule,
    /// The manifest that brings the rule.
    pub(super) source: Source,
    /// The namespace; `None`: all namespaces.
    pub(super) namespace: Option<String>,
    /// The name of the object; `None`: any object.
    pub(super) name: Option<String>,
}

/// The Lease of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The workloads that an operator serves.
#[derive(Clone, Debug, Default)]
pub(super) struct Served {
    /// The kinds of workloads that the operator serves, including those of rows.
    pub(super) kinds: Kinds,
    /// The `ConfigMap` with the rows.
    pub(super) table: Option<NamespacedName>,
}

/// Returns the rights to check for an operator that serves these kinds of workloads in these namespaces, with this
/// Lease, if it is known.
pub(super) fn questions(
    served: &Served,
    namespaces: &Namespaces,
    lease: Option<&Lease>,
) -> Vec<Question> {
    let of = |rule: &Rule, source: &Source| -> Vec<Question> {
        let question = |namespace: Option<String>, name: Option<String>| Question {
            rule: rule.clone(),
            source: source.clone(),
            namespace,
            name,
        };
        let kube_system = || Some("kube-system".to_owned());
        match (&rule.place, namespaces, lease) {
            (RuleScope::Scope, Namespaces::All, _) | (RuleScope::Cluster, ..) => {
                vec![question(None, None)]
            }
            (RuleScope::Scope, Namespaces::Only(names), _) => names
                .iter()
                .map(|namespace| question(Some(namespace.clone()), None))
                .collect(),
            (RuleScope::Namespaces, Namespaces::Only(names), _) => names
                .iter()
                // A Role in the namespace does not count, because it is deleted with the namespace.
                .map(|namespace| question(None, Some(namespace.clone())))
                .collect(),
            (RuleScope::KubeSystem, ..) => vec![question(kube_system(), kube_system())],
            (RuleScope::Election, _, Some(lease)) => {
                vec![question(Some(lease.namespace.clone()), None)]
            }
            (RuleScope::Lease, _, Some(lease)) => {
                let name = Some(lease.name.clone());
                vec![question(Some(lease.namespace.clone()), name)]
            }
            (RuleScope::Identity, _, Some(lease)) => {
                let name = Some(history_lease(&lease.name));
                vec![question(Some(lease.namespace.clone()), name)]
            }
            // A user that may list in the whole cluster needs no extra right to see that a namespace was deleted, and
            // operators of single namespaces work without the rights for the policies.
            (RuleScope::Namespaces, Namespaces::All, _)
            | (RuleScope::Election | RuleScope::Lease | RuleScope::Identity, _, None)
            | (RuleScope::Policy(_), Namespaces::Only(_), _) => Vec::new(),
            (RuleScope::Policy(name), Namespaces::All, _) => {
                vec![question(None, Some(name.clone().into_owned()))]
            }
            (RuleScope::Table, ..) => {
                let table = served.table.iter();
                let one = |NamespacedName { namespace, name }: &NamespacedName| {
                    question(Some(namespace.clone()), Some(name.clone()))
                };
                table.map(one).collect()
            }
            (RuleScope::BesideTable, ..) => {
                let table = served.table.iter();
                let beside = |table: &NamespacedName| question(Some(table.namespace.clone()), None);
                table.map(beside).collect()
            }
        }
    };
    let rules = RULES.iter().chain([&TABLE, &TABLE_EVENTS]);
    let operators = rules.flat_map(|rule| of(rule, &Source::Operator));
    let of_kinds = served.kinds.iter().flat_map(|kind| {
        let (rules, source) = (rules_of(kind).into_owned(), Source::of(kind));
        let all_rules = rules.into_iter().chain(policies(kind));
        let questions = all_rules.flat_map(|rule| of(&rule, &source));
        questions.collect::<Vec<_>>()
    });
    operators.chain(of_kinds).collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use serde_json::Value;

    use super::*;

    /// Single permissions, each with the kind of role, group, resource, name and verb.
    type Allowed = BTreeSet<[String; 5]>;

    /// Returns all objects in `config/rbac`.
    fn shipped() -> Vec<Value> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rbac");
        let entries = fs::read_dir(folder).unwrap();
        let files = entries.map(|file| file.unwrap().path());
        let texts = files.map(|file| fs::read_to_string(file).unwrap());
        let documents = texts.flat_map(|text| serde_saphyr::from_multiple::<Value>(&text).unwrap());
        documents.collect()
    }

    fn texts(list: &Value) -> Vec<String> {
        let texts = list.as_array().into_iter().flatten();
        texts
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    }

    /// Returns the permissions that the bindings in `config/rbac` give to the operator's account.
    fn given() -> Allowed {
        let objects = shipped();
        let operator = |binding: &&Value| {
            let subjects = binding["subjects"].as_array();
            subjects.is_some_and(|subjects| {
                subjects.iter().any(|subject| {
                    subject["kind"] == "ServiceAccount"
                        && subject["name"] == "consul-semaphore-operator"
                })
            })
        };
        let mut given = Allowed::new();
        for binding in objects.iter().filter(operator) {
            let (kind, name) = (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
            let is_bound =
                |object: &&Value| object["kind"] == *kind && object["metadata"]["name"] == *name;
            let role = objects.iter().find(is_bound).unwrap();
            for rule in role["rules"].as_array().unwrap() {
                let names = match texts(&rule["resourceNames"]) {
                    none if none.is_empty() => vec![String::new()],
                    names => names,
                };
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        for name in &names {
                            for verb in texts(&rule["verbs"]) {
                                let kind = kind.as_str().unwrap().to_owned();
                                let what = [&group, &resource, name, &verb];
                                let [group, resource, name, verb] = what.map(String::clone);
                                given.insert([kind, group, resource, name, verb]);
                            }
                        }
                    }
                }
            }
        }
        given
    }

    #[test]
    fn the_table_is_what_config_rbac_gives_the_operator() {
        let mut table = Allowed::new();
        let policies: Vec<Rule> = policies(&Kind::Job).collect();
        for rule in RULES.iter().chain(&policies) {
            let (kind, name) = match &rule.place {
                RuleScope::Scope | RuleScope::Cluster => ("ClusterRole", ""),
                // The documentation of these rules is in docs/scope.md.
                RuleScope::Namespaces | RuleScope::Table | RuleScope::BesideTable => continue,
                RuleScope::KubeSystem => ("ClusterRole", "kube-system"),
                RuleScope::Election => ("Role", ""),
                RuleScope::Lease => ("Role", "consul-semaphore-operator"),
                RuleScope::Identity => ("Role", "consul-semaphore-operator-identity"),
                RuleScope::Policy(name) => ("ClusterRole", name.as_ref()),
            };
            for verb in rule.verbs {
                let allowed = [kind, &rule.group, &rule.resource, name, verb];
                assert!(
                    table.insert(allowed.map(str::to_owned)),
                    "{allowed:?} twice"
                );
            }
        }
        assert_eq!(table, given());
    }

    #[test]
    fn an_operator_of_some_namespaces_needs_its_rights_in_each() {
        let lease = Lease {
            namespace: "system".to_owned(),
            name: "shard-a".to_owned(),
        };
        let shown = |namespaces: &str, lease| -> Vec<String> {
            let served = Served {
                kinds: "jobsets".parse().unwrap(),
                table: Some("system/kinds".parse().unwrap()),
            };
            let questions = questions(&served, &namespaces.parse().unwrap(), lease);
            let shown = |question: Question| {
                let or = |text: Option<String>| text.unwrap_or_else(|| "*".to_owned());
                let (namespace, name) = (or(question.namespace), or(question.name));
                format!("{} {namespace}/{name}", question.rule.resource)
            };
            questions.into_iter().map(shown).collect()
        };
        let part = shown("a,b", Some(&lease));
        for expected in [
            "namespaces kube-system/kube-system",
            "namespaces */a",
            "jobs a/*",
            "jobs b/*",
            "jobsets a/*",
            "jobsets/status b/*",
            "leases system/*",
            "leases system/shard-a",
            "leases system/shard-a-identity",
            "configmaps system/kinds",
        ] {
            assert!(part.iter().any(|shown| shown == expected), "{part:?}");
        }
        assert!(
            !part.iter().any(|shown| shown.ends_with(" */*")),
            "{part:?}"
        );
        let whole = shown("*", None);
        for expected in [
            "jobs */*",
            "validatingadmissionpolicies */guard.consul-semaphore.io",
            "mutatingadmissionpolicybindings */hold.jobsets.consul-semaphore.io",
        ] {
            assert!(whole.iter().any(|shown| shown == expected), "{whole:?}");
        }
        assert!(!whole.iter().any(|shown| shown.starts_with("leases")));
    }
}
