//! Makes the outcomes of a queue that people are told of, from what is known of a contender or a transaction.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{message::Outcome, proofs::Remark};
use crate::{
    ContenderBody, Identity, Phase, Reading, Workload,
    plan::{Release, Transaction},
};
use consul_client::SessionId;

/// Returns the outcome of a release, by what the contender said of itself.
pub(super) fn released(release: &Release, body: Option<&ContenderBody>) -> Outcome {
    Outcome::Released {
        release: release.clone(),
        granted: body.map(|body| body.time),
        done: body.and_then(done),
    }
}

/// Returns when a workload in its cooldown was done.
fn done(body: &ContenderBody) -> Option<Timestamp> {
    let cooldown = SignedDuration::from_secs(body.cooldown.try_into().ok()?);
    body.cools_until?.checked_sub(cooldown).ok()
}

/// Returns the outcome for a contender that is gone because its slot was released by a transaction whose answer was
/// lost, or by hand; `None` if it gave nothing back. A contender that only waited had nothing to give back. A
/// workload that has pods, or that was suspended because its slot was lost, gave nothing back.
pub(super) fn given_back(
    (identity, session): (Arc<Identity>, SessionId),
    reading: &Reading,
    workload: Option<&Workload>,
) -> Option<Outcome> {
    let started_by_it = |workload: &Workload| workload.held_by().any(|by| *by == session);
    let held = reading.is_named(&session) || workload.is_some_and(started_by_it);
    let lost = |workload: &Workload| {
        workload.lost() || matches!(workload.phase, Phase::Running | Phase::Stopping)
    };
    if !held || workload.is_some_and(lost) {
        return None;
    }
    let ended = workload.filter(|workload| workload.has_ended());
    Some(Outcome::Released {
        release: Release {
            identity,
            session,
            held: true,
        },
        granted: ended.and_then(|workload| Timestamp::from_second(workload.since).ok()),
        done: None,
    })
}

/// Returns the cooldowns that a transaction began, and the dead holders that it pruned.
pub(super) fn cooled_and_pruned(transaction: &Transaction) -> impl Iterator<Item = Outcome> {
    let cooldowns = transaction.cooldowns.iter().cloned().map(Outcome::Cools);
    let prunes = transaction.prunes.iter().cloned().map(Outcome::Pruned);
    cooldowns.chain(prunes)
}

/// Returns the outcome for a remark about the pods of a contender's workload.
pub(super) fn about_pods(identity: Arc<Identity>, remark: Remark) -> Outcome {
    match remark {
        Remark::Overdue(pods) => Outcome::PodsRemain { identity, pods },
        Remark::Unknown(why) => Outcome::PodsUnknown {
            identity,
            why,
            overdue: false,
        },
        Remark::LongUnknown(why) => Outcome::PodsUnknown {
            identity,
            why,
            overdue: true,
        },
    }
}
