//! What the program reports about itself: `/livez`, `/readyz`, `/metrics` and its log.

use std::collections::BTreeMap;

use serde_json::json;
use testbed::{Bed, eventually, helpers::metric};

#[tokio::test]
async fn the_endpoints_show_what_was_done() {
    let bed = Bed::shared().await;
    let operator = bed.operator();
    assert_eq!(operator.get("/livez").await.trim(), "ok");
    // A watch that is restarted is reported until an event arrives.
    eventually("all is well", || async {
        let well = "ok\nleader election: operator (this replica) leads\n";
        testbed::same(operator.get("/readyz").await, well.to_owned())
    })
    .await;

    let team = bed.namespace("metrics").await;
    let db = team.semaphore("db").limit(2).create().await;
    let labels = format!("{{namespace=\"{}\",semaphore=\"db\"}}", team.name());
    let figures = || async {
        let page = operator.get("/metrics").await;
        let names = [
            "grants_total",
            "releases_total",
            "losses_total",
            "held_slots",
            "waiting_jobs",
            "idle_slots",
            "limit_slots",
            "wait_seconds_count",
            "hold_seconds_count",
        ];
        let figures = names.map(|name| (name, metric(&page, &format!("{name}{labels}"))));
        BTreeMap::from(figures)
    };
    let mut jobs = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        let job = team.job(name).semaphore("db").runs("1h").create().await;
        if jobs.len() < 2 {
            job.is_running().await;
        }
        jobs.push(job);
    }
    let busy = BTreeMap::from([
        ("grants_total", Some(2.0)),
        ("releases_total", Some(0.0)),
        ("losses_total", Some(0.0)),
        ("held_slots", Some(2.0)),
        ("waiting_jobs", Some(3.0)),
        ("idle_slots", Some(0.0)),
        ("limit_slots", Some(2.0)),
        ("wait_seconds_count", Some(2.0)),
        ("hold_seconds_count", None),
    ]);
    eventually("two hold a slot and three wait", || async {
        testbed::same(figures().await, busy.clone())
    })
    .await;
    let page = operator.get("/metrics").await;
    for name in ["longest_wait_since", "longest_hold_since"] {
        let since = metric(&page, &format!("{name}_timestamp_seconds{labels}"));
        assert!(since > Some(0.0), "{name} in:\n{page}");
    }
    for job in &jobs {
        job.is_running().await;
        job.finish().await;
    }
    let done = BTreeMap::from([
        ("grants_total", Some(5.0)),
        ("releases_total", Some(5.0)),
        ("losses_total", Some(0.0)),
        ("held_slots", Some(0.0)),
        ("waiting_jobs", Some(0.0)),
        ("idle_slots", Some(0.0)),
        ("limit_slots", Some(2.0)),
        ("wait_seconds_count", Some(5.0)),
        ("hold_seconds_count", Some(5.0)),
    ]);
    eventually("all are done", || async {
        testbed::same(figures().await, done.clone())
    })
    .await;

    let page = operator.get("/metrics").await;
    counts_for_all(&page);
    assert!(page.contains("consul_semaphore_operator_build_info{version="));
    let all = format!("wait_seconds_bucket{{le=\"+Inf\",{}", &labels[1..]);
    assert_eq!(metric(&page, &all), Some(5.0), "{page}");
    assert!(page.trim_end().ends_with("# EOF"), "it is OpenMetrics");

    // A deleted semaphore has no metrics.
    db.delete().await;
    db.is_gone().await;
    eventually("its figures are gone", || async {
        let page = operator.get("/metrics").await;
        (!page.contains(team.name())).then_some(()).ok_or(page)
    })
    .await;
}

#[tokio::test]
async fn the_log_has_one_line_for_each_grant_and_release() {
    let bed = Bed::shared().await;
    let team = bed.namespace("log").await;
    let db = team.semaphore("db").limit(1).create().await;
    let mut sessions = Vec::new();
    for name in ["a", "b", "c"] {
        let job = team.job(name).semaphore("db").create().await;
        job.has_event("SlotReleased").await;
        sessions.push((name, job.session().await.expect("its session")));
    }
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
    let logs = bed.operator().logs();
    let of_team = format!("{}/", team.name());
    let mut lines: Vec<_> = logs
        .lines()
        .filter(|line| line.contains(&of_team))
        .collect();
    let semaphore = format!("semaphore={of_team}db");
    for (name, session) in sessions {
        let fields = [
            format!("workload={of_team}{name} "),
            format!("session={session}"),
        ];
        for word in [" granted ", " released "] {
            let about = |line: &str| {
                line.contains(" INFO ")
                    && line.contains(word)
                    && line.contains(&semaphore)
                    && fields.iter().all(|field| line.contains(field))
            };
            assert_eq!(
                lines.iter().filter(|line| about(line)).count(),
                1,
                "{word}of {name} in:\n{}",
                lines.join("\n")
            );
            lines.retain(|line| !about(line));
        }
    }
    // Writing the limit is the only other action, except for retries on a slow server.
    lines.retain(|line| !line.contains(" WARN "));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("limit written"), "{lines:?}");
}

/// The figures that are for all semaphores of the bed.
fn counts_for_all(page: &str) {
    for (name, least) in [
        ("consul_calls_total{kind=\"txn\",result=\"ok\"}", 5.0),
        (
            "consul_calls_total{kind=\"session_create\",result=\"ok\"}",
            5.0,
        ),
        (
            "consul_calls_total{kind=\"session_destroy\",result=\"ok\"}",
            1.0,
        ),
        ("consul_calls_total{kind=\"kv_watch\",result=\"ok\"}", 1.0),
        ("consul_call_duration_seconds_count{kind=\"txn\"}", 5.0),
        ("reconciles_total", 5.0),
        ("reconcile_duration_seconds_count", 5.0),
        ("sessions", 0.0),
        ("events_dropped_total", 0.0),
    ] {
        let value = metric(page, name);
        assert!(value >= Some(least), "{name} is {value:?} in:\n{page}");
    }
}
