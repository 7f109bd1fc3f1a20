//! Consul is up, but its answers are late, wrong or missing: the evidence for the slots of running Jobs ends, and
//! each Job does what its semaphore says.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::api::DeleteParams;
use testbed::{
    Bed, Call, Fault, Namespace, Operator, Proxy, eventually, eventually_within,
    proof::{nothing_is_left, runs_in_a_slot},
    same,
};
use tokio::time::Instant;

use crate::stage::{Held, LONG, calls, is_emitted_again, most_calls, says, times, times_emitted};

/// The event of a Job that goes on without a slot.
const CONTINUES: &str = "it continues";

/// What every event of a lost slot says, whatever became of the Job.
const SLOT_LOST: &str = "slot";

struct Stage {
    bed: Bed,
    proxy: Proxy,
    operator: Operator,
    team: Namespace,
    reacquires: Held,
    suspends: Held,
    goes_on: Held,
}

impl Stage {
    async fn new() -> Self {
        let bed = Bed::builder().without_operator().start().await;
        let proxy = Proxy::start(bed.consul().address()).await;
        let address = [("CONSUL_HTTP_ADDR", proxy.address())];
        let operator = bed.another_operator("behind-proxy", [""; 0], address);
        operator.start().await;
        let team = bed.namespace("answers").await;
        Self {
            reacquires: Held::new(&bed, &team, "Reacquire", "10s").await,
            suspends: Held::new(&bed, &team, "Suspend", "10s").await,
            goes_on: Held::new(&bed, &team, "Continue", "10s").await,
            bed,
            proxy,
            operator,
            team,
        }
    }

    fn all(&self) -> [&Held; 3] {
        [&self.reacquires, &self.suspends, &self.goes_on]
    }

    /// Faults until the evidence has ended, and what is shown meanwhile; then everything recovers.
    async fn the_evidence_ends(
        &mut self,
        rule: impl Fn(&Call) -> Option<Fault> + Send + Sync + 'static,
        reasons: &[&str],
    ) {
        let losses = self.losses().await;
        let events = [
            self.reacquires.times_suspended().await,
            self.suspends.times_suspended().await,
            times_emitted(&self.goes_on.job, CONTINUES).await,
        ];
        let before = self.proxy.calls().len();
        let began = Instant::now();
        self.proxy.faults(rule);
        self.goes_on
            .shows("SlotsAvailable", "False", &["RunningWithoutSlot"])
            .await;
        self.reacquires.is_suspended(events[0]).await;
        self.suspends.is_suspended(events[1]).await;
        is_emitted_again(&self.goes_on.job, CONTINUES, events[2]).await;
        if !reasons.is_empty() {
            for held in self.all() {
                held.shows("ConsulReachable", "False", reasons).await;
                held.shows("Ready", "False", reasons).await;
            }
        }
        self.goes_on.goes_on().await;
        // Or more: pending calls may still be answered, and are enough for a moment. A Job may be seen suspended
        // before the operator has the answer that it counts.
        eventually("each loss is counted", || async {
            let counted = self.losses().await - losses;
            if counted < 3 { Err(counted) } else { Ok(()) }
        })
        .await;
        // Three semaphores and their sessions make calls for seconds; a storm would be thousands.
        let asked = self.proxy.calls().len() - before;
        let most = most_calls(400, began);
        assert!(asked < most, "{asked} calls: {:?}", self.proxy.calls());

        self.proxy.heal();
        for held in [&mut self.reacquires, &mut self.suspends] {
            held.runs_again(&self.bed).await;
        }
        self.goes_on
            .shows("SlotsAvailable", "False", &["AllSlotsHeld"])
            .await;
        for held in self.all() {
            held.shows("Ready", "True", &[]).await;
            held.kept_the_limit();
        }
        self.goes_on.goes_on().await;
    }

