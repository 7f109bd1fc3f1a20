//! Defines the conditions of a `ConsulSemaphore`, which follow the Kubernetes API conventions.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use std::fmt;

use consul_client::text::one_line;

/// The type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// The summary. True: the semaphore does what its spec asks for; slots are granted and released, unless the
    /// reason is `Paused` or `OutsideWindow`. False: nothing is granted; the reason says why. Unknown: the operator
    /// has just started to manage this semaphore.
    Ready,
    /// True: the operator can read and write below the prefix in Consul. False: the operator can't do that. Unknown:
    /// the operator has not asked Consul yet, or may not ask.
    ConsulReachable,
    /// True: Consul has the limit of the spec. False: another program or cluster wrote another limit. Unknown: the
    /// lock key can't be read.
    LimitAgreed,
    /// True: a slot is free. False: all slots are held, or none is granted outside the windows, which is not a fault;
    /// or Jobs run without a slot. Unknown: the lock key can't be read.
    SlotsAvailable,
}

impl ConditionType {
    /// All condition types, in their order in a status.
    pub const ALL: [Self; 4] = [
        Self::Ready,
        Self::ConsulReachable,
        Self::LimitAgreed,
        Self::SlotsAvailable,
    ];

    /// The name in `type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::ConsulReachable => "ConsulReachable",
            Self::LimitAgreed => "LimitAgreed",
            Self::SlotsAvailable => "SlotsAvailable",
        }
    }
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// Unknown: the operator could not determine the condition.
    Unknown,
}

impl ConditionStatus {
    /// The word in `status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(is: bool) -> Self {
        if is { Self::True } else { Self::False }
    }
}

/// The reason of a condition. For an error of Consul's, metrics use the same word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Slots are granted and released.
    Reconciled,
    /// The operator is asking Consul, or is writing the limit. Wait a moment.
    Starting,
    /// The operator can read and write in Consul.
    Reachable,
    /// No Consul server answers. Check the operator's `CONSUL_HTTP_ADDR`, the network and the certificates.
    ConsulUnreachable,
    /// The Consul servers have no leader. If this lasts longer than a few seconds, check the servers.
    NoLeader,
    /// A limit of Consul for requests or connections is reached. Raise it if this lasts.
    TooManyRequests,
    /// Consul, or a proxy in front of it, answered with the error in the message.
    UnexpectedAnswer,
    /// Consul does not know the token, or the token lacks the rule that the message names. Add the rule to the
    /// token's policy.
    PermissionDenied,
    /// Consul has no datacenter of this name. Create another `ConsulSemaphore` that names an existing one.
    UnknownDatacenter,
    /// `spec.consul.namespace` and `spec.consul.partition` need Consul Enterprise. Create another
    /// `ConsulSemaphore` without them.
    EnterpriseOnly,
    /// Consul has the limit of the spec.
    LimitsMatch,
    /// Another program or cluster wrote another limit to Consul. Set `spec.limit` to that limit, make all others use
    /// yours, or set `spec.limitPolicy` to `Enforce`.
    LimitConflict,
    /// The limit in Consul is that of the spec, but the holder in the message counts starts by another period, or
    /// does not count starts. The limit of `spec.limit` starts in `spec.period` holds only among the clients that use
    /// the same period. Set the same period for all clients, or give this semaphore a prefix of its own.
    PeriodDiffers,
    /// The lock key has another use, such as a mutex where the spec asks for a semaphore, or can't be read. The
    /// operator leaves it alone. Delete the key when nobody uses it, or create a `ConsulSemaphore` with another
    /// prefix.
    LockConflict,
    /// The lock key is larger than Consul accepts in a transaction (about 380 KiB), or the data below the prefix is
    /// larger than 16 MiB or takes that much memory. A semaphore with 5000 holders needs less: delete data that does
    /// not belong to it.
    LockTooLarge,
    /// The data below the prefix does not fit into the memory that the operator has for all prefixes
    /// (`--consul-memory`), and this namespace takes most of that memory. Nothing is granted. Delete data that does
    /// not belong to the semaphore, have fewer `ConsulSemaphores` with one prefix, or raise the flag and the memory
    /// limit.
    PrefixTooLarge,
    /// This namespace may not use the prefix. Create another `ConsulSemaphore` with a prefix below the
    /// namespace's own folder, give this one its own token, or add the namespace to
    /// `--trusted-namespaces`.
    PrefixNotAllowed,
    /// Another API server uses this cluster's identity in Consul: one of the two clusters is a copy, such as a restored
    /// backup or a cloned image. Give the operator of the copy an identity of its own with `--cluster-id`.
    IdentityConflict,
    /// The operator could not determine whether another API server uses this cluster's identity in Consul; the message
    /// says why. If this lasts, check the operator's RBAC for the Lease.
    IdentityUnknown,
    /// The Secret of `spec.consul.tokenSecretRef` or its key does not exist or holds no token, or the operator may not
    /// read it. While `ConsulReachable` is True, the operator uses the token that it read before.
    TokenNotFound,
    /// Consul refuses the operator's login, or the token to log in with can't be read.
    LoginFailed,
    /// The API server has refused the start of several Jobs in a row; the message says why. Check the operator's RBAC,
    /// admission policies and webhooks.
    StartsRefused,
    /// The API server refuses the finalizer on the `ConsulSemaphore`; the message says why. Check the operator's
    /// RBAC, admission policies and webhooks.
    FinalizerRefused,
    /// `spec.paused` is true, so nothing is granted. Set it to `false` to grant slots again.
    Paused,
    /// The `ConsulSemaphore` is being deleted. The message says what it waits for.
    Terminating,
    /// A slot is free.
    SlotsFree,
    /// The current time is outside all windows of the spec. The message says when the next window opens.
    OutsideWindow,
    /// The only free slots are reserved for Jobs of the priority in the message.
    Reserved,
    /// The windows of the spec in the message never open: their schedule or time zone is not valid, or no time fits
    /// the schedule. Correct them.
    InvalidWindow,
    /// All slots are held. Waiting Jobs start as slots are released.
    AllSlotsHeld,
    /// The Jobs in the message lost their slots and continue, because `spec.onSlotLost` is `Continue`. They get a
    /// slot as soon as one is free.
    RunningWithoutSlot,
    /// Consul lost its data or was restored from an older state, so fencing tokens start at a smaller number. Reset
    /// every program that compares them.
    IndexWentBack,
}

