//! Small values for the tests of the controller.

use std::time::Duration;

use consul_semaphore::{Cluster, LimitPolicy, Mode, OnSlotLost, Settings, turns::WINDOW};

/// A semaphore that grants.
pub(super) fn settings(limit: u32) -> Settings {
    Settings {
        cluster: Cluster {
            name: "prod-eu".into(),
            id: "c".into(),
        },
        namespace: "batch".into(),
        name: "db".into(),
        key: None,
        prefix: "p".parse().unwrap(),
        mode: Mode::Semaphore,
        limit,
        policy: LimitPolicy::Refuse,
        paused: false,
        fair: Some(WINDOW),
        terminating: false,
        on_slot_lost: OnSlotLost::Reacquire,
        ttl: Some(Duration::from_mins(2)),
        lock_delay: Duration::from_secs(15),
        cooldown: Duration::ZERO,
        transient: false,
    }
}
