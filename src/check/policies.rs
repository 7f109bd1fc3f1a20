//! The admission policies: whether they are there, and bound. The operator is right without them.

use serde_json::Value;

use super::{
    api_server::{Answer, ApiServer, Refusal},
    report::{Area, Line, Outcome},
};

/// A policy that belongs to the operator, and what is so without it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// Its name, and that of its binding.
    name: &'static str,
    kind: &'static str,
    /// The plural of the kind; that of the binding's is `<singular>bindings`.
    plural: &'static str,
    bindings: &'static str,
    /// What is so without it.
    without: &'static str,
    /// The Kubernetes that has such policies.
    since: &'static str,
}

/// Both of them.
pub(super) const POLICIES: [Policy; 2] = [
    Policy {
        name: "suspend.consul-semaphore.io",
        kind: "MutatingAdmissionPolicy",
        plural: "mutatingadmissionpolicies",
        bindings: "mutatingadmissionpolicybindings",
        without: "a Job that is made running is suspended when the operator sees it, and its pods may run \
                  until then",
        since: "1.36",
    },
    Policy {
        name: "guard.consul-semaphore.io",
        kind: "ValidatingAdmissionPolicy",
        plural: "validatingadmissionpolicies",
        bindings: "validatingadmissionpolicybindings",
        without: "a waiting Job that somebody starts is suspended when the operator sees it, and its pods \
                  may run until then",
        since: "1.30",
    },
];

/// What was read of a policy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Read {
    pub(super) policy: Answer,
    pub(super) binding: Answer,
}

/// Reads both.
pub(super) async fn read(server: &ApiServer) -> Vec<Read> {
    let mut all = Vec::new();
    for Policy {
        name,
        plural,
        bindings,
        ..
    } in &POLICIES
    {
        let path = |plural| format!("/apis/admissionregistration.k8s.io/v1/{plural}/{name}");
        all.push(Read {
            policy: server.get(&path(plural)).await,
            binding: server.get(&path(bindings)).await,
        });
    }
    all
}

/// What is to be said of them.
pub(super) fn lines(read: &[Read]) -> Vec<Line> {
    POLICIES.iter().zip(read).map(|(policy, read)| line(policy, read)).collect()
}

fn line(policy: &Policy, read: &Read) -> Line {
    let Policy {
        name,
        kind,
        without,
        since,
        ..
    } = policy;
    let line = |outcome, message: String| Line::new(Area::Kubernetes, *name, outcome, message);
    let unknown = |why: &Refusal| {
        line(Outcome::Unknown, format!("whether the {kind} is in force is not known: {why}"))
            .todo("nothing depends on it; ask as somebody who may get admission policies to know it")
    };
    match (&read.policy, &read.binding) {
        (Ok(_), Ok(binding)) if binds(policy, binding) => {
            line(Outcome::Ok, format!("the {kind} is there and bound"))
        }
        (Ok(_), Ok(_) | Err(Refusal::NotThere)) => {
            line(Outcome::Warning, format!("the {kind} is there, and nothing puts it in force: {without}"))
                .todo(format!("apply its {kind}Binding, too: it must name the policy, and deny"))
        }
        (Err(Refusal::NotThere), _) => {
            line(Outcome::Warning, format!("there is no such {kind}: {without}"))
                .todo(format!("nothing, if that will do; the policies need Kubernetes {since} or newer"))
        }
        (Err(why), _) | (_, Err(why)) => unknown(why),
    }
}

/// Whether this binding puts the policy in force.
fn binds(policy: &Policy, binding: &Value) -> bool {
    let spec = &binding["spec"];
    // Only a ValidatingAdmissionPolicy has actions to choose from.
    let acts = spec["validationActions"].as_array().is_none_or(|actions| {
        actions.iter().any(|action| action == "Deny")
    });
    spec["policyName"] == policy.name && acts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(policy: Answer, binding: Answer) -> (Outcome, bool) {
        let read = Read { policy, binding };
        let lines = lines(&[read.clone(), read]);
        (lines[1].outcome, lines[1].todo.is_some())
    }

    fn binding(name: &str, actions: &[&str]) -> Answer {
        Ok(json!({ "spec": { "policyName": name, "validationActions": actions } }))
    }

    #[test]
    fn a_policy_needs_a_binding_that_denies() {
        let guard = POLICIES[1].name;
        let there = || Ok(json!({}));
        assert_eq!(judged(there(), binding(guard, &["Deny"])), (Outcome::Ok, false));
        let not_there = Err(Refusal::NotThere);
        for without in [binding(guard, &["Audit"]), binding("another", &["Deny"]), not_there] {
            assert_eq!(judged(there(), without), (Outcome::Warning, true));
        }
    }

    #[test]
    fn without_the_policy_its_binding_says_nothing() {
        let guard = POLICIES[1].name;
        let said = judged(Err(Refusal::NotThere), binding(guard, &["Deny"]));
        assert_eq!(said, (Outcome::Warning, true));
    }

    #[test]
    fn what_may_not_be_read_is_not_known() {
        let hidden = || Err(Refusal::Forbidden("may not get it".to_owned()));
        for (policy, binding) in [(hidden(), hidden()), (Ok(json!({})), hidden())] {
            assert_eq!(judged(policy, binding), (Outcome::Unknown, true));
        }
    }
}
