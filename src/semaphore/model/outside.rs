//! What is outside of the operator: Consul, the API server, and an observer of both that shares
//! nothing with the algorithm and knows the rules from the documentation.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    consul::Consul,
    jobs::{Jobs, Patch},
};
use crate::{
    clock::Moment,
    consul::{Entry, Op, SessionId},
    semaphore::{
        Identity, LimitPolicy, Settings, Uid,
        limit::ENFORCEMENTS,
        lock::SEMAPHORE_FLAGS,
        plan::{Start, Transaction},
    },
};

/// `.lock`, as whoever knows only its documentation reads it.
pub(super) struct Body {
    pub(super) limit: usize,
    pub(super) holders: Vec<String>,
}

impl Body {
    /// Reads an entry; `None` if that is not a semaphore's.
    pub(super) fn read(entry: &Entry) -> Option<Self> {
        let flags = entry.flags == 0 || entry.flags == SEMAPHORE_FLAGS;
        let value: Value = serde_json::from_slice(&entry.value).ok()?;
        let limit = value.get("Limit")?.as_u64()?;
        let holders: Vec<String> = match value.get("Holders") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Object(map)) => map.keys().cloned().collect(),
            Some(Value::Array(list)) => {
                let names = list.iter().map(|name| name.as_str().map(str::to_owned));
                names.collect::<Option<_>>()?
            }
            Some(_) => return None,
        };
        let sessions = holders
            .iter()
            .all(|holder| !holder.is_empty() && !holder.contains('/'));
        let usable = flags && entry.session.is_none() && limit > 0 && sessions;
        let limit = u32::try_from(limit).ok().filter(|_| usable)?;
        Some(Self {
            limit: usize::try_from(limit).ok()?,
            holders,
        })
    }
}

/// Whether a `.lock` that is there waits for its first body: every client takes it so.
pub(super) fn is_new(lock: &Entry) -> bool {
    let flags = lock.flags == 0 || lock.flags == SEMAPHORE_FLAGS;
    flags && lock.value.is_empty() && lock.session.is_none()
}

/// Everything that outlives the operator.
pub(super) struct Outside {
    pub(super) consul: Consul,
    pub(super) jobs: Jobs,
    /// The spec of the `ConsulSemaphore`.
    pub(super) settings: Settings,
    /// How often its spec has changed.
    pub(super) generation: u64,
    /// Its `status.appliedLimits`.
    pub(super) applied: Vec<u32>,
    /// How many operations Consul takes in a transaction.
    pub(super) operations: usize,
    /// Seconds since the start.
    pub(super) seconds: u64,
    /// Whether Consul's limit was last written by the operator.
    pub(super) limit_is_ours: bool,
    /// The Jobs in the order in which they were started.
    pub(super) started: Vec<Uid>,
    /// When a slot was last taken from a Job by anything else than the operator. It may have pods
    /// without a slot then, until it is given another one or suspended.
    robbed: BTreeMap<Uid, Moment>,
    /// The raft index at which each session was granted a slot.
    granted: BTreeMap<SessionId, u64>,
    /// How often each generation's limit was enforced.
    enforced: BTreeMap<u64, u32>,
}

impl Outside {
    pub(super) fn new(settings: Settings, operations: usize) -> Self {
        Self {
            consul: Consul::default(),
            jobs: Jobs::default(),
            settings,
            generation: 1,
            applied: Vec::new(),
            operations,
            seconds: 0,
            limit_is_ours: false,
            started: Vec::new(),
            robbed: BTreeMap::new(),
            granted: BTreeMap::new(),
            enforced: BTreeMap::new(),
        }
    }

    pub(super) fn now(&self) -> Moment {
        Moment::from_boot(std::time::Duration::from_secs(self.seconds))
    }

    pub(super) fn lock(&self) -> Option<&Entry> {
        self.consul.get(&self.settings.prefix.lock_key())
    }

    /// `.lock`, if it is a semaphore's.
    pub(super) fn body(&self) -> Option<Body> {
        self.lock().and_then(Body::read)
    }

