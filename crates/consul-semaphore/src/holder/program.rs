//! Presents the program to the engine: as a workload that only this process starts or stops, with its sessions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    request::{Request, SlotsOf},
    watched::{self, Watched},
};
use crate::{
    Cluster, Key, KindName, LimitPolicy, OnContention, OnSlotLost, Phase, Reading, SessionState,
    Traits, Uid, Wait, Workload,
    engine::{Answer, Lookup, QueueRef, Reach, SemaphoreRef, Stores},
    evidence::LATE,
    holding::Renewal,
    identity, rate, settings,
    turns::WINDOW,
};
use consul_client::{
    Session, SessionId,
    clock::{self, Moment},
};

/// The slots that a [`Holder`](super::Holder) takes, and the way in which it holds them.
#[derive(Clone, Debug)]
pub struct HolderSettings {
    /// The slots to take: the program gets all of them at once, or none.
    pub request: Request,
    /// Priority of the program. Higher priorities are served first.
    pub priority: i32,
    /// Whether slots are granted by priority and age among all contenders at the prefix.
    pub fair: bool,
    /// Whether to wait for a slot. A program waits for the lock-delay of a dead holder in any case.
    pub wait: bool,
    /// Whether each prefix must already be in use; if not, the first program creates the semaphore.
    pub must_exist: bool,
    /// The kind of the holder.
    pub kind: HolderKind,
    /// Name of this host in Consul, for people: only characters that a Consul key may have, no slash
    /// ([`identity::name_of`]).
    pub host: String,
    /// Name of the program in Consul.
    pub program: String,
    /// The session that holds the slot.
    pub session: SessionSettings,
    /// Time for which the slot stays held once the work has ended.
    pub cooldown: Duration,
    /// The action on the work when its slot is lost.
    pub on_slot_lost: OnSlotLost,
    /// The longest time that the work takes to end once [`Holder::hold`](super::Holder::hold) returns; less than half
    /// the TTL.
    pub grace: Duration,
}

/// The kind of the holder, for people who look at Consul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderKind {
    /// A command that runs in the slots, as by `consul-semaphore exec`.
    Command,
    /// Work that no process attends to: the slots are held for a fixed time, as by `consul-semaphore acquire`.
    Lease,
    /// The program itself.
    Program,
}

impl HolderKind {
    fn name(self) -> KindName {
        match self {
            Self::Command => KindName::default(),
            Self::Lease => identity::LEASE.into(),
            Self::Program => identity::PROGRAM_KIND.into(),
        }
    }
}

/// The session that holds a slot.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// The external node that owns the session; `None`: the node of the agent that is asked, whose checks also end
    /// the session.
    pub node: Option<String>,
    /// Time that the session lives after its last renewal, 10 s to 24 h.
    pub ttl: Duration,
    /// Time for which a dead holder's slot is not used again, 60 s at the most.
    pub lock_delay: Duration,
}

impl HolderSettings {
    /// Returns the TTL of the session that lives longest.
    fn longest_ttl(&self) -> Duration {
        let semaphores = self.request.semaphores().iter();
        let rates = semaphores.filter_map(|semaphore| semaphore.period.map(rate::ttl));
        rates.max().unwrap_or_default().max(self.session.ttl)
    }

    /// Returns the longest time that a slot that was not given back stays in Consul: Consul ends a session between
    /// one and two TTLs after its last renewal.
    pub(crate) fn expires(&self) -> Duration {
        self.longest_ttl() * 2
    }

    /// Returns the time for which slots stay held once the work has ended. A request for slots of rates alone has
    /// none, because a rate's slots stay held anyway.
    pub(super) fn cooldown(&self) -> Duration {
        let mut semaphores = self.request.semaphores().iter();
        if semaphores.any(|semaphore| semaphore.period.is_none()) {
            self.cooldown
        } else {
            Duration::ZERO
        }
    }

    /// Whether slots stay held for a time once the work has ended: for a cooldown, or as starts of a rate.
    pub(crate) fn outlasts_work(&self) -> bool {
        let mut semaphores = self.request.semaphores().iter();
        !self.cooldown.is_zero() || semaphores.any(|semaphore| semaphore.period.is_some())
    }

    /// Returns the settings of a semaphore for the engine. A program has neither a namespace nor a Kubernetes object.
    pub(super) fn semaphore(&self, watched: &Watched) -> settings::Settings {
        let SlotsOf {
            prefix,
            mode,
            period,
            limit,
            slots: _,
            restrictions,
        } = &watched.asked;
        settings::Settings {
            cluster: Cluster {
                name: self.host.clone(),
                id: self.host.clone(),
            },
            namespace: identity::NONE.to_owned(),
            name: watched.queue.semaphore.name.to_string(),
            key: None,
            prefix: prefix.clone(),
            mode: *mode,
            period: *period,
            limit: *limit,
            slot_names: Vec::new(),
            restrictions: restrictions.clone(),
            policy: LimitPolicy::Follow,
            paused: false,
            pass_over: Duration::from_mins(1),
            terminating: false,
            on_slot_lost: self.on_slot_lost,
            ttl: Some(period.map_or(self.session.ttl, rate::ttl)),
            lock_delay: self.session.lock_delay,
            // A rate's slot stays held anyway.
            cooldown: period.map_or(self.cooldown, |_| Duration::ZERO),
            transient: true,
            wait: settings::WaitSettings::default(),
            fair: self.fair.then_some(WINDOW),
        }
    }
}

