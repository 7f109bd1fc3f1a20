//! The operator as a process.
use std::{panic::Location, path::PathBuf, process::ExitStatus, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::sync::{Mutex, OnceCell};

use crate::{
    env::Env,
    folder::Folder,
    http_client, ports,
    process::{Process, Recipe, is_stopped},
    programs,
    story::story,
    wait,
};

const PATIENCE: Duration = Duration::from_mins(5);

/// Whether a replica is ready and one leads: a standby is ready, too.
async fn is_ready(http: &reqwest::Client, url: &str) -> Result<(), String> {
    let asked = http.get(url).send().await;
    let answer = asked.and_then(reqwest::Response::error_for_status);
    let body = match answer {
        Ok(answer) => answer.text().await,
        Err(error) => Err(error),
    };
    let body = body.map_err(|error| error.to_string())?;
    if body.contains("no replica leads") {
        return Err(body);
    }
    Ok(())
}

/// An operator on a bed: started, stopped, killed, restarted. Clones are the same operator.
///
/// It runs as the `ServiceAccount` and with the RBAC that the project ships. All namespaces are
/// trusted, unless `TRUSTED_NAMESPACES` says otherwise.
#[derive(Clone, Debug)]
pub struct Operator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    options: OperatorOptions,
    place: Place,
    /// Where its HTTP endpoints are, in all its runs: nobody else's answers can be taken for its own.
    port: OnceCell<u16>,
    running: Mutex<Option<Running>>,
}

/// The servers that an operator works with.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) folder: Arc<Folder>,
    pub(crate) kubeconfig: PathBuf,
    /// The environment variables for Consul, as every Consul tool reads them.
    pub(crate) consul: Env,
}

/// Changes to the defaults of `run`.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperatorOptions {
    /// The program, if it differs from that of the other operators.
    pub(crate) program: Option<PathBuf>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Env,
}

impl OperatorOptions {
    /// A client of its HTTP endpoints, and their scheme. Whether the certificate is a trusted one is up to the tests
    /// that are about it.
    fn http(&self) -> Result<(reqwest::Client, &'static str)> {
        let mut http = http_client();
        let mut args = self.args.iter();
        let tls = args.any(|arg| arg.starts_with("--http-tls-cert-file"));
        if tls {
            http = http.tls_danger_accept_invalid_certs(true);
        }
        Ok((http.build()?, if tls { "https" } else { "http" }))
    }
}

#[derive(Debug)]
struct Running {
    process: Process,
    address: String,
}

impl Running {
    fn lives(&self) -> bool {
        self.process.exit_status().is_none()
    }
}

