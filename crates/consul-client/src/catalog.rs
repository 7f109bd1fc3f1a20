//! The catalog of nodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Client, Error, call::Call, kv::segment, lanes::Lane};

/// The entry in a node's meta that marks it as an external node.
const EXTERNAL_NODE_META: (&str, &str) = ("external-node", "true");

/// A node without an agent. Its sessions survive restarts of agents and servers, which leave the catalog together
/// with their own sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalNode {
    /// Name of the node, unique in the catalog. ACL rules for sessions refer to this name.
    pub name: String,
    /// Address of the node. Consul requires an address, although nothing connects to it.
    pub address: String,
}

impl ExternalNode {
    /// A node of this name, with the loopback address.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            address: "127.0.0.1".to_owned(),
        }
    }
}

impl Client {
    /// Registers the node, without services and checks. May be repeated.
    pub async fn register_node(&self, node: &ExternalNode) -> Result<(), Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Registration<'a> {
            // Unlike all other calls, this one takes the datacenter from its body.
            #[serde(skip_serializing_if = "Option::is_none")]
            datacenter: Option<&'a str>,
            node: &'a str,
            address: &'a str,
            node_meta: BTreeMap<&'a str, &'a str>,
        }
        let registration = Registration {
            datacenter: self.scope.datacenter.as_deref(),
            node: &node.name,
            address: &node.address,
            node_meta: BTreeMap::from([EXTERNAL_NODE_META]),
        };
        // Strings only: writing them cannot fail.
        let body = serde_json::to_vec(&registration).unwrap_or_default();
        let path = "/v1/catalog/register".to_owned();
        let call = Call {
            lane: Lane::Session,
            ..Call::put_again("catalog_register", path, body)
        };
        self.send(call).await?.done()
    }

    /// Whether the node of this name is an external one; `None` if there is none, or none that the token
    /// may read.
    pub async fn is_external(&self, name: &str) -> Result<Option<bool>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Services {
            node: Option<Node>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Node {
            meta: Option<BTreeMap<String, String>>,
        }
        let path = format!("/v1/catalog/node/{}", segment(name)?);
        let found: Option<Services> = self.send(Call::get("catalog_node", path)).await?.json()?;
        let (key, value) = EXTERNAL_NODE_META;
        let is_external = |node: Node| {
            let meta = node.meta.unwrap_or_default();
            meta.get(key).is_some_and(|said| said == value)
        };
        Ok(found.and_then(|found| found.node).map(is_external))
    }
}
