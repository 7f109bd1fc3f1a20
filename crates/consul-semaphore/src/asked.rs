//! Records the whole request of a workload, as its contenders tell it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::workload::{Granted, MOST_SEMAPHORES, MOST_SLOTS};

/// Largest size of the lock keys of a request in a contender's body, in bytes: with a contender for each slot, a
/// grant must fit into one transaction of Consul.
const MOST_LOCK_KEY_BYTES: usize = 1024;

/// The whole request that a slot is part of: how many slots a workload asked for at each lock key.
///
/// The list is empty if the workload asked for this slot alone; the body then omits the field. The list is also empty
/// for a body that does not tell the request: one of an older version, one of another program, or one with more than
/// a workload may ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Value")]
pub struct Asked(Vec<AskedAt>);

/// Number of slots that were asked for at one lock key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AskedAt {
    lock_key: String,
    slots: u32,
}

impl Asked {
    /// Returns the request for these numbers of slots at these lock keys.
    pub fn of(parts: impl IntoIterator<Item = (String, u32)>) -> Self {
        let parts = parts
            .into_iter()
            .map(|(lock_key, slots)| AskedAt { lock_key, slots });
        Self::bounded(parts.collect())
    }

    /// Returns the request that a running workload was granted.
    pub fn granted(granted: &Granted) -> Self {
        let mut parts: BTreeMap<&str, u32> = BTreeMap::new();
        for slot in &granted.slots {
            *parts.entry(&slot.lock_key).or_default() += 1;
        }
        Self::of(
            parts
                .into_iter()
                .map(|(key, slots)| (key.to_owned(), slots)),
        )
    }

    /// Returns the number of lock keys at which slots were asked for.
    pub fn lock_keys(&self) -> usize {
        self.0.len().max(1)
    }

    /// Returns whether one slot alone was asked for.
    pub(super) fn is_one(&self) -> bool {
        self.0.is_empty()
    }

    fn bounded(parts: Vec<AskedAt>) -> Self {
        let bytes: usize = parts.iter().map(|part| part.lock_key.len()).sum();
        let slots = parts.iter().try_fold(0_u32, |slots, part| {
            slots.checked_add(part.slots).filter(|_| part.slots > 0)
        });
        let several = slots.is_some_and(|slots| (2..=MOST_SLOTS).contains(&slots));
        if several && parts.len() <= MOST_SEMAPHORES && bytes <= MOST_LOCK_KEY_BYTES {
            Self(parts)
        } else {
            Self::default()
        }
    }
}

impl From<Value> for Asked {
    fn from(value: Value) -> Self {
        serde_json::from_value(value).map_or_else(|_| Self::default(), Self::bounded)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Asked {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_request_is_read_as_it_is_written() {
        let asked = Asked::of([("a/.lock".to_owned(), 1), ("b/.lock".to_owned(), 2)]);
        let written = serde_json::to_value(&asked).unwrap();
        let expected =
            json!([{ "lockKey": "a/.lock", "slots": 1 }, { "lockKey": "b/.lock", "slots": 2 }]);
        assert_eq!(written, expected);
        assert_eq!((read(written), asked.lock_keys()), (asked, 2));
    }

    #[test]
    fn whatever_is_no_request_for_several_slots_reads_as_one_for_this_slot() {
        let at = |key: &str, slots: u32| json!({ "lockKey": key, "slots": slots });
        for value in [
            json!(null),
            json!("a/.lock"),
            json!([]),
            json!([at("a/.lock", 1)]),
            json!([at("a/.lock", 0), at("b/.lock", 2)]),
            json!([at("a/.lock", MOST_SLOTS), at("b/.lock", 1)]),
            json!([at("a/.lock", u32::MAX), at("b/.lock", u32::MAX)]),
            json!([at(&"a".repeat(MOST_LOCK_KEY_BYTES + 1), 2)]),
            json!(vec![at("a/.lock", 1); MOST_SEMAPHORES + 1]),
        ] {
            let asked = read(value.clone());
            assert!(asked.is_one(), "{value}");
            assert_eq!(asked.lock_keys(), 1);
        }
        assert!(!read(json!([at("a/.lock", 2)])).is_one());
    }

    #[test]
    fn what_a_running_workload_was_granted_is_counted_for_each_lock_key() {
        let slot = |key: &str| crate::GrantedSlot {
            lock_key: key.into(),
            session: "s".into(),
            index: None,
        };
        let granted = Granted {
            slots: vec![slot("a/.lock"), slot("b/.lock"), slot("b/.lock")],
        };
        let expected = Asked::of([("a/.lock".to_owned(), 1), ("b/.lock".to_owned(), 2)]);
        assert_eq!(Asked::granted(&granted), expected);
    }

    proptest! {
        #[test]
        fn any_value_is_read_within_the_bounds(value in hostile::bytes()) {
            if let Ok(asked) = serde_json::from_slice::<Asked>(&value) {
                prop_assert!(asked.0.len() <= MOST_SEMAPHORES);
            }
        }
    }
}
