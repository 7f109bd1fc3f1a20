//! The program `consul-semaphore` runs commands in slots of semaphores in Consul, on any machine.
//!
//! | file | subject |
//! |---|---|
//! | `cli` | the command line |
//! | `exec` | a command in a slot |
//! | `held` | whether a slot is still held |
//! | `lease` | slots that are held without a process, for the steps of a pipeline |
//! | `inspect` | who holds slots and who waits, and slots that are taken from their holders |
//! | `stderr` | stderr, for a program that must not wait for its reader |
//!
//! The program knows nothing about Kubernetes. [`consul_semaphore::holder`] holds the slot.

mod cli;
mod exec;
mod held;
mod inspect;
mod lease;
mod stderr;

use std::{
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    time::Duration,
};

use clap::{CommandFactory as _, error::ErrorKind};
use command_line::{
    logs::{self, LogFormat},
    memory,
    terminal::try_write,
};
use consul_client::{Client, Config, clock::Moment};
use tokio::runtime::{Builder, Runtime};

use crate::{
    cli::{Cli, Command},
    exec::Become,
    held::SlotVerdict,
    stderr::Stderr,
};

/// Exit code of `held` if the answer is unknown.
const EXIT_UNKNOWN: u8 = 2;

/// Exit codes of shells for a command that can't be run, and for a command that is not found.
const EXIT_CANNOT_RUN: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;

/// Time that the exit waits for the reader of stderr.
const STDERR_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time that one call of a command for people may take, of which one server may take half. It is longer than
/// that of a command that has a slot, which must act before its session ends: a Consul that is so busy that people look
/// at it answers late.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(40);

fn main() -> ExitCode {
    command_line::abort_on_panic();
    let command = command_line::parse::<Cli>().command;
    // A process that becomes a command has the command's environment, which the command's user may see. Core dumps
    // are not disabled for it, because the command would inherit that limit.
    if !matches!(command, Command::Become(_)) {
        memory::keep_private();
    }
    match command {
        Command::Exec(flags) => exec(*flags),
        Command::Acquire(flags) => acquire(*flags),
        Command::Renew(flags) => {
            let slots = flags.slots.sequencers();
            ask(&flags.common, async |client| {
                lease::renew(client, slots).await
            })
        }
        Command::Held(flags) => held(*flags),
        Command::List(flags) => inspect(&flags.common, async |client| {
            inspect::list(client, flags.below.as_ref(), flags.output.format()).await
        }),
        Command::Show(flags) => inspect(&flags.common, async |client| {
            inspect::show(client, &flags.prefix, flags.output.format()).await
        }),
        Command::Watch(flags) => inspect(&flags.common, async |client| {
            inspect::watch(client, &flags.below, flags.output.format()).await
        }),
        Command::Release(flags) => release(&flags),
        Command::Completion(flags) => completion(&flags),
        Command::Manual(flags) => manual(&flags),
        Command::Become(flags) => become_command(&flags),
    }
}

/// Runs a command in a slot.
fn exec(flags: cli::ExecFlags) -> ExitCode {
    let filter = flags.common.log_filter.clone();
    beside_stderr(&filter, async |stderr| exec_as(flags, stderr).await)
}

/// Takes slots and leaves them held.
fn acquire(flags: cli::AcquireFlags) -> ExitCode {
    let filter = flags.common.log_filter.clone();
    beside_stderr(&filter, async |stderr| acquire_as(flags, stderr).await)
}

/// Runs something that returns an exit code, and that does not wait for the reader of stderr.
fn beside_stderr(filter: &str, run: impl AsyncFnOnce(&Stderr) -> u8) -> ExitCode {
    match set_up_beside_stderr(filter) {
        Ok((runtime, stderr)) => {
            let code = runtime.block_on(run(&stderr));
            runtime.shutdown_background();
            stderr.flush_within(STDERR_FLUSH_TIMEOUT);
            code.into()
        }
        Err(error) => end(&error, exec::EXIT_MACHINE),
    }
}

