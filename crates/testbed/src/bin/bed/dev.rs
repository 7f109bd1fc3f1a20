//! A bed to try things on. It stays up until someone ends it.
use std::{
    env, fs,
    io::Read as _,
    os::unix::fs::{FileTypeExt as _, symlink},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use testbed::{Bed, web};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// If stdin is at its end sooner than that, there never was a program at the other end.
const NOBODY: Duration = Duration::from_secs(2);

/// Starts a bed, prints how to reach it, and ends it on Ctrl-C, SIGTERM or SIGHUP, or when the program at the other
/// end of stdin closes it.
pub(crate) async fn run() -> Result<()> {
    let page = web::free_address();
    let serve = ["--web-address", &page, "--web-auth", "none"];
    let asked = asked_to_end()?;
    tokio::pin!(asked);
    println!("Starting etcd, Kubernetes, Consul and the operator ...");
    let start = Instant::now();
    let bed = tokio::select! {
        bed = Bed::builder().operator_args(serve).try_start() => bed?,
        // Servers that have started already end with this process.
        why = &mut asked => {
            println!("Ended before they were up: {why}.");
            return Ok(());
        }
    };
    bed.try_kubectl(["apply", "-f", "crates/testbed/demo/semaphore.yaml"])
        .await?;
    println!("They are up after {:.0} s.", start.elapsed().as_secs_f32());
    explain(&bed, &page).await?;

    let why = asked.await;

    println!("\nEnding all of it: {why} ...");
    bed.end().await
}

async fn explain(bed: &Bed, page: &str) -> Result<()> {
    let metrics = bed
        .operator()
        .address()
        .await
        .context("the operator does not run")?;
    let program = env::current_exe()?;
    let programs = program.parent().context("this program is in a folder")?;
    // kubectl completes the plugin's words by a program of this name.
    let links = bed.folder().path().join("bin");
    fs::create_dir_all(&links)?;
    symlink(
        programs.join("kubectl-csem"),
        links.join("kubectl_complete-csem"),
    )?;
    println!(
        "
In another terminal:

  export KUBECONFIG={kubeconfig}
  export CONSUL_HTTP_ADDR={consul}
  export PATH={programs}:{links}:{servers}:$PATH
  source <(kubectl completion bash)     # completes kubectl csem, too

There is a ConsulSemaphore `database` with two slots in the namespace `demo`. Try:

  kubectl apply -f crates/testbed/demo/jobs.yaml
  kubectl csem watch database -n demo
  kubectl csem why migrate-5 -n demo
  kubectl get csem,jobs -n demo
  consul kv get -recurse semaphores/
  consul lock -n 2 semaphores/demo/database 'echo has a slot; sleep 10'
  consul-semaphore exec --prefix semaphores/demo/database --limit 2 -- sleep 10
  curl -s http://{metrics}/metrics
  tail -f {logs}/operator.log

The web page is at http://{page}. A Job of your own, to paste:

  kubectl apply -f - <<JOB
  apiVersion: batch/v1
  kind: Job
  metadata:
    name: mine
    namespace: demo
    annotations: {{consul-semaphore.io/semaphore: database}}
  spec:
    suspend: true
    template:
      metadata: {{annotations: {{bed.consul-semaphore.io/runs: 30s}}}}
      spec: {{restartPolicy: Never, containers: [{{name: a, image: a}}]}}
  JOB

No image is pulled and no command runs here: a pod takes a second, or as long as its annotation
bed.consul-semaphore.io/runs says. All namespaces may use any prefix in Consul (--trusted-namespaces='*').

All logs are in {logs}. Ctrl-C, or kill {pid}, ends all of it.",
        pid = std::process::id(),
        kubeconfig = bed.kubeconfig().display(),
        consul = bed.consul().address(),
        programs = programs.display(),
        links = links.display(),
        servers = env::join_paths(testbed::server_folders())?.display(),
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
        thread::spawn(move || {
            let begun = Instant::now();
            let ended = std::io::stdin().read_to_end(&mut Vec::new());
            if begun.elapsed() < NOBODY {
                // Without a terminal only a signal ends it.
                loop {
                    thread::park();
                }
            }
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
