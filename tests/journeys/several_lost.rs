//! A Job that runs in slots of two semaphores loses the slot of one of them. What follows is up to that semaphore's
//! `onSlotLost`, whatever the other one's says; a Job that is suspended gives back the other slot, too, and has both
//! again by itself.

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::json;
use testbed::{
    Bed, Job, LimitWatch, Namespace, SEMAPHORE_FLAGS, Semaphore, eventually,
    proof::{End, all_is_decided, is_warned, nothing_is_left, pods_end, running_pods},
    same,
};

use crate::several::{Slot, runs_in};

/// What somebody does in Consul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    SessionDestroyed,
    /// Removed from `Holders`: session and contender live.
    TakenOut,
    /// All keys of the semaphore.
    PrefixDeleted,
    /// The slot has another holder.
    Usurped,
}

/// Each policy, and that of the other semaphore.
const POLICIES: [(&str, &str); 3] = [
    ("Reacquire", "Suspend"),
    ("Suspend", "Continue"),
    ("Continue", "Reacquire"),
];

#[tokio::test]
async fn one_of_several_slots_is_had_again_or_all_are_given_back() {
    let bed = Bed::shared().await;
    let team = bed.namespace("several-loss").await;
    let mut cases = Vec::new();
    for cause in [
        Loss::SessionDestroyed,
        Loss::TakenOut,
        Loss::PrefixDeleted,
        Loss::Usurped,
    ] {
        for policies in POLICIES {
            let (bed, team) = (&bed, &team);
            cases.push(Box::pin(async move {
                Case::new(bed, team, cause, policies).await.goes_on().await;
            }));
        }
    }
    join_all(cases).await;
}

/// A Job that runs in the only slots of two semaphores.
struct Case<'a> {
    bed: &'a Bed,
    team: &'a Namespace,
    cause: Loss,
    policy: &'static str,
    /// Where it loses its slot, and where it does not.
    lost: Semaphore,
    other: Semaphore,
    observers: [LimitWatch; 2],
    job: Job,
    slots: Vec<Slot>,
}

