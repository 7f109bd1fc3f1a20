//! `bed demo` shows what the operator does, and `bed demo-pipelines` the same with runs of Tekton. `bed dev` keeps a bed
//! up for experiments, and `bed bare` one without the operator, to install it there.
#![expect(clippy::print_stdout, reason = "what it prints is what it is for")]
mod bare;
mod demo;
mod dev;
mod pipelines;

use std::process::ExitCode;

use anyhow::anyhow;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let ended = match std::env::args().nth(1).as_deref() {
        Some("demo") => demo::run().await,
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