/// The program, and the sessions that are renewed for it.
pub(super) struct Program {
    pub(super) workload: Arc<Workload>,
    /// The sessions of the program: one for each slot, and two while a lost slot is replaced.
    pub(super) sessions: BTreeMap<SessionId, Renewal>,
    /// The sessions of an earlier holder, whose slots this program has taken over.
    pub(super) inherited: Vec<Session>,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.sessions.values().for_each(Renewal::stop);
    }
}

impl Program {
    pub(super) fn new(settings: &HolderSettings) -> Self {
        let uid = format!("{}-{:08x}", std::process::id(), fastrand::u32(..));
        let workload = Workload {
            kind: settings.kind.name(),
            name: identity::name_of(&settings.program).into(),
            uid: uid.as_str().into(),
            version: Arc::default(),
            seen: Moment::now(),
            requests: watched::requests(&settings.request),
            // A program that does not wait has no session made ahead.
            on_contention: if settings.wait {
                OnContention::Wait
            } else {
                OnContention::Skip
            },
            cron_job: None,
            priority: settings.priority,
            hold: false,
            since: clock::time().as_second(),
            phase: Phase::Idle,
            grace: settings.grace + LATE,
            was_suspended: false,
            traits: Traits::default(),
            granted: None,
            reported: Vec::new(),
            wait: Wait::default(),
        };
        Self {
            workload: Arc::new(workload),
            sessions: BTreeMap::new(),
            inherited: Vec::new(),
        }
    }

    /// Changes the workload.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Workload)) {
        let workload = Arc::make_mut(&mut self.workload);
        change(workload);
        // Earlier proofs no longer count.
        workload.version = format!("{:?}", Moment::now()).into();
    }

    /// Returns the proof for the engine that shows whether the program does any work. A program that waits or leaves
    /// does none.
    pub(super) fn proof(&self) -> Answer {
        let works = !matches!(self.workload.phase, Phase::Idle | Phase::Deleting);
        let left = works.then(|| "the program".to_owned());
        Answer::Proof(Ok((
            Some(self.workload.clone()),
            left.into_iter().collect(),
        )))
    }

    /// Whether one of the program's sessions holds a slot in the reading.
    pub(super) fn is_among(&self, reading: &Reading) -> bool {
        self.sessions.keys().any(|own| reading.holds(own))
    }

    /// Marks the slots of these sessions as not to be started in, because other slots that the program asks for were
    /// lost.
    pub(super) fn give_back(&mut self, sessions: Vec<SessionId>) {
        let kept = self.sessions.keys().cloned().collect::<BTreeSet<_>>();
        self.change(|workload| {
            workload.reported.retain(|session| kept.contains(session));
            workload.reported.extend(sessions);
        });
    }

    /// Returns the program's workload if `there` is set, and nothing otherwise.
    fn only_if(&self, there: bool) -> Vec<Arc<Workload>> {
        there.then(|| self.workload.clone()).into_iter().collect()
    }

    /// Stops renewing a session, and returns whether to destroy it: a session that is known to be gone is not
    /// destroyed.
    pub(super) fn forget(&mut self, session: &SessionId) -> bool {
        self.sessions.remove(session).is_some_and(|renewal| {
            renewal.stop();
            renewal.life() != SessionState::Gone
        })
    }
}

impl Stores for Program {
    type Of<'a> = &'a Self;

    fn of<'a>(&'a self, _queue: &'a QueueRef) -> &'a Self {
        self
    }

    fn keys(&self, _semaphore: &SemaphoreRef) -> Vec<Option<Key>> {
        vec![None]
    }

    fn open(&self, _queue: &QueueRef) {}

    fn close(&self, _queue: &QueueRef) -> bool {
        false
    }

    fn keeps(&self, session: &SessionId) -> bool {
        self.sessions.contains_key(session)
    }
}

impl Lookup for &Program {
    fn bound(&self) -> Vec<Arc<Workload>> {
        self.only_if(self.workload.is_bound())
    }

    fn waiting(&self, _reach: &Reach<'_>) -> Vec<Arc<Workload>> {
        self.only_if(self.workload.is_queued())
    }

    fn workload(&self, uid: &Uid) -> Option<Arc<Workload>> {
        (self.workload.uid == *uid).then(|| self.workload.clone())
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Workload>>> {
        uids.iter().map(|uid| self.workload(uid)).collect()
    }

    fn touched(&self) -> BTreeSet<Uid> {
        BTreeSet::new()
    }

    fn life(&self, session: &SessionId) -> Option<SessionState> {
        self.sessions.get(session).map(Renewal::life)
    }
}
