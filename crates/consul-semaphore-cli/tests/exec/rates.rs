//! Rates: the limit is on how many commands start in a period.

use crate::stage::Stage;

/// When `exec` started a command, in hundredths of a second since the machine booted: then it made the process that makes
/// the command's, which a busy machine may do later.
const START: &str = r#"note "$(cut -d ' ' -f 22 /proc/$PPID/stat)""#;

#[tokio::test]
async fn no_more_commands_start_in_a_period_than_the_limit_says() {
    const PERIOD: u64 = 400;
    let stage = Stage::new().await;
    let flags = "--mode rate --period 4s --limit 2";
    let mut commands: Vec<_> = (0..5).map(|_| stage.exec(flags, START)).collect();
    for command in &mut commands {
        command.ends_with(0).await;
    }
    let mut starts: Vec<u64> = stage
        .journal()
        .iter()
        .map(|line| line.parse().unwrap())
        .collect();
    starts.sort_unstable();
    assert_eq!(starts.len(), 5);
    for (earlier, later) in starts.iter().zip(&starts[2..]) {
        // The hundredths are rounded down.
        assert!(later - earlier + 1 >= PERIOD, "{starts:?}");
    }
    stage.is_clean().await;
}

#[tokio::test]
async fn a_command_that_runs_on_is_no_holder_any_more() {
    let stage = Stage::new().await;
    let flags = "--mode rate --period 2s --limit 1";
    let mut long = stage.exec(flags, "note long; wait_for end");
    stage.noted("long").await;
    stage.exec(flags, "note short").ends_with(0).await;
    stage.is_clean().await;
    stage.open("end");
    long.ends_with(0).await;
}

#[tokio::test]
async fn a_period_and_the_mode_rate_go_together() {
    let stage = Stage::new().await;
    for (flags, said) in [
        ("--mode rate", "a rate needs a period"),
        ("--period 1m", "a period is only for mode rate"),
        ("--mode rate --period 13h", "from 1s to 43200s"),
        (
            "--mode rate --period 1m --cooldown 1s",
            "--cooldown: the slot of a rate stays held",
        ),
    ] {
        let mut refused = stage.exec(flags, "note never");
        refused.ends_with(2).await;
        assert!(refused.said().contains(said), "{}", refused.said());
    }
    assert!(stage.journal().is_empty());
}