/// Runs a command as the flags say, and returns the exit code.
async fn exec_as(mut flags: cli::ExecFlags, stderr: &Stderr) -> u8 {
    let consul = flags.common.consul();
    let patience = match take_limit(&mut flags.slots, &consul, stderr).await {
        Ok(patience) => patience,
        Err(code) => return code,
    };
    let settings = flags.settings(&consul).unwrap_or_else(|error| error.exit());
    exec::exec(
        exec::ExecSettings {
            patience,
            ..settings
        },
        consul,
        stderr,
    )
    .await
}

/// Takes slots as the flags say, and returns the exit code.
async fn acquire_as(mut flags: cli::AcquireFlags, stderr: &Stderr) -> u8 {
    let consul = flags.common.consul();
    let patience = match take_limit(&mut flags.slots, &consul, stderr).await {
        Ok(patience) => patience,
        Err(code) => return code,
    };
    let settings = flags.settings(&consul).unwrap_or_else(|error| error.exit());
    lease::acquire(
        lease::AcquireSettings {
            patience,
            ..settings
        },
        consul,
        stderr,
    )
    .await
}

/// Takes the limit from Consul, if the flags say so. Returns what is left of the time to wait then, or the exit code.
async fn take_limit(
    slots: &mut cli::SlotFlags,
    consul: &Config,
    stderr: &Stderr,
) -> Result<Option<Duration>, u8> {
    let begun = Moment::now();
    let taken = slots.take_limit(consul, stderr).await;
    taken.map_err(|failure| exec::report(&failure, stderr))?;
    // Whole seconds, as they are given and reported.
    let waited = Duration::from_secs(Moment::now().since(begun).as_secs());
    Ok(slots
        .patience()
        .map(|patience| patience.saturating_sub(waited)))
}

/// Reports whether a slot is still held.
fn held(flags: cli::HeldFlags) -> ExitCode {
    let consul = flags.common.consul();
    let runtime = match set_up(&flags.common.log_filter) {
        Ok(runtime) => runtime,
        Err(error) => return end(&error, EXIT_UNKNOWN),
    };
    let asked = runtime.block_on(held::held(consul, &flags.slots.sequencers()));
    runtime.shutdown_background();
    match asked {
        Ok(SlotVerdict::Held) => end("held", 0),
        Ok(SlotVerdict::NotHeld(why)) => end(&format!("not held: {why}"), 1),
        Err(error) => end(
            &format!("can't find out whether the slot is held: {error:#}"),
            EXIT_UNKNOWN,
        ),
    }
}

/// Runs a call that asks Consul for people, and reports its failure.
fn inspect(
    flags: &cli::CommonFlags,
    what: impl AsyncFnOnce(&Client) -> Result<(), inspect::InspectFailure>,
) -> ExitCode {
    let consul = Config {
        timeout: INSPECT_TIMEOUT,
        ..flags.consul()
    };
    ask_at(consul, &flags.log_filter, what)
}

/// Runs a call that asks Consul, and reports its failure.
fn ask(
    flags: &cli::CommonFlags,
    what: impl AsyncFnOnce(&Client) -> Result<(), inspect::InspectFailure>,
) -> ExitCode {
    ask_at(flags.consul(), &flags.log_filter, what)
}

fn ask_at(
    consul: Config,
    log_filter: &str,
    what: impl AsyncFnOnce(&Client) -> Result<(), inspect::InspectFailure>,
) -> ExitCode {
    let runtime = match set_up(log_filter) {
        Ok(runtime) => runtime,
        Err(error) => return end(&error, exec::EXIT_MACHINE),
    };
    let asked = runtime.block_on(async {
        let client = Client::new(consul)?;
        let asked = what(&client).await;
        client.log_out().await;
        asked
    });
    runtime.shutdown_background();
    match asked {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => end(&failure, failure.code()),
    }
}

