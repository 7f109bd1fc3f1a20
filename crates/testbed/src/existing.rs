//! A Kubernetes and a Consul that are there already.
use std::{env, ffi::OsStr, path::PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{consul::Consul, env::Env, tools};

/// The Kubernetes of `KUBECONFIG` and the Consul of `CONSUL_HTTP_ADDR`, which a bed uses with `BED_EXISTING=1`.
///
/// Those two variables alone don't suffice: a developer has them set for other clusters, and the tests would run there.
#[derive(Clone, Debug)]
pub struct Existing {
    pub(crate) kubeconfig: PathBuf,
    /// All `CONSUL_*` variables.
    pub(crate) consul: Env,
}

impl Existing {
    /// What the environment names, if it asks for that.
    ///
    /// # Errors
    /// It asks for that, and does not say which.
    pub fn from_env() -> Result<Option<Self>> {
        if !asked_for()? {
            return Ok(None);
        }
        required("CONSUL_HTTP_ADDR")?;
        let kubeconfig = required("KUBECONFIG")?.into();
        let consul = env::vars()
            .filter(|(name, _)| name.starts_with("CONSUL_"))
            .collect();
        Ok(Some(Self { kubeconfig, consul }))
    }

    /// A client of this Consul.
    ///
    /// # Errors
    /// The address or the token can't be used.
    pub fn consul(&self) -> Result<Consul> {
        consul_of(&self.consul)
    }

    /// Runs the user's own kubectl, and returns what it prints.
    ///
    /// # Errors
    /// It fails: the error is what it prints to stderr.
    pub async fn kubectl<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Result<String> {
        tools::kubectl(&self.kubeconfig, args).await
    }
}

/// Whether the environment asks for a Kubernetes that is there already.
pub(crate) fn asked_for() -> Result<bool> {
    match env::var("BED_EXISTING").as_deref() {
        Err(_) | Ok("" | "0") => Ok(false),
        Ok("1") => Ok(true),
        Ok(other) => bail!("BED_EXISTING is 1 or 0, not {other}"),
    }
}

fn required(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("BED_EXISTING=1 needs {name}"))
}

/// A client of the Consul that these variables name.
pub(crate) fn consul_of(variables: &Env) -> Result<Consul> {
    let address = variables
        .get("CONSUL_HTTP_ADDR")
        .context("no CONSUL_HTTP_ADDR")?;
    Consul::at(address, variables.get("CONSUL_HTTP_TOKEN"))
}
