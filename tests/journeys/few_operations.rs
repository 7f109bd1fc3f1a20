//! A Consul before 1.14 takes 64 operations in a transaction: a request that finds no room beside others is granted
//! whole, after them.

use serde_json::json;
use testbed::{Bed, Call, Fault, Job, Namespace, Proxy, proof::nothing_is_left};

use crate::several::runs_in;

const MOST: usize = 64;

/// How many Jobs ask for one slot, and come first.
const SMALL: usize = 25;

/// What an old Consul answers.
fn refuses(call: &Call) -> Option<Fault> {
    let says = "Transaction contains too many operations (71 > 64)";
    (call.operations().len() > MOST).then_some(Fault::Refused(413, says))
}

async fn job(team: &Namespace, name: &str, asks: &str, priority: i64) -> Job {
    let job = team.job(name).semaphore(asks).priority(priority);
    job.runs("1h").create().await
}

#[tokio::test]
async fn what_finds_no_room_in_a_transaction_is_granted_whole_after_the_others() {
    let bed = Bed::builder().without_operator().start().await;
    let proxy = Proxy::start(bed.consul().address()).await;
    proxy.faults(refuses);
    let address = [("CONSUL_HTTP_ADDR", proxy.address())];
    let operator = bed.another_operator("old-consul", [""; 0], address);
    operator.start().await;
    let team = bed.namespace("few-operations").await;
    // All come at once.
    let db = team.semaphore("db").limit(80).paused(true).create().await;
    let licenses = team.semaphore("licenses").limit(10).create().await;
    let mut small = Vec::new();
    for number in 0..SMALL {
        small.push(job(&team, &format!("small-{number}"), "db", 1).await);
    }
    let large = job(&team, "large", "db:45", 0).await;
    let wide = job(&team, "wide", "db:8, licenses:10", -1).await;
    db.shows(json!({ "waiting": SMALL + 2 })).await;
    db.resume().await;
    runs_in(&bed, &large, [(&db, 45)]).await;
    runs_in(&bed, &wide, [(&db, 8), (&licenses, 10)]).await;
    for job in &small {
        job.is_running().await;
    }
    // Once is enough to learn it, for each datacenter.
    assert!(proxy.met() <= 1, "{} were refused", proxy.met());
    for job in small.iter().chain([&large, &wide]) {
        job.delete().await;
    }
    nothing_is_left(&bed, &team, &db).await;
    nothing_is_left(&bed, &team, &licenses).await;
}
