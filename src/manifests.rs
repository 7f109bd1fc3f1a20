//! Makes the YAML of what a kind of workload needs in a cluster beside the operator: its rights, and admission
//! policies that hold it, guard it, and limit what the operator may do with it. All kinds share the same templates.
//!
//! The differences between kinds are rows of CEL expressions (`rows.rs`). `config/workloads` and the chart have the
//! result.

mod listed;
mod rows;

use std::{fmt, str::FromStr};

use consul_semaphore_api::annotations::{OF_THE_OPERATOR, is_object_name};
use consul_semaphore_workload::{Kind, Kinds};

use self::rows::{HoldChange, LifeExpressions, Policies, Writes};
use crate::{
    admission,
    check::rights::{Rule, rules_of},
};

/// The names of places in a template, each with the text that is put there.
type Filling<'a> = [(&'a str, String)];

/// The `ServiceAccount` that the operator runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    namespace: String,
    name: String,
}

impl Default for Account {
    /// Returns the `ServiceAccount` of `config/rbac`.
    fn default() -> Self {
        Self {
            namespace: "consul-semaphore-system".to_owned(),
            name: "consul-semaphore-operator".to_owned(),
        }
    }
}

/// The text is not an [`Account`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use NAMESPACE:NAME, such as consul-semaphore-system:consul-semaphore-operator")]
pub struct InvalidAccount;

impl FromStr for Account {
    type Err = InvalidAccount;

    fn from_str(text: &str) -> Result<Self, InvalidAccount> {
        let (namespace, name) = text.split_once(':').ok_or(InvalidAccount)?;
        if !is_object_name(namespace) || !is_object_name(name) {
            return Err(InvalidAccount);
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.namespace, self.name)
    }
}

/// The manifests that bring the rights and the policies of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The manifests in `config/rbac` and `config/policies`, whose kind is Job.
    Operator,
    /// The manifests of a kind that is switched on by this name.
    Switch(String),
    /// The manifests of a row of the table of kinds, with this plural.
    Row(String),
}

impl Source {
    /// Returns the source of a kind's manifests: its switch if it comes with the operator, else its row.
    pub(crate) fn of(kind: &Kind) -> Self {
        match kind {
            Kind::Job => Self::Operator,
            kind if Kinds::all().contains(kind) => Self::Switch(kind.switch()),
            kind => Self::Row(kind.switch()),
        }
    }

    /// Returns what applies the manifests, unless they are the operator's own.
    pub(crate) fn apply(&self) -> Option<String> {
        let (file, name) = match self {
            Self::Operator => return None,
            Self::Switch(name) => ("", name),
            Self::Row(name) => ("--kinds FILE ", name),
        };
        let command = "consul-semaphore-operator kinds";
        Some(format!(
            "{command} {file}--manifests {name} | kubectl apply -f -"
        ))
    }
}

/// Returns the rights and the policies of a kind that `--workloads` switches on, for the usual account. The result is
/// empty for Jobs, whose rights and policies are in `config/rbac` and `config/policies`.
pub fn of_kind(kind: &Kind) -> String {
    of_kind_for(kind, &Account::default())
}

/// Returns the rights and the policies of a kind, like [`of_kind`], for an operator that runs as this account.
pub fn of_kind_for(kind: &Kind, account: &Account) -> String {
    let mut documents = vec![rights(kind)];
    match rows::policies(kind) {
        Policies::OfJobs => return String::new(),
        // Kueue makes its Workloads, and holds them.
        Policies::OfKueue => {
            let active = fill_in(include_str!("manifests/kueue.yaml"), kind, &[]);
            documents.extend([active, limits(kind)]);
        }
        Policies::Own(life) => {
            documents.extend([hold(kind, &life), guard(kind, &life), limits(kind)]);
            let requires = rows::requires(kind);
            documents.extend(requires.map(|requires| refuse(kind, &life, requires)));
            documents.extend(maker(kind));
        }
    }
    for_account(&documents.join("---\n"), kind, account)
}

