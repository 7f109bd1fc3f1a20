//! `kubectl csem`: shows and changes the semaphores of consul-semaphore-operator with the user's own rights.
//!
//! | module | subject |
//! |---|---|
//! | `cli` | the command line |
//! | `view` | the output as text, without IO |
//! | `read`, `why`, `watch` | the commands that show something |
//! | `around` | the objects that these commands read besides a semaphore |
//! | `act` | the commands that change something |
//! | `world`, `store` | the objects that the watches have received |
//! | `cluster` | the API server |
//! | `terminal` | where the output goes |
//! | `completion` | completion of the command line |
//! | `workload_name` | a workload as it is named on the command line |
//! | `failure` | what can go wrong, and what to do about it |
mod act;
mod around;
mod cli;
mod cluster;
mod completion;
mod failure;
mod read;
mod store;
mod terminal;
mod view;
mod watch;
mod why;
mod workload_name;
mod world;

use std::{env, ffi::OsStr, path::Path, process::ExitCode};

use clap::CommandFactory as _;
use command_line::memory;

use crate::{
    act::{
        annotate::{AnnotationChange, change},
        pause::pause,
        release::release,
    },
    cli::{Cli, Command, OneSemaphore, OneWorkload},
    cluster::ClusterClient,
    completion::CompletionCaller,
    failure::Failure,
    world::WatchTarget,
};

/// The name by which kubectl calls this program for completion.
const COMPLETER: &str = "kubectl_complete-csem";

fn main() -> ExitCode {
    memory::keep_private();
    memory::forbid_core_dumps();
    match begin() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::message(&format!("error: {}", failure.message));
            ExitCode::from(failure.code())
        }
    }
}

fn begin() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::impossible(error.to_string()))?;
    // `Err` means that a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut arguments = env::args_os();
    let program = arguments.next().unwrap_or_default();
    if Path::new(&program).file_name() == Some(OsStr::new(COMPLETER)) {
        let words: Vec<String> = arguments
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        return runtime.block_on(complete(&words, CompletionCaller::Kubectl));
    }
    runtime.block_on(run(Cli::read()))
}

async fn complete(words: &[String], asker: CompletionCaller) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    terminal::write(&completion::answer(&command, words, asker).await)
}

async fn run(
    Cli {
        connection,
        command,
    }: Cli,
) -> Result<(), Failure> {
    match command {
        Command::Complete { words } => return complete(&words, CompletionCaller::Shell).await,
        Command::Completion { shell } => return terminal::write(completion::script(shell)),
        _ => {}
    }
    let cluster = &ClusterClient::connect(&connection).await?;
    match command {
        Command::List {
            everywhere,
            selector,
            output,
        } => {
            read::list(
                cluster,
                everywhere.all_namespaces,
                selector.as_deref(),
                output,
            )
            .await
        }
        Command::Show { semaphore, output } => read::show(cluster, &semaphore, output).await,
        Command::Why {
            workload: OneWorkload { workload },
            output,
        } => why::why(cluster, &workload, output).await,
        Command::Watch {
            semaphore,
            everywhere,
            selector,
        } => {
            let namespace = match &semaphore {
                Some(_) => Some(cluster.namespace.clone()),
                None => cluster.reach(everywhere.all_namespaces).await?,
            };
            let target = WatchTarget {
                namespace,
                semaphore,
                selector,
            };
            watch::watch(cluster, &target).await
        }
        Command::Hold(OneWorkload { workload }) => {
            change(cluster, &workload, AnnotationChange::Hold).await
        }
        Command::Unhold(OneWorkload { workload }) => {
            change(cluster, &workload, AnnotationChange::Unhold).await
        }
        Command::Bump {
            workload: OneWorkload { workload },
            number,
            priority,
        } => {
            // The command line has one of the two.
            let priority = priority.or(number).unwrap_or(0);
            change(cluster, &workload, AnnotationChange::Priority(priority)).await
        }
        Command::Pause(OneSemaphore { semaphore }) => pause(cluster, &semaphore, true).await,
        Command::Resume(OneSemaphore { semaphore }) => pause(cluster, &semaphore, false).await,
        Command::Release {
            semaphore: OneSemaphore { semaphore },
            session,
            yes,
        } => release(cluster, &semaphore, &session, yes).await,
        // These commands need no cluster and were handled above.
        Command::Completion { .. } | Command::Complete { .. } => Ok(()),
    }
}
