//! Explains why a queued Job has no slot yet, as far as the status of its semaphore says.
//!
//! This module repeats what the operator has published, and makes no judgement of its own: where the status does not
//! say enough, the explanation says less. The status lists twenty holders and the head of the queue.

use std::{collections::HashMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{
    ConsulSemaphore, ConsulSemaphoreStatus, QueueStatus, ReservedSlots, Standing,
    conditions::{self, ConditionStatus, ConditionType, Reason},
};

/// The reason why one queued Job has no slot yet.
#[derive(Clone, Debug, PartialEq)]
pub enum Why<'a> {
    /// The operator has not reported on the semaphore.
    Unseen,
    /// Nothing is granted, as the condition Ready says: it is not True, or its reason is Paused.
    Stopped(&'a Condition),
    /// The Job is first in the queue; this condition says what the Job waits for.
    First(&'a Condition),
    /// The Job is first in the queue, and fewer slots are free than the Job asks for.
    Short(Slots<'a>),
    /// As many slots as the Job asks for are free for it. The Job is being started, or it waits for slots of other
    /// semaphores, too, or the slots are left to a contender elsewhere that has waited longer. The status does not
    /// say which of these is the case, but the Job's events do.
    Free {
        /// Number of slots that the Job asks for in this semaphore.
        slots: u32,
        /// Whether the Job is known to ask for slots of this semaphore only.
        alone: bool,
    },
    /// The Job asks for slots of several semaphores, and can't have all of them yet.
    Several {
        /// Use that the operator makes of free slots of this semaphore meanwhile.
        standing: Standing,
        /// Slots that the Job asks for and that are not free; `None` if the status does not list them.
        lacks: Option<&'a str>,
    },
    /// Another Job, with this name, is before the Job in the queue.
    Behind(&'a str),
}

/// The number of slots that are held, that exist and that a Job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots<'a> {
    /// Key whose slots are counted, if the semaphore is keyed.
    pub key: Option<&'a str>,
    /// Number of held slots of the key or of the semaphore; unknown if the status does not list all holders of a
    /// keyed semaphore.
    pub held: Option<u32>,
    /// Number of slots that exist.
    pub limit: u32,
    /// Number of slots that the Job asks for.
    pub asked: u32,
}

impl Slots<'_> {
    /// Returns the number of slots that must still become free, if that number is known.
    pub fn missing(self) -> Option<u32> {
        let free = self.limit.saturating_sub(self.held?);
        Some(self.asked.saturating_sub(free))
    }
}

impl fmt::Display for Slots<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, asked, .. } = self;
        let of_key = self
            .key
            .map_or_else(String::new, |key| format!(" of the key {key}"));
        match (self.held.zip(self.missing()), asked) {
            (Some((held, _)), 1) => write!(f, "{held} of {limit} slots{of_key} are held"),
            (Some((held, missing)), _) => write!(
                f,
                "{held} of {limit} slots{of_key} are held, and it asks for {asked}: {missing} more must become free"
            ),
            (None, 1) => write!(f, "next for a slot{of_key}"),
            (None, _) => write!(f, "next for {asked} slots{of_key}"),
        }
    }
}

/// A Job in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking<'a> {
    /// Name of the Job.
    pub name: &'a str,
    /// Key that the Job asks for.
    pub key: Option<&'a str>,
    /// Number of slots of this semaphore that the Job asks for.
    pub slots: u32,
    /// Whether the Job is known to ask for slots of this semaphore only.
    pub alone: bool,
    /// Priority of the Job, if it is known. A Job of unknown priority may not use reserved slots.
    pub priority: Option<i32>,
    /// Use of free slots while the Job can't have all slots that it asks for, as the status of its semaphore says.
    pub standing: Option<Standing>,
    /// Slots that the Job asks for and that are not free, as the status of its semaphore says.
    pub lacks: Option<&'a str>,
}

impl<'a> Asking<'a> {
    /// Makes a Job that asks for so many slots, and about which the status says nothing else.
    pub fn new(name: &'a str, key: Option<&'a str>, slots: u32) -> Self {
        Self {
            name,
            key,
            slots,
            alone: false,
            priority: None,
            standing: None,
            lacks: None,
        }
    }
}

impl<'a> From<&'a QueueStatus> for Asking<'a> {
    fn from(queued: &'a QueueStatus) -> Self {
        let slots = queued.slots.and_then(|slots| slots.try_into().ok());
        Self {
            standing: Standing::of(queued),
            lacks: queued.lacks.as_deref(),
            ..Self::new(&queued.name, queued.key.as_deref(), slots.unwrap_or(1))
        }
    }
}

