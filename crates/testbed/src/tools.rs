//! The real command-line tools, run as a user runs them.
use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{env::Env, existing, folder::Folder, programs};

const PATIENCE: Duration = Duration::from_mins(5);

/// Runs kubectl and returns its output. The error is what it prints to stderr.
pub(crate) async fn kubectl<A: AsRef<OsStr>>(
    kubeconfig: &Path,
    args: impl IntoIterator<Item = A>,
) -> Result<String> {
    let mut command = kubectl_command(kubeconfig)?;
    command.args(args);
    run(command).await
}

/// A kubectl command without arguments.
pub(crate) fn kubectl_command(kubeconfig: &Path) -> Result<Command> {
    if existing::asked_for()? {
        // The one on PATH fits that cluster, and has its cache already.
        let mut command = command(Path::new("kubectl"));
        command.env("KUBECONFIG", kubeconfig);
        return Ok(command);
    }
    let mut command = command(&programs::server("kubectl")?);
    command.env("KUBECONFIG", kubeconfig);
    // By default it caches server data in the home directory, or without one in the current directory.
    command.env("KUBECACHEDIR", kubeconfig.with_file_name("cache"));
    Ok(command)
}

/// Runs helm and returns its output. The error is what it prints to stderr.
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

/// Keeps helm's files beside the kubeconfig. By default they are in the home directory.
fn helm_home(command: &mut Command, kubeconfig: &Path) {
    for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(name, kubeconfig.with_file_name("helm"));
    }
}

/// Runs a script of kubectl, helm and consul commands, as a user would type it, up to the first that fails.
pub(crate) async fn shell(kubeconfig: &Path, script: &str) -> Result<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = programs::server_folders()
        .into_iter()
        .chain(std::env::split_paths(&path));
    let mut command = command(Path::new("bash"));
    command.env("PATH", std::env::join_paths(path)?);
    command.env("KUBECONFIG", kubeconfig);
    command.env("KUBECACHEDIR", kubeconfig.with_file_name("cache"));
    helm_home(&mut command, kubeconfig);
    command.args(["-euo", "pipefail", "-c", script]);
    run(command).await
}

/// Runs helm without a cluster, such as `helm template`.
pub async fn helm_alone<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Result<String> {
    // It writes files even then.
    let folder = Folder::new()?;
    helm(&folder.path().join("kubeconfig"), args).await
}

/// Runs kubectl without a cluster, such as `kubectl kustomize`.
pub async fn kubectl_alone<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Result<String> {
    kubectl(Path::new("/dev/null/kubeconfig"), args).await
}

/// Runs the consul tool with these `CONSUL_*` variables.
pub(crate) async fn consul<A: AsRef<OsStr>>(
    env: &Env,
    args: impl IntoIterator<Item = A>,
) -> Result<String> {
    let mut command = command(&programs::server("consul")?);
    command.envs(env.iter()).args(args);
    run(command).await
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        // For kubeconfigs that use a login program.
        .envs(
            ["PATH", "HOME"]
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        // So that paths are relative to the workspace.
        .current_dir(programs::workspace())
        .stdin(Stdio::null());
    command
}

async fn run(command: Command) -> Result<String> {
    let shown = shown(&command);
    let mut command = tokio::process::Command::from(command);
    let output = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output())
        .await
        .with_context(|| format!("{shown} takes too long"))?
        .with_context(|| format!("starting {shown}"))?;
    if !output.status.success() {
        bail!(
            "{shown}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The command as a user types it, without its environment, which may contain a token.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name();
    let words = program.into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}
