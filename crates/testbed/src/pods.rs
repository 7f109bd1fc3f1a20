//! Runs the operator's pods as a node does: starts new pods and ends deleted ones.
use std::{collections::BTreeMap, convert::Infallible, time::Duration};

use anyhow::Result;
use futures::{StreamExt as _, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use tokio::{
    sync::oneshot,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{api_server::ApiServer, container::Container, kubeconfig};

/// The label by which the chart and `config/` select the operator's pods.
const OPERATORS: &str = "app.kubernetes.io/name=consul-semaphore-operator";

const BEAT: Duration = Duration::from_secs(1);

/// Namespace and name.
type Name = (String, String);

impl ApiServer {
    /// Runs the operators of all new pods, and reports it through `says`, until this is dropped. One that can't run,
    /// or ends, is tried again, as on a node.
    pub async fn run_operators(&self, says: impl Fn(String)) -> Result<Infallible> {
        let client = kubeconfig::client(self.kubeconfig()).await?;
        let pods = Api::<Pod>::all(client);
        let operators = ListParams::default().labels(OPERATORS);
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut at_work = FuturesUnordered::new();
        // A pod's sender is dropped when the pod is deleted.
        let mut there: BTreeMap<Name, oneshot::Sender<Infallible>> = BTreeMap::new();
        loop {
            tokio::select! {
                Some(()) = at_work.next() => {}
                _ = beat.tick() => {
                    let running = pods.list(&operators).await?;
                    let name = |pod: &Pod| (pod.namespace().unwrap_or_default(), pod.name_any());
                    let running: Vec<Name> = running.iter().filter(|pod| is_running(pod)).map(name).collect();
                    there.retain(|name, _| running.contains(name));
                    for name in running {
                        there.entry(name.clone()).or_insert_with(|| {
                            let (keep, gone) = oneshot::channel();
                            at_work.push(self.run_operator(name, gone, &says));
                            keep
                        });
                    }
                }
            }
        }
    }

    /// Runs the operator of one pod until the pod is deleted.
    async fn run_operator(
        &self,
        (namespace, name): Name,
        mut gone: oneshot::Receiver<Infallible>,
        says: impl Fn(String),
    ) {
        let mut failed = false;
        loop {
            let started = tokio::select! {
                // If it is still starting, this also ends its process.
                _ = &mut gone => return,
                started = self.try_run_pod(&namespace, &name) => started,
            };
            match started {
                Ok(container) => {
                    failed = false;
                    let page = container.page();
                    let page =
                        page.map_or(String::new(), |page| format!(", web page: http://{page}"));
                    says(format!(
                        "The pod {name} runs: http://{}/readyz{page}",
                        container.address()
                    ));
                    tokio::select! {
                        _ = &mut gone => {
                            container.stop().await;
                            return says(format!("The pod {name} has ended."));
                        }
                        () = ended(&container) => says(format!("The pod {name} ended by itself, and is run again.")),
                    }
                }
                // Only the first error is reported, because the end of the log that it shows differs each time.
                Err(error) if !std::mem::replace(&mut failed, true) => {
                    says(format!(
                        "The pod {name} does not run, and is tried again: {error:#}"
                    ));
                }
                Err(_) => {}
            }
            sleep(BEAT).await;
        }
    }
}

async fn ended(container: &Container) {
    while container.exit_status().is_none() {
        sleep(BEAT).await;
    }
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && phase == Some("Running")
}
