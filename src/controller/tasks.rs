//! Runs tasks about workloads: a few at once, at most one for each workload, in fair shares for each namespace. No
//! task waits for another one.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::task::JoinSet;

use super::due_times::DueTimes;
use consul_client::clock::Moment;
use consul_semaphore::{Uid, holding::Setback};

/// Time for which the pause of a workload is remembered after it is over. If there is something to do again by then,
/// it waits for the next pause, which grows each time, because another controller may undo it at once.
const PAUSE_REMEMBERED_FOR: Duration = Duration::from_mins(1);

/// Tasks that each return a `T`, and the times at which workloads are due for one. The owner of this looks only at
/// workloads that are due, however many others there are.
///
/// A webhook can block all writes in its namespace, so namespaces share the tasks as they share
/// [`FairTurns`](consul_client::turns::FairTurns): another task starts in a namespace only while more tasks are free
/// than the namespace has.
pub(super) struct Tasks<T> {
    most: usize,
    running: JoinSet<(Uid, T)>,
    /// Workloads that a task runs for, with their namespaces.
    busy: HashMap<Uid, Arc<str>>,
    /// Number of running tasks in each namespace.
    shares: HashMap<Arc<str>, usize>,
    due: DueTimes<Moment>,
    /// Workloads that were due when their namespace already had its share.
    deferred: Deferred,
    pauses: HashMap<Uid, Pause>,
}

/// Workloads that wait until their namespace may have another task, in the order in which they came.
#[derive(Default)]
struct Deferred {
    all: HashSet<Uid>,
    by_namespace: BTreeMap<Arc<str>, VecDeque<Uid>>,
}

impl Deferred {
    fn push(&mut self, workload: &Uid, namespace: &Arc<str>) {
        if self.all.insert(workload.clone()) {
            let deferred = self.by_namespace.entry(namespace.clone()).or_default();
            deferred.push_back(workload.clone());
        }
    }

    /// Takes the next workload of the namespace with the smallest share, if that share is smaller than `less`.
    fn take(&mut self, less: usize, share: impl Fn(&Arc<str>) -> usize) -> Option<Uid> {
        let namespaces = self.by_namespace.iter_mut();
        let smallest = namespaces.min_by_key(|(namespace, _)| share(namespace));
        let (namespace, deferred) = smallest.filter(|(namespace, _)| share(namespace) < less)?;
        let workload = deferred.pop_front()?;
        if deferred.is_empty() {
            let namespace = namespace.clone();
            self.by_namespace.remove(&namespace);
        }
        self.all.remove(&workload);
        Some(workload)
    }
}

/// The time for which no task starts about a workload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pause {
    /// A pause until this moment. The next pause does not grow from it.
    Again(Moment),
    /// A pause after a setback. The next pause grows from it.
    Undone(Setback),
}

impl Pause {
    pub(super) fn until(&self) -> Moment {
        match self {
            Self::Again(until) => *until,
            Self::Undone(setback) => setback.until,
        }
    }

    /// Returns the setback that the next pause grows from.
    pub(super) fn setback(before: Option<&Self>) -> Option<&Setback> {
        match before? {
            Self::Undone(setback) => Some(setback),
            Self::Again(_) => None,
        }
    }

    /// Returns the pause after something was done that another controller may undo.
    pub(super) fn outrun(before: Option<&Self>, now: Moment) -> Self {
        Self::Undone(Setback::outrun(Self::setback(before), now))
    }

    /// Returns the pause after a task could do nothing.
    pub(super) fn after_failure(before: Option<&Self>, now: Moment) -> Self {
        Self::Undone(Setback::after(Self::setback(before), now))
    }
}

