//! Counts the slots that stay free although workloads wait, because they are too few for each of these.

use super::Pass;
use crate::{limit::Agreement, lock::Lock};

impl Pass<'_> {
    /// Counts the slots that no workload is granted or kept which the pass has read. So a workload that the pass has
    /// not read can't have more than these at once.
    pub(super) fn count_spare(&mut self) {
        let settings = self.observed.settings;
        let certain = self.is_limit_agreed() && !settings.terminating && !self.observed.closed;
        self.plan.spare = (certain && !self.plan.reread).then(|| {
            if self.may_grant() {
                self.composer.room()
            } else {
                0
            }
        });
    }

    /// Returns whether Consul has the limit of the spec, or will have it as soon as there is a holder.
    pub(super) fn is_limit_agreed(&self) -> bool {
        let agreed = match (self.plan.agreement, self.reading.lock()) {
            (Some(Agreement::Agreed), _) => true,
            // The limit of an unused key of a keyed semaphore is written together with the first holder.
            (Some(Agreement::Write { .. }), Lock::Absent { .. }) => {
                self.observed.settings.key.is_some()
            }
            _ => false,
        };
        agreed && self.plan.record.is_none()
    }
}