    /// Whose session it is, if it is one of this operator's.
    pub(super) fn identity(&self, session: &SessionId) -> Option<Identity> {
        let identity = Identity::parse(self.consul.name(session)?)?;
        self.settings.owns(&identity).then_some(identity)
    }

    /// The contenders that live, with the Job's uid where it is ours.
    pub(super) fn contenders(&self) -> BTreeMap<SessionId, Option<Uid>> {
        let live = self.consul.live_sessions().filter(|(session, _)| {
            let key = self.settings.prefix.contender_key(session);
            let entry = self.consul.get(&key);
            entry.is_some_and(|entry| entry.session.as_ref() == Some(session))
        });
        live.map(|(session, _)| {
            let uid = self.identity(session).map(|identity| identity.uid);
            (session.clone(), uid)
        })
        .collect()
    }

    /// The sessions that hold a slot: in `Holders`, with a contender that lives.
    pub(super) fn holding(&self) -> BTreeMap<SessionId, Option<Uid>> {
        let holders = self.body().map_or_else(Vec::new, |body| body.holders);
        let mut holding = self.contenders();
        holding.retain(|session, _| holders.iter().any(|holder| holder == session.as_ref()));
        holding
    }

    fn held_jobs(&self) -> BTreeSet<Uid> {
        self.holding().into_values().flatten().collect()
    }

    /// Lets anything but the operator happen.
    pub(super) fn by_others(&mut self, happens: impl FnOnce(&mut Self)) {
        let limit = |outside: &Self| outside.body().map(|body| body.limit);
        let (held, limit_before) = (self.held_jobs(), limit(self));
        happens(self);
        self.limit_is_ours &= limit(self) == limit_before;
        for uid in held.difference(&self.held_jobs()) {
            self.robbed.insert(uid.clone(), self.now());
        }
        self.check();
    }

    /// A transaction of the operator's: all of the rules on what it may write are checked here.
    pub(super) fn transact(&mut self, transaction: &Transaction) -> Result<Vec<Entry>, usize> {
        let operations = &transaction.operations;
        assert!(!operations.is_empty(), "nothing to write");
        assert!(operations.len() <= self.operations, "too many operations");
        let before = (self.lock().cloned(), self.body(), self.contenders());
        let answer = self.consul.transact(operations)?;
        self.check_written(transaction, before);
        for grant in &transaction.grants {
            let index = self.consul.index();
            self.granted.insert(grant.session.clone(), index);
        }
        self.check();
        Ok(answer)
    }

    fn check_written(
        &mut self,
        transaction: &Transaction,
        before: (
            Option<Entry>,
            Option<Body>,
            BTreeMap<SessionId, Option<Uid>>,
        ),
    ) {
        let (lock, body, contenders) = before;
        let after = self.body();
        let left = self.contenders();

        // What is not understood is never overwritten or deleted; an empty value is a new one.
        if let Some(lock) = lock.as_ref().filter(|lock| body.is_none() && !is_new(lock)) {
            assert_eq!(
                self.lock(),
                Some(lock),
                "overwrote what it does not understand"
            );
        }

        // Nobody else's contender is touched, and no foreign holder that lives is dropped.
        for (session, _) in contenders.iter().filter(|(_, uid)| uid.is_none()) {
            assert!(left.contains_key(session), "deleted a foreign contender");
            let held = |body: &Body| body.holders.iter().any(|h| h == session.as_ref());
            if body.as_ref().is_some_and(held) {
                let held = after.as_ref().is_some_and(held);
                assert!(held, "dropped a foreign holder that lives: {transaction:?}");
            }
        }

        // Where a holder was added there was room for it.
        if let Some(after) = &after {
            let held = body.as_ref().map_or(&[][..], |body| &body.holders);
            let added = after.holders.iter().any(|holder| !held.contains(holder));
            assert!(
                !added || after.holders.len() <= after.limit,
                "more holders than the limit: {transaction:?}"
            );
        }

        let deleted = lock.is_some() && self.lock().is_none();
        if deleted {
            assert!(self.settings.terminating, "deleted the lock");
            assert!(left.is_empty(), "deleted a lock in use");
        }
        self.check_limit(transaction, body.as_ref(), after.as_ref());
    }

