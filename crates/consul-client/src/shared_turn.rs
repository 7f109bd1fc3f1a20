//! Gives turns to use a server; all programs of a machine share these turns.
//!
//! Consul counts connections by the address that they come from. A program can't count the connections of other
//! programs, so a turn is the name of a unix socket without a file (`unix(7)`, "abstract"): one process at a time can
//! bind the name. The name is free again when the process ends, however the process ends. Network namespaces separate
//! the names just as they separate the addresses. Another user of the machine can take all turns, just as that user
//! can open all connections.

use std::time::Duration;

use super::{Backoff, lanes::Lane};

/// The purpose for which a program takes a turn. Each purpose has turns of its own, so that no purpose waits for the
/// others.
///
/// Consul accepts 200 connections from one address (`limits.http_max_conns_per_client`). The purposes have 128 turns
/// together, which leaves the other connections to programs that do not take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A wait for changes.
    Watch,
    /// A renewal of a session, which must not wait for programs that have just started.
    Renew,
    /// Any other call.
    Call,
}

impl Purpose {
    /// Returns the purpose of a call of this kind.
    pub(super) const fn of(lane: Lane) -> Self {
        match lane {
            Lane::Renew => Self::Renew,
            Lane::Read | Lane::Session | Lane::Login | Lane::Write => Self::Call,
        }
    }

    /// Returns how many programs of a machine may have a turn of this purpose at one server at once.
    const fn turns(self) -> usize {
        match self {
            Self::Watch => 48,
            Self::Renew => 16,
            Self::Call => 64,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Renew => "renew",
            Self::Call => "call",
        }
    }
}

/// Number of names that are tried before a pause. A thousand waiting programs try some thousand names a second. That
/// costs little, and they find a name that becomes free within milliseconds.
const NAMES_TRIED_AT_ONCE: usize = 4;

/// Pauses between the attempts to find a free name.
const RETRY_PAUSES: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(200));

/// A turn, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct SharedTurn {
    #[cfg(target_os = "linux")]
    _name: Option<std::os::unix::net::UnixDatagram>,
}

impl SharedTurn {
    /// Takes a turn at the server with this address; returns `None` if all turns are taken.
    pub(super) fn take(purpose: Purpose, server: &str) -> Option<Self> {
        Self::take_of(purpose, server, purpose.turns())
    }

    /// Waits for a turn at the server with this address.
    pub(super) async fn wait(purpose: Purpose, server: &str) -> Self {
        let mut pause = RETRY_PAUSES;
        loop {
            match Self::take_of(purpose, server, NAMES_TRIED_AT_ONCE) {
                Some(turn) => return turn,
                None => pause.wait().await,
            }
        }
    }

    /// Takes one of the turns, after at most so many tries. On a system without such socket names every program has a
    /// turn.
    #[cfg(target_os = "linux")]
    fn take_of(purpose: Purpose, server: &str, tries: usize) -> Option<Self> {
        use std::os::{linux::net::SocketAddrExt as _, unix::net};

        let turns = purpose.turns();
        let first = fastrand::usize(..turns);
        for number in (first..first + tries).map(|number| number % turns) {
            // A socket name has room for 107 bytes.
            let end = server.len().saturating_sub(64);
            let server = String::from_utf8_lossy(&server.as_bytes()[end..]);
            let name = format!("consul-semaphore/{}/{number}/{server}", purpose.word());
            let bound = net::SocketAddr::from_abstract_name(name)
                .and_then(|name| net::UnixDatagram::bind_addr(&name));
            match bound {
                Ok(name) => return Some(Self { _name: Some(name) }),
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(_) => return Some(Self { _name: None }),
            }
        }
        None
    }

    #[cfg(not(target_os = "linux"))]
    fn take_of(_purpose: Purpose, _server: &str, _tries: usize) -> Option<Self> {
        Some(Self {})
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// Returns the name of a server that no other program of the machine asks, because other tests run at the same
    /// time.
    fn nobody_elses(name: &str) -> String {
        format!("{name}.test:{}", std::process::id())
    }

    #[test]
    #[allow(
        clippy::used_underscore_binding,
        reason = "only the test reads the name, which is free again once it is dropped"
    )]
    fn so_many_have_a_turn_at_each_server_and_one_that_ends_is_free() {
        let server = nobody_elses("counted");
        let take = || SharedTurn::take(Purpose::Watch, &server);
        let mut all: Vec<_> = std::iter::from_fn(take).collect();
        assert_eq!(all.len(), 48);
        assert!(SharedTurn::take(Purpose::Call, &server).is_some());
        assert!(SharedTurn::take(Purpose::Watch, &nobody_elses("another")).is_some());
        all.pop();
        assert!(take().is_some());
        let long = nobody_elses(&"é".repeat(99));
        let turn = SharedTurn::take(Purpose::Watch, &long);
        assert!(turn.is_some_and(|turn| turn._name.is_some()));
    }

    #[tokio::test]
    async fn whoever_waits_has_the_next_turn_that_ends() {
        let server = nobody_elses("awaited");
        let take = || SharedTurn::take(Purpose::Renew, &server);
        let mut all: Vec<_> = std::iter::from_fn(take).collect();
        let mut wait = Box::pin(SharedTurn::wait(Purpose::Renew, &server));
        assert!(wait.as_mut().now_or_never().is_none());
        all.pop();
        wait.await;
    }

    #[test]
    fn all_turns_leave_connections_to_others() {
        let all = [Purpose::Watch, Purpose::Renew, Purpose::Call].map(Purpose::turns);
        assert_eq!(all.iter().sum::<usize>(), 128);
    }
}
