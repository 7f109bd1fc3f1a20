//! The catalog of nodes.

use serde::Serialize;

use super::{Client, Error, call::Call};

/// A node that no agent runs on. Sessions that belong to it outlive every agent and server, which
/// leave the catalog, with their sessions, when they are restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalNode {
    /// Its name, which no other node may bear; rules for sessions name it.
    pub name: String,
    /// An address, which Consul wants for every node and nobody connects to.
    pub address: String,
}

impl Client {
    /// Registers the node, without services and checks. Doing it again changes nothing.
    pub async fn register_node(&self, node: &ExternalNode) -> Result<(), Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Registration<'a> {
            // Unlike all others, this call takes the datacenter from its body.
            #[serde(skip_serializing_if = "Option::is_none")]
            datacenter: Option<&'a str>,
            node: &'a str,
            address: &'a str,
            node_meta: Meta,
        }
        #[derive(Serialize)]
        struct Meta {
            #[serde(rename = "external-node")]
            external_node: &'static str,
        }
        let registration = Registration {
            datacenter: self.scope.datacenter.as_deref(),
            node: &node.name,
            address: &node.address,
            node_meta: Meta {
                external_node: "true",
            },
        };
        // Strings only: writing them cannot fail.
        let body = serde_json::to_vec(&registration).unwrap_or_default();
        let path = "/v1/catalog/register".to_owned();
        let call = Call::put_again("catalog_register", path, body);
        self.send(call).await?.done()
    }
}
