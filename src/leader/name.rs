//! Defines the name of an election, which all its candidates share.

use std::{fmt, str::FromStr};

/// The name of a Lease, and of the corresponding lock in Consul.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName(String);

/// The text is not a [`LeaseName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "use 1 to 63 lower case letters, digits, '-' or '.', with a letter or digit at both ends, and not \"leader\""
)]
pub struct InvalidLeaseName;

impl LeaseName {
    /// Default name: the election of the only operator of a cluster.
    pub const DEFAULT: &'static str = "consul-semaphore-operator";

    /// Last part of the default key in Consul.
    const LEADER: &'static str = "leader";

    /// Returns whether this is the default name.
    pub fn is_default(&self) -> bool {
        self.0 == Self::DEFAULT
    }

    /// Returns the key in Consul at which a leader for this cluster is elected.
    pub(super) fn key(&self, cluster: &str) -> String {
        let name = if self.is_default() {
            Self::LEADER
        } else {
            &self.0
        };
        format!("service/consul-semaphore-operator/{cluster}/{name}")
    }
}

impl FromStr for LeaseName {
    type Err = InvalidLeaseName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_label = |label: &str| {
            let bytes = label.as_bytes();
            bytes.first().is_some_and(at_end)
                && bytes.last().is_some_and(at_end)
                && bytes.iter().all(|byte| at_end(byte) || *byte == b'-')
        };
        // Two elections must not have the same key, so a name can't be the last part of the default key.
        let valid = text.len() <= 63 && text.split('.').all(is_label) && text != Self::LEADER;
        valid.then(|| Self(text.to_owned())).ok_or(InvalidLeaseName)
    }
}

impl AsRef<str> for LeaseName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_a_key_of_its_own() {
        let key = |name: &str| name.parse::<LeaseName>().map(|name| name.key("prod"));
        let folder = "service/consul-semaphore-operator/prod";
        assert_eq!(key(LeaseName::DEFAULT), Ok(format!("{folder}/leader")));
        assert_eq!(key("shard-a.1"), Ok(format!("{folder}/shard-a.1")));
        let too_long = "x".repeat(64);
        for text in [
            "", "leader", "A", "a/b", "a_b", "-a", "a-", ".", "a..b", &too_long,
        ] {
            assert_eq!(key(text), Err(InvalidLeaseName), "{text:?}");
        }
    }
}
