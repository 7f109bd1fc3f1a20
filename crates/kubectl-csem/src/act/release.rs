//! The command `release`. It takes a slot from its holder by ending the holder's session in Consul. The operator can't
//! be asked to do that, so the command calls Consul with the user's own token.

use std::{
    env,
    io::{self, Write as _},
};

use consul_client::{
    self as consul, Client, Config, Listing, Scope, Session, SessionId, text::one_line,
};
use consul_semaphore::{ContenderBody, Identity, Prefix, Reading, identity::NONE};
use consul_semaphore::{Key, KindName, Mode};
use consul_semaphore_api::ConsulSemaphore;
use consul_semaphore_workload::Object;

use crate::{
    cluster::ClusterClient,
    failure::{Failure, FailureKind},
    terminal,
    view::release::{SessionOwner, SlotToRelease, consequences},
    workload_name::WorkloadName,
};

pub(crate) async fn release(
    cluster: &ClusterClient,
    name: &str,
    holder_named: &str,
    yes: bool,
) -> Result<(), Failure> {
    let (_, semaphore) = cluster.readable(name).await?;
    let consul = client(&semaphore)?;
    let prefix = semaphore.prefix();
    let listing = consul
        .list(&prefix.folder())
        .await
        .map_err(|error| explain(error, &semaphore))?;
    let mut session: SessionId = holder_named.into();
    let mut role = locate(&semaphore, listing.clone(), &session);
    let mut workload = None;
    if role == SessionRole::Absent
        && let Some((named, found)) = workload_named(cluster, holder_named).await?
    {
        session = session_of(&semaphore, listing.clone(), name, (&named, &found))?;
        role = locate(&semaphore, listing, &session);
        workload = Some((named, found));
    }
    let (key, body) = match role {
        SessionRole::Holds { key, body } => (key, body),
        SessionRole::Waits => {
            return Err(Failure::impossible(format!(
                "the session {session} only waits for a slot of {name}"
            )));
        }
        SessionRole::Dead => {
            return Err(Failure::impossible(format!(
                "the session {session} is already dead: its slot is free after the lock-delay"
            )));
        }
        SessionRole::Absent => {
            return Err(Failure::not_there(format!(
                "the session {session} has no slot of {name}: Consul at {} has none below {prefix}/. \
                 `kubectl csem show {name}` lists the holders. If it lists this session, the operator uses \
                 another Consul",
                address()
            )));
        }
    };
    // A user who may not read sessions still sees what the holder has written.
    let known = match consul.session(&session).await {
        Ok(known) => known,
        Err(consul::Error::Denied(_)) => None,
        Err(error) => return Err(explain(error, &semaphore)),
    };
    let claim = claim(body.as_deref(), known.as_ref());
    if let Some((named, found)) = &workload
        && claim.as_ref().map(|claim| Some(&claim.uid)) != Ok(found.metadata.uid.as_ref())
    {
        return Err(Failure::impossible(format!(
            "not released: the session {session} does not belong to the {}, although its entry in Consul says so. To \
             release the slot anyway, give the session instead of the name",
            named.title()
        )));
    }
    let rest = match (semaphore.spec.mode.stored(), &known) {
        (Mode::Mutex, Some(known)) => known.lock_delay,
        (Mode::Mutex, None) | (Mode::Semaphore, _) => semaphore.spec.session.lock_delay.get(),
    };
    let key = key.map_or_else(String::new, |key| format!(", key {key}"));
    let holding = SlotToRelease {
        semaphore: format!("{}/{name}{key}", cluster.namespace),
        session: session.to_string(),
        consul: address(),
        mode: semaphore.spec.mode.stored(),
        rest,
        holder: holder(cluster, name, &semaphore, claim).await?,
    };
    terminal::message(&consequences(&holding));
    if !yes && !confirmed()? {
        return Err(Failure::impossible("not released: the answer was not yes"));
    }
    if !yes {
        // The user took time to answer. Meanwhile the holder may have given the slot back and used the session for
        // something else.
        let listing = consul
            .list(&prefix.folder())
            .await
            .map_err(|error| explain(error, &semaphore))?;
        if !matches!(
            locate(&semaphore, listing, &session),
            SessionRole::Holds { .. }
        ) {
            return Err(Failure::impossible(format!(
                "not released: the session {session} has released its slot of {name} in the meantime"
            )));
        }
    }
    let done = consul.destroy_session(&session).await;
    done.map_err(|error| explain(error, &semaphore))?;
    terminal::write(&format!(
        "session {session} destroyed: its slot of {name} is released\n"
    ))
}

