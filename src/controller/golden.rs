//! Tests the names of nodes in Consul, which ACL rules contain. An operator adopts only the sessions of its own node.
//! If an upgrade changed the name of the node, the operator would take its own contenders for foreign ones.
//!
//! The node of a host without an agent is tested in `crates/consul-semaphore-cli/tests/exec/environment.rs`.

use super::{default_node, tenants_node};

#[test]
fn names_of_nodes() {
    let own = default_node("7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11");
    assert_eq!(own, "k8s-7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11");
    // This is the node of a namespace with its own token. Builds up to 2026-11-24 had a hyphen in place of the colon.
    assert_eq!(
        tenants_node(&own, "team-a"),
        "k8s-7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11:team-a"
    );
}
