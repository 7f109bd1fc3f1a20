//! The real kubectl.
use std::{ffi::OsStr, path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

use crate::programs;

const PATIENCE: Duration = Duration::from_mins(2);

/// Runs kubectl and returns what it prints; what it complains about is the error.
pub(crate) async fn run<A: AsRef<OsStr>>(
    kubeconfig: &Path,
    args: impl IntoIterator<Item = A>,
) -> Result<String> {
    let mut command = Command::new(programs::server("kubectl")?);
    command
        .args(args)
        .env_clear()
        .env("KUBECONFIG", kubeconfig)
        // So that files are named as in the workspace.
        .current_dir(programs::workspace())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    // Where it keeps what it has learned about the server, beside the kubeconfig.
    command.env("HOME", kubeconfig.parent().unwrap_or(kubeconfig));
    let shown = format!("{:?}", command.as_std().get_args().collect::<Vec<_>>());
    let output = tokio::time::timeout(PATIENCE, command.output())
        .await
        .with_context(|| format!("kubectl {shown} takes too long"))??;
    if !output.status.success() {
        bail!(
            "kubectl {shown}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}
