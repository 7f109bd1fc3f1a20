//! Which of several replicas works: a leadership that comes and goes.
//!
//! | file | subject |
//! |---|---|
//! | `term` | one time of leading, and the gates that let nothing through after it |
//! | `name` | what an election is called |
//! | `board` | what is told of it: `/readyz`, the metric, the log |
//! | `lease` | an election by a Lease in Kubernetes; `lease/record` has its rules, without IO |
//! | `lock` | an election by a key in Consul that a session locks |
//!
//! Being the leader only spares double work. What keeps a semaphore's limit is Consul's
//! check-and-set, and what keeps a Job from being started twice is the version that its PATCH
//! names: so two leaders for a moment are harmless, and nothing here has to be perfect.
//!
//! No clock of another machine is believed. A leader counts from when it sent what was answered
//! well, and stops at two thirds of the lease; the others count from when they saw the last change,
//! and wait for all of it. Both by [`Moment`], which runs on while a machine sleeps.

mod board;
mod lease;
mod lock;
mod name;
mod term;

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use tokio::time::timeout;

use self::{board::Board, lease::LeaseCandidate, lock::LockCandidate};
use crate::telemetry::Telemetry;
use consul_client::{self as consul, clock::Moment};

pub use self::{
    board::Standing,
    name::{InvalidLeaseName, LeaseName},
    term::{NotLeading, Term},
};

/// How long the work may take to end when the lead is lost. Its tasks are dropped, so it takes no
/// time at all, unless one of them never comes back from a call that blocks.
const END: Duration = Duration::from_secs(5);

/// How long giving the lead back may take.
const RESIGNATION: Duration = Duration::from_secs(2);

/// How a replica comes to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By a Lease in Kubernetes.
    Kubernetes,
    /// By a key in Consul.
    Consul,
    /// At once: there is no other replica, or it does not matter.
    Off,
}

/// How the election is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it is held.
    pub mode: Mode,
    /// What this replica is called. A process that finds its own name on the lead when it starts
    /// takes it over at once: it was its own before it was restarted.
    pub identity: String,
    /// The Lease's namespace; the one that this process runs in without.
    pub namespace: Option<String>,
    /// Which election it is.
    pub lease_name: LeaseName,
    /// How long the others wait after the leader's last sign of life.
    pub lease: Duration,
}

impl Settings {
    /// How long the others wait for a leader that is gone; `None` where there is no election.
    pub fn waits(&self) -> Option<Duration> {
        (self.mode != Mode::Off).then_some(self.lease)
    }
}

/// What is needed to hold an election.
pub struct Election {
    /// How it is set up.
    pub settings: Settings,
    /// How the API server is reached.
    pub kubernetes: kube::Config,
    /// Consul, without a gate.
    pub consul: consul::Client,
    /// The external node in Consul that sessions belong to.
    pub node: String,
    /// What the cluster is called in Consul.
    pub cluster: String,
    /// The cluster's id.
    pub cluster_id: String,
    /// Where it is told who leads.
    pub telemetry: Telemetry,
}

impl Election {
    /// Has `work` done whenever this replica leads, until it ends by itself: when the process is
    /// asked to end, or has failed. It must end at once when its [`Term`] is over. `on` hears of
    /// every change; what `work` does before it returns its future is done before that. At the end the
    /// lead is given back, so that another replica has it at once.
    ///
    /// A replica that lost the lead stands by in the same process: nothing of a term is left in
    /// memory when it is over, and a restart by Kubernetes would be delayed longer each time.
    ///
    /// # Errors
    /// What `work` came to; or it did not end when it had to, so that the process must.
    pub async fn run<W: Future<Output = anyhow::Result<()>>>(
        self,
        shutdown: impl Future<Output = ()> + Clone,
        on: impl Fn(&Standing),
        work: impl Fn(Term) -> W,
    ) -> anyhow::Result<()> {
        let board = Board::new(self.settings.identity.clone(), &self.telemetry, on);
        match self.settings.mode {
            Mode::Off => {
                let work = work(Term::new(Moment::END));
                board.works_alone();
                work.await
            }
            Mode::Kubernetes => {
                let candidate = LeaseCandidate::new(&self.settings, self.kubernetes)?;
                campaign(candidate, &board, shutdown, work).await
            }
            Mode::Consul => {
                let candidate = LockCandidate::new(self);
                campaign(candidate, &board, shutdown, work).await
            }
        }
    }
}

/// How the lead is lost of which nothing is heard any more.
const OUT_OF_TIME: &str = "it could not be renewed in time";

/// Who stands for election.
trait Candidate {
    /// Contends until this replica leads, and returns until when that is certain.
    async fn win<F: Fn(&Standing)>(&mut self, board: &Board<F>) -> Moment;

    /// Extends the term until the lead is lost, and returns how. That the term runs out is not its
    /// business.
    async fn keep(&mut self, term: &Term) -> String;

    /// Gives the lead back, if this replica has it.
    async fn resign(&mut self);
}

async fn campaign<C: Candidate, F: Fn(&Standing), W: Future<Output = anyhow::Result<()>>>(
    mut candidate: C,
    board: &Board<F>,
    shutdown: impl Future<Output = ()> + Clone,
    work: impl Fn(Term) -> W,
) -> anyhow::Result<()> {
    let worked = loop {
        let until = tokio::select! {
            until = candidate.win(board) => until,
            () = shutdown.clone() => break Ok(()),
        };
        let term = Term::new(until);
        // It says first what has to be ready.
        let mut work = std::pin::pin!(work(term.clone()));
        board.leads();
        let (lost, worked) = tokio::select! {
            worked = &mut work => (OUT_OF_TIME.to_owned(), Some(worked)),
            lost = candidate.keep(&term) => (lost, None),
            () = term.over() => (OUT_OF_TIME.to_owned(), None),
        };
        let ended = match worked {
            Some(worked) if worked.is_err() || term.lasts() => break worked,
            // It saw the end of its term first, and ended by that: the process goes on.
            Some(_) => true,
            None => false,
        };
        term.end();
        board.lost(&lost);
        if !ended {
            let ended = timeout(END, work).await;
            ended.map_err(|_| anyhow!("the work goes on though the lead is lost"))??;
        }
    };
    board.ends();
    let resigned = timeout(RESIGNATION, candidate.resign()).await;
    if resigned.context("giving the lead back").is_err() {
        tracing::warn!("the lead could not be given back: another replica has it when it runs out");
    }
    worked
}

/// How long things may take, by the length of the lease: the parts that client-go has.
#[derive(Clone, Copy, Debug)]
struct Timing {
    lease: Duration,
}

impl Timing {
    /// How long after a renewal was sent its sender may count on it: a third less than the others
    /// wait, for what is under way then to end.
    fn certain(self) -> Duration {
        self.lease * 2 / 3
    }

    /// Between renewals, and between looks at a lead that somebody else may lose.
    fn retry(self) -> Duration {
        self.lease * 2 / 15
    }

    /// How long one call may take: two fit into the time that a renewal is certain for.
    fn call(self) -> Duration {
        self.lease / 3
    }

    /// The pause before the next try, with jitter, so that replicas don't try together.
    fn pause(self) -> Duration {
        self.retry().mul_f64(fastrand::f64().mul_add(0.4, 0.8))
    }
}

#[cfg(test)]
mod tests;
