//! Keeps the state of each datacenter apart, so that a datacenter that hangs does not affect the others.
//!
//! The server that is asked forwards a call to another datacenter. A missing answer says nothing about this server,
//! so it counts against that datacenter only.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize},
    },
};

use parking_lot::Mutex;

use tokio::sync::Semaphore;

use super::{
    endpoints::{Choice, Endpoints, Target},
    lanes::{CALLS_ELSEWHERE, Lanes},
};
use crate::turns::FairTurns;

/// The state of one datacenter. All clients of the datacenter share it.
pub(super) struct Datacenter {
    /// Choice of the server that is asked.
    pub(super) servers: Choice,
    pub(super) lanes: Arc<Lanes>,
    /// Turns to have a long answer in memory.
    pub(super) long: Long,
    /// Number of operations that a transaction may have.
    pub(super) capacity: AtomicUsize,
    /// Whether the datacenter has accepted a namespace or a partition.
    pub(super) enterprise: AtomicBool,
}

/// Number of long listings that are read at once: one of each owner. Of each listing, one entry at a time is in
/// memory as text, besides the entries that were decoded until the listing proves too large.
const LONG_LISTINGS_AT_ONCE: usize = 2;

/// Turns to have a long answer in memory. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Long {
    pub(super) listings: FairTurns,
    /// Turns for any other answer, all of which is in memory as text.
    pub(super) others: FairTurns,
}

impl Default for Long {
    fn default() -> Self {
        Self {
            listings: FairTurns::new(LONG_LISTINGS_AT_ONCE),
            others: FairTurns::new(1),
        }
    }
}

/// The datacenters that have a client.
pub(super) struct Datacenters {
    endpoints: Arc<Endpoints>,
    /// The datacenter of the first client, which all others were made from.
    home: Option<String>,
    known: Mutex<HashMap<Option<String>, Weak<Datacenter>>>,
    watches: Arc<Semaphore>,
    elsewhere: Arc<Semaphore>,
    /// Turns of the client's own datacenter, and turns of all other datacenters, one of which may hang.
    long: [Long; 2],
}

impl Datacenters {
    pub(super) fn new(endpoints: Endpoints, home: Option<String>, watches: usize) -> Self {
        Self {
            endpoints: Arc::new(endpoints),
            home,
            known: Mutex::default(),
            watches: Arc::new(Semaphore::new(watches)),
            elsewhere: Arc::new(Semaphore::new(CALLS_ELSEWHERE)),
            long: [Long::default(), Long::default()],
        }
    }

    /// Returns the datacenter of this name; `None` is the datacenter of the server that is asked.
    pub(super) fn get(&self, name: Option<&String>) -> Arc<Datacenter> {
        let mut known = self.known.lock();
        let name = name.cloned();
        if let Some(datacenter) = known.get(&name).and_then(Weak::upgrade) {
            return datacenter;
        }
        let watches = self.watches.clone();
        let [long_at_home, long_elsewhere] = &self.long;
        let (lanes, long) = if name == self.home {
            (Lanes::at_home(watches), long_at_home)
        } else {
            let lanes = Lanes::elsewhere(watches, self.elsewhere.clone());
            (lanes, long_elsewhere)
        };
        let datacenter = Arc::new(Datacenter {
            servers: Choice::new(self.endpoints.clone()),
            lanes: Arc::new(lanes),
            long: long.clone(),
            capacity: AtomicUsize::new(super::txn::TRANSACTION_CAPACITY),
            enterprise: AtomicBool::new(false),
        });
        known.retain(|_, datacenter| datacenter.strong_count() > 0);
        known.insert(name, Arc::downgrade(&datacenter));
        datacenter
    }

    /// Moves all datacenters away from a server that itself does not work.
    pub(super) fn leave(&self, target: &Arc<Target>) {
        target.lost.notify_waiters();
        let known = self.known.lock();
        for datacenter in known.values().filter_map(Weak::upgrade) {
            datacenter.servers.leave(target);
        }
    }
}
