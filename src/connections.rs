//! Serves HTTP connections, with or without TLS: each connection has one request, and their number and duration are
//! bounded.

mod tls;

use std::{
    collections::VecDeque,
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use axum::Router;
use consul_client::Backoff;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1::Builder,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustix::io::Errno;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet, yield_now},
    time::timeout,
};

pub(crate) use self::tls::Tls;
pub use self::tls::TlsFiles;

/// Wait between retries while the system can't accept a connection, for example when file descriptors run out.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// Time that sent data may stay unacknowledged, in milliseconds.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MILLIS: u32 = 30_000;

/// Size of a socket's send buffer, in bytes: how much of an answer the socket takes before its client reads. The
/// system takes twice as much memory. Without this bound, the system would take some MiB for each slow reader, and
/// this memory counts for the container's limit.
const SEND_BUFFER: usize = 128 << 10;

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum number of connections at once. A new connection beyond that replaces another one: see
    /// [`Connections::make_room`].
    pub(crate) most: usize,
    /// Time that the TLS handshake may take, and after it the head of the request.
    pub(crate) head: Duration,
    /// Time that a connection may last.
    pub(crate) lasts: Duration,
    /// Time that unfinished answers may take when the server shuts down.
    pub(crate) grace: Duration,
}

/// One connection, which its request has as an extension.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<Progress>);

#[derive(Debug)]
struct Progress {
    /// Address of the client, as [`Connection::address`] returns it.
    address: Arc<str>,
    /// Whether the request of the connection has arrived.
    asked: AtomicBool,
    /// Whether the connection stays open when a new one needs room.
    kept: AtomicBool,
}

impl Connection {
    fn new(client: IpAddr) -> Self {
        Self(Arc::new(Progress {
            address: network(client).to_string().into(),
            asked: AtomicBool::new(false),
            kept: AtomicBool::new(false),
        }))
    }

    /// Returns the address of the client, by which the share of one client is bounded. For IPv6 this is the address
    /// of the client's network, because a client can have any address of its network.
    pub(crate) fn address(&self) -> &Arc<str> {
        &self.0.address
    }

    /// Keeps the connection open when new ones need room. The caller limits how many connections are kept.
    pub(crate) fn keep(&self) {
        self.0.kept.store(true, Ordering::Relaxed);
    }

    fn has_asked(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }

    fn is_kept(&self) -> bool {
        self.0.kept.load(Ordering::Relaxed)
    }
}

/// Returns the address, or for IPv6 the address of its /64 network.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << 64);
            Ipv6Addr::from_bits(network).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// The connections of a server.
struct Connections {
    tls: Option<Tls>,
    routes: Router,
    bounds: Bounds,
    tasks: JoinSet<()>,
    /// Connections, the oldest first. Some of them may have ended.
    open: VecDeque<(Connection, AbortHandle)>,
}

/// Listens on the address; port 0 takes a free port.
///
/// `[::]` means every address of IPv6 and IPv4. On a machine whose kernel has no IPv6, it means every address of
/// IPv4.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    if address.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED)
        && let Err(error) = &listener
        && Errno::from_io_error(error) == Some(Errno::AFNOSUPPORT)
    {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        return TcpListener::bind(address).await;
    }
    listener
}

/// Serves until `shutdown` ends, and then for the grace period, so that answers that have begun can finish.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    routes: Router,
    bounds: Bounds,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    let mut connections = Connections {
        tls,
        routes,
        bounds,
        tasks: JoinSet::new(),
        open: VecDeque::new(),
    };
    let mut backoff = BACKOFF;
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, client)) => {
                    backoff.reset();
                    connections.admit(stream, client.ip()).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    backoff.wait().await;
                }
            },
        }
    }
    drop(listener);
    // Answers that are still unfinished after the grace period are dropped with the set.
    let _ = timeout(bounds.grace, async {
        while connections.tasks.join_next().await.is_some() {}
    })
    .await;
}

