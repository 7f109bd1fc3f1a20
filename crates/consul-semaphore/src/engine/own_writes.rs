//! Keeps our own writes to a prefix until a listing shows them.

use std::collections::BTreeMap;

use consul_client::{Entry, clock::Moment};

/// Keys that transactions of ours wrote or deleted and that no listing is known to show yet.
///
/// A listing takes longer the more holders there are, and may be older than writes that were answered meanwhile.
/// Where the listing differs in these keys, the answers count.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnWrites(BTreeMap<String, OwnWrite>);

#[derive(Clone, Debug)]
struct OwnWrite {
    /// Raft index of the transaction; `None` if the answer has no index, because the transaction only deletes.
    index: Option<u64>,
    answered: Moment,
}

impl OwnWrites {
    /// Records a successful transaction of ours. `answer` has the entries that the transaction wrote.
    pub(super) fn add<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a str>,
        answer: &[Entry],
        answered: Moment,
    ) {
        let index = answer.iter().map(|entry| entry.modify_index).max();
        for key in keys {
            self.0.insert(key.to_owned(), OwnWrite { index, answered });
        }
    }

    /// Forgets the writes that a listing shows which has this index and was requested at this time.
    pub(super) fn listed(&mut self, index: u64, sent: Moment) {
        self.0.retain(|_, written| {
            let shown = written.index.is_some_and(|written| written <= index);
            !shown && written.answered >= sent
        });
    }

    /// Forgets all writes, because Consul lost its data.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}
