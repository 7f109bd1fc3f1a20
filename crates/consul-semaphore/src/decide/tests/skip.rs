//! Workloads that must not wait.

use std::sync::Arc;

use super::*;

fn skipped(plan: &Plan) -> Vec<&str> {
    let skips = plan.skips.iter();
    skips.map(|skip| skip.workload.uid.as_ref()).collect()
}

/// A workload that must not wait, of a `CronJob` that scheduled it for this long ago.
fn scheduled(name: &str, before: u64) -> Workload {
    let cron_job = CronJob {
        api_version: "batch/v1".into(),
        kind: "CronJob".into(),
        name: "hourly".into(),
        uid: "c".into(),
        scheduled: samples::time(NOW)
            .checked_sub(Duration::from_secs(before))
            .ok(),
    };
    Workload {
        cron_job: Some(Arc::new(cron_job)),
        ..skippable(name)
    }
}

/// One slot, which another program holds.
fn taken() -> Facts {
    let mut facts = Facts::new(1, &["foreign"]);
    facts.contender("foreign");
    facts
}

#[test]
fn where_all_slots_are_taken_it_is_deleted_and_nothing_is_made_for_it() {
    let mut facts = taken();
    facts.queue(&[skippable("a"), waiting("b")]);
    let plan = facts.decide();
    assert_eq!(skipped(&plan), ["a"]);
    assert_eq!(asks_sessions(&plan), ["b"]);
    let taker = Taker {
        session: "foreign".into(),
        holder: None,
        rests: false,
        cools_until: None,
    };
    let by = Skipped::Taken {
        by: vec![taker],
        others: 0,
    };
    assert_eq!(plan.skips[0].why, by);
}

#[test]
fn dead_holders_that_rest_and_slots_that_cool_are_taken() {
    let mut facts = Facts::new(2, &["sa", "dead"]);
    let done = done("a", "sa");
    facts.ours("sa", &done, false);
    facts.cooldown("sa", 60, Some(NOW + 10)).read_coolings();
    facts.queue(&[skippable("b")]);
    let plan = facts.decide();
    assert_eq!(skipped(&plan), ["b"]);
    let Skipped::Taken { by, .. } = &plan.skips[0].why else {
        panic!("{plan:?}")
    };
    assert_eq!(by[0].cools_until, Some(samples::time(NOW + 10)));
    let named = by[0].holder.as_ref().map(ToString::to_string);
    assert_eq!(named.as_deref(), Some("prod-eu batch/a"));
    assert!(by[1].rests);

    // The dead holder is pruned first, which frees its slot.
    facts.settings.lock_delay = Duration::ZERO;
    let plan = facts.decide();
    assert_eq!(skipped(&plan), [""; 0]);
    assert!(plan.transaction.is_some());
}

#[test]
fn a_skip_workload_waits_while_anything_else_blocks_grants() {
    let obstacles: [fn(&mut Facts); 6] = [
        |facts| facts.settings.paused = true,
        |facts| facts.settings.terminating = true,
        |facts| _ = facts.lock(2, &["foreign", "other"]),
        |facts| _ = facts.raw_lock("garbage"),
        |facts| _ = facts.excluded.barred.insert("a".into()),
        |facts| _ = facts.excluded.busy.insert("a".into()),
    ];
    for (number, obstacle) in obstacles.into_iter().enumerate() {
        let mut facts = taken();
        facts.queue(&[skippable("a")]);
        obstacle(&mut facts);
        assert_eq!(skipped(&facts.decide()), [""; 0], "obstacle {number}");
    }
    let mut facts = taken();
    facts.queue(&[skippable("a")]);
    assert_eq!(skipped(&facts.decide_without_consul()), [""; 0]);
}

#[test]
fn a_reading_older_than_the_workload_is_no_reason_to_skip_it() {
    let mut workload = skippable("a");
    workload.seen = second(READ + 1);
    let mut facts = taken();
    facts.queue(&[workload]);
    let plan = facts.decide();
    assert!(plan.reread && plan.skips.is_empty(), "{plan:?}");
}

#[test]
fn of_two_for_one_slot_one_runs_and_the_other_is_deleted_afterwards() {
    let mut facts = Facts::new(1, &[]);
    facts
        .queue(&[skippable("a"), skippable("b")])
        .session("a", "sa");
    let plan = facts.decide();
    assert_eq!((granted(&plan), skipped(&plan)), (vec!["a"], vec![]));

    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &running("a", "sa"), false);
    facts.queue(&[skippable("b")]);
    assert_eq!(skipped(&facts.decide()), ["b"]);
}

#[test]
fn one_that_had_a_slot_waits_like_any_other() {
    let mut lost = samples::workload("a", Phase::Idle, Some("sa"), None);
    let mut told = samples::workload("b", Phase::Idle, None, Some("sb"));
    let mut facts = taken();
    for workload in [&mut lost, &mut told] {
        workload.on_contention = OnContention::Skip;
    }
    facts.queue(&[lost, told]);
    assert_eq!(skipped(&facts.decide()), [""; 0]);
}

#[test]
fn one_that_comes_too_late_is_deleted_though_a_slot_is_free() {
    let late = |cooldown: u64, before: u64| {
        let mut facts = Facts::new(1, &[]);
        facts.settings.cooldown = Duration::from_secs(cooldown);
        facts.queue(&[scheduled("a", before)]).session("a", "sa");
        let plan = facts.decide();
        let why = plan.skips.first().map(|skip| skip.why.clone());
        (granted(&plan).len(), why)
    };
    let by = |seconds| Some(Skipped::Late(Duration::from_secs(seconds)));
    assert_eq!(late(60, 61), (0, by(61)));
    assert_eq!(late(60, 60), (1, None));
    assert_eq!(late(0, 9_999), (1, None), "there is no cooldown");
}

#[test]
fn one_for_a_time_that_is_to_come_is_not_late() {
    let mut workload = scheduled("a", 0);
    let ahead = samples::time(NOW + 500);
    let cron_job = workload.cron_job.as_mut().map(Arc::make_mut).unwrap();
    cron_job.scheduled = Some(ahead);
    let mut facts = Facts::new(1, &[]);
    facts.settings.cooldown = Duration::from_mins(1);
    facts.queue(&[workload]).session("a", "sa");
    assert_eq!(granted(&facts.decide()), ["a"]);
}
