//! What the status says after a pass.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Overseer, reporter::Report};
use crate::{
    api::{
        ConsulSemaphoreStatus, HolderStatus, LISTED, LimitPolicy, QueueStatus,
        conditions::{ConditionStatus, ConditionType, Finding, Reason},
    },
    consul,
    controller::grantor::{Conclusion, Whose},
    semaphore::{Agreement, ContenderBody, Job, Lock, Reading},
};

/// What Consul showed last; it stays in the status while Consul can't be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    limit: Option<u32>,
    held: usize,
    held_here: usize,
    holders: Vec<HolderStatus>,
}

impl Overseer {
    /// The report on what is known and what was decided.
    pub(super) fn compose_report(&mut self, conclusion: &Conclusion) -> Report {
        if let Some(reading) = &self.grantor.view.reading {
            self.shown = self.show(reading);
        }
        let shown = &self.shown;
        let queue = self.context.index.head(&self.reference, LISTED);
        // A limit is in the status before it counts as ours.
        let applied = conclusion.record.as_ref().unwrap_or(&self.applied);
        let status = ConsulSemaphoreStatus {
            observed_generation: self.generation,
            limit: shown.limit.map(number),
            applied_limits: applied.iter().copied().map(number).collect(),
            fencing_token: self
                .grantor
                .fencing_token
                .and_then(|token| token.try_into().ok()),
            held: number(shown.held),
            held_here: number(shown.held_here),
            waiting: number(self.grantor.waiting),
            holders: shown.holders.clone(),
            queue: queue.iter().map(queued).collect(),
            conditions: Vec::new(),
        };
        let metrics = &self.context.metrics;
        let held_and_limit = shown.limit.map(|limit| (shown.held, limit));
        metrics.semaphore(&self.grantor.labels, self.grantor.waiting, held_and_limit);
        Report {
            status,
            findings: self.findings(conclusion),
        }
    }

    fn show(&self, reading: &Reading) -> Shown {
        let Lock::Semaphore { body, .. } = reading.lock() else {
            return Shown::default();
        };
        let mut holders: Vec<_> = body
            .holders()
            .map(|session| (session, reading.contender(session)))
            .collect();
        let here = |session| {
            let whose = self.grantor.sessions.whose(session);
            matches!(whose, Some(Whose::Own(_) | Whose::Neighbour))
        };
        let held_here = holders.iter().filter(|(session, _)| here(session)).count();
        holders.sort_by_key(|(_, contender)| contender.map(|entry| entry.create_index));
        let named = holders.iter().take(LISTED).map(|(session, contender)| {
            let body: Option<ContenderBody> =
                contender.and_then(|entry| serde_json::from_slice(&entry.value).ok());
            HolderStatus {
                session: session.to_string(),
                holder: body.as_ref().map(ContenderBody::holder),
                never_expires: body.as_ref().is_some_and(|body| body.endless),
                since: body.and_then(|body| whole_seconds(body.time)).map(Time),
            }
        });
        Shown {
            limit: Some(body.limit()),
            held: body.held(),
            held_here,
            holders: named.collect(),
        }
    }

    fn findings(&self, conclusion: &Conclusion) -> Vec<Finding> {
        let reachable = self.consul_reachable();
        vec![
            self.ready(conclusion, &reachable),
            reachable,
            self.limit_agreed(conclusion),
            self.slots_available(conclusion),
        ]
    }

    /// The summary: whether slots can be granted and released.
    fn ready(&self, conclusion: &Conclusion, reachable: &Finding) -> Finding {
        let not =
            |reason, message: String| Finding::new(ConditionType::Ready, false, reason, message);
        if self.grantor.settings.terminating {
            return not(Reason::Terminating, self.terminating());
        }
        if reachable.status != ConditionStatus::True {
            let status = ConditionStatus::False;
            let known = reachable.reason != Reason::Starting;
            return Finding {
                type_: ConditionType::Ready,
                status: if known { status } else { reachable.status },
                ..reachable.clone()
            };
        }
        if let Some(Lock::Unreadable(why)) = self.lock() {
            let message = format!(
                "the key {} can't be used as a semaphore: {why}. Nothing is granted, and it is left \
                 as it is. Delete the key once nobody uses it, or make another ConsulSemaphore with \
                 another prefix; scripts need `consul lock -n <limit>`",
                self.grantor.settings.prefix.lock_key()
            );
            return not(Reason::LockConflict, message);
        }
        if let Some(Agreement::Conflict { theirs }) = conclusion.agreement {
            return not(Reason::LimitConflict, self.limit_conflict(theirs));
        }
        if self.grantor.settings.paused {
            let message = "spec.paused is true: nothing more is granted; running Jobs go on. Set it to false \
                           to go on granting";
            return not(Reason::Paused, message.into());
        }
        if let Some(refusal) = self.grantor.writes.refusals.message() {
            let message = format!(
                "the API server refuses one start after another: {refusal}. Nothing is granted \
                 until it takes one; the operator needs to patch Jobs"
            );
            return not(Reason::StartsRefused, message);
        }
        Finding::new(
            ConditionType::Ready,
            true,
            Reason::Reconciled,
            "slots are granted and released",
        )
    }

