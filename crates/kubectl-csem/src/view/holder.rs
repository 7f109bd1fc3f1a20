//! The holder of a slot.

use consul_semaphore_workload::KIND;
use serde::Serialize;

/// The kind of a holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum ParsedHolderKind {
    /// A Job of a cluster.
    Job,
    /// A command of `consul-semaphore exec`.
    Process,
    /// A foreign program.
    Program,
    /// The holder is not known.
    Unknown,
    /// A workload of another kind, of a cluster.
    #[serde(untagged)]
    Workload(String),
}

impl ParsedHolderKind {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Job => "Job",
            Self::Workload(kind) => kind,
            Self::Process => "Process",
            Self::Program => "Program",
            Self::Unknown => "Unknown",
        }
    }
}

/// A holder, parsed from its name in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedHolder {
    pub(crate) kind: ParsedHolderKind,
    /// The cluster of a workload, the host of a process, or the Consul node of a program's session.
    pub(crate) place: String,
    /// `namespace/name` of a workload, the command of a process, or the name of a program's session.
    pub(crate) name: String,
}

impl ParsedHolder {
    /// Parses `status.holders[].holder`, which has one of the forms `<cluster> <namespace>/<name>`, `<cluster>
    /// <kind>:<namespace>/<name>`, `<host> <command>` and `<session's name> on <node>`. The last form is checked first,
    /// because a session's name can be any text.
    pub(crate) fn read(holder: Option<&str>) -> Self {
        let Some(text) = holder else {
            return Self::new(ParsedHolderKind::Unknown, "", "");
        };
        if let Some(node) = text.strip_prefix("on ") {
            return Self::new(ParsedHolderKind::Program, node, "");
        }
        if let Some((name, node)) = text
            .rsplit_once(" on ")
            .filter(|(_, node)| !node.contains(' '))
        {
            return Self::new(ParsedHolderKind::Program, node, name);
        }
        match text.split_once(' ') {
            Some((place, name)) if name.contains(' ') || place.is_empty() => {
                Self::new(ParsedHolderKind::Unknown, "", text)
            }
            Some((cluster, name)) if name.contains('/') => match other_workload(name) {
                Some((kind, name)) => {
                    let kind = ParsedHolderKind::Workload(kind.to_owned());
                    Self::new(kind, cluster, name)
                }
                None => Self::new(ParsedHolderKind::Job, cluster, name),
            },
            Some((host, command)) => Self::new(ParsedHolderKind::Process, host, command),
            None => Self::new(ParsedHolderKind::Unknown, "", text),
        }
    }

    fn new(kind: ParsedHolderKind, place: &str, name: &str) -> Self {
        Self {
            kind,
            place: place.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// Returns the kind and the name of a workload that is no Job. The kind stands before the namespace.
fn other_workload(name: &str) -> Option<(&str, &str)> {
    let (kind, name) = name.split_once(':')?;
    let is_kind = kind.starts_with(|first: char| first.is_ascii_uppercase()) && !kind.contains('/');
    is_kind.then_some((kind, name))
}

/// Returns the title of a workload in a column of Jobs: its name alone, or `KIND/NAME` if it is of another kind.
pub(crate) fn title(kind: &str, name: &str) -> String {
    if kind == KIND {
        return name.to_owned();
    }
    format!("{kind}/{name}")
}

#[cfg(test)]
mod tests {
    use consul_semaphore::{Cluster, ContenderBody, Identity, identity};
    use jiff::Timestamp;

    use super::*;

    /// Parses the operator's name for a contender of this namespace and name.
    fn called(cluster: &str, namespace: &str, name: &str) -> ParsedHolder {
        let cluster = Cluster {
            name: cluster.into(),
            id: "c".into(),
        };
        let identity = Identity {
            cluster: "c".into(),
            namespace: namespace.into(),
            semaphore: "db".into(),
            key: None,
            kind: consul_semaphore::KindName::default(),
            workload: name.into(),
            uid: "u".into(),
            ordinal: 0,
        };
        let body = ContenderBody::new(&cluster, &identity, Timestamp::UNIX_EPOCH, false);
        ParsedHolder::read(Some(&body.holder()))
    }

    #[test]
    fn what_the_operator_calls_holders_is_understood() {
        let job = called("prod-eu", "batch", "migrate-42");
        assert_eq!(
            job,
            ParsedHolder::new(ParsedHolderKind::Job, "prod-eu", "batch/migrate-42")
        );
        let process = called("ci-7", identity::NONE, "deploy");
        assert_eq!(
            process,
            ParsedHolder::new(ParsedHolderKind::Process, "ci-7", "deploy")
        );
        let other = ParsedHolder::read(Some("prod-eu JobSet:batch/train"));
        assert_eq!(
            other,
            ParsedHolder::new(
                ParsedHolderKind::Workload("JobSet".into()),
                "prod-eu",
                "batch/train"
            )
        );
    }

    #[test]
    fn what_others_call_theirs_is_left_as_it_is() {
        for (text, place, name) in [
            (
                "Consul API Semaphore on web-1",
                "web-1",
                "Consul API Semaphore",
            ),
            ("on web-1", "web-1", ""),
            ("prod batch/x on web-1", "web-1", "prod batch/x"),
            ("a on b on web-1", "web-1", "a on b"),
        ] {
            let program = ParsedHolder::new(ParsedHolderKind::Program, place, name);
            assert_eq!(ParsedHolder::read(Some(text)), program);
        }
        for text in ["", "one", "three words here", " x"] {
            let unknown = ParsedHolder::new(ParsedHolderKind::Unknown, "", text);
            assert_eq!(ParsedHolder::read(Some(text)), unknown);
        }
        let unknown = ParsedHolder::new(ParsedHolderKind::Unknown, "", "");
        assert_eq!(ParsedHolder::read(None), unknown);
    }
}