    /// The three-way rule: a limit is moved if there was none, if it is ours by the recorded list,
    /// or if the policy says so, and then no more than twice.
    fn check_limit(
        &mut self,
        transaction: &Transaction,
        before: Option<&Body>,
        after: Option<&Body>,
    ) {
        let limit = |body: Option<&Body>| body.and_then(|body| u32::try_from(body.limit).ok());
        let (before, after) = (limit(before), limit(after));
        let Some(written) = after.filter(|_| before != after) else {
            return;
        };
        assert_eq!(transaction.limit, Some(written));
        self.limit_is_ours = true;
        assert!(self.applied.contains(&written), "wrote an unrecorded limit");
        if before.is_some_and(|before| !self.applied.contains(&before)) {
            let policy = self.settings.policy;
            assert_eq!(policy, LimitPolicy::Enforce, "overwrote a foreign limit");
            let times = self.enforced.entry(self.generation).or_default();
            *times += 1;
            assert!(*times <= ENFORCEMENTS, "enforced its limit {times} times");
        }
    }

    /// Memory of how often the limit was enforced is lost with the operator's.
    pub(super) fn forget_enforcements(&mut self) {
        self.enforced.clear();
    }

    /// A PATCH of the operator's, decided on a reading of that time.
    pub(super) fn patch(&mut self, patch: &Patch, read: Moment) -> bool {
        let accepted = self.jobs.patch(patch);
        if let (true, Patch::Start(start)) = (accepted, patch) {
            self.check_start(start, read);
            self.started.push(start.job.uid.clone());
        }
        self.check();
        accepted
    }

    /// A Job is started in a slot that is its own, unless that was taken since it was looked at.
    fn check_start(&self, start: &Start, read: Moment) {
        let uid = &start.job.uid;
        let session = start.slot.session();
        if self.holding().contains_key(session) {
            assert_eq!(self.identity(session).map(|i| i.uid).as_ref(), Some(uid));
            assert_eq!(
                Some(&start.slot.fencing_token()),
                self.granted.get(session),
                "the token is the raft index of the grant"
            );
        } else {
            let robbed = self.robbed.get(uid).is_some_and(|robbed| *robbed >= read);
            assert!(robbed, "{uid} was started without a slot");
        }
    }

    /// The operator destroys a session.
    pub(super) fn destroy(&mut self, session: &SessionId) {
        self.consul.destroy(session);
        self.check();
    }

    /// At every moment: a Job that was started by a grant, or has pods from then, holds a slot,
    /// unless somebody else took it.
    fn check(&mut self) {
        let held = self.held_jobs();
        self.robbed.retain(|uid, _| !held.contains(uid));
        let lock_key = self.settings.prefix.lock_key();
        let started = self.jobs.objects().filter(|object| {
            let granted = object.granted.as_ref();
            granted.is_some_and(|granted| granted.lock_key == lock_key)
                && object.runs()
                && !object.rogue
        });
        let pods = self.jobs.pods().iter().filter(|pod| !pod.rogue);
        let running = started.map(|object| &object.uid);
        for uid in running.chain(pods.map(|pod| &pod.job)) {
            assert!(
                held.contains(uid) || self.robbed.contains_key(uid),
                "{uid} runs without a slot"
            );
        }
    }

    /// The operations that would put this body there by hand.
    pub(super) fn overwrite(&mut self, value: &[u8], flags: u64, session: Option<SessionId>) {
        let key = self.settings.prefix.lock_key();
        self.consul.put(&key, value, flags, session);
    }

    /// Changes `.lock` by hand, as far as it is JSON.
    pub(super) fn edit_lock(&mut self, edit: impl FnOnce(&mut Value)) {
        let Some(lock) = self.lock().cloned() else {
            return;
        };
        if let Ok(mut value) = serde_json::from_slice::<Value>(&lock.value) {
            edit(&mut value);
            let cas = Op::Cas {
                key: lock.key.clone(),
                value: value.to_string().into_bytes(),
                flags: lock.flags,
                index: lock.modify_index,
            };
            let _always_fits = self.consul.transact(&[cas]);
        }
    }
}
