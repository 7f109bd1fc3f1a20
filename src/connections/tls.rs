//! Reads the server's TLS certificate and its key, and reads them again when their files change.

use std::{fmt, io, path::Path, path::PathBuf, sync::Arc};

use consul_client::{
    ConfigError,
    files::{Files, Source},
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

const CERTIFICATE: &str = "HTTP_TLS_CERT_FILE";
const KEY: &str = "HTTP_TLS_KEY_FILE";

/// The PEM files of a server's certificate and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// File with the certificate, followed by the certificates of the CAs between it and the trusted one.
    pub certificate: PathBuf,
    /// File with the private key of the certificate.
    pub key: PathBuf,
}

/// Certificate of a server, with its key. Clones share what was read.
#[derive(Clone)]
pub(crate) struct Tls(Arc<Files<TlsFiles>>);

impl Tls {
    /// Reads the certificate and the key.
    pub(crate) fn read(files: TlsFiles) -> Result<Self, ConfigError> {
        Files::read(files).map(Arc::new).map(Self)
    }

    /// Makes the handshake of a new connection with the current certificate.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.0.current().await;
        TlsAcceptor::from(config).accept(stream).await
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Source for TlsFiles {
    type Content = Arc<ServerConfig>;
    const NAME: &'static str = "the certificate of the HTTP endpoints and its key";

    fn files(&self) -> Vec<PathBuf> {
        vec![self.certificate.clone(), self.key.clone()]
    }

    /// Reads the files. This fails if the key does not belong to the certificate: while the files are replaced, for a
    /// moment only one of them is new.
    fn read(&self) -> Result<Arc<ServerConfig>, ConfigError> {
        let pem = read(CERTIFICATE, &self.certificate)?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let chain = certificates.unwrap_or_default();
        if chain.is_empty() {
            let problem = format!("{} holds no PEM certificate", self.certificate.display());
            return Err(ConfigError::new(CERTIFICATE, problem));
        }
        let key = PrivateKeyDer::from_pem_slice(&read(KEY, &self.key)?).map_err(|_| {
            let problem = format!("{} holds no PEM private key", self.key.display());
            ConfigError::new(KEY, problem)
        })?;
        let mut config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| {
                let (certificate, key) = (self.certificate.display(), self.key.display());
                let problem =
                    format!("{certificate} and {key} are not a certificate and its key: {error}");
                ConfigError::new(CERTIFICATE, problem)
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn read(variable: &'static str, file: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(file).map_err(|error| {
        ConfigError::new(variable, format!("cannot read {}: {error}", file.display()))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use testbed::{Certificates, Folder};

    use super::*;

    /// Makes a certificate for `localhost`. Returns it with its folder.
    pub(in crate::connections) async fn certificates() -> (Folder, Certificates) {
        let folder = Folder::new().unwrap();
        let certificates = Certificates::make(folder.path()).await.unwrap();
        (folder, certificates)
    }

    pub(in crate::connections) fn files(certificates: &Certificates) -> TlsFiles {
        let [certificate, key] = certificates.server();
        TlsFiles { certificate, key }
    }

    #[tokio::test]
    async fn files_that_are_of_no_use_are_named() {
        let (folder, certificates) = certificates().await;
        let good = files(&certificates);
        Tls::read(good.clone()).unwrap();
        let none: PathBuf = "/does/not/exist".into();
        let text = folder.path().join("text");
        fs::write(&text, "text").unwrap();
        let [_, another] = certificates.client();
        for (certificate, key, variable, words) in [
            (&none, &good.key, CERTIFICATE, "cannot read /does/not/exist"),
            (&good.certificate, &none, KEY, "cannot read /does/not/exist"),
            (&text, &good.key, CERTIFICATE, "no PEM certificate"),
            (&good.certificate, &text, KEY, "no PEM private key"),
            (
                &good.certificate,
                &another,
                CERTIFICATE,
                "not a certificate and its key",
            ),
        ] {
            let (certificate, key) = (certificate.clone(), key.clone());
            let error = Tls::read(TlsFiles { certificate, key }).unwrap_err();
            assert_eq!(error.variable, variable);
            assert!(error.problem.contains(words), "{error}");
        }
    }
}
