//! The certificates between the operator and Consul. All of them can be replaced while in use.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use testbed::{Certificates, ServerCertificate};
use tokio::{sync::Mutex, time::sleep};

/// After this time, the operator has certainly read changed files.
const NOTICED: Duration = Duration::from_secs(3);

/// The files that the operator is given, and the variables that name them.
const CA: &str = "ca.pem";
const CERTIFICATE: &str = "client.pem";
const KEY: &str = "client-key.pem";
const VARIABLES: [(&str, &str); 3] = [
    ("CONSUL_CACERT", CA),
    ("CONSUL_CLIENT_CERT", CERTIFICATE),
    ("CONSUL_CLIENT_KEY", KEY),
];

/// The certificates that the operator and its door to Consul present to each other.
pub(crate) struct Mutual {
    folder: PathBuf,
    server: ServerCertificate,
    /// The current certificates, and how many have been made.
    current: Mutex<(Certificates, usize)>,
}

impl Mutual {
    /// Makes the first certificates, below a folder.
    pub(crate) async fn make(folder: &Path) -> Result<Self> {
        let folder = folder.join("consul-tls");
        let first = Certificates::make(&folder.join("1")).await?;
        let [certificate, key] = first.client();
        for (name, from) in [
            (CA, first.authority()),
            (CERTIFICATE, certificate),
            (KEY, key),
        ] {
            fs::copy(from, folder.join(name))?;
        }
        let [certificate, key] = first.server();
        let ca = first.authority();
        Ok(Self {
            folder,
            server: ServerCertificate::read(&certificate, &key, Some(&ca))?,
            current: Mutex::new((first, 1)),
        })
    }

    /// What the door presents to the operator.
    pub(crate) fn server(&self) -> &ServerCertificate {
        &self.server
    }

    /// The environment variables that name the operator's files.
    pub(crate) fn env(&self) -> [(&'static str, String); 3] {
        VARIABLES.map(|(name, file)| (name, self.folder.join(file).display().to_string()))
    }

    /// Replaces all of them without an interruption, the trusted CAs first. Each file is half written for a while.
    pub(crate) async fn exchange(&self) -> Result<()> {
        let mut current = self.current.lock().await;
        let (old, made) = &mut *current;
        *made += 1;
        let new = Certificates::make(&self.folder.join(made.to_string())).await?;
        let both = self.folder.join("both.pem");
        let authorities = [fs::read(new.authority())?, fs::read(old.authority())?];
        fs::write(&both, authorities.concat())?;

        self.write_slowly(CA, &both).await?;
        sleep(NOTICED).await;
        let [server, server_key] = new.server();
        self.server.exchange(&server, &server_key, Some(&both))?;
        let [client, client_key] = new.client();
        self.write_slowly(CERTIFICATE, &client).await?;
        self.write_slowly(KEY, &client_key).await?;
        self.write_slowly(CA, &new.authority()).await?;
        sleep(NOTICED).await;
        let ca = new.authority();
        self.server.exchange(&server, &server_key, Some(&ca))?;
        *old = new;
        Ok(())
    }

    /// Leaves the file half written for a while.
    async fn write_slowly(&self, name: &str, from: &Path) -> Result<()> {
        let content = fs::read(from)?;
        let file = self.folder.join(name);
        fs::write(&file, &content[..content.len() / 2])?;
        sleep(NOTICED / 2).await;
        fs::write(&file, &content)?;
        Ok(())
    }
}
