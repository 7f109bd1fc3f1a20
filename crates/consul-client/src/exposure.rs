//! Finds settings with which others on the way to Consul can read tokens, or pass for Consul.

use std::fmt;

use super::{Address, Config};

/// A danger from others on the way to Consul, because of a client's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// Others can read the token on its way to this address, which is neither on this machine nor with TLS.
    PlainText(Address),
    /// Others can pass for Consul, because the client does not verify Consul's certificate.
    Unverified,
}

impl Exposure {
    /// Returns a text for a message about what others can do.
    pub fn problem(&self) -> String {
        match self {
            Self::PlainText(address) => format!(
                "tokens for Consul are sent in plain text to {address}, so anybody on the network path can read them"
            ),
            Self::Unverified => {
                "CONSUL_HTTP_SSL_VERIFY=false: anybody on the network path can impersonate Consul and read tokens"
                    .to_owned()
            }
        }
    }

    /// Returns a text for a message about how to remove the danger.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::PlainText(_) => "use an https:// address, or an agent on this machine",
            Self::Unverified => {
                "verify Consul's certificate with CONSUL_CACERT, and remove CONSUL_HTTP_SSL_VERIFY"
            }
        }
    }
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem(), self.advice())
    }
}

impl Config {
    /// Returns the dangers of these settings from others on the way to Consul. Plain text is a danger only for a
    /// client that has credentials.
    pub fn exposures(&self) -> Vec<Exposure> {
        let plain_text = self.plain_text().filter(|_| self.has_credentials());
        let uses_tls = self.addresses.iter().any(|address| self.uses_tls(address));
        let unverified = (uses_tls && !self.tls.verify).then_some(Exposure::Unverified);
        plain_text.into_iter().chain(unverified).collect()
    }

    /// Returns the exposure at the address to which a token would be sent in plain text; `None` if there is no such
    /// address.
    pub fn plain_text(&self) -> Option<Exposure> {
        let mut addresses = self.addresses.iter();
        let plain = addresses.find(|address| !address.is_local() && !self.uses_tls(address));
        plain.cloned().map(Exposure::PlainText)
    }

    fn uses_tls(&self, address: &Address) -> bool {
        address.is_https() || (self.tls.enabled && !address.is_socket())
    }

    fn has_credentials(&self) -> bool {
        let file = self.token_file.as_ref();
        // An optional file that is not there holds no token.
        let has_file = file.is_some_and(|file| !self.token_file_may_come || file.exists());
        has_file || self.token.is_some() || self.login.is_some() || self.http_auth.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the exposures with these variables.
    fn exposures(variables: &[(&str, &str)]) -> Vec<String> {
        let config = Config::from_lookup(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        let exposures = config.unwrap().exposures().into_iter();
        exposures.map(|exposure| exposure.problem()).collect()
    }

    #[test]
    fn credentials_in_plain_text_are_an_exposure() {
        let at = |address| ("CONSUL_HTTP_ADDR", address);
        let token = ("CONSUL_HTTP_TOKEN", "s3cr3t");
        for credential in [
            token,
            ("CONSUL_HTTP_TOKEN_FILE", "/token"),
            ("CONSUL_HTTP_AUTH", "user:s3cr3t"),
        ] {
            let found = exposures(&[at("http://127.0.0.1:8500,http://consul:8500"), credential]);
            let [problem] = &found[..] else {
                panic!("{found:?}");
            };
            assert!(
                problem.contains("plain text to http://consul:8500"),
                "{problem}"
            );
        }
        for safe in [
            vec![at("http://consul:8500")],
            vec![at("https://consul:8501"), token],
            vec![at("consul:8501"), ("CONSUL_HTTP_SSL", "true"), token],
            vec![at("http://localhost:8500,http://[::1]:8500"), token],
            vec![at("unix:///run/consul.sock"), token],
            vec![token],
        ] {
            assert_eq!(exposures(&safe), [""; 0], "{safe:?}");
        }
    }

    #[test]
    fn an_optional_token_file_counts_when_it_is_there() {
        let with = |file: &str| Config {
            addresses: vec!["http://consul:8500".parse().unwrap()],
            token_file: Some(file.into()),
            token_file_may_come: true,
            ..Config::default()
        };
        assert_eq!(with("/no/such/file").exposures(), []);
        assert_eq!(with("/dev/null").exposures().len(), 1);
    }

    #[test]
    fn a_certificate_that_is_not_verified_is_an_exposure() {
        let unverified = ("CONSUL_HTTP_SSL_VERIFY", "false");
        let with = |address| exposures(&[("CONSUL_HTTP_ADDR", address), unverified]);
        let found = with("https://consul:8501");
        assert_eq!(found.len(), 1);
        assert!(
            found[0].contains("CONSUL_HTTP_SSL_VERIFY=false"),
            "{found:?}"
        );
        assert_eq!(with("http://consul:8500"), [""; 0], "no certificate");
    }
}
