use consul_semaphore_workload::Object;
use serde_json::{Value, json, to_value};

use super::*;
use crate::view::{
    queue::queue_of,
    recorded::RecordedEvent,
    samples::{now, recorded, semaphore, workload},
};

/// Returns the answer about the Job `a` with these annotations, as JSON and as text.
fn asked(semaphore: &ConsulSemaphore, more: &Value, events: &[RecordedEvent]) -> (Value, String) {
    let this = workload("a", more);
    let others = ["first", "b", "c"].map(|name| workload(name, &json!({})));
    let workloads: Vec<_> = others.into_iter().chain([this.clone()]).collect();
    let queue = queue_of(semaphore, &workloads, events, 99);
    of(Some(&this), Named::Semaphore(semaphore, &queue))
}

fn of(workload: Option<&TrackedWorkload>, named: Named<'_>) -> (Value, String) {
    said(&WhyFacts {
        namespace: "batch",
        name: &job(),
        workload,
        semaphore: workload.and_then(|workload| workload.semaphores().next().map(AsRef::as_ref)),
        phase: workload.map_or(Phase::Running, |workload| workload.workload.phase),
        is_seen: true,
        advice: None,
        cron_job: None,
        of_kueue: None,
        named,
        gaps: &[],
    })
}

fn job() -> WorkloadName {
    WorkloadName::parse("a").unwrap()
}

fn said(facts: &WhyFacts<'_>) -> (Value, String) {
    let answer = answer(facts);
    (
        to_value(&answer).unwrap(),
        text(&answer, now()).render(false),
    )
}

/// Returns a semaphore with these Jobs in its queue.
fn queued(jobs: &[&str], more: &Value) -> ConsulSemaphore {
    let queue: Value = jobs
        .iter()
        .map(|job| json!({ "kind": "Job", "name": job, "since": "2026-01-01T00:20:00Z" }))
        .collect();
    let mut status = json!({ "waiting": jobs.len(), "queue": queue });
    for (name, value) in more.as_object().unwrap() {
        status[name] = value.clone();
    }
    semaphore(&status)
}

