//! Workloads, their pods, the Job controller and the users who change them.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc, time::Duration};

use super::{
    canon::Canon,
    requests::{Answer, Deletion, Patch},
};
use crate::{
    Granted, KindName, OnContention, Phase, SlotRequest, Traits, Uid, Wait, WaitBegan, Workload,
    plan::Failed,
};
use consul_client::{SessionId, clock::Moment};

/// How many seconds pods take to end once they are asked to stop.
const GRACE: i64 = 5;

/// How the API server answers a start that it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Refusal {
    /// The start is forbidden.
    Forbidden,
    /// The start conflicts with something, as if the workload had changed.
    Conflict,
}

/// A workload as the API server stores it.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is a field of a workload, or an event that happened to it.
pub(super) struct Object {
    pub(super) name: Arc<str>,
    pub(super) uid: Uid,
    version: u64,
    pub(super) wants: Option<Arc<str>>,
    /// How many slots the workload asks for.
    pub(super) slots: NonZeroU32,
    /// What the workload asks for instead of `wants` and `slots`, if that is several semaphores.
    pub(super) requests: Vec<SlotRequest>,
    /// Whether the workload replaces others, and which.
    pub(super) replaces: Option<OnContention>,
    pub(super) priority: i32,
    /// Whether the workload is deleted instead of waiting.
    pub(super) skippable: bool,
    /// Whether the workload fails where it would be deleted.
    pub(super) fails: bool,
    /// How long the workload may wait.
    pub(super) timeout: Option<Duration>,
    pub(super) hold: bool,
    pub(super) suspend: bool,
    /// What a grant wrote into the workload's template.
    pub(super) granted: Option<Granted>,
    /// The session in the workload's annotation.
    pub(super) reported: Vec<SessionId>,
    created: i64,
    /// When the wait of the workload began, as the operator recorded.
    recorded: Option<WaitBegan>,
    /// When the workload came in the queue: when it was created, or last taken off a hold that an operator had
    /// recorded.
    queued: i64,
    /// Whether the workload was ever started.
    started: bool,
    /// Since when the condition Suspended of the workload is True.
    suspended: Option<i64>,
    finished: bool,
    deleting: bool,
    /// Whether the workload has had pods.
    ran: bool,
    /// Whether the API server refuses to start the workload, and with which answer: a webhook, a quota.
    pub(super) forbidden: Option<Refusal>,
    /// Whether the user suspended the workload while it ran after a grant, which puts it on hold.
    pub(super) stopped_by_user: bool,
    /// Whether a user last started the workload without a grant: the only way to have pods without a slot that can't be
    /// prevented.
    pub(super) rogue: bool,
    /// Whether the workload can't be suspended once it runs.
    pub(super) stubborn: bool,
}

impl Object {
    /// Whether the workload is neither suspended nor finished.
    pub(super) fn runs(&self) -> bool {
        !self.suspend && self.may_run()
    }

    /// Whether the workload is not finished.
    pub(super) fn may_run(&self) -> bool {
        !self.finished && !self.deleting
    }

    /// Whether the workload is deleted when it would have to wait.
    pub(super) fn is_skippable(&self) -> bool {
        self.skippable && self.was_never_granted()
    }

    /// What the workload asks for.
    pub(super) fn asks(&self) -> Vec<SlotRequest> {
        if !self.requests.is_empty() {
            return self.requests.clone();
        }
        let wants = self.wants.iter().map(|wants| SlotRequest {
            slots: self.slots,
            ..SlotRequest::one(wants.clone(), None)
        });
        wants.collect()
    }

    /// Whether the workload may fail for this reason by now.
    fn may_fail(&self, why: &Failed, now: i64) -> bool {
        let Failed::TimedOut { timeout, .. } = why else {
            return self.was_never_granted();
        };
        let waited = Duration::from_secs((now - self.queued).unsigned_abs());
        !self.started && !self.hold && waited >= *timeout
    }

    fn was_never_granted(&self) -> bool {
        self.granted.is_none() && self.reported.is_empty()
    }

