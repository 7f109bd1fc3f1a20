//! Records since when the holders hold their slots, as far as that was seen. The times are only shown, and decide
//! nothing.

use std::collections::BTreeSet;

use jiff::Timestamp;

use consul_client::{SessionId, clock, id::IdMap};
use consul_semaphore::{Lock, Reading};

/// Times since which the holders are known to hold their slots.
#[derive(Default)]
pub(in crate::controller) struct Tenures {
    /// Time of each holder's grant; `None` for a holder that already held its slot when it was first seen.
    since: IdMap<SessionId, Option<Timestamp>>,
    /// `ModifyIndex` of `.lock` when the holders were last read.
    seen: Option<u64>,
}

impl Tenures {
    /// Returns since when a session holds a slot, if its grant was seen.
    pub(in crate::controller) fn since(&self, session: &SessionId) -> Option<Timestamp> {
        self.since.get(session).copied().flatten()
    }

    /// Records the current holders.
    pub(super) fn observe(&mut self, reading: &Reading) {
        let Lock::Semaphore { body, index } = reading.lock() else {
            return;
        };
        if self.seen == Some(*index) {
            return;
        }
        let now = self.seen.replace(*index).map(|_| clock::time());
        let holders: BTreeSet<_> = body.holders().collect();
        self.since.retain(|session, _| holders.contains(session));
        for session in holders {
            if !self.since.contains_key(session) {
                self.since.insert(session.clone(), now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consul_client::{Entry, Listing, clock::Moment};
    use consul_semaphore::{Mode, lock::SEMAPHORE_FLAGS};

    fn reading(index: u64, holders: &str) -> Reading {
        let lock = Entry {
            key: "p/.lock".into(),
            value: format!(r#"{{"Limit":2,"Holders":{{{holders}}}}}"#).into_bytes(),
            flags: SEMAPHORE_FLAGS,
            session: None,
            lock_index: 0,
            create_index: 1,
            modify_index: index,
        };
        let listing = Listing {
            entries: vec![lock].into(),
            index: 1,
            sent: Moment::now(),
            reset: false,
        };
        Reading::new("p".parse().unwrap(), Mode::Semaphore, listing)
    }

    #[test]
    fn the_time_of_a_grant_is_known_if_the_grant_was_seen() {
        let mut tenures = Tenures::default();
        let [a, b] = ["a", "b"].map(SessionId::from);
        tenures.observe(&reading(1, r#""a":true"#));
        assert_eq!(tenures.since(&a), None, "it held before");
        tenures.observe(&reading(2, r#""a":true,"b":true"#));
        assert!(tenures.since(&b).is_some());
        assert_eq!(tenures.since(&a), None);
        tenures.observe(&reading(3, r#""b":true"#));
        tenures.observe(&reading(4, r#""a":true,"b":true"#));
        assert!(tenures.since(&a).is_some(), "it came again");
    }
}
