//! Records which marks the operators of this API server have written, in an annotation of a Lease that is used for
//! nothing else.

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Version;
use crate::call::{CallError, call};

/// Name of the annotation of the Lease.
const ANNOTATION: &str = "consul-semaphore.io/identity";

/// Number of processes that are remembered. An older process has not written for as many changes of the leader.
const PROCESSES: usize = 100;

/// Number of attempts to write the Lease when somebody else is faster each time.
const ATTEMPTS: usize = 4;

/// The last version of each process, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct History(Vec<Version>);

impl History {
    /// Returns whether a version was written through this API server.
    pub(super) fn has(&self, version: &Version) -> bool {
        self.0.iter().any(|known| known.covers(version))
    }

    /// Notes that a version is about to be written. A process may write two versions at once if the mark's datacenter
    /// has two names; the later version stays, whichever is noted first.
    pub(super) fn note(&mut self, version: Version) {
        let place = self
            .0
            .iter()
            .position(|known| known.writer == version.writer);
        let known = place.map(|place| self.0.remove(place));
        let latest = known.filter(|known| known.covers(&version));
        self.0.insert(0, latest.unwrap_or(version));
        self.0.truncate(PROCESSES);
    }

    /// Adds all versions of another history.
    pub(super) fn merge(&mut self, other: Self) {
        for version in other.0.into_iter().rev() {
            if !self.has(&version) {
                self.note(version);
            }
        }
    }

    /// Returns the history in a Lease. A history that can't be read counts as empty: the operator then waits until
    /// the mark in Consul expires.
    fn of(lease: &Lease) -> Self {
        let annotations = lease.metadata.annotations.as_ref();
        let text = annotations.and_then(|annotations| annotations.get(ANNOTATION));
        text.map_or_else(Self::default, |text| Self::parse(text))
    }

    /// Returns the history in the annotations of a Lease, as JSON.
    pub(crate) fn in_annotations(annotations: &Value) -> Self {
        let text = annotations[ANNOTATION].as_str();
        text.map_or_else(Self::default, Self::parse)
    }

    fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// The history in the API server.
pub(crate) struct LeaseHistory {
    leases: Api<Lease>,
    name: String,
}

impl LeaseHistory {
    pub(crate) fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
        }
    }

    /// Reads the history.
    pub(crate) async fn read(&self) -> Result<History, CallError> {
        let lease = call(self.leases.get_opt(&self.name)).await?;
        Ok(lease.as_ref().map(History::of).unwrap_or_default())
    }

    /// Adds a version. The caller does so before it writes the version to Consul.
    pub(super) async fn note(&self, version: &Version) -> Result<(), CallError> {
        for _ in 1..ATTEMPTS {
            let answer = self.try_to_note(version).await;
            let refusal = answer.as_ref().err().and_then(CallError::refusal);
            if refusal.is_none_or(|(code, _)| code != 409) {
                return answer;
            }
        }
        self.try_to_note(version).await
    }

    /// Tries once to add a version. The write names the version of the Lease that was read, so nothing that others
    /// write into the Lease is lost.
    async fn try_to_note(&self, version: &Version) -> Result<(), CallError> {
        let found = call(self.leases.get_opt(&self.name)).await?;
        let exists = found.is_some();
        let mut lease = found.unwrap_or_default();
        let mut history = History::of(&lease);
        history.note(version.clone());
        // The history has only strings and numbers, so writing it cannot fail.
        let text = serde_json::to_string(&history).unwrap_or_default();
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(ANNOTATION.to_owned(), text);
        let params = PostParams::default();
        if exists {
            call(self.leases.replace(&self.name, &params, &lease)).await?;
        } else {
            lease.metadata.name = Some(self.name.clone());
            call(self.leases.create(&params, &lease)).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::identity) fn version(writer: &str, number: u64) -> Version {
        Version {
            writer: writer.to_owned(),
            number,
        }
    }

    #[test]
    fn each_process_is_remembered_by_its_last_version_and_the_oldest_is_forgotten() {
        let mut history = History::default();
        for number in 0..3 {
            history.note(version("a", number));
        }
        assert_eq!(history.0, [version("a", 2)]);
        for other in 0..PROCESSES - 1 {
            history.note(version(&other.to_string(), 0));
        }
        assert!(history.has(&version("a", 2)));
        history.note(version("one more", 0));
        assert!(!history.has(&version("a", 2)));
        assert_eq!(history.0.len(), PROCESSES);
    }

    #[test]
    fn the_later_of_two_versions_stays_whichever_is_noted_first() {
        let mut history = History::default();
        for number in [1, 3, 2] {
            history.note(version("a", number));
        }
        assert_eq!(history.0, [version("a", 3)]);
    }

    #[test]
    fn an_older_reading_takes_nothing_away() {
        let history = |versions: &[(&str, u64)]| {
            let mut history = History::default();
            for (writer, number) in versions.iter().rev() {
                history.note(version(writer, *number));
            }
            history
        };
        let mut seen = history(&[("b", 5), ("a", 9)]);
        seen.merge(history(&[("c", 0), ("b", 2)]));
        assert_eq!(seen, history(&[("c", 0), ("b", 5), ("a", 9)]));
    }

    #[test]
    fn what_somebody_else_wrote_into_the_annotation_is_no_history() {
        let mut lease = Lease::default();
        for text in ["", "x", "{}", "[1]"] {
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(ANNOTATION.to_owned(), text.to_owned());
            assert_eq!(History::of(&lease), History::default(), "{text}");
        }
    }

    #[test]
    fn the_bytes_in_the_lease() {
        let mut history = History::default();
        history.note(version("a", 7));
        let text = serde_json::to_string(&history).unwrap();
        assert_eq!(text, r#"[{"writer":"a","number":7}]"#);
    }
}
