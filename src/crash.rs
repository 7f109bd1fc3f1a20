//! Defines crash points: named places, one after each kind of write to Consul or Kubernetes, at which a test has the
//! operator killed or frozen. No point follows the removal of a finalizer, the deletion of a Job that must not wait,
//! or the end of a running Job that made room for a newer one, because nothing is left to do then.
//!
//! What is shipped does not contain their names and does nothing at them. In a build with debug assertions, which is
//! what tests run, the environment variable `CRASH_POINTS` arms some of them:
//! ```text
//! CRASH_POINTS="kill granted@team-a released@team-b#2"
//! ```
//! The first word is what to do: `kill` ends the process at once, as SIGKILL does; `stop` sends SIGSTOP, so that
//! SIGCONT wakes the process; `end` sends SIGTERM, and the work continues after that; `panic` panics in the task that gets there last. Each point has the namespace whose
//! work is meant (empty for work that is done for no namespace) and the number of the visit (without one, the first).
//! Work that gets to an armed point waits there; the action happens when all armed points have been reached. So one
//! process dies, or sleeps, at many points at once, each in its own namespace.

#[cfg(debug_assertions)]
mod armed;

#[cfg(debug_assertions)]
pub(crate) use armed::reach;

macro_rules! points {
    ($($(#[$doc:meta])+ $point:ident = $name:literal,)+) => {
        /// A place in the work at which a test can kill or freeze the operator.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub enum Point {
            $($(#[$doc])+ $point,)+
        }

        impl Point {
            /// All crash points.
            pub const ALL: &[Self] = &[$(Self::$point,)+];

            /// Returns the name of the point in `CRASH_POINTS`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)+
                }
            }
        }
    };
}

points! {
    /// The operator's node is in Consul's catalog; it has no session yet. This point has no namespace.
    NodeRegistered = "node-registered",
    /// A session is created; it has no contender yet.
    SessionMade = "session-made",
    /// The limit is in the status as the operator's own, but not in Consul yet.
    LimitRecorded = "limit-recorded",
    /// The limit is in Consul.
    LimitWritten = "limit-written",
    /// The status is written.
    StatusWritten = "status-written",
    /// The contender is locked and its session holds a slot, by one transaction; the Job waits.
    Granted = "granted",
    /// The contender is locked and its session holds slots of several semaphores, by one transaction; the Job waits.
    GrantedTogether = "granted-together",
    /// The evidence for the slot was found valid; the PATCH that starts the Job is not sent yet.
    StartAllowed = "start-allowed",
    /// The Job is started; there is no event yet.
    Started = "started",
    /// An event is written.
    EventWritten = "event-written",
    /// A running Job that lost its slot holds one under another session.
    Regranted = "regranted",
    /// A running Job names its new session.
    Renamed = "renamed",
    /// A Job that lost its slot is suspended.
    Suspended = "suspended",
    /// A Job that ran without a grant is suspended.
    Stopped = "stopped",
    /// A Job has the record that it gives its slot back; the slot is still held.
    GivenBack = "given-back",
    /// A Job that waited for too long has failed; there is no event yet.
    WaitEnded = "wait-ended",
    /// The Job is done, and the end of its slot's cooldown is written; there is no event yet.
    Cooling = "cooling",
    /// The slot is free and the contender deleted; its session still exists, and there is no event yet.
    Released = "released",
    /// The session of a slot that was given back is destroyed. This point has no namespace.
    SessionDestroyed = "session-destroyed",
    /// A dead holder is pruned.
    Pruned = "pruned",
    /// The finalizer is on a new semaphore; nothing of it is in Consul yet.
    FinalizerAdded = "finalizer-added",
    /// A deleted semaphore's lock is unused, and is about to be removed.
    LockUnused = "lock-unused",
    /// Nothing of a deleted semaphore is left in Consul; the semaphore still has its finalizer.
    LockRemoved = "lock-removed",
}

/// Reaches a point in the work for this namespace. Does nothing in what is shipped.
#[cfg(not(debug_assertions))]
#[inline]
pub(crate) fn reach(_: Point, _: &str) -> std::future::Ready<()> {
    std::future::ready(())
}
