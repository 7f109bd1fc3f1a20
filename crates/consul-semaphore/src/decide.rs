//! One pass: from what was observed to what is to be done. The same facts give the same plan.

mod cooling;
mod lost;
mod mutex;
mod skip;
mod turn;
mod unused;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use self::turn::Others;
use super::{
    compose::Composer,
    cooling::Cooldowns,
    evidence::Evidence,
    fate::{Fate, OwnContender},
    limit::{Agreement, Defence, agree},
    lock::{Lock, Unreadable},
    mutex::MutexMemory,
    plan::{GiveBack, Grant, Plan, Release, Rename, Slot, Start},
    reading::{Deaths, Reading},
    settings::Settings,
    turns::Turns,
    workload::{Phase, Uid, Workload},
};
use consul_client::{
    Op, SessionId,
    clock::Moment,
    id::{IdHash, IdSet},
};

/// For how many workloads at the head of the line sessions are made ahead, at the most: a hand-over
/// then costs one transaction and one PATCH.
pub const AHEAD: usize = 16;

/// How many waiting workloads that others have overtaken stay shown, at the most: two that change places with each
/// other again and again, because somebody writes their priority, cost no sessions and no writes.
pub const OVERTAKEN: usize = 1;

/// Everything that a pass knows.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    /// The present, for intervals.
    pub now: Moment,
    /// The present, for people.
    pub time: jiff::Timestamp,
    /// What is asked for.
    pub settings: &'a Settings,
    /// `status.appliedLimits`: the limits that are ours.
    pub applied: &'a [u32],
    /// What became of the limit since the spec last changed.
    pub defence: Defence,
    /// Whether `.lock` was written since a limit was last on its way to it: an earlier write of
    /// which nothing was heard can't come after that.
    pub fenced: bool,
    /// The prefix; `None` while Consul can't be read.
    pub reading: Option<&'a Reading>,
    /// When dead holders were first seen dead.
    pub deaths: &'a Deaths,
    /// When the slots that cool are free.
    pub cooldowns: &'a Cooldowns,
    /// What is remembered of a mutex.
    pub mutex: &'a MutexMemory,
    /// Whose turn it is among those who wait.
    pub turns: &'a Turns,
    /// How long the slots of running workloads count as held; also of those that are steady.
    pub evidence: &'a Evidence,
    /// The live contenders of this semaphore that are ours, except those of steady Workloads: to leave them out or not
    /// makes no difference.
    pub ours: &'a [OwnContender],
    /// The workloads that this semaphore started, except those that have ended or are steady.
    pub bound: &'a [Arc<Workload>],
    /// The head of the line, in order: more than can be granted at once, by the limit or by [`AHEAD`],
    /// whichever is less; and those behind it that are not to wait.
    pub line: &'a [Arc<Workload>],
    /// The sessions that were made ahead.
    pub sessions: &'a BTreeMap<Uid, SessionId>,
    /// Workloads that are being written to: their next version decides.
    pub busy: &'a BTreeSet<Uid>,
    /// Workloads that could not be started, until they are tried again.
    pub barred: &'a BTreeSet<Uid>,
    /// Those of them that can't be told either that they give their slot back, and that no start
    /// which was sent before can still reach.
    pub immovable: &'a BTreeSet<Uid>,
    /// Whether no workload can be started for now, whichever it is.
    pub closed: bool,
    /// How many operations Consul takes in a transaction.
    pub operations: usize,
}

/// Decides what to do.
pub fn decide(observed: &Observed<'_>) -> Plan {
    let mut plan = Plan {
        applied: observed.applied.to_vec(),
        ..Plan::default()
    };
    lost::suspend_what_is_not_proved(observed, &mut plan);
    if let Some(reading) = observed.reading {
        Pass::new(observed, reading, &mut plan).run();
    }
    plan
}

/// The part of a pass that has a reading of Consul's to work on.
struct Pass<'a> {
    observed: &'a Observed<'a>,
    reading: &'a Reading,
    lock_key: String,
    plan: &'a mut Plan,
    composer: Composer<'a>,
    /// The workloads that have a slot, or have a contender that is not theirs to use again.
    settled: IdSet<&'a Uid>,
    /// The sessions of workloads that wait with a contender.
    waiting: BTreeMap<&'a Uid, &'a SessionId>,
}

