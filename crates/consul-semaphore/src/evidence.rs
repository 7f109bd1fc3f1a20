//! Keeps the evidence that running workloads hold their slots, and judges how long the evidence lasts.
//!
//! A slot counts as held while both the last successful renewal of its session and a reading of the prefix that shows
//! the slot held were sent less than a TTL ago. After that Consul may end the session, whether or not this operator
//! can see it.

use std::{collections::BTreeSet, time::Duration};

use super::{
    fate::OwnContender,
    identity::Identity,
    last_proof::{LastProof, Proved},
    reading::Reading,
    settings::Settings,
    workload::{Uid, Workload},
};
use consul_client::{
    SessionId,
    clock::Moment,
    id::{IdHash, IdMap},
};

/// The state of a session, as far as this process knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// The session was renewed. Consul never ends it within a TTL of the request.
    Renewed {
        /// The time at which the last successful renewal, or the request that made the session, was sent.
        sent: Moment,
        /// The session's own TTL.
        ttl: Duration,
    },
    /// The session has no TTL, so it ends only if someone destroys it.
    Endless,
    /// Nothing is known yet, because the session was found and its first renewal is unanswered.
    Unknown,
    /// Consul says that the session no longer exists.
    Gone,
}

impl SessionState {
    /// Returns until when the session lives for sure; `None` if nothing is known of it. A session without a TTL lives
    /// until Consul says otherwise.
    pub fn end(self) -> Option<Moment> {
        match self {
            Self::Renewed { sent, ttl } => Some(sent + ttl),
            Self::Endless => Some(Moment::END),
            Self::Unknown | Self::Gone => None,
        }
    }
}

/// Returns how long after its proof was sent a workload may run in a slot whose session has this TTL. The pods need
/// their grace period to end before the session can expire, but at most half of the TTL is kept for that.
pub fn tenure(ttl: Duration, grace: Duration) -> Duration {
    ttl.saturating_sub(grace).max(ttl / 2)
}

/// Returns until when Consul is asked first about a workload that had so much time `left` when it was last looked at.
/// The workload gets no more than that time, so all operators together let it run for its [`tenure`] at most, apart
/// from the second in which Consul can answer.
fn ask_until(now: Moment, settings: &Settings, left: Duration) -> Moment {
    now + left.min(settings.patience()).max(LATE)
}

/// The evidence for one slot of a running workload.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SlotEvidence {
    /// The session last seen to hold the slot.
    session: Option<SessionId>,
    /// The time at which the older of the two proofs was sent. For a workload that was found running and of which
    /// nothing was recorded, the time at which it was found.
    proved: Moment,
    /// Whether `proved` is the time of a proof.
    known: bool,
    /// The time for which a proof counts; `None` if only Consul can report the slot lost.
    ttl: Option<Duration>,
    /// The time since which Consul says that the slot is lost.
    lost: Option<Moment>,
    /// The time until which Consul is asked first, if the proofs may have become too old while no operator ran, or
    /// while this operator slept. A later proof ends this.
    put_off: Option<Moment>,
    /// Whether the workload still runs. Used only while that is being determined.
    runs: bool,
}

/// The evidence for the slots of running workloads.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The slots of each workload that every pass checks, by ordinal.
    slots: IdMap<Uid, Vec<SlotEvidence>>,
    /// The evidence for the other workloads.
    steady: Steady,
    /// The time of the last check of `slots`.
    looked: Moment,
    /// The time at which the last readable reading was sent. It shows the slots of the steady workloads.
    shown: Moment,
    /// The record of an earlier process about the workloads that are found running.
    last: Option<LastProof>,
}

/// The steady workloads: nothing is to be decided about them until something changes or their evidence becomes old.
/// Each of them runs in the slots that its contenders hold, one slot each, was started in these slots, and says so.
/// There may be thousands, so no pass checks them. Their stored evidence is a lower bound of what is known.
#[derive(Clone, Debug, Default)]
struct Steady {
    by_workload: IdMap<Uid, SteadyWorkload>,
    by_session: IdMap<SessionId, Uid>,
    /// The time by which each steady workload must be suspended, by the stored evidence.
    due: BTreeSet<(Moment, Uid)>,
}

/// A steady workload: its contenders, and the evidence for its slots, by ordinal.
#[derive(Clone, Debug)]
struct SteadyWorkload {
    ours: Vec<OwnContender>,
    held: Vec<SlotEvidence>,
    due: Option<Moment>,
}

