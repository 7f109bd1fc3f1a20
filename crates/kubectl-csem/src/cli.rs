//! The command line. kubectl runs `kubectl-csem` for `kubectl csem`, with all arguments that follow.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

use std::{path::PathBuf, process};

use clap::{
    Args, CommandFactory as _, Parser, Subcommand, ValueEnum,
    error::{ContextKind, ContextValue, ErrorKind},
};
use consul_semaphore_api::tenancy::is_namespace;

use crate::workload_name::{WorkloadName, object_name};

/// The semaphores of consul-semaphore-operator: who holds their slots, who waits, and why.
#[derive(Debug, Parser)]
#[command(version, name = "kubectl-csem", bin_name = "kubectl csem", after_help = HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connection: ClusterFlags,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const HELP: &str = "\
Exit codes: 0 the command succeeded; 1 it failed for another reason than these; 2 a flag is invalid; 66 the named
object does not exist; 69 the API server or Consul does not answer; 77 a right is missing.

The output is coloured on a terminal, unless NO_COLOR is set.";

/// The connection to the cluster, with kubectl's flags.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterFlags {
    /// The kubeconfig file [env: KUBECONFIG] [default: ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// The cluster of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) cluster: Option<String>,

    /// The user of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// The user to impersonate, or system:serviceaccount:NAMESPACE:NAME
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(crate) as_user: Option<String>,

    /// The group to impersonate, with --as; can be repeated
    #[arg(long, global = true, value_name = "GROUP", requires = "as_user")]
    pub(crate) as_group: Vec<String>,

    /// The namespace [default: the context's; list, and watch without a name: all]
    #[arg(long, short, global = true, value_name = "NAME", value_parser = namespace_name)]
    pub(crate) namespace: Option<String>,
}

impl Cli {
    /// Reads the command line. Without a command, and after one that is not understood, the process ends here.
    pub(crate) fn read() -> Self {
        Self::try_parse().unwrap_or_else(|error| {
            if let Some(error) = understood(error) {
                error.exit();
            }
            let _ = Self::command().print_help();
            process::exit(0)
        })
    }
}

