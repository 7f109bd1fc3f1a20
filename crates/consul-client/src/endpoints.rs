//! Chooses the server that is asked: a server that works is used until it fails.
//!
//! Each configured address is one target, or, if it is a name, one target for each address that the name resolves to:
//! a headless Service has all servers behind one name, and a server that accepts connections but does not answer must
//! not be chosen again because its name is the same. Names are resolved again when every target has failed.
//!
//! When certificate files change, new connections use the new ones. A waiting blocking query keeps its connection.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use reqwest::{Client, ClientBuilder, Url};
use tokio::sync::{self, Notify};

use super::{
    Config, ConfigError, Error, Tls,
    call::Call,
    config::{Address, AddressForm, CACERT, TLS_SERVER_NAME},
    files::Files,
    tls::Trust,
};

/// The most targets that are kept if a name resolves to more.
const MOST_TARGETS: usize = 32;

/// The most connections to a server that are kept while they are not used.
const MOST_IDLE_CONNECTIONS: usize = 32;

/// How long a connection stays open while no call uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// The connection stays open for a minute.
    Long,
    /// The connection stays open for [`BRIEF_IDLE`].
    Brief,
    /// The connection serves one call. Only a blocking query leaves it open for the next one, as [`Self::Brief`] does.
    Once,
}

/// Time for which a connection that is kept briefly stays open: longer than the pauses between the blocking queries of
/// a program that waits.
const BRIEF_IDLE: Duration = Duration::from_secs(3);

impl Idle {
    /// Returns how long the connection stays open after this call.
    pub(super) fn after(self, call: &Call) -> Self {
        match self {
            Self::Once if call.wait.is_some() => Self::Brief,
            idle => idle,
        }
    }
}

/// A server, with its own connections.
pub(super) struct Target {
    /// Name of the server in messages: its address, and the address that its host name resolved to.
    pub(super) name: String,
    /// One for each [`Idle`].
    http: [Client; 3],
    /// Wakes the blocking queries that wait there when the server has failed another call.
    pub(super) lost: Notify,
    /// The beginning of every URL, without a slash at its end.
    base: String,
    key: Key,
    /// The certificates of the server's connections.
    trust: Arc<Trust>,
}

impl Target {
    /// The URL of a path that is already escaped.
    pub(super) fn url(&self, path: &str) -> Option<Url> {
        Url::parse(&format!("{}{path}", self.base)).ok()
    }

    /// The HTTP client whose connections stay open for this long.
    pub(super) fn http(&self, idle: Idle) -> &Client {
        let [long, brief, once] = &self.http;
        match idle {
            Idle::Long => long,
            Idle::Brief => brief,
            Idle::Once => once,
        }
    }

