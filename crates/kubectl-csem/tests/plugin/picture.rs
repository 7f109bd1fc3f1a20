//! The output on a terminal. With `UPDATE_PICTURES=1`, this takes the picture in `docs/`.

use std::{env, fs, path::Path};

use serde_json::json;
use testbed::Bed;

use crate::{
    stage::{User, installed},
    terminal::Terminal,
};

#[tokio::test]
async fn on_a_terminal_it_is_in_colour() {
    let bed = Bed::shared().await;
    let team = bed.namespace_named("batch").await;
    let user = User::admin(&bed, &team).set("TERM", "xterm-256color");
    let db = team.semaphore("db-migrations").limit(2).create().await;
    // So that no Job waits for Consul's first answer.
    db.is_ready().await;
    for number in 1..=5 {
        let job = team
            .job(&format!("migrate-{number}"))
            .semaphore("db-migrations");
        let job = job
            .runs("1h")
            .priority(i64::from(number == 5) * 10)
            .create()
            .await;
        if number <= 2 {
            job.is_running().await;
            job.has_event("SlotGranted").await;
        }
    }
    db.shows(json!({ "held": 2, "waiting": 3 })).await;

    let terminal = Terminal::open(132, 40);
    let program = installed().join("kubectl-csem");
    let mut show = user.command(program, &["show", "db-migrations", "-n", "batch"]);
    show.stdin(terminal.end())
        .stdout(terminal.end())
        .stderr(terminal.end());
    assert!(show.status().await.expect("it runs").success());
    drop(show);
    let written = terminal.close().replace("\r\n", "\n");
    let command = "$ kubectl csem show db-migrations -n batch";
    let shown = format!("{command}\n{written}");
    let picture = anstyle_svg::Term::new().render_svg(&shown);
    // Terminals dim less than the library does.
    let (faint, dim) = ("opacity: 0.4;", "opacity: 0.7;");
    assert!(picture.contains(faint), "{picture}");
    let picture = picture.replace(faint, dim);
    for word in ["migrate-5", "AllSlotsHeld", "SlotGranted"] {
        assert!(picture.contains(word), "{word} is not in: {shown}");
    }
    assert!(shown.contains("\u{1b}["), "{shown}");
    if env::var_os("UPDATE_PICTURES").is_some() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        fs::write(docs.join("plugin.svg"), picture).expect("the picture");
    }
}
