//! `make interop`: see `faults::interop`.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Parser;
use faults::interop::{Options, run};

/// Hands the slots of one semaphore over among Jobs of two clusters, Consul's Go client,
/// `consul lock`, `exec`, the library and the Python package.
#[derive(Parser)]
struct Args {
    /// How many hand-overs to wait for.
    #[arg(long, env = "N", default_value_t = 1000)]
    hand_overs: usize,
    /// How many milliseconds a program waits before it asks for a slot again.
    #[arg(long, env = "REST_MS", default_value_t = 400)]
    rest_ms: u64,
    /// Where the timelines are written.
    #[arg(long, env = "FOLDER", default_value = "target/interop")]
    folder: PathBuf,
    /// The operator binary of one of the two clusters, to test two versions together.
    #[arg(long, env = "EAST_OPERATOR_BIN")]
    east_operator: Option<PathBuf>,
    /// A Python that has the package: without it no program of Python takes part.
    #[arg(long, env = "PYTHON_BIN")]
    python: Option<PathBuf>,
}

#[tokio::main]
#[expect(
    clippy::print_stdout,
    reason = "what a program says to the one who runs it"
)]
async fn main() -> Result<ExitCode> {
    let Args {
        hand_overs,
        rest_ms,
        folder,
        east_operator,
        python,
    } = Args::parse();
    let rest = Duration::from_millis(rest_ms);
    let outcome = run(&Options {
        hand_overs,
        rest,
        folder,
        east_operator,
        python,
    })
    .await?;
    print!("{}", outcome.report());
    Ok(if outcome.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
