//! Defines the settings of a client, and reads them from environment variables.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use reqwest::Url;

use super::{AuthMethod, Observer};

/// A setting that cannot be used, with its name and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {problem}")]
pub struct ConfigError {
    /// The environment variable that carries the setting.
    pub variable: &'static str,
    /// Description of the mistake and of what is allowed. The text never contains a secret value.
    pub problem: String,
}

impl ConfigError {
    /// Describes what is wrong with a setting.
    pub fn new(variable: &'static str, problem: impl Into<String>) -> Self {
        let problem = problem.into();
        Self { variable, problem }
    }
}

/// A value that `Debug` does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The value itself: for the wire, never for a message.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for Secret {
    fn from(value: T) -> Self {
        Self(value.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

/// All settings of a [`Client`](super::Client). The default is an agent on this machine.
#[derive(Clone)]
pub struct Config {
    /// Servers or agents, in the order of preference; at least one (`CONSUL_HTTP_ADDR`).
    pub addresses: Vec<Address>,
    /// The ACL token (`CONSUL_HTTP_TOKEN`).
    pub token: Option<Secret>,
    /// A file with the ACL token, read again when it changes (`CONSUL_HTTP_TOKEN_FILE`). It takes precedence over
    /// `token`, as in Consul's own tools.
    pub token_file: Option<PathBuf>,
    /// Whether the file may appear later, as that of an optional Secret. Until then the client uses `token`, or no
    /// token. The folder of the file must exist.
    pub token_file_may_come: bool,
    /// Login for the token; then `token` and `token_file` are not used.
    pub login: Option<AuthMethod>,
    /// TLS.
    pub tls: Tls,
    /// Basic authentication, for a proxy before Consul (`CONSUL_HTTP_AUTH`).
    pub http_auth: Option<HttpAuth>,
    /// Datacenter of the client; `None` is the datacenter of the server that is asked.
    pub datacenter: Option<String>,
    /// The namespace, with Consul Enterprise (`CONSUL_NAMESPACE`).
    pub namespace: Option<String>,
    /// The admin partition, with Consul Enterprise (`CONSUL_PARTITION`).
    pub partition: Option<String>,
    /// Longest time that a call may take, with its retries. A blocking query may take its wait in addition.
    pub timeout: Duration,
    /// Largest number of concurrent blocking queries, each on a connection of its own. Watches beyond that number
    /// poll. All other calls use up to 86 more of the 200 connections that Consul accepts from one address
    /// (`limits.http_max_conns_per_client`).
    pub max_watches: u32,
    /// Receives every request.
    pub observer: Option<Arc<dyn Observer>>,
}

/// Settings of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Whether addresses without `https://` use HTTPS, too (`CONSUL_HTTP_SSL`).
    pub enabled: bool,
    /// Whether the server's certificate is verified (`CONSUL_HTTP_SSL_VERIFY`).
    pub verify: bool,
    /// A file of PEM certificates to trust instead of the system's (`CONSUL_CACERT`).
    pub ca_file: Option<PathBuf>,
    /// Folder of files with PEM certificates to trust, if there is no `ca_file` (`CONSUL_CAPATH`).
    pub ca_path: Option<PathBuf>,
    /// The client's certificate chain in PEM (`CONSUL_CLIENT_CERT`); needs `client_key`.
    pub client_cert: Option<PathBuf>,
    /// The client's key in PEM (`CONSUL_CLIENT_KEY`); needs `client_cert`.
    pub client_key: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the address's host (`CONSUL_TLS_SERVER_NAME`).
    pub server_name: Option<String>,
}

/// A user and a password for basic authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAuth {
    /// The user.
    pub username: String,
    /// The password.
    pub password: Secret,
}

/// The part of Consul's data that a client works with. `None` keeps the client's setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The datacenter.
    pub datacenter: Option<String>,
    /// The namespace, with Consul Enterprise.
    pub namespace: Option<String>,
    /// The admin partition, with Consul Enterprise.
    pub partition: Option<String>,
}

/// An address of a Consul server or agent: `host:port`, `http://host:port`, `https://host:port`
/// (both with a path, if Consul is behind a proxy) or `unix:///path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(pub(super) AddressForm);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AddressForm {
    Tcp {
        https: bool,
        /// `host:port`, or `host` alone.
        authority: String,
        /// Empty, or `/path` without a slash at its end.
        path: String,
    },
    Unix(PathBuf),
}