impl Operator {
    pub(crate) fn new(name: &str, place: Place, options: OperatorOptions) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            options,
            place,
            port: OnceCell::new(),
            running: Mutex::new(None),
        }))
    }

    /// The same operator with another build, not yet started.
    #[must_use]
    pub fn with_program(&self, program: PathBuf) -> Self {
        let Inner {
            name,
            options,
            place,
            ..
        } = &*self.0;
        let options = OperatorOptions {
            program: Some(program),
            ..options.clone()
        };
        Self::new(name, place.clone(), options)
    }

    /// Starts it, and waits until `/readyz` answers 200 and a replica leads.
    #[track_caller]
    pub fn start(&self) -> impl Future<Output = ()> {
        story(Location::caller(), self.try_start())
    }

    /// Asks it to stop (SIGTERM), waits for its end, and returns its exit status.
    #[track_caller]
    pub fn stop(&self) -> impl Future<Output = ExitStatus> {
        story(Location::caller(), self.end("TERM"))
    }

    /// Kills it (SIGKILL), and waits for its end.
    #[track_caller]
    pub fn kill(&self) -> impl Future<Output = ExitStatus> {
        story(Location::caller(), self.end("KILL"))
    }

    /// Freezes it (SIGSTOP), as on a machine that sleeps.
    #[track_caller]
    pub fn pause(&self) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            self.signal("STOP").await?;
            self.paused().await
        })
    }

    /// Lets it continue (SIGCONT).
    #[track_caller]
    pub fn resume(&self) -> impl Future<Output = ()> {
        story(Location::caller(), self.signal("CONT"))
    }

    /// Waits until it is stopped, by [`Self::pause`] or on its own.
    #[track_caller]
    pub fn is_paused(&self) -> impl Future<Output = ()> {
        story(Location::caller(), self.paused())
    }

    async fn paused(&self) -> Result<()> {
        wait::until(&format!("{} is paused", self.0.name), PATIENCE, || async {
            let [id, _] = self.ids().await.ok_or("it does not run")?;
            is_stopped(id)
        })
        .await
    }

    /// The text of `GET <path>` on its own HTTP address, such as `/metrics`.
    #[track_caller]
    pub fn get(&self, path: &str) -> impl Future<Output = String> {
        story(Location::caller(), self.try_get(path))
    }

    /// Its name, which is also the name of its log and its identity in the election.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// All that it has logged, in all its runs.
    pub fn logs(&self) -> String {
        let log = format!("{}.log", self.0.name);
        let log = std::fs::read(self.0.place.folder.path().join(log)).unwrap_or_default();
        // The last line may be incomplete.
        let whole = log.iter().rposition(|byte| *byte == b'\n');
        let whole = &log[..whole.map_or(0, |end| end + 1)];
        String::from_utf8_lossy(whole).into_owned()
    }

    /// The address of its HTTP endpoints (`host:port`), while it runs.
    pub async fn address(&self) -> Option<String> {
        let running = self.0.running.lock().await;
        running.as_ref().map(|running| running.address.clone())
    }

    /// The ids of its process and its guard, while it runs.
    pub async fn ids(&self) -> Option<[u32; 2]> {
        self.0.running.lock().await.as_ref()?.process.ids()
    }

    /// Whether it has been started and has not ended.
    pub async fn is_running(&self) -> bool {
        let running = self.0.running.lock().await;
        running.as_ref().is_some_and(Running::lives)
    }

    /// Like [`Self::start`], for an operator that is expected to refuse: the error shows the end of its log.
    pub async fn try_start(&self) -> Result<()> {
        let Inner {
            name,
            options,
            place,
            port,
            running,
        } = &*self.0;
        let mut running = running.lock().await;
        if running.as_ref().is_some_and(Running::lives) {
            bail!("{name} runs already");
        }
        let (http, scheme) = options.http()?;
        let program = match &options.program {
            Some(program) => program.clone(),
            None => programs::operator_program()?,
        };
        let port = port.get_or_try_init(|| async { ports::lasting_port() });
        let address = format!("127.0.0.1:{}", port.await?);
        let mut recipe = Recipe::new(name, &program)
            .args(["run", "--http-address", &address])
            .args(&options.args)
            .env("KUBECONFIG", place.kubeconfig.display().to_string())
            // When it restarts under its name, it takes over its own lease at once.
            .env("LEADER_ELECTION_IDENTITY", name)
            // Tests place semaphores anywhere, unless they are about that setting.
            .env("TRUSTED_NAMESPACES", "*");
        for name in ["RUST_LOG", "RUST_BACKTRACE"] {
            if let Ok(value) = std::env::var(name) {
                recipe = recipe.env(name, value);
            }
        }
        for (name, value) in place.consul.iter().chain(options.env.iter()) {
            recipe = recipe.env(name, value);
        }
        let process = Process::start(&place.folder, &recipe)?;
        let url = format!("{scheme}://{address}/readyz");
        process
            .ready(PATIENCE, || is_ready(&http, &url))
            .await
            .context("starting the operator")?;
        *running = Some(Running { process, address });
        Ok(())
    }

    /// Its exit status, if it was started and has ended on its own.
    pub async fn exit_status(&self) -> Option<ExitStatus> {
        self.0.running.lock().await.as_ref()?.process.exit_status()
    }

    /// Waits until it ends on its own.
    #[track_caller]
    pub fn ended(&self) -> impl Future<Output = ExitStatus> {
        story(Location::caller(), async move {
            wait::until(&format!("{} ends", self.0.name), PATIENCE, || async {
                self.exit_status()
                    .await
                    .ok_or_else(|| "it still runs".to_owned())
            })
            .await
        })
    }

    /// Ends it with a signal, such as `TERM` or `KILL`, and waits for its end: for programs other than tests.
    pub async fn end(&self, signal: &str) -> Result<ExitStatus> {
        self.signal(signal).await?;
        let mut running = self.0.running.lock().await;
        let Some(process) = running.as_ref().map(|running| &running.process) else {
            bail!("{} does not run", self.0.name)
        };
        let status = process.ended(PATIENCE).await?;
        *running = None;
        Ok(status)
    }

    /// Sends it a signal, such as `STOP` or `CONT`: for programs other than tests.
    pub async fn signal(&self, signal: &str) -> Result<()> {
        match &*self.0.running.lock().await {
            Some(running) => running.process.signal(signal),
            None => bail!("{} does not run", self.0.name),
        }
    }

    /// Like [`Self::get`], for an operator that may not be ready or not running.
    pub async fn try_get(&self, path: &str) -> Result<String> {
        let address = self
            .address()
            .await
            .with_context(|| format!("{} does not run", self.0.name))?;
        let (http, scheme) = self.0.options.http()?;
        Ok(http
            .get(format!("{scheme}://{address}{path}"))
            .send()
            .await?
            .error_for_status()?
            .text()
            .await?)
    }
}
