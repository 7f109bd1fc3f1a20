//! Defines the mark: a key in Consul, locked by a session, whose value shows which operator uses the identity of a
//! cluster.

use serde::{Deserialize, Serialize};

use super::{History, Place};
use consul_client::{Entry, SessionId, text::one_line};

/// One version of the mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version {
    /// Random name of the process that wrote this version.
    pub(super) writer: String,
    /// Number of versions that the process wrote before.
    pub(super) number: u64,
}

impl Version {
    /// Returns the first version of a new process.
    pub(super) fn first() -> Self {
        Self {
            writer: format!("{:032x}", fastrand::u128(..)),
            number: 0,
        }
    }

    /// Returns the version that the same process writes after this one.
    pub(super) fn next(&self) -> Self {
        Self {
            writer: self.writer.clone(),
            number: self.number + 1,
        }
    }

    /// Returns whether the other version is of the same process, and not newer than this one.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.writer == other.writer && other.number <= self.number
    }
}

/// The value of the key, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    #[serde(flatten)]
    pub(super) version: Version,
    /// Name of the cluster, for people.
    pub(super) cluster: String,
    /// Name of the replica that wrote the mark, for people.
    pub(super) replica: String,
}

/// Returns the key of the mark. Operators that each manage a part of one cluster have Leases of their own, and so
/// marks of their own.
pub(crate) fn mark_key(place: &Place) -> String {
    let Place {
        cluster,
        node,
        namespace,
        lease,
        ..
    } = place;
    let id = &cluster.id;
    format!("service/consul-semaphore-operator/{node}/{id}/{namespace}/{lease}")
}

/// The meaning of a reading of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MarkOwner {
    /// No session keeps the mark, so the identity is free.
    Free,
    /// This process wrote the mark.
    Mine(SessionId),
    /// An operator of this API server wrote the mark, and only this one of them leads now.
    OfThisApiServer(SessionId),
    /// An operator of another API server wrote the mark, or somebody else; `None` if it can't be read.
    Foreign(Option<Mark>),
}

/// Decides whose mark this is. `last` is the last version that this process wrote, here or in another datacenter;
/// `history` has the versions that the operators of this API server have written.
pub(super) fn judge(entry: Option<&Entry>, last: Option<&Version>, history: &History) -> MarkOwner {
    let held = entry.and_then(|entry| Some((entry, entry.session.clone()?)));
    let Some((entry, session)) = held else {
        return MarkOwner::Free;
    };
    let Ok(mark) = serde_json::from_slice::<Mark>(&entry.value) else {
        return MarkOwner::Foreign(None);
    };
    if last.is_some_and(|last| last.covers(&mark.version)) {
        MarkOwner::Mine(session)
    } else if history.has(&mark.version) {
        MarkOwner::OfThisApiServer(session)
    } else {
        MarkOwner::Foreign(Some(mark))
    }
}

/// Returns the replica that keeps this mark, if it belongs to the API server with this history. Otherwise the error
/// has the mark, if it can be read.
pub(crate) fn judge_for_people(entry: &Entry, history: &History) -> Result<String, Option<Mark>> {
    match judge(Some(entry), None, history) {
        MarkOwner::Foreign(mark) => Err(mark),
        MarkOwner::Free | MarkOwner::Mine(_) | MarkOwner::OfThisApiServer(_) => {
            let mark = serde_json::from_slice::<Mark>(&entry.value);
            Ok(mark.map(|mark| mark.replica).unwrap_or_default())
        }
    }
}

