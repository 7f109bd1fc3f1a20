//! Finds the programs: the servers, the operator, and the command-line program.
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context as _, Result, bail};

/// The workspace's root folder.
pub(crate) fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// A server's program, kubectl or helm: in `$SERVERS_DIR/bin`, by default `.servers/bin` in the workspace. Of another
/// version, named by `$KUBERNETES` or `$CONSUL`, it is in a folder such as `$SERVERS_DIR/consul-1.20/bin`.
///
/// # Errors
/// It is not built.
pub fn server(name: &str) -> Result<PathBuf> {
    built(name, "make servers")
}

/// The program of a controller of other workloads than Jobs.
pub(crate) fn controller(name: &str) -> Result<PathBuf> {
    built(name, WORKLOADS)
}

/// The folder of what a controller's module ships.
pub(crate) fn manifests_of(controller: &str) -> Result<PathBuf> {
    let folder = servers().join(controller);
    if !folder.is_dir() {
        bail!("{} is not there: run `{WORKLOADS}`", folder.display());
    }
    Ok(folder)
}

/// What builds the controllers of other workloads.
const WORKLOADS: &str = "make servers-workloads";

fn built(name: &str, by: &str) -> Result<PathBuf> {
    let path = folder_of(name).join(name);
    if !path.is_file() {
        bail!("{name} is not there ({}): run `{by}`", path.display());
    }
    Ok(path)
}

/// The minor version of the Consul that is started: 22 for 1.22.5. Old versions lack features and report them
/// differently.
///
/// # Errors
/// Consul is not built, or its version can't be read.
pub fn consul_minor() -> Result<u32> {
    static MINOR: OnceLock<u32> = OnceLock::new();
    if let Some(minor) = MINOR.get() {
        return Ok(*minor);
    }
    let output = Command::new(server("consul")?).arg("version").output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let minor = said
        .strip_prefix("Consul v1.")
        .and_then(|rest| rest.split('.').next()?.parse().ok())
        .with_context(|| format!("consul version says {said:?}"))?;
    Ok(*MINOR.get_or_init(|| minor))
}

/// What other versions than the bed's own can be had of: the variable that names one, and its programs.
const VERSIONED: [(&str, &[&str]); 2] = [
    (
        "KUBERNETES",
        &[
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubectl",
        ],
    ),
    ("CONSUL", &["consul"]),
];

/// The folder of the programs of the version that this variable names.
fn named_version(variable: &str) -> Option<PathBuf> {
    let version = env::var(variable).ok().filter(|text| !text.is_empty())?;
    let name = format!("{}-{version}", variable.to_lowercase());
    Some(servers().join(name).join("bin"))
}

fn folder_of(name: &str) -> PathBuf {
    let of = VERSIONED.iter().find(|(_, names)| names.contains(&name));
    of.and_then(|(variable, _)| named_version(variable))
        .unwrap_or_else(|| servers().join("bin"))
}

/// The folders of all servers' programs, for a PATH.
pub fn server_folders() -> Vec<PathBuf> {
    let named = VERSIONED.iter().filter_map(|(name, _)| named_version(name));
    named.chain([servers().join("bin")]).collect()
}

/// Where `make servers` has put all.
fn servers() -> PathBuf {
    env::var_os("SERVERS_DIR").map_or_else(|| workspace().join(".servers"), PathBuf::from)
}

/// The library that fakes a program's wall clock, if `make servers` could get it.
pub(crate) fn faketime() -> Option<PathBuf> {
    let library = servers().join("lib/libfaketime.so.1");
    library.is_file().then_some(library)
}

/// The operator's program: `$OPERATOR_BIN`, or the one that cargo has built beside this program.
pub fn operator_program() -> Result<PathBuf> {
    our_own("consul-semaphore-operator", "OPERATOR_BIN")
}

/// The program `consul-semaphore`: `$CLI_BIN`, or the one that cargo has built beside this program.
pub fn cli_program() -> Result<PathBuf> {
    our_own("consul-semaphore", "CLI_BIN")
}

/// The example of the library that takes slots: `$LIBRARY_BIN`, or the one that cargo has built beside this program.
pub(crate) fn library_program() -> Result<PathBuf> {
    our_own("examples/slot_client", "LIBRARY_BIN").context(
        "it is built by `cargo build --workspace --example slot_client`, and with the tests of all packages",
    )
}

/// The example of the Python package that takes slots.
pub(crate) fn python_program() -> PathBuf {
    workspace().join("crates/consul-semaphore-python/examples/slot_client.py")
}

fn our_own(name: &str, variable: &str) -> Result<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        return Ok(path.into());
    }
    // Tests are in <target>/<profile>/deps, programs in <target>/<profile>.
    let this = env::current_exe()?;
    let beside = this
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name));
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from);
    let built = target.join("debug").join(name);
    match beside.chain([built]).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => {
            bail!("{name} is not built: run `cargo build --workspace --bins`, or set {variable}")
        }
    }
}

/// Where the shipped manifests are: `$BED_MANIFESTS`, by default the workspace.
pub(crate) fn manifests() -> PathBuf {
    env::var_os("BED_MANIFESTS").map_or_else(|| workspace().to_owned(), PathBuf::from)
}
