//! `watch`: shows changes as they happen, in place on a terminal and as lines elsewhere.

use std::{process::Stdio, sync::Arc};

use parking_lot::Mutex;
use serde_json::json;
use testbed::{Bed, PATIENCE, eventually};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdout},
    time::timeout,
};

use crate::{
    stage::{User, installed},
    terminal::Terminal,
};

#[tokio::test]
async fn without_a_terminal_each_change_is_a_line() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-watch").await;
    let user = User::admin(&bed, &team);
    let db = team.semaphore("db").limit(1).create().await;
    db.is_ready().await;
    let mut watch = user.command(
        installed().join("kubectl-csem"),
        &["watch", "db", "-n", team.name()],
    );
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("it starts");
    let said = Said::by(watch.stdout.take().expect("a pipe"));
    let name = format!("{}/db", team.name());
    said.has(&[&name, "held 0/1", "Ready=True"]).await;
    let job = team.job("a").semaphore("db").runs("1h").create().await;
    let a = format!("{}/a", team.name());
    said.has(&[&name, "+ holder", &a]).await;
    said.has(&["event Normal SlotGranted Job/a"]).await;
    job.finish().await;
    said.has(&[&name, "- holder", &a]).await;
    db.delete().await;
    said.has(&[&name, "is gone"]).await;
    end(&mut watch).await;
}

/// The lines that a program has written so far.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn by(program: ChildStdout) -> Self {
        let said = Self::default();
        let into = said.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(program).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                into.0.lock().push(line);
            }
        });
        said
    }

    /// Waits for a line that has all of these words.
    async fn has(&self, words: &[&str]) {
        let what = format!("a line has {words:?}");
        eventually(&what, || async {
            let lines = self.0.lock().clone();
            let found = lines
                .iter()
                .any(|line| words.iter().all(|word| line.contains(word)));
            if found { Ok(()) } else { Err(lines.join("\n")) }
        })
        .await;
    }
}

/// Interrupts the program, as Ctrl-C does.
async fn end(child: &mut Child) {
    let id = child.id().expect("it runs").to_string();
    let interrupted = tokio::process::Command::new("kill")
        .args(["-INT", &id])
        .status()
        .await;
    assert!(interrupted.expect("kill runs").success());
    let status = timeout(PATIENCE, child.wait())
        .await
        .expect("it ends")
        .expect("its status");
    assert_eq!(status.code(), Some(0), "{status}");
}

/// Whether a process handles a signal. No process has this terminal as its own, so its keys send no signals.
fn catches(id: &str, signal: rustix::process::Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.expect("the signals").trim(), 16);
    caught.expect("a mask") >> (signal.as_raw() - 1) & 1 == 1
}

#[tokio::test]
async fn on_a_terminal_a_hand_over_is_redrawn_in_place() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-screen").await;
    let user = User::admin(&bed, &team).set("TERM", "xterm-256color");
    let db = team.semaphore("db").limit(1).create().await;
    let first = team.job("first").semaphore("db").runs("1h").create().await;
    first.is_running().await;
    team.job("second").semaphore("db").runs("1h").create().await;
    db.shows(json!({ "held": 1, "waiting": 1 })).await;

    let terminal = Terminal::open(100, 30);
    let end_of = || terminal.end();
    let mut watch = user.command(
        installed().join("kubectl-csem"),
        &["watch", "db", "-n", team.name()],
    );
    testbed::helpers::shows_who_may_see_it(&mut watch);
    let mut watch = watch
        .stdin(end_of())
        .stdout(end_of())
        .spawn()
        .expect("it starts");
    let shows = |words: [String; 2]| {
        let terminal = &terminal;
        async move {
            let frames = terminal.frames();
            let last = frames.last().cloned().unwrap_or_default();
            let lines = last.split("\r\n");
            let mut found =
                lines.filter(|line| words.iter().all(|word| line.contains(word.as_str())));
            found.next().map(str::to_owned).ok_or(last.clone())
        }
    };
    let holds = |job: &str| shows([format!("{}/{job}", team.name()), "Job".to_owned()]);
    eventually("the first one holds", || holds("first")).await;
    eventually("the second one waits", || {
        shows(["second".to_owned(), "AllSlotsHeld".to_owned()])
    })
    .await;
    first.finish().await;
    eventually("the second one holds", || holds("second")).await;

    // Typed text is not shown, and Ctrl-Z does not leave the shell on this screen.
    terminal.types("typed\n");
    let id = watch.id().expect("it runs").to_string();
    assert!(catches(&id, rustix::process::Signal::TSTP));

    // It has a token of the kubeconfig.
    let id_of_watch = watch.id().expect("it runs");
    assert!(testbed::helpers::memory_is_private(id_of_watch));
    let limits = testbed::helpers::core_limits(id_of_watch);
    let limits: Vec<_> = limits.split_whitespace().collect();
    assert_eq!(limits, ["0", "0", "bytes"]);

    // A smaller terminal gets a smaller frame.
    terminal.resize(40, 5);
    let resized = tokio::process::Command::new("kill")
        .args(["-WINCH", &id])
        .status()
        .await;
    assert!(resized.expect("kill runs").success());
    eventually("the rest is counted", || {
        shows(["lines more".to_owned(), "…".to_owned()])
    })
    .await;
    let last = terminal.frames().pop().expect("a frame");
    assert_eq!(last.split("\r\n").count(), 5, "{last:?}");

    end(&mut watch).await;
    let given_back = || async {
        let text = terminal.text();
        let after = text
            .rsplit_once("\u{1b}[?25h\u{1b}[?1049l")
            .map(|(_, after)| after.to_owned());
        after.filter(|after| after.contains(&format!("{}/second", team.name())))
    };
    eventually(
        "the screen is given back, and what was shown last stays",
        given_back,
    )
    .await;
    let text = terminal.text();
    assert!(!text.contains("typed") && !text.contains("^Z"), "{text:?}");
    assert!(text.starts_with("\u{1b}[?1049h\u{1b}[?25l"), "{text:?}");
    assert!(
        !text.contains("\u{1b}[2J"),
        "it is cleared, which flickers: {text:?}"
    );
    for frame in terminal.frames() {
        assert!(
            frame.starts_with("\u{1b}[H") && frame.ends_with("\u{1b}[J"),
            "{frame:?}"
        );
    }
}
