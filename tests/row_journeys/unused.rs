//! Kinds that are on, and of which there is nothing.

use std::collections::BTreeMap;

use consul_semaphore_workload::{Kind, WAITING};
use testbed::{Bed, Controller};

use crate::stage::allow;

#[tokio::test]
async fn a_kind_that_nobody_uses_costs_one_request_for_its_watch() {
    let bed = Bed::builder().without_operator().start().await;
    for controller in Controller::ALL {
        controller.define(&bed).await;
    }
    allow(&bed).await;
    let (proxy, kubeconfig) = bed.proxy_to_kubernetes().await;
    let kubeconfig = kubeconfig.display().to_string();
    let operator = bed.another_operator("one", ["--workloads=all"], [("KUBECONFIG", kubeconfig)]);
    operator.start().await;
    // A day of Jobs.
    let team = bed.namespace("unused").await;
    let db = team.semaphore("db").create().await;
    for name in ["a", "b", "c"] {
        let job = team.job(name).semaphore("db").create().await;
        job.has_event("SlotReleased").await;
    }
    db.is_ready().await;
    let kinds = Kind::all();
    let mut asked: BTreeMap<String, usize> = BTreeMap::new();
    for call in proxy.calls() {
        // Pods that hold slots, owners of Kueue's Workloads, and whether a kind can be listed are other questions.
        let label = WAITING.replace('=', "%3D").replace('/', "%2F");
        let is_meant = |kind: &&Kind| {
            let plural = kind.resource().plural;
            let waits = match kind {
                Kind::KueueWorkload => call.query.split('&').all(|part| part != "limit=1"),
                _ => call.query.contains(&label),
            };
            call.path.ends_with(&plural) && waits
        };
        if let Some(kind) = kinds[1..].iter().find(is_meant) {
            *asked.entry(kind.resource().plural).or_default() += 1;
        }
    }
    let once = kinds[1..].iter().map(|kind| (kind.resource().plural, 1));
    assert_eq!(asked, once.collect());
    operator.stop().await;
}
