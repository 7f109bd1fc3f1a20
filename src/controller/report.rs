//! The last part of a pass: what the status says of it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{grantor::Grantor, observe::Whose, reporter::Report};
use crate::{
    api::{
        ConsulSemaphoreStatus, HolderStatus, LISTED, QueueStatus,
        conditions::{ConditionStatus, ConditionType, Finding, Reason},
    },
    consul,
    semaphore::{Agreement, ContenderBody, Job, Lock, Plan, Reading},
};

/// What Consul showed last; it stays in the status while Consul can't be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    limit: Option<u32>,
    held: usize,
    held_here: usize,
    holders: Vec<HolderStatus>,
}

impl Grantor {
    /// The report on what is known and what was decided.
    pub(super) fn compose_report(&mut self, plan: &Plan) -> Report {
        if let Some(reading) = &self.reading {
            self.shown = self.show(reading);
        }
        let shown = &self.shown;
        let queue = self.context.index.slice(&self.reference, LISTED).line;
        let status = ConsulSemaphoreStatus {
            observed_generation: self.generation,
            limit: shown.limit.map(number),
            applied_limits: self.applied.iter().copied().map(number).collect(),
            fencing_token: self.fencing_token.and_then(|token| token.try_into().ok()),
            held: number(shown.held),
            held_here: number(shown.held_here),
            waiting: number(self.waiting),
            holders: shown.holders.clone(),
            queue: queue.iter().map(queued).collect(),
            conditions: Vec::new(),
        };
        let metrics = &self.context.metrics;
        metrics.semaphore(
            &self.labels,
            shown.held,
            self.waiting,
            shown.limit.unwrap_or(self.settings.limit),
        );
        Report {
            status,
            findings: self.findings(plan),
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
            let whose = self.identities.get(session);
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
                since: body.map(|body| Time(whole_seconds(body.time))),
            }
        });
        Shown {
            limit: Some(body.limit()),
            held: body.held(),
            held_here,
            holders: named.collect(),
        }
    }

    fn findings(&self, plan: &Plan) -> Vec<Finding> {
        let reachable = self.consul_reachable();
        let mut findings = vec![self.ready(plan, &reachable), reachable];
        findings.extend(self.limit_agreed(plan));
        findings.extend(self.slots_available());
        findings
    }

    /// The summary: whether slots can be granted and released.
    fn ready(&self, plan: &Plan, reachable: &Finding) -> Finding {
        let not =
            |reason, message: String| Finding::new(ConditionType::Ready, false, reason, message);
        if self.settings.terminating {
            let message = "being deleted: nothing more is granted; it goes when the last Job that \
                           holds a slot is done";
            return not(Reason::Terminating, message.into());
        }
        if reachable.status != ConditionStatus::True {
            return Finding {
                type_: ConditionType::Ready,
                ..reachable.clone()
            };
        }
        if let Some(Lock::Unreadable(why)) = self.reading.as_ref().map(Reading::lock) {
            let message = format!(
                "the key {} can't be used as a semaphore: {why}. Nothing is granted, and it is left \
                 as it is; delete the key once nobody uses it, or choose another prefix",
                self.settings.prefix.lock_key()
            );
            return not(Reason::LockConflict, message);
        }
        if let Some(Agreement::Conflict { theirs }) = plan.agreement {
            return not(Reason::LimitConflict, self.limit_conflict(theirs));
        }
        if self.settings.paused {
            let message = "spec.paused is true: nothing more is granted; running Jobs go on";
            return not(Reason::Paused, message.into());
        }
        Finding::new(
            ConditionType::Ready,
            true,
            Reason::Reconciled,
            "slots are granted and released",
        )
    }

    fn consul_reachable(&self) -> Finding {
        let finding = |status: ConditionStatus, reason, message: String| {
            Finding::new(ConditionType::ConsulReachable, status, reason, message)
        };
        if let Some(trouble) = &self.trouble {
            let (reason, advice) = explain(&trouble.error);
            let message = format!("{}. {advice}", trouble.error);
            return finding(ConditionStatus::False, reason, message);
        }
        if self.reading.is_none() && self.shown.limit.is_none() {
            let message = "Consul is being asked".into();
            return finding(ConditionStatus::Unknown, Reason::Starting, message);
        }
        if self.went_back {
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

    fn limit_agreed(&self, plan: &Plan) -> Option<Finding> {
        let (agreed, reason, message) = match plan.agreement? {
            Agreement::Agreed | Agreement::Write { .. } => {
                let limit = self.settings.limit;
                (
                    true,
                    Reason::LimitsMatch,
                    format!("Consul's limit is the spec's: {limit}"),
                )
            }
            Agreement::Conflict { theirs } => {
                (false, Reason::LimitConflict, self.limit_conflict(theirs))
            }
        };
        Some(Finding::new(
            ConditionType::LimitAgreed,
            agreed,
            reason,
            message,
        ))
    }

    fn limit_conflict(&self, theirs: u32) -> String {
        let ours = self.settings.limit;
        format!(
            "Consul's limit is {theirs} and spec.limit is {ours}; somebody else wrote the former. \
             Nothing is granted until both agree: set spec.limit to {theirs}, have all others use \
             {ours}, or set spec.limitPolicy to Enforce"
        )
    }

    fn slots_available(&self) -> Option<Finding> {
        let Some(Lock::Semaphore { body, .. }) = self.reading.as_ref().map(Reading::lock) else {
            return None;
        };
        let (held, limit, room) = (body.held(), body.limit(), body.room());
        let (free, reason) = if room > 0 {
            (true, Reason::SlotsFree)
        } else {
            (false, Reason::AllSlotsHeld)
        };
        let message = format!("{held} of {limit} slots are held");
        Some(Finding::new(
            ConditionType::SlotsAvailable,
            free,
            reason,
            message,
        ))
    }
}

/// The reason for a condition, and what a person can do about it.
fn explain(error: &consul::Error) -> (Reason, &'static str) {
    match error {
        consul::Error::Denied(_) => (
            Reason::PermissionDenied,
            "Give the operator's token this rule: it needs key write on the prefix, and session and \
             node write on the operator's node",
        ),
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

const BY_ITSELF: &str = "Nothing is granted; running Jobs go on. It is tried again by itself";

fn queued(job: &Job) -> QueueStatus {
    QueueStatus {
        job: job.name.to_string(),
        since: Timestamp::from_second(job.since).ok().map(Time),
    }
}

fn number<T: TryInto<i32>>(count: T) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

/// Times in a status have seconds.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
