//! Why a Job in line has no slot yet, as far as the status of its semaphore tells.
//!
//! It repeats what the operator has published, and judges nothing anew: where the status does not say
//! enough, the reason says less.

use crate::api::{
    ConsulSemaphore, ConsulSemaphoreStatus,
    conditions::{ConditionStatus, ConditionType, Reason},
};

/// The reason for each Job of `status.queue`, in its order.
pub(super) fn reasons(semaphore: &ConsulSemaphore) -> Vec<String> {
    let none = ConsulSemaphoreStatus::default();
    let status = semaphore.status.as_ref().unwrap_or(&none);
    let limit = status.limit.unwrap_or(semaphore.spec.limit);
    let places = 0..status.queue.len();
    if let Some(obstacle) = obstacle(status) {
        return places.map(|_| obstacle.clone()).collect();
    }
    if semaphore.spec.keyed {
        return places.map(|place| of_key(status, limit, place)).collect();
    }
    let free = usize::try_from(limit - status.held).unwrap_or(0);
    let rests = rests(status);
    let reason = |place| match (place, rests) {
        (place, None) if place < free => is_its_turn("a slot is free"),
        (0, Some(rests)) if free > 0 => rests.to_owned(),
        (0, _) => format!("next of this cluster: {}", all_held(limit)),
        (place, _) => go_before(place),
    };
    places.map(reason).collect()
}

/// Why nothing is granted to anybody.
fn obstacle(status: &ConsulSemaphoreStatus) -> Option<String> {
    let mut conditions = status.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == ConditionType::Ready.as_str());
    match ready {
        None => Some("the operator has not looked at this semaphore yet".to_owned()),
        Some(ready) if ready.status == ConditionStatus::True.as_str() => None,
        Some(ready) => Some(format!("nothing is granted now: {}", ready.reason)),
    }
}

/// Why no slot can be had though one is free: Consul's lock-delay on a mutex.
fn rests(status: &ConsulSemaphoreStatus) -> Option<&str> {
    let mut conditions = status.conditions.iter();
    let available =
        conditions.find(|condition| condition.type_ == ConditionType::SlotsAvailable.as_str());
    let available = available.filter(|it| it.reason == Reason::AllSlotsHeld.as_str());
    available.map(|available| available.message.as_str())
}

/// The limit is one for each key, and only 20 holders are listed: of those that are not, nothing is said.
fn of_key(status: &ConsulSemaphoreStatus, limit: i32, place: usize) -> String {
    let key = &status.queue[place].key;
    let before = &status.queue[..place];
    match before.iter().filter(|job| job.key == *key).count() {
        0 => {}
        before => return go_before(before),
    }
    let held = status.holders.iter().filter(|holder| holder.key == *key);
    let held = i32::try_from(held.count()).unwrap_or(i32::MAX);
    let all_are_listed = usize::try_from(status.held) == Ok(status.holders.len());
    if held >= limit {
        format!("next of this cluster for its key: {}", all_held(limit))
    } else if all_are_listed {
        is_its_turn("a slot of its key is free")
    } else {
        "next of this cluster for its key".to_owned()
    }
}

fn all_held(limit: i32) -> String {
    match limit {
        1 => "the slot is held".to_owned(),
        limit => format!("all {limit} slots are held"),
    }
}

fn go_before(others: usize) -> String {
    match others {
        1 => "1 Job of this cluster goes before it".to_owned(),
        others => format!("{others} Jobs of this cluster go before it"),
    }
}

