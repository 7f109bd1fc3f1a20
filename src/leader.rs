//! Elects a leader: decides which of several replicas leads.
//!
//! | file | subject |
//! |---|---|
//! | `term` | one term of leadership, and the gates that stop all writes after it |
//! | `name` | the name of an election |
//! | `board` | how the election is reported: `/readyz`, the metric, the log |
//! | `lease` | an election by a Lease in Kubernetes; `lease/record` has the rules, without IO |
//! | `lock` | an election by a key in Consul that a session locks |
//!
//! The election only avoids double work. Consul's check-and-set enforces a semaphore's limit, and the version in each
//! PATCH keeps a Job from being started twice. So two leaders at once are harmless for a moment.
//!
//! No clock of another machine is trusted. A leader counts from when it sent its last successful renewal, and stops
//! after two thirds of the lease; the others count from when they saw the last change, and wait for the whole lease.
//! Both use [`Moment`], which keeps counting while a machine sleeps.

mod board;
mod lease;
mod lock;
mod name;
mod term;

use std::{sync::Arc, time::Duration};

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

/// Time that the work may take to end. Its tasks are dropped, so it takes no time when the lead is lost, unless one of
/// them is stuck in a blocking call. When the process ends, the work waits up to two seconds for the answers to its last
/// writes.
const WORK_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for giving the lead back.
const RESIGNATION_TIMEOUT: Duration = Duration::from_secs(2);

/// The way in which a replica becomes the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Candidates compete for a Lease in Kubernetes.
    Kubernetes,
    /// Candidates compete for a key in Consul.
    Consul,
    /// The replica leads at once, because there is no other replica or because a second leader does no harm.
    Off,
}

/// Settings of the election.
#[derive(Clone, Debug)]
pub struct ElectionSettings {
    /// Way in which the leader is elected.
    pub mode: Mode,
    /// Name of this replica. A process that finds its own name as the leader when it starts takes over at once,
    /// because it led before it was restarted.
    pub identity: String,
    /// Namespace of the Lease; `None` means the namespace that this process runs in.
    pub namespace: Option<String>,
    /// Name of the election.
    pub lease_name: LeaseName,
    /// Time that the other replicas wait after the leader's last sign of life.
    pub lease: Duration,
}

impl ElectionSettings {
    /// Returns the time that the other replicas wait for a dead leader; `None` if there is no election.
    pub fn waits(&self) -> Option<Duration> {
        (self.mode != Mode::Off).then_some(self.lease)
    }
}

/// The message that each leader leaves for the next one: a text in an annotation of the Lease, which the leader
/// writes anyway.
///
/// Everybody who may write the Lease can forge the text. But they can take the lead as well.
pub trait Legacy: Send + Sync {
    /// Takes over the text that this replica finds when it becomes the leader; `None` if there is no text.
    fn take_over(&self, found: Option<&str>);

    /// Returns the text that is to replace the text that was found; `None` if there is nothing to leave yet.
    fn leave(&self, found: Option<&str>) -> Option<String>;
}

/// Annotation of the Lease that has the text of [`Legacy`].
pub const LEGACY: &str = "consul-semaphore.io/last-proofs";

/// The settings and the clients of an election.
pub struct Election {
    /// Settings of the election.
    pub settings: ElectionSettings,
    /// Settings of the client for the API server.
    pub kubernetes: kube::Config,
    /// Client for Consul, without a gate.
    pub consul: consul::Client,
    /// External node in Consul that owns the sessions.
    pub node: String,
    /// Name of the cluster in Consul.
    pub cluster: String,
    /// Id of the cluster.
    pub cluster_id: String,
    /// Metrics and health to which the election is reported.
    pub telemetry: Telemetry,
    /// Text that the leader leaves for the next one, if the election is by a Lease. With other elections, the text is
    /// kept elsewhere.
    pub legacy: Arc<dyn Legacy>,
}

impl Election {
    /// Runs `work` whenever this replica leads, until `work` ends because the process is asked to end or has failed.
    /// `work` must end at once when its [`Term`] is over. `on` receives every change, after `work` has returned its
    /// future. At the end this replica gives the lead back, so that another replica can take it at once.
    ///
    /// A replica that lost the lead stands by in the same process: it keeps no state of a term in memory, and
    /// Kubernetes would delay each restart longer.
    ///
    /// # Errors
    /// Returns the error of `work`, or an error if `work` did not end when it had to. The process must end then.
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
                let candidate = LeaseCandidate::new(&self.settings, self.kubernetes, self.legacy)?;
                campaign(candidate, &board, shutdown, work).await
            }
            Mode::Consul => {
                let candidate = LockCandidate::new(self);
                campaign(candidate, &board, shutdown, work).await
            }
        }
    }
}

/// Reason for the loss of the lead when renewals get no answer.
const OUT_OF_TIME: &str = "it could not be renewed in time";

/// A candidate in an election.
trait Candidate {
    /// Contends until this replica leads, and returns the moment until which the lead is certain.
    async fn win<F: Fn(&Standing)>(&mut self, board: &Board<F>) -> Moment;

    /// Extends the term until the lead is lost, and returns the reason for the loss. Does not watch for the end of
    /// the term.
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
        // The work first registers what has to be ready.
        let mut work = std::pin::pin!(work(term.clone()));
        board.leads();
        let (lost, worked) = tokio::select! {
            worked = &mut work => (OUT_OF_TIME.to_owned(), Some(worked)),
            lost = candidate.keep(&term) => (lost, None),
            () = term.over() => (OUT_OF_TIME.to_owned(), None),
        };
        let ended = match worked {
            Some(worked) if worked.is_err() || term.lasts() => break worked,
            // The work ended because its term is over, so the process continues.
            Some(_) => true,
            None => false,
        };
        term.end();
        board.lost(&lost);
        if !ended {
            let ended = timeout(WORK_END_TIMEOUT, work).await;
            ended.map_err(|_| {
                anyhow!("the work did not end in time after this replica lost the leadership")
            })??;
        }
    };
    board.ends();
    let resigned = timeout(RESIGNATION_TIMEOUT, candidate.resign()).await;
    if resigned.context("releasing the leadership").is_err() {
        tracing::warn!(
            "could not release the leadership: another replica takes over when the lease expires"
        );
    }
    worked
}

/// Durations as fractions of the lease, the same as in client-go.
#[derive(Clone, Copy, Debug)]
struct Timing {
    lease: Duration,
}

impl Timing {
    /// Returns the time after sending a renewal for which the leader may rely on it. It is a third less than the
    /// others wait, so that running calls can end.
    fn certain(self) -> Duration {
        self.lease * 2 / 3
    }

    /// Returns the time between renewals, and between checks of another replica's lead.
    fn retry(self) -> Duration {
        self.lease * 2 / 15
    }

    /// Returns the time limit of one call. Two calls fit into [`Self::certain`].
    fn call(self) -> Duration {
        self.lease / 3
    }

    /// Returns the pause before the next try, with jitter, so that replicas don't try together. The pause does not
    /// grow, because a lead must be renewed in time and a free one must be taken soon.
    fn pause(self) -> Duration {
        self.retry().mul_f64(fastrand::f64().mul_add(0.4, 0.8))
    }
}

#[cfg(test)]
mod tests;
