//! What a call asks, and what is answered.

use std::{sync::Arc, time::Duration};

use reqwest::{Method, header::HeaderValue};
use tokio::sync::OwnedSemaphorePermit;

use super::{Error, endpoints::Target, lanes::Lane};
use crate::clock::Moment;

/// One call of the API.
pub(super) struct Call {
    pub(super) kind: &'static str,
    /// Behind which other calls it may have to wait. A blocking query has a turn of its own.
    pub(super) lane: Lane,
    pub(super) method: Method,
    /// From `/v1/` on, escaped.
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) body: Option<Vec<u8>>,
    /// Whether it changes what Consul has. To renew a session does not: it only goes on.
    pub(super) changes: bool,
    /// Whether it may be done again though it may have been done.
    pub(super) idempotent: bool,
    /// For a blocking query.
    pub(super) wait: Option<Wait>,
}

/// The patience of a blocking query.
pub(super) struct Wait {
    /// How long it may wait, on top of the client's timeout.
    pub(super) most: Duration,
    /// The server that its index is from. To wait at another one for an index that it may not have
    /// for long would be to see nothing, so it is never repeated elsewhere as it is.
    pub(super) server: Arc<Target>,
}

impl Call {
    /// A read.
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
        }
    }

    /// A write that is done at most once.
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

    /// A write that says the same when it is done twice.
    pub(super) fn put_again(kind: &'static str, path: String, body: Vec<u8>) -> Self {
        Self {
            idempotent: true,
            ..Self::put(kind, path, body)
        }
    }

    /// This read, answered by a leader that has replayed all of its log. One that has just come to
    /// lead would else answer by what it has replayed so far: after all servers were down that may
    /// be nothing, for seconds.
    pub(super) fn consistent(self) -> Self {
        self.with("consistent", "")
    }

    /// Whether this is a blocking query that must not be asked there.
    pub(super) fn is_for_another(&self, server: &Arc<Target>) -> bool {
        let wait = self.wait.as_ref();
        wait.is_some_and(|wait| !wait.server.is_same_server(server))
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }
}

/// An answer with status 200, or 404, whose meaning the call knows.
pub(super) struct Answer {
    pub(super) found: bool,
    /// `X-Consul-Index`, at least 1.
    pub(super) index: Option<u64>,
    /// Entries were left out because the token must not read them. Consul says so from 1.11 on, and
    /// only to those who bring a token.
    pub(super) filtered: bool,
    /// What time it is there, to the second.
    pub(super) date: Option<HeaderValue>,
    pub(super) body: Vec<u8>,
    /// While it is there no other long answer is read.
    pub(super) _long: Option<OwnedSemaphorePermit>,
    pub(super) sent: Moment,
    /// Who answered.
    pub(super) server: Arc<Target>,
}

impl Answer {
    pub(super) fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, Error> {
        if !self.found {
            return Err(self.not_found());
        }
        serde_json::from_slice(&self.body).map_err(|error| Error::decode(&error))
    }

    /// The `true` of a call that can only succeed.
    pub(super) fn done(&self) -> Result<(), Error> {
        if self.json()? {
            Ok(())
        } else {
            Err(Error::Decode("false".to_owned()))
        }
    }

    /// The 404 of something that is not Consul, such as a proxy.
    pub(super) fn not_found(&self) -> Error {
        match Error::from_answer(404, &self.body) {
            Error::Unexpected { status, message } if message.is_empty() => Error::Unexpected {
                status,
                message: "not found, and not in Consul's way".to_owned(),
            },
            error => error,
        }
    }
}