/// Returns a client for Consul from the user's environment, scoped to the datacenter, namespace and partition of the
/// semaphore.
fn client(semaphore: &ConsulSemaphore) -> Result<Client, Failure> {
    let config = Config::from_env().map_err(|error| Failure::impossible(error.to_string()))?;
    let client = Client::new(config).map_err(|error| Failure::impossible(error.to_string()))?;
    let consul = semaphore.spec.consul.clone().unwrap_or_default();
    Ok(client.scoped(Scope {
        datacenter: consul.datacenter,
        namespace: consul.namespace,
        partition: consul.partition,
    }))
}

/// Environment variable with the address of Consul.
const ADDRESS_VARIABLE: &str = "CONSUL_HTTP_ADDR";

fn address() -> String {
    env::var(ADDRESS_VARIABLE)
        .ok()
        .filter(|address| !address.is_empty())
        .unwrap_or_else(|| "http://127.0.0.1:8500".to_owned())
}

/// Returns the error together with what this command needs.
fn explain(error: consul::Error, semaphore: &ConsulSemaphore) -> Failure {
    let mut failure = Failure::from(error);
    let more = match failure.kind {
        FailureKind::Denied => format!(
            "the token in CONSUL_HTTP_TOKEN needs key read on {}/ and session write on the \
             session's node",
            semaphore.prefix()
        ),
        FailureKind::Away
            if env::var_os(ADDRESS_VARIABLE).is_none_or(|address| address.is_empty()) =>
        {
            format!("this command calls Consul itself: set {ADDRESS_VARIABLE} to its address")
        }
        _ => return failure,
    };
    failure.message = format!("{}; {more}", failure.message);
    failure
}

/// The role of a session in a semaphore.
#[derive(Debug, PartialEq, Eq)]
enum SessionRole {
    /// The session holds a slot. `body` is the body of its contender, if there is one.
    Holds {
        key: Option<Key>,
        body: Option<Box<ContenderBody>>,
    },
    /// The session takes part in the semaphore but holds no slot.
    Waits,
    /// The session is listed as a holder but has ended.
    Dead,
    /// The session is not part of the semaphore, and may belong to anything.
    Absent,
}

/// Returns the role of a session below the prefix. The operator's own parser reads the listing.
fn locate(semaphore: &ConsulSemaphore, listing: Listing, session: &SessionId) -> SessionRole {
    let prefix = semaphore.prefix();
    for (key, prefix, part) in parts(&prefix, semaphore.spec.keyed, listing) {
        let reading = Reading::new(prefix, semaphore.spec.mode.stored(), part);
        if reading.holds(session) {
            let body = reading
                .contender(session)
                .and_then(|entry| ContenderBody::read(&entry.value))
                .map(Box::new);
            return SessionRole::Holds { key, body };
        }
        if reading.contender(session).is_some() {
            return SessionRole::Waits;
        }
        if reading.is_named(session) {
            return SessionRole::Dead;
        }
    }
    SessionRole::Absent
}

