//! A transaction: what its answer means to what is seen, and when to look again.

use std::time::Duration;

use super::View;
use crate::{Plan, evidence::LATE, plan::Transaction};
use consul_client::{self as consul, Client, Entry, OpError, clock::Moment};

/// How long to wait when there is nothing to wait for.
pub const IDLE: Duration = Duration::from_hours(1);

/// The shortest time between passes that nothing but time has caused.
pub const SOONEST: Duration = Duration::from_millis(10);

/// What became of a transaction.
pub enum Outcome {
    /// It went through: the entries that it wrote.
    Committed(Vec<Entry>),
    /// Nothing of it was done, for these reasons, and what is known by now is to be decided on.
    Refused(Vec<OpError>),
    /// It failed, and nothing more is written for a while.
    Failed,
}

impl<W: AsRef<Client>> View<W> {
    /// Sends a transaction, and takes note of the answer.
    pub async fn transact(&mut self, transaction: &Transaction) -> Outcome {
        let Some(home) = &self.home else {
            return Outcome::Failed;
        };
        let sent = Moment::now();
        let call = home.as_ref().transaction(&transaction.operations);
        match self.in_time(call).await {
            Ok(answer) => {
                self.committed(transaction, &answer, sent);
                Outcome::Committed(answer)
            }
            // Nobody was faster, and what is known of the key is still so.
            Err(consul::Error::Conflict(errors)) if errors.iter().all(OpError::is_lock_delay) => {
                self.delayed();
                Outcome::Refused(errors)
            }
            Err(consul::Error::Conflict(errors)) => {
                self.outrun().await;
                Outcome::Refused(errors)
            }
            // There are fewer at once from now on.
            Err(consul::Error::TooLarge(_)) if transaction.operations.len() > self.capacity() => {
                Outcome::Refused(Vec::new())
            }
            Err(error) => {
                self.write_failed(error);
                Outcome::Failed
            }
        }
    }

    /// Doubts what is known if this process, or its machine, has slept past the time when a running Job
    /// was to be suspended: whatever comes now was asked before. What is asked now has `patience` to be
    /// answered.
    pub fn rouse(&mut self, now: Moment, patience: Duration) {
        if self.deadline.is_some_and(|deadline| deadline + LATE < now) {
            self.doubt();
            self.deadline = Some(now + patience);
        }
    }

    /// When to look again if nothing happens before: the first of the times that a plan names, of these
    /// `others`, and of that when Consul is tried again. What was due when the facts were `observed` has
    /// been seen to.
    pub fn next_time(
        &self,
        plan: &Plan,
        others: impl IntoIterator<Item = Moment>,
        observed: Moment,
    ) -> Moment {
        let trouble = self.trouble.iter().map(|trouble| trouble.setback.until);
        let times = trouble.chain(plan.wake).chain(plan.deadline).chain(others);
        let next = times.filter(|time| *time > observed).min();
        next.unwrap_or(observed + IDLE).max(Moment::now() + SOONEST)
    }
}
