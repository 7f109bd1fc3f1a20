//! Chooses the client, the scope and the node in Consul for one semaphore.

use std::sync::Arc;

use super::Context;
use crate::identity::TokenOwner;
use consul_client::{Client, Scope, TokenCell};
use consul_semaphore_api::ConsulSemaphore;

/// Part of Consul, with a client that may use it.
#[derive(Clone, Debug)]
pub(super) struct ConsulTarget {
    /// Client for this part, with a token that may use it.
    pub(super) consul: Client,
    /// Scope of this part: its datacenter, namespace and partition.
    pub(super) place: Scope,
    /// External node that owns the sessions made in this part.
    pub(super) node: Arc<str>,
}

impl AsRef<Client> for ConsulTarget {
    fn as_ref(&self) -> &Client {
        &self.consul
    }
}

impl Context {
    /// Returns the target of a semaphore that uses the operator's own token.
    pub(super) fn own_target(&self, semaphore: &ConsulSemaphore) -> ConsulTarget {
        self.target(semaphore, TokenOwner::Operator)
    }

    /// Returns the target of a semaphore with the operator's own token. Its writes pass the gate for calls with the
    /// token of this owner.
    fn target(&self, semaphore: &ConsulSemaphore, token: TokenOwner) -> ConsulTarget {
        let place = place(semaphore);
        let gate = self.identity.gate(place.datacenter.as_deref(), token);
        ConsulTarget {
            consul: self.consul.scoped(place.clone()).gated(Arc::new(gate)),
            place,
            node: self.shared.node.clone(),
        }
    }

    /// Returns the target of a semaphore that has this token of its own. A session's ACL matches the name of its
    /// node, so the name of the node contains the namespace. Therefore tenants can't end each other's sessions, and a
    /// session on one tenant's node proves nothing about other tenants' sessions.
    pub(super) fn tenants_target(
        &self,
        semaphore: &ConsulSemaphore,
        token: TokenCell,
    ) -> ConsulTarget {
        let namespace = semaphore.metadata.namespace.as_deref().unwrap_or_default();
        let own = self.target(semaphore, TokenOwner::Tenant);
        ConsulTarget {
            consul: own.consul.with_token(token),
            node: tenants_node(&self.shared.node, namespace).into(),
            ..own
        }
    }
}

/// Returns the external node that owns the operator's sessions by default (without `--consul-node`).
pub(crate) fn default_node(cluster_id: &str) -> String {
    format!("k8s-{cluster_id}")
}

/// Returns the external node that owns the sessions made with the token of a namespace. Neither namespaces nor chosen
/// node names (`--consul-node`, `exec --node`) contain a colon. So the only colon separates the operator's name from
/// the namespace, and no other node of this program has the same name.
pub(crate) fn tenants_node(own: &str, namespace: &str) -> String {
    format!("{own}:{namespace}")
}

/// Returns the part of Consul that a semaphore lives in.
pub(crate) fn place(semaphore: &ConsulSemaphore) -> Scope {
    let consul = semaphore.spec.consul.clone().unwrap_or_default();
    Scope {
        datacenter: consul.datacenter,
        namespace: consul.namespace,
        partition: consul.partition,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates the default node of a cluster's id, or a name set with `--consul-node`.
    fn own() -> impl Strategy<Value = String> {
        prop_oneof![
            "k8s-[01]{2}(-[ab]{1,2}){0,2}",
            "[ab](-[ab]){0,2}",
            "[A-Za-z0-9._-]{1,8}"
        ]
    }

    fn namespace() -> impl Strategy<Value = String> {
        prop_oneof!["[ab](-[ab]){0,2}", "[a-z0-9][a-z0-9-]{0,6}"]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        /// Each tenant needs its own node, because a token that may write the sessions of a node can end them.
        #[test]
        fn no_two_trust_domains_share_a_node(
            (a, in_a) in (own(), namespace()),
            (b, in_b) in (own(), namespace()),
        ) {
            let (one, other) = (tenants_node(&a, &in_a), tenants_node(&b, &in_b));
            prop_assert_eq!(one == other, (&a, &in_a) == (&b, &in_b));
            // An operator's own node, or one given to `exec`, never belongs to a tenant.
            prop_assert_ne!(&one, &b);
            // The rule for all tenants of a cluster, `session_prefix "<own>:"`, covers no tenant of another cluster.
            let of_b = tenants_node(&b, "");
            prop_assert_eq!(one.starts_with(&of_b), a == b);
        }
    }
}