/// Returns the workload of the namespace with this name; `None` if there is none, if the user may not read it, or if
/// the text can't be the name of a workload.
async fn workload_named(
    cluster: &ClusterClient,
    text: &str,
) -> Result<Option<(WorkloadName, Object)>, Failure> {
    let named = match WorkloadName::parse(text) {
        Ok(named) => named,
        // The text can't be a session, because the id of a session has no slash.
        Err(error) if text.contains('/') => return Err(Failure::impossible(error)),
        Err(_) => return Ok(None),
    };
    match cluster.workload(&named).await {
        Ok(object) => Ok(Some((named, object))),
        Err(failure) if matches!(failure.kind, FailureKind::NotThere | FailureKind::Denied) => {
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// Returns the session that holds a slot for a workload, according to its contender.
fn session_of(
    semaphore: &ConsulSemaphore,
    listing: Listing,
    name: &str,
    (named, found): (&WorkloadName, &Object),
) -> Result<SessionId, Failure> {
    let title = named.title();
    let uid = found.metadata.uid.as_deref().unwrap_or_default();
    let prefix = semaphore.prefix();
    let mut sessions = Vec::new();
    for (_, prefix, part) in parts(&prefix, semaphore.spec.keyed, listing) {
        let reading = Reading::new(prefix, semaphore.spec.mode.stored(), part);
        let holders = reading.contenders().filter(|(session, entry)| {
            let body = ContenderBody::read(&entry.value);
            reading.holds(session) && body.is_some_and(|body| body.uid == uid)
        });
        sessions.extend(holders.map(|(session, _)| session.clone()));
    }
    match sessions.as_slice() {
        [] => Err(Failure::not_there(format!(
            "the {title} holds no slot of {name}: Consul at {} has none below {prefix}/",
            address()
        ))),
        [session] => Ok(session.clone()),
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            Err(Failure::impossible(format!(
                "the {title} holds several slots of {name}: name one of its sessions, {}",
                several.join(", ")
            )))
        }
    }
}

/// Splits the listing by lock key.
fn parts(prefix: &Prefix, keyed: bool, listing: Listing) -> Vec<(Option<Key>, Prefix, Listing)> {
    if !keyed {
        return vec![(None, prefix.clone(), listing)];
    }
    let folder = prefix.folder();
    let parts = listing.split(|entry| {
        let (segment, _) = entry.key.strip_prefix(&folder)?.split_once('/')?;
        segment.parse::<Key>().ok()
    });
    parts
        .into_iter()
        .map(|(key, listing)| {
            let prefix = prefix.of_key(&key);
            (Some(key), prefix, listing)
        })
        .collect()
}

/// The workload or program for which a holder's session was made.
#[derive(Debug)]
struct SessionClaim {
    /// Name of the cluster, or its id if the holder has not written a name.
    cluster: String,
    namespace: String,
    kind: KindName,
    name: String,
    uid: String,
    semaphore: String,
}

/// Returns foreign text in a form that is safe in a warning, because it can't fake a line or control the terminal.
fn clean(text: &str) -> String {
    one_line(text, 200)
}

/// Returns what the session was made for. The name of the session proves that; if it can't be read, the contender's
/// body is used. The error is a holder that is neither a workload nor a command of `exec`.
fn claim(
    body: Option<&ContenderBody>,
    known: Option<&Session>,
) -> Result<SessionClaim, SessionOwner> {
    let Some(known) = known else {
        let body =
            body.ok_or_else(|| SessionOwner::Program("its session is unknown".to_owned()))?;
        return Ok(SessionClaim {
            cluster: clean(&body.cluster),
            namespace: clean(&body.namespace),
            kind: clean(&body.kind).as_str().into(),
            name: clean(&body.name),
            uid: clean(&body.uid),
            semaphore: clean(&body.semaphore),
        });
    };
    let Some(identity) = Identity::parse(&known.name) else {
        let name = if known.name.is_empty() {
            "a session without a name"
        } else {
            &known.name
        };
        let program = clean(&format!("{name} on {}", known.node));
        return Err(SessionOwner::Program(program));
    };
    let cluster = body.map_or(&*identity.cluster, |body| &body.cluster);
    Ok(SessionClaim {
        cluster: clean(cluster),
        namespace: clean(&identity.namespace),
        kind: clean(identity.kind.as_str()).as_str().into(),
        name: clean(&identity.workload),
        uid: clean(identity.uid.as_ref()),
        semaphore: clean(&identity.semaphore),
    })
}

/// Returns the owner of the holder's session, with its phase if it is a workload of this cluster.
async fn holder(
    cluster: &ClusterClient,
    name: &str,
    semaphore: &ConsulSemaphore,
    claim: Result<SessionClaim, SessionOwner>,
) -> Result<SessionOwner, Failure> {
    let claim = match claim {
        Ok(claim) => claim,
        Err(holder) => return Ok(holder),
    };
    if claim.namespace == NONE && claim.kind.unusual().is_some() {
        // The holder is a program that holds its slots itself.
        return Ok(SessionOwner::Program(format!(
            "{} on {}",
            claim.name, claim.cluster
        )));
    }
    if claim.namespace == NONE {
        return Ok(SessionOwner::Process {
            host: claim.cluster,
            command: claim.name,
        });
    }
    let title = format!("{} {}/{}", claim.kind, claim.namespace, claim.name);
    let unseen = |cluster| SessionOwner::Unseen {
        cluster,
        workload: title.clone(),
    };
    let Some(named) = WorkloadName::of(&claim.kind, &claim.name) else {
        return Ok(unseen(claim.cluster));
    };
    // The workload may be in another namespace, because semaphores of several namespaces can share a prefix.
    let there = cluster.at(&claim.namespace);
    let found = match there.workload(&named).await {
        Ok(found) => Some(found),
        Err(failure)
            if matches!(
                failure.kind,
                FailureKind::NotThere | FailureKind::NotInstalled
            ) =>
        {
            None
        }
        Err(failure) if failure.kind == FailureKind::Denied => return Ok(unseen(claim.cluster)),
        Err(failure) => return Err(failure),
    };
    let Some(found) = found.filter(|found| found.metadata.uid.as_ref() == Some(&claim.uid)) else {
        return Ok(SessionOwner::Elsewhere {
            cluster: claim.cluster,
            workload: title,
        });
    };
    // The setting comes from the semaphore through which the workload got its slot.
    let on_slot_lost = if (&*claim.namespace, &*claim.semaphore) == (&*cluster.namespace, name) {
        Some(semaphore.spec.on_slot_lost)
    } else {
        match there.readable(&claim.semaphore).await {
            Ok((_, semaphore)) => Some(semaphore.spec.on_slot_lost),
            Err(failure) if matches!(failure.kind, FailureKind::NotThere | FailureKind::Denied) => {
                None
            }
            Err(failure) => return Err(failure),
        }
    };
    let workload = named.tracked(&found)?;
    Ok(SessionOwner::Workload {
        namespace: claim.namespace,
        phase: named.phase(&found)?,
        can_be_suspended: workload.is_none_or(|read| read.workload.traits.can_be_suspended),
        named,
        on_slot_lost,
    })
}

/// Asks for confirmation and returns whether the answer was `yes`. The end of the input is an error.
fn confirmed() -> Result<bool, Failure> {
    let failed =
        |error: io::Error| Failure::impossible(format!("can't ask for confirmation: {error}"));
    let mut asking = io::stderr();
    write!(asking, "Release it? Type yes: ").map_err(failed)?;
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer).map_err(failed)?;
    if read == 0 {
        let message = "not released: there was no answer. --yes skips the question";
        return Err(Failure::impossible(message));
    }
    Ok(answer.trim() == "yes")
}

#[cfg(test)]
mod tests {
    use consul_client::{Entry, clock::Moment};
    use consul_semaphore::lock::SEMAPHORE_FLAGS;
    use serde_json::{from_value, json};

    use super::*;

    fn semaphore(keyed: bool, mode: &str) -> ConsulSemaphore {
        let semaphore = json!({
            "apiVersion": "consul-semaphore.io/v1alpha1",
            "kind": "ConsulSemaphore",
            "metadata": { "name": "db", "namespace": "batch" },
            "spec": { "limit": 1, "prefix": "p", "keyed": keyed, "mode": mode },
        });
        from_value(semaphore).unwrap()
    }

    /// The flags of `api.Lock` and of every program that shares a mutex with it.
    const MUTEX_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

    fn entry(key: &str, value: &str, session: Option<&str>, flags: u64) -> Entry {
        Entry {
            key: key.to_owned(),
            value: value.as_bytes().to_vec(),
            flags,
            session: session.map(Into::into),
            lock_index: 1,
            create_index: 1,
            modify_index: 1,
        }
    }

    fn listing(entries: Vec<Entry>) -> Listing {
        Listing {
            entries: entries.into(),
            index: 1,
            sent: Moment::default(),
            reset: false,
        }
    }

    fn at(prefix: &str) -> Vec<Entry> {
        let lock = r#"{"Limit":2,"Holders":{"holds":true,"dead":true}}"#;
        vec![
            entry(&format!("{prefix}/.lock"), lock, None, SEMAPHORE_FLAGS),
            entry(
                &format!("{prefix}/holds"),
                "{}",
                Some("holds"),
                SEMAPHORE_FLAGS,
            ),
            entry(
                &format!("{prefix}/waits"),
                "{}",
                Some("waits"),
                SEMAPHORE_FLAGS,
            ),
            entry(
                &format!("{prefix}/stray"),
                "{}",
                Some("another"),
                SEMAPHORE_FLAGS,
            ),
        ]
    }

    #[test]
    fn only_who_holds_a_slot_can_be_released() {
        let db = semaphore(false, "Semaphore");
        let role = |session: &str| locate(&db, listing(at("p")), &session.into());
        let holds = SessionRole::Holds {
            key: None,
            body: None,
        };
        assert_eq!(role("holds"), holds);
        assert_eq!(role("waits"), SessionRole::Waits);
        assert_eq!(role("dead"), SessionRole::Dead);
        for session in ["another", "stray", ".lock", "nobody", ""] {
            assert_eq!(role(session), SessionRole::Absent, "{session}");
        }
    }

    #[test]
    fn of_a_keyed_one_it_is_found_below_its_key() {
        let db = semaphore(true, "Semaphore");
        let mut entries = at("p/k2");
        entries.extend(at("p"));
        let role = |session: &str| locate(&db, listing(entries.clone()), &session.into());
        let held = role("holds");
        assert!(matches!(held, SessionRole::Holds { key: Some(key), .. } if key.as_ref() == "k2"));
        assert_eq!(role("nobody"), SessionRole::Absent);
    }

    #[test]
    fn the_holder_of_a_mutex_has_locked_its_key() {
        let db = semaphore(false, "Mutex");
        let locked = listing(vec![entry("p/.lock", "{}", Some("holds"), MUTEX_FLAGS)]);
        assert!(matches!(
            locate(&db, locked.clone(), &"holds".into()),
            SessionRole::Holds { .. }
        ));
        assert_eq!(locate(&db, locked, &"other".into()), SessionRole::Absent);
    }

    #[test]
    fn the_session_of_a_job_is_the_one_that_holds_for_it() {
        let db = semaphore(false, "Semaphore");
        let named = WorkloadName::parse("migrate-1").unwrap();
        let job: Object =
            serde_json::from_str(r#"{ "metadata": { "name": "migrate-1", "uid": "u-1" } }"#)
                .unwrap();
        let body = serde_json::to_string(&body("prod-eu", "migrate-1")).unwrap();
        let with = |key: &str| {
            let mut entries = at("p");
            entries.retain(|entry| entry.key != format!("p/{key}"));
            entries.push(entry(
                &format!("p/{key}"),
                &body,
                Some(key),
                SEMAPHORE_FLAGS,
            ));
            session_of(&db, listing(entries), "db", (&named, &job))
        };
        assert_eq!(with("holds").unwrap(), "holds".into());
        let waits = with("waits").unwrap_err();
        assert_eq!(waits.kind, FailureKind::NotThere);
        assert!(waits.message.contains("holds no slot of db"), "{waits:?}");
    }

    fn session(name: &str) -> Session {
        from_value(json!({ "ID": "s", "Name": name, "Node": "web-1", "CreateIndex": 1 })).unwrap()
    }

    fn body(cluster: &str, job: &str) -> ContenderBody {
        let body = json!({
            "cluster": cluster, "clusterId": "id", "kind": "Job", "namespace": "batch", "name": job,
            "uid": "u-1", "semaphore": "db", "time": "2026-01-01T00:00:00Z",
        });
        from_value(body).unwrap()
    }

    #[test]
    fn the_sessions_name_goes_before_what_the_holder_says() {
        let forged = body("prod-eu", "forged");
        let made_for = session("consul-semaphore-operator/id/batch/db/migrate-1/u-1");
        let claim_of = |body: Option<&ContenderBody>, known: Option<&Session>| {
            let claim = claim(body, known).unwrap();
            (claim.cluster, claim.name)
        };
        let proved = ("prod-eu".to_owned(), "migrate-1".to_owned());
        assert_eq!(claim_of(Some(&forged), Some(&made_for)), proved);
        assert_eq!(
            claim_of(None, Some(&made_for)),
            ("id".to_owned(), "migrate-1".to_owned())
        );
        assert_eq!(claim_of(Some(&forged), None).1, "forged");
        let wipes = session("\u{1b}[2J\nall is safe");
        let cleaned = SessionOwner::Program(" [2J all is safe on web-1".to_owned());
        assert_eq!(claim(None, Some(&wipes)).unwrap_err(), cleaned);
        let moved = body("\u{1b}[H", "a\nb");
        assert_eq!(
            claim_of(Some(&moved), None),
            (" [H".to_owned(), "a b".to_owned())
        );
        let others = session("Consul API Semaphore");
        let named = SessionOwner::Program("Consul API Semaphore on web-1".to_owned());
        assert_eq!(claim(Some(&forged), Some(&others)).unwrap_err(), named);
    }
}
