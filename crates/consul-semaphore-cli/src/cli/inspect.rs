//! The flags of the commands that show semaphores, and of the one that takes a slot from its holder.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

use std::path::PathBuf;

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use command_line::{CONSUL_HEADING, ConsulFlags, filter};
use consul_client::Config;
use consul_semaphore::Prefix;

use super::Cli;
use crate::inspect::AnswerFormat;

/// The meaning of the exit code.
pub(super) const HELP: &str = "\
Exit code: 0, or
    1  release: the slot was not released, and stderr says why
   69  Consul can't be reached, has no leader, is overloaded or fails
   71  the operating system can't write to stdout
   77  Consul refuses: the token is unknown or lacks a right
   78  nobody uses the prefix, too much data is below it, or the settings for
       Consul are wrong
   79  release: the slots that acquire took had already been lost";

/// What all commands that call Consul need.
#[derive(Args, Debug)]
pub(crate) struct CommonFlags {
    /// What is logged to stderr: a level, or `target=level` pairs joined by commas
    #[arg(long, env = "RUST_LOG", value_name = "FILTER", default_value = "warn", value_parser = filter)]
    pub(crate) log_filter: String,

    #[command(flatten)]
    consul: ConsulFlags,

    /// The datacenter of the semaphores, to which Consul forwards the calls [default: Consul's own]
    #[arg(long = "consul-datacenter", value_name = "NAME", help_heading = CONSUL_HEADING, value_parser = NonEmptyStringValueParser::new())]
    datacenter: Option<String>,
}

impl CommonFlags {
    /// Returns the settings for calls to Consul. Ends the program if the flags do not give valid ones.
    pub(crate) fn consul(&self) -> Config {
        let config = self.consul.config::<Cli>();
        Config {
            datacenter: self.datacenter.clone(),
            ..config.unwrap_or_else(|error| error.exit())
        }
    }
}

/// How the answer is written.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct OutputFlags {
    /// The output format [default: text for people]
    #[arg(long, short, value_enum, value_name = "FORMAT")]
    output: Option<Machine>,
}

/// A format for programs.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Machine {
    /// JSON; watch prints one object on each line
    Json,
}

impl OutputFlags {
    /// Returns the format.
    pub(crate) fn format(self) -> AnswerFormat {
        match self.output {
            Some(Machine::Json) => AnswerFormat::Json,
            None => AnswerFormat::Text,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct ListFlags {
    /// Only the semaphores at this prefix and below it [default: all that the token may read]
    #[arg(value_name = "PREFIX")]
    pub(crate) below: Option<Prefix>,

    #[command(flatten)]
    pub(crate) output: OutputFlags,

    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

#[derive(Args, Debug)]
pub(crate) struct WatchFlags {
    /// The semaphores at this prefix and below it
    #[arg(value_name = "PREFIX")]
    pub(crate) below: Prefix,

    #[command(flatten)]
    pub(crate) output: OutputFlags,

    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

#[derive(Args, Debug)]
pub(crate) struct ShowFlags {
    /// The semaphore's prefix in Consul; for a keyed semaphore, <prefix>/<key>
    #[arg(value_name = "PREFIX")]
    pub(crate) prefix: Prefix,

    #[command(flatten)]
    pub(crate) output: OutputFlags,

    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

#[derive(Args, Debug)]
pub(crate) struct ReleaseFlags {
    /// The semaphore's prefix in Consul; for a keyed semaphore, <prefix>/<key> [default: the slots of `acquire` that
    /// the environment names]
    #[arg(value_name = "PREFIX", requires = "session")]
    pub(crate) prefix: Option<Prefix>,

    /// The holder's session, as `show` prints it
    #[arg(value_name = "SESSION", value_parser = session)]
    pub(crate) session: Option<String>,

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

/// The longest id of a session that a lock key may list.
const LONGEST_SESSION_ID: usize = 128;

fn session(text: &str) -> Result<String, String> {
    let is_plain = text
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'/');
    if (1..=LONGEST_SESSION_ID).contains(&text.len()) && is_plain {
        Ok(text.to_owned())
    } else {
        Err("this can't be a session's id".to_owned())
    }
}

#[derive(Args, Debug)]
pub(crate) struct CompletionFlags {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManualFlags {
    /// An existing folder, which gets one page for the program and one for each command
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}
