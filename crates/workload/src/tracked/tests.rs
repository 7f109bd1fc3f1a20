use consul_semaphore::{Granted, Phase, Termination, plan::Stop};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{Object, read::SCHEDULED};

proptest! {
    /// A workload may be in any state that a controller can leave behind. Either what is read of it makes sense, or
    /// nothing is read.
    #[test]
    fn any_workload_is_read(
        on_job in texts_for_all(),
        on_template in texts_for_all(),
        word in hostile::text(),
        numbers in prop::collection::vec(any::<i32>(), 3),
        seconds: i64,
        suspend: Option<bool>,
        left_out in prop::collection::btree_set(0..6_usize, 0..3),
    ) {
        let mut workload = waiting(|workload| {
            workload["metadata"]["annotations"] = on_job.into();
            workload["spec"]["suspend"] = json!(suspend);
            workload["spec"]["managedBy"] = json!((numbers[0] % 2 == 0).then_some(&word));
            let mut on_template = on_template;
            if numbers[1] % 2 == 0 {
                on_template.insert(annotations::GRANTED_TO.to_owned(), json!("u"));
            }
            workload["spec"]["template"] = json!({
                "metadata": { "annotations": on_template },
                "spec": { "containers": [], "terminationGracePeriodSeconds": seconds },
            });
            workload["status"]["active"] = json!(numbers[0]);
            workload["status"]["terminating"] = json!(numbers[2]);
            workload["status"]["conditions"][0]["type"] = json!(word);
        });
        let parts = ["/metadata/name", "/metadata/uid", "/metadata/annotations", "/spec", "/status", "/metadata/namespace"];
        for part in left_out {
            *workload.pointer_mut(parts[part]).unwrap() = Value::Null;
        }
        if let Some(workload) = read(workload) {
            prop_assert!(!workload.workload.requests.is_empty() || workload.workload.granted.is_some() || workload.obstacle.is_some());
            prop_assert!(workload.obstacle.is_none() || workload.workload.requests.is_empty());
        }
    }
}

/// Generates a text for each of the known names.
fn texts_for_all() -> impl Strategy<Value = serde_json::Map<String, Value>> {
    let names: Vec<_> = annotations::OF_USERS
        .into_iter()
        .chain(annotations::OF_THE_OPERATOR)
        .map(str::to_owned)
        .collect();
    let texts = prop::collection::vec(hostile::text(), names.len());
    texts.prop_map(move |texts| {
        let texts = texts.into_iter().map(Value::from);
        names.iter().cloned().zip(texts).collect()
    })
}

fn read(value: Value) -> Option<TrackedWorkload> {
    TrackedWorkload::read(&serde_json::from_value(value).unwrap(), Moment::default())
}

/// Returns a workload that waits, with these changes.
fn waiting(change: impl FnOnce(&mut Value)) -> Value {
    let mut workload = json!({
        "metadata": {
            "name": "a", "namespace": "batch", "uid": "u", "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:10Z",
            "annotations": { "consul-semaphore.io/semaphore": "db" },
        },
        "spec": { "suspend": true, "template": { "metadata": { "annotations": {} } } },
        "status": {
            "conditions": [{
                "type": "Suspended", "status": "True",
                "lastTransitionTime": "2026-01-01T00:01:00Z",
            }],
        },
    });
    change(&mut workload);
    workload
}

#[test]
fn a_workload_that_asks_for_nothing_is_not_kept() {
    assert_eq!(
        read(waiting(
            |workload| workload["metadata"]["annotations"] = json!({})
        )),
        None
    );
}

#[test]
fn a_waiting_workload() {
    let workload = read(waiting(|_| {})).unwrap();
    assert_eq!(workload.obstacle, None);
    assert_eq!(workload.workload.requests, [SlotRequest::one("db", None)]);
    assert_eq!(workload.workload.phase, Phase::Idle);
    assert!(workload.workload.is_queued());
    // 2026-01-01T00:00:10Z
    assert_eq!(workload.workload.since, 1_767_225_610);
}

#[test]
fn one_that_had_a_slot_is_in_line_since_it_was_suspended() {
    let workload = waiting(|workload| {
        workload["metadata"]["annotations"]["consul-semaphore.io/session"] = json!("s");
    });
    assert_eq!(read(workload).unwrap().workload.since, 1_767_225_660);
}

