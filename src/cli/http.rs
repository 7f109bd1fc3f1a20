//! The flags of the HTTP endpoints.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueEnum};
use consul_semaphore_operator::endpoints::{self, TlsFiles};

/// The HTTP endpoints.
#[derive(Args, Debug)]
#[command(next_help_heading = "HTTP endpoints (probes and metrics)")]
pub(crate) struct HttpFlags {
    /// Where /livez, /readyz and /metrics are served; [::] is every address of IPv6 and IPv4
    #[arg(long, env, value_name = "IP:PORT", default_value = "[::]:8080")]
    pub(crate) http_address: SocketAddr,

    /// Serve these endpoints over TLS, with the certificate in this PEM file; it is read again when it changes
    #[arg(long, env, value_name = "FILE", requires = "http_tls_key_file")]
    pub(crate) http_tls_cert_file: Option<PathBuf>,

    /// The private key of the certificate, in PEM; it is read again when it changes
    #[arg(long, env, value_name = "FILE", requires = "http_tls_cert_file")]
    pub(crate) http_tls_key_file: Option<PathBuf>,

    /// Who may read /metrics
    #[arg(long, env, value_enum, value_name = "WHO", default_value_t)]
    pub(crate) metrics_auth: MetricsAuth,
}

/// Who may read the metrics.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum MetricsAuth {
    /// Everybody who can reach the address
    #[default]
    None,
    /// Everybody with a valid bearer token of the API server whose user may get the nonResourceURL /metrics
    Kubernetes,
}

impl HttpFlags {
    /// The settings for the library.
    pub(crate) fn settings(self) -> endpoints::EndpointsSettings {
        let files = self.http_tls_cert_file.zip(self.http_tls_key_file);
        endpoints::EndpointsSettings {
            address: self.http_address,
            tls: files.map(|(certificate, key)| TlsFiles { certificate, key }),
            metrics: match self.metrics_auth {
                MetricsAuth::None => endpoints::Access::Open,
                MetricsAuth::Kubernetes => endpoints::Access::Kubernetes,
            },
        }
    }
}
