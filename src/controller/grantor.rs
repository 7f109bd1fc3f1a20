//! The grantor of one lock key: the one place where its slots are granted and released.
//!
//! It knows nothing of the `ConsulSemaphore` but its [`Settings`]: what it finds out and what it
//! needs comes back from each pass as a [`Conclusion`]. A pass is
//! `observe` → [`decide`](consul_semaphore::decide()) → `apply`, as often as there is something to do.

mod apply;
mod observe;
mod others;
mod proofs;
mod refusals;
mod sessions;
mod skips;
mod stages;
mod strangers;
mod writes;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{sync::Notify, task::JoinError};

use self::{observe::Facts, proofs::Proofs};
pub(super) use self::{
    others::{Moved, Tenures},
    sessions::{Sessions, Whose},
    strangers::Strangers,
    writes::Writes,
};
use super::{Context, feed::Feed, home::Home, index::LineRef};
use crate::telemetry::SemaphoreLabels;
use consul_client::{SessionId, clock::Moment, id::IdMap};
use consul_semaphore::{
    AHEAD, Agreement, Coolings, Defence, Evidence, Life, Plan, Reading, Settings, Turns, Uid,
    decide,
    holding::{self, IDLE, SOONEST},
    plan::Target,
};

/// How many rounds a pass has at the most before others get their turn.
const ROUNDS: usize = 32;

/// When to try again what waits for something that wakes nobody.
const SOON: Duration = Duration::from_secs(1);

/// How many more of those in line are looked at than need be: as many may come in before those that
/// sessions were made ahead for, and these are kept.
const SPARE: usize = 8;

/// How many of those in line a pass looks at that can write so many operations: all who may be granted a
/// slot at once, those for whom sessions are made ahead, and as many as may be `passed` by.
pub(super) fn head(limit: u32, operations: usize, passed: usize) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    limit.min(operations) + limit.min(AHEAD) + passed + SPARE
}

/// What a grantor sees of Consul.
pub(super) type View = holding::View<Home>;

/// What a pass came to.
#[derive(Debug, Default)]
pub(super) struct Conclusion {
    /// The limits that are this semaphore's to move.
    pub(super) applied: Vec<u32>,
    /// What these must be in the status before the limit can be written to Consul.
    pub(super) record: Option<Vec<u32>>,
    /// How the limits stand; `None` while `.lock` can't be read.
    pub(super) agreement: Option<Agreement>,
    /// Whether the semaphore is being deleted and nothing of it is left in Consul.
    pub(super) finished: bool,
    /// The running Jobs that go on without a slot.
    pub(super) unheld: Vec<Target>,
    /// Whether no Job here runs in a slot, or may have one.
    pub(super) nothing_held: bool,
    /// The limit, if nothing stands in Consul that follows from another one of ours.
    pub(super) settled: Option<u32>,
    /// Whether nobody waits, nobody holds, and nothing is left to do.
    pub(super) idle: bool,
    /// A limit that was moved while others go by the one before.
    pub(super) moved: Option<Moved>,
}

/// The grantor's knowledge.
pub(super) struct Grantor {
    pub(super) context: Arc<Context>,
    /// Whose slots it grants.
    pub(super) reference: LineRef,
    pub(super) settings: Settings,
    wake: Arc<Notify>,
    pub(super) labels: SemaphoreLabels,
    pub(super) view: View,
    /// Up to where it has heard of what the watch brought.
    heard: u64,
    pub(super) sessions: Sessions,
    pub(super) strangers: Strangers,
    pub(super) tenures: Tenures,
    evidence: Evidence,
    /// When the slots of Jobs that are done are free.
    pub(super) coolings: Coolings,
    proofs: Proofs,
    /// Since when the Jobs of our contenders are known to have been started.
    starts: IdMap<SessionId, Moment>,
    /// The running Jobs of which it was said that they go on without a slot.
    unheld: BTreeSet<Uid>,
    pub(super) writes: Writes,
    /// What became of the limit since the spec last changed.
    pub(super) defence: Defence,
    /// Whether `.lock` was written since a limit was last recorded as ours.
    fenced: bool,
    /// A limit of which it is still to be told that it was moved.
    moved: Option<Moved>,
    pub(super) fencing_token: Option<u64>,
    /// Whether the waiting Jobs were told that the semaphore goes.
    told: bool,
    /// When something is to be tried again that wakes nobody.
    again: Option<Moment>,
    /// When to look again if nothing happens before.
    pub(super) next: Moment,
}

impl Grantor {
    /// Takes up a lock key. `defence` is what is known of its limit.
    pub(super) fn new(
        context: Arc<Context>,
        reference: LineRef,
        settings: Settings,
        home: Option<Home>,
        defence: Defence,
        wake: Arc<Notify>,
    ) -> Self {
        Self {
            view: View::new(
                reference.to_string(),
                home,
                settings.prefix.clone(),
                settings.mode,
                Turns::new(settings.fair),
            ),
            labels: SemaphoreLabels::new(reference.namespace.as_ref(), reference.name.as_ref()),
            context,
            reference,
            settings,
            wake,
            heard: 0,
            sessions: Sessions::default(),
            strangers: Strangers::default(),
            tenures: Tenures::default(),
            evidence: Evidence::default(),
            coolings: Coolings::default(),
            proofs: Proofs::default(),
            starts: IdMap::default(),
            unheld: BTreeSet::new(),
            writes: Writes::default(),
            defence,
            fenced: false,
            moved: None,
            fencing_token: None,
            told: false,
            again: None,
            next: Moment::now(),
        }
    }

