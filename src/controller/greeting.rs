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
            tracing::warn!(
                %error,
                "Consul gives no answer: look at --consul-address (CONSUL_HTTP_ADDR), and at what is between; it is asked again"
            );
        }
        told = Some(error);
        let next = Setback::after(setback.as_ref(), Moment::now());
        setback = Some(next);
        next.wait().await;
    }
    tracing::info!("Consul answers");
}
