//! Small values for the tests of the controller.

use consul_semaphore::{Cluster, Settings, turns::WINDOW};
use serde_json::json;

use super::overseer::spec::settings_of;

/// What a `ConsulSemaphore` asks for that says nothing but its limit.
pub(super) fn settings(limit: u32) -> Settings {
    let semaphore = json!({
        "apiVersion": "consul-semaphore.io/v1alpha1",
        "kind": "ConsulSemaphore",
        "metadata": { "name": "db", "namespace": "batch" },
        "spec": { "limit": limit },
    });
    let cluster = Cluster {
        name: "prod-eu".into(),
        id: "c".into(),
    };
    let semaphore = serde_json::from_value(semaphore).unwrap();
    settings_of(&cluster, Some(WINDOW), &semaphore)
}
