//! The facts in a write to Consul before it is sent: which `.lock`s it may change, and which contenders get a slot or
//! wait for one. Also the facts in a server's answer.

use std::{cmp::Reverse, collections::BTreeSet};

use axum::{
    body::{Body, Bytes},
    http::response::Parts,
    response::Response,
};
use serde_json::Value;
use testbed::Call;

use crate::record::Place;

/// A server's answer to a write.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: Parts,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.head.status.as_u16()
    }

    /// Whether the answer means that nothing was done.
    pub(crate) fn refuses(&self) -> bool {
        self.head.status.is_client_error() || self.body == "false"
    }

    pub(crate) fn into_response(self) -> Response {
        Response::from_parts(self.head, Body::from(self.body))
    }
}

/// The facts in a write that concern semaphores.
#[derive(Default)]
pub(crate) struct CallFacts {
    /// The `.lock`s that it writes to.
    pub(crate) prefixes: BTreeSet<String>,
    /// Session, prefix and Job of each contender that it writes.
    pub(crate) contenders: Vec<(String, String, String)>,
    /// Session, prefix and place of each waiting contender that it writes.
    pub(crate) waiting: Vec<(String, String, Option<Place>)>,
    /// The sessions whose contenders the write checks to be absent or unlocked.
    pub(crate) dead: BTreeSet<String>,
    /// The name of the session that it creates.
    pub(crate) session: Option<String>,
}

impl CallFacts {
    pub(crate) fn by(call: &Call) -> Self {
        let mut facts = Self::default();
        if call.path == "/v1/txn" {
            for (verb, key, value) in call.operations() {
                facts.take(&verb, &key, &value);
            }
        } else if call.path == "/v1/session/create" {
            let name = call.json()["Name"].as_str().unwrap_or_default().to_owned();
            facts.session = Some(name);
        } else if let Some(key) = call.path.strip_prefix("/v1/kv/") {
            if let Some(prefix) = prefix_of(key) {
                facts.prefixes.insert(prefix.to_owned());
            } else if let Some((prefix, session)) = key.rsplit_once('/')
                && call
                    .query
                    .split('&')
                    .any(|part| part.strip_prefix("acquire=") == Some(session))
            {
                facts.waiting.push((session.into(), prefix.into(), None));
            }
        }
        facts
    }

    fn take(&mut self, verb: &str, key: &str, value: &str) {
        let reads = verb.starts_with("check-") || verb.starts_with("get");
        if let Some(prefix) = prefix_of(key) {
            if !reads {
                self.prefixes.insert(prefix.to_owned());
            }
            return;
        }
        let Some((prefix, session)) = key.rsplit_once('/') else {
            return;
        };
        match verb {
            "lock" => {
                let body: Value = serde_json::from_str(value).unwrap_or_default();
                if body["waiting"].is_object() {
                    let place = Some(place(&body));
                    self.waiting.push((session.into(), prefix.into(), place));
                }
                // Neither a command nor a program is a Job: it has no pods to judge.
                let kind = body["kind"].as_str().unwrap_or_default();
                if let Some(uid) = body["uid"].as_str()
                    && !["Process", "Lease", "Program"].contains(&kind)
                {
                    self.contenders
                        .push((session.into(), prefix.into(), uid.into()));
                }
            }
            "check-not-exists" | "check-index" => {
                self.dead.insert(session.to_owned());
            }
            _ => {}
        }
    }
}

/// The place in the queue, from a contender's body.
fn place(body: &Value) -> Place {
    let waiting = &body["waiting"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let since: Option<jiff::Timestamp> = text(&waiting["since"]).parse().ok();
    Place {
        lost: Reverse(waiting["lost"].as_bool().unwrap_or_default()),
        priority: Reverse(waiting["priority"].as_i64().unwrap_or_default()),
        since: since.map_or(0, jiff::Timestamp::as_second),
        name: text(&body["name"]),
        uid: text(&body["uid"]),
    }
}

fn prefix_of(key: &str) -> Option<&str> {
    key.strip_suffix("/.lock")
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use serde_json::json;

    use super::*;

    fn put(target: &str, body: &Value) -> Call {
        Call::new(Method::PUT, target, body.to_string())
    }

    #[test]
    fn a_transaction_tells_whom_it_grants_to_and_who_is_dead() {
        let body = BASE64_STANDARD.encode(r#"{"uid":"u"}"#);
        let facts = CallFacts::by(&put(
            "/v1/txn?dc=dc1",
            &json!([
                { "KV": { "Verb": "lock", "Key": "p/q/new", "Session": "new", "Value": body } },
                { "KV": { "Verb": "check-not-exists", "Key": "p/q/old" } },
                { "KV": { "Verb": "cas", "Key": "p/q/.lock", "Index": 7 } },
            ]),
        ));
        assert_eq!(facts.prefixes, ["p/q".to_owned()].into());
        assert_eq!(facts.dead, ["old".to_owned()].into());
        let contender = ("new".to_owned(), "p/q".to_owned(), "u".to_owned());
        assert_eq!(facts.contenders, [contender]);
    }

    #[test]
    fn who_waits_says_so_or_only_has_a_key() {
        let waiting = json!({ "priority": 3, "since": "1970-01-01T00:00:07.9Z" });
        let body = json!({ "uid": "u", "name": "n", "kind": "Process", "waiting": waiting });
        let value = BASE64_STANDARD.encode(body.to_string());
        let lock =
            json!([{ "KV": { "Verb": "lock", "Key": "p/s", "Session": "s", "Value": value } }]);
        let facts = CallFacts::by(&put("/v1/txn", &lock));
        let place = Place {
            lost: Reverse(false),
            priority: Reverse(3),
            since: 7,
            name: "n".into(),
            uid: "u".into(),
        };
        assert_eq!(facts.waiting, [("s".into(), "p".into(), Some(place))]);
        assert_eq!(facts.contenders, [], "it is no Job");
        let path = "/v1/kv/p/s?acquire=s&flags=7";
        let facts = CallFacts::by(&put(path, &json!({})));
        assert_eq!(facts.waiting, [("s".into(), "p".into(), None)]);
        let path = "/v1/kv/p/other?acquire=s";
        let facts = CallFacts::by(&put(path, &json!({})));
        assert_eq!(facts.waiting, []);
    }

    #[test]
    fn only_what_may_change_a_lock_waits_for_its_turn() {
        let prefixes = |path| CallFacts::by(&put(path, &json!({}))).prefixes;
        assert_eq!(prefixes("/v1/kv/p/.lock?cas=1"), ["p".to_owned()].into());
        assert_eq!(prefixes("/v1/kv/p/session?acquire=session"), [].into());
        assert_eq!(prefixes("/v1/session/renew/p"), [].into());
    }
}
