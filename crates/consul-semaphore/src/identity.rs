//! Names the workload that a session and a contender key were made for.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    asked::Asked,
    workload::{KindName, MOST_SLOTS, Place, SlotId, Uid, Workload},
};
use crate::Key;
use consul_client::{Session, text::one_line};

/// The kind of a command of `exec`.
pub const PROCESS: &str = "Process";

/// The kind of a program that holds slots itself, with [`crate::Semaphore`] or with another Consul client.
pub const PROGRAM_KIND: &str = "Program";

/// The kind of a holder whose slot was taken for a fixed time, without a process that renews it.
pub const LEASE: &str = "Lease";

/// The prefix of the name of every session of this program.
const PROGRAM: &str = "consul-semaphore-operator";

/// The stand-in for the namespace and the `ConsulSemaphore`, which a process on a host does not have. No Kubernetes
/// object can have this name.
pub const NONE: &str = "-";

/// The Kubernetes cluster that an operator works for; for a process, the host that it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Name of the cluster for people, shown beside each holder.
    pub name: String,
    /// The uid of the cluster's namespace kube-system, which is unique without configuration. For a host, the name of
    /// the host.
    pub id: String,
}

/// Returns the text as part of an [`Identity`]: `-` replaces the characters that are not allowed.
pub fn name_of(text: &str) -> String {
    let allowed = |c: char| if is_in_names(c) { c } else { '-' };
    let name: String = text.chars().take(LONGEST_NAME).map(allowed).collect();
    if name.is_empty() {
        NONE.to_owned()
    } else {
        name
    }
}

/// The workload or process that a session was made for, and the semaphore that it was made on.
///
/// The identity is written into the session's name, which only a token with `session:write` on our node can choose,
/// so the name proves who holds. The contender's body can be changed by anyone who may write the key, and is only
/// informative.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The cluster's id.
    pub cluster: Arc<str>,
    /// The namespace of the workload and of its `ConsulSemaphore`.
    pub namespace: Arc<str>,
    /// The name of the `ConsulSemaphore`.
    pub semaphore: Arc<str>,
    /// The key of a keyed `ConsulSemaphore`.
    pub key: Option<Key>,
    /// The kind of the workload.
    pub kind: KindName,
    /// The name of the workload.
    pub workload: Arc<str>,
    /// The workload's uid.
    pub uid: Uid,
    /// The number of the slot among the slots of this semaphore that the workload asks for, from 0.
    pub ordinal: u32,
}

impl Identity {
    /// Whether the session of another identity is for the same slot.
    pub(super) fn is_for_slot_of(&self, other: &Self) -> bool {
        self.uid == other.uid && self.ordinal == other.ordinal
    }

    /// Returns the slot that the session is for.
    pub fn slot(&self) -> SlotId {
        SlotId {
            workload: self.uid.clone(),
            ordinal: self.ordinal,
        }
    }

    /// Returns the name of the session. By Kubernetes' rules on names, none of the parts can have a slash, and the
    /// name of an object can't have a colon. So a colon separates the name of a keyed semaphore from the key, and the
    /// kind of a workload, if that is no Job, from the workload's name.
    pub fn session_name(&self) -> String {
        let Self {
            cluster,
            namespace,
            semaphore,
            key,
            kind,
            workload,
            uid,
            ordinal,
        } = self;
        let key = key.as_ref().map_or(String::new(), |key| format!(":{key}"));
        let kind = kind
            .unusual()
            .map_or(String::new(), |kind| format!("{kind}:"));
        let ordinal = match ordinal {
            0 => String::new(),
            further => format!("/{further}"),
        };
        format!("{PROGRAM}/{cluster}/{namespace}/{semaphore}{key}/{kind}{workload}/{uid}{ordinal}")
    }

    /// Returns the kind of the holder: the workload's kind, `Process` for a command of `exec`, or `Program`.
    pub fn holder_kind(&self) -> &str {
        match self.kind.unusual() {
            None if &*self.namespace == NONE => PROCESS,
            _ => self.kind.as_str(),
        }
    }

    /// Whether the holder's slot was taken for a fixed time, without a process that renews it.
    pub fn is_lease(&self) -> bool {
        self.holder_kind() == LEASE && &*self.namespace == NONE
    }

