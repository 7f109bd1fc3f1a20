//! Keeps the writes to workloads: those that are pending, and what the API server said to the ones before.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    Excluded, Phase, Settings, Uid,
    engine::{
        Lookup,
        calls::{Pending, PendingCalls},
        holders::ForeignHolders,
        message::{Call, Now, Outcome, Write, Written},
        refusals::WriteRefusals,
    },
    plan::{Fail, Failed, Grant, Skip},
};
use consul_client::clock::Moment;

/// State of the writes to workloads.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkloadWrites {
    /// Workloads that are being written to.
    busy: BTreeSet<Uid>,
    /// Workloads in `busy` for which the pending write only records the beginning of their wait.
    recorded: BTreeSet<Uid>,
    pub(crate) refusals: WriteRefusals,
    /// Failures of workloads that must not wait, as the last pass decided.
    fails: Vec<Fail>,
}

impl WorkloadWrites {
    /// Returns whether a workload is being written to.
    pub(crate) fn is_busy(&self, workload: &Uid) -> bool {
        self.busy.contains(workload)
    }

    /// Returns whether a workload is being written to in a way that may end its wait: a record of the beginning of
    /// its wait does not count.
    pub(super) fn is_leaving(&self, workload: &Uid) -> bool {
        self.is_busy(workload) && !self.recorded.contains(workload)
    }

    /// Returns the workloads that are being written to in a way that may end their wait, that are left alone for now, or
    /// that can't be started.
    pub(in crate::engine) fn leaving(&self, now: Moment) -> BTreeSet<Uid> {
        let busy = self.busy.difference(&self.recorded).cloned();
        let troubled = self.refusals.troubled(now).cloned();
        busy.chain(troubled).collect()
    }

    /// Returns whether no write is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.busy.is_empty()
    }

    /// Returns the workloads that are left alone for now, or can't be started.
    pub(super) fn excluded(&self, now: Moment) -> Excluded {
        let mut excluded = self.refusals.excluded(now);
        excluded.busy.extend(self.busy.iter().cloned());
        excluded
    }

    /// Sends a write, unless another write to this workload is pending.
    pub(super) fn send(&mut self, write: Write, settings: &Settings, calls: &mut PendingCalls) {
        self.send_within(write, settings.write_timeout(), None, calls);
    }

    /// Sends a write, unless another write to this workload is pending. Returns whether it was sent. The write may
    /// take no longer than `timeout`, and must have been answered by `not_after` if it is sent at all.
    pub(super) fn send_within(
        &mut self,
        write: Write,
        timeout: Duration,
        not_after: Option<Moment>,
        calls: &mut PendingCalls,
    ) -> bool {
        if !self.busy.insert(write.target().uid.clone()) {
            return false;
        }
        if let Write::RecordWait(record) = &write {
            self.recorded.insert(record.workload.uid.clone());
        }
        let call = Call::Write {
            write: write.clone(),
            timeout,
            not_after,
        };
        calls.ask(Pending::Write(write), call);
        true
    }

    /// Takes over the answer to a write. Returns whether the write is to be tried again soon, because it was not sent.
    pub(super) fn answered(
        &mut self,
        write: Write,
        written: Written,
        now: Now,
        lookup: &impl Lookup,
        calls: &mut PendingCalls,
    ) -> bool {
        let workload = write.target().clone();
        self.busy.remove(&workload.uid);
        self.recorded.remove(&workload.uid);
        let was_sent = !matches!(written, Written::NotSent);
        match written {
            Written::Outdated(seen) if !write.is_done_in(seen.as_deref()) => {
                self.refusals.lost_race(&workload.uid, now);
            }
            Written::Done | Written::Outdated(_) => {
                self.refusals.done(&write);
                calls.report(Outcome::Written(write));
            }
            Written::NotSent => {}
            Written::Refused { message, forbidden } => {
                self.refusals
                    .refused(&write, message.clone(), forbidden, now);
                calls.report(Outcome::Refused { workload, message });
            }
            Written::Unanswered(why) => {
                self.refusals.failed(&write, false, now);
                calls.report(Outcome::Unanswered { workload, why });
            }
        }
        self.refusals.retain(|uid| {
            let workload = lookup.workload(uid);
            workload.is_some_and(|workload| !matches!(workload.phase, Phase::Finished { .. }))
        });
        !was_sent
    }

    /// Records that a workload can't be granted its slots at several lock keys in one transaction. Other workloads
    /// are not affected.
    pub(super) fn too_large(
        &mut self,
        grant: &Grant,
        message: &str,
        now: Now,
        calls: &mut PendingCalls,
    ) {
        if self.refusals.too_large(&grant.workload.uid, now) {
            calls.report(Outcome::TooLarge {
                workload: grant.workload.clone(),
                message: message.to_owned(),
            });
        }
    }

    /// Deletes workloads that must not wait.
    ///
    /// The event names the holders, and can't be completed after the workload is deleted, so the workload stays while
    /// Consul is being asked for a name.
    pub(super) fn skip(
        &mut self,
        skips: &[Skip],
        foreign: &ForeignHolders,
        settings: &Settings,
        calls: &mut PendingCalls,
    ) {
        for skip in skips {
            let mut skip = skip.clone();
            if foreign.name_takers(&mut skip.why) {
                self.send(Write::Skip(skip), settings, calls);
            }
        }
    }

    /// Keeps the failures of workloads that must not wait, as a pass decided.
    pub(super) fn set_fails(&mut self, fails: &[Fail]) {
        self.fails = fails.to_vec();
    }

    /// Takes the failures of workloads that must not wait, as the last pass decided.
    pub(super) fn take_fails(&mut self) -> Vec<Fail> {
        std::mem::take(&mut self.fails)
    }

    /// Makes a workload that waits fail. Returns false while Consul is being asked who has the slots.
    pub(super) fn fail(
        &mut self,
        mut fail: Fail,
        foreign: &ForeignHolders,
        settings: &Settings,
        calls: &mut PendingCalls,
    ) -> bool {
        let named = match &mut fail.why {
            Failed::Contended(why) => foreign.name_takers(why),
            Failed::TimedOut { taken, .. } => {
                let mut taken = taken.iter_mut();
                taken.all(|(_, why)| foreign.name_takers(why))
            }
            Failed::Unqueued { .. } | Failed::Superseded { .. } | Failed::QueueFull { .. } => true,
        };
        if named {
            self.send(Write::Fail(fail), settings, calls);
        }
        named
    }
}

/// State that tests compare.
#[cfg(test)]
impl WorkloadWrites {
    /// Returns which workloads are left alone, can't be started, or can't be changed at all.
    pub(crate) fn excluded_now(&self, now: Moment) -> impl Fn(&Uid) -> [bool; 3] {
        let excluded = self.excluded(now);
        move |uid| {
            let Excluded {
                busy,
                barred,
                immovable,
            } = &excluded;
            [busy, barred, immovable].map(|set| set.contains(uid))
        }
    }
}
