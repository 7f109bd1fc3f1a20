//! Determines the conditions of one queue, and what a person can do about them.

use super::access::Stated;
use crate::controller::index::Index;
use consul_client::{self as consul, SessionId, clock::Moment};
use consul_semaphore::{
    Agreement, ContenderBody, LimitPolicy, Lock, Mode, Reading, Reserved, Settings, Workload,
    engine::{Conclusion, Queue, QueueRef, SemaphoreState},
    lock::Unreadable,
    windows::Opening,
};
use consul_semaphore_api::conditions::{ConditionStatus, ConditionType, Finding, Reason};

/// Message of a semaphore that its spec pauses.
const PAUSED_MESSAGE: &str = "spec.paused is true: no slot is granted, and running Jobs continue. Set spec.paused to \
                              false to grant slots again";

/// Facts behind the conditions of a queue, or of a semaphore without a key in use.
pub(super) struct Observed<'a> {
    pub(super) reference: &'a QueueRef,
    pub(super) settings: &'a Settings,
    /// Whether the windows of the spec are open.
    pub(super) opening: Opening,
    /// Whether Consul may be used, and with whose token.
    pub(super) access: &'a Stated,
    /// Node of the sessions that are created; `None` while Consul can't be used.
    pub(super) node: Option<&'a str>,
    pub(super) index: &'a Index,
    /// Current trouble with Consul, if there is any.
    pub(super) error: Option<&'a consul::Error>,
    /// Whether Consul has answered.
    pub(super) answered: bool,
    pub(super) went_back: bool,
    /// Queue that the conditions are about, unless no key is in use.
    pub(super) queue: Option<&'a Queue>,
}

/// Need of a workload in a queue. Workloads with the same need wait for the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::controller) struct Need {
    /// Number of slots that the workload asks for.
    pub(in crate::controller) slots: u32,
    /// Number of free slots that the workload can't have, because they are reserved for a higher priority.
    pub(in crate::controller) withheld: u32,
}

impl Need {
    /// Returns what a workload needs of a semaphore, or of one key of it.
    pub(in crate::controller) fn of(settings: &Settings, workload: &Workload) -> Self {
        let slots = settings.request(workload);
        Self {
            slots: slots.map_or(1, |request| request.slots.get()),
            withheld: settings.restrictions.reserved_from(workload.priority),
        }
    }
}

/// What a workload with some [`Need`] can expect of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::controller) struct Outlook {
    /// What keeps the workload from its slots; `None` if it only waits for its turn.
    pub(in crate::controller) obstacle: Option<GrantObstacle>,
    /// Number of free slots that the workload may have.
    pub(super) free: u32,
    /// Whether running workloads have lost their slots. Free slots go to them first.
    pub(super) unheld: bool,
}

/// Reason why a workload in a queue has no slot yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::controller) struct GrantObstacle {
    /// Type of the condition that is the obstacle.
    pub(in crate::controller) type_: ConditionType,
    pub(in crate::controller) reason: Reason,
    /// Explanation for people.
    pub(in crate::controller) message: String,
    /// Whether nothing is granted until somebody repairs something.
    pub(in crate::controller) needs_repair: bool,
}

impl GrantObstacle {
    /// Returns what keeps a workload with this need from its slots; `None` if it only waits for its turn. `free` is
    /// the number of free slots that it may have, if that is known. The findings must be those for such a workload.
    pub(super) fn of(findings: &[Finding], free: Option<u32>, need: Need) -> Option<Self> {
        let few = free.is_some_and(|free| free < need.slots);
        let is = |finding: &&Finding| match finding.type_ {
            ConditionType::Ready => finding.status != ConditionStatus::True,
            ConditionType::SlotsAvailable => {
                finding.reason != Reason::RunningWithoutSlot
                    && (few || !matches!(finding.reason, Reason::SlotsFree | Reason::Reserved))
                    && finding.status != ConditionStatus::Unknown
            }
            ConditionType::ConsulReachable | ConditionType::LimitAgreed => false,
        };
        let finding = findings.iter().find(is)?;
        let mut obstacle = Self {
            type_: finding.type_,
            reason: finding.reason,
            message: finding.message.clone(),
            needs_repair: finding.reason.needs_repair(),
        };
        if let Some(free) = free.filter(|_| obstacle.is_of_slots() && need.slots > 1) {
            let (asks, more) = (need.slots, need.slots.saturating_sub(free));
            let needs = format!(", and it asks for {asks}: {more} more must become free");
            obstacle.message.push_str(&needs);
        }
        Some(obstacle)
    }

