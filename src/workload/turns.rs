//! Turns to write to workloads: they bound how many requests run at once.
//!
//! An admission webhook can block all writes in its namespaces. So one namespace has only a few of the turns, and
//! writes that suspend a workload have turns of their own: they must not wait behind thousands of starts.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Writes of each urgency at once, over all namespaces.
const ALL: usize = 32;

/// Writes of each urgency at once in one namespace.
const IN_A_NAMESPACE: usize = 8;

/// Whether a write can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// It suspends a workload that must not run.
    Suspends,
    /// Anything else.
    Usual,
}

/// A turn, until it is dropped.
pub(super) struct Turn {
    _of_namespace: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// All turns.
#[derive(Default)]
pub(super) struct Turns {
    suspending: Lane,
    usual: Lane,
}

struct Lane {
    all: Arc<Semaphore>,
    by_namespace: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(ALL)),
            by_namespace: Mutex::default(),
        }
    }
}

impl Turns {
    /// Waits for a turn to write in a namespace.
    ///
    /// # Errors
    /// Never: these semaphores are never closed.
    pub(super) async fn take(
        &self,
        namespace: &Arc<str>,
        urgency: Urgency,
    ) -> Result<Turn, AcquireError> {
        let lane = match urgency {
            Urgency::Suspends => &self.suspending,
            Urgency::Usual => &self.usual,
        };
        let of_namespace = lane.of(namespace).acquire_owned().await?;
        Ok(Turn {
            _of_namespace: of_namespace,
            _of_all: lane.all.clone().acquire_owned().await?,
        })
    }
}

impl Lane {
    /// The turns of a namespace. Namespaces that use none are forgotten.
    fn of(&self, namespace: &Arc<str>) -> Arc<Semaphore> {
        let mut by_namespace = self.by_namespace.lock();
        by_namespace.retain(|_, turns| Arc::strong_count(turns) > 1);
        let turns = by_namespace.entry(namespace.clone());
        let new = || Arc::new(Semaphore::new(IN_A_NAMESPACE));
        turns.or_insert_with(new).clone()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// A turn, if one is free.
    fn take(turns: &Turns, namespace: &str, urgency: Urgency) -> Option<Turn> {
        let turn = turns.take(&namespace.into(), urgency).now_or_never()?;
        Some(turn.unwrap())
    }

    #[test]
    fn a_namespace_that_hangs_leaves_turns_to_the_others_and_to_suspensions() {
        let turns = Turns::default();
        let hanging: Vec<_> = (0..IN_A_NAMESPACE)
            .map(|_| take(&turns, "hangs", Urgency::Usual).unwrap())
            .collect();
        assert!(take(&turns, "hangs", Urgency::Usual).is_none());
        assert!(take(&turns, "other", Urgency::Usual).is_some());
        assert!(take(&turns, "hangs", Urgency::Suspends).is_some());
        drop(hanging);
        assert!(take(&turns, "hangs", Urgency::Usual).is_some());
        assert_eq!(turns.usual.by_namespace.lock().len(), 1, "the last one");
    }

    #[test]
    fn all_together_are_bounded() {
        let turns = Turns::default();
        let namespaces: Vec<String> = (0..=ALL).map(|number| format!("n{number}")).collect();
        let taken: Vec<_> = namespaces
            .iter()
            .filter_map(|namespace| take(&turns, namespace, Urgency::Suspends))
            .collect();
        assert_eq!(taken.len(), ALL);
        assert!(take(&turns, "one more", Urgency::Usual).is_some());
    }
}
