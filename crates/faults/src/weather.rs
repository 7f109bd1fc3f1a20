//! What a door does to the calls through it. The kinds of faults choose it.

use testbed::{Call, Fault, Proxy};

use crate::load::SEMAPHORES;

/// What happens to some of the calls that come to a door.
#[derive(Clone, Debug)]
pub(crate) enum Weather {
    /// No packet of these calls gets through, in either direction, and neither side is told.
    Cut(Which),
    /// These calls meet a fault.
    Met(Which, Fault),
}

impl Weather {
    /// Applies this to a door until the returned guard is dropped.
    pub(crate) fn over(self, door: &Proxy) -> FaultGuard<'_> {
        match self {
            Self::Cut(which) => door.cut(move |call| which.matches(call)),
            Self::Met(which, fault) => {
                door.faults(move |call| which.matches(call).then(|| fault.clone()));
            }
        }
        FaultGuard(door)
    }
}

/// A weather while it is in effect.
pub(crate) struct FaultGuard<'a>(&'a Proxy);

impl Drop for FaultGuard<'_> {
    fn drop(&mut self) {
        self.0.heal();
    }
}

/// The workloads, and what they are made of, as the API server calls them.
const WORKLOADS: [&str; 4] = ["jobs", "jobsets", "pipelineruns", "taskruns"];

/// Which calls are affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All calls.
    All,
    /// Consul's transactions.
    Transactions,
    /// Everything that Consul's raft has to commit: all writes except renewals.
    Commits,
    /// Listings of the prefix of a semaphore of the load.
    ListingsOf(usize),
    /// Calls that name a datacenter, to which a Consul server forwards them.
    Forwarded,
    /// Changes of a workload.
    JobPatches,
    /// Listings of a Job's pods.
    PodLists,
}

impl Which {
    fn matches(self, call: &Call) -> bool {
        let parameter = |begin: &str| call.query.split('&').any(|part| part.starts_with(begin));
        match self {
            Self::All => true,
            Self::Transactions => call.path == "/v1/txn",
            Self::Commits => call.writes() && !call.is_renewal(),
            Self::ListingsOf(semaphore) => {
                let folder = format!("/v1/kv/{}/", SEMAPHORES[semaphore].prefix());
                call.method == "GET" && call.path == folder
            }
            Self::Forwarded => parameter("dc="),
            Self::JobPatches => {
                let mut parts = call.path.split('/');
                call.method == "PATCH" && parts.any(|part| WORKLOADS.contains(&part))
            }
            Self::PodLists => {
                call.method == "GET" && call.path.ends_with("/pods") && !parameter("watch=true")
            }
        }
    }
}
