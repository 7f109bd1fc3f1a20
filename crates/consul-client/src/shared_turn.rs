//! Turns to watch that all programs of a machine share.
//!
//! Consul counts connections by the address that they come from. A program can't count those of others, so a turn is
//! the name of a unix socket without a file (`unix(7)`, "abstract"): one process at a time can bind it. The name is free
//! again when the process ends, however that happens, and names are apart where addresses are, in network namespaces.
//! Another user of the machine can take all turns; then programs poll.

/// How many programs of a machine watch at one server at once. Consul accepts 200 connections from one address
/// (`limits.http_max_conns_per_client`); these leave most of them to short calls, two of which each of these may make at a
/// time, and to others.
const TURNS: usize = 48;

/// A turn, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct SharedTurn {
    #[cfg(target_os = "linux")]
    _name: Option<std::os::unix::net::UnixDatagram>,
}

impl SharedTurn {
    /// Takes a turn to watch at the server with this address; `None` if all are taken. Where there are no such names
    /// everybody has a turn.
    #[cfg(target_os = "linux")]
    pub(super) fn take(server: &str) -> Option<Self> {
        use std::os::{linux::net::SocketAddrExt as _, unix::net};

        let first = fastrand::usize(..TURNS);
        for number in (0..TURNS).map(|number| (first + number) % TURNS) {
            // There is room for 107 bytes.
            let end = server.len().saturating_sub(64);
            let server = String::from_utf8_lossy(&server.as_bytes()[end..]);
            let name = format!("consul-semaphore/watch/{number}/{server}");
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
    pub(super) fn take(_server: &str) -> Option<Self> {
        Some(Self {})
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    #[allow(
        clippy::used_underscore_binding,
        reason = "only the test reads the name, which is free again once it is dropped"
    )]
    fn so_many_have_a_turn_at_each_server_and_one_that_ends_is_free() {
        let server = format!("http://127.0.0.1:{}", std::process::id());
        let mut all: Vec<_> = (0..TURNS)
            .map(|_| SharedTurn::take(&server).unwrap())
            .collect();
        assert!(SharedTurn::take(&server).is_none());
        assert!(SharedTurn::take("http://127.0.0.1:0").is_some());
        all.pop();
        assert!(SharedTurn::take(&server).is_some());
        let long = "é".repeat(99);
        assert!(SharedTurn::take(&long).is_some_and(|turn| turn._name.is_some()));
    }
}
