//! The operator's controller in small: it sees, decides, and does one thing after another.
//!
//! What it does around [`decide`] is what the real one must do too:
//!
//! - A transaction that is refused, or whose answer is lost, ends the plan: the prefix is read again.
//! - A PATCH whose answer is lost is sent again, naming the same version, until it is answered.
//! - A Job that was written to is busy until it has been seen again, also if that was refused: an
//!   attempt before, whose answer was lost, may have started it.
//! - That no pod is left is asked after the contender was read, and for a Job that is still there it
//!   counts only if the Job has not changed since it was seen.
//! - A write of the status names what it was decided on, as its `resourceVersion` would.

mod step;
mod trace;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

pub(super) use self::step::Step;
use super::{
    consul::Refused,
    flaws::Flaw,
    outside::Outside,
    requests::{Answer, Patch},
    rules::check_plan,
};
use crate::{
    Agreement, Coolings, Deaths, Defence, Evidence, Job, Life, MutexMemory, Observed, Ours, Plan,
    Reading, Settings, Standing, Turns, Uid, decide, limit,
    plan::{Stop, Transaction},
};
use consul_client::{SessionId, clock::Moment};

/// The answer to a call is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    /// Whether the call was carried out.
    pub(super) done: bool,
}

/// One process: all of this is gone when it crashes.
#[derive(Clone, Debug, Default)]
pub(super) struct Operator {
    /// What is wrong with its algorithm.
    flaw: Option<Flaw>,
    sessions: BTreeMap<Uid, SessionId>,
    /// When the last good renewal of each session was sent; `None` if Consul said that it is gone.
    renewals: BTreeMap<SessionId, Option<Moment>>,
    deaths: Deaths,
    mutex: MutexMemory,
    /// Made with the first reading.
    turns: Option<Turns>,
    coolings: Coolings,
    evidence: Evidence,
    barred: BTreeSet<Uid>,
    busy: BTreeSet<Uid>,
    jobs: Vec<Arc<Job>>,
    reading: Option<Reading>,
    defence: Defence,
    fenced: bool,
    /// The generation that it has defended the limit of.
    generation: u64,
    pending: VecDeque<Step>,
    /// Whether another replica has taken over.
    pub(super) deposed: bool,
}

impl Operator {
    pub(super) fn new(flaw: Option<Flaw>) -> Self {
        Self {
            flaw,
            ..Self::default()
        }
    }

    pub(super) fn flaw(&self) -> Option<Flaw> {
        self.flaw
    }

    /// What it does next.
    pub(super) fn next_step(&self) -> Option<&Step> {
        self.pending.front()
    }

    /// Whether it has a session made ahead for this Job.
    pub(super) fn has_session(&self, uid: &Uid) -> bool {
        self.sessions.contains_key(uid)
    }

    /// Whether it is in the middle of a plan.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Tries again what it had given up.
    pub(super) fn unbar(&mut self) {
        self.barred.clear();
    }

    /// The watch brings the Jobs.
    pub(super) fn see_jobs(&mut self, outside: &Outside) {
        let seen = |uid: &Uid, version: &str| {
            let mut known = self.jobs.iter();
            let known = known.find(|job| job.uid == *uid && *job.version == *version);
            known.map_or(outside.now(), |job| job.seen)
        };
        let jobs = outside.jobs.objects().filter_map(|object| {
            let mut job = outside.jobs.read(&object.uid, outside.now())?;
            job.seen = seen(&job.uid, &job.version);
            Some(job)
        });
        self.jobs = jobs.map(Arc::new).collect();
        self.busy.clear();
    }

    /// The watch brings the prefix, and the keeper finds sessions gone.
    pub(super) fn see_consul(&mut self, outside: &Outside) {
        if outside.away {
            self.reading = None;
            return;
        }
        let listing = outside.consul.list(&outside.settings.prefix, outside.now());
        let Settings { prefix, mode, .. } = &*outside.settings;
        self.reading = Some(Reading::new(prefix.clone(), *mode, listing));
        self.sessions
            .retain(|_, session| outside.consul.is_alive(session));
    }

