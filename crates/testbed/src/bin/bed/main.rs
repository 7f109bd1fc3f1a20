//! `bed demo` shows what the operator does, also on a cluster that is there, and `bed demo-pipelines` the same with runs
//! of Tekton. `bed dev` keeps a bed up for experiments, and `bed bare` one without the operator, to install it there.
#![expect(clippy::print_stdout, reason = "what it prints is what it is for")]
mod bare;
mod demo;
mod dev;
mod existing;
mod pipelines;

use std::process::ExitCode;

use anyhow::anyhow;
use testbed::Existing;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let ended = match std::env::args().nth(1).as_deref() {
        Some("demo") => match Existing::from_env() {
            Ok(None) => demo::run().await,
            Ok(Some(existing)) => existing::run(&existing).await,
            Err(error) => Err(error),
        },
        Some("demo-pipelines") => pipelines::run().await,
        Some("dev") => dev::run().await,
        Some("bare") => bare::run().await,
        _ => Err(anyhow!("usage: bed demo | demo-pipelines | dev | bare")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("\nThis went wrong: {error:#}");
            ExitCode::FAILURE
        }
    }
}