impl<T: Send + 'static> Tasks<T> {
    /// Creates an empty set of tasks, of which at most this many run at once.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            running: JoinSet::new(),
            busy: HashMap::new(),
            shares: HashMap::new(),
            due: DueTimes::default(),
            deferred: Deferred::default(),
            pauses: HashMap::new(),
        }
    }

    /// Makes a workload due at this time at the latest, but not before its pause is over.
    pub(super) fn plan(&mut self, workload: &Uid, at: Moment) {
        if !self.is_in_hand(workload) {
            let pause = self.pauses.get(workload).map(Pause::until);
            self.due
                .set_by(workload, pause.map_or(at, |pause| pause.max(at)));
        }
    }

    /// Makes a workload due now, even during its pause, unless a task about it runs or is deferred.
    pub(super) fn hurry(&mut self, workload: &Uid, now: Moment) {
        if !self.is_in_hand(workload) {
            self.due.set_by(workload, now);
        }
    }

    /// Takes the next workload that is due, if another task can start.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<Uid> {
        let free = self.most - self.busy.len();
        if free == 0 {
            return None;
        }
        let shares = &self.shares;
        let share = |namespace: &Arc<str>| shares.get(namespace).copied().unwrap_or(0);
        let deferred = self.deferred.take(free, share);
        deferred.or_else(|| self.due.take_due(now))
    }

    /// Returns whether a task about a workload that was due can start in its namespace now. If not, the workload is
    /// deferred, and [`take_due`](Self::take_due) returns it again when the task can start.
    pub(super) fn may_start(&mut self, workload: &Uid, namespace: &Arc<str>) -> bool {
        let share = self.shares.get(namespace).copied().unwrap_or(0);
        let may = share < self.most - self.busy.len();
        if !may {
            self.deferred.push(workload, namespace);
        }
        may
    }

    /// Returns whether a task about the workload runs or is deferred, so that the workload needs no due time.
    fn is_in_hand(&self, workload: &Uid) -> bool {
        self.busy.contains_key(workload) || self.deferred.all.contains(workload)
    }

    /// Notes that there is nothing to do about a workload that was due. Its pause is remembered for
    /// [`PAUSE_REMEMBERED_FOR`].
    pub(super) fn rest(&mut self, workload: &Uid, now: Moment) {
        let Some(pause) = self.pauses.get(workload) else {
            return;
        };
        let forgotten = pause.until() + PAUSE_REMEMBERED_FOR;
        if forgotten > now {
            self.due.set_by(workload, forgotten);
        } else {
            self.pauses.remove(workload);
        }
    }

    /// Starts a task about a workload that was due and [may start](Self::may_start).
    pub(super) fn start(
        &mut self,
        workload: Uid,
        namespace: Arc<str>,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        *self.shares.entry(namespace.clone()).or_default() += 1;
        self.busy.insert(workload.clone(), namespace);
        self.running.spawn(async move { (workload, task.await) });
    }

    /// Waits for the next task that ends, and returns its result with its workload; `None` if no task runs. The
    /// caller then has to call [`pause`](Self::pause).
    pub(super) async fn next(&mut self) -> Option<(Uid, T)> {
        match self.running.join_next().await? {
            Ok((workload, ended)) => {
                self.free(&workload);
                Some((workload, ended))
            }
            // A task that panics is a bug, and ends the operator. No task is aborted.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Gives the share of a task that has ended back to its namespace.
    fn free(&mut self, workload: &Uid) {
        if let Some(namespace) = self.busy.remove(workload)
            && let Some(share) = self.shares.get_mut(&namespace)
        {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(&namespace);
            }
        }
    }

    /// Pauses a workload after a task about it; `next` makes the pause from the one before. The workload is due when
    /// the pause is over.
    pub(super) fn pause(&mut self, workload: &Uid, next: impl FnOnce(Option<&Pause>) -> Pause) {
        let pause = next(self.pauses.get(workload));
        self.pauses.insert(workload.clone(), pause);
        self.due.set(workload, pause.until());
    }

    /// Returns the time until the next workload is due, or the maximum if no further task can start.
    pub(super) fn wait(&self, now: Moment) -> Duration {
        let next = self.due.next().filter(|_| self.busy.len() < self.most);
        next.map_or(Duration::MAX, |next| next.since(now))
    }
}

#[cfg(test)]
mod tests {
    use std::future;

    use super::*;

