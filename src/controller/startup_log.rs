//! Reports at startup where Consul is, whether Consul answers, and whether tokens are safe on the way. Without this
//! report, a wrong address would show only with the first `ConsulSemaphore`.

use consul_client::{Address, Client, Error, Exposure};
use consul_semaphore::holding::retry_until_ok;

use crate::telemetry::Health;

/// Asks Consul until there is an answer; this needs no token. Until then, a line of `/readyz` says that there is no
/// answer. The operator stays ready, because a new pod would not help.
pub(super) async fn write(consul: Client, addresses: Vec<Address>, health: Health) {
    let addresses: Vec<_> = addresses.iter().map(Address::to_string).collect();
    let address = addresses.join(", ");
    tracing::info!(%address, "asking Consul");
    let part = health.part("consul");
    part.ready_and(format!("{address} has not answered yet"));
    retry_until_ok(
        || consul.status(),
        |error| {
            part.ready_and(format!("{address} does not answer: {error}"));
            complain(&address, error);
        },
    )
    .await;
    tracing::info!(%address, "Consul answers");
}

/// Warns about settings that let others on the way to Consul read tokens.
pub(super) fn warn(exposures: &[Exposure]) {
    for exposure in exposures {
        tracing::warn!(advice = exposure.advice(), "{}", exposure.problem());
    }
}

fn complain(address: &str, error: &Error) {
    let check = match error {
        Error::Unreachable { .. } => "--consul-address (CONSUL_HTTP_ADDR) and the network",
        _ => "what consul-semaphore-operator check says",
    };
    tracing::warn!(address, %error, check, "Consul does not answer: nothing is granted, trying again");
}
