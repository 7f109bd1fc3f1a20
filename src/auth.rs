//! Identifies the user who sends a request, and finds out what the user may do: by bearer tokens, which the API server
//! reviews.
//!
//! | module | subject |
//! |---|---|
//! | `token` | the token of a request |
//! | `reviews` | questions to the API server about tokens and rights, and a cache of its answers |

mod reviews;
mod token;

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};

#[cfg(test)]
pub(crate) use self::reviews::tests::reviews_by;
pub(crate) use self::{
    reviews::{Purpose, Reviews, Right, TokenUser},
    token::Token,
};

/// The reason why a client is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// There is no token.
    #[error("a token is needed")]
    NoToken,
    /// The API server does not know the token.
    #[error(
        "the API server does not know this token: it has expired, or is for another cluster or audience"
    )]
    Unknown,
    /// The user of the token lacks a right.
    #[error("{0}")]
    Forbidden(String),
    /// The API server gave no usable answer.
    #[error("the API server did not say whether you may see this: {0}")]
    Unable(String),
}

impl Refusal {
    pub(crate) fn unable(why: &str) -> Self {
        Self::Unable(why.to_owned())
    }

    /// Returns the refusal for a question that was not answered in time.
    pub(crate) fn silent() -> Self {
        Self::unable("it does not answer in time")
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NoToken | Self::Unknown => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::Unable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status();
        let text = (status, format!("{self}\n"));
        if status == StatusCode::UNAUTHORIZED {
            ([(header::WWW_AUTHENTICATE, "Bearer")], text).into_response()
        } else {
            text.into_response()
        }
    }
}
