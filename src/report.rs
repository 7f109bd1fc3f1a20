//! Runs the `check` command: prints its output and returns its exit code.
use std::{
    env,
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use command_line::logs::{self, LogFormat};
use consul_client as consul;
use consul_semaphore_operator::check;
use tokio::runtime::Builder;

use crate::{
    cli::{self, Output},
    failed, print, shutdown,
};

/// Reports what works and what does not.
pub(crate) fn check(flags: cli::Check) -> ExitCode {
    let from_flags = flags
        .consul
        .config::<cli::Cli>()
        .unwrap_or_else(|error| error.exit());
    let consul = consul::Config {
        // The operator that is checked has the same setting.
        token_file_may_come: true,
        ..from_flags
    };
    report(flags, consul).unwrap_or_else(|error| failed(&error))
}

fn report(flags: cli::Check, consul: consul::Config) -> anyhow::Result<ExitCode> {
    logs::init(LogFormat::Text, logs::parse_filter(&flags.log_filter)?)?;
    // `Err` means a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let output = flags.output;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let stop = shutdown::requested().context("cannot listen for signals")?;
        anyhow::Ok(check::check(flags.settings(), consul, stop).await)
    });
    runtime.shutdown_background();
    let Some(report) = report? else {
        bail!("interrupted before everything was checked");
    };
    print(&match output {
        Output::Text => report.text(is_coloured()),
        Output::Json => report.json(),
    })?;
    Ok(if report.failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Returns whether to use colours: only on a terminal whose user has not disabled them (<https://no-color.org>).
fn is_coloured() -> bool {
    let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !unwanted
}
