//! Handles one `ConsulSemaphore` apart from its slots: the object in the API server with its finalizer and its
//! status, its access to Consul, and the watch of its prefix. The engine handles the slots.

#![expect(
    clippy::ref_option,
    reason = "a semaphore without keys is found in the same maps, by None"
)]

mod access;
mod advice;
mod conditions;
mod conflict;
mod finalizer;
mod holds;
mod operators;
mod queued;
mod readiness;
mod reporter;
pub(super) mod spec;
mod status;
mod tenures;
mod waits;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;
use tokio::{
    sync::{Semaphore as Turns, mpsc, watch},
    task::JoinSet,
};

use self::{
    access::SemaphoreAccess,
    conditions::{Observed, number},
    holds::Holds,
    readiness::ReadinessLog,
    reporter::{Reporter, StatusReport},
    spec::{defence, settings, short_ttl},
    status::{
        KeyStatus, Several, ShownReading, SpecOf, StatusByKey, Totals, Use, each_key_has_its_limit,
    },
    tenures::Tenures,
};
pub(super) use self::{
    conditions::{GrantObstacle, Need, Outlook},
    conflict::ConflictReport,
};
use super::{
    Context,
    consul_target::ConsulTarget,
    events,
    prefix_watches::{Demand, PrefixWatch, WatchedFolder},
    proof_record::{ProofGroup, group, group_of_one, last_proof},
    shell::{Input, SemaphoreObject},
    watches::reference_of,
};
use crate::telemetry::{SemaphoreLabels, SemaphoreTimes};
use consul_client::{
    self as consul, Session,
    clock::{self, Moment},
};
use consul_semaphore::{
    Agreement, Key, SessionState, Settings,
    engine::{
        Conclusion, ConsulAccess, IDLE, Known, Moved, Queue, QueueRef, QueueState, SemaphoreRef,
        SemaphoreState, Spec,
    },
    windows::Opening,
};
use consul_semaphore_api::{ConsulSemaphore, ConsulSemaphoreStatus, conditions::Finding};

/// Returns a pass's conclusion as the status reports it. A limit that is written with the first holder counts as
/// agreed, because no other limit is in Consul until then.
fn as_reported(conclusion: &Conclusion) -> Conclusion {
    let mut conclusion = conclusion.clone();
    if conclusion.settled.is_some() && matches!(conclusion.agreement, Some(Agreement::Write { .. }))
    {
        conclusion.agreement = Some(Agreement::Agreed);
    }
    conclusion
}

/// Number of calls to Consul that the queues of one semaphore make at once.
const CALLS_AT_ONCE: usize = 32;

/// Time for which a new object has no status while Consul does not answer. Consul usually answers sooner, and then
/// one write of the status is enough.
const FIRST_STATUS_AFTER: Duration = Duration::from_millis(500);

/// Controller of a `ConsulSemaphore` without its slots.
pub(super) struct SemaphoreController {
    context: Arc<Context>,
    reference: SemaphoreRef,
    labels: SemaphoreLabels,
    since: Moment,
    /// Object as it was last seen.
    object: watch::Sender<Arc<ConsulSemaphore>>,
    access: SemaphoreAccess,
    target: Option<ConsulTarget>,
    /// Turns to call Consul, which the queues share.
    turns: Arc<Turns>,
    watching: Option<PrefixWatch>,
    reporter: Reporter,
    reported: StatusSources,
    announced: Announced,
    inputs: mpsc::Sender<Input>,
    /// Tasks that send changes of this semaphore to the shell.
    notifiers: JoinSet<()>,
}

/// State from which the status is composed.
#[derive(Default)]
struct StatusSources {
    keys: StatusByKey,
    tenures: BTreeMap<Option<Key>, Tenures>,
    holds: BTreeMap<Option<Key>, Holds>,
    /// Keys whose state may have changed.
    changed: BTreeSet<Option<Key>>,
    /// Limits to be recorded, and the number of the report that contains them. The number is 0 until there is one.
    recording: Option<(u64, Vec<u32>)>,
    /// Number of the last limits of another operator that the engine knows of.
    found: u64,
    /// Whether the status reflects what this process has read.
    begun: bool,
}

/// Problems that have already been logged or emitted.
#[derive(Default)]
struct Announced {
    readiness: ReadinessLog,
    /// Last warning about the TTL.
    ttl: Option<String>,
    /// Whether it was logged that the finalizer can't be added.
    finalizer: bool,
    /// Whether it was logged that sessions without a contender can't be listed.
    sessions: bool,
    /// Whether it was reported what is left in Consul.
    left_behind: bool,
}

