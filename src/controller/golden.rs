//! The names of nodes in Consul, as ACL rules have them. An operator adopts only the sessions of its own node: under
//! another name it takes its own contenders for somebody else's after an upgrade.
//!
//! The node of a host without an agent is in `crates/consul-semaphore-cli/tests/exec/environment.rs`.

use super::{default_node, tenants_node};

#[test]
fn names_of_nodes() {
    let own = default_node("7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11");
    assert_eq!(own, "k8s-7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11");
    // Of a namespace with a token of its own. Builds up to 2026-11-24 had a hyphen for the colon.
    assert_eq!(
        tenants_node(&own, "team-a"),
        "k8s-7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11:team-a"
    );
}
