//! Records which kinds are served in a term, and since when others are off.

use std::collections::BTreeMap;
#[cfg(test)]
use std::time::Duration;

use parking_lot::Mutex;

use consul_client::clock::Moment;
use consul_semaphore::KindName;
use consul_semaphore_workload::{Kind, Kinds};

/// The kinds that are served. Workloads of a kind that is off keep their slots until they have ended, and are only
/// read.
pub(crate) struct ServedKinds {
    /// Moment at which the term began.
    begun: Moment,
    /// Kinds that are served or were served in this term, the latter with the moment at which they were switched off.
    kinds: Mutex<BTreeMap<KindName, Option<Moment>>>,
}

impl ServedKinds {
    /// Creates the state at the beginning of a term, in which these kinds are served.
    pub(crate) fn new(kinds: &Kinds) -> Self {
        let kinds = kinds.iter().map(|kind| (kind.name(), None));
        Self {
            begun: Moment::now(),
            kinds: Mutex::new(kinds.collect()),
        }
    }

    /// Creates the state of an earlier term, which began when the machine started.
    #[cfg(test)]
    pub(super) fn of_old(kinds: &Kinds) -> Self {
        Self {
            begun: Moment::from_boot(Duration::ZERO),
            ..Self::new(kinds)
        }
    }

    /// Notes that a kind is served from now on.
    pub(crate) fn begin(&self, kind: &Kind) {
        self.kinds.lock().insert(kind.name(), None);
    }

    /// Notes that a kind is off from now on.
    pub(crate) fn end(&self, kind: &Kind) {
        self.kinds.lock().insert(kind.name(), Some(Moment::now()));
    }

    /// Returns the moment since which a kind is off: the beginning of the term, unless the kind was served in the
    /// term. `None` if the kind is served.
    pub(super) fn off_since(&self, kind: &Kind) -> Option<Moment> {
        let kinds = self.kinds.lock();
        kinds.get(&kind.name()).copied().unwrap_or(Some(self.begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_off_unless_it_is_served_now() {
        let served = ServedKinds::of_old(&"jobsets".parse().unwrap());
        assert_eq!(served.off_since(&Kind::JobSet), None);
        assert_eq!(served.off_since(&Kind::Pod), Some(served.begun));
        served.begin(&Kind::Pod);
        assert_eq!(served.off_since(&Kind::Pod), None);
        served.end(&Kind::Pod);
        assert!(served.off_since(&Kind::Pod) > Some(served.begun));
    }
}
