//! An observer of Consul and of the workloads that shares nothing with the algorithm. It knows the rules from their
//! documentation, and checks every write of the operator and every moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;

use super::{
    canon::Canon, indices::IndexJudge, outside::Outside, sight::Sight, workloads::Workloads,
};
use crate::plan::{Fail, Failed};
use crate::{
    LimitPolicy, Mode, Settings, Uid,
    plan::{Start, Transaction},
};
use consul_client::{Entry, Op, SessionId, clock::Moment};

/// The cooldown of a slot, from the body that a grant writes: what the spec said when the grant was decided.
fn cooldown_of(transaction: &Transaction, session: &SessionId) -> Duration {
    let mut bodies = transaction.operations.iter().filter_map(|op| match op {
        Op::Lock {
            value, session: of, ..
        } if of == session => serde_json::from_slice::<Value>(value).ok(),
        _ => None,
    });
    let cooldown = bodies
        .next()
        .and_then(|body| body.get("cooldown")?.as_u64());
    Duration::from_secs(cooldown.unwrap_or(0))
}

/// A transaction of the operator's that went through.
pub(super) struct Written<'a> {
    pub(super) transaction: &'a Transaction,
    /// The generation of the spec that it was decided on.
    pub(super) generation: u64,
    /// Whether nobody waited for it any more.
    pub(super) late: bool,
    /// The raft index of the transaction.
    pub(super) index: u64,
    pub(super) before: Sight,
    pub(super) after: Sight,
    pub(super) workloads: &'a Workloads,
    pub(super) settings: &'a Settings,
    /// `status.appliedLimits` at the time.
    pub(super) applied: &'a [u32],
    pub(super) now: Moment,
}

/// What the observer remembers.
#[derive(Clone, Debug, Default)]
pub(super) struct Observer {
    /// When a slot was last taken from a workload by anything but the operator. From then on it may have pods without
    /// a slot, until it is granted another one or suspended.
    robbed: BTreeMap<Uid, Moment>,
    /// When each session that was once seen as a dead holder died.
    died: BTreeMap<SessionId, Moment>,
    /// When each holder died before its contender came back, and the index of `.lock` since then. No transaction can
    /// see that the contender was there in between if it is gone once more and `.lock` has not changed.
    came_back: BTreeMap<SessionId, (Moment, u64)>,
    /// The raft index at which each session was last granted a slot.
    granted: BTreeMap<SessionId, u64>,
    /// When the slot of each session was last taken by anything but the operator.
    taken: BTreeMap<SessionId, Moment>,
    /// How often each generation's limit was enforced: overwritten after it was applied, and written again.
    defended: BTreeMap<u64, u32>,
    /// Whether Consul's limit was last written by the operator.
    pub(super) limit_is_ours: bool,
    /// The limits that were recorded as the operator's, until Consul and the spec agreed.
    claimed: BTreeSet<u32>,
    /// The sessions of the slots in which workloads were started or continued.
    ran_in: BTreeSet<SessionId>,
    /// The cooldown of each grant.
    cooldowns: BTreeMap<SessionId, Duration>,
    /// Since when the workload of each holder, which was started in its slot, is done: it has ended or was deleted,
    /// and its pods are gone.
    done: BTreeMap<SessionId, Moment>,
    /// The sessions of a rate's slots that other sessions have taken over.
    replaced: BTreeSet<SessionId>,
    /// When workloads were started.
    pub(super) starts: Vec<Moment>,
    indices: IndexJudge,
    /// When a replica that was overtaken last granted each workload a slot, of which the next one can't know at once.
    granted_by_overtaken: BTreeMap<Uid, Moment>,
    /// The workloads that do not wait and existed while all slots were taken.
    contended: BTreeSet<Uid>,
}

