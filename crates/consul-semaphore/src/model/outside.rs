//! Everything outside the operator, which outlives it: Consul, the API server, and the observer of both.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;

use super::{
    canon::Canon,
    consul::{Consul, Refused},
    observer::{Observer, Written},
    requests::{Answer, Patch},
    sight::{Body, Sight},
    workloads::Workloads,
};
use crate::{Identity, Mode, Settings, Uid, plan::Transaction};
use consul_client::{Entry, Op, SessionId, clock::Moment};

/// What happens to the operator's calls to Consul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    There,
    /// The calls fail.
    Away,
    /// The calls hang: nothing shows that Consul is unreachable.
    Silent,
}

/// Everything that outlives the operator.
#[derive(Clone)]
pub(super) struct Outside {
    pub(super) consul: Consul,
    pub(super) workloads: Workloads,
    /// The spec of the `ConsulSemaphore`.
    pub(super) settings: Arc<Settings>,
    /// How often the spec of the `ConsulSemaphore` has changed.
    pub(super) generation: u64,
    /// The `status.appliedLimits` of the `ConsulSemaphore`.
    pub(super) applied: Vec<u32>,
    /// Whether the `ConsulSemaphore` has our finalizer.
    pub(super) finalizer: bool,
    /// How many operations Consul takes in a transaction. Its servers may be replaced by others.
    pub(super) operations: usize,
    /// Whether sessions end when they are not renewed.
    pub(super) timed: bool,
    /// When each session with a TTL was last renewed.
    pub(super) renewed: BTreeMap<SessionId, Moment>,
    /// Whether the operator can reach Consul.
    pub(super) reach: Reach,
    /// Whether requests for pods get no answer.
    pub(super) pods_hidden: bool,
    /// Seconds since the start.
    pub(super) seconds: u64,
    /// The workloads in the order in which they were started.
    pub(super) started: Vec<Uid>,
    /// The operator's transactions that have not reached Consul yet, with their generations. Nobody waits for their
    /// answers.
    pub(super) late: Vec<(Transaction, u64)>,
    pub(super) observer: Observer,
}

impl Outside {
    pub(super) fn new(settings: Settings, operations: usize) -> Self {
        Self {
            consul: Consul::default(),
            workloads: Workloads::default(),
            settings: Arc::new(settings),
            generation: 1,
            applied: Vec::new(),
            finalizer: false,
            operations,
            timed: false,
            renewed: BTreeMap::new(),
            reach: Reach::There,
            pods_hidden: false,
            seconds: 0,
            started: Vec::new(),
            late: Vec::new(),
            observer: Observer::default(),
        }
    }

    pub(super) fn now(&self) -> Moment {
        Moment::from_boot(Duration::from_secs(self.seconds))
    }

    /// All of its state that counts, except Consul's.
    pub(super) fn trace(&self, canon: &mut Canon<'_>) {
        self.workloads.trace(canon);
        canon.word(&(&self.applied, self.generation));
    }

    /// Whether a session is in `Holders`, dead or alive.
    pub(super) fn is_in_holders(&self, session: &SessionId) -> bool {
        let lock = self.consul.get(&self.settings.prefix.lock_key());
        let body = lock.and_then(|lock| Body::read(&lock.value));
        body.is_some_and(|body| body.holds(session))
    }

    /// Whether the operator can't reach Consul.
    pub(super) fn is_away(&self) -> bool {
        self.reach != Reach::There
    }

    /// The spec, to change it.
    pub(super) fn spec(&mut self) -> &mut Settings {
        Arc::make_mut(&mut self.settings)
    }

    /// The identity in a session's name, if it is one of this operator's.
    pub(super) fn identity(&self, session: &SessionId) -> Option<&Identity> {
        let identity = self.consul.identity(session)?;
        self.settings.owns(identity).then_some(identity)
    }

    /// The prefix as it is now.
    pub(super) fn sight(&self) -> Sight {
        let prefix = &self.settings.prefix;
        let lock = self.consul.get(&prefix.lock_key()).cloned();
        if self.settings.mode == Mode::Mutex {
            let holder = lock.as_ref().and_then(|lock| lock.session.as_ref());
            let identity = holder.and_then(|holder| self.identity(holder));
            let uid = identity.map(|identity| identity.uid.clone());
            return Sight::of_mutex(lock, uid);
        }
        let contenders = self.consul.below(prefix).filter_map(|entry| {
            let session = entry.session.clone()?;
            let name = entry.key.strip_prefix(prefix.as_str())?;
            (name.strip_prefix('/') == Some(session.as_str())).then_some(())?;
            let uid = self.identity(&session).map(|identity| identity.uid.clone());
            Some((session, uid))
        });
        Sight::new(lock, contenders.collect())
    }

