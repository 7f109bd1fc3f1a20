//! The flags that say where Consul is, and with which token.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

use std::path::PathBuf;

use clap::{Args, CommandFactory, builder::NonEmptyStringValueParser, error::ErrorKind};
use consul_client as consul;

/// The settings without a flag, for the help of a program that has [`ConsulFlags`].
pub const CONSUL_ENVIRONMENT: &str = "\
Environment variables without a flag, as for Consul's own tools:
  CONSUL_HTTP_TOKEN        the token, without a file
  CONSUL_HTTP_SSL          true for https:// to addresses without a scheme
  CONSUL_HTTP_SSL_VERIFY   false to trust any certificate that Consul presents
  CONSUL_CAPATH            a folder of certificate authorities, instead of CONSUL_CACERT
  CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY
                           the client's certificate and its key
  CONSUL_TLS_SERVER_NAME   the name in Consul's certificate
  CONSUL_HTTP_AUTH         user:password for a proxy in front of Consul
  CONSUL_NAMESPACE, CONSUL_PARTITION
                           the namespace and the partition of Consul Enterprise";

/// The heading of the flags for Consul in a program's help.
pub const CONSUL_HEADING: &str = "Consul (see the environment below, too)";

/// Flags that override Consul's own environment variables, which are read as every Consul tool reads them.
#[derive(Args, Debug)]
#[command(next_help_heading = CONSUL_HEADING)]
pub struct ConsulFlags {
    /// Consul's address, or several joined by commas: host:port, http://, https:// or unix:// [env: CONSUL_HTTP_ADDR] [default: http://127.0.0.1:8500]
    #[arg(long = "consul-address", value_name = "ADDRESS", value_delimiter = ',')]
    pub address: Vec<consul::Address>,

    /// A file with the token, read again when it changes; takes precedence over CONSUL_HTTP_TOKEN [env: CONSUL_HTTP_TOKEN_FILE]
    #[arg(long = "consul-token-file", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Log in to Consul with this auth method instead of a token
    #[arg(long = "consul-auth-method", env = "CONSUL_AUTH_METHOD", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub auth_method: Option<String>,

    /// The file with the bearer token of the login, read for each login
    #[arg(long = "consul-bearer-token-file", env = "CONSUL_BEARER_TOKEN_FILE", value_name = "FILE", default_value = consul::AuthMethod::BEARER_TOKEN_FILE)]
    pub bearer_token_file: PathBuf,

    /// Metadata for people that Consul stores with each token from the login: KEY=VALUE, several pairs joined by commas
    #[arg(long = "consul-login-meta", env = "CONSUL_LOGIN_META", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair)]
    pub login_meta: Vec<(String, String)>,

    /// The datacenter of the auth method, if it is not the datacenter of the server at the address
    #[arg(long = "consul-login-datacenter", env = "CONSUL_LOGIN_DATACENTER", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub login_datacenter: Option<String>,

    /// The namespace of the auth method in Consul Enterprise, if it is not the one of CONSUL_NAMESPACE
    #[arg(long = "consul-login-namespace", env = "CONSUL_LOGIN_NAMESPACE", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub login_namespace: Option<String>,

    /// The admin partition of the auth method in Consul Enterprise, if it is not the one of CONSUL_PARTITION
    #[arg(long = "consul-login-partition", env = "CONSUL_LOGIN_PARTITION", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub login_partition: Option<String>,

    /// The certificate authorities (PEM) that verify Consul's certificate [env: CONSUL_CACERT] [default: the system's]
    #[arg(long = "consul-ca-file", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

impl ConsulFlags {
    /// Where Consul is: the environment's settings, overridden by these flags.
    ///
    /// # Errors
    /// Flags or variables contradict each other, or can't be used: as an error of the program `C`.
    pub fn config<C: CommandFactory>(&self) -> Result<consul::Config, clap::Error> {
        let refuse = |kind, problem: String| C::command().error(kind, problem);
        let from_env = consul::Config::from_env();
        let mut config =
            from_env.map_err(|error| refuse(ErrorKind::ValueValidation, error.to_string()))?;
        if !self.address.is_empty() {
            config.addresses.clone_from(&self.address);
        }
        if self.token_file.is_some() {
            config.token_file.clone_from(&self.token_file);
        }
        if let Some(name) = &self.auth_method {
            if let Some(given) = given_token(&config, self.token_file.is_some()) {
                let problem = format!(
                    "--consul-auth-method logs in to get a token, but {given} already sets a token: leave one of the \
                     two out"
                );
                return Err(refuse(ErrorKind::ArgumentConflict, problem));
            }
            config.login = Some(consul::AuthMethod {
                name: name.clone(),
                bearer_token_file: self.bearer_token_file.clone(),
                meta: self.login_meta.iter().cloned().collect(),
                scope: consul::Scope {
                    datacenter: self.login_datacenter.clone(),
                    namespace: self.login_namespace.clone(),
                    partition: self.login_partition.clone(),
                },
            });
        }
        if self.ca_file.is_some() {
            config.tls.ca_file.clone_from(&self.ca_file);
            if let Some(plain) = without_tls(&config) {
                let problem = format!(
                    "--consul-ca-file is for TLS, but {plain} does not use TLS: set an https:// address, or leave \
                     --consul-ca-file out"
                );
                return Err(refuse(ErrorKind::ArgumentConflict, problem));
            }
        }
        Ok(config)
    }
}

/// The source of a token without a login, if there is one.
fn given_token(config: &consul::Config, by_flag: bool) -> Option<&'static str> {
    match (&config.token_file, &config.token) {
        (Some(_), _) if by_flag => Some("--consul-token-file"),
        (Some(_), _) => Some("CONSUL_HTTP_TOKEN_FILE"),
        (None, Some(_)) => Some("CONSUL_HTTP_TOKEN"),
        (None, None) => None,
    }
}

/// The first address without TLS.
fn without_tls(config: &consul::Config) -> Option<String> {
    let mut addresses = config.addresses.iter().map(ToString::to_string);
    addresses.find(|address| {
        address.starts_with("unix://") || (address.starts_with("http://") && !config.tls.enabled)
    })
}

/// `KEY=VALUE`.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("use KEY=VALUE, or several pairs joined by commas".to_owned()),
    }
}