/// Returns why a semaphore lacks slots that a Job asks for, as the status of the semaphore says; `None` if enough
/// slots are free or if the number of held slots is unknown.
pub fn lack<'a>(semaphore: &'a ConsulSemaphore, asking: Asking<'a>) -> Option<Why<'a>> {
    match Line::of(semaphore).next(asking) {
        Why::Free { .. } | Why::Short(Slots { held: None, .. }) => None,
        why => Some(why),
    }
}

impl Why<'_> {
    /// Returns a word for programs, like the reason of a condition.
    pub fn reason(&self) -> &str {
        match self {
            Self::Unseen => "Unseen",
            Self::Stopped(condition) | Self::First(condition) => &condition.reason,
            Self::Short(Slots { asked: 2.., .. }) => "TooFewSlotsFree",
            Self::Short(_) | Self::Free { .. } => "Next",
            Self::Several { standing, .. } => standing.as_str(),
            Self::Behind(_) => "Behind",
        }
    }

    /// Returns an explanation for people. The explanation contains advice only if the condition gives some.
    pub fn message(&self) -> String {
        match self {
            Self::Unseen => {
                "the semaphore has no status yet: does the operator run, and may it write the status?".to_owned()
            }
            Self::Stopped(condition) | Self::First(condition) => condition.message.clone(),
            Self::Short(slots) => slots.to_string(),
            Self::Free { slots, alone } => {
                let (free, left) = match slots {
                    1 => ("a slot is free".to_owned(), "the slot is left"),
                    slots => (format!("{slots} slots are free"), "they are left"),
                };
                let others = if *alone {
                    ""
                } else {
                    "it waits for slots of other semaphores, too, or "
                };
                format!(
                    "{free}: the Job is about to start, or {others}{left} to another cluster or program that has \
                     waited longer. The Job's events say more if this lasts"
                )
            }
            Self::Several { standing, lacks } => {
                let slots = match standing {
                    Standing::PassedOver => "Jobs behind it start meanwhile",
                    Standing::SlotsKept => "free slots here are kept for it",
                    Standing::OthersStopped => {
                        "another of its semaphores grants nothing, and Jobs behind it start meanwhile"
                    }
                };
                let lacks = lacks.unwrap_or("enough slots at once");
                format!("it waits for {lacks}; {slots}")
            }
            Self::Behind(job) => format!("behind {job}"),
        }
    }
}

/// The queue of a semaphore, read in order.
#[derive(Debug)]
pub struct Line<'a> {
    keyed: bool,
    limit: u32,
    reserved: Option<ReservedSlots>,
    status: Option<&'a ConsulSemaphoreStatus>,
    /// Number of slots that are free for the next Jobs, if no contender elsewhere is before them.
    free: u32,
    /// Last Job so far of each key, or of the semaphore if it is not keyed.
    last: HashMap<Option<&'a str>, &'a str>,
}

impl<'a> Line<'a> {
    /// Starts at the head of the queue.
    pub fn of(semaphore: &'a ConsulSemaphore) -> Self {
        let status = semaphore.status.as_ref();
        let reported = status.and_then(|status| status.limit);
        let outside_windows = number(reported.unwrap_or(semaphore.spec.limit));
        let in_window = status.and_then(|status| status.window_limit);
        let limit = in_window.map_or(outside_windows, |in_window| {
            outside_windows.min(number(in_window))
        });
        let mut line = Self {
            keyed: semaphore.spec.keyed,
            limit,
            reserved: semaphore.spec.reserved,
            status,
            free: 0,
            last: HashMap::new(),
        };
        // A mutex in its lock-delay is free but can't be locked.
        let available = line.condition(ConditionType::SlotsAvailable);
        let free = [Reason::SlotsFree, Reason::Reserved].map(Reason::as_str);
        if available.is_some_and(|it| free.contains(&it.reason.as_str())) {
            line.free = status.map_or(0, |status| limit.saturating_sub(number(status.held)));
        }
        line
    }