/// What the status does not tell apart; the Job's events do.
fn is_its_turn(why: &str) -> String {
    format!(
        "{why}: it is being started, or the slot is left to one elsewhere that has waited longer; the Job's events \
         say more if this lasts"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reasons_of(spec: &Value, status: &Value) -> Vec<String> {
        let semaphore = json!({
            "apiVersion": "consul-semaphore.io/v1alpha1",
            "kind": "ConsulSemaphore",
            "metadata": { "name": "db", "namespace": "batch" },
            "spec": spec,
            "status": status,
        });
        reasons(&serde_json::from_value(semaphore).unwrap())
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

    fn queue(jobs: &[(&str, Option<&str>)]) -> Value {
        let jobs = jobs.iter().map(|(job, key)| match key {
            Some(key) => json!({ "job": job, "key": key }),
            None => json!({ "job": job }),
        });
        jobs.collect()
    }

    #[test]
    fn those_behind_wait_for_those_before_them() {
        let status = json!({
            "limit": 2, "held": 2, "conditions": [ready(), condition("SlotsAvailable", "False", "AllSlotsHeld")],
            "queue": queue(&[("a", None), ("b", None), ("c", None)]),
        });
        assert_eq!(
            reasons_of(&json!({ "limit": 2 }), &status),
            [
                "next of this cluster: all 2 slots are held",
                "1 Job of this cluster goes before it",
                "2 Jobs of this cluster go before it"
            ]
        );
    }

    #[test]
    fn where_slots_are_free_it_is_the_turn_of_as_many() {
        let status = json!({
            "held": 1, "conditions": [ready()], "queue": queue(&[("a", None), ("b", None), ("c", None)]),
        });
        let reasons = reasons_of(&json!({ "limit": 3 }), &status);
        assert!(reasons[0].starts_with("a slot is free") && reasons[0] == reasons[1]);
        assert_eq!(reasons[2], "2 Jobs of this cluster go before it");
    }

    #[test]
    fn a_limit_below_what_is_held_is_no_riddle() {
        let status = json!({
            "limit": 1, "held": 3, "conditions": [ready()], "queue": queue(&[("a", None)]),
        });
        assert_eq!(
            reasons_of(&json!({ "limit": 1 }), &status),
            ["next of this cluster: the slot is held"]
        );
    }

    #[test]
    fn what_is_in_the_way_of_all_is_the_reason_for_each() {
        let queue = queue(&[("a", None), ("b", None)]);
        let status =
            json!({ "conditions": [condition("Ready", "False", "Paused")], "queue": queue });
        let reasons = reasons_of(&json!({ "limit": 1 }), &status);
        assert_eq!(reasons, ["nothing is granted now: Paused"; 2]);
        let reasons = reasons_of(&json!({ "limit": 1 }), &json!({ "queue": queue }));
        assert!(reasons[1].contains("has not looked"), "{reasons:?}");
        assert_eq!(reasons_of(&json!({ "limit": 1 }), &json!({})), [""; 0]);
    }

    #[test]
    fn a_mutex_in_its_lock_delay_says_so() {
        let status = json!({
            "limit": 1, "held": 0, "queue": queue(&[("a", None), ("b", None)]),
            "conditions": [ready(), condition("SlotsAvailable", "False", "AllSlotsHeld")],
        });
        let reasons = reasons_of(&json!({ "limit": 1, "mode": "Mutex" }), &status);
        assert_eq!(
            reasons,
            ["AllSlotsHeld!", "1 Job of this cluster goes before it"]
        );
    }

    #[test]
    fn keys_have_slots_of_their_own() {
        let holder = |key: &str| json!({ "session": "s", "key": key });
        let jobs = [("a", Some("x")), ("b", Some("x")), ("c", Some("y"))];
        let status = |held: i32| {
            json!({
                "limit": 1, "held": held, "conditions": [ready()], "holders": [holder("x")], "queue": queue(&jobs),
            })
        };
        let spec = json!({ "limit": 1, "keyed": true });
        let reasons = reasons_of(&spec, &status(1));
        assert_eq!(
            reasons[0],
            "next of this cluster for its key: the slot is held"
        );
        assert_eq!(reasons[1], "1 Job of this cluster goes before it");
        assert!(
            reasons[2].starts_with("a slot of its key is free"),
            "{reasons:?}"
        );
        let reasons = reasons_of(&spec, &status(30));
        assert_eq!(
            reasons[2], "next of this cluster for its key",
            "not all are listed"
        );
    }
}
