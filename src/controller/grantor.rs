//! The grantor of one lock key: the one place where its slots are granted and released.
//!
//! It is a task that owns everything it knows, so passes are serial without a lock. Each pass is
//! [`observe`](super::observe) → [`decide`] → [`apply`](super::apply) → report.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::{StreamExt, stream::BoxStream};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::sleep,
};

use super::{
    Context,
    index::SemaphoreRef,
    keeper::Session,
    observe::{Proof, Whose},
    report::Shown,
    reporter::Reporter,
    steps::{Outcome, Step},
};
use crate::{
    api::ConsulSemaphore,
    clock::Moment,
    consul::{self, Client, Listing, Scope, SessionId, WatchOptions},
    semaphore::{Deaths, Plan, Reading, Settings, Uid, decide},
    telemetry::SemaphoreLabels,
};

/// How long the slot of a dead holder rests before it is used again: Consul's own default.
const LOCK_DELAY: Duration = Duration::from_secs(15);

/// How many rounds a pass has at the most before others get their turn.
const ROUNDS: usize = 32;

/// How long to wait when there is nothing to wait for.
const IDLE: Duration = Duration::from_hours(1);

/// When to try again what waits for something that wakes nobody.
const SOON: Duration = Duration::from_secs(1);

/// The shortest time between passes that nothing but time has caused.
const SOONEST: Duration = Duration::from_millis(10);

/// Something that could not be done, and when it is tried again.
#[derive(Debug)]
pub(super) struct Setback {
    attempts: u32,
    pub(super) until: Moment,
}

impl Setback {
    /// One more failure: the pause grows from 200 ms to half a minute, with jitter.
    pub(super) fn after(before: Option<&Self>, now: Moment) -> Self {
        let attempts = before.map_or(0, |before| before.attempts.saturating_add(1));
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(200))
            .with_max_delay(Duration::from_secs(30))
            .with_jitter()
            .without_max_times()
            .build();
        let pause = pauses.nth(attempts.min(16) as usize).unwrap_or(IDLE);
        Self {
            attempts,
            until: now + pause,
        }
    }
}

/// Why Consul can't be used now.
#[derive(Debug)]
pub(super) struct ConsulTrouble {
    pub(super) error: consul::Error,
    /// Whether reading works, and only writing does not.
    pub(super) writing: bool,
    /// Since when there has been trouble of any kind.
    pub(super) since: Moment,
    pub(super) setback: Setback,
}

/// A Job that could not be written to.
#[derive(Debug)]
pub(super) struct JobTrouble {
    pub(super) setback: Setback,
    /// Whether the API server refused to have it started.
    pub(super) refused: bool,
}

/// The grantor's knowledge.
pub(super) struct Grantor {
    pub(super) context: Arc<Context>,
    pub(super) reference: SemaphoreRef,
    pub(super) settings: Settings,
    pub(super) generation: Option<i64>,
    pub(super) ttl: Duration,
    /// Which part of Consul it talks to.
    pub(super) place: Scope,
    pub(super) consul: Client,
    pub(super) wake: Arc<Notify>,
    pub(super) labels: SemaphoreLabels,
    pub(super) reporter: Reporter,
    /// The prefix as Consul last showed it; `None` while that is in doubt.
    pub(super) reading: Option<Reading>,
    pub(super) trouble: Option<ConsulTrouble>,
    pub(super) deaths: Deaths,
    /// Whom each contender's session stands for.
    pub(super) identities: HashMap<SessionId, Whose>,
    /// The sessions that are renewed here.
    pub(super) sessions: HashMap<SessionId, Session>,
    /// Those of them that were made ahead.
    pub(super) ahead: BTreeMap<Uid, SessionId>,
    /// What was proved of Jobs whose contender may have to go.
    pub(super) proofs: HashMap<SessionId, Proof>,
    /// `status.appliedLimits`.
    pub(super) applied: Vec<u32>,
    pub(super) enforced: u32,
    pub(super) fencing_token: Option<u64>,
    /// Whether Consul's index went back.
    pub(super) went_back: bool,
    pub(super) steps: JoinSet<(Step, Outcome)>,
    /// Jobs that a step is under way for.
    pub(super) busy: BTreeSet<Uid>,
    pub(super) troubles: HashMap<Uid, JobTrouble>,
    /// Whether the waiting Jobs were told that the semaphore goes.
    pub(super) told: bool,
    /// Jobs that a session is being made for.
    pub(super) making: BTreeSet<Uid>,
    /// How often in a row somebody else was faster.
    pub(super) conflicts: u32,
    /// When something is to be tried again that wakes nobody.
    pub(super) again: Option<Moment>,
    /// How many Jobs are in line.
    pub(super) waiting: usize,
    pub(super) shown: Shown,
    /// When to look again if nothing happens before.
    next: Moment,
    pub(super) finished: bool,
}

