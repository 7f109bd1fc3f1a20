//! The program `consul-semaphore`: commands in slots of semaphores in Consul, on any machine.
//!
//! | file | subject |
//! |---|---|
//! | `cli` | the command line |
//! | `exec` | a command in a slot |
//! | `held` | whether a slot is still held |
//! | `stderr` | stderr, for a program that must not wait for its reader |
//!
//! It knows nothing about Kubernetes. [`consul_semaphore::holder`] holds the slot.

mod cli;
mod exec;
mod held;
mod stderr;

use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use command_line::logs::{self, LogFormat};
use tokio::runtime::{Builder, Runtime};

use crate::{
    cli::{Cli, Command},
    held::Verdict,
    stderr::Stderr,
};

/// The exit code of `held` if the answer is unknown.
const UNKNOWN: u8 = 2;

/// The shells' exit codes for a command that can't be run, and for one that is not found.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How long the exit code waits for the reader of stderr.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    command_line::abort_on_panic();
    match command_line::parse::<Cli>().command {
        Command::Exec(flags) => exec(*flags),
        Command::Held(flags) => held(*flags),
        Command::Become(flags) => become_command(&flags),
    }
}

/// Runs a command in a slot.
fn exec(flags: cli::Exec) -> ExitCode {
    let consul = flags
        .consul
        .config::<Cli>()
        .unwrap_or_else(|error| error.exit());
    let filter = flags.log_filter.clone();
    let settings = flags.settings(&consul).unwrap_or_else(|error| error.exit());
    match set_up_beside_stderr(&filter) {
        Ok((runtime, stderr)) => {
            let code = runtime.block_on(exec::exec(settings, consul, &stderr));
            runtime.shutdown_background();
            stderr.flush_within(LAST_WORDS);
            code.into()
        }
        Err(error) => end(&error, exec::MACHINE),
    }
}

/// Reports whether a slot is still held.
fn held(flags: cli::Held) -> ExitCode {
    let consul = flags
        .consul
        .config::<Cli>()
        .unwrap_or_else(|error| error.exit());
    let runtime = match set_up(&flags.log_filter) {
        Ok(runtime) => runtime,
        Err(error) => return end(&error, UNKNOWN),
    };
    let asked = runtime.block_on(held::held(consul, &flags.sequencers()));
    runtime.shutdown_background();
    match asked {
        Ok(Verdict::Held) => end("held", 0),
        Ok(Verdict::NotHeld(why)) => end(&format!("not held: {why}"), 1),
        Err(error) => end(&format!("it can't be told: {error:#}"), UNKNOWN),
    }
}

/// Becomes a command that holds a slot, or the guard of one.
fn become_command(flags: &cli::Become) -> ExitCode {
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
fn set_up(filter: &str) -> anyhow::Result<Runtime> {
    logs::init(LogFormat::Text, logs::parse_filter(filter)?)?;
    Ok(runtime()?)
}

/// The same if nothing may wait for the reader of stderr: a slot must be renewed, and a command ended in time.
fn set_up_beside_stderr(filter: &str) -> anyhow::Result<(Runtime, Stderr)> {
    let stderr = Stderr::start()?;
    let writer = stderr.clone();
    logs::init_to(LogFormat::Text, logs::parse_filter(filter)?, move || {
        writer.clone()
    })?;
    Ok((runtime()?, stderr))
}

/// A runtime on the current thread: a command ends with the thread that started it.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Reports how it ends, on stderr.
fn end(how: &(impl Display + ?Sized), code: u8) -> ExitCode {
    // There is no way to report that this can't be written.
    let _ = writeln!(io::stderr(), "{}: {how}", env!("CARGO_BIN_NAME"));
    code.into()
}
