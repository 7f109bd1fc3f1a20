//! Consul, the workloads and the semaphores, which outlive every operator, and the rules that hold at every moment.
//!
//! It knows the rules from their documentation and reads Consul by itself: it shares nothing with the algorithm.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::super::{
    consul::{Consul, Refused, Snapshot},
    foreign::{Client, Style},
    indices::IndexJudge,
    requests::{Answer, Patch},
    sight::Sight,
    workloads::{Object, Workloads},
};
use super::world::ROUND;
use crate::{Settings, Uid, Workload, lock_key_of, plan::Start, rate::CLOCKS_APART, samples};
use consul_client::{Entry, Op, SessionId, clock::Moment};

/// The names of the semaphores, which are their prefixes, too.
pub(super) const NAMES: [&str; 3] = ["x", "y", "z"];

/// A semaphore.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) settings: Arc<Settings>,
    /// How often the spec of the semaphore has changed.
    pub(super) generation: i64,
    /// The `status.appliedLimits` of the semaphore.
    pub(super) applied: Vec<u32>,
    /// How often `status.appliedLimits` was written.
    pub(super) recorded: u64,
    pub(super) opens: Opens,
    /// How many of the semaphore's last slots are reserved, and for workloads of which priority and above.
    pub(super) reserved: Option<(u32, i32)>,
}

/// When a semaphore grants slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opens {
    /// The semaphore has no windows.
    Always,
    /// Not before its next window.
    Later,
    /// The windows of the semaphore allow so many holders.
    UpTo(u32),
    /// The open window allows so many holders, and a later one as many as the semaphore's limit.
    UpToForNow(u32),
}

impl Place {
    /// How many slots may be held after a grant to a workload of this priority; `None`: nothing is granted.
    pub(super) fn most(&self, priority: i32) -> Option<usize> {
        let limit = match self.opens {
            Opens::Always => self.settings.limit,
            Opens::Later => return None,
            Opens::UpTo(most) | Opens::UpToForNow(most) => self.settings.limit.min(most),
        };
        (!self.settings.paused).then(|| self.but_reserved(limit, priority))
    }

    /// How many slots may be held after a grant to a workload of this priority, in the largest window and while the
    /// semaphore is not paused.
    pub(super) fn ever(&self, priority: i32) -> usize {
        let limit = match self.opens {
            Opens::Always | Opens::Later | Opens::UpToForNow(_) => self.settings.limit,
            Opens::UpTo(most) => self.settings.limit.min(most),
        };
        self.but_reserved(limit, priority)
    }

    fn but_reserved(&self, limit: u32, priority: i32) -> usize {
        let reserved = self
            .reserved
            .filter(|(_, least)| priority < *least)
            .map_or(0, |(slots, _)| slots);
        usize::try_from(limit.saturating_sub(reserved)).unwrap()
    }
}

/// A transaction, with the waiting workloads that it grants something, as the operator knew them.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) operations: Vec<Op>,
    pub(super) firsts: Vec<Arc<Workload>>,
    /// How many slots of each semaphore might be held after a grant to each of these.
    pub(super) most: Vec<[Option<usize>; 3]>,
}

/// What becomes of a transaction on its way to Consul and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The operator gets the answer.
    Answered,
    /// Nobody gets the answer.
    Unanswered,
    /// It arrives when the operator waits for it no longer.
    Late,
}

/// What the observer remembers.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// When the slot of each session was last taken by anything but an operator.
    taken: BTreeMap<SessionId, Moment>,
    /// The workloads that lost a slot to anything but an operator, until they have all of theirs again.
    robbed: BTreeSet<Uid>,
    /// The workloads that lost a part of their slots to anything but an operator since they were last granted all.
    broken: BTreeSet<Uid>,
    /// The sessions that were gone and came back when Consul was restored.
    came_back: BTreeSet<SessionId>,
    /// The sessions that hold a slot, or may come to hold one, without the knowledge of an operator: they came back in
    /// a restore, or the answer of the grant did not arrive. A workload has their slots again once it names them.
    unnoticed: BTreeSet<SessionId>,
    /// How many slots of each semaphore each workload was last started in.
    ran: BTreeMap<Uid, [usize; 3]>,
    /// The workloads that were granted their slots by a transaction that came late, or beside another operator.
    late: BTreeSet<Uid>,
    /// The starts that count at a rate.
    starts: Vec<Moment>,
    /// What is known of the indices at each semaphore.
    indices: [IndexJudge; 3],
}