    /// Returns why the semaphore grants nothing at all; `None` if it grants slots.
    pub fn stop(&self) -> Option<Why<'a>> {
        match self.condition(ConditionType::Ready) {
            None => Some(Why::Unseen),
            Some(ready)
                if ready.status == ConditionStatus::True.as_str()
                    && ready.reason != Reason::Paused.as_str() =>
            {
                None
            }
            Some(ready) => Some(Why::Stopped(ready)),
        }
    }

    /// Returns why the next Job of the queue waits.
    pub fn next(&mut self, asking: Asking<'a>) -> Why<'a> {
        if let Some(stop) = self.stop() {
            return stop;
        }
        let Asking {
            name,
            key,
            slots,
            alone,
            priority: _,
            standing,
            lacks,
        } = asking;
        let key = key.filter(|_| self.keyed);
        if let Some(standing) = standing {
            if standing == Standing::SlotsKept {
                self.last.insert(key, name);
                self.free = self.free.saturating_sub(slots);
            }
            return Why::Several { standing, lacks };
        }
        let before = self.last.insert(key, name);
        if let (Some(key), None) = (key, before) {
            return self.first_of(key, asking);
        }
        let withheld = self.withheld_from(asking);
        if key.is_none() && self.free >= slots.saturating_add(withheld) {
            self.free -= slots;
            return Why::Free { slots, alone };
        }
        // The free slots are kept for this Job, if it waits for long.
        self.free = if key.is_none() { 0 } else { self.free };
        match before {
            Some(before) => Why::Behind(before),
            None => self.first(slots, withheld > 0),
        }
    }

    /// Returns how many of the free slots are reserved for other Jobs.
    fn withheld_from(&self, asking: Asking<'_>) -> u32 {
        let of_others = |reserved: &ReservedSlots| {
            let priority = asking.priority;
            priority.is_none_or(|priority| priority < reserved.min_priority)
        };
        let reserved = self.reserved.filter(of_others);
        reserved.map_or(0, |reserved| number(reserved.slots))
    }

    /// Returns why the first Job waits, where no slot or too few slots are free. Some free slots may be `reserved`
    /// for others.
    fn first(&self, asked: u32, reserved: bool) -> Why<'a> {
        let Some(available) = self.condition(ConditionType::SlotsAvailable) else {
            return Why::Unseen;
        };
        let is = |reason: Reason| available.reason == reason.as_str();
        let of_others = is(Reason::Reserved) && !reserved;
        let of_slots = is(Reason::SlotsFree) || is(Reason::AllSlotsHeld) || of_others;
        if (asked == 1 && !of_others) || !of_slots {
            return Why::First(available);
        }
        Why::Short(Slots {
            key: None,
            held: self.status.map(|status| number(status.held)),
            limit: self.limit,
            asked,
        })
    }

    /// Returns why the first Job of a key waits. The condition `SlotsAvailable` does not apply to a single key. Some
    /// keys may be in trouble, and the condition Ready says so.
    fn first_of(&self, key: &'a str, asking: Asking<'a>) -> Why<'a> {
        let ready = self.condition(ConditionType::Ready);
        if let Some(ready) = ready.filter(|ready| ready.reason != Reason::Reconciled.as_str()) {
            return Why::First(ready);
        }
        let available = self.condition(ConditionType::SlotsAvailable);
        let closed = available.filter(|it| it.reason == Reason::OutsideWindow.as_str());
        if let Some(closed) = closed {
            return Why::First(closed);
        }
        let held = self.status.and_then(|status| {
            let all = usize::try_from(status.held).is_ok_and(|held| held <= status.holders.len());
            let holders = status.holders.iter();
            let of_key = holders.filter(|holder| holder.key.as_deref() == Some(key));
            all.then(|| of_key.count().try_into().unwrap_or(u32::MAX))
        });
        let slots = Slots {
            key: Some(key),
            held,
            limit: self.limit,
            asked: asking.slots,
        };
        match slots.missing() {
            Some(0) => Why::Free {
                slots: asking.slots,
                alone: asking.alone,
            },
            _ => Why::Short(slots),
        }
    }

    fn condition(&self, type_: ConditionType) -> Option<&'a Condition> {
        conditions::find(&self.status?.conditions, type_)
    }
}