    /// The server's address, as the beginning of a URL.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Whether both are the same server, perhaps with different connections.
    pub(super) fn is_same_server(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

/// All servers.
pub(super) struct Endpoints {
    sites: Vec<Site>,
    trust: Files<Tls>,
    connect_timeout: Duration,
    /// The targets in use, so that their connections are shared. Never locked across an await.
    known: Mutex<HashMap<Key, Weak<Target>>>,
}

/// The choice of the server to ask, for one datacenter.
pub(super) struct Choice {
    endpoints: Arc<Endpoints>,
    /// Never locked across an await.
    list: Mutex<List>,
    /// Held while the names are resolved, which may take long.
    resolving: sync::Mutex<()>,
    /// Wakes the blocking queries when another call to the datacenter was not answered in time.
    pub(super) lost: Notify,
}

/// The targets of the last resolution, and the one that is asked.
#[derive(Default)]
struct List {
    targets: Vec<Arc<Target>>,
    at: usize,
}

impl List {
    fn target(&self) -> Option<Arc<Target>> {
        self.targets.get(self.at).cloned()
    }
}

/// The number of a site and one address of it.
type Key = (usize, Option<SocketAddr>);

/// One configured address.
struct Site {
    name: String,
    base: Url,
    dial: Dial,
}

enum Dial {
    Unix(PathBuf),
    Ip(SocketAddr),
    Name(String, u16),
}

impl Choice {
    pub(super) fn new(endpoints: Arc<Endpoints>) -> Self {
        Self {
            endpoints,
            list: Mutex::default(),
            resolving: sync::Mutex::default(),
            lost: Notify::new(),
        }
    }

    /// The target that is asked now. May have to resolve names first, without a time limit: the caller has one.
    pub(super) async fn current(&self) -> Result<Arc<Target>, Error> {
        let trust = self.endpoints.trust.current().await;
        if let Some(target) = self.target(&trust) {
            return Ok(target);
        }
        let _turn = self.resolving.lock().await;
        // Another call may have resolved them meanwhile.
        if self.list.lock().target().is_none() {
            let targets = self.endpoints.resolve(&trust).await?;
            *self.list.lock() = List { targets, at: 0 };
        }
        let target = self.target(&trust);
        target.ok_or_else(|| unreachable("no address".to_owned()))
    }

    /// The target failed: from now on the next one is asked, unless another call has already moved on.
    pub(super) fn leave(&self, target: &Arc<Target>) {
        let mut list = self.list.lock();
        let current = list.targets.get(list.at);
        if current.is_some_and(|current| Arc::ptr_eq(current, target)) {
            list.at += 1;
        }
    }

    /// The current target of the list, with connections that use these certificates.
    fn target(&self, trust: &Arc<Trust>) -> Option<Arc<Target>> {
        let mut list = self.list.lock();
        let target = list.target()?;
        if Arc::ptr_eq(&target.trust, trust) {
            return Some(target);
        }
        // They were tested when they were read. If they fail all the same, the previous ones still work.
        let renewed = self.endpoints.target(target.key, trust).unwrap_or(target);
        let at = list.at;
        if let Some(place) = list.targets.get_mut(at) {
            *place = renewed.clone();
        }
        Some(renewed)
    }
}

impl Endpoints {
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let site = |address| Site::new(address, config);
        let endpoints = Self {
            sites: config
                .addresses
                .iter()
                .map(site)
                .collect::<Result<_, _>>()?,
            trust: Files::read(config.tls.clone())?,
            connect_timeout: config.timeout / 4,
            known: Mutex::default(),
        };
        // Certificates and keys that can't be used fail here and not at the first call.
        let trust = Arc::new(Trust::load(&config.tls)?);
        for (number, site) in endpoints.sites.iter().enumerate() {
            let made = endpoints.connect(site, (number, None), &trust);
            made.map_err(|problem| {
                ConfigError::new(
                    CACERT,
                    format!("TLS does not work with these certificates: {problem}"),
                )
            })?;
        }
        Ok(endpoints)
    }

    async fn resolve(&self, trust: &Arc<Trust>) -> Result<Vec<Arc<Target>>, Error> {
        let mut keys: Vec<Key> = Vec::new();
        let mut problems = Vec::new();
        for (number, site) in self.sites.iter().enumerate() {
            match site.dial.addresses().await {
                Ok(addresses) => {
                    for address in addresses {
                        if !keys.contains(&(number, address)) {
                            keys.push((number, address));
                        }
                    }
                }
                Err(error) => problems.push(format!("{}: {error}", site.name)),
            }
        }
        if keys.is_empty() {
            return Err(unreachable(problems.join("; ")));
        }
        keys.truncate(MOST_TARGETS);
        let targets = keys.into_iter().map(|key| self.target(key, trust));
        targets.collect::<Result<_, _>>().map_err(unreachable)
    }

    /// The target of this server, which all its callers share.
    fn target(&self, key: Key, trust: &Arc<Trust>) -> Result<Arc<Target>, String> {
        let mut known = self.known.lock();
        if let Some(target) = known.get(&key).and_then(Weak::upgrade)
            && Arc::ptr_eq(&target.trust, trust)
        {
            return Ok(target);
        }
        let site = self.sites.get(key.0).ok_or("no such address")?;
        let target = Arc::new(self.connect(site, key, trust)?);
        known.retain(|_, target| target.strong_count() > 0);
        known.insert(key, Arc::downgrade(&target));
        Ok(target)
    }

    fn connect(&self, site: &Site, key: Key, trust: &Arc<Trust>) -> Result<Target, String> {
        let mut name = site.name.clone();
        if let (Dial::Name(..), Some(address)) = (&site.dial, key.1) {
            name = format!("{name} ({})", address.ip());
        }
        let client = |most: usize, idle: Duration| {
            let pooled = self
                .builder(site, key, trust)
                .pool_max_idle_per_host(most)
                .pool_idle_timeout(idle);
            pooled.build().map_err(|error| root_cause(&error))
        };
        Ok(Target {
            name,
            http: [
                client(MOST_IDLE_CONNECTIONS, Duration::from_mins(1))?,
                client(MOST_IDLE_CONNECTIONS, BRIEF_IDLE)?,
                client(0, Duration::ZERO)?,
            ],
            lost: Notify::new(),
            base: site.base.as_str().trim_end_matches('/').to_owned(),
            key,
            trust: trust.clone(),
        })
    }

    fn builder(&self, site: &Site, key: Key, trust: &Arc<Trust>) -> ClientBuilder {
        let mut builder = ClientBuilder::new()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .user_agent(concat!(
                env!("CARGO_PKG_NAME"),
                "/",
                env!("CARGO_PKG_VERSION")
            ))
            .connect_timeout(self.connect_timeout)
            // A blocking query is silent for minutes: only probes notice that its server is gone.
            .tcp_keepalive(Duration::from_secs(15))
            .tcp_keepalive_interval(Duration::from_secs(5))
            .tcp_keepalive_retries(3)
            .http2_keep_alive_interval(Duration::from_secs(15))
            .http2_keep_alive_timeout(Duration::from_secs(10))
            .tcp_nodelay(true);
        builder = if site.base.scheme() == "https" {
            trust.apply(builder)
        } else {
            Trust::none(builder)
        };
        match (&site.dial, key.1, site.base.host_str()) {
            (Dial::Unix(path), ..) => builder.unix_socket(path.as_path()),
            (_, Some(address), Some(host)) => builder.resolve(host, address),
            _ => builder,
        }
    }
}

impl Site {
    fn new(address: &Address, config: &Config) -> Result<Self, ConfigError> {
        let refuse =
            |text: &str| ConfigError::new("CONSUL_HTTP_ADDR", format!("{text:?} is not valid"));
        let scheme = |https: bool| {
            if https || config.tls.enabled {
                "https"
            } else {
                "http"
            }
        };
        let url = match &address.0 {
            AddressForm::Tcp {
                https,
                authority,
                path,
            } => format!("{}://{authority}{path}", scheme(*https)),
            AddressForm::Unix(_) => format!("{}://localhost", scheme(false)),
        };
        let mut base = Url::parse(&url).map_err(|_| refuse(&url))?;
        let host = base.host_str().ok_or_else(|| refuse(&url))?.to_owned();
        let port = base.port_or_known_default().ok_or_else(|| refuse(&url))?;
        if let (Some(name), "https") = (&config.tls.server_name, base.scheme()) {
            // The certificate is checked against the URL's host, so that stays the name; the address is given
            // separately.
            let problem = format!("{name:?} is not a host name");
            base.set_host(Some(name))
                .map_err(|_| ConfigError::new(TLS_SERVER_NAME, problem))?;
        }
        let dial = match (&address.0, host.trim_matches(['[', ']']).parse::<IpAddr>()) {
            (AddressForm::Unix(path), _) => Dial::Unix(path.clone()),
            (_, Ok(ip)) => Dial::Ip(SocketAddr::new(ip, port)),
            (_, Err(_)) => Dial::Name(host, port),
        };
        Ok(Self {
            name: address.to_string(),
            base,
            dial,
        })
    }
}

impl Dial {
    /// The addresses to connect to. Those of a name are shuffled, so that not all clients ask the same server.
    async fn addresses(&self) -> std::io::Result<Vec<Option<SocketAddr>>> {
        Ok(match self {
            Self::Unix(_) => vec![None],
            Self::Ip(address) => vec![Some(*address)],
            Self::Name(host, port) => {
                let mut found: Vec<_> = tokio::net::lookup_host((host.as_str(), *port))
                    .await?
                    .map(Some)
                    .collect();
                fastrand::shuffle(&mut found);
                found
            }
        })
    }
}

fn unreachable(message: String) -> Error {
    Error::Unreachable {
        message,
        undecided: false,
    }
}

/// The innermost error, which says what happened: those around it say where.
pub(super) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(addresses: &[&str]) -> Choice {
        let parse = |address: &&str| address.parse().unwrap();
        let config = Config {
            addresses: addresses.iter().map(parse).collect(),
            ..Config::default()
        };
        super::super::client::install_crypto();
        Choice::new(Arc::new(Endpoints::new(&config).unwrap()))
    }