#[test]
fn one_that_gave_its_slots_back_before_it_was_started_keeps_its_place_and_its_wait() {
    let recorded = |since: &str| {
        let workload = waiting(|workload| {
            let known = &mut workload["metadata"]["annotations"];
            known[annotations::SESSION] = json!("s");
            known[annotations::WAITS_SINCE] = json!(since);
        });
        read(workload).unwrap().workload
    };
    let workload = recorded("2026-01-01T00:00:10Z");
    assert_eq!(workload.since, 1_767_225_610);
    assert_eq!(workload.waits_since(), Some(1_767_225_610));
    assert_eq!(recorded("OnHold").waits_since(), None);
    let forged = recorded("soon");
    assert!(forged.may_have_been_started());
}

#[test]
fn a_job_that_was_made_to_fail_is_left_alone_while_it_gets_no_pods() {
    let failing = |parallelism: i32, suspend: bool| {
        let tracked = read(waiting(|workload| {
            workload["metadata"]["annotations"][annotations::FAILED] = json!("WaitTimedOut");
            workload["spec"]["suspend"] = json!(suspend);
            workload["spec"]["parallelism"] = json!(parallelism);
            workload["status"] = json!({ "conditions": [] });
        }));
        let workload = tracked.unwrap().workload;
        (
            workload.phase,
            Stop::of(&workload).is_some(),
            workload.wait.failing,
        )
    };
    let immediate = Some(Termination::Immediate);
    assert_eq!(failing(0, false), (Phase::Stopping, false, immediate));
    assert_eq!(
        failing(1, false),
        (Phase::Running, true, immediate),
        "it is suspended"
    );
    // A copy of the workload is like any other suspended workload.
    let copy = read(waiting(|workload| {
        workload["metadata"]["annotations"][annotations::FAILED] = json!("WaitTimedOut");
        workload["spec"]["parallelism"] = json!(0);
    }));
    assert!(copy.unwrap().workload.is_queued());
}

#[test]
fn a_job_that_is_not_to_wait_knows_its_cron_job() {
    let made = |change: fn(&mut Value)| {
        let workload = waiting(|workload| {
            workload["metadata"]["annotations"] = json!({
                "consul-semaphore.io/semaphore": "db",
                "consul-semaphore.io/on-contention": "Skip",
                SCHEDULED: "2026-01-01T01:00:10+01:00",
            });
            workload["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "batch/v1", "kind": "CronJob", "name": "hourly", "uid": "c",
                "controller": true,
            }]);
            change(workload);
        });
        read(workload).unwrap().workload.cron_job.clone()
    };
    let hourly = made(|_| {}).unwrap();
    assert_eq!((hourly.name.as_str(), hourly.uid.as_str()), ("hourly", "c"));
    let scheduled = hourly.scheduled.map(jiff::Timestamp::as_second);
    assert_eq!(scheduled, Some(1_767_225_610));
    let unreadable =
        made(|workload| workload["metadata"]["annotations"][SCHEDULED] = json!("noon"));
    assert_eq!(unreadable.unwrap().scheduled, None);
    let other =
        made(|workload| workload["metadata"]["ownerReferences"][0]["kind"] = json!("Other"));
    assert_eq!(other, None);
    let hourly = made(|workload| {
        let owner = &mut workload["metadata"]["ownerReferences"][0];
        owner["apiVersion"] = json!("argoproj.io/v1alpha1");
        owner["kind"] = json!("CronWorkflow");
    });
    let hourly = hourly.unwrap();
    assert_eq!(
        (&*hourly.api_version, &*hourly.kind, hourly.scheduled),
        ("argoproj.io/v1alpha1", "CronWorkflow", None)
    );
}

