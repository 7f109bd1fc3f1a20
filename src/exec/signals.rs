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
        let ignored = ignored();
        let heeded = |signal: &Signal| ignored & (1 << (signal.as_raw() - 1)) == 0;
        for passed_on in PASSED_ON.into_iter().filter(heeded) {
            let mut stream = signal(SignalKind::from_raw(passed_on.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    // Of more than that at once some are lost, as signals are.
                    let _ = sender.try_send(passed_on);
                }
            });
        }
        drop(signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?);
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

/// The signals that this process ignores, as a mask: bit 0 is signal 1.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
