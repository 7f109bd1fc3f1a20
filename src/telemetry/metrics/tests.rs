use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::*;

fn lines(metrics: &Metrics, word: &str) -> Vec<String> {
    let page = metrics.encode();
    page.lines()
        .filter(|line| !line.starts_with('#') && line.contains(word))
        .map(str::to_owned)
        .collect()
}

#[test]
fn it_says_which_build_it_is() {
    let build = lines(&Metrics::new(), "build_info");
    let expected = format!(
        "{PREFIX}_build_info{{version=\"{}\",commit=\"{}\"}} 1",
        build::VERSION,
        build::COMMIT
    );
    assert_eq!(build, [expected]);
}

#[test]
fn the_memory_for_consul_is_read_each_time() {
    let metrics = Metrics::new();
    let kept = Arc::new(Mutex::new(5));
    let now = kept.clone();
    metrics.consul().count_memory(64, move || *now.lock());
    for bytes in [5, 7] {
        *kept.lock() = bytes;
        let expected = [
            format!("{PREFIX}_consul_memory_bytes {bytes}"),
            format!("{PREFIX}_consul_memory_limit_bytes 64"),
        ];
        assert_eq!(lines(&metrics, "consul_memory"), expected);
    }
}

#[test]
fn a_failed_pass_is_counted_with_its_reason() {
    let metrics = Metrics::new();
    metrics.pass(Duration::from_millis(3), Ok(()));
    metrics.pass(Duration::from_millis(3), Err("ConsulUnreachable"));
    assert_eq!(
        lines(&metrics, "_reconciles_total"),
        [format!("{PREFIX}_reconciles_total 2")]
    );
    assert_eq!(
        lines(&metrics, "reconcile_errors_total"),
        [format!(
            "{PREFIX}_reconcile_errors_total{{reason=\"ConsulUnreachable\"}} 1"
        )]
    );
    let duration = format!("{PREFIX}_reconcile_duration_seconds");
    assert_eq!(
        lines(&metrics, "duration_seconds_count"),
        [format!("{duration}_count 2")]
    );
    assert!(lines(&metrics, "bucket").contains(&format!("{duration}_bucket{{le=\"0.0025\"}} 0")));
    assert!(lines(&metrics, "bucket").contains(&format!("{duration}_bucket{{le=\"0.005\"}} 2")));
}

#[test]
fn a_semaphores_series_start_at_zero_and_go_when_it_goes() {
    let metrics = Metrics::new();
    let (migrations, reports) = (
        SemaphoreLabels::new("batch", "migrations"),
        SemaphoreLabels::new("batch", "reports"),
    );
    for semaphore in [&migrations, &reports] {
        metrics
            .semaphores()
            .set_counts(semaphore, 5, 1, Some((2, 3)));
        metrics
            .semaphores()
            .set_ready(semaphore, true, "Reconciled");
    }
    let labels = "{namespace=\"batch\",semaphore=\"migrations\"}";
    assert_eq!(
        lines(&metrics, labels),
        [
            format!("{PREFIX}_grants_total{labels} 0"),
            format!("{PREFIX}_releases_total{labels} 0"),
            format!("{PREFIX}_losses_total{labels} 0"),
            format!("{PREFIX}_held_slots{labels} 2"),
            format!("{PREFIX}_waiting_jobs{labels} 5"),
            format!("{PREFIX}_idle_slots{labels} 1"),
            format!("{PREFIX}_limit_slots{labels} 3"),
        ]
    );
    metrics.semaphores().set_counts(&migrations, 5, 0, None);
    let idle = format!("{PREFIX}_idle_slots{labels} 0");
    assert_eq!(lines(&metrics, &format!("_slots{labels}")), [idle]);
    metrics
        .semaphores()
        .granted(&migrations, 2, Duration::from_hours(25));
    metrics
        .semaphores()
        .released(&migrations, Some(Duration::from_hours(2)));
    metrics.semaphores().released(&migrations, None);
    metrics
        .semaphores()
        .ended(&migrations, JobEnd::WaitTimedOut);
    metrics.semaphores().lost(&migrations);
    let grants = format!("{PREFIX}_grants_total{labels} 2");
    assert!(
        lines(&metrics, "grants_total").contains(&grants),
        "slots, not Jobs"
    );
    let minute = Timestamp::from_second(60).ok();
    let times = SemaphoreTimes {
        next_start: minute,
        longest_wait_since: Some(Timestamp::UNIX_EPOCH),
        longest_hold_since: minute,
        longest_start_since: minute,
        ..SemaphoreTimes::default()
    };
    metrics.semaphores().set_times(&migrations, times);
    let shown = [
        ("next_start", 60),
        ("longest_wait_since", 0),
        ("longest_hold_since", 60),
        ("longest_start_since", 60),
    ];
    let shown =
        shown.map(|(name, seconds)| format!("{PREFIX}_{name}_timestamp_seconds{labels} {seconds}"));
    assert_eq!(lines(&metrics, "timestamp"), shown);
    metrics
        .semaphores()
        .set_times(&migrations, SemaphoreTimes::default());
    assert_eq!(lines(&metrics, "timestamp"), [""; 0]);
    assert_eq!(
        lines(&metrics, "wait_seconds_sum"),
        [format!("{PREFIX}_wait_seconds_sum{labels} 90000.0")]
    );
    assert_eq!(
        lines(&metrics, "hold_seconds_sum"),
        [format!("{PREFIX}_hold_seconds_sum{labels} 7200.0")]
    );
    let ended: Vec<_> = lines(
        &metrics,
        "ended_jobs_total{namespace=\"batch\",semaphore=\"mig",
    );
    assert_eq!(ended.len(), JobEnd::ALL.len(), "each from the start on");
    let ended = ended.iter().filter(|line| line.ends_with(" 1"));
    assert!(ended.eq([&format!(
        "{PREFIX}_ended_jobs_total{{namespace=\"batch\",semaphore=\"migrations\",reason=\"WaitTimedOut\"}} 1"
    )]));
    assert!(lines(&metrics, "_total").contains(&format!("{PREFIX}_losses_total{labels} 1")));
    metrics.semaphores().forget(&migrations);
    assert_eq!(lines(&metrics, "migrations"), Vec::<String>::new());
    assert!(!lines(&metrics, "reports").is_empty());
}

