//! The process's TLS provider, and TLS servers whose certificates can be exchanged.
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

/// Chooses ring, as kube does, before the first TLS client: reqwest has none of its own here.
pub(crate) fn init() {
    // An error means that someone else has chosen already, which is as good.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
}

/// What a server shows to its clients. Clones are the same one, and it can be exchanged while it is
/// used.
#[derive(Clone, Debug)]
pub struct ServerCertificate(watch::Sender<Arc<ServerConfig>>);

impl ServerCertificate {
    /// The certificate and key in these PEM files. With `clients`, only clients that a CA in that
    /// file knows are let in.
    ///
    /// # Errors
    /// A file can't be read, or is no certificate or key.
    pub fn read(certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<Self> {
        Ok(Self(watch::Sender::new(server(certificate, key, clients)?)))
    }

    /// New connections are made with these from now on.
    ///
    /// # Errors
    /// As of [`Self::read`]: then it stays as it is.
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

/// Connections that have shaken hands.
pub(crate) struct TlsListener {
    connections: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    /// Each connection is made with the certificate that is current then.
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

/// Each handshake is in a task of its own: a client that is slow holds up no other.
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
                // It fails only when the listener is gone.
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
