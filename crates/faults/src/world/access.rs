//! The rights in Consul, which denies by default. The operator gets no more than its documentation says, the load's
//! `consul lock`s get what such a script needs, and the campaign may do everything.

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{Consul, NAMESPACE};

/// The campaign's own token, with which Consul is bootstrapped. It may do everything.
pub(crate) const MANAGEMENT: &str = "6d616e61-1111-4222-8333-676562656400";

/// A token with its own rules.
pub(crate) struct Token {
    /// The name of its policy.
    name: &'static str,
    /// The secret that a client presents.
    pub(crate) secret: &'static str,
    /// The id by which it is deleted.
    accessor: &'static str,
}

/// The operator's token.
pub(crate) const OPERATOR: Token = Token {
    name: "operator",
    secret: "6f706572-1111-4222-8333-61746f720000",
    accessor: "6f706572-1111-4222-8333-61746f720001",
};

/// The token of the load's `consul lock`s.
pub(crate) const FOREIGN: Token = Token {
    name: "foreign",
    secret: "666f7265-1111-4222-8333-69676e000000",
    accessor: "666f7265-1111-4222-8333-69676e000001",
};

/// Creates or restores all policies and tokens, whatever is left of them.
pub(crate) async fn grant(consul: &Consul) -> Result<()> {
    let node = &consul.node;
    let operator = format!(
        r#"key_prefix "semaphores/" {{ policy = "write" }}
        key_prefix "service/consul-semaphore-operator/{node}/" {{ policy = "write" }}
        node "{node}" {{ policy = "write" }}
        session "{node}" {{ policy = "write" }}"#
    );
    let foreign = format!(
        r#"key_prefix "semaphores/{NAMESPACE}/" {{ policy = "write" }}
        agent_prefix "consul-" {{ policy = "read" }}
        session_prefix "consul-" {{ policy = "write" }}"#
    );
    for (token, rules) in [(OPERATOR, operator), (FOREIGN, foreign)] {
        set_rules(consul, &token, &rules).await?;
        let tokens = consul.reader.json("acl/tokens").await?;
        let mut tokens = tokens.as_array().context("no list of tokens")?.iter();
        if tokens.any(|known| known["AccessorID"] == token.accessor) {
            continue;
        }
        let body = json!({
            "AccessorID": token.accessor,
            "SecretID": token.secret,
            "Policies": [{ "Name": token.name }],
        });
        consul.put("acl/token", body.to_string()).await?;
    }
    Ok(())
}

/// Deletes the operator's token.
pub(crate) async fn revoke_token(consul: &Consul) -> Result<()> {
    let path = format!("acl/token/{}", OPERATOR.accessor);
    consul.delete(&path).await.map(drop)
}

/// Removes all rules from the operator's token.
pub(crate) async fn take_rules(consul: &Consul) -> Result<()> {
    set_rules(consul, &OPERATOR, "").await
}

async fn set_rules(consul: &Consul, token: &Token, rules: &str) -> Result<()> {
    let policies = consul.reader.json("acl/policies").await?;
    let mut policies = policies.as_array().context("no list of policies")?.iter();
    let id = policies
        .find(|policy| policy["Name"] == token.name)
        .and_then(|policy| policy["ID"].as_str())
        .map_or(String::new(), |id| format!("/{id}"));
    let body = json!({ "Name": token.name, "Rules": rules });
    let path = format!("acl/policy{id}");
    consul.put(&path, body.to_string()).await.map(drop)
}
