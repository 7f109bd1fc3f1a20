//! Listens for the signals that ask the process to end.
use std::{future::Future, io, process};

use futures::FutureExt as _;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

/// Listens for SIGTERM and SIGINT. The future ends with the first of them; a second one ends the process at once.
pub(crate) fn requested() -> io::Result<impl Future<Output = ()> + Clone + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (asked, wait) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let name = next(&mut terminate, &mut interrupt).await;
        tracing::info!(signal = name, "ending; a second signal ends at once");
        drop(asked);
        next(&mut terminate, &mut interrupt).await;
        process::exit(1);
    });
    Ok(wait.map(drop).shared())
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
