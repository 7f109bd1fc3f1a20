//! Gives out turns to write to workloads, which bound how many requests run at once.
//!
//! An admission webhook can block all writes in its namespace, so namespaces share the turns fairly ([`FairTurns`]).
//! Writes that suspend a workload have turns of their own: they must not wait behind thousands of starts.

use std::sync::Arc;

use consul_client::turns::{FairTurn, FairTurns};

/// Number of writes of each urgency at once, over all namespaces. Both urgencies together leave room for the watches
/// among the 100 requests that the API server accepts on one HTTP/2 connection.
const TURNS_PER_URGENCY: usize = 40;

/// Whether a write can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// The write suspends a workload that must not run.
    Suspends,
    /// The write does anything else.
    Usual,
}

/// The turns of both urgencies.
pub(super) struct Turns {
    suspending: FairTurns,
    usual: FairTurns,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            suspending: FairTurns::new(TURNS_PER_URGENCY),
            usual: FairTurns::new(TURNS_PER_URGENCY),
        }
    }
}

impl Turns {
    /// Waits for a turn to write in a namespace. Within a namespace, the first to ask gets the first turn.
    pub(super) async fn take(&self, namespace: &Arc<str>, urgency: Urgency) -> FairTurn {
        let lane = match urgency {
            Urgency::Suspends => &self.suspending,
            Urgency::Usual => &self.usual,
        };
        lane.take(namespace).await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn what_suspends_does_not_wait_behind_starts() {
        let turns = Turns::default();
        let take = |urgency| turns.take(&"a".into(), urgency).now_or_never();
        let starts: Vec<_> = std::iter::from_fn(|| take(Urgency::Usual)).collect();
        assert_eq!(starts.len(), TURNS_PER_URGENCY / 2);
        assert!(take(Urgency::Suspends).is_some());
    }
}
