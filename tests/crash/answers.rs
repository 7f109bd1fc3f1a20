//! Late requests, lost answers, and starts that are refused for good.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use testbed::{
    Bed, Call, Fault, Job, Namespace, Operator, Proxy, eventually, eventually_within,
    helpers::event_reasons, same,
};

use crate::{ALWAYS_ACTIVE, EXPIRY, sessions};

#[tokio::test]
async fn answers_come_late_or_never() {
    let _turn = crate::turn().await;
    let bed = crate::bed().await;
    let consul = Proxy::start(bed.consul().address()).await;
    let (api, kubeconfig) = bed.proxy_to_kubernetes().await;
    let operator = behind(&bed, "distant", &consul, &kubeconfig);
    operator.start().await;
    // One after another: each has the proxies to itself.
    lost_answers_of_grant_and_release(&bed, &consul).await;
    a_lost_answer_of_a_start(&bed, &api).await;
    a_start_that_lands_late(&bed, &api).await;
    a_limit_that_lands_late(&bed, &consul).await;
    a_start_that_a_policy_refuses(&bed).await;
    a_start_that_is_a_conflict_with_nothing(&bed, &api).await;
    a_start_that_was_forbidden_until_just_now(&bed, &api).await;
    lists_of_pods_that_hang(&bed, &api).await;
    operator.stop().await;
    let late = behind(&bed, "late", &consul, &kubeconfig);
    a_replica_that_sees_late(&bed, &late, &api).await;
}

/// An operator that reaches Consul and the API server through proxies.
fn behind(bed: &Bed, name: &str, consul: &Proxy, kubeconfig: &Path) -> Operator {
    let env = [
        ("KUBECONFIG", kubeconfig.display().to_string()),
        ("CONSUL_HTTP_ADDR", consul.address()),
    ];
    bed.another_operator(name, ALWAYS_ACTIVE, env)
}

/// Applies this fault to the first call of a kind.
fn once(
    fault: Fault,
    is: impl Fn(&Call) -> bool + Send + Sync + 'static,
) -> impl Fn(&Call) -> Option<Fault> + Send + Sync {
    let met = AtomicBool::new(false);
    move |call| (is(call) && !met.swap(true, Ordering::Relaxed)).then(|| fault.clone())
}

/// Waits until this many calls have met a fault.
async fn has_met(proxy: &Proxy, count: usize) {
    eventually("the fault has happened", || async {
        let met = proxy.met();
        if met >= count { Ok(()) } else { Err(met) }
    })
    .await;
}

/// Whether a transaction has an operation with this verb on a key of this namespace.
fn has(call: &Call, verb: &str, namespace: &str) -> bool {
    let of = format!("/{namespace}/");
    let mut operations = call.operations().into_iter();
    operations.any(|(found, key, _)| found == verb && key.contains(&of))
}

/// Whether it starts this namespace's Job `a`.
fn starts_a(call: &Call, namespace: &str) -> bool {
    call.method == "PATCH"
        && call
            .path
            .ends_with(&format!("/namespaces/{namespace}/jobs/a"))
        && call.json()["spec"]["suspend"] == false
}

async fn lost_answers_of_grant_and_release(bed: &Bed, consul: &Proxy) {
    for verb in ["lock", "delete"] {
        let team = bed.namespace("lost").await;
        let short = json!({ "session": { "ttl": "30s" } });
        let db = team.semaphore("db").limit(1).spec(short).create().await;
        let prefix = db.lock_prefix();
        let observer = bed.watch_limit(&prefix).await;
        let name = team.name().to_owned();
        consul.faults(once(Fault::AnswerLost, move |call| has(call, verb, &name)));
        let mut jobs = Vec::new();
        for name in ["a", "b", "c"] {
            jobs.push(team.job(name).semaphore("db").create().await);
        }
        for job in &jobs {
            job.is_complete().await;
        }
        let had = Job::sessions(&jobs).await;
        assert_eq!(had.len(), 3, "one slot a Job");
        assert!(observer.seen().all_holders.is_subset(&had));
        assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
        db.shows(json!({ "held": 0, "waiting": 0 })).await;
        consul.heal();
        // The session whose release got no answer may be left to expire.
        eventually_within(EXPIRY, "no session is left", || async {
            same(sessions(bed, team.name()).await, Vec::new())
        })
        .await;
        assert_eq!(bed.consul().holders(&prefix).await, BTreeSet::new());
    }
}

