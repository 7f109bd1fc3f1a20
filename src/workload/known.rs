//! The kinds that are known.

use std::sync::Arc;

use consul_semaphore::KindName;
use consul_semaphore_workload::{Kind, Kinds};
use parking_lot::RwLock;

/// The kinds that are known: those that come with the operator, on or not, and those of the table. One that is not
/// served any more stays known, so that the pods of its workloads can be asked for. Clones share them.
#[derive(Clone)]
pub(crate) struct KnownKinds(Arc<RwLock<Kinds>>);

impl KnownKinds {
    pub(crate) fn new() -> Self {
        Self(Arc::new(RwLock::new(Kinds::all())))
    }

    /// The kind of this name.
    pub(crate) fn named(&self, name: &KindName) -> Option<Kind> {
        self.0.read().named(name).cloned()
    }

    /// From now on a name means this kind.
    pub(crate) fn learn(&self, kind: Kind) {
        self.0.write().replace(kind);
    }
}
