//! The overseer of one `ConsulSemaphore`: its spec comes in, its grantors work, its status goes out.
//!
//! It looks after all that belongs to the Kubernetes object: the finalizer, the status with the limits
//! that are ours, and the watch of the prefix, which it lays out for the grantors. Each lock key is a
//! [`Branch`]: a semaphore has one, a keyed one has one for each key that is in use.

mod access;
mod advice;
mod branch;
mod branches;
mod finalizer;
mod orphans;
mod passes;
mod readiness;
mod report;
mod reporter;
pub(super) mod spec;
mod sums;

use std::{collections::HashMap, sync::Arc, time::Duration};

use kube::Resource as _;
use tokio::{
    sync::{Notify, mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use self::{
    access::Access,
    branch::{Account, Branch, Orders, SpecOf, give},
    finalizer::Finalizer,
    orphans::Orphans,
    passes::Passes,
    readiness::Readiness,
    reporter::Reporter,
    spec::{defence, settings, short_ttl},
    sums::Sums,
};
use super::{
    Context, events,
    feed::Feed,
    home::Home,
    index::{LineRef, SemaphoreRef},
};
use crate::{
    crash::{self, Point},
    telemetry::SemaphoreLabels,
};
use consul_client::{self as consul, Listing, WatchOptions, clock::Moment};
use consul_semaphore::{Defence, Key, Settings, engine::Moved, limit};
use consul_semaphore_api::ConsulSemaphore;

/// When to try again to end what can't be ended yet.
const SOON: Duration = Duration::from_secs(1);

/// How many accounts may wait to be looked at.
const ACCOUNTS: usize = 64;

/// How long to wait when there is nothing to wait for.
const IDLE: Duration = Duration::from_hours(1);

/// What is known of a `ConsulSemaphore`.
pub(super) struct Overseer {
    context: Arc<Context>,
    reference: SemaphoreRef,
    labels: SemaphoreLabels,
    uid: Option<String>,
    generation: Option<i64>,
    specs: watch::Receiver<Arc<ConsulSemaphore>>,
    wake: Arc<Notify>,
    access: Access,
    home: Option<Home>,
    settings: Settings,
    feed: Feed,
    orders: watch::Sender<Arc<Orders>>,
    /// Whether a Job waits for what others may do at the prefix.
    awaited: watch::Sender<bool>,
    branches: HashMap<Option<Key>, AtWork>,
    tasks: JoinSet<()>,
    accounts: (mpsc::Sender<Account>, mpsc::Receiver<Account>),
    sums: Sums,
    orphans: Orphans,
    finalizer: Finalizer,
    /// Of a keyed semaphore, what is known where no key is in use. It has no passes.
    common: Option<Branch>,
    fencing_token: Option<u64>,
    /// What is known of the limit from before.
    defence: Defence,
    /// `status.appliedLimits`, as it is known to be in the status.
    applied: Vec<u32>,
    /// What it is to be, and which report says so.
    recording: Option<(u64, Vec<u32>)>,
    reporter: Reporter,
    readiness: Readiness,
    /// What was said of the TTL.
    warning: Option<String>,
    /// Whether it was said what is left in Consul.
    left_behind: bool,
    /// How often the way to Consul has been another one.
    moves: u64,
    /// When to try again what wakes nobody.
    again: Option<Moment>,
    /// Whether the status speaks of what this overseer has seen.
    reported: bool,
    finished: bool,
}

/// A branch in its task.
struct AtWork {
    wake: Arc<Notify>,
    task: AbortHandle,
    passes: Passes,
}

impl Overseer {
    /// Takes up the semaphore as it is. `wake` is notified when there are new lines of its Jobs.
    pub(super) fn new(
        context: Arc<Context>,
        specs: watch::Receiver<Arc<ConsulSemaphore>>,
        wake: Arc<Notify>,
    ) -> Self {
        let semaphore = specs.borrow().clone();
        let reference = SemaphoreRef::of(semaphore.as_ref());
        let access = Access::new(&context, &semaphore);
        let home = access.home(&context, &semaphore);
        let status = semaphore.status.clone().unwrap_or_default();
        let applied = status.applied_limits.iter();
        let applied = applied.filter_map(|limit| u32::try_from(*limit).ok());
        let applied: Vec<u32> = applied.collect();
        let settings = settings(&context, &semaphore);
        let (orders, given) = watch::channel(Arc::new(Orders {
            settings: settings.clone(),
            generation: semaphore.metadata.generation,
            access: access.stated(),
            home: home.clone(),
            moves: 0,
            barred: access.is_barred(),
            applied: applied.clone(),
        }));
        let (feed, keyed) = (Feed::default(), semaphore.spec.keyed);
        let common = keyed.then(|| {
            let line = LineRef::new(&reference, None);
            let (context, feed) = (context.clone(), feed.clone());
            Branch::new(
                context,
                line,
                given,
                feed,
                Defence::default(),
                Arc::default(),
            )
        });
        Self {
            labels: SemaphoreLabels::new(reference.namespace.as_ref(), reference.name.as_ref()),
            uid: semaphore.metadata.uid.clone(),
            generation: semaphore.metadata.generation,
            reporter: Reporter::start(&context, specs.clone()),
            fencing_token: status.fencing_token.and_then(|token| token.try_into().ok()),
            defence: defence(&semaphore),
            context,
            reference,
            specs,
            wake,
            access,
            home,
            settings,
            feed,
            orders,
            awaited: watch::channel(false).0,
            branches: HashMap::new(),
            tasks: JoinSet::new(),
            accounts: mpsc::channel(ACCOUNTS),
            sums: Sums::default(),
            orphans: Orphans::default(),
            finalizer: Finalizer::default(),
            common,
            applied,
            recording: None,
            readiness: Readiness::default(),
            warning: None,
            left_behind: false,
            moves: 0,
            again: None,
            reported: false,
            finished: false,
        }
    }

    /// Works until the semaphore is gone.
    pub(super) async fn run(mut self) {
        self.await_finalizer().await;
        if self.finished {
            return;
        }
        self.warn_of_short_ttl();
        let mut wait = self.watch_wait();
        let mut moves = self.moves;
        let mut readings = self.watch(wait);
        self.branch_out();
        let mut accounts = Vec::new();
        while !self.finished {
            let due = self.watch_wait();
            if moves != self.moves || due != wait {
                (wait, moves) = (due, self.moves);
                readings = self.watch(wait);
            }
            self.add_finalizer();
            self.look_for_orphans();
            let next = self.next();
            tokio::select! {
                () = self.wake.notified() => self.branch_out(),
                changed = self.specs.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.respec();
                }
                () = self.access.changed() => self.regain_access(),
                Some(listing) = readings.recv() => self.hear(listing),
                // All that have come by now: what they come to is concluded once.
                1.. = self.accounts.1.recv_many(&mut accounts, ACCOUNTS) => {
                    accounts.drain(..).for_each(|account| self.take(account));
                }
                Some(answer) = self.finalizer.asked.join_next() => self.settle_finalizer(answer),
                Some(asked) = self.orphans.asked.join_next() => match asked {
                    Ok(answer) => self.end_orphans(answer),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                Some(ended) = self.tasks.join_next() => match ended {
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    _ => continue,
                },
                () = self.reporter.progress(), if self.recording.is_some() => self.confirm().await,
                () = sleep(next.since(Moment::now())) => self.again = None,
            }
            self.conclude().await;
        }
    }

    /// Whether each key has a semaphore of its own.
    fn is_keyed(&self) -> bool {
        self.common.is_some()
    }

    /// How long the watch waits for news before it answers all the same.
    fn watch_wait(&self) -> Duration {
        let wait = self.settings.span() / 5;
        self.sums.wait().map_or(wait, |shortest| shortest.min(wait))
    }

    /// Readings of the prefix, at least one in `wait`, until the receiver is dropped.
    fn watch(&self, wait: Duration) -> mpsc::Receiver<Result<Listing, consul::Error>> {
        let options = WatchOptions {
            wait,
            urgent: self.awaited.subscribe(),
            ..WatchOptions::default()
        };
        match &self.home {
            Some(home) => home
                .consul
                .readings(&self.settings.prefix.folder(), options),
            None => mpsc::channel(1).1,
        }
    }

    /// When there is something to do that wakes nobody.
    fn next(&self) -> Moment {
        let now = Moment::now();
        let hopeless = (self.settings.terminating && self.home.is_none()).then(|| {
            let hopeless = self.access.hopeless_from(self.settings.span());
            hopeless.max(now + SOON)
        });
        let times = self.again.into_iter().chain(hopeless);
        let times = times.chain(self.orphans_due()).chain(self.finalizer.due());
        times.min().unwrap_or(now + IDLE)
    }

    /// Tells the branches what holds now, if that is news. Every status that is written comes back as a
    /// spec which says nothing new.
    fn order(&mut self) {
        let orders = Orders {
            settings: self.settings.clone(),
            generation: self.generation,
            access: self.access.stated(),
            home: self.home.clone(),
            moves: self.moves,
            barred: self.access.is_barred(),
            applied: self.applied.clone(),
        };
        if give(orders, &self.orders)
            && let Some(common) = &mut self.common
        {
            common.heed();
        }
    }

    /// The spec has changed, or the semaphore is being deleted, or its finalizer was removed.
    fn respec(&mut self) {
        let semaphore = self.specs.borrow_and_update().clone();
        if self.generation != semaphore.metadata.generation {
            self.defence = Defence::default();
        }
        self.generation = semaphore.metadata.generation;
        self.settings = settings(&self.context, &semaphore);
        self.warn_of_short_ttl();
        if self.access.suits(&semaphore) {
            self.order();
        } else {
            self.access = Access::new(&self.context, &semaphore);
            self.regain_access();
        }
        self.look_for_finalizer();
    }

    /// Says whom a limit that was moved leaves behind.
    fn tell_moved(&self, moved: Moved, key: Option<&Key>) {
        let Moved { from, to, others } = moved;
        let of_key = key.map_or(String::new(), |key| format!(" of key {key}"));
        let contenders = match others {
            1 => "1 contender".to_owned(),
            others => format!("{others} contenders"),
        };
        let note = format!(
            "the limit{of_key} in Consul was moved from {from} to {to}: {contenders} of other programs or \
             clusters may go by {from}, and will be refused the next time that they ask for a slot. \
             Those that hold one keep it until they release it. Start programs again with {to}, and \
             set spec.limit to {to} in other clusters"
        );
        tracing::warn!(semaphore = %self.reference, from, to, others, "others will be refused");
        let about = self.specs.borrow().object_ref(&());
        let events = &self.context.events;
        events.tell(about, events::Reason::OthersRefused, note);
    }

    /// Says once of a TTL that a change of the leader may outlast it.
    fn warn_of_short_ttl(&mut self) {
        let (ttl, lease) = (self.settings.ttl, self.context.lease);
        let note = short_ttl(ttl, lease);
        let told = std::mem::replace(&mut self.warning, note.clone());
        let Some(note) = note.filter(|_| told != self.warning) else {
            return;
        };
        tracing::warn!(semaphore = %self.reference, "{note}");
        let about = self.specs.borrow().object_ref(&());
        self.context
            .events
            .tell_once(about, events::Reason::ShortTtl, note);
    }

    /// There is another way to Consul, or none any more; what went wrong before may not do so again.
    fn regain_access(&mut self) {
        if !self.access.is_pending() {
            self.home = self.access.home(&self.context, &self.specs.borrow());
            self.moves += 1;
        }
        self.order();
    }

    /// The status has been written: a limit that it had to have may be in it now.
    async fn confirm(&mut self) {
        if let Some((_, applied)) = self
            .recording
            .take_if(|(number, _)| *number <= self.reporter.written())
        {
            self.applied = applied;
            self.order();
            crash::reach(Point::LimitRecorded, &self.reference.namespace).await;
        }
    }

    /// Does for the object what the passes came to.
    async fn conclude(&mut self) {
        let waits = self.sums.awaits_others();
        self.awaited
            .send_if_modified(|awaited| std::mem::replace(awaited, waits) != waits);
        self.reported |= self.knows_all();
        if !self.reported {
            return;
        }
        // It stands in an account until the next pass even if it has been recorded by then.
        let record = self.sums.record().filter(|record| **record != self.applied);
        let record = record.cloned();
        if record.is_none() {
            self.recording = None;
            self.forget_limits();
        }
        let report = self.compose_report(record.as_ref().unwrap_or(&self.applied));
        self.tell_readiness(&report.findings);
        let number = self.reporter.publish(report);
        if let Some(record) = record
            && self
                .recording
                .as_ref()
                .is_none_or(|(_, recording)| *recording != record)
        {
            self.recording = Some((number, record));
            self.reporter.hurry();
        }
        if self.is_cleaned_up() && self.orphans.done {
            crash::reach(Point::LockRemoved, &self.reference.namespace).await;
            self.finish().await;
        } else if self.is_hopeless() {
            self.leave_behind().await;
        }
    }

    /// Whether the semaphore is being deleted and nothing of it is left at any lock key.
    fn is_cleaned_up(&self) -> bool {
        let heard = self.sums.len() == self.branches.len() && self.feed.is_known();
        self.settings.terminating && heard && self.sums.all_finished()
    }

    /// What the grantors are to go by.
    fn spec(&self) -> SpecOf {
        SpecOf {
            generation: self.generation,
            limit: self.settings.limit,
        }
    }

    /// Whether every lock key has been heard of. Until then the status stays as it was: what is missing
    /// in the sums may be there.
    fn knows_all(&self) -> bool {
        let all_keys = !self.is_keyed() || self.home.is_none() || !self.feed.is_silent();
        all_keys && self.sums.len() == self.branches.len()
    }

    /// Earlier limits are ours no more once nothing in Consul follows from them: at no key, also of
    /// those that only the watch shows.
    fn forget_limits(&mut self) {
        let applied = limit::settled(&self.applied, self.settings.limit);
        let settled = || self.sums.all_settled(self.spec(), self.branches.len());
        if applied != self.applied && self.feed.is_known() && settled() {
            self.applied = applied;
            self.order();
        }
    }
}
