//! The flags of `check`.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

use clap::{Args, ValueEnum};
use consul_semaphore_api::Seconds;
use consul_semaphore_operator::check;

use super::{ConsulFlags, ElectionFlags, OperatorFlags, ScopeFlags, filter};

/// What the exit code means, and which other settings are read.
pub(super) const HELP: &str = "\
Exit code: 0 nothing failed, 1 something failed, 2 a flag is invalid. Warnings and unknown results are not
failures.

Run `check` with the operator's flags and environment. It needs no more rights than the operator.
From a laptop, for an operator in the cluster:
  consul-semaphore-operator check --as system:serviceaccount:consul-semaphore-system:consul-semaphore-operator

Consul's own environment variables and KUBECONFIG are read as `run` reads them: see `run --help`.";

#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Check this ConsulSemaphore closely: its prefix, holders, queue, and why the first Job does not run
    #[arg(long, value_name = "NAMESPACE/NAME")]
    semaphore: Option<check::NamespacedName>,

    /// Check the rights of this user, such as the operator's ServiceAccount: system:serviceaccount:<namespace>:<name>
    /// [default: the user of the kubeconfig]
    #[arg(long = "as", value_name = "USER", value_parser = user)]
    as_user: Option<String>,

    /// How long each answer may take, 1s to 5m
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    timeout: Seconds<1, 300>,

    /// Format of the report
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: Output,

    /// What is logged to stderr: a level, or `target=level` pairs joined by commas
    #[arg(long, env = "RUST_LOG", value_name = "FILTER", default_value = "error", value_parser = filter)]
    pub(crate) log_filter: String,

    #[command(flatten)]
    operator: OperatorFlags,

    #[command(flatten)]
    scope: ScopeFlags,

    #[command(flatten)]
    election: ElectionFlags,

    #[command(flatten)]
    pub(crate) consul: ConsulFlags,
}

/// Format of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    #[default]
    Text,
    /// For machines
    Json,
}

impl Check {
    /// The settings for the library.
    pub(crate) fn settings(self) -> check::CheckSettings {
        check::CheckSettings {
            operator: self.operator.settings(
                self.scope.scope(),
                self.scope.workloads(),
                self.election.settings(),
                // It keeps nothing.
                0,
            ),
            semaphore: self.semaphore,
            as_user: self.as_user,
            timeout: self.timeout.get(),
        }
    }
}

/// The name of a user, valid in a header.
fn user(text: &str) -> Result<String, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(
            "use the name of a user, such as system:serviceaccount:<namespace>:<name>".to_owned(),
        );
    }
    Ok(text.to_owned())
}
