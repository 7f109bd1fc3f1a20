//! The signals that this program receives.

use std::{fs, io};

use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// The signals that are passed on to the command.
const PASSED_ON: [Signal; 6] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// How many signals may wait to be passed on.
const QUEUE: usize = 16;

/// The received signals.
pub(super) struct Signals(mpsc::Receiver<Signal>);

impl Signals {
    /// Receives signals from now on. Signals that this program was started to ignore, as nohup does, stay ignored.
    /// SIGTSTP does not stop this process, which renews the session.
    pub(super) fn listen() -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        for heard in heeded().chain([Signal::TSTP]) {
            let mut stream = stream(heard)?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    // If more arrive at once some are lost, as signals are.
                    let _ = sender.try_send(heard);
                }
            });
        }
        collect_exit_codes()?;
        Ok(Self(receiver))
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // The runtime ends.
            None => std::future::pending().await,
        }
    }

    /// Discards the signals received so far.
    pub(super) fn forget(&mut self) {
        while self.0.try_recv().is_ok() {}
    }

    /// The next signal that asks this program to end: the others have no command to be passed on to.
    pub(super) async fn asks_to_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ends(signal) {
                return signal;
            }
        }
    }
}

/// Whether a signal asks to end.
pub(super) fn ends(signal: Signal) -> bool {
    ![Signal::USR1, Signal::USR2, Signal::TSTP].contains(&signal)
}

/// Keeps the exit codes of children, which are lost if whoever started this program ignores SIGCHLD, as some daemons do.
pub(super) fn collect_exit_codes() -> io::Result<()> {
    // A handler stays once it is installed.
    stream(Signal::CHILD).map(drop)
}

/// From now on signals to its process group do not affect this process: neither those that are passed on to the
/// command, nor those that stop users of a terminal. They are handled and not ignored, because the command would
/// inherit ignored ones.
pub(super) fn outlive() -> io::Result<()> {
    for sent in heeded().chain([Signal::TSTP, Signal::TTIN, Signal::TTOU]) {
        // A handler stays once it is installed.
        drop(stream(sent)?);
    }
    Ok(())
}

/// The signals to pass on, except those that this process was started to ignore.
fn heeded() -> impl Iterator<Item = Signal> {
    let ignored = ignored();
    let heeded = move |signal: &Signal| ignored & (1 << (signal.as_raw() - 1)) == 0;
    PASSED_ON.into_iter().filter(heeded)
}

fn stream(of: Signal) -> io::Result<tokio::signal::unix::Signal> {
    signal(SignalKind::from_raw(of.as_raw()))
}

/// The signals that this process ignores, as a mask: bit 0 is signal 1.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
