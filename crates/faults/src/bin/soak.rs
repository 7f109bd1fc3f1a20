//! `make soak`: see `faults::soak`.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Parser;
use faults::soak::{Options, run};

/// Puts a steady load on the operator, and reports whether its use of resources stays constant.
#[derive(Parser)]
struct Args {
    /// How many minutes the load runs.
    #[arg(long, env = "MINUTES", default_value_t = 60)]
    minutes: u64,
    /// Where the figures and their picture are written.
    #[arg(long, env = "FOLDER", default_value = "target/soak")]
    folder: PathBuf,
}

#[tokio::main]
#[expect(
    clippy::print_stdout,
    reason = "what a program says to the one who runs it"
)]
async fn main() -> Result<ExitCode> {
    let Args { minutes, folder } = Args::parse();
    let time = Duration::from_mins(minutes);
    let verdict = run(&Options { time, folder }).await?;
    print!("{}", verdict.report());
    Ok(if verdict.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