const ADDRESS_FORMS: &str = "must be host:port, http://host:port, https://host:port or unix:///path, several joined \
                             by commas";

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = |why: &str| format!("{text:?} {ADDRESS_FORMS}{why}");
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        if scheme != "unix" && rest.contains('@') {
            // The message does not quote the text, because it is a password.
            return Err(format!(
                "an address {ADDRESS_FORMS}; set the user and the password in CONSUL_HTTP_AUTH"
            ));
        }
        let https = match scheme {
            "http" => false,
            "https" => true,
            "unix" if rest.starts_with('/') => return Ok(Self(AddressForm::Unix(rest.into()))),
            _ => return Err(refuse("")),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let url = Url::parse(&format!("http://{rest}")).map_err(|e| refuse(&format!(" ({e})")))?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(refuse(""));
        }
        Ok(Self(AddressForm::Tcp {
            https,
            authority: authority.to_owned(),
            path: path.trim_end_matches('/').to_owned(),
        }))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            AddressForm::Tcp {
                https,
                authority,
                path,
            } => {
                let scheme = if *https { "https" } else { "http" };
                write!(f, "{scheme}://{authority}{path}")
            }
            AddressForm::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            enabled: false,
            verify: true,
            ca_file: None,
            ca_path: None,
            client_cert: None,
            client_key: None,
            server_name: None,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addresses: vec![Address(AddressForm::Tcp {
                https: false,
                authority: "127.0.0.1:8500".to_owned(),
                path: String::new(),
            })],
            token: None,
            token_file: None,
            token_file_may_come: false,
            login: None,
            tls: Tls::default(),
            http_auth: None,
            datacenter: None,
            namespace: None,
            partition: None,
            timeout: Duration::from_secs(10),
            max_watches: Self::MAX_WATCHES,
            observer: None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            addresses,
            token,
            token_file,
            token_file_may_come,
            login,
            tls,
            http_auth,
            datacenter,
            namespace,
            partition,
            timeout,
            max_watches,
            observer,
        } = self;
        f.debug_struct("Config")
            .field("addresses", addresses)
            .field("token", token)
            .field("token_file", token_file)
            .field("token_file_may_come", token_file_may_come)
            .field("login", login)
            .field("tls", tls)
            .field("http_auth", http_auth)
            .field("datacenter", datacenter)
            .field("namespace", namespace)
            .field("partition", partition)
            .field("timeout", timeout)
            .field("max_watches", max_watches)
            .field("observer", &observer.is_some())
            .finish()
    }
}

const HTTP_ADDR: &str = "CONSUL_HTTP_ADDR";
pub(super) const HTTP_TOKEN: &str = "CONSUL_HTTP_TOKEN";
pub(super) const HTTP_TOKEN_FILE: &str = "CONSUL_HTTP_TOKEN_FILE";
const HTTP_SSL: &str = "CONSUL_HTTP_SSL";
const HTTP_SSL_VERIFY: &str = "CONSUL_HTTP_SSL_VERIFY";
pub(super) const CACERT: &str = "CONSUL_CACERT";
pub(super) const CAPATH: &str = "CONSUL_CAPATH";
pub(super) const CLIENT_CERT: &str = "CONSUL_CLIENT_CERT";
pub(super) const CLIENT_KEY: &str = "CONSUL_CLIENT_KEY";
pub(super) const TLS_SERVER_NAME: &str = "CONSUL_TLS_SERVER_NAME";
const HTTP_AUTH: &str = "CONSUL_HTTP_AUTH";
const NAMESPACE: &str = "CONSUL_NAMESPACE";
const PARTITION: &str = "CONSUL_PARTITION";

/// Every variable that [`Config::from_env`] reads.
const VARIABLES: [&str; 13] = [
    HTTP_ADDR,
    HTTP_TOKEN,
    HTTP_TOKEN_FILE,
    HTTP_SSL,
    HTTP_SSL_VERIFY,
    CACERT,
    CAPATH,
    CLIENT_CERT,
    CLIENT_KEY,
    TLS_SERVER_NAME,
    HTTP_AUTH,
    NAMESPACE,
    PARTITION,
];

