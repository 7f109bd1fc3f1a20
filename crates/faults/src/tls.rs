//! A listener that ends TLS, with a certificate that may be exchanged.

use std::{io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use axum::serve::Listener;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// How long a client may take to shake hands.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How many connections may have shaken hands and wait to be served.
const QUEUE: usize = 64;

/// Connections that have shaken hands.
pub(crate) struct TlsListener {
    connections: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    /// Listens; each connection is made with what is current then.
    pub(crate) async fn bind(current: watch::Receiver<Arc<ServerConfig>>) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (queue, connections) = mpsc::channel(QUEUE);
        tokio::spawn(accept(listener, current, queue));
        Ok(Self {
            connections,
            address,
        })
    }
}

/// With the certificate and key in these PEM files. With `clients` only whom a CA in that file knows is let in.
pub(crate) fn server(
    certificate: &Path,
    key: &Path,
    clients: Option<&Path>,
) -> Result<Arc<ServerConfig>> {
    let key =
        PrivateKeyDer::from_pem_file(key).map_err(|error| anyhow!("{}: {error}", key.display()))?;
    let builder = ServerConfig::builder();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(file)? {
                roots.add(root)?;
            }
            builder.with_client_cert_verifier(WebPkiClientVerifier::builder(roots.into()).build()?)
        }
    };
    let config = builder.with_single_cert(certificates(certificate)?, key);
    Ok(Arc::new(config.context("a server's certificate")?))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    found.map_err(|error| anyhow!("{}: {error}", file.display()))
}

/// Each handshake in a task of its own: a client that is slow holds up no other.
async fn accept(
    listener: TcpListener,
    current: watch::Receiver<Arc<ServerConfig>>,
    queue: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    while !queue.is_closed() {
        let Ok((stream, address)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let acceptor = TlsAcceptor::from(current.borrow().clone());
        let queue = queue.clone();
        tokio::spawn(async move {
            if let Ok(Ok(stream)) = timeout(HANDSHAKE, acceptor.accept(stream)).await {
                // It fails only when the door is gone.
                let _gone = queue.send((stream, address)).await;
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.connections.recv().await {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
