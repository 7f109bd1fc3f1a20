//! The process's TLS provider, and TLS servers whose certificates can be replaced.
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

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How many connections may wait to be served after their handshake.
const QUEUE: usize = 64;

/// Installs ring, as kube does, before the first TLS client: reqwest brings no provider here.
pub(crate) fn init() {
    // `Err` means that a provider is already installed, which is just as good.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
}

/// The certificate that a server presents to its clients. Clones are the same one. It can be replaced while in use.
#[derive(Clone, Debug)]
pub struct ServerCertificate(watch::Sender<Arc<ServerConfig>>);

impl ServerCertificate {
    /// Reads the certificate and key from these PEM files. With `clients`, only clients with a certificate from a CA
    /// in that file are accepted.
    ///
    /// # Errors
    /// A file can't be read, or is not a certificate or key.
    pub fn read(certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<Self> {
        Ok(Self(watch::Sender::new(server(certificate, key, clients)?)))
    }

    /// Uses these for new connections from now on.
    ///
    /// # Errors
    /// Like those of [`Self::read`]. Then the old ones remain in use.
    pub fn exchange(&self, certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<()> {
        self.0.send_replace(server(certificate, key, clients)?);
        Ok(())
    }
}

fn server(certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<Arc<ServerConfig>> {
    init();
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

/// Accepts connections and does their handshakes.
pub(crate) struct TlsListener {
    connections: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    /// A listener that uses the certificate that is current when a client connects.
    pub(crate) fn new(listener: TcpListener, certificate: ServerCertificate) -> Result<Self> {
        let address = listener.local_addr()?;
        let (queue, connections) = mpsc::channel(QUEUE);
        tokio::spawn(accept(listener, certificate, queue));
        Ok(Self {
            connections,
            address,
        })
    }
}

/// Each handshake is a separate task, so a slow client delays no other.
async fn accept(
    listener: TcpListener,
    certificate: ServerCertificate,
    queue: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = queue.closed() => return,
        };
        let Ok((stream, address)) = accepted else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let acceptor = TlsAcceptor::from(certificate.0.borrow().clone());
        let queue = queue.clone();
        tokio::spawn(async move {
            if let Ok(Ok(stream)) = timeout(HANDSHAKE, acceptor.accept(stream)).await {
                // This fails only when the listener has been dropped.
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
