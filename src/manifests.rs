//! What a kind of workload needs in a cluster beside the operator: its rights, and admission policies that hold it,
//! guard it, and limit what the operator may do with it. As YAML, made of the same templates for each kind.
//!
//! What differs between kinds is a row of CEL expressions (`rows.rs`). `config/workloads` and the chart have the result.

mod listed;
mod rows;

use consul_semaphore_api::annotations::OF_THE_OPERATOR;
use consul_semaphore_workload::Kind;

use self::rows::{Hold, Life, Policies, Writes};
use crate::check::rights::rules_of;

/// The places of a template, and what is put there.
type Filling<'a> = [(&'a str, String)];

/// The rights and the policies of a kind that `--workloads` switches on. Empty for Jobs, whose rights and policies are
/// in `config/rbac` and `config/policies`.
pub fn of_kind(kind: &Kind) -> String {
    let mut documents = vec![rights(kind)];
    match rows::policies(kind) {
        Policies::OfJobs => return String::new(),
        // Kueue makes it, and holds it.
        Policies::OfKueue => {
            let active = fill_in(include_str!("manifests/kueue.yaml"), kind, &[]);
            documents.extend([active, operator(kind)]);
        }
        Policies::Own(life) => {
            documents.extend([hold(kind, &life), guard(kind, &life), operator(kind)]);
            let requires = listed::requires(kind);
            documents.extend(requires.map(|requires| refuse(kind, &life, requires)));
        }
    }
    documents.join("---\n")
}

/// The policy that limits what the operator may do with a kind.
pub fn operator(kind: &Kind) -> String {
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
    // Kueue's are rejected instead.
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

/// The component of kustomize that brings all of it, and the flag.
pub fn component(kind: &Kind) -> String {
    fill_in(include_str!("manifests/component.yaml"), kind, &[])
}

fn rights(kind: &Kind) -> String {
    let rules = rules_of(kind);
    let rules = rules.iter().map(|rule| {
        let (group, resource, verbs) = (&rule.group, &rule.resource, rule.verbs.join(", "));
        format!("- apiGroups: [\"{group}\"]\n  resources: [{resource}]\n  verbs: [{verbs}]\n")
    });
    let filling = [("rules", rules.collect())];
    fill_in(include_str!("manifests/rights.yaml"), kind, &filling)
}

fn hold(kind: &Kind, life: &Life) -> String {
    let (spec, patch) = match &life.hold {
        Hold::Spec(spec) => (spec_if_it_waits(spec), String::new()),
        Hold::Field(path, value) => {
            let add = format!("[JSONPatch{{op: 'add', path: '{path}', value: {value}}}]");
            (String::new(), patches_if_it_waits(&add))
        }
        Hold::Patches(patches) => (String::new(), patches_if_it_waits(patches)),
    };
    let filling = [
        ("spec", spec),
        ("patch", patch),
        ("reports", reports()),
        ("owned", rows::owned("it")),
        ("managed", rows::managed(life)),
        ("held", life.held.to_string()),
        ("exempt", life.exempt.to_string()),
        ("copied", life.copied.to_string()),
    ];
    fill_in(include_str!("manifests/hold.yaml"), kind, &filling)
}

/// What holds it, in an apply configuration.
fn spec_if_it_waits(spec: &str) -> String {
    format!(
        ",
          ?spec: variables.waits && !variables.held
            ? optional.of({spec})
            : optional.none()"
    )
}

/// The same before the rest of a JSON Patch.
fn patches_if_it_waits(patches: &str) -> String {
    format!(
        "(variables.waits && !variables.held
  ? {patches} : [])
+"
    )
}

/// The policy on what an object must be like to be held.
fn refuse(kind: &Kind, life: &Life, requires: Vec<(String, String)>) -> String {
    let requires = requires.into_iter().map(|(required, title)| {
        let filling = [("required", required), ("title", title)];
        fill_in(include_str!("manifests/require.yaml"), kind, &filling)
    });
    let filling = [
        ("owned", rows::owned("it")),
        ("managed", rows::managed(life)),
        ("requires", requires.collect()),
    ];
    fill_in(include_str!("manifests/refuse.yaml"), kind, &filling)
}

fn guard(kind: &Kind, life: &Life) -> String {
    // What can be held again is; what can't goes on if it was granted its slots, and is nobody's business if it never
    // was held: its controller may copy annotations to it after its start.
    let (runs, started, late) = if life.again {
        let runs = include_str!("manifests/runs.yaml");
        (fill_in(runs, kind, &[]), "", "")
    } else {
        let never_ours = " || !(variables.held[0] || variables.holds)";
        (String::new(), " || variables.holds", never_ours)
    };
    let filling = [
        ("reports", reports()),
        ("owned", rows::owned("it")),
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

/// What only the operator writes, a name on each line.
fn reports() -> String {
    let names = OF_THE_OPERATOR.map(|name| format!("'{name}'"));
    names.join(",\n")
}

/// A list of CEL.
fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    format!("[{}]", names.join(", "))
}

/// Puts texts in the places `@name@` of a template. A text for a place that has a line of its own may have several
/// lines, which are indented as that is, or none.
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
    fn every_place_is_filled() {
        for kind in Kind::all() {
            for text in [of_kind(&kind), operator(&kind), component(&kind)] {
                assert!(!text.contains('@'), "{text}");
            }
        }
    }
}
