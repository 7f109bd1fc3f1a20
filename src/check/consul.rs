//! Reads Consul, and tries each step of the operator with its token.
//!
//! A scratch key exists only within one transaction, which also deletes it. The scratch session is destroyed even
//! when this program is interrupted; if that fails, it expires.

use std::time::Duration;

use parking_lot::Mutex;

use jiff::SignedDuration;

use super::{CheckSettings, OperatorIdentity};
use crate::leader;
use consul_client::{Client, Error, ExternalNode, NewSession, Op, SessionId, Status, clock};

/// The TTL that is tried first. It is the shortest that Consul accepts by default, and that a spec can have.
const SHORTEST_TTL: Duration = Duration::from_secs(10);

/// The facts about a Consul with usable settings.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ConsulFacts {
    pub(super) status: Result<Status, Error>,
    /// The time by which Consul's clock is ahead of ours.
    pub(super) ahead: Option<SignedDuration>,
    /// The version of Consul; `None` if an earlier request got no answer.
    pub(super) version: Option<Result<String, Error>>,
    /// The results of the tried steps; `None` if Consul does not answer.
    pub(super) tried: Option<Tried>,
    /// The results for the mark that shows who uses the cluster's identity, if its node is known.
    pub(super) identity: Option<Tried>,
    /// The results for an election in Consul, if one is configured.
    pub(super) election: Option<Tried>,
}

/// A step of the operator in Consul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Registers the external node.
    Register,
    /// Creates a session on the external node.
    Make,
    /// Renews the session.
    Renew,
    /// Lists and reads keys.
    List,
    /// Writes keys, with and without a condition, and deletes the keys.
    Write,
    /// Locks and unlocks keys.
    Lock,
    /// Ends the session.
    End,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// The step was done.
    Done,
    /// The step was not tried, for this reason.
    Untried(&'static str),
    /// The step was refused.
    Refused(Error),
}

/// The results of the steps that were tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    /// The external node that was used.
    pub(super) node: Option<String>,
    /// Whether the node existed before; `None` if unknown.
    pub(super) known: Option<bool>,
    /// The keys that were used.
    pub(super) keys: ScratchKeys,
    pub(super) steps: Vec<(Step, StepOutcome)>,
    /// The shortest TTL that Consul accepts and that a spec can have; `None` if unknown.
    pub(super) shortest: Option<Duration>,
}

/// The place at which keys are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScratchKeys {
    /// The folder of the scratch key, with a slash at its end.
    pub(super) folder: String,
    /// The prefix in a Consul ACL rule: the folder, or one above it.
    pub(super) rule: String,
}

/// The scratch sessions that may still exist.
#[derive(Default)]
pub(super) struct Scratch(Mutex<Vec<ScratchSession>>);

#[derive(Clone)]
struct ScratchSession {
    client: Client,
    node: String,
    name: String,
}

impl Scratch {
    /// Destroys the remaining sessions, even if the answer to their creation was lost.
    pub(super) async fn end(&self) {
        let left = std::mem::take(&mut *self.0.lock());
        for ScratchSession { client, node, name } in left {
            // If this fails, the session expires by its TTL.
            let sessions = client.node_sessions(&node).await.unwrap_or_default();
            for session in sessions.iter().filter(|session| session.name == name) {
                let _ = client.destroy_session(&session.id).await;
            }
        }
    }

    /// Forgets the session of this name, because it was not created, or is destroyed.
    fn forget(&self, name: &str) {
        self.0.lock().retain(|session| session.name != name);
    }
}

/// Reads and tries Consul with the operator's own token.
pub(super) async fn look(
    settings: &CheckSettings,
    client: &Client,
    operator: &OperatorIdentity,
    keys: ScratchKeys,
    scratch: &Scratch,
) -> ConsulFacts {
    let (status, ahead) = status(client).await;
    let mut seen = ConsulFacts {
        version: None,
        status,
        ahead,
        tried: None,
        identity: None,
        election: None,
    };
    let leads = |status: &Status| status.leader.is_some();
    if seen.status.is_ok() {
        seen.version = Some(client.version().await);
    }
    if seen.status.as_ref().is_ok_and(leads) {
        let node = operator.node.as_deref();
        seen.tried = Some(try_all(client, node, keys, scratch).await);
        if let Some(node) = node {
            let folder = format!("{OWN_KEYS}{node}/");
            let rule = folder.clone();
            seen.identity = Some(try_keys(client, ScratchKeys { folder, rule }).await);
        }
        if settings.operator.election.mode == leader::Mode::Consul {
            let keys = elections(&operator.cluster.name);
            seen.election = Some(try_keys(client, keys).await);
        }
    }
    seen
}

/// The folder of the operator's own keys.
const OWN_KEYS: &str = "service/consul-semaphore-operator/";

/// Returns where a cluster's elections are held.
fn elections(cluster: &str) -> ScratchKeys {
    let rule = OWN_KEYS.to_owned();
    ScratchKeys {
        folder: format!("{rule}{cluster}/"),
        rule,
    }
}

/// Reads the status, which needs no token, and how far Consul's clock is ahead.
async fn status(client: &Client) -> (Result<Status, Error>, Option<SignedDuration>) {
    let asked = clock::time();
    let status = client.status().await;
    let took = clock::time().duration_since(asked);
    // The answer was made between the two times, and its time has no fraction, so half a second is added on average.
    let theirs = status.as_ref().ok().and_then(|status| status.time);
    let ahead = theirs
        .map(|theirs| theirs.duration_since(asked) + SignedDuration::from_millis(500) - took / 2);
    (status, ahead)
}