/// Returns the policy that limits what the operator may do with a kind, for the usual account.
pub fn operator(kind: &Kind) -> String {
    for_account(&limits(kind), kind, &Account::default())
}

/// Returns the policy for a kind whose objects make workloads of this kind one after another, as a `CronJob` makes
/// Jobs. The policy refuses the annotation in places from which the workloads don't get it. `None` if there is no
/// such maker.
pub fn maker(kind: &Kind) -> Option<String> {
    let rows::Maker {
        kind: maker,
        plural,
        annotations,
        place,
    } = rows::maker(kind)?;
    let filling = [
        ("maker", maker.to_owned()),
        ("makers", plural.to_owned()),
        ("annotations", annotations.to_owned()),
        ("place", place.to_owned()),
    ];
    Some(fill_in(
        include_str!("manifests/maker.yaml"),
        kind,
        &filling,
    ))
}

/// Returns the plural of the kind that the policy of [`maker`] is about.
pub(crate) fn makers_of(kind: &Kind) -> Option<&'static str> {
    rows::maker(kind).map(|maker| maker.plural)
}

/// Returns whether a policy refuses some workloads of a kind, because not every workload can wait for a slot.
pub(crate) fn has_requirements(kind: &Kind) -> bool {
    rows::requires(kind).is_some()
}

fn for_account(manifests: &str, kind: &Kind, account: &Account) -> String {
    let Account { namespace, name } = account;
    let filling = [("namespace", namespace.clone()), ("account", name.clone())];
    fill_in(manifests, kind, &filling)
}

fn limits(kind: &Kind) -> String {
    let Writes {
        resources,
        spec,
        status,
        grant,
        rest,
        allowed,
    } = rows::writes(kind);
    let allowed = allowed.iter().map(|(path, allowed)| {
        let filling = [("allowed", allowed.clone()), ("path", path.clone())];
        fill_in(include_str!("manifests/write.yaml"), kind, &filling)
    });
    // Workloads of Kueue are rejected instead of deleted.
    let delete = match kind {
        Kind::KueueWorkload => include_str!("manifests/delete_none.yaml"),
        _ => include_str!("manifests/delete.yaml"),
    };
    let resources: Vec<String> = resources
        .iter()
        .map(|resource| format!("{resource}, {resource}/*"))
        .collect();
    let filling = [
        ("resources", resources.join(", ")),
        ("delete", fill_in(delete, kind, &[])),
        ("spec", listed(&spec)),
        ("status", listed(&status)),
        ("grant", grant.to_owned()),
        ("rest", rest),
        ("writes", allowed.collect()),
    ];
    fill_in(include_str!("manifests/operator.yaml"), kind, &filling)
}

/// Returns the component of kustomize that brings the rights, the policies and the flag of a kind.
pub fn component(kind: &Kind) -> String {
    fill_in(include_str!("manifests/component.yaml"), kind, &[])
}

fn rights(kind: &Kind) -> String {
    let own_rules = rules_of(kind);
    let rules = own_rules.iter().map(rule).chain(policies(kind));
    let filling = [("rules", rules.collect())];
    fill_in(include_str!("manifests/rights.yaml"), kind, &filling)
}

fn rule(rule: &Rule) -> String {
    let (group, resource, verbs) = (&rule.group, &rule.resource, rule.verbs.join(", "));
    format!("- apiGroups: [\"{group}\"]\n  resources: [{resource}]\n  verbs: [{verbs}]\n")
}

/// Returns the rules by which the operator sees whether the policies of a kind are in force.
fn policies(kind: &Kind) -> impl Iterator<Item = String> {
    let policies = admission::policies_of(kind);
    ["mutating", "validating"]
        .into_iter()
        .filter_map(move |type_| {
            let these = policies
                .iter()
                .filter(|policy| policy.resource().starts_with(type_));
            let each_name: Vec<&str> = these.map(admission::Policy::name).collect();
            let names = each_name.join(", ");
            (!names.is_empty()).then(|| {
                format!(
                    "- apiGroups: [admissionregistration.k8s.io]\n  \
                 resources: [{type_}admissionpolicies, {type_}admissionpolicybindings]\n  \
                 resourceNames: [{names}]\n  verbs: [get]\n"
                )
            })
        })
}

