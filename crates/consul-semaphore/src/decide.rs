//! Makes the decisions of one pass: turns the observed facts into a plan. The same facts give the same plan.

mod cooling;
mod lost;
mod mutex;
mod rate;
pub(crate) mod skip;
mod spare;
mod turn;
mod unused;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use self::turn::Others;
use super::{
    asked::Asked,
    compose::Composer,
    cooling::Cooldowns,
    evidence::Evidence,
    fate::{Fate, OwnContender},
    identity::{ContenderBody, Identity},
    limit::{Agreement, Defence, agree},
    lock::{Lock, Unreadable},
    memory::Memory,
    plan::{
        Enough, GiveBack, Grant, HeldSlot, Part, Plan, Release, Rename, SessionRequest, Stance,
        Start, Waits,
    },
    rate::Starts,
    reading::Reading,
    settings::Settings,
    windows::Opening,
    workload::{Phase, SlotId, Uid, Workload},
};
use consul_client::{Op, SessionId, clock::Moment, id::IdSet};

/// Largest number of workloads at the head of the queue for which sessions are made ahead. A hand-over then costs one
/// transaction and one PATCH.
pub const AHEAD: usize = 16;

/// Largest number of waiting workloads that keep their contenders although others have overtaken them. If two such
/// workloads keep changing places because someone rewrites their priority, that costs no sessions and no writes.
pub const MOST_OVERTAKEN: usize = 1;

/// All facts that a pass knows.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    /// Current time of the monotonic clock, for intervals.
    pub now: Moment,
    /// Current wall-clock time, for windows and schedules and for times that others read.
    pub time: jiff::Timestamp,
    /// Settings of the semaphore.
    pub settings: &'a Settings,
    /// Limits that are ours: `status.appliedLimits`.
    pub applied: &'a [u32],
    /// Record of what happened to the limit since the spec last changed.
    pub defence: Defence,
    /// Whether `.lock` was written since a write of a limit was last sent. If so, an earlier unanswered write of a
    /// limit can't be applied any more.
    pub fenced: bool,
    /// Prefix as Consul shows it; `None` while Consul can't be read.
    pub reading: Option<&'a Reading>,
    /// What single readings do not show.
    pub memory: &'a Memory,
    /// Times at which the slots that cool down become free.
    pub cooldowns: &'a Cooldowns,
    /// Slots of a rate, with the times at which they become free.
    pub starts: &'a Starts,
    /// Sessions of workloads that wait for a rate, if the sessions may end before a slot granted now does.
    pub brief: &'a BTreeSet<SessionId>,
    /// Evidence that the slots of running workloads are held, including those of steady workloads.
    pub evidence: &'a Evidence,
    /// Live contenders of this semaphore that are ours, except those of steady workloads: leaving them out does not
    /// change the plan.
    pub ours: &'a [OwnContender],
    /// Workloads that this semaphore started, except those that have ended or are steady.
    pub bound: &'a [Arc<Workload>],
    /// Head of the queue, in order: more workloads than can be granted at once, by the limit or by [`AHEAD`],
    /// whichever is less. Workloads behind the head that must not wait are included.
    pub queue: &'a [Arc<Workload>],
    /// Sessions that were made ahead.
    pub sessions: &'a BTreeMap<SlotId, SessionId>,
    /// Sessions in `sessions` that are known to have neither a contender nor a slot, because nobody has sent a
    /// transaction for them yet.
    pub unused: &'a IdSet<SessionId>,
    /// Workloads that are not written to as usual.
    pub excluded: &'a Excluded,
    /// Stances of workloads that ask for several slots and can't have all of them yet.
    pub stances: &'a BTreeMap<Uid, Stance>,
    /// Longest cooldown of all semaphores that a workload asks for, for workloads that ask for several semaphores and
    /// must not wait.
    pub longest_cooldowns: &'a BTreeMap<Uid, Duration>,
    /// Whole requests of workloads that ask for slots at several lock keys.
    pub requests: &'a BTreeMap<Uid, Asked>,
    /// Whether no workload at all can be started for now.
    pub closed: bool,
    /// Workload that asks for slots at several lock keys and gets this queue's part in this pass.
    pub joint: Option<&'a Uid>,
    /// Number of operations that Consul accepts in a transaction.
    pub operations: usize,
}

