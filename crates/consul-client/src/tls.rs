//! Configures which servers the client trusts over TLS, and the client's own certificate.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use reqwest::{Certificate, ClientBuilder, Identity};

use super::{
    ConfigError, Tls,
    config::{CACERT, CAPATH, CLIENT_CERT, CLIENT_KEY},
    endpoints::root_cause,
    files::Source,
};

/// Certificates and keys, read from their files.
pub struct Trust {
    /// The certificates to trust; `None`: those of the system.
    roots: Option<Vec<Certificate>>,
    identity: Option<Identity>,
    verify: bool,
}

impl Source for Tls {
    type Content = Arc<Trust>;
    const NAME: &'static str = "Consul's CA, the client's certificate and its key";

    fn files(&self) -> Vec<PathBuf> {
        let mut files = match (&self.ca_file, &self.ca_path) {
            (Some(file), _) => vec![file.clone()],
            // A folder that can't be read is reported when it is used.
            (None, Some(folder)) => files_below(folder).unwrap_or_default(),
            (None, None) => Vec::new(),
        };
        files.extend(
            [&self.client_cert, &self.client_key]
                .into_iter()
                .flatten()
                .cloned(),
        );
        files
    }

    fn read(&self) -> Result<Arc<Trust>, ConfigError> {
        let trust = Trust::load(self)?;
        trust.check()?;
        Ok(Arc::new(trust))
    }
}

impl Trust {
    pub(super) fn load(tls: &Tls) -> Result<Self, ConfigError> {
        let roots = match (&tls.ca_file, &tls.ca_path) {
            (Some(file), _) => Some(certificates(CACERT, file)?),
            (None, Some(folder)) => Some(certificates_below(folder)?),
            (None, None) => None,
        };
        let identity = match (&tls.client_cert, &tls.client_key) {
            (Some(cert), Some(key)) => Some(identity(cert, key)?),
            _ => None,
        };
        Ok(Self {
            roots,
            identity,
            verify: tls.verify,
        })
    }

    /// Checks that connections can use the certificate and the key. They may not match if one file was replaced
    /// before the other.
    fn check(&self) -> Result<(), ConfigError> {
        let Some(identity) = &self.identity else {
            return Ok(());
        };
        let builder = Self::none(ClientBuilder::new()).identity(identity.clone());
        let built = builder.build().map(drop);
        built.map_err(|error| {
            let problem = format!(
                "TLS does not work with this certificate and CONSUL_CLIENT_KEY: {}",
                root_cause(&error)
            );
            ConfigError::new(CLIENT_CERT, problem)
        })
    }

    /// Configures connections with TLS to use these certificates and keys.
    pub(super) fn apply(&self, mut builder: ClientBuilder) -> ClientBuilder {
        if let Some(roots) = &self.roots {
            builder = builder.tls_certs_only(roots.clone());
        }
        if let Some(identity) = &self.identity {
            builder = builder.identity(identity.clone());
        }
        builder.tls_danger_accept_invalid_certs(!self.verify)
    }

    /// Configures connections without TLS. The configuration does not load the system's certificates, because a small
    /// image may have none, which would be an error.
    pub(super) fn none(builder: ClientBuilder) -> ClientBuilder {
        builder.tls_certs_only([])
    }
}

fn read(variable: &'static str, file: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(file).map_err(|error| {
        ConfigError::new(variable, format!("cannot read {}: {error}", file.display()))
    })
}

fn certificates(variable: &'static str, file: &Path) -> Result<Vec<Certificate>, ConfigError> {
    let found = Certificate::from_pem_bundle(&read(variable, file)?).unwrap_or_default();
    if found.is_empty() {
        let problem = format!("{} holds no PEM certificate", file.display());
        return Err(ConfigError::new(variable, problem));
    }
    Ok(found)
}

/// Returns all files in the folder, without the folders and links that Kubernetes makes in a mounted Secret.
fn files_below(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?;
    let mut files: Vec<_> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    files.retain(|path| path.is_file());
    files.sort_unstable();
    Ok(files)
}

fn certificates_below(folder: &Path) -> Result<Vec<Certificate>, ConfigError> {
    let fail = |problem: String| ConfigError::new(CAPATH, problem);
    let files = files_below(folder)
        .map_err(|error| fail(format!("cannot read {}: {error}", folder.display())))?;
    let mut found = Vec::new();
    for file in files {
        found.extend(certificates(CAPATH, &file)?);
    }
    if found.is_empty() {
        return Err(fail(format!("{} holds no file", folder.display())));
    }
    Ok(found)
}

fn identity(cert: &Path, key: &Path) -> Result<Identity, ConfigError> {
    let mut pem = read(CLIENT_CERT, cert)?;
    pem.push(b'\n');
    pem.extend(read(CLIENT_KEY, key)?);
    Identity::from_pem(&pem).map_err(|_| {
        let (cert, key) = (cert.display(), key.display());
        let problem = format!("{cert} and {key} must be a PEM certificate and its key");
        ConfigError::new(CLIENT_CERT, problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_of_no_use_are_named() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let cases = [
            (
                Tls {
                    ca_file: Some("/does/not/exist".into()),
                    ..Tls::default()
                },
                "CONSUL_CACERT",
                "/does/not/exist",
            ),
            (
                Tls {
                    ca_file: Some(here.join("Cargo.toml")),
                    ..Tls::default()
                },
                "CONSUL_CACERT",
                "no PEM certificate",
            ),
            (
                Tls {
                    ca_path: Some("/does/not/exist".into()),
                    ..Tls::default()
                },
                "CONSUL_CAPATH",
                "/does/not/exist",
            ),
            (
                Tls {
                    client_cert: Some(here.join("Cargo.toml")),
                    client_key: Some(here.join("Cargo.toml")),
                    ..Tls::default()
                },
                "CONSUL_CLIENT_CERT",
                "PEM certificate and its key",
            ),
        ];
        for (tls, variable, words) in cases {
            let Err(error) = Trust::load(&tls) else {
                panic!("taken: {tls:?}");
            };
            assert_eq!(error.variable, variable);
            assert!(error.problem.contains(words), "{error}");
        }
    }
}
