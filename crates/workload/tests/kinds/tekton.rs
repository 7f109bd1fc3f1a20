use consul_semaphore::{
    Phase, Termination, Workload,
    engine::Write,
    plan::{End, Ended, Fail, Failed, Stop, Suspend, Suspended},
};
use consul_semaphore_workload::{Kind, Object, Obstacle};
use serde_json::{Value, json};

use super::{
    UID, applied, forgets_its_grant, granted, loses_its_slot, object, phase, reads_its_grant_back,
    sent, tracked, workload,
};

/// The kinds of runs, with their words for `spec.status`.
const RUNS: [(Kind, &str, &str); 2] = [
    (Kind::PipelineRun, "PipelineRunPending", "Cancelled"),
    (Kind::TaskRun, "TaskRunPending", "TaskRunCancelled"),
];

fn waiting(pending: &str) -> Value {
    let mut run = object(&json!({ "status": pending, "params": [{ "name": "a", "value": [1] }] }));
    run["status"] = json!({ "conditions": [{
        "type": "Succeeded", "status": "Unknown", "reason": pending,
    }] });
    run
}

#[test]
fn what_it_is_doing() {
    for (kind, pending, cancelled) in RUNS {
        let after = |change: &dyn Fn(&mut Value)| {
            let mut run = waiting(pending);
            change(&mut run);
            phase(&kind, &run)
        };
        assert_eq!(after(&|_| {}), Phase::Idle);
        assert_eq!(after(&|run| run["status"] = Value::Null), Phase::Idle);
        let started = |run: &mut Value| run["status"]["startTime"] = "2026-01-01T00:00:10Z".into();
        // Tekton 1.6 starts a TaskRun that is pending.
        assert_eq!(after(&started), Phase::Running);
        assert_eq!(
            after(&|run| run["spec"]["status"] = Value::Null),
            Phase::Running
        );
        assert_eq!(
            after(&|run| run["spec"]["status"] = cancelled.into()),
            Phase::Running
        );
        for status in ["True", "False"] {
            let ended = after(&|run| run["status"]["conditions"][0]["status"] = status.into());
            assert_eq!(
                ended,
                Phase::Finished { at_rest: false },
                "its pods may be left"
            );
        }
        let deleted = after(&|run| {
            run["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:10Z".into();
        });
        assert_eq!(deleted, Phase::Deleting);
    }
}

/// Tekton copies its metadata to all that it makes.
#[test]
fn a_grant_is_in_its_own_metadata() {
    for (kind, pending, _) in RUNS {
        let run = waiting(pending);
        assert!(workload(&kind, &run).is_queued());
        reads_its_grant_back(&kind, &run);
        let granted = granted(&kind, &run);
        assert_eq!(granted["spec"], json!({ "params": run["spec"]["params"] }));
        assert_eq!(
            granted["metadata"]["labels"]["consul-semaphore.io/holder"],
            UID
        );
        forgets_its_grant(&kind, &granted);
    }
}

#[test]
fn it_is_cancelled_where_others_are_suspended_or_fail() {
    for (kind, pending, cancelled) in RUNS {
        let run = waiting(pending);
        let fail = sent(&kind, &run, |workload| {
            let why = Failed::Superseded { by: String::new() };
            Write::Fail(Fail { workload, why })
        });
        let failed = applied(&run, &fail);
        assert_eq!(failed["spec"]["status"], cancelled);
        let read = workload(&kind, &failed);
        let failing = Some(Termination::Immediate);
        assert_eq!((read.phase, read.wait.failing), (Phase::Stopping, failing));

        let granted = granted(&kind, &run);
        assert!(!workload(&kind, &granted).traits.can_be_suspended);
        let end = sent(&kind, &granted, |workload| {
            let why = Ended::Replaced { by: String::new() };
            Write::End(End { workload, why })
        });
        let ended = applied(&granted, &end);
        let finally = match kind {
            Kind::PipelineRun => "CancelledRunFinally",
            _ => cancelled,
        };
        assert_eq!(ended["spec"]["status"], finally, "its finally tasks run");
        let read = workload(&kind, &ended);
        assert_eq!(read.wait.failing, Some(Termination::Graceful));
        let lost = applied(&ended, &loses_its_slot(&kind, &ended));
        assert_eq!(lost["spec"]["status"], cancelled, "it has no slot for them");
        let read = workload(&kind, &lost);
        assert_eq!(read.wait.failing, Some(Termination::Immediate));
        assert_eq!(
            phase(&kind, &ended),
            Phase::Running,
            "until Tekton has ended it"
        );
    }
}

/// Its pods count until a LIST shows that none is left: no contender speaks for them.
#[test]
fn one_that_is_ended_for_want_of_its_slot_says_so_and_may_have_pods() {
    let ended = |why: &dyn Fn(&Workload) -> Ended, granted: &Value, kind: &Kind| {
        let why = why(&workload(kind, granted));
        let end = sent(kind, granted, |workload| Write::End(End { workload, why }));
        let mut ended = applied(granted, &end);
        ended["status"] = json!({ "conditions": [{ "type": "Succeeded", "status": "False" }] });
        tracked(kind, &ended)
    };
    for (kind, pending, _) in RUNS {
        let granted = granted(&kind, &waiting(pending));
        let lost = |workload: &Workload| {
            Ended::Lost(Box::new(Suspend {
                workload: workload.into(),
                why: Suspended::SlotLost,
                session: None,
                since: 0,
            }))
        };
        let lost = ended(&lost, &granted, &kind);
        assert!(lost.workload.lost() && lost.may_have_pods());
        // The contender of this one stays until its pods are gone.
        let replaced = |_: &Workload| Ended::Replaced { by: String::new() };
        let replaced = ended(&replaced, &granted, &kind);
        assert!(!replaced.workload.lost() && !replaced.may_have_pods());
    }
}

/// Tekton tries for ever to cancel what is made of other `PipelineRuns`.
#[test]
fn one_that_is_made_of_others_is_stopped_and_they_are_ended() {
    let kind = Kind::PipelineRun;
    let mut run = granted(&kind, &waiting("PipelineRunPending"));
    run["status"]["childReferences"] = json!([{ "kind": "TaskRun" }, { "kind": "PipelineRun" }]);
    let shape = tracked(&kind, &run).shape;
    let mut below = Vec::new();
    let end = sent(&kind, &run, |workload| {
        let why = Ended::Replaced { by: String::new() };
        let end = Write::End(End { workload, why });
        below = kind.ends_below(&end, &shape);
        end
    });
    assert_eq!(applied(&run, &end)["spec"]["status"], "StoppedRunFinally");
    let kinds: Vec<_> = below.iter().map(|below| below.kind.clone()).collect();
    assert_eq!(kinds, [Kind::PipelineRun, Kind::TaskRun]);
    let object = |run: &Value| serde_json::from_value::<Object>(run.clone()).expect("an object");
    assert!(!below[0].ends(&object(&run)), "itself");
    run["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "", "kind": "", "name": "", "uid": "", "controller": true }]);
    assert!(below[0].ends(&object(&run)));
    run["status"]["conditions"][0]["status"] = "True".into();
    assert!(!below[0].ends(&object(&run)), "it has ended");
}

#[test]
fn one_that_runs_without_a_grant_is_left_alone() {
    for (kind, pending, _) in RUNS {
        let mut run = waiting(pending);
        run["spec"]["status"] = Value::Null;
        let read = tracked(&kind, &run);
        assert!(matches!(read.obstacle, Some(Obstacle::Started(_))));
        assert!(Stop::of(&read.workload).is_none() && read.is_managed());
    }
}

/// Of a `PipelineRun` that was granted its slot, the `TaskRuns` have the same annotations and labels.
#[test]
fn what_another_run_made_is_left_alone_with_a_warning_if_it_has_annotations_of_its_own() {
    let kind = Kind::TaskRun;
    let mut child = waiting("TaskRunPending");
    child["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "build", "uid": "p",
        "controller": true,
    }]);
    let read = tracked(&kind, &child);
    assert_eq!(
        read.obstacle,
        Some(Obstacle::Owned("PipelineRun build".to_owned()))
    );
    child["metadata"]["annotations"]["consul-semaphore.io/granted-to"] = "p".into();
    let read = consul_semaphore_workload::TrackedWorkload::parse(
        &kind,
        &child.to_string(),
        consul_client::clock::Moment::default(),
    );
    assert!(read.is_ok_and(|read| read.is_none()));
}
