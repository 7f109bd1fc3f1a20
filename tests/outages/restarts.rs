//! The operator is restarted again and again while it can't reach Consul: a restart gives no running Job more time, and
//! neither does a change of leader or a process that sleeps.

use std::time::Duration;

use testbed::{Bed, Namespace, Operator, eventually, proof::nothing_is_left};
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
    is_recorded(&bed).await;

    link.cut();
    is_suspended_in_time(&held, before, async || {
        operator.kill().await;
        operator.start().await;
        sleep(LIFE).await;
    })
    .await;

    link.mend();
    ends_well(&bed, &team, &mut held).await;
}

/// With the default election, by a Lease. Each leader also sleeps for a moment.
#[tokio::test]
async fn leaders_that_replace_each_other_in_an_outage_suspend_in_time() {
    let bed = Bed::builder().without_operator().start().await;
    let link = bed.link_to_consul().await;
    let [a, b] = ["a", "b"].map(|name| {
        let address = [("CONSUL_HTTP_ADDR", link.address().to_owned())];
        bed.another_operator(name, [""; 0], address)
    });
    a.start().await;
    let team = bed.namespace("leaders").await;
    let mut held = Held::new(&bed, &team, "Reacquire", "10s").await;
    let before = held.times_suspended().await;
    is_recorded(&bed).await;

    link.cut();
    let mut leader = &a;
    is_suspended_in_time(&held, before, async || {
        let next = if leader.name() == a.name() { &b } else { &a };
        next.start().await;
        leader.stop().await;
        leader = next;
        sleep(LIFE / 4).await;
        sleeps(leader, LIFE / 2).await;
        sleep(LIFE / 4).await;
    })
    .await;

    link.mend();
    ends_well(&bed, &team, &mut held).await;
}

async fn sleeps(operator: &Operator, time: Duration) {
    operator.pause().await;
    sleep(time).await;
    operator.resume().await;
}

/// Waits until it is recorded when the slot was last proved: how long ago that was, and the TTL.
async fn is_recorded(bed: &Bed) {
    eventually("when the slot was last proved is recorded", || async {
        let leases = ["get", "leases", "-n", "consul-semaphore-system"];
        let leases = bed.kubectl(leases.into_iter().chain(["-o", "json"])).await;
        let recorded =
            leases.contains("consul-semaphore.io/last-proofs") && leases.contains(",10000,");
        recorded.then_some(()).ok_or(leases)
    })
    .await;
}

/// Its Job is suspended, though `again` happens again and again, and it was suspended `before` times until then.
async fn is_suspended_in_time(held: &Held, before: i32, mut again: impl AsyncFnMut()) {
    let mut suspended = false;
    for _ in 0..15 {
        again().await;
        let spec = held.job.get().await.and_then(|job| job.spec);
        suspended = spec.and_then(|spec| spec.suspend) == Some(true);
        if suspended {
            break;
        }
    }
    assert!(suspended, "each process gave it more time");
    held.is_suspended(before).await;
}

async fn ends_well(bed: &Bed, team: &Namespace, held: &mut Held) {
    held.runs_again(bed).await;
    held.kept_the_limit();
    held.job.finish().await;
    nothing_is_left(bed, team, &held.db).await;
}
