//! Names the place of a semaphore in Consul's key-value store.

use super::Key;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The name of the lock key below a prefix; no segment of a prefix may have it.
const LOCK_SEGMENT: &str = ".lock";

/// The prefix of a semaphore's keys: segments of `[A-Za-z0-9._-]` joined by `/`, with no slash at either end. No
/// segment consists of dots only, because HTTP clients and Consul itself resolve such segments away, and none is
/// `.lock`, the name of the lock key itself. So Consul takes each prefix as it is, even with its own checks of names
/// since 1.22.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix(String);

impl Prefix {
    /// The maximum length of a prefix in bytes. With a [`Key`] and a session's id appended, a key in Consul stays
    /// below 512 bytes.
    pub const MAX_LENGTH: usize = 400;

    /// The prefix of a `ConsulSemaphore` whose spec gives none: `semaphores/<namespace>/<name>`.
    ///
    /// The namespace and the name are Kubernetes object names, which are always valid segments.
    pub fn of_object(namespace: &str, name: &str) -> Self {
        Self(format!("semaphores/{namespace}/{name}"))
    }

    /// Returns the prefix of one key of the keyed semaphore at this prefix. The result may be longer than the limit
    /// for users.
    #[must_use]
    pub fn of_key(&self, key: &Key) -> Self {
        Self(format!("{self}/{key}"))
    }

    /// Returns the prefix as it is in keys, without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Error: the text is not a [`Prefix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "prefix {0:?} is not valid: it must be segments of letters, digits, '.', '_' and '-' joined by '/', at most {max} \
     bytes, such as team/db; no segment may be '.lock' or consist of only dots",
    max = Prefix::MAX_LENGTH
)]
pub struct InvalidPrefix(String);

impl TryFrom<String> for Prefix {
    type Error = InvalidPrefix;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.len() <= Self::MAX_LENGTH && text.split('/').all(is_segment) {
            Ok(Self(text))
        } else {
            Err(InvalidPrefix(text))
        }
    }
}

/// Whether this text can be a segment of a prefix.
fn is_segment(segment: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    // An empty segment also counts as one of only dots.
    segment.bytes().all(allowed)
        && segment.bytes().any(|byte| byte != b'.')
        && segment != LOCK_SEGMENT
}

impl FromStr for Prefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.to_owned().try_into()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.0
    }
}

impl AsRef<str> for Prefix {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// An accepted prefix is a path that no client and no server normalizes, and needs no escapes.
        #[test]
        fn any_text_is_a_plain_path_or_refused(text in prop_oneof![hostile::text(), "[a-zA-Z0-9._/%-]{0,20}"]) {
            let Ok(prefix) = text.parse::<Prefix>() else {
                return Ok(());
            };
            prop_assert_eq!(prefix.as_str(), &text);
            prop_assert_eq!(prefix.as_str().parse(), Ok(prefix.clone()));
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte)));
            for segment in text.split('/') {
                prop_assert!(!matches!(segment, "" | "." | ".." | ".lock"), "{}", text);
            }
        }
    }

    #[test]
    fn segments_joined_by_slashes_are_a_prefix() {
        for text in [
            "db",
            "shared/db",
            "A/b_c-d.e/0",
            "a/.locks/x.lock",
            "...x",
            &"a".repeat(400),
        ] {
            assert_eq!(
                text.parse::<Prefix>().as_ref().map(Prefix::as_str),
                Ok(text)
            );
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let too_long = "a".repeat(401);
        for text in [
            "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/...", ".lock", "a/.lock",
            ".lock/a", "a b", "a%2fb", "a\n", "ä", "a?b", &too_long,
        ] {
            assert_eq!(
                text.parse::<Prefix>(),
                Err(InvalidPrefix(text.to_owned())),
                "{text:?}"
            );
        }
    }

    #[test]
    fn the_error_says_what_is_allowed() {
        let error = InvalidPrefix("/a".to_owned()).to_string();
        assert!(
            error.starts_with(r#"prefix "/a" is not valid: it must be segments of letters"#),
            "{error}"
        );
        assert!(error.contains("at most 400 bytes"), "{error}");
    }

    #[test]
    fn the_default_is_valid_for_the_longest_names() {
        let namespace = "n".repeat(63);
        let name = "x".repeat(253);
        let prefix = Prefix::of_object(&namespace, &name);
        assert_eq!(prefix.as_str().parse(), Ok(prefix));
    }
}
