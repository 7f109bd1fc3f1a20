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

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    jobs::{Answer, Patch},
    outside::Outside,
    rules::check_plan,
};
use crate::{
    clock::Moment,
    consul::SessionId,
    semaphore::{
        Agreement, Deaths, Defence, Evidence, Job, Life, Observed, Ours, Plan, Reading, Standing,
        Uid, decide,
        plan::{Target, Transaction},
    },
};

/// The answer to a call is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    /// Whether the call was carried out.
    pub(super) done: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Record { was: Vec<u32>, limits: Vec<u32> },
    Transact(Transaction),
    Patch { patch: Patch, read: Moment },
    MakeSession(Target),
    Destroy(SessionId),
}

/// One process: all of this is gone when it crashes.
#[derive(Default)]
pub(super) struct Operator {
    sessions: BTreeMap<Uid, SessionId>,
    deaths: Deaths,
    evidence: Evidence,
    barred: BTreeSet<Uid>,
    busy: BTreeSet<Uid>,
    jobs: Vec<Job>,
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
            let known = known.find(|job| job.uid == *uid && job.version == version);
            known.map_or(outside.now(), |job| job.seen)
        };
        let jobs = outside.jobs.objects().filter_map(|object| {
            let mut job = outside.jobs.read(&object.uid, outside.now())?;
            job.seen = seen(&job.uid, &job.version);
            Some(job)
        });
        self.jobs = jobs.collect();
        self.busy.clear();
    }

    /// The watch brings the prefix, and the keeper finds sessions gone.
    pub(super) fn see_consul(&mut self, outside: &Outside) {
        let listing = outside.consul.list(&outside.settings.prefix, outside.now());
        self.reading = Some(Reading::new(outside.settings.prefix.clone(), listing));
        self.sessions
            .retain(|_, session| outside.consul.is_alive(session));
    }

    /// Decides, by what it has seen so far.
    pub(super) fn decide(&mut self, outside: &Outside) -> Plan {
        if self.reading.is_none() {
            self.see_consul(outside);
        }
        let Some(reading) = &self.reading else {
            return Plan::default();
        };
        if self.generation != outside.generation {
            self.generation = outside.generation;
            self.defence = Defence::default();
        }
        self.deaths.observe(reading, outside.now());

        let settings = &outside.settings;
        let lock_key = settings.prefix.lock_key();
        let asks = |job: &Job| job.wants.as_deref() == Some(settings.name.as_str());
        let started_here =
            |job: &Job| matches!(&job.granted, Some(granted) if granted.lock_key == lock_key);
        let on_its_feet =
            |job: &Job| matches!(job.standing, Standing::Running | Standing::Stopping);
        let jobs = self.jobs.iter().cloned();
        let bound: Vec<Job> = jobs
            .clone()
            .filter(|job| started_here(job) || (asks(job) && on_its_feet(job)))
            .collect();
        let mut line: Vec<Job> = jobs.filter(|job| job.in_line() && asks(job)).collect();
        line.sort_by_key(Job::place);
        let ours = self.ours(reading, outside);
        let running = |job: &&Job| job.standing == Standing::Running && started_here(job);
        let running: Vec<&Job> = bound.iter().filter(running).collect();
        let known = |session: &SessionId| {
            let alive = outside.consul.is_alive(session);
            Some(if alive { Life::Endless } else { Life::Gone })
        };
        self.evidence.observe(
            outside.now(),
            settings,
            &running,
            Some(reading),
            &ours,
            known,
        );
        let observed = Observed {
            now: outside.now(),
            time: jiff::Timestamp::from_second(outside.jobs.clock).unwrap_or_default(),
            settings,
            applied: &outside.applied,
            defence: self.defence,
            fenced: self.fenced,
            reading: Some(reading),
            deaths: &self.deaths,
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
                identity,
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

    /// Lines up what a plan says.
    fn adopt(&mut self, plan: &Plan, outside: &Outside) {
        let Plan {
            record,
            transaction,
            starts,
            suspends,
            give_backs,
            renames,
            sessions,
            surplus,
            applied,
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
        let settled = (record.is_none() && applied != outside.applied).then_some(applied);
        let given_up = surplus.iter().filter_map(|uid| self.sessions.remove(uid));
        let steps = record.into_iter().map(write);
        let steps = steps
            .chain(transaction.map(Step::Transact))
            .chain(starts.into_iter().map(Patch::Start).map(patch))
            .chain(suspends.into_iter().map(Patch::Suspend).map(patch))
            .chain(give_backs.into_iter().map(Patch::GiveBack).map(patch))
            .chain(renames.into_iter().map(Patch::Rename).map(patch))
            .chain(sessions.into_iter().map(Step::MakeSession))
            .chain(given_up.map(Step::Destroy))
            .chain(settled.map(write));
        self.pending = steps.collect();
        if reread {
            self.reading = None;
        }
    }

    /// Does the next thing.
    pub(super) fn act(&mut self, outside: &mut Outside, lost: Option<Lost>) {
        let Some(step) = self.pending.pop_front() else {
            return;
        };
        let done = lost.is_none_or(|lost| lost.done);
        let lost = lost.is_some();
        match step {
            Step::Record { was, limits } => {
                if outside.applied == was {
                    outside.applied = limits;
                } else {
                    self.start_over();
                }
            }
            Step::Transact(transaction) => {
                let answer = done.then(|| outside.transact(&transaction, self.generation));
                match answer {
                    Some(Ok(answer)) if !lost => self.went_through(outside, &transaction, &answer),
                    _ => self.start_over(),
                }
                if !done {
                    outside.late.push((transaction, self.generation));
                }
            }
            Step::Patch { patch, read } => {
                let answer = done.then(|| outside.patch(&patch, read, self.deposed));
                if lost {
                    return self.pending.push_front(Step::Patch { patch, read });
                }
                let uid = &patch.target().uid;
                self.busy.insert(uid.clone());
                if answer == Some(Answer::Refused) {
                    self.barred.insert(uid.clone());
                }
            }
            Step::MakeSession(target) => {
                let name = outside.settings.identity(&target).session_name();
                if done {
                    let session = outside.consul.make_session(&name);
                    if !lost {
                        self.sessions.insert(target.uid, session);
                    }
                }
            }
            Step::Destroy(session) => outside.destroy(&session),
        }
    }

    fn went_through(
        &mut self,
        outside: &Outside,
        transaction: &Transaction,
        answer: &[crate::consul::Entry],
    ) {
        let prefix = &outside.settings.prefix;
        let read = outside.now();
        let reading = self.reading.take();
        self.reading = reading.map(|r| r.after(&transaction.operations, answer, read));
        self.fenced |= transaction.writes_lock();
        if transaction.limit.is_some() {
            self.defence.holds(transaction.enforced);
        }
        for grant in &transaction.grants {
            self.sessions.remove(&grant.job.uid);
        }
        let contender_key = |session: &SessionId| prefix.contender_key(session);
        let starts = transaction.starts(answer, &prefix.lock_key(), contender_key);
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
