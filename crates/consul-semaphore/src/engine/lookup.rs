//! Defines what the caller stores anyway and a queue reads.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    waiting::Reach,
    waits::{Located, Overdue, Superseded},
};
use crate::{SessionState, Uid, Workload};
use consul_client::SessionId;

/// Data that the caller stores anyway and the engine reads: workloads and sessions.
pub trait Lookup {
    /// Returns the workloads that were started in this queue and are [bound](Workload::is_bound).
    fn bound(&self) -> Vec<Arc<Workload>>;
    /// Returns the workloads that wait in this queue and are within `reach`, in order: see
    /// [`WaitingList::read`](super::WaitingList::read).
    fn waiting(&self, reach: &Reach<'_>) -> Vec<Arc<Workload>>;
    /// Returns a workload of any semaphore.
    fn workload(&self, uid: &Uid) -> Option<Arc<Workload>>;
    /// Returns the workloads of which this queue has contenders, as [`Self::workload`] does. A change of one of them
    /// makes the queue due.
    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Workload>>>;
    /// Returns the workloads that had a pod end since the last call.
    fn touched(&self) -> BTreeSet<Uid>;
    /// Returns the state of a session that this process renews for any queue.
    fn life(&self, session: &SessionId) -> Option<SessionState>;

    /// Returns what may have changed since the last call: workloads that this queue started or has contenders of, and
    /// sessions that are renewed for it. `None` means that anything may have changed. An exact answer saves a check
    /// of thousands of holders in each pass.
    fn changes(&self) -> Option<Changes> {
        None
    }

    /// Returns a workload if this queue started it, as in [`Self::bound`].
    fn started(&self, uid: &Uid) -> Option<Arc<Workload>> {
        let mut bound = self.bound().into_iter();
        bound.find(|workload| workload.uid == *uid)
    }

    /// Returns the workload that is the first in this queue.
    fn first(&self) -> Option<Arc<Workload>> {
        self.waiting(&Reach::first(1)).into_iter().next()
    }

    /// Returns workloads that wait in this queue and whose time to wait may be over by now, at most this many. A
    /// workload is not returned again before the time to which it is [postponed](Self::postpone).
    fn overdue(&self, now: jiff::Timestamp, most: usize) -> Vec<Overdue> {
        let _ = (now, most);
        Vec::new()
    }

    /// Returns when the next workload of this queue may be overdue.
    fn next_overdue(&self) -> Option<jiff::Timestamp> {
        None
    }

    /// Records that the time of a workload is not over before `until`.
    fn postpone(&self, workload: &Uid, until: jiff::Timestamp) {
        let _ = (workload, until);
    }

    /// Returns workloads that ask for slots here and of whose wait something is to be recorded, at most this many.
    /// Each workload is returned to only one of the queues in which it asks for slots.
    fn unrecorded(&self, most: usize) -> Vec<Arc<Workload>> {
        let _ = most;
        Vec::new()
    }

    /// Returns workloads that wait in this queue while a newer workload waits for the same and both replace others,
    /// at most this many.
    fn superseded(&self, most: usize) -> Vec<Superseded> {
        let _ = most;
        Vec::new()
    }

    /// Returns workloads that wait in this queue and were not [admitted](Self::admit), in the order in which they came,
    /// at most this many. A workload that waited when the caller began to store workloads counts as admitted.
    fn unadmitted(&self, most: usize) -> Vec<Arc<Workload>> {
        let _ = most;
        Vec::new()
    }

    /// Records that a workload was admitted to all queues in which it asks for slots.
    fn admit(&self, workload: &Uid) {
        let _ = workload;
    }

    /// Returns how many workloads wait in this queue.
    fn count_waiting(&self) -> usize {
        0
    }

    /// Returns how many workloads wait in this queue and were admitted, without those in `apart`. Returns `None` while
    /// some of these may have been deleted, because the caller lists all workloads anew.
    fn count_admitted(&self, apart: &BTreeSet<Uid>) -> Option<usize> {
        let _ = apart;
        Some(0)
    }

    /// Returns the running workloads that hold the slots that this one asks for, and may be replaced.
    fn replaceable(&self, by: &Workload) -> Vec<Located> {
        let _ = by;
        Vec::new()
    }

    /// Records that this queue has this contender of a workload, or none any more, and returns the workload.
    /// [`Self::contending`] names all workloads that have a contender.
    fn contends(&self, uid: &Uid, session: Option<&SessionId>) -> Option<Arc<Workload>> {
        self.workload(uid).filter(|_| session.is_some())
    }
}

/// Workloads and sessions that may have changed.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Workloads that may have changed.
    pub workloads: BTreeSet<Uid>,
    /// Whether a session has news other than a renewal, such as its end.
    pub sessions: bool,
}
