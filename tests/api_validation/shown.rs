//! What people see: the status, the columns and the explanations.

use consul_semaphore::ContenderName;
use consul_semaphore_api::{
    BlockedStatus, ConsulSemaphoreStatus, HolderStatus, NotStartedStatus, QueueStatus,
    WaiterStatus,
    conditions::{self, ConditionType, Finding, Reason},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde_json::json;
use testbed::{ApiServer, eventually};
use tokio::process::Command;

use crate::semaphores::Semaphores;

pub(crate) async fn is_what_the_operator_reports(api: &Semaphores, server: &ApiServer) {
    keeps_the_status(api).await;
    shows_columns(api, server).await;
    explains_fields(server).await;
}

/// The status that the operator applies is stored completely, and fields that it omits the next time are removed.
async fn keeps_the_status(api: &Semaphores) {
    let name = api.accept(json!({ "limit": 3 })).await.name_any();
    for status in [a_status(), ConsulSemaphoreStatus::default()] {
        let written = api.apply_status(&name, &status).await;
        assert_eq!(written.status, Some(status));
        assert_eq!(
            written.metadata.generation,
            Some(1),
            "a status is no change of the spec"
        );
    }
}

async fn shows_columns(api: &Semaphores, server: &ApiServer) {
    let name = api.accept(json!({ "limit": 3 })).await.name_any();
    api.apply_status(&name, &a_status()).await;
    let table = kubectl(server, &["get", "csem", &name])
        .await
        .expect("a table");
    let rows: Vec<Vec<_>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows[0],
        [
            "NAME", "LIMIT", "HELD", "WAITING", "KEYS", "READY", "REASON", "AGE"
        ],
        "{table}"
    );
    assert_eq!(
        rows[1][..7],
        [&name, "3", "4", "5", "1", "False", "LimitConflict"],
        "{table}"
    );

    let wide = kubectl(server, &["get", "csem", &name, "--output=wide"])
        .await
        .expect("a table");
    assert!(
        wide.contains("MODE") && wide.contains("Semaphore"),
        "{wide}"
    );

    let names = kubectl(server, &["get", "consul", "--output=name"])
        .await
        .expect("the category");
    assert!(
        names.contains(&format!("consulsemaphore.consul-semaphore.io/{name}")),
        "{names}"
    );
}

async fn explains_fields(server: &ApiServer) {
    for (field, words) in [
        (
            "csem",
            "A semaphore in Consul for the Jobs of this namespace.",
        ),
        ("csem.spec.limit", "The number of slots, from 1 to 5000."),
        ("csem.spec.limitPolicy", "ENUM: Refuse Enforce"),
        (
            "csem.spec.prefix",
            "The default is semaphores/<namespace>/<name>.",
        ),
        (
            "csem.spec.session.ttl",
            "from 10s to 24h, such as 120s, 2m or 1h30m.",
        ),
        ("csem.spec.consul.namespace", "Needs Consul Enterprise"),
        (
            "csem.status.queue.since",
            "Time at which the workload was queued.",
        ),
    ] {
        // The schema for `explain` is published a moment after the resource.
        let args = ["explain", field];
        let text = eventually("the field is explained", || kubectl(server, &args)).await;
        let text: Vec<_> = text.split_whitespace().collect();
        assert!(
            text.join(" ").contains(words),
            "{field}: {}",
            text.join(" ")
        );
    }
}

/// The output of kubectl; its error if it fails.
async fn kubectl(server: &ApiServer, args: &[&str]) -> Result<String, String> {
    let kubeconfig = server.kubeconfig();
    let output = Command::new(testbed::server("kubectl").expect("kubectl"))
        .args(args)
        .arg("--request-timeout=30s")
        .env_clear()
        .env("KUBECONFIG", kubeconfig)
        // Where kubectl looks for settings, and caches what it has learned about the server.
        .env("HOME", kubeconfig.parent().expect("a folder"))
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| error.to_string())?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

fn a_status() -> ConsulSemaphoreStatus {
    let now = Timestamp::from_second(1_800_000_000).expect("a time");
    let findings = [
        Finding::new(
            ConditionType::Ready,
            false,
            Reason::LimitConflict,
            "Consul holds limit 4",
        ),
        Finding::new(
            ConditionType::ConsulReachable,
            true,
            Reason::Reachable,
            "Consul answers",
        ),
    ];
    let known = HolderStatus {
        slot_index: None,
        slot_name: None,
        session: "s-1".to_owned(),
        key: Some("customer-42".to_owned()),
        holder: ContenderName {
            kind: Some("Job".to_owned()),
            cluster: Some("prod-eu".to_owned()),
            namespace: Some("batch".to_owned()),
            name: Some("migrate".to_owned()),
            ..ContenderName::default()
        },
        since: Some(Time(now)),
        never_expires: false,
        cools_until: None,
        not_started: Some(NotStartedStatus {
            reason: "ImagePullBackOff".to_owned(),
            message: Some("Back-off pulling image".to_owned()),
        }),
    };
    let unknown = HolderStatus {
        slot_index: None,
        slot_name: None,
        session: "s-2".to_owned(),
        key: None,
        holder: ContenderName::default(),
        since: None,
        never_expires: false,
        cools_until: None,
        not_started: None,
    };
    ConsulSemaphoreStatus {
        observed_generation: Some(1),
        limit: Some(4),
        window_limit: Some(2),
        window_opens: Some(Time(now)),
        applied_limits: vec![3],
        fencing_token: Some(i64::MAX),
        held: 4,
        held_here: 2,
        waiting: 5,
        holders: vec![known, unknown],
        keys_in_use: Some(1),
        queue: vec![QueueStatus {
            key: Some("customer-42".to_owned()),
            kind: "JobSet".to_owned(),
            name: "migrate-2".to_owned(),
            slots: Some(2),
            asks_for: Some("db-migrations, licenses:2".into()),
            lacks: Some("licenses:2".into()),
            reason: Some("PassedOver".into()),
            message: Some("it waits for licenses:2".into()),
            since: Some(Time(now)),
            expected: Some(Time(now)),
        }],
        waiting_elsewhere: vec![WaiterStatus {
            session: "s-3".to_owned(),
            key: None,
            waiter: ContenderName {
                kind: Some("Program".to_owned()),
                host: Some("ci-runner".to_owned()),
                node: Some("web-1".to_owned()),
                name: Some("deploy".to_owned()),
                ..ContenderName::default()
            },
        }],
        operators: vec!["replica-1".to_owned()],
        blocked: vec![BlockedStatus {
            from: Time(now),
            to: None,
        }],
        counted_to: Some(Time(now)),
        conditions: conditions::merge(&[], &findings, Some(1), now),
    }
}
