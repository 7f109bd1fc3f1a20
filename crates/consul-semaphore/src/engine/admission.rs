//! Admits workloads to the queues that they come into, and makes those fail that come into a full queue.
//!
//! A workload that comes is a newcomer until it is admitted to all queues in which it asks for slots, or fails. An
//! admitted workload goes on waiting, even if [`WaitSettings::max_waiting`](crate::WaitSettings::max_waiting) is lowered.
//! The caller stores which workloads are newcomers. Workloads that were ever granted slots count as admitted. So do those that the
//! caller finds when it starts, because an earlier process may have admitted them, and nothing records that.
//!
//! A queue is full when as many workloads wait in it as may. A workload does not wait if it holds slots, can have its
//! slots at once, is being written to, or can't be started because the API server refuses that.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Conclusion, Lookup, Now, Queue, QueueRef, Stores,
    semaphores::Semaphores,
    waits::{MOST_WAITS_PER_PASS, WaitPass},
};
use crate::{
    Uid, Workload,
    plan::{Fail, Failed},
};

/// The most newcomers of one queue that are looked at after one pass.
const MOST_NEWCOMERS_READ: usize = 512;

/// The room that a queue has for newcomers.
struct Room {
    /// Number of workloads that were admitted and wait.
    admitted: usize,
    /// Number of workloads that may wait.
    most: usize,
    /// Newcomers that wait, with the number of those that came before each.
    newcomers: BTreeMap<Uid, usize>,
    /// Workloads that do not wait.
    apart: Apart,
}

/// Workloads in a queue that do not wait.
#[derive(Default)]
struct Apart {
    /// Workloads that hold slots.
    holding: BTreeSet<Uid>,
    /// Workloads that can have their slots at once, are being written to, or can't be started.
    leaving: BTreeSet<Uid>,
}

impl Apart {
    fn all(&self) -> BTreeSet<Uid> {
        self.holding.union(&self.leaving).cloned().collect()
    }
}

/// The decision about a newcomer.
enum Admission {
    Admitted,
    /// The workload is not judged, because it does not wait.
    Apart,
    /// The workload fails for this reason, if it can't have its slots at once.
    Full(Failed),
    /// Something that the decision depends on is not known yet.
    Undecided,
}

impl Room {
    /// Returns the room of a queue in which all that have come may wait.
    fn for_all() -> Self {
        Self {
            admitted: 0,
            most: usize::MAX,
            newcomers: BTreeMap::new(),
            apart: Apart::default(),
        }
    }

    /// Returns how many workloads wait that were admitted or came before this newcomer.
    fn before(&self, newcomer: &Uid) -> usize {
        let before = self.newcomers.get(newcomer).copied();
        self.admitted + before.unwrap_or(self.newcomers.len())
    }

    fn full(&self, queue: &QueueRef, waiting: usize) -> Admission {
        Admission::Full(Failed::QueueFull {
            semaphore: queue.title(),
            waiting,
            most: self.most,
        })
    }
}

impl<S: Stores> WaitPass<'_, S> {
    /// Admits the newcomers of a queue in the order in which they came, or makes them fail.
    pub(super) fn admit_newcomers(&mut self, queue: &QueueRef) {
        let newcomers = self.stores.of(queue).unadmitted(MOST_NEWCOMERS_READ);
        let known = self.semaphores.queue(queue);
        let is_busy = |uid: &Uid| known.is_some_and(|known| known.writes.is_busy(uid));
        let busy = newcomers.iter().filter(|newcomer| is_busy(&newcomer.uid));
        let most_failed = MOST_WAITS_PER_PASS.saturating_sub(busy.count());
        let (mut admitted, mut failed, mut rooms) = (0, 0, BTreeMap::new());
        for newcomer in &newcomers {
            let queues = self
                .semaphores
                .queues_for(&queue.semaphore.namespace, newcomer);
            for of in &queues {
                if !rooms.contains_key(of) {
                    rooms.insert(of.clone(), self.rooms().of(of));
                }
            }
            match judge(queue, &queues, newcomer, &rooms, failed) {
                Admission::Admitted => {
                    self.stores.of(queue).admit(&newcomer.uid);
                    admitted += 1;
                }
                Admission::Full(why) if failed < most_failed => {
                    if self.is_to_fail(queue, &queues, newcomer) {
                        let workload = newcomer.into();
                        self.fail(queue, &queues, Fail { workload, why });
                        failed += 1;
                    }
                }
                Admission::Full(_) | Admission::Undecided | Admission::Apart => {}
            }
        }
        if admitted > 0 && newcomers.len() == MOST_NEWCOMERS_READ {
            self.semaphores.agenda.mark(queue);
        }
    }

    /// Whether a newcomer that finds a queue full fails: if it is certain that it can't have its slots at once. A
    /// reading from before the workload existed does not count against it.
    fn is_to_fail(&mut self, queue: &QueueRef, queues: &[QueueRef], newcomer: &Workload) -> bool {
        let age = self.now.moment.since(newcomer.seen);
        self.rooms().are_out_of_reach(queues, newcomer)
            && self.only_waits(queue, queues, &newcomer.uid)
            && self.have_read_within(queues, age)
    }

    fn rooms(&self) -> Rooms<'_, S> {
        Rooms {
            semaphores: self.semaphores,
            now: self.now,
            stores: self.stores,
        }
    }
}