    /// Reads the name of a session; `None` if the name is not one of this program's.
    pub fn parse(session_name: &str) -> Option<Self> {
        let parts: Vec<&str> = session_name.splitn(8, '/').collect();
        let (&[PROGRAM, cluster, namespace, semaphore, workload, uid], further) =
            parts.split_first_chunk()?
        else {
            return None;
        };
        let ordinal = match further {
            [] => 0,
            [ordinal] => ordinal_of(ordinal)?,
            _ => return None,
        };
        let (semaphore, key) = match semaphore.split_once(':') {
            Some((semaphore, key)) => (semaphore, Some(key.parse().ok()?)),
            None => (semaphore, None),
        };
        let (kind, workload) = match workload.split_once(':') {
            Some((kind, workload)) => (kind_of(kind)?, workload),
            None => (KindName::default(), workload),
        };
        if ![cluster, namespace, semaphore, workload, uid]
            .into_iter()
            .all(is_name)
        {
            return None;
        }
        Some(Self {
            cluster: cluster.into(),
            namespace: namespace.into(),
            semaphore: semaphore.into(),
            key,
            kind,
            workload: workload.into(),
            uid: uid.into(),
            ordinal,
        })
    }
}

/// Parses the kind of a workload that is no Job, as in a session's name.
fn kind_of(text: &str) -> Option<KindName> {
    let kind = KindName::from(text);
    let is_kind = is_name(text) && text.starts_with(|first: char| first.is_ascii_uppercase());
    (is_kind && kind.unusual().is_some()).then_some(kind)
}

/// Parses the ordinal of a slot that is not its workload's first, as in a session's name.
fn ordinal_of(text: &str) -> Option<u32> {
    let ordinal: u32 = text.parse().ok()?;
    (ordinal > 0 && ordinal.to_string() == text).then_some(ordinal)
}

/// Whether the text can be the name or the uid of a Kubernetes object. The text is written into logs and events.
fn is_name(part: &str) -> bool {
    (1..=253).contains(&part.len()) && part.chars().all(is_in_names)
}

fn is_in_names(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')
}

/// The longest name of a host or a process, and the longest namespace and kind of a contender that are shown, in
/// characters.
const LONGEST_NAME: usize = 63;

/// The longest name of a contender that is shown, and the longest of its parts, in characters: more than Kubernetes
/// names need.
const LONGEST_HOLDER: usize = 256;

/// The name of a contender, as the status of a `ConsulSemaphore` has it. No decision depends on it: everyone who may
/// write a contender's key can claim any name there, and programs choose the names of their sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContenderName {
    /// The kind of the workload, such as Job; Process for a command of exec, Lease for a slot of acquire, Program for
    /// another program. The kind is left out if only the session is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub kind: Option<String>,

    /// The cluster of a workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub cluster: Option<String>,

    /// The namespace of a workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub namespace: Option<String>,

    /// The host of a process, or of a program that says its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub host: Option<String>,

    /// The Consul node of the session, for a program that does not say its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub node: Option<String>,

    /// The name of the workload or process; for a program that does not say its name, the name of its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub name: Option<String>,
}

impl ContenderName {
    /// Returns the name of a program that is only known by its session.
    pub(crate) fn of_session(session: &Session) -> Self {
        Self {
            kind: Some(PROGRAM_KIND.to_owned()),
            node: part(&session.node, LONGEST_HOLDER),
            name: part(&session.name, LONGEST_HOLDER),
            ..Self::default()
        }
    }

    /// Returns the cluster, the host or the Consul node.
    pub fn place(&self) -> Option<&str> {
        let places = [&self.cluster, &self.host, &self.node];
        places.into_iter().find_map(Option::as_deref)
    }

    /// Returns `namespace/name` of a workload, and the name alone of a process or program.
    pub fn path(&self) -> Option<String> {
        let name = self.name.as_deref()?;
        let Some(namespace) = &self.namespace else {
            return Some(name.to_owned());
        };
        Some(format!("{namespace}/{name}"))
    }
}

