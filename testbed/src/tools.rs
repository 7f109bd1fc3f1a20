//! The real command line tools, as a user runs them.
use std::{ffi::OsStr, path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

use crate::{env::Env, programs};

const PATIENCE: Duration = Duration::from_mins(2);

/// Runs kubectl and returns what it prints; what it complains about is the error.
pub(crate) async fn kubectl<A: AsRef<OsStr>>(
    kubeconfig: &Path,
    args: impl IntoIterator<Item = A>,
) -> Result<String> {
    let cache = kubeconfig.with_file_name("cache");
    run(command("kubectl")?
        .env("KUBECONFIG", kubeconfig)
        .env("KUBECACHEDIR", cache)
        .args(args))
    .await
}

/// Runs the consul tool, with the `CONSUL_*` variables given.
pub(crate) async fn consul<A: AsRef<OsStr>>(
    env: &Env,
    args: impl IntoIterator<Item = A>,
) -> Result<String> {
    run(command("consul")?.envs(env.iter()).args(args)).await
}

fn command(program: &str) -> Result<Command> {
    let mut command = Command::new(programs::server(program)?);
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
        .stdin(Stdio::null())
        .kill_on_drop(true);
    Ok(command)
}

async fn run(command: &mut Command) -> Result<String> {
    let shown = format!("{:?}", command.as_std());
    let output = tokio::time::timeout(PATIENCE, command.output())
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