impl SteadyWorkload {
    fn new(ours: Vec<OwnContender>, held: Vec<SlotEvidence>, settings: &Settings) -> Self {
        let mut holder = Self {
            ours,
            held,
            due: None,
        };
        holder.find_due(settings);
        holder
    }

    fn find_due(&mut self, settings: &Settings) {
        let workload = self.ours.first().and_then(|ours| ours.workload.as_ref());
        self.due = workload.and_then(|workload| first_deadline(&self.held, settings, workload));
    }

    fn keep_up(&mut self, shown: Moment, life: impl Fn(&SessionId) -> Option<SessionState>) {
        for held in &mut self.held {
            held.keep_up(shown, &life);
        }
    }
}

/// Returns when a workload with these slots must be suspended. The slot with the least evidence decides.
fn first_deadline(
    held: &[SlotEvidence],
    settings: &Settings,
    workload: &Workload,
) -> Option<Moment> {
    let deadlines = held.iter();
    deadlines
        .filter_map(|held| held.deadline(settings, workload))
        .min()
}

impl Steady {
    fn insert(&mut self, uid: &Uid, holder: SteadyWorkload) {
        let sessions = holder.ours.iter().map(|ours| ours.session.clone());
        self.by_session
            .extend(sessions.map(|session| (session, uid.clone())));
        self.due.extend(holder.due.map(|due| (due, uid.clone())));
        self.by_workload.insert(uid.clone(), holder);
    }

    fn remove(&mut self, uid: &Uid) -> Option<SteadyWorkload> {
        let holder = self.by_workload.remove(uid)?;
        for ours in &holder.ours {
            self.by_session.remove(&ours.session);
        }
        if let Some(due) = holder.due {
            self.due.remove(&(due, uid.clone()));
        }
        Some(holder)
    }
}

/// The longest delay before a missed deadline is noticed while this operator is awake.
pub const LATE: Duration = Duration::from_secs(1);

impl Evidence {
    /// Returns the evidence of a process that has seen nothing yet. `last` is the record of an earlier process about
    /// the workloads that this process finds running.
    pub fn after(last: Option<LastProof>) -> Self {
        Self {
            last,
            ..Self::default()
        }
    }

    /// Updates the evidence for the slots of running workloads. `ours` are our contenders in the reading, `reading` is
    /// `None` while Consul can't be read, and `life` returns the state of each session that this process renews, for
    /// all semaphores.
    pub fn observe(
        &mut self,
        now: Moment,
        settings: &Settings,
        running: &[&Workload],
        reading: Option<&Reading>,
        ours: &[OwnContender],
        life: impl Fn(&SessionId) -> Option<SessionState>,
    ) {
        let looked = std::mem::replace(&mut self.looked, now);
        let reading = reading.filter(|reading| reading.is_readable());
        if let Some(reading) = reading {
            self.shown = self.shown.max(reading.sent);
        }
        let mut holding: IdMap<(&Uid, u32), &SessionId> =
            IdMap::with_capacity_and_hasher(ours.len(), IdHash::default());
        for ours in ours {
            if reading.is_some_and(|reading| reading.holds(&ours.session)) {
                let Identity { uid, ordinal, .. } = &*ours.identity;
                holding.entry((uid, *ordinal)).or_insert(&ours.session);
            }
        }
        let lock_key = settings.prefix.lock_key();
        for workload in running {
            let known = self.slots.entry(workload.uid.clone()).or_default();
            for (place, held_by) in workload.slots_at(&lock_key).enumerate() {
                if known.len() == place {
                    let sessions = held_by.clone();
                    let shown = self.shown;
                    let proofs = sessions.filter_map(|id| SlotProof::of_session(life(id), shown));
                    let (last, renewed) = (self.last, proofs.max());
                    known.push(SlotEvidence::found(now, settings, workload, last, renewed));
                }
                let held = &mut known[place];
                held.runs = true;
                let due = held.deadline(settings, workload);
                let missed = due.filter(|due| looked < *due && *due + LATE < now);
                if let Some(due) = missed.filter(|_| !held.is_put_off(workload)) {
                    let left = due.since(looked);
                    held.put_off = Some(ask_until(now, settings, left));
                }
                let ordinal = u32::try_from(place).unwrap_or(u32::MAX);
                let own = holding
                    .get(&(&workload.uid, ordinal))
                    .map(|&session| (session, life(session)));
                if let Some(reading) = reading {
                    let seen = workload.seen;
                    held.look(now, seen, held_by, reading, own, &life);
                }
                let held_by = match own {
                    Some((session, life)) if held.session.as_ref() == Some(session) => life,
                    _ => held.session.as_ref().and_then(&life),
                };
                if held_by == Some(SessionState::Gone) {
                    held.lost.get_or_insert(now);
                }
            }
            known.retain(|held| held.runs);
        }
        self.slots.retain(|_, slots| {
            let runs = slots.iter_mut().map(|held| std::mem::take(&mut held.runs));
            runs.fold(false, |any, runs| any | runs)
        });
    }