impl Config {
    /// The default number of concurrent blocking queries: together with the other calls they stay below the number of
    /// connections that Consul accepts from one address.
    pub const MAX_WATCHES: u32 = 100;

    /// Returns the settings from the environment variables of Consul's own tools, with the same meaning. An empty
    /// variable counts as not set.
    pub fn from_env() -> Result<Self, ConfigError> {
        for name in VARIABLES {
            if let Err(std::env::VarError::NotUnicode(_)) = std::env::var(name) {
                return Err(ConfigError::new(name, "must be UTF-8"));
            }
        }
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Returns the settings from the variables that `lookup` returns, as [`Self::from_env`] does from the
    /// environment.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let text = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let path = |name: &str| text(name).map(PathBuf::from);
        let flag = |name: &'static str| {
            text(name)
                .map(|value| parse_bool(&value).map_err(|problem| ConfigError::new(name, problem)))
                .transpose()
        };

        let mut config = Self {
            token: text(HTTP_TOKEN).map(Secret),
            token_file: path(HTTP_TOKEN_FILE),
            http_auth: text(HTTP_AUTH).map(|value| HttpAuth::parse(&value)),
            namespace: text(NAMESPACE),
            partition: text(PARTITION),
            ..Self::default()
        };
        let ssl = flag(HTTP_SSL)?;
        config.tls = Tls {
            enabled: ssl.unwrap_or(false),
            verify: flag(HTTP_SSL_VERIFY)?.unwrap_or(true),
            ca_file: path(CACERT),
            ca_path: path(CAPATH),
            client_cert: path(CLIENT_CERT),
            client_key: path(CLIENT_KEY),
            server_name: text(TLS_SERVER_NAME),
        };
        if let Some(list) = text(HTTP_ADDR) {
            config.addresses = parse_addresses(&list)?;
        }
        if ssl == Some(false) && config.addresses.iter().any(Address::is_https) {
            return Err(ConfigError::new(
                HTTP_SSL,
                "false contradicts https:// in CONSUL_HTTP_ADDR: unset it, or write http://",
            ));
        }
        config.validate()?;
        Ok(config)
    }

    /// Checks what the types don't rule out.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.addresses.is_empty() {
            return Err(ConfigError::new(HTTP_ADDR, "names no address"));
        }
        match (&self.tls.client_cert, &self.tls.client_key) {
            (Some(_), None) => Err(ConfigError::new(
                CLIENT_CERT,
                "needs CONSUL_CLIENT_KEY, the certificate's key, too",
            )),
            (None, Some(_)) => Err(ConfigError::new(
                CLIENT_KEY,
                "needs CONSUL_CLIENT_CERT, the key's certificate, too",
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn scope(&self) -> Scope {
        Scope {
            datacenter: self.datacenter.clone(),
            namespace: self.namespace.clone(),
            partition: self.partition.clone(),
        }
    }
}

impl Address {
    /// Whether the address is on this machine, where an agent is expected.
    pub fn is_local(&self) -> bool {
        match &self.0 {
            AddressForm::Unix(_) => true,
            AddressForm::Tcp { authority, .. } => {
                let url = Url::parse(&format!("http://{authority}")).ok();
                let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
                let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
                host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
            }
        }
    }

    pub(super) fn is_https(&self) -> bool {
        matches!(&self.0, AddressForm::Tcp { https: true, .. })
    }

    pub(super) fn is_socket(&self) -> bool {
        matches!(&self.0, AddressForm::Unix(_))
    }
}

impl HttpAuth {
    /// Reads `user:password`, or `user` with an empty password.
    fn parse(value: &str) -> Self {
        let (username, password) = value.split_once(':').unwrap_or((value, ""));
        Self {
            username: username.to_owned(),
            password: password.into(),
        }
    }
}

fn parse_addresses(list: &str) -> Result<Vec<Address>, ConfigError> {
    let parse = |item: &str| item.trim().parse();
    list.split(',')
        .map(parse)
        .collect::<Result<_, _>>()
        .map_err(|problem: String| ConfigError::new(HTTP_ADDR, problem))
}

/// Reads the words that Consul's tools, which are written in Go, accept as a boolean.
fn parse_bool(value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("{other:?} must be true or false")),
    }
}

#[cfg(test)]
mod tests;