    /// Whether the workload is Complete or Failed.
    pub(super) fn finished(&self) -> bool {
        self.finished
    }

    /// Whether the workload has had pods.
    pub(super) fn ran(&self) -> bool {
        self.ran
    }

    /// Since when the workload is queued.
    fn since(&self) -> i64 {
        let suspended = self.suspended.filter(|_| self.ran);
        suspended.unwrap_or(self.created)
    }

    fn trace(&self, canon: &mut Canon<'_>) {
        let Self {
            name: _,
            uid: _,
            version: _,
            wants,
            slots,
            requests,
            replaces,
            priority,
            skippable,
            fails,
            timeout,
            hold,
            suspend,
            granted,
            reported,
            created: _,
            // They matter only where waits end, which is in the random worlds.
            recorded: _,
            queued: _,
            started: _,
            suspended,
            finished,
            deleting,
            ran,
            forbidden,
            stopped_by_user,
            rogue,
            stubborn,
        } = self;
        canon.word(&(wants, slots, priority, skippable, suspended.is_some()));
        canon.word(&format!("{requests:?} {replaces:?}"));
        canon.word(&(hold, suspend, finished, deleting, ran, fails, timeout));
        canon.word(&(forbidden, stopped_by_user, rogue, stubborn));
        canon.granted(granted.as_ref(), reported);
    }
}

/// A pod of a workload, until it is really gone.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) workload: Uid,
    pub(super) rogue: bool,
    pub(super) terminating: bool,
    /// When the pod was asked to stop, if it was.
    asked: i64,
}

/// The API server's first version. The versions after a restore are smaller.
const FIRST: u64 = 1_000_000_000;

/// How far a restore moves versions back: further than they have advanced since the start.
const BACK: u64 = 1_000_000;

/// The workloads and pods of the namespace.
#[derive(Clone, Debug)]
pub(super) struct Workloads {
    objects: BTreeMap<Uid, Object>,
    pods: Vec<Pod>,
    version: u64,
    /// How often the API server was restored.
    restored: u64,
    /// The wall clock, in seconds.
    pub(super) clock: i64,
    /// How many slots every second workload asks for.
    pub(super) slots: NonZeroU32,
}

impl Default for Workloads {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            pods: Vec::new(),
            version: FIRST,
            restored: 0,
            clock: 0,
            slots: NonZeroU32::MIN,
        }
    }
}

impl Workloads {
    /// All that counts of the workloads and their pods.
    pub(super) fn trace(&self, canon: &mut Canon<'_>) {
        let mut queue: Vec<i64> = self.objects().map(Object::since).collect();
        queue.sort_unstable();
        queue.dedup();
        for uid in canon.workloads() {
            let object = self.get(uid);
            let pods = || self.pods.iter().filter(|pod| pod.workload == *uid);
            canon.word(&(object.is_some(), pods().count()));
            if let Some(object) = object {
                object.trace(canon);
                canon.word(&queue.binary_search(&object.since()).ok());
            }
            for pod in pods() {
                let Pod {
                    workload: _,
                    rogue,
                    terminating,
                    asked: _,
                } = pod;
                canon.word(&(rogue, terminating));
            }
        }
    }