impl<'a> Case<'a> {
    async fn new(
        bed: &'a Bed,
        team: &'a Namespace,
        cause: Loss,
        (policy, others): (&'static str, &str),
    ) -> Self {
        let name = format!("{policy}-{cause:?}").to_lowercase();
        let semaphore = |name: &str, policy: &str| {
            let spec = json!({ "onSlotLost": policy, "session": { "lockDelay": "0s" } });
            team.semaphore(name).limit(1).spec(spec).create()
        };
        let lost = semaphore(&name, policy).await;
        let other = semaphore(&format!("{name}-other"), others).await;
        let observers = [
            bed.watch_limit(&lost.lock_prefix()).await,
            bed.watch_limit(&other.lock_prefix()).await,
        ];
        let asks = format!("{}, {}", lost.name(), other.name());
        let job = team.job(&name).semaphore(&asks).runs("1h");
        let job = job.terminates_in("1h").create().await;
        let slots = runs_in(bed, &job, [(&lost, 1), (&other, 1)]).await;
        Self {
            bed,
            team,
            cause,
            policy,
            lost,
            other,
            observers,
            job,
            slots,
        }
    }

    async fn goes_on(self) {
        match (self.policy, self.cause) {
            ("Suspend", _) | ("Reacquire", Loss::Usurped) => self.gives_all_back().await,
            (_, Loss::Usurped) => self.runs_without().await,
            _ => self.has_it_again().await,
        }
        self.job.finish().await;
        for semaphore in [&self.lost, &self.other] {
            nothing_is_left(self.bed, self.team, semaphore).await;
        }
        for observer in &self.observers {
            let peak = observer.peak_holders();
            assert_eq!((peak, observer.errors()), (1, vec![]), "{self}");
        }
    }

    /// Returns the program that has the slot now, if one has.
    async fn happens(&self) -> Option<String> {
        let (consul, prefix) = (self.bed.consul(), self.lost.lock_prefix());
        let session = &self.slots[0].session;
        match self.cause {
            Loss::SessionDestroyed => consul.destroy_session(session).await,
            Loss::TakenOut => {
                let (key, body) = (format!("{prefix}/.lock"), r#"{"Limit":1,"Holders":{}}"#);
                consul.put(&key, SEMAPHORE_FLAGS, body).await;
            }
            Loss::PrefixDeleted => consul.delete_at(&format!("kv/{prefix}/?recurse")).await,
            Loss::Usurped => return Some(consul.usurp(&prefix, 1, session).await),
        }
        None
    }

    async fn holders(&self, semaphore: &Semaphore) -> BTreeSet<String> {
        self.bed.consul().holders(&semaphore.lock_prefix()).await
    }

    /// The other slot is held as before.
    async fn keeps_the_other(&self) {
        all_is_decided(self.team, &self.other).await;
        let holders = self.holders(&self.other).await;
        assert_eq!(holders, [self.slots[1].session.clone()].into(), "{self}");
    }

    async fn has_it_again(&self) {
        let pods = running_pods(&self.job).await;
        self.happens().await;
        is_warned(&self.job, "SlotLost", "has a slot again").await;
        self.names_its_slots().await;
        self.keeps_the_other().await;
        assert_eq!(running_pods(&self.job).await, pods, "{self}");
        self.lost.is_ready().await;
    }

    /// Its annotation names both of its slots. It has the one that it had lost under the same session, unless that or
    /// its contender is gone.
    async fn names_its_slots(&self) {
        let new = matches!(self.cause, Loss::SessionDestroyed | Loss::PrefixDeleted);
        let [before, other] = &self.slots[..] else {
            panic!("two slots: {:?}", self.slots);
        };
        eventually("its annotation names its slots", || async {
            let named = self.job.session().await.unwrap_or_default();
            let named: BTreeSet<String> = named.split(',').map(ToOwned::to_owned).collect();
            let mut expected = self.holders(&self.lost).await;
            let is_new = !expected.contains(&before.session);
            expected.insert(other.session.clone());
            same((named, is_new, expected.len()), (expected, new, 2))
        })
        .await;
    }

    /// Somebody else has the slot, and the Job runs without it until it is free.
    async fn runs_without(&self) {
        let pods = running_pods(&self.job).await;
        let thief = self.happens().await.expect("it was usurped");
        is_warned(&self.job, "SlotLost", "it continues").await;
        self.lost
            .has_condition("SlotsAvailable", "False", "RunningWithoutSlot")
            .await;
        self.keeps_the_other().await;
        let prefix = self.lost.lock_prefix();
        self.bed.consul().give_back(&prefix, &thief).await;
        is_warned(&self.job, "SlotLost", "has a slot again").await;
        self.names_its_slots().await;
        self.keeps_the_other().await;
        assert_eq!(running_pods(&self.job).await, pods, "{self}");
    }

    /// It is suspended, and both slots are given back once its pods are gone: it gets both again, or none.
    async fn gives_all_back(&self) {
        if self.cause != Loss::Usurped {
            // So that there is something to see between its end and its start.
            self.lost.pause().await;
            self.lost.has_condition("Ready", "True", "Paused").await;
        }
        let thief = self.happens().await;
        is_warned(&self.job, "SlotLost", "suspended, first in the queue").await;
        self.job
            .is("stopping", |job| {
                let status = job.status.as_ref();
                status.and_then(|status| status.terminating) == Some(1)
            })
            .await;
        self.keeps_the_other().await;
        pods_end(self.team, &self.job, End::Failed).await;
        self.job.is_waiting().await;
        let small = format!("{}-small", self.job.name());
        let small = self.team.job(&small).semaphore(self.other.name());
        small.create().await.is_complete().await;
        eventually("the other slot is free", || async {
            same(self.holders(&self.other).await, BTreeSet::new())
        })
        .await;
        let prefix = self.lost.lock_prefix();
        match thief {
            Some(thief) => self.bed.consul().give_back(&prefix, &thief).await,
            None => self.lost.resume().await,
        }
        let both = [(&self.lost, 1), (&self.other, 1)];
        let again = runs_in(self.bed, &self.job, both).await;
        assert!(again[0].token > self.slots[0].token, "{self}");
    }
}

impl std::fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.policy, self.cause)
    }
}
