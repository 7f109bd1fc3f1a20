//! Reads a `ConsulSemaphore`: the settings of its queues, what its status says of the limit, and whether its TTL is
//! too short.

use std::time::Duration;

use crate::controller::Context;
use consul_semaphore::{
    Cluster, Defence, Order, Period, Settings, WaitSettings, WaitTimeout, rate,
};
use consul_semaphore_api::{
    ConsulSemaphore,
    conditions::{self, ConditionType, Reason},
};

/// Returns the warning about a TTL of less than twice the time that the election waits for a dead leader. Until
/// another replica leads, nobody renews the sessions, and slots may be lost.
pub(super) fn short_ttl(ttl: Option<Duration>, lease: Option<Duration>) -> Option<String> {
    let (ttl, lease) = (ttl?, lease?);
    (ttl < lease * 2).then(|| {
        format!(
            "spec.session.ttl is {} s, which is less than twice the --lease-duration of {} s: if the leader dies, \
             running Jobs may lose their slots before another replica leads. Set it to {} s or \
             more, or run the operator with a shorter --lease-duration",
            ttl.as_secs(),
            lease.as_secs(),
            2 * lease.as_secs()
        )
    })
}

/// Returns how the limit is to be defended, by what the status says of it.
pub(crate) fn defence(semaphore: &ConsulSemaphore) -> Defence {
    let status = semaphore.status.as_ref();
    let recorded = status.is_some_and(|s| s.applied_limits.contains(&semaphore.spec.limit));
    // For a keyed semaphore, the condition does not say which key has the conflict.
    let keyed = semaphore.spec.keyed;
    let agreed =
        status.and_then(|status| conditions::find(&status.conditions, ConditionType::LimitAgreed));
    let given_up = agreed.is_some_and(|condition| {
        condition.reason == Reason::LimitConflict.as_str()
            && condition.observed_generation == semaphore.metadata.generation
    });
    Defence::resumed(recorded, given_up && !keyed)
}

/// Returns the settings in the spec of this semaphore, with what the operator adds to them.
pub(super) fn settings(context: &Context, semaphore: &ConsulSemaphore) -> Settings {
    settings_of(&context.shared.cluster, context.shared.order, semaphore)
}

/// Returns the settings in the spec of this semaphore, for a cluster.
pub(crate) fn settings_of(
    cluster: &Cluster,
    order: Order,
    semaphore: &ConsulSemaphore,
) -> Settings {
    let period = semaphore.spec.period.map(Period::get);
    let max_waiting = semaphore.spec.max_waiting;
    Settings {
        cluster: cluster.clone(),
        namespace: semaphore.metadata.namespace.clone().unwrap_or_default(),
        name: semaphore.metadata.name.clone().unwrap_or_default(),
        key: None,
        prefix: semaphore.prefix(),
        mode: semaphore.spec.mode.stored(),
        period,
        limit: u32::try_from(semaphore.spec.limit).unwrap_or(1),
        slot_names: semaphore.spec.slot_names.clone(),
        restrictions: semaphore.restrictions(consul_client::clock::time()),
        policy: semaphore.spec.limit_policy,
        paused: semaphore.spec.paused,
        fair: order.fair,
        pass_over: order.pass_over,
        terminating: semaphore.metadata.deletion_timestamp.is_some(),
        on_slot_lost: semaphore.spec.on_slot_lost,
        ttl: period.map_or(semaphore.spec.session.ttl.get(), |period| {
            Some(rate::ttl(period))
        }),
        lock_delay: semaphore.spec.session.lock_delay.get(),
        cooldown: semaphore.spec.cooldown.get(),
        transient: false,
        wait: WaitSettings {
            timeout: semaphore.spec.wait_timeout.map(WaitTimeout::get),
            replace_after: semaphore.spec.replace_after.get(),
            max_waiting: max_waiting.and_then(|most| most.try_into().ok()),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_ttl_is_short_beside_the_time_that_an_election_takes() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let note = short_ttl(seconds(29), seconds(15)).unwrap();
        for words in ["ttl is 29 s", "--lease-duration of 15 s", "Set it to 30 s"] {
            assert!(note.contains(words), "{note}");
        }
        assert_eq!(short_ttl(seconds(30), seconds(15)), None);
        assert_eq!(short_ttl(seconds(10), None), None, "there is no election");
        assert_eq!(short_ttl(None, seconds(15)), None, "they never expire");
    }

    #[test]
    fn an_operator_that_starts_goes_by_what_the_status_says_of_the_limit() {
        let read = |applied: &[u32], reason: &str, generation: i64| {
            let semaphore = serde_json::from_value(json!({
                "apiVersion": "consul-semaphore.io/v1alpha1",
                "kind": "ConsulSemaphore",
                "metadata": { "name": "db", "generation": 7 },
                "spec": { "limit": 3, "limitPolicy": "Enforce" },
                "status": {
                    "appliedLimits": applied,
                    "held": 0, "heldHere": 0, "waiting": 0,
                    "conditions": [{
                        "type": "LimitAgreed", "status": "False", "reason": reason, "message": "",
                        "observedGeneration": generation,
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }],
                },
            }));
            defence(&semaphore.unwrap())
        };
        assert_eq!(read(&[5], "Starting", 7), Defence::default());
        assert_eq!(read(&[3], "LimitsMatch", 7), Defence::resumed(true, false));
        assert_eq!(read(&[3], "LimitConflict", 7), Defence::resumed(true, true));
        let before = read(&[3], "LimitConflict", 6);
        assert_eq!(before, Defence::resumed(true, false), "of an older spec");
    }
}
