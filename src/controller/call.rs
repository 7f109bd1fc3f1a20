//! Calls to the API server, each with a bound on its time.

use std::time::Duration;

use tokio::time::timeout;

/// How long a call may take.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// With an answer, or without a connection.
    #[error(transparent)]
    Failed(#[from] Box<kube::Error>),
    /// Nothing was heard in time; it may have been done.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
}

impl CallError {
    /// The HTTP status of the API server's refusal, and its words.
    pub(super) fn refusal(&self) -> Option<(u16, &str)> {
        match self {
            Self::Failed(error) => match error.as_ref() {
                kube::Error::Api(status) => Some((status.code, &status.message)),
                _ => None,
            },
            Self::Silent(_) => None,
        }
    }
}

/// Makes a call that may take [`CALL_TIMEOUT`].
pub(super) async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    call_within(CALL_TIMEOUT, call).await
}

/// Makes a call that may take so long. The client's own repetitions are within that time.
pub(super) async fn call_within<T>(
    limit: Duration,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    match timeout(limit, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Box::new(error).into()),
        Err(_) => Err(CallError::Silent(limit)),
    }
}
