//! Carries out what the engine asks for: calls are applied or not, and their answers arrive or not.

use std::sync::Arc;

use super::{
    About, End, Flaw, Lost, Operator, Patch, Reach, Refused, Step, no_answer, requests, session,
};
use crate::{
    Workload,
    engine::{Answer, CallId, Written},
    model::outside::Outside,
    plan::Transaction,
};
use consul_client::{self as consul, OpError, clock::Moment};

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    /// Whether the call is carried out.
    done: bool,
    /// Whether the answer to the call arrives.
    answered: bool,
    /// Whether, for now, not even the failure of the call is known.
    hangs: bool,
}

impl Operator {
    /// Takes the next step, and says whether it went as planned.
    pub(in super::super) fn act(&mut self, outside: &mut Outside, lost: Option<Lost>) -> bool {
        self.act_on(0, outside, lost)
    }

    /// Takes one of the pending steps, whatever their order.
    pub(in super::super) fn act_on(
        &mut self,
        position: usize,
        outside: &mut Outside,
        lost: Option<Lost>,
    ) -> bool {
        let position = position % self.pending.len().max(1);
        let Some(step) = self.pending.remove(position) else {
            return true;
        };
        let of_kubernetes = matches!(
            step,
            Step::Record { .. } | Step::Finalizer { .. } | Step::Patch { .. }
        );
        let away = outside.is_away() && !of_kubernetes;
        let delivery = Delivery {
            done: lost.is_none_or(|lost| lost.done) && !away,
            answered: lost.is_none() && !away,
            hangs: lost.is_some_and(|lost| lost.hangs) || outside.reach == Reach::Silent && away,
        };
        match step {
            Step::Record { limits } => self.record_limits(outside, limits, delivery),
            Step::Finalizer { added } => self.set_finalizer(outside, added, delivery),
            Step::ListSessions => self.list_sessions(outside, delivery),
            Step::Transact { id, transaction } => {
                return self.transact(outside, id, transaction, delivery);
            }
            Step::Patch {
                id,
                patch,
                read,
                not_after,
            } => {
                let late = not_after.is_some_and(|not_after| not_after <= outside.now());
                return self.patch(outside, id, &patch, (read, late), delivery);
            }
            Step::MakeSession { id, name } => self.make_session(outside, id, &name, delivery),
            Step::Destroy(session) => {
                if !away {
                    outside.destroy(&session);
                }
                return !away;
            }
            Step::Ask { id, call } => {
                self.ask(outside, id, &call, lost);
                return lost.is_none();
            }
        }
        delivery.answered
    }

    fn record_limits(&mut self, outside: &mut Outside, limits: Vec<u32>, delivery: Delivery) {
        if delivery.done {
            outside.record(limits.clone());
        }
        if delivery.answered {
            self.tell(outside, |engine, semaphore, now, view| {
                engine.recorded(semaphore, &limits, now, view);
            });
        } else {
            // The status is written again until that is answered.
            self.pending.push_back(Step::Record { limits });
        }
    }

    fn set_finalizer(&mut self, outside: &mut Outside, added: bool, delivery: Delivery) {
        if delivery.done {
            outside.set_finalizer(added);
        }
        self.tell(outside, |engine, semaphore, now, view| {
            if added {
                engine.added_finalizer(semaphore, delivery.answered, now, view);
            } else {
                engine.removed_finalizer(semaphore, delivery.answered, now, view);
            }
        });
    }

    fn list_sessions(&mut self, outside: &Outside, delivery: Delivery) {
        let all = outside.consul.sessions();
        let sessions = all.map(|(id, identity)| session(outside, id, identity));
        let sessions = if delivery.answered {
            Ok(sessions.collect())
        } else {
            Err(no_answer())
        };
        self.tell(outside, |engine, semaphore, now, view| {
            engine.listed_sessions(semaphore, sessions, now, view);
        });
    }

