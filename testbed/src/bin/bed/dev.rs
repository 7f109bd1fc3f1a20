//! A bed to try things on, until someone ends it.
use std::{io::Read as _, time::Instant};

use anyhow::{Context as _, Result};
use testbed::Bed;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// Starts a bed, says how to reach it, and ends it on Ctrl-C, SIGTERM, SIGHUP or a closed stdin.
pub(crate) async fn run() -> Result<()> {
    let asked = asked_to_end()?;
    tokio::pin!(asked);
    println!("Starting etcd, Kubernetes, Consul and the operator ...");
    let start = Instant::now();
    let bed = tokio::select! {
        bed = Bed::builder().try_start() => bed?,
        // What has been started already ends with this process.
        () = &mut asked => return Ok(()),
    };
    bed.try_kubectl(["apply", "-f", "testbed/demo/semaphore.yaml"])
        .await?;
    println!("They are up after {:.0} s.", start.elapsed().as_secs_f32());
    explain(&bed).await?;

    asked.await;

    println!("\nEnding all of it ...");
    bed.end().await
}

async fn explain(bed: &Bed) -> Result<()> {
    let metrics = bed
        .operator()
        .address()
        .await
        .context("the operator does not run")?;
    println!(
        "
In another terminal:

  export KUBECONFIG={kubeconfig}
  export CONSUL_HTTP_ADDR={consul}
  export PATH={servers}:$PATH

There is a ConsulSemaphore `database` with two slots in the namespace `demo`. Try:

  kubectl apply -f testbed/demo/jobs.yaml
  kubectl get csem,jobs -n demo --watch
  kubectl describe csem database -n demo
  consul kv get -recurse semaphores/
  curl -s http://{metrics}/metrics
  tail -f {logs}/operator.log

All logs are in {logs}. Ctrl-C ends all of it.",
        kubeconfig = bed.kubeconfig().display(),
        consul = bed.consul().address(),
        servers = testbed::servers().display(),
        logs = bed.folder().path().display(),
    );
    Ok(())
}

/// Ready when someone wants the end. The handlers are set when this returns.
fn asked_to_end() -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (closed, stdin_closed) = oneshot::channel();
    // A thread, because a read from stdin can't be given up, and must not hold up the end.
    std::thread::spawn(move || {
        let ended = std::io::stdin().read_to_end(&mut Vec::new());
        closed.send(ended)
    });
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
            _ = stdin_closed => {}
        }
    })
}
