//! What a door does to those who go through it, as the kinds of faults choose it.

use testbed::{Call, Fault, Proxy};

/// What happens to some of the calls that come to a door.
#[derive(Clone, Debug)]
pub(crate) enum Weather {
    /// No packet of these gets through, in either direction, and nobody is told.
    Cut(Which),
    /// These meet with a fault.
    Met(Which, Fault),
}

impl Weather {
    /// It is so at a door until what is returned is dropped.
    pub(crate) fn over(self, door: &Proxy) -> Spell<'_> {
        match self {
            Self::Cut(which) => door.cut(move |call| which.matches(call)),
            Self::Met(which, fault) => {
                door.faults(move |call| which.matches(call).then(|| fault.clone()));
            }
        }
        Spell(door)
    }
}

/// A weather while it lasts.
pub(crate) struct Spell<'a>(&'a Proxy);

impl Drop for Spell<'_> {
    fn drop(&mut self) {
        self.0.heal();
    }
}

/// Some of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All there are.
    All,
    /// Consul's transactions.
    Transactions,
    /// What Consul's raft has to commit: all writes but renewals.
    Commits,
    /// What names a datacenter of Consul's: a server forwards it there.
    Forwarded,
    /// Changes of a Job.
    JobPatches,
    /// Questions which pods of a Job are left.
    PodLists,
}

impl Which {
    fn matches(self, call: &Call) -> bool {
        let parameter = |begin: &str| call.query.split('&').any(|part| part.starts_with(begin));
        match self {
            Self::All => true,
            Self::Transactions => call.path == "/v1/txn",
            Self::Commits => call.writes() && !call.is_renewal(),
            Self::Forwarded => parameter("dc="),
            Self::JobPatches => call.method == "PATCH" && call.path.contains("/jobs/"),
            Self::PodLists => {
                call.method == "GET" && call.path.ends_with("/pods") && !parameter("watch=true")
            }
        }
    }
}
