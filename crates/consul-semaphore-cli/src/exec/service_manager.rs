//! Tells systemd how far the command is, for units of `Type=notify`: `systemctl start` then returns once the command
//! runs in its slots, and `systemctl status` shows what it waits for. The protocol is that of
//! [sd_notify](https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html).

use std::{
    env, io,
    sync::mpsc::{SyncSender, sync_channel},
    thread,
};

use consul_client::text::one_line;
use sd_notify::{NotifyState, notify};

use crate::stderr::Stderr;

/// Number of messages that may wait to be sent. Further messages are lost.
const QUEUED_MESSAGES: usize = 64;

/// Longest status that is sent, in characters: `systemctl status` shows one line.
const LONGEST_STATUS: usize = 400;

/// Handle to the service manager that has started this program. A separate thread sends the messages, because this
/// program must not wait for the reader of the socket.
#[derive(Clone, Debug)]
pub(super) struct ServiceManager(Option<SyncSender<Message>>);

/// Message to the service manager.
#[derive(Debug)]
enum Message {
    /// This is what the program does now.
    Status(String),
    /// The command runs.
    Ready,
    /// The command has ended, and its slots are being given back.
    Stopping,
}

impl ServiceManager {
    /// Starts the thread that sends, if the environment names a service manager. The thread reports on stderr if it
    /// can't send.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn start(stderr: &Stderr) -> io::Result<Self> {
        if env::var_os("NOTIFY_SOCKET").is_none() {
            return Ok(Self(None));
        }
        let (sender, messages) = sync_channel(QUEUED_MESSAGES);
        let (thread, stderr) = (thread::Builder::new(), stderr.clone());
        thread.name("notify".to_owned()).spawn(move || {
            // Once is enough: each message goes to the same socket.
            if let Some(error) = messages.iter().find_map(|message| send(&message).err()) {
                stderr.say(&format!(
                    "systemd can't be notified: {error}. Check NOTIFY_SOCKET"
                ));
            }
        })?;
        Ok(Self(Some(sender)))
    }

    /// Shows what the program does.
    pub(super) fn status(&self, text: &str) {
        self.queue(Message::Status(one_line(text, LONGEST_STATUS)));
    }

    /// Reports that the command runs, so that the unit counts as started.
    pub(super) fn ready(&self) {
        self.queue(Message::Ready);
    }

    /// Reports that the command has ended.
    pub(super) fn stopping(&self) {
        self.queue(Message::Stopping);
    }

    fn queue(&self, message: Message) {
        if let Some(sender) = &self.0 {
            // The message is lost if the service manager reads nothing, because the caller must not wait for it.
            let _ = sender.try_send(message);
        }
    }
}

fn send(message: &Message) -> io::Result<()> {
    match message {
        Message::Status(text) => notify(&[NotifyState::Status(text)]),
        Message::Ready => notify(&[
            NotifyState::Ready,
            NotifyState::Status("the command is running"),
        ]),
        Message::Stopping => notify(&[
            NotifyState::Stopping,
            NotifyState::Status("the command has ended"),
        ]),
    }
}