async fn a_lost_answer_of_a_start(bed: &Bed, api: &Proxy) {
    let team = bed.namespace("lost-start").await;
    let db = team.semaphore("db").limit(1).create().await;
    let (name, before) = (team.name().to_owned(), api.met());
    api.faults(once(Fault::AnswerLost, move |call| starts_a(call, &name)));
    let a = team.job("a").semaphore("db").create().await;
    a.is_complete().await;
    a.has_event("SlotGranted").await;
    a.has_event("SlotReleased").await;
    has_met(api, before + 1).await;
    assert_eq!(a.pods().await.len(), 1, "started once");
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
    api.heal();
}

async fn a_start_that_lands_late(bed: &Bed, api: &Proxy) {
    let team = bed.namespace("late-start").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let (name, before) = (team.name().to_owned(), api.met());
    api.faults(move |call| starts_a(call, &name).then_some(Fault::Stray));
    let a = team.job("a").semaphore("db").priority(1).create().await;
    has_met(api, before + 1).await;
    // It is unknown whether it will be started, so it keeps the slot.
    let b = team.job("b").semaphore("db").runs("1h").create().await;
    b.has_event("SlotWaiting").await;
    assert_eq!(bed.consul().holders(&db.lock_prefix()).await.len(), 1);
    b.is_waiting().await;

    a.annotate("consul-semaphore.io/hold", Some("true")).await;
    b.is_running().await;
    assert_eq!(api.land().await, 409, "decided on an older version");
    a.is_waiting().await;
    api.heal();
    a.annotate("consul-semaphore.io/hold", None).await;
    b.delete().await;
    a.is_complete().await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
}

async fn a_limit_that_lands_late(bed: &Bed, consul: &Proxy) {
    let team = bed.namespace("late-limit").await;
    let db = team.semaphore("db").limit(3).create().await;
    db.shows(json!({ "limit": 3, "appliedLimits": [3] })).await;
    let (name, before) = (team.name().to_owned(), consul.met());
    consul.faults(move |call| {
        let five = |(_, key, value): &(String, String, String)| {
            key.contains(&format!("/{name}/")) && value.contains(r#""Limit":5"#)
        };
        call.operations().iter().any(five).then_some(Fault::Stray)
    });
    db.set_limit(5).await;
    has_met(consul, before + 1).await;
    db.set_limit(3).await;
    db.shows(json!({ "limit": 3, "appliedLimits": [3] })).await;
    assert_eq!(consul.land().await, 409, "the lock was written since");
    consul.heal();
    let a = team.job("a").semaphore("db").create().await;
    a.is_complete().await;
    db.is_ready().await;
    assert_eq!(bed.consul().limit(&db.lock_prefix()).await, Some(3));
}

/// A foreign policy that refuses to start Jobs with the label `forbidden` in this namespace.
struct Policy {
    name: String,
    policies: Api<ValidatingAdmissionPolicy>,
    bindings: Api<ValidatingAdmissionPolicyBinding>,
}

impl Policy {
    async fn create(bed: &Bed, team: &Namespace) -> Self {
        let this = Self {
            name: team.name().to_owned(),
            policies: Api::all(bed.client().clone()),
            bindings: Api::all(bed.client().clone()),
        };
        let policy = json!({
            "metadata": { "name": this.name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"],
                    "operations": ["CREATE", "UPDATE"],
                }] },
                "validations": [{
                    "expression": "object.spec.suspend || !('forbidden' in object.metadata.?labels.orValue({}))",
                    "message": "this Job is not to be started",
                }],
            },
        });
        let binding = json!({
            "metadata": { "name": this.name },
            "spec": {
                "policyName": this.name,
                "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": { "matchLabels": {
                    "kubernetes.io/metadata.name": this.name,
                } } },
            },
        });
        let params = PostParams::default();
        let policy = serde_json::from_value(policy).unwrap();
        this.policies.create(&params, &policy).await.unwrap();
        let binding = serde_json::from_value(binding).unwrap();
        this.bindings.create(&params, &binding).await.unwrap();
        // The API server takes a moment to apply it.
        let labels = json!({ "metadata": { "labels": { "forbidden": "" } } });
        let probe = team.job("probe").with(labels).create().await;
        eventually("the policy is in force", || async {
            let changed = probe
                .try_patch(json!({ "spec": { "suspend": false } }))
                .await;
            let _again = probe
                .try_patch(json!({ "spec": { "suspend": true } }))
                .await;
            changed.is_err()
        })
        .await;
        this
    }

    async fn delete(self) {
        let params = DeleteParams::default();
        self.bindings.delete(&self.name, &params).await.unwrap();
        self.policies.delete(&self.name, &params).await.unwrap();
    }
}

