//! A pass: observe, decide, apply. For what a Job needs the API server for, the process is here.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::contender::{Contender, Step};
use consul_client::{
    self as consul, Entry, ExternalNode, NewSession, OpError, SessionId,
    clock::{self, Moment},
};
use consul_semaphore::{
    Defence, Job, Life, Observed, Ours, Plan, Standing, decide,
    evidence::tenure,
    holding::{Outcome, Renewal},
    plan::{Slot, Target, Transaction},
};

/// How many rounds a pass has at the most.
const ROUNDS: usize = 32;

/// The address of our external node: Consul wants one, and nobody connects to it.
const ADDRESS: &str = "127.0.0.1";

impl Contender {
    /// As many rounds as there is something to do.
    pub(super) async fn pass(&mut self) -> Step {
        for _ in 0..ROUNDS {
            let now = Moment::now();
            let plan = self.decide(now).await;
            self.view.deadline = plan.deadline;
            self.agreement = plan.agreement;
            match self.apply(&plan).await {
                Some(Step::Again) => {}
                Some(step) => return step,
                None => return Step::Rest(self.view.next_time(&plan, [], now)),
            }
        }
        Step::Again
    }

    /// Observes, and decides.
    async fn decide(&mut self, now: Moment) -> Plan {
        self.view.rouse(now, self.settings.patience());
        self.view.look().await;
        if self.outlives_its_session() {
            // The watch has not brought yet what a renewal was told.
            self.view.doubt();
            self.view.look().await;
        }
        self.sort_sessions().await;
        let job = Arc::new(self.job.clone());
        let ours = self.ours(&job);
        let one = std::slice::from_ref(&job);
        let running = self.job.standing == Standing::Running;
        let running: Vec<&Job> = one.iter().filter(|_| running).map(AsRef::as_ref).collect();
        let (kept, reading) = (&self.kept, self.view.reading.as_ref());
        let life = |session: &SessionId| kept.get(session).map(Renewal::life);
        self.evidence
            .observe(now, &self.settings, &running, reading, &ours, life);
        let ended = matches!(self.job.standing, Standing::Finished { .. });
        let (none, waits) = (BTreeSet::new(), self.job.in_line());
        // Both at once: what was asked of Consul since this round began has taken its time.
        let (present, time) = (Moment::now(), clock::time());
        if let Some(reading) = reading {
            self.coolings.observe(reading, &ours, present, time);
        }
        decide(&Observed {
            now,
            time,
            settings: &self.settings,
            // Only what this process asks for is its own: it moves nobody's limit.
            applied: &[self.settings.limit],
            defence: Defence::default(),
            fenced: true,
            reading,
            deaths: &self.view.deaths,
            turns: &self.view.turns,
            mutex: &self.view.mutex,
            coolings: &self.coolings,
            evidence: &self.evidence,
            ours: &ours,
            bound: if self.job.granted.is_some() && !ended {
                one
            } else {
                &[]
            },
            line: if waits { one } else { &[] },
            sessions: &self.ahead,
            busy: &none,
            barred: &none,
            immovable: &none,
            closed: false,
            operations: self.view.capacity(),
        })
    }

    /// Our contenders: those that our sessions have locked.
    fn ours(&self, job: &Arc<Job>) -> Vec<Ours> {
        let identity = Arc::new(self.settings.identity(&Target::from(job)));
        let reading = self.view.reading.as_ref();
        let live = |session: &&SessionId| {
            reading.is_some_and(|reading| reading.contender(session).is_some())
        };
        let sessions = self.kept.keys().filter(live);
        sessions
            .map(|session| Ours {
                session: session.clone(),
                identity: identity.clone(),
                job: Some(job.clone()),
                // Whoever leaves has no process any more.
                pods_gone: job.standing == Standing::Deleting,
            })
            .collect()
    }

    /// Does what was decided; `None` when nothing more is to be done now.
    async fn apply(&mut self, plan: &Plan) -> Option<Step> {
        if let Some(suspend) = plan.suspends.first() {
            return Some(Step::Stop(suspend.why));
        }
        if plan.reread {
            self.view.doubt();
            return (!self.view.is_blocked()).then_some(Step::Again);
        }
        for rename in &plan.renames {
            self.job.reported = Some(rename.session.clone());
        }
        let unheld = "the slot is lost, and there is no other one: the command goes on";
        self.tell("unheld", (!plan.unheld.is_empty()).then_some(unheld));
        if self.view.is_blocked() {
            return None;
        }
        let mut again = plan.again || !plan.renames.is_empty();
        if let Some(transaction) = &plan.transaction {
            match self.transact(transaction).await {
                Some(Step::Again) => again = true,
                Some(step) => return Some(step),
                None => {}
            }
        }
        if let Some(start) = plan.starts.first() {
            return Some(Step::Granted(start.slot.clone()));
        }
        if !plan.sessions.is_empty() {
            again |= self.make_session().await;
        } else if plan.transaction.is_none() {
            self.view.writing_works();
        }
        for uid in &plan.surplus {
            if let Some(session) = self.ahead.remove(uid) {
                self.end_session(&session).await;
            }
        }
        again.then_some(Step::Again)
    }

