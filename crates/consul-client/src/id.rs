//! Ids that others made, and that are often compared.

use std::{
    cmp::Ordering,
    collections::{HashMap, HashSet},
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

/// A map by id. With thousands of holders there are many look-ups, so ids are hashed by a quick function. Each map
/// has its own seed, because other programs choose ids, too.
pub type IdMap<K, V> = HashMap<K, V, IdHash>;

/// Ids, hashed as in an [`IdMap`].
pub type IdSet<K> = HashSet<K, IdHash>;

/// The hash of ids.
pub type IdHash = foldhash::fast::RandomState;

/// An id as text, a UUID as a rule. Clones share the text.
///
/// A UUID in its usual form (lower case, with hyphens) is compared and hashed as a number: a pass over thousands of
/// holders does so many times for each, and would otherwise wait for memory each time. Ids are ordered by their text.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Id {
    /// The UUID as a number; 0 if the text is not a UUID in its usual form.
    number: u128,
    text: Arc<str>,
}

impl Id {
    /// Returns the text of the id.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the id is a UUID in its usual form. (No id is all zeros.)
    pub fn is_uuid(&self) -> bool {
        self.number != 0
    }
}

impl From<&str> for Id {
    fn from(text: &str) -> Self {
        Self {
            number: number(text).unwrap_or(0),
            text: text.into(),
        }
    }
}

impl From<String> for Id {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.as_str().to_owned()
    }
}

/// The number of a UUID in its usual form.
fn number(text: &str) -> Option<u128> {
    let parts = [8, 13, 18, 23];
    if text.len() != 36 {
        return None;
    }
    let mut number = 0;
    for (place, byte) in text.bytes().enumerate() {
        let digit = match byte {
            b'-' if parts.contains(&place) => continue,
            _ if parts.contains(&place) => return None,
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        number = number << 4 | u128::from(digit);
    }
    Some(number)
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && (self.number != 0 || self.text == other.text)
    }
}

impl Eq for Id {}

impl Ord for Id {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.number == 0 || other.number == 0 {
            self.text.cmp(&other.text)
        } else {
            self.number.cmp(&other.number)
        }
    }
}

impl PartialOrd for Id {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
        if self.number == 0 {
            self.text.hash(state);
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher as _};

    use proptest::prelude::*;

    use super::*;

    fn hashed(id: &Id) -> u64 {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        hasher.finish()
    }

    /// UUIDs that differ little, texts that are almost UUIDs, and anything else.
    fn text() -> impl Strategy<Value = String> {
        let uuid = "[01f]{8}-0000-4000-8000-00000000000[09a]";
        prop_oneof![
            uuid,
            uuid.prop_map(|text| text.to_uppercase()),
            uuid.prop_map(|text| text.replace('f', "g")),
            Just("00000000-0000-0000-0000-000000000000".to_owned()),
            "[0-9a-f-]{36}",
            ".{0,3}",
        ]
    }

    proptest! {
        #[test]
        fn an_id_is_compared_as_its_text(a in text(), b in text()) {
            let (one, other) = (Id::from(a.as_str()), Id::from(b.as_str()));
            prop_assert_eq!(one == other, a == b);
            prop_assert_eq!(one.cmp(&other), a.cmp(&b));
            prop_assert!(a != b || hashed(&one) == hashed(&other));
            prop_assert_eq!(one.to_string(), a);
        }
    }
}
