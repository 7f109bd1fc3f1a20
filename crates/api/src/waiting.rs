//! Why a queued Job has no slot yet, as far as the status of its semaphore says.
//!
//! It repeats what the operator has published, and makes no judgement of its own: where the status does not say
//! enough, this says less. The status lists twenty holders and the head of the queue.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{
    ConsulSemaphore, ConsulSemaphoreStatus,
    conditions::{self, ConditionStatus, ConditionType, Reason},
};

/// Why one queued Job has no slot yet.
#[derive(Clone, Debug, PartialEq)]
pub enum Why<'a> {
    /// The operator has not reported on the semaphore.
    Unseen,
    /// Nothing is granted, as the condition Ready says.
    Stopped(&'a Condition),
    /// It is first in the queue; this condition says what it waits for.
    First(&'a Condition),
    /// It is first in the queue for its key; `held` of `limit` slots are held, if all holders are listed.
    FirstOfKey {
        /// Its key.
        key: &'a str,
        /// How many slots of the key are held.
        held: Option<usize>,
        /// How many slots each key has.
        limit: i32,
    },
    /// A slot is free for it. The Job is being started, or the slot is left to a contender elsewhere that has waited
    /// longer: the status does not say which, but the Job's events do.
    Free,
    /// This Job is before it.
    Behind(&'a str),
}

impl Why<'_> {
    /// A word for programs, like the reason of a condition.
    pub fn reason(&self) -> &str {
        match self {
            Self::Unseen => "Unseen",
            Self::Stopped(condition) | Self::First(condition) => &condition.reason,
            Self::FirstOfKey { .. } | Self::Free => "Next",
            Self::Behind(_) => "Behind",
        }
    }

    /// For people; without advice, unless the condition gives some.
    pub fn message(&self) -> String {
        match self {
            Self::Unseen => {
                "the semaphore has no status yet: does the operator run, and may it write the status?".to_owned()
            }
            Self::Stopped(condition) | Self::First(condition) => condition.message.clone(),
            Self::FirstOfKey { key, held, limit } => match held {
                Some(held) => format!("{held} of {limit} slots of the key {key} are held"),
                None => format!("next for a slot of the key {key}"),
            },
            Self::Free => "a slot is free: the Job is about to start, or the slot is left to another cluster or program that has waited longer. The Job's events say more if this lasts"
                .to_owned(),
            Self::Behind(job) => format!("behind {job}"),
        }
    }
}

/// The queue of a semaphore, read in order.
#[derive(Debug)]
pub struct Line<'a> {
    keyed: bool,
    limit: i32,
    status: Option<&'a ConsulSemaphoreStatus>,
    /// How many waiting Jobs have a slot, if nobody elsewhere is before them.
    free: usize,
    /// The last Job so far of each key, or of all.
    last: HashMap<Option<&'a str>, &'a str>,
}

impl<'a> Line<'a> {
    /// Starts at the head of the queue.
    pub fn of(semaphore: &'a ConsulSemaphore) -> Self {
        let status = semaphore.status.as_ref();
        let limit = status.and_then(|status| status.limit);
        let limit = limit.unwrap_or(semaphore.spec.limit);
        let mut line = Self {
            keyed: semaphore.spec.keyed,
            limit,
            status,
            free: 0,
            last: HashMap::new(),
        };
        // A mutex in its lock-delay is free but can't be locked.
        let available = line.condition(ConditionType::SlotsAvailable);
        if available.is_some_and(|it| it.reason == Reason::SlotsFree.as_str()) {
            let free = status.map_or(0, |status| limit.saturating_sub(status.held));
            line.free = free.try_into().unwrap_or(0);
        }
        line
    }

    /// Why nothing at all is granted.
    pub fn stop(&self) -> Option<Why<'a>> {
        match self.condition(ConditionType::Ready) {
            None => Some(Why::Unseen),
            Some(ready) if ready.status == ConditionStatus::True.as_str() => None,
            Some(ready) => Some(Why::Stopped(ready)),
        }
    }

    /// Why the next Job waits, which has this key.
    pub fn next(&mut self, job: &'a str, key: Option<&'a str>) -> Why<'a> {
        if let Some(stop) = self.stop() {
            return stop;
        }
        let key = key.filter(|_| self.keyed);
        let before = self.last.insert(key, job);
        match (key, before) {
            (Some(key), None) => self.first_of(key),
            (None, _) if self.free > 0 => {
                self.free -= 1;
                Why::Free
            }
            (_, Some(before)) => Why::Behind(before),
            (None, None) => {
                let available = self.condition(ConditionType::SlotsAvailable);
                available.map_or(Why::Unseen, Why::First)
            }
        }
    }

    /// What the conditions say about slots does not apply to a single key. Some keys may be in trouble, and Ready
    /// says so.
    fn first_of(&self, key: &'a str) -> Why<'a> {
        let ready = self.condition(ConditionType::Ready);
        if let Some(ready) = ready.filter(|ready| ready.reason != Reason::Reconciled.as_str()) {
            return Why::First(ready);
        }
        let held = self.status.and_then(|status| {
            let all = usize::try_from(status.held).is_ok_and(|held| held <= status.holders.len());
            let holders = status.holders.iter();
            let of_key = holders.filter(|holder| holder.key.as_deref() == Some(key));
            all.then(|| of_key.count())
        });
        match held {
            Some(held) if i32::try_from(held).is_ok_and(|held| held < self.limit) => Why::Free,
            held => Why::FirstOfKey {
                key,
                held,
                limit: self.limit,
            },
        }
    }

    fn condition(&self, type_: ConditionType) -> Option<&'a Condition> {
        conditions::find(&self.status?.conditions, type_)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The reason and message for each Job of the queue.
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
            let why = line.next(&job.job, job.key.as_deref());
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
        jobs.iter().map(|job| json!({ "job": job })).collect()
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

    /// It is free, but nobody can lock it.
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
            json!({ "conditions": [condition("Ready", "False", "Paused")], "queue": queue });
        assert_eq!(reported(&spec, &paused), ["Paused: Paused!"; 2]);
        for unseen in reported(&spec, &json!({ "queue": queue })) {
            assert!(unseen.starts_with("Unseen: "), "{unseen}");
        }
    }

    #[test]
    fn each_key_has_a_line() {
        let holder = |key: &str| json!({ "session": "s", "key": key });
        let queue = json!([
            { "job": "a", "key": "x" }, { "job": "b", "key": "x" }, { "job": "c", "key": "y" },
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
