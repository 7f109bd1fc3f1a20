//! The folder of a bed, with certificates, data and logs. It is removed when the last process in it has ended.
use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, OpenOptions},
    io::Write as _,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
        unix::process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use anyhow::{Context as _, Result, bail};

use crate::wait;

const KEEPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/keeper");

/// The folders of this process that are in use. A panic keeps them.
static IN_USE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A new folder that only this user can read, because it holds an admin's token.
///
/// The keeper, a small script, removes the folder when all holders of its pipe have ended: this process and every
/// [`Process`](crate::Process) in the folder. So the folder is removed however they end, and never under a server
/// that still writes. It is kept when `KEEP_BED` is set, or when a test has failed.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// `None` while this is dropped.
    keeper: Mutex<Option<Child>>,
    in_use: Option<OwnedFd>,
}

impl Folder {
    /// Makes the folder under the system's temporary folder, and starts its keeper.
    pub fn new() -> Result<Self> {
        let path = make_folder()?;
        if std::env::var_os("KEEP_BED").is_some() {
            fs::write(path.join("keep"), "")?;
        }
        let mut keeper = Command::new("bash")
            .args([OsStr::new(KEEPER), path.as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting the keeper of the bed's folder with bash")?;
        let Some(pipe) = keeper.stdin.take() else {
            bail!("the keeper has no pipe")
        };
        keep_on_panic();
        IN_USE.lock().push(path.clone());
        Ok(Self {
            path,
            keeper: Mutex::new(Some(keeper)),
            in_use: Some(pipe.into()),
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that only this user can read.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path.join(name);
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(content.as_ref()))
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// A pipe end that keeps the folder while a process holds it.
    pub(crate) fn held(&self) -> Result<Stdio> {
        let Some(pipe) = &self.in_use else {
            bail!("the folder {} has ended", self.path.display())
        };
        Ok(pipe
            .try_clone()
            .context("sharing the keeper's pipe")?
            .into())
    }

    /// The ids of all processes in it: the keeper, each server and its guard, including those that have ended.
    pub fn ids(&self) -> Vec<u32> {
        let files = fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let servers =
            files.filter(|file| file.extension().is_some_and(|extension| extension == "pid"));
        let keeper = self.keeper.lock().as_ref().map(Child::id);
        servers
            .flat_map(|file| read_ids(&file))
            .chain(keeper)
            .collect()
    }

    /// Waits until everything that used the folder has ended and the folder is removed (unless it is kept).
    pub(crate) async fn end(mut self) -> Result<()> {
        self.in_use = None;
        wait::until(
            "the bed's processes end",
            Duration::from_secs(30),
            || async {
                match self.keeper.lock().as_mut().map(Child::try_wait) {
                    Some(Ok(None)) => Err("some still run".to_owned()),
                    Some(Err(error)) => Err(error.to_string()),
                    Some(Ok(Some(_))) | None => Ok(()),
                }
            },
        )
        .await
    }
}

/// The ids in a guard's file.
pub(crate) fn read_ids(pid_file: &Path) -> Vec<u32> {
    let ids = fs::read_to_string(pid_file).unwrap_or_default();
    ids.split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect()
}

impl Drop for Folder {
    fn drop(&mut self) {
        IN_USE.lock().retain(|path| *path != self.path);
        // Waits only for the exit status, so that no zombie is left.
        let keeper = self.keeper.lock().take();
        std::thread::spawn(move || keeper.map(|mut keeper| keeper.wait()));
    }
}

fn make_folder() -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let parent = std::env::temp_dir();
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("bed-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            // Left behind by an earlier process with this id.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("making {}", path.display())),
        }
    }
}

/// From now on a panic, which is how a test fails, keeps the folders and prints where the logs are.
fn keep_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            earlier(panic);
            for path in IN_USE.lock().iter() {
                let first = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(path.join("keep"))
                    .is_ok();
                if first {
                    #[expect(clippy::print_stderr, reason = "as the panic message itself")]
                    {
                        eprintln!("the servers' logs are kept in {}", path.display());
                    }
                }
            }
        }));
    });
}
