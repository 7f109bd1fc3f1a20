//! Puts workloads on hold that are to fail, but whose status can't say so, once the API server has refused the write
//! for some minutes. Until then, the cause may be that a role, a policy or a webhook comes late.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{Context, due_times::DueTimes};
use crate::{
    call::CALL_TIMEOUT,
    workload::{Urgency, WorkloadWrite, WriteError},
};
use consul_client::clock::Moment;
use consul_semaphore::{Uid, plan::Target};
use consul_semaphore_workload::{Kind, TrackedWorkload};

/// Time for which the API server must have refused the write.
const HOLD_AFTER: Duration = Duration::from_mins(3);

/// Time for which the API server must have refused the write if the kind has no such status. It is shorter, because
/// only another definition of the kind would help.
const HOLD_WITHOUT_STATUS_AFTER: Duration = Duration::from_secs(10);

/// Longest time between two refusals that count as one series. The write is tried again within a minute, so a refusal
/// after a longer time begins a new series.
const SERIES_GAP: Duration = Duration::from_mins(2);

/// The workloads whose failure the API server refuses to record.
#[derive(Default)]
pub(super) struct Unfailable(Mutex<RefusedFails>);

#[derive(Default)]
struct RefusedFails {
    workloads: HashMap<Uid, Refusals>,
    /// Time of the last refusal of each workload.
    last: DueTimes<Moment>,
}

/// A series of refusals of one workload, all for the same reason.
struct Refusals {
    patience: Duration,
    first: Moment,
}

impl Unfailable {
    /// Records that the write that fails a workload ended with this error. Returns why the workload can't fail, if
    /// the API server has refused the write for long enough.
    pub(super) fn refused_for_good<'a>(
        &self,
        workload: &Uid,
        error: &'a WriteError,
    ) -> Option<&'a str> {
        let (code, why) = error.is_unwanted()?;
        self.is_final(workload, code, Moment::now()).then_some(why)
    }

    /// Records one more refusal, with this HTTP status. Returns whether the refusals have lasted for long enough.
    fn is_final(&self, workload: &Uid, code: u16, now: Moment) -> bool {
        let patience = match code {
            404 => HOLD_WITHOUT_STATUS_AFTER,
            _ => HOLD_AFTER,
        };
        let mut refused = self.0.lock();
        let RefusedFails { workloads, last } = &mut *refused;
        while last.next().is_some_and(|last| now.since(last) > SERIES_GAP)
            && let Some(old) = last.take_due(now)
        {
            workloads.remove(&old);
        }
        let anew = || Refusals {
            patience,
            first: now,
        };
        let refusals = workloads.entry(workload.clone()).or_insert_with(anew);
        if refusals.patience != patience {
            *refusals = anew();
        }
        let is_final = now.since(refusals.first) >= patience;
        if is_final {
            workloads.remove(workload);
            last.forget(workload);
        } else {
            last.set(workload, now);
        }
        is_final
    }
}

/// Puts a workload on hold if the API server has refused for long enough, with errors like this one, to record its
/// failure. Returns the result of the write that puts it on hold.
///
/// # Errors
/// Returns `error` itself if the workload is not to be put on hold yet or can't be; else the error of the write.
pub(super) async fn hold_instead(
    context: &Context,
    namespace: &Arc<str>,
    target: &Target,
    error: WriteError,
) -> Result<Option<TrackedWorkload>, WriteError> {
    let kind = context.workloads.kind(&target.kind);
    let Some(kind) = kind.filter(Kind::fails_by_status) else {
        return Err(error);
    };
    let refused = context.unfailable.refused_for_good(&target.uid, &error);
    let Some(why) = refused else {
        return Err(error);
    };
    tracing::warn!(
        workload = %format_args!("{namespace}/{}", target.name),
        why,
        "a workload can't be marked as failed in its status: it is put on hold"
    );
    let hold = WorkloadWrite {
        namespace: namespace.clone(),
        request: kind.hold(target),
        below: Vec::new(),
        urgency: Urgency::Usual,
        target: target.clone(),
        timeout: CALL_TIMEOUT,
        deadline: None,
        holds: false,
    };
    context.workloads.write(hold).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn one_refusal_is_not_final_and_some_minutes_of_them_are() {
        let (refused, uid) = (Unfailable::default(), Uid::from("a"));
        for second in (0..180).step_by(30) {
            assert!(!refused.is_final(&uid, 403, at(second)), "{second}");
        }
        assert!(
            !refused.is_final(&"b".into(), 403, at(180)),
            "of another one"
        );
        assert!(refused.is_final(&uid, 422, at(180)));
        assert!(!refused.is_final(&uid, 403, at(181)), "it begins anew");
        assert!(!refused.is_final(&uid, 404, at(182)));
        assert!(!refused.is_final(&uid, 404, at(191)), "not for long");
        assert!(refused.is_final(&uid, 404, at(192)), "there is no status");
    }

    #[test]
    fn what_was_not_refused_for_a_while_begins_anew() {
        let (refused, uid) = (Unfailable::default(), Uid::from("a"));
        assert!(!refused.is_final(&uid, 403, at(0)));
        assert!(!refused.is_final(&uid, 403, at(600)));
        assert!(!refused.is_final(&"b".into(), 403, at(900)));
        assert_eq!(refused.0.lock().workloads.len(), 1, "nobody else is kept");
    }
}
