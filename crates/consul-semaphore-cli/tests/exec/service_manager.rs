//! Messages to systemd, which the tests read from the socket as systemd does.

use std::{cell::RefCell, io::ErrorKind, os::unix::net::UnixDatagram};

use testbed::eventually;

use crate::stage::Stage;

/// The other end of the socket, and all lines that came so far.
struct Systemd {
    socket: UnixDatagram,
    lines: RefCell<Vec<String>>,
}

impl Systemd {
    fn listen(stage: &Stage) -> Self {
        let socket = UnixDatagram::bind(stage.folder().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        let lines = RefCell::default();
        Self { socket, lines }
    }

    /// Waits until a line comes that starts with these words.
    async fn is_told(&self, words: &str) {
        eventually(words, async || {
            self.read();
            let lines = self.lines.borrow();
            let told = lines.iter().any(|line| line.starts_with(words));
            told.then_some(()).ok_or_else(|| lines.join("\n"))
        })
        .await;
    }

    fn has_been_told(&self, line: &str) -> bool {
        self.read();
        self.lines.borrow().iter().any(|known| known == line)
    }

    fn read(&self) {
        let mut message = [0; 4096];
        loop {
            match self.socket.recv(&mut message) {
                Ok(length) => {
                    let text = String::from_utf8(message[..length].to_vec()).unwrap();
                    self.lines
                        .borrow_mut()
                        .extend(text.lines().map(str::to_owned));
                }
                Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}

#[tokio::test]
async fn a_unit_counts_as_started_when_its_command_runs_and_says_what_it_waits_for() {
    let stage = Stage::new().await;
    let systemd = Systemd::listen(&stage);
    let mut first = stage.first("").await;
    let mut unit = stage.command("--quiet", "note unit; wait_for unit");
    unit.env("NOTIFY_SOCKET", stage.folder().join("notify"));
    let mut unit = stage.start(unit);
    systemd
        .is_told("STATUS=waiting for a slot of shared/db: 1 of 1 held, by ")
        .await;
    assert!(!systemd.has_been_told("READY=1"));

    stage.open("first");
    first.ends_with(0).await;
    systemd.is_told("READY=1").await;
    stage.noted("unit").await;
    assert!(!systemd.has_been_told("STATUS=the command has ended"));

    stage.open("unit");
    unit.ends_with(0).await;
    // systemd would soon kill a unit that calls itself stopping, although its slot may have to cool down.
    assert!(systemd.has_been_told("STATUS=the command has ended"));
    assert!(!systemd.has_been_told("STOPPING=1"));
    assert_eq!(unit.said(), "");
}

/// It ends before the thread that sends would have begun.
#[tokio::test]
async fn a_command_that_takes_no_time_has_run_all_the_same() {
    let stage = Stage::new().await;
    let systemd = Systemd::listen(&stage);
    let mut unit = stage.command("", "true");
    unit.env("NOTIFY_SOCKET", stage.folder().join("notify"));
    stage.start(unit).ends_with(0).await;
    assert!(systemd.has_been_told("READY=1"));
}

#[tokio::test]
async fn a_command_runs_although_systemd_can_not_be_notified() {
    let stage = Stage::new().await;
    let mut unit = stage.command("", "wait_for unit");
    unit.env("NOTIFY_SOCKET", stage.folder().join("nobody"));
    let mut unit = stage.start(unit);
    unit.says(
        "systemd can't be notified: No such file or directory (os error 2). Check NOTIFY_SOCKET",
    )
    .await;
    stage.open("unit");
    unit.ends_with(0).await;
}
