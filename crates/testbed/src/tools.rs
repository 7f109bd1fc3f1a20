//! The real command line tools, run as a user runs them.
use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{env::Env, folder::Folder, programs};

const PATIENCE: Duration = Duration::from_mins(5);

/// Runs kubectl and returns what it prints; what it complains about is the error.
pub(crate) async fn kubectl<A: AsRef<OsStr>>(
    kubeconfig: &Path,
    args: impl IntoIterator<Item = A>,
) -> Result<String> {
    let mut command = kubectl_command(kubeconfig)?;
    command.args(args);
    run(command).await
}

/// A kubectl to be given its arguments.
pub(crate) fn kubectl_command(kubeconfig: &Path) -> Result<Command> {
    let mut command = command(&programs::server("kubectl")?);
    command.env("KUBECONFIG", kubeconfig);
    // By default it keeps what it learns about servers in the home or, without one, where it stands.
    command.env("KUBECACHEDIR", kubeconfig.with_file_name("cache"));
    Ok(command)
}

/// Runs helm and returns what it prints; what it complains about is the error.
pub(crate) async fn helm<A: AsRef<OsStr>>(
    kubeconfig: &Path,
    args: impl IntoIterator<Item = A>,
) -> Result<String> {
    let mut command = command(&programs::server("helm")?);
    command.env("KUBECONFIG", kubeconfig);
    helm_home(&mut command, kubeconfig);
    command.args(args);
    run(command).await
}

/// Beside the kubeconfig. By default helm keeps what it learns in the home.
fn helm_home(command: &mut Command, kubeconfig: &Path) {
    for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(name, kubeconfig.with_file_name("helm"));
    }
}

/// Runs a script of kubectl, helm and consul, as a user would type it, up to the first command that fails.
pub(crate) async fn shell(kubeconfig: &Path, script: &str) -> Result<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(programs::servers()).chain(std::env::split_paths(&path));
    let mut command = command(Path::new("bash"));
    command.env("PATH", std::env::join_paths(path)?);
    command.env("KUBECONFIG", kubeconfig);
    command.env("KUBECACHEDIR", kubeconfig.with_file_name("cache"));
    helm_home(&mut command, kubeconfig);
    command.args(["-euo", "pipefail", "-c", script]);
    run(command).await
}

/// Runs helm where it needs no cluster, such as `helm template`.
pub async fn helm_alone<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Result<String> {
    // It keeps things even so.
    let folder = Folder::new()?;
    helm(&folder.path().join("kubeconfig"), args).await
}

/// Runs kubectl where it needs no cluster, such as `kubectl kustomize`.
pub async fn kubectl_alone<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Result<String> {
    kubectl(Path::new("/dev/null/kubeconfig"), args).await
}

/// Runs the consul tool, with the `CONSUL_*` variables given.
pub(crate) async fn consul<A: AsRef<OsStr>>(
    env: &Env,
    args: impl IntoIterator<Item = A>,
) -> Result<String> {
    let mut command = command(&programs::consul()?);
    command.envs(env.iter()).args(args);
    run(command).await
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        // What a kubeconfig with a login program needs.
        .envs(
            ["PATH", "HOME"]
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        // So that files are named as in the workspace.
        .current_dir(programs::workspace())
        .stdin(Stdio::null());
    command
}

async fn run(command: Command) -> Result<String> {
    let shown = shown(&command);
    let mut command = tokio::process::Command::from(command);
    let output = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output())
        .await
        .with_context(|| format!("{shown} takes too long"))??;
    if !output.status.success() {
        bail!(
            "{shown}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The command as a user types it. Its environment is left out: there may be a token in it.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name();
    let words = program.into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}
