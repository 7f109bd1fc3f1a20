//! Checks the names and bytes by which replicas meet. During an upgrade, replicas of an old and of a new build take
//! part in one election: under two names both would lead, and do all work twice.

use super::*;
use crate::leader::LeaseName;

#[test]
fn the_name_of_the_lease() {
    assert_eq!(LeaseName::DEFAULT, "consul-semaphore-operator");
}

#[test]
fn the_key_in_consul() {
    let key = |name: &str| name.parse::<LeaseName>().map(|name| name.key("prod-eu"));
    for (name, expected) in [
        (
            "consul-semaphore-operator",
            "service/consul-semaphore-operator/prod-eu/leader",
        ),
        (
            "shard-a",
            "service/consul-semaphore-operator/prod-eu/shard-a",
        ),
    ] {
        assert_eq!(key(name).as_deref(), Ok(expected));
    }
}

/// A replica that restarts finds by this value that it led before, and a replica of another cluster finds that the
/// key belongs to a different cluster.
#[test]
fn the_value_of_the_key() {
    let value = r#"{"identity":"operator-0","cluster":"prod-eu","clusterId":"7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11"}"#;
    let leader = Leader {
        identity: "operator-0".to_owned(),
        cluster: "prod-eu".to_owned(),
        cluster_id: "7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11".to_owned(),
    };
    assert_eq!(serde_json::to_string(&leader).unwrap(), value);
    assert_eq!(serde_json::from_str::<Leader>(value).unwrap(), leader);
}