impl Connections {
    /// Answers a new connection.
    async fn admit(&mut self, stream: TcpStream, client: IpAddr) {
        if !self.make_room().await {
            tracing::debug!("a connection was closed: there is no room for it");
            return;
        }
        let connection = Connection::new(client);
        let exchange = Exchange {
            routes: self.routes.clone(),
            bounds: self.bounds,
            connection: connection.clone(),
        };
        // The task makes the handshake, so a slow client delays no other client.
        let task = self.tasks.spawn(exchange.run(stream, self.tls.clone()));
        self.open.push_back((connection, task));
        // In a flood, requests that have arrived are read first, so that their connections do not count as silent.
        yield_now().await;
    }

    /// Makes room for one more connection; returns false if all connections are kept. It closes the oldest connection
    /// whose request has not arrived, or else the oldest one that is being answered. So clients that send or read
    /// nothing can't block others.
    async fn make_room(&mut self) -> bool {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|(_, task)| !task.is_finished());
        while self.tasks.len() >= self.bounds.most {
            let oldest = |asked: bool| {
                let mut open = self.open.iter();
                open.position(|(it, _)| it.has_asked() == asked && !it.is_kept())
            };
            let Some(at) = oldest(false).or_else(|| oldest(true)) else {
                return false;
            };
            if let Some((_, task)) = self.open.remove(at) {
                task.abort();
            }
            // The task that ends is the aborted one, or one that had already ended.
            self.tasks.join_next().await;
        }
        true
    }
}

/// One new connection, with its request and the answer.
struct Exchange {
    routes: Router,
    bounds: Bounds,
    connection: Connection,
}

