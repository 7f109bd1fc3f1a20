//! Calls to the API server, each with a bound on its time.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use kube::{api::PatchParams, core::Status, runtime::watcher};
use tokio::time::timeout;

use consul_client::clock::Moment;

/// The time that a call may take.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns how objects are changed: under a name that `metadata.managedFields` shows, so that tools and people can see
/// who wrote what. Without a name the API server calls the writer `unknown`.
pub(crate) fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(env!("CARGO_PKG_NAME").to_owned()),
        ..PatchParams::default()
    }
}

/// The way in which a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The call failed with an answer, or without a connection.
    #[error(transparent)]
    Failed(#[from] Box<kube::Error>),
    /// The API server did not answer in time; the call may have taken effect.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
}

impl CallError {
    fn status(&self) -> Option<&Status> {
        match self {
            Self::Failed(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Silent(_) => None,
        }
    }

    /// Returns the HTTP status and message of the API server's refusal.
    pub(crate) fn refusal(&self) -> Option<(u16, &str)> {
        let status = self.status()?;
        Some((status.code, &status.message))
    }

    /// Whether the API server has no object of this name where the call named one; `None` if it did not say so.
    /// `Some(false)` means that it does not have such a resource either.
    pub(crate) fn not_found(&self, name: &str) -> Option<bool> {
        let status = self.status().filter(|status| status.code == 404)?;
        let details = status.details.as_ref();
        Some(details.is_some_and(|details| details.name == name))
    }

    /// Whether the API server will refuse the call again: the refusal is neither a version conflict nor about too many
    /// requests.
    pub(crate) fn is_refused_for_good(&self) -> bool {
        let code = self.refusal().map(|(code, _)| code);
        code.is_some_and(|code| (400..500).contains(&code) && code != 409 && code != 429)
    }
}

/// Makes a call that may take [`CALL_TIMEOUT`], including the client's own retries.
pub(crate) async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    call_until(Moment::now() + CALL_TIMEOUT, call).await
}

/// Makes a call that sends nothing, retries included, from `end` on, even if this process slept before or during the
/// call. A timer alone would fire too late.
pub(crate) async fn call_until<T>(
    end: Moment,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    let limit = end.since(Moment::now());
    let mut call = pin!(call);
    let timely = poll_fn(|context| {
        if Moment::now() >= end {
            return Poll::Ready(Err(CallError::Silent(limit)));
        }
        let answer = call.as_mut().poll(context);
        answer.map_err(|error| Box::new(error).into())
    });
    timeout(limit, timely)
        .await
        .unwrap_or(Err(CallError::Silent(limit)))
}

/// Returns the API server's refusal of a watch, if the error is one.
pub(crate) fn watch_refusal(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error;
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status))
        | Error::WatchError(status) => Some(status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_begun_when_it_is_too_late() {
        let mut begun = false;
        let call = async {
            begun = true;
            Ok(())
        };
        let answer = call_until(Moment::now(), call).await;
        assert!(matches!(answer, Err(CallError::Silent(_))), "{answer:?}");
        assert!(!begun);
    }
}
