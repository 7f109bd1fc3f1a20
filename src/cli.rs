//! The command line. Every flag has an environment variable and a default that works.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

mod check;
mod http;
mod kinds;
mod web;

use clap::{
    ArgAction, Args, CommandFactory as _, Parser, Subcommand, ValueEnum,
    builder::RangedU64ValueParser, error::ErrorKind,
};
use command_line::{
    CONSUL_ENVIRONMENT, ConsulFlags, filter,
    logs::{DEFAULT_FILTER, LogFormat},
    name,
};
use consul_client::Config;
use consul_semaphore::{Order, turns::WINDOW};
use consul_semaphore_api::{
    Seconds, SemaphoreSelector,
    scope::{Namespaces, Scope},
    tenancy::{Tenancy, TenantPrefix, TrustedNamespaces},
};
use consul_semaphore_operator::{
    controller,
    leader::{self, LeaseName},
};

pub(crate) use self::{
    check::{Check, Output},
    http::HttpFlags,
    kinds::{ListKinds, WorkloadFlags},
    web::WebFlags,
};

/// Makes Kubernetes Jobs wait for a slot of a Consul semaphore
#[derive(Debug, Parser)]
#[command(version, name = "consul-semaphore-operator")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the operator against the cluster of KUBECONFIG, or the cluster that it runs in
    #[command(after_help = environment())]
    Run(Box<Run>),
    /// Check Consul, Kubernetes, rights and semaphores, and say what to do
    #[command(after_help = check::HELP)]
    Check(Box<Check>),
    /// Print the CustomResourceDefinition as YAML
    Crd,
    /// List the kinds of workloads, or print the manifests that some kinds need in the cluster
    Kinds(ListKinds),
    /// Print the version, and the versions of Kubernetes and Consul that it is tested with
    Version,
}

/// Settings that have no flag.
fn environment() -> String {
    format!("{CONSUL_ENVIRONMENT}\n\n{ENVIRONMENT}")
}

/// Settings that have no flag, except those of Consul.
const ENVIRONMENT: &str = "\
For --traces-exporter=otlp (docs/traces.md):
  OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS,
  OTEL_EXPORTER_OTLP_TIMEOUT, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES

KUBECONFIG selects the cluster if the operator does not run in one.";

/// How much is kept of what Consul lists by default, in MiB.
const CONSUL_MEMORY: u32 = 40;

#[derive(Args, Debug)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) operator: OperatorFlags,

    /// The format of log lines
    #[arg(long, env, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) log_format: Format,

    /// What to log: a level, or `target=level` pairs separated by commas
    #[arg(long, env = "RUST_LOG", value_name = "FILTER", default_value = DEFAULT_FILTER, value_parser = filter)]
    pub(crate) log_filter: String,

    /// Where to send traces
    #[arg(
        long,
        env = "OTEL_TRACES_EXPORTER",
        value_enum,
        value_name = "EXPORTER",
        default_value_t
    )]
    pub(crate) traces_exporter: TracesExporter,

    /// How many prefixes in Consul to watch at once, each over its own connection; the others are polled
    #[arg(long, env, value_name = "NUMBER", default_value_t = Config::MAX_WATCHES, value_parser = RangedU64ValueParser::<u32>::new().range(1..=100_000))]
    pub(crate) consul_max_watches: u32,

    /// How many MiB of memory the data of all prefixes in Consul may take together
    #[arg(long, env, value_name = "MIB", default_value_t = CONSUL_MEMORY, value_parser = RangedU64ValueParser::<u32>::new().range(16..=100_000))]
    pub(crate) consul_memory: u32,

    #[command(flatten)]
    pub(crate) http: HttpFlags,

    #[command(flatten)]
    pub(crate) scope: ScopeFlags,

    #[command(flatten)]
    pub(crate) election: ElectionFlags,

    #[command(flatten)]
    pub(crate) web: WebFlags,

    #[command(flatten)]
    pub(crate) consul: ConsulFlags,
}

/// The operator's identity in Consul, and what it lets others do there.
#[derive(Args, Debug)]
pub(crate) struct OperatorFlags {
    /// The name of this cluster in Consul, for people [default: the first 8 characters of the cluster's id]
    #[arg(long, env, value_name = "NAME", value_parser = name)]
    pub(crate) cluster_name: Option<String>,

    /// The id of this cluster in Consul, for a cluster that is a copy of another cluster [default: the uid of the
    /// namespace kube-system]
    #[arg(long, env, value_name = "ID", value_parser = name)]
    pub(crate) cluster_id: Option<String>,

    /// The external node in Consul that owns the operator's sessions [default: k8s-<cluster id>]
    #[arg(long, env, value_name = "NAME", value_parser = name)]
    pub(crate) consul_node: Option<String>,

    /// The folder in Consul for the semaphores of a namespace; {namespace} stands for the namespace's name
    #[arg(long, env, value_name = "FOLDER", default_value = TenantPrefix::DEFAULT)]
    pub(crate) tenant_prefix: TenantPrefix,

    /// Namespaces whose semaphores may use any prefix, separated by commas; * for all
    #[arg(long, env, value_name = "NAMES", default_value = "")]
    pub(crate) trusted_namespaces: TrustedNamespaces,

    /// Whether priority and age decide among all contenders of a prefix; false: only among the Jobs of this cluster
    #[arg(long, env, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub(crate) fair_order: bool,

    /// How long other Jobs may overtake a Job that asks for several slots after it has become the first in a queue;
    /// after this time, free slots are kept for that Job
    #[arg(long, env, value_name = "TIME", default_value = "60s")]
    pub(crate) pass_over: Seconds<1, 3600>,
}