#[test]
fn a_semaphore_is_ready_or_not_for_one_reason() {
    let metrics = Metrics::new();
    let semaphore = SemaphoreLabels::new("batch", "db");
    let series = |reason: &str, ready: i64| {
        let labels = format!("namespace=\"batch\",semaphore=\"db\",reason=\"{reason}\"");
        [format!("{PREFIX}_ready{{{labels}}} {ready}")]
    };
    for (ready, reason) in [
        (false, "Starting"),
        (true, "Reconciled"),
        (true, "Reconciled"),
        (false, "NoLeader"),
    ] {
        metrics.semaphores().set_ready(&semaphore, ready, reason);
        assert_eq!(lines(&metrics, "_ready"), series(reason, ready.into()));
    }
    metrics
        .semaphores()
        .set_counts(&semaphore, 1, 0, Some((1, 1)));
    let times = SemaphoreTimes {
        window_opens: Some(Timestamp::UNIX_EPOCH),
        ..SemaphoreTimes::default()
    };
    metrics.semaphores().set_times(&semaphore, times);
    metrics.semaphores().forget_all();
    assert_eq!(lines(&metrics, "batch"), [""; 0]);
}

#[test]
fn calls_and_sessions_and_drops_are_counted() {
    let metrics = Metrics::new();
    metrics
        .consul()
        .called("txn", "conflict", Duration::from_millis(1));
    metrics.consul().set_sessions(4);
    metrics.events_dropped();
    let calls = format!("{PREFIX}_consul_calls_total{{kind=\"txn\",result=\"conflict\"}} 1");
    assert_eq!(lines(&metrics, "consul_calls"), [calls]);
    assert!(
        metrics
            .encode()
            .contains("consul_call_duration_seconds_count{kind=\"txn\"} 1")
    );
    assert_eq!(
        lines(&metrics, "_sessions"),
        [format!("{PREFIX}_sessions 4")]
    );
    assert_eq!(
        lines(&metrics, "dropped"),
        [format!("{PREFIX}_events_dropped_total 1")]
    );
}

#[test]
fn it_says_whether_it_leads() {
    let metrics = Metrics::new();
    assert_eq!(lines(&metrics, "_leader"), [format!("{PREFIX}_leader 0")]);
    metrics.set_leader(true);
    assert_eq!(lines(&metrics, "_leader"), [format!("{PREFIX}_leader 1")]);
}

#[test]
fn it_says_what_the_process_takes() {
    let page = Metrics::new().encode();
    for name in [
        "process_start_time_seconds ",
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
        "process_open_fds ",
    ] {
        assert!(
            page.lines().any(|line| line.starts_with(name)),
            "{name} is not in:\n{page}"
        );
    }
}

#[test]
fn clones_share_one_state() {
    let metrics = Metrics::new();
    metrics.clone().events_dropped();
    assert_eq!(
        lines(&metrics, "dropped"),
        [format!("{PREFIX}_events_dropped_total 1")]
    );
}
