//! The operator is stopped, killed, and started again: slots stay with their Jobs.

use std::collections::BTreeSet;

use consul_semaphore::Identity;
use consul_semaphore_workload::Kind;
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Map, json};
use testbed::{
    Bed, Job, Namespace, Operator, SEMAPHORE_FLAGS, Semaphore, eventually, helpers::cluster_id,
};

use crate::mutex;

#[tokio::test]
async fn a_restart_stops_no_job_and_forgets_no_slot() {
    let bed = Bed::start().await;
    slots_outlive_the_operator(&bed, End::Stopped).await;
    slots_outlive_the_operator(&bed, End::Killed).await;
    a_mutex_outlives_the_operator(&bed).await;
    a_job_deleted_meanwhile_gives_its_slot_back(&bed).await;
    a_start_cut_short_is_completed_or_given_back(&bed).await;
}

/// How the operator ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Stopped,
    Killed,
}

impl End {
    async fn of(self, operator: &Operator) {
        match self {
            Self::Stopped => {
                let status = operator.stop().await;
                assert!(status.success(), "{status}: {}", operator.logs());
            }
            Self::Killed => {
                operator.kill().await;
            }
        }
    }
}

/// Starts the operator, and returns where in its log that run starts.
async fn start_again(operator: &Operator) -> usize {
    let before = operator.logs().len();
    operator.start().await;
    before
}

/// The lines about a semaphore in the log of a run, without what precedes the message.
fn log_lines(
    operator: &Operator,
    run: usize,
    team: &Namespace,
    what: &str,
) -> Vec<(usize, String)> {
    let of_team = format!("{}/", team.name());
    let logs = operator.logs().split_off(run);
    logs.lines()
        .enumerate()
        .filter(|(_, line)| line.contains(&of_team) && line.contains(what))
        .map(|(number, line)| (number, line.to_owned()))
        .collect()
}

/// Checks that a run adopted all these sessions before it granted anything in this namespace.
fn adopted_first(operator: &Operator, run: usize, team: &Namespace, sessions: &BTreeSet<String>) {
    let adopted = log_lines(operator, run, team, " adopted");
    let granted = log_lines(operator, run, team, " granted");
    for session in sessions {
        assert!(
            adopted.iter().any(|(_, line)| line.contains(session)),
            "{session} in {adopted:?}"
        );
    }
    let last = adopted.iter().map(|(number, _)| *number).max();
    let first = granted.iter().map(|(number, _)| *number).min();
    assert!(
        first.is_none_or(|first| last < Some(first)),
        "{adopted:?} before {granted:?}"
    );
}

/// The names of a Job's pods: different ones later mean that it was stopped in between.
async fn pods(job: &Job) -> Vec<String> {
    job.pods().await.iter().map(ResourceExt::name_any).collect()
}

async fn slots_outlive_the_operator(bed: &Bed, end: End) {
    let (operator, consul) = (bed.operator(), bed.consul());
    let team = bed.namespace("restart").await;
    let db = team.semaphore("db").limit(2).create().await;
    let prefix = db.lock_prefix();
    let observer = bed.watch_limit(&prefix).await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    let b = team.job("b").semaphore("db").runs("1h").create().await;
    a.is_running().await;
    b.is_running().await;
    let c = team.job("c").semaphore("db").runs("1h").create().await;
    c.has_event("SlotWaiting").await;
    let d = team.job("d").semaphore("db").runs("1h").create().await;
    d.has_event("SlotWaiting").await;
    let (holders, contenders) = (
        consul.holders(&prefix).await,
        consul.contenders(&prefix).await,
    );
    assert_eq!((holders.len(), contenders.len()), (2, 2));
    let (session, running) = (a.session().await, pods(&a).await);

    end.of(operator).await;
    assert_eq!(consul.holders(&prefix).await, holders, "{end:?}");
    assert_eq!(consul.contenders(&prefix).await, contenders, "{end:?}");
    // Nobody releases the slot of a Job that is done now, and nobody starts the next.
    b.finish().await;
    c.is_waiting().await;
    assert_eq!(consul.holders(&prefix).await, holders, "{end:?}");

    let run = start_again(operator).await;
    c.is_running().await;
    b.has_event("SlotReleased").await;
    adopted_first(operator, run, &team, &holders);
    a.is_running().await;
    assert_eq!(a.session().await, session);
    assert_eq!(pods(&a).await, running);
    db.shows(json!({ "held": 2, "heldHere": 2, "waiting": 1 }))
        .await;

    // Everything continues as before.
    a.finish().await;
    d.is_running().await;
    d.finish().await;
    d.has_event("SlotReleased").await;
    c.finish().await;
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
    // Each once for each term of leadership.
    let adopted = log_lines(operator, run, &team, " adopted");
    let known = |line: &str| holders.iter().any(|session| line.contains(session));
    assert!(adopted.iter().all(|(_, line)| known(line)), "{adopted:?}");
    assert_eq!(observer.peak_holders(), 2);
    assert!(observer.peak_jobs() <= 2, "{:?}", observer.seen());
    assert_eq!(observer.errors(), Vec::<String>::new());
    assert_eq!(observer.seen().all_holders.len(), 4, "one session a Job");
}