/// Which part of the cluster the operator works for.
#[derive(Args, Debug)]
#[command(next_help_heading = "Scope (several operators share the work of one cluster)")]
pub(crate) struct ScopeFlags {
    /// The namespaces to work in, separated by commas; * for all
    #[arg(long, env, value_name = "NAMES", default_value_t)]
    pub(crate) namespaces: Namespaces,

    #[command(flatten)]
    pub(crate) workloads: WorkloadFlags,

    /// A ConfigMap in the operator's namespace, each entry of which describes one more kind: docs/kinds.md
    #[arg(long, env, value_name = "NAME", value_parser = name)]
    pub(crate) kinds: Option<String>,

    /// Which ConsulSemaphores to serve: a label selector such as shard=a or 'shard in (a,b)' [default: all]
    #[arg(long, env, value_name = "SELECTOR")]
    pub(crate) semaphore_selector: Option<SemaphoreSelector>,
}

/// Which of several replicas leads.
#[derive(Args, Debug)]
#[command(next_help_heading = "Leader election (one replica works, the others stand by)")]
pub(crate) struct ElectionFlags {
    /// Where the leader is elected
    #[arg(long, env, value_enum, value_name = "WHERE", default_value_t)]
    pub(crate) leader_election: LeaderElection,

    /// The namespace of the Lease [default: the pod's, or the kubeconfig's]
    #[arg(long, env, value_name = "NAMESPACE", value_parser = name)]
    pub(crate) leader_election_namespace: Option<String>,

    /// The name of the Lease, or of the key in Consul: the same for all replicas of an operator, different for each operator
    /// in a cluster
    #[arg(long, env, value_name = "NAME", default_value = LeaseName::DEFAULT)]
    pub(crate) lease_name: LeaseName,

    /// The name of this replica, different for each. If it stays the same, a restarted leader leads again at once [default:
    /// the host's name and a random number]
    #[arg(long, env, value_name = "NAME", value_parser = name)]
    pub(crate) leader_election_identity: Option<String>,

    /// How long the other replicas wait after the leader's last renewal, 5s to 10m; at least 10s in Consul
    #[arg(long, env, value_name = "DURATION", default_value = "15s")]
    pub(crate) lease_duration: Seconds<5, 600>,
}

/// Where the leader is elected.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum LeaderElection {
    /// By a Lease in Kubernetes
    #[default]
    Kubernetes,
    /// By a key in Consul, service/consul-semaphore-operator/<cluster>/leader (or the --lease-name)
    Consul,
    /// Not at all: this is the only replica
    Off,
}

impl ElectionFlags {
    /// The settings of the election for the library.
    pub(crate) fn settings(self) -> leader::ElectionSettings {
        let mode = match self.leader_election {
            LeaderElection::Kubernetes => leader::Mode::Kubernetes,
            LeaderElection::Consul => leader::Mode::Consul,
            LeaderElection::Off => leader::Mode::Off,
        };
        leader::ElectionSettings {
            mode,
            identity: self.leader_election_identity.unwrap_or_else(some_identity),
            namespace: self.leader_election_namespace,
            lease_name: self.lease_name,
            lease: self.lease_duration.get(),
        }
    }
}

/// A name that no other process has. In a container the host's name is the pod's name.
fn some_identity() -> String {
    let uname = rustix::system::uname();
    format!(
        "{}_{:08x}",
        uname.nodename().to_string_lossy(),
        fastrand::u32(..)
    )
}

/// Where traces go.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum TracesExporter {
    /// Nowhere
    #[default]
    None,
    /// To an OpenTelemetry collector, by OTLP over HTTP
    Otlp,
}

/// Format of the log lines.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// For machines: one JSON object a line
    Json,
}

impl From<Format> for LogFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Text,
            Format::Json => Self::Json,
        }
    }
}

impl Run {
    /// The part of the cluster that is asked for. Operators of different parts can't share an election: one of them
    /// would stand by for ever, and its part would have no operator.
    pub(crate) fn scope(&self) -> Result<Scope, clap::Error> {
        let scope = self.scope.scope();
        let elects = !matches!(self.election.leader_election, LeaderElection::Off);
        if !scope.is_whole() && elects && self.election.lease_name.is_default() {
            let problem = "with --namespaces or --semaphore-selector an operator serves a part of the cluster only, and \
                 with the default --lease-name it would stand by while the operator of another part leads: give each \
                 operator its own --lease-name, the same for all its replicas (or run one replica with \
                 --leader-election=off)";
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, problem));
        }
        Ok(scope)
    }
}

impl ScopeFlags {
    /// The scope for the library.
    fn scope(&self) -> Scope {
        Scope {
            namespaces: self.namespaces.clone(),
            semaphores: self.semaphore_selector.clone().unwrap_or_default(),
        }
    }

    /// The kinds of workloads for the library.
    pub(crate) fn workloads(&self) -> controller::WorkloadChoice {
        controller::WorkloadChoice {
            kinds: self.workloads.kinds(),
            table: self.kinds.clone(),
        }
    }
}

impl OperatorFlags {
    /// The settings for the library.
    pub(crate) fn settings(
        self,
        scope: Scope,
        workloads: controller::WorkloadChoice,
        election: leader::ElectionSettings,
        consul_memory: usize,
    ) -> controller::OperatorSettings {
        controller::OperatorSettings {
            cluster_id: self.cluster_id,
            cluster_name: self.cluster_name,
            consul_node: self.consul_node,
            scope,
            workloads,
            election,
            tenancy: Tenancy {
                prefix: self.tenant_prefix,
                trusted: self.trusted_namespaces,
            },
            order: Order {
                fair: self.fair_order.then_some(WINDOW),
                pass_over: self.pass_over.get(),
            },
            consul_memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
