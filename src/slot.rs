//! The commands about one slot, each as a process: `exec` and `held`.
use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use consul_semaphore_operator::{
    exec::{self, Verdict},
    stderr::Stderr,
    telemetry::{self, LogFormat},
};
use tokio::runtime::{Builder, Runtime};

use crate::cli;

/// What `held` says when it can't tell.
const UNKNOWN: u8 = 2;

/// What shells say of a command that can't be run, and of one that is not found.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How long the exit code waits for whoever reads stderr.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs a command in a slot.
pub(crate) fn exec(flags: cli::Exec) -> ExitCode {
    let consul = flags.consul.config().unwrap_or_else(|error| error.exit());
    let logs = flags.log_filter.clone();
    let settings = flags.settings(&consul).unwrap_or_else(|error| error.exit());
    match set_up_beside_stderr(&logs) {
        Ok((runtime, stderr)) => {
            let code = runtime.block_on(exec::exec(settings, consul, &stderr));
            runtime.shutdown_background();
            stderr.flush_within(LAST_WORDS);
            code.into()
        }
        Err(error) => end(&error, exec::MACHINE),
    }
}

/// Says whether a slot is still held.
pub(crate) fn held(flags: cli::Held) -> ExitCode {
    let consul = flags.consul.config().unwrap_or_else(|error| error.exit());
    let runtime = match set_up(&flags.log_filter) {
        Ok(runtime) => runtime,
        Err(error) => return end(&error, UNKNOWN),
    };
    let asked = runtime.block_on(exec::held(consul, &flags.sequencer()));
    runtime.shutdown_background();
    match asked {
        Ok(Verdict::Held) => end("held", 0),
        Ok(Verdict::NotHeld(why)) => end(&format!("not held: {why}"), 1),
        Err(error) => end(&format!("it can't be told: {error:#}"), UNKNOWN),
    }
}

/// Becomes a command that holds a slot, or the guard of one.
pub(crate) fn become_command(flags: &cli::Become) -> ExitCode {
    let error = match (flags.guard, flags.of) {
        (true, Some(of)) => match guard(of, &flags.command) {
            Ok(code) => return code.into(),
            Err(error) => error,
        },
        _ => exec::become_command(flags.of, &flags.command),
    };
    let program = flags.command.first().cloned().unwrap_or_default();
    let code = match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_RUN,
    };
    end(&format!("{}: {error}", program.display()), code)
}

fn guard(of: u32, command: &[OsString]) -> io::Result<u8> {
    runtime()?.block_on(exec::guard(of, command))
}

/// Logs, and a runtime.
fn set_up(logs: &str) -> anyhow::Result<Runtime> {
    telemetry::init_logs(LogFormat::Text, telemetry::parse_filter(logs)?)?;
    Ok(runtime()?)
}

/// The same where whoever reads stderr must not be waited for: a slot is to be renewed, and a command to
/// be ended in time.
fn set_up_beside_stderr(logs: &str) -> anyhow::Result<(Runtime, Stderr)> {
    let stderr = Stderr::start()?;
    telemetry::init_logs_to(&stderr, LogFormat::Text, telemetry::parse_filter(logs)?)?;
    Ok((runtime()?, stderr))
}

/// A runtime on this very thread: a command ends with the thread that started it.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Says how it ends, on stderr.
fn end(how: &(impl Display + ?Sized), code: u8) -> ExitCode {
    // Nobody is left to tell when this cannot be written.
    let _ = writeln!(io::stderr(), "{}: {how}", env!("CARGO_PKG_NAME"));
    code.into()
}