/// Returns a semaphore in whose queue the Job `a` waits for this reason.
fn queued_because(reason: &str, message: &str) -> ConsulSemaphore {
    let queue = json!([{ "kind": "Job", "name": "a", "reason": reason, "message": message }]);
    queued(&["a"], &json!({ "queue": queue }))
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

fn is(answer: &Value, state: &str, reason: &str) {
    assert_eq!(
        [&answer["state"], &answer["reason"]],
        [state, reason],
        "{answer}"
    );
}

/// A `JobSet` waits behind a Job of the same name.
#[test]
fn one_of_another_kind_is_not_mixed_up_with_a_job_of_its_name() {
    let train: Object = serde_json::from_str(
        &json!({
            "metadata": {
                "name": "a", "namespace": "batch", "uid": "uid-set", "resourceVersion": "7",
                "annotations": {
                    "consul-semaphore.io/semaphore": "db", "consul-semaphore.io/priority": "3",
                },
            },
            "spec": { "suspend": true },
            "status": { "conditions": [{ "type": "Suspended", "status": "True" }] },
        })
        .to_string(),
    )
    .unwrap();
    let name = WorkloadName::parse("jobset/a").unwrap();
    let this = name.tracked(&train).unwrap().unwrap();
    let db = queued(
        &[],
        &json!({ "waiting": 2, "queue": [{ "kind": "Job", "name": "a" }, { "kind": "JobSet", "name": "a" }] }),
    );
    let workloads = [workload("a", &json!({})), this.clone()];
    let queue = queue_of(&db, &workloads, &[], 99);
    let mut of_it = WhyFacts {
        namespace: "batch",
        name: &name,
        workload: Some(&this),
        semaphore: Some("db"),
        phase: Phase::Idle,
        is_seen: true,
        advice: None,
        cron_job: None,
        of_kueue: None,
        named: Named::Semaphore(&db, &queue),
        gaps: &[],
    };
    let (answer, text) = said(&of_it);
    is(&answer, "Waiting", "Behind");
    assert_eq!(
        (&answer["kind"], &answer["place"]),
        (&json!("JobSet"), &json!(2))
    );
    assert_eq!(answer["priority"], 3);
    has(
        &text,
        &[
            "JobSet batch/a waits",
            "2 of 2",
            "kubectl csem bump jobset/a 1",
        ],
    );
    of_it.is_seen = false;
    let (answer, text) = said(&of_it);
    is(&answer, "NotQueued", "Unlabelled");
    has(
        &text,
        &["kubectl label jobset a consul-semaphore.io/waits=true"],
    );
    of_it.is_seen = true;
    of_it.phase = Phase::Stopping;
    let hold = json!({ "waiting": 1, "queue": [{ "kind": "Job", "name": "a" }] });
    let db = queued(&[], &hold);
    let queue = queue_of(&db, &workloads, &[], 99);
    of_it.named = Named::Semaphore(&db, &queue);
    let (answer, _) = said(&of_it);
    is(&answer, "NotQueued", "Unseen");
}

#[test]
fn when_a_wait_ends() {
    let blocked = json!([{ "from": "2026-01-01T00:21:00Z", "to": "2026-01-01T00:26:00Z" }]);
    let semaphore = queued(&["a"], &json!({ "blocked": blocked }));
    let timeout = json!({ "consul-semaphore.io/wait-timeout": "1h" });
    let (answer, text) = asked(&semaphore, &timeout, &[]);
    let since = answer["since"]
        .as_str()
        .unwrap()
        .parse::<Timestamp>()
        .unwrap();
    let fails: Timestamp = answer["fails"].as_str().unwrap().parse().unwrap();
    let waits = fails.duration_since(since);
    assert!(waits >= jiff::SignedDuration::from_mins(60), "{answer}");
    has(&text, &["Fails", "or later"]);
    // While nothing can be granted, the time of the failure is not known.
    let lasts = json!([{ "from": "2026-01-01T00:21:00Z" }]);
    let semaphore = queued(&["a"], &json!({ "blocked": lasts }));
    let (answer, _) = asked(&semaphore, &timeout, &[]);
    assert_eq!(answer.get("fails"), None);
    let (answer, _) = asked(&semaphore, &json!({}), &[]);
    assert_eq!(answer.get("fails"), None);
}

#[test]
fn all_of_one_that_waits() {
    let waiter =
        json!({ "session": "s", "kind": "Process", "host": "ci-runner", "name": "deploy" });
    let db = queued(
        &["first", "a", "b"],
        &json!({ "waitingElsewhere": [waiter] }),
    );
    let (answer, text) = asked(&db, &json!({}), &[]);
    assert_eq!(text, include_str!("../expected/why.txt"));
    is(&answer, "Waiting", "Behind");
    assert_eq!(
        (&answer["place"], &answer["queued"]),
        (&json!(2), &json!(3))
    );
    assert_eq!(answer["semaphore"], "db");
    assert_eq!(answer["holders"][0]["name"], "batch/migrate-1");
    assert_eq!(answer["waitingElsewhere"][0]["name"], "deploy");
    assert_eq!(answer["conditions"][0]["type"], "Ready");
}

#[test]
fn what_is_missing_when_it_is_likely_to_start_and_when_the_window_opens() {
    let mut db = queued(&[], &json!({ "windowOpens": "2026-01-01T22:00:00Z" }));
    db.status.as_mut().unwrap().queue = serde_json::from_value(json!([{
        "kind": "Job", "name": "a", "asksFor": "db, licenses:2", "lacks": "licenses:2", "reason": "SlotsKept",
        "message": "it waits for licenses:2; free slots here are kept for it", "expected": "2026-01-01T00:37:00Z",
    }]))
    .unwrap();
    db.spec.windows =
        serde_json::from_value(json!([{ "schedule": "0 22 * * *", "duration": "6h" }])).unwrap();
    let more = json!({ "consul-semaphore.io/semaphore": "db, licenses:2" });
    let (answer, text) = asked(&db, &more, &[]);
    is(&answer, "Waiting", "SlotsKept");
    assert_eq!(answer["lacks"], "licenses:2");
    assert_eq!(answer["expected"], "2026-01-01T00:37:00Z");
    has(
        &text,
        &[
            "Not free          licenses:2\n",
            "Expected          to start in 7m, at 2026-01-01T00:37:00Z, if slots",
            "Windows           closed, the next one opens in 21h, at 2026-01-01T22:00:00Z\n",
            "it waits for licenses:2; free slots here are kept for it",
            "Wait: free slots are kept for it",
        ],
    );
}

#[test]
fn the_first_waits_for_a_holder() {
    let (answer, text) = asked(&queued(&["a", "b"], &json!({})), &json!({}), &[]);
    is(&answer, "Waiting", "AllSlotsHeld");
    has(
        &text,
        &["1 of 2 in the queue", "when a holder gives its slot back"],
    );
}

#[test]
fn what_stops_the_semaphore_is_said_with_the_way_out() {
    let paused = json!({ "conditions": [{
        "type": "Ready", "status": "True", "reason": "Paused", "message": "spec.paused is true",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] });
    let (answer, text) = asked(&queued(&["a"], &paused), &json!({}), &[]);
    is(&answer, "Waiting", "Paused");
    has(
        &text,
        &[
            "Paused: spec.paused is true",
            "True, Paused\n",
            "csem resume db -n batch",
        ],
    );
}

#[test]
fn what_stops_the_semaphore_is_said_once() {
    let message = "the prefix shared/db is not one of this namespace. Nothing is granted";
    let condition = |type_: &str, status: &str, message: &str| {
        json!({
            "type": type_, "status": status, "reason": "PrefixNotAllowed", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let unknown = "unknown while the lock key can't be read";
    let refused = json!({ "conditions": [
        condition("Ready", "False", message),
        condition("ConsulReachable", "Unknown", message),
        condition("LimitAgreed", "Unknown", unknown),
        condition("SlotsAvailable", "Unknown", unknown),
    ] });
    let (answer, text) = asked(&queued(&["a"], &refused), &json!({}), &[]);
    is(&answer, "Waiting", "PrefixNotAllowed");
    assert_eq!(text.matches(message).count(), 1, "{text}");
    assert!(!text.contains(unknown), "{text}");
    has(&text, &["Ready             False, PrefixNotAllowed\n"]);
}

#[test]
fn a_refused_start_is_the_operators_message() {
    let events = [recorded(1, "Job", "a", "uid-a", "StartRefused")];
    let db = queued_because("StartRefused", "its events say what was refused");
    let (answer, text) = asked(&db, &json!({}), &events);
    is(&answer, "Waiting", "StartRefused");
    has(
        &text,
        &["the note of StartRefused", "Correct what refuses the start"],
    );
}

#[test]
fn one_outside_the_queue_has_no_place() {
    let db = queued(&["b"], &json!({}));
    for (annotation, value, reason, words) in [
        (
            "hold",
            "true",
            "OnHold",
            ["is on hold", "csem unhold a -n batch"],
        ),
        (
            "priority",
            "high",
            "Malformed",
            ["whole number", "kubectl edit job a"],
        ),
    ] {
        let more = json!({ (format!("consul-semaphore.io/{annotation}")): value });
        let (answer, text) = asked(&db, &more, &[]);
        is(&answer, "NotQueued", reason);
        has(&text, &words);
        assert_eq!(
            (&answer["place"], &answer["queued"]),
            (&Value::Null, &Value::Null)
        );
    }
    let (answer, text) = asked(&db, &json!({}), &[]);
    is(&answer, "NotQueued", "Unseen");
    has(&text, &["ask an administrator whether an operator runs"]);
}

#[test]
fn each_key_has_a_queue_and_holders() {
    let mut keyed = semaphore(&json!({
        "limit": 1, "keysInUse": 2, "waiting": 3,
        "holders": [
            { "session": "s-1", "key": "k1", "kind": "Job", "cluster": "eu", "namespace": "batch", "name": "x" },
            { "session": "s-2", "key": "k2", "kind": "Job", "cluster": "eu", "namespace": "batch", "name": "y" },
        ],
        "queue": [{ "kind": "Job", "name": "b", "key": "k1" }, { "kind": "Job", "name": "c", "key": "k2" }, { "kind": "Job", "name": "a", "key": "k2" }],
    }));
    keyed.spec.limit = 1;
    keyed.spec.keyed = true;
    let (answer, text) = asked(&keyed, &json!({ "consul-semaphore.io/key": "k2" }), &[]);
    is(&answer, "Waiting", "Behind");
    assert_eq!(
        (&answer["place"], &answer["queued"]),
        (&json!(2), &json!(2))
    );
    has(
        &text,
        &[
            "db, key k2: 2 of 2 in the queue",
            "behind c",
            "batch/y",
            "limit 1 for each",
        ],
    );
    assert!(!text.contains("batch/x"), "{text}");
    let (answer, _) = asked(&keyed, &json!({ "consul-semaphore.io/key": "a/b" }), &[]);
    is(&answer, "NotQueued", "Malformed");
    assert_eq!(answer["queued"], Value::Null);
}

#[test]
fn a_name_of_no_semaphore_is_corrected() {
    let this = workload("a", &json!({}));
    let (answer, text) = of(Some(&this), Named::Missing(&["dbs".to_owned()]));
    is(&answer, "NotQueued", "NoSemaphore");
    has(
        &text,
        &[
            "names the ConsulSemaphore db, which does not exist",
            "The namespace has dbs",
            "consul-semaphore.io/semaphore=NAME --overwrite -n batch",
        ],
    );
    let (_, text) = of(Some(&this), Named::Missing(&[]));
    has(
        &text,
        &["Create the ConsulSemaphore db in the namespace batch"],
    );
}

#[test]
fn one_in_a_queue_of_kueue_waits_as_its_workload_does() {
    let object: Object = serde_json::from_str(
        &json!({
            "metadata": {
                "name": "a", "namespace": "batch", "uid": "uid-a", "resourceVersion": "7",
                "labels": { "kueue.x-k8s.io/queue-name": "team" },
                "annotations": { "consul-semaphore.io/semaphore": "db" },
            },
            "spec": { "suspend": true, "template": {} },
        })
        .to_string(),
    )
    .unwrap();
    let this = job().tracked(&object).unwrap().unwrap();
    let entry = json!({ "kind": "Workload", "name": "job-a-1" });
    let db = queued(&[], &json!({ "waiting": 1, "queue": [entry] }));
    let queue = queue_of(&db, &[], &[], 99);
    let answer = |name: &str, phase| {
        said(&WhyFacts {
            namespace: "batch",
            name: &job(),
            workload: Some(&this),
            semaphore: Some("db"),
            phase,
            is_seen: true,
            advice: None,
            cron_job: None,
            of_kueue: Some(&OfKueue {
                name: name.to_owned(),
                does: "Kueue has not reserved its quota".to_owned(),
            }),
            named: Named::Semaphore(&db, &queue),
            gaps: &[],
        })
    };
    let (waits, _) = answer("job-a-1", Phase::Idle);
    assert_eq!(
        (&waits["state"], &waits["place"]),
        (&json!("Waiting"), &json!(1))
    );
    let (elsewhere, text) = answer("job-a-2", Phase::Idle);
    is(&elsewhere, "NotQueued", "InKueue");
    has(
        &text,
        &[
            "batch/a is in a queue of Kueue",
            "Workload job-a-2: Kueue has not reserved its quota",
            "consul-semaphore.io/slots",
        ],
    );
    let (runs, text) = answer("job-a-2", Phase::Running);
    is(&runs, "Running", "InKueue");
    has(&text, &["batch/a runs without a slot"]);
}

#[test]
fn one_that_does_not_ask_is_told_how() {
    let (answer, text) = of(None, Named::Nothing);
    is(&answer, "NotAnnotated", "NotAnnotated");
    has(
        &text,
        &["batch/a does not ask for a slot", "kubectl annotate job a"],
    );
    let mut misspelt = WhyFacts {
        namespace: "batch",
        name: &job(),
        workload: None,
        semaphore: None,
        phase: Phase::Idle,
        is_seen: true,
        advice: Some("write consul-semaphore.io/semaphore".to_owned()),
        cron_job: None,
        of_kueue: None,
        named: Named::Nothing,
        gaps: &[],
    };
    let (answer, text) = said(&misspelt);
    is(&answer, "NotAnnotated", "AnnotationIgnored");
    has(&text, &["  Write consul-semaphore.io/semaphore\n"]);
    misspelt.advice = None;
    misspelt.cron_job = Some("nightly");
    let (answer, text) = said(&misspelt);
    is(&answer, "NotAnnotated", "AnnotationIgnored");
    has(
        &text,
        &[
            "The CronJob nightly",
            "spec.jobTemplate.metadata.annotations",
        ],
    );
}

#[test]
fn one_that_waits_no_more_is_said_to() {
    let db = queued(&[], &json!({}));
    let queue = queue_of(&db, &[], &[], 99);
    for (phase, state, words) in [
        (
            Phase::Finished { at_rest: true },
            "Finished",
            "batch/a is done",
        ),
        (Phase::Deleting, "Deleting", "batch/a is being deleted"),
        (Phase::Running, "Running", "batch/a runs without a slot"),
    ] {
        let (answer, text) = said(&WhyFacts {
            namespace: "batch",
            name: &job(),
            workload: Some(&workload("a", &json!({}))),
            semaphore: Some("db"),
            phase,
            is_seen: true,
            advice: None,
            cron_job: None,
            of_kueue: None,
            named: Named::Semaphore(&db, &queue),
            gaps: &[],
        });
        assert_eq!(answer["state"], state);
        has(&text, &[words]);
    }
}

#[test]
fn one_that_asks_for_several_slots_is_told_which_ones() {
    let db = queued(&["a"], &json!({}));
    let more = json!({ "consul-semaphore.io/semaphore": "db, licenses:2" });
    let (answer, text) = asked(&db, &more, &[]);
    assert_eq!(answer["asksFor"], "db, licenses:2");
    has(
        &text,
        &["db, licenses:2", "for a slot of ConsulSemaphore db"],
    );
    let two = json!({ "consul-semaphore.io/semaphore": "db:2" });
    let missing = "2 of 2 slots are held, and it asks for 2: 2 more must become free";
    let few = queued_because("TooFewSlotsFree", missing);
    let (answer, text) = asked(&few, &two, &[]);
    is(&answer, "Waiting", "TooFewSlotsFree");
    has(
        &text,
        &[
            "for 2 slots of ConsulSemaphore db",
            "2 more must become free",
        ],
    );
    let (answer, _) = asked(&db, &json!({}), &[]);
    assert!(answer["asksFor"].is_null());
}

#[test]
fn one_that_holds_its_slot_without_a_running_pod_is_told_what_keeps_its_pod() {
    let grant = json!({
        "consul-semaphore.io/granted-to": "uid-a", "consul-semaphore.io/session": "s-1",
        "consul-semaphore.io/lock-key": "semaphores/batch/db/s-1",
    });
    let job = json!({
        "metadata": {
            "name": "a", "namespace": "batch", "uid": "uid-a", "resourceVersion": "7",
            "annotations": { "consul-semaphore.io/semaphore": "db", "consul-semaphore.io/session": "s-1" },
        },
        "spec": { "suspend": false, "template": { "metadata": { "annotations": grant } } },
        "status": { "active": 1 },
    });
    let job = serde_json::from_value(job).unwrap();
    let this = TrackedWorkload::read(&job, consul_client::clock::Moment::default()).unwrap();
    let why = json!({ "reason": "Unschedulable", "message": "no node fits" });
    for (holders, reason, words) in [
        (
            json!([{ "session": "s-1" }]),
            "SlotGranted",
            "it runs in its slot",
        ),
        (
            json!([{ "session": "s-0" }, { "session": "s-1", "notStarted": why }]),
            "NotStarted",
            "with no running pod: Unschedulable: no node fits",
        ),
        (
            json!([{ "session": "s-0", "notStarted": why }, { "session": "s-1" }]),
            "SlotGranted",
            "it runs in its slot",
        ),
    ] {
        let db = queued(&[], &json!({ "holders": holders }));
        let (answer, text) = of(Some(&this), Named::Semaphore(&db, &QueueView::default()));
        is(&answer, "Running", reason);
        has(&text, &[words]);
    }
}
