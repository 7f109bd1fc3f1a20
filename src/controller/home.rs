//! Where in Consul a semaphore lives, and as whom it is gone to.

use std::sync::Arc;

use super::Context;
use crate::{
    api::ConsulSemaphore,
    consul::{Client, Scope, TokenCell},
};

/// A part of Consul, with a token to go there.
#[derive(Clone, Debug)]
pub(super) struct Home {
    /// A client with that token, of that part.
    pub(super) consul: Client,
    /// Which part it is.
    pub(super) place: Scope,
    /// The external node that owns the sessions made there.
    pub(super) node: Arc<str>,
}

impl AsRef<Client> for Home {
    fn as_ref(&self) -> &Client {
        &self.consul
    }
}

impl Context {
    /// The home of a semaphore that is gone to with the operator's own token.
    pub(super) fn own_home(&self, semaphore: &ConsulSemaphore) -> Home {
        let place = place(semaphore);
        Home {
            consul: self.consul.scoped(place.clone()),
            place,
            node: self.node.clone(),
        }
    }

    /// The home of a semaphore that brings this token. A session's ACL matches the name of its node,
    /// so the node has the namespace in its name: tenants can't end each other's sessions, and what
    /// they call theirs proves nothing to anybody else.
    pub(super) fn tenants_home(&self, semaphore: &ConsulSemaphore, token: TokenCell) -> Home {
        let namespace = semaphore.metadata.namespace.as_deref().unwrap_or_default();
        let own = self.own_home(semaphore);
        Home {
            consul: own.consul.with_token(token),
            node: tenants_node(&self.node, namespace).into(),
            ..own
        }
    }
}

/// The external node that owns the sessions made with the token of a namespace.
pub(crate) fn tenants_node(own: &str, namespace: &str) -> String {
    format!("{own}-{namespace}")
}

/// The part of Consul that a semaphore lives in.
pub(crate) fn place(semaphore: &ConsulSemaphore) -> Scope {
    let consul = semaphore.spec.consul.clone().unwrap_or_default();
    Scope {
        datacenter: consul.datacenter,
        namespace: consul.namespace,
        partition: consul.partition,
    }
}