/// What is known of the room in queues.
struct Rooms<'a, S> {
    semaphores: &'a Semaphores,
    now: Now,
    stores: &'a S,
}

impl<S: Stores> Rooms<'_, S> {
    /// Returns the room of a queue; `None` while that is not certain.
    fn of(&self, queue: &QueueRef) -> Option<Room> {
        let known = self.semaphores.queue(queue)?;
        let settings = known.settings();
        let lookup = self.stores.of(queue);
        let most = settings.wait.max_waiting.filter(|_| !settings.terminating);
        let Some(most) = most.and_then(|most| usize::try_from(most).ok()) else {
            return Some(Room::for_all());
        };
        if lookup.count_waiting() <= most {
            return Some(Room::for_all());
        }
        let apart = self.apart(queue)?;
        let left_out = apart.all();
        let unadmitted = lookup.unadmitted(MOST_NEWCOMERS_READ).into_iter();
        let newcomers = unadmitted.filter(|newcomer| !left_out.contains(&newcomer.uid));
        Some(Room {
            admitted: lookup.count_admitted(&left_out)?,
            most,
            newcomers: newcomers
                .map(|newcomer| newcomer.uid.clone())
                .zip(0..)
                .collect(),
            apart,
        })
    }

    /// Returns the workloads of a queue that do not wait; `None` while that is not certain.
    fn apart(&self, queue: &QueueRef) -> Option<Apart> {
        let known = self.semaphores.queue(queue)?;
        let (conclusion, _) = self.certain_spare(queue)?;
        let lookup = self.stores.of(queue);
        let is_granted_next = |uid: &&Uid| {
            let workload = lookup.workload(uid);
            workload.is_some_and(|workload| {
                let queues = self
                    .semaphores
                    .queues_for(&queue.semaphore.namespace, &workload);
                queues
                    .iter()
                    .all(|queue| self.semaphores.reaches(queue, uid))
            })
        };
        let mut leaving = known.writes.leaving(self.now.moment);
        leaving.extend(conclusion.in_reach.iter().filter(is_granted_next).cloned());
        Some(Apart {
            holding: holding(known),
            leaving,
        })
    }

    /// Returns the result of the last pass over a queue and the number of slots that it left free, if these are
    /// certain.
    fn certain_spare(&self, queue: &QueueRef) -> Option<(&Conclusion, usize)> {
        let conclusion = self
            .semaphores
            .concluded(queue)
            .filter(|last| last.certain)?;
        let known = self.semaphores.queue(queue)?;
        let certain = conclusion.spare.filter(|_| known.trouble().is_none());
        Some((conclusion, certain?))
    }

    /// Whether it is certain that some queue can't grant a workload its slots at once.
    fn are_out_of_reach(&self, queues: &[QueueRef], workload: &Workload) -> bool {
        queues.iter().any(|queue| {
            let Some((conclusion, spare)) = self.certain_spare(queue) else {
                return false;
            };
            let needed = self.semaphores.queue(queue).and_then(|known| {
                let settings = known.settings();
                let opening = settings.restrictions.windows.at(self.now.time);
                let asked = settings.request(workload)?.slots.get();
                let withheld = settings.withheld(opening, workload.priority);
                usize::try_from(asked.saturating_add(withheld)).ok()
            });
            let read = conclusion.in_reach.contains(&workload.uid);
            !read && needed.is_some_and(|needed| needed > spare)
        })
    }
}

/// Judges a newcomer of a queue. The newcomers before it in this queue were judged, and `failed` of them fail.
fn judge(
    queue: &QueueRef,
    queues: &[QueueRef],
    newcomer: &Workload,
    rooms: &BTreeMap<QueueRef, Option<Room>>,
    failed: usize,
) -> Admission {
    if !newcomer.was_never_granted() {
        return Admission::Admitted;
    }
    let newcomer = &newcomer.uid;
    let mut has_room = true;
    let mut full = None;
    for of in queues {
        let Some(room) = rooms.get(of).and_then(Option::as_ref) else {
            has_room = false;
            continue;
        };
        if room.apart.holding.contains(newcomer) {
            return Admission::Admitted;
        }
        if room.apart.leaving.contains(newcomer) {
            return Admission::Apart;
        }
        let before = room.before(newcomer);
        let (waiting, certainly) = if of == queue {
            let waiting = before.saturating_sub(failed);
            (waiting, waiting)
        } else {
            // The newcomers before this one may fail.
            (before, room.admitted)
        };
        has_room &= waiting < room.most;
        if certainly >= room.most {
            full = Some(room.full(of, certainly));
        }
    }
    match full {
        Some(full) => full,
        None if has_room => Admission::Admitted,
        None => Admission::Undecided,
    }
}

/// Returns the workloads that hold slots of a queue, or may hold some.
fn holding(queue: &Queue) -> BTreeSet<Uid> {
    let Some(reading) = queue.reading() else {
        return BTreeSet::new();
    };
    let own = queue.active.own_contenders();
    let holding = own.filter(|(session, _)| reading.may_hold(session));
    holding.map(|(_, identity)| identity.uid.clone()).collect()
}