    /// What a semaphore that is being deleted waits for, and what to do if that never comes.
    fn terminating(&self) -> String {
        let mut message = "being deleted: nothing more is granted; it goes when the last Job that \
                           holds a slot is done"
            .to_owned();
        let trouble = &self.grantor.view.trouble;
        let why = trouble.as_ref().map(|trouble| trouble.error.to_string());
        let Some(why) = why.or_else(|| self.access.problem().map(|(_, why)| why)) else {
            return message;
        };
        let settings = &self.grantor.settings;
        let (name, namespace) = (&self.reference.name, &self.reference.namespace);
        let end = if settings.ttl.is_some() {
            format!(
                "If that lasts, it goes when its sessions must have expired, after {} s at the \
                 soonest, with an event that says what is left",
                settings.span().as_secs()
            )
        } else {
            format!(
                "Its sessions never expire, so it waits for Consul if a Job has held a slot. If that \
                 Consul is gone for good, let it go without cleaning up: kubectl patch csem {name} -n \
                 {namespace} --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'"
            )
        };
        message = format!("{message}. Now Consul can't be used: {why}. {end}");
        message
    }

    fn consul_reachable(&self) -> Finding {
        let finding = |status: ConditionStatus, reason, message: String| {
            Finding::new(ConditionType::ConsulReachable, status, reason, message)
        };
        let (view, problem) = (&self.grantor.view, self.access.problem());
        if let Some((reason, message)) = &problem
            && view.home.is_none()
        {
            let message = format!("{message}. Nothing is granted");
            return finding(ConditionStatus::Unknown, *reason, message);
        }
        if let Some(trouble) = &view.trouble {
            let (reason, message) = self.explain(&trouble.error);
            return finding(ConditionStatus::False, reason, message);
        }
        if let Some((reason, message)) = problem {
            let message = format!(
                "{message}. The token that was there before is used until the operator is started \
                 again"
            );
            return finding(ConditionStatus::True, reason, message);
        }
        if self.grantor.view.reading.is_none() && self.shown.limit.is_none() {
            let message = "Consul is being asked".into();
            return finding(ConditionStatus::Unknown, Reason::Starting, message);
        }
        if self.grantor.view.went_back {
            let message = "Consul's index went back: it lost its data or was restored, and fencing \
                           tokens start again; tell whatever compares them";
            return finding(ConditionStatus::True, Reason::IndexWentBack, message.into());
        }
        finding(
            ConditionStatus::True,
            Reason::Reachable,
            "Consul can be read and written".into(),
        )
    }

    fn limit_agreed(&self, conclusion: &Conclusion) -> Finding {
        let ours = self.grantor.settings.limit;
        let (agreed, reason, message) = match conclusion.agreement {
            Some(Agreement::Agreed) => {
                let message = format!("Consul's limit is the spec's: {ours}");
                (ConditionStatus::True, Reason::LimitsMatch, message)
            }
            Some(Agreement::Write { .. }) => {
                let message = format!("the limit {ours} is being written to Consul");
                (ConditionStatus::Unknown, Reason::Starting, message)
            }
            Some(Agreement::Conflict { theirs }) => {
                let message = self.limit_conflict(theirs);
                (ConditionStatus::False, Reason::LimitConflict, message)
            }
            None => return self.unknown(ConditionType::LimitAgreed),
        };
        Finding::new(ConditionType::LimitAgreed, agreed, reason, message)
    }

    fn limit_conflict(&self, theirs: u32) -> String {
        let ours = self.grantor.settings.limit;
        if self.grantor.settings.policy == LimitPolicy::Enforce {
            return format!(
                "Consul's limit is {theirs} and spec.limit is {ours}, which was \
                 overwritten every time. Nothing is granted: find out who writes {theirs}; \
                 a change of this spec has it enforced again"
            );
        }
        format!(
            "Consul's limit is {theirs} and spec.limit is {ours}; somebody else wrote the former. \
             Nothing is granted until both agree: set spec.limit to {theirs}, have all others use \
             {ours}, or set spec.limitPolicy to Enforce"
        )
    }