#[test]
fn standings() {
    let condition = |type_: &str| json!([{ "type": type_, "status": "True" }]);
    for (field, value, expected) in [
        ("/status", json!({}), Phase::Stopping),
        ("/status/active", json!(1), Phase::Stopping),
        ("/status/terminating", json!(1), Phase::Stopping),
        (
            "/status/startTime",
            json!("2026-01-01T00:00:10Z"),
            Phase::Stopping,
        ),
        (
            "/status/conditions",
            condition("Complete"),
            Phase::Finished { at_rest: true },
        ),
        (
            "/status/conditions",
            condition("Failed"),
            Phase::Finished { at_rest: true },
        ),
        (
            "/status/conditions",
            condition("SuccessCriteriaMet"),
            Phase::Stopping,
        ),
        (
            "/metadata/deletionTimestamp",
            json!("2026-01-01T00:00:10Z"),
            Phase::Deleting,
        ),
    ] {
        let workload = waiting(|workload| {
            let (parent, name) = field.rsplit_once('/').unwrap();
            let parent = if parent.is_empty() {
                workload
            } else {
                workload.pointer_mut(parent).unwrap()
            };
            parent[name] = value.clone();
        });
        assert_eq!(
            read(workload).unwrap().workload.phase,
            expected,
            "{field} {value}"
        );
    }
}

