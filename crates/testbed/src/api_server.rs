//! A kube-apiserver with its etcd. That is enough for tests of what the API server decides on its own.
use std::{
    ffi::OsStr,
    fs,
    panic::Location,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::Client;
use reqwest::Certificate;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};

use crate::{
    etcd::Etcd,
    folder::Folder,
    http_client, kubeconfig,
    namespace::{Cluster, Namespace},
    ports,
    process::{Process, Recipe},
    programs,
    story::story,
    tls::{self, ServerCertificate},
    tools,
};

const PATIENCE: Duration = Duration::from_mins(5);

/// The admin's token. It is only valid on a loopback port that lives for minutes.
const ADMIN_TOKEN: &str = "admin";

/// Which workloads get pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Workloads {
    /// Jobs alone, whose pods have no `ServiceAccount`.
    #[default]
    Jobs,
    /// Deployments too. All pods have the token of their `ServiceAccount`, as in other clusters.
    Deployments,
}

/// An API server with its etcd. No controller runs: a Job stays as it was created.
///
/// Ends when it is dropped.
#[derive(Debug)]
pub struct ApiServer {
    server: Process,
    etcd_process: Process,
    etcd: Etcd,
    url: String,
    kubeconfig: PathBuf,
    service_account_key: PathBuf,
    folder: Arc<Folder>,
}

impl ApiServer {
    /// Starts it in its own folder.
    #[track_caller]
    pub fn start() -> impl Future<Output = Self> {
        story(Location::caller(), async {
            Self::start_in(Arc::new(Folder::new()?), Workloads::Jobs, &[]).await
        })
    }

    pub(crate) async fn start_in(
        folder: Arc<Folder>,
        workloads: Workloads,
        args: &[String],
    ) -> Result<Self> {
        tls::init();
        let (private_key, public_key) = key_pair()?;
        let service_account_key = folder.write("service-account.key", private_key)?;
        let service_account_public_key = folder.write("service-account.pub", public_key)?;
        let tokens = folder.write(
            "tokens.csv",
            format!("{ADMIN_TOKEN},admin,admin,system:masters\n"),
        )?;
        let (etcd_process, etcd) = start_etcd(&folder).await.context("starting etcd")?;
        let (server, url, kubeconfig) = ports::on_lasting(|[port]| {
            let certs = folder.path().join("apiserver");
            let (folder, etcd_url, tokens) = (&folder, etcd.url(), &tokens);
            let (private, public) = (
                service_account_key.display(),
                service_account_public_key.display(),
            );
            async move {
                let recipe = Recipe::new("kube-apiserver", programs::server("kube-apiserver")?)
                    .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
                    // Since 1.37 it makes no endpoints for itself on loopback; nothing here needs them.
                    .arg("--endpoint-reconciler-type=none")
                    .arg(format!("--secure-port={port}"))
                    .arg(format!("--etcd-servers={etcd_url}"))
                    .arg(format!("--cert-dir={}", certs.display()))
                    .arg("--service-account-issuer=https://kubernetes.default.svc")
                    .arg(format!("--service-account-key-file={public}"))
                    .arg(format!("--service-account-signing-key-file={private}"))
                    .arg(format!("--token-auth-file={}", tokens.display()))
                    .arg("--authorization-mode=RBAC")
                    // On loopback, so that a webhook listens at the address of its Service.
                    .arg("--service-cluster-ip-range=127.96.0.0/16")
                    .arg(format!(
                        "--disable-admission-plugins={}",
                        left_out(workloads)
                    ))
                    .args(args);
                let server = Process::start(folder, &recipe)?;
                // The server makes this certificate itself, and it is self-signed.
                let authority = certs.join("apiserver.crt");
                let url = format!("https://127.0.0.1:{port}");
                ready(&server, &url, &authority).await?;
                let admin = kubeconfig::with_token(&url, &fs::read(&authority)?, ADMIN_TOKEN);
                let kubeconfig = folder.write("admin.kubeconfig", admin.to_string())?;
                Ok((server, url, kubeconfig))
            }
        })
        .await
        .context("starting the API server")?;
        Ok(Self {
            server,
            etcd_process,
            etcd,
            url,
            kubeconfig,
            service_account_key,
            folder,
        })
    }