/// Returns what others have written in a form that is safe to show, with at most this many characters; `None` if that
/// is nothing.
fn part(text: &str, longest: usize) -> Option<String> {
    (!text.is_empty()).then(|| one_line(text, longest))
}

/// Writes the name in a few words of one line, and nothing if only the session is known.
impl fmt::Display for ContenderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kind) = &self.kind else {
            return Ok(());
        };
        let place = self.place().unwrap_or_default();
        let name = self.name.as_deref().unwrap_or_default();
        let namespace = self.namespace.as_deref().unwrap_or_default();
        let text = match KindName::from(kind.as_str()).unusual() {
            Some(PROCESS) => format!("{place} {name}"),
            Some(PROGRAM_KIND) if namespace.is_empty() && name.is_empty() => format!("on {place}"),
            Some(PROGRAM_KIND | LEASE) if namespace.is_empty() => format!("{name} on {place}"),
            Some(kind) => format!("{place} {kind}:{namespace}/{name}"),
            None => format!("{place} {namespace}/{name}"),
        };
        f.write_str(&one_line(&text, LONGEST_HOLDER))
    }
}

/// The body of a contender key of ours, as JSON, which tells people who look at Consul who the holder is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContenderBody {
    /// The cluster's name.
    pub cluster: String,
    /// The cluster's id.
    pub cluster_id: String,
    /// The workload's kind, such as `Job`; `Process` for a command of `exec`, `Lease` for a slot of `acquire`, `Program`
    /// for a program with this library. For these three the cluster is the host, and there is neither a namespace nor a
    /// `ConsulSemaphore`.
    pub kind: String,
    /// The workload's namespace.
    pub namespace: String,
    /// The workload's name.
    pub name: String,
    /// The workload's uid.
    pub uid: String,
    /// The `ConsulSemaphore`'s name.
    pub semaphore: String,
    /// Time at which the slot was granted, by the operator's clock.
    pub time: jiff::Timestamp,
    /// The number of the slot among the slots that the workload has at this lock key; left out for the first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ordinal: u32,
    /// The number of the slot among all slots of the semaphore, from 0, which no other holder has meanwhile. It is left
    /// out while the contender waits, for a slot of a rate, and by programs that number nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot_index: Option<u32>,
    /// The name that the `ConsulSemaphore` gives to this slot index; left out if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot_name: Option<String>,
    /// All slots that the workload asked for together with this one; left out if that was this slot alone.
    #[serde(default, skip_serializing_if = "Asked::is_one")]
    pub request: Asked,
    /// Whether the session never expires, so that it ends only if someone destroys it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub endless: bool,
    /// The cooldown in seconds, as requested when the slot was granted.
    #[serde(default, skip_serializing_if = "is_none")]
    pub cooldown: u64,
    /// The period in seconds of a rate's slot, as requested when the slot was granted.
    #[serde(default, skip_serializing_if = "is_none")]
    pub period: u64,
    /// Time until which the slot stays held although its workload has ended, by the clock of the operator that saw
    /// the end. The field is left out while the workload runs, except for a rate's slot, which has the field from the
    /// grant on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cools_until: Option<jiff::Timestamp>,
    /// The contender's claim to a place in the queue, before it holds a slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Claim>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_none(seconds: &u64) -> bool {
    *seconds == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The data that decides a waiting contender's place in the queue, besides its name and uid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Priority of the contender. Higher priorities are served first.
    pub priority: i32,
    /// Time at which the contender joined the queue, in whole seconds.
    pub since: jiff::Timestamp,
    /// Whether the contender held a slot and lost it, and so comes before all others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// Number of slots that the contender waits for at this lock key.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub slots: u32,
    /// Number of slots that others are to keep for the contender at this lock key, for
    /// [`KEEP_SLOTS_FOR`](crate::turns::KEEP_SLOTS_FOR) after each writing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub keeps: u32,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_one(slots: &u32) -> bool {
    *slots == 1
}

impl Claim {
    /// Returns the claim of this workload to so many slots.
    pub fn of(workload: &Workload, slots: u32) -> Self {
        Self {
            priority: workload.priority,
            since: jiff::Timestamp::from_second(workload.since).unwrap_or_default(),
            lost: workload.lost(),
            slots,
            keeps: 0,
        }
    }
}