impl Reason {
    /// The word in `reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reconciled => "Reconciled",
            Self::Starting => "Starting",
            Self::Reachable => "Reachable",
            Self::ConsulUnreachable => "ConsulUnreachable",
            Self::NoLeader => "NoLeader",
            Self::TooManyRequests => "TooManyRequests",
            Self::UnexpectedAnswer => "UnexpectedAnswer",
            Self::PermissionDenied => "PermissionDenied",
            Self::UnknownDatacenter => "UnknownDatacenter",
            Self::EnterpriseOnly => "EnterpriseOnly",
            Self::LimitsMatch => "LimitsMatch",
            Self::LimitConflict => "LimitConflict",
            Self::PeriodDiffers => "PeriodDiffers",
            Self::LockConflict => "LockConflict",
            Self::LockTooLarge => "LockTooLarge",
            Self::PrefixTooLarge => "PrefixTooLarge",
            Self::PrefixNotAllowed => "PrefixNotAllowed",
            Self::IdentityConflict => "IdentityConflict",
            Self::IdentityUnknown => "IdentityUnknown",
            Self::TokenNotFound => "TokenNotFound",
            Self::LoginFailed => "LoginFailed",
            Self::StartsRefused => "StartsRefused",
            Self::FinalizerRefused => "FinalizerRefused",
            Self::Paused => "Paused",
            Self::Terminating => "Terminating",
            Self::SlotsFree => "SlotsFree",
            Self::OutsideWindow => "OutsideWindow",
            Self::Reserved => "Reserved",
            Self::InvalidWindow => "InvalidWindow",
            Self::AllSlotsHeld => "AllSlotsHeld",
            Self::RunningWithoutSlot => "RunningWithoutSlot",
            Self::IndexWentBack => "IndexWentBack",
        }
    }

    /// Whether nothing is granted until somebody repairs something. An outage, a pause and a semaphore whose slots
    /// are all held need no repair: an outage ends by itself, a pause is intended, and holders release their slots.
    pub const fn needs_repair(self) -> bool {
        match self {
            Self::PermissionDenied
            | Self::UnknownDatacenter
            | Self::EnterpriseOnly
            | Self::LimitConflict
            | Self::LockConflict
            | Self::LockTooLarge
            | Self::PrefixTooLarge
            | Self::PrefixNotAllowed
            | Self::IdentityConflict
            | Self::TokenNotFound
            | Self::LoginFailed
            | Self::StartsRefused
            | Self::FinalizerRefused
            | Self::InvalidWindow => true,
            Self::Reconciled
            | Self::Starting
            | Self::Reachable
            | Self::ConsulUnreachable
            | Self::NoLeader
            | Self::TooManyRequests
            | Self::UnexpectedAnswer
            | Self::LimitsMatch
            | Self::IdentityUnknown
            | Self::PeriodDiffers
            | Self::Paused
            | Self::Terminating
            | Self::SlotsFree
            | Self::OutsideWindow
            | Self::Reserved
            | Self::AllSlotsHeld
            | Self::RunningWithoutSlot
            | Self::IndexWentBack => false,
        }
    }
    /// Whether nothing is granted because the spec asks for that: the semaphore is paused, or outside its windows.
    /// The semaphore is Ready all the same, so that tools which wait for Ready continue.
    pub const fn is_intended(self) -> bool {
        matches!(self, Self::Paused | Self::OutsideWindow)
    }
}