fn hold(kind: &Kind, life: &LifeExpressions) -> String {
    let (spec, patch) = match &life.hold {
        HoldChange::Spec(spec) => (spec_if_it_waits(spec), String::new()),
        HoldChange::Field(path, value) => {
            let add = format!("[JSONPatch{{op: 'add', path: '{path}', value: {value}}}]");
            (String::new(), patches_if_it_waits(&add))
        }
        HoldChange::Patches(patches) => (String::new(), patches_if_it_waits(patches)),
    };
    let filling = [
        ("spec", spec),
        ("patch", patch),
        ("reports", reports()),
        ("owned", rows::owned(kind)),
        ("managed", rows::managed(life)),
        ("held", life.held.to_string()),
        ("freed", life.freed.to_string()),
        ("exempt", life.exempt.to_string()),
        ("copied", life.copied.to_string()),
    ];
    fill_in(include_str!("manifests/hold.yaml"), kind, &filling)
}

/// Returns the spec that holds an object, for an apply configuration.
fn spec_if_it_waits(spec: &str) -> String {
    format!(
        ",
          ?spec: variables.waits && !variables.held
            || variables.freed
            ? optional.of({spec})
            : optional.none()"
    )
}

/// Returns the patches that hold an object, before the rest of a JSON Patch.
fn patches_if_it_waits(patches: &str) -> String {
    format!(
        "(variables.waits && !variables.held || variables.freed
  ? {patches} : [])
+"
    )
}

/// Returns the policy on what an object must be like to be held.
fn refuse(kind: &Kind, life: &LifeExpressions, requires: Vec<(String, String)>) -> String {
    let requires = requires.into_iter().map(|(required, title)| {
        let filling = [("required", required), ("title", title)];
        fill_in(include_str!("manifests/require.yaml"), kind, &filling)
    });
    // The controller of an object that can't be held again may annotate it after its start, which must not be
    // hindered.
    let (operations, now) = if life.again {
        let annotated = "&& (request.operation == 'CREATE'
  || !('consul-semaphore.io/semaphore' in oldObject.metadata.?annotations.orValue({})))";
        ("CREATE, UPDATE", annotated)
    } else {
        ("CREATE", "")
    };
    let filling = [
        ("operations", operations.to_owned()),
        ("now", now.to_owned()),
        ("owned", rows::owned(kind)),
        ("managed", rows::managed(life)),
        ("requires", requires.collect()),
    ];
    fill_in(include_str!("manifests/refuse.yaml"), kind, &filling)
}

fn guard(kind: &Kind, life: &LifeExpressions) -> String {
    // An object that can be held again is held again. One that can't continues if it was granted its slots. If it
    // never was held, the policy leaves it alone, because its controller may copy annotations to it after its start.
    let (runs, started, late) = if life.again {
        let runs = include_str!("manifests/runs.yaml");
        (fill_in(runs, kind, &[]), "", "")
    } else {
        let never_ours = " || !(variables.held[0] || variables.holds)";
        (String::new(), " || variables.holds", never_ours)
    };
    let filling = [
        ("reports", reports()),
        ("owned", rows::owned(kind)),
        ("managed", rows::managed(life)),
        ("templates", life.templates.to_string()),
        ("held", life.held.to_string()),
        ("exempt", life.exempt.to_string()),
        ("ended", life.ended.to_string()),
        ("runs", runs),
        ("started", started.to_owned()),
        ("late", late.to_owned()),
    ];
    fill_in(include_str!("manifests/guard.yaml"), kind, &filling)
}

/// Returns the names that only the operator writes, one on each line.
fn reports() -> String {
    let names = OF_THE_OPERATOR.map(|name| format!("'{name}'"));
    names.join(",\n")
}