/// Everything that outlives the operators.
#[derive(Clone)]
pub(super) struct Outside {
    pub(super) consul: Consul,
    pub(super) workloads: Workloads,
    pub(super) places: Vec<Place>,
    pub(super) clients: Vec<(usize, Client)>,
    /// How many operations Consul takes in a transaction.
    pub(super) operations: usize,
    pub(super) seconds: u64,
    /// The transactions that have not reached Consul yet. Nobody waits for their answers.
    pub(super) late: Vec<Written>,
    /// The last snapshot of Consul.
    pub(super) snapshot: Snapshot,
    /// Whether two operators act, so that one may not know what the other has just done.
    pub(super) contested: bool,
    /// The workloads in the order in which they were started.
    pub(super) started: Vec<Uid>,
    /// How often things were seen to happen.
    pub(super) seen: BTreeMap<&'static str, usize>,
    memory: Memory,
}

impl Outside {
    /// Semaphores with these limits.
    pub(super) fn new(limits: &[u32], change: impl Fn(&mut Settings)) -> Self {
        let place = |(name, limit): (&&str, &u32)| {
            let mut settings = Settings {
                name: (*name).to_owned(),
                prefix: name.parse().unwrap(),
                namespace: "n".into(),
                ..samples::settings(*limit)
            };
            change(&mut settings);
            Place {
                settings: Arc::new(settings),
                generation: 1,
                applied: Vec::new(),
                recorded: 0,
                opens: Opens::Always,
                reserved: None,
            }
        };
        Self {
            consul: Consul::default(),
            workloads: Workloads::default(),
            places: NAMES.iter().zip(limits).map(place).collect(),
            clients: Vec::new(),
            operations: 64,
            seconds: 0,
            late: Vec::new(),
            snapshot: Snapshot::default(),
            contested: false,
            started: Vec::new(),
            seen: BTreeMap::new(),
            memory: Memory::default(),
        }
    }

    /// Another program at a semaphore, with the same limit.
    pub(super) fn add_client(&mut self, place: usize) {
        let place = place % self.places.len();
        let limit = usize::try_from(self.places[place].settings.limit).unwrap();
        self.clients.push((place, Client::new(Style::Go, limit)));
    }

    pub(super) fn now(&self) -> Moment {
        Moment::from_boot(Duration::from_secs(self.seconds))
    }

    pub(super) fn tick(&mut self, seconds: u64) {
        self.seconds += seconds;
        self.consul.seconds = self.seconds;
        self.workloads.clock = i64::try_from(self.seconds).unwrap();
    }

