//! A listener that ends TLS with the API server's own certificate, so that its clients trust it.

use std::{io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use axum::serve::Listener;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
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
    /// Listens, with the certificate and key in these PEM files.
    pub(crate) async fn bind(certificate: &Path, key: &Path) -> Result<Self> {
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect)
            .map_err(|error| anyhow!("{}: {error}", certificate.display()))?;
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| anyhow!("{}: {error}", key.display()))?;
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .context("the API server's certificate")?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (queue, connections) = mpsc::channel(QUEUE);
        tokio::spawn(accept(listener, acceptor, queue));
        Ok(Self {
            connections,
            address,
        })
    }
}

/// Each handshake in a task of its own: a client that is slow holds up no other.
async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    queue: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    while !queue.is_closed() {
        let Ok((stream, address)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (acceptor, queue) = (acceptor.clone(), queue.clone());
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