    async fn losses(&self) -> u32 {
        let page = self.operator.get("/metrics").await;
        let values = page
            .lines()
            .filter(|line| line.contains("_losses_total{"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok());
        values.sum()
    }
}

#[tokio::test]
async fn evidence_ends_and_all_comes_back_by_itself() {
    let mut stage = Stage::new().await;

    // Without blocking queries the prefixes are still read, at a moderate pace.
    let before = stage.proxy.calls();
    stage
        .proxy
        .faults(|call| call.is_blocking().then_some(Fault::Refused(500, "no")));
    calls(&stage.operator, "session_renew", "ok", 15.0).await;
    let all = stage.proxy.calls();
    let asked = &all[before.len()..];
    let renewals = asked.iter().filter(|call| call.is_renewal()).count();
    let readings = asked.iter().filter(|call| call.is_reading()).count();
    assert!(readings < 25 * renewals, "{readings} while {renewals}");
    for held in stage.all() {
        held.goes_on().await;
    }
    stage.proxy.heal();

    // Renewals fail for good while the watch works, and the reverse.
    stage
        .the_evidence_ends(
            |call| call.is_renewal().then_some(Fault::Refused(500, "no")),
            &[],
        )
        .await;
    stage
        .the_evidence_ends(
            |call| call.is_reading().then_some(Fault::Refused(500, "no")),
            &["UnexpectedAnswer"],
        )
        .await;
    // Storms, a revoked token, a Consul that does not answer at all.
    for (status, text, reason) in [
        (429, "Your IP is issuing too many", "TooManyRequests"),
        (500, "rpc error making call: EOF", "UnexpectedAnswer"),
        (500, "No cluster leader", "NoLeader"),
        (403, "ACL not found", "PermissionDenied"),
    ] {
        let refused = move |_: &Call| Some(Fault::Refused(status, text));
        stage.the_evidence_ends(refused, &[reason]).await;
    }
    what_is_said_again_is_counted(&stage).await;
    stage
        .the_evidence_ends(|_| Some(Fault::Held), &["ConsulUnreachable"])
        .await;

    an_operator_that_slept_asks_before_it_stops(&mut stage).await;
    a_transaction_without_an_answer_delays_nothing(&mut stage).await;
    slow_answers_stop_nothing(&stage).await;
    our_node_is_deregistered(&mut stage).await;
    for held in stage.all() {
        held.job.finish().await;
        nothing_is_left(&stage.bed, &stage.team, &held.db).await;
        held.kept_the_limit();
    }
}

/// What was said in each round is one event, which was counted. It is deleted here: the next round says it anew.
async fn what_is_said_again_is_counted(stage: &Stage) {
    let mut events = stage.goes_on.job.events().await;
    events.retain(|event| says(event, CONTINUES));
    let [event] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert!(times(event) >= 6, "{event:?}");
    let name = event.metadata.name.as_deref().expect("a name");
    let events = stage.team.api::<Event>();
    let deleted = events.delete(name, &DeleteParams::default()).await;
    deleted.expect("an event can be deleted");
}

/// Frozen for longer than Consul keeps the sessions with the short TTL, while one with a long TTL holds.
async fn an_operator_that_slept_asks_before_it_stops(stage: &mut Stage) {
    let holds = Held::new(&stage.bed, &stage.team, "Suspend", "45s").await;
    let sessions = stage.all().map(|held| held.db.lock_prefix());
    let suspended = stage.suspends.times_suspended().await;
    let losses = [
        times_emitted(&stage.reacquires.job, SLOT_LOST).await,
        times_emitted(&stage.goes_on.job, SLOT_LOST).await,
    ];
    stage.operator.pause().await;
    for prefix in &sessions {
        eventually_within(LONG, "its session has expired", || async {
            same(stage.bed.consul().contenders(prefix).await.len(), 0)
        })
        .await;
    }
    stage.operator.resume().await;
    // The operator that leads again has half a TTL to find another slot. On a slow machine that is too little, and the
    // Job is suspended first.
    is_emitted_again(&stage.reacquires.job, SLOT_LOST, losses[0]).await;
    stage.reacquires.runs_again(&stage.bed).await;
    is_emitted_again(&stage.goes_on.job, SLOT_LOST, losses[1]).await;
    stage.goes_on.goes_on().await;
    stage
        .goes_on
        .shows("SlotsAvailable", "False", &["AllSlotsHeld"])
        .await;
    stage.suspends.was_suspended(suspended).await;
    stage.suspends.runs_again(&stage.bed).await;
    calls(&stage.operator, "session_renew", "ok", 6.0).await;
    holds.goes_on().await;
    assert_eq!(holds.job.session().await, Some(holds.grant.session.clone()));
    holds.job.finish().await;
    nothing_is_left(&stage.bed, &stage.team, &holds.db).await;
}

/// A transaction that hangs does not stop the operator from suspending a Job in time.
async fn a_transaction_without_an_answer_delays_nothing(stage: &mut Stage) {
    let (bed, team) = (&stage.bed, &stage.team);
    // Nine seconds: less than the timeout of a call, and enough for it to be sent.
    let mut held = Held::with_grace(bed, team, "Suspend", "12s", 3).await;
    let next = stage.team.job("next").semaphore(held.db.name());
    let next = next.runs("1h").create().await;
    eventually("there is a session ahead for it", || async {
        let sessions = stage.bed.consul().sessions().await;
        let mut names = sessions
            .iter()
            .filter_map(|session| session["Name"].as_str());
        names.any(|name| name.contains("/next/"))
    })
    .await;
    stage.proxy.faults(|_| Some(Fault::Held));
    held.db.set_limit(2).await;
    let prefix = held.db.lock_prefix();
    held.job.is_suspended().await;
    let contenders = stage.bed.consul().contenders(&prefix).await;
    assert!(!contenders.is_empty(), "its session lives yet");
    held.is_suspended(0).await;
    eventually("it is told of the call that was cut short", || async {
        let logs = stage.operator.logs();
        let logged = logs.contains("no answer before a running Job must be suspended");
        logged.then_some(()).ok_or(logs)
    })
    .await;
    stage.proxy.heal();
    next.is_running().await;
    held.runs_again(&stage.bed).await;
    for job in [&held.job, &next] {
        job.finish().await;
    }
    nothing_is_left(&stage.bed, &stage.team, &held.db).await;
    for held in [&mut stage.reacquires, &mut stage.suspends] {
        held.runs_again(&stage.bed).await;
    }
}

/// Each answer takes seconds; a TTL that is long in comparison survives that, and Jobs get slots.
async fn slow_answers_stop_nothing(stage: &Stage) {
    let held = Held::new(&stage.bed, &stage.team, "Reacquire", "60s").await;
    let next = stage.team.job("slow").semaphore(held.db.name());
    let next = next.runs("1h").create().await;
    next.has_event("SlotWaiting").await;
    stage
        .proxy
        .faults(|_| Some(Fault::Late(Duration::from_secs(2))));
    calls(&stage.operator, "session_renew", "ok", 2.0).await;
    calls(&stage.operator, "kv_watch", "ok", 6.0).await;
    held.goes_on().await;
    held.job.finish().await;
    eventually_within(LONG, "the next runs", || async {
        same(testbed::proof::running_pods(&next).await.len(), 1)
    })
    .await;
    stage.proxy.heal();
    runs_in_a_slot(&stage.bed, &held.db, &next).await;
    next.finish().await;
    nothing_is_left(&stage.bed, &stage.team, &held.db).await;
    held.kept_the_limit();
}

/// All sessions of our external node are deleted with it, under load.
async fn our_node_is_deregistered(stage: &mut Stage) {
    // The slow answers may have caused the suspension of those with the short TTL.
    let team = &stage.team;
    for held in [&mut stage.reacquires, &mut stage.suspends] {
        held.runs_again(&stage.bed).await;
    }
    let load = team.semaphore("load").limit(2).create().await;
    let observer = stage.bed.watch_limit(&load.lock_prefix()).await;
    let mut jobs = Vec::new();
    for number in 0..8 {
        let job = team.job(&format!("load-{number}")).semaphore("load");
        jobs.push(job.runs("1s").create().await);
    }
    let node = format!("k8s-{}", testbed::helpers::cluster_id(&stage.bed).await);
    for job in jobs.iter().step_by(3) {
        job.is_complete().await;
        let body = serde_json::json!({ "Node": node });
        stage
            .bed
            .consul()
            .put_json("catalog/deregister", body)
            .await;
    }
    for job in &jobs {
        job.is_complete().await;
    }
    nothing_is_left(&stage.bed, team, &load).await;
    assert!(observer.peak_holders() <= 2);
    stage.suspends.runs_again(&stage.bed).await;
    stage.reacquires.runs_again(&stage.bed).await;
}