    /// The keeper renews the sessions that are due: its own, and those that are found in Consul.
    pub(super) fn renew(&mut self, outside: &mut Outside) {
        let (Some(ttl), false) = (outside.settings.ttl, outside.away) else {
            return;
        };
        let now = outside.now();
        let found = self.reading.iter().flat_map(Reading::contenders);
        let found = found.map(|(session, _)| session);
        let found = found.filter(|session| outside.identity(session).is_some());
        let known: Vec<SessionId> = self.sessions.values().chain(found).cloned().collect();
        for session in known {
            let last = self.renewals.get(&session).copied().flatten();
            if last.is_some_and(|last| now.since(last) < ttl / 3) {
                continue;
            }
            let renewed = outside.consul.is_alive(&session).then_some(now);
            if renewed.is_some() {
                outside.renewed.insert(session.clone(), now);
            }
            self.renewals.insert(session, renewed);
        }
    }

    /// What it knows of a session.
    fn life(&self, outside: &Outside, session: &SessionId) -> Option<Life> {
        let alive = outside.consul.is_alive(session);
        if !outside.timed || outside.settings.ttl.is_none() {
            return Some(if alive || outside.away {
                Life::Endless
            } else {
                Life::Gone
            });
        }
        let ttl = outside.settings.ttl?;
        Some(match self.renewals.get(session) {
            Some(Some(sent)) => Life::Renewed { sent: *sent, ttl },
            Some(None) => Life::Gone,
            None => Life::Unknown,
        })
    }

    /// Decides, by what it has seen so far.
    pub(super) fn decide(&mut self, outside: &Outside) -> Plan {
        if self.reading.is_none() {
            self.see_consul(outside);
        }
        let reading = self.reading.as_ref();
        if self.generation != outside.generation {
            self.generation = outside.generation;
            self.defence = Defence::default();
        }
        if let Some(reading) = reading {
            self.deaths.observe(reading, outside.now());
            self.mutex.observe(reading, outside.now());
            let fair = outside.settings.fair;
            let turns = self.turns.get_or_insert_with(|| Turns::new(fair));
            if self.flaw == Some(Flaw::StandsBackForEver) {
                *turns = Turns::new(fair);
            }
            turns.observe(reading, outside.now());
        }

        let settings = &outside.settings;
        let lock_key = settings.prefix.lock_key();
        let asks = |job: &Job| job.wants.as_deref() == Some(settings.name.as_str());
        let started_here =
            |job: &Job| matches!(&job.granted, Some(granted) if *granted.lock_key == *lock_key);
        let jobs = self.jobs.iter().cloned();
        let bound: Vec<Arc<Job>> = jobs.clone().filter(|job| started_here(job)).collect();
        let mut line: Vec<Arc<Job>> = jobs.filter(|job| job.in_line() && asks(job)).collect();
        line.sort_by_key(|job| job.place());
        let mut ours = reading.map_or_else(Vec::new, |reading| self.ours(reading, outside));
        if let Some(flaw) = self.flaw {
            flaw.distort(&mut ours);
        }
        let time = jiff::Timestamp::from_second(outside.jobs.clock).unwrap_or_default();
        if let Some(reading) = reading {
            self.coolings.observe(reading, &ours, outside.now(), time);
        }
        let running = |job: &&Job| job.standing == Standing::Running && started_here(job);
        let running: Vec<&Job> = bound.iter().map(AsRef::as_ref).filter(running).collect();
        let mut evidence = std::mem::take(&mut self.evidence);
        let known = |session: &SessionId| self.life(outside, session);
        evidence.observe(outside.now(), settings, &running, reading, &ours, known);
        self.evidence = evidence;
        let reading = self.reading.as_ref();
        let turns = self.turns.clone().unwrap_or_default();
        let observed = Observed {
            now: outside.now(),
            time,
            settings: &outside.settings,
            applied: &outside.applied,
            defence: self.defence,
            fenced: self.fenced,
            reading,
            deaths: &self.deaths,
            mutex: &self.mutex,
            turns: &turns,
            coolings: &self.coolings,
            evidence: &self.evidence,
            ours: &ours,
            bound: &bound,
            line: &line,
            sessions: &self.sessions,
            busy: &self.busy,
            barred: &self.barred,
            immovable: &BTreeSet::new(),
            closed: false,
            operations: outside.operations,
        };
        let plan = decide(&observed);
        assert_eq!(decide(&observed), plan, "the same facts give the same plan");
        check_plan(&observed, &plan);
        let plan = match self.flaw {
            Some(flaw) => flaw.spoil(plan),
            None => plan,
        };
        if plan.agreement == Some(Agreement::Agreed) {
            self.defence.holds(false);
        }
        self.fenced &= plan.record.is_none();
        self.adopt(&plan, outside);
        plan
    }

