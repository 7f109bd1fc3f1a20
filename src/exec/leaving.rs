//! Giving back what is held, and what is said of what is left behind.

use std::{pin::pin, time::Duration};

use tokio::time::timeout;

use super::{
    contender::{Contender, Step},
    signals::Signals,
};
use consul_client::clock::Moment;
use consul_semaphore::{Standing, engine::Written};

/// How long giving back may take, beside the time for which a slot cools. What is left then ends with the
/// session's TTL.
const LEAVING: Duration = Duration::from_secs(10);

/// For how long a signal may be one that was meant for the command: systemd and terminals send it to both.
const GRACE: Duration = Duration::from_secs(1);

impl Contender {
    /// Gives back what there is, once it has cooled if the process has run; says what can't be given back.
    pub(super) async fn leave(&mut self, signals: &mut Signals) {
        self.change(|job| {
            job.standing = if job.granted.is_some() {
                Standing::Finished { at_rest: true }
            } else {
                Standing::Deleting
            };
        });
        self.answer_what_was_asked(Written::Done);
        // Those that came with the end of the command were the command's.
        signals.forget();
        let begun = Moment::now();
        let mut until = begun + LEAVING;
        while self.has_anything() {
            let cools_until = self.cools_until();
            if let Some(end) = cools_until {
                until = until.max(end + LEAVING);
            }
            let left = until.since(Moment::now());
            if left.is_zero() {
                return self.leave_behind("Consul does not answer");
            }
            let ended_by = {
                let mut step = pin!(timeout(left, self.step_away(cools_until)));
                loop {
                    tokio::select! {
                        // If there is no time left, the next look at it tells.
                        _ = &mut step => break None,
                        signal = signals.asks_to_end() => {
                            if cools_until.is_some() || Moment::now().since(begun) > GRACE {
                                break Some(signal);
                            }
                        }
                    }
                }
            };
            if let Some(signal) = ended_by {
                return self.leave_behind(&format!("ended by signal {}", signal.as_raw()));
            }
        }
    }

    /// What can be done now, and the wait for what comes then, unless more is known now of how long it is.
    async fn step_away(&mut self, cools_until: Option<Moment>) {
        if let Step::Rest(next) = self.pass()
            && self.has_anything()
            && self.cools_until() == cools_until
        {
            self.something(next).await;
        }
    }

    /// Whether a session is there that is not ended yet, or may be made yet.
    fn has_anything(&self) -> bool {
        !self.store.kept.is_empty() || !self.ending.is_empty() || self.queue.makes_sessions()
    }

    /// When the last of the slots that cool is free.
    fn cools_until(&self) -> Option<Moment> {
        let kept = self.store.kept.keys();
        let ends = kept.map(|session| self.queue.coolings().end(session));
        ends.flatten().max()
    }

    /// Says what becomes of what is not given back.
    fn leave_behind(&self, why: &str) {
        if self.store.kept.is_empty() {
            // All is given back, and a session without a key ends by itself.
            return;
        }
        let what = match self.store.job.granted {
            Some(_) => "the slot stays taken",
            None => "the place in line stays",
        };
        // Consul ends a session between one and two TTLs after it was last renewed.
        let latest = self.queue.settings().span().as_secs() * 2;
        self.stderr.say(&format!(
            "{why}: {what} until its session has expired, {latest}s from now at the latest"
        ));
    }
}
