//! Defines a term of leadership, which gates all writes.

use std::sync::Arc;

use kube::{
    Client, Config,
    client::{Body, ClientBuilder, retry::RetryPolicy},
};
use tokio::{sync::watch, time::sleep};
use tower::{BoxError, buffer::BufferLayer, filter::FilterLayer, retry::RetryLayer};

use consul_client::{self as consul, clock::Moment};

/// Number of requests to the API server that may wait at the gate.
const MAX_QUEUED_REQUESTS: usize = 1024;

/// The request would have changed something, and was not sent because this replica does not lead.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("this replica no longer leads, so it writes nothing")]
pub struct NotLeading;

/// One term of leadership: it lasts until a moment that every renewal extends, or until it is ended. Clones share it.
///
/// Tasks are dropped when the term is over, but not instantly: on a machine that wakes from sleep with an expired
/// lease, every task that is ready continues first. So all writes pass through [`Term::kubernetes`] and
/// [`Term::consul`], which block writes after the term.
#[derive(Clone, Debug)]
pub struct Term(Arc<watch::Sender<Moment>>);

impl Term {
    /// Creates a term that lasts until this moment, unless it is extended.
    pub(super) fn new(until: Moment) -> Self {
        Self(Arc::new(watch::Sender::new(until)))
    }

    /// Returns whether the term still lasts.
    pub fn lasts(&self) -> bool {
        Moment::now() < *self.0.borrow()
    }

    /// Extends the term at least until this moment, unless it has been ended.
    pub(super) fn extend(&self, until: Moment) {
        self.0.send_if_modified(|end| {
            let longer = *end != Moment::default() && until > *end;
            if longer {
                *end = until;
            }
            longer
        });
    }

    /// Ends the term for good.
    pub(super) fn end(&self) {
        self.0.send_replace(Moment::default());
    }

    /// Waits until the term is over.
    pub async fn over(&self) {
        let mut end = self.0.subscribe();
        loop {
            let left = end.borrow_and_update().since(Moment::now());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                // `self` holds the sender.
                _ = end.changed() => {}
                () = sleep(left) => {}
            }
        }
    }

    /// Returns a client of the API server that writes only while the term lasts, retries included.
    ///
    /// # Errors
    /// Fails if the settings can't be used.
    pub fn kubernetes(&self, mut config: Config) -> kube::Result<Client> {
        let term = self.clone();
        let gate = FilterLayer::new(move |request: http::Request<Body>| {
            if request.method().is_safe() || term.lasts() {
                Ok(request)
            } else {
                Err(BoxError::from(NotLeading))
            }
        });
        config.default_retry = false;
        let client = ClientBuilder::try_from(config)?
            .with_layer(&gate)
            .with_layer(&BufferLayer::new(MAX_QUEUED_REQUESTS))
            .with_layer(&RetryLayer::new(RetryPolicy::server_retry()))
            .build();
        Ok(client)
    }

    /// Returns a client of Consul that writes only while the term lasts.
    pub fn consul(&self, consul: &consul::Client) -> consul::Client {
        consul.gated(Arc::new(self.clone()))
    }
}

impl consul::Gate for Term {
    fn refusal(&self) -> Option<consul::Error> {
        (!self.lasts()).then(|| consul::Error::Withheld(NotLeading.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_hours(1);

    #[tokio::test]
    async fn it_is_over_when_it_was_not_extended() {
        let term = Term::new(Moment::now());
        assert!(!term.lasts());
        term.over().await;
        // The answer to a renewal comes late, and is for a time before the end.
        term.extend(Moment::default());
        assert!(!term.lasts());
    }

    #[tokio::test]
    async fn it_is_over_when_it_is_ended_and_never_lasts_again() {
        let term = Term::new(Moment::now() + LONG);
        let other = term.clone();
        let waiting = tokio::spawn(async move { other.over().await });
        assert!(term.lasts());
        term.end();
        waiting.await.unwrap();
        term.extend(Moment::now() + LONG);
        assert!(!term.lasts());
    }

    #[tokio::test]
    async fn it_goes_on_while_it_is_extended() {
        let term = Term::new(Moment::now() + LONG);
        term.extend(Moment::now() + LONG * 2);
        term.extend(Moment::now() + LONG);
        assert!(*term.0.borrow() > Moment::now() + LONG);
    }

    #[tokio::test]
    async fn nothing_is_written_when_it_is_over_and_all_can_be_read() {
        let server = wiremock::MockServer::start().await;
        let answer = wiremock::ResponseTemplate::new(200).set_body_string("true");
        let any = wiremock::Mock::given(wiremock::matchers::any());
        any.respond_with(answer).mount(&server).await;
        let address = server.uri().parse().unwrap();
        let consul = consul::Client::new(consul::Config {
            addresses: vec![address],
            ..consul::Config::default()
        });
        let kubernetes = Config::new(server.uri().parse().unwrap());

        let term = Term::new(Moment::now() + LONG);
        let consul = term
            .consul(&consul.unwrap())
            .scoped(consul::Scope::default());
        let kubernetes = term.kubernetes(kubernetes).unwrap();
        let put = || consul.put("a", b"", 0, consul::PutMode::Set);
        let post = || kubernetes.request_text(http::Request::post("/a").body(vec![]).unwrap());
        let read = || kubernetes.request_text(http::Request::get("/a").body(vec![]).unwrap());
        assert_eq!(put().await, Ok(true));
        assert_eq!(post().await.unwrap(), "true");
        let before = server.received_requests().await.unwrap().len();

        term.end();
        let refused = Err(consul::Error::Withheld(NotLeading.to_string()));
        assert_eq!(put().await, refused);
        let refusal = post().await.unwrap_err();
        assert!(refusal.to_string().contains("no longer leads"), "{refusal}");
        assert_eq!(read().await.unwrap(), "true");
        // Renewing a session changes nothing; this answer does not contain a session.
        let renewal = consul.renew_session(&"s".into()).await;
        assert!(
            matches!(renewal, Err(consul::Error::Decode(_))),
            "{renewal:?}"
        );
        let received = server.received_requests().await.unwrap();
        let after: Vec<_> = received[before..]
            .iter()
            .map(|request| request.url.path())
            .collect();
        assert_eq!(after, ["/a", "/v1/session/renew/s"]);
    }
}