    /// Whether the semaphore grants nothing to anybody, and not just too little to this workload.
    pub(super) fn stops_all(&self) -> bool {
        self.type_ == ConditionType::Ready || self.reason.is_intended()
    }

    /// Whether the obstacle is the number of slots that are held.
    pub(super) fn is_of_slots(&self) -> bool {
        let plain = [Reason::AllSlotsHeld, Reason::SlotsFree, Reason::Reserved];
        plain.contains(&self.reason)
    }
}

impl<'a> Observed<'a> {
    /// Returns what a workload with this need can expect of this queue.
    pub(super) fn outlook(&self, conclusion: &Conclusion, need: Need) -> Outlook {
        let slots = self.lock().and_then(slots);
        let free = slots.map(|(limit, held)| {
            let held = u32::try_from(held.len()).unwrap_or(u32::MAX);
            let limit = self.opening.limit(limit).saturating_sub(need.withheld);
            limit.saturating_sub(held)
        });
        let reserved = self.reserved().filter(|_| need.withheld > 0);
        let findings = self.findings_with(conclusion, reserved);
        let mut obstacle = GrantObstacle::of(&findings, free, need);
        if let Some(Lock::Unreadable(Unreadable::LeftOver { .. })) = self.lock()
            && let Some(obstacle) = &mut obstacle
        {
            // The operator itself removes a key that is left over.
            obstacle.needs_repair = false;
        }
        // Nobody holds a slot of a key that does not exist yet.
        let all = || {
            self.opening
                .limit(self.settings.limit)
                .saturating_sub(need.withheld)
        };
        Outlook {
            obstacle,
            free: free.unwrap_or_else(all),
            unheld: !conclusion.unheld.is_empty(),
        }
    }

    /// Returns these facts with those of a queue. `shown` says whether the queue was readable before.
    pub(super) fn with_queue(self, queue: &'a Queue, shown: bool) -> Self {
        Self {
            settings: queue.settings(),
            error: queue.trouble().map(|trouble| &trouble.error),
            answered: queue.reading().is_some() || shown,
            went_back: queue.went_back(),
            queue: Some(queue),
            ..self
        }
    }

    /// Returns these facts with those that the watch of a semaphore's prefix shows.
    pub(super) fn with_watch(self, semaphore: &'a SemaphoreState) -> Self {
        let watched = semaphore.watched();
        Self {
            settings: &semaphore.spec().settings,
            error: watched.failure().map(|(error, _)| error),
            answered: watched.is_known(),
            went_back: watched.went_back(),
            queue: None,
            ..self
        }
    }

    pub(super) fn findings(&self, conclusion: &Conclusion) -> Vec<Finding> {
        self.findings_with(conclusion, self.reserved())
    }

    fn reserved(&self) -> Option<Reserved> {
        self.settings.restrictions.reserved
    }

    /// Returns the findings, given that these slots are reserved for others.
    fn findings_with(&self, conclusion: &Conclusion, reserved: Option<Reserved>) -> Vec<Finding> {
        let reachable = self.consul_reachable();
        vec![
            self.ready(conclusion, &reachable),
            reachable,
            self.limit_agreed(conclusion),
            self.slots_available(conclusion, reserved),
        ]
    }