/// Returns a list in CEL.
fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    format!("[{}]", names.join(", "))
}

/// Puts texts in the places `@name@` of a template. If a place has a line of its own, its text may be empty or have
/// several lines, which get the indentation of that line.
fn fill_in(template: &str, kind: &Kind, filling: &Filling<'_>) -> String {
    let resource = kind.resource();
    let of_kind = [
        ("kind", resource.kind),
        ("plural", resource.plural),
        ("switch", kind.switch()),
        ("group", resource.group),
        ("version", resource.version),
    ];
    let all: Vec<&(&str, String)> = filling.iter().chain(&of_kind).collect();
    let mut filled = String::new();
    for line in template.lines() {
        let place = line.trim_start();
        let indent = &line[..line.len() - place.len()];
        let own = all.iter().find(|(name, _)| place == format!("@{name}@"));
        let lines: Vec<String> = match own {
            Some((_, text)) => text.lines().map(|text| format!("{indent}{text}")).collect(),
            None => vec![line.to_owned()],
        };
        for line in lines {
            let words = all.iter().fold(line, |line, (name, text)| {
                line.replace(&format!("@{name}@"), text)
            });
            filled.push_str(&words);
            filled.push('\n');
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_place_takes_lines_and_words() {
        let filling = [("rules", "a:\n- b\n".to_owned()), ("none", String::new())];
        let filled = fill_in(
            "@kind@ of @group@\n  @rules@\n  @none@\nend",
            &Kind::JobSet,
            &filling,
        );
        assert_eq!(filled, "JobSet of jobset.x-k8s.io\n  a:\n  - b\nend\n");
    }

    #[test]
    fn they_are_for_the_account_that_is_named() {
        let account: Account = "team-a:slots".parse().unwrap();
        for kind in Kind::all() {
            let usual = of_kind(&kind);
            let other = of_kind_for(&kind, &account);
            let user = "system:serviceaccount:team-a:slots";
            assert_eq!(other.contains(user), kind != Kind::Job);
            assert_eq!(of_kind_for(&kind, &Account::default()), usual);
            assert!(!other.contains("consul-semaphore-system"), "{other}");
            if kind != Kind::Job {
                assert!(
                    other.contains("- kind: ServiceAccount\n  name: slots\n  namespace: team-a\n")
                );
            }
        }
        for wrong in ["", "a", "a:", "a/b", "a:b:c", "A:b", "a:b'"] {
            assert_eq!(wrong.parse::<Account>(), Err(InvalidAccount), "{wrong}");
        }
    }

    #[test]
    fn it_is_known_which_policies_a_kind_has() {
        for kind in Kind::all() {
            let all = of_kind(&kind);
            let documents = all.split("---\n");
            let policies = documents.filter(|document| document.contains("AdmissionPolicy\n"));
            let made = policies.map(|policy| {
                let name = policy.split("name: ").nth(1).unwrap();
                name.lines().next().unwrap().to_owned()
            });
            let expected = admission::policies_of(&kind);
            let names = expected.iter().map(|policy| policy.name().to_owned());
            let known: BTreeSet<String> = names.filter(|_| kind != Kind::Job).collect();
            assert_eq!(made.collect::<BTreeSet<_>>(), known);
        }
    }

    /// The policies of Jobs are not made from templates.
    #[test]
    fn those_of_jobs_know_the_same_owners_as_the_operator() {
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let owned = plain(&rows::owned(&Kind::Job));
        for policy in [
            include_str!("../config/policies/suspend.yaml"),
            include_str!("../config/policies/guard.yaml"),
            include_str!("../config/policies/refuse.yaml"),
        ] {
            assert!(plain(policy).contains(&owned), "{owned}\n{policy}");
        }
    }

    #[test]
    fn every_place_is_filled() {
        for kind in Kind::all() {
            for text in [of_kind(&kind), operator(&kind), component(&kind)] {
                assert!(!text.contains('@'), "{text}");
            }
        }
    }
}
