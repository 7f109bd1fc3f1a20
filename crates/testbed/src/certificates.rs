//! A certificate authority with certificates for a server and a client, made with Consul's own tool.
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, bail};
use tokio::{process::Command, time::timeout};

use crate::programs;

/// How long it may take to make a certificate.
const MAKING: Duration = Duration::from_mins(1);

/// A certificate authority with one certificate for servers and one for clients, as PEM files.
#[derive(Clone, Debug)]
pub struct Certificates(PathBuf);

impl Certificates {
    /// Makes all of them in a folder, valid for two days.
    ///
    /// # Errors
    /// Consul's tool does not exist, or fails.
    pub async fn make(folder: &Path) -> Result<Self> {
        Self::make_for(folder, &[]).await
    }

    /// Like [`Self::make`], with more names of the server.
    ///
    /// # Errors
    /// Like those of [`Self::make`].
    pub async fn make_for(folder: &Path, names: &[&str]) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let names: Vec<_> = names
            .iter()
            .map(|name| format!("-additional-dnsname={name}"))
            .collect();
        let mut server = vec!["tls", "cert", "create", "-server"];
        server.extend(names.iter().map(String::as_str));
        for words in [
            vec!["tls", "ca", "create", "-days=2"],
            server,
            vec!["tls", "cert", "create", "-client"],
        ] {
            let mut consul = Command::new(programs::server("consul")?);
            consul.args(&words).current_dir(folder).kill_on_drop(true);
            let output = timeout(MAKING, consul.output()).await??;
            if !output.status.success() {
                bail!("consul {words:?}: {output:?}");
            }
        }
        Ok(Self(folder.to_owned()))
    }

    /// The authority's own certificate.
    pub fn authority(&self) -> PathBuf {
        self.0.join("consul-agent-ca.pem")
    }

    /// A server's certificate and its key: for `localhost`, 127.0.0.1 and `server.dc1.consul`.
    pub fn server(&self) -> [PathBuf; 2] {
        self.pair("dc1-server-consul-0")
    }

    /// A client's certificate and its key.
    pub fn client(&self) -> [PathBuf; 2] {
        self.pair("dc1-client-consul-0")
    }

    fn pair(&self, name: &str) -> [PathBuf; 2] {
        ["", "-key"].map(|part| self.0.join(format!("{name}{part}.pem")))
    }
}