impl SemaphoreController {
    /// Starts to handle a semaphore; changes are sent to `inputs`.
    pub(super) fn new(
        context: Arc<Context>,
        semaphore: Arc<ConsulSemaphore>,
        inputs: mpsc::Sender<Input>,
    ) -> Self {
        let reference = reference_of(semaphore.as_ref());
        let access = SemaphoreAccess::new(&context, &semaphore);
        let target = access.target(&context, &semaphore);
        let (object, seen) = watch::channel(semaphore);
        let reporter = Reporter::start(&context, seen);
        let mut this = Self {
            labels: SemaphoreLabels::new(reference.namespace.as_ref(), reference.name.as_ref()),
            context,
            reference,
            since: Moment::now(),
            object,
            access,
            target,
            turns: Arc::new(Turns::new(CALLS_AT_ONCE)),
            watching: None,
            reporter,
            reported: StatusSources::default(),
            announced: Announced::default(),
            inputs,
            notifiers: JoinSet::new(),
        };
        this.notify_of_access();
        this.notify_of_status();
        this.warn_of_short_ttl();
        this
    }

    /// Returns the reference to the object in the API server.
    pub(super) fn object(&self) -> SemaphoreObject {
        SemaphoreObject {
            semaphore: self.reference.clone(),
            uid: self.object.borrow().metadata.uid.clone(),
        }
    }

    /// Returns the spec for the engine.
    pub(super) fn spec(&self) -> Spec {
        let object = self.object.borrow();
        Spec {
            settings: settings(&self.context, &object),
            generation: object.metadata.generation,
            keyed: object.spec.keyed,
        }
    }

    /// Returns what an earlier status and the record of the last proofs say.
    pub(super) fn known(&self) -> Known {
        let object = self.object.borrow();
        let status = object.status.clone().unwrap_or_default();
        let limits = status.applied_limits.iter();
        let applied = limits.filter_map(|limit| u32::try_from(*limit).ok());
        Known {
            recorded: applied.collect(),
            defence: defence(&object),
            fencing_token: status.fencing_token.and_then(|token| token.try_into().ok()),
            blocked: waits::known(&object),
            last_proof: last_proof(
                &self.context.last_proofs,
                &object,
                settings(&self.context, &object).ttl,
                status.observed_generation == object.metadata.generation,
            ),
        }
    }

    /// Returns the group of the semaphore in the record of the last proofs. Its spec asks for sessions with the TTL
    /// `asked`, and `ttl` is the shortest TTL of the sessions with which its running workloads hold slots.
    pub(super) fn proof_group(&self, asked: Option<Duration>, ttl: Duration) -> ProofGroup {
        let object = self.object.borrow();
        if asked == Some(ttl) {
            group(&object, asked)
        } else {
            group_of_one(&object)
        }
    }

    /// Returns how the semaphore may use Consul.
    pub(super) fn consul_access(&self) -> ConsulAccess {
        self.access.for_target(self.target.as_ref())
    }

    pub(super) fn target(&self) -> Option<&ConsulTarget> {
        self.target.as_ref()
    }

    /// Returns the client to list the prefix with, while the prefix is watched.
    pub(super) fn lister(&self) -> Option<&consul::Client> {
        self.watching.as_ref().map(PrefixWatch::client)
    }

    pub(super) fn turns(&self) -> Arc<Turns> {
        self.turns.clone()
    }

    pub(super) fn labels(&self) -> &SemaphoreLabels {
        &self.labels
    }

    /// Handles a change of the object. Returns the access to Consul if it has changed.
    pub(super) fn update(&mut self, semaphore: Arc<ConsulSemaphore>) -> Option<ConsulAccess> {
        let suits = self.access.suits(&semaphore);
        self.object.send_replace(semaphore);
        self.warn_of_short_ttl();
        if suits {
            return None;
        }
        self.access = SemaphoreAccess::new(&self.context, &self.object.borrow());
        self.notify_of_access();
        self.regain_access()
    }

    /// Handles a change of the access to Consul, or of its problem. Returns the access if it has changed.
    pub(super) fn regain_access(&mut self) -> Option<ConsulAccess> {
        self.reported.all_changed();
        if self.access.is_pending() {
            return None;
        }
        self.target = self.access.target(&self.context, &self.object.borrow());
        if let Some(watching) = self.watching.take() {
            watching.renew();
        }
        Some(self.consul_access())
    }

