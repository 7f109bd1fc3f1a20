//! The command line. Flags have environment variables, and defaults where possible.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

mod examples;
mod held;
mod inspect;
mod lease;
mod restrictions;
mod semaphore;
mod slots;

use std::{ffi::OsString, path::Path, time::Duration};

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum, error::ErrorKind};
use command_line::CONSUL_ENVIRONMENT;
use consul_client as consul;
use consul_semaphore::{LONGEST_COOLDOWN, Seconds, holder};

use self::{
    held::{HELD_HELP, slots_around},
    lease::{ACQUIRE_HELP, RENEW_HELP},
    slots::{ModeFlag, SlotUse},
};
pub(crate) use self::{
    held::{HeldFlags, slots_in_environment},
    inspect::{
        CommonFlags, CompletionFlags, ListFlags, ManualFlags, ReleaseFlags, ShowFlags, WatchFlags,
    },
    lease::{AcquireFlags, RenewFlags},
    slots::SlotFlags,
};
use crate::exec;

/// Run commands in slots of Consul semaphores, on any machine, and see who holds slots and who waits.
#[derive(Debug, Parser)]
#[command(version, name = "consul-semaphore")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command in slots of one or several semaphores: wait for the slots, hold them, and release them
    #[command(after_help = help(examples::EXEC, HELP))]
    Exec(Box<ExecFlags>),
    /// Take slots, print them and leave them held for a fixed time, for work that consists of several processes, such
    /// as the steps of a pipeline
    #[command(after_help = help(examples::ACQUIRE, ACQUIRE_HELP))]
    Acquire(Box<AcquireFlags>),
    /// Extend the time of the slots that `acquire` took: they stay held for the full time of --for, counted from now
    #[command(after_help = help(examples::RENEW, RENEW_HELP))]
    Renew(Box<RenewFlags>),
    /// Report by the exit code whether a slot, or each of several slots, is still held
    #[command(after_help = help(examples::HELD, HELD_HELP))]
    Held(Box<HeldFlags>),
    /// List all semaphores, or those below a prefix
    #[command(visible_alias = "ls", after_help = help(examples::LIST, inspect::HELP))]
    List(Box<ListFlags>),
    /// Show a semaphore: who holds its slots, and who waits
    #[command(after_help = help(examples::SHOW, inspect::HELP))]
    Show(Box<ShowFlags>),
    /// Print a line for each change: slots that are granted, released or lost, clients that begin to wait, new limits
    #[command(after_help = help(examples::WATCH, inspect::HELP))]
    Watch(Box<WatchFlags>),
    /// Release the slots that `acquire` took. With a prefix and a session, take a slot from a holder that is stuck or
    /// dead: the command says what will happen, and asks you to confirm
    #[command(after_help = help(examples::RELEASE, inspect::HELP))]
    Release(Box<ReleaseFlags>),
    /// Print the script that completes this program's commands and flags in a shell
    #[command(after_help = examples::COMPLETION)]
    Completion(CompletionFlags),
    /// Write the manual pages of this program into a folder, for example to package them
    #[command(after_help = examples::MANUAL)]
    Manual(ManualFlags),
    #[command(hide = true)]
    Become(exec::Become),
}

/// Returns the end of a command's help: examples, the meaning of its exit code, and the variables for Consul.
fn help(examples: &str, meaning: &str) -> String {
    format!("{examples}\n\n{meaning}\n\n{CONSUL_ENVIRONMENT}")
}

/// The command's environment, and the meaning of the exit code.
const HELP: &str = "\
These variables in the command's environment identify its slot in Consul:
  CONSUL_SEMAPHORE_LOCK_KEY, CONSUL_SEMAPHORE_SESSION, CONSUL_SEMAPHORE_LOCK_INDEX
                           the sequencer; `held` reports whether the slot is still held
  CONSUL_SEMAPHORE_FENCING_TOKEN
                           the fencing token, which is greater for each later grant
  CONSUL_SEMAPHORE_SLOT_INDEX
                           a number from 0 that no other holder has, usually the smallest
                           free one; not set for a rate
  CONSUL_SEMAPHORE_SLOTS   all slots as JSON, if there are several; the other variables then
                           describe the first one

Exit code: the command's own, 128 plus the signal's number if a signal ended it, or
   69  Consul can't be reached, has no leader, is overloaded or fails: with --try,
       or when --wait-for is over
   71  the operating system can't create a process or handle signals
   75  --try: no slot is free, or other clients are ahead in the queue
   77  Consul refuses: the token is unknown or lacks a right, or the TTL is too
       short
   78  Consul has another limit, the key has another use, too much data is below
       the prefix, or the flags for Consul are wrong; with --must-exist or --limit
       consul: nobody uses the prefix; with --reentrant: the outer command has
       too few slots
   79  the slot was lost, and exec ended the command, or the command ended with 0
  124  --wait-for is over
  126  the command can't be run
  127  the command is not found";

