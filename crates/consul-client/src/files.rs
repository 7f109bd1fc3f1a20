//! Reads files again when they change: a token, certificates.
//!
//! The last valid content is kept until something valid replaces it: a file that is being replaced is missing or half
//! written for a moment, and a certificate may arrive before its key.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::{
    sync::Mutex,
    task::{JoinHandle, spawn_blocking},
    time::{Instant, timeout},
};

use super::ConfigError;

/// Interval between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time that a check may take. The time is limited because the disk may hang.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// The files to read, and the content to read from them. The methods may block.
pub trait Source: Send + Sync + 'static {
    /// Content that is read from the files.
    type Content: Clone + Send + 'static;
    /// Name of the files, for the log.
    const NAME: &'static str;
    /// Returns the paths of the files.
    fn files(&self) -> Vec<PathBuf>;
    /// Reads the files, and makes sure that their content is usable.
    fn read(&self) -> Result<Self::Content, ConfigError>;
}

/// The content that was last read from files.
pub struct Files<S: Source> {
    source: Arc<S>,
    last: Mutex<Last<S::Content>>,
    /// Whether the content was found to be unusable since the last check.
    invalidated: AtomicBool,
}

struct Last<C> {
    content: C,
    stamps: Vec<Stamp>,
    checked_at: Instant,
    /// Check that is running, even if the call that began it was given up.
    check: Option<JoinHandle<Check<C>>>,
    /// Problem of the files at the last check.
    problem: Option<String>,
}

/// The values that change when a file is written or, as Kubernetes does with Secrets, replaced.
type Stamp = (PathBuf, Option<(SystemTime, u64)>);

/// The current stamps of the files, and their content; `None` if the files are unchanged.
type Check<C> = Option<(Vec<Stamp>, Result<C, ConfigError>)>;

impl<S: Source> Files<S> {
    /// Reads the files for the first time.
    pub fn read(source: S) -> Result<Self, ConfigError> {
        // The stamps are taken before the content, so that anything written in between is read again.
        let stamps = stamps(&source.files());
        let content = source.read()?;
        Ok(Self::new(source, content, stamps))
    }

    /// Makes a reader of files that do not exist yet, with the content to use until they do.
    pub(super) fn expected(source: S, until_then: S::Content) -> Self {
        let files = source.files().into_iter();
        let missing = files.map(|file| (file, None)).collect();
        Self::new(source, until_then, missing)
    }

    fn new(source: S, content: S::Content, stamps: Vec<Stamp>) -> Self {
        let last = Last {
            content,
            stamps,
            checked_at: Instant::now(),
            check: None,
            problem: None,
        };
        Self {
            source: Arc::new(source),
            last: Mutex::new(last),
            invalidated: AtomicBool::new(false),
        }
    }

    /// Returns the content. The files are checked once a second.
    pub async fn current(&self) -> S::Content {
        let mut last = self.last.lock().await;
        let invalidated = self.invalidated.swap(false, Ordering::Relaxed);
        // Without files there is nothing to check.
        if !last.stamps.is_empty() && (invalidated || last.checked_at.elapsed() >= CHECK_INTERVAL) {
            last.check_again(&self.source).await;
        }
        last.content.clone()
    }

    /// Records that the content is unusable, so the files are checked before the content is used again.
    pub(super) fn invalidate(&self) {
        self.invalidated.store(true, Ordering::Relaxed);
    }
}

impl<C: Clone + Send + 'static> Last<C> {
    async fn check_again<S: Source<Content = C>>(&mut self, source: &Arc<S>) {
        self.checked_at = Instant::now();
        // A check that is still running has had its time.
        let patience = self
            .check
            .as_ref()
            .map_or(CHECK_TIMEOUT, |_| Duration::ZERO);
        let check = self.check.get_or_insert_with(|| {
            let (source, before) = (source.clone(), self.stamps.clone());
            spawn_blocking(move || {
                let stamps = stamps(&source.files());
                (stamps != before).then(|| (stamps, source.read()))
            })
        });
        let problem = match timeout(patience, check).await {
            Err(_) => Some("cannot be read in time".to_owned()),
            Ok(done) => {
                self.check = None;
                match done {
                    Ok(None) => None,
                    Ok(Some((stamps, Ok(content)))) => {
                        (self.content, self.stamps) = (content, stamps);
                        tracing::info!(
                            what = S::NAME,
                            "read again, because the files have changed"
                        );
                        None
                    }
                    Ok(Some((_, Err(error)))) => Some(error.to_string()),
                    Err(error) => Some(error.to_string()),
                }
            }
        };
        if problem.is_some() && problem != self.problem {
            tracing::warn!(
                what = S::NAME,
                problem,
                "the files can't be used; their earlier content stays in use"
            );
        }
        self.problem = problem;
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &Path| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    let stamps = files.iter().map(|file| (file.clone(), stamp(file)));
    stamps.collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        sync::{atomic::AtomicUsize, mpsc},
    };

    use super::*;

    struct Words(PathBuf);

    impl Source for Words {
        type Content = String;
        const NAME: &'static str = "words";

        fn files(&self) -> Vec<PathBuf> {
            vec![self.0.clone()]
        }

        fn read(&self) -> Result<String, ConfigError> {
            let fail = |problem: String| ConfigError::new("WORDS", problem);
            let text = fs::read_to_string(&self.0).map_err(|error| fail(error.to_string()))?;
            let whole = text.strip_suffix('.').map(str::to_owned);
            whole.ok_or_else(|| fail("half a sentence".to_owned()))
        }
    }

    #[tokio::test]
    async fn what_is_missing_or_half_written_changes_nothing_and_what_is_whole_does() {
        let file = std::env::temp_dir().join(format!("files-{:x}", fastrand::u64(..)));
        fs::write(&file, "one.").unwrap();
        let words = Files::read(Words(file.clone())).unwrap();
        let now = async || {
            words.invalidate();
            words.current().await
        };
        assert_eq!(now().await, "one");
        fs::remove_file(&file).unwrap();
        assert_eq!(now().await, "one");
        fs::write(&file, "half of tw").unwrap();
        assert_eq!(now().await, "one");
        fs::write(&file, "two, whole.").unwrap();
        assert_eq!(now().await, "two, whole");
        fs::remove_file(&file).unwrap();
    }

    /// A source with files on a disk that hangs after the first read.
    struct Hangs {
        looks: Arc<AtomicUsize>,
        disk: parking_lot::Mutex<mpsc::Receiver<()>>,
    }

    impl Source for Hangs {
        type Content = ();
        const NAME: &'static str = "nothing";

        fn files(&self) -> Vec<PathBuf> {
            if self.looks.fetch_add(1, Ordering::Relaxed) > 0 {
                let _ = self.disk.lock().recv();
            }
            vec!["/does/not/exist".into()]
        }

        fn read(&self) -> Result<(), ConfigError> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_look_that_does_not_end_is_the_only_one() {
        let (disk, hangs) = mpsc::channel();
        let looks = Arc::<AtomicUsize>::default();
        let source = Hangs {
            looks: looks.clone(),
            disk: hangs.into(),
        };
        let files = Files::read(source).unwrap();
        for _ in 0..3 {
            files.invalidate();
            files.current().await;
        }
        assert_eq!(
            looks.load(Ordering::Relaxed),
            2,
            "at the start and one more"
        );
        drop(disk);
    }
}