    /// Whether this workload exists, at this version.
    pub(super) fn is_at(&self, uid: &Uid, version: &str) -> bool {
        let object = self.get(uid);
        object.is_some_and(|object| version.parse() == Ok(object.version))
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    pub(super) fn get(&self, uid: &Uid) -> Option<&Object> {
        self.objects.get(uid)
    }

    pub(super) fn pods(&self) -> &[Pod] {
        &self.pods
    }

    pub(super) fn has_pods(&self, uid: &Uid) -> bool {
        self.pods.iter().any(|pod| pod.workload == *uid)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.objects().any(|object| &*object.name == name)
    }

    /// The workloads that must have a slot of this semaphore: started by a grant, or with pods from one.
    pub(super) fn in_need_of_a_slot(&self, lock_key: &str) -> impl Iterator<Item = &Uid> {
        let started = self.objects().filter(move |object| {
            let granted = object.granted.as_ref();
            let mut slots = granted.iter().flat_map(|granted| &granted.slots);
            let here = slots.any(|slot| *slot.lock_key == *lock_key);
            here && object.runs() && !object.rogue
        });
        let pods = self.pods.iter().filter(|pod| !pod.rogue);
        let started = started.map(|object| &object.uid);
        started.chain(pods.map(|pod| &pod.workload))
    }

    /// A start is refused from now on. The workload itself does not change.
    pub(super) fn forbid(&mut self, uid: &Uid, refusal: Refusal) {
        if let Some(object) = self.objects.get_mut(uid) {
            object.forbidden = Some(refusal);
        }
    }

    /// The API server is restored from a backup that was made just now: versions go back, and no version of a
    /// workload that was known exists any more.
    pub(super) fn restore(&mut self) {
        self.restored += 1;
        self.version = FIRST - self.restored * BACK;
        for object in self.objects.values_mut() {
            self.version += 1;
            object.version = self.version;
        }
    }

    /// No start is refused any more.
    pub(super) fn allow_all(&mut self) {
        for object in self.objects.values_mut() {
            object.forbidden = None;
        }
    }

    /// The controller of `ttlSecondsAfterFinished` runs.
    pub(super) fn clean_up(&mut self) {
        self.objects.retain(|_, object| !object.finished);
    }

    /// A workload as the operator reads it.
    pub(super) fn read(&self, uid: &Uid, seen: Moment) -> Option<Workload> {
        let object = self.get(uid)?;
        Some(Workload {
            kind: KindName::default(),
            name: object.name.clone(),
            uid: object.uid.clone(),
            version: object.version.to_string().into(),
            seen,
            requests: object.asks(),
            on_contention: if object.skippable && object.fails {
                OnContention::Fail
            } else if object.skippable {
                OnContention::Skip
            } else {
                object.replaces.unwrap_or(OnContention::Wait)
            },
            cron_job: None,
            priority: object.priority,
            hold: object.hold,
            since: object.since(),
            phase: self.phase(object),
            grace: Duration::from_secs(GRACE.unsigned_abs()),
            was_suspended: object.suspended.is_some() || object.ran,
            traits: Traits {
                can_be_suspended: !object.stubborn,
                runs_again: object.stubborn,
                ..Traits::default()
            },
            granted: object.granted.clone(),
            reported: object.reported.clone(),
            wait: Wait {
                timeout: object.timeout,
                created: object.created,
                recorded: object.recorded,
                ..Wait::default()
            },
        })
    }

    fn phase(&self, object: &Object) -> Phase {
        let at_rest = !self.has_pods(&object.uid);
        match object {
            Object { deleting: true, .. } => Phase::Deleting,
            Object { finished: true, .. } => Phase::Finished { at_rest },
            Object { suspend: false, .. } => Phase::Running,
            Object {
                suspended: Some(_), ..
            } if at_rest => Phase::Idle,
            _ => Phase::Stopping,
        }
    }

    /// Makes a workload that asks for a slot of a semaphore, suspended as by the admission policy.
    pub(super) fn create(&mut self, name: &str, wants: &str, priority: i32) -> Uid {
        self.version += 1;
        let uid = Uid::from(format!("{name}-{}", self.version).as_str());
        let object = Object {
            name: name.into(),
            uid: uid.clone(),
            version: self.version,
            wants: Some(wants.into()),
            slots: if self.version.is_multiple_of(2) {
                self.slots
            } else {
                NonZeroU32::MIN
            },
            requests: Vec::new(),
            replaces: None,
            priority,
            skippable: false,
            fails: false,
            timeout: None,
            hold: false,
            suspend: true,
            granted: None,
            reported: Vec::new(),
            created: self.clock,
            recorded: None,
            queued: self.clock,
            started: false,
            suspended: Some(self.clock),
            finished: false,
            deleting: false,
            ran: false,
            forbidden: None,
            stopped_by_user: false,
            rogue: false,
            stubborn: false,
        };
        self.objects.insert(uid.clone(), object);
        uid
    }

    /// Changes a workload by hand: its version moves.
    pub(super) fn edit(&mut self, uid: &Uid, change: impl FnOnce(&mut Object)) {
        if let Some(object) = self.objects.get_mut(uid) {
            let was_held = object.hold && object.recorded == Some(WaitBegan::OnHold);
            change(object);
            if was_held && !object.hold {
                object.queued = self.clock;
            }
            self.version += 1;
            object.version = self.version;
        }
    }

    /// Deletes a workload.
    pub(super) fn delete(&mut self, uid: &Uid, how: Deletion) {
        match how {
            Deletion::Foreground => self.edit(uid, |object| object.deleting = true),
            Deletion::Background | Deletion::Orphan => {
                self.objects.remove(uid);
            }
        }
        if !matches!(how, Deletion::Orphan) {
            self.stop_pods(uid);
        }
    }

    /// The Job controller runs.
    pub(super) fn control(&mut self) {
        for uid in self.objects.keys().cloned().collect::<Vec<_>>() {
            self.control_one(&uid);
        }
    }

    /// Whether the Job controller has something to do for a workload.
    pub(super) fn awaits_control(&self, object: &Object) -> bool {
        let pods = || self.pods.iter().filter(|pod| pod.workload == object.uid);
        if object.deleting {
            return pods().next().is_none();
        }
        let running = || pods().any(|pod| !pod.terminating);
        match object {
            Object { finished: true, .. } => false,
            Object { suspend: true, .. } => object.suspended.is_none() || running(),
            _ => object.suspended.is_some() || !object.ran || !running(),
        }
    }

    /// The Job controller handles one workload.
    pub(super) fn control_one(&mut self, uid: &Uid) {
        let Some(object) = self.objects.get(uid).cloned() else {
            return;
        };
        let clock = self.clock;
        if object.deleting {
            if !self.has_pods(uid) {
                self.objects.remove(uid);
            }
        } else if object.suspend && !object.finished {
            self.stop_pods(uid);
            if object.suspended.is_none() {
                self.edit(uid, |object| object.suspended = Some(clock));
            }
        } else if object.runs() {
            let of_workload = |pod: &Pod| pod.workload == *uid && !pod.terminating;
            if !self.pods.iter().any(of_workload) {
                self.pods.push(Pod {
                    workload: uid.clone(),
                    rogue: object.rogue,
                    terminating: false,
                    asked: 0,
                });
            }
            if object.suspended.is_some() || !object.ran {
                self.edit(uid, |object| {
                    object.suspended = None;
                    object.ran = true;
                });
            }
        }
    }

    fn stop_pods(&mut self, uid: &Uid) {
        let clock = self.clock;
        let of_workload = |pod: &&mut Pod| pod.workload == *uid && !pod.terminating;
        for pod in self.pods.iter_mut().filter(of_workload) {
            pod.terminating = true;
            pod.asked = clock;
        }
    }

    /// The oldest pod of a workload ends: it has finished stopping, or it succeeds, which completes its workload.
    pub(super) fn end_pod(&mut self, uid: &Uid) {
        let Some(position) = self.pods.iter().position(|pod| pod.workload == *uid) else {
            return;
        };
        let pod = self.pods.remove(position);
        if pod.terminating {
            return self.edit(uid, |_| {});
        }
        self.edit(uid, |object| object.finished |= !object.suspend);
        self.stop_pods(uid);
    }

    /// A workload fails while its pods are still there.
    pub(super) fn fail(&mut self, uid: &Uid) {
        if self.has_pods(uid) {
            self.edit(uid, |object| object.finished |= !object.suspend);
            self.stop_pods(uid);
        }
    }

    /// The nodes end the pods whose grace period is over.
    pub(super) fn end_in_time(&mut self) {
        let clock = self.clock;
        let over = |pod: &&Pod| pod.terminating && clock - pod.asked >= GRACE;
        let over: Vec<Pod> = self.pods.iter().filter(over).cloned().collect();
        // The oldest pod of a workload was asked first, and ends first.
        for pod in &over {
            self.end_pod(&pod.workload);
        }
    }

    /// The Job controller and the nodes do all that they have to do, except that running pods keep running.
    pub(super) fn settle(&mut self) {
        self.control();
        let orphan = |pod: &Pod| !self.objects.contains_key(&pod.workload);
        let ends = |pod: &Pod| pod.terminating || orphan(pod);
        let ended: Vec<Pod> = self.pods.iter().filter(|pod| ends(pod)).cloned().collect();
        for pod in ended {
            self.end_pod(&pod.workload);
        }
        self.control();
    }

    /// Every workload that runs completes.
    pub(super) fn complete_all(&mut self) {
        self.settle();
        for uid in self.objects.keys().cloned().collect::<Vec<_>>() {
            self.end_pod(&uid);
        }
        self.settle();
    }

    /// A PATCH of the operator's. A webhook may allow one replica what it refuses another.
    pub(super) fn patch(&mut self, patch: &Patch, favoured: bool) -> Answer {
        let target = patch.target();
        let Some(object) = self.objects.get(&target.uid) else {
            return Answer::Conflict;
        };
        let forbidden = object.forbidden.filter(|_| !favoured);
        match (forbidden, patch) {
            (Some(Refusal::Forbidden), Patch::Start(_)) => return Answer::Refused,
            (Some(Refusal::Conflict), Patch::Start(_)) => return Answer::Conflict,
            _ => {}
        }
        if !self.is_at(&target.uid, &target.version) {
            return Answer::Conflict;
        }
        if matches!(patch, Patch::Skip(_)) {
            assert!(object.is_skippable(), "it was to wait: {object:?}");
            self.delete(&target.uid.clone(), Deletion::Background);
            return Answer::Done;
        }
        if let Patch::End(end) = patch {
            let lost = end.is_lost() && object.stubborn;
            let may_end = lost || object.replaces.is_some();
            assert!(may_end, "nothing is to end it: {end:?}, {object:?}");
            self.edit(&target.uid, |object| object.finished = true);
            self.stop_pods(&target.uid);
            return Answer::Done;
        }
        let clock = self.clock;
        self.edit(&target.uid.clone(), |object| match patch {
            Patch::Start(start) => {
                assert!(object.suspend, "the template can't change now: {object:?}");
                object.suspend = false;
                object.rogue = false;
                object.stopped_by_user = false;
                object.started = true;
                object.granted = Some(start.granted());
                object.reported = start.sessions().cloned().collect();
            }
            Patch::Suspend(_) => {
                assert!(!object.stubborn, "it can't be suspended: {object:?}");
                object.suspend = true;
                object.reported.clear();
            }
            Patch::Stop(stop) => {
                object.suspend = true;
                object.hold &= !stop.unhold;
            }
            Patch::GiveBack(give_back) => {
                // What can't be suspended has its grant in its own metadata.
                let may_change = object.suspend || object.stubborn && object.finished;
                assert!(may_change, "the template can't change now: {object:?}");
                let meant = object.stopped_by_user || !give_back.hold;
                assert!(meant, "put on hold without its user's will: {object:?}");
                object.granted = None;
                object.reported.clone_from(&give_back.sessions);
                object.recorded = give_back.began;
                object.hold |= give_back.hold;
            }
            Patch::Rename(rename) => object.reported.clone_from(&rename.sessions),
            Patch::RecordWait(record) => object.recorded = Some(record.began),
            Patch::Skip(_) | Patch::End(_) => {}
            Patch::Fail(fail) => {
                assert!(
                    object.suspend && object.may_fail(&fail.why, clock),
                    "{fail:?} at {clock}: {object:?}"
                );
                object.finished = true;
            }
        });
        Answer::Done
    }
}
