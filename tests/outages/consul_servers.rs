//! Consul as in production, with three servers, and which of them can be lost.

use serde_json::json;
use testbed::{
    Bed, Consul, ConsulCluster, Fault, Namespace, Operator, Proxy, SEMAPHORE_FLAGS,
    eventually_within,
    proof::{is_warned, nothing_is_left, queue_is, running_pods},
    same,
};
use tokio::time::Instant;

use crate::stage::{Held, LONG, calls, most_calls};

const AWAY: [&str; 4] = [
    "NoLeader",
    "ConsulUnreachable",
    "UnexpectedAnswer",
    "TooManyRequests",
];

struct Stage {
    cluster: ConsulCluster,
    proxies: Vec<Proxy>,
    bed: Bed,
    operator: Operator,
    team: Namespace,
    /// Its evidence ends within seconds.
    short: Held,
    /// Its evidence outlives an outage of a minute.
    long: Held,
}

impl Stage {
    async fn new() -> Self {
        let cluster = Consul::cluster(3).await;
        let mut proxies = Vec::new();
        for server in cluster.servers() {
            proxies.push(Proxy::start(server.address()).await);
        }
        let addresses: Vec<_> = proxies.iter().map(Proxy::address).collect();
        let own = (
            "CONSUL_HTTP_ADDR".to_owned(),
            cluster.servers()[0].address().to_owned(),
        );
        let bed = Bed::builder()
            .with_consul([own])
            .without_operator()
            .start()
            .await;
        let address = [("CONSUL_HTTP_ADDR", addresses.join(","))];
        let operator = bed.another_operator("behind-proxies", [""; 0], address);
        operator.start().await;
        let team = bed.namespace("servers").await;
        Self {
            short: Held::new(&bed, &team, "Reacquire", "10s").await,
            long: Held::new(&bed, &team, "Reacquire", "240s").await,
            cluster,
            proxies,
            bed,
            operator,
            team,
        }
    }

    fn asked(&self) -> usize {
        self.proxies.iter().map(|proxy| proxy.calls().len()).sum()
    }

    /// Everything is as it should be: no pod of the Job with the long TTL was stopped, and a new Job gets a slot.
    async fn all_is_well(&mut self, job: &str) {
        self.short.runs_again(&self.bed).await;
        self.long.shows("Ready", "True", &[]).await;
        self.short.shows("Ready", "True", &[]).await;
        self.long.goes_on().await;
        let free = self.team.semaphore(job).create().await;
        let passes = self.team.job(job).semaphore(job).create().await;
        eventually_within(LONG, "a Job passes", || async {
            let job = passes.get().await.and_then(|job| job.status);
            same(job.and_then(|status| status.succeeded), Some(1))
        })
        .await;
        free.shows(json!({ "held": 0 })).await;
        for held in [&self.short, &self.long] {
            held.kept_the_limit();
        }
    }
}

#[tokio::test]
async fn servers_are_lost_and_come_back() {
    let mut stage = Stage::new().await;
    one_of_three_is_killed(&mut stage).await;
    the_leader_is_lost(&mut stage).await;
    no_server_leads_for_a_minute(&mut stage).await;
    the_operator_alone_is_cut_off(&mut stage).await;
    all_are_killed(&mut stage).await;
    the_data_is_lost(&mut stage).await;
    for held in [&stage.short, &stage.long] {
        held.job.finish().await;
        nothing_is_left(&stage.bed, &stage.team, &held.db).await;
    }
}

/// The one that the operator uses: the next of its addresses answers.
async fn one_of_three_is_killed(stage: &mut Stage) {
    let busiest = (0..3).max_by_key(|number| stage.proxies[*number].calls().len());
    // The bed itself reads from the first.
    let victim = busiest.filter(|number| *number != 0).unwrap_or(1);
    stage.proxies[0].faults(|_| Some(Fault::Refused(500, "gone")));
    stage.cluster.kill(victim).await;
    calls(&stage.operator, "session_renew", "ok", 8.0).await;
    stage.all_is_well("one-killed").await;
    stage.cluster.start_again(&[victim]).await;
    stage.proxies[0].heal();
}

/// A new leader is elected, without any effect.
async fn the_leader_is_lost(stage: &mut Stage) {
    let leader = stage.cluster.leader().await;
    stage.cluster.kill(leader).await;
    assert_ne!(stage.cluster.leader().await, leader);
    stage.cluster.start_again(&[leader]).await;
    stage.all_is_well("leader-killed").await;
}

