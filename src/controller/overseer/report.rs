//! What the status says after a pass.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Overseer, branch::Branch, reporter::Report};

use consul_client::{SessionId, clock::Moment};
use consul_semaphore::LimitPolicy;
use consul_semaphore::engine::{Conclusion, Owner};
use consul_semaphore::{Agreement, ContenderBody, Job, Lock, Mode, Reading, lock::Unreadable};
use consul_semaphore_api::{
    ConsulSemaphoreStatus, HolderStatus, LISTED, QueueStatus,
    conditions::{ConditionStatus, ConditionType, Finding, Reason},
};

/// What Consul showed last; it stays in the status while Consul can't be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    pub(super) limit: Option<u32>,
    pub(super) held: usize,
    pub(super) held_here: usize,
    /// The oldest holders, each with the raft index at which it came.
    pub(super) holders: Vec<(Option<u64>, HolderStatus)>,
}

impl Overseer {
    /// The report on what is known and what was decided. A limit is in the status before it counts as
    /// ours: `applied` has those that are to be there.
    pub(super) fn compose_report(&self, applied: &[u32]) -> Report {
        let sums = &self.sums;
        let limit = sums.limit();
        // What the keys say of an earlier spec is not to be taken for an answer to this one.
        let spec = sums.oldest_spec().unwrap_or_else(|| self.spec());
        // Nobody is both a holder and in the queue.
        let starting = &sums.starting;
        let head = LISTED + starting.len();
        let mut queue = self.context.index.head(&self.reference, head);
        queue.retain(|job| !starting.contains(&job.uid));
        queue.truncate(LISTED);
        let status = ConsulSemaphoreStatus {
            observed_generation: spec.generation,
            limit: limit.map(number),
            applied_limits: applied.iter().copied().map(number).collect(),
            fencing_token: self.fencing_token.and_then(|token| token.try_into().ok()),
            held: number(sums.held),
            held_here: number(sums.held_here),
            waiting: number(sums.waiting),
            keys_in_use: self.is_keyed().then(|| number(sums.in_use())),
            holders: sums.holders(),
            queue: queue
                .iter()
                .map(|job| queued(job, self.is_keyed()))
                .collect(),
            conditions: Vec::new(),
        };
        let held_and_limit = limit.map(|limit| (sums.held, limit));
        let metrics = &self.context.metrics;
        metrics.semaphore(&self.labels, sums.waiting, sums.idle, held_and_limit);
        let one = sums.findings_of_one();
        let findings = one.unwrap_or_else(|| match &self.common {
            Some(common) if sums.len() == 0 => self.findings_without_keys(common),
            _ => sums.findings(spec.limit),
        });
        Report { status, findings }
    }

    /// What the conditions say while no key is in use.
    fn findings_without_keys(&self, common: &Branch) -> Vec<Finding> {
        let known = self.feed.is_known();
        let mut findings = common.findings(&Conclusion {
            agreement: known.then_some(Agreement::Agreed),
            ..Conclusion::default()
        });
        if known {
            findings.pop();
            findings.push(self.sums.slots_available(self.settings.limit));
        }
        findings
    }
}

impl Branch {
    pub(super) fn show(&self, reading: &Reading) -> Shown {
        let Some((limit, sessions)) = slots(reading.lock()) else {
            return Shown::default();
        };
        let held = sessions.len();
        let mut holders: Vec<_> = sessions
            .into_iter()
            .map(|session| (session, reading.contender(session)))
            .collect();
        let here = |session| {
            let owner = self.grantor.queue.owner(session);
            matches!(owner, Some(Owner::Own(_) | Owner::Neighbour))
        };
        let held_here = holders.iter().filter(|(session, _)| here(session)).count();
        holders.sort_by_key(|(_, contender)| contender.map(|entry| entry.modify_index));
        let genuine = holders.iter().filter(|(session, _)| session.is_genuine());
        let named = genuine.take(LISTED).map(|(session, contender)| {
            let body = contender.and_then(|entry| ContenderBody::read(&entry.value));
            let cools_until = body.as_ref().and_then(|body| body.cools_until);
            let said = body.as_ref().map(ContenderBody::holder);
            let since = match &body {
                Some(body) => Some(body.time),
                None => self.grantor.tenures.since(session),
            };
            let status = HolderStatus {
                session: session.to_string(),
                key: self.reference.key.as_ref().map(ToString::to_string),
                holder: said.or_else(|| {
                    self.grantor
                        .queue
                        .holder_name(session)
                        .map(ToOwned::to_owned)
                }),
                never_expires: body.as_ref().is_some_and(|body| body.endless),
                cools_until: cools_until.and_then(whole_seconds).map(Time),
                since: since.and_then(whole_seconds).map(Time),
            };
            (contender.map(|entry| entry.modify_index), status)
        });
        Shown {
            limit: Some(limit),
            held,
            held_here,
            holders: named.collect(),
        }
    }