impl ContenderBody {
    /// Reads the value of a contender key; `None` if the value is not one of this program's.
    pub fn read(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }

    /// Returns the contender's place in the queue, if the contender waits. Anyone with write access to the key can
    /// claim any place.
    pub fn place(&self) -> Option<Place> {
        let claim = self.waiting.as_ref()?;
        Some(Place::new(
            claim.lost,
            claim.priority,
            claim.since.as_second(),
            self.name.as_str().into(),
            self.uid.as_str().into(),
        ))
    }

    /// Returns how many slots the contender waits for. Anyone with write access to the key can claim any number, so
    /// the result is at most the number that a workload may ask for.
    pub fn slots_awaited(&self) -> u32 {
        let claimed = self.waiting.as_ref().map_or(1, |claim| claim.slots);
        claimed.clamp(1, MOST_SLOTS)
    }

    /// Returns how many slots others are to keep for the contender, at most the number that a workload may ask for.
    pub fn slots_kept(&self) -> u32 {
        let claimed = self.waiting.as_ref().map_or(0, |claim| claim.keeps);
        claimed.min(MOST_SLOTS)
    }

    /// Returns the name of the slot in a form that is safe to show, because anybody may have written the name.
    pub fn shown_slot_name(&self) -> Option<String> {
        let name = self.slot_name.as_ref()?;
        Some(one_line(name, LONGEST_NAME))
    }

    /// Returns the body for a workload that was granted a slot at this time.
    pub fn new(
        cluster: &Cluster,
        identity: &Identity,
        time: jiff::Timestamp,
        endless: bool,
    ) -> Self {
        Self {
            cluster: cluster.name.clone(),
            cluster_id: cluster.id.clone(),
            kind: identity.holder_kind().into(),
            namespace: identity.namespace.to_string(),
            name: identity.workload.to_string(),
            uid: identity.uid.to_string(),
            semaphore: identity.semaphore.to_string(),
            time,
            ordinal: identity.ordinal,
            slot_index: None,
            slot_name: None,
            request: Asked::default(),
            endless,
            cooldown: 0,
            period: 0,
            cools_until: None,
            waiting: None,
        }
    }