    /// Returns by when this running workload must be suspended if nothing new is learned of its slots; `None`: never.
    /// The time is early enough for the pods to end before the evidence does, but not before half of the TTL is over.
    ///
    /// A workload that this operator found running counts as proved when an earlier process last proved it. If nothing
    /// was recorded, the workload counts as proved when it was found, and has half of the TTL.
    ///
    /// If the deadline passed while the operator slept or did not run, Consul is asked first: once after each proof,
    /// for [`Settings::patience`], but not for longer than an operator that neither slept nor ended would have let the
    /// workload run. There is at least a second.
    pub fn deadline(&self, settings: &Settings, workload: &Workload) -> Option<Moment> {
        let held = self.slots.get(&workload.uid).or_else(|| {
            let steady = self.steady.by_workload.get(&workload.uid);
            steady.map(|holder| &holder.held)
        })?;
        first_deadline(held, settings, workload)
    }

    /// Returns the oldest proof of the slots of running workloads; `None` if no slot has one. The proof of a slot that
    /// Consul says is lost is no newer than the loss. `life` is as in [`Self::observe`].
    pub fn oldest(&self, life: impl Fn(&SessionId) -> Option<SessionState>) -> Option<Proved> {
        let holders = self.steady.by_workload.values();
        let steady = holders.flat_map(|holder| &holder.held);
        let all = self.slots.values().flatten().chain(steady);
        let proved = all.filter_map(|held| {
            let mut held = held.clone();
            if held.lost.is_none() {
                held.keep_up(self.shown, &life);
            }
            let ttl = held.ttl?;
            Some(Proved {
                sent: held.proved,
                ttl,
            })
        });
        proved.reduce(Proved::and)
    }

    /// Returns the number of contenders of steady workloads. Each of them holds a slot and needs no decision.
    pub fn count_of_steady(&self) -> usize {
        self.steady.by_session.len()
    }

    /// Returns by when the first of the steady workloads must be suspended, by the stored evidence, without a check of
    /// the workloads. The time is later than the last call of `aged`.
    pub fn first_steady(&self) -> Option<Moment> {
        self.steady.due.first().map(|(due, _)| *due)
    }

    /// Returns the steady workload that holds its slot with this session.
    pub(super) fn steady_by(&self, session: &SessionId) -> Option<&Uid> {
        self.steady.by_session.get(session)
    }

    /// Returns the sessions with which a workload holds its slots, or none if it is not steady.
    pub(super) fn steady_sessions(&self, uid: &Uid) -> impl Iterator<Item = &SessionId> {
        let holder = self.steady.by_workload.get(uid);
        holder
            .into_iter()
            .flat_map(|holder| holder.ours.iter().map(|ours| &ours.session))
    }

    /// Makes the workload of these contenders, given in the order of their ordinals, steady if the evidence for its
    /// slots is new enough to leave the workload alone for a while. Returns whether it did.
    pub(super) fn settle(&mut self, settings: &Settings, ours: &[OwnContender]) -> bool {
        let Some((uid, workload)) = ours.first().and_then(|ours| {
            let workload = ours.workload.as_ref()?;
            Some((&ours.identity.uid, workload))
        }) else {
            return false;
        };
        let lasts = self.slots.get(uid).is_some_and(|held| {
            let same = held
                .iter()
                .map(|held| held.session.as_ref())
                .eq(ours.iter().map(|ours| Some(&ours.session)));
            let mut slots = held.iter();
            let sure = same && slots.all(|held| held.lost.is_none() && held.put_off.is_none());
            // A loss would make the deadline earlier.
            let late = |deadline| deadline > self.looked + settings.patience();
            sure && first_deadline(held, settings, workload).is_none_or(late)
        });
        let Some(held) = lasts.then(|| self.slots.remove(uid)).flatten() else {
            return false;
        };
        self.steady
            .insert(uid, SteadyWorkload::new(ours.to_vec(), held, settings));
        true
    }

