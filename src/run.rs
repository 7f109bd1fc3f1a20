//! Sets the process up and runs the controller in it.
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use command_line::logs;
use consul_client as consul;
use consul_semaphore_operator::{
    controller,
    endpoints::{self, Endpoints},
    telemetry::{self, Telemetry, Traces},
    web::{self, Page},
};
use tokio::{sync::oneshot, time};

use crate::{cli, shutdown};

/// Time that the controller may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(8);

/// Time that sending the pending spans may take at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Number of threads that run tasks. The work mostly waits for answers; a thread for each core of a large node would
/// only cost memory.
const THREADS: usize = 2;

/// Runs the operator until it is asked to end.
pub(crate) fn run(flags: cli::Run) -> anyhow::Result<()> {
    let scope = flags.scope().unwrap_or_else(|error| error.exit());
    let page = flags
        .web
        .settings(&scope)
        .unwrap_or_else(|error| error.exit());
    let from_flags = flags
        .consul
        .config::<cli::Cli>()
        .unwrap_or_else(|error| error.exit());
    let consul = consul::Config {
        max_watches: flags.consul_max_watches,
        token_file_may_come: true,
        ..from_flags
    };
    logs::init(
        flags.log_format.into(),
        logs::parse_filter(&flags.log_filter)?,
    )?;
    // `Err` means a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let settings = flags.operator.settings(
        scope,
        flags.scope.workloads(),
        flags.election.settings(),
        (flags.consul_memory as usize) << 20,
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()?;
    let (http, traces) = (flags.http.settings(), flags.traces_exporter);
    let done = runtime.block_on(operate(http, page, traces, settings, consul));
    runtime.shutdown_background();
    done
}

/// Serves the HTTP endpoints for as long as the controller runs, and bounds how long the controller takes to end.
async fn operate(
    http: endpoints::EndpointsSettings,
    page: Option<web::PageSettings>,
    traces: cli::TracesExporter,
    settings: controller::OperatorSettings,
    consul: consul::Config,
) -> anyhow::Result<()> {
    let shutdown = shutdown::requested().context("cannot listen for signals")?;
    let mut telemetry = Telemetry::default();
    let sending = match traces {
        cli::TracesExporter::None => None,
        cli::TracesExporter::Otlp => {
            let (traces, sending) = Traces::otlp(&telemetry.metrics).context(
                "cannot send traces: check the environment variables OTEL_EXPORTER_OTLP_*",
            )?;
            telemetry.traces = traces;
            Some(tokio::spawn(sending))
        }
    };
    let endpoints = Endpoints::bind(http).await?;
    tracing::info!(version = telemetry::VERSION, commit = telemetry::COMMIT, http = %endpoints.address()?, "started");
    if let Some(settings) = page {
        let page = Page::bind(settings).await?;
        tracing::info!(web = %page.address()?, "serves the web page");
        tokio::spawn(show(page, telemetry.clone(), shutdown.clone()));
    }
    let (controller_ended, ended) = oneshot::channel::<()>();
    let server = tokio::spawn(endpoints.serve(telemetry.clone(), async {
        drop(ended.await);
    }));
    let overdue = async {
        shutdown.clone().await;
        time::sleep(GRACE).await;
    };
    let done = tokio::select! {
        done = controller::run(settings, consul, telemetry, shutdown.clone()) => done,
        () = overdue => Err(anyhow!("the controller did not end within {} s", GRACE.as_secs())),
    };
    drop(controller_ended);
    server.await.context("the HTTP server failed")?;
    if let Some(sending) = sending {
        // Spans that are not sent by then are lost, and not counted.
        let _ = time::timeout(SHUTDOWN_GRACE, sending).await;
    }
    done
}

/// Serves the page. The page ends with the process, and its failure does not end the process.
async fn show(page: Page, telemetry: Telemetry, shutdown: impl Future<Output = ()>) {
    if let Err(error) = page.serve(telemetry, shutdown).await {
        tracing::warn!(%error, "the web page is not served");
    }
}