impl Grantor {
    /// Takes up the semaphore as it is.
    pub(super) fn new(
        context: Arc<Context>,
        semaphore: &ConsulSemaphore,
        wake: Arc<Notify>,
    ) -> Self {
        let reference = SemaphoreRef::of(semaphore);
        let scope = semaphore.spec.consul.clone().unwrap_or_default();
        let place = Scope {
            datacenter: scope.datacenter,
            namespace: scope.namespace,
            partition: scope.partition,
        };
        let consul = context.consul.scoped(place.clone());
        let status = semaphore.status.clone().unwrap_or_default();
        let applied = status
            .applied_limits
            .iter()
            .filter_map(|limit| u32::try_from(*limit).ok());
        Self {
            labels: SemaphoreLabels::new(reference.namespace.as_ref(), reference.name.as_ref()),
            settings: settings(&context, semaphore),
            generation: semaphore.metadata.generation,
            ttl: semaphore.spec.session.ttl.get(),
            applied: applied.collect(),
            fencing_token: status.fencing_token.and_then(|token| token.try_into().ok()),
            reporter: Reporter::start(&context, &reference, status),
            place,
            consul,
            wake,
            reference,
            context,
            reading: None,
            trouble: None,
            deaths: Deaths::default(),
            identities: HashMap::new(),
            sessions: HashMap::new(),
            ahead: BTreeMap::new(),
            proofs: HashMap::new(),
            enforced: 0,
            went_back: false,
            steps: JoinSet::new(),
            busy: BTreeSet::new(),
            troubles: HashMap::new(),
            told: false,
            making: BTreeSet::new(),
            conflicts: 0,
            again: None,
            waiting: 0,
            shown: Shown::default(),
            next: Moment::now(),
            finished: false,
        }
    }