    /// One write to Consul.
    async fn transact(&mut self, transaction: &Transaction) -> Option<Step> {
        match self.view.transact(transaction).await {
            Outcome::Committed(answer) => {
                for release in &transaction.releases {
                    self.end_session(&release.session).await;
                }
                let slot = self.granted(transaction, &answer);
                Some(slot.map_or(Step::Again, Step::Granted))
            }
            Outcome::Refused(errors) => {
                self.drop_invalid(transaction, &errors);
                Some(Step::Again)
            }
            Outcome::Failed => None,
        }
    }

    /// Takes note of what was granted; the slot, if the process is to be started in it.
    fn granted(&mut self, transaction: &Transaction, answer: &[Entry]) -> Option<Slot> {
        for grant in &transaction.grants {
            self.ahead.remove(&grant.job.uid);
            if !grant.starts {
                self.stderr.say("the slot was lost, and there is one again");
            }
        }
        let starts = transaction.starts(answer);
        starts.into_iter().next().map(|start| start.slot)
    }

    /// Whether the evidence for a slot that was just granted is good for a while: a process is not
    /// started only to be ended.
    pub(super) fn outlives_the_start(&self, session: &SessionId) -> bool {
        let Some(Life::Renewed { sent, ttl }) = self.kept.get(session).map(Renewal::life) else {
            return false;
        };
        let Some(reading) = &self.view.reading else {
            return false;
        };
        let proved = sent.min(reading.sent);
        proved + tenure(ttl, self.job.grace) > Moment::now() + ttl / 8
    }

    /// Whether Consul says that a session is gone whose contender the reading still shows.
    fn outlives_its_session(&self) -> bool {
        let Some(reading) = &self.view.reading else {
            return false;
        };
        let mut kept = self.kept.iter();
        kept.any(|(session, renewal)| {
            renewal.life() == Life::Gone && reading.contender(session).is_some()
        })
    }

    /// Makes the session that a slot is held with; says whether there is one now.
    async fn make_session(&mut self) -> bool {
        let sent = Moment::now();
        let ttl = self.settings.ttl.unwrap_or_default();
        let call = self.create_session(ttl);
        match self.view.in_time(call).await {
            Ok(id) => {
                let wake = self.wake.clone();
                let life = Life::Renewed { sent, ttl };
                let renewal = Renewal::start(self.consul.clone(), id.clone(), life, wake);
                self.kept.insert(id.clone(), renewal);
                self.ahead.insert(self.job.uid.clone(), id);
                true
            }
            Err(error) => {
                self.view.write_failed(error);
                false
            }
        }
    }

    async fn create_session(&self, ttl: Duration) -> Result<SessionId, consul::Error> {
        let request = NewSession {
            name: self
                .settings
                .identity(&Target::from(&self.job))
                .session_name(),
            node: self.node.clone(),
            ttl: Some(ttl),
            lock_delay: self.settings.session_lock_delay(),
        };
        let created = self.consul.create_session(&request).await;
        match (&self.node, created) {
            (Some(node), Err(consul::Error::MissingNode)) => {
                let node = ExternalNode {
                    name: node.clone(),
                    address: ADDRESS.to_owned(),
                };
                self.consul.register_node(&node).await?;
                self.consul.create_session(&request).await
            }
            (_, created) => created,
        }
    }

    /// Ends the sessions that nothing is held with any more, and forgets those that are gone.
    async fn sort_sessions(&mut self) {
        let Some(reading) = &self.view.reading else {
            return;
        };
        let kept = &self.kept;
        self.ahead.retain(|_, session| {
            let lives = kept
                .get(session)
                .is_some_and(|kept| kept.life() != Life::Gone);
            lives && reading.contender(session).is_none()
        });
        let ahead: BTreeSet<_> = self.ahead.values().collect();
        let without =
            |session: &&SessionId| !ahead.contains(session) && reading.contender(session).is_none();
        let gone: Vec<_> = self.kept.keys().filter(without).cloned().collect();
        for session in gone {
            self.end_session(&session).await;
        }
    }

    /// Forgets a session that a refused transaction found gone, before its renewal did.
    fn drop_invalid(&mut self, transaction: &Transaction, errors: &[OpError]) {
        for session in transaction.gone_sessions(errors) {
            self.ahead.retain(|_, ahead| ahead != session);
            self.forget(session);
        }
    }

    fn forget(&mut self, session: &SessionId) {
        if let Some(renewal) = self.kept.remove(session) {
            renewal.stop();
        }
    }

    /// Stops renewing a session and ends it; one that can't be ended expires.
    async fn end_session(&mut self, session: &SessionId) {
        let gone = self.kept.get(session).map(Renewal::life) == Some(Life::Gone);
        self.forget(session);
        let call = self.consul.destroy_session(session);
        if !gone && let Err(error) = self.view.in_time(call).await {
            tracing::debug!(%session, %error, "the session can't be destroyed");
        }
    }
}
