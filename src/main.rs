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
        Command::Crd => print("crd\n"),
        Command::Version => print(&format!(
            "consul-semaphore-operator {} (commit {})\ntested with Kubernetes {} and Consul {}\n",
            telemetry::VERSION,
            telemetry::COMMIT,
            telemetry::KUBERNETES,
            telemetry::CONSUL
        )),
    };
    done.map_or_else(failed, |()| ExitCode::SUCCESS)
}

/// Runs the operator until it is asked to end.
fn run(flags: cli::Run) -> anyhow::Result<()> {
    telemetry::init_logs(flags.log_format.into(), telemetry::parse_filter(&flags.log_filter)?)?;
    // An error says that it is there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let settings = controller::Settings {
        cluster_name: flags.cluster_name,
        consul_node: flags.consul_node,
        consul: flags.consul,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(operate(flags.http_address, settings));
    runtime.shutdown_background();
    done
}

async fn operate(http_address: std::net::SocketAddr, settings: controller::Settings) -> anyhow::Result<()> {
    let shutdown = shutdown::requested().context("cannot listen for signals")?;
    let telemetry = Telemetry::default();
    let listener = telemetry::bind(http_address).await?;
    tracing::info!(version = telemetry::VERSION, commit = telemetry::COMMIT, http = %listener.local_addr()?, "started");
    let (controller_ended, ended) = oneshot::channel::<()>();
    let server = tokio::spawn(telemetry::serve(listener, telemetry.clone(), async { drop(ended.await) }));
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
