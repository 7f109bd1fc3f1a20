//! Reads and writes the times that do not count as waiting, in the status.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use consul_client::clock;
use consul_semaphore::{Blocked, Interval, engine::HEARTBEAT};
use consul_semaphore_api::{BlockedStatus, ConsulSemaphore};

/// Returns the times in which nothing could be granted, as the status of a semaphore says. A new semaphore was never
/// without an operator.
pub(super) fn known(semaphore: &ConsulSemaphore) -> Blocked {
    let Some(status) = &semaphore.status else {
        return Blocked::default();
    };
    let now = clock::time();
    // If the status has no `countedTo`, no workload waited when it was written. So all workloads that wait came
    // later, and the time since the creation can count as blocked.
    let created = semaphore.metadata.creation_timestamp.as_ref();
    let counted_to = status.counted_to.as_ref().or(created);
    Blocked::resumed(status.blocked(), counted_to.map_or(now, |time| time.0), now)
}

/// Returns the times in which nothing could be granted, in the form of the status, which has whole seconds.
pub(super) fn blocked(blocked: &Blocked) -> Vec<BlockedStatus> {
    let up = |time: Timestamp| {
        let next = SignedDuration::from_nanos(999_999_999);
        down(time.checked_add(next).unwrap_or(time))
    };
    let intervals = blocked.intervals().iter();
    let status = intervals.map(|Interval { from, to }| BlockedStatus {
        from: Time(down(*from)),
        to: to.map(|to| Time(up(to))),
    });
    status.collect()
}

fn down(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Returns the time up to which waits are counted, if `any` wait is counted. The time advances in steps, so that it
/// is seldom written.
pub(super) fn counted_to(any: bool) -> Option<Time> {
    let step = i64::try_from(HEARTBEAT.as_secs()).ok()?;
    let now = clock::time().as_second();
    let time = Timestamp::from_second(now - now.rem_euclid(step)).ok()?;
    any.then_some(Time(time))
}