    /// Notifies the shell when the access to Consul changes.
    fn notify_of_access(&mut self) {
        let Some(mut changes) = self.access.changes() else {
            return;
        };
        let (inputs, reference) = (self.inputs.clone(), self.reference.clone());
        // The notifier of an earlier Secret has ended together with the reading of that Secret.
        while self.notifiers.try_join_next().is_some() {}
        self.notifiers.spawn(async move {
            while changes.next().await {
                let input = Input::AccessChanged(reference.clone());
                if inputs.send(input).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Notifies the shell when the status was written: here, or by another operator with other limits.
    fn notify_of_status(&mut self) {
        let (mut written, mut found) = (self.reporter.progress(), self.reporter.found());
        let (inputs, reference) = (self.inputs.clone(), self.reference.clone());
        self.notifiers.spawn(async move {
            loop {
                let alive = tokio::select! {
                    written = written.changed() => written.is_ok(),
                    found = found.changed() => found.is_ok(),
                };
                if !alive {
                    return;
                }
                let input = Input::StatusWritten(reference.clone());
                if inputs.send(input).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Watches the prefix, if there is access to Consul, and sends the listings to the shell.
    pub(super) fn watch(&mut self, semaphore: &SemaphoreState) {
        let Some(target) = self.target.as_ref().filter(|_| semaphore.has_begun()) else {
            self.watching = None;
            return;
        };
        let Totals {
            wait: shortest,
            awaits_others,
            ..
        } = self.reported.keys.totals();
        let settings = &semaphore.spec().settings;
        let wait = settings.span() / 5;
        let wait = shortest.map_or(wait, |shortest| shortest.min(wait));
        let demand = Demand {
            wait,
            urgent: awaits_others,
        };
        if let Some(watching) = &self.watching {
            watching.demand(demand);
            return;
        }
        let folder = WatchedFolder {
            place: target.place.clone(),
            credential: self.access.credential(&self.reference.namespace),
            folder: settings.prefix.folder(),
        };
        let notify = (self.reference.clone(), self.inputs.clone());
        let watches = &self.context.prefix_watches;
        let watch = watches.watch(folder, &target.consul, demand, notify);
        self.watching = Some(watch);
    }

    /// Lists the prefix once more, without waiting for a change.
    pub(super) fn list_again(&self) {
        if let Some(watching) = &self.watching {
            watching.renew();
        }
    }

    /// Whether this is the number of the current watch.
    pub(super) fn watches(&self, number: u64) -> bool {
        let watching = self.watching.as_ref();
        watching.is_some_and(|watching| watching.is(number))
    }

    /// Notes that the state of a key may have changed.
    pub(super) fn changed(&mut self, key: &Option<Key>) {
        self.reported.changed.insert(key.clone());
    }

    /// Notes that a slot of this key was given back that had been granted at this time.
    pub(super) fn released(&mut self, key: &Option<Key>, granted: Timestamp) {
        let holds = self.reported.holds.entry(key.clone()).or_default();
        holds.note(granted, clock::time());
    }

    /// Publishes the current status.
    pub(super) fn report(&mut self, semaphore: &SemaphoreState) {
        for key in std::mem::take(&mut self.reported.changed) {
            self.see(semaphore, &key);
        }
        self.watch(semaphore);
        let begun = self.reported.begun;
        let all = || self.reported.keys.len() == semaphore.queues().len();
        self.reported.begun = begun || (all() && semaphore.is_known());
        // A status from before a restart stays until more is known. So does a status that says that the finalizer is
        // refused.
        let shows_nothing = || self.object.borrow().status.is_none() && !self.announced.finalizer;
        if !self.reported.begun && (Moment::now() < self.patience() || !shows_nothing()) {
            return;
        }
        let report = self.compose(semaphore);
        self.report_readiness(&report.findings);
        let number = self.reporter.publish(report);
        if self.reported.begun && !begun {
            self.reporter.hurry();
        }
        // If the engine does not ask for these limits any more, the report does not contain them, and records
        // nothing.
        if let Some((recording, limits)) = &mut self.reported.recording
            && *recording == 0
            && *limits == semaphore.applied_limits()
        {
            *recording = number;
            self.reporter.hurry();
        }
    }

    /// Returns the time at which a new object gets a status, even if nothing is known yet.
    pub(super) fn patience(&self) -> Moment {
        self.since + FIRST_STATUS_AFTER
    }

    /// Has the next report record these limits.
    pub(super) fn record(&mut self, limits: Vec<u32>) {
        self.reported.recording = Some((0, limits));
    }

    /// Takes the limits that have been recorded, if there were limits to record.
    pub(super) fn take_recorded(&mut self) -> Option<Vec<u32>> {
        let written = self.reporter.written();
        let recording = &mut self.reported.recording;
        let (_, limits) = recording.take_if(|(number, _)| (1..=written).contains(number))?;
        Some(limits)
    }

    /// Takes the limits that another operator recorded as ours, if they are news. Limits that belong to a later spec
    /// are not news yet, because under the known spec they would be removed.
    pub(super) fn take_found(&mut self) -> Option<Vec<u32>> {
        let receiver = self.reporter.found();
        let found = receiver.borrow();
        let known = self.object.borrow().metadata.generation;
        if found.number == self.reported.found || found.generation > known {
            return None;
        }
        self.reported.found = found.number;
        let limits = found.limits.iter();
        let recorded = limits.filter_map(|limit| u32::try_from(*limit).ok());
        Some(recorded.collect())
    }

    /// Updates the state of a key. Conclusions under an earlier spec do not count for the current spec.
    fn see(&mut self, semaphore: &SemaphoreState, key: &Option<Key>) {
        let Some(state) = semaphore.queues().get(key) else {
            self.reported.keys.remove(key);
            self.reported.tenures.remove(key);
            self.reported.holds.remove(key);
            return;
        };
        let QueueState {
            queue, concluded, ..
        } = state;
        let generation = semaphore.spec().generation;
        let Some((conclusion, _)) = concluded.as_ref().filter(|(_, of)| *of == generation) else {
            return;
        };
        let conclusion = as_reported(conclusion);
        let reference = QueueRef::new(&self.reference, key.clone());
        let tenures = self.reported.tenures.entry(key.clone()).or_default();
        let before = self.reported.keys.get(key);
        let shown = match queue.last_reading() {
            Some(reading) => {
                ShownReading::new(&reference, queue, reading, tenures, &self.context.index)
            }
            None => before.map_or_else(ShownReading::default, |before| before.shown.clone()),
        };
        let queued = status::queued(&self.context.index, &reference, queue);
        let seen = semaphore.is_seen_by(key);
        let readable = shown.limit.is_some();
        let findings = self.queue_findings(&reference, semaphore, (queue, readable), &conclusion);
        let Settings {
            limit,
            restrictions,
            ..
        } = &semaphore.spec().settings;
        let opening = restrictions.windows.at(clock::time());
        let status = KeyStatus {
            open: conclusion.open || (!opening.is_open() && conditions::is_ready(&findings)),
            several: Several::of(&self.context.index, state),
            in_force: restrictions.limit(*limit, opening, i32::MIN),
            spec: SpecOf {
                generation,
                limit: semaphore.spec().settings.limit,
            },
            awaits_others: queued.waiting > 0
                && status::depends_on_others(queue, &conclusion, seen),
            wait: self.watch_wait(queue),
            shown,
            queued,
            findings,
        };
        self.reported.keys.put(key.clone(), status);
    }

    /// Returns what a workload that was queued for this key, and has this `need` there, can expect; `None` if there is
    /// no queue for the key.
    pub(super) fn outlook(
        &self,
        semaphore: &SemaphoreState,
        key: &Option<Key>,
        need: Need,
    ) -> Option<Outlook> {
        let QueueState {
            queue, concluded, ..
        } = semaphore.queues().get(key)?;
        let conclusion = concluded
            .as_ref()
            .map(|(conclusion, _)| as_reported(conclusion));
        let reference = QueueRef::new(&self.reference, key.clone());
        let stated = self.access.stated();
        let observed = self
            .observed(&reference, &stated, semaphore)
            .with_queue(queue, false);
        Some(observed.outlook(&conclusion.unwrap_or_default(), need))
    }

    /// Returns what the conditions say of a queue. `shown` says whether the queue was readable before.
    fn queue_findings(
        &self,
        reference: &QueueRef,
        semaphore: &SemaphoreState,
        (queue, shown): (&Queue, bool),
        conclusion: &Conclusion,
    ) -> Vec<Finding> {
        let stated = self.access.stated();
        let observed = self.observed(reference, &stated, semaphore);
        observed.with_queue(queue, shown).findings(conclusion)
    }

    fn observed<'a>(
        &'a self,
        reference: &'a QueueRef,
        access: &'a access::Stated,
        semaphore: &'a SemaphoreState,
    ) -> Observed<'a> {
        let settings = &semaphore.spec().settings;
        Observed {
            reference,
            settings,
            opening: settings.restrictions.windows.at(clock::time()),
            access,
            node: self.target.as_ref().map(|target| &*target.node),
            index: &self.context.index,
            error: None,
            answered: false,
            went_back: false,
            queue: None,
        }
    }

    /// Returns how long Consul may wait for a change before it answers the watch anyway.
    ///
    /// A reading counts from the time of its request, and the next reading comes after another wait, so a reading is
    /// up to two waits old. Workloads whose pods end slowly are suspended when their evidence is half a TTL old. That
    /// TTL is the one of the spec or of the shortest session.
    fn watch_wait(&self, queue: &Queue) -> Duration {
        let lives = queue
            .sessions()
            .filter_map(|session| self.context.shared.session_manager.life(session));
        let ttls = lives.filter_map(|life| match life {
            SessionState::Renewed { ttl, .. } => Some(ttl),
            _ => None,
        });
        let span = queue.settings().span();
        ttls.chain([span]).min().unwrap_or(IDLE) / 5
    }

    /// Composes the report from the current state. A limit counts as ours only once it is in the status.
    fn compose(&self, semaphore: &SemaphoreState) -> StatusReport {
        let spec = semaphore.spec();
        let (keys, totals) = (&self.reported.keys, self.reported.keys.totals());
        // The generation comes from the results, so that results of an earlier spec are not taken for results of the
        // current one.
        let of = totals.spec.unwrap_or(SpecOf {
            generation: spec.generation,
            limit: spec.settings.limit,
        });
        let (index, keyed) = (&self.context.index, spec.keyed);
        let applied: BTreeSet<u32> = semaphore.applied_limits().iter().copied().collect();
        let status = ConsulSemaphoreStatus {
            observed_generation: of.generation,
            limit: totals.limit.map(number),
            window_limit: Self::window_limit(semaphore),
            window_opens: Self::window_opens(semaphore).map(Time),
            applied_limits: applied.into_iter().map(number).collect(),
            fencing_token: semaphore
                .fencing_token()
                .and_then(|token| token.try_into().ok()),
            held: number(totals.held),
            held_here: number(totals.held_here),
            waiting: number(totals.waiting),
            keys_in_use: keyed.then(|| number(totals.in_use)),
            holders: keys.holders(),
            queue: self.reported.queue(
                index,
                &self.reference,
                &totals.starting,
                semaphore,
                |key, need| self.outlook(semaphore, key, need),
            ),
            waiting_elsewhere: keys.elsewhere(),
            // The reporter fills these in, because it knows the operators.
            operators: Vec::new(),
            blocked: waits::blocked(semaphore.blocked()),
            counted_to: waits::counted_to(index.any_deadline(&self.reference)),
            conditions: Vec::new(),
        };
        index.note_blocked(&self.reference, semaphore.blocked());
        let held_and_limit = totals.limit.map(|limit| (totals.held, limit));
        let metrics = self.context.shared.metrics.semaphores();
        metrics.set_counts(&self.labels, totals.waiting, totals.idle, held_and_limit);
        let expected = status
            .queue
            .iter()
            .filter_map(|queued| queued.expected.as_ref());
        let held_since = status
            .holders
            .iter()
            .filter_map(|holder| holder.since.as_ref());
        let starting = status
            .holders
            .iter()
            .filter(|holder| holder.not_started.is_some())
            .filter_map(|holder| holder.since.as_ref());
        let times = SemaphoreTimes {
            next_start: expected.map(|expected| expected.0).min(),
            window_opens: status.window_opens.as_ref().map(|opens| opens.0),
            longest_wait_since: index.longest_wait_since(&self.reference),
            longest_hold_since: held_since.map(|since| since.0).min(),
            longest_start_since: starting.map(|since| since.0).min(),
        };
        metrics.set_times(&self.labels, times);
        let findings = if keys.len() == 0 {
            self.findings_without_keys(semaphore)
        } else {
            keys.findings(of.limit)
        };
        StatusReport {
            status,
            findings,
            found: self.reported.found,
        }
    }

    /// Returns how many slots may be held in the window that is open, if that is less than the limit.
    fn window_limit(semaphore: &SemaphoreState) -> Option<i32> {
        let Settings {
            limit,
            restrictions,
            ..
        } = &semaphore.spec().settings;
        let opening = restrictions.windows.at(clock::time());
        let in_force = opening.limit(*limit);
        (opening.is_open() && in_force < *limit).then(|| number(in_force))
    }

    /// Returns when the next window opens, unless one is open.
    fn window_opens(semaphore: &SemaphoreState) -> Option<Timestamp> {
        let windows = &semaphore.spec().settings.restrictions.windows;
        match windows.at(clock::time()) {
            Opening::Closed { until } => until,
            Opening::Always | Opening::Open { .. } => None,
        }
    }

    /// Returns when the status may change although nothing happens. This is needed only while no key is in use,
    /// because no pass is made then.
    pub(super) fn changes_at(semaphore: &SemaphoreState) -> Option<Moment> {
        let windows = &semaphore.spec().settings.restrictions.windows;
        let now = clock::time();
        if !semaphore.queues().is_empty() {
            return None;
        }
        Some(Moment::now() + windows.at(now).changes_in(now)?)
    }

    /// Returns the conditions while no key is in use.
    fn findings_without_keys(&self, semaphore: &SemaphoreState) -> Vec<Finding> {
        let known = semaphore.watched().is_known();
        let reference = QueueRef::new(&self.reference, None);
        let stated = self.access.stated();
        let observed = self.observed(&reference, &stated, semaphore);
        let mut findings = observed.with_watch(semaphore).findings(&Conclusion {
            agreement: known.then_some(Agreement::Agreed),
            ..Conclusion::default()
        });
        if known && semaphore.spec().keyed {
            let each = each_key_has_its_limit(semaphore.spec().settings.limit, Use::default());
            for finding in &mut findings {
                if finding.type_ == each.type_ && !finding.reason.is_intended() {
                    *finding = each.clone();
                }
            }
        }
        findings
    }

    /// Emits an event on the object.
    fn emit(&self, reason: events::Reason, note: String) {
        let about = self.object.borrow().object_ref(&());
        self.context.shared.events.emit(about, reason, note);
    }

    /// Reports that other contenders may still use the old limit after it was changed.
    pub(super) fn report_moved_limit(&self, moved: Moved, key: Option<&Key>) {
        let Moved { from, to, others } = moved;
        let of_key = key.map_or(String::new(), |key| format!(" of key {key}"));
        let contenders = match others {
            1 => "1 contender".to_owned(),
            others => format!("{others} contenders"),
        };
        let note = format!(
            "the limit{of_key} in Consul was changed from {from} to {to}: {contenders} of other programs or \
             clusters may still use {from}, and will be refused the next time that they ask for a slot. Contenders \
             that hold a slot keep it until they release it. Restart programs with {to}, and \
             set spec.limit to {to} in other clusters"
        );
        tracing::warn!(semaphore = %self.reference, from, to, others, "clients with the old limit will be refused");
        self.emit(events::Reason::OthersRefused, note);
    }

    /// Logs once that sessions without a contender can't be listed.
    pub(super) fn report_session_listing(&mut self, answer: &Result<Vec<Session>, consul::Error>) {
        let before = std::mem::replace(&mut self.announced.sessions, answer.is_err());
        if let Err(error) = answer
            && !before
        {
            tracing::warn!(semaphore = %self.reference, %error, "can't look for sessions without a contender");
        }
    }

    /// Warns once of a TTL that is shorter than a change of leader may take.
    fn warn_of_short_ttl(&mut self) {
        let ttl = self.object.borrow().spec.session.ttl.get();
        let note = short_ttl(ttl, self.context.shared.lease);
        let before = std::mem::replace(&mut self.announced.ttl, note.clone());
        let Some(note) = note.filter(|_| before != self.announced.ttl) else {
            return;
        };
        tracing::warn!(semaphore = %self.reference, "{note}");
        let about = self.object.borrow().object_ref(&());
        self.context
            .shared
            .events
            .emit_once(about, events::Reason::ShortTtl, note);
    }
}

impl StatusSources {
    /// Notes that the state of every key may have changed.
    fn all_changed(&mut self) {
        self.changed.extend(self.keys.names());
    }
}
