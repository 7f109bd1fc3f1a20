//! One test for each rule: the facts that it needs, and the resulting plan.

use std::time::Duration;

use super::*;
use crate::{
    OnContention,
    identity::ContenderBody,
    plan::{Skipped, Taker},
    samples,
    workload::{CronJob, Granted},
};
use consul_client::{Entry, Listing};

mod cooling;
mod given_back;
mod indices;
mod keeps;
mod keyed;
mod lock;
mod lost;
mod mutex;
mod queue;
mod restrictions;
mod several;
mod skip;
mod spare;
mod turn;

/// The facts of a pass. Every test starts from a semaphore of two free slots that agrees with Consul, and changes
/// what it tests.
struct Facts {
    settings: Settings,
    applied: Vec<u32>,
    defence: Defence,
    fenced: bool,
    entries: Vec<Entry>,
    memory: Memory,
    cooldowns: Cooldowns,
    starts: Starts,
    brief: BTreeSet<SessionId>,
    evidence: Evidence,
    ours: Vec<OwnContender>,
    bound: Vec<Arc<Workload>>,
    queue: Vec<Arc<Workload>>,
    sessions: BTreeMap<SlotId, SessionId>,
    unused: IdSet<SessionId>,
    excluded: Excluded,
    stances: BTreeMap<Uid, Stance>,
    requests: BTreeMap<Uid, Asked>,
    operations: usize,
}

/// When the prefix was read, after workloads were seen as usual; and the present.
const READ: u64 = 10;
const NOW: u64 = 20;

fn second(since: u64) -> Moment {
    Moment::from_boot(Duration::from_secs(since))
}

impl Facts {
    fn new(limit: u32, holders: &[&str]) -> Self {
        let mut facts = Self {
            settings: samples::settings(limit),
            applied: vec![limit],
            defence: Defence::default(),
            fenced: true,
            entries: Vec::new(),
            memory: Memory::default(),
            cooldowns: Cooldowns::default(),
            starts: Starts::default(),
            brief: BTreeSet::new(),
            evidence: Evidence::default(),
            ours: Vec::new(),
            bound: Vec::new(),
            queue: Vec::new(),
            sessions: BTreeMap::new(),
            unused: IdSet::default(),
            excluded: Excluded::default(),
            stances: BTreeMap::new(),
            requests: BTreeMap::new(),
            operations: 64,
        };
        facts.lock(limit, holders);
        facts
    }

    /// Consul's `.lock`.
    fn lock(&mut self, limit: u32, holders: &[&str]) -> &mut Self {
        let holders: BTreeMap<_, _> = holders.iter().map(|holder| (*holder, true)).collect();
        let body = serde_json::json!({ "Limit": limit, "Holders": holders });
        self.raw_lock(&body.to_string())
    }

    fn raw_lock(&mut self, value: &str) -> &mut Self {
        self.entries.retain(|entry| entry.key != samples::LOCK_KEY);
        self.entry(samples::LOCK_KEY, None, value)
    }

    fn entry(&mut self, key: &str, session: Option<&str>, value: &str) -> &mut Self {
        self.entries.push(samples::entry(key, session, value));
        self
    }

    /// A live foreign contender.
    fn contender(&mut self, session: &str) -> &mut Self {
        self.entry(&format!("p/{session}"), Some(session), "")
    }

    /// A live contender of ours.
    fn ours(&mut self, session: &str, workload: &Workload, pods_gone: bool) -> &mut Self {
        self.contender(session);
        let mut ours = samples::ours(session, Some(workload.clone()));
        ours.pods_gone = pods_gone;
        self.ours.push(ours);
        self
    }

    /// A contender's body with this cooldown.
    fn cooldown(&mut self, session: &str, seconds: u64, until: Option<u64>) -> &mut Self {
        let body = ContenderBody {
            cooldown: seconds,
            cools_until: until.map(samples::time),
            ..samples::contender_body(session)
        };
        let key = format!("p/{session}");
        let mut entries = self.entries.iter_mut();
        let contender = entries.find(|entry| entry.key == key).unwrap();
        contender.value = serde_json::to_vec(&body).unwrap();
        self
    }