    /// The status records limits as the operator's.
    pub(super) fn record(&mut self, limits: Vec<u32>) {
        self.observer.recorded(&limits);
        self.applied = limits;
    }

    /// The finalizer is added, or removed.
    pub(super) fn set_finalizer(&mut self, added: bool) {
        let left = self.sight().workloads();
        assert!(added || left.is_empty(), "let go while {left:?} hold");
        assert!(added || self.settings.terminating, "let go too early");
        // Then the object is deleted, too.
        self.finalizer = added && !self.is_gone();
    }

    /// Whether the semaphore has been deleted, and its finalizer removed.
    pub(super) fn is_gone(&self) -> bool {
        self.settings.terminating && !self.finalizer
    }

    /// Lets anything but the operator happen.
    pub(super) fn by_others(&mut self, happens: impl FnOnce(&mut Self)) {
        let before = self.sight();
        happens(self);
        let (after, now) = (self.sight(), self.now());
        self.observer.others_acted(&before, &after, now);
        self.look();
    }

    fn look(&mut self) {
        let (sight, now) = (self.sight(), self.now());
        self.observer
            .look(&sight, &self.workloads, &self.settings, now);
    }

    /// A transaction of the operator's, decided on this generation of the spec.
    pub(super) fn transact(
        &mut self,
        transaction: &Transaction,
        generation: u64,
    ) -> Result<Vec<Entry>, Refused> {
        self.arrive(transaction, generation, false)
    }

    fn arrive(
        &mut self,
        transaction: &Transaction,
        generation: u64,
        late: bool,
    ) -> Result<Vec<Entry>, Refused> {
        let operations = &transaction.operations;
        assert!(!operations.is_empty(), "nothing to write");
        if operations.len() > self.operations {
            return Err(Refused::TooLarge);
        }
        let before = self.sight();
        let answer = self.consul.transact(operations)?;
        let written = Written {
            transaction,
            generation,
            late,
            index: self.consul.index(),
            before,
            after: self.sight(),
            workloads: &self.workloads,
            settings: &self.settings,
            applied: &self.applied,
            now: self.now(),
        };
        self.observer.wrote(&written);
        self.look();
        Ok(answer)
    }

    /// A transaction that nobody waits for any more reaches Consul.
    pub(super) fn land(&mut self) {
        if let Some((transaction, generation)) = self.late.pop() {
            // It may well be refused.
            let _answer = self.arrive(&transaction, generation, true);
            if transaction.limit.is_some() {
                self.observer.forget_enforcements();
            }
        }
    }

    /// A PATCH of the operator's, decided on a reading from that time.
    pub(super) fn patch(&mut self, patch: &Patch, read: Moment, favoured: bool) -> Answer {
        let answer = self.workloads.patch(patch, favoured);
        if let (Answer::Done, Patch::Start(start)) = (answer, patch) {
            let (settings, now) = (self.settings.clone(), self.now());
            self.observer
                .started(start, &self.sight(), read, (&settings, now));
            self.started.push(start.workload.uid.clone());
        }
        if let (Answer::Done, Patch::GiveBack(give_back)) = (answer, patch) {
            for session in &give_back.sessions {
                self.observer.gave_back(session);
            }
        }
        if let (Answer::Done, Patch::Skip(skip)) = (answer, patch) {
            self.observer.skipped(&skip.workload.uid);
        }
        if let (Answer::Done, Patch::Fail(fail)) = (answer, patch) {
            self.observer.failed(fail, &self.sight(), read, favoured);
        }
        self.look();
        answer
    }

    /// The operator destroys a session.
    pub(super) fn destroy(&mut self, session: &SessionId) {
        self.consul.destroy(session);
        self.look();
    }

    /// Changes the JSON in `.lock` by hand, if there is any.
    pub(super) fn edit_lock(&mut self, edit: impl FnOnce(&mut Value)) {
        let Some(lock) = self.sight().lock else {
            return;
        };
        if let Ok(mut value) = serde_json::from_slice::<Value>(&lock.value) {
            edit(&mut value);
            let cas = Op::Cas {
                key: lock.key,
                value: value.to_string().into_bytes(),
                flags: lock.flags,
                index: lock.modify_index,
            };
            let _always_fits = self.consul.transact(&[cas]);
        }
    }
}
