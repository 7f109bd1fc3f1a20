//! How long a session outlives its last renewal.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};

/// The time to live of Consul sessions: whole seconds from 10s to 24h, which is what Consul allows.
///
/// Written like every Kubernetes duration ([Go's syntax](https://pkg.go.dev/time#ParseDuration)),
/// with whole hours, minutes and seconds: `120s`, `2m`, `1h30m`. It serializes as seconds, so that
/// Consul gets the very number that evidence is judged by, with nothing rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ttl(Duration);

impl Ttl {
    /// The shortest: 10 seconds, Consul's `session_ttl_min` unless its administrator raised it.
    pub const MIN: Self = Self(Duration::from_secs(10));
    /// The longest: 24 hours, a constant of Consul.
    pub const MAX: Self = Self(Duration::from_hours(24));

    /// The time to live as a duration: whole seconds.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl Default for Ttl {
    fn default() -> Self {
        Self(Duration::from_mins(2))
    }
}

/// The text is no [`Ttl`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ttl {0:?} is not valid: it must be whole hours, minutes and seconds from 10s to 24h, such as 120s, 2m or 1h30m"
)]
pub struct InvalidTtl(String);

impl FromStr for Ttl {
    type Err = InvalidTtl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text)
            .map(Self)
            .filter(|ttl| (Self::MIN..=Self::MAX).contains(ttl))
            .ok_or_else(|| InvalidTtl(text.to_owned()))
    }
}

/// One or more `<whole number><h, m or s>`; `None` for anything else and for what overflows.
fn parse(mut text: &str) -> Option<Duration> {
    let mut seconds: u64 = 0;
    while !text.is_empty() {
        let (number, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
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
        text = rest;
    }
    Some(Duration::from_secs(seconds))
}

impl TryFrom<String> for Ttl {
    type Error = InvalidTtl;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0.as_secs())
    }
}

impl From<Ttl> for String {
    fn from(ttl: Ttl) -> Self {
        ttl.to_string()
    }
}

impl From<Ttl> for Duration {
    fn from(ttl: Ttl) -> Self {
        ttl.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<u64> {
        text.parse::<Ttl>().ok().map(|ttl| ttl.get().as_secs())
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
    fn anything_else_is_refused() {
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
            assert_eq!(
                text.parse::<Ttl>(),
                Err(InvalidTtl(text.to_owned())),
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for ttl in [Ttl::MIN, Ttl::default(), Ttl::MAX] {
            assert_eq!(ttl.to_string().parse(), Ok(ttl));
        }
        assert_eq!(Ttl::default().to_string(), "120s");
    }
}