    /// Reads the ends of cooldowns from the prefix as it is.
    fn read_coolings(&mut self) -> &mut Self {
        let reading = self.reading();
        let (now, time) = (second(NOW), samples::time(NOW));
        self.cooldowns.observe(&reading, &self.ours, now, time);
        self
    }

    fn bound(&mut self, workload: Workload) -> &mut Self {
        self.bound.push(workload.into());
        self
    }

    fn queue(&mut self, workloads: &[Workload]) -> &mut Self {
        self.queue.extend(workloads.iter().cloned().map(Arc::new));
        self.queue.sort_by_key(|workload| workload.place());
        self
    }

    fn session(&mut self, uid: &str, session: &str) -> &mut Self {
        let slot = SlotId {
            workload: uid.into(),
            ordinal: 0,
        };
        self.sessions.insert(slot, session.into());
        self
    }

    fn reading(&self) -> Reading {
        let listing = Listing {
            entries: self.entries.clone().into(),
            index: 5,
            sent: second(READ),
            reset: false,
        };
        Reading::new(self.settings.prefix.clone(), self.settings.mode, listing)
    }

    fn decide(&self) -> Plan {
        self.decide_on(Some(&self.reading()))
    }

    fn decide_without_consul(&self) -> Plan {
        self.decide_on(None)
    }

    fn decide_on(&self, reading: Option<&Reading>) -> Plan {
        decide(&self.observed(reading))
    }

    fn observed<'a>(&'a self, reading: Option<&'a Reading>) -> Observed<'a> {
        Observed {
            now: second(NOW),
            time: samples::time(NOW),
            settings: &self.settings,
            applied: &self.applied,
            defence: self.defence,
            fenced: self.fenced,
            reading,
            memory: &self.memory,
            cooldowns: &self.cooldowns,
            starts: &self.starts,
            brief: &self.brief,
            evidence: &self.evidence,
            ours: &self.ours,
            bound: &self.bound,
            queue: &self.queue,
            sessions: &self.sessions,
            unused: &self.unused,
            excluded: &self.excluded,
            stances: &self.stances,
            longest_cooldowns: const { &BTreeMap::new() },
            requests: &self.requests,
            closed: false,
            joint: None,
            operations: self.operations,
        }
    }
}

/// A workload that was never started.
fn waiting(name: &str) -> Workload {
    samples::workload(name, Phase::Idle, None, None)
}

/// A workload that must not wait.
fn skippable(name: &str) -> Workload {
    Workload {
        on_contention: OnContention::Skip,
        ..waiting(name)
    }
}

/// A finished workload that ran in the slot of this session.
fn done(name: &str, session: &str) -> Workload {
    let phase = Phase::Finished { at_rest: true };
    samples::workload(name, phase, Some(session), Some(session))
}

/// A workload that runs, started in the slot of this session.
fn running(name: &str, session: &str) -> Workload {
    samples::workload(name, Phase::Running, Some(session), Some(session))
}

/// A workload that was started in the slot of this session and is suspended, with no pod left.
fn stopped(name: &str, session: &str) -> Workload {
    samples::workload(name, Phase::Idle, Some(session), Some(session))
}

fn granted(plan: &Plan) -> Vec<&str> {
    let grants = plan.transaction.iter().flat_map(|t| &t.grants);
    grants.map(|grant| grant.workload.uid.as_ref()).collect()
}

fn released(plan: &Plan) -> Vec<&str> {
    let releases = plan.transaction.iter().flat_map(|t| &t.releases);
    releases.map(|release| release.session.as_ref()).collect()
}

fn asks_sessions(plan: &Plan) -> Vec<&str> {
    plan.sessions
        .iter()
        .map(|request| request.workload.uid.as_ref())
        .collect()
}

/// The `.lock` that the plan writes.
fn written(plan: &Plan) -> serde_json::Value {
    let operations = plan.transaction.iter().flat_map(|t| &t.operations);
    let mut values = operations.filter_map(|operation| match operation {
        Op::Cas { key, value, .. } if key == samples::LOCK_KEY => Some(value),
        _ => None,
    });
    values
        .next()
        .map(|value| serde_json::from_slice(value).unwrap())
        .unwrap_or_default()
}