    /// The semaphores that are rates, with their periods.
    pub(super) fn rates(&self) -> impl Iterator<Item = (usize, Duration)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(place, of)| Some((place, of.settings.period?)))
    }

    /// For how many rounds nothing must be done until all is at rest: longer than a workload is passed over, or a start
    /// of a rate counts that was not answered.
    pub(super) fn quiet(&self) -> usize {
        let periods = self.rates().map(|(_, period)| period + 3 * CLOCKS_APART);
        let period = periods.max();
        let longest = period.unwrap_or_default().max(Duration::from_secs(75));
        usize::try_from(longest.as_secs() / ROUND + 1).unwrap()
    }

    pub(super) fn place(&mut self, place: usize) -> &mut Place {
        let number = self.places.len();
        &mut self.places[place % number]
    }

    /// The spec of a semaphore is changed.
    pub(super) fn respec(&mut self, place: usize, change: impl FnOnce(&mut Settings)) {
        let place = self.place(place);
        change(Arc::make_mut(&mut place.settings));
        place.generation += 1;
    }

    /// Which semaphore this lock key, or a key below its prefix, belongs to.
    pub(super) fn place_of(&self, key: &str) -> Option<usize> {
        let prefix = key.split('/').next()?;
        self.places
            .iter()
            .position(|place| place.settings.name == prefix)
    }

    /// Counts something that happens.
    pub(super) fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// How many slots of each semaphore a workload asks for.
    pub(super) fn asks(&self, workload: &Workload) -> [usize; 3] {
        let mut asks = [0; 3];
        for request in &workload.requests {
            if let Some(place) = self.place_of(&request.semaphore) {
                asks[place] += usize::try_from(request.slots.get()).unwrap();
            }
        }
        asks
    }

    /// A semaphore as it is now.
    pub(super) fn sight(&self, place: usize) -> Sight {
        let settings = &self.places[place].settings;
        let prefix = &settings.prefix;
        let lock = self.consul.get(&prefix.lock_key()).cloned();
        let contenders = self.consul.below(prefix).filter_map(|entry| {
            let session = entry.session.clone()?;
            (entry.key == prefix.contender_key(&session)).then_some(())?;
            let identity = self.consul.identity(&session);
            let own = identity.filter(|identity| settings.owns(identity));
            let uid = own.map(|identity| identity.uid.clone());
            Some((session, uid))
        });
        Sight::new(lock, contenders.collect())
    }

    pub(super) fn sights(&self) -> Vec<Sight> {
        (0..self.places.len())
            .map(|place| self.sight(place))
            .collect()
    }

    /// How many slots of each semaphore may be held after a grant to a workload of this priority.
    pub(super) fn most(&self, priority: i32) -> [Option<usize>; 3] {
        let mut most = [None; 3];
        for (most, place) in most.iter_mut().zip(&self.places) {
            *most = place.most(priority);
        }
        most
    }

    /// How many slots of each semaphore a workload holds.
    pub(super) fn held(sights: &[Sight], uid: &Uid) -> [usize; 3] {
        let mut held = [0; 3];
        for (count, sight) in held.iter_mut().zip(sights) {
            *count = sight.held_by(uid).len();
        }
        held
    }

    /// What counts of the rest when two states are compared.
    pub(super) fn facts(&self) -> impl std::fmt::Debug {
        let limits = self.places.iter().map(|place| place.applied.clone());
        let applied: Vec<_> = limits.collect();
        let Memory {
            taken: _,
            robbed,
            broken: _,
            came_back: _,
            unnoticed: _,
            ran,
            late: _,
            starts,
            indices: _,
        } = &self.memory;
        (
            applied,
            self.late.clone(),
            robbed.clone(),
            ran.clone(),
            starts.clone(),
            self.seconds,
        )
    }

    /// Anything but an operator acts.
    pub(super) fn by_others(&mut self, happens: impl FnOnce(&mut Self)) {
        let before = self.sights();
        happens(self);
        let now = self.now();
        for (before, after) in before.iter().zip(self.sights()) {
            let hold: BTreeSet<&SessionId> = after.holding().map(|(session, _)| session).collect();
            for (session, uid) in before.holding() {
                if !hold.contains(session) {
                    self.memory.taken.insert(session.clone(), now);
                    self.memory.robbed.extend(uid.cloned());
                    self.memory.broken.extend(uid.cloned());
                }
            }
        }
        self.look();
    }

    /// Consul is restored from the last snapshot.
    pub(super) fn restore(&mut self) {
        let before = self.consul.clone();
        self.consul.restore(&self.snapshot);
        let gone = |(session, _): &(&SessionId, _)| !before.is_alive(session);
        let back = self.consul.sessions().filter(gone);
        let revived: Vec<_> = back.map(|(session, _)| session.clone()).collect();
        self.memory.came_back.extend(revived.iter().cloned());
        self.memory.unnoticed.extend(revived);
    }

    /// At every moment: whoever runs holds all the slots that it was started in, unless somebody took one. One that
    /// it has again without the knowledge of an operator counts only once the operator relies on it.
    fn look(&mut self) {
        let mut sights = self.sights();
        let in_need = self.in_need();
        for (place, sight) in sights.iter().enumerate() {
            let lock_key = self.places[place].settings.prefix.lock_key();
            let objects = in_need.iter().filter_map(|uid| self.workloads.get(uid));
            self.memory.indices[place].look(&lock_key, sight, objects);
        }
        let Memory {
            robbed,
            ran,
            unnoticed,
            ..
        } = &mut self.memory;
        for sight in &mut sights {
            sight
                .contenders
                .retain(|session, _| !unnoticed.contains(session));
        }
        robbed.retain(|uid| in_need.contains(uid));
        for uid in in_need {
            let held = Self::held(&sights, &uid);
            let needs = ran.get(&uid).copied().unwrap_or_default();
            if held.iter().zip(needs).all(|(held, needs)| *held >= needs) {
                robbed.remove(&uid);
            } else {
                assert!(
                    robbed.contains(&uid),
                    "{uid} runs and holds {held:?} of {needs:?}"
                );
            }
        }
    }

    /// The workloads that a grant started and that run, or still have pods.
    fn in_need(&self) -> BTreeSet<Uid> {
        let objects = self.workloads.objects();
        let running = objects.filter(|object| object.runs() && object.granted.is_some());
        let pods = self.workloads.pods().iter().map(|pod| pod.workload.clone());
        let running = running.map(|object| object.uid.clone());
        running.chain(pods).collect()
    }

    /// A transaction of an operator's. `late`: nobody waits for it any more.
    pub(super) fn transact(
        &mut self,
        written: &Written,
        delivery: Delivery,
    ) -> Result<Vec<Entry>, Refused> {
        if written.operations.len() > self.operations {
            return Err(Refused::TooLarge);
        }
        let before = self.sights();
        let answer = self.consul.transact(&written.operations)?;
        let after = self.sights();
        for (before, after) in before.iter().zip(&after) {
            check_holders(before, after);
            if delivery != Delivery::Answered {
                let held: BTreeSet<_> = before.holding().map(|(session, _)| session).collect();
                let new = after.holding().map(|(session, _)| session);
                let new = new.filter(|session| !held.contains(session));
                self.memory.unnoticed.extend(new.cloned());
            }
        }
        self.check_restrictions(written, &before, &after);
        for workload in &written.firsts {
            let uid = &workload.uid;
            let mut had = Self::held(&before, uid);
            let mut has = Self::held(&after, uid);
            for (place, _) in self.rates() {
                // Those of its earlier starts are still held, or come free.
                let earlier = before[place].held_by(uid);
                has[place] = after[place].held_by(uid).difference(&earlier).count();
                had[place] = 0;
            }
            let all = self.asks(workload);
            let grew = has.iter().zip(had).any(|(has, had)| *has > had);
            assert!(
                !grew || has == all,
                "a part of a request was granted: {has:?} of {all:?} to {workload:?}"
            );
            let freed = |(before, after): (&Sight, &Sight)| {
                let holders = |sight: &Sight| sight.workloads();
                !holders(before).is_subset(&holders(after))
            };
            if has != had
                && before
                    .iter()
                    .zip(&after)
                    .filter(|both| freed(*both))
                    .count()
                    > 1
            {
                self.note("slots of several semaphores handed over in one transaction");
            }
            if has != had && (delivery == Delivery::Late || self.contested) {
                self.memory.late.insert(workload.uid.clone());
            }
            if has == all {
                self.memory.broken.remove(uid);
            }
        }
        self.look();
        Ok(answer)
    }

    /// Nothing is granted while a semaphore is paused or outside of its windows, and no slot that is reserved for
    /// others: as its spec was when that was decided. A workload that may have more slots may be granted them after it.
    fn check_restrictions(&mut self, written: &Written, before: &[Sight], after: &[Sight]) {
        for place in 0..self.places.len() {
            let granted = |workload: &Workload| {
                let earlier = before[place].held_by(&workload.uid);
                after[place]
                    .held_by(&workload.uid)
                    .difference(&earlier)
                    .count()
            };
            let pairs = written.firsts.iter().zip(&written.most);
            let all = pairs.map(|(workload, most)| (granted(workload), workload, most[place]));
            let grants: Vec<_> = all.filter(|(slots, ..)| *slots > 0).collect();
            let held = after[place]
                .body
                .as_ref()
                .map_or(0, |body| body.holders.len());
            for (_, workload, most) in &grants {
                let higher = grants.iter().filter(|(.., other)| other > most);
                let later: usize = higher.map(|(slots, ..)| slots).sum();
                assert!(
                    most.is_some_and(|most| held - later <= most),
                    "{held} hold slots of {place} after a grant to one that may have the first {most:?}: {workload:?}"
                );
            }
            if grants.iter().any(|(.., most)| *most < grants[0].2) {
                self.note("a grant of a reserved slot beside another grant");
            }
        }
    }

    /// A transaction that nobody waits for any more reaches Consul. It may well be refused.
    pub(super) fn land(&mut self) {
        if let Some(written) = self.late.pop() {
            let _refused = self.transact(&written, Delivery::Late);
        }
    }

    /// An operator destroys a session. If that was gone when it decided so, and came back when Consul was restored, its
    /// slot is lost to that.
    pub(super) fn destroy(&mut self, session: &SessionId) {
        if self.memory.came_back.contains(session) {
            return self.by_others(|outside| outside.consul.destroy(session));
        }
        self.consul.destroy(session);
        self.look();
    }

    /// A PATCH of an operator's, decided on a reading from that time.
    pub(super) fn patch(&mut self, patch: &Patch, read: Moment) -> Answer {
        let uid = &patch.target().uid;
        let before = self.workloads.get(uid).cloned();
        let answer = self.workloads.patch(patch, false);
        if answer != Answer::Done {
            return answer;
        }
        self.note(match patch {
            Patch::Start(start) if start.others.is_empty() => "a start in one slot",
            Patch::Start(_) => "a start in several slots",
            Patch::Suspend(_) => "a suspension",
            Patch::GiveBack(_) => "a slot given back",
            Patch::Rename(_) => "a slot had again",
            Patch::RecordWait(_) => "a wait that was recorded",
            Patch::Skip(_) => "a skip",
            Patch::Fail(fail) => fail.why.reason(),
            Patch::End(_) => "an end",
            Patch::Stop(_) => "a stop",
        });
        match (patch, before) {
            (Patch::Start(start), Some(object)) => self.check_start(start, &object, read),
            (Patch::Rename(rename), _) => {
                let unnoticed = &mut self.memory.unnoticed;
                unnoticed.retain(|session| !rename.sessions.contains(session));
            }
            (Patch::Fail(_) | Patch::Skip(_), _) => {
                let mut held = Self::held(&self.sights(), uid);
                // The slot of a grant whose start failed stays held for its period, whatever becomes of its workload.
                self.rates().for_each(|(place, _)| held[place] = 0);
                // What is left of a grant that lost a part is given back, whether it waits on or fails.
                let Memory { late, broken, .. } = &self.memory;
                let excused = late.contains(uid) || broken.contains(uid);
                assert!(held == [0; 3] || excused, "{uid} fails and holds {held:?}");
            }
            _ => {}
        }
        self.look();
        answer
    }

    /// A workload is started in every slot of its request, and holds them all, unless somebody took one after the
    /// operator's reading.
    fn check_start(&mut self, start: &Start, object: &Object, read: Moment) {
        let (uid, sights) = (&object.uid, self.sights());
        let mut slots = [0; 3];
        let mut excused = false;
        for slot in start.slots() {
            self.memory.unnoticed.remove(slot.session());
            let lock_key = lock_key_of(slot.key());
            let place = self.place_of(&lock_key).expect("a semaphore");
            slots[place] += 1;
            let mut holding = sights[place].holding();
            let holder = holding.find(|(session, _)| *session == slot.session());
            if let Some((_, of)) = holder {
                assert_eq!(of, Some(uid), "it is another's slot");
            } else {
                let last = self.memory.taken.get(slot.session());
                let taken = last.is_some_and(|taken| *taken >= read);
                assert!(taken, "{uid} was started without a slot: {start:?}");
                excused = true;
            }
        }
        let mut asks = [0; 3];
        for request in object.asks() {
            let place = self.place_of(&request.semaphore).expect("a semaphore");
            asks[place] += usize::try_from(request.slots.get()).unwrap();
        }
        assert_eq!(slots, asks, "{uid} was started with a part of its request");
        if excused {
            self.memory.robbed.insert(uid.clone());
        }
        self.count_starts(&mut slots);
        self.memory.ran.insert(uid.clone(), slots);
        self.started.push(uid.clone());
    }

    /// At most `limit` starts of a rate lie in any period. Whoever runs need not hold its slots.
    fn count_starts(&mut self, slots: &mut [usize; 3]) {
        let now = self.now();
        for (place, slots) in self.places.iter().zip(slots) {
            let Some(period) = place.settings.period else {
                continue;
            };
            let starts = &mut self.memory.starts;
            starts.extend(std::iter::repeat_n(now, std::mem::take(slots)));
            let recent = starts.iter().filter(|start| now.since(**start) < period);
            let limit = usize::try_from(place.settings.limit).unwrap();
            let recent = recent.count();
            assert!(recent <= limit, "{recent} of {limit} starts in {period:?}");
        }
    }
}

/// No write of an operator's adds a holder beyond the limit, or drops a foreign one that lives.
fn check_holders(before: &Sight, after: &Sight) {
    let Some(body) = &after.body else {
        return;
    };
    let empty = Vec::new();
    let held = before.body.as_ref().map_or(&empty, |body| &body.holders);
    let added = body.holders.iter().any(|holder| !held.contains(holder));
    assert!(
        !added || body.holders.len() <= body.limit(),
        "more holders than the limit: {body:?}"
    );
    for (session, uid) in before.holding() {
        let stays = body.holds(session) || uid.is_some();
        assert!(stays, "dropped a foreign holder that lives: {session:?}");
    }
}
