//! The flags of `acquire` and `renew`.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

use std::time::Duration;

use clap::{Args, CommandFactory as _, ValueEnum, error::ErrorKind};
use command_line::name;
use consul_client as consul;
use consul_semaphore::{OnSlotLost, Seconds, holder::HolderKind};

use super::{
    Cli, CommonFlags,
    held::{SequencerFlags, slots_around},
    slots::{SlotFlags, SlotUse},
};
use crate::lease::{AcquireSettings, SlotFormat};

/// What is printed, and the meaning of the exit code.
pub(super) const ACQUIRE_HELP: &str = "\
It prints CONSUL_SEMAPHORE_SESSION, CONSUL_SEMAPHORE_LOCK_KEY,
CONSUL_SEMAPHORE_LOCK_INDEX, CONSUL_SEMAPHORE_FENCING_TOKEN and
CONSUL_SEMAPHORE_SLOT_INDEX, and for several slots also CONSUL_SEMAPHORE_SLOTS.
`held`, `renew` and `release` read these variables from the environment.

Exit code: 0, or one of these, which mean the same as for `exec`:
   69  Consul can't be reached, has no leader, is overloaded or fails: with --try,
       or when --wait-for is over
   71  the operating system can't write to stdout
   75  --try: no slot is free, or other clients are ahead in the queue
   77  Consul refuses: the token is unknown or lacks a right, or the time is too
       short
   78  Consul has another limit, the key has another use, or the flags are
       wrong
  124  --wait-for is over
  128 plus the signal's number: a signal ended it, and it holds no slot";

/// The meaning of the exit code of `renew`.
pub(super) const RENEW_HELP: &str = "\
Exit code: 0, or
    1  `acquire` did not take the slot
   69  Consul can't be reached, has no leader, is overloaded or fails
   71  the operating system can't write to stdout
   77  Consul refuses: the token is unknown or lacks a right
   78  the settings for Consul are wrong
   79  the slot was lost: others may have it";

#[derive(Args, Debug)]
pub(crate) struct AcquireFlags {
    #[command(flatten)]
    pub(crate) slots: SlotFlags,

    /// How long the slots stay held unless you renew or release them earlier, 10s to 24h. Choose more time than the
    /// steps take. Consul may take up to twice this time to free the slots
    #[arg(long = "for", env = "CONSUL_SEMAPHORE_FOR", value_name = "DURATION")]
    time: Seconds<10, 86_400>,

    /// What the slots are for; `consul-semaphore show` and the operators show this as the holder's name
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_PURPOSE",
        value_name = "NAME",
        default_value = "acquire",
        value_parser = name
    )]
    purpose: String,

    /// How the slots are printed
    #[arg(long, short, value_enum, value_name = "FORMAT", default_value_t)]
    output: OutputFormat,

    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

/// How slots are printed.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum OutputFormat {
    /// NAME=value lines, for files of environment variables
    #[default]
    Env,
    /// export commands, for `eval` in a shell
    Shell,
    /// JSON
    Json,
}

impl AcquireFlags {
    /// Returns the settings for `acquire`.
    pub(crate) fn settings(self, consul: &consul::Config) -> Result<AcquireSettings, clap::Error> {
        let refuse = |problem: String| Cli::command().error(ErrorKind::ValueValidation, problem);
        let request = self.slots.request().map_err(refuse)?;
        if request.semaphores().iter().any(|one| one.period.is_some()) {
            return Err(refuse(
                "--mode rate: the slot of a rate counts a start and can't be released, so acquire can't take it: use exec"
                    .to_owned(),
            ));
        }
        let (patience, quiet) = (self.slots.patience(), self.slots.quiet);
        let slot_use = SlotUse {
            kind: HolderKind::Lease,
            program: self.purpose,
            ttl: self.time.get(),
            cooldown: Duration::ZERO,
            on_slot_lost: OnSlotLost::Suspend,
            grace: Duration::ZERO,
            // The steps may run on other machines than the one that took the slot.
            node_checks: false,
        };
        Ok(AcquireSettings {
            slots: self.slots.holder(request, consul, slot_use)?,
            patience,
            quiet,
            around: slots_around(),
            format: match self.output {
                OutputFormat::Env => SlotFormat::Env,
                OutputFormat::Shell => SlotFormat::Shell,
                OutputFormat::Json => SlotFormat::Json,
            },
        })
    }
}

#[derive(Args, Debug)]
pub(crate) struct RenewFlags {
    #[command(flatten)]
    pub(crate) slots: SequencerFlags,

    #[command(flatten)]
    pub(crate) common: CommonFlags,
}
