//! Authenticates and authorizes the users of the page.

use std::sync::Arc;

use axum::{
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::auth::{self, Reviews, Right, Token, TokenUser};

/// The header with the page's token. Unlike `Authorization`, it passes through the API server's own proxy, and no
/// form or image of another site can make a browser send it.
const TOKEN: HeaderName = HeaderName::from_static("x-consul-semaphore-token");

/// The header in which a browser states where a request comes from.
const FETCHED_FROM: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The authority that decides what a client may see.
pub(super) enum Guard {
    /// The API server decides.
    Asks(Box<Reviews>),
    /// Nobody checks: everybody who can reach a loopback address is let in.
    Open,
}

/// An accepted client.
pub(super) enum Pass {
    /// The client has shown this token.
    Bearer {
        /// Token of the client.
        token: Token,
        /// Address of the client that shows the token.
        address: Arc<str>,
        /// User of the token.
        user: Arc<TokenUser>,
    },
    /// The client has no token, and needs none.
    Anybody,
}

/// The reason why a client is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum PageRefusal {
    /// The client is not known, or can't be authenticated now.
    #[error(transparent)]
    Auth(#[from] auth::Refusal),
    /// The request is for another site, or comes from another site.
    #[error("{0}")]
    Foreign(&'static str),
    /// Too many pages are open.
    #[error("{0}")]
    Full(String),
}

impl Guard {
    /// Accepts a client at this address, or returns why not.
    pub(super) async fn admit(
        &self,
        headers: &HeaderMap,
        address: &Arc<str>,
    ) -> Result<Pass, PageRefusal> {
        comes_from_here(headers)?;
        match self {
            Self::Open => is_for_loopback(headers).map(|()| Pass::Anybody),
            Self::Asks(reviews) => {
                let token = token(headers).ok_or(auth::Refusal::NoToken)?;
                let user = reviews.user(&token, address).await?;
                Ok(Pass::Bearer {
                    token,
                    address: address.clone(),
                    user,
                })
            }
        }
    }

    /// Returns whether an accepted client may see a namespace, or, with `None`, all namespaces.
    pub(super) async fn shows(
        &self,
        pass: &Pass,
        namespace: Option<&Arc<str>>,
    ) -> Result<bool, PageRefusal> {
        match (self, pass) {
            (Self::Asks(reviews), Pass::Bearer { user, .. }) => {
                let right = Right::SeeSemaphores(namespace.cloned());
                Ok(reviews.has(user, &right).await?)
            }
            (Self::Open, Pass::Anybody) => Ok(true),
            _ => Ok(false),
        }
    }

    /// Checks again whether the client is still accepted.
    pub(super) async fn renew(&self, pass: &mut Pass) -> Result<(), PageRefusal> {
        if let (
            Self::Asks(reviews),
            Pass::Bearer {
                token,
                address,
                user,
            },
        ) = (self, pass)
        {
            *user = reviews.user(token, address).await?;
        }
        Ok(())
    }
}

impl Pass {
    /// Returns the name of the user, if known.
    pub(super) fn user(&self) -> Option<Arc<str>> {
        match self {
            Self::Bearer { user, .. } => Some(user.name.clone()),
            Self::Anybody => None,
        }
    }
}

/// Returns the token of a request. The page's own header takes precedence, because a proxy may add a token of its
/// own.
fn token(headers: &HeaderMap) -> Option<Token> {
    let of_page = headers.get(TOKEN).and_then(|value| value.to_str().ok());
    of_page.map_or_else(|| Token::bearer(headers), Token::parse)
}

/// Refuses requests that come from another site. Its page can make a browser send any request, though it can't read
/// the answer. Clients other than browsers don't set this header.
fn comes_from_here(headers: &HeaderMap) -> Result<(), PageRefusal> {
    match headers.get(FETCHED_FROM).map(http::HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(PageRefusal::Foreign(
            "this request was sent by a page of another site",
        )),
    }
}

/// Refuses requests for a name that is not a loopback name. A site can let its own name resolve to this machine (DNS
/// rebinding), and read what a browser receives under that name.
fn is_for_loopback(headers: &HeaderMap) -> Result<(), PageRefusal> {
    let host = headers
        .get(header::HOST)
        .and_then(|value| value.to_str().ok());
    let authority: Option<http::uri::Authority> = host.and_then(|host| host.parse().ok());
    match authority.as_ref().map(http::uri::Authority::host) {
        Some("localhost" | "127.0.0.1" | "[::1]") => Ok(()),
        _ => Err(PageRefusal::Foreign(
            "without a login this page is served only at http://localhost, http://127.0.0.1 and http://[::1]",
        )),
    }
}

impl IntoResponse for PageRefusal {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Auth(refusal) => return refusal.into_response(),
            Self::Foreign(_) => StatusCode::FORBIDDEN,
            Self::Full(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, format!("{self}\n")).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::reviews_by;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn a_token_comes_in_one_of_two_headers() {
        let own = ("x-consul-semaphore-token", "typed");
        let bearer = ("authorization", "bearer by-a-proxy");
        assert_eq!(token(&headers(&[own, bearer])), Token::parse("typed"));
        assert_eq!(token(&headers(&[bearer])), Token::parse("by-a-proxy"));
        assert_eq!(token(&headers(&[])), None);
        let empty = ("x-consul-semaphore-token", "");
        assert_eq!(token(&headers(&[empty, bearer])), None);
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
        let refusal = guard
            .admit(&HeaderMap::new(), &"".into())
            .await
            .err()
            .unwrap();
        assert!(matches!(refusal, PageRefusal::Auth(auth::Refusal::NoToken)));
        let response = refusal.into_response();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
    }
}
