//! Numbers the slots of a prefix, so that each holder can have a place of its own: a GPU, a licence seat, a port.
//!
//! A slot that is granted gets the smallest number that no other slot of the prefix has. It stands in the contender's
//! body, and the transaction that grants the slot fails if `.lock` has changed since the numbers were read, so no two
//! holders get the same one, whichever programs and clusters they belong to. A holder that numbers nothing, such as
//! `consul lock`, has none.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    ContenderBody, Reading, Uid, Workload,
    plan::{HeldSlot, Start, Target},
    rate::StartAnswer,
    reading::Changed,
    workload::{SlotId, lock_key_of},
};
use consul_client::{SessionId, id::IdMap};

/// The indices of the slots at a prefix. The index of a dead holder is kept until it is out of `Holders`, although its
/// contender, which told the index, is gone: the dead holder's work may still run.
#[derive(Clone, Debug, Default)]
pub struct SlotIndices {
    by_session: IdMap<SessionId, u32>,
    /// The starts that were sent to the API server and may have been made, although nobody has seen that yet. Their
    /// workloads have these indices, whatever happens to their slots meanwhile.
    starts: BTreeMap<Uid, UnseenStart>,
}

/// A start that may have been made.
#[derive(Clone, Debug)]
struct UnseenStart {
    /// The workload as it was before the start, which can only be made to this version.
    workload: Target,
    /// The indices of the slots at this prefix, by ordinal.
    indices: Vec<u32>,
    /// Whether a start had no answer, so that what becomes of a later one says nothing of it.
    unanswered: bool,
}

impl SlotIndices {
    /// Takes over the indices of the contenders that may have changed in this reading.
    pub fn observe(&mut self, reading: &Reading) {
        match reading.changed() {
            Changed::All => {
                let known: Vec<SessionId> = self.by_session.keys().cloned().collect();
                let contenders = reading.contenders().map(|(session, _)| session.clone());
                for session in known.into_iter().chain(contenders) {
                    self.look(&session, reading);
                }
            }
            Changed::Only(changed) => {
                for session in changed {
                    self.look(session, reading);
                }
            }
        }
    }

    /// Takes over the index of one session.
    fn look(&mut self, session: &SessionId, reading: &Reading) {
        let index = match reading.contender(session) {
            Some(contender) => {
                ContenderBody::read(&contender.value).and_then(|body| body.slot_index)
            }
            None if reading.is_named(session) => return,
            None => None,
        };
        match index {
            Some(index) => self.by_session.insert(session.clone(), index),
            None => self.by_session.remove(session),
        };
    }

    /// Records that a start was sent, which tells its workload the indices of its slots.
    pub(crate) fn start_sent(&mut self, start: &Start, lock_key: &str) {
        let here = start
            .slots()
            .filter(|slot| lock_key_of(slot.key()) == lock_key);
        let indices: Vec<u32> = here.filter_map(HeldSlot::index).collect();
        let uid = &start.workload.uid;
        if !indices.is_empty() {
            let unseen = UnseenStart {
                workload: start.workload.clone(),
                indices,
                unanswered: self.starts.get(uid).is_some_and(|before| before.unanswered),
            };
            self.starts.insert(uid.clone(), unseen);
        }
    }

    /// Records the result of a start.
    pub(crate) fn start_answered(&mut self, workload: &Uid, answer: StartAnswer) {
        match answer {
            StartAnswer::Made => {}
            StartAnswer::NotMade => {
                let start = self.starts.get(workload);
                if start.is_some_and(|start| !start.unanswered) {
                    self.starts.remove(workload);
                }
            }
            StartAnswer::Unknown => {
                if let Some(start) = self.starts.get_mut(workload) {
                    start.unanswered = true;
                }
            }
        }
    }

    /// Forgets the starts whose workloads are seen in a later version, which shows whether they were made.
    pub(crate) fn see(&mut self, now: impl Fn(&Uid) -> Option<Arc<Workload>>) {
        self.starts
            .retain(|uid, start| now(uid).is_some_and(|now| start.workload.is_still(&now)));
    }

    /// Returns the index with which a workload may have been started although nobody has seen that.
    pub(crate) fn started_with(&self, slot: &SlotId) -> Option<u32> {
        let start = self.starts.get(&slot.workload)?;
        let ordinal = usize::try_from(slot.ordinal).ok()?;
        start.indices.get(ordinal).copied()
    }

    /// Returns the number of workloads that may have been started although nobody has seen that.
    #[cfg(test)]
    pub(crate) fn unseen_starts(&self) -> usize {
        self.starts.len()
    }