/// This program's credentials for Consul: anybody who has these can do in Consul what it may do.
const CREDENTIALS: [&str; 8] = [
    "CONSUL_HTTP_TOKEN",
    "CONSUL_HTTP_TOKEN_FILE",
    "CONSUL_HTTP_AUTH",
    "CONSUL_CLIENT_CERT",
    "CONSUL_CLIENT_KEY",
    "CONSUL_AUTH_METHOD",
    "CONSUL_BEARER_TOKEN_FILE",
    "CONSUL_LOGIN_META",
];

/// The default for the time that a command may take to end once it was asked to.
const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(crate) struct ExecFlags {
    #[command(flatten)]
    pub(crate) slots: SlotFlags,

    /// If this program itself runs under another exec that already holds all these slots, run the command in those
    /// slots, and take no additional slots
    #[arg(long, env = "CONSUL_SEMAPHORE_REENTRANT")]
    reentrant: bool,

    /// What happens to the command when one of its slots is lost
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_ON_SLOT_LOST",
        value_enum,
        value_name = "WHAT",
        default_value_t
    )]
    on_slot_lost: OnSlotLostFlag,

    /// How long a command that must end may continue after SIGTERM before it is killed; must be less than half of the
    /// TTL [default: 10s, or less]
    #[arg(long, env = "CONSUL_SEMAPHORE_KILL_AFTER", value_name = "DURATION")]
    kill_after: Option<Seconds<0, 43_200>>,

    /// How long the slot stays held after this program's last renewal, 10s to 24h
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_TTL",
        value_name = "DURATION",
        default_value = "60s"
    )]
    ttl: Seconds<10, 86_400>,

    /// How long the slot stays held after the command has ended, 0s to 24h: this program keeps running until then,
    /// and exits with the command's exit code
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_COOLDOWN",
        value_name = "DURATION",
        default_value = "0s"
    )]
    cooldown: Seconds<0, LONGEST_COOLDOWN>,

    /// Leave the command in this process group, so that it can read the terminal; processes that the command starts
    /// are then not ended with it
    #[arg(long)]
    foreground: bool,

    /// With a local agent: only the TTL can end the session, and not gossip that reports this machine as dead
    #[arg(long)]
    no_node_checks: bool,

    /// Keep this program's credentials for Consul in the command's environment
    #[arg(long, env = "CONSUL_SEMAPHORE_PASS_CONSUL_CREDENTIALS")]
    pass_consul_credentials: bool,

    #[command(flatten)]
    pub(crate) common: CommonFlags,

    /// The command, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What happens to the command when its slot is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OnSlotLostFlag {
    /// The command is ended
    #[default]
    Terminate,
    /// The command gets a slot again if one is free, and continues without one if not
    Continue,
}

impl ExecFlags {
    /// Returns the settings for `exec`.
    pub(crate) fn settings(
        self,
        consul: &consul::Config,
    ) -> Result<exec::ExecSettings, clap::Error> {
        let refuse = |problem: String| Cli::command().error(ErrorKind::ValueValidation, problem);
        let request = self.slots.request().map_err(refuse)?;
        let mut semaphores = request.semaphores().iter();
        if semaphores.all(|one| one.period.is_some()) && !self.cooldown.get().is_zero() {
            return Err(refuse(
                "--cooldown: the slot of a rate stays held for its period anyway, so leave the cooldown or the rate out"
                    .to_owned(),
            ));
        }
        let ttl = self.ttl.get();
        // It is asked to end a second early, and must have ended by the end of the TTL.
        let longest = (ttl / 2).saturating_sub(Duration::from_secs(1));
        let kill_after = match self.kill_after.map(Seconds::get) {
            Some(asked) if asked > longest => {
                return Err(refuse(format!(
                    "--kill-after: the slot stays held for the TTL of {}s after Consul's last answer, and the command \
                     must have ended by then: set at most {}s, or a longer --ttl",
                    ttl.as_secs(),
                    longest.as_secs()
                )));
            }
            asked => asked.unwrap_or(DEFAULT_KILL_AFTER.min(longest)),
        };
        let program = self
            .command
            .first()
            .map(Path::new)
            .and_then(Path::file_name)
            .unwrap_or_default();
        let (patience, quiet) = (self.slots.patience(), self.slots.quiet);
        let slot_use = SlotUse {
            kind: holder::HolderKind::Command,
            program: program.to_string_lossy().into_owned(),
            ttl,
            cooldown: self.cooldown.get(),
            on_slot_lost: match self.on_slot_lost {
                OnSlotLostFlag::Terminate => consul_semaphore::OnSlotLost::Suspend,
                OnSlotLostFlag::Continue => consul_semaphore::OnSlotLost::Continue,
            },
            grace: kill_after,
            node_checks: !self.no_node_checks,
        };
        Ok(exec::ExecSettings {
            slots: self.slots.holder(request, consul, slot_use)?,
            patience,
            quiet,
            foreground: self.foreground,
            around: slots_around(),
            reentrant: self.reentrant,
            withheld: if self.pass_consul_credentials {
                &[]
            } else {
                &CREDENTIALS
            },
            command: self.command,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
