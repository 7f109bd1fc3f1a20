//! Logs at startup whether Consul answers at all: otherwise a wrong address would show only with the first
//! `ConsulSemaphore`.

use consul_client::{Client, Error};
use consul_semaphore::holding::retry_until_ok;

/// Retries until there is an answer. This needs no token.
pub(super) async fn write(consul: Client) {
    retry_until_ok(|| consul.status(), complain).await;
    tracing::info!("Consul answers");
}

fn complain(error: &Error) {
    let look_at = match error {
        Error::Unreachable { .. } => "--consul-address (CONSUL_HTTP_ADDR), and what is between",
        _ => "what consul-semaphore-operator check says",
    };
    tracing::warn!(%error, look_at, "Consul gives no answer, and is asked again");
}
