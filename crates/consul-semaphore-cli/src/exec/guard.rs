//! The guard: a process between this program and its command. It leads the command's process group, and
//! ends all of that when this program dies in a way that lets it do nothing any more, SIGKILL included.
//! The kernel by itself would end only the command, and leave what that has started.

use std::{ffi::OsString, io, os::unix::process::parent_id};

use rustix::process::{
    Signal, getpgrp, getpid, kill_process_group, set_parent_process_death_signal,
};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    process::{becoming, code},
    signals,
};

/// The signal by which the kernel says that this program has died: one that does nothing to the command,
/// which gets it where somebody sends it to the group.
const DEATH: Signal = Signal::URG;

/// Runs a command and gives its exit code. If the process of this id, which must be the parent, dies
/// before that, all of the process group that this process leads is killed. Must be called on the
/// process's main thread: the command ends with the thread that started it.
///
/// # Errors
/// The command can't be started, or not be guarded; then it does not run on.
pub(crate) async fn guard(of: u32, command: &[OsString]) -> io::Result<u8> {
    if getpgrp() != getpid() {
        return Err(io::Error::other("a guard leads a process group"));
    }
    let mut death = signal(SignalKind::from_raw(DEATH.as_raw()))?;
    set_parent_process_death_signal(Some(DEATH))?;
    if parent_id() != of {
        return Err(io::Error::other(
            "the process that holds the slot has ended",
        ));
    }
    let starts = becoming(Some(std::process::id()), false, command);
    let mut child = tokio::process::Command::from(starts).spawn()?;
    // Not before: a signal that this process took and the command did not get would be lost. One that
    // comes in between ends both.
    signals::outlive()?;
    loop {
        tokio::select! {
            status = child.wait() => return status.map(code),
            _ = death.recv() => if parent_id() != of {
                kill_process_group(getpgrp(), Signal::KILL)?;
            },
        }
    }
}
