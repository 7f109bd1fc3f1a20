//! Sends requests to the API server, each with a timeout. Answers are plain JSON, because only a few fields are read,
//! and another version of the server may have more or fewer.

use std::time::Duration;

use http::{Request, header::CONTENT_TYPE, request::Builder};
use kube::Client;
use serde_json::Value;
use tokio::time::timeout;

use consul_client::text::one_line;

/// The longest part of a foreign message that is repeated.
const LONGEST_MESSAGE: usize = 300;

/// The reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ApiError {
    /// There is no such object, or no such kind.
    #[error("it does not exist")]
    NotThere,
    /// The user may not do this.
    #[error("{0}")]
    Forbidden(String),
    /// The request failed in another way.
    #[error("{0}")]
    Failed(String),
}

impl ApiError {
    fn of(error: &kube::Error) -> Self {
        let failed = |text: &str| Self::Failed(one_line(text, LONGEST_MESSAGE));
        match error {
            kube::Error::Api(status) => match status.code {
                404 => Self::NotThere,
                401 | 403 => Self::Forbidden(one_line(&status.message, LONGEST_MESSAGE)),
                _ => failed(&status.message),
            },
            error => failed(&error.to_string()),
        }
    }
}

/// An answer, or the reason why there is none.
pub(super) type Answer<T = Value> = Result<T, ApiError>;

/// The API server, used as one user.
#[derive(Clone)]
pub(super) struct ApiServer {
    /// A typed client.
    pub(super) client: Client,
    /// The time that an answer may take.
    pub(super) patience: Duration,
}

impl ApiServer {
    pub(super) fn new(client: Client, patience: Duration) -> Self {
        Self { client, patience }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.ask(Request::get(path), Vec::new()).await
    }

    /// Creates a review, which the API server answers and does not store.
    pub(super) async fn review(&self, path: &str, review: &Value) -> Answer {
        let request = Request::post(path).header(CONTENT_TYPE, "application/json");
        self.ask(request, review.to_string().into_bytes()).await
    }

    async fn ask(&self, request: Builder, body: Vec<u8>) -> Answer {
        let request = request
            .body(body)
            .map_err(|error| ApiError::Failed(error.to_string()))?;
        let text = self.within(self.client.request_text(request)).await?;
        serde_json::from_str(&text)
            .map_err(|error| ApiError::Failed(format!("its answer is not JSON: {error}")))
    }

    /// Bounds the time of a call.
    pub(super) async fn within<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Answer<T> {
        let answer = timeout(self.patience, call).await.map_err(|_| {
            let patience = self.patience.as_secs();
            ApiError::Failed(format!("the API server did not answer within {patience} s"))
        })?;
        answer.map_err(|error| ApiError::of(&error))
    }
}