    /// Whether what others do there matters to a waiting Job: they take part, or nothing can be granted as it
    /// is. Where all who take part are ours, their slots become free here first; but since the watch was
    /// last `seen` to show what we wrote, somebody may have come who is to go before the next one.
    pub(super) fn depends_on_others(&self, conclusion: &Conclusion, seen: bool) -> bool {
        if self.grantor.queue.settings().fair.is_some() && !seen {
            return true;
        }
        let Some(reading) = self.grantor.queue.reading() else {
            return true;
        };
        let Some((_, holders)) = slots(reading.lock()) else {
            return true;
        };
        let contenders = reading.contenders().map(|(session, _)| session);
        let mut sessions = holders.into_iter().chain(contenders);
        let owner = |session| self.grantor.queue.owner(session);
        conclusion.agreement != Some(Agreement::Agreed)
            || sessions.any(|session| !matches!(owner(session), Some(Owner::Own(_))))
    }

    pub(super) fn findings(&self, conclusion: &Conclusion) -> Vec<Finding> {
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
        if self.grantor.queue.settings().terminating {
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
            return not(Reason::LockConflict, self.lock_conflict(why));
        }
        if let Some(Agreement::Conflict { theirs }) = conclusion.agreement {
            return not(Reason::LimitConflict, self.limit_conflict(theirs));
        }
        if self.grantor.queue.settings().paused {
            let message = "spec.paused is true: nothing more is granted; running Jobs go on. Set it to false \
                           to go on granting";
            return not(Reason::Paused, message.into());
        }
        if let Some(refusal) = self.grantor.queue.refusal() {
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
        if self.grantor.queue.coolings().count() > 0 {
            message.push_str(", and has cooled: status.holders says until when");
        }
        let trouble = self.grantor.queue.trouble();
        let why = trouble.map(|trouble| trouble.error.to_string());
        let Some(why) = why.or_else(|| self.access.problem().map(|(_, why)| why)) else {
            return message;
        };
        let settings = &self.grantor.queue.settings();
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
        let problem = self.access.problem();
        if let Some((reason, message)) = &problem
            && self.grantor.home.is_none()
        {
            let message = format!("{message}. Nothing is granted");
            return finding(ConditionStatus::Unknown, *reason, message);
        }
        if let Some(trouble) = self.grantor.queue.trouble() {
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
        if self.grantor.queue.reading().is_none() && self.shown.limit.is_none() {
            let message = "Consul is being asked".into();
            return finding(ConditionStatus::Unknown, Reason::Starting, message);
        }
        if self.grantor.queue.went_back() {
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
        let ours = self.grantor.queue.settings().limit;
        let (agreed, reason, message) = match conclusion.agreement {
            Some(Agreement::Agreed) if self.grantor.queue.settings().mode == Mode::Mutex => {
                let message = "a mutex has one slot, and no limit to agree on".to_owned();
                (ConditionStatus::True, Reason::LimitsMatch, message)
            }
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

    fn lock_conflict(&self, why: &Unreadable) -> String {
        let key = self.grantor.queue.settings().prefix.lock_key();
        let (used_as, scripts) = match self.grantor.queue.settings().mode {
            Mode::Semaphore => ("a semaphore", "scripts need `consul lock -n <limit>`"),
            Mode::Mutex => ("a mutex", "scripts need `consul lock` without -n"),
        };
        let advice = match why {
            Unreadable::LeftOver { .. } => format!(
                "Nothing is granted; the key is removed once it has rested for \
                 spec.session.lockDelay, {} s",
                self.grantor.queue.settings().lock_delay.as_secs()
            ),
            Unreadable::Mutex => format!(
                "Nothing is granted, and it is left as it is; that ends when nobody holds it and it \
                 is gone or unlocked. Or make another ConsulSemaphore with another prefix or with \
                 spec.mode Mutex; {scripts}"
            ),
            _ => format!(
                "Nothing is granted, and it is left as it is. Delete the key once nobody uses it, or \
                 make another ConsulSemaphore with another prefix; {scripts}"
            ),
        };
        format!("the key {key} can't be used as {used_as}: {why}. {advice}")
    }

    fn limit_conflict(&self, theirs: u32) -> String {
        let ours = self.grantor.queue.settings().limit;
        if self.grantor.queue.settings().policy == LimitPolicy::Enforce {
            return format!(
                "Consul's limit is {theirs} and spec.limit is {ours}, which was \
                 overwritten every time. Nothing is granted: find out who writes {theirs}; \
                 a change of this spec has it enforced again"
            );
        }
        let index = &self.grantor.context.index;
        let lock_key = self.grantor.queue.settings().prefix.lock_key();
        let neighbours = index.neighbours(&self.reference, &lock_key);
        let who = match neighbours.first() {
            Some(neighbour) => format!(
                "ConsulSemaphore {} has the same prefix, or somebody else wrote the former",
                others(&neighbour.title(), neighbours.len())
            ),
            None => "somebody else wrote the former".to_owned(),
        };
        format!(
            "Consul's limit is {theirs} and spec.limit is {ours}; {who}. \
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
        let Some((limit, held)) = self.lock().and_then(slots) else {
            return self.unknown(ConditionType::SlotsAvailable);
        };
        let strays = held.iter().filter(|session| !session.is_genuine()).count();
        let (held, limit) = (number(held.len()), number(limit));
        if held < limit && self.grantor.queue.is_delayed(Moment::now()) {
            let message = "the mutex is free, and Consul's lock-delay of a holder that died runs: \
                           nobody can lock it until then";
            let reason = Reason::AllSlotsHeld;
            return Finding::new(ConditionType::SlotsAvailable, false, reason, message);
        }
        let (free, reason) = if held < limit {
            (true, Reason::SlotsFree)
        } else {
            (false, Reason::AllSlotsHeld)
        };
        let mut message = format!("{held} of {limit} slots are held");
        match self.grantor.queue.coolings().count() {
            0 => {}
            1 => message.push_str(", one of them by a Job of this cluster that is done: it cools"),
            some => {
                let more =
                    format!(", {some} of them by Jobs of this cluster that are done: they cool");
                message.push_str(&more);
            }
        }
        if strays > 0 {
            let more = format!(", {strays} of them by entries in Holders that are no sessions");
            message.push_str(&more);
        }
        Finding::new(ConditionType::SlotsAvailable, free, reason, message)
    }

    fn lock(&self) -> Option<&Lock> {
        self.grantor.queue.reading().map(Reading::lock)
    }

    /// What can't be said while `.lock` can't be read.
    fn unknown(&self, condition: ConditionType) -> Finding {
        let reason = match (self.grantor.queue.trouble(), self.lock()) {
            (Some(trouble), _) => self.explain(&trouble.error).0,
            (None, None) if let Some((reason, _)) = self.access.problem() => reason,
            (None, Some(Lock::Unreadable(_))) => Reason::LockConflict,
            (None, _) if self.grantor.queue.settings().terminating => Reason::Terminating,
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

/// The limit, and who holds, dead holders included; `None` if that can't be said.
pub(super) fn slots(lock: &Lock) -> Option<(u32, Vec<&SessionId>)> {
    match lock {
        Lock::Semaphore { body, .. } => Some((body.limit(), body.holders().collect())),
        Lock::Mutex { holder, .. } => Some((1, holder.iter().collect())),
        Lock::Absent { .. } | Lock::Unreadable(_) => None,
    }
}

fn queued(job: &Job, keyed: bool) -> QueueStatus {
    let key = job.key.as_ref().filter(|_| keyed);
    QueueStatus {
        key: key.map(ToString::to_string),
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