impl Observer {
    /// All that counts of what it remembers.
    pub(super) fn trace(&self, outside: &Outside, canon: &mut Canon<'_>) {
        let Self {
            robbed,
            died,
            came_back,
            granted: _,
            taken: _,
            defended,
            limit_is_ours,
            claimed,
            ran_in: _,
            cooldowns,
            done,
            starts: _,
            indices,
            granted_by_overtaken: _,
            contended,
            replaced: _,
        } = self;
        for uid in canon.workloads() {
            canon.word(&robbed.contains_key(uid));
            canon.word(&contended.contains(uid));
            canon.word(&indices.is_displaced(uid));
        }
        canon.word(&(defended, limit_is_ours, claimed));
        let (sight, now) = (outside.sight(), canon.now());
        let prefix = &outside.settings.prefix;
        for session in canon.spoken_of() {
            // Only a holder can be found dead, whether it is one now or becomes one again.
            let in_holders = sight.body.as_ref().is_some_and(|body| body.holds(&session));
            let may_hold = in_holders || outside.consul.is_alive(&session);
            let died = died.get(&session).filter(|_| may_hold);
            let rested = |died: &Moment| now.since(*died) >= outside.settings.lock_delay;
            canon.word(&died.map(rested));
            let before = came_back.get(&session).filter(|_| may_hold);
            canon.word(&before.map(|(died, _)| rested(died)));
            let lives = sight.contenders.contains_key(&session);
            let key = lives.then(|| prefix.contender_key(&session));
            let contender = key.and_then(|key| outside.consul.get(&key));
            let last = |entry: &Entry| self.is_last_grant(&session, entry.modify_index);
            canon.word(&contender.map(last));
            let cooldown = cooldowns.get(&session).copied().unwrap_or_default();
            let done = done.get(&session);
            canon.word(&done.map(|done| now.since(*done) >= cooldown));
        }
    }

    /// Whether this is the raft index of the session's last grant.
    pub(super) fn is_last_grant(&self, session: &SessionId, index: u64) -> bool {
        self.granted.get(session) == Some(&index)
    }

    /// Whether anybody else took this session's slot at this moment or later.
    pub(super) fn taken_since(&self, session: &SessionId, moment: Moment) -> bool {
        let taken = self.taken.get(session);
        taken.is_some_and(|taken| *taken >= moment)
    }

    /// Whether anybody else took this workload's slot at this moment or later.
    pub(super) fn robbed_since(&self, uid: &Uid, moment: Moment) -> bool {
        self.robbed.get(uid).is_some_and(|robbed| *robbed >= moment)
    }

    /// Whether this workload has no slot because somebody else took it.
    pub(super) fn is_robbed(&self, uid: &Uid) -> bool {
        self.robbed.contains_key(uid)
    }

    /// Anything but the operator has changed the world.
    pub(super) fn others_acted(&mut self, before: &Sight, after: &Sight, now: Moment) {
        let limit = |sight: &Sight| sight.body.as_ref().map(|body| body.limit);
        self.limit_is_ours &= limit(before) == limit(after);
        for uid in before.workloads().difference(&after.workloads()) {
            self.robbed.insert(uid.clone(), now);
        }
        let hold: BTreeSet<&SessionId> = after.holding().map(|(session, _)| session).collect();
        for (session, _) in before
            .holding()
            .filter(|(session, _)| !hold.contains(session))
        {
            self.taken.insert(session.clone(), now);
        }
    }