impl Exchange {
    async fn run(self, stream: TcpStream, tls: Option<Tls>) {
        // The client of a long answer may be gone, and TCP would retry for a quarter of an hour.
        #[cfg(target_os = "linux")]
        if let Err(error) =
            rustix::net::sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MILLIS)
        {
            tracing::debug!(%error, "a connection that dies is noticed late");
        }
        if let Err(error) = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER)
        {
            tracing::debug!(%error, "a slow reader may take more memory");
        }
        match timeout(self.bounds.lasts, self.answer(stream, tls)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection failed"),
            Err(_) => tracing::debug!("a connection was closed: it took too long"),
        }
    }

    async fn answer(self, stream: TcpStream, tls: Option<Tls>) -> anyhow::Result<()> {
        let Some(tls) = tls else {
            return self.respond(stream).await;
        };
        let handshake = timeout(self.bounds.head, tls.accept(stream));
        let stream = handshake.await.context("the TLS handshake")?;
        self.respond(stream.context("the TLS handshake")?).await
    }

    async fn respond(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    ) -> anyhow::Result<()> {
        let mut builder = Builder::new();
        builder
            .keep_alive(false)
            .timer(TokioTimer::new())
            .header_read_timeout(self.bounds.head);
        let (routes, connection) = (TowerToHyperService::new(self.routes), self.connection);
        let service = service_fn(move |mut request: Request<Incoming>| {
            connection.0.asked.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(connection.clone());
            routes.call(request)
        });
        let served = builder.serve_connection(TokioIo::new(stream), service);
        Ok(served.await?)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, net::SocketAddr};

    use axum::{Extension, body::Body, routing::get};
    use testbed::{Certificates, http_client};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::{
        tls::tests::{certificates, files},
        *,
    };

    /// Bound that no test reaches.
    const ENDLESS: Duration = Duration::from_hours(1);

    /// Time that an expected event may take.
    const PATIENCE: Duration = Duration::from_mins(1);

    const MOST: usize = 4;

    const BOUNDS: Bounds = Bounds {
        most: MOST,
        head: ENDLESS,
        lasts: ENDLESS,
        grace: Duration::ZERO,
    };

    /// Starts a server that answers `/` at once and `/never` never. For `/kept`, it keeps the connection, says so,
    /// and never ends the answer.
    async fn server() -> SocketAddr {
        server_with(None).await
    }

    async fn server_with(tls: Option<Tls>) -> SocketAddr {
        let kept = async |Extension(connection): Extension<Connection>| {
            connection.keep();
            let word = futures::stream::once(async { Ok::<_, std::io::Error>("kept") });
            Body::from_stream(futures::StreamExt::chain(word, futures::stream::pending()))
        };
        let routes = Router::new()
            .route("/", get(async || "ok"))
            .route("/never", get(pending::<()>))
            .route("/kept", get(kept));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, tls, routes, BOUNDS, pending()));
        address
    }

    #[tokio::test]
    async fn all_addresses_are_those_of_both_families() {
        let listener = listen("[::]:0".parse().unwrap()).await.unwrap();
        let bound = listener.local_addr().unwrap();
        // A machine without IPv6 has only the other one.
        let families = [
            Ipv4Addr::LOCALHOST.into(),
            IpAddr::from(Ipv6Addr::LOCALHOST),
        ];
        let there = families
            .into_iter()
            .take(if bound.is_ipv6() { 2 } else { 1 });
        for address in there {
            let connected = TcpStream::connect((address, bound.port())).await;
            assert!(connected.is_ok(), "{address}: {connected:?}");
        }
    }

    async fn says(address: SocketAddr, words: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(words.as_bytes()).await.unwrap();
        stream
    }

    async fn asks(address: SocketAddr, path: &str) -> TcpStream {
        says(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
    }

    /// Returns everything that is received until the connection is closed.
    async fn read_to_close(mut stream: TcpStream) -> String {
        let mut heard = Vec::new();
        // The read fails if the server closed the connection with unread data, because that resets the connection.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut heard))
            .await
            .expect("it is closed");
        String::from_utf8(heard).unwrap()
    }

    async fn is_answered(address: SocketAddr) {
        let answer = read_to_close(asks(address, "/").await).await;
        assert!(answer.ends_with("\r\n\r\nok"), "{answer:?}");
    }

    /// Waits until at most `MOST` of these connections are open.
    async fn are_closed(streams: Vec<TcpStream>) {
        let mut open: JoinSet<_> = streams.into_iter().map(read_to_close).collect();
        while open.len() > MOST {
            let heard = open.join_next().await.unwrap();
            assert_eq!(heard.unwrap(), "");
        }
    }

    #[test]
    fn a_client_is_known_by_its_network() {
        for (address, expected) in [
            ("10.1.2.3", "10.1.2.3"),
            ("::ffff:10.1.2.3", "10.1.2.3"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("::1", "::"),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(&**Connection::new(address).address(), expected);
        }
    }

    #[tokio::test]
    async fn silent_connections_do_not_block_others() {
        let address = server().await;
        let mut silent = Vec::new();
        for _ in 0..10 * MOST {
            silent.push(says(address, "").await);
        }
        is_answered(address).await;
        are_closed(silent).await;
    }

    /// A head that arrives in pieces does not count as a request.
    #[tokio::test]
    async fn unfinished_requests_do_not_block_others() {
        let address = server().await;
        let mut slow = Vec::new();
        for _ in 0..10 * MOST {
            slow.push(says(address, "GET / HTTP/1.1\r\nHost:").await);
        }
        is_answered(address).await;
        are_closed(slow).await;
    }

    #[tokio::test]
    async fn idle_connections_are_closed_before_busy_ones_oldest_first() {
        let address = server().await;
        let mut asked = Vec::new();
        for _ in 0..MOST {
            asked.push(asks(address, "/never").await);
        }
        // The first of these requests replaces the oldest connection; each further request replaces the one before
        // it.
        for _ in 0..MOST {
            is_answered(address).await;
        }
        assert_eq!(read_to_close(asked.remove(0)).await, "");
        for _ in 0..10 * MOST {
            drop(says(address, "").await);
        }
        is_answered(address).await;
        for mut stream in asked {
            let still_open = stream.try_read(&mut [0]).unwrap_err();
            assert_eq!(still_open.kind(), std::io::ErrorKind::WouldBlock);
            stream.shutdown().await.unwrap();
        }
    }

    #[tokio::test]
    async fn one_that_is_kept_is_never_closed_for_others() {
        let address = server().await;
        let mut kept = Vec::new();
        for _ in 0..MOST {
            let mut stream = asks(address, "/kept").await;
            let mut heard = String::new();
            while !heard.contains("kept") {
                let mut more = [0; 64];
                let read = timeout(PATIENCE, stream.read(&mut more)).await;
                let count = read.expect("it is answered").unwrap();
                heard += std::str::from_utf8(&more[..count]).unwrap();
            }
            kept.push(stream);
        }
        assert_eq!(read_to_close(asks(address, "/").await).await, "", "no room");
        drop(kept.pop());
        let noticed = async { while read_to_close(asks(address, "/").await).await.is_empty() {} };
        timeout(PATIENCE, noticed).await.expect("there is room");
        for stream in kept {
            let still_open = stream.try_read(&mut [0; 64]).unwrap_err();
            assert_eq!(still_open.kind(), std::io::ErrorKind::WouldBlock);
        }
    }

    /// The server reads all requests that wait in the kernel's queue among many silent connections.
    #[tokio::test]
    async fn a_request_that_has_come_is_not_taken_for_silence() {
        let address = server().await;
        let mut requests = Vec::new();
        // This runtime has one thread, so the server sees no connection before all requests have been sent.
        for _ in 0..20 {
            requests.push(std::net::TcpStream::connect(address).unwrap());
        }
        let requests = requests.into_iter().map(|mut stream| {
            std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            stream.set_nonblocking(true).unwrap();
            TcpStream::from_std(stream).unwrap()
        });
        for stream in requests.collect::<Vec<_>>() {
            assert!(read_to_close(stream).await.ends_with("ok"));
        }
    }

    #[tokio::test]
    async fn a_head_that_never_ends_ends_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounds = Bounds {
            head: Duration::from_millis(1),
            ..BOUNDS
        };
        tokio::spawn(serve(listener, None, Router::new(), bounds, pending()));
        let stream = says(address, "GET / HTTP/1.1\r\n").await;
        assert_eq!(read_to_close(stream).await, "");
    }

    /// Returns the answer to a client that trusts the CA of these certificates.
    async fn get_over_tls(
        address: SocketAddr,
        certificates: &Certificates,
    ) -> reqwest::Result<String> {
        let authority = std::fs::read(certificates.authority()).unwrap();
        let authority = reqwest::Certificate::from_pem(&authority).unwrap();
        let http = http_client().tls_certs_only([authority]).build()?;
        let url = format!("https://localhost:{}/", address.port());
        http.get(url).send().await?.text().await
    }

    #[tokio::test]
    async fn a_new_certificate_is_used_without_a_restart() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (folder, first) = certificates().await;
        let (_other, second) = certificates().await;
        let files = TlsFiles {
            certificate: folder.path().join("tls.crt"),
            key: folder.path().join("tls.key"),
        };
        let copy = |from: &Certificates| {
            let [certificate, key] = from.server();
            std::fs::copy(certificate, &files.certificate).unwrap();
            std::fs::copy(key, &files.key).unwrap();
        };
        copy(&first);
        let address = server_with(Some(Tls::read(files.clone()).unwrap())).await;
        assert_eq!(get_over_tls(address, &first).await.unwrap(), "ok");
        assert!(get_over_tls(address, &second).await.is_err());
        copy(&second);
        let exchanged = async { while get_over_tls(address, &second).await.is_err() {} };
        timeout(PATIENCE, exchanged).await.expect("it is used");
    }

    #[tokio::test]
    async fn those_who_begin_no_handshake_keep_nobody_from_an_answer() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (_folder, certificates) = certificates().await;
        let tls = Tls::read(files(&certificates)).unwrap();
        let address = server_with(Some(tls)).await;
        let mut silent = Vec::new();
        for _ in 0..10 * MOST {
            silent.push(says(address, "").await);
        }
        assert_eq!(get_over_tls(address, &certificates).await.unwrap(), "ok");
        are_closed(silent).await;
    }

    #[tokio::test]
    async fn a_handshake_that_never_ends_ends_the_connection() {
        let (_folder, certificates) = certificates().await;
        let tls = Tls::read(files(&certificates)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounds = Bounds {
            head: Duration::from_millis(1),
            ..BOUNDS
        };
        tokio::spawn(serve(listener, Some(tls), Router::new(), bounds, pending()));
        assert_eq!(read_to_close(says(address, "").await).await, "");
    }
}
