//! `make faults`: see the library.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, builder::FalseyValueParser};
use faults::campaign::{Options, conclude, run};

/// Injects random faults into real servers under load, and judges what an observer has seen.
#[derive(Parser)]
struct Args {
    /// How many faults.
    #[arg(long, env = "N", default_value_t = 1000)]
    faults: usize,
    /// The seed of the choice of faults; random by default.
    #[arg(long, env = "SEED")]
    seed: Option<u64>,
    /// Where the timeline, the report and the picture are written: target/faults/<seed> by default. An existing
    /// timeline is continued.
    #[arg(long, env = "FOLDER")]
    folder: Option<PathBuf>,
    /// Only kinds of faults whose names contain this text, to try one out.
    #[arg(long, env = "ONLY")]
    only: Option<String>,
    /// `PipelineRuns` and `JobSets` are among the load, with their real controllers: `make servers-workloads`.
    #[arg(long, env = "WORKLOADS", value_parser = FalseyValueParser::new())]
    workloads: bool,
    /// Only judges the existing timeline.
    #[arg(long)]
    judge: bool,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let load = if args.workloads { "-workloads" } else { "" };
    let folder = args
        .folder
        .unwrap_or_else(|| PathBuf::from(format!("target/faults/{seed}-{}{load}", args.faults)));
    let options = Options {
        faults: args.faults,
        seed,
        folder,
        only: args.only,
        workloads: args.workloads,
    };
    let verdict = if args.judge {
        conclude(&options)?
    } else {
        tokio::select! {
            verdict = run(&options) => verdict?,
            // What was recorded so far is judged. The servers end with this process.
            _ = tokio::signal::ctrl_c() => conclude(&options)?,
        }
    };
    Ok(if verdict.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
