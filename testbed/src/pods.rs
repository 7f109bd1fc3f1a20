//! What a node does with the operator's pods: it runs those that there are, and ends those that are gone.
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::Duration,
};

use anyhow::Result;
use futures::{StreamExt as _, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use tokio::time::{MissedTickBehavior, interval};

use crate::{api_server::ApiServer, container::Container, kubeconfig};

/// By what the chart and `config/` know the operator's pods.
const OPERATORS: &str = "app.kubernetes.io/name=consul-semaphore-operator";

const BEAT: Duration = Duration::from_secs(1);

/// Namespace and name.
type Name = (String, String);

impl ApiServer {
    /// Runs the operators of all pods that come, and `says` so, until this is dropped. One that can't run, or
    /// ends, is tried again, as by a node.
    pub async fn run_operators(&self, mut says: impl FnMut(String)) -> Result<Infallible> {
        let client = kubeconfig::client(self.kubeconfig()).await?;
        let pods = Api::<Pod>::all(client);
        let operators = ListParams::default().labels(OPERATORS);
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut running: BTreeMap<Name, Container> = BTreeMap::new();
        let mut starting = FuturesUnordered::new();
        let mut begun: BTreeSet<Name> = BTreeSet::new();
        let mut failed: BTreeMap<Name, String> = BTreeMap::new();
        loop {
            tokio::select! {
                Some((name, started)) = starting.next() => {
                    begun.remove(&name);
                    let started: Result<Container> = started;
                    match started {
                        Ok(container) => {
                            says(format!("The pod {} runs.", name.1));
                            running.insert(name, container);
                        }
                        Err(error) => {
                            let why = format!("{error:#}");
                            if failed.get(&name) != Some(&why) {
                                says(format!("The pod {} does not run: {why}", name.1));
                            }
                            failed.insert(name, why);
                        }
                    }
                }
                _ = beat.tick() => {
                    let there: BTreeSet<Name> = pods
                        .list(&operators)
                        .await?
                        .iter()
                        .filter(|pod| is_running(pod))
                        .map(|pod| (pod.namespace().unwrap_or_default(), pod.name_any()))
                        .collect();
                    running.retain(|(_, name), container| {
                        let ended = container.exit_status();
                        if let Some(status) = ended {
                            says(format!("The pod {name} ended by itself ({status}), and is run again."));
                        }
                        ended.is_none()
                    });
                    let gone: Vec<_> = running.keys().filter(|name| !there.contains(name)).cloned().collect();
                    for name in gone {
                        if let Some(container) = running.remove(&name) {
                            container.stop().await;
                            says(format!("The pod {} has ended.", name.1));
                        }
                    }
                    for name in there {
                        if !running.contains_key(&name) && begun.insert(name.clone()) {
                            starting.push(async move {
                                let started = self.try_run_pod(&name.0, &name.1).await;
                                (name, started)
                            });
                        }
                    }
                }
            }
        }
    }
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && phase == Some("Running")
}
