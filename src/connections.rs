//! HTTP connections: one request each, bounded in number and in time.

use std::{future::Future, pin::pin, time::Duration};

use axum::Router;
use hyper::server::conn::http1::Builder;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

/// How long to wait when the system has no connection to give, as when file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long what was sent may stay without an answer of the other side's TCP, in milliseconds.
#[cfg(target_os = "linux")]
const UNHEARD: u32 = 30_000;

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How many there are at once; more than these wait in the kernel's queue.
    pub(crate) most: usize,
    /// How long the head of the request may take to come.
    pub(crate) head: Duration,
    /// When a connection is closed, whatever it does.
    pub(crate) lasts: Duration,
    /// How long answers that are under way may take when the server ends.
    pub(crate) grace: Duration,
}

/// Serves until `shutdown` ends, then for a moment longer, to finish what is under way.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    bounds: Bounds,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < bounds.most => match accepted {
                Ok((stream, _)) => drop(connections.spawn(answer(stream, routes.clone(), bounds))),
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    // What is not finished by then is dropped with the set.
    let _ = timeout(bounds.grace, async {
        while connections.join_next().await.is_some() {}
    })
    .await;
}

/// Answers one request on a new connection.
async fn answer(stream: TcpStream, routes: Router, bounds: Bounds) {
    // Nobody may be there any more to whom a long answer goes, and TCP would try for a quarter of an hour.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::net::sockopt::set_tcp_user_timeout(&stream, UNHEARD) {
        tracing::debug!(%error, "a connection that dies is noticed late");
    }
    let mut builder = Builder::new();
    builder
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head);
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    match timeout(bounds.lasts, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection failed"),
        Err(_) => tracing::debug!("a connection was closed: it took too long"),
    }
}