    #[tokio::test]
    async fn a_target_is_kept_until_it_fails_and_the_first_comes_after_the_last() {
        let choice = choice(&["http://127.0.0.1:1", "http://127.0.0.1:2/consul/"]);
        let first = choice.current().await.unwrap();
        assert!(Arc::ptr_eq(&first, &choice.current().await.unwrap()));
        choice.leave(&first);
        let second = choice.current().await.unwrap();
        assert_eq!(
            second.url("/v1/kv/a").unwrap().as_str(),
            "http://127.0.0.1:2/consul/v1/kv/a"
        );
        // Many calls fail at once; only the first of them moves on.
        choice.leave(&first);
        assert!(Arc::ptr_eq(&second, &choice.current().await.unwrap()));
        choice.leave(&second);
        assert!(Arc::ptr_eq(&first, &choice.current().await.unwrap()));
    }

    #[tokio::test]
    async fn a_name_stands_for_all_its_addresses() {
        let choice = choice(&["localhost:8500"]);
        let target = choice.current().await.unwrap();
        assert!(target.name.starts_with("http://localhost:8500 ("));
        assert!(
            target
                .url("/v1")
                .unwrap()
                .as_str()
                .starts_with("http://localhost:8500/")
        );
    }

    #[tokio::test]
    async fn a_name_that_is_not_found_is_named() {
        // Too long for a DNS label, so no request is sent.
        let name = "x".repeat(64);
        let choice = choice(&[&format!("{name}:8500")]);
        let Err(error) = choice.current().await else {
            panic!("found");
        };
        assert_eq!(error.reason(), "ConsulUnreachable");
        assert!(error.to_string().contains(&name));
        assert!(!error.may_have_been_applied());
    }

    #[test]
    fn a_tls_server_name_must_be_a_name() {
        let config = Config {
            addresses: vec!["https://127.0.0.1:8501".parse().unwrap()],
            tls: crate::Tls {
                server_name: Some("no name".to_owned()),
                ..Default::default()
            },
            ..Config::default()
        };
        super::super::client::install_crypto();
        let Err(error) = Endpoints::new(&config) else {
            panic!("taken");
        };
        assert_eq!(error.variable, "CONSUL_TLS_SERVER_NAME");
    }
}