    /// At every moment: a workload that was started by a grant, or has pods from one, holds a slot, unless somebody
    /// else took it.
    pub(super) fn look(
        &mut self,
        sight: &Sight,
        workloads: &Workloads,
        settings: &Settings,
        now: Moment,
    ) {
        let index = sight.lock.as_ref().map_or(0, |lock| lock.modify_index);
        let lives = |session: &SessionId| sight.contenders.contains_key(session);
        self.came_back.retain(|_, (_, since)| *since == index);
        for (session, died) in self.died.extract_if(.., |session, _| lives(session)) {
            self.came_back.entry(session).or_insert((died, index));
        }
        for session in sight.dead_holders() {
            self.died.entry(session).or_insert(now);
        }
        self.note_finished(sight, workloads, now);
        if let Some(body) = &sight.body {
            let free = body.limit().saturating_sub(body.holders.len());
            let free = u32::try_from(free).unwrap();
            let skippable = workloads.objects().filter(|object| object.is_skippable());
            let contended = skippable.filter(|object| object.slots.get() > free);
            self.contended
                .extend(contended.map(|object| object.uid.clone()));
        }
        let held = sight.workloads();
        self.robbed.retain(|uid, _| !held.contains(uid));
        // A rate's slots count starts, and not what runs.
        if settings.is_rate() {
            return;
        }
        for uid in workloads.in_need_of_a_slot(&settings.prefix.lock_key()) {
            let excused = self.robbed.contains_key(uid);
            assert!(held.contains(uid) || excused, "{uid} runs without a slot");
        }
        let lock_key = settings.prefix.lock_key();
        let in_need: BTreeSet<&Uid> = workloads.in_need_of_a_slot(&lock_key).collect();
        let objects = in_need.into_iter().filter_map(|uid| workloads.get(uid));
        self.indices.look(&lock_key, sight, objects);
    }

    /// Notes the holders whose workloads are done.
    fn note_finished(&mut self, sight: &Sight, workloads: &Workloads, now: Moment) {
        let alive = |session: &SessionId| sight.contenders.contains_key(session);
        self.done.retain(|session, _| alive(session));
        for (session, uid) in sight.holding() {
            let Some(uid) = uid else { continue };
            let object = workloads.get(uid);
            let ended = object.is_none_or(|object| !object.may_run());
            if ended && !workloads.has_pods(uid) {
                self.done.entry(session.clone()).or_insert(now);
            }
        }
    }