    fn at(second: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(second))
    }

    #[tokio::test]
    async fn one_that_takes_long_delays_no_other() {
        let mut tasks = Tasks::new(2);
        let names = ["a", "b", "c"];
        tasks.start("slow".into(), "batch".into(), future::pending());
        for name in names {
            tasks.plan(&name.into(), at(1));
        }
        for name in names {
            let due = tasks.take_due(at(1)).unwrap();
            assert_eq!(due, name.into());
            tasks.start(due, "other".into(), future::ready(name));
            assert_eq!(tasks.take_due(at(1)), None, "no more at once");
            assert_eq!(tasks.wait(at(1)), Duration::MAX);
            assert_eq!(tasks.next().await, Some((name.into(), name)));
        }
        tasks.plan(&"slow".into(), at(1));
        assert_eq!(tasks.take_due(at(1)), None, "there is one about it");
    }

    /// A namespace can have a webhook that does not answer.
    #[tokio::test]
    async fn a_namespace_whose_tasks_hang_leaves_turns_to_others() {
        let mut tasks = Tasks::new(8);
        let start = |tasks: &mut Tasks<()>, names: &[&str], namespace: &str, hangs: bool| {
            for name in names {
                tasks.plan(&(*name).into(), at(1));
            }
            let mut started = Vec::new();
            while let Some(uid) = tasks.take_due(at(1)) {
                if tasks.may_start(&uid, &namespace.into()) {
                    started.push(uid.to_string());
                    tasks.start(uid, namespace.into(), async move {
                        if hangs {
                            future::pending::<()>().await;
                        }
                    });
                }
            }
            started
        };
        let flood = ["1", "2", "3", "4", "5", "6", "7"];
        let started = start(&mut tasks, &flood, "flood", true);
        assert_eq!(started, ["1", "2", "3", "4"], "half of them");
        assert_eq!(start(&mut tasks, &["a"], "other", false), ["a"]);
        assert_eq!(tasks.next().await, Some(("a".into(), ())));
        tasks.pause(&"a".into(), |_| Pause::Again(at(9)));
        // No task of the flooded namespace has ended.
        assert_eq!(start(&mut tasks, &[], "flood", true), [""; 0]);
        assert_eq!(start(&mut tasks, &["b"], "other", false), ["b"]);
    }

    #[tokio::test]
    async fn what_was_deferred_starts_when_others_have_ended_also_if_one_of_them_is_gone() {
        let mut tasks = Tasks::new(2);
        for name in ["a", "b", "gone", "c"] {
            tasks.plan(&name.into(), at(1));
            tasks.plan(&name.into(), at(1));
        }
        let mut ended = Vec::new();
        loop {
            while let Some(uid) = tasks.take_due(at(1)) {
                if uid == "gone".into() && !ended.is_empty() {
                    tasks.rest(&uid, at(1));
                } else if tasks.may_start(&uid, &"batch".into()) {
                    tasks.start(uid, "batch".into(), future::ready(()));
                }
            }
            // There is news of a deferred workload.
            tasks.plan(&"c".into(), at(1));
            let Some((uid, ())) = tasks.next().await else {
                break;
            };
            tasks.pause(&uid, |_| Pause::Again(at(9)));
            ended.push(uid.to_string());
        }
        assert_eq!(ended, ["a", "b", "c"]);
        assert!(tasks.deferred.all.is_empty() && tasks.deferred.by_namespace.is_empty());
        assert!(tasks.shares.is_empty());
    }

    #[tokio::test]
    async fn a_pause_grows_until_it_is_forgotten() {
        let mut tasks = Tasks::new(2);
        let uid = Uid::from("a");
        let until = |tasks: &Tasks<()>| tasks.pauses.get(&Uid::from("a")).map(Pause::until);
        let pause = |tasks: &mut Tasks<()>, now| {
            tasks.pause(&uid, |before| Pause::after_failure(before, now));
            until(tasks).unwrap().since(now)
        };
        let first = pause(&mut tasks, at(10));
        let second = pause(&mut tasks, at(20));
        assert!(!first.is_zero() && second > first);
        let uid = Uid::from("a");
        tasks.plan(&uid, at(20));
        assert_eq!(tasks.take_due(at(20)), None, "it is paused");
        tasks.hurry(&uid, at(20));
        assert_eq!(tasks.take_due(at(20)), Some(uid.clone()));
        // There is nothing to do about the workload.
        tasks.rest(&uid, at(21));
        let forgotten = until(&tasks).unwrap() + PAUSE_REMEMBERED_FOR;
        assert_eq!(tasks.wait(at(21)), forgotten.since(at(21)));
        assert_eq!(tasks.take_due(forgotten), Some(uid.clone()));
        tasks.rest(&uid, forgotten);
        assert!(until(&tasks).is_none());
        assert_eq!(tasks.wait(forgotten), Duration::MAX);
    }
}