    /// An admin's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// An admin's client, which belongs to the runtime of the caller.
    #[track_caller]
    pub fn client(&self) -> impl Future<Output = Client> {
        story(Location::caller(), kubeconfig::client(&self.kubeconfig))
    }

    /// A new namespace whose name starts with `name`.
    #[track_caller]
    pub fn namespace(&self, name: &str) -> impl Future<Output = Namespace> {
        story(Location::caller(), async move {
            let client = kubeconfig::client(&self.kubeconfig).await?;
            Namespace::new(
                Cluster {
                    client,
                    kubeconfig: self.kubeconfig.clone(),
                    _servers: None,
                },
                name,
            )
            .await
        })
    }

    /// Runs the real kubectl as admin, and returns what it prints.
    #[track_caller]
    pub fn kubectl<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> impl Future<Output = String> {
        story(Location::caller(), tools::kubectl(&self.kubeconfig, args))
    }

    /// Like [`Self::kubectl`], for a command that may be refused: the error is what it prints to stderr.
    pub async fn try_kubectl<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Result<String> {
        tools::kubectl(&self.kubeconfig, args).await
    }

    /// Runs the real helm as admin, and returns what it prints.
    #[track_caller]
    pub fn helm<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> impl Future<Output = String> {
        story(Location::caller(), self.try_helm(args))
    }

    /// Like [`Self::helm`], for a command that may be refused: the error is what it prints to stderr.
    pub async fn try_helm<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Result<String> {
        tools::helm(&self.kubeconfig, args).await
    }

    /// Runs a script of kubectl and helm commands as admin, up to the first that fails, and returns what it prints.
    #[track_caller]
    pub fn shell(&self, script: &str) -> impl Future<Output = String> {
        story(Location::caller(), tools::shell(&self.kubeconfig, script))
    }

    /// The folder of logs and data.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn shared_folder(&self) -> &Arc<Folder> {
        &self.folder
    }

    /// The processes: the API server and etcd.
    pub fn processes(&self) -> [&Process; 2] {
        [&self.server, &self.etcd_process]
    }

    /// Kills the API server (SIGKILL) and waits for its end. etcd keeps running, with all data.
    #[track_caller]
    pub fn kill(&self) -> impl Future<Output = ()> {
        story(Location::caller(), self.server.kill())
    }

    /// Restarts the API server on its port, and waits until it is ready.
    #[track_caller]
    pub fn start_again(&self) -> impl Future<Output = ()> {
        story(Location::caller(), self.try_start_again())
    }

    /// Like [`Self::start_again`], for programs other than tests.
    pub async fn try_start_again(&self) -> Result<()> {
        self.server.start_again()?;
        ready(&self.server, &self.url, &self.authority_file()).await
    }

    /// Copies the data of its etcd to where the etcd of another folder looks for it. etcd stands still meanwhile, so
    /// the copy is what it has at one moment.
    pub(crate) async fn copy_data(&self, to: &Folder) -> Result<()> {
        self.etcd_process.pause().await?;
        let copied = tokio::process::Command::new("cp")
            .arg("-a")
            .args([etcd_data(&self.folder), etcd_data(to)])
            .status()
            .await;
        self.etcd_process.signal("CONT")?;
        if !copied.context("running cp")?.success() {
            bail!("the data of etcd can't be copied")
        }
        Ok(())
    }

    /// Its etcd.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// Like [`Etcd::compact`].
    #[track_caller]
    pub fn compact(&self) -> impl Future<Output = ()> {
        story(Location::caller(), async { self.etcd.compact().await })
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificate that its clients see, for a [`Proxy`](crate::Proxy) that impersonates it.
    ///
    /// # Errors
    /// The API server has not been ready yet.
    pub fn certificate(&self) -> Result<ServerCertificate> {
        let certificate = self.authority_file();
        ServerCertificate::read(&certificate, &certificate.with_extension("key"), None)
    }

    /// The certificate authority for its certificate, as PEM.
    ///
    /// # Errors
    /// The API server has not been ready yet.
    pub fn authority(&self) -> Result<String> {
        let file = self.authority_file();
        fs::read_to_string(&file).with_context(|| file.display().to_string())
    }

    /// The authority's file: the API server's own certificate, with its key beside it in a file ending in `key`.
    pub fn authority_file(&self) -> PathBuf {
        self.folder.path().join("apiserver/apiserver.crt")
    }

    /// The key that the tokens of `ServiceAccounts` are signed with, as PEM.
    pub(crate) fn service_account_key(&self) -> &Path {
        &self.service_account_key
    }
}