/// Whether a condition has a reason that needs no action, whatever its status.
pub fn is_normal(condition: &Condition) -> bool {
    let normal = [
        Reason::Reconciled,
        Reason::Reachable,
        Reason::LimitsMatch,
        Reason::SlotsFree,
        Reason::AllSlotsHeld,
        Reason::OutsideWindow,
        Reason::Reserved,
    ];
    normal
        .iter()
        .any(|reason| reason.as_str() == condition.reason)
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for ConditionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The current state of one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Type of the condition.
    pub type_: ConditionType,
    /// Whether the condition holds.
    pub status: ConditionStatus,
    /// Reason for the status, as a word for programs.
    pub reason: Reason,
    /// Explanation of the status for people, with what to do.
    pub message: String,
}

impl Finding {
    /// Makes a finding with these fields. The message is put on one line and shortened to 2048 characters.
    pub fn new(
        type_: ConditionType,
        status: impl Into<ConditionStatus>,
        reason: Reason,
        message: impl Into<String>,
    ) -> Self {
        Self {
            type_,
            status: status.into(),
            reason,
            message: one_line(&message.into(), LONGEST_MESSAGE),
        }
    }
}

/// Largest length of a message in characters. A message needs a limit because it may quote texts of other programs.
const LONGEST_MESSAGE: usize = 2048;

/// Returns the condition of this type, if there is one.
pub fn find(conditions: &[Condition], type_: ConditionType) -> Option<&Condition> {
    conditions
        .iter()
        .find(|condition| condition.type_ == type_.as_str())
}

/// Returns the condition that says that nothing is granted: Ready, unless it is True with another reason than
/// `Paused`. Returns `None` if there is no such condition.
pub fn stop(conditions: &[Condition]) -> Option<&Condition> {
    let ready = find(conditions, ConditionType::Ready)?;
    let grants = ready.status == ConditionStatus::True.as_str();
    (!grants || ready.reason == Reason::Paused.as_str()).then_some(ready)
}

/// Returns the conditions after `findings`, which were made at `now` on a spec of this generation.
///
/// `lastTransitionTime` changes only with the status. The operator's types come first, in the order of
/// [`ConditionType::ALL`]; a condition without a finding stays as it was. Conditions of other types belong to other
/// programs: they stay after the operator's conditions, in their order.
pub fn merge(
    old: &[Condition],
    findings: &[Finding],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let before = |type_: ConditionType| find(old, type_);
    let ours = ConditionType::ALL.into_iter().filter_map(|type_| {
        match findings.iter().find(|finding| finding.type_ == type_) {
            Some(finding) => Some(to_condition(finding, before(type_), generation, now)),
            None => before(type_).cloned(),
        }
    });
    let is_ours = |condition: &Condition| {
        ConditionType::ALL
            .iter()
            .any(|type_| condition.type_ == type_.as_str())
    };
    let others = old.iter().filter(|condition| !is_ours(condition)).cloned();
    ours.chain(others).collect()
}

