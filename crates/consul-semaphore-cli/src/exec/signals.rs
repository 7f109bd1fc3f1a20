//! What this program is told by signals.

use std::{fs, io};

use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// Those that are passed on to the command.
const PASSED_ON: [Signal; 6] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// How many may wait to be passed on.
const QUEUE: usize = 16;

/// The signals that come in.
pub(super) struct Signals(mpsc::Receiver<Signal>);

impl Signals {
    /// Takes signals from now on. Those that whoever started this program has it ignore, as nohup
    /// does, stay ignored. So that nobody stops at a terminal what renews the session, SIGTSTP does
    /// nothing.
    pub(super) fn listen() -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        for passed_on in heeded() {
            let mut stream = stream(passed_on)?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    // Of more than that at once some are lost, as signals are.
                    let _ = sender.try_send(passed_on);
                }
            });
        }
        drop(stream(Signal::TSTP)?);
        Ok(Self(receiver))
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // All of them are ignored.
            None => std::future::pending().await,
        }
    }

    /// Forgets those that have come so far.
    pub(super) fn forget(&mut self) {
        while self.0.try_recv().is_ok() {}
    }

    /// The next one that asks this program to end: there is nobody to pass the others on to.
    pub(super) async fn asks_to_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if signal != Signal::USR1 && signal != Signal::USR2 {
                return signal;
            }
        }
    }
}

/// What is sent to a process group is from now on no matter to this process, which is one of it: neither
/// what is passed on to the command, nor what stops one that uses a terminal. These signals are handled
/// and not ignored: those that are ignored would be ignored by the command too.
pub(super) fn outlive() -> io::Result<()> {
    for sent in heeded().chain([Signal::TSTP, Signal::TTIN, Signal::TTOU]) {
        // Once there is a handler it stays.
        drop(stream(sent)?);
    }
    Ok(())
}

/// Those to pass on, but for those that this process has been started to ignore.
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
