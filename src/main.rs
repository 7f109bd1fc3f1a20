//! The program: reads the command line, sets the process up and hands over to the controller.
mod cli;
mod shutdown;

use std::{
    future::Future,
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use consul_semaphore_operator::telemetry::{self, Telemetry};
use tokio::{sync::oneshot, time};

use crate::cli::{Cli, Command};

/// How long the controller may take to end once it was asked to.
const GRACE: Duration = Duration::from_secs(8);

fn main() -> ExitCode {
    let done = match Cli::from_process().command {
        Command::Run(flags) => run(flags),
        Command::Crd => consul_semaphore_operator::api::crd_yaml()
            .map_err(Into::into)
            .and_then(|yaml| print(&yaml)),
        Command::Version => print(&format!(
            "consul-semaphore-operator {} (commit {})\ntested with Kubernetes {} and Consul {}\n",
            telemetry::VERSION,
            telemetry::COMMIT,
            telemetry::KUBERNETES,
            telemetry::CONSUL
        )),
    };
    done.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

/// Runs the operator until it is asked to end.
fn run(flags: cli::Run) -> anyhow::Result<()> {
    telemetry::init_logs(
        flags.log_format.into(),
        telemetry::parse_filter(&flags.log_filter)?,
    )?;
    // An error says that it is there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let settings = controller::Settings {
        cluster_name: flags.cluster_name,
        consul_node: flags.consul_node,
        consul: flags.consul,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let done = runtime.block_on(operate(flags.http_address, settings));
    runtime.shutdown_background();
    done
}

async fn operate(
    http_address: std::net::SocketAddr,
    settings: controller::Settings,
) -> anyhow::Result<()> {
    let shutdown = shutdown::requested().context("cannot listen for signals")?;
    let telemetry = Telemetry::default();
    let listener = telemetry::bind(http_address).await?;
    tracing::info!(version = telemetry::VERSION, commit = telemetry::COMMIT, http = %listener.local_addr()?, "started");
    let (controller_ended, ended) = oneshot::channel::<()>();
    let server = tokio::spawn(telemetry::serve(listener, telemetry.clone(), async {
        drop(ended.await);
    }));
    let overdue = async {
        shutdown.clone().await;
        time::sleep(GRACE).await;
    };
    let done = tokio::select! {
        done = controller::run(settings, telemetry, shutdown.clone()) => done,
        () = overdue => Err(anyhow::anyhow!("the controller did not end within {} s", GRACE.as_secs())),
    };
    drop(controller_ended);
    server.await.context("the HTTP server failed")?;
    done
}

/// Writes to stdout. A reader that went away, as `head` does, is no failure.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to stdout")
        }
        _ => Ok(()),
    }
}

/// Tells why the program ends. Many libraries' errors say their causes already, so a cause is told only once.
fn failed(error: &anyhow::Error) -> ExitCode {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            text = if text.is_empty() {
                cause
            } else {
                format!("{text}: {cause}")
            };
        }
    }
    // Nobody is left to tell when this cannot be written.
    let _ = writeln!(io::stderr(), "error: {text}");
    ExitCode::FAILURE
}

/// Stands in until `consul_semaphore_operator::controller` is there.
mod controller {
    use super::{Future, Telemetry, cli};

    pub(crate) struct Settings {
        pub(crate) cluster_name: Option<String>,
        pub(crate) consul_node: Option<String>,
        pub(crate) consul: cli::ConsulFlags,
    }

    pub(crate) async fn run(
        settings: Settings,
        telemetry: Telemetry,
        shutdown: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let Settings {
            cluster_name,
            consul_node,
            consul,
        } = settings;
        tracing::debug!(?cluster_name, ?consul_node, ?consul, "settings");
        let _jobs = telemetry.health.part("jobs");
        shutdown.await;
        Ok(())
    }
}