    /// Makes every pass check this workload again. Returns its contenders if it was steady.
    pub(super) fn unsettle(
        &mut self,
        uid: &Uid,
        life: impl Fn(&SessionId) -> Option<SessionState>,
    ) -> Vec<OwnContender> {
        let Some(mut holder) = self.steady.remove(uid) else {
            return Vec::new();
        };
        holder.keep_up(self.shown, life);
        self.slots.insert(uid.clone(), holder.held);
        holder.ours
    }

    /// Makes every pass check all steady workloads again, and returns their contenders.
    pub(super) fn unsettle_all(
        &mut self,
        life: impl Fn(&SessionId) -> Option<SessionState>,
    ) -> Vec<OwnContender> {
        let Steady { by_workload, .. } = std::mem::take(&mut self.steady);
        let mut unsettled = Vec::with_capacity(by_workload.len());
        for (uid, mut holder) in by_workload {
            holder.keep_up(self.shown, &life);
            self.slots.insert(uid, holder.held);
            unsettled.extend(holder.ours);
        }
        unsettled
    }

    /// Updates the stored evidence of the steady workloads for which it becomes old. Returns the workloads for which it
    /// is still old after that; they are no longer among those that [`Self::first_steady`] considers.
    pub(super) fn aged(
        &mut self,
        now: Moment,
        settings: &Settings,
        life: impl Fn(&SessionId) -> Option<SessionState>,
    ) -> Vec<Uid> {
        let old = now + settings.patience();
        let mut aged = Vec::new();
        let mut renewed = Vec::new();
        while self.steady.due.first().is_some_and(|(due, _)| *due <= old) {
            let Some((_, uid)) = self.steady.due.pop_first() else {
                break;
            };
            let Some(holder) = self.steady.by_workload.get_mut(&uid) else {
                continue;
            };
            holder.keep_up(self.shown, &life);
            holder.find_due(settings);
            match holder.due {
                Some(due) if due <= old => aged.push(uid),
                due => renewed.extend(due.map(|due| (due, uid))),
            }
        }
        self.steady.due.extend(renewed);
        aged
    }
}

#[cfg(test)]
impl Evidence {
    /// Returns the latest possible deadline, by the last renewal and the last reading that showed the slot.
    pub(super) fn latest_deadline(
        &self,
        settings: &Settings,
        workload: &Workload,
        life: impl Fn(&SessionId) -> Option<SessionState>,
    ) -> Option<Moment> {
        let mut slots = self.slots.get(&workload.uid)?.clone();
        for held in &mut slots {
            held.keep_up(self.shown, &life);
        }
        first_deadline(&slots, settings, workload)
    }

    /// Returns until when a deadline of this workload is put off because the process slept past it.
    pub(super) fn put_off(&self, workload: &Workload) -> Option<Moment> {
        let held = self.slots.get(&workload.uid)?.iter();
        let put_off = held.filter(|held| held.is_put_off(workload));
        put_off.filter_map(|held| held.put_off).max()
    }
}

/// A proof that a slot is held, in the order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SlotProof {
    sent: Moment,
    /// The TTL of the session; `None` if only Consul can report the slot lost.
    ttl: Option<Duration>,
}

impl SlotProof {
    /// Returns what a session with this state proves, together with a reading that was sent at `shown`.
    fn of_session(life: Option<SessionState>, shown: Moment) -> Option<Self> {
        let (sent, ttl) = match life? {
            SessionState::Renewed { sent, ttl } => (sent.min(shown), Some(ttl)),
            SessionState::Endless => (shown, None),
            SessionState::Unknown | SessionState::Gone => return None,
        };
        Some(Self { sent, ttl })
    }
}

impl SlotEvidence {
    /// Makes the evidence for a slot of a workload found running now. `last` is the record of an earlier process.
    /// `renewed` is what this process has proved already of a session by which the workload held the slot, because it
    /// may have started the workload itself.
    fn found(
        now: Moment,
        settings: &Settings,
        workload: &Workload,
        last: Option<LastProof>,
        renewed: Option<SlotProof>,
    ) -> Self {
        let found = Self {
            session: None,
            proved: now,
            known: false,
            ttl: settings.ttl,
            lost: None,
            put_off: None,
            runs: true,
        };
        let Some(last) = last else {
            return found;
        };
        let shortest = settings.ttl.into_iter().chain(last.ttl).min();
        let last_proof = SlotProof {
            sent: last.sent,
            ttl: shortest,
        };
        let later = renewed.filter(|renewed| renewed.sent > last_proof.sent);
        let proof = later.unwrap_or(last_proof);
        let left = |ttl| tenure(ttl, workload.grace).saturating_sub(last.ran);
        Self {
            proved: proof.sent,
            known: true,
            ttl: proof.ttl,
            put_off: proof.ttl.map(|ttl| ask_until(now, settings, left(ttl))),
            ..found
        }
    }

