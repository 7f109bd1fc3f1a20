//! Creates, renews, reads and destroys sessions, which hold locks while they live.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::{
    Client, Error, ExternalNode, SessionId,
    call::{Answer, Call},
    kv::segment,
    lanes::Lane,
};
use crate::clock::Moment;

/// A new session, with behavior `delete`: the keys that it holds are deleted with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSession {
    /// A name for people.
    pub name: String,
    /// Node that the session belongs to, which must be registered (see [`Client::register_node`]). Then the session
    /// has no checks: only its TTL and its node end it. `None` is the node of the agent that is asked. The health of
    /// that node (`serfHealth`) ends the session, too, as soon as gossip considers the machine dead.
    pub node: Option<String>,
    /// Time that the session lives without a renewal, from 10 s (or Consul's configured minimum) to 24 h. Consul
    /// takes up to twice as long to notice. `None`: for ever.
    pub ttl: Option<Duration>,
    /// Time after the session's end in which no other session can lock a key that the session held, at most 60 s.
    pub lock_delay: Duration,
}

/// A session as Consul stores it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Session {
    /// Id of the session.
    #[serde(rename = "ID")]
    pub id: SessionId,
    /// A name for people; may be empty.
    #[serde(default)]
    pub name: String,
    /// Node that the session belongs to.
    pub node: String,
    /// Time that the session lives without a renewal. Consul may choose a longer time than was requested.
    #[serde(rename = "TTL", default, deserialize_with = "ttl")]
    pub ttl: Option<Duration>,
    /// Time after the session's end in which no other session can lock the keys that the session held (lock-delay).
    #[serde(default, deserialize_with = "nanoseconds")]
    pub lock_delay: Duration,
    /// Behavior for the keys that the session holds when it ends.
    #[serde(default)]
    pub behavior: Behavior,
    /// Raft index at which the session was made.
    pub create_index: u64,
}

/// The behavior for the keys that a session holds when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Behavior {
    /// Consul keeps the keys and unlocks them.
    #[default]
    Release,
    /// Consul deletes the keys.
    Delete,
}

/// A session that was renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The session as Consul stores it.
    pub session: Session,
    /// Time at which the answered request, the last one of its call, was sent. The session lives for its TTL from
    /// then on.
    pub sent: Moment,
}

impl Client {
    /// Creates a session. Returns [`Error::MissingNode`] if the session's node is not registered. The call is not
    /// repeated when its answer was lost: [`Client::node_sessions`] finds such a session.
    pub async fn create_session(&self, request: &NewSession) -> Result<SessionId, Error> {
        #[derive(Deserialize)]
        struct Created {
            #[serde(rename = "ID")]
            id: SessionId,
        }
        let path = "/v1/session/create".to_owned();
        let call = Call {
            lane: Lane::Session,
            ..Call::put("session_create", path, request.wire())
        };
        let created: Created = self.send(call).await?.json()?;
        Ok(created.id)
    }

    /// Creates a session like [`Self::create_session`], but registers an external node if Consul does not know the
    /// node yet. Consul requires an address for the node, and nothing connects to that address.
    pub async fn create_session_on_node(&self, request: &NewSession) -> Result<SessionId, Error> {
        let created = self.create_session(request).await;
        let (Some(name), Err(Error::MissingNode)) = (&request.node, &created) else {
            return created;
        };
        self.register_node(&ExternalNode::named(name)).await?;
        self.create_session(request).await
    }

    /// Renews a session. Returns [`Error::Gone`] if there is no such session, which is final: ids are never used
    /// again.
    ///
    /// After all servers were down, a new leader answers a renewal from the part of its log that it has replayed so
    /// far, so the leader may not know a live session. A consistent read confirms that a session is missing.
    pub async fn renew_session(&self, id: &SessionId) -> Result<Renewed, Error> {
        match self.renew_once(id).await {
            Err(Error::Gone) if self.look_up(id, Lane::Renew).await?.is_some() => {
                self.renew_once(id).await
            }
            answer => answer,
        }
    }