/// The admission plugins that don't run. One would keep the not-ready taint on a fake node. Without Deployments, pods
/// need no `ServiceAccount`, so a namespace need not wait for its own.
fn left_out(workloads: Workloads) -> &'static str {
    match workloads {
        Workloads::Jobs => "ServiceAccount,TaintNodesByCondition",
        Workloads::Deployments => "TaintNodesByCondition",
    }
}

/// Where etcd keeps its data.
fn etcd_data(folder: &Folder) -> PathBuf {
    folder.path().join("etcd")
}

async fn start_etcd(folder: &Arc<Folder>) -> Result<(Process, Etcd)> {
    let program = programs::server("etcd")?;
    ports::on_free(|[client, peer]| {
        let [client, peer] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
        let recipe = Recipe::new("etcd", &program)
            .arg(format!("--data-dir={}", etcd_data(folder).display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=default={peer}"))
            .arg("--unsafe-no-fsync");
        async move {
            let etcd = Process::start(folder, &recipe)?;
            let asked = Etcd::at(&client)?;
            etcd.ready(PATIENCE, || asked.health()).await?;
            Ok((etcd, asked))
        }
    })
    .await
}

async fn ready(server: &Process, url: &str, authority: &Path) -> Result<()> {
    let probe = || async {
        let authority = fs::read(authority).map_err(|_| "it has no certificate yet")?;
        is_ready(url, &authority)
            .await
            .map_err(|error| format!("{error:#}"))
    };
    server.ready(PATIENCE, probe).await
}

/// Whether the server answers and has created the default RBAC roles.
async fn is_ready(url: &str, authority: &[u8]) -> Result<()> {
    let http = http_client()
        .tls_certs_only(Certificate::from_pem_bundle(authority)?)
        .build()?;
    http.get(format!("{url}/readyz"))
        .bearer_auth(ADMIN_TOKEN)
        .send()
        .await?
        .error_for_status()?;
    Ok(())
}

/// A new P-256 key, private and public, as PEM: the API server signs the tokens of `ServiceAccounts` with it.
fn key_pair() -> Result<(String, String)> {
    /// What precedes a P-256 point in a `SubjectPublicKeyInfo` (RFC 5480): the algorithm, the curve, lengths.
    const PUBLIC_KEY: [u8; 26] = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08,
        0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ];
    let random = SystemRandom::new();
    let private = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
        .map_err(|_| anyhow!("no random numbers for a key"))?;
    let pair =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, private.as_ref(), &random)
            .map_err(|error| anyhow!("a new key is not valid: {error}"))?;
    let public = [&PUBLIC_KEY, pair.public_key().as_ref()].concat();
    Ok((
        pem("PRIVATE KEY", private.as_ref()),
        pem("PUBLIC KEY", &public),
    ))
}

fn pem(label: &str, der: &[u8]) -> String {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        BASE64_STANDARD.encode(der)
    )
}
