//! Whether Consul answers at all, said at the start: a wrong address would show only with the first
//! `ConsulSemaphore`.

use crate::{
    clock::Moment,
    consul::{Client, Error},
    holding::Setback,
};

/// Asks until there is an answer. It takes no token.
pub(super) async fn tell(consul: Client) {
    let mut setback: Option<Setback> = None;
    let mut told: Option<Error> = None;
    while let Err(error) = consul.status().await {
        if told.as_ref() != Some(&error) {
            let look_at = match error {
                Error::Unreachable { .. } => {
                    "--consul-address (CONSUL_HTTP_ADDR), and what is between"
                }
                _ => "what consul-semaphore-operator check says",
            };
            tracing::warn!(%error, look_at, "Consul gives no answer, and is asked again");
        }
        told = Some(error);
        let next = Setback::after(setback.as_ref(), Moment::now());
        setback = Some(next);
        next.wait().await;
    }
    tracing::info!("Consul answers");
}
