//! Which lock keys are at work: a branch is opened when there is something to do for one, and closed
//! when nothing is left of it.

use super::{
    AtWork, Overseer,
    branch::{Account, Branch},
};
use crate::controller::{feed::Concerned, index::LineRef};
use consul_client::{self as consul, Listing};
use consul_semaphore::Key;

impl Overseer {
    /// Has a branch for each line of Jobs.
    pub(super) fn branch_out(&mut self) {
        for key in self.context.index.fresh_lines(&self.reference) {
            self.open(key);
        }
    }

    /// Has a branch for a lock key, if there is none yet.
    pub(super) fn open(&mut self, key: Option<Key>) {
        if self.branches.contains_key(&key) {
            return;
        }
        let line = LineRef::new(&self.reference, key.clone());
        let wake = self.context.index.open(&line);
        let branch = Branch::new(
            self.context.clone(),
            line,
            self.orders.subscribe(),
            self.feed.clone(),
            self.defence,
            wake.clone(),
        );
        let passes = branch.passes.clone();
        let task = self.tasks.spawn(branch.run(self.accounts.0.clone()));
        self.branches.insert(key, AtWork { wake, task, passes });
    }

    /// Lays out what the watch brought, and wakes those whom it concerns.
    pub(super) fn hear(&mut self, listing: Result<Listing, consul::Error>) {
        let keyed = self.is_keyed();
        let prefix = &self.settings.prefix;
        let (changed, all) = match self.feed.bring(prefix, keyed, listing) {
            Concerned::Keys(changed) => (changed, false),
            Concerned::All(changed) => (changed, true),
        };
        if let Some(common) = &mut self.common {
            common.hear();
        }
        for key in changed {
            if let Some(at_work) = self.branches.get(&key) {
                at_work.wake.notify_one();
            } else if !self.feed.entries(&key).is_empty() {
                self.open(key);
            }
        }
        if all {
            for at_work in self.branches.values() {
                at_work.wake.notify_one();
            }
        }
    }

    /// Takes an account in. A key that nobody uses any more needs no branch.
    pub(super) fn take(&mut self, mut account: Account) {
        let key = account.key.clone();
        let Some(at_work) = self.branches.get(&key) else {
            return;
        };
        let passes = at_work.passes.clone();
        if let Some(moved) = account.moved.take() {
            self.tell_moved(moved, key.as_ref());
        }
        self.fencing_token = self.fencing_token.max(account.fencing_token);
        let unused = key.is_some()
            && account.conclusion.idle
            && !self.feed.has_changed(&key, account.heard)
            && (!self.settings.terminating || account.conclusion.finished);
        let line = LineRef::new(&self.reference, key.clone());
        if unused && passes.close_after(account.pass, || self.context.index.close(&line)) {
            self.sums.remove(&key);
            if let Some(at_work) = self.branches.remove(&key) {
                at_work.task.abort();
            }
        } else {
            self.sums.put(account);
        }
    }
}
