//! The ACL token: fixed, in a file that is read again when it changes, set by its owner, or given for
//! a login.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use reqwest::header::HeaderValue;
use tokio::{
    sync::{Mutex, Notify},
    time::{Instant, timeout},
};

use super::{
    Config, ConfigError, Error, Secret,
    config::{HTTP_TOKEN, HTTP_TOKEN_FILE},
    login::Login,
};

/// How often a file is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a look at a file may take: it may be on a disk that does not answer.
pub(super) const LOOK: Duration = Duration::from_secs(2);

/// A token in the form that goes over the wire.
#[derive(Clone)]
pub(super) struct Token {
    secret: Secret,
    header: HeaderValue,
}

impl Token {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidToken> {
        let mut header = HeaderValue::from_str(text).map_err(|_| InvalidToken)?;
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

/// The text can't be sent as a token. It is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("holds characters that no token has")]
pub struct InvalidToken;

/// A token that its owner sets, and may exchange at any time. Clones are the same one.
#[derive(Clone, Default)]
pub struct TokenCell(Arc<Cell>);

#[derive(Default)]
struct Cell {
    token: RwLock<Option<Token>>,
    denied: Notify,
}

impl TokenCell {
    /// Has calls bring this token from now on; says whether it is another one than before.
    pub fn set(&self, token: &Secret) -> Result<bool, InvalidToken> {
        let token = Token::parse(token.expose())?;
        let mut current = self.0.token.write().unwrap_or_else(PoisonError::into_inner);
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

    /// Waits until Consul has denied something to the token since this was last asked.
    pub async fn denied(&self) {
        self.0.denied.notified().await;
    }

    fn get(&self) -> Option<Token> {
        let token = self.0.token.read().unwrap_or_else(PoisonError::into_inner);
        token.clone()
    }
}

impl fmt::Debug for TokenCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCell").finish_non_exhaustive()
    }
}

/// Where the token comes from.
pub(super) enum TokenSource {
    None,
    Fixed(Token),
    File {
        path: PathBuf,
        last: Mutex<Read>,
        /// It was denied since the file was last looked at.
        doubted: AtomicBool,
    },
    Cell(TokenCell),
    Login(Login),
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
                doubted: AtomicBool::new(false),
            });
        }
        let Some(token) = &config.token else {
            return Ok(Self::None);
        };
        let token = Token::parse(token.expose())
            .map_err(|problem| ConfigError::new(HTTP_TOKEN, problem.to_string()))?;
        Ok(Self::Fixed(token))
    }

    /// The token of this moment; `None` where calls are to be made without one.
    /// [`Error::NoToken`] or [`Error::LoginFailed`] where they are not.
    pub(super) async fn current(&self) -> Result<Option<Token>, Error> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(token) => Ok(Some(token.clone())),
            Self::File {
                path,
                last,
                doubted,
            } => {
                let mut last = last.lock().await;
                let old = last.looked.is_none_or(|at| at.elapsed() >= INTERVAL);
                if doubted.swap(false, Ordering::Relaxed) || old {
                    last.look_again(path).await;
                }
                Ok(last.token.clone())
            }
            Self::Cell(cell) => cell.get().map(Some).ok_or(Error::NoToken),
            Self::Login(login) => login.token().await.map(Some),
        }
    }

    /// The token was denied: looks at the file before the next call, or tells its owner.
    pub(super) fn doubt(&self) {
        match self {
            Self::File { doubted, .. } => doubted.store(true, Ordering::Relaxed),
            Self::Cell(cell) => cell.0.denied.notify_one(),
            // A login that lacks a rule is as good as the next one would be.
            Self::None | Self::Fixed(_) | Self::Login(_) => {}
        }
    }

    /// Consul does not know the token. Waits until something was done about it, which its caller
    /// bounds; whether it makes sense to ask once more.
    pub(super) async fn look_into(&self) -> bool {
        match self {
            Self::Login(login) => login.look_into().await,
            Self::None | Self::Fixed(_) | Self::File { .. } | Self::Cell(_) => false,
        }
    }
}

impl Read {
    /// Keeps the token that it has while there is no better one: a file that is being exchanged is
    /// missing or half written for a moment.
    async fn look_again(&mut self, path: &Path) {
        self.looked = Some(Instant::now());
        let problem = match timeout(LOOK, self.read(path)).await {
            Ok(Ok(())) => return,
            Ok(Err(problem)) => problem,
            Err(_) => "cannot be read in time".to_owned(),
        };
        tracing::warn!(file = %path.display(), problem, "the token file is of no use; the token before is kept");
    }

    async fn read(&mut self, path: &Path) -> Result<(), String> {
        let stamp = match tokio::fs::metadata(path).await {
            Ok(metadata) => metadata.modified().ok().map(|at| (at, metadata.len())),
            Err(_) => None,
        };
        if stamp.is_some() && stamp == self.stamp {
            return Ok(());
        }
        let text = tokio::fs::read_to_string(path).await;
        let text = text.map_err(|error| format!("cannot be read: {error}"))?;
        self.token = parse(&text)?;
        self.stamp = stamp;
        Ok(())
    }
}

fn parse(text: &str) -> Result<Option<Token>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let token = Token::parse(text).map_err(|problem| problem.to_string())?;
    Ok(Some(token))
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
