//! The owners that decide when a workload runs that they made. The operator and its admission policies follow the same
//! table: [`Kind::owners_that_decide`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::Kind;

/// A kind of object that makes workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerKind {
    /// API group of the kind.
    pub group: &'static str,
    /// Name of the kind.
    pub kind: &'static str,
}

/// The kinds whose objects make one workload after another and do not decide when each of them runs. Each workload
/// waits by itself.
pub const MAKERS: [OwnerKind; 2] = [
    OwnerKind {
        group: "batch",
        kind: "CronJob",
    },
    OwnerKind {
        group: "argoproj.io",
        kind: "CronWorkflow",
    },
];

/// The kinds whose controllers suspend and resume the Jobs of an object together with the object.
const SUSPENDERS: [OwnerKind; 2] = [
    OwnerKind {
        group: "jobset.x-k8s.io",
        kind: "JobSet",
    },
    OwnerKind {
        group: "kubeflow.org",
        kind: "MPIJob",
    },
];

/// The owners that decide when a workload runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnersThatDecide {
    /// Only owners of these kinds decide. Any other owner waits until the workload that it made has run.
    Only(&'static [OwnerKind]),
    /// All owners decide, except owners of these kinds.
    AllBut(&'static [OwnerKind]),
}

impl Kind {
    /// Returns the owners that decide when a workload of this kind runs. Most owners of a Job, such as a step of a
    /// Workflow, leave the Job alone until it has run. What the owners of other kinds do is not known, so they are
    /// assumed to decide.
    pub fn owners_that_decide(&self) -> OwnersThatDecide {
        match self {
            Self::Job => OwnersThatDecide::Only(&SUSPENDERS),
            _ => OwnersThatDecide::AllBut(&MAKERS),
        }
    }
}

impl OwnersThatDecide {
    /// Whether this owner decides: it is the controller of the workload, and of a kind that decides.
    pub(crate) fn include(self, owner: &OwnerReference) -> bool {
        owner.controller == Some(true)
            && match self {
                Self::Only(kinds) => is_any(owner, kinds),
                Self::AllBut(kinds) => !is_any(owner, kinds),
            }
    }
}

/// Whether an owner is of one of these kinds.
pub(crate) fn is_any(owner: &OwnerReference, kinds: &[OwnerKind]) -> bool {
    let (group, _) = owner.api_version.split_once('/').unwrap_or_default();
    let is = |known: &OwnerKind| known.group == group && known.kind == owner.kind;
    kinds.iter().any(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(api_version: &str, kind: &str) -> OwnerReference {
        OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        }
    }

    #[test]
    fn who_decides() {
        for (api_version, kind, of_job, of_others) in [
            ("batch/v1", "CronJob", false, false),
            ("argoproj.io/v1alpha1", "CronWorkflow", false, false),
            ("example.com/v1", "CronJob", false, true),
            ("jobset.x-k8s.io/v1alpha2", "JobSet", true, true),
            ("kubeflow.org/v2beta1", "MPIJob", true, true),
            ("example.com/v1", "JobSet", false, true),
            ("argoproj.io/v1alpha1", "Workflow", false, true),
            ("v1", "ConfigMap", false, true),
        ] {
            let mut owner = owner(api_version, kind);
            for of in Kind::all() {
                let decides = if of == Kind::Job { of_job } else { of_others };
                let decide = of.owners_that_decide();
                assert_eq!(decide.include(&owner), decides, "{kind} of {}", of.name());
            }
            owner.controller = None;
            assert!(!Kind::Pod.owners_that_decide().include(&owner));
        }
    }
}
