//! Reads the command line, runs the command, and prints why it failed.
mod cli;
mod report;
mod run;
mod shutdown;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use command_line::memory;
use consul_semaphore_api as api;
use consul_semaphore_operator::telemetry;

use crate::cli::{Cli, Command};

/// The allocator. It finds free memory in the same time however much memory is in use.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    command_line::abort_on_panic();
    memory::keep_private();
    memory::forbid_core_dumps();
    let done = match command_line::parse::<Cli>().command {
        Command::Run(flags) => run::run(*flags),
        Command::Check(flags) => return report::check(*flags),
        Command::Crd => api::crd_yaml()
            .map_err(Into::into)
            .and_then(|yaml| print(&yaml)),
        Command::Kinds(flags) => flags.text().and_then(|text| print(&text)),
        Command::Version => print(&telemetry::version()),
    };
    done.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

/// Writes to stdout. A reader that has closed it, as `head` does, is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to stdout")
        }
        _ => Ok(()),
    }
}

/// Prints why the program ends. Many libraries' errors contain their causes already, so each cause is printed only
/// once.
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
    // If stderr can't be written, there is nowhere else to report the error.
    let _ = writeln!(io::stderr(), "error: {text}");
    ExitCode::FAILURE
}
