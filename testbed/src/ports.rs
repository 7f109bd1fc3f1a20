//! Free ports on loopback.
use std::{
    collections::HashSet,
    net::TcpListener,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result};

/// How often a start is tried when another program took one of its ports in between.
const TRIES: usize = 3;

/// What servers say when another one has their port.
const TAKEN: &str = "address already in use";

/// Ports that this process has given out: none is given twice.
static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Finds `N` different free ports.
pub(crate) fn free<const N: usize>() -> Result<[u16; N]> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Starts something on free ports. A port can be lost between finding and using it: then again.
pub(crate) async fn on_free<const N: usize, T, F>(mut start: impl FnMut([u16; N]) -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut tries = 1;
    loop {
        let outcome = start(free()?).await;
        let taken = |error: &anyhow::Error| error.to_string().to_lowercase().contains(TAKEN);
        if tries == TRIES || !outcome.as_ref().is_err_and(taken) {
            return outcome;
        }
        tries += 1;
    }
}
