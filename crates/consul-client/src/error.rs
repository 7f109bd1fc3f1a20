//! Defines the errors of a call, and reads them from Consul's answers.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Deserializer};

use crate::text::one_line;

/// Failure of a call. Messages never contain a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No server answered: not found by name, refused, cut off, or silent for too long.
    #[error("Consul cannot be reached: {message}")]
    Unreachable {
        /// Name of the server and the cause of the failure.
        message: String,
        /// Whether the request had been sent, so that a write in it may have been applied.
        undecided: bool,
    },
    /// Nothing was sent, because the calls before it took so long that too little time was left.
    #[error("not sent to Consul: {0}")]
    NotSent(String),
    /// The servers have no leader at the moment, as during an election.
    #[error("Consul has no leader: {message}")]
    NoLeader {
        /// Consul's words.
        message: String,
        /// Whether the leader was lost while it committed, so that a write may have been applied.
        undecided: bool,
    },
    /// The token is unknown or lacks a rule. The message names the rule as Consul does.
    #[error("Consul denies it: {0}")]
    Denied(String),
    /// There is no token because the login for one fails, with the reason. No call was made.
    #[error("the login to Consul fails {0}")]
    LoginFailed(LoginFailure),
    /// There is no token, so no call was made.
    #[error("there is no token for Consul")]
    NoToken,
    /// Consul's limit of requests or connections is reached; nothing was done.
    #[error("Consul has too many requests: {0}")]
    TooManyRequests(String),
    /// A transaction was refused as a whole; these of its operations failed.
    #[error("the transaction was refused: {}", list(.0))]
    Conflict(Vec<OpError>),
    /// The session does not exist: it expired, was destroyed, or never existed.
    #[error("the session is gone")]
    Gone,
    /// The transaction has more operations or bytes than Consul takes at once; see
    /// [`Client::transaction_capacity`](super::Client::transaction_capacity).
    #[error("too large for Consul: {0}")]
    TooLarge(String),
    /// The answer is longer than this client reads.
    #[error("Consul's answer has more than {} MiB", .0 >> 20)]
    AnswerTooLarge(usize),
    /// The data below the prefix does not fit into the [`Budget`](super::Budget) of so many bytes, beside the data that
    /// is kept of other prefixes.
    #[error("Consul's answer does not fit into the {} MiB of memory for all its answers", .0 >> 20)]
    PrefixTooLarge(usize),
    /// A long answer could not be read in time, because other long answers were being read.
    #[error("Consul's answer was not read: {0}")]
    NoTurn(String),
    /// A namespace or a partition was named, and this Consul is not Consul Enterprise.
    #[error("not supported by this Consul: {0}")]
    Unsupported(String),
    /// Consul does not know the datacenter.
    #[error("Consul knows no path to the datacenter")]
    UnknownDatacenter,
    /// The node of the session is not registered.
    #[error("the session's node is not registered in Consul's catalog")]
    MissingNode,
    /// The key is one that Consul would take for another key, because it has empty segments or segments of dots, or
    /// one that Consul refuses: since 1.22 with a space at either end, since 1.21.5 with more. The text is the key,
    /// or Consul's words.
    #[error("Consul does not accept this key: {0}")]
    InvalidKey(String),
    /// The client's [`Gate`](super::Gate) is closed, for this reason; nothing was sent.
    #[error("nothing may be written to Consul now: {0}")]
    Withheld(String),
    /// Any other failure.
    #[error("Consul answered with status {status}: {message}")]
    Unexpected {
        /// The HTTP status.
        status: u16,
        /// The beginning of the answer's text.
        message: String,
    },
    /// The answer reports success and can't be understood.
    #[error("Consul's answer cannot be understood: {0}")]
    Decode(String),
}

/// Cause of a failed login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginFailure {
    /// Name of the auth method, and the reason why it failed.
    pub(super) why: String,
    /// Whether the failure may be temporary: Consul, a proxy before it, or the service that checks the bearer token
    /// for Consul failed and did not clearly refuse.
    pub(super) passing: bool,
}

impl Display for LoginFailure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// Failure of one operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct OpError {
    /// Position of the operation in the transaction, from 0.
    #[serde(rename = "OpIndex")]
    pub operation: usize,
    /// Consul's words, such as `failed to set key "k", index is stale`.
    #[serde(rename = "What", deserialize_with = "words")]
    pub what: String,
}