async fn a_start_that_a_policy_refuses(bed: &Bed) {
    let team = bed.namespace("refused").await;
    let policy = Policy::create(bed, &team).await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let labels = json!({ "metadata": { "labels": { "forbidden": "" } } });
    let a = team
        .job("a")
        .semaphore("db")
        .priority(1)
        .with(labels)
        .create()
        .await;
    let message = a.has_event("StartRefused").await;
    assert!(message.contains("not to be started"), "{message}");
    for name in ["b", "c"] {
        let job = team.job(name).semaphore("db").create().await;
        job.is_complete().await;
    }
    a.is_waiting().await;
    policy.delete().await;
    a.is_complete().await;
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
}

/// For example from a webhook that answers 409: nobody has changed the Job.
async fn a_start_that_is_a_conflict_with_nothing(bed: &Bed, api: &Proxy) {
    let team = bed.namespace("conflict").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let name = team.name().to_owned();
    let answer = r#"{"kind":"Status","status":"Failure","reason":"Conflict","message":"a webhook says no","code":409}"#;
    api.faults(move |call| starts_a(call, &name).then_some(Fault::Refused(409, answer)));
    let a = team.job("a").semaphore("db").priority(1).create().await;
    let message = a.has_event("StartRefused").await;
    assert!(message.contains("a webhook says no"), "{message}");
    // It gives its slot back, and blocks nobody.
    team.job("b")
        .semaphore("db")
        .create()
        .await
        .is_complete()
        .await;
    a.is_waiting().await;
    api.heal();
    a.is_complete().await;
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
}

/// Its permission came back before the operator asked whether it has any: that costs no Job its turn.
async fn a_start_that_was_forbidden_until_just_now(bed: &Bed, api: &Proxy) {
    let team = bed.namespace("forbidden-once").await;
    let db = team.semaphore("db").limit(1).create().await;
    let (name, before) = (team.name().to_owned(), api.met());
    let answer = r#"{"kind":"Status","status":"Failure","reason":"Forbidden","message":"may not patch","code":403}"#;
    let refused = Fault::Refused(403, answer);
    api.faults(once(refused, move |call| starts_a(call, &name)));
    let a = team.job("a").semaphore("db").create().await;
    a.is_complete().await;
    a.has_event("SlotReleased").await;
    has_met(api, before + 1).await;
    let reasons = event_reasons(&a).await;
    assert!(!reasons.contains(&"StartRefused".to_owned()), "{reasons:?}");
    assert_eq!(Job::sessions([&a]).await.len(), 1, "in its first slot");
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
    api.heal();
}

