//! Parses lengths of time as users write them.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};

/// A length of time in whole seconds, from `MIN` to `MAX` of them.
///
/// Users write it like a Kubernetes duration ([Go's syntax](https://pkg.go.dev/time#ParseDuration)), with whole
/// hours, minutes and seconds: `120s`, `2m`, `1h30m`. It serializes as seconds, so that Consul gets exactly the
/// number used here, with nothing rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Seconds<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Seconds<MIN, MAX> {
    /// The shortest length of time of this type.
    pub const MIN: Self = Self(MIN);
    /// The longest length of time of this type.
    pub const MAX: Self = Self(MAX);

    /// Creates a length of this many seconds; `None` if that is too short or too long.
    pub const fn new(seconds: u64) -> Option<Self> {
        if MIN <= seconds && seconds <= MAX {
            Some(Self(seconds))
        } else {
            None
        }
    }

    /// Returns the length as a [`Duration`].
    pub const fn get(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl<const MIN: u64, const MAX: u64> Default for Seconds<MIN, MAX> {
    /// Returns the shortest length of time of this type.
    fn default() -> Self {
        Self::MIN
    }
}

/// Error: the text is not a valid length of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not valid: it must be whole hours, minutes and seconds from {min}s to {max}s, such as 30s, 2m or 1h30m"
)]
pub struct InvalidSeconds {
    text: String,
    min: u64,
    max: u64,
}

impl<const MIN: u64, const MAX: u64> FromStr for Seconds<MIN, MAX> {
    type Err = InvalidSeconds;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text)
            .and_then(Self::new)
            .ok_or_else(|| InvalidSeconds {
                text: text.to_owned(),
                min: MIN,
                max: MAX,
            })
    }
}

/// Parses one or more `<whole number><h, m or s>`; `None` for anything else and on overflow.
fn parse(mut text: &str) -> Option<u64> {
    let mut seconds: u64 = 0;
    while let Some(end) = text.find(|c: char| !c.is_ascii_digit()) {
        let (number, rest) = text.split_at(end);
        let (factor, rest) = match rest.split_at_checked(1)? {
            ("h", rest) => (3600, rest),
            ("m", rest) => (60, rest),
            ("s", rest) => (1, rest),
            _ => return None,
        };
        seconds = number
            .parse::<u64>()
            .ok()?
            .checked_mul(factor)?
            .checked_add(seconds)?;
        if rest.is_empty() {
            return Some(seconds);
        }
        text = rest;
    }
    None
}

impl<const MIN: u64, const MAX: u64> TryFrom<String> for Seconds<MIN, MAX> {
    type Error = InvalidSeconds;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Display for Seconds<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0)
    }
}

impl<const MIN: u64, const MAX: u64> From<Seconds<MIN, MAX>> for String {
    fn from(seconds: Seconds<MIN, MAX>) -> Self {
        seconds.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Some10To24h = Seconds<10, 86_400>;

    fn seconds(text: &str) -> Option<u64> {
        text.parse::<Some10To24h>()
            .ok()
            .map(|seconds| seconds.get().as_secs())
    }

    #[test]
    fn hours_minutes_and_seconds_add_up() {
        assert_eq!(seconds("10s"), Some(10));
        assert_eq!(seconds("120s"), Some(120));
        assert_eq!(seconds("2m"), Some(120));
        assert_eq!(seconds("1h30m"), Some(5400));
        assert_eq!(seconds("1h0m5s"), Some(3605));
        assert_eq!(seconds("24h"), Some(86_400));
        assert_eq!(seconds("30s1m"), Some(90));
    }

    #[test]
    fn anything_else_is_refused_with_what_is_allowed() {
        for text in [
            "",
            "0",
            "120",
            "s",
            "abc",
            "9s",
            "24h1s",
            "25h",
            "-120s",
            "+120s",
            "1.5h",
            "120S",
            "120 s",
            "2m ",
            "1d",
            "1h30",
            "99999999999999999999s",
            "18446744073709551615h",
            "18446744073709551615s18446744073709551615s",
            "1µs",
            "١٢٠s",
        ] {
            let refused = text.parse::<Some10To24h>().unwrap_err().to_string();
            assert!(
                refused.contains("from 10s to 86400s"),
                "{text:?}: {refused}"
            );
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for seconds in [Some10To24h::MIN, Some10To24h::MAX] {
            assert_eq!(seconds.to_string().parse(), Ok(seconds));
        }
    }
}
