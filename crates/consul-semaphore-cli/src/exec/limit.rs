//! The limit that a semaphore has in Consul, for those who go by it.

use std::time::Duration;

use consul_client::{Backoff, Client, clock::Moment};
use consul_semaphore::{Lock, Mode, Prefix, holder::AcquireError};

use super::failure::ExecFailure;
use crate::stderr::Stderr;

/// Pauses between questions while Consul can't be reached.
const ASK_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Returns the limit that the semaphore at this prefix has in Consul. Waits while Consul can't be reached, at most for
/// `patience`.
///
/// # Errors
/// There is no semaphore, Consul refuses to tell, or it could not be reached for so long.
pub(crate) async fn limit_in_consul(
    prefix: &Prefix,
    consul: &Client,
    patience: Option<Duration>,
    stderr: &Stderr,
) -> Result<u32, ExecFailure> {
    let begun = Moment::now();
    let mut pauses = ASK_BACKOFF;
    let lock = loop {
        match consul.get(&prefix.lock_key()).await {
            Ok(lock) => break lock,
            Err(error)
                if patience.is_some_and(|patience| Moment::now().since(begun) >= patience)
                    && error.may_pass() =>
            {
                return Err(AcquireError::Unreachable(error).into());
            }
            Err(error) if error.may_pass() => {
                if pauses.tries() == 0 {
                    stderr.say(&format!("{error}; waiting"));
                }
                pauses.wait().await;
            }
            Err(error) => return Err(AcquireError::Refused(error).into()),
        }
    };
    match Lock::read(Mode::Semaphore, lock.as_ref()) {
        Lock::Semaphore { body, .. } => Ok(body.limit()),
        Lock::Absent { .. } | Lock::Mutex { .. } => Err(ExecFailure::NoLimit(prefix.clone())),
        Lock::Unreadable(why) => Err(AcquireError::Unusable {
            prefix: prefix.clone(),
            why,
        }
        .into()),
    }
}