    fn ours(&self, reading: &Reading, outside: &Outside) -> Vec<Ours> {
        let ours = reading.contenders().filter_map(|(session, _)| {
            let identity = outside.identity(session)?;
            let job = self.jobs.iter().find(|job| job.uid == identity.uid);
            let mut ours = Ours {
                session: session.clone(),
                job: job.cloned(),
                identity: Arc::new(identity.clone()),
                pods_gone: false,
            };
            let may_start = job.is_some_and(|job| outside.settings.may_start(job));
            if ours.needs_proof(reading.holds(session), may_start) {
                prove(&mut ours, outside);
            }
            Some(ours)
        });
        ours.collect()
    }

    /// The Jobs that run though no grant started them, as far as it has seen.
    pub(super) fn stops(&self, outside: &Outside) -> impl Iterator<Item = Stop> {
        let asking = self.jobs.iter().filter(|job| {
            job.wants.as_deref() == Some(outside.settings.name.as_str())
                && !self.busy.contains(&job.uid)
        });
        asking.filter_map(|job| Stop::of(job))
    }

    /// Lines up what a plan says.
    fn adopt(&mut self, plan: &Plan, outside: &Outside) {
        let Plan {
            record,
            transaction,
            starts,
            suspends,
            give_backs,
            renames,
            skips,
            sessions,
            surplus,
            applied: _,
            reread,
            unheld: _,
            agreement: _,
            again: _,
            wake: _,
            deadline: _,
            finished: _,
        } = plan.clone();
        let read = self.reading.as_ref().map_or(outside.now(), |r| r.sent);
        let patch = |patch| Step::Patch { patch, read };
        let write = |limits| Step::Record {
            was: outside.applied.clone(),
            limits,
        };
        let lock = self.reading.as_ref().map(Reading::lock);
        let settles = lock.is_some_and(|lock| plan.settles(lock, &outside.settings));
        let settled = limit::settled(&outside.applied, outside.settings.limit);
        let settled =
            (record.is_none() && settles && settled != outside.applied).then_some(settled);
        let ungranted: Vec<Stop> = self.stops(outside).collect();
        let given_up = surplus.iter().filter_map(|uid| self.sessions.remove(uid));
        let steps = ungranted
            .into_iter()
            .map(Patch::Stop)
            .map(patch)
            .chain(record.into_iter().map(write))
            .chain(transaction.map(Step::Transact))
            .chain(starts.into_iter().map(Patch::Start).map(patch))
            .chain(suspends.into_iter().map(Patch::Suspend).map(patch))
            .chain(give_backs.into_iter().map(Patch::GiveBack).map(patch))
            .chain(renames.into_iter().map(Patch::Rename).map(patch))
            .chain(skips.into_iter().map(Patch::Skip).map(patch))
            .chain(sessions.into_iter().map(Step::MakeSession))
            .chain(given_up.map(Step::Destroy))
            .chain(settled.map(write));
        self.pending = steps.collect();
        if reread {
            self.reading = None;
        }
    }