    async fn renew_once(&self, id: &SessionId) -> Result<Renewed, Error> {
        let path = format!("/v1/session/renew/{}", segment(id.as_str())?);
        let call = Call {
            lane: Lane::Renew,
            changes: false,
            ..Call::put_again("session_renew", path, Vec::new())
        };
        let answer = self.send(call).await?;
        // A 404 from something other than Consul, such as a proxy, says nothing about the session.
        if !answer.found && answer.body.starts_with(b"Session id ") {
            return Err(Error::Gone);
        }
        let session = first(&answer)?.ok_or(Error::Gone)?;
        let sent = answer.sent;
        Ok(Renewed { session, sent })
    }

    /// Returns a session, if there is one; [`Error::Denied`] as for [`Self::node_sessions`].
    pub async fn session(&self, id: &SessionId) -> Result<Option<Session>, Error> {
        self.look_up(id, Lane::Read).await
    }

    async fn look_up(&self, id: &SessionId, lane: Lane) -> Result<Option<Session>, Error> {
        let path = format!("/v1/session/info/{}", segment(id.as_str())?);
        let call = Call {
            lane,
            ..Call::get("session_info", path).consistent()
        };
        let answer = readable(self.send(call).await?, id.as_str())?;
        first(&answer)
    }

    /// Returns all sessions of a node, or [`Error::Denied`] if Consul reports that it has left some out (before 1.12
    /// Consul does not report that).
    pub async fn node_sessions(&self, node: &str) -> Result<Vec<Session>, Error> {
        let path = format!("/v1/session/node/{}", segment(node)?);
        let call = Call::get("session_node", path).consistent();
        let answer = readable(self.send(call).await?, node)?;
        all(&answer)
    }

    /// Lists all sessions that the token may read.
    pub async fn sessions(&self) -> Result<Vec<Session>, Error> {
        let call = Call::get("session_list", "/v1/session/list".to_owned());
        all(&self.send(call.consistent()).await?)
    }

    /// Destroys a session. Succeeds if the session is missing.
    pub async fn destroy_session(&self, id: &SessionId) -> Result<(), Error> {
        let path = format!("/v1/session/destroy/{}", segment(id.as_str())?);
        let call = Call {
            lane: Lane::Session,
            ..Call::put_again("session_destroy", path, Vec::new())
        };
        self.send(call).await?.done()
    }
}

impl Error {
    /// Returns the shortest TTL that this Consul allows (`session_ttl_min`), if Consul refused a shorter one.
    pub fn shortest_ttl(&self) -> Option<Duration> {
        let Self::Unexpected { message, .. } = self else {
            return None;
        };
        let (_, range) = message.split_once("Invalid Session TTL")?;
        let (_, range) = range.split_once("must be between [")?;
        read_duration(range.split_once('=')?.0)
    }
}

/// Returns the answer, if it is complete.
fn readable(answer: Answer, of: &str) -> Result<Answer, Error> {
    if answer.filtered {
        let message = format!("the token lacks permission 'session:read' on {of:?}");
        return Err(Error::Denied(message));
    }
    Ok(answer)
}

fn all(answer: &Answer) -> Result<Vec<Session>, Error> {
    Ok(answer.json::<Option<_>>()?.unwrap_or_default())
}

fn first(answer: &Answer) -> Result<Option<Session>, Error> {
    Ok(all(answer)?.into_iter().next())
}

impl NewSession {
    fn wire(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire<'a> {
            name: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            node: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            node_checks: Option<[(); 0]>,
            #[serde(rename = "TTL", skip_serializing_if = "Option::is_none")]
            ttl: Option<String>,
            lock_delay: String,
            behavior: &'static str,
        }
        let Self {
            name,
            node,
            ttl,
            lock_delay,
        } = self;
        let wire = Wire {
            name,
            node: node.as_deref(),
            node_checks: node.as_ref().map(|_| []),
            ttl: ttl.map(write_duration),
            lock_delay: write_duration(*lock_delay),
            behavior: "delete",
        };
        // The request has strings only, so writing it cannot fail.
        serde_json::to_vec(&wire).unwrap_or_default()
    }
}

/// Writes a duration as Go reads it.
pub(super) fn write_duration(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{}s", duration.as_secs()),
        _ => format!("{}ms", duration.as_millis()),
    }
}

/// Reads a duration as Go writes it: `1h0m0s`, `1m30s`, `1.5s`.
fn read_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() && rest != "0" {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * seconds;
        rest = after;
    }
    Duration::try_from_secs_f64(total).ok()
}

