//! A few hand-overs among everything that uses Consul. `make interop` has more of them.
#![allow(clippy::expect_used, reason = "a test that cannot go on says so")]

use std::{path::Path, time::Duration};

use faults::interop::{Options, run};

#[tokio::test(flavor = "multi_thread")]
async fn sixty_hand_overs_among_all_who_speak_consul() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("short-interop");
    let options = Options {
        hand_overs: 60,
        rest: Duration::from_millis(400),
        folder,
        east_operator: None,
        python: None,
    };
    let outcome = run(&options).await.expect("it comes to its end");
    assert!(outcome.is_good(), "{}", outcome.report());
    assert!(outcome.hand_overs() >= 60, "{}", outcome.report());
    for kind in ["cli", "east", "exec", "go", "library", "west"] {
        let turns = outcome.turns.get(kind);
        let had = turns.is_some_and(|turns| !turns.waits.is_empty());
        assert!(had, "{kind} had no slot: {}", outcome.report());
    }
}