/// Before Kubernetes 1.36 a suspended Job keeps its start time.
#[test]
fn a_suspended_job_is_asked_about_while_it_has_a_start_time() {
    let suspended = |change: fn(&mut Value)| {
        let workload = waiting(|workload| {
            workload["status"]["startTime"] = json!("2026-01-01T00:00:10Z");
            change(workload);
        });
        read(workload).unwrap().may_have_pods()
    };
    assert!(suspended(|_| {}));
    assert!(!suspended(
        |workload| workload["status"]["active"] = json!(1)
    ));
    assert!(!suspended(
        |workload| workload["spec"]["suspend"] = json!(false)
    ));
    assert!(!suspended(|workload| {
        workload["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
    }));
    assert!(!read(waiting(|_| {})).unwrap().may_have_pods());
}

#[test]
fn unsuspended_by_someone_it_runs_once_its_status_shows_it() {
    let unsuspended = |change: fn(&mut Value)| {
        let workload = waiting(|workload| {
            workload["spec"]["suspend"] = json!(false);
            change(workload);
        });
        read(workload).unwrap().workload.phase
    };
    assert_eq!(unsuspended(|_| {}), Phase::Stopping);
    let shown =
        unsuspended(|workload| workload["status"]["conditions"][0]["status"] = json!("False"));
    assert_eq!(shown, Phase::Running);
    // A Job that was made running was never at rest, and a Job that a grant started is no longer at rest.
    assert_eq!(
        unsuspended(|workload| workload["status"] = json!({})),
        Phase::Running
    );
    let granted = unsuspended(|workload| {
        workload["spec"]["template"]["metadata"]["annotations"] = json!({
            "consul-semaphore.io/granted-to": "u",
            "consul-semaphore.io/lock-key": "p/s",
            "consul-semaphore.io/session": "s",
        });
    });
    assert_eq!(granted, Phase::Running);
}

/// The status of such a Job may be from before its start, so the Job may have pods all the same.
#[test]
fn a_suspended_job_that_lost_its_slot_may_have_pods() {
    let suspended = |change: fn(&mut Value)| {
        let workload = waiting(|workload| {
            workload["spec"]["template"]["metadata"]["annotations"] = json!({
                "consul-semaphore.io/granted-to": "u",
                "consul-semaphore.io/lock-key": "p/s",
                "consul-semaphore.io/session": "s",
            });
            change(workload);
        });
        read(workload).unwrap()
    };
    let lost = suspended(|_| {});
    assert!(lost.workload.phase == Phase::Idle && lost.may_have_pods());
    // The status counts the pods.
    assert!(!suspended(|workload| workload["status"]["active"] = json!(1)).may_have_pods());
    // The user suspended the Job, so its contender stays until a LIST shows that no pod is left.
    let by_its_user = suspended(|workload| {
        workload["metadata"]["annotations"][annotations::SESSION] = json!("s");
    });
    assert!(!by_its_user.may_have_pods());
}

#[test]
fn only_a_grant_made_for_this_workload_counts() {
    let granted_to = |uid: &str| {
        waiting(|workload| {
            workload["spec"]["template"]["metadata"]["annotations"] = json!({
                "consul-semaphore.io/granted-to": uid,
                "consul-semaphore.io/lock-key": "p/s",
                "consul-semaphore.io/session": "s",
            });
        })
    };
    let granted = Granted::by("p/s", "s");
    assert_eq!(
        read(granted_to("u")).unwrap().workload.granted,
        Some(granted)
    );
    assert_eq!(
        read(granted_to("the original's")).unwrap().workload.granted,
        None
    );
}

#[test]
fn one_of_another_manager_is_not_in_line() {
    for (field, value) in [
        (
            "/metadata/labels",
            json!({ "kueue.x-k8s.io/queue-name": "q" }),
        ),
        ("/spec/managedBy", json!("example.com/other")),
    ] {
        let workload = waiting(|workload| {
            let (parent, name) = field.rsplit_once('/').unwrap();
            workload.pointer_mut(parent).unwrap()[name] = value.clone();
        });
        let workload = read(workload).unwrap();
        assert!(
            matches!(workload.obstacle, Some(Obstacle::Managed(_))),
            "{field}"
        );
        assert!(!workload.workload.is_queued());
        assert!(workload.names("db"), "{field}");
    }
    let workload =
        waiting(|workload| workload["spec"]["managedBy"] = json!("kubernetes.io/job-controller"));
    assert_eq!(read(workload).unwrap().obstacle, None);
}

#[test]
fn a_malformed_annotation_is_kept_with_its_error() {
    let workload = waiting(|workload| {
        workload["metadata"]["annotations"]["consul-semaphore.io/priority"] = json!("high");
    });
    let workload = read(workload).unwrap();
    assert!(matches!(workload.obstacle, Some(Obstacle::Malformed(_))));
    assert!(!workload.workload.is_queued());
    assert!(workload.names("db"));
}

/// The controller of a `JobSet` suspends and unsuspends its Jobs. Other owners of Jobs leave that to others.
#[test]
fn a_job_of_a_job_set_is_its_job_sets() {
    let made_by = |api_version: &str, kind: &str| {
        let read = read(waiting(|workload| {
            workload["metadata"]["ownerReferences"] = json!([{
                "apiVersion": api_version, "kind": kind, "name": "set", "uid": "o", "controller": true,
            }]);
        }));
        read.unwrap().obstacle
    };
    let owned = Some(Obstacle::Owned("JobSet set".to_owned()));
    assert_eq!(made_by("jobset.x-k8s.io/v1alpha2", "JobSet"), owned);
    assert_eq!(
        made_by("example.com/v1", "JobSet"),
        None,
        "another kind of that name"
    );
    assert_eq!(made_by("argoproj.io/v1alpha1", "Workflow"), None);
}

#[test]
fn no_text_of_others_is_kept_at_any_length() {
    let large = "x".repeat(1 << 20);
    let with = |text: &str| {
        read(waiting(|workload| {
            workload["metadata"]["annotations"] = json!({
                annotations::SEMAPHORE: "db", annotations::SESSION: text,
                annotations::ON_CONTENTION: "Skip",
            });
            workload["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "batch/v1", "kind": "CronJob", "name": text, "uid": text, "controller": true,
            }]);
            workload["spec"]["template"]["metadata"]["annotations"] = json!({
                annotations::GRANTED_TO: "u", annotations::LOCK_KEY: format!("p/{text}"),
                annotations::SESSION: text,
            });
        }))
    };
    let workload = with("short").unwrap().workload;
    assert!(
        !workload.reported.is_empty() && workload.granted.is_some() && workload.cron_job.is_some()
    );
    let workload = with(&large).unwrap().workload;
    assert_eq!(
        (&workload.reported[..], &workload.granted),
        (&[][..], &None)
    );
    assert_eq!(workload.cron_job, None);
}

