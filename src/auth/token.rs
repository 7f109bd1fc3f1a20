//! Reads the token of a request.

use std::{fmt, sync::Arc};

use axum::http::{HeaderMap, header};

/// The longest accepted token, in bytes.
const LONGEST_TOKEN: usize = 16 * 1024;

/// A bearer token. It is never printed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Token(Arc<str>);

impl Token {
    /// Returns the token in the header `Authorization`.
    pub(crate) fn bearer(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = value.split_once(' ')?;
        let bearer = scheme.eq_ignore_ascii_case("bearer");
        bearer.then(|| Self::parse(token)).flatten()
    }

    /// Returns a token, unless the text is empty or too long.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let fits = (1..=LONGEST_TOKEN).contains(&text.len());
        fits.then(|| Self(text.into()))
    }

    /// Returns the text of the token, only for the API server.
    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(value: &str) -> Option<Token> {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        Token::bearer(&headers)
    }

    #[test]
    fn a_token_follows_its_scheme() {
        let token = Token::parse("secret");
        assert_eq!(bearer("Bearer secret"), token);
        assert_eq!(bearer("bearer  secret "), token);
        for none in ["", "Basic eDp5", "Bearer", "Bearer ", "Bearer  "] {
            assert_eq!(bearer(none), None, "{none:?}");
        }
        assert_eq!(Token::bearer(&HeaderMap::new()), None);
    }

    #[test]
    fn a_token_has_a_bounded_length() {
        assert!(Token::parse(&"x".repeat(LONGEST_TOKEN)).is_some());
        assert_eq!(Token::parse(&"x".repeat(LONGEST_TOKEN + 1)), None);
    }

    #[test]
    fn a_token_is_never_printed() {
        assert_eq!(format!("{:?}", Token::parse("secret").unwrap()), "Token");
    }
}
