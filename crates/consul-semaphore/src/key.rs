//! The key with which a workload asks for one of the semaphores of a keyed `ConsulSemaphore`.

use std::{fmt, str::FromStr, sync::Arc};

/// The name of one semaphore of a keyed `ConsulSemaphore`: one segment of a prefix. A key has from 1 to
/// [`Key::MAX_LENGTH`] letters, digits, '.', '_' and '-'. It does not consist of dots only, and it is not `.lock`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Error: the text is not a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a key has 1 to {max} letters, digits, '.', '_' and '-', and must not be .lock or consist of only dots",
    max = Key::MAX_LENGTH
)]
pub struct InvalidKey;

impl Key {
    /// The maximum length of a key in characters: the same as for a label's value.
    pub const MAX_LENGTH: usize = 63;
}

impl FromStr for Key {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        let valid = (1..=Self::MAX_LENGTH).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.bytes().all(|byte| byte == b'.')
            && text != ".lock";
        valid.then(|| Self(text.into())).ok_or(InvalidKey)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Prefix;

    #[test]
    fn a_key_is_one_segment_of_a_prefix() {
        let longest = "k".repeat(Key::MAX_LENGTH);
        for text in ["customer-42", "a", "A.b_c-9", "..a", ".lock2", &longest] {
            assert_eq!(text.parse::<Key>().unwrap().as_ref(), text);
        }
        let too_long = "k".repeat(Key::MAX_LENGTH + 1);
        for text in [
            "", ".", "..", ".lock", "a/b", "a b", "\u{e9}", "a\n", &too_long,
        ] {
            assert_eq!(text.parse::<Key>(), Err(InvalidKey), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_key_that_a_prefix_can_be_made_of_or_none(text in hostile::text()) {
            if text.parse::<Key>().is_ok() {
                prop_assert!(text.parse::<Prefix>().is_ok());
            }
        }
    }
}