#[test]
fn one_that_names_a_semaphore_is_read_also_if_it_is_not_in_the_queue() {
    let with = |name: &str, value: &str| {
        let name = format!("consul-semaphore.io/{name}");
        read(waiting(|workload| {
            workload["metadata"]["annotations"][name] = value.into();
        }))
        .unwrap()
    };
    let plain = read(waiting(|_| {})).unwrap();
    assert!(plain.names("db") && !plain.names("other"));
    assert_eq!(plain.obstacle_in("db", false), None);
    let no_key = plain.obstacle_in("db", true).unwrap();
    assert_eq!(
        (no_key.reason(), &no_key),
        ("Malformed", &Obstacle::NoKey("db".into()))
    );
    assert!(no_key.to_string().contains(annotations::KEY), "{no_key}");

    let keyed = with("key", "k1");
    assert_eq!(
        (
            keyed.obstacle_in("db", false),
            keyed.obstacle_in("db", true)
        ),
        (None, None)
    );
    let bad_key = with("key", "a/b");
    assert_eq!(bad_key.obstacle_in("db", false), None);
    let why = bad_key.obstacle_in("db", true).unwrap();
    assert!(
        why.reason() == "Malformed" && why.to_string().contains("a/b"),
        "{why}"
    );

    let malformed = with("priority", "high");
    let why = malformed.obstacle_in("db", true).unwrap();
    assert!(
        why.reason() == "Malformed" && why.to_string().contains("whole number"),
        "{why}"
    );

    let managed = read(waiting(|workload| {
        workload["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue".into();
    }));
    let managed = managed.unwrap();
    let why = managed.obstacle_in("db", true).unwrap();
    assert!(managed.is_managed() && managed.names("db"));
    assert!(
        why.reason() == "ManagedElsewhere" && why.to_string().contains("multikueue"),
        "{why}"
    );
}

#[test]
fn a_list_of_semaphores_is_read_with_the_key_for_those_without_one() {
    let tracked = read(waiting(|workload| {
        let annotations = &mut workload["metadata"]["annotations"];
        annotations["consul-semaphore.io/semaphore"] = "db, tasks/a:2, other".into();
        annotations["consul-semaphore.io/key"] = "k1".into();
    }))
    .unwrap();
    let requests = tracked.workload.requests.iter();
    let asked: Vec<String> = requests.map(ToString::to_string).collect();
    assert_eq!(asked, ["db/k1", "tasks/a:2", "other/k1"]);
    for (semaphore, keyed, expected) in [
        ("db", true, None),
        ("db", false, None),
        ("tasks", true, None),
        ("tasks", false, Some(Obstacle::NotKeyed("tasks".into()))),
    ] {
        assert_eq!(
            tracked.obstacle_in(semaphore, keyed),
            expected,
            "{semaphore}"
        );
    }
}

#[test]
fn the_slots_in_the_template_are_read_if_they_can_be_real() {
    let with = |slots: &str| {
        let tracked = read(waiting(|workload| {
            workload["spec"]["template"]["metadata"]["annotations"] = json!({
                "consul-semaphore.io/granted-to": "u",
                "consul-semaphore.io/lock-key": "p/s1",
                "consul-semaphore.io/session": "s1",
                "consul-semaphore.io/slots": slots,
            });
        }));
        tracked.unwrap().workload.granted.clone()
    };
    let slot = |key: &str, session: &str| {
        format!(r#"{{"lockKey":"{key}","session":"{session}","lockIndex":1,"fencingToken":7}}"#)
    };
    let granted = with(&format!("[{},{}]", slot("p/s1", "s1"), slot("q/s2", "s2"))).unwrap();
    let two: Vec<_> = granted
        .slots
        .iter()
        .map(|slot| (&*slot.lock_key, slot.session.as_str()))
        .collect();
    assert_eq!(two, [("p/.lock", "s1"), ("q/.lock", "s2")]);
    let long = "x".repeat(5000);
    for slots in [
        "",
        "[]",
        "{}",
        "[1]",
        &format!("[{}]", slot(&long, "s")),
        &" ".repeat(1_000_000),
    ] {
        assert_eq!(with(slots), None);
    }
}

#[test]
fn what_a_workload_does_is_read_whatever_it_asks_for() {
    let done = waiting(|workload| {
        workload["metadata"]["annotations"] = json!({});
        workload["status"]["conditions"] = json!([{ "type": "Complete", "status": "True" }]);
    });
    let done: Object = serde_json::from_str(&done.to_string()).unwrap();
    let phase = Kind::Job.phase(&done).unwrap();
    assert_eq!(phase, Phase::Finished { at_rest: true });
}