/// The workloads that are not written to as usual.
#[derive(Clone, Debug, Default)]
pub struct Excluded {
    /// Workloads that are being written to, or are left alone for now. The pass after the write judges their next
    /// version.
    pub busy: BTreeSet<Uid>,
    /// Workloads that can't be started for now, and give back their slot.
    pub barred: BTreeSet<Uid>,
    /// Barred workloads whose slot is released without a write to them, because the API server refuses that write,
    /// too. No start that was sent before can still reach them.
    pub immovable: BTreeSet<Uid>,
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

/// Part of a pass that works on a reading.
struct Pass<'a> {
    observed: &'a Observed<'a>,
    reading: &'a Reading,
    lock_key: String,
    plan: &'a mut Plan,
    composer: Composer<'a>,
    /// Whether the windows of the semaphore let slots be granted now.
    opening: Opening,
    /// Slots that workloads have, or for which they have a contender that they can't use again.
    settled: BTreeSet<(&'a Uid, u32)>,
    /// Workloads whose contender is released in this pass. If they wait, they can have another contender in the next
    /// pass.
    released: BTreeSet<&'a Uid>,
    /// Sessions that take over slots of a rate in this pass.
    taken: BTreeSet<SessionId>,
    /// Sessions of workloads that wait with a contender.
    waiting: BTreeMap<(&'a Uid, u32), &'a SessionId>,
    /// Workloads that run in slots of this semaphore, with the sessions that hold those slots, by ordinal.
    running: BTreeMap<&'a Uid, (&'a Arc<Workload>, BTreeMap<u32, &'a SessionId>)>,
    /// Contenders that hold the slots granted to workloads that are still to be started.
    granted: BTreeMap<&'a Uid, Vec<&'a OwnContender>>,
}

impl<'a> Pass<'a> {
    fn new(observed: &'a Observed<'a>, reading: &'a Reading, plan: &'a mut Plan) -> Self {
        Self {
            observed,
            reading,
            lock_key: reading.prefix().lock_key(),
            plan,
            composer: Composer::new(reading, observed),
            opening: observed.settings.restrictions.windows.at(observed.time),
            settled: BTreeSet::new(),
            released: BTreeSet::new(),
            taken: BTreeSet::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            granted: BTreeMap::new(),
        }
    }

    fn run(mut self) {
        self.judge_contenders();
        self.start_granted();
        let lost = self.find_lost();
        self.replace_sessions();
        self.prune();
        self.settle_limit(lost.is_empty());
        self.let_rest();
        self.regrant(&lost);
        self.rename();
        self.reserve_for_pods();
        self.grant();
        self.count_spare();
        self.drop_surplus(&lost);
        self.remove_unused();
        self.finish();
        self.skip();
        self.plan.transaction = self.composer.compose();
    }

    /// Applies the rule table to each contender of ours. If two contenders are for the same slot, one stays.
    fn judge_contenders(&mut self) {
        if self.observed.settings.period.is_some() {
            return self.judge_starts();
        }
        let slot = |ours: &OwnContender| {
            let Identity { uid, ordinal, .. } = &*ours.identity;
            (uid.clone(), *ordinal)
        };
        let mut ours: Vec<&'a OwnContender> = self.observed.ours.iter().collect();
        ours.sort_by_cached_key(|ours| slot(ours));
        for contenders in ours.chunk_by(|a, b| a.identity.is_for_slot_of(&b.identity)) {
            let first = contenders.iter().min_by_key(|ours| self.precedence(ours));
            let Some(first) = first else { continue };
            self.judge(first);
            let others = contenders
                .iter()
                .filter(|other| other.session != first.session);
            for other in others {
                self.release(other);
            }
        }
    }

    /// Returns the precedence of a contender: if two are for the same slot, the one with the lesser value stays. A
    /// contender in the template of the started workload comes first, then one that holds the slot, then the older
    /// one.
    fn precedence(&self, ours: &OwnContender) -> impl Ord + use<> {
        let workload = ours.workload.as_ref();
        let named = workload.is_some_and(|workload| workload.started_by(&ours.session));
        let entry = self.reading.contender(&ours.session);
        let age = entry.map(|entry| entry.create_index);
        let holds = self.reading.holds(&ours.session);
        (Reverse(named), Reverse(holds), age)
    }

    fn judge(&mut self, ours: &'a OwnContender) {
        let Identity { uid, ordinal, .. } = &*ours.identity;
        let settings = self.observed.settings;
        let held = self.reading.holds(&ours.session);
        let busy = self.is_busy(uid);
        let barred = self.observed.excluded.barred.contains(uid);
        let immovable = self.observed.excluded.immovable.contains(uid);
        let may_start = !immovable
            && ours
                .workload
                .as_ref()
                .is_some_and(|workload| settings.may_start(workload));
        let fate = match ours.fate(held, may_start) {
            // After the grant of this slot the workload asked for another slot, and got that one first.
            _ if ours
                .workload
                .as_ref()
                .is_some_and(|workload| self.has_run_elsewhere(workload)) =>
            {
                Fate::Release
            }
            Fate::GiveBack { .. } if immovable && !busy => Fate::Release,
            // The API server refused the start permanently, but another replica may still be about to start the
            // workload.
            Fate::Start if barred => Fate::GiveBack { hold: false },
            // The workload counted as deleted, and its cooldown is already written.
            Fate::Start if self.cools(&ours.session) => Fate::GiveBack { hold: false },
            // No pod was left when the cooldown was written, so a workload that has pods by now runs without this
            // slot.
            Fate::Keep if ours.workload.is_none() && self.cools(&ours.session) => Fate::Cool,
            fate => fate,
        };
        if fate == Fate::Wait {
            self.waiting.insert((uid, *ordinal), &ours.session);
            return;
        }
        let running = |workload: &Arc<Workload>| workload.phase == Phase::Running;
        if fate == Fate::Keep && !held && ours.workload.as_ref().is_some_and(running) {
            // The contender lives, so the same session can get the slot again.
            self.waiting.insert((uid, *ordinal), &ours.session);
        } else {
            self.settled.insert((uid, *ordinal));
        }
        if fate == Fate::Release {
            self.released.insert(uid);
            return self.release(ours);
        }
        if fate == Fate::Cool {
            return self.cool(ours);
        }
        let Some(workload) = &ours.workload else {
            return;
        };
        if busy {
            if fate == Fate::Start && workload.asks_for_several() {
                self.plan.parts.insert(uid.clone(), Part::Busy);
            }
            return;
        }
        match fate {
            Fate::Start => self.granted.entry(uid).or_default().push(ours),
            Fate::GiveBack { hold } => self.give_back(workload, &ours.session, hold),
            _ if held && self.started_here(workload) && workload.phase == Phase::Running => {
                let (_, held) = self
                    .running
                    .entry(uid)
                    .or_insert((workload, BTreeMap::new()));
                held.insert(*ordinal, &ours.session);
            }
            _ => {}
        }
    }

    /// Starts the workloads that hold all that they ask for. A grant always covers the whole request, so a workload
    /// that holds less has lost a slot since the grant, and gives the others back. A workload that asks for less than
    /// it was granted gives its slots back too, because it may have lost the rest.
    fn start_granted(&mut self) {
        for (uid, held) in std::mem::take(&mut self.granted) {
            let Some(workload) = held.first().and_then(|ours| ours.workload.as_ref()) else {
                continue;
            };
            let asked = self.slots_for(workload);
            let slot = |ours: &&OwnContender| {
                let contender = self.reading.contender(&ours.session)?;
                Some(HeldSlot::new(
                    ours.session.clone(),
                    contender,
                    &contender.value,
                ))
            };
            let slots: Vec<HeldSlot> = held.iter().filter_map(slot).collect();
            let mut give_backs = self.plan.give_backs.iter();
            let granted = held.iter().map(|ours| self.granted_with(&ours.session));
            let more = granted.map(|asked| asked.lock_keys()).max() > Some(workload.requests.len());
            let whole = u32::try_from(slots.len()) == Ok(asked)
                && !more
                && !give_backs.any(|give_back| give_back.workload.uid == *uid);
            if whole && workload.asks_for_several() {
                self.plan.parts.insert(uid.clone(), Part::Held(slots));
            } else if whole {
                self.plan.starts.extend(Start::new(workload.into(), slots));
            } else if self.observed.settings.period.is_some() {
                self.give_up_starts(&held);
            } else {
                for ours in held {
                    self.give_back(workload, &ours.session, false);
                }
            }
        }
    }

    /// Returns everything that was granted together with the slot of this session, as its contender's body tells it.
    fn granted_with(&self, session: &SessionId) -> Asked {
        let contender = self.reading.contender(session);
        let body = contender.and_then(|entry| ContenderBody::read(&entry.value));
        body.map(|body| body.request).unwrap_or_default()
    }

    /// Updates the annotations of running workloads to name the sessions that hold their slots now.
    fn rename(&mut self) {
        for (uid, (workload, held)) in std::mem::take(&mut self.running) {
            let written = self.is_busy(uid) || self.composer.grants_any(uid);
            if let Some(sessions) = workload.renamed(&self.lock_key, &held).filter(|_| !written) {
                let workload = workload.into();
                self.plan.renames.push(Rename { workload, sessions });
            }
        }
    }

    /// Plans that a workload gives back the slot of this session, because it will run neither in this slot nor in any
    /// of its other slots here.
    fn give_back(&mut self, workload: &Arc<Workload>, session: &SessionId, hold: bool) {
        let asked = self.granted_with(session);
        let session = session.clone();
        let mut others = self.plan.give_backs.iter_mut();
        if let Some(other) = others.find(|other| other.workload.uid == workload.uid) {
            other.sessions.push(session);
            other.hold |= hold;
            return;
        }
        let mut sessions = vec![session];
        if asked.lock_keys() > 1 {
            sessions = workload.given_back_with(sessions);
        }
        self.plan.give_backs.push(GiveBack {
            workload: workload.into(),
            sessions,
            hold,
            began: workload.wait_given_back(),
        });
    }

    /// Returns whether a workload has this slot, or a contender for it that it can't use again.
    fn is_settled(&self, uid: &Uid, ordinal: u32) -> bool {
        self.settled.contains(&(uid, ordinal))
    }

    /// Returns whether any slot of a workload is settled in the sense of [`Self::is_settled`].
    fn has_settled(&self, uid: &Uid) -> bool {
        let slots = self.settled.range((uid, 0)..=(uid, u32::MAX));
        slots.take(1).count() > 0
    }

    /// Returns whether a grant of this semaphore started the workload.
    fn started_here(&self, workload: &Workload) -> bool {
        workload.started_at(&self.lock_key)
    }

    /// Returns whether a grant of another lock key started the workload, so that a grant here never can: its start
    /// would name an outdated version of the workload, and the template of a running workload can't be changed.
    fn has_run_elsewhere(&self, workload: &Workload) -> bool {
        workload.phase != Phase::Idle && workload.granted.is_some() && !self.started_here(workload)
    }

    /// Returns whether the workload is being written to, or will be by this plan.
    fn is_busy(&self, uid: &Uid) -> bool {
        let Plan { suspends, ends, .. } = &*self.plan;
        self.observed.excluded.busy.contains(uid)
            || suspends.iter().any(|suspend| suspend.workload.uid == *uid)
            || ends.iter().any(|end| end.workload.uid == *uid)
    }

    fn release(&mut self, ours: &OwnContender) {
        self.composer.release(Release {
            identity: ours.identity.clone(),
            session: ours.session.clone(),
            held: self.reading.holds(&ours.session),
        });
    }

    /// Prunes the holders that have been dead for the lock-delay, except those of our workloads that still have pods.
    /// No other contender may take the slot before a running workload is regranted, and pods that are stopping still
    /// count.
    fn prune(&mut self) {
        let mut dead = self.reading.dead_holders();
        for workload in self.observed.bound {
            let has_pods = matches!(workload.phase, Phase::Running | Phase::Stopping);
            if !has_pods {
                continue;
            }
            for (ordinal, sessions) in (0..).zip(workload.slots_at(&self.lock_key)) {
                if !self.is_settled(&workload.uid, ordinal) {
                    dead.retain(|session, _| !sessions.clone().any(|held_by| held_by == session));
                }
            }
        }
        dead.retain(|session, _| !self.still_counts(session));
        for (session, check) in dead {
            let since = self
                .observed
                .memory
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

    /// Schedules a pass for this moment, unless one comes before.
    fn wake_at(&mut self, due: Moment) {
        self.plan.wake = Some(self.plan.wake.map_or(due, |wake| wake.min(due)));
    }

    /// Returns the operation for a dead holder's contender key when the holder is pruned, given the check that the
    /// holder is still dead. A key of ours that was only unlocked is deleted, because no session will delete it. The
    /// key's body proves nothing, because a client that unlocks a key also writes its body.
    fn clean_up(&self, session: &SessionId, check: Op) -> Op {
        // A workload that was suspended is in the queue again, so the queue is searched too.
        let mut workloads = self.observed.bound.iter().chain(self.observed.queue);
        let ours = workloads.any(|workload| {
            self.started_here(workload) && workload.held_by().any(|held_by| held_by == session)
        });
        match check {
            Op::CheckIndex { key, index } if ours => Op::DeleteCas { key, index },
            check => check,
        }
    }

    /// Reconciles the limits of the spec and of Consul by the three-way rule.
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
            // A write of another limit of ours may still be in flight: make it fail before that limit is forgotten.
            Agreement::Agreed if !fenced && applied.iter().any(|l| *l != settings.limit) => {
                self.composer.rewrite();
            }
            Agreement::Agreed => self.plan.applied.retain(|limit| *limit == settings.limit),
            Agreement::Conflict { .. } => {}
            Agreement::Write { .. } if settings.terminating && theirs.is_some() => {}
            // A key of a keyed semaphore leaves nothing in Consul while it is unused.
            Agreement::Write { .. }
                if settings.transient && theirs.is_none() && applied.contains(&settings.limit) =>
            {
                self.composer.await_holder(settings.limit);
            }
            Agreement::Write { enforced } if applied.contains(&settings.limit) => {
                self.composer.write_limit(settings.limit, enforced);
            }
            Agreement::Write { .. } => {
                // The limit is recorded in the status before it is written to Consul, because after a crash it must
                // still be known as ours.
                self.plan.applied.push(settings.limit);
                self.plan.record = Some(self.plan.applied.clone());
                self.composer.add_nobody();
            }
        }
    }

    /// Grants free slots to the head of the queue, and has sessions made for the next workloads.
    fn grant(&mut self) {
        let Observed {
            settings,
            excluded,
            queue,
            ..
        } = *self.observed;
        let opening = self.opening;
        self.wake_when_it_changes(opening);
        // Until the prefix is read again, a slot that looks free may belong to a running workload.
        if self.plan.reread {
            return;
        }
        if !self.may_grant() {
            return self.stop_keeping();
        }
        self.plan.open = true;
        self.let_others_in();
        let mut ahead = AHEAD.min(usize::try_from(settings.limit).unwrap_or(AHEAD));
        let mut in_turn = true;
        let mut next = BTreeSet::new();
        let mut others = Others::of(self.observed, self.reading);
        let mut first = true;
        for workload in queue.iter().filter(|workload| settings.may_start(workload)) {
            let uid = &workload.uid;
            if excluded.barred.contains(uid) && workload.asks_for_many() {
                self.plan.parts.insert(uid.clone(), Part::Barred);
            }
            // A workload that gives slots back in this pass can be started again, so the slots are reserved for it if
            // it is the first.
            let gives_back = self.released.contains(uid);
            let settled = self.has_settled(uid) && !gives_back;
            let left_alone =
                settled || excluded.barred.contains(uid) || excluded.busy.contains(uid);
            if left_alone || self.lateness(workload).is_some() {
                continue;
            }
            let slots = self.slots_for(workload);
            self.leave_to_others(&mut others, workload);
            self.plan.before.get_or_insert(others.left());
            let withheld = self.withheld_from(workload, opening);
            let free = self.composer.has_room(slots.saturating_add(withheld));
            let (sessions, missing) = self.sessions_for(workload, slots);
            let joint = workload.asks_for_several() && self.observed.joint != Some(uid);
            let ready = sessions.len() == count(slots) && in_turn && !gives_back;
            if free {
                self.plan.in_reach.insert(uid.clone());
            }
            if free && ready && !joint {
                next.insert(uid);
                let asked = self.asked_by(workload);
                self.composer
                    .grant(grant(workload, sessions, true), &asked, None);
                continue;
            }
            let stance = self.observed.stances.get(uid).copied();
            let is_first = first && !others.keep_before(workload);
            let keeps = stance == Some(Stance::Keeps) && is_first;
            let passed_over = matches!(stance, Some(Stance::PassedOver | Stance::Stopped));
            let enough = self.when_enough(slots.saturating_add(withheld));
            if workload.asks_for_many() {
                let waits = Waits {
                    free,
                    ready,
                    first: is_first,
                    enough,
                };
                self.plan.parts.insert(uid.clone(), Part::Waits(waits));
            }
            // A workload that may keep nothing here is in nobody's way. If the workload has just come, the stance is
            // decided after this pass.
            let undecided = joint && stance.is_none();
            first &= undecided || stance == Some(Stance::Stopped) || enough == Enough::Never;
            // While the workload can't have all that it asks for, the slots that are free here are of no use to it.
            let useless = joint && passed_over;
            if free && !useless {
                next.insert(uid);
                // No workload passes another whose session is still being made, not even into another slot, because
                // fencing tokens rise along the queue.
                in_turn &= ready;
                self.composer.reserve(slots);
                if joint && stance.is_none() {
                    // The stance of this workload, which is decided after this pass, tells whether the slots are of
                    // use to it.
                    if ahead == 0 {
                        continue;
                    }
                    ahead -= 1;
                }
            } else if !free && workload.is_skippable() {
                // The workload does not wait, so it needs no session.
                continue;
            } else if ahead > 0 || keeps {
                ahead = ahead.saturating_sub(1);
                next.insert(uid);
                if keeps {
                    self.composer.reserve(slots);
                }
            } else if workload.asks_for_many() || withheld > 0 {
                continue;
            } else {
                break;
            }
            if let Some(session) = sessions.get(&0)
                && (!free || keeps || self.tells_to_keep(session))
            {
                self.show(&others, workload, session, keeps);
            }
            self.request_sessions(workload, missing, free);
        }
        self.take_back(&next);
    }

    /// Requests sessions for these slots of a workload. They are made at once if slots are free, otherwise ahead.
    fn request_sessions(&mut self, workload: &Workload, missing: Vec<u32>, free: bool) {
        let missing = missing.into_iter().map(|ordinal| SessionRequest {
            workload: workload.into(),
            ordinal,
            ahead: !free,
        });
        self.plan.sessions.extend(missing);
    }

    /// Returns whether slots are granted at all now.
    fn may_grant(&self) -> bool {
        let Observed {
            settings, closed, ..
        } = *self.observed;
        let agreed = !matches!(self.plan.agreement, None | Some(Agreement::Conflict { .. }));
        let open = !settings.paused && !settings.terminating && !closed;
        open && agreed && self.opening.is_open()
    }

    /// Releases the contenders that tell others to keep slots. While nothing is granted nothing is kept, so others
    /// must not be told so.
    fn stop_keeping(&mut self) {
        let ours = self.observed.ours.iter();
        let telling: Vec<_> = ours
            .filter(|ours| self.is_shown(ours) && self.tells_to_keep(&ours.session))
            .collect();
        for ours in telling {
            self.release(ours);
        }
    }

    /// Returns whether this contender shows others that its workload waits.
    fn is_shown(&self, ours: &OwnContender) -> bool {
        let Identity { uid, ordinal, .. } = &*ours.identity;
        self.waiting.get(&(uid, *ordinal)) == Some(&&ours.session) && !self.is_busy(uid)
    }

    /// Schedules a pass for the time at which a window may open or close.
    fn wake_when_it_changes(&mut self, opening: Opening) {
        let Observed { now, time, .. } = *self.observed;
        if let Some(left) = opening.changes_in(time) {
            self.wake_at(now + left);
        }
    }

    /// Returns how many slots must be free beside those that a workload is granted.
    fn withheld_from(&self, workload: &Workload, opening: Opening) -> u32 {
        self.observed.settings.withheld(opening, workload.priority)
    }

    /// Returns when so many slots can be free.
    fn when_enough(&self, slots: u32) -> Enough {
        let Observed {
            settings,
            cooldowns,
            now,
            ..
        } = self.observed;
        let ends = cooldowns
            .ends()
            .filter(|end| *end > *now + settings.pass_over);
        let rest = u32::try_from(ends.count()).unwrap_or(u32::MAX);
        if settings.limit < slots {
            Enough::Never
        } else if settings.limit.saturating_sub(rest) < slots {
            Enough::Late
        } else {
            Enough::Soon
        }
    }

    /// Returns how many slots a workload asks for here.
    fn slots_for(&self, workload: &Workload) -> u32 {
        let request = self.observed.settings.request(workload);
        request.map_or(1, |request| request.slots.get())
    }

    /// Returns all that a workload asks for.
    fn asked_by(&self, workload: &Workload) -> Asked {
        let known = self.observed.requests.get(&workload.uid).cloned();
        known.unwrap_or_else(|| Asked::of([(self.lock_key.clone(), self.slots_for(workload))]))
    }

    /// Returns the sessions with which a workload waits for this many slots, and the slots for which sessions are
    /// still to be made.
    fn sessions_for(
        &self,
        workload: &Workload,
        slots: u32,
    ) -> (BTreeMap<u32, SessionId>, Vec<u32>) {
        let (mut sessions, mut missing) = (BTreeMap::new(), Vec::new());
        for ordinal in 0..slots {
            match self.session_of(&workload.uid, ordinal) {
                // The session takes over another slot of the rate in this pass. The next session is made once that is
                // done.
                Some(session) if self.taken.contains(&session) => {}
                Some(session) => drop(sessions.insert(ordinal, session)),
                None => missing.push(ordinal),
            }
        }
        (sessions, missing)
    }

    /// Deletes the contenders of waiting workloads that others have overtaken. Others at the prefix leave a slot to
    /// each contender that they see, so only the next workloads may have one.
    fn take_back(&mut self, next: &BTreeSet<&Uid>) {
        let is_overtaken = |ours: &&OwnContender| {
            let workload = ours.workload.as_ref();
            let waits = workload.is_some_and(|workload| workload.is_queued());
            waits && self.is_shown(ours) && !next.contains(&ours.identity.uid)
        };
        let ours = self.observed.ours.iter();
        let mut overtaken: Vec<_> = ours.filter(is_overtaken).collect();
        overtaken
            .sort_by_cached_key(|ours| ours.workload.as_ref().map(|workload| workload.place()));
        let mut spared = 0;
        for ours in overtaken {
            // A contender that tells others to keep slots is not spared, because nothing is kept for a workload that
            // is not next.
            if spared < MOST_OVERTAKEN && !self.tells_to_keep(&ours.session) {
                spared += 1;
            } else {
                self.release(ours);
            }
        }
    }

    fn session_of(&self, uid: &Uid, ordinal: u32) -> Option<SessionId> {
        if let Some(session) = self.waiting.get(&(uid, ordinal)) {
            return Some((*session).clone());
        }
        let slot = SlotId {
            workload: uid.clone(),
            ordinal,
        };
        let session = self.observed.sessions.get(&slot);
        session
            .filter(|session| !self.observed.brief.contains(*session))
            .cloned()
    }

    /// Gives up the sessions that were made ahead for workloads that have left the queue.
    fn drop_surplus(&mut self, lost: &[(&Workload, u32)]) {
        if self.plan.reread {
            return;
        }
        let Observed {
            settings, queue, ..
        } = *self.observed;
        let queued: BTreeMap<&Uid, &Workload> = if settings.terminating {
            BTreeMap::new()
        } else {
            let queued = queue.iter();
            queued
                .map(|workload| (&workload.uid, &**workload))
                .collect()
        };
        let is_needed = |slot: &SlotId| {
            let waits = queued
                .get(&slot.workload)
                .is_some_and(|workload| slot.ordinal < self.slots_for(workload));
            let mut lost = lost.iter();
            waits
                || self.replaces_slot(slot)
                || lost.any(|(workload, ordinal)| {
                    workload.uid == slot.workload && *ordinal == slot.ordinal
                })
        };
        let ahead = self.observed.sessions.iter();
        let surplus = ahead.filter(|(slot, session)| {
            // A session with a contender has been granted a slot, even if the answer was lost.
            let granted = self.reading.contender(session).is_some();
            !granted && !is_needed(slot)
        });
        self.plan.surplus = surplus.map(|(slot, _)| slot.clone()).collect();
    }
}

fn count(slots: u32) -> usize {
    usize::try_from(slots).unwrap_or(usize::MAX)
}

fn grant(workload: &Workload, sessions: BTreeMap<u32, SessionId>, starts: bool) -> Grant {
    Grant {
        workload: workload.into(),
        sessions,
        starts,
        whole: !workload.asks_for_several(),
        since: workload.since,
    }
}

#[cfg(test)]
mod tests;
