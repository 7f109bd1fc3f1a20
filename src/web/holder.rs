//! Parses, for people, the text in the status that says who holds a slot, in one of three forms. No decision depends
//! on the result, because anybody who may write a contender's key can claim any identity.

use serde::Serialize;

/// The holder of a slot, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Holder<'a> {
    kind: HolderType,
    /// Kind of a workload that is not a Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<&'a str>,
    /// Name of the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    /// Place of the holder: the cluster of a workload, the host of a process, the Consul node of another program's
    /// session.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<&'a str>,
}

/// The kind of holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum HolderType {
    /// A Job of a cluster with this operator holds the slot.
    Job,
    /// Another workload of such a cluster holds the slot.
    Workload,
    /// A command that runs in a slot, by `consul-semaphore exec`.
    Process,
    /// Another program holds the slot.
    Program,
    /// Only the session of the holder is known.
    Unknown,
}

impl<'a> Holder<'a> {
    /// Reads `status.holders[].holder`.
    pub(super) fn read(text: Option<&'a str>) -> Self {
        let of = |kind, name, place| Self {
            kind,
            workload: None,
            name,
            place,
        };
        let Some(text) = text else {
            return of(HolderType::Unknown, None, None);
        };
        if let Some(node) = text.strip_prefix("on ") {
            return of(HolderType::Program, None, Some(node));
        }
        if let Some((name, node)) = text.rsplit_once(" on ") {
            return of(HolderType::Program, Some(name), Some(node));
        }
        match text.split_once(' ') {
            Some((_, name)) if name.contains(' ') => of(HolderType::Unknown, Some(text), None),
            Some((cluster, name)) if name.contains('/') => match other_workload(name) {
                Some((workload, name)) => Self {
                    workload: Some(workload),
                    ..of(HolderType::Workload, Some(name), Some(cluster))
                },
                None => of(HolderType::Job, Some(name), Some(cluster)),
            },
            Some((host, name)) => of(HolderType::Process, Some(name), Some(host)),
            None => of(HolderType::Unknown, Some(text), None),
        }
    }
}

/// Returns the kind and the name of a workload that is not a Job. The kind is before the namespace.
fn other_workload(name: &str) -> Option<(&str, &str)> {
    let (kind, name) = name.split_once(':')?;
    let is_kind = kind.starts_with(|first: char| first.is_ascii_uppercase()) && !kind.contains('/');
    is_kind.then_some((kind, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use consul_semaphore::{Cluster, ContenderBody, Identity, KindName};

    fn read(text: &str) -> (HolderType, Option<&str>, Option<&str>) {
        let holder = Holder::read(Some(text));
        (holder.kind, holder.name, holder.place)
    }

    /// Checks that the text that this program writes into its own contenders is read back.
    #[test]
    fn jobs_and_processes_are_known_by_their_bodies() {
        let cluster = Cluster {
            name: "prod-eu".into(),
            id: "c-1".into(),
        };
        let mut identity = Identity {
            cluster: "c-1".into(),
            namespace: "batch".into(),
            semaphore: "db".into(),
            key: None,
            kind: KindName::default(),
            workload: "migrate-42".into(),
            uid: "u-1".into(),
            ordinal: 0,
        };
        let said = |identity: &Identity| {
            let time = jiff::Timestamp::UNIX_EPOCH;
            ContenderBody::new(&cluster, identity, time, false).holder()
        };
        let job = (HolderType::Job, Some("batch/migrate-42"), Some("prod-eu"));
        assert_eq!(read(&said(&identity)), job);
        identity.kind = "JobSet".into();
        let set = said(&identity);
        assert_eq!(
            read(&set),
            (
                HolderType::Workload,
                Some("batch/migrate-42"),
                Some("prod-eu")
            )
        );
        assert_eq!(Holder::read(Some(&set)).workload, Some("JobSet"));
        identity.kind = KindName::default();
        identity.namespace = "-".into();
        let process = (HolderType::Process, Some("migrate-42"), Some("prod-eu"));
        assert_eq!(read(&said(&identity)), process);
    }

    #[test]
    fn programs_are_known_by_their_sessions() {
        assert_eq!(
            read("Consul semaphore on web-1"),
            (HolderType::Program, Some("Consul semaphore"), Some("web-1"))
        );
        assert_eq!(read("on web-1"), (HolderType::Program, None, Some("web-1")));
        assert_eq!(
            read("a on b on c"),
            (HolderType::Program, Some("a on b"), Some("c"))
        );
    }

    #[test]
    fn what_is_of_no_form_is_shown_as_it_is() {
        for text in ["", "x", "a b c", "a b/c d"] {
            assert_eq!(read(text), (HolderType::Unknown, Some(text), None));
        }
        let Holder {
            kind, name, place, ..
        } = Holder::read(None);
        assert_eq!((kind, name, place), (HolderType::Unknown, None, None));
    }
}
