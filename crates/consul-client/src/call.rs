//! Describes a request to Consul and its answer.

use std::{sync::Arc, time::Duration};

use reqwest::{Method, header::HeaderValue};

use super::{Entries, Error, endpoints::Target, lanes::Lane, listing::Wanted};
use crate::{clock::Moment, turns::FairTurn};

/// One call of the API.
pub(super) struct Call {
    pub(super) kind: &'static str,
    /// Lane of the call, which decides for which other calls it may have to wait. A blocking query has a separate
    /// turn.
    pub(super) lane: Lane,
    pub(super) method: Method,
    /// Path of the request, from `/v1/` on, escaped.
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) body: Option<Vec<u8>>,
    /// Whether the call changes anything in Consul. Renewing a session does not.
    pub(super) changes: bool,
    /// Whether the call may be sent again even though the first request may have been applied.
    pub(super) idempotent: bool,
    /// Wait of a blocking query; `None` for any other call.
    pub(super) wait: Option<Wait>,
    /// Listing that the call asks for, which is decoded while it is read; `None` for any other call.
    pub(super) listing: Option<Wanted>,
}

/// Wait of a blocking query.
pub(super) struct Wait {
    /// Longest time that the query may wait, in addition to the client's timeout.
    pub(super) most: Duration,
    /// The server that the query's index is from. Another server may not reach this index for a long time, so the
    /// query is never repeated there unchanged.
    pub(super) server: Arc<Target>,
}

impl Call {
    /// Makes a read.
    pub(super) fn get(kind: &'static str, path: String) -> Self {
        Self {
            kind,
            lane: Lane::Read,
            method: Method::GET,
            path,
            query: Vec::new(),
            body: None,
            changes: false,
            idempotent: true,
            wait: None,
            listing: None,
        }
    }

    /// Makes a write that is done at most once.
    pub(super) fn put(kind: &'static str, path: String, body: Vec<u8>) -> Self {
        Self {
            lane: Lane::Write,
            method: Method::PUT,
            body: Some(body),
            changes: true,
            idempotent: false,
            ..Self::get(kind, path)
        }
    }

    /// Makes a write that may be repeated, because the second one changes nothing.
    pub(super) fn put_again(kind: &'static str, path: String, body: Vec<u8>) -> Self {
        Self {
            idempotent: true,
            ..Self::put(kind, path, body)
        }
    }

    /// Returns this read, to be answered by a leader that has replayed its whole log. Otherwise a new leader answers
    /// from the part that it has replayed so far, which may be nothing for seconds after all servers were down.
    pub(super) fn consistent(self) -> Self {
        self.with("consistent", "")
    }

    /// Returns this read as one whose answer is a listing.
    pub(super) fn listing(self, wanted: Wanted) -> Self {
        Self {
            listing: Some(wanted),
            ..self
        }
    }

    /// Whether the call is a blocking query that must not be sent to this server.
    pub(super) fn is_for_another(&self, server: &Arc<Target>) -> bool {
        let wait = self.wait.as_ref();
        wait.is_some_and(|wait| !wait.server.is_same_server(server))
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }
}

/// An answer with status 200, or with a 404 that means something to the call.
pub(super) struct Answer {
    pub(super) found: bool,
    /// The header `X-Consul-Index`, at least 1.
    pub(super) index: Option<u64>,
    /// Whether entries were left out because the token may not read them. Consul reports that since 1.11, and only if
    /// there is a token.
    pub(super) filtered: bool,
    /// Time of the server's clock, to the second.
    pub(super) date: Option<HeaderValue>,
    /// Text of the answer; empty if the answer is a listing.
    pub(super) body: Vec<u8>,
    /// Entries of the listing.
    pub(super) entries: Entries,
    /// The turn to have a long answer in memory, which lasts until it is decoded.
    pub(super) _turn: Option<FairTurn>,
    pub(super) sent: Moment,
    /// The server that answered.
    pub(super) server: Arc<Target>,
}

impl Answer {
    pub(super) fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, Error> {
        if !self.found {
            return Err(self.not_found());
        }
        serde_json::from_slice(&self.body).map_err(|error| Error::decode(&error))
    }

    /// Checks that the answer is the `true` of a call that can only succeed.
    pub(super) fn done(&self) -> Result<(), Error> {
        if self.json()? {
            Ok(())
        } else {
            Err(Error::Decode("false".to_owned()))
        }
    }

    /// Returns the error for a 404 from something other than Consul, such as a proxy.
    pub(super) fn not_found(&self) -> Error {
        match Error::from_answer(404, &self.body) {
            Error::Unexpected { status, message } if message.is_empty() => Error::Unexpected {
                status,
                message: "not found, and the answer is not in Consul's format".to_owned(),
            },
            error => error,
        }
    }
}