/// Gives back the slots that the environment names, or takes a slot from its holder.
fn release(flags: &cli::ReleaseFlags) -> ExitCode {
    let Some((prefix, session)) = flags.prefix.as_ref().zip(flags.session.as_deref()) else {
        let named = cli::slots_in_environment();
        let slots = match named {
            Ok(slots) => slots,
            Err(problem) => Cli::command()
                .error(ErrorKind::ValueValidation, problem)
                .exit(),
        };
        if slots.is_empty() {
            let problem = "name the prefix and the session of a holder, or set the variables CONSUL_SEMAPHORE_LOCK_KEY, \
                           CONSUL_SEMAPHORE_SESSION and CONSUL_SEMAPHORE_LOCK_INDEX that `acquire` has printed";
            Cli::command()
                .error(ErrorKind::MissingRequiredArgument, problem)
                .exit();
        }
        return ask(&flags.common, async |client| {
            lease::release(client, slots).await
        });
    };
    if !flags.yes && !io::stdin().is_terminal() {
        let problem = "there is no terminal for the question: set --yes to release the slot without confirmation";
        Cli::command()
            .error(ErrorKind::MissingRequiredArgument, problem)
            .exit();
    }
    inspect(&flags.common, async |client| {
        inspect::release(client, prefix, &session.into(), flags.yes).await
    })
}

/// Returns the command line without the commands that this program calls by itself.
fn shown() -> clap::Command {
    let cli = Cli::command();
    let shown = cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let about = cli.get_about().cloned().unwrap_or_default();
    clap::Command::new(env!("CARGO_BIN_NAME"))
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(shown.cloned())
}

/// Writes the manual pages into a folder.
fn manual(flags: &cli::ManualFlags) -> ExitCode {
    match clap_mangen::generate_to(shown(), &flags.folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => end(
            &format!("{}: {error}", flags.folder.display()),
            exec::EXIT_MACHINE,
        ),
    }
}

/// Prints the script that completes the command line.
fn completion(flags: &cli::CompletionFlags) -> ExitCode {
    let mut shown = shown();
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut shown, env!("CARGO_BIN_NAME"), &mut script);
    match try_write(&String::from_utf8_lossy(&script)) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => end(&error, exec::EXIT_MACHINE),
    }
}

/// Becomes a command that holds a slot, or the guard of such a command.
fn become_command(flags: &Become) -> ExitCode {
    let became = if flags.guard {
        runtime().and_then(|runtime| runtime.block_on(exec::guard(flags)))
    } else {
        flags.run()
    };
    let error = match became {
        Ok(code) => return code.into(),
        Err(error) => error,
    };
    let program = flags.command.first().cloned().unwrap_or_default();
    let code = match error.kind() {
        io::ErrorKind::NotFound => EXIT_NOT_FOUND,
        _ => EXIT_CANNOT_RUN,
    };
    end(&format!("{}: {error}", program.display()), code)
}

/// Sets up logging and a runtime.
fn set_up(filter: &str) -> anyhow::Result<Runtime> {
    logs::init(LogFormat::Text, logs::parse_filter(filter)?)?;
    Ok(runtime()?)
}

/// Sets up logging and a runtime for a command that must not wait for the reader of stderr, because a slot must be
/// renewed and a command ended in time.
fn set_up_beside_stderr(filter: &str) -> anyhow::Result<(Runtime, Stderr)> {
    let stderr = Stderr::start()?;
    let writer = stderr.clone();
    logs::init_to(LogFormat::Text, logs::parse_filter(filter)?, move || {
        writer.clone()
    })?;
    Ok((runtime()?, stderr))
}

/// Returns a runtime on the current thread, because a command ends with the thread that started it.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Reports on stderr how the program ends.
fn end(how: &(impl Display + ?Sized), code: u8) -> ExitCode {
    // There is no way to report that this line can't be written.
    let _ = writeln!(io::stderr(), "{}: {how}", env!("CARGO_BIN_NAME"));
    code.into()
}