impl<'a> Pass<'a> {
    fn new(observed: &'a Observed<'a>, reading: &'a Reading, plan: &'a mut Plan) -> Self {
        Self {
            observed,
            reading,
            lock_key: reading.prefix().lock_key(),
            plan,
            composer: Composer::new(reading, observed),
            settled: IdSet::with_capacity_and_hasher(observed.ours.len(), IdHash::default()),
            waiting: BTreeMap::new(),
        }
    }

    fn run(mut self) {
        self.judge_contenders();
        let lost = self.find_lost();
        self.prune();
        self.settle_limit(lost.is_empty());
        self.let_rest();
        self.regrant(&lost);
        self.reserve_for_pods();
        self.grant();
        self.drop_surplus(&lost);
        self.remove_unused();
        self.finish();
        self.skip();
        self.plan.again |= self.composer.cut_short();
        self.plan.transaction = self.composer.compose();
    }

    /// Applies the rule table to each contender of ours; of two for one workload, one stays.
    fn judge_contenders(&mut self) {
        let ours = self.observed.ours;
        let mut seen = IdSet::with_capacity_and_hasher(ours.len(), IdHash::default());
        let of_workload = ours.iter().map(|ours| &ours.identity.uid);
        let twice: BTreeSet<&Uid> = of_workload.filter(|uid| !seen.insert(*uid)).collect();
        for ours in ours
            .iter()
            .filter(|ours| !twice.contains(&ours.identity.uid))
        {
            self.judge(ours);
        }
        for uid in twice {
            let of_workload = ours.iter().filter(|ours| ours.identity.uid == *uid);
            let mut of_workload: Vec<&'a OwnContender> = of_workload.collect();
            of_workload.sort_by_key(|ours| {
                let named = ours
                    .workload
                    .as_ref()
                    .is_some_and(|workload| workload.started_by(&ours.session));
                let age = self
                    .reading
                    .contender(&ours.session)
                    .map(|entry| entry.create_index);
                (
                    Reverse(named),
                    Reverse(self.reading.holds(&ours.session)),
                    age,
                )
            });
            for (position, ours) in of_workload.into_iter().enumerate() {
                if position == 0 {
                    self.judge(ours);
                } else {
                    self.release(ours);
                }
            }
        }
    }

    fn judge(&mut self, ours: &'a OwnContender) {
        let uid = &ours.identity.uid;
        let settings = self.observed.settings;
        let held = self.reading.holds(&ours.session);
        let busy = self.is_busy(uid);
        let barred = self.observed.barred.contains(uid);
        let immovable = self.observed.immovable.contains(uid);
        let may_start = ours
            .workload
            .as_ref()
            .is_some_and(|workload| settings.may_start(workload));
        let may_start = may_start && !immovable;
        let fate = match ours.fate(held, may_start) {
            // Since it was granted this slot it has asked for another one, and had that first.
            _ if ours
                .workload
                .as_ref()
                .is_some_and(|workload| self.has_run_elsewhere(workload)) =>
            {
                Fate::Release
            }
            Fate::GiveBack { hold: false } if immovable && !busy => Fate::Release,
            // Refused for good; another replica may still be about to start it.
            Fate::Start if barred => Fate::GiveBack { hold: false },
            // It was taken for gone, and its end is written.
            Fate::Start if self.cools(&ours.session) => Fate::GiveBack { hold: false },
            fate => fate,
        };
        if fate == Fate::Wait {
            self.waiting.insert(uid, &ours.session);
            return;
        }
        let running = |workload: &Arc<Workload>| workload.phase == Phase::Running;
        if fate == Fate::Keep && !held && ours.workload.as_ref().is_some_and(running) {
            // Its contender lives, so its session can have the slot again.
            self.waiting.insert(uid, &ours.session);
        } else {
            self.settled.insert(uid);
        }
        if fate == Fate::Release {
            return self.release(ours);
        }
        if fate == Fate::Cool {
            return self.cool(ours);
        }
        let Some(workload) = ours.workload.as_ref().filter(|_| !busy) else {
            return;
        };
        let session = ours.session.clone();
        match fate {
            Fate::Start => self.start(workload, session),
            Fate::GiveBack { hold } => {
                let workload = workload.into();
                self.plan.give_backs.push(GiveBack {
                    workload,
                    session,
                    hold,
                });
            }
            _ if held
                && self.started_here(workload)
                && workload.phase == Phase::Running
                && workload.reported.as_ref() != Some(&session) =>
            {
                let workload = workload.into();
                self.plan.renames.push(Rename { workload, session });
            }
            _ => {}
        }
    }

    /// Whether a grant of this semaphore is what started the workload.
    fn started_here(&self, workload: &Workload) -> bool {
        workload.started_at(&self.lock_key)
    }