    /// Grants and releases until the semaphore is gone.
    pub(super) async fn run(mut self, mut specs: watch::Receiver<Arc<ConsulSemaphore>>) {
        self.ensure_finalizer(&mut specs).await;
        let mut readings = self.watch();
        let wake = self.wake.clone();
        while !self.finished {
            tokio::select! {
                () = wake.notified() => {}
                changed = specs.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let spec = specs.borrow_and_update().clone();
                    let ttl = self.ttl;
                    self.respec(&spec);
                    if self.ttl != ttl {
                        readings = self.watch();
                    }
                }
                Some(listing) = readings.next() => self.note(listing),
                Some(Ok((step, outcome))) = self.steps.join_next() => self.settle(&step, outcome),
                () = sleep(self.next.since(Moment::now())) => {}
            }
            self.pass().await;
        }
    }

    /// Readings of the prefix, for ever. One is evidence for a TTL, so a new one comes round well
    /// within it.
    fn watch(&self) -> BoxStream<'static, Result<Listing, consul::Error>> {
        let options = WatchOptions {
            wait: self.ttl / 3,
            ..WatchOptions::default()
        };
        self.consul
            .watch(&self.settings.prefix.folder(), options)
            .boxed()
    }

    /// The spec has changed, or the semaphore is being deleted.
    fn respec(&mut self, semaphore: &ConsulSemaphore) {
        if self.generation != semaphore.metadata.generation {
            self.enforced = 0;
        }
        self.generation = semaphore.metadata.generation;
        self.settings = settings(&self.context, semaphore);
        self.ttl = semaphore.spec.session.ttl.get();
    }

    /// Takes a reading from the watch, unless what is known is newer.
    fn note(&mut self, listing: Result<Listing, consul::Error>) {
        match listing {
            Ok(listing) => {
                let newer = self
                    .reading
                    .as_ref()
                    .is_none_or(|known| listing.index >= known.index);
                if newer || listing.reset {
                    self.went_back |= listing.reset;
                    self.adopt_reading(listing);
                }
            }
            Err(error) => self.read_failed(error),
        }
    }

    fn adopt_reading(&mut self, listing: Listing) {
        let reading = Reading::new(self.settings.prefix.clone(), listing);
        self.deaths.observe(&reading, Moment::now());
        self.reading = Some(reading);
        if self
            .trouble
            .as_ref()
            .is_some_and(|trouble| !trouble.writing)
        {
            tracing::info!(semaphore = %self.reference, "Consul can be read again");
            self.trouble = None;
        }
    }

    pub(super) fn read_failed(&mut self, error: consul::Error) {
        if self.trouble.is_none() {
            tracing::warn!(semaphore = %self.reference, %error, "Consul can't be read");
        }
        // Nothing is granted in doubt.
        self.reading = None;
        self.set_trouble(error, false);
    }

    pub(super) fn write_failed(&mut self, error: consul::Error) {
        if self.trouble.is_none() {
            tracing::warn!(semaphore = %self.reference, %error, "Consul can't be written to");
        }
        self.set_trouble(error, true);
    }

    fn set_trouble(&mut self, error: consul::Error, writing: bool) {
        let (before, now) = (self.trouble.as_ref(), Moment::now());
        self.trouble = Some(ConsulTrouble {
            error,
            writing,
            since: before.map_or(now, |before| before.since),
            setback: Setback::after(before.map(|before| &before.setback), now),
        });
    }

    /// Reads the prefix now.
    async fn reread(&mut self) {
        match self.consul.list(&self.settings.prefix.folder()).await {
            Ok(listing) => self.adopt_reading(listing),
            Err(error) => self.read_failed(error),
        }
    }

    /// Has something tried again in a while.
    pub(super) fn retry_soon(&mut self) {
        self.again = Some(Moment::now() + SOON);
    }

    /// Consul can be written to again, or nothing is left to write.
    pub(super) fn writing_works(&mut self) {
        if self.trouble.as_ref().is_some_and(|trouble| trouble.writing) {
            self.trouble = None;
        }
    }

    /// One pass: as many rounds of observing, deciding and applying as there is something to do.
    async fn pass(&mut self) {
        let started = Moment::now();
        for _ in 0..ROUNDS {
            self.again = None;
            let blocked = self
                .trouble
                .as_ref()
                .is_some_and(|trouble| trouble.setback.until > Moment::now());
            if self.reading.is_none() && !blocked {
                self.reread().await;
            }
            let facts = self.observe().await;
            let plan = decide(&facts.observed(self));
            let again = self.apply(&plan, blocked).await;
            if self.is_hopeless(&facts) {
                self.leave_behind().await;
            }
            let report = self.compose_report(&plan);
            self.reporter.publish(report);
            self.plan_next(&plan);
            if !again || self.finished {
                break;
            }
        }
        let result = self
            .trouble
            .as_ref()
            .map_or(Ok(()), |trouble| Err(trouble.error.reason()));
        self.context
            .metrics
            .pass(Moment::now().since(started), result);
    }

    fn plan_next(&mut self, plan: &Plan) {
        let now = Moment::now();
        let times = plan
            .wake
            .into_iter()
            .chain(self.again)
            .chain(self.trouble.iter().map(|trouble| trouble.setback.until))
            .chain(self.troubles.values().map(|trouble| trouble.setback.until))
            .chain(self.proofs.values().filter_map(Proof::due));
        self.next = times.min().unwrap_or(now + IDLE).max(now + SOONEST);
    }
}

fn settings(context: &Context, semaphore: &ConsulSemaphore) -> Settings {
    Settings {
        cluster: context.cluster.clone(),
        namespace: semaphore.metadata.namespace.clone().unwrap_or_default(),
        name: semaphore.metadata.name.clone().unwrap_or_default(),
        prefix: semaphore.prefix(),
        limit: u32::try_from(semaphore.spec.limit).unwrap_or(1),
        policy: semaphore.spec.limit_policy,
        paused: semaphore.spec.paused,
        terminating: semaphore.metadata.deletion_timestamp.is_some(),
        lock_delay: LOCK_DELAY,
    }
}
