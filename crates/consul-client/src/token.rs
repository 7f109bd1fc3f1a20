//! Provides the ACL token, which is fixed, is read from a file again when the file changes, is set by its owner, or
//! comes from a login.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::RwLock;

use reqwest::header::HeaderValue;
use tokio::sync::Notify;

use super::{
    Config, ConfigError, Error, Secret,
    config::{HTTP_TOKEN, HTTP_TOKEN_FILE},
    files::{Files, Source},
    login::Login,
};

/// A token as it is sent.
#[derive(Clone)]
pub(super) struct Token {
    secret: Secret,
    header: HeaderValue,
}

impl Token {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidToken> {
        if text.len() > LONGEST_TOKEN {
            return Err(InvalidToken::TooLong);
        }
        let mut header = HeaderValue::from_str(text).map_err(|_| InvalidToken::Characters)?;
        header.set_sensitive(true);
        let secret = text.into();
        Ok(Self { secret, header })
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    /// Returns the message without the token, in case a proxy has quoted the token.
    pub(super) fn hide_in(&self, message: &str) -> String {
        message.replace(self.secret.expose(), "<hidden>")
    }
}

/// The longest token, in bytes. Consul's own tokens have 36 characters, and tokens from a login have some thousand.
const LONGEST_TOKEN: usize = 16 << 10;

/// A reason why a text can't be sent as a token. The message does not quote the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToken {
    /// The text has characters that no header can carry.
    #[error("holds characters that no token has")]
    Characters,
    /// The text is longer than any token can be.
    #[error("holds more than {} KiB, which no token has", LONGEST_TOKEN >> 10)]
    TooLong,
}

/// A token that its owner sets and may replace at any time. Clones share the token.
#[derive(Clone, Default)]
pub struct TokenCell(Arc<Cell>);

#[derive(Default)]
struct Cell {
    token: RwLock<Option<Token>>,
    denied: Notify,
}

impl TokenCell {
    /// Uses this token from now on; returns whether it differs from the previous one.
    pub fn set(&self, token: &Secret) -> Result<bool, InvalidToken> {
        let token = Token::parse(token.expose())?;
        let mut current = self.0.token.write();
        let news = current
            .as_ref()
            .is_none_or(|old| old.secret != token.secret);
        *current = Some(token);
        Ok(news)
    }

    /// Whether there is a token.
    pub fn is_set(&self) -> bool {
        self.get().is_some()
    }

    /// Waits until Consul has denied something to the token since the previous call of this method.
    pub async fn denied(&self) {
        self.0.denied.notified().await;
    }

    fn get(&self) -> Option<Token> {
        let token = self.0.token.read();
        token.clone()
    }
}

impl fmt::Debug for TokenCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCell").finish_non_exhaustive()
    }
}

/// Source of the token.
pub(super) enum TokenSource {
    None,
    Fixed(Token),
    File(Files<TokenFile>),
    Cell(TokenCell),
    Login(Login),
}

/// A file that holds a token.
pub(super) struct TokenFile(PathBuf);

impl Source for TokenFile {
    /// Token in the file. `None` stands for no token, as while the file is still as empty as it was at the start;
    /// then calls are made without a token, as by Consul's own tools.
    type Content = Option<Token>;
    const NAME: &'static str = "the Consul token";

    fn files(&self) -> Vec<PathBuf> {
        vec![self.0.clone()]
    }

    fn read(&self) -> Result<Self::Content, ConfigError> {
        let Self(path) = self;
        let fail = |problem| ConfigError::new(HTTP_TOKEN_FILE, problem);
        let text = std::fs::read_to_string(path)
            .map_err(|error| fail(format!("cannot read {}: {error}", path.display())))?;
        let problem = match text.trim() {
            // An empty file may just be in the middle of a write.
            "" => "is empty".to_owned(),
            text => match Token::parse(text) {
                Ok(token) => return Ok(Some(token)),
                Err(problem) => problem.to_string(),
            },
        };
        Err(fail(format!("{} {problem}", path.display())))
    }
}