/// Returns the error, with a suggestion for kubectl's own commands; `None` if only the command is missing.
fn understood(mut error: clap::Error) -> Option<clap::Error> {
    match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => None,
        ErrorKind::InvalidSubcommand => {
            let suggested = match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(word)) => match word.as_str() {
                    "get" => Some("list"),
                    "describe" => Some("show"),
                    _ => None,
                },
                _ => None,
            };
            if let Some(suggested) = suggested {
                let value = ContextValue::Strings(vec![suggested.to_owned()]);
                error.insert(ContextKind::SuggestedSubcommand, value);
            }
            Some(error)
        }
        _ => Some(error),
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the semaphores of all namespaces, or of one
    #[command(
        alias = "ls",
        after_help = "Example:\n  kubectl csem list -A -l team=a"
    )]
    List {
        #[command(flatten)]
        everywhere: Everywhere,
        /// Only the ConsulSemaphores with these labels: `team=a`, `team in (a,b)`, `!team`, joined by commas
        #[arg(long, short = 'l', value_name = "LABELS")]
        selector: Option<String>,
        /// The output format
        #[arg(long, short, value_enum)]
        output: Option<OutputFormat>,
    },
    /// Show a semaphore: who holds its slots, who waits and why, what happened last
    #[command(after_help = "Example:\n  kubectl csem show db-migrations")]
    Show {
        /// The name of the ConsulSemaphore
        #[arg(value_parser = semaphore_name)]
        semaphore: String,
        /// The output format
        #[arg(long, short, value_enum)]
        output: Option<OutputFormat>,
    },
    /// Say why a workload waits, or what it does instead, and what to do about it
    #[command(
        after_help = "Examples:\n  kubectl csem why migrate-42\n  kubectl csem why pipelinerun/deploy"
    )]
    Why {
        #[command(flatten)]
        workload: OneWorkload,
        /// The output format
        #[arg(long, short, value_enum)]
        output: Option<OutputFormat>,
    },
    /// Watch one semaphore or all: the output of show or list, kept up to date. Ctrl-C ends it
    #[command(after_help = "Example:\n  kubectl csem watch db-migrations")]
    Watch {
        /// The name of a ConsulSemaphore
        #[arg(value_parser = semaphore_name, conflicts_with = "all_namespaces")]
        semaphore: Option<String>,
        #[command(flatten)]
        everywhere: Everywhere,
        /// Without a name: only the ConsulSemaphores with these labels, as for list
        #[arg(long, short = 'l', value_name = "LABELS", conflicts_with = "semaphore")]
        selector: Option<String>,
    },
    /// Keep a waiting workload out of the queue
    #[command(after_help = "Example:\n  kubectl csem hold migrate-42")]
    Hold(OneWorkload),
    /// Put a workload that is on hold back into the queue
    #[command(after_help = "Example:\n  kubectl csem unhold migrate-42")]
    Unhold(OneWorkload),
    /// Change the priority of a waiting workload
    #[command(after_help = "Example:\n  kubectl csem bump migrate-42 100")]
    Bump {
        #[command(flatten)]
        workload: OneWorkload,
        /// New priority, like --priority
        #[arg(
            value_name = "NUMBER",
            allow_negative_numbers = true,
            conflicts_with = "priority"
        )]
        number: Option<i32>,
        /// The priority: higher is first, and the default is 0
        #[arg(
            long,
            value_name = "NUMBER",
            allow_negative_numbers = true,
            required_unless_present = "number"
        )]
        priority: Option<i32>,
    },
    /// Grant no more slots; Jobs that hold a slot continue
    #[command(after_help = "Example:\n  kubectl csem pause db-migrations")]
    Pause(OneSemaphore),
    /// Grant slots again
    #[command(after_help = "Example:\n  kubectl csem resume db-migrations")]
    Resume(OneSemaphore),
    /// Take a slot away from its holder, by destroying the holder's session in Consul. Asks for confirmation first
    #[command(after_help = RELEASE_HELP)]
    Release {
        #[command(flatten)]
        semaphore: OneSemaphore,
        /// The session that holds the slot, as show prints it, or a workload of the namespace: NAME or TYPE/NAME
        #[arg(value_name = "SESSION|WORKLOAD")]
        session: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Print a script with which a shell completes this program's arguments
    #[command(after_help = COMPLETION_HELP)]
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: CompletionShell,
    },
    /// Print the completions of a command line, for shells
    #[command(name = "__complete", hide = true)]
    Complete {
        /// The words up to the one at the cursor
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

const RELEASE_HELP: &str = "\
The slots are in Consul, so this command calls Consul itself. It reads CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN and the
other variables of Consul's tools. The token needs key read on the semaphore's prefix, and session write on the
session's node.

Example:
  kubectl csem release db-migrations migrate-42";

const COMPLETION_HELP: &str = "\
kubectl's own completion also completes `kubectl csem`, in every shell, if this program is on the PATH as
kubectl_complete-csem, too: ln -s kubectl-csem kubectl_complete-csem. The script that this command prints completes
the word kubectl-csem.

Example:
  source <(kubectl csem completion bash)";

/// Which namespaces are listed.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Everywhere {
    /// All namespaces, even with -n; an error if you may not list them
    #[arg(long, short = 'A')]
    pub(crate) all_namespaces: bool,
}

#[derive(Args, Debug)]
pub(crate) struct OneWorkload {
    /// The name of a Job, or the type and the name of another workload: jobset/train
    #[arg(value_name = "[TYPE/]NAME", value_parser = WorkloadName::parse)]
    pub(crate) workload: WorkloadName,
}

