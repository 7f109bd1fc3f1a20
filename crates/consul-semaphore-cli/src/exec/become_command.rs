//! This program again, on its way to be the command: its hidden subcommand `become`.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    os::unix::process::{CommandExt as _, parent_id},
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};

/// The most bytes of [`Variables`]: what a pipe takes at once.
pub(super) const MOST: usize = 1 << 16;

/// Variables of the command's environment, each with its value, or to be removed.
pub(super) type Variables = Vec<(String, Option<String>)>;

/// Becomes the command of an `exec`.
#[derive(Args, Debug)]
pub(crate) struct Become {
    /// The process to end with
    #[arg(long)]
    pub(super) of: Option<u32>,

    /// Wait until the names of the slots can be read here; without it they are in the environment
    #[arg(long)]
    pub(super) slots: Option<PathBuf>,

    /// Start the command as a child, and end it with its whole process group
    #[arg(long, requires = "of")]
    pub(crate) guard: bool,

    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

impl Become {
    /// What starts this, even if another file is at this program's path by now.
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
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if let Some(of) = self.of {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            ends_with(of)?;
        }
        let mut command = Command::new(program);
        if let Some(slots) = &self.slots {
            match read(slots)? {
                Some(variables) => set_variables(&mut command, &variables),
                None => return Ok(0),
            }
        }
        Err(command.args(arguments).exec())
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

/// Waits for the names of the slots; `None` if there will be none.
fn read(slots: &Path) -> io::Result<Option<Variables>> {
    let mut named = Vec::new();
    let most = u64::try_from(MOST).unwrap_or(u64::MAX);
    BufReader::new(File::open(slots)?)
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
