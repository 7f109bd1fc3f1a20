//! Reads of the API server that are sent again.
use std::time::Duration;

use axum::http::{Method, Request, Response};
use kube::client::Body;
use tokio::time::{Sleep, sleep};
use tower::{BoxError, retry::Policy};

/// How often a read is sent again.
const AGAIN: u32 = 5;

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Sends a `GET` again whose connection was lost, or that the server could not answer: a busy server closes a kept
/// connection just when it is used, and etcd answers late. Nothing is sent again that changes something, because it
/// may have been done.
#[derive(Clone, Debug)]
pub(crate) struct ReadAgain {
    left: u32,
}

impl ReadAgain {
    pub(crate) const fn new() -> Self {
        Self { left: AGAIN }
    }
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for ReadAgain {
    type Future = Sleep;

    fn retry(
        &mut self,
        _request: &mut Request<Body>,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Sleep> {
        let answered = matches!(result, Ok(answer) if !answer.status().is_server_error());
        if answered {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        Some(sleep(PAUSE))
    }

    /// Only what is cloned is sent again.
    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        if request.method() != Method::GET {
            return None;
        }
        let mut again = Request::new(request.body().try_clone()?);
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.headers_mut() = request.headers().clone();
        *again.extensions_mut() = request.extensions().clone();
        Some(again)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use axum::http::StatusCode;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api, Client,
        api::{ListParams, PostParams},
        client::ClientBuilder,
    };
    use tower::{retry::RetryLayer, service_fn};

    use super::*;

    /// How a server fails.
    #[derive(Clone, Copy, Debug)]
    enum Failure {
        ClosesTheConnection,
        Answers(StatusCode),
    }

    /// A client of a server that fails so many times before it answers. Also the number of requests so far.
    fn client(failure: Failure, times: u32) -> (Api<ConfigMap>, Arc<AtomicU32>) {
        let count = Arc::<AtomicU32>::default();
        let counted = count.clone();
        let server = service_fn(move |_: Request<Body>| {
            let fails = counted.fetch_add(1, Ordering::Relaxed) < times;
            async move {
                let status = match failure {
                    Failure::ClosesTheConnection if fails => {
                        return Err(BoxError::from("connection closed"));
                    }
                    Failure::Answers(status) if fails => status,
                    _ => StatusCode::OK,
                };
                let list = r#"{"apiVersion":"v1","kind":"ConfigMapList","metadata":{},"items":[]}"#;
                let mut answer = Response::new(Body::from(list.as_bytes().to_vec()));
                *answer.status_mut() = status;
                Ok(answer)
            }
        });
        let builder = ClientBuilder::new(server, "default");
        let client: Client = builder
            .with_layer(&RetryLayer::new(ReadAgain::new()))
            .build();
        (Api::namespaced(client, "default"), count)
    }

    async fn lists(configs: &Api<ConfigMap>) -> bool {
        configs.list(&ListParams::default()).await.is_ok()
    }

    #[tokio::test]
    async fn a_read_is_sent_again_until_it_is_answered() {
        for failure in [
            Failure::ClosesTheConnection,
            Failure::Answers(StatusCode::INTERNAL_SERVER_ERROR),
        ] {
            let (configs, count) = client(failure, AGAIN);
            assert!(lists(&configs).await, "{failure:?}");
            assert_eq!(count.load(Ordering::Relaxed), AGAIN + 1, "{failure:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_never_answers_fails_the_read() {
        let (configs, count) = client(Failure::ClosesTheConnection, u32::MAX);
        assert!(!lists(&configs).await);
        assert_eq!(count.load(Ordering::Relaxed), AGAIN + 1);
    }

    #[tokio::test]
    async fn a_refusal_is_an_answer() {
        let (configs, count) = client(Failure::Answers(StatusCode::FORBIDDEN), 1);
        assert!(!lists(&configs).await);
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn what_changes_something_is_sent_once() {
        let (configs, count) = client(Failure::ClosesTheConnection, 1);
        let (params, config) = (PostParams::default(), ConfigMap::default());
        assert!(configs.create(&params, &config).await.is_err());
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
