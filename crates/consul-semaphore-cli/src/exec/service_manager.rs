//! Tells systemd how far the command is: `systemctl status` shows what a unit waits for, and a unit of `Type=notify`
//! counts as started once its command runs. The protocol is that of
//! [sd_notify](https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html).

use std::{env, io, mem, sync::Arc, thread, time::Duration};

use consul_client::text::one_line;
use parking_lot::{Condvar, Mutex};
use sd_notify::{NotifyState, notify};

use crate::stderr::Stderr;

/// Longest status that is sent, in characters: `systemctl status` shows one line.
const LONGEST_STATUS: usize = 400;

/// Handle to the service manager that has started this program; `None` if none has. A separate thread sends the news,
/// because this program must not wait for the reader of the socket.
#[derive(Clone, Debug)]
pub(super) struct ServiceManager(Option<Arc<Outbox>>);

/// What the thread still has to send.
#[derive(Debug, Default)]
struct Outbox {
    news: Mutex<News>,
    changed: Condvar,
}

/// The latest news. A newer status replaces one that is not sent yet.
#[derive(Debug, Default)]
struct News {
    status: Option<String>,
    ready: bool,
    /// Whether the thread is sending.
    sending: bool,
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
        let outbox = Arc::new(Outbox::default());
        let (thread, sent, stderr) = (thread::Builder::new(), outbox.clone(), stderr.clone());
        thread
            .name("notify".to_owned())
            .spawn(move || sent.send_all(&stderr))?;
        Ok(Self(Some(outbox)))
    }

    /// Shows what the program does.
    pub(super) fn status(&self, text: &str) {
        let text = one_line(text, LONGEST_STATUS);
        self.add(|news| news.status = Some(text));
    }

    /// Reports that the command runs, so that the unit counts as started.
    pub(super) fn ready(&self) {
        self.add(|news| {
            news.ready = true;
            news.status = Some("the command is running".to_owned());
        });
    }

    /// Waits until everything is sent, but no longer than `limit`.
    pub(super) fn flush_within(&self, limit: Duration) {
        if let Some(outbox) = &self.0 {
            let unsent = |news: &mut News| news.sending || !news.is_empty();
            // What is not sent by then is lost, because nobody reads.
            let _ = outbox
                .changed
                .wait_while_for(&mut outbox.news.lock(), unsent, limit);
        }
    }

    fn add(&self, change: impl FnOnce(&mut News)) {
        if let Some(outbox) = &self.0 {
            change(&mut outbox.news.lock());
            outbox.changed.notify_all();
        }
    }
}

impl Outbox {
    /// Sends what there is, for ever. Reports only the first failure, because each message goes to the same socket.
    fn send_all(&self, stderr: &Stderr) {
        let mut reported = false;
        loop {
            let unsent = self.take();
            if let Err(error) = unsent.send()
                && !mem::replace(&mut reported, true)
            {
                stderr.say(&format!(
                    "systemd can't be notified: {error}. Check NOTIFY_SOCKET"
                ));
            }
            self.news.lock().sending = false;
            self.changed.notify_all();
        }
    }

    /// Waits for news.
    fn take(&self) -> News {
        let mut news = self.news.lock();
        self.changed.wait_while(&mut news, |news| news.is_empty());
        let unsent = mem::take(&mut *news);
        news.sending = true;
        unsent
    }
}

impl News {
    fn is_empty(&self) -> bool {
        self.status.is_none() && !self.ready
    }

    fn send(&self) -> io::Result<()> {
        let ready = self.ready.then_some(NotifyState::Ready);
        let status = self.status.as_deref().map(NotifyState::Status);
        notify(&ready.into_iter().chain(status).collect::<Vec<_>>())
    }
}