    /// Returns when the evidence becomes too old; `None`: never.
    fn aged(&self, workload: &Workload) -> Option<Moment> {
        let ttl = self.ttl?;
        let lasts = if self.known {
            tenure(ttl, workload.grace)
        } else {
            ttl / 2
        };
        Some(self.proved + lasts)
    }

    /// Whether the deadline has been put off since the last proof.
    fn is_put_off(&self, workload: &Workload) -> bool {
        let aged = self.aged(workload);
        self.put_off
            .is_some_and(|until| aged.is_some_and(|aged| until > aged))
    }

    fn deadline(&self, settings: &Settings, workload: &Workload) -> Option<Moment> {
        let aged = self
            .aged(workload)
            .map(|aged| self.put_off.map_or(aged, |until| until.max(aged)));
        let lost = self.lost.map(|since| since + settings.patience());
        aged.into_iter().chain(lost).min()
    }

    /// Updates the evidence for a slot of a workload that was seen running at `seen`. `held_by` are the sessions by
    /// which the workload held the slot. `own` is the session made for the workload that holds the slot in the reading,
    /// with its state.
    fn look<'a>(
        &mut self,
        now: Moment,
        seen: Moment,
        mut held_by: impl Iterator<Item = &'a SessionId>,
        reading: &Reading,
        own: Option<(&SessionId, Option<SessionState>)>,
        life: impl Fn(&SessionId) -> Option<SessionState>,
    ) {
        let of_neighbour = || {
            let session = held_by.find(|session| reading.holds(session))?;
            let known = life(session).unwrap_or_else(|| self.renewed_elsewhere(reading));
            Some((session, Some(known)))
        };
        let (session, renewed, ttl) = match own.or_else(of_neighbour) {
            Some((session, Some(SessionState::Renewed { sent, ttl }))) => {
                (session, sent, Some(ttl))
            }
            Some((session, Some(SessionState::Endless))) => (session, reading.sent, None),
            // The slot is held, but nobody knows for how long.
            Some((_, Some(SessionState::Unknown) | None)) => return self.lost = None,
            Some((_, Some(SessionState::Gone))) => {
                self.lost.get_or_insert(now);
                return;
            }
            // A reading from before the workload was seen running does not show the slot lost.
            None => {
                if seen <= reading.sent {
                    self.lost.get_or_insert(now);
                }
                return;
            }
        };
        let proved = renewed.min(reading.sent);
        let before_proved = self.proved;
        let before = self.session.replace(session.clone());
        self.proved = before.map_or(proved, |_| self.proved.max(proved));
        self.known = true;
        self.ttl = ttl;
        self.lost = None;
        if self.proved > before_proved {
            self.put_off = None;
        }
    }

    /// Records the last renewal of the session that holds the slot. `shown` is the time of the last reading that shows
    /// that.
    fn keep_up(&mut self, shown: Moment, life: impl Fn(&SessionId) -> Option<SessionState>) {
        let (renewed, ttl) = match self.session.as_ref().and_then(life) {
            Some(SessionState::Renewed { sent, ttl }) => (sent, Some(ttl)),
            Some(SessionState::Endless) => (shown, None),
            Some(SessionState::Unknown | SessionState::Gone) | None => return,
        };
        self.proved = self.proved.max(renewed.min(shown));
        self.ttl = ttl;
    }

    /// Returns the state of a session that another operator of this cluster renews, for another `ConsulSemaphore` at
    /// the prefix. The session lives in this reading, and its last renewal may be a third of the TTL older, because
    /// sessions are renewed that often.
    fn renewed_elsewhere(&self, reading: &Reading) -> SessionState {
        self.ttl
            .map_or(SessionState::Endless, |ttl| SessionState::Renewed {
                sent: reading.sent.before(ttl / 3),
                ttl,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, samples};
    use consul_client::{Entry, Listing};

    const TTL: u64 = 100;

    fn settings() -> Settings {
        Settings {
            ttl: Some(Duration::from_secs(TTL)),
            ..samples::settings(1)
        }
    }

    fn second(since: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(since))
    }

    /// A reading sent at this second, in which `mine` holds the only slot, or nobody does.
    fn reading(sent: u64, held: bool) -> Reading {
        let entry = |key: &str, session: Option<&str>, value: &str| Entry {
            key: key.into(),
            value: value.into(),
            flags: 0,
            session: session.map(Into::into),
            lock_index: 1,
            create_index: 1,
            modify_index: 1,
        };
        let holders = if held { r#"{"mine":true}"# } else { "{}" };
        let lock = format!(r#"{{"Limit":1,"Holders":{holders}}}"#);
        let listing = Listing {
            entries: vec![
                entry(samples::LOCK_KEY, None, &lock),
                entry("p/mine", Some("mine"), ""),
            ]
            .into(),
            index: 1,
            sent: second(sent),
            reset: false,
        };
        Reading::new("p".parse().unwrap(), crate::Mode::Semaphore, listing)
    }

    /// A workload that runs in the slot of `mine` and whose pods take 30 s to end, and the evidence for its slot.
    struct Case {
        workload: Workload,
        evidence: Evidence,
    }

    impl Case {
        fn new() -> Self {
            Self {
                workload: samples::workload("a", Phase::Running, Some("mine"), Some("mine")),
                evidence: Evidence::default(),
            }
        }

        fn observe(&mut self, now: u64, reading: Option<&Reading>, life: SessionState) {
            let mut settings = settings();
            settings.ttl = (life != SessionState::Endless).then(|| Duration::from_secs(TTL));
            let ours = samples::ours("mine", Some(self.workload.clone()));
            let life = |_: &SessionId| Some(life);
            self.evidence.observe(
                second(now),
                &settings,
                &[&self.workload],
                reading,
                &[ours],
                life,
            );
        }

        fn deadline(&self) -> Option<Moment> {
            self.evidence.deadline(&settings(), &self.workload)
        }
    }

    fn renewed(sent: u64) -> SessionState {
        SessionState::Renewed {
            sent: second(sent),
            ttl: Duration::from_secs(TTL),
        }
    }

    #[test]
    fn the_older_of_renewal_and_reading_counts_and_the_pods_need_their_grace() {
        let mut case = Case::new();
        case.observe(20, Some(&reading(15, true)), renewed(10));
        assert_eq!(case.deadline(), Some(second(10 + 70)));
        case.observe(50, Some(&reading(16, true)), renewed(40));
        assert_eq!(case.deadline(), Some(second(16 + 70)), "the watch fails");
        case.observe(60, Some(&reading(60, true)), renewed(40));
        assert_eq!(case.deadline(), Some(second(40 + 70)), "renewals fail");
        case.observe(70, None, renewed(70));
        assert_eq!(case.deadline(), Some(second(40 + 70)), "no reading");
        case.workload.grace = Duration::from_secs(80);
        assert_eq!(case.deadline(), Some(second(40 + 50)), "half of it");
    }

    #[test]
    fn one_that_was_found_running_has_half_of_the_time_to_be_shown() {
        let mut case = Case::new();
        case.observe(20, None, SessionState::Unknown);
        case.observe(30, Some(&reading(30, true)), SessionState::Unknown);
        assert_eq!(case.deadline(), Some(second(20 + 50)));
        case.observe(40, Some(&reading(30, true)), renewed(35));
        assert_eq!(case.deadline(), Some(second(30 + 70)));
    }

    /// The record of an earlier process: a proof of second `sent`, and operators that have run for `ran` seconds since.
    fn recorded(sent: u64, ran: u64) -> Case {
        Case {
            evidence: Evidence::after(Some(LastProof {
                sent: second(sent),
                ttl: None,
                ran: Duration::from_secs(ran),
            })),
            ..Case::new()
        }
    }

    #[test]
    fn a_restart_renews_no_evidence() {
        let mut case = recorded(20, 30);
        case.observe(50, None, SessionState::Unknown);
        assert_eq!(case.deadline(), Some(second(20 + 70)));
        case.observe(60, Some(&reading(60, true)), renewed(60));
        assert_eq!(case.deadline(), Some(second(60 + 70)));
    }

    #[test]
    fn one_that_is_found_too_late_is_asked_about_for_no_longer_than_operators_would_have_let_it_run()
     {
        let patience = settings().patience();
        for (ran, puts_off) in [
            (30, patience),
            (65, Duration::from_secs(5)),
            (70, LATE),
            (500, LATE),
        ] {
            let mut case = recorded(20, ran);
            case.observe(200, None, SessionState::Unknown);
            assert_eq!(case.deadline(), Some(second(200) + puts_off), "ran {ran} s");
        }
    }

    #[test]
    fn the_shorter_ttl_of_the_sessions_found_counts() {
        let mut case = recorded(20, 0);
        case.evidence.last = case.evidence.last.map(|last| LastProof {
            ttl: Some(Duration::from_secs(80)),
            ..last
        });
        case.observe(21, None, SessionState::Unknown);
        assert_eq!(case.deadline(), Some(second(20 + 50)));
    }

    #[test]
    fn whoever_is_frozen_again_and_again_puts_a_deadline_off_once() {
        let mut case = Case::new();
        case.observe(20, Some(&reading(20, true)), renewed(20));
        case.observe(85, None, renewed(20));
        case.observe(95, None, renewed(20));
        let once = Some(second(95 + 5));
        assert_eq!(case.deadline(), once);
        for now in [105, 120, 140] {
            case.observe(now, None, renewed(20));
            assert_eq!(case.deadline(), once, "at {now}");
        }
    }

    #[test]
    fn the_oldest_proof_is_the_one_to_record() {
        let mut case = Case::new();
        let life = |_: &SessionId| Some(renewed(30));
        assert_eq!(case.evidence.oldest(life), None);
        case.observe(40, Some(&reading(35, true)), renewed(20));
        let proved = |sent| {
            Some(Proved {
                sent: second(sent),
                ttl: Duration::from_secs(TTL),
            })
        };
        assert_eq!(case.evidence.oldest(life), proved(30));
        case.observe(50, Some(&reading(50, false)), renewed(45));
        assert_eq!(
            case.evidence.oldest(life),
            proved(20),
            "renewals of a session prove no slot that Consul says is lost"
        );
    }

    #[test]
    fn what_consul_says_is_lost_must_be_had_again_soon() {
        let mut case = Case::new();
        case.observe(20, Some(&reading(20, true)), renewed(20));
        case.observe(30, Some(&reading(30, false)), renewed(30));
        case.observe(35, None, renewed(35));
        assert_eq!(case.deadline(), Some(second(30) + settings().patience()));
        case.observe(36, Some(&reading(36, true)), renewed(35));
        assert_eq!(case.deadline(), Some(second(35 + 70)));
        case.observe(40, Some(&reading(36, true)), SessionState::Gone);
        assert_eq!(case.deadline(), Some(second(40) + settings().patience()));
    }

    #[test]
    fn the_session_of_a_neighbour_counts_by_its_renewals_too() {
        let settings = settings();
        let workload = samples::workload("a", Phase::Running, Some("mine"), Some("mine"));
        let observe = |life: Option<SessionState>| {
            let mut evidence = Evidence::default();
            let reading = reading(40, true);
            let known = |_: &SessionId| life;
            evidence.observe(
                second(41),
                &settings,
                &[&workload],
                Some(&reading),
                &[],
                known,
            );
            evidence.deadline(&settings, &workload)
        };
        assert_eq!(observe(Some(renewed(10))), Some(second(10 + 70)));
        // Another operator renews the session, and may have done so a third of the TTL before.
        let third = Duration::from_secs(TTL) / 3;
        assert_eq!(
            observe(None),
            Some(second(40).before(third) + Duration::from_secs(70))
        );
        // Nothing is known yet, so the workload is treated like one that was found running.
        assert_eq!(observe(Some(SessionState::Unknown)), Some(second(41 + 50)));
        let lost = second(41) + settings.patience();
        assert_eq!(observe(Some(SessionState::Gone)), Some(lost));
    }

    #[test]
    fn what_was_read_before_the_workload_was_seen_running_proves_nothing_against_it() {
        let mut case = Case::new();
        case.workload.seen = second(19);
        case.observe(20, Some(&reading(18, false)), renewed(10));
        assert_eq!(case.deadline(), Some(second(20 + 50)));
    }

    #[test]
    fn whoever_slept_through_a_deadline_asks_consul_before_it_stops_anything() {
        let mut case = Case::new();
        case.observe(20, Some(&reading(20, true)), renewed(20));
        case.observe(300, Some(&reading(20, true)), renewed(20));
        let put_off = Some(second(300) + settings().patience());
        assert_eq!(case.deadline(), put_off);
        case.observe(313, None, renewed(20));
        case.observe(400, None, renewed(20));
        assert_eq!(case.deadline(), put_off, "only once");
        case.observe(401, Some(&reading(301, true)), renewed(302));
        assert_eq!(case.deadline(), Some(second(301 + 70)));
    }

    #[test]
    fn a_steady_workload_is_left_alone_until_what_is_kept_becomes_old() {
        let settings = settings();
        let mut case = Case::new();
        case.observe(20, Some(&reading(20, true)), renewed(20));
        let ours = samples::ours("mine", Some(case.workload.clone()));
        assert!(case.evidence.settle(&settings, std::slice::from_ref(&ours)));
        let life = |_: &SessionId| Some(renewed(55));
        let shown = reading(60, true);
        case.evidence
            .observe(second(60), &settings, &[], Some(&shown), &[], life);
        let mut aged = |now| case.evidence.aged(second(now), &settings, life);
        assert!(aged(77).is_empty());
        assert_eq!(case.evidence.first_steady(), Some(second(20 + 70)));
        let mut aged = |now| case.evidence.aged(second(now), &settings, life);
        assert!(aged(78).is_empty(), "it was renewed meanwhile");
        assert_eq!(case.evidence.first_steady(), Some(second(55 + 70)));
        let mut aged = |now| case.evidence.aged(second(now), &settings, life);
        assert_eq!(aged(113), [case.workload.uid.clone()], "and not again");
        let uid = &case.workload.uid;
        let unsettled = case.evidence.unsettle(uid, life);
        assert_eq!(unsettled, [ours]);
        assert_eq!(case.evidence.count_of_steady(), 0);
        assert_eq!(case.deadline(), Some(second(55 + 70)));
    }

    #[test]
    fn a_deadline_that_is_met_awake_is_not_put_off() {
        let mut case = Case::new();
        case.observe(20, Some(&reading(20, true)), renewed(20));
        for now in [89, 90, 91, 300] {
            case.observe(now, None, renewed(20));
            assert_eq!(case.deadline(), Some(second(90)), "at {now}");
        }
    }

    #[test]
    fn without_a_ttl_only_consuls_word_counts() {
        let mut case = Case::new();
        case.observe(20, Some(&reading(20, true)), SessionState::Endless);
        case.observe(9_999, None, SessionState::Endless);
        assert_eq!(case.deadline(), None);
        case.observe(9_999, Some(&reading(9_999, false)), SessionState::Endless);
        assert_eq!(case.deadline(), Some(second(9_999) + settings().patience()));
    }

    #[test]
    fn the_evidence_for_several_slots_is_the_least_of_all_of_them() {
        let (settings, key) = (settings(), samples::LOCK_KEY);
        let slot = |session: &str| crate::GrantedSlot {
            lock_key: key.into(),
            session: session.into(),
            index: None,
        };
        let mut workload = samples::workload("a", Phase::Running, Some("mine"), Some("mine"));
        workload.granted = Some(crate::Granted {
            slots: vec![slot("mine"), slot("second")],
        });
        workload.reported = vec!["mine".into(), "second".into()];
        let mut second_slot = samples::ours("second", Some(workload.clone()));
        second_slot.identity = std::sync::Arc::new(Identity {
            ordinal: 1,
            ..Identity::clone(&second_slot.identity)
        });
        let ours = [samples::ours("mine", Some(workload.clone())), second_slot];
        let lock = r#"{"Limit":2,"Holders":{"mine":true,"second":true}}"#;
        let entries = vec![
            samples::entry(key, None, lock),
            samples::entry("p/mine", Some("mine"), ""),
            samples::entry("p/second", Some("second"), ""),
        ];
        let listing = Listing {
            entries: entries.into(),
            index: 1,
            sent: second(30),
            reset: false,
        };
        let reading = Reading::new("p".parse().unwrap(), crate::Mode::Semaphore, listing);
        let life =
            |session: &SessionId| Some(renewed(if session.as_ref() == "mine" { 25 } else { 20 }));
        let mut evidence = Evidence::default();
        evidence.observe(
            second(31),
            &settings,
            &[&workload],
            Some(&reading),
            &ours,
            life,
        );
        let least = Some(second(20 + 70));
        assert_eq!(evidence.deadline(&settings, &workload), least);
        assert!(
            !evidence.settle(&settings, &ours[..1]),
            "one of them is missing"
        );
        assert!(evidence.settle(&settings, &ours));
        assert_eq!(
            (evidence.count_of_steady(), evidence.first_steady()),
            (2, least)
        );
        assert_eq!(evidence.deadline(&settings, &workload), least);
        assert_eq!(evidence.unsettle(&workload.uid, life), ours);
    }
}
