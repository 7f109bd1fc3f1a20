//! Calls that are lost, and calls that hang: these have no result for longer than anybody waits.

use super::{Flaw, Operator, Step};
use crate::{
    Uid,
    engine::{Answer, Call, CallId},
    model::outside::Outside,
};

/// The answer to a call is lost.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Lost {
    /// Whether the call was carried out.
    pub(in super::super) done: bool,
    /// Whether not even that is known: the call hangs.
    pub(in super::super) hangs: bool,
}

impl Lost {
    /// The call was carried out.
    pub(in super::super) fn answer() -> Self {
        Self {
            done: true,
            hangs: false,
        }
    }

    /// The call was given up.
    pub(in super::super) fn call() -> Self {
        Self {
            done: false,
            hangs: false,
        }
    }
}

/// How a call ends: at once, or when it is finally given up.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) id: CallId,
    pub(super) answer: Answer,
    pub(super) about: About,
}

/// What a call is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// A write to this workload.
    Write(Uid),
    /// The pods of this workload.
    Proof(Uid),
    /// Something that is reported to people.
    People,
    /// Everything that waits for a slot.
    All,
}

impl About {
    pub(super) fn question(call: &Call) -> Self {
        match call {
            Call::Prove(identity) => Self::Proof(identity.uid.clone()),
            Call::Describe(_) | Call::AskAccess => Self::People,
            _ => Self::All,
        }
    }
}

impl Operator {
    /// A call has ended, or hangs.
    pub(super) fn end(&mut self, outside: &Outside, end: End, hangs: bool) {
        if hangs {
            return self.hung.push(end);
        }
        if let Answer::SessionMade(Ok(session)) = &end.answer {
            self.store.kept.insert(session.clone());
        }
        self.answer(outside, end.id, end.answer);
    }

    /// The calls that hang are given up: all of them, or those that others wait for.
    pub(in super::super) fn give_up(&mut self, outside: &Outside, all: bool) {
        let hung = std::mem::take(&mut self.hung);
        let given_up = |end: &End| all || end.about == About::All;
        let (given_up, hung): (Vec<_>, _) = hung.into_iter().partition(given_up);
        self.hung = hung;
        for end in given_up {
            self.end(outside, end, false);
        }
    }

    /// The workloads of the calls that hang, and whether each call is a write.
    pub(in super::super) fn hung(&self) -> impl Iterator<Item = (&Uid, bool)> {
        self.hung.iter().filter_map(|hung| match &hung.about {
            About::Write(uid) => Some((uid, true)),
            About::Proof(uid) => Some((uid, false)),
            About::People | About::All => None,
        })
    }

    /// Whether a call hangs that only people wait for. What must not wait is not deleted before that call has ended,
    /// because the event about it has the names of the holders.
    pub(in super::super) fn asks_for_people(&self) -> bool {
        self.hung.iter().any(|hung| hung.about == About::People)
    }

    /// Whether the operator waits for a proof, which it should not do.
    pub(super) fn waits_for_proof(&self) -> bool {
        let asks = |step: &Step| {
            matches!(
                step,
                Step::Ask {
                    call: Call::Prove(_),
                    ..
                }
            )
        };
        let hangs = |end: &End| matches!(end.about, About::Proof(_));
        self.flaw == Some(Flaw::WaitsForProofs)
            && (self.pending.iter().any(asks) || self.hung.iter().any(hangs))
    }
}
