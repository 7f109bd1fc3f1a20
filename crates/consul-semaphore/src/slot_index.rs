//! Numbers the slots of a prefix, so that each holder can have a place of its own: a GPU, a licence seat, a port.
//!
//! A slot that is granted gets the smallest number that no other slot of the prefix has, and that no workload runs with
//! although its slot was taken. The number stands in the contender's body, and the transaction that grants the slot
//! fails if `.lock` has changed since the numbers were read, so no two grants choose the same one, whichever programs and
//! clusters they belong to. A workload that runs on without its slot, and is granted another one, brings its number
//! along, which somebody else may have by then. A holder that numbers nothing, such as `consul lock`, has none.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ContenderBody, Reading, reading::Changed};
use consul_client::{SessionId, id::IdMap};

/// The indices of the slots at a prefix. The index of a dead holder is kept until it is out of `Holders`, although its
/// contender, which told the index, is gone: the dead holder's work may still run.
#[derive(Clone, Debug, Default)]
pub struct SlotIndices {
    by_session: IdMap<SessionId, u32>,
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

    /// Returns the indices as a transaction is to change them.
    pub(crate) fn draft(&self) -> IndexDraft<'_> {
        IndexDraft {
            known: self,
            untold: IdMap::default(),
            sorted: None,
            freed: BTreeMap::new(),
            reserved: BTreeSet::new(),
            next: 0,
        }
    }
}

/// The indices of the slots at a prefix as a transaction leaves them.
pub(crate) struct IndexDraft<'a> {
    known: &'a SlotIndices,
    /// The indices of dead holders that are known from their workloads alone, because the contenders were not seen.
    untold: IdMap<SessionId, u32>,
    /// The known indices in order, each as often as slots have it, once an index is asked for. Two slots can
    /// have the same index, for example after a workload that had lost its slot was granted another one.
    sorted: Option<Vec<u32>>,
    /// The indices of slots that the transaction gives back, with the sessions of these slots.
    freed: BTreeMap<u32, BTreeSet<SessionId>>,
    /// The indices that are not to be given out, even if no slot in Consul has them: a workload that runs has them, or the
    /// transaction gives them out.
    reserved: BTreeSet<u32>,
    /// The index from which on free ones are looked for.
    next: u32,
}

impl IndexDraft<'_> {
    /// Frees the index of a session whose slot is given back in the same transaction, unless the index is reserved.
    pub(crate) fn free(&mut self, session: &SessionId) {
        if let Some(index) = self.index_of(session) {
            let sessions = self.freed.entry(index).or_default();
            sessions.insert(session.clone());
            self.next = self.next.min(index);
        }
    }

    /// Returns the index that a session is known to have.
    fn index_of(&self, session: &SessionId) -> Option<u32> {
        let known = self.known.by_session.get(session);
        known.or_else(|| self.untold.get(session)).copied()
    }

    /// Records which index a dead holder's slot has, as the grant of its workload says, unless the contender said it.
    pub(crate) fn tell(&mut self, session: &SessionId, index: u32) {
        if self.index_of(session).is_none() {
            self.untold.insert(session.clone(), index);
        }
    }

    /// Gives this index to nobody, because a workload that runs has it.
    pub(crate) fn reserve(&mut self, index: u32) {
        self.reserved.insert(index);
    }

    /// Returns the index of a session that is granted a slot, which nobody else gets then: the one that the session's
    /// contender tells, or else the smallest that nobody has.
    pub(crate) fn take(&mut self, session: &SessionId) -> u32 {
        self.free(session);
        let known = self.known.by_session.values();
        let all = known.chain(self.untold.values()).copied();
        let sorted = self.sorted.get_or_insert_with(|| {
            let mut sorted: Vec<u32> = all.collect();
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
        let before = self.known.by_session.get(session).copied();
        let kept = before.filter(is_free);
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
    use crate::samples;

    /// The index that a session gets that had none.
    fn take(draft: &mut IndexDraft<'_>) -> u32 {
        draft.take(&"new".into())
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
        assert_eq!(draft.take(&"a".into()), 3);
        assert_eq!([draft.take(&"b".into()), draft.take(&"c".into())], [0, 2]);
        let mut draft = indices.draft();
        draft.reserve(3);
        assert_eq!(draft.take(&"a".into()), 0);
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

    #[test]
    fn the_index_of_a_dead_holder_that_its_workload_tells_is_kept_until_it_is_pruned() {
        let indices = known(&[("a", Gone), ("b", Index(1))]);
        let mut draft = indices.draft();
        draft.tell(&"a".into(), 0);
        draft.tell(&"b".into(), 3);
        assert_eq!(take(&mut draft), 2);
        draft.free(&"a".into());
        assert_eq!(take(&mut draft), 0);
    }
}