    /// Whether a grant of another lock key is what started the workload, so that this one's never can: the start
    /// of it names a version of the workload that is past, and what runs leaves its template as it is.
    fn has_run_elsewhere(&self, workload: &Workload) -> bool {
        workload.phase != Phase::Idle && workload.granted.is_some() && !self.started_here(workload)
    }

    /// Whether the workload is being written to, or will be by this plan.
    fn is_busy(&self, uid: &Uid) -> bool {
        let suspends = &self.plan.suspends;
        self.observed.busy.contains(uid)
            || suspends.iter().any(|suspend| suspend.workload.uid == *uid)
    }

    fn start(&mut self, workload: &Workload, session: SessionId) {
        if let Some(contender) = self.reading.contender(&session) {
            let slot = Slot::new(session, contender);
            self.plan.starts.push(Start {
                workload: workload.into(),
                slot,
            });
        }
    }

    fn release(&mut self, ours: &OwnContender) {
        self.composer.release(Release {
            identity: ours.identity.clone(),
            session: ours.session.clone(),
            held: self.reading.holds(&ours.session),
        });
    }

    /// Drops the holders that have been dead for the lock-delay, except those of our workloads that
    /// still have pods: nobody may come in between before a running one is swapped for, and the
    /// pods of one that is stopping keep counting.
    fn prune(&mut self) {
        let mut dead = self.reading.dead_holders();
        for workload in self.observed.bound {
            let has_pods = matches!(workload.phase, Phase::Running | Phase::Stopping);
            if has_pods && !self.settled.contains(&workload.uid) {
                dead.retain(|session, _| workload.held_by().all(|held_by| held_by != session));
            }
        }
        for (session, check) in dead {
            let since = self
                .observed
                .deaths
                .since(&session)
                .unwrap_or(self.observed.now);
            let due = since + self.observed.settings.lock_delay;
            if due <= self.observed.now {
                let check = self.clean_up(&session, check);
                self.composer.prune(session, check);
            } else {
                self.wake_at(due);
            }
        }
    }

    /// Has another pass at this moment, if there is none before.
    fn wake_at(&mut self, due: Moment) {
        self.plan.wake = Some(self.plan.wake.map_or(due, |wake| wake.min(due)));
    }

    /// What is written about a dead holder's contender key when the holder is dropped, given the check
    /// that it is still dead. One of ours that was only unlocked goes with it, because no session will
    /// take it along; its body tells nothing, since whoever unlocks a key writes it anew.
    fn clean_up(&self, session: &SessionId, check: Op) -> Op {
        // One that was suspended is in line again.
        let mut workloads = self.observed.bound.iter().chain(self.observed.line);
        let ours = workloads.any(|workload| {
            self.started_here(workload) && workload.held_by().any(|held_by| held_by == session)
        });
        match check {
            Op::CheckIndex { key, index } if ours => Op::DeleteCas { key, index },
            check => check,
        }
    }

    /// Brings the spec's limit and Consul's together, by the three-way rule.
    fn settle_limit(&mut self, nobody_lost: bool) {
        let Observed {
            settings,
            applied,
            defence,
            fenced,
            ..
        } = *self.observed;
        if settings.terminating && nobody_lost {
            return;
        }
        let theirs = match self.reading.lock() {
            Lock::Absent { .. } => None,
            Lock::Semaphore { body, .. } => Some(body.limit()),
            Lock::Mutex { .. } => {
                self.plan.agreement = Some(Agreement::Agreed);
                return self.plan.applied.clear();
            }
            Lock::Unreadable(Unreadable::LeftOver { index }) => return self.make_room(*index),
            Lock::Unreadable(_) => return,
        };
        let agreement = agree(settings.limit, theirs, applied, settings.policy, defence);
        self.plan.agreement = Some(agreement);
        match agreement {
            // A write of another limit of ours may be on its way yet: it is made to fail before that
            // limit is forgotten.
            Agreement::Agreed if !fenced && applied.iter().any(|l| *l != settings.limit) => {
                self.composer.rewrite();
            }
            Agreement::Agreed => self.plan.applied.retain(|limit| *limit == settings.limit),
            Agreement::Conflict { .. } => {}
            Agreement::Write { .. } if settings.terminating && theirs.is_some() => {}
            // One semaphore of many leaves nothing in Consul while nobody uses it.
            Agreement::Write { .. }
                if settings.transient && theirs.is_none() && applied.contains(&settings.limit) =>
            {
                self.composer.await_holder(settings.limit);
            }
            Agreement::Write { enforced } if applied.contains(&settings.limit) => {
                self.composer.write_limit(settings.limit, enforced);
            }
            Agreement::Write { .. } => {
                // Before it is written to Consul: after a crash it must still be known as ours.
                self.plan.applied.push(settings.limit);
                self.plan.record = Some(self.plan.applied.clone());
                self.composer.add_nobody();
            }
        }
    }

