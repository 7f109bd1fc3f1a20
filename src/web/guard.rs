//! Authentication and authorization.

use std::{fmt, sync::Arc};

use axum::{
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::reviews::{Reviews, User};

/// The header with the page's token. Unlike `Authorization`, it passes through the API server's own proxy, and no
/// form or image of another site can make a browser send it.
const TOKEN: HeaderName = HeaderName::from_static("x-consul-semaphore-token");

/// The longest accepted token, in bytes.
const LONGEST: usize = 16 * 1024;

/// The header in which a browser states where a request comes from.
const FETCHED_FROM: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Who decides what a client may see.
pub(super) enum Guard {
    /// The API server.
    Asks(Box<Reviews>),
    /// No check: everybody who can reach a loopback address is let in.
    Open,
}

/// An accepted client.
pub(super) enum Pass {
    /// With this token.
    Bearer {
        /// The token.
        token: Token,
        /// Its user.
        user: Arc<User>,
    },
    /// Without a token.
    Anybody,
}

/// Why a client is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// There is no token.
    #[error("a token is needed")]
    NoToken,
    /// The API server does not know it.
    #[error(
        "the API server does not know this token: it has expired, or is for another cluster or audience"
    )]
    Unknown,
    /// The API server gave no usable answer.
    #[error("the API server did not say whether you may see this page: {0}")]
    Unable(String),
    /// The request is for another site, or from one.
    #[error("{0}")]
    Foreign(&'static str),
    /// Too many pages are open.
    #[error("{0}")]
    Full(String),
}

/// A bearer token. It is never printed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Token(Arc<str>);

impl Guard {
    /// Accepts a client, or returns why not.
    pub(super) async fn admit(&self, headers: &HeaderMap) -> Result<Pass, Refusal> {
        comes_from_here(headers)?;
        match self {
            Self::Open => is_for_loopback(headers).map(|()| Pass::Anybody),
            Self::Asks(reviews) => {
                let token = Token::read(headers).ok_or(Refusal::NoToken)?;
                let user = reviews.user(&token).await?;
                Ok(Pass::Bearer { token, user })
            }
        }
    }

    /// Whether an accepted client may see a namespace; `None`: all of them.
    pub(super) async fn shows(
        &self,
        pass: &Pass,
        namespace: Option<&Arc<str>>,
    ) -> Result<bool, Refusal> {
        match (self, pass) {
            (Self::Asks(reviews), Pass::Bearer { user, .. }) => reviews.sees(user, namespace).await,
            (Self::Open, Pass::Anybody) => Ok(true),
            _ => Ok(false),
        }
    }

    /// Checks again whether the client is still accepted.
    pub(super) async fn renew(&self, pass: &mut Pass) -> Result<(), Refusal> {
        if let (Self::Asks(reviews), Pass::Bearer { token, user }) = (self, pass) {
            *user = reviews.user(token).await?;
        }
        Ok(())
    }
}

impl Pass {
    /// The user, if known.
    pub(super) fn user(&self) -> Option<Arc<str>> {
        match self {
            Self::Bearer { user, .. } => Some(user.name.clone()),
            Self::Anybody => None,
        }
    }
}

impl Token {
    /// The token of a request. The page's header takes precedence, because a proxy may add a token of its own.
    fn read(headers: &HeaderMap) -> Option<Self> {
        let of_page = headers.get(TOKEN).and_then(|value| value.to_str().ok());
        let bearer = || {
            let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token)
        };
        let token = of_page.or_else(bearer)?.trim();
        let fits = (1..=LONGEST).contains(&token.len());
        fits.then(|| Self(token.into()))
    }

    /// Its text, only for the API server.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    #[cfg(test)]
    pub(super) fn of(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Another site's page can make a browser send any request, though it can't read the answer: such requests are
/// refused. Clients other than browsers don't set this header.
fn comes_from_here(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get(FETCHED_FROM).map(http::HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(Refusal::Foreign(
            "this request was sent by a page of another site",
        )),
    }
}

/// A site can let its own name resolve to this machine (DNS rebinding), and read what a browser receives under that
/// name.
fn is_for_loopback(headers: &HeaderMap) -> Result<(), Refusal> {
    let host = headers
        .get(header::HOST)
        .and_then(|value| value.to_str().ok());
    let authority: Option<http::uri::Authority> = host.and_then(|host| host.parse().ok());
    match authority.as_ref().map(http::uri::Authority::host) {
        Some("localhost" | "127.0.0.1" | "[::1]") => Ok(()),
        _ => Err(Refusal::Foreign(
            "without a login this page is served only at http://localhost, http://127.0.0.1 and http://[::1]",
        )),
    }
}

impl Refusal {
    pub(super) fn unable(why: &str) -> Self {
        Self::Unable(why.to_owned())
    }

    /// There was no answer in time.
    pub(super) fn silent() -> Self {
        Self::unable("it does not answer in time")
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NoToken | Self::Unknown => StatusCode::UNAUTHORIZED,
            Self::Foreign(_) => StatusCode::FORBIDDEN,
            Self::Unable(_) | Self::Full(_) => StatusCode::SERVICE_UNAVAILABLE,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::reviews::tests::reviews_by;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    fn token(pairs: &[(&'static str, &str)]) -> Option<String> {
        Token::read(&headers(pairs)).map(|token| token.text().to_owned())
    }

    #[test]
    fn a_token_comes_in_one_of_two_headers() {
        let own = ("x-consul-semaphore-token", "typed");
        let bearer = ("authorization", "bearer by-a-proxy");
        assert_eq!(token(&[own, bearer]).unwrap(), "typed");
        assert_eq!(token(&[bearer]).unwrap(), "by-a-proxy");
        for none in ["", "Basic eDp5", "Bearer", "Bearer ", "Bearer  "] {
            assert_eq!(token(&[("authorization", none)]), None, "{none:?}");
        }
        assert_eq!(token(&[]), None);
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(token(&[("x-consul-semaphore-token", &long)]), None);
    }

    #[test]
    fn a_token_is_never_printed() {
        assert_eq!(format!("{:?}", Token::of("secret")), "Token");
    }

    #[test]
    fn without_a_login_only_loopback_is_answered() {
        let answered = |host| is_for_loopback(&headers(&[("host", host)])).is_ok();
        for host in ["localhost", "localhost:8081", "127.0.0.1:1", "[::1]:8081"] {
            assert!(answered(host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1:8081",
            "a@b",
            "",
        ] {
            assert!(!answered(host), "{host}");
        }
        assert!(is_for_loopback(&HeaderMap::new()).is_err());
    }

    #[test]
    fn other_sites_are_not_answered() {
        let answered = |site| comes_from_here(&headers(&[("sec-fetch-site", site)])).is_ok();
        assert!(answered("same-origin") && answered("none"));
        assert!(!answered("cross-site") && !answered("same-site"));
        assert!(comes_from_here(&HeaderMap::new()).is_ok(), "no browser");
    }

    #[tokio::test]
    async fn without_a_token_nobody_is_let_in() {
        let guard = Guard::Asks(Box::new(reviews_by("http://127.0.0.1:1")));
        let refusal = guard.admit(&HeaderMap::new()).await.err().unwrap();
        assert!(matches!(refusal, Refusal::NoToken));
        let response = refusal.into_response();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
    }
}
