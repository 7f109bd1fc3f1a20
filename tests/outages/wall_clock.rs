//! The wall clock of the operator jumps: it reports a different time, and does nothing else differently.

use std::env;

use testbed::{
    Bed, WallClock,
    proof::{nothing_is_left, runs_in_a_slot},
};

use crate::stage::{Held, calls};

#[tokio::test]
async fn a_wall_clock_that_jumps_changes_only_what_is_shown() {
    let bed = Bed::builder().without_operator().start().await;
    let Some(clock) = WallClock::new(bed.folder()).expect("a clock") else {
        assert!(
            env::var_os("WITHOUT_FAKETIME").is_some(),
            "there is no libfaketime: run `make servers` where apt-get can download it, or set \
             WITHOUT_FAKETIME=1 to leave this test out"
        );
        return;
    };
    let operator = bed.another_operator("jumping", [""; 0], clock.env());
    operator.start().await;
    let team = bed.namespace("wall-clock").await;
    let held = Held::new(&bed, &team, "Suspend", "30s").await;
    let passing = Held::new(&bed, &team, "Suspend", "120s").await;
    let mut last = (
        passing.job.clone(),
        granted_at(&bed, &passing, &passing.grant.session).await,
    );
    // As far back as the age of the API server's certificate.
    for jump in ["+30d", "-50m", "+0"] {
        clock.jump(jump).expect("the clock");
        calls(&operator, "session_renew", "ok", 4.0).await;
        calls(&operator, "kv_watch", "ok", 4.0).await;
        let name = format!("after{}", jump.replace(['+', '-'], "-"));
        let next = team.job(&name).semaphore(passing.db.name()).runs("1h");
        let next = next.create().await;
        next.has_event("SlotWaiting").await;
        last.0.finish().await;
        let grant = runs_in_a_slot(&bed, &passing.db, &next).await;
        let now = granted_at(&bed, &passing, &grant.session).await;
        // Weeks ahead, then weeks and an hour back.
        match jump {
            "+30d" => assert!(now > last.1.clone(), "{now} after {}", last.1),
            "-50m" => assert!(now < last.1.clone(), "{now} after {}", last.1),
            _ => {}
        }
        last = (next, now);
        held.goes_on().await;
    }
    for job in [&held.job, &last.0] {
        job.finish().await;
    }
    for held in [&held, &passing] {
        nothing_is_left(&bed, &team, &held.db).await;
        held.kept_the_limit();
    }
}

/// When a slot was granted, according to its contender: RFC 3339 in UTC, which sorts by time.
async fn granted_at(bed: &Bed, held: &Held, session: &str) -> String {
    let key = format!("{}/{session}", held.db.lock_prefix());
    let contender = bed.consul().kv(&key).await.expect("a contender");
    contender.json()["time"]
        .as_str()
        .expect("a time")
        .to_owned()
}
