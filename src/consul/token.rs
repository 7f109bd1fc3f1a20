//! The ACL token: fixed, or in a file that is read again when it changes.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use reqwest::header::HeaderValue;
use tokio::{sync::Mutex, time::Instant};

use super::{
    Config, ConfigError, Secret,
    config::{HTTP_TOKEN, HTTP_TOKEN_FILE},
};

/// How often a file is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// A token in the form that goes over the wire.
#[derive(Clone)]
pub(super) struct Token {
    secret: Secret,
    header: HeaderValue,
}

impl Token {
    fn parse(text: &str) -> Result<Self, String> {
        let mut header = HeaderValue::from_str(text)
            .map_err(|_| "holds characters that no token has".to_owned())?;
        header.set_sensitive(true);
        let secret = text.into();
        Ok(Self { secret, header })
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    /// The message without the token, should some proxy have repeated it.
    pub(super) fn hide_in(&self, message: &str) -> String {
        message.replace(self.secret.expose(), "<hidden>")
    }
}

/// Where the token comes from.
pub(super) enum TokenSource {
    None,
    Fixed(Token),
    File { path: PathBuf, last: Mutex<Read> },
}

/// What was last read from a file.
pub(super) struct Read {
    /// `None` for an empty file: calls are made without a token, as Consul's tools do.
    token: Option<Token>,
    stamp: Option<Stamp>,
    looked: Option<Instant>,
}

/// What changes when a file is written or, as Kubernetes does with Secrets, exchanged.
type Stamp = (SystemTime, u64);

impl TokenSource {
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        if let Some(path) = &config.token_file {
            let fail = |problem| ConfigError::new(HTTP_TOKEN_FILE, problem);
            let text = std::fs::read_to_string(path)
                .map_err(|e| fail(format!("cannot read {}: {e}", path.display())))?;
            let last = Read {
                token: parse(&text).map_err(fail)?,
                // Looked at once more before the first call, which then knows the stamp.
                stamp: None,
                looked: None,
            };
            return Ok(Self::File {
                path: path.clone(),
                last: Mutex::new(last),
            });
        }
        let Some(token) = &config.token else {
            return Ok(Self::None);
        };
        let token = Token::parse(token.expose())
            .map_err(|problem| ConfigError::new(HTTP_TOKEN, problem))?;
        Ok(Self::Fixed(token))
    }

    /// The token of this moment.
    pub(super) async fn current(&self) -> Option<Token> {
        match self {
            Self::None => None,
            Self::Fixed(token) => Some(token.clone()),
            Self::File { path, last } => {
                let mut last = last.lock().await;
                if last.looked.is_none_or(|at| at.elapsed() >= INTERVAL) {
                    last.look_again(path).await;
                }
                last.token.clone()
            }
        }
    }

    /// The token was denied: looks at the file before the next call.
    pub(super) async fn doubt(&self) {
        if let Self::File { last, .. } = self {
            last.lock().await.looked = None;
        }
    }
}

impl Read {
    /// Keeps the token that it has while there is no better one: a file that is being exchanged is
    /// missing or half written for a moment.
    async fn look_again(&mut self, path: &Path) {
        self.looked = Some(Instant::now());
        let stamp = match tokio::fs::metadata(path).await {
            Ok(metadata) => metadata.modified().ok().map(|at| (at, metadata.len())),
            Err(_) => None,
        };
        if stamp.is_some() && stamp == self.stamp {
            return;
        }
        let text = match tokio::fs::read_to_string(path).await {
            Ok(text) => parse(&text),
            Err(error) => Err(format!("cannot be read: {error}")),
        };
        match text {
            Ok(token) => {
                self.token = token;
                self.stamp = stamp;
            }
            Err(problem) => {
                tracing::warn!(file = %path.display(), problem, "the token file is of no use; the token before is kept");
            }
        }
    }
}

fn parse(text: &str) -> Result<Option<Token>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    Token::parse(text).map(Some)
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