    /// A replica that was overtaken has granted these workloads slots.
    pub(super) fn granted_by_overtaken<'a>(
        &mut self,
        granted: impl Iterator<Item = &'a Uid>,
        now: Moment,
    ) {
        let granted = granted.map(|uid| (uid.clone(), now));
        self.granted_by_overtaken.extend(granted);
    }

    /// A workload was made to fail, decided on a reading at `read`. A replica that was overtaken does not know what the
    /// next one has just granted, and the next one does not know what that replica granted after the reading.
    pub(super) fn failed(&mut self, fail: &Fail, sight: &Sight, read: Moment, overtaken: bool) {
        let uid = &fail.workload.uid;
        let granted = self.granted_by_overtaken.get(uid);
        let unknown = overtaken || granted.is_some_and(|granted| *granted >= read);
        let holds = sight.workloads().contains(uid);
        assert!(!holds || unknown, "{uid} holds a slot");
        if matches!(fail.why, Failed::Contended(_)) {
            self.skipped(uid);
        }
    }

    /// A workload that does not wait was deleted.
    pub(super) fn skipped(&self, uid: &Uid) {
        let contended = self.contended.contains(uid);
        assert!(
            contended,
            "{uid} was deleted while a slot was free all along"
        );
    }

    /// A workload was patched to give its slot back: it is not done, and its slot does not cool.
    pub(super) fn gave_back(&mut self, session: &SessionId) {
        self.ran_in.remove(session);
    }

    /// A slot is not released before its workload is done and its cooldown is over, unless its workload was never
    /// started or gives it back.
    fn check_cooldown(&self, written: &Written<'_>) {
        if written.settings.is_rate() {
            return;
        }
        let of_the_dead = |session: &SessionId| !written.before.contenders.contains_key(session);
        for release in written
            .transaction
            .releases
            .iter()
            .filter(|release| release.held)
        {
            let object = written.workloads.get(&release.identity.uid);
            let ran = object.is_none_or(|object| object.finished() && object.ran());
            let started = self.ran_in.contains(&release.session);
            if !ran || !started || of_the_dead(&release.session) {
                continue;
            }
            let cooldown = self.cooldowns.get(&release.session).copied();
            let done = self.done.get(&release.session);
            let cooled =
                done.is_some_and(|done| written.now.since(*done) >= cooldown.unwrap_or_default());
            assert!(cooled, "released before it has cooled: {release:?}");
        }
    }

    /// Every rule on what the operator may write to Consul.
    pub(super) fn wrote(&mut self, written: &Written<'_>) {
        let Written {
            transaction,
            index,
            before,
            after,
            settings,
            ..
        } = written;
        if before.is_misused() {
            let same = before.lock == after.lock;
            assert!(same, "overwrote what it does not understand");
        }
        for (session, _) in before.contenders.iter().filter(|(_, uid)| uid.is_none()) {
            let there = after.contenders.contains_key(session);
            assert!(there, "deleted a foreign contender");
        }
        let released = transaction.releases.iter().any(|release| release.held);
        let handed_back = settings.mode == Mode::Mutex && released;
        if before.lock.is_some() && after.lock.is_none() && !handed_back {
            assert!(settings.terminating, "deleted the lock");
            // A contender may have been made since the reading: it makes a new lock.
            let held = before.body.as_ref().is_some_and(|b| !b.holders.is_empty());
            assert!(!held, "deleted a lock with holders");
        }
        if let (Some(before), Some(after)) = (&before.lock, &after.lock) {
            assert_eq!(before.flags, after.flags, "changed somebody's flags");
        }
        if let (Some(before), Some(after)) = (&before.body, &after.body) {
            assert_eq!(before.rest, after.rest, "changed what it does not know");
        }
        // A workload whose template still names its slot must give it back first: until then an older decision could
        // start it.
        for release in transaction.releases.iter().filter(|release| release.held) {
            let bound = written
                .workloads
                .get(&release.identity.uid)
                .is_some_and(|object| {
                    let granted = object.granted.as_ref();
                    let mut slots = granted.into_iter().flat_map(|granted| &granted.slots);
                    object.may_run() && slots.any(|slot| slot.session == release.session)
                });
            let bound = bound && !settings.is_rate();
            assert!(!bound, "released before it was given back: {release:?}");
        }
        self.check_holders(written);
        self.check_limit(written);
        self.check_cooldown(written);
        for (gone, session) in &transaction.replaced {
            self.granted.insert(session.clone(), *index);
            self.replaced.insert(gone.clone());
        }
        for grant in &transaction.grants {
            for session in grant.sessions.values() {
                self.granted.insert(session.clone(), *index);
                let cooldown = cooldown_of(transaction, session);
                self.cooldowns.insert(session.clone(), cooldown);
                if !grant.starts {
                    self.ran_in.insert(session.clone());
                }
            }
        }
    }

    /// At most `limit` starts of a rate lie in any period.
    fn check_rate(&self, settings: &Settings, now: Moment) {
        let Some(period) = settings.period else {
            return;
        };
        let starts = self.starts.iter();
        let recent = starts.filter(|start| now.since(**start) < period).count();
        assert!(
            u32::try_from(recent).unwrap() <= settings.limit,
            "{recent} starts in {period:?}"
        );
    }

    fn check_holders(&self, written: &Written<'_>) {
        let Written {
            transaction,
            before,
            after,
            settings,
            now,
            ..
        } = written;
        let empty = Vec::new();
        let held = before.body.as_ref().map_or(&empty, |body| &body.holders);
        let Some(body) = &after.body else {
            return;
        };
        let added = body.holders.iter().any(|holder| !held.contains(holder));
        assert!(
            !added || body.holders.len() <= body.limit(),
            "more holders than the limit: {transaction:?}"
        );
        for (_, uid) in before.holding().filter(|(session, _)| !body.holds(session)) {
            assert!(
                uid.is_some(),
                "dropped a holder that lives: {transaction:?}"
            );
        }
        // The place of a dead holder may be given at once to another session of its workload, and so may the place of
        // a workload that is proved to be done.
        let replaced = transaction.grants.iter().any(|grant| !grant.starts)
            || !transaction.replaced.is_empty();
        let released =
            |session: &SessionId| transaction.releases.iter().any(|r| r.session == *session);
        let was_held = |session: &SessionId| held.contains(session);
        for (session, died) in self.died.iter().filter(|(session, _)| was_held(session)) {
            let before = self.came_back.get(session).map(|(died, _)| died);
            let rested = now.since(*before.unwrap_or(died)) >= settings.lock_delay;
            assert!(
                body.holds(session) || rested || replaced || released(session),
                "pruned before the lock-delay was over: {transaction:?}"
            );
        }
    }

    /// The three-way rule: a limit is changed if there was none, if it is ours by the recorded list, or if the policy
    /// says so, and then at most twice.
    fn check_limit(&mut self, written: &Written<'_>) {
        let limit = |sight: &Sight| sight.body.as_ref().map(|body| body.limit);
        let (before, after) = (limit(&written.before), limit(&written.after));
        let Some(moved) = after.filter(|_| before != after) else {
            return;
        };
        assert_eq!(written.transaction.limit, Some(moved));
        self.limit_is_ours = true;
        let recorded = |limit: u32| written.applied.contains(&limit);
        // Others have made the key and deleted it, since a transaction was sent that makes it. Nothing in Consul can
        // keep that one from arriving now. Its limit may be forgotten, and counts as somebody else's.
        if written.late && before.is_none() && !recorded(moved) {
            self.limit_is_ours = false;
            return;
        }
        assert!(recorded(moved), "wrote a limit that is not recorded");
        let ours = |limit: u32| recorded(limit) && self.claimed.contains(&limit);
        if before.is_some_and(|before| !ours(before)) {
            let policy = written.settings.policy;
            assert_eq!(policy, LimitPolicy::Enforce, "overwrote a foreign limit");
            if let Some(times) = self.defended.get_mut(&written.generation) {
                *times += 1;
                assert!(*times < 2, "wrote its limit again {times} times");
            }
        }
        self.defended.entry(written.generation).or_default();
    }

    /// A slot is reported as released: it is held no longer.
    pub(super) fn check_released(&self, session: &SessionId) {
        let goes_on = self.replaced.contains(session);
        assert!(
            !goes_on,
            "the slot of {session:?} is held by another session"
        );
    }

    /// Makes these limits count as the operator's from now on.
    pub(super) fn recorded(&mut self, limits: &[u32]) {
        self.claimed.extend(limits);
    }

    /// Consul and the spec agree on the limit, and nothing is left to do: from now on any other limit is somebody
    /// else's.
    pub(super) fn agreed(&mut self, limit: u32) {
        self.claimed.retain(|claimed| *claimed == limit);
    }

    /// Only the process knows how often a limit was enforced, and only if the call was answered.
    pub(super) fn forget_enforcements(&mut self) {
        self.defended.clear();
    }

    /// A workload is started in its own slot, with the token of its last grant, unless somebody took that slot after
    /// the operator's reading at `read`.
    pub(super) fn started(
        &mut self,
        start: &Start,
        sight: &Sight,
        read: Moment,
        (settings, now): (&Settings, Moment),
    ) {
        self.starts.push(now);
        self.check_rate(settings, now);
        let uid = &start.workload.uid;
        for slot in start.slots() {
            let session = slot.session();
            let mut holding = sight.holding();
            let holder = holding.find_map(|(holder, uid)| (holder == session).then_some(uid));
            if let Some(holder) = holder {
                assert_eq!(holder, Some(uid), "it is another's slot");
            }
            self.ran_in.insert(session.clone());
            let good = holder.is_some() && self.is_last_grant(session, slot.fencing_token());
            let taken = self.taken_since(session, read);
            assert!(good || taken, "{uid} was started without a slot: {start:?}");
        }
    }
}
