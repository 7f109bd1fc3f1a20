//! What the caller stores anyway and a queue reads.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    waiting::Reach,
    waits::{Located, Overdue, Superseded},
};
use crate::{SessionState, Uid, Workload};
use consul_client::SessionId;

/// What the caller stores anyway and the engine reads: workloads, and sessions.
pub trait Lookup {
    /// The workloads that were started in this queue and have not ended.
    fn bound(&self) -> Vec<Arc<Workload>>;
    /// Those of the workloads that wait in this queue that are within `reach`, in order: see
    /// [`WaitingList::read`](super::WaitingList::read).
    fn waiting(&self, reach: &Reach<'_>) -> Vec<Arc<Workload>>;
    /// A workload, of any semaphore.
    fn workload(&self, uid: &Uid) -> Option<Arc<Workload>>;
    /// The same for all of which this queue has contenders: a change of one makes the queue due.
    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Workload>>>;
    /// The workloads that had a pod end since the last call.
    fn touched(&self) -> BTreeSet<Uid>;
    /// The state of a session that this process renews, for any queue.
    fn life(&self, session: &SessionId) -> Option<SessionState>;

    /// What may have changed since this was last asked, of the workloads that this queue started or has contenders
    /// of, and of the sessions that are renewed for it; `None`: anything. An exact answer saves a check of thousands
    /// of holders in each pass.
    fn changes(&self) -> Option<Changes> {
        None
    }

    /// A workload, if this queue started it: as in [`Self::bound`].
    fn started(&self, uid: &Uid) -> Option<Arc<Workload>> {
        let mut bound = self.bound().into_iter();
        bound.find(|workload| workload.uid == *uid)
    }

    /// The workload that is the first in this queue.
    fn first(&self) -> Option<Arc<Workload>> {
        self.waiting(&Reach::first(1)).into_iter().next()
    }

    /// Workloads that wait in this queue and whose time to wait may be over by now, at most this many. They are not
    /// returned again before the time to which they are [postponed](Self::postpone).
    fn overdue(&self, now: jiff::Timestamp, most: usize) -> Vec<Overdue> {
        let _ = (now, most);
        Vec::new()
    }

    /// When the next of them may be overdue.
    fn next_overdue(&self) -> Option<jiff::Timestamp> {
        None
    }

    /// The time of a workload is not over before this.
    fn postpone(&self, workload: &Uid, until: jiff::Timestamp) {
        let _ = (workload, until);
    }

    /// Workloads that ask for slots here and of whose wait something is to be recorded, at most this many. Each of them is
    /// known to one of the queues that it asks for.
    fn unrecorded(&self, most: usize) -> Vec<Arc<Workload>> {
        let _ = most;
        Vec::new()
    }

    /// Workloads that wait in this queue while a newer one waits for the same, and both replace others; at most this
    /// many.
    fn superseded(&self, most: usize) -> Vec<Superseded> {
        let _ = most;
        Vec::new()
    }

    /// The running workloads that hold the same as this one asks for, and may be replaced.
    fn replaceable(&self, by: &Workload) -> Vec<Located> {
        let _ = by;
        Vec::new()
    }

    /// This queue has this contender of a workload, or none any more: like [`Self::contending`], which names all that
    /// have one.
    fn contends(&self, uid: &Uid, session: Option<&SessionId>) -> Option<Arc<Workload>> {
        self.workload(uid).filter(|_| session.is_some())
    }
}

/// What may have changed.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Workloads.
    pub workloads: BTreeSet<Uid>,
    /// Whether a session has more news than another renewal: it may be gone.
    pub sessions: bool,
}
