//! Defines the TTL of a session: how long the session outlives its last renewal.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};

use consul_semaphore::{InvalidSeconds, Seconds};

/// The text for no TTL at all.
const NONE: &str = "None";

/// The time to live of Consul sessions: whole seconds from 10s to 24h, which is the range that Consul allows (10 s is
/// Consul's `session_ttl_min`, unless an administrator raised it), or `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Ttl {
    /// Consul ends a session this long after its last renewal, or up to twice as long.
    After(Seconds<10, 86_400>),
    /// A session never expires: somebody must end it explicitly.
    Never,
}

impl Ttl {
    /// Returns the TTL as a duration of whole seconds; `None` if a session never expires.
    pub const fn get(self) -> Option<Duration> {
        match self {
            Self::After(seconds) => Some(seconds.get()),
            Self::Never => None,
        }
    }
}

impl Default for Ttl {
    fn default() -> Self {
        Seconds::new(120).map_or(Self::Never, Self::After)
    }
}

/// The text is not a [`Ttl`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ttl {0}, or None")]
pub struct InvalidTtl(#[from] InvalidSeconds);

impl FromStr for Ttl {
    type Err = InvalidTtl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            NONE => Ok(Self::Never),
            text => Ok(Self::After(text.parse()?)),
        }
    }
}

impl TryFrom<String> for Ttl {
    type Error = InvalidTtl;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(seconds) => seconds.fmt(f),
            Self::Never => f.write_str(NONE),
        }
    }
}

impl From<Ttl> for String {
    fn from(ttl: Ttl) -> Self {
        ttl.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in prop_oneof![hostile::text(), "([0-9]{1,6}[hms]){1,4}"]) {
            if let Ok(ttl) = text.parse::<Ttl>() {
                prop_assert_eq!(ttl.to_string().parse(), Ok(ttl));
                prop_assert!(ttl.get().is_none_or(|ttl| (10..=86_400).contains(&ttl.as_secs())));
            }
        }
    }

    #[test]
    fn a_length_of_time_or_none() {
        let ttl = |text: &str| text.parse::<Ttl>().map(Ttl::get);
        assert_eq!(ttl("1h30m"), Ok(Some(Duration::from_mins(90))));
        assert_eq!(ttl("None"), Ok(None));
        for text in ["none", "", "9s", "25h"] {
            let refused = ttl(text).unwrap_err().to_string();
            assert!(refused.ends_with("or None"), "{refused}");
        }
        assert_eq!(Ttl::default().get(), Some(Duration::from_mins(2)));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for ttl in [Ttl::default(), Ttl::Never] {
            assert_eq!(ttl.to_string().parse(), Ok(ttl));
        }
    }
}
