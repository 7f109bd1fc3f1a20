//! Runs the guard: a process between this program and its command. The guard leads the command's process group and
//! kills the whole group when this program dies without a chance to do so itself, for example by SIGKILL. The kernel
//! alone would kill only the command and leave the processes that the command has started.

use std::{io, os::unix::process::parent_id};

use rustix::process::{
    Signal, getpgrp, getpid, kill_process_group, set_parent_process_death_signal,
};
use tokio::{
    process::Child,
    signal::unix::{self, SignalKind, signal},
};

use super::{
    become_command::{Become, EXIT_UNUSED, ends_with},
    process::code,
    signals,
};

/// Signal with which the kernel reports the death of this program. If somebody sends the signal to the whole process
/// group, the command receives it too, but the signal has no effect there.
const PARENT_DEATH_SIGNAL: Signal = Signal::URG;

/// Runs a command and returns its exit code. The process to end with must be the parent. If the parent dies first,
/// this function kills the whole process group that this process leads. The caller must be on the process's main
/// thread, because the command ends with the thread that started it.
///
/// # Errors
/// The command can't be started or can't be guarded; in both cases the command does not keep running.
pub(crate) async fn guard(guarded: &Become) -> io::Result<u8> {
    let of = guarded.of.ok_or(io::ErrorKind::InvalidInput)?;
    let (mut child, mut death) = match start(of, guarded) {
        Err(_) if guarded.slots.is_some() => return Ok(EXIT_UNUSED),
        started => started?,
    };
    loop {
        tokio::select! {
            status = child.wait() => return status.map(code),
            _ = death.recv() => if parent_id() != of {
                kill_process_group(getpgrp(), Signal::KILL)?;
            },
        }
    }
}

/// Starts the process that becomes the command, and listens for the death of the process `of`.
fn start(of: u32, guarded: &Become) -> io::Result<(Child, unix::Signal)> {
    if getpgrp() != getpid() {
        return Err(io::Error::other("a guard leads a process group"));
    }
    signals::collect_exit_codes()?;
    let death = signal(SignalKind::from_raw(PARENT_DEATH_SIGNAL.as_raw()))?;
    set_parent_process_death_signal(Some(PARENT_DEATH_SIGNAL))?;
    ends_with(of)?;
    let starts = Become {
        of: Some(std::process::id()),
        slots: guarded.slots.clone(),
        guard: false,
        command: guarded.command.clone(),
    };
    let child = tokio::process::Command::from(starts.command()).spawn()?;
    // The guard ignores signals only after the command has started: otherwise a signal that the guard received and
    // the command did not would be lost. A signal that arrives before this line ends both.
    signals::outlive()?;
    Ok((child, death))
}
