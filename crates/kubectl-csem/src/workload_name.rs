//! A workload as a command line names it: NAME, or TYPE/NAME as in kubectl.

use consul_client::{clock::Moment, text::one_line};
use consul_semaphore::{KindName, Phase};
use consul_semaphore_workload::{Kind, Object, TrackedWorkload};
use kube::api::ApiResource;

use crate::failure::Failure;

/// The number of characters of an unknown type that are repeated.
const LONGEST_SHOWN_TYPE: usize = 63;

/// The kind and the name of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkloadName {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

/// Returns the kinds that can be named. Kueue's Workloads are left out, because they have the annotations of their
/// owners, which can be named.
fn kinds() -> impl Iterator<Item = Kind> {
    let all = Kind::all().into_iter();
    all.filter(|kind| *kind != Kind::KueueWorkload)
}

impl WorkloadName {
    /// Parses NAME, which is a Job, or TYPE/NAME. The error says what is allowed.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (kind, name) = match text.split_once('/') {
            Some((type_, name)) => (kind_of(type_).ok_or_else(|| unknown(type_))?, name),
            None => (Kind::Job, text),
        };
        let name = object_name(name)?;
        Ok(Self { kind, name })
    }

    /// Returns the workload of this kind and name; `None` if this program does not know the kind, or if no object can
    /// have such a name.
    pub(crate) fn of(kind: &KindName, name: &str) -> Option<Self> {
        let kind = kinds().find(|one| one.name() == *kind)?;
        let name = object_name(name).ok()?;
        Some(Self { kind, name })
    }

    /// Returns the title for people, as in `JobSet train`.
    pub(crate) fn title(&self) -> String {
        format!("{} {}", self.kind.name(), self.name)
    }

    /// Returns the type of such objects for a command of kubectl.
    pub(crate) fn type_(&self) -> String {
        singular(&self.kind.resource())
    }

    /// Returns the name of the workload on the command line of this program.
    pub(crate) fn argument(&self) -> String {
        match self.kind {
            Kind::Job => self.name.clone(),
            _ => format!("{}/{}", self.type_(), self.name),
        }
    }

    /// Returns what kubectl prints for the workload, as in `jobset.jobset.x-k8s.io/train`.
    pub(crate) fn printed(&self) -> String {
        let group = self.kind.resource().group;
        let dot = if group.is_empty() { "" } else { "." };
        format!("{}{dot}{group}/{}", self.type_(), self.name)
    }

    /// Reads the object that the API server has under this name; `None` if it neither asks for a slot nor was started
    /// in one.
    pub(crate) fn tracked(&self, object: &Object) -> Result<Option<TrackedWorkload>, Failure> {
        let read = TrackedWorkload::read_object(&self.kind, object, Moment::default());
        read.map_err(|error| self.unreadable(&error))
    }

    /// Returns what the workload is doing.
    pub(crate) fn phase(&self, object: &Object) -> Result<Phase, Failure> {
        let phase = self.kind.phase(object);
        phase.map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &serde_json::Error) -> Failure {
        let why = one_line(&error.to_string(), 200);
        Failure::impossible(format!("the {} can't be read: {why}", self.title()))
    }
}

/// Returns the kind of this type. The type is a plural, a singular or the name of a kind, in upper or lower case, with
/// or without its group.
pub(crate) fn kind_of(type_: &str) -> Option<Kind> {
    let (type_, group) = match type_.split_once('.') {
        Some((type_, group)) => (type_, Some(group)),
        None => (type_, None),
    };
    kinds().find(|kind| {
        let resource = kind.resource();
        let of_type =
            [&resource.plural, &resource.kind].map(|name| name.eq_ignore_ascii_case(type_));
        let of_group = group
            .is_none_or(|group| !group.is_empty() && resource.group.eq_ignore_ascii_case(group));
        of_type.contains(&true) && of_group
    })
}

fn singular(resource: &ApiResource) -> String {
    resource.kind.to_ascii_lowercase()
}

fn unknown(type_: &str) -> String {
    let known: Vec<String> = kinds().map(|kind| singular(&kind.resource())).collect();
    let type_ = one_line(type_, LONGEST_SHOWN_TYPE);
    let known = known.join(", ");
    format!("{type_:?} is not a type of workload: the types are {known}, as in jobset/NAME")
}

/// Parses the name of an object.
pub(crate) fn object_name(name: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if name.is_empty() || name.len() > 253 || !name.chars().all(allowed) {
        return Err("a name has lower case letters, digits, '-' and '.'".to_owned());
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_a_plural_a_singular_or_a_kind_in_any_case() {
        let kind = |text: &str| WorkloadName::parse(text).map(|named| named.kind);
        for text in ["train", "job/train", "Jobs/train", "jobs.batch/train"] {
            assert_eq!(kind(text), Ok(Kind::Job), "{text}");
        }
        for kind in kinds() {
            let resource = kind.resource();
            for type_ in [&resource.kind, &resource.plural, &singular(&resource)] {
                assert_eq!(kind_of(type_).as_ref(), Some(&kind), "{type_}");
                assert_eq!(
                    kind_of(&type_.to_uppercase()).as_ref(),
                    Some(&kind),
                    "{type_}"
                );
            }
            // The name is printed as by `kubectl get -o name`.
            let named = WorkloadName {
                kind,
                name: "train".to_owned(),
            };
            for text in [named.printed(), named.argument()] {
                assert_eq!(WorkloadName::parse(&text).as_ref(), Ok(&named), "{text}");
            }
        }
    }

    #[test]
    fn an_unknown_type_is_told_which_there_are() {
        for text in ["csem/db", "jobs.apps/a", "pods./a", "/a", "\u{1b}[2J/a"] {
            let error = WorkloadName::parse(text).unwrap_err();
            for kind in kinds() {
                let type_ = singular(&kind.resource());
                assert!(error.contains(&type_), "{type_} is not in: {error}");
            }
            assert!(!error.contains('\u{1b}'), "{error:?}");
        }
        let long = format!("{}/a", "x".repeat(100_000));
        assert!(WorkloadName::parse(&long).unwrap_err().len() < 300);
    }

    #[test]
    fn a_name_is_that_of_an_object() {
        for bad in ["", "job/", "A", "a b", "jobset/a/c", "../db", "jobset/a?b"] {
            assert!(WorkloadName::parse(bad).is_err(), "{bad:?}");
        }
        let train = WorkloadName::parse("JobSets/train").unwrap();
        let words = [train.title(), train.argument(), train.printed()];
        assert_eq!(
            words,
            [
                "JobSet train",
                "jobset/train",
                "jobset.jobset.x-k8s.io/train"
            ]
        );
        assert_eq!(WorkloadName::parse("pod/a").unwrap().printed(), "pod/a");
        for (kind, name) in [("Other", "a"), ("Job", "../a")] {
            assert_eq!(WorkloadName::of(&kind.into(), name), None, "{kind} {name}");
        }
    }
}
