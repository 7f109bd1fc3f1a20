//! A note about Jobs that name a `ConsulSemaphore` that does not exist in their namespace.

use std::collections::BTreeSet;

use consul_semaphore_workload::TrackedWorkload;

/// The number of Jobs that are named.
const NAMED_JOBS: usize = 5;

/// A semaphore that a Job names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    namespace: String,
    job: String,
    semaphore: String,
}

impl Reference {
    /// Returns the semaphores that a Job names. A Job that is done, being deleted or managed elsewhere does not wait
    /// for them, so it has none.
    pub(crate) fn of(workload: &TrackedWorkload) -> Vec<Self> {
        if workload.workload.has_ended() || workload.is_managed() {
            return Vec::new();
        }
        let semaphores = workload.semaphores().map(|semaphore| Self {
            namespace: workload.namespace.to_string(),
            job: workload.workload.name.to_string(),
            semaphore: semaphore.to_string(),
        });
        semaphores.collect()
    }
}

/// Returns a line about the Jobs whose semaphore is not among the `existing` ones, each a namespace and a name. `cut`
/// says that there are more Jobs than these.
pub(crate) fn line(
    references: &[Reference],
    existing: &BTreeSet<(String, String)>,
    cut: bool,
) -> Option<String> {
    let exists = |reference: &Reference| {
        existing.contains(&(reference.namespace.clone(), reference.semaphore.clone()))
    };
    let mut missing: Vec<&Reference> = references.iter().filter(|one| !exists(one)).collect();
    missing.sort();
    let number = missing.len();
    if number == 0 {
        return None;
    }
    let jobs = if number == 1 {
        "Job names"
    } else {
        "Jobs name"
    };
    let at_least = if cut { "at least " } else { "" };
    let mut names: Vec<String> = missing
        .iter()
        .take(NAMED_JOBS)
        .map(|reference| {
            let Reference {
                namespace,
                job,
                semaphore,
            } = reference;
            format!("{namespace}/{job} ({semaphore})")
        })
        .collect();
    if number > NAMED_JOBS {
        names.push("...".to_owned());
    }
    Some(format!(
        "{at_least}{number} {jobs} a ConsulSemaphore that does not exist: {}",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::samples::workload;

    fn references(names: &[&str]) -> Vec<Reference> {
        let read = |name: &&str| Reference::of(&workload(name, &json!({})));
        names.iter().flat_map(read).collect()
    }

    #[test]
    fn those_without_a_semaphore_are_named() {
        let none = BTreeSet::new();
        let db = BTreeSet::from([("batch".to_owned(), "db".to_owned())]);
        let elsewhere = BTreeSet::from([("web".to_owned(), "db".to_owned())]);
        let two = references(&["b", "a"]);
        assert_eq!(line(&two, &db, false), None);
        assert_eq!(line(&[], &none, true), None);
        let said = "2 Jobs name a ConsulSemaphore that does not exist: batch/a (db), batch/b (db)";
        for existing in [&none, &elsewhere] {
            assert_eq!(line(&two, existing, false).as_deref(), Some(said));
        }
        assert_eq!(
            line(&two[..1], &none, false).as_deref(),
            Some("1 Job names a ConsulSemaphore that does not exist: batch/b (db)")
        );
        let many = line(&references(&["a", "b", "c", "d", "e", "f"]), &none, true).unwrap();
        assert!(
            many.starts_with("at least 6 Jobs") && many.ends_with("batch/e (db), ..."),
            "{many}"
        );
    }

    #[test]
    fn one_that_names_nothing_is_none_of_these() {
        let malformed = workload("a", &json!({ "consul-semaphore.io/semaphore": "No Name" }));
        assert_eq!(Reference::of(&malformed), []);
    }
}