    /// Returns the name that the contender claims.
    pub fn holder(&self) -> ContenderName {
        let claimed = ContenderName {
            kind: part(&self.kind, LONGEST_NAME),
            name: part(&self.name, LONGEST_HOLDER),
            ..ContenderName::default()
        };
        let place = part(&self.cluster, LONGEST_HOLDER);
        let is_program =
            [PROGRAM_KIND, LEASE].contains(&self.kind.as_str()) && self.namespace == NONE;
        if self.kind == PROCESS || is_program {
            return ContenderName {
                host: place,
                ..claimed
            };
        }
        ContenderName {
            cluster: place,
            namespace: part(&self.namespace, LONGEST_NAME),
            ..claimed
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_session_name_says_for_whom_it_was_made() {
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
        let name = identity.session_name();
        assert_eq!(
            name,
            "consul-semaphore-operator/c-1/batch/db/migrate-42/u-1"
        );
        assert_eq!(Identity::parse(&name).as_ref(), Some(&identity));
        identity.key = Some("customer-7".parse().unwrap());
        let name = identity.session_name();
        assert_eq!(
            name,
            "consul-semaphore-operator/c-1/batch/db:customer-7/migrate-42/u-1"
        );
        assert_eq!(Identity::parse(&name).as_ref(), Some(&identity));
        identity.kind = "JobSet".into();
        let name = identity.session_name();
        assert_eq!(
            name,
            "consul-semaphore-operator/c-1/batch/db:customer-7/JobSet:migrate-42/u-1"
        );
        assert_eq!(Identity::parse(&name), Some(identity));
    }

    #[test]
    fn a_process_has_a_name_of_the_same_form() {
        let identity = Identity {
            cluster: name_of("ci-7.example").into(),
            namespace: NONE.into(),
            semaphore: NONE.into(),
            key: None,
            kind: KindName::default(),
            workload: name_of("back up/ö").into(),
            uid: "4711-0badcafe".into(),
            ordinal: 0,
        };
        let name = identity.session_name();
        assert_eq!(
            name,
            "consul-semaphore-operator/ci-7.example/-/-/back-up--/4711-0badcafe"
        );
        assert_eq!(Identity::parse(&name), Some(identity.clone()));
        let host = Cluster {
            name: "ci-7".into(),
            id: "ci-7".into(),
        };
        let body = ContenderBody::new(&host, &identity, jiff::Timestamp::UNIX_EPOCH, false);
        let expected = ContenderName {
            kind: Some("Process".into()),
            host: Some("ci-7".into()),
            name: Some("back-up--".into()),
            ..ContenderName::default()
        };
        assert_eq!(body.holder(), expected);
        assert_eq!(body.holder().to_string(), "ci-7 back-up--");
        let of_library = Identity {
            kind: PROGRAM_KIND.into(),
            ..identity.clone()
        };
        let name = of_library.session_name();
        assert_eq!(
            name,
            "consul-semaphore-operator/ci-7.example/-/-/Program:back-up--/4711-0badcafe"
        );
        assert_eq!(Identity::parse(&name).as_ref(), Some(&of_library));
        let body = ContenderBody::new(&host, &of_library, jiff::Timestamp::UNIX_EPOCH, false);
        let kind = Some("Program".into());
        assert_eq!(body.holder(), ContenderName { kind, ..expected });
        assert_eq!(body.holder().to_string(), "back-up-- on ci-7");
        let of_jobs = Identity {
            namespace: "batch".into(),
            kind: "JobSet".into(),
            ..identity
        };
        let body = ContenderBody::new(&host, &of_jobs, jiff::Timestamp::UNIX_EPOCH, false);
        let expected = ContenderName {
            kind: Some("JobSet".into()),
            cluster: Some("ci-7".into()),
            namespace: Some("batch".into()),
            name: Some("back-up--".into()),
            ..ContenderName::default()
        };
        assert_eq!(body.holder(), expected);
        assert_eq!(body.holder().to_string(), "ci-7 JobSet:batch/back-up--");
        assert_eq!(expected.path().as_deref(), Some("batch/back-up--"));
        assert_eq!(ContenderName::default().to_string(), "");
        assert_eq!(name_of(""), NONE);
        assert_eq!(name_of(&"x".repeat(99)).len(), LONGEST_NAME);
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
            "consul-semaphore-operator/c/n/s:/j/u",
            "consul-semaphore-operator/c/n/s:.lock/j/u",
            "consul-semaphore-operator/c/n/s:k:k/j/u",
            "consul-semaphore-operator/c/n/s/j:k/u",
            "consul-semaphore-operator/c/n/s/Job:j/u",
            "consul-semaphore-operator/c/n/s/JobSet:j:k/u",
            "consul-semaphore-operator/c/n/s/JobSet:/u",
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
        fn a_holder_is_of_short_parts(kind in prop_oneof![Just("Job".to_owned()), hostile::text()], cluster in hostile::text(), namespace in hostile::text(), name in hostile::text()) {
            let body = ContenderBody {
                cluster,
                cluster_id: String::new(),
                kind,
                namespace,
                name,
                uid: String::new(),
                semaphore: String::new(),
                time: jiff::Timestamp::UNIX_EPOCH,
                ordinal: 0,
                slot_index: None,
                slot_name: None,
                request: Asked::default(),
                endless: false,
                cooldown: 0,
                period: 0,
                cools_until: None,
                waiting: None,
            };
            let read: ContenderBody = serde_json::from_slice(&serde_json::to_vec(&body).unwrap()).unwrap();
            let holder = read.holder();
            let line = holder.to_string();
            let ContenderName { kind, cluster, namespace, host, node, name } = holder;
            for text in [&kind, &namespace].into_iter().flatten() {
                prop_assert!(text.chars().count() <= LONGEST_NAME);
            }
            let parts = [kind, cluster, namespace, host, node, name];
            for text in parts.into_iter().flatten().chain([line]) {
                prop_assert!(!text.chars().any(char::is_control));
                prop_assert!(text.chars().count() <= LONGEST_HOLDER);
            }
            prop_assert_eq!(read, body);
        }
    }
}