fn number(count: i32) -> u32 {
    count.try_into().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the reason and message for each Job of the queue.
    fn reported(spec: &Value, status: &Value) -> Vec<String> {
        let semaphore: ConsulSemaphore = serde_json::from_value(json!({
            "apiVersion": "consul-semaphore.io/v1alpha1",
            "kind": "ConsulSemaphore",
            "metadata": { "name": "db", "namespace": "batch" },
            "spec": spec,
            "status": status,
        }))
        .unwrap();
        let status = semaphore.status.as_ref().unwrap();
        let mut line = Line::of(&semaphore);
        let mut reported = Vec::new();
        for job in &status.queue {
            let why = line.next(job.into());
            reported.push(format!("{}: {}", why.reason(), why.message()));
        }
        reported
    }

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({
            "type": kind, "status": status, "reason": reason, "message": format!("{reason}!"),
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    }

    fn ready() -> Value {
        condition("Ready", "True", "Reconciled")
    }

    fn available(reason: &str) -> Value {
        let status = if reason == "SlotsFree" {
            "True"
        } else {
            "False"
        };
        condition("SlotsAvailable", status, reason)
    }

    fn queue(jobs: &[&str]) -> Value {
        jobs.iter()
            .map(|job| json!({ "kind": "Job", "name": job }))
            .collect()
    }

    #[test]
    fn the_first_waits_for_a_slot_and_the_others_for_those_before_them() {
        let status = json!({
            "limit": 2, "held": 2, "conditions": [ready(), available("AllSlotsHeld")],
            "queue": queue(&["a", "b", "c"]),
        });
        let expected = [
            "AllSlotsHeld: AllSlotsHeld!",
            "Behind: behind a",
            "Behind: behind b",
        ];
        assert_eq!(reported(&json!({ "limit": 2 }), &status), expected);
    }

    #[test]
    fn where_slots_are_free_it_is_the_turn_of_as_many() {
        let status = json!({
            "held": 1, "conditions": [ready(), available("SlotsFree")], "queue": queue(&["a", "b", "c"]),
        });
        let reported = reported(&json!({ "limit": 3 }), &status);
        assert!(reported[0].starts_with("Next: a slot is free") && reported[0] == reported[1]);
        assert_eq!(reported[2], "Behind: behind b");
    }

    #[test]
    fn one_that_asks_for_several_slots_is_told_how_many_are_missing() {
        let status = |held: i32| {
            let reason = if held < 3 {
                "SlotsFree"
            } else {
                "AllSlotsHeld"
            };
            json!({
                "limit": 3, "held": held, "conditions": [ready(), available(reason)],
                "queue": [{ "kind": "Job", "name": "a", "slots": 2 }, { "kind": "Job", "name": "b" }],
            })
        };
        let of = |held| reported(&json!({ "limit": 3 }), &status(held));
        let all_free = of(0);
        assert!(all_free[0].starts_with("Next: 2 slots are free: the Job is about to start"));
        assert!(all_free[1].starts_with("Next: a slot is free"));
        assert!(of(1)[0].starts_with("Next: 2 slots") && of(1)[1] == "Behind: behind a");
        for (held, missing) in [(2, 1), (3, 2)] {
            let expected = [
                format!(
                    "TooFewSlotsFree: {held} of 3 slots are held, and it asks for 2: {missing} more must become free"
                ),
                // The free slots are kept for the first Job.
                "Behind: behind a".to_owned(),
            ];
            assert_eq!(of(held), expected);
        }
    }

    #[test]
    fn one_that_asks_for_slots_of_several_semaphores_is_told_what_is_done_for_it() {
        let status = json!({
            "held": 2, "conditions": [ready(), available("SlotsFree")],
            "queue": [
                { "kind": "Job", "name": "a", "asksFor": "db, licenses:2", "lacks": "licenses:2", "reason": "PassedOver" },
                { "kind": "Job", "name": "b" }, { "kind": "Job", "name": "c" },
            ],
        });
        let passed_over = reported(&json!({ "limit": 3 }), &status);
        assert_eq!(
            passed_over[0],
            "PassedOver: it waits for licenses:2; Jobs behind it start meanwhile"
        );
        assert!(passed_over[1].starts_with("Next: a slot is free"));
        assert_eq!(passed_over[2], "Behind: behind b");
        let mut kept = status;
        kept["queue"][0]["reason"] = json!("SlotsKept");
        let kept = reported(&json!({ "limit": 3 }), &kept);
        assert_eq!(
            kept[0],
            "SlotsKept: it waits for licenses:2; free slots here are kept for it"
        );
        assert_eq!(kept[1], "Behind: behind a");
        let mut newer = json!({ "conditions": [ready(), available("AllSlotsHeld")] });
        newer["queue"] = json!([{ "kind": "Job", "name": "a", "reason": "OfALaterVersion" }]);
        let newer = reported(&json!({ "limit": 3 }), &newer);
        assert_eq!(newer, ["AllSlotsHeld: AllSlotsHeld!"]);
    }

    #[test]
    fn only_those_of_a_lower_priority_are_told_that_slots_are_reserved() {
        let semaphore: ConsulSemaphore = serde_json::from_value(json!({
            "apiVersion": "consul-semaphore.io/v1alpha1", "kind": "ConsulSemaphore",
            "metadata": { "name": "db" },
            "spec": { "limit": 3, "reserved": { "slots": 1, "minPriority": 10 } },
            "status": { "held": 2, "conditions": [ready(), available("Reserved")] },
        }))
        .unwrap();
        let why = |priority, slots| {
            let asking = Asking {
                priority,
                ..Asking::new("a", None, slots)
            };
            Line::of(&semaphore).next(asking).message()
        };
        assert!(why(Some(10), 1).starts_with("a slot is free"));
        for lower in [Some(9), None] {
            assert_eq!(why(lower, 1), "Reserved!");
        }
        let two = why(Some(10), 2);
        assert!(
            two.ends_with("it asks for 2: 1 more must become free"),
            "{two}"
        );
    }

    #[test]
    fn what_a_semaphore_lacks_is_known_if_it_says_so() {
        let lack_of = |spec: Value, status: Value, key: Option<&str>, slots| {
            let semaphore: ConsulSemaphore = serde_json::from_value(json!({
                "apiVersion": "consul-semaphore.io/v1alpha1", "kind": "ConsulSemaphore",
                "metadata": { "name": "db" }, "spec": spec, "status": status,
            }))
            .unwrap();
            let why = lack(&semaphore, Asking::new("a", key, slots));
            why.map(|why| why.message())
        };
        let status =
            json!({ "limit": 3, "held": 2, "conditions": [ready(), available("SlotsFree")] });
        let plain = json!({ "limit": 3 });
        assert_eq!(lack_of(plain.clone(), status.clone(), None, 1), None);
        let lack = lack_of(plain, status.clone(), None, 2).unwrap();
        assert!(lack.ends_with("1 more must become free"), "{lack}");
        let keyed = json!({ "limit": 3, "keyed": true });
        // The status does not list all holders of the semaphore.
        assert_eq!(lack_of(keyed, status, Some("k"), 2), None);
    }

    /// The mutex is free, but nobody can lock it.
    #[test]
    fn a_mutex_in_its_lock_delay_says_so() {
        let status = json!({
            "limit": 1, "held": 0, "queue": queue(&["a", "b"]),
            "conditions": [ready(), available("AllSlotsHeld")],
        });
        let reported = reported(&json!({ "limit": 1, "mode": "Mutex" }), &status);
        assert_eq!(
            reported,
            ["AllSlotsHeld: AllSlotsHeld!", "Behind: behind a"]
        );
    }

    #[test]
    fn what_stops_the_semaphore_stops_everyone() {
        let queue = queue(&["a", "b"]);
        let spec = json!({ "limit": 1 });
        let paused =
            json!({ "conditions": [condition("Ready", "True", "Paused")], "queue": queue });
        assert_eq!(reported(&spec, &paused), ["Paused: Paused!"; 2]);
        for unseen in reported(&spec, &json!({ "queue": queue })) {
            assert!(unseen.starts_with("Unseen: "), "{unseen}");
        }
    }

    #[test]
    fn each_key_has_a_line() {
        let holder = |key: &str| json!({ "session": "s", "key": key });
        let queue = json!([
            { "kind": "Job", "name": "a", "key": "x" }, { "kind": "Job", "name": "b", "key": "x" }, { "kind": "Job", "name": "c", "key": "y" },
        ]);
        let status = |held: i32, ready: Value| json!({ "limit": 1, "held": held, "conditions": [ready], "holders": [holder("x")], "queue": queue });
        let spec = json!({ "limit": 1, "keyed": true });
        let all = reported(&spec, &status(1, ready()));
        assert_eq!(all[0], "Next: 1 of 1 slots of the key x are held");
        assert_eq!(all[1], "Behind: behind a");
        assert!(all[2].starts_with("Next: a slot is free"), "{all:?}");

        let cut_off = reported(&spec, &status(30, ready()));
        assert_eq!(cut_off[2], "Next: next for a slot of the key y");

        let trouble = condition("Ready", "True", "LimitConflict");
        let in_trouble = reported(&spec, &status(1, trouble));
        assert_eq!(in_trouble[2], "LimitConflict: LimitConflict!");
    }
}