/// Returns the message for people when another API server uses the identity.
pub(crate) fn conflict(key: &str, id: &str, mark: Option<&Mark>) -> String {
    let who = mark.map_or_else(
        || "a session with a value that can't be read".to_owned(),
        |mark| {
            let Mark {
                cluster, replica, ..
            } = mark;
            let (cluster, replica) = (one_line(cluster, 63), one_line(replica, 253));
            format!("the operator {replica:?} of a cluster named {cluster:?}")
        },
    );
    format!(
        "another API server uses the identity of this cluster, {id}: the key {key} in Consul is held by {who}, and no \
         operator of this API server wrote it. So one of the two clusters is a copy, such as a restored backup or a \
         cloned image. Nothing is granted, released, suspended or ended here. Give the operator of the copy an \
         identity of its own with --cluster-id (CLUSTER_ID). If the other cluster no longer exists, delete the key; \
         otherwise this cluster continues automatically after at most 10 minutes"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{identity::history::tests::version, samples::entry};

    fn mark(writer: &str, number: u64) -> Mark {
        Mark {
            version: version(writer, number),
            cluster: "prod".to_owned(),
            replica: "operator-0".to_owned(),
        }
    }

    /// In the history of this API server, the process `a` wrote 8 marks, and `b`, which led before it, wrote 4.
    #[test]
    fn the_table() {
        let mut history = History::default();
        history.note(version("b", 3));
        history.note(version("a", 7));
        let session = || SessionId::from("s");
        let foreign = |writer: &str, number| MarkOwner::Foreign(Some(mark(writer, number)));
        let mine = version("me", 5);
        for (why, writer, number, last, expected) in [
            (
                "written last",
                "me",
                5,
                Some(&mine),
                MarkOwner::Mine(session()),
            ),
            (
                "restored by Consul from an older snapshot",
                "me",
                2,
                Some(&mine),
                MarkOwner::Mine(session()),
            ),
            (
                "written with this process's memory by a copy of the machine",
                "me",
                6,
                Some(&mine),
                foreign("me", 6),
            ),
            (
                "by the last leader",
                "a",
                7,
                None,
                MarkOwner::OfThisApiServer(session()),
            ),
            (
                "by the last leader, which crashed before its last write reached Consul",
                "a",
                6,
                None,
                MarkOwner::OfThisApiServer(session()),
            ),
            (
                "by the leader before it",
                "b",
                3,
                Some(&mine),
                MarkOwner::OfThisApiServer(session()),
            ),
            (
                "by the same process after the snapshot of etcd",
                "a",
                8,
                None,
                foreign("a", 8),
            ),
            ("by an unknown process", "c", 0, None, foreign("c", 0)),
        ] {
            let value = serde_json::to_vec(&mark(writer, number)).unwrap();
            let held = entry(value.clone(), Some("s"));
            assert_eq!(judge(Some(&held), last, &history), expected, "{why}");
            let left = entry(value, None);
            assert_eq!(judge(Some(&left), last, &history), MarkOwner::Free, "{why}");
        }
        assert_eq!(judge(None, Some(&mine), &history), MarkOwner::Free);
        let by_hand = entry("maintenance", Some("s"));
        assert_eq!(
            judge(Some(&by_hand), None, &history),
            MarkOwner::Foreign(None)
        );
    }

    /// Operators of different versions read this value, both during an upgrade and when only one of two clusters is
    /// upgraded.
    #[test]
    fn the_bytes_in_consul() {
        let value = r#"{"writer":"a","number":7,"cluster":"prod","replica":"operator-0"}"#;
        assert_eq!(serde_json::to_string(&mark("a", 7)).unwrap(), value);
        assert_eq!(serde_json::from_str::<Mark>(value).unwrap(), mark("a", 7));
        let place = Place {
            cluster: consul_semaphore::Cluster {
                name: "prod".to_owned(),
                id: "7d0d".to_owned(),
            },
            node: "k8s-7d0d".into(),
            replica: "operator-0".into(),
            namespace: "ops".to_owned(),
            lease: "consul-semaphore-operator".to_owned(),
        };
        assert_eq!(
            mark_key(&place),
            "service/consul-semaphore-operator/k8s-7d0d/7d0d/ops/consul-semaphore-operator"
        );
    }

    #[test]
    fn a_message_quotes_no_control_characters() {
        let mut hostile = mark("a", 1);
        hostile.cluster = "x\u{1b}[31m".repeat(100);
        let message = conflict("k", "id", Some(&hostile));
        assert!(!message.contains('\u{1b}'), "{message}");
        assert!(message.contains("--cluster-id"), "{message}");
        assert!(message.len() < 1500, "{}", message.len());
    }
}
