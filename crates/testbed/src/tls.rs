//! The process's TLS provider.

/// Chooses ring, as kube does, before the first TLS client: reqwest has none of its own here.
pub(crate) fn init() {
    // An error means that someone else has chosen already, which is as good.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
}
