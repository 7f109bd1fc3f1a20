//! A bed to try things on. It stays up until someone ends it.
use std::{fs, io::Read as _, os::unix::fs::FileTypeExt as _, time::Instant};

use anyhow::{Context as _, Result};
use testbed::Bed;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// Starts a bed, prints how to reach it, and ends it on Ctrl-C, SIGTERM or SIGHUP, or when the program at the other
/// end of stdin closes it.
pub(crate) async fn run() -> Result<()> {
    let asked = asked_to_end()?;
    tokio::pin!(asked);
    println!("Starting etcd, Kubernetes, Consul and the operator ...");
    let start = Instant::now();
    let bed = tokio::select! {
        bed = Bed::builder().try_start() => bed?,
        // Servers that have started already end with this process.
        why = &mut asked => {
            println!("Ended before they were up: {why}.");
            return Ok(());
        }
    };
    bed.try_kubectl(["apply", "-f", "crates/testbed/demo/semaphore.yaml"])
        .await?;
    println!("They are up after {:.0} s.", start.elapsed().as_secs_f32());
    explain(&bed).await?;

    let why = asked.await;

    println!("\nEnding all of it: {why} ...");
    bed.end().await
}

async fn explain(bed: &Bed) -> Result<()> {
    let metrics = bed
        .operator()
        .address()
        .await
        .context("the operator does not run")?;
    let program = std::env::current_exe()?;
    let programs = program.parent().context("this program is in a folder")?;
    println!(
        "
In another terminal:

  export KUBECONFIG={kubeconfig}
  export CONSUL_HTTP_ADDR={consul}
  export PATH={programs}:{servers}:$PATH

There is a ConsulSemaphore `database` with two slots in the namespace `demo`. Try:

  kubectl apply -f crates/testbed/demo/jobs.yaml
  kubectl get csem,jobs -n demo
  kubectl get jobs -n demo --watch
  kubectl describe csem database -n demo
  consul kv get -recurse semaphores/
  consul lock -n 2 semaphores/demo/database 'echo has a slot; sleep 10'
  consul-semaphore exec --prefix semaphores/demo/database --limit 2 -- sleep 10
  curl -s http://{metrics}/metrics
  tail -f {logs}/operator.log

A pod of these runs for a second, or as long as its annotation bed.consul-semaphore.io/runs says, such as
30s. Semaphores of all namespaces may live anywhere in Consul (--trusted-namespaces='*').

All logs are in {logs}. Ctrl-C, or kill {pid}, ends all of it.",
        pid = std::process::id(),
        kubeconfig = bed.kubeconfig().display(),
        consul = bed.consul().address(),
        programs = programs.display(),
        servers = testbed::servers().display(),
        logs = bed.folder().path().display(),
    );
    Ok(())
}

/// Resolves when the bed should end, with the reason. The handlers are set when this returns.
pub(crate) fn asked_to_end() -> Result<impl Future<Output = &'static str>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (closed, stdin_closed) = oneshot::channel();
    // In the background, stdin is /dev/null, which is at its end at once, or a terminal that may not be read from
    // there.
    let piped = fs::metadata("/dev/stdin").is_ok_and(|stdin| stdin.file_type().is_fifo());
    // On a thread, because a read from stdin can't be cancelled, and must not delay the end.
    let _reader = piped.then(|| {
        std::thread::spawn(move || {
            let ended = std::io::stdin().read_to_end(&mut Vec::new());
            closed.send(ended)
        })
    });
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "interrupted",
            _ = terminate.recv() => "SIGTERM",
            _ = hang_up.recv() => "SIGHUP",
            _ = stdin_closed, if piped => "stdin was closed",
        }
    })
}