async fn a_mutex_outlives_the_operator(bed: &Bed) {
    let team = bed.namespace("restart-mutex").await;
    let db = mutex::mutex(&team, "15s").await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    let grant = mutex::runs_with(bed, &db, &a, mutex::MUTEX_FLAGS).await;
    let running = pods(&a).await;
    let b = team.job("b").semaphore("db").create().await;
    b.has_event("SlotWaiting").await;
    for end in [End::Stopped, End::Killed] {
        end.of(bed.operator()).await;
        let run = start_again(bed.operator()).await;
        db.is_ready().await;
        let sessions = [grant.session.clone()].into();
        eventually("it is adopted", || async {
            !log_lines(bed.operator(), run, &team, " adopted").is_empty()
        })
        .await;
        adopted_first(bed.operator(), run, &team, &sessions);
    }
    assert_eq!(
        mutex::runs_with(bed, &db, &a, mutex::MUTEX_FLAGS).await,
        grant
    );
    assert_eq!(pods(&a).await, running);
    b.is_waiting().await;
    a.finish().await;
    b.is_complete().await;
}

async fn a_job_deleted_meanwhile_gives_its_slot_back(bed: &Bed) {
    let operator = bed.operator();
    let team = bed.namespace("restart-deleted").await;
    let db = team.semaphore("db").limit(1).create().await;
    let gone = team.job("gone").semaphore("db").runs("1h").create().await;
    gone.is_running().await;
    let next = team.job("next").semaphore("db").create().await;
    next.has_event("SlotWaiting").await;
    let withdrawn = team.job("withdrawn").semaphore("db").create().await;
    withdrawn.has_event("SlotWaiting").await;

    End::Stopped.of(operator).await;
    gone.delete().await;
    withdrawn.delete().await;
    gone.is_gone().await;
    withdrawn.is_gone().await;
    gone.has_no_pods().await;
    assert_eq!(bed.consul().holders(&db.lock_prefix()).await.len(), 1);

    operator.start().await;
    next.is_complete().await;
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
}

/// Writes to Consul what a grant writes, like an operator that ends before it starts the Job.
async fn grant_without_start(bed: &Bed, team: &Namespace, db: &Semaphore, job: &Job) -> String {
    let object = job.get().await.expect("the Job");
    let uid = object.metadata.uid.expect("its uid");
    let session = contend(bed, team, db, &Kind::Job, job.name(), &uid).await;
    hold(bed, db, [session.as_str()]).await;
    session
}

