//! Keeps a fair order among all contenders that wait at a prefix: see `docs/protocol.md` for the rule.

use std::collections::BTreeSet;

use super::{Observed, Pass};
use crate::{
    ContenderBody, Mode,
    identity::Claim,
    reading::Reading,
    turns::Statement,
    workload::{Place, Workload},
};
use consul_client::{Entry, SessionId, clock::Moment};

/// Foreign contenders that wait: those of other clusters and of other programs.
pub(super) struct Others {
    /// Whether the order is kept among all contenders here, and waiting workloads are shown to others.
    fair: bool,
    /// Whether any foreign contender takes part here, as a holder or waiting.
    any: bool,
    /// Waiting contenders whose turn has not ended, or for whom slots are kept.
    waiting: Vec<ForeignWaiter>,
    /// Number of slots that are left to foreign contenders, if free.
    left: usize,
}

/// A foreign contender that waits.
struct ForeignWaiter {
    /// Place in the queue, if the contender states it as this program's contenders do.
    place: Option<Place>,
    /// `CreateIndex` of the contender.
    created: u64,
    /// Number of slots that are left to the contender.
    slots: usize,
    /// Time until which the slots are left to the contender, if a slot is free.
    until: Option<Moment>,
    /// Whether the slots are kept for the contender, and not only left to it for a turn.
    kept: bool,
}

impl ForeignWaiter {
    fn new(observed: &Observed<'_>, session: &SessionId, entry: &Entry) -> Self {
        let Observed {
            settings,
            memory,
            now,
            ..
        } = *observed;
        let turns = &memory.turns;
        let known = turns.statement(session).cloned();
        let says = known.unwrap_or_else(|| Statement::of(entry));
        let claims =
            !settings.is_program() && says.cluster_id.as_deref() == Some(&*settings.cluster.id);
        let kept = turns
            .kept(session, claims)
            .filter(|(_, until)| *until > now);
        let slots = kept.map_or(says.awaited, |(slots, _)| slots.min(settings.limit));
        let until = kept.map_or_else(|| turns.ends(session), |(_, until)| Some(until));
        Self {
            place: says.place,
            created: entry.create_index,
            slots: usize::try_from(slots).unwrap_or(usize::MAX),
            until,
            kept: kept.is_some(),
        }
    }
}

impl Others {
    pub(super) fn of(observed: &Observed<'_>, reading: &Reading) -> Self {
        let mut others = Self {
            // Nobody can see who waits for a mutex.
            fair: observed.settings.fair.is_some() && observed.settings.mode != Mode::Mutex,
            any: false,
            waiting: Vec::new(),
            left: 0,
        };
        if !others.fair {
            return others;
        }
        let ours: BTreeSet<&SessionId> = observed.ours.iter().map(|ours| &ours.session).collect();
        let there = |session: &&&SessionId| reading.contender(session).is_some();
        let own = ours.iter().filter(there).count() + observed.evidence.count_of_steady();
        others.any = reading.count_of_contenders() > own;
        let now = observed.now;
        let in_turn = |waiter: &ForeignWaiter| waiter.until.is_none_or(|until| until > now);
        others.waiting = reading
            .waiting()
            .filter(|(session, _)| !ours.contains(session))
            .map(|(session, entry)| ForeignWaiter::new(observed, session, entry))
            .filter(in_turn)
            .collect();
        others
    }

    /// Returns how many slots are left to foreign contenders, if free.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Returns the foreign contenders that come before this workload. A contender that does not say its place comes
    /// before a workload whose contender is younger or does not exist yet.
    fn before(
        &self,
        workload: &Workload,
        contender: Option<&Entry>,
    ) -> impl Iterator<Item = &ForeignWaiter> + Clone {
        let place = workload.place();
        let own = contender.map(|entry| entry.create_index);
        self.waiting
            .iter()
            .filter(move |waiter| match &waiter.place {
                Some(theirs) => *theirs < place,
                None => own.is_none_or(|own| waiter.created < own),
            })
    }

    /// Returns whether slots are kept for a foreign contender that comes before this workload.
    pub(super) fn keep_before(&self, workload: &Workload) -> bool {
        let place = workload.place();
        let mut waiting = self.waiting.iter();
        waiting.any(|waiter| {
            let before = waiter.place.as_ref().is_some_and(|theirs| *theirs < place);
            waiter.kept && before
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

    /// Shows this workload to others, by a contender that says its place in the queue and how many slots they are to
    /// keep for it. A workload that keeps slots is shown even if nobody else is seen, because the next one to come
    /// must know. Its contender is written anew now and then, as a sign that the workload still waits.
    pub(super) fn show(
        &mut self,
        others: &Others,
        workload: &Workload,
        session: &SessionId,
        keeps: bool,
    ) {
        let slots = self.slots_for(workload);
        let claim = Claim {
            keeps: if keeps { slots } else { 0 },
            ..Claim::of(workload, slots)
        };
        let shown = self
            .reading
            .contender(session)
            .and_then(|entry| ContenderBody::read(&entry.value)?.waiting);
        let told = shown.as_ref().is_some_and(|shown| shown.keeps > 0);
        // A session in `Holders` that has no contender is dead, and stays so.
        if !others.fair || self.reading.is_named(session) || !(others.any || keeps || told) {
            return;
        }
        let mut outdated = shown.as_ref() != Some(&claim);
        if let Some(anew) = self.observed.memory.turns.anew(session).filter(|_| keeps) {
            outdated |= anew <= self.observed.now;
            self.plan.anew = self.plan.anew.into_iter().chain([anew]).min();
        }
        if outdated {
            let asked = self.asked_by(workload);
            self.composer.show(workload, claim, asked, session);
        }
    }

    /// Returns whether this contender tells others to keep slots for its workload.
    pub(super) fn tells_to_keep(&self, session: &SessionId) -> bool {
        let contender = self.reading.contender(session);
        let body = contender.and_then(|entry| ContenderBody::read(&entry.value));
        body.is_some_and(|body| body.slots_kept() > 0)
    }
}