/// Tries all steps.
pub(super) async fn try_all(
    client: &Client,
    node: Option<&str>,
    keys: ScratchKeys,
    scratch: &Scratch,
) -> Tried {
    let name = scratch_name();
    let key = format!("{}{name}", keys.folder);
    let mut tried = Tried {
        node: node.map(str::to_owned),
        known: None,
        keys,
        steps: Vec::new(),
        shortest: None,
    };
    let session = if let Some(node) = node {
        tried.begin(client, node, &name, scratch).await
    } else {
        let unknown =
            "the node's name contains the cluster's id, which is unknown: set --consul-node";
        for step in [Step::Register, Step::Make, Step::Renew] {
            tried.steps.push((step, StepOutcome::Untried(unknown)));
        }
        None
    };
    tried.note(Step::List, client.list(&key).await);
    tried.note(Step::Write, client.transaction(&writes(&key)).await);
    let without = StepOutcome::Untried("there is no session to lock with");
    match session {
        Some(session) => {
            let locks = locks(&key, &session);
            tried.note(Step::Lock, client.transaction(&locks).await);
            let ended = client.destroy_session(&session).await;
            if ended.is_ok() {
                scratch.forget(&session_name(&name));
            }
            tried.note(Step::End, ended);
        }
        None => tried
            .steps
            .extend([(Step::Lock, without.clone()), (Step::End, without)]),
    }
    tried
}

/// Tries the operations on keys of the operator's own.
async fn try_keys(client: &Client, keys: ScratchKeys) -> Tried {
    let key = format!("{}{}", keys.folder, scratch_name());
    let mut tried = Tried {
        node: None,
        known: None,
        keys,
        steps: Vec::new(),
        shortest: None,
    };
    tried.note(Step::List, client.list(&key).await);
    tried.note(Step::Write, client.transaction(&writes(&key)).await);
    tried
}

/// Returns a unique name.
fn scratch_name() -> String {
    format!("check-{:016x}", fastrand::u64(..))
}

/// Returns the session's name in Consul for this scratch name.
fn session_name(name: &str) -> String {
    format!("consul-semaphore-operator {name}")
}

impl Tried {
    fn note<T>(&mut self, step: Step, answer: Result<T, Error>) {
        let outcome = match answer {
            Ok(_) => StepOutcome::Done,
            Err(error) => StepOutcome::Refused(error),
        };
        self.steps.push((step, outcome));
    }

    /// Registers the node, and creates and renews a session there.
    async fn begin(
        &mut self,
        client: &Client,
        node: &str,
        name: &str,
        scratch: &Scratch,
    ) -> Option<SessionId> {
        let external = client.is_external(node).await;
        self.known = external.as_ref().ok().map(Option::is_some);
        if let Ok(Some(false)) = external {
            let agents =
                "an agent runs on that node: registering it would change the agent's address";
            self.steps
                .push((Step::Register, StepOutcome::Untried(agents)));
        } else {
            let external = ExternalNode::named(node.to_owned());
            self.note(Step::Register, client.register_node(&external).await);
        }
        scratch.0.lock().push(ScratchSession {
            client: client.clone(),
            node: node.to_owned(),
            name: session_name(name),
        });
        let made = self.make(client, node, name).await;
        if let Err(error) = &made
            && !error.may_have_been_applied()
        {
            scratch.forget(&session_name(name));
        }
        let session = made.as_ref().ok().cloned();
        self.note(Step::Make, made);
        if let Some(session) = &session {
            self.note(Step::Renew, client.renew_session(session).await);
        } else {
            let without = StepOutcome::Untried("there is no session to renew");
            self.steps.push((Step::Renew, without));
        }
        session
    }

    /// Creates a session with the shortest possible TTL.
    async fn make(&mut self, client: &Client, node: &str, name: &str) -> Result<SessionId, Error> {
        let mut request = NewSession {
            name: session_name(name),
            node: Some(node.to_owned()),
            ttl: Some(SHORTEST_TTL),
            lock_delay: Duration::ZERO,
        };
        let made = client.create_session(&request).await;
        let Some(shortest) = made.as_ref().err().and_then(Error::shortest_ttl) else {
            self.shortest = made.is_ok().then_some(SHORTEST_TTL);
            return made;
        };
        self.shortest = Some(shortest);
        request.ttl = Some(shortest);
        client.create_session(&request).await
    }
}

/// Returns operations that create a key if it does not exist, write it and delete it, all in one transaction.
fn writes(key: &str) -> [Op; 3] {
    let key = || key.to_owned();
    [
        Op::Cas {
            key: key(),
            value: Vec::new(),
            flags: 0,
            index: 0,
        },
        Op::Set {
            key: key(),
            value: Vec::new(),
            flags: 0,
        },
        Op::Delete { key: key() },
    ]
}

/// Returns operations that lock, unlock and delete a key, all in one transaction.
fn locks(key: &str, session: &SessionId) -> [Op; 3] {
    let key = || key.to_owned();
    [
        Op::Lock {
            key: key(),
            value: Vec::new(),
            flags: 0,
            session: session.clone(),
        },
        Op::Unlock {
            key: key(),
            value: Vec::new(),
            flags: 0,
            session: session.clone(),
        },
        Op::Delete { key: key() },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use consul_client::Config;

    /// A semaphore with its own token has its own scratch session.
    #[test]
    fn each_scratch_session_is_ended_for_itself() {
        let client = Client::new(Config::default()).unwrap();
        let scratch = Scratch::default();
        for name in ["one", "two"] {
            scratch.0.lock().push(ScratchSession {
                client: client.clone(),
                node: "node".to_owned(),
                name: session_name(name),
            });
        }
        scratch.forget(&session_name("two"));
        let left: Vec<_> = scratch
            .0
            .lock()
            .iter()
            .map(|left| left.name.clone())
            .collect();
        assert_eq!(left, [session_name("one")]);
    }
}