/// Writes to Consul the contender of a workload, as the operator of the bed does.
pub(crate) async fn contend(
    bed: &Bed,
    team: &Namespace,
    db: &Semaphore,
    kind: &Kind,
    name: &str,
    uid: &str,
) -> String {
    let (consul, cluster) = (bed.consul(), cluster_id(bed).await);
    let identity = Identity {
        cluster: cluster.as_str().into(),
        namespace: team.name().into(),
        semaphore: db.name().into(),
        key: None,
        kind: kind.name(),
        workload: name.into(),
        uid: uid.into(),
        ordinal: 0,
    };
    let session = consul
        .create_session(json!({
            "Name": identity.session_name(),
            "Node": format!("k8s-{cluster}"),
            "NodeChecks": [],
            "Behavior": "delete",
            "LockDelay": "0s",
            "TTL": "120s",
        }))
        .await;
    let body = json!({
        "cluster": "cut-short", "clusterId": cluster, "kind": kind.name().as_str(), "namespace": team.name(),
        "name": name, "uid": uid, "semaphore": db.name(), "time": Timestamp::now(),
    });
    let key = format!("{}/{session}", db.lock_prefix());
    consul
        .put_json(
            &format!("kv/{key}?acquire={session}&flags={SEMAPHORE_FLAGS}"),
            body,
        )
        .await;
    session
}

/// Writes to Consul that these sessions, and no others, hold all slots.
pub(crate) async fn hold(bed: &Bed, db: &Semaphore, sessions: impl IntoIterator<Item = &str>) {
    let holders = sessions.into_iter();
    let holders: Map<_, _> = holders
        .map(|session| (session.to_owned(), true.into()))
        .collect();
    let lock = json!({ "Limit": holders.len(), "Holders": holders });
    let key = format!("{}/.lock", db.lock_prefix());
    bed.consul()
        .put(&key, SEMAPHORE_FLAGS, lock.to_string())
        .await;
}

async fn a_start_cut_short_is_completed_or_given_back(bed: &Bed) {
    let (operator, consul) = (bed.operator(), bed.consul());
    let team = bed.namespace("cut-short").await;
    let mut semaphores = Vec::new();
    for name in ["completed", "on-hold"] {
        let semaphore = team.semaphore(name).limit(1).create().await;
        semaphore.is_ready().await;
        // The node of the sessions is registered with the first.
        let first = team.job(&format!("first-{name}")).semaphore(name);
        first.create().await.has_event("SlotReleased").await;
        semaphores.push(semaphore);
    }
    End::Killed.of(operator).await;
    let mut jobs = Vec::new();
    let mut sessions = BTreeSet::new();
    for semaphore in &semaphores {
        let name = semaphore.name();
        // By priority and age this one is behind those that wait; its slot is what counts.
        let ahead = team.job(&format!("ahead-{name}")).semaphore(name);
        let ahead = ahead.priority(5).create().await;
        let job = team.job(&format!("z-{name}")).semaphore(name).runs("1h");
        let job = if name == "on-hold" { job.hold() } else { job };
        let job = job.create().await;
        let session = grant_without_start(bed, &team, semaphore, &job).await;
        sessions.insert(session.clone());
        jobs.push((job, session, ahead));
    }
    let [(completed, session, behind), (held, given_back, next)] = &jobs[..] else {
        unreachable!("there are two")
    };

    let run = start_again(operator).await;
    completed.is_running().await;
    assert_eq!(completed.session().await.as_ref(), Some(session));
    let object = completed.get().await.expect("the Job");
    let template = object.spec.expect("its spec").template.metadata;
    let annotations = template.expect("its metadata").annotations.expect("some");
    assert_eq!(&annotations["consul-semaphore.io/session"], session);
    adopted_first(operator, run, &team, &sessions);
    behind.is_waiting().await;
    completed.finish().await;
    behind.is_complete().await;

    // Its user does not want it now: its slot is given to the next.
    next.is_complete().await;
    held.is_waiting().await;
    held.is_on_hold().await;
    let prefix = team.semaphore("on-hold").lock_prefix();
    eventually("its session is gone", || async {
        let sessions = consul.sessions().await;
        !sessions.iter().any(|session| session["ID"] == *given_back)
    })
    .await;
    assert!(!consul.holders(&prefix).await.contains(given_back));
    held.annotate("consul-semaphore.io/hold", None).await;
    held.is_running().await;
    assert_ne!(held.session().await.as_ref(), Some(given_back));
}
