//! What the observer sees of a semaphore in Consul, read by its documentation alone.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use serde_json::Value;

use crate::{
    Uid,
    lock::{MUTEX_FLAGS, SEMAPHORE_FLAGS},
};
use consul_client::{Entry, SessionId};

/// `.lock`, as a reader knows it from its documentation alone.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) limit: u32,
    pub(super) holders: Vec<SessionId>,
    /// Everything else that must stay unchanged: the other fields, and whether `Holders` is an array.
    pub(super) rest: (Value, bool),
}

thread_local! {
    /// The bodies that were read before, because the same ones come again and again.
    static READ: RefCell<HashMap<Vec<u8>, Option<Arc<Body>>>> = RefCell::default();
}

impl Body {
    /// Reads a value; `None` if it is not a semaphore's.
    pub(super) fn read(value: &[u8]) -> Option<Arc<Self>> {
        READ.with_borrow_mut(|read| {
            if let Some(known) = read.get(value) {
                return known.clone();
            }
            let body = Self::parse(value).map(Arc::new);
            read.insert(value.to_vec(), body.clone());
            body
        })
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(value).ok()?;
        let limit = value.get("Limit")?.as_u64().filter(|limit| *limit > 0)?;
        let holders: Vec<SessionId> = match value.get("Holders") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Object(map)) => map.keys().map(|name| name.as_str().into()).collect(),
            Some(Value::Array(list)) => {
                let names = list.iter().map(|name| name.as_str().map(Into::into));
                names.collect::<Option<_>>()?
            }
            Some(_) => return None,
        };
        let session =
            |holder: &SessionId| !holder.as_str().is_empty() && !holder.as_str().contains('/');
        holders.iter().all(session).then_some(())?;
        let array = value.get("Holders").is_some_and(Value::is_array);
        let mut rest = value;
        let fields = rest.as_object_mut()?;
        fields.remove("Limit");
        fields.remove("Holders");
        Some(Self {
            limit: u32::try_from(limit).ok()?,
            holders,
            rest: (rest, array),
        })
    }

    /// The body that would list this session as the holder of a mutex.
    pub(super) fn of_mutex(session: impl Into<Option<SessionId>>) -> Self {
        Self {
            limit: 1,
            holders: session.into().into_iter().collect(),
            rest: (Value::Null, false),
        }
    }

    /// How many may hold.
    pub(super) fn limit(&self) -> usize {
        usize::try_from(self.limit).expect("it fits")
    }

    pub(super) fn holds(&self, session: &SessionId) -> bool {
        self.holders.contains(session)
    }
}

/// The prefix at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    pub(super) lock: Option<Entry>,
    /// `.lock`, if it is a semaphore's.
    pub(super) body: Option<Arc<Body>>,
    /// The live contenders, with the workload's uid where it is ours.
    pub(super) contenders: BTreeMap<SessionId, Option<Uid>>,
    misused: bool,
}

impl Sight {
    pub(super) fn new(lock: Option<Entry>, contenders: BTreeMap<SessionId, Option<Uid>>) -> Self {
        let usable = lock.as_ref().filter(|lock| is_usable(lock));
        let body = usable.and_then(|lock| Body::read(&lock.value));
        let new = usable.is_some_and(|lock| lock.value.is_empty());
        Self {
            misused: lock.is_some() && body.is_none() && !new,
            body,
            lock,
            contenders,
        }
    }

    /// The prefix of a mutex at one moment: the session that has locked the key is the only holder, and the limit is
    /// one. `uid` is that of the holder's workload, where it is ours.
    pub(super) fn of_mutex(lock: Option<Entry>, uid: Option<Uid>) -> Self {
        let holder = lock.as_ref().and_then(|lock| lock.session.clone());
        let usable = lock.as_ref().is_none_or(is_usable_as_mutex);
        let body = usable.then(|| Body::of_mutex(holder.clone()));
        Self {
            body: body.map(Arc::new),
            contenders: holder.map(|holder| (holder, uid)).into_iter().collect(),
            misused: !usable,
            lock,
        }
    }

    /// Whether `.lock` is used for something else: for a semaphore, it neither has a semaphore's body nor waits for
    /// its first one.
    pub(super) fn is_misused(&self) -> bool {
        self.misused
    }

    /// The holders of slots: in `Holders`, with a live contender.
    pub(super) fn holding(&self) -> impl Iterator<Item = (&SessionId, Option<&Uid>)> {
        let live = self.contenders.iter();
        let held = |session: &SessionId| self.body.as_ref().is_some_and(|b| b.holds(session));
        live.filter(move |(session, _)| held(session))
            .map(|(session, uid)| (session, uid.as_ref()))
    }

    /// The sessions that hold a workload's slots.
    pub(super) fn held_by(&self, uid: &Uid) -> BTreeSet<&SessionId> {
        let own = self.holding().filter(|(_, of)| *of == Some(uid));
        own.map(|(session, _)| session).collect()
    }

    /// The workloads that hold a slot.
    pub(super) fn workloads(&self) -> BTreeSet<Uid> {
        self.holding().filter_map(|(_, uid)| uid.cloned()).collect()
    }

    pub(super) fn dead_holders(&self) -> BTreeSet<SessionId> {
        let holders = self.body.iter().flat_map(|body| &body.holders);
        let dead = holders.filter(|holder| !self.contenders.contains_key(holder));
        dead.cloned().collect()
    }
}

/// Whether flags and lock make every client take the key for a semaphore's.
fn is_usable(lock: &Entry) -> bool {
    (lock.flags == 0 || lock.flags == SEMAPHORE_FLAGS) && lock.session.is_none()
}

/// Whether the key can be a mutex: its flags allow it, and so does its value, unless a session has locked it.
fn is_usable_as_mutex(lock: &Entry) -> bool {
    let of_semaphore = || {
        let value: Option<Value> = serde_json::from_slice(&lock.value).ok();
        value.is_some_and(|v| v.get("Limit").is_some() || v.get("Holders").is_some())
    };
    match lock.flags {
        MUTEX_FLAGS => true,
        0 if lock.session.is_some() || lock.value.is_empty() => true,
        0 => lock.lock_index > 0 && !of_semaphore(),
        _ => false,
    }
}
