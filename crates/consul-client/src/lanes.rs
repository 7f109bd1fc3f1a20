//! Limits how many calls run at once. Each kind of call has its own limit, so that no kind waits for another.
//!
//! A renewal is answered from the leader's memory, and a read without a raft commit. If they waited for transactions,
//! a slow raft would cost holders their locks.
//!
//! Without HTTP/2 each call takes a connection, and Consul takes 200 from one address
//! (`limits.http_max_conns_per_client`). By default there are at most 186: 100 watches, 34 other calls to
//! the client's own datacenter, 4 of an election, and 48 to all other datacenters.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

/// The kind of a call: calls wait only for others of their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Renews a session.
    Renew,
    /// Reads without a wait for a change.
    Read,
    /// Makes or ends a session. Thousands may be due at once, as when a namespace is deleted.
    Session,
    /// Gets a token, which all other calls may wait for.
    Login,
    /// Writes keys.
    Write,
}

/// Lanes of one datacenter, or of a client with lanes of its own.
#[derive(Debug)]
pub(super) struct Lanes {
    renew: Semaphore,
    read: Semaphore,
    session: Semaphore,
    login: Semaphore,
    write: Semaphore,
    /// Turns to wait for changes.
    watches: Arc<Semaphore>,
    /// Turns that all datacenters except the client's own share.
    elsewhere: Option<Arc<Semaphore>>,
}

/// The permission for one call.
pub(super) type Turn<'a> = (SemaphorePermit<'a>, Option<SemaphorePermit<'a>>);

/// Calls to all datacenters except the client's own: a datacenter that hangs takes a third of them.
pub(super) const CALLS_ELSEWHERE: usize = 48;

impl Lanes {
    /// Makes the lanes for the client's own datacenter.
    pub(super) fn at_home(watches: Arc<Semaphore>) -> Self {
        Self {
            renew: Semaphore::new(6),
            read: Semaphore::new(8),
            session: Semaphore::new(6),
            login: Semaphore::new(2),
            write: Semaphore::new(12),
            watches,
            elsewhere: None,
        }
    }

    /// Makes the lanes for another datacenter, with 16 turns in all.
    pub(super) fn elsewhere(watches: Arc<Semaphore>, all: Arc<Semaphore>) -> Self {
        Self {
            renew: Semaphore::new(4),
            read: Semaphore::new(4),
            session: Semaphore::new(3),
            login: Semaphore::new(1),
            write: Semaphore::new(4),
            watches,
            elsewhere: Some(all),
        }
    }

    /// Makes the lanes for an election, which makes one call after the other beside a watch and a renewal.
    pub(super) fn apart() -> Self {
        Self {
            renew: Semaphore::new(1),
            read: Semaphore::new(1),
            session: Semaphore::new(1),
            login: Semaphore::new(1),
            write: Semaphore::new(1),
            watches: Arc::new(Semaphore::new(1)),
            elsewhere: None,
        }
    }

    /// Waits for a turn to make a call of this kind. The lanes are never closed, so a turn always comes.
    pub(super) async fn turn(&self, lane: Lane) -> Option<Turn<'_>> {
        let lane = match lane {
            Lane::Renew => &self.renew,
            Lane::Read => &self.read,
            Lane::Session => &self.session,
            Lane::Login => &self.login,
            Lane::Write => &self.write,
        };
        let turn = lane.acquire().await.ok()?;
        let shared = match &self.elsewhere {
            Some(shared) => Some(shared.acquire().await.ok()?),
            None => None,
        };
        Some((turn, shared))
    }

    /// Takes a turn to wait for changes; `None` if all turns are in use.
    pub(super) fn watch_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.watches.try_acquire().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn calls(lanes: &Lanes) -> usize {
        let kinds = [
            &lanes.renew,
            &lanes.read,
            &lanes.session,
            &lanes.login,
            &lanes.write,
        ];
        kinds.map(Semaphore::available_permits).iter().sum()
    }

    #[test]
    fn all_calls_at_once_leave_room_below_what_consul_takes_from_one_address() {
        let shared = |permits| Arc::new(Semaphore::new(permits));
        let watches = shared(Config::MAX_WATCHES as usize);
        let home = calls(&Lanes::at_home(watches.clone()));
        let apart = Lanes::apart();
        // An election makes one call after the other, beside a renewal and a watch.
        let election = 3 + apart.watches.available_permits();
        let most = watches.available_permits() + home + election + CALLS_ELSEWHERE;
        assert_eq!((home, most), (34, 186));
        let one = calls(&Lanes::elsewhere(watches, shared(CALLS_ELSEWHERE)));
        assert_eq!(3 * one, CALLS_ELSEWHERE, "three that hang");
    }
}