    /// Returns the indices as a transaction is to change them.
    pub(crate) fn draft(&self) -> IndexDraft<'_> {
        let starts = self.starts.values();
        IndexDraft {
            known: self,
            sorted: None,
            freed: BTreeMap::new(),
            reserved: starts.flat_map(|start| &start.indices).copied().collect(),
            next: 0,
        }
    }
}

/// The indices of the slots at a prefix as a transaction leaves them.
pub(crate) struct IndexDraft<'a> {
    known: &'a SlotIndices,
    /// The known indices in order, each as often as slots have it, once an index is asked for. Two slots have the same
    /// index only if somebody else has written a contender.
    sorted: Option<Vec<u32>>,
    /// The indices of slots that the transaction gives back, with the sessions of these slots.
    freed: BTreeMap<u32, BTreeSet<SessionId>>,
    /// The indices that are not to be given out, although no slot in Consul has them: a workload that runs has them, or
    /// the transaction gives them out.
    reserved: BTreeSet<u32>,
    /// The index from which on free ones are looked for.
    next: u32,
}

impl IndexDraft<'_> {
    /// Frees the index of a session whose slot is given back in the same transaction, unless the index is reserved.
    pub(crate) fn free(&mut self, session: &SessionId) {
        if let Some(index) = self.known.by_session.get(session) {
            let sessions = self.freed.entry(*index).or_default();
            sessions.insert(session.clone());
            self.next = self.next.min(*index);
        }
    }

    /// Gives this index to nobody, because a workload that runs has it.
    pub(crate) fn reserve(&mut self, index: u32) {
        self.reserved.insert(index);
    }

    /// Returns the index of a session that is granted a slot, which nobody else gets then: the index that its workload
    /// may have been started with, or the one that the session's contender tells, or else the smallest that nobody has.
    pub(crate) fn take(&mut self, session: &SessionId, slot: &SlotId) -> u32 {
        self.free(session);
        if let Some(index) = self.known.started_with(slot) {
            return index;
        }
        let known = &self.known.by_session;
        let sorted = self.sorted.get_or_insert_with(|| {
            let mut sorted: Vec<u32> = known.values().copied().collect();
            sorted.sort_unstable();
            sorted
        });
        let is_taken = |index: u32| {
            let from = sorted.partition_point(|taken| *taken < index);
            let same = sorted
                .iter()
                .skip(from)
                .take_while(|taken| **taken == index);
            same.count() > self.freed.get(&index).map_or(0, BTreeSet::len)
        };
        let is_free = |index: &u32| !is_taken(*index) && !self.reserved.contains(index);
        let kept = known.get(session).copied().filter(is_free);
        let index = kept.unwrap_or_else(|| {
            while !is_free(&self.next) {
                self.next = self.next.saturating_add(1);
            }
            self.next
        });
        self.reserve(index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, samples};

    /// The first slot of this workload.
    fn slot_of(workload: &str) -> SlotId {
        SlotId {
            workload: workload.into(),
            ordinal: 0,
        }
    }

    /// The index that a session gets that had none.
    fn take(draft: &mut IndexDraft<'_>) -> u32 {
        draft.take(&"new".into(), &slot_of("new"))
    }

    /// What a holder's contender tells.
    #[derive(Clone, Copy)]
    enum Tells {
        Index(u32),
        Nothing,
        /// The contender is gone.
        Gone,
    }
    use Tells::{Gone, Index, Nothing};

    /// `p` with these holders.
    fn reading(holders: &[(&str, Tells)]) -> Reading {
        let named: Vec<_> = holders
            .iter()
            .map(|(name, _)| format!("\"{name}\":true"))
            .collect();
        let body = format!(r#"{{"Limit":9,"Holders":{{{}}}}}"#, named.join(","));
        let living = holders.iter().filter_map(|(name, tells)| match tells {
            Index(index) => Some((name, Some(*index))),
            Nothing => Some((name, None)),
            Gone => None,
        });
        let contenders = living.map(|(name, slot_index)| {
            let body = ContenderBody {
                slot_index,
                ..samples::contender_body(name)
            };
            let value = serde_json::to_string(&body).unwrap();
            samples::entry(&format!("p/{name}"), Some(name), &value)
        });
        let lock = samples::entry("p/.lock", None, &body);
        samples::reading(contenders.chain([lock]).collect())
    }

    fn known(holders: &[(&str, Tells)]) -> SlotIndices {
        let mut indices = SlotIndices::default();
        indices.observe(&reading(holders));
        indices
    }

    #[test]
    fn the_smallest_index_that_nobody_has_comes_next() {
        let indices = known(&[("a", Index(0)), ("b", Nothing), ("c", Index(2))]);
        let mut draft = indices.draft();
        assert_eq!(
            [take(&mut draft), take(&mut draft), take(&mut draft)],
            [1, 3, 4]
        );
    }

    #[test]
    fn what_is_given_back_in_the_same_transaction_is_free() {
        let indices = known(&[("a", Index(0)), ("b", Index(1))]);
        let mut draft = indices.draft();
        assert_eq!(take(&mut draft), 2);
        draft.free(&"b".into());
        draft.free(&"unknown".into());
        assert_eq!([take(&mut draft), take(&mut draft)], [1, 3]);
    }

    #[test]
    fn an_index_that_two_have_is_free_once_neither_has_it() {
        let mut indices = known(&[("a", Index(0)), ("b", Index(0))]);
        let mut draft = indices.draft();
        draft.free(&"a".into());
        assert_eq!(take(&mut draft), 1);
        indices.observe(&reading(&[("b", Index(0))]));
        assert_eq!(take(&mut indices.draft()), 1);
        indices.observe(&reading(&[]));
        assert_eq!(take(&mut indices.draft()), 0);
    }

    #[test]
    fn a_dead_holder_keeps_its_index_until_it_is_pruned() {
        let mut indices = known(&[("a", Index(0))]);
        indices.observe(&reading(&[("a", Gone)]));
        assert_eq!(take(&mut indices.draft()), 1);
        indices.observe(&reading(&[]));
        assert_eq!(take(&mut indices.draft()), 0);
    }

    #[test]
    fn a_session_keeps_the_index_that_nobody_else_has() {
        let indices = known(&[("a", Index(3)), ("b", Index(2)), ("c", Index(2))]);
        let mut draft = indices.draft();
        assert_eq!(draft.take(&"a".into(), &slot_of("a")), 3);
        assert_eq!(
            [
                draft.take(&"b".into(), &slot_of("b")),
                draft.take(&"c".into(), &slot_of("c"))
            ],
            [0, 2]
        );
        let mut draft = indices.draft();
        draft.reserve(3);
        assert_eq!(draft.take(&"a".into(), &slot_of("a")), 0);
    }

    fn idle(name: &str) -> Workload {
        samples::workload(name, Phase::Idle, None, None)
    }

    /// The start of a workload in slots with these indices.
    fn start(workload: &str, indices: &[u32]) -> Start {
        let slot = |index: &u32| {
            let body = ContenderBody {
                slot_index: Some(*index),
                ..samples::contender_body(workload)
            };
            let session = format!("{workload}-{index}");
            let value = serde_json::to_string(&body).unwrap();
            let entry = samples::entry(&format!("p/{session}"), Some(&session), &value);
            HeldSlot::new(session.as_str().into(), &entry, value.as_bytes())
        };
        let workload = idle(workload);
        Start::new((&workload).into(), indices.iter().map(slot).collect()).unwrap()
    }

    #[test]
    fn a_workload_that_may_have_been_started_keeps_its_indices_in_other_sessions() {
        let mut indices = known(&[]);
        indices.start_sent(&start("a", &[1, 0]), "p/.lock");
        indices.start_sent(&start("b", &[2]), "other/.lock");
        let second = SlotId {
            ordinal: 1,
            ..slot_of("a")
        };
        let mut draft = indices.draft();
        assert_eq!(take(&mut draft), 2, "not those of a");
        assert_eq!(draft.take(&"x".into(), &slot_of("a")), 1);
        assert_eq!(draft.take(&"y".into(), &second), 0);
        indices.start_answered(&"a".into(), StartAnswer::Unknown);
        indices.start_answered(&"a".into(), StartAnswer::NotMade);
        assert_eq!(take(&mut indices.draft()), 2, "the first one had no answer");
        let seen = Arc::new(idle("a"));
        indices.see(|_| Some(seen.clone()));
        assert_eq!(take(&mut indices.draft()), 2, "it is as it was");
        indices.see(|_| None);
        assert_eq!(take(&mut indices.draft()), 0);
        indices.start_sent(&start("a", &[0]), "p/.lock");
        indices.start_answered(&"a".into(), StartAnswer::NotMade);
        assert_eq!(take(&mut indices.draft()), 0);
    }

    #[test]
    fn a_reserved_index_is_given_to_nobody_even_if_its_slot_is_given_back() {
        let indices = known(&[("a", Index(0))]);
        let mut draft = indices.draft();
        draft.reserve(1);
        draft.reserve(0);
        draft.free(&"a".into());
        assert_eq!(take(&mut draft), 2);
    }
}