    /// How long a watch waits for news before it answers all the same.
    ///
    /// A reading counts from when it was asked for, and the next one comes when that has waited
    /// too: so it is up to two waits old. Jobs whose pods end slowly are suspended when their
    /// evidence is half a TTL old, that of the spec or of the shortest session.
    pub(super) fn watch_wait(&self) -> Duration {
        let sessions = self.sessions.kept.values();
        let ttls = sessions.filter_map(|session| match session.life() {
            Life::Renewed { ttl, .. } => Some(ttl),
            _ => None,
        });
        ttls.chain([self.settings.span()]).min().unwrap_or(IDLE) / 5
    }

    /// Goes another way to Consul from now on, or none. Sessions made before are renewed with the
    /// token that they were made with.
    pub(super) fn move_to(&mut self, home: Option<Home>) {
        self.view.home = home;
        self.view.doubt();
        self.view.trouble = None;
    }

    /// Lets go of all sessions, which leaves them in Consul: nothing more is to be done there.
    pub(super) fn abandon_sessions(&mut self) {
        self.sessions = Sessions::default();
    }

    /// Takes what the watch has brought since it was last asked; returns up to where that is.
    pub(super) fn hear(&mut self, feed: &Feed) -> u64 {
        if let Some(news) = feed.news(&self.settings.key, &mut self.heard) {
            self.view.hear(news);
        }
        self.heard
    }

    /// Whether it sees what the watch showed last.
    pub(super) fn sees(&self, feed: &Feed) -> bool {
        let reading = self.view.reading.as_ref();
        reading.is_some_and(|reading| reading.shows(&feed.entries(&self.settings.key)))
    }

    /// Waits until something that a pass began has ended, and takes note of it and of all else that
    /// has ended by then.
    pub(super) async fn progress(&mut self) {
        tokio::select! {
            Some(written) = self.writes.under_way.join_next() => {
                self.settle_write(unwind(written));
            }
            Some(made) = self.sessions.made.join_next() => self.settle_session(unwind(made)),
            Some(told) = self.strangers.asked.join_next() => self.strangers.settle(unwind(told)),
            Some(proved) = self.proofs.answers.join_next() => self.settle_proof(unwind(proved)),
            Some(may_write) = self.writes.asked.join_next() => {
                self.writes.refusals.answered(unwind(may_write), Moment::now());
            }
            else => std::future::pending().await,
        }
        while let Some(written) = self.writes.under_way.try_join_next() {
            self.settle_write(unwind(written));
        }
        while let Some(made) = self.sessions.made.try_join_next() {
            self.settle_session(unwind(made));
        }
        while let Some(proved) = self.proofs.answers.try_join_next() {
            self.settle_proof(unwind(proved));
        }
    }

    /// One pass: as many rounds of observing, deciding and applying as there is something to do.
    pub(super) async fn pass(&mut self, applied: &[u32]) -> Conclusion {
        let started = Moment::now();
        let mut conclusion = Conclusion {
            applied: applied.to_vec(),
            ..Conclusion::default()
        };
        for _ in 0..ROUNDS {
            self.again = None;
            let facts = self.observe().await;
            let plan = decide(&facts.observed(self, &conclusion.applied));
            self.view.deadline = plan.deadline;
            let again = self.apply(&plan).await;
            self.next = self.next_time(&plan, facts.now);
            conclusion = self.conclude(&facts, plan, conclusion);
            if !again || conclusion.finished {
                break;
            }
            self.next = Moment::now() + SOONEST;
        }
        let trouble = self.view.trouble.as_ref();
        let result = trouble.map_or(Ok(()), |trouble| Err(trouble.error.reason()));
        self.context
            .metrics
            .pass(Moment::now().since(started), result);
        conclusion
    }

    fn conclude(&mut self, facts: &Facts, plan: Plan, before: Conclusion) -> Conclusion {
        let lock = self.view.reading.as_ref().map(Reading::lock);
        let settles = lock.is_some_and(|lock| plan.settles(lock, &self.settings));
        let settled = settles.then_some(self.settings.limit);
        let Plan {
            applied,
            record,
            agreement,
            finished,
            unheld,
            ..
        } = plan;
        if agreement == Some(Agreement::Agreed) {
            self.defence.holds(false);
        }
        self.fenced &= record.is_none();
        let held = |id: &SessionId| !self.sessions.ahead.values().any(|ahead| ahead == id);
        let lives = |life| Life::end(life).is_some_and(|end| end > facts.now);
        let mut kept = self.sessions.kept.iter();
        Conclusion {
            // What is to be recorded counts once it is.
            applied: if record.is_some() {
                before.applied
            } else {
                applied
            },
            record,
            agreement,
            // One that is being made is to be ended first.
            finished: finished && self.sessions.is_settled(),
            unheld,
            settled,
            idle: facts.is_empty()
                && self.sessions.is_empty()
                && self.writes.is_idle()
                && self.view.is_unused(),
            nothing_held: !facts.any_runs()
                && !kept.any(|(id, session)| held(id) && lives(session.life())),
            moved: self.moved.take().or(before.moved),
        }
    }

    fn next_time(&self, plan: &Plan, observed: Moment) -> Moment {
        let again = self.again.into_iter();
        let others = again
            .chain(self.writes.refusals.due())
            .chain(self.strangers.due())
            .chain(self.proofs.due());
        self.view.next_time(plan, others, observed)
    }

    /// Has something tried again in a while.
    pub(super) fn retry_soon(&mut self) {
        let soon = Moment::now() + SOON;
        self.again = Some(soon);
        self.next = self.next.min(soon);
    }
}

/// The outcome of a task. That one has panicked is a bug, and ends who waits for it, too.
fn unwind<T>(joined: Result<T, JoinError>) -> T {
    match joined {
        Ok(outcome) => outcome,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