    /// Returns the summary: whether the semaphore does what its spec asks for.
    fn ready(&self, conclusion: &Conclusion, reachable: &Finding) -> Finding {
        let not =
            |reason, message: String| Finding::new(ConditionType::Ready, false, reason, message);
        if self.settings.terminating {
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
        if self.settings.paused {
            return Finding::new(ConditionType::Ready, true, Reason::Paused, PAUSED_MESSAGE);
        }
        let invalid = self.invalid_windows();
        if let Some(invalid) = &invalid
            && !self.opening.can_open()
        {
            let message = format!("{invalid}. No slots are granted, but running Jobs continue");
            return not(Reason::InvalidWindow, message);
        }
        if let Some(refusal) = self.queue.and_then(Queue::refusal) {
            let message = format!(
                "the API server has refused the start of several Jobs in a row: {refusal}. No slots are granted until \
                 a start succeeds. The operator needs the right to patch Jobs"
            );
            return not(Reason::StartsRefused, message);
        }
        if let Some(invalid) = invalid {
            let message =
                format!("slots are granted and released in the other windows, but {invalid}");
            return Finding::new(ConditionType::Ready, true, Reason::InvalidWindow, message);
        }
        let (reason, message) = self.outside_windows().map_or_else(
            || {
                (
                    Reason::Reconciled,
                    "slots are granted and released".to_owned(),
                )
            },
            |message| (Reason::OutsideWindow, message),
        );
        Finding::new(ConditionType::Ready, true, reason, message)
    }

    /// Returns the message of a semaphore that is outside its windows; `None` while a window is open, or if there are
    /// no windows.
    fn outside_windows(&self) -> Option<String> {
        let Opening::Closed { until } = self.opening else {
            return None;
        };
        Some(until.map_or_else(
            || "no window of spec.windows opens".to_owned(),
            |until| format!("outside spec.windows: no slot is granted before {until:.0}"),
        ))
    }

    /// Returns what is wrong with windows of the spec.
    fn invalid_windows(&self) -> Option<String> {
        let invalid = self.settings.restrictions.windows.invalid().iter();
        let described =
            invalid.map(|(place, why)| format!("spec.windows[{place}] never opens: {why}"));
        let messages: Vec<_> = described.collect();
        (!messages.is_empty()).then(|| messages.join("; "))
    }

    /// Returns what a semaphore that is being deleted waits for, and what to do if that never happens.
    fn terminating(&self) -> String {
        let mut message =
            "being deleted: no slot is granted. It is removed when the last Job that \
                           holds a slot is done"
                .to_owned();
        if self.cooling() > 0 && !self.settings.is_rate() {
            message.push_str(" and its cooldown is over: see status.holders");
        }
        let why = self.error.map(ToString::to_string);
        let Some(why) = why.or_else(|| self.access.problem().map(|(_, why)| why)) else {
            return message;
        };
        let settings = self.settings;
        let (name, namespace) = (&settings.name, &settings.namespace);
        let end = if settings.ttl.is_some() {
            format!(
                "If Consul stays away, the operator removes the ConsulSemaphore without Consul when its sessions have \
                 certainly expired, after at least {} s; an event then says what is left in Consul",
                settings.span().as_secs()
            )
        } else {
            format!(
                "Its sessions never expire, so it waits for Consul if a Job has held a slot. If that \
                 Consul is lost permanently, remove it without cleaning up: kubectl patch csem {name} -n \
                 {namespace} --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'"
            )
        };
        message = format!("{message}. Consul can't be used at the moment: {why}. {end}");
        message
    }

    fn consul_reachable(&self) -> Finding {
        let finding = |status: ConditionStatus, reason, message: String| {
            Finding::new(ConditionType::ConsulReachable, status, reason, message)
        };
        let problem = self.access.problem();
        if let Some((reason, message)) = &problem
            && self.node.is_none()
        {
            let message = format!("{message}. Nothing is granted");
            return finding(ConditionStatus::Unknown, *reason, message);
        }
        if let Some(error) = self.error {
            let (reason, message) = self.explain(error);
            return finding(ConditionStatus::False, reason, message);
        }
        if let Some((reason, message)) = problem {
            let message = format!(
                "{message}. The operator uses the token that it read before, until it restarts"
            );
            return finding(ConditionStatus::True, reason, message);
        }
        if !self.answered {
            let message = "waiting for Consul's first answer".into();
            return finding(ConditionStatus::Unknown, Reason::Starting, message);
        }
        if self.went_back {
            let message = "Consul's index went back: it lost its data or was restored, and fencing \
                           tokens start again. Reset every program that compares them";
            return finding(ConditionStatus::True, Reason::IndexWentBack, message.into());
        }
        finding(
            ConditionStatus::True,
            Reason::Reachable,
            "Consul can be read and written".into(),
        )
    }

    fn limit_agreed(&self, conclusion: &Conclusion) -> Finding {
        let ours = self.settings.limit;
        let (agreed, reason, message) = match conclusion.agreement {
            Some(Agreement::Agreed) if let Some(message) = self.other_period() => {
                (ConditionStatus::False, Reason::PeriodDiffers, message)
            }
            Some(Agreement::Agreed) => {
                let message = match self.settings.mode {
                    Mode::Semaphore => format!("Consul has the limit of the spec: {ours}"),
                    Mode::Mutex => "a mutex has one slot and no limit to agree on".to_owned(),
                };
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

    /// Returns the holders of a rate, as they describe themselves.
    fn counted(&self) -> impl Iterator<Item = Option<ContenderBody>> {
        let reading = self.queue.and_then(Queue::reading);
        let of_rate = reading.filter(|_| self.settings.is_rate());
        of_rate.into_iter().flat_map(|reading| {
            let contenders = reading.contenders();
            let holding = contenders.filter(|(session, _)| reading.holds(session));
            holding.map(|(_, entry)| ContenderBody::read(&entry.value))
        })
    }

    /// Returns a message about a holder that counts starts by another period, or that holds a slot of a rate as long
    /// as it runs.
    fn other_period(&self) -> Option<String> {
        let ours = self.settings.period?;
        let theirs =
            |body: &Option<ContenderBody>| body.as_ref().and_then(ContenderBody::rate_period);
        let other = self.counted().find(|body| theirs(body) != Some(ours))?;
        let holder = other.as_ref().map_or("another program".to_owned(), |body| {
            body.holder().to_string()
        });
        let counts = theirs(&other).map_or("does not count starts".to_owned(), |period| {
            format!("counts starts in {} s", period.as_secs())
        });
        Some(format!(
            "{holder} {counts}, and spec.period is {} s: each limit applies only among the clients with the same period. \
             This condition clears when that slot is free, unless a client uses another period again",
            ours.as_secs()
        ))
    }

    /// Returns when the next start of a rate is allowed, once all slots are held.
    fn next_start(&self) -> Option<jiff::Timestamp> {
        let stamps = self.counted().flatten();
        stamps.filter_map(|body| body.cools_until).min()
    }

    fn lock_conflict(&self, why: &Unreadable) -> String {
        let key = self.settings.prefix.lock_key();
        let (used_as, scripts) = match self.settings.mode {
            Mode::Semaphore => ("a semaphore", "scripts need `consul lock -n <limit>`"),
            Mode::Mutex => ("a mutex", "scripts need `consul lock` without -n"),
        };
        let advice = match why {
            Unreadable::LeftOver { .. } => format!(
                "Nothing is granted; the key is removed after spec.session.lockDelay, {} s",
                self.settings.lock_delay.as_secs()
            ),
            Unreadable::Mutex => format!(
                "Nothing is granted, and the operator does not touch the key. This ends when nobody holds the key and \
                 it is deleted or unlocked. You can also create another ConsulSemaphore with another prefix, or with \
                 spec.mode Mutex; {scripts}"
            ),
            _ => format!(
                "Nothing is granted, and the operator does not touch the key. Delete it when nobody uses it, or create \
                 another ConsulSemaphore with another prefix; {scripts}"
            ),
        };
        format!("the key {key} can't be used as {used_as}: {why}. {advice}")
    }

    fn limit_conflict(&self, theirs: u32) -> String {
        let ours = self.settings.limit;
        match self.settings.policy {
            LimitPolicy::Refuse | LimitPolicy::Follow => {}
            LimitPolicy::Enforce => {
                return format!(
                    "Consul's limit is {theirs} and spec.limit is {ours}: another program or cluster overwrites the \
                     limit each time the operator writes it. No slots are granted. Find and stop \
                     the writer of {theirs}, then change this spec, so that the operator enforces its limit again"
                );
            }
        }
        let lock_key = self.settings.prefix.lock_key();
        let neighbours = self.index.neighbours(self.reference, &lock_key);
        let who = match neighbours.first() {
            Some(neighbour) => format!(
                "ConsulSemaphore {} has the same prefix, or another program wrote the limit in Consul",
                others(&neighbour.title(), neighbours.len())
            ),
            None => "another program or cluster wrote the limit in Consul".to_owned(),
        };
        format!(
            "Consul's limit is {theirs} and spec.limit is {ours}; {who}. \
             Nothing is granted until both agree: set spec.limit to {theirs}, make all others use \
             {ours}, or set spec.limitPolicy to Enforce"
        )
    }

    fn slots_available(&self, conclusion: &Conclusion, reserved: Option<Reserved>) -> Finding {
        if let Some(first) = conclusion.unheld.first() {
            let message = format!(
                "running without a slot, because spec.onSlotLost is Continue: {}",
                others(&first.name, conclusion.unheld.len())
            );
            let reason = Reason::RunningWithoutSlot;
            return Finding::new(ConditionType::SlotsAvailable, false, reason, message);
        }
        let opening = self.opening;
        let none = |reason, message: String| {
            Finding::new(ConditionType::SlotsAvailable, false, reason, message)
        };
        if self.settings.paused {
            return none(Reason::Paused, PAUSED_MESSAGE.to_owned());
        }
        if let Some(message) = self.outside_windows() {
            return none(Reason::OutsideWindow, message);
        }
        let Some((limit, held)) = self.lock().and_then(slots) else {
            return self.unknown(ConditionType::SlotsAvailable);
        };
        let unclaimed = held.iter().filter(|session| !session.is_genuine()).count();
        let (held, limit) = (number(held.len()), number(limit));
        let now = Moment::now();
        if held < limit && self.queue.is_some_and(|queue| queue.is_delayed(now)) {
            let message = "the mutex is free, but nobody can lock it until Consul's lock-delay \
                           of the dead holder is over";
            let reason = Reason::AllSlotsHeld;
            return Finding::new(ConditionType::SlotsAvailable, false, reason, message);
        }
        let in_force = number(opening.limit(limit.unsigned_abs()));
        let (free, reason, mut message) = availability(held, (in_force, limit), reserved);
        if let Some(period) = self.settings.period {
            let next = self.next_start().filter(|_| !free);
            let next_start = next.map_or_else(String::new, |next| {
                format!("; the next start is allowed at {next:.0}")
            });
            let more = format!(" by starts of the last {} s{next_start}", period.as_secs());
            message.push_str(&more);
        }
        match self.cooling() {
            _ if self.settings.is_rate() => {}
            0 => {}
            1 => message.push_str(", one of them in its cooldown"),
            some => {
                let more = format!(", {some} of them in their cooldown");
                message.push_str(&more);
            }
        }
        if unclaimed > 0 {
            let more = format!(", {unclaimed} of them by entries in Holders that are not sessions");
            message.push_str(&more);
        }
        Finding::new(ConditionType::SlotsAvailable, free, reason, message)
    }

    fn lock(&self) -> Option<&Lock> {
        self.queue?.reading().map(Reading::lock)
    }

    /// Returns how many slots are cooling.
    fn cooling(&self) -> usize {
        self.queue.map_or(0, |queue| queue.cooldowns().count())
    }

    /// Returns the condition while `.lock` can't be read.
    fn unknown(&self, condition: ConditionType) -> Finding {
        let reason = match (self.error, self.lock()) {
            (Some(error), _) => self.explain(error).0,
            (None, None) if let Some((reason, _)) = self.access.problem() => reason,
            (None, Some(Lock::Unreadable(_))) => Reason::LockConflict,
            (None, _) if self.settings.terminating => Reason::Terminating,
            (None, _) => Reason::Starting,
        };
        let message = match reason {
            Reason::Terminating => {
                "the limit no longer matters, because the ConsulSemaphore is being deleted"
            }
            Reason::Starting => "Consul has not answered yet",
            _ => "unknown while the lock key can't be read",
        };
        Finding::new(condition, ConditionStatus::Unknown, reason, message)
    }
}

/// Returns whether slots are free while this many are held, with the reason and a message. The limits are the one in
/// force and the one in all.
fn availability(
    held: i32,
    (in_force, limit): (i32, i32),
    reserved: Option<Reserved>,
) -> (bool, Reason, String) {
    let is_reserved = reserved.filter(|reserved| held + number(reserved.slots) >= in_force);
    let (free, reason) = match is_reserved {
        _ if held >= in_force => (false, Reason::AllSlotsHeld),
        Some(_) => (true, Reason::Reserved),
        None => (true, Reason::SlotsFree),
    };
    let mut message = if in_force < limit {
        format!(
            "{held} of the {in_force} slots of this window are held; the semaphore has {limit} slots in total"
        )
    } else {
        format!("{held} of {limit} slots are held")
    };
    if let Some(reserved) = is_reserved.filter(|_| free) {
        let more = format!(
            ", and the last {} are reserved for Jobs of priority {} and above",
            reserved.slots, reserved.min_priority
        );
        message.push_str(&more);
    }
    (free, reason, message)
}

/// Returns the limit and the holders, including dead holders; `None` if they are unknown.
pub(super) fn slots(lock: &Lock) -> Option<(u32, Vec<&SessionId>)> {
    match lock {
        Lock::Semaphore { body, .. } => Some((body.limit(), body.holders().collect())),
        Lock::Mutex { holder, .. } => Some((1, holder.iter().collect())),
        Lock::Absent { .. } | Lock::Unreadable(_) => None,
    }
}

/// Whether slots can be granted and released, apart from windows.
pub(super) fn is_ready(findings: &[Finding]) -> bool {
    let is = |finding: &Finding| {
        finding.type_ == ConditionType::Ready && finding.status == ConditionStatus::True
    };
    findings.iter().any(is)
}

/// Returns a name, and how many others there are.
fn others(name: &str, count: usize) -> String {
    match count {
        0 | 1 => name.to_owned(),
        count => format!("{name} and {} more", count - 1),
    }
}

pub(super) fn number<T: TryInto<i32>>(count: T) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use consul_semaphore::Restrictions;

    fn findings(ready: (bool, Reason), available: Reason) -> Vec<Finding> {
        vec![
            Finding::new(ConditionType::Ready, ready.0, ready.1, "about all"),
            Finding::new(
                ConditionType::SlotsAvailable,
                available == Reason::SlotsFree,
                available,
                "2 of 3 slots are held",
            ),
        ]
    }

    /// Returns the need for this many slots, none of which is reserved for others.
    fn need(slots: u32) -> Need {
        Need { slots, withheld: 0 }
    }

    #[test]
    fn one_that_asks_for_more_than_is_free_is_told_how_many_are_missing() {
        let well = (true, Reason::Reconciled);
        let of = |available, free, slots| {
            let obstacle = GrantObstacle::of(&findings(well, available), Some(free), need(slots));
            obstacle.map(|obstacle| (obstacle.message, obstacle.needs_repair))
        };
        let held = "2 of 3 slots are held";
        assert_eq!(of(Reason::SlotsFree, 1, 1), None);
        assert_eq!(of(Reason::SlotsFree, 2, 2), None);
        let few = format!("{held}, and it asks for 2: 1 more must become free");
        assert_eq!(of(Reason::SlotsFree, 1, 2), Some((few.clone(), false)));
        assert_eq!(of(Reason::Reserved, 1, 2), Some((few, false)));
        assert_eq!(
            of(Reason::AllSlotsHeld, 0, 1),
            Some((held.to_owned(), false))
        );
        assert_eq!(of(Reason::Reserved, 0, 1), Some((held.to_owned(), false)));
        let none = format!("{held}, and it asks for 3: 3 more must become free");
        assert_eq!(of(Reason::AllSlotsHeld, 0, 3), Some((none, false)));
    }

    #[test]
    fn only_those_of_a_lower_priority_hear_that_the_last_slots_are_reserved() {
        let reserved = Reserved {
            slots: 1,
            min_priority: 10,
        };
        let restrictions = Restrictions {
            reserved: Some(reserved),
            ..Restrictions::default()
        };
        let told = |slots, priority| {
            let withheld = restrictions.reserved_from(priority);
            let need = Need { slots, withheld };
            let of = Some(reserved).filter(|_| need.withheld > 0);
            let (free, reason, message) = availability(2, (3, 3), of);
            let well = Finding::new(ConditionType::Ready, true, Reason::Reconciled, "");
            let available = Finding::new(ConditionType::SlotsAvailable, free, reason, message);
            let obstacle = GrantObstacle::of(&[well, available], Some(1 - need.withheld), need);
            obstacle.map(|obstacle| obstacle.message)
        };
        let held = "2 of 3 slots are held";
        let last = format!("{held}, and the last 1 are reserved for Jobs of priority 10 and above");
        assert_eq!(told(1, 9), Some(last));
        assert_eq!(told(1, 10), None);
        let two = format!("{held}, and it asks for 2: 1 more must become free");
        assert_eq!(told(2, 10), Some(two));
    }

    #[test]
    fn only_what_does_not_end_by_itself_needs_repair() {
        for (reason, needs_repair) in [
            (Reason::PrefixNotAllowed, true),
            (Reason::TokenNotFound, true),
            (Reason::LimitConflict, true),
            (Reason::ConsulUnreachable, false),
            (Reason::Paused, false),
            (Reason::Starting, false),
        ] {
            let findings = findings((false, reason), Reason::SlotsFree);
            let expected = GrantObstacle {
                type_: ConditionType::Ready,
                reason,
                message: "about all".to_owned(),
                needs_repair,
            };
            assert_eq!(
                GrantObstacle::of(&findings, None, need(2)),
                Some(expected),
                "{reason}"
            );
        }
    }
}
