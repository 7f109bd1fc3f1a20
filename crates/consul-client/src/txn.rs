//! Makes transactions: several operations in one raft entry, of which all or none are applied.

use std::sync::atomic::Ordering;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};

use super::{Client, Entry, Error, Op, Scope, call::Call, kv::WireEntry};

/// Number of operations that Consul accepts in a transaction since 1.14.
pub(super) const TRANSACTION_CAPACITY: usize = 128;

impl Client {
    /// Applies all operations, or none. Returns the entries that were read, written or checked, in order; only those
    /// that were read have a value. Deleted keys, and keys that must not exist, have no entry, so look entries up by
    /// their key and not by their place.
    ///
    /// [`Error::Conflict`] lists every operation that failed. After [`Error::TooLarge`], retry with at most
    /// [`Client::transaction_capacity`] operations; if there were no more, then one of the values, or all of them
    /// together, are too large. The call is not repeated when its answer was lost.
    pub async fn transaction(&self, operations: &[Op]) -> Result<Vec<Entry>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Applied<'a> {
            #[serde(borrow)]
            results: Option<Vec<Applies<'a>>>,
        }
        #[derive(Deserialize)]
        struct Applies<'a> {
            #[serde(rename = "KV", borrow)]
            kv: Option<WireEntry<'a>>,
        }
        let Some(first) = operations.first() else {
            return Ok(Vec::new());
        };
        self.refuse_without_enterprise(first.key()).await?;
        let body = wire(operations, &self.scope);
        let sent = self
            .send(Call::put("txn", "/v1/txn".to_owned(), body))
            .await;
        if let Err(Error::TooLarge(message)) = &sent {
            self.learn_capacity(operations.len(), message);
        }
        let answer = sent?;
        let applied: Applied<'_> = answer.json()?;
        let results = applied.results.unwrap_or_default().into_iter();
        let entries = results.filter_map(|result| result.kv);
        entries.map(WireEntry::decode).collect()
    }

    /// Returns how many operations a transaction may have: 128 until Consul names another limit. Consul before 1.14
    /// names 64. All clients of the datacenter share what was learned.
    pub fn transaction_capacity(&self) -> usize {
        self.datacenter.capacity.load(Ordering::Relaxed)
    }

    /// Learns the limit that a message such as `Transaction contains too many operations (65 > 64)` names. A message
    /// about too many bytes, or of a proxy, names no limit: it says something about this transaction only, and
    /// nothing about other transactions.
    fn learn_capacity(&self, operations: usize, message: &str) {
        let Some((words, limit)) = message.rsplit_once("> ") else {
            return;
        };
        let named = limit.trim_end_matches(')').parse().ok();
        let limit: Option<usize> = named.filter(|_| words.contains("too many operations"));
        if let Some(limit) = limit.filter(|limit| (1..operations).contains(limit)) {
            self.datacenter.capacity.fetch_min(limit, Ordering::Relaxed);
        }
    }

    /// Refuses a namespace or a partition unless Consul is Consul Enterprise. Without Enterprise, Consul refuses them
    /// in every call except a transaction, where Consul ignores them: the transaction would be applied in the wrong
    /// place. So another call asks first.
    async fn refuse_without_enterprise(&self, key: &str) -> Result<(), Error> {
        let Scope {
            datacenter: _,
            namespace,
            partition,
        } = &*self.scope;
        let known = self.datacenter.enterprise.load(Ordering::Relaxed);
        if known || (namespace.is_none() && partition.is_none()) {
            return Ok(());
        }
        match self.get(key).await {
            Ok(_) | Err(Error::Denied(_)) => {
                self.datacenter.enterprise.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl Op {
    /// Makes the check that a key still has this `ModifyIndex`; 0 checks that the key does not exist.
    pub fn unchanged(key: String, index: u64) -> Self {
        match index {
            0 => Self::CheckNotExists { key },
            index => Self::CheckIndex { key, index },
        }
    }

    /// Whether the operation writes or deletes its key.
    pub fn writes(&self) -> bool {
        match self {
            Self::Set { .. }
            | Self::Cas { .. }
            | Self::Lock { .. }
            | Self::Unlock { .. }
            | Self::Delete { .. }
            | Self::DeleteCas { .. } => true,
            Self::Get { .. }
            | Self::CheckIndex { .. }
            | Self::CheckSession { .. }
            | Self::CheckNotExists { .. } => false,
        }
    }

    /// Returns the key that the operation is about.
    pub fn key(&self) -> &str {
        match self {
            Self::Set { key, .. }
            | Self::Cas { key, .. }
            | Self::Lock { key, .. }
            | Self::Unlock { key, .. }
            | Self::Get { key }
            | Self::Delete { key }
            | Self::DeleteCas { key, .. }
            | Self::CheckIndex { key, .. }
            | Self::CheckSession { key, .. }
            | Self::CheckNotExists { key } => key,
        }
    }
}

/// An operation as Consul reads it.
#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct WireOp<'a> {
    verb: &'static str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<&'a str>,
}

fn wire(operations: &[Op], scope: &Scope) -> Vec<u8> {
    #[derive(Serialize)]
    struct Kv<'a> {
        #[serde(rename = "KV")]
        kv: WireOp<'a>,
    }
    let place = |op| Kv {
        kv: WireOp {
            namespace: scope.namespace.as_deref(),
            partition: scope.partition.as_deref(),
            ..WireOp::of(op)
        },
    };
    let wire: Vec<_> = operations.iter().map(place).collect();
    // The request has strings and numbers only, so writing it cannot fail.
    serde_json::to_vec(&wire).unwrap_or_default()
}

impl<'a> WireOp<'a> {
    fn of(op: &'a Op) -> Self {
        let base = |verb, key| Self {
            verb,
            key,
            ..Self::default()
        };
        let writes = |verb, key, value: &[u8], flags: &u64| Self {
            value: Some(BASE64_STANDARD.encode(value)),
            flags: Some(*flags),
            ..base(verb, key)
        };
        match op {
            Op::Set { key, value, flags } => writes("set", key, value, flags),
            Op::Cas {
                key,
                value,
                flags,
                index,
            } => Self {
                index: Some(*index),
                ..writes("cas", key, value, flags)
            },
            Op::Lock {
                key,
                value,
                flags,
                session,
            } => Self {
                session: Some(session.as_str()),
                ..writes("lock", key, value, flags)
            },
            Op::Unlock {
                key,
                value,
                flags,
                session,
            } => Self {
                session: Some(session.as_str()),
                ..writes("unlock", key, value, flags)
            },
            Op::Get { key } => base("get", key),
            Op::Delete { key } => base("delete", key),
            Op::DeleteCas { key, index } => Self {
                index: Some(*index),
                ..base("delete-cas", key)
            },
            Op::CheckIndex { key, index } => Self {
                index: Some(*index),
                ..base("check-index", key)
            },
            Op::CheckSession { key, session } => Self {
                session: Some(session.as_str()),
                ..base("check-session", key)
            },
            Op::CheckNotExists { key } => base("check-not-exists", key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_as_consul_reads_them() {
        let ops = [
            Op::Lock {
                key: "p/s1".to_owned(),
                value: b"{}".to_vec(),
                flags: 16_210_313_421_097_356_768,
                session: "s1".into(),
            },
            Op::Cas {
                key: "p/.lock".to_owned(),
                value: Vec::new(),
                flags: 0,
                index: 0,
            },
            Op::CheckSession {
                key: "p/s1".to_owned(),
                session: "s1".into(),
            },
            Op::Delete {
                key: "p/s2".to_owned(),
            },
        ];
        let wire = String::from_utf8(wire(&ops, &Scope::default())).unwrap();
        assert_eq!(
            wire,
            concat!(
                r#"[{"KV":{"Verb":"lock","Key":"p/s1","Value":"e30=","Flags":16210313421097356768,"Session":"s1"}},"#,
                r#"{"KV":{"Verb":"cas","Key":"p/.lock","Value":"","Flags":0,"Index":0}},"#,
                r#"{"KV":{"Verb":"check-session","Key":"p/s1","Session":"s1"}},"#,
                r#"{"KV":{"Verb":"delete","Key":"p/s2"}}]"#
            )
        );
    }

    #[test]
    fn every_operation_names_its_namespace() {
        let scope = Scope {
            namespace: Some("team-a".to_owned()),
            ..Scope::default()
        };
        let ops = [Op::Get {
            key: "k".to_owned(),
        }];
        assert_eq!(
            String::from_utf8(wire(&ops, &scope)).unwrap(),
            r#"[{"KV":{"Verb":"get","Key":"k","Namespace":"team-a"}}]"#
        );
    }
}
