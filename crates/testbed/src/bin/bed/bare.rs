//! A cluster and a Consul without the operator, to install it as the docs say.
use std::{convert::Infallible, env};

use anyhow::{Context as _, Result};
use testbed::{Consul, Kubernetes};

use crate::dev::asked_to_end;

/// Starts both, prints how to reach them, and runs the operators of new pods, until it is asked to end.
pub(crate) async fn run() -> Result<()> {
    let asked = asked_to_end()?;
    tokio::pin!(asked);
    println!("Starting etcd, Kubernetes and Consul ...");
    let (kubernetes, consul) = tokio::select! {
        both = async { tokio::join!(Kubernetes::start_with_deployments(), Consul::start()) } => both,
        // Servers that have started already end with this process.
        why = &mut asked => {
            println!("Ended before they were up: {why}.");
            return Ok(());
        }
    };
    let program = env::current_exe()?;
    let programs = program.parent().context("this program is in a folder")?;
    println!(
        "
They are up. In another terminal:

  export KUBECONFIG={kubeconfig}
  export CONSUL_HTTP_ADDR={consul}
  export PATH={programs}:{servers}:$PATH

Then install the operator as the README or docs/install.md say, without building an image: here each of its
pods is the program that was built beside this one, run with what the pod says. In place of
http://consul-server.consul.svc:8500 give {consul}.

The pods of Jobs run no command: each takes a second, or as long as its annotation
bed.consul-semaphore.io/runs says, such as 30s. So does the one of `helm test`: run consul-semaphore-operator check
by hand. There is no kubelet, and pods have no addresses: kubectl logs, exec and port-forward, helm test --logs and
kubectl get --raw .../proxy/readyz don't work, and all pods are shown as ready, whatever their program does. This
says which of the operator's pods run, and where their /readyz and web pages are. All logs are in {logs}.
Ctrl-C, or kill {pid}, ends all of it.
",
        kubeconfig = kubernetes.kubeconfig().display(),
        consul = consul.address(),
        programs = programs.display(),
        servers = env::join_paths(testbed::server_folders())?.display(),
        logs = kubernetes.folder().path().display(),
        pid = std::process::id(),
    );
    tokio::select! {
        why = asked => {
            println!("\nEnding all of it: {why} ...");
            Ok(())
        }
        failed = kubernetes.run_operators(|what| println!("{what}")) => failed.map(|never: Infallible| match never {}),
    }
}
