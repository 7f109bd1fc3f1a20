//! Free ports on loopback.
use std::{
    collections::HashSet,
    net::{TcpListener, UdpSocket},
};

use parking_lot::Mutex;

use anyhow::{Context as _, Result};

/// How often a start is tried if another program took one of its ports in between.
const TRIES: usize = 3;

/// What servers log when their port is taken.
const TAKEN: &str = "address already in use";

/// Ports that [`free`] has given out: none is given twice.
static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Finds `N` different free ports.
pub(crate) fn free<const N: usize>() -> Result<[u16; N]> {
    let mut given = GIVEN.lock();
    let given = given.get_or_insert_default();
    let mut ports = [0; N];
    // Held until all are found, or the system might offer one of them again.
    let mut listeners = Vec::with_capacity(N);
    for port in &mut ports {
        loop {
            let listener = TcpListener::bind(("127.0.0.1", 0)).context("finding a free port")?;
            *port = listener.local_addr()?.port();
            listeners.push(listener);
            if given.insert(*port) {
                break;
            }
        }
    }
    Ok(ports)
}

/// The address at which [`lasting`] ports are claimed. No server uses it. A socket there tells all processes that a
/// port is taken even while its server is down, and disappears with the process that claimed it.
const CLAIMS: &str = "127.0.0.99";

/// The claims of this process.
static CLAIMED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// Finds `N` different free ports below the range that the system assigns. They stay reserved while their server is
/// down, so that it can come back to them.
pub(crate) fn lasting<const N: usize>() -> Result<[u16; N]> {
    let mut claimed = CLAIMED.lock();
    // Other processes start their search elsewhere.
    let first = u16::try_from(std::process::id() % 1_200).unwrap_or_default() * 10 + 20_000;
    let mut free = (first..32_000).chain(20_000..first).filter_map(|port| {
        let claim = UdpSocket::bind((CLAIMS, port)).ok()?;
        TcpListener::bind(("127.0.0.1", port)).ok()?;
        claimed.push(claim);
        Some(port)
    });
    let mut ports = [0; N];
    for port in &mut ports {
        *port = free.next().context("no free port below 32000")?;
    }
    Ok(ports)
}

/// A free port that stays reserved for the life of this process, even while its server is down or never starts.
///
/// # Errors
/// No port is free.
pub fn lasting_port() -> Result<u16> {
    let [port] = lasting()?;
    Ok(port)
}

/// Starts something on free ports. A port can be lost between finding and using it; then this tries again.
pub(crate) async fn on_free<const N: usize, T, F>(start: impl FnMut([u16; N]) -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    on(free, start).await
}

/// Like [`on_free`], on ports that a restarted server can use again.
pub(crate) async fn on_lasting<const N: usize, T, F>(start: impl FnMut([u16; N]) -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    on(lasting, start).await
}

async fn on<const N: usize, T, F>(
    find: fn() -> Result<[u16; N]>,
    mut start: impl FnMut([u16; N]) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut tries = 1;
    loop {
        let outcome = start(find()?).await;
        let taken = |error: &anyhow::Error| error.to_string().to_lowercase().contains(TAKEN);
        if tries == TRIES || !outcome.as_ref().is_err_and(taken) {
            return outcome;
        }
        tries += 1;
    }
}
