//! Who a session and a contender key stand for.

use serde::{Deserialize, Serialize};

use super::job::Uid;
use crate::text::one_line;

/// What the name of every session of this program begins with.
const PROGRAM: &str = "consul-semaphore-operator";

/// The Kubernetes cluster that an operator works for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// What people call it; shown to whoever asks who holds a slot.
    pub name: String,
    /// The uid of its namespace kube-system: unique with nothing to set up.
    pub id: String,
}

/// The Job that a session was made for, and the semaphore that it was made for it on.
///
/// It is written into the session's name, which only a token with `session:write` on our node can
/// choose. That makes it the proof of who holds; the contender's body, which anyone who may write
/// the key can change, is only for others to read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The cluster's id.
    pub cluster: String,
    /// The namespace of the Job and of its `ConsulSemaphore`.
    pub namespace: String,
    /// The name of the `ConsulSemaphore`.
    pub semaphore: String,
    /// The name of the Job.
    pub job: String,
    /// The Job's uid.
    pub uid: Uid,
}

impl Identity {
    /// The name of the session: none of its parts can hold a slash, by Kubernetes' rules on names.
    pub fn session_name(&self) -> String {
        let Self {
            cluster,
            namespace,
            semaphore,
            job,
            uid,
        } = self;
        format!("{PROGRAM}/{cluster}/{namespace}/{semaphore}/{job}/{uid}")
    }

    /// Reads the name of a session; `None` if it is not one of this program's.
    pub fn parse(session_name: &str) -> Option<Self> {
        let parts: Vec<&str> = session_name.splitn(7, '/').collect();
        let [PROGRAM, cluster, namespace, semaphore, job, uid] = parts[..] else {
            return None;
        };
        if !parts.into_iter().all(is_name) {
            return None;
        }
        Some(Self {
            cluster: cluster.into(),
            namespace: namespace.into(),
            semaphore: semaphore.into(),
            job: job.into(),
            uid: uid.into(),
        })
    }
}

/// Whether this may be the name or the uid of an object of Kubernetes: it goes into logs and events.
fn is_name(part: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (1..=253).contains(&part.len()) && part.bytes().all(allowed)
}

/// How much of what a body says about its holder is shown: more than names of Kubernetes take.
const LONGEST_HOLDER: usize = 256;

/// The body of a contender key of ours, as JSON: who holds, for whoever looks into Consul.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContenderBody {
    /// The cluster's name.
    pub cluster: String,
    /// The cluster's id.
    pub cluster_id: String,
    /// Always `Job`.
    pub kind: String,
    /// The Job's namespace.
    pub namespace: String,
    /// The Job's name.
    pub name: String,
    /// The Job's uid.
    pub uid: String,
    /// The `ConsulSemaphore`'s name.
    pub semaphore: String,
    /// When the slot was granted, by the operator's clock.
    pub time: jiff::Timestamp,
    /// Whether the session never expires, so that only somebody's hand ends it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub endless: bool,
}

impl ContenderBody {
    /// The body that says that this Job was granted a slot at this time.
    pub fn new(
        cluster: &Cluster,
        identity: &Identity,
        time: jiff::Timestamp,
        endless: bool,
    ) -> Self {
        Self {
            cluster: cluster.name.clone(),
            cluster_id: cluster.id.clone(),
            kind: "Job".into(),
            namespace: identity.namespace.clone(),
            name: identity.job.clone(),
            uid: identity.uid.to_string(),
            semaphore: identity.semaphore.clone(),
            time,
            endless,
        }
    }

    /// The holder in a word, as the status of a `ConsulSemaphore` shows it. Whoever may write the
    /// key may have written anything there.
    pub fn holder(&self) -> String {
        let holder = format!("{} {}/{}", self.cluster, self.namespace, self.name);
        one_line(&holder, LONGEST_HOLDER)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hostile;

    #[test]
    fn a_session_name_says_for_whom_it_was_made() {
        let identity = Identity {
            cluster: "c-1".into(),
            namespace: "batch".into(),
            semaphore: "db".into(),
            job: "migrate-42".into(),
            uid: "u-1".into(),
        };
        let name = identity.session_name();
        assert_eq!(
            name,
            "consul-semaphore-operator/c-1/batch/db/migrate-42/u-1"
        );
        assert_eq!(Identity::parse(&name), Some(identity));
    }

    #[test]
    fn another_session_name_stands_for_nobody() {
        for name in [
            "",
            "db-semaphore",
            "consul-semaphore-operator/c/n/s/j",
            "other/c/n/s/j/u",
            "consul-semaphore-operator/c/n/s/j/u/v",
            "consul-semaphore-operator/c/n/s/j/",
            "consul-semaphore-operator/c/n/s/j\nforged/u",
            "consul-semaphore-operator/c/n/s/j/u\u{202e}",
            " consul-semaphore-operator/c/n/s/j/u",
        ] {
            assert_eq!(Identity::parse(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_session_name_is_read_or_not(text in hostile::text(), parts in prop::collection::vec(hostile::text(), 0..7)) {
            for name in [text, format!("{PROGRAM}/{}", parts.join("/"))] {
                if let Some(identity) = Identity::parse(&name) {
                    prop_assert_eq!(identity.session_name(), name);
                }
            }
        }

        #[test]
        fn an_identity_is_read_again(parts in prop::collection::vec("[A-Za-z0-9._-]{1,63}", 5)) {
            let name = format!("{PROGRAM}/{}", parts.join("/"));
            prop_assert_eq!(Identity::parse(&name).map(|identity| identity.session_name()), Some(name));
        }

        #[test]
        fn any_body_is_read_or_not(value in hostile::bytes()) {
            let _ = serde_json::from_slice::<ContenderBody>(&value);
        }

        #[test]
        fn a_holder_is_one_short_line(cluster in hostile::text(), namespace in hostile::text(), name in hostile::text()) {
            let body = ContenderBody {
                cluster,
                cluster_id: String::new(),
                kind: "Job".into(),
                namespace,
                name,
                uid: String::new(),
                semaphore: String::new(),
                time: jiff::Timestamp::UNIX_EPOCH,
                endless: false,
            };
            let read: ContenderBody = serde_json::from_slice(&serde_json::to_vec(&body).unwrap()).unwrap();
            prop_assert!(!read.holder().chars().any(char::is_control));
            prop_assert!(read.holder().chars().count() <= LONGEST_HOLDER);
            prop_assert_eq!(read, body);
        }
    }
}
