//! Writes to stderr for a program that must not wait for the reader of stderr.

use std::{
    io::{self, Write},
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    thread,
    time::Duration,
};

use tokio::time::Instant;

/// Number of messages that may wait to be written. Further messages are lost.
const QUEUED_MESSAGES: usize = 1024;

/// Interval between checks whether there is room in the queue.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Handle to stderr, which a separate thread writes to. If nobody reads stderr, as at a stopped terminal or a full
/// pipe, only that thread waits. Clones share one queue.
#[derive(Clone, Debug)]
pub(crate) struct Stderr(SyncSender<Message>);

/// Message to the thread that writes.
#[derive(Debug)]
enum Message {
    /// The thread writes this text.
    Text(Vec<u8>),
    /// The thread answers once everything before this message is written.
    Flush(SyncSender<()>),
}

impl Stderr {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(crate) fn start() -> io::Result<Self> {
        Self::to(io::stderr())
    }

    fn to(to: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(QUEUED_MESSAGES);
        let writer = thread::Builder::new().name("stderr".to_owned());
        writer.spawn(move || write(to, &receiver))?;
        Ok(Self(sender))
    }

    /// Writes a message for people.
    pub(crate) fn say(&self, text: &str) {
        self.queue(format!("{}: {text}\n", env!("CARGO_BIN_NAME")).into());
    }

    /// Waits until everything is written, but no longer than `limit`.
    pub(crate) fn flush_within(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let (done, written) = sync_channel(1);
        while let Err(TrySendError::Full(_)) = self.0.try_send(Message::Flush(done.clone())) {
            if Instant::now() >= until {
                return;
            }
            thread::sleep(ROOM_CHECK_INTERVAL);
        }
        let left = until.saturating_duration_since(Instant::now());
        // There is no way to report that the thread did not finish in time.
        let _ = written.recv_timeout(left);
    }

    fn queue(&self, text: Vec<u8>) {
        // The text is lost if nobody reads, because the caller must not wait.
        let _ = self.0.try_send(Message::Text(text));
    }
}

/// Queues each piece of text as it comes, so text that belongs together must be written in one call.
impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.queue(text.to_vec());
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(mut to: impl Write, messages: &Receiver<Message>) {
    for message in messages {
        match message {
            Message::Text(text) => {
                // There is no way to report that this text can't be written.
                let _ = to.write_all(&text);
            }
            Message::Flush(done) => {
                let _ = (to.flush(), done.try_send(()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, pipe};

    use super::*;

    #[test]
    fn what_is_said_is_written_in_order() {
        let (mut reader, writer) = pipe().unwrap();
        let stderr = Stderr::to(writer).unwrap();
        stderr.say("one");
        stderr.clone().write_all(b"two\n").unwrap();
        stderr.flush_within(Duration::from_mins(1));
        drop(stderr);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "consul-semaphore: one\ntwo\n");
    }

    /// The test would never end if anything waited for the reader.
    #[test]
    fn nobody_waits_for_a_reader_who_has_stopped() {
        let (reader, writer) = pipe().unwrap();
        let stderr = Stderr::to(writer).unwrap();
        for _ in 0..2 * QUEUED_MESSAGES {
            stderr.say(&"x".repeat(1024));
        }
        stderr.flush_within(Duration::from_millis(1));
        // The text that was kept is complete.
        drop(stderr);
        let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
        assert!(lines.all(|line| line.ends_with("xxx")));
    }
}