    /// Grants what is free to the head of the line, and has sessions made for those next in it.
    fn grant(&mut self) {
        let Observed {
            settings,
            barred,
            busy,
            line,
            ..
        } = *self.observed;
        let agreed = !matches!(self.plan.agreement, None | Some(Agreement::Conflict { .. }));
        // Before the prefix is read again, what looks free may be a running workload's.
        let open = !settings.paused && !settings.terminating && !self.observed.closed;
        if !open || !agreed || self.plan.reread {
            return;
        }
        self.let_others_in();
        let mut ahead = AHEAD.min(usize::try_from(settings.limit).unwrap_or(AHEAD));
        let mut in_turn = true;
        let mut next = BTreeSet::new();
        let mut others = Others::of(self.observed, self.reading);
        for workload in line.iter().filter(|workload| settings.may_start(workload)) {
            let uid = &workload.uid;
            if self.settled.contains(uid) || barred.contains(uid) || busy.contains(uid) {
                continue;
            }
            if self.lateness(workload).is_some() {
                continue;
            }
            let session = self.session_of(uid);
            self.leave_to_others(&mut others, workload);
            if self.composer.has_room(None) {
                next.insert(uid);
                match session {
                    Some(session) if in_turn => {
                        self.composer.grant(grant(workload, session, true), None);
                    }
                    session => {
                        // Nobody passes one whose session is still to be made, not even into
                        // another slot: fencing tokens rise along the line.
                        in_turn = false;
                        self.composer.reserve();
                        if session.is_none() {
                            self.plan.sessions.push(workload.into());
                        }
                    }
                }
            } else if workload.is_impatient() {
                // It does not wait, so nothing is made for it.
            } else if ahead > 0 {
                ahead -= 1;
                next.insert(uid);
                match session {
                    Some(session) => self.show(&others, workload, &session),
                    None => self.plan.sessions.push(workload.into()),
                }
            } else {
                break;
            }
        }
        self.take_back(&next);
    }

    /// Deletes the contenders of waiting workloads that others have overtaken: whoever else waits at the
    /// prefix leaves a slot to each contender that is shown, so few but those that are next are.
    fn take_back(&mut self, next: &BTreeSet<&Uid>) {
        let ours = self.observed.ours.iter();
        let overtaken = ours.filter_map(|ours| {
            let uid = &ours.identity.uid;
            let shown = self.waiting.get(uid) == Some(&&ours.session);
            let workload = ours
                .workload
                .as_ref()
                .filter(|workload| workload.is_queued())?;
            (shown && !next.contains(uid) && !self.is_busy(uid)).then(|| (workload.place(), ours))
        });
        let mut overtaken: Vec<_> = overtaken.collect();
        overtaken.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (_, ours) in overtaken.into_iter().skip(OVERTAKEN) {
            self.release(ours);
        }
    }

    fn session_of(&self, uid: &Uid) -> Option<SessionId> {
        let waiting = self.waiting.get(uid).copied();
        waiting.or_else(|| self.observed.sessions.get(uid)).cloned()
    }

    /// Gives up the sessions that were made ahead for workloads that are not in line any more.
    fn drop_surplus(&mut self, lost: &[&Workload]) {
        if self.plan.reread {
            return;
        }
        let needed: BTreeSet<&Uid> = if self.observed.settings.terminating {
            BTreeSet::new()
        } else {
            self.observed
                .line
                .iter()
                .map(|workload| &workload.uid)
                .collect()
        };
        let ahead = self.observed.sessions.iter();
        let surplus = ahead.filter(|(uid, session)| {
            // One with a contender has been granted a slot, even if the answer was lost.
            let granted = self.reading.contender(session).is_some();
            !granted && !needed.contains(uid) && !lost.iter().any(|workload| workload.uid == **uid)
        });
        self.plan.surplus = surplus.map(|(uid, _)| uid.clone()).collect();
    }
}

fn grant(workload: &Workload, session: SessionId, starts: bool) -> Grant {
    Grant {
        workload: workload.into(),
        session,
        starts,
        since: workload.since,
    }
}

#[cfg(test)]
mod tests;
