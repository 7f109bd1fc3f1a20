//! The names on a Job and its pod template, and what the user's annotations ask for.

use std::collections::BTreeMap;

/// On a Job, by its user: the name of the `ConsulSemaphore` in the Job's namespace to wait for.
pub const SEMAPHORE: &str = "consul-semaphore.io/semaphore";
/// On a Job, by its user: an integer; a higher one goes first. Default 0.
pub const PRIORITY: &str = "consul-semaphore.io/priority";
/// On a Job, by its user, and by the operator for one that its user suspends: `"true"` stays out of the line.
pub const HOLD: &str = "consul-semaphore.io/hold";
/// On a Job and on its pod template, by the operator: the id of the Consul session that holds, or held, the slot.
pub const SESSION: &str = "consul-semaphore.io/session";
/// On the pod template, by the grant: the lock key, the `Key` of Consul's sequencer.
pub const LOCK_KEY: &str = "consul-semaphore.io/lock-key";
/// On the pod template, by the grant: the `LockIndex` of Consul's sequencer.
pub const LOCK_INDEX: &str = "consul-semaphore.io/lock-index";
/// On the pod template, by the grant: the raft index of the grant. A later grant has a greater one.
pub const FENCING_TOKEN: &str = "consul-semaphore.io/fencing-token";
/// On the pod template, by the grant: the uid of the Job that was granted the slot.
pub const GRANTED_TO: &str = "consul-semaphore.io/granted-to";

/// A label on the pod template, by the grant: marks the pods of slot holders, so that the operator
/// watches no others. Its value is [`HOLDER_VALUE`].
pub const HOLDER_LABEL: &str = "consul-semaphore.io/holder";
/// The value of [`HOLDER_LABEL`].
pub const HOLDER_VALUE: &str = "true";

/// The finalizer on a `ConsulSemaphore`.
pub const FINALIZER: &str = "consul-semaphore.io/finalizer";

/// What a Job's annotations ask for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The name of a `ConsulSemaphore` in the Job's namespace: a valid object name.
    pub semaphore: String,
    /// A higher one goes first; 0 when the annotation is not there.
    pub priority: i32,
    /// Whether the Job stays out of the line.
    pub hold: bool,
}

/// Why a Job's annotations can't be followed. Each says what to do, for an event on the Job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    /// [`SEMAPHORE`] is there, without a value.
    #[error(
        "annotation {SEMAPHORE} is empty: set it to the name of a ConsulSemaphore in the Job's namespace, or remove it"
    )]
    Empty,
    /// [`SEMAPHORE`] names several.
    #[error(
        "annotation {SEMAPHORE} is {0:?}: several semaphores for one Job are not supported yet, set it to the name of one"
    )]
    Several(String),
    /// [`SEMAPHORE`] can't be the name of an object.
    #[error(
        "annotation {SEMAPHORE} is {0:?}, which can't be the name of a ConsulSemaphore: use lower case letters, digits, '-' \
         and '.', with a letter or digit at both ends, at most 253 in all"
    )]
    Name(String),
    /// [`PRIORITY`] is not a 32-bit integer.
    #[error("annotation {PRIORITY} is {0:?}: set it to a whole number from {min} to {max}, in quotes", min = i32::MIN, max = i32::MAX)]
    Priority(String),
    /// [`HOLD`] is neither `true` nor `false`.
    #[error("annotation {HOLD} is {0:?}: set it to \"true\" or \"false\", or remove it")]
    Hold(String),
}

/// What a Job's annotations ask for; `None` when [`SEMAPHORE`] is not among them: not our Job.
pub fn parse(annotations: &BTreeMap<String, String>) -> Option<Result<Request, AnnotationError>> {
    let semaphore = annotations.get(SEMAPHORE)?;
    Some(parse_request(semaphore, annotations))
}

fn parse_request(
    semaphore: &str,
    annotations: &BTreeMap<String, String>,
) -> Result<Request, AnnotationError> {
    Ok(Request {
        semaphore: parse_semaphore(semaphore)?,
        priority: annotations
            .get(PRIORITY)
            .map_or(Ok(0), |text| parse_priority(text))?,
        hold: annotations
            .get(HOLD)
            .map_or(Ok(false), |text| parse_hold(text))?,
    })
}

fn parse_semaphore(text: &str) -> Result<String, AnnotationError> {
    if text.trim().is_empty() {
        Err(AnnotationError::Empty)
    } else if text.contains(',') {
        Err(AnnotationError::Several(text.to_owned()))
    } else if is_object_name(text) {
        Ok(text.to_owned())
    } else {
        Err(AnnotationError::Name(text.to_owned()))
    }
}

fn parse_priority(text: &str) -> Result<i32, AnnotationError> {
    text.parse()
        .map_err(|_| AnnotationError::Priority(text.to_owned()))
}

fn parse_hold(text: &str) -> Result<bool, AnnotationError> {
    text.parse()
        .map_err(|_| AnnotationError::Hold(text.to_owned()))
}

/// Whether this is a DNS-1123 subdomain, as the names of most Kubernetes objects are.
fn is_object_name(name: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(alphanumeric)
            && bytes.last().is_some_and(alphanumeric)
            && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}