    fn transact(
        &mut self,
        outside: &mut Outside,
        id: CallId,
        transaction: Transaction,
        delivery: Delivery,
    ) -> bool {
        let sent = outside.now();
        let answer = delivery
            .done
            .then(|| outside.transact(&transaction, self.generation));
        let result = match answer.filter(|_| delivery.answered) {
            Some(Ok(entries)) => Ok(entries),
            Some(Err(refused)) => {
                self.learn_capacity(outside, id, refused);
                Err(refusal(refused))
            }
            None => Err(no_answer()),
        };
        let went_through = result.is_ok();
        let end = End {
            id,
            answer: Answer::Transacted { sent, result },
            about: About::All,
        };
        self.end(outside, end, delivery.hangs);
        if !delivery.answered && transaction.limit.is_some() {
            outside.observer.forget_enforcements();
        }
        if !delivery.done {
            outside.late.push((transaction, self.generation));
        }
        went_through
    }

    /// A PATCH, with the time of the reading that it was decided on, and whether it is too late to send it.
    fn patch(
        &mut self,
        outside: &mut Outside,
        id: Option<CallId>,
        patch: &Patch,
        (read, late): (Moment, bool),
        delivery: Delivery,
    ) -> bool {
        let sent = delivery.done && !late;
        let response = sent.then(|| outside.patch(patch, read, self.deposed));
        let answer = response.filter(|_| delivery.answered);
        let written = match answer {
            _ if late => Written::NotSent,
            Some(answer) => self.written(outside, patch, answer),
            None => Written::Unanswered("it is away".into()),
        };
        let outdated = matches!(written, Written::Outdated(_));
        if outdated || matches!(written, Written::Done) {
            self.see_workload(outside, &patch.target().uid);
        }
        if let Some(id) = id {
            let end = End {
                id,
                answer: Answer::Written(written),
                about: About::Write(patch.target().uid.clone()),
            };
            self.end(outside, end, delivery.hangs);
        }
        if outdated && self.flaw == Some(Flaw::NeverPauses) {
            let queue = self.engine.queue_mut(&self.reference);
            drop(queue.map(|queue| std::mem::take(&mut queue.writes.refusals)));
        }
        answer == Some(requests::Answer::Done)
    }

    fn make_session(&mut self, outside: &mut Outside, id: CallId, name: &str, delivery: Delivery) {
        let made = delivery.done.then(|| outside.consul.make_session(name));
        if let Some(session) = made.as_ref().filter(|_| outside.timed) {
            outside.renewed.insert(session.clone(), outside.now());
            let renewed = Some(outside.now());
            self.store.renewals.insert(session.clone(), renewed);
        }
        let made = made.filter(|_| delivery.answered).ok_or_else(no_answer);
        let end = End {
            id,
            answer: Answer::SessionMade(made),
            about: About::All,
        };
        self.end(outside, end, delivery.hangs);
    }

    /// The meaning of an answer to a PATCH. After a conflict the workload is read again.
    fn written(&self, outside: &Outside, patch: &Patch, answer: requests::Answer) -> Written {
        let now = outside.workloads.read(&patch.target().uid, outside.now());
        let same =
            |now: &Workload| patch.target().is_still(now) && self.flaw != Some(Flaw::NeverPauses);
        match answer {
            requests::Answer::Done => Written::Done,
            requests::Answer::Conflict if !now.as_ref().is_some_and(same) => {
                Written::Outdated(now.map(Arc::new))
            }
            requests::Answer::Conflict | requests::Answer::Refused => Written::Refused {
                message: "no".into(),
                forbidden: false,
            },
        }
    }

    /// Consul takes fewer operations at once than assumed.
    fn learn_capacity(&mut self, outside: &Outside, id: CallId, refused: Refused) {
        if refused == Refused::TooLarge {
            let operations = outside.operations;
            self.operations = operations;
            self.tell(outside, |engine, _, now, view| {
                engine.capacity(id, operations, now, view);
            });
        }
    }
}

/// Consul's error for a transaction that it refuses.
fn refusal(refused: Refused) -> consul::Error {
    let what = match refused {
        Refused::Condition => "index is stale",
        Refused::Rests => "can't be locked due to lock delay",
        Refused::TooLarge => return consul::Error::TooLarge("too many operations".into()),
    };
    consul::Error::Conflict(vec![OpError {
        operation: 0,
        what: what.into(),
    }])
}