impl OpError {
    /// Whether a key can't be locked because the session that held it died, and its lock-delay runs. No blocking query
    /// returns when the lock-delay ends.
    pub fn is_lock_delay(&self) -> bool {
        self.what.ends_with("due to lock delay")
    }

    /// Whether the session with which the key should have been locked is gone.
    pub fn is_invalid_session(&self) -> bool {
        self.what.contains("invalid session")
    }
}

/// Reads Consul's words as one short line, because they may repeat a key, which may hold anything.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|words| text(words.as_bytes()))
}

fn list(errors: &[OpError]) -> String {
    let each = |error: &OpError| format!("operation {}: {}", error.operation, error.what);
    errors.iter().map(each).collect::<Vec<_>>().join("; ")
}

/// Number of characters of an answer's text that a message quotes.
const LONGEST_MESSAGE: usize = 512;

impl Error {
    /// Makes the error for an answer that can't be understood.
    pub(super) fn decode(problem: &impl ToString) -> Self {
        Self::Decode(text(problem.to_string().as_bytes()))
    }

    /// Makes the error for a key, or a part of a path, that can't be sent.
    pub(super) fn invalid_key(key: &str) -> Self {
        Self::InvalidKey(text(format!("{key:?}").as_bytes()))
    }

    /// Returns the kind of error in one CamelCase word, of a fixed set: for metrics and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "ConsulUnreachable",
            Self::NotSent(_) => "NotSent",
            Self::NoLeader { .. } => "NoLeader",
            Self::Denied(_) => "PermissionDenied",
            Self::LoginFailed(_) => "LoginFailed",
            Self::NoToken => "TokenNotFound",
            Self::TooManyRequests(_) => "TooManyRequests",
            Self::Conflict(_) => "Conflict",
            Self::Gone => "SessionGone",
            Self::TooLarge(_) => "TooLarge",
            Self::AnswerTooLarge(_) => "AnswerTooLarge",
            Self::PrefixTooLarge(_) => "PrefixTooLarge",
            Self::NoTurn(_) => "NoTurn",
            Self::Unsupported(_) => "EnterpriseOnly",
            Self::UnknownDatacenter => "UnknownDatacenter",
            Self::MissingNode => "MissingNode",
            Self::InvalidKey(_) => "InvalidKey",
            Self::Withheld(_) => "Withheld",
            Self::Unexpected { .. } | Self::Decode(_) => "UnexpectedAnswer",
        }
    }

    /// Whether a write that failed with this error may have been applied: true unless it is certain that nothing was
    /// written. The result means nothing for a read.
    pub fn may_have_been_applied(&self) -> bool {
        match self {
            Self::Unreachable { undecided, .. } | Self::NoLeader { undecided, .. } => *undecided,
            Self::Unexpected { status, .. } => *status >= 500,
            Self::Decode(_)
            | Self::AnswerTooLarge(_)
            | Self::PrefixTooLarge(_)
            | Self::NoTurn(_) => true,
            Self::NotSent(_)
            | Self::Denied(_)
            | Self::LoginFailed(_)
            | Self::NoToken
            | Self::TooManyRequests(_)
            | Self::Conflict(_)
            | Self::Gone
            | Self::TooLarge(_)
            | Self::Unsupported(_)
            | Self::UnknownDatacenter
            | Self::MissingNode
            | Self::InvalidKey(_)
            | Self::Withheld(_) => false,
        }
    }

    /// Whether nothing is kept of a listing because the listing is too large.
    pub fn is_too_much_to_keep(&self) -> bool {
        matches!(self, Self::AnswerTooLarge(_) | Self::PrefixTooLarge(_))
    }

    /// Whether Consul does not know the token: it was deleted, it has expired, or it is too new for this server.
    /// Nothing was done.
    pub fn is_unknown_token(&self) -> bool {
        matches!(self, Self::Denied(message) if message.contains(UNKNOWN_TOKEN))
    }

    /// Whether it may help to ask again later: no server answers or leads, a server fails or has too much to do, or
    /// the login was not clearly refused.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::LoginFailed(failure) => failure.passing,
            // Consul refuses a TTL with the status of a server that fails.
            error => error.is_transient() && error.shortest_ttl().is_none(),
        }
    }

    /// Whether another server, or the same one later, may succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::NotSent(_)
            | Self::NoTurn(_)
            | Self::NoLeader { .. }
            | Self::TooManyRequests(_) => true,
            Self::Unexpected { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Returns the error in an answer other than success. Consul distinguishes errors by their text more than by
    /// their status, and a server that forwarded the request puts words before that text.
    pub(super) fn from_answer(status: u16, body: &[u8]) -> Self {
        if status == 409
            && let Some(error) = refused_transaction(body)
        {
            return error;
        }
        let message = text(body);
        let says = |part: &str| message.contains(part);
        match status {
            401 | 403 => Self::Denied(message),
            413 => Self::TooLarge(message),
            429 => Self::TooManyRequests(message),
            400 if says("Consul Enterprise feature") => Self::Unsupported(message),
            500.. if is_denial(&message) => Self::Denied(message),
            500.. if says("rate limit exceeded") => Self::TooManyRequests(message),
            500.. if says("No path to datacenter") => Self::UnknownDatacenter,
            500.. if says("Missing node registration") => Self::MissingNode,
            500.. if says("invalid key name, ") => Self::InvalidKey(message),
            500.. if says("invalid session") => Self::Gone,
            500.. if says("leadership lost while committing log") => Self::NoLeader {
                message,
                undecided: true,
            },
            500.. if NO_LEADER.iter().any(|part| says(part)) => Self::NoLeader {
                message,
                undecided: false,
            },
            _ => Self::Unexpected { status, message },
        }
    }
}

