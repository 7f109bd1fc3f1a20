//! This program again, on its way to be the command: its hidden subcommand `become`.

use std::{
    ffi::OsString,
    io::{self, BufRead as _, BufReader, Read as _},
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            net::{SocketAddr, UnixStream},
            process::{CommandExt as _, parent_id},
        },
    },
    process::Command,
};

use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};

/// The most bytes of [`Variables`]: a new socket takes so many at once, so nobody waits for its reader.
pub(super) const LONGEST_VARIABLES: usize = 4096;

/// The exit code of what was started ahead and is not used. Nobody is told why: the command is started anew if there
/// are slots, and then that says what is wrong.
pub(super) const EXIT_UNUSED: u8 = 1;

/// Variables of the command's environment, each with its value, or to be removed.
pub(crate) type Variables = Vec<(String, Option<String>)>;

/// Becomes the command of an `exec`.
#[derive(Args, Debug)]
pub(crate) struct Become {
    /// The parent process: this process ends when the parent ends
    #[arg(long)]
    pub(super) of: Option<u32>,

    /// Wait for the names of the slots at this abstract socket; without it they are in the environment
    #[arg(long)]
    pub(super) slots: Option<String>,

    /// Start the command as a child, and end it with its whole process group
    #[arg(long, requires = "of")]
    pub(crate) guard: bool,

    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

impl Become {
    /// Returns the command that starts this program again, even if another file is at its path by now.
    pub(super) fn command(&self) -> Command {
        let mut starts = Command::new("/proc/self/exe");
        starts.arg("become");
        if let Some(of) = self.of {
            starts.args(["--of", &of.to_string()]);
        }
        if let Some(slots) = &self.slots {
            starts.arg("--slots").arg(slots);
        }
        if self.guard {
            starts.arg("--guard");
        }
        starts.arg("--").args(&self.command);
        starts
    }

    /// Becomes the command, in the process that was made for it. If the process `of`, which must be the parent, dies
    /// in any way, SIGKILL included, the kernel kills this one. Returns an exit code only if there are no slots.
    ///
    /// # Errors
    /// It can't become the command.
    pub(crate) fn run(&self) -> io::Result<u8> {
        let variables = match self.await_slots() {
            Ok(Some(variables)) => variables,
            Err(error) if self.slots.is_none() => return Err(error),
            Ok(None) | Err(_) => return Ok(EXIT_UNUSED),
        };
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        set_variables(&mut command, &variables);
        Err(command.args(arguments).exec())
    }

    /// Arranges to end with the process `of`, and waits for the names of the slots, unless they are in the environment;
    /// `None` if there will be none.
    fn await_slots(&self) -> io::Result<Option<Variables>> {
        if let Some(of) = self.of {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            ends_with(of)?;
        }
        match &self.slots {
            Some(slots) => read(slots),
            None => Ok(Some(Variables::new())),
        }
    }
}

/// An error if the process with this id is not the parent any more, so that its death is not noticed.
pub(super) fn ends_with(of: u32) -> io::Result<()> {
    if parent_id() == of {
        return Ok(());
    }
    Err(io::Error::other(
        "the process that holds the slot has ended",
    ))
}

/// The abstract socket of this name: it is in no folder, and is gone with the process that listens.
pub(super) fn socket(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// Waits for the names of the slots; `None` if there will be none.
fn read(slots: &str) -> io::Result<Option<Variables>> {
    let mut named = Vec::new();
    let most = u64::try_from(LONGEST_VARIABLES).unwrap_or(u64::MAX);
    BufReader::new(UnixStream::connect_addr(&socket(slots)?)?)
        .take(most)
        .read_until(b'\n', &mut named)?;
    let whole = named.ends_with(b"\n");
    Ok(whole.then(|| serde_json::from_slice(&named)).transpose()?)
}

pub(super) fn set_variables(command: &mut Command, variables: &Variables) {
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}
