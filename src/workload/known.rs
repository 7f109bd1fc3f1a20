//! Keeps the kinds that are known.

use std::sync::Arc;

use consul_semaphore::KindName;
use consul_semaphore_workload::{Kind, Kinds};
use parking_lot::RwLock;

/// The kinds that are known: those that come with the operator, on or not, and those of the table. A kind that is not
/// served any more stays known, so that the operator can ask for the pods of its workloads. Clones share one state.
#[derive(Clone)]
pub(crate) struct KnownKinds(Arc<RwLock<Kinds>>);

impl KnownKinds {
    pub(crate) fn new() -> Self {
        Self(Arc::new(RwLock::new(Kinds::all())))
    }

    /// Returns the kind of this name.
    pub(crate) fn named(&self, name: &KindName) -> Option<Kind> {
        self.0.read().named(name).cloned()
    }

    /// Makes the name of this kind mean this kind from now on.
    pub(crate) fn learn(&self, kind: Kind) {
        self.0.write().replace(kind);
    }
}
