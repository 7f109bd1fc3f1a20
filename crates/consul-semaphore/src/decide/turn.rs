//! Fair order among all who wait at a prefix: see `docs/protocol.md` for the rule.

use std::collections::BTreeSet;

use super::{Observed, Pass};
use crate::{
    ContenderBody, Mode,
    identity::Claim,
    reading::Reading,
    workload::{Place, Workload},
};
use consul_client::{Entry, SessionId, clock::Moment};

/// The foreign contenders that wait: from other clusters, and from other programs.
pub(super) struct Others {
    /// Whether any foreign contender takes part here, as a holder or waiting.
    any: bool,
    /// Those whose turn has not ended.
    waiting: Vec<Waiter>,
    /// How many slots are left to them, if free.
    left: usize,
}

/// A foreign contender that waits.
struct Waiter {
    /// Its place in the queue, if its contender states it as this program's contenders do.
    place: Option<Place>,
    /// The contender's `CreateIndex`.
    created: u64,
    /// How many slots it waits for.
    slots: usize,
    /// When its turn ends, if a slot is free.
    until: Option<Moment>,
}

impl Others {
    pub(super) fn of(observed: &Observed<'_>, reading: &Reading) -> Self {
        let mut others = Self {
            any: false,
            waiting: Vec::new(),
            left: 0,
        };
        // Nobody can see who waits for a mutex.
        if observed.settings.fair.is_none() || observed.settings.mode == Mode::Mutex {
            return others;
        }
        let ours: BTreeSet<&SessionId> = observed.ours.iter().map(|ours| &ours.session).collect();
        let there = |session: &&&SessionId| reading.contender(session).is_some();
        let own = ours.iter().filter(there).count() + observed.evidence.count_of_steady();
        others.any = reading.count_of_contenders() > own;
        let waiting = reading
            .waiting()
            .filter(|(session, _)| !ours.contains(session));
        let waiting = waiting.map(|(session, entry)| {
            let body = ContenderBody::read(&entry.value);
            let slots = body.as_ref().map_or(1, ContenderBody::slots_awaited);
            Waiter {
                place: body.and_then(|body| body.place()),
                created: entry.create_index,
                slots: usize::try_from(slots).unwrap_or(usize::MAX),
                until: observed.turns.ends(session),
            }
        });
        let in_turn = |waiter: &Waiter| waiter.until.is_none_or(|until| until > observed.now);
        others.waiting = waiting.filter(in_turn).collect();
        others
    }

    /// Those before this workload. A contender that does not say its place is before a workload whose contender is
    /// younger or does not exist yet.
    fn before(
        &self,
        workload: &Workload,
        contender: Option<&Entry>,
    ) -> impl Iterator<Item = &Waiter> + Clone {
        let place = workload.place();
        let own = contender.map(|entry| entry.create_index);
        self.waiting
            .iter()
            .filter(move |waiter| match &waiter.place {
                Some(theirs) => *theirs < place,
                None => own.is_none_or(|own| waiter.created < own),
            })
    }
}

impl Pass<'_> {
    /// Leaves free slots to foreign contenders that come before this workload.
    pub(super) fn leave_to_others(&mut self, others: &mut Others, workload: &Workload) {
        let session = self.session_of(&workload.uid, 0);
        let contender = session.and_then(|session| self.reading.contender(&session));
        let before = others.before(workload, contender);
        let (count, until) = (
            before.clone().map(|waiter| waiter.slots).sum::<usize>(),
            before.filter_map(|waiter| waiter.until).min(),
        );
        let more = count.saturating_sub(others.left);
        self.composer
            .reserve(u32::try_from(more).unwrap_or(u32::MAX));
        others.left = others.left.max(count);
        if let Some(until) = until {
            self.wake_at(until);
        }
    }

    /// Shows this workload to others, by a contender that says its place in the queue.
    pub(super) fn show(&mut self, others: &Others, workload: &Workload, session: &SessionId) {
        let shown = self.reading.contender(session);
        let shown = shown.and_then(|entry| ContenderBody::read(&entry.value)?.waiting);
        let claim = Claim::of(workload, self.slots_for(workload));
        // A session in `Holders` that has no contender is dead, and stays so.
        if others.any && !self.reading.is_named(session) && shown.as_ref() != Some(&claim) {
            self.composer.show(workload, claim, session);
        }
    }
}