#[derive(Args, Debug)]
pub(crate) struct OneSemaphore {
    /// The name of the ConsulSemaphore
    #[arg(value_parser = semaphore_name)]
    pub(crate) semaphore: String,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For programs
    Json,
    /// YAML with the same fields as JSON
    Yaml,
    /// For people, with all details
    Wide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

/// kubectl's names for semaphores.
pub(crate) const SEMAPHORE_TYPES: [&str; 4] = [
    "consulsemaphore.consul-semaphore.io",
    "consulsemaphore",
    "consulsemaphores",
    "csem",
];

/// Parses the name of a semaphore, also in the form that `kubectl get -o name` prints.
fn semaphore_name(text: &str) -> Result<String, String> {
    let name = match text.split_once('/') {
        Some((kind, name)) if SEMAPHORE_TYPES.contains(&kind) => name,
        Some((kind, _)) => {
            return Err(format!("{kind:?} is not the expected kind of object"));
        }
        None => text,
    };
    object_name(name)
}

/// Parses the name of a namespace. An empty one counts as none.
fn namespace_name(text: &str) -> Result<String, String> {
    if text.is_empty() || is_namespace(text) {
        return Ok(text.to_owned());
    }
    Err("a namespace's name has lower case letters and digits, with '-' between them".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn names_are_taken_as_kubectl_prints_them() {
        assert_eq!(semaphore_name("csem/db").as_deref(), Ok("db"));
        assert_eq!(namespace_name("team-a").as_deref(), Ok("team-a"));
        assert_eq!(namespace_name("").as_deref(), Ok(""));
        for bad in [
            "a/b",
            "team-a/consulsemaphores?x=",
            "A",
            "a.b",
            "-a",
            &"x".repeat(64),
        ] {
            assert!(namespace_name(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "job/db", "csem/", "A", "a b", "csem/b/c", "../db"] {
            assert!(semaphore_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn flags_may_follow_the_command_in_any_order() {
        let cli = Cli::try_parse_from([
            "kubectl-csem",
            "bump",
            "a",
            "--priority",
            "-5",
            "-n",
            "batch",
        ])
        .unwrap();
        assert_eq!(cli.connection.namespace.as_deref(), Some("batch"));
        assert!(matches!(
            cli.command,
            Command::Bump {
                priority: Some(-5),
                ..
            }
        ));
        assert!(Cli::try_parse_from(["kubectl-csem", "watch", "db", "-A"]).is_err());
        assert!(Cli::try_parse_from(["kubectl-csem", "list", "--as-group", "a"]).is_err());
    }

    #[test]
    fn a_priority_may_be_an_argument() {
        for words in [["bump", "a", "5"], ["bump", "a", "-5"]] {
            let cli = Cli::try_parse_from(["kubectl-csem"].iter().chain(&words)).unwrap();
            let number = words[2].parse().ok();
            assert!(
                matches!(cli.command, Command::Bump { number: is, priority: None, .. } if is == number)
            );
        }
        let both = ["kubectl-csem", "bump", "a", "5", "--priority", "5"];
        assert!(Cli::try_parse_from(both).is_err());
        let refused = Cli::try_parse_from(["kubectl-csem", "bump", "a"]).unwrap_err();
        assert!(refused.to_string().contains("--priority"), "{refused}");
    }

    #[test]
    fn help_is_printed_without_a_command_and_kubectls_commands_are_suggested_ours() {
        let error = |words: &[&str]| {
            let words = ["kubectl-csem"].iter().chain(words);
            understood(Cli::try_parse_from(words).unwrap_err())
        };
        for words in [&[][..], &["-n", "batch"]] {
            assert!(error(words).is_none(), "{words:?}");
        }
        for (words, suggested) in [
            (&["get"][..], "'list'"),
            (&["describe", "db"][..], "'show'"),
        ] {
            let said = error(words).unwrap().to_string();
            assert!(said.contains(suggested), "{said}");
        }
        assert!(error(&["lsit"]).unwrap().to_string().contains("'list'"));
    }
}
