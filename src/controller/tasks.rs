//! Tasks about workloads: a few at once, one for each workload, in fair shares for each namespace, and none waits for
//! another.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::task::JoinSet;

use super::due_times::DueTimes;
use consul_client::clock::Moment;
use consul_semaphore::{Uid, holding::Setback};

/// For how long it is remembered that something was done about a workload: what is to be done again by then waits for a
/// pause, which grows each time, because another controller may undo it at once.
const REMEMBERED: Duration = Duration::from_mins(1);

/// Tasks that each return a `T`, and when each workload is due one. An owner of this looks at no workload before it is
/// due, however many there are.
///
/// A webhook can block all writes in its namespace, so namespaces share the tasks as they share
/// [`FairTurns`](consul_client::turns::FairTurns): another one starts in a namespace only while more are free than it has.
pub(super) struct Tasks<T> {
    most: usize,
    running: JoinSet<(Uid, T)>,
    /// The workloads that there is a task about, with their namespaces.
    busy: HashMap<Uid, Arc<str>>,
    /// How many tasks run in each namespace.
    shares: HashMap<Arc<str>, usize>,
    due: DueTimes<Moment>,
    /// Those that were due when their namespace had its share.
    deferred: Deferred,
    pauses: HashMap<Uid, Pause>,
}

/// Workloads that wait until their namespace may have another task, the first to come first.
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

    /// Takes the next one of the namespace with the smallest share, if that is less than this.
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

/// How long a workload is left alone.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pause {
    /// Until then, and the next pause is no longer for that.
    Again(Moment),
    /// The next pause is longer.
    Undone(Setback),
}

impl Pause {
    pub(super) fn until(&self) -> Moment {
        match self {
            Self::Again(until) => *until,
            Self::Undone(setback) => setback.until,
        }
    }

    /// The setback that the next one grows from.
    pub(super) fn setback(before: Option<&Self>) -> Option<&Setback> {
        match before? {
            Self::Undone(setback) => Some(setback),
            Self::Again(_) => None,
        }
    }

    /// Something was done, and another controller may undo it.
    pub(super) fn outrun(before: Option<&Self>, now: Moment) -> Self {
        Self::Undone(Setback::outrun(Self::setback(before), now))
    }

    /// Nothing could be done.
    pub(super) fn after_failure(before: Option<&Self>, now: Moment) -> Self {
        Self::Undone(Setback::after(Self::setback(before), now))
    }
}

impl<T: Send + 'static> Tasks<T> {
    /// At most this many at once.
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

    /// A workload is due at this time or earlier, but not before its pause is over.
    pub(super) fn plan(&mut self, workload: &Uid, at: Moment) {
        if !self.is_in_hand(workload) {
            let pause = self.pauses.get(workload).map(Pause::until);
            self.due
                .set_by(workload, pause.map_or(at, |pause| pause.max(at)));
        }
    }

    /// A workload is due now, unless there is a task about it.
    pub(super) fn hurry(&mut self, workload: &Uid, now: Moment) {
        if !self.is_in_hand(workload) {
            self.due.set_by(workload, now);
        }
    }

    /// The next workload that is due, if another task can start.
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

    /// Whether a task about a workload that was due can start in its namespace now. If not, it is taken again when it can.
    pub(super) fn may_start(&mut self, workload: &Uid, namespace: &Arc<str>) -> bool {
        let share = self.shares.get(namespace).copied().unwrap_or(0);
        let may = share < self.most - self.busy.len();
        if !may {
            self.deferred.push(workload, namespace);
        }
        may
    }

    /// Whether a workload is due already, or is to be paused when the task about it has ended.
    fn is_in_hand(&self, workload: &Uid) -> bool {
        self.busy.contains_key(workload) || self.deferred.all.contains(workload)
    }

    /// Nothing is to be done about a workload that was due. Its pause is remembered for a while.
    pub(super) fn rest(&mut self, workload: &Uid, now: Moment) {
        let Some(pause) = self.pauses.get(workload) else {
            return;
        };
        let forgotten = pause.until() + REMEMBERED;
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

    /// The next task that has ended, with its workload; `None` if none runs. The workload is to be paused then.
    pub(super) async fn next(&mut self) -> Option<(Uid, T)> {
        match self.running.join_next().await? {
            Ok((workload, ended)) => {
                self.free(&workload);
                Some((workload, ended))
            }
            // A task that panics is a bug, and ends the operator. None is aborted.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// A task has ended.
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

    /// Pauses a workload after a task about it, given its pause before. It is due when the pause is over.
    pub(super) fn pause(&mut self, workload: &Uid, next: impl FnOnce(Option<&Pause>) -> Pause) {
        let pause = next(self.pauses.get(workload));
        self.pauses.insert(workload.clone(), pause);
        self.due.set(workload, pause.until());
    }

    /// How long until the next workload is due for which a task can start.
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

    /// Such as one with a webhook that does not answer.
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
        // None of its own has ended.
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
            // News of one that is deferred.
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
        // There is nothing to do.
        tasks.rest(&uid, at(21));
        let forgotten = until(&tasks).unwrap() + REMEMBERED;
        assert_eq!(tasks.wait(at(21)), forgotten.since(at(21)));
        assert_eq!(tasks.take_due(forgotten), Some(uid.clone()));
        tasks.rest(&uid, forgotten);
        assert!(until(&tasks).is_none());
        assert_eq!(tasks.wait(forgotten), Duration::MAX);
    }
}