    /// Does the next thing, and says whether it was done as planned.
    pub(super) fn act(&mut self, outside: &mut Outside, lost: Option<Lost>) -> bool {
        let Some(step) = self.pending.pop_front() else {
            return true;
        };
        let away = outside.away && !matches!(step, Step::Record { .. } | Step::Patch { .. });
        let done = lost.is_none_or(|lost| lost.done) && !away;
        let lost = lost.is_some() || away;
        match step {
            Step::Record { was, limits } => {
                let unchanged = outside.applied == was;
                if unchanged {
                    outside.applied = limits;
                } else {
                    self.start_over();
                }
                unchanged
            }
            Step::Transact(transaction) => {
                let answer = done.then(|| outside.transact(&transaction, self.generation));
                let went_through = matches!(answer, Some(Ok(_))) && !lost;
                match answer {
                    Some(Ok(answer)) if !lost => {
                        self.went_through(outside, &transaction, &answer);
                    }
                    Some(Err(Refused { rests: true })) if !lost => {
                        self.mutex.delay(outside.now(), 0.0);
                        self.start_over();
                    }
                    _ => self.start_over(),
                }
                if !done {
                    outside.late.push((transaction, self.generation));
                }
                went_through
            }
            Step::Patch { patch, read } => {
                let answer = done.then(|| outside.patch(&patch, read, self.deposed));
                if lost {
                    self.pending.push_front(Step::Patch { patch, read });
                    return false;
                }
                let uid = &patch.target().uid;
                self.busy.insert(uid.clone());
                if answer == Some(Answer::Refused) {
                    self.barred.insert(uid.clone());
                }
                answer == Some(Answer::Done)
            }
            Step::MakeSession(target) => {
                let name = outside.settings.identity(&target).session_name();
                if done {
                    let session = outside.consul.make_session(&name);
                    if outside.timed {
                        outside.renewed.insert(session.clone(), outside.now());
                    }
                    if !lost {
                        if outside.timed {
                            let renewed = Some(outside.now());
                            self.renewals.insert(session.clone(), renewed);
                        }
                        self.sessions.insert(target.uid, session);
                    }
                }
                !lost
            }
            Step::Destroy(session) => {
                if !away {
                    outside.destroy(&session);
                }
                !away
            }
        }
    }

    fn went_through(
        &mut self,
        outside: &Outside,
        transaction: &Transaction,
        answer: &[consul_client::Entry],
    ) {
        let read = outside.now();
        let reading = self.reading.take();
        self.reading = reading.map(|r| r.after(&transaction.operations, answer, read));
        self.fenced |= transaction.writes_lock();
        if transaction.limit.is_some() {
            self.defence.holds(transaction.enforced);
        }
        for grant in &transaction.grants {
            self.sessions.remove(&grant.job.uid);
            self.mutex.took(&grant.session, read);
        }
        let starts = transaction.starts(answer);
        for start in starts.into_iter().rev() {
            let patch = Patch::Start(start);
            self.pending.push_front(Step::Patch { patch, read });
        }
        let released = transaction.releases.iter();
        self.pending
            .extend(released.map(|release| Step::Destroy(release.session.clone())));
    }

    /// What was decided on is not so any more.
    fn start_over(&mut self) {
        self.reading = None;
        self.pending.clear();
    }
}

/// A GET of the Job and a LIST of its pods.
fn prove(ours: &mut Ours, outside: &Outside) {
    let uid = &ours.identity.uid;
    let unchanged = match (outside.jobs.read(uid, outside.now()), &ours.job) {
        (None, _) => {
            ours.job = None;
            true
        }
        (Some(job), Some(known)) => job.version == known.version,
        (Some(_), None) => false,
    };
    ours.pods_gone = unchanged && !outside.jobs.has_pods(uid);
}