impl TokenSource {
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let fixed = config.token.as_ref().map(|token| {
            let refuse = |problem: InvalidToken| ConfigError::new(HTTP_TOKEN, problem.to_string());
            Token::parse(token.expose()).map_err(refuse)
        });
        let Some(path) = &config.token_file else {
            return Ok(fixed.transpose()?.map_or(Self::None, Self::Fixed));
        };
        let file = TokenFile(path.clone());
        let may_come =
            config.token_file_may_come && !path.exists() && path.parent().is_some_and(Path::is_dir);
        if may_come {
            tracing::info!(
                file = %path.display(),
                "the token file does not exist yet: it is used as soon as it exists"
            );
            return Ok(Self::File(Files::expected(file, fixed.transpose()?)));
        }
        let text = std::fs::read_to_string(path);
        if text.is_ok_and(|text| text.trim().is_empty()) {
            return Ok(Self::File(Files::expected(file, None)));
        }
        Files::read(file).map(Self::File)
    }

    /// Returns the current token; `None` if calls are made without a token, and [`Error::NoToken`] or
    /// [`Error::LoginFailed`] if calls need a token and there is none.
    pub(super) async fn current(&self) -> Result<Option<Token>, Error> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(token) => Ok(Some(token.clone())),
            Self::File(file) => Ok(file.current().await),
            Self::Cell(cell) => cell.get().map(Some).ok_or(Error::NoToken),
            Self::Login(login) => login.token().await.map(Some),
        }
    }

    /// Records that the token was denied: the file is checked before the next call, or the owner of the token is
    /// notified.
    pub(super) fn invalidate(&self) {
        match self {
            Self::File(file) => file.invalidate(),
            Self::Cell(cell) => cell.0.denied.notify_one(),
            // The token of another login would lack the same rule.
            Self::None | Self::Fixed(_) | Self::Login(_) => {}
        }
    }

    /// Reports that Consul does not know the token. Waits for another token, for as long as the caller allows.
    /// Returns whether to retry the call.
    pub(super) async fn recheck(&self) -> bool {
        match self {
            Self::Login(login) => login.recheck().await,
            Self::None | Self::Fixed(_) | Self::File(_) | Self::Cell(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_no_header_carries_is_refused_and_not_repeated() {
        let config = Config {
            token: Some("s3cr3t\n".into()),
            ..Config::default()
        };
        let Err(error) = TokenSource::new(&config) else {
            panic!("taken");
        };
        assert_eq!(error.variable, "CONSUL_HTTP_TOKEN");
        assert!(!error.to_string().contains("s3cr3t"));
    }

    #[test]
    fn a_token_is_not_longer_than_any_token_is() {
        let parse = |length| Token::parse(&"x".repeat(length)).err();
        assert_eq!(parse(LONGEST_TOKEN), None);
        assert_eq!(parse(LONGEST_TOKEN + 1), Some(InvalidToken::TooLong));
        let message = InvalidToken::TooLong.to_string();
        assert_eq!(message, "holds more than 16 KiB, which no token has");
    }

    #[test]
    fn a_missing_file_is_named() {
        let config = Config {
            token_file: Some("/does/not/exist".into()),
            ..Config::default()
        };
        let Err(error) = TokenSource::new(&config) else {
            panic!("taken");
        };
        assert_eq!(error.variable, "CONSUL_HTTP_TOKEN_FILE");
        assert!(error.problem.contains("/does/not/exist"));
    }

    #[test]
    fn a_token_is_hidden_in_messages() {
        let token = Token::parse("abc").unwrap();
        assert_eq!(token.hide_in("token abc is bad"), "token <hidden> is bad");
        assert!(!format!("{:?}", token.header()).contains("abc"));
    }
}