/// Many Jobs are deleted, and it is unknown whether they still have pods: all other slots change hands.
async fn lists_of_pods_that_hang(bed: &Bed, api: &Proxy) {
    /// Too many to ask about at once.
    const DELETED: i64 = 35;
    let team = bed.namespace("hanging-lists").await;
    let db = team.semaphore("db").limit(DELETED + 1).create().await;
    let job = |name: &str| team.job(name).semaphore("db").runs("1h");
    let mut deleted = Vec::new();
    for number in 0..DELETED {
        deleted.push(job(&format!("deleted-{number}")).create().await);
    }
    let other = job("other").create().await;
    db.shows(json!({ "held": DELETED + 1, "waiting": 0 })).await;
    for job in deleted.iter().chain([&other]) {
        job.is_running().await;
    }
    let next = job("next").create().await;
    db.shows(json!({ "waiting": 1 })).await;

    let (pods, before) = (format!("/namespaces/{}/pods", team.name()), api.met());
    api.faults(move |call| {
        let lists = call.path.ends_with(&pods) && !call.query.contains("watch=");
        lists.then_some(Fault::Held)
    });
    for job in &deleted {
        job.delete().await;
    }
    has_met(api, before + 1).await;
    other.finish().await;
    next.is_running().await;
    // The others have not waited for them: asking about all of them would have taken several timeouts.
    let asked = api.met() - before;
    assert!(asked < deleted.len(), "{asked} lists came first");
    api.heal();
    next.finish().await;
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
}

/// A second operator takes over whose view of the Jobs is out of date.
async fn a_replica_that_sees_late(bed: &Bed, late: &Operator, api: &Proxy) {
    let team = bed.namespace("sees-late").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let a = team
        .job("a")
        .semaphore("db")
        .priority(1)
        .runs("1h")
        .create()
        .await;
    let b = team.job("b").semaphore("db").create().await;
    let met = api.met();
    api.faults(|call| {
        // It lists them as from an API server that can't stream lists, and then waits for changes.
        let unknown = r#"{"kind":"Status","status":"Failure","reason":"Invalid","message":"no streams","code":422}"#;
        let of_jobs = call.path == "/apis/batch/v1/jobs" && call.query.contains("watch=");
        of_jobs.then_some(if call.query.contains("sendInitialEvents") {
            Fault::Refused(422, unknown)
        } else {
            Fault::AnswerHeld
        })
    });
    // It has listed the Jobs as they are now, waiting, but has no slot to grant: another program holds it.
    let other = bed.consul().take_slot(&db.lock_prefix(), 1).await;
    late.start().await;
    has_met(api, met + 2).await;
    bed.operator().start().await;
    db.shows(json!({ "held": 1, "waiting": 2 })).await;
    late.pause().await;
    bed.consul().give_back(&db.lock_prefix(), &other).await;
    a.is_running().await;
    let (session, pods) = (a.session().await, a.pods().await.len());
    bed.operator().kill().await;

    late.resume().await;
    // It owns the slot's session already if the other one granted the slot to the contender that it had made ahead;
    // else it adopts it. The first thing that it does is to renew it.
    let renewals = async || {
        let page = late.get("/metrics").await;
        let name = "consul_calls_total{kind=\"session_renew\",result=\"ok\"}";
        let mut counts = page.lines().filter_map(|line| line.split_once(name));
        counts
            .find_map(|(_, count)| count.trim().parse().ok())
            .unwrap_or(0_u64)
    };
    let before = renewals().await;
    eventually("it renews the slot's session", || async {
        let now = renewals().await;
        (now > before).then_some(()).ok_or(now)
    })
    .await;
    let c = team.job("c").semaphore("db").create().await;
    api.heal();
    c.has_event("SlotWaiting").await;
    a.is_running().await;
    b.is_waiting().await;
    assert_eq!((a.session().await, a.pods().await.len()), (session, pods));
    a.delete().await;
    b.is_complete().await;
    c.is_complete().await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
    late.stop().await;
}
