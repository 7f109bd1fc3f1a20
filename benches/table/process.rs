//! Resources of a process, as the system reports them.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use procfs::process::FDTarget;
use testbed::{Bed, Operator};
use tokio::time::sleep;

/// The CPU time per second below which a process does only its permanent background work.
const AT_REST: Duration = Duration::from_millis(100);

/// How many such seconds have to follow each other.
const SECONDS_AT_REST: u32 = 3;

/// A running process.
pub(crate) struct Process(procfs::process::Process);

impl Process {
    /// The operator as it was last started.
    pub(crate) async fn of(operator: &Operator) -> Self {
        let [id, _guard] = operator.ids().await.expect("the operator runs");
        Self::with_id(id)
    }

    fn with_id(id: u32) -> Self {
        let id = id.try_into().expect("an id");
        Self(procfs::process::Process::new(id).expect("a process"))
    }

    /// The resident memory, in MiB.
    pub(crate) fn resident(&self) -> f64 {
        mebibytes(self.status().vmrss)
    }

    /// The peak of the resident memory so far, in MiB.
    pub(crate) fn peak(&self) -> f64 {
        mebibytes(self.status().vmhwm)
    }

    fn status(&self) -> procfs::process::Status {
        self.0.status().expect("a process' status")
    }

    /// The total CPU time of its threads. Threads that have ended are not counted.
    pub(crate) fn processor_time(&self) -> Duration {
        let threads = self.0.tasks().expect("a process' threads");
        let times = threads.filter_map(|thread| thread.ok()?.schedstat().ok());
        Duration::from_nanos(times.map(|times| times.sum_exec_runtime).sum())
    }

    /// Its TCP connections to this server. Of the operator they can be seen only with the capability `CAP_SYS_PTRACE`.
    pub(crate) fn connections_to(&self, server: SocketAddr) -> usize {
        let descriptors = self.0.fd().expect("a process' descriptors");
        let sockets: HashSet<u64> = descriptors
            .filter_map(|descriptor| match descriptor.ok()?.target {
                FDTarget::Socket(inode) => Some(inode),
                _ => None,
            })
            .collect();
        let connections = procfs::net::tcp().expect("the system's connections");
        connections
            .iter()
            .filter(|connection| connection.remote_address == server)
            .filter(|connection| sockets.contains(&connection.inode))
            .count()
    }

    /// Waits until it does only its permanent background work.
    pub(crate) async fn rests(&self) {
        let mut seconds = 0;
        while seconds < SECONDS_AT_REST {
            let before = self.processor_time();
            sleep(Duration::from_secs(1)).await;
            let took = self.processor_time().saturating_sub(before);
            seconds = if took < AT_REST { seconds + 1 } else { 0 };
        }
    }
}

/// Waits until Kubernetes has no work left: the controllers, the scheduler, and the nodes.
pub(crate) async fn kubernetes_rests(bed: &Bed) {
    let kubernetes = bed.kubernetes().expect("a Kubernetes of the bed's own");
    let [_, _, workers @ ..] = kubernetes.processes();
    for worker in workers {
        let [id, _guard] = worker.ids().expect("it runs");
        Process::with_id(id).rests().await;
    }
}

/// Waits until Kubernetes and the operator have no work left.
pub(crate) async fn all_rests(bed: &Bed) {
    kubernetes_rests(bed).await;
    Process::of(bed.operator()).await.rests().await;
}

fn mebibytes(kibibytes: Option<u64>) -> f64 {
    kibibytes.expect("a figure of its memory") as f64 / 1024.0
}