/// Texts with which servers without a leader answer before anything was written.
const NO_LEADER: [&str; 7] = [
    "No cluster leader",
    "rpc error getting client",
    "Raft leader not found",
    "No known Consul servers",
    "Not ready to serve consistent reads",
    "node is not the leader",
    "leadership transfer in progress",
];

/// Text with which servers answer to an unknown token.
const UNKNOWN_TOKEN: &str = "ACL not found";

fn is_denial(message: &str) -> bool {
    message.contains("Permission denied") || message.contains(UNKNOWN_TOKEN)
}

/// Reads the errors of a refused transaction, which may contain a denial.
fn refused_transaction(body: &[u8]) -> Option<Error> {
    #[derive(Deserialize)]
    struct Refusal {
        #[serde(rename = "Errors")]
        errors: Vec<OpError>,
    }
    let Refusal { errors } = serde_json::from_slice(body).ok()?;
    if let Some(denial) = errors.iter().find(|error| is_denial(&error.what)) {
        return Some(Error::Denied(denial.what.clone()));
    }
    Some(Error::Conflict(errors))
}

/// Returns the beginning of an answer, as one line for a log.
fn text(body: &[u8]) -> String {
    one_line(String::from_utf8_lossy(body).trim(), LONGEST_MESSAGE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any answer is an error that can be shown.
        #[test]
        fn any_answer_is_shown_in_one_line(status in 100..600_u16, body in hostile::bytes(), what in hostile::text()) {
            let refusal = serde_json::json!({ "Errors": [{ "OpIndex": 0, "What": what }] });
            for body in [body, refusal.to_string().into_bytes()] {
                let error = Error::from_answer(status, &body).to_string();
                prop_assert!(!error.chars().any(char::is_control), "{}", error);
                prop_assert!(error.chars().count() < LONGEST_MESSAGE + 100, "{}", error);
            }
        }
    }

    #[test]
    fn answers_of_a_real_consul_are_told_apart() {
        let cases: &[(u16, &str, &str, bool)] = &[
            (500, "No cluster leader", "NoLeader", false),
            (
                500,
                "rpc error making call: No cluster leader",
                "NoLeader",
                false,
            ),
            (
                500,
                "raft apply failed: node is not the leader",
                "NoLeader",
                false,
            ),
            (
                500,
                "raft apply failed: leadership lost while committing log",
                "NoLeader",
                true,
            ),
            (500, "rpc error making call: EOF", "UnexpectedAnswer", true),
            (403, "Permission denied", "PermissionDenied", false),
            (403, "ACL not found", "PermissionDenied", false),
            (
                500,
                "rpc error making call: ACL not found",
                "PermissionDenied",
                false,
            ),
            (429, "Your IP is issuing too many", "TooManyRequests", false),
            (
                503,
                "rate limit exceeded for operation that can only be performed by the leader, try again later",
                "TooManyRequests",
                false,
            ),
            (503, "upstream connect error", "UnexpectedAnswer", true),
            (
                500,
                "raft apply failed: invalid session \"x\"",
                "SessionGone",
                false,
            ),
            (
                500,
                "apply failed: Missing node registration",
                "MissingNode",
                false,
            ),
            (500, "No path to datacenter", "UnknownDatacenter", false),
            (
                500,
                "invalid key name, path traversal is not allowed",
                "InvalidKey",
                false,
            ),
            (
                400,
                "Invalid query parameter: \"ns\" - Namespaces are a Consul Enterprise feature",
                "EnterpriseOnly",
                false,
            ),
            (400, "Missing key name", "UnexpectedAnswer", false),
            (
                413,
                "Transaction contains too many operations (129 > 128)",
                "TooLarge",
                false,
            ),
            (307, "", "UnexpectedAnswer", false),
        ];
        for (status, body, reason, applied) in cases {
            let error = Error::from_answer(*status, body.as_bytes());
            assert_eq!(error.reason(), *reason, "{status} {body}");
            assert_eq!(error.may_have_been_applied(), *applied, "{status} {body}");
        }
    }

    #[test]
    fn a_refusal_does_not_pass() {
        let login = |passing| {
            let why = "at the auth method".to_owned();
            Error::LoginFailed(LoginFailure { why, passing })
        };
        let ttl = "Invalid Session TTL '1000000000', must be between [10s=24h0m0s]";
        for (error, passes) in [
            (Error::NotSent("late".to_owned()), true),
            (Error::from_answer(500, b"No cluster leader"), true),
            (Error::from_answer(429, b"slowly"), true),
            (Error::from_answer(503, b"upstream connect error"), true),
            (login(true), true),
            (login(false), false),
            (Error::from_answer(500, ttl.as_bytes()), false),
            (Error::from_answer(500, b"Permission denied"), false),
            (Error::from_answer(400, b"Missing key name"), false),
            (Error::Gone, false),
        ] {
            assert_eq!(error.may_pass(), passes, "{error}");
        }
    }

    #[test]
    fn a_denial_keeps_the_missing_rule() {
        let words = "Permission denied: token with AccessorID '0c7b' lacks permission 'key:write' on \"a/b\"";
        assert_eq!(
            Error::from_answer(403, words.as_bytes()),
            Error::Denied(words.to_owned())
        );
    }

    #[test]
    fn a_refused_transaction_names_the_operations() {
        let body = br#"{"Results":null,"Errors":[
            {"OpIndex":0,"What":"failed to lock key \"a\", lock is already held"},
            {"OpIndex":2,"What":"failed to set key \"b\", index is stale"}]}"#;
        let Error::Conflict(errors) = Error::from_answer(409, body) else {
            panic!("not a conflict");
        };
        assert_eq!(errors.len(), 2);
        assert_eq!(errors[1].operation, 2);
        assert_eq!(
            Error::Conflict(errors).to_string(),
            "the transaction was refused: operation 0: failed to lock key \"a\", lock is already held; \
             operation 2: failed to set key \"b\", index is stale"
        );
    }

    #[test]
    fn a_denial_within_a_refused_transaction_is_a_denial() {
        let body = br#"{"Results":null,"Errors":[
            {"OpIndex":0,"What":"failed to set key \"b\", index is stale"},
            {"OpIndex":1,"What":"Permission denied: anonymous token lacks permission 'key:write' on \"a\""}]}"#;
        let Error::Denied(rule) = Error::from_answer(409, body) else {
            panic!("not a denial");
        };
        assert!(rule.contains("'key:write' on \"a\""));
    }

    #[test]
    fn texts_are_short_and_on_one_line() {
        let body = "<html>\n".repeat(1000);
        let Error::Unexpected { message, .. } = Error::from_answer(502, body.as_bytes()) else {
            panic!("not unexpected");
        };
        assert_eq!(message.chars().count(), LONGEST_MESSAGE);
        assert!(!message.contains('\n'));
    }
}
