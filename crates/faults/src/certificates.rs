//! The certificates of the operator's way to Consul, all of which can be exchanged while it is used.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, bail};
use rustls::ServerConfig;
use tokio::{
    process::Command,
    sync::{Mutex, watch},
    time::{sleep, timeout},
};

use testbed::Recipe;

use crate::tls;

/// How long making a certificate may take.
const MAKING: Duration = Duration::from_mins(1);

/// After which time it is certain that changed files have been looked at.
const NOTICED: Duration = Duration::from_secs(3);

/// The files that the operator is given.
const CA: &str = "ca.pem";
const CERTIFICATE: &str = "client.pem";
const KEY: &str = "client-key.pem";

/// The certificates on the operator's way to Consul.
pub(crate) struct Certificates {
    folder: PathBuf,
    server: watch::Sender<Arc<ServerConfig>>,
    /// How many sets have been made; the last one is used.
    made: Mutex<usize>,
}

impl Certificates {
    /// Makes the first ones, below a folder.
    pub(crate) async fn make(folder: &Path) -> Result<Self> {
        let folder = folder.join("consul-tls");
        let set = Set::make(&folder, 1).await?;
        for (name, content) in [
            (CA, fs::read(set.ca())?),
            (CERTIFICATE, fs::read(set.client())?),
            (KEY, fs::read(set.client_key())?),
        ] {
            fs::write(folder.join(name), content)?;
        }
        let server = tls::server(&set.server(), &set.server_key(), Some(&set.ca()))?;
        Ok(Self {
            folder,
            server: watch::Sender::new(server),
            made: Mutex::new(1),
        })
    }

    /// What a listener for the operator is to have.
    pub(crate) fn server(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.server.subscribe()
    }

    /// The operator, as it is told of its files.
    pub(crate) fn given_to(&self, operator: Recipe) -> Recipe {
        let file = |name: &str| self.folder.join(name).display().to_string();
        operator
            .env("CONSUL_CACERT", file(CA))
            .env("CONSUL_CLIENT_CERT", file(CERTIFICATE))
            .env("CONSUL_CLIENT_KEY", file(KEY))
    }

    /// Exchanges all of them, as people do who want nobody to notice: who is to be trusted first. No
    /// file is written at once.
    pub(crate) async fn exchange(&self) -> Result<()> {
        let mut made = self.made.lock().await;
        let old = Set::at(&self.folder, *made);
        *made += 1;
        let new = Set::make(&self.folder, *made).await?;
        let both = self.folder.join("both.pem");
        fs::write(&both, [fs::read(new.ca())?, fs::read(old.ca())?].concat())?;

        self.write_slowly(CA, &both).await?;
        sleep(NOTICED).await;
        let server = tls::server(&new.server(), &new.server_key(), Some(&both))?;
        self.server.send_replace(server);
        self.write_slowly(CERTIFICATE, &new.client()).await?;
        self.write_slowly(KEY, &new.client_key()).await?;
        self.write_slowly(CA, &new.ca()).await?;
        sleep(NOTICED).await;
        let server = tls::server(&new.server(), &new.server_key(), Some(&new.ca()))?;
        self.server.send_replace(server);
        Ok(())
    }

    /// Half of it stands there for a while.
    async fn write_slowly(&self, name: &str, from: &Path) -> Result<()> {
        let content = fs::read(from)?;
        let file = self.folder.join(name);
        fs::write(&file, &content[..content.len() / 2])?;
        sleep(NOTICED / 2).await;
        fs::write(&file, &content)?;
        Ok(())
    }
}

/// A CA, and what it has signed.
struct Set(PathBuf);

impl Set {
    fn at(folder: &Path, number: usize) -> Self {
        Self(folder.join(number.to_string()))
    }

    async fn make(folder: &Path, number: usize) -> Result<Self> {
        let this = Self::at(folder, number);
        fs::create_dir_all(&this.0)?;
        for words in [
            ["tls", "ca", "create", "-days=2"],
            ["tls", "cert", "create", "-server"],
            ["tls", "cert", "create", "-client"],
        ] {
            let mut consul = Command::new(testbed::servers().join("consul"));
            consul.args(words).current_dir(&this.0).kill_on_drop(true);
            let output = timeout(MAKING, consul.output()).await??;
            if !output.status.success() {
                bail!("consul {words:?}: {output:?}");
            }
        }
        Ok(this)
    }

    fn ca(&self) -> PathBuf {
        self.0.join("consul-agent-ca.pem")
    }

    fn server(&self) -> PathBuf {
        self.0.join("dc1-server-consul-0.pem")
    }

    fn server_key(&self) -> PathBuf {
        self.0.join("dc1-server-consul-0-key.pem")
    }

    fn client(&self) -> PathBuf {
        self.0.join("dc1-client-consul-0.pem")
    }

    fn client_key(&self) -> PathBuf {
        self.0.join("dc1-client-consul-0-key.pem")
    }
}