fn ttl<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let refuse = || serde::de::Error::custom(format!("{text:?} is not a duration"));
    let ttl = read_duration(&text).ok_or_else(refuse)?;
    Ok((!ttl.is_zero()).then_some(ttl))
}

fn nanoseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_sessions_are_read_or_refused(body in hostile::bytes(), value in hostile::json(), text in hostile::text()) {
            let session = format!(
                r#"[{{"ID":"x","Name":{},"Node":"n","TTL":{value},"LockDelay":{value},"CreateIndex":1}}]"#,
                serde_json::Value::from(text.as_str())
            );
            for body in [body, session.into_bytes()] {
                let _ = serde_json::from_slice::<Option<Vec<Session>>>(&body);
            }
            let _ = read_duration(&text);
        }
    }

    #[test]
    fn durations_are_those_of_go() {
        for (text, seconds) in [
            ("", 0.0),
            ("0", 0.0),
            ("0s", 0.0),
            ("15s", 15.0),
            ("1m30s", 90.0),
            ("24h0m0s", 86400.0),
            ("1.5s", 1.5),
            ("250ms", 0.25),
        ] {
            assert_eq!(
                read_duration(text),
                Some(Duration::from_secs_f64(seconds)),
                "{text}"
            );
        }
        for text in ["s", "5", "1y", "-1s", "..s", "1e3s"] {
            assert_eq!(read_duration(text), None, "{text}");
        }
        assert_eq!(write_duration(Duration::from_mins(2)), "120s");
        assert_eq!(write_duration(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn a_ttl_that_is_too_short_is_reported_with_the_shortest() {
        let refused = |message: &str| Error::Unexpected {
            status: 500,
            message: message.to_owned(),
        };
        let words = "Invalid Session TTL '10000000000', must be between [1m30s=24h0m0s]";
        let forwarded = format!("rpc error making call: {words}");
        for words in [words, &forwarded] {
            let shortest = refused(words).shortest_ttl();
            assert_eq!(shortest, Some(Duration::from_secs(90)));
        }
        for words in ["", "Invalid Session TTL 'x'", "must be between [1s=2s]"] {
            assert_eq!(refused(words).shortest_ttl(), None, "{words}");
        }
        assert_eq!(Error::Gone.shortest_ttl(), None);
    }

    #[test]
    fn a_new_session_takes_its_keys_with_it_and_has_the_checks_of_an_agents_node_only() {
        let request = NewSession {
            name: "prod batch/migrate".to_owned(),
            node: Some("k8s-1".to_owned()),
            ttl: Some(Duration::from_mins(2)),
            lock_delay: Duration::ZERO,
        };
        assert_eq!(
            String::from_utf8(request.wire()).unwrap(),
            r#"{"Name":"prod batch/migrate","Node":"k8s-1","NodeChecks":[],"TTL":"120s","LockDelay":"0s","Behavior":"delete"}"#
        );
        let agents = NewSession {
            node: None,
            ttl: None,
            ..request
        };
        assert_eq!(
            String::from_utf8(agents.wire()).unwrap(),
            r#"{"Name":"prod batch/migrate","LockDelay":"0s","Behavior":"delete"}"#
        );
    }

    #[test]
    fn sessions_of_a_real_consul() {
        let body = r#"[{"ID":"e3bc48c5-d578-a5a2-8922-52dbf9ee84ab","Name":"x","Node":"n1",
            "LockDelay":15000000000,"Behavior":"delete","TTL":"1m30s","NodeChecks":[],
            "ServiceChecks":null,"CreateIndex":22,"ModifyIndex":22},
            {"ID":"f","Name":"","Node":"n1","LockDelay":0,"Behavior":"release","TTL":"",
            "Checks":["serfHealth"],"CreateIndex":3,"ModifyIndex":3}]"#;
        let sessions: Vec<Session> = serde_json::from_str(body).unwrap();
        assert_eq!(sessions[0].ttl, Some(Duration::from_secs(90)));
        assert_eq!(sessions[0].lock_delay, Duration::from_secs(15));
        assert_eq!(sessions[0].behavior, Behavior::Delete);
        assert_eq!(sessions[1].ttl, None);
        assert_eq!(sessions[1].behavior, Behavior::Release);
    }
}