/// Two of three hang: no leader until the evidence with the short TTL has ended, and then until that with a TTL of a
/// minute has.
async fn no_server_leads_for_a_minute(stage: &mut Stage) {
    let mut minute = Held::new(&stage.bed, &stage.team, "Reacquire", "60s").await;
    let hangs = [1, 2];
    let events = stage.short.times_suspended().await;
    for number in hangs {
        stage.cluster.servers()[number].pause().await;
    }
    let before = stage.asked();
    let began = Instant::now();
    stage.short.is_suspended(events).await;
    stage.short.shows("Ready", "False", &AWAY).await;
    stage.long.shows("Ready", "False", &AWAY).await;
    let next = stage.team.job("z-next").semaphore(stage.short.db.name());
    let next = next.runs("1h").create().await;
    queue_is(&stage.short.db, [&stage.short.job, &next]).await;
    minute.is_suspended(0).await;
    // Half a dozen semaphores and their sessions; each try of a call makes up to six requests.
    let asked = stage.asked() - before;
    assert!(asked < most_calls(1_500, began), "{asked} calls");
    next.is_waiting().await;
    stage.short.job.is_waiting().await;
    stage.long.goes_on().await;
    for number in hangs {
        stage.cluster.servers()[number].resume().await;
    }
    stage.short.runs_again(&stage.bed).await;
    minute.runs_again(&stage.bed).await;
    minute.kept_the_limit();
    next.is_waiting().await;
    next.delete().await;
    stage.all_is_well("no-leader").await;
    minute.job.finish().await;
    nothing_is_left(&stage.bed, &stage.team, &minute.db).await;
}

/// Others reach Consul, and take what the operator can't renew.
async fn the_operator_alone_is_cut_off(stage: &mut Stage) {
    let before = stage.short.times_suspended().await;
    for proxy in &stage.proxies {
        proxy.faults(|_| Some(Fault::Held));
    }
    stage.short.is_suspended(before).await;
    let (consul, prefix) = (stage.bed.consul(), stage.short.db.lock_prefix());
    eventually_within(LONG, "its session has expired", || async {
        same(consul.contenders(&prefix).await.len(), 0)
    })
    .await;
    let lock = format!("{prefix}/.lock");
    consul
        .put(&lock, SEMAPHORE_FLAGS, r#"{"Limit":1,"Holders":{}}"#)
        .await;
    let other = consul.take_slot(&prefix, 1).await;
    for proxy in &stage.proxies {
        proxy.heal();
    }
    stage.short.shows("Ready", "True", &[]).await;
    stage
        .short
        .db
        .shows(json!({ "held": 1, "heldHere": 0, "waiting": 1 }))
        .await;
    stage.short.job.is_waiting().await;
    consul.give_back(&prefix, &other).await;
    stage.all_is_well("cut-off").await;
}

/// All at once, and back with their data.
async fn all_are_killed(stage: &mut Stage) {
    let before = stage.short.times_suspended().await;
    for number in 0..3 {
        stage.cluster.kill(number).await;
    }
    stage.short.is_suspended(before).await;
    stage.long.shows("Ready", "False", &AWAY).await;
    stage.long.goes_on().await;
    stage.cluster.start_again(&[0, 1, 2]).await;
    stage.all_is_well("all-killed").await;
}

/// All at once, and back without data.
async fn the_data_is_lost(stage: &mut Stage) {
    let before = stage.short.times_suspended().await;
    for number in 0..3 {
        stage.cluster.kill(number).await;
    }
    for number in 0..3 {
        stage.cluster.forget(number).await;
    }
    stage.short.is_suspended(before).await;
    stage.cluster.start_again(&[0, 1, 2]).await;
    is_warned(&stage.long.job, "SlotLost", "has a slot again").await;
    // The one whose keys had changed so often that the new Consul's index is far behind.
    stage
        .short
        .shows("ConsulReachable", "True", &["IndexWentBack"])
        .await;
    stage.all_is_well("data-lost").await;
    let holders = stage
        .bed
        .consul()
        .holders(&stage.long.db.lock_prefix())
        .await;
    assert_eq!(holders.len(), 1);
    assert_eq!(running_pods(&stage.long.job).await, stage.long.pods);
    let again = stage.long.job.session().await;
    assert_ne!(again.as_ref(), Some(&stage.long.grant.session));
}