    fn slots_available(&self, conclusion: &Conclusion) -> Finding {
        if let Some(first) = conclusion.unheld.first() {
            let message = format!(
                "running without a slot, as spec.onSlotLost says: {}",
                others(&first.name, conclusion.unheld.len())
            );
            let reason = Reason::RunningWithoutSlot;
            return Finding::new(ConditionType::SlotsAvailable, false, reason, message);
        }
        let Some(Lock::Semaphore { body, .. }) = self.lock() else {
            return self.unknown(ConditionType::SlotsAvailable);
        };
        let (held, limit) = (body.held(), body.limit());
        let (free, reason) = match body.room() {
            0 => (false, Reason::AllSlotsHeld),
            _ => (true, Reason::SlotsFree),
        };
        let message = format!("{held} of {limit} slots are held");
        Finding::new(ConditionType::SlotsAvailable, free, reason, message)
    }

    fn lock(&self) -> Option<&Lock> {
        self.grantor.view.reading.as_ref().map(Reading::lock)
    }

    /// What can't be said while `.lock` can't be read.
    fn unknown(&self, condition: ConditionType) -> Finding {
        let reason = match (&self.grantor.view.trouble, self.lock()) {
            (Some(trouble), _) => self.explain(&trouble.error).0,
            (None, None) if let Some((reason, _)) = self.access.problem() => reason,
            (None, Some(Lock::Unreadable(_))) => Reason::LockConflict,
            (None, _) if self.grantor.settings.terminating => Reason::Terminating,
            (None, _) => Reason::Starting,
        };
        let message = match reason {
            Reason::Terminating => "nobody looks after the limit of what is being deleted",
            Reason::Starting => "Consul has not answered yet",
            _ => "it is not known while the lock key can't be read",
        };
        Finding::new(condition, ConditionStatus::Unknown, reason, message)
    }
}

impl Overseer {
    /// The reason for a condition, and what a person can do about it.
    fn explain(&self, error: &consul::Error) -> (Reason, String) {
        if matches!(error, consul::Error::Denied(_)) {
            // It may be the token of yesterday, and today's can't be read.
            if let Some((reason, message)) = self.access.problem() {
                return (reason, format!("{error}, and {message}"));
            }
            let node = self.grantor.view.home.as_ref().map(|home| &*home.node);
            let message = format!(
                "{error}. Give {} this rule: it needs key write on the prefix, and session and node \
                 write on the node {}",
                self.access.whose_token(),
                node.unwrap_or_default()
            );
            return (Reason::PermissionDenied, message);
        }
        if matches!(error, consul::Error::TooLarge(_)) {
            let key = self.grantor.settings.prefix.lock_key();
            let message = format!(
                "{error}. Nothing is granted or released, and running Jobs go on: the key {key} is \
                 too large to be written in a transaction, of which Consul takes 512 KiB: some 380 \
                 KiB of value. Remove from it what is no semaphore's, or raise \
                 limits.kv_max_value_size and limits.txn_max_req_len in the configuration of all \
                 Consul servers"
            );
            return (Reason::LockTooLarge, message);
        }
        let (reason, advice) = advise(error);
        (reason, format!("{error}. {advice}"))
    }
}

/// The reason for a condition, and what a person can do about any other error than a denial.
fn advise(error: &consul::Error) -> (Reason, &'static str) {
    match error {
        consul::Error::NoToken => (Reason::TokenNotFound, BY_ITSELF),
        consul::Error::Unsupported(_) => (
            Reason::EnterpriseOnly,
            "spec.consul.namespace and partition need Consul Enterprise: make another \
             ConsulSemaphore without them",
        ),
        consul::Error::UnknownDatacenter => (
            Reason::UnknownDatacenter,
            "Make another ConsulSemaphore with a datacenter that this Consul knows",
        ),
        consul::Error::Unreachable { .. } => (Reason::ConsulUnreachable, BY_ITSELF),
        consul::Error::NoLeader { .. } => (Reason::NoLeader, BY_ITSELF),
        consul::Error::TooManyRequests(_) => (Reason::TooManyRequests, BY_ITSELF),
        _ => (Reason::UnexpectedAnswer, BY_ITSELF),
    }
}

const BY_ITSELF: &str = "Nothing is granted; running Jobs go on while it can be shown that their \
                         slots are held. It is tried again by itself";

fn queued(job: &Job) -> QueueStatus {
    QueueStatus {
        job: job.name.to_string(),
        since: Timestamp::from_second(job.since).ok().map(Time),
    }
}

/// A name, and how many there are beside it.
fn others(name: &str, count: usize) -> String {
    match count {
        0 | 1 => name.to_owned(),
        count => format!("{name} and {} more", count - 1),
    }
}

fn number<T: TryInto<i32>>(count: T) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

/// Times in a status have seconds, and the API server takes none before the year 0.
fn whole_seconds(time: Timestamp) -> Option<Timestamp> {
    const YEAR_0: i64 = -62_167_219_200;
    Timestamp::from_second(time.as_second().max(YEAR_0)).ok()
}
