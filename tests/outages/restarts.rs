//! The operator is restarted again and again while it can't reach Consul: a restart gives no running Job more time.

use std::time::Duration;

use testbed::{Bed, eventually, proof::nothing_is_left};
use tokio::time::sleep;

use crate::stage::Held;

/// How long each process runs: less than half a TTL, which a Job that it finds has at least if nothing was recorded.
const LIFE: Duration = Duration::from_secs(4);

#[tokio::test]
async fn an_operator_that_is_restarted_in_an_outage_suspends_in_time() {
    let bed = Bed::builder().without_operator().start().await;
    let link = bed.link_to_consul().await;
    let address = [("CONSUL_HTTP_ADDR", link.address().to_owned())];
    let operator = bed.another_operator("restarted", ["--leader-election", "off"], address);
    operator.start().await;
    let team = bed.namespace("restarts").await;
    let mut held = Held::new(&bed, &team, "Reacquire", "10s").await;
    let before = held.times_suspended().await;
    eventually("when the slot was last proved is recorded", || async {
        let leases = [
            "get",
            "leases",
            "-n",
            "consul-semaphore-system",
            "-o",
            "json",
        ];
        let leases = bed.kubectl(leases).await;
        // Proofs are recorded together by the TTL of their sessions.
        let recorded =
            leases.contains("consul-semaphore.io/last-proofs") && leases.contains("|10s");
        recorded.then_some(()).ok_or(leases)
    })
    .await;

    link.cut();
    let mut suspended = false;
    for _ in 0..15 {
        operator.kill().await;
        operator.start().await;
        sleep(LIFE).await;
        let spec = held.job.get().await.and_then(|job| job.spec);
        suspended = spec.and_then(|spec| spec.suspend) == Some(true);
        if suspended {
            break;
        }
    }
    assert!(suspended, "each restart gave it more time");
    held.is_suspended(before).await;

    link.mend();
    held.runs_again(&bed).await;
    held.kept_the_limit();
    held.job.finish().await;
    nothing_is_left(&bed, &team, &held.db).await;
}
