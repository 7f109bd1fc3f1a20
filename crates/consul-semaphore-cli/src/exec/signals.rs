//! Receives the signals that are sent to this program.

use std::{fs, io};

use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// Signals that this program passes on to the command.
const PASSED_ON: [Signal; 6] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// Number of signals that may wait to be passed on.
const QUEUED_SIGNALS: usize = 16;

/// Queue of the received signals.
pub(crate) struct Signals(mpsc::Receiver<Signal>);

impl Signals {
    /// Starts to receive signals. Signals that this program was started to ignore, as nohup does, stay ignored.
    /// SIGTSTP does not stop this process, because it must renew the session.
    pub(crate) fn listen() -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(QUEUED_SIGNALS);
        for heard in heeded().chain([Signal::TSTP]) {
            let mut stream = stream(heard)?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    // If more signals arrive at once, some are lost, as is usual for signals.
                    let _ = sender.try_send(heard);
                }
            });
        }
        collect_exit_codes()?;
        Ok(Self(receiver))
    }

    /// Returns the next signal.
    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // The queue ends only when the runtime ends.
            None => std::future::pending().await,
        }
    }

    /// Discards the signals received so far.
    pub(super) fn forget(&mut self) {
        while self.0.try_recv().is_ok() {}
    }

    /// Returns the next signal that asks this program to end. Other signals are skipped, because there is no command
    /// to pass them on to.
    pub(crate) async fn asks_to_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ends(signal) {
                return signal;
            }
        }
    }
}

/// Returns whether a signal asks this program to end.
pub(super) fn ends(signal: Signal) -> bool {
    ![Signal::USR1, Signal::USR2, Signal::TSTP].contains(&signal)
}

/// Keeps the exit codes of children. They would be lost if the process that started this program ignores SIGCHLD, as
/// some daemons do.
pub(super) fn collect_exit_codes() -> io::Result<()> {
    // The handler stays installed after the stream is dropped.
    stream(Signal::CHILD).map(drop)
}

/// Makes this process survive signals to its process group: those that are passed on to the command, and those that
/// stop programs that use a terminal. The signals are handled instead of ignored, because the command would inherit
/// ignored signals.
pub(super) fn outlive() -> io::Result<()> {
    for sent in heeded().chain([Signal::TSTP, Signal::TTIN, Signal::TTOU]) {
        // The handler stays installed after the stream is dropped.
        drop(stream(sent)?);
    }
    Ok(())
}

/// Returns the signals to pass on, except those that this process was started to ignore.
fn heeded() -> impl Iterator<Item = Signal> {
    let ignored = ignored();
    let heeded = move |signal: &Signal| ignored & (1 << (signal.as_raw() - 1)) == 0;
    PASSED_ON.into_iter().filter(heeded)
}

fn stream(of: Signal) -> io::Result<tokio::signal::unix::Signal> {
    signal(SignalKind::from_raw(of.as_raw()))
}

/// Returns the signals that this process ignores, as a mask in which bit 0 is signal 1.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
