//! The holder of a slot.

use serde::Serialize;

/// The kinds of holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Kind {
    /// A Job of a cluster.
    Job,
    /// Another workload of a cluster. Its name begins with its kind.
    Workload,
    /// A command of `consul-semaphore exec`.
    Process,
    /// A foreign program.
    Program,
    /// Nothing is known of the holder.
    Unknown,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Job => "Job",
            Self::Workload => "Workload",
            Self::Process => "Process",
            Self::Program => "Program",
            Self::Unknown => "Unknown",
        }
    }
}

/// A holder, parsed from its name in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) kind: Kind,
    /// The cluster of a Job, the host of a process, the Consul node of a program's session.
    pub(crate) place: String,
    /// `namespace/name` of a Job, the command of a process, the name of a program's session.
    pub(crate) name: String,
}

impl Who {
    /// Parses `status.holders[].holder`: `<cluster> <namespace>/<name>`, `<cluster> <kind>:<namespace>/<name>`,
    /// `<host> <command>` or
    /// `<session's name> on <node>`. A session's name can be any text, so that form is checked first.
    pub(crate) fn read(holder: Option<&str>) -> Self {
        let Some(text) = holder else {
            return Self::new(Kind::Unknown, "", "");
        };
        if let Some(node) = text.strip_prefix("on ") {
            return Self::new(Kind::Program, node, "");
        }
        if let Some((name, node)) = text
            .rsplit_once(" on ")
            .filter(|(_, node)| !node.contains(' '))
        {
            return Self::new(Kind::Program, node, name);
        }
        match text.split_once(' ') {
            Some((place, name)) if name.contains(' ') || place.is_empty() => {
                Self::new(Kind::Unknown, "", text)
            }
            Some((cluster, name)) if is_other_workload(name) => {
                Self::new(Kind::Workload, cluster, name)
            }
            Some((cluster, job)) if job.contains('/') => Self::new(Kind::Job, cluster, job),
            Some((host, command)) => Self::new(Kind::Process, host, command),
            None => Self::new(Kind::Unknown, "", text),
        }
    }

    fn new(kind: Kind, place: &str, name: &str) -> Self {
        Self {
            kind,
            place: place.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// Whether the kind is before the namespace: it is no Job's.
fn is_other_workload(name: &str) -> bool {
    let kind = name.split_once('/').and_then(|(of, _)| of.split_once(':'));
    kind.is_some_and(|(kind, _)| kind.starts_with(|first: char| first.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use consul_semaphore::{Cluster, ContenderBody, Identity, identity};
    use jiff::Timestamp;

    use super::*;

    /// The operator's name for a contender of this namespace and name.
    fn called(cluster: &str, namespace: &str, name: &str) -> Who {
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
        Who::read(Some(&body.holder()))
    }

    #[test]
    fn what_the_operator_calls_holders_is_understood() {
        let job = called("prod-eu", "batch", "migrate-42");
        assert_eq!(job, Who::new(Kind::Job, "prod-eu", "batch/migrate-42"));
        let process = called("ci-7", identity::NONE, "deploy");
        assert_eq!(process, Who::new(Kind::Process, "ci-7", "deploy"));
        let other = Who::read(Some("prod-eu JobSet:batch/train"));
        assert_eq!(
            other,
            Who::new(Kind::Workload, "prod-eu", "JobSet:batch/train")
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
            assert_eq!(Who::read(Some(text)), Who::new(Kind::Program, place, name));
        }
        for text in ["", "one", "three words here", " x"] {
            assert_eq!(Who::read(Some(text)), Who::new(Kind::Unknown, "", text));
        }
        assert_eq!(Who::read(None), Who::new(Kind::Unknown, "", ""));
    }
}
