//! The users of the plugin, and the output of their commands.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Stdio,
    sync::OnceLock,
};

use serde_json::Value;
use testbed::{Bed, Namespace, PATIENCE, server, server_folders};
use tokio::{io::AsyncWriteExt as _, process::Command, time::timeout};

/// A user of the plugin, in a namespace.
pub(crate) struct User {
    kubeconfig: PathBuf,
    namespace: String,
    /// Environment variables in addition to those of every user.
    environment: Vec<(&'static str, String)>,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl User {
    /// The administrator of the cluster.
    pub(crate) fn admin(bed: &Bed, namespace: &Namespace) -> Self {
        Self::with(bed.kubeconfig(), namespace)
    }

    pub(crate) fn with(kubeconfig: &Path, namespace: &Namespace) -> Self {
        Self {
            kubeconfig: kubeconfig.to_owned(),
            namespace: namespace.name().to_owned(),
            environment: Vec::new(),
        }
    }

    /// The same user with an environment variable.
    pub(crate) fn set(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Runs `kubectl csem` in the namespace, with these arguments.
    pub(crate) async fn csem(&self, words: &[&str]) -> Said {
        self.csem_told(words, "").await
    }

    /// The same with text on stdin.
    pub(crate) async fn csem_told(&self, words: &[&str], input: &str) -> Said {
        let namespace = ["-n", self.namespace.as_str()];
        self.csem_anywhere(&[words, &namespace].concat(), input)
            .await
    }

    /// The same without a namespace.
    pub(crate) async fn csem_anywhere(&self, words: &[&str], input: &str) -> Said {
        let words = [&["csem"], words].concat();
        run(
            self.command(server("kubectl").expect("kubectl"), &words),
            input,
        )
        .await
    }

    /// A command of this user, without any added arguments.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(words)
            .env_clear()
            .env("PATH", path())
            .env("HOME", installed())
            .env("KUBECACHEDIR", self.kubeconfig.with_file_name("cache"))
            .env("KUBECONFIG", &self.kubeconfig)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .kill_on_drop(true);
        command
    }

    /// The output of `kubectl csem`, which must succeed.
    #[track_caller]
    pub(crate) fn sees(&self, words: &[&str]) -> impl Future<Output = String> {
        let line = std::panic::Location::caller();
        async move {
            let said = self.csem(words).await;
            assert_eq!(said.code, Some(0), "{line}: {said}");
            said.out
        }
    }

    /// The output of `kubectl csem -o json`, parsed.
    pub(crate) async fn reads(&self, words: &[&str]) -> Value {
        let words = [words, &["-o", "json"]].concat();
        serde_json::from_str(&self.sees(&words).await).expect("JSON")
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, out, err } = self;
        write!(f, "exit code {code:?}\n{out}\n{err}")
    }
}

impl Said {
    /// Checks the exit code, and that the output contains all of these words.
    #[track_caller]
    pub(crate) fn is(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self}");
        for word in words {
            let there = self.out.contains(word) || self.err.contains(word);
            assert!(there, "{word:?} is not in: {self}");
        }
    }
}

pub(crate) async fn run(mut command: Command, input: &str) -> Said {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A command that reads no input may have ended already.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = timeout(PATIENCE, child.wait_with_output()).await;
    let output = output.expect("the command ends").expect("its output");
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// Where the plugin is installed, as docs/plugin.md says: one program under two names.
pub(crate) fn installed() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugin");
        fs::create_dir_all(&folder).expect("a folder");
        for name in ["kubectl-csem", "kubectl_complete-csem"] {
            let link = folder.join(name);
            // A link of an earlier run may point to an old build.
            let _none = fs::remove_file(&link);
            symlink(env!("CARGO_BIN_EXE_kubectl-csem"), &link).expect("a link");
        }
        folder
    })
}

/// The PATH, with the plugin and kubectl first.
pub(crate) fn path() -> OsString {
    let first = std::iter::once(installed().to_owned()).chain(server_folders());
    let rest = env::var_os("PATH").unwrap_or_default();
    env::join_paths(first.chain(env::split_paths(&rest))).expect("a path")
}