fn to_condition(
    finding: &Finding,
    before: Option<&Condition>,
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let status = finding.status.as_str();
    let since = before
        .filter(|before| before.status == status)
        .map(|before| before.last_transition_time.clone());
    Condition {
        type_: finding.type_.to_string(),
        status: status.to_owned(),
        reason: finding.reason.to_string(),
        message: finding.message.clone(),
        observed_generation: generation,
        last_transition_time: since.unwrap_or(Time(now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn ready(is: bool, reason: Reason) -> Finding {
        Finding::new(ConditionType::Ready, is, reason, "what to do")
    }

    fn types(conditions: &[Condition]) -> Vec<&str> {
        conditions
            .iter()
            .map(|condition| condition.type_.as_str())
            .collect()
    }

    #[test]
    fn a_first_finding_becomes_a_condition() {
        let conditions = merge(&[], &[ready(false, Reason::LimitConflict)], Some(4), at(10));
        let expected = Condition {
            type_: "Ready".to_owned(),
            status: "False".to_owned(),
            reason: "LimitConflict".to_owned(),
            message: "what to do".to_owned(),
            observed_generation: Some(4),
            last_transition_time: Time(at(10)),
        };
        assert_eq!(conditions, [expected]);
    }

    #[test]
    fn the_transition_time_changes_with_the_status_only() {
        let first = merge(&[], &[ready(false, Reason::LimitConflict)], Some(1), at(10));
        let other_reason = merge(&first, &[ready(false, Reason::Paused)], Some(2), at(20));
        assert_eq!(other_reason[0].reason, "Paused");
        assert_eq!(other_reason[0].observed_generation, Some(2));
        assert_eq!(other_reason[0].last_transition_time, Time(at(10)));
        let other_status = merge(
            &other_reason,
            &[ready(true, Reason::Reconciled)],
            Some(2),
            at(30),
        );
        assert_eq!(other_status[0].last_transition_time, Time(at(30)));
    }

    #[test]
    fn the_same_findings_change_nothing() {
        let findings = ConditionType::ALL
            .map(|type_| Finding::new(type_, ConditionStatus::Unknown, Reason::Starting, ""));
        let once = merge(&[], &findings, Some(1), at(10));
        assert_eq!(merge(&once, &findings, Some(1), at(20)), once);
    }

    #[test]
    fn the_order_is_always_the_same() {
        let mut findings =
            ConditionType::ALL.map(|type_| Finding::new(type_, true, Reason::Reconciled, ""));
        findings.reverse();
        let expected = ["Ready", "ConsulReachable", "LimitAgreed", "SlotsAvailable"];
        let conditions = merge(&[], &findings, None, at(10));
        assert_eq!(types(&conditions), expected);
        let mut shuffled = conditions;
        shuffled.swap(0, 3);
        assert_eq!(types(&merge(&shuffled, &findings, None, at(10))), expected);
    }

    #[test]
    fn what_nobody_speaks_of_stays() {
        let ours = merge(&[], &[ready(true, Reason::Reconciled)], None, at(10)).remove(0);
        let theirs = Condition {
            type_: "Theirs".to_owned(),
            ..ours.clone()
        };
        let old = [theirs.clone(), ours.clone()];
        let slots = Finding::new(
            ConditionType::SlotsAvailable,
            false,
            Reason::AllSlotsHeld,
            "",
        );
        let conditions = merge(&old, &[slots], None, at(20));
        assert_eq!(types(&conditions), ["Ready", "SlotsAvailable", "Theirs"]);
        assert_eq!(conditions[0], ours);
        assert_eq!(conditions[2], theirs);
    }
}
