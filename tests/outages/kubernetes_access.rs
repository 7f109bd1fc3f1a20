//! The API server is up, but lets the operator do nothing; or the operator's objects are deleted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use testbed::{
    Bed, Job, eventually, eventually_within, http_client,
    proof::{
        End, holders_are, is_given_back, nothing_is_left, pods_end, running_pods, runs_in_a_slot,
    },
    same,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::stage::{Held, LONG, calls};

#[tokio::test]
async fn the_operator_may_do_nothing_and_then_may_again() {
    let bed = Bed::start().await;
    its_rights_are_taken_away(&bed).await;
    it_gets_too_many_requests(&bed).await;
    the_definition_is_deleted_and_made_again(&bed).await;
    a_namespace_is_deleted_with_running_jobs(&bed).await;
}

/// Waits until a Job runs, for as long as backoff may take.
async fn runs(job: &Job) {
    eventually_within(LONG, "it runs", || async {
        same(running_pods(job).await.len(), 1)
    })
    .await;
}

/// While nothing can be done, the slot stays held; once it can, the next Job runs.
async fn while_nothing_can_be_done(
    bed: &Bed,
    name: &str,
    begin: impl AsyncFnOnce(),
    end: impl AsyncFnOnce(),
) {
    let team = bed.namespace(name).await;
    let held = Held::new(bed, &team, "Reacquire", "30s").await;
    let job = |name| team.job(name).semaphore(held.db.name()).runs("1h");
    let next = job("next").create().await;
    next.has_event("SlotWaiting").await;
    begin().await;
    let unseen = job("z-unseen").create().await;
    calls(bed.operator(), "session_renew", "ok", 2.0).await;
    held.goes_on().await;
    holders_are(bed, &held.db, [&held.grant]).await;
    held.job.finish().await;
    calls(bed.operator(), "session_renew", "ok", 1.0).await;
    next.is_waiting().await;
    unseen.is_waiting().await;
    end().await;

    runs(&next).await;
    runs_in_a_slot(bed, &held.db, &next).await;
    next.finish().await;
    runs(&unseen).await;
    unseen.finish().await;
    nothing_is_left(bed, &team, &held.db).await;
    held.kept_the_limit();
}

async fn its_rights_are_taken_away(bed: &Bed) {
    let binding = ["clusterrolebinding", "consul-semaphore-operator"];
    let [kind, name] = binding;
    let saved = bed.kubectl(["get", kind, name, "-o", "json"]).await;
    let file = bed.folder().path().join("binding.json");
    let mut saved: Value = serde_json::from_str(&saved).expect("JSON");
    saved["metadata"] = json!({ "name": name });
    std::fs::write(&file, saved.to_string()).expect("a file");
    let take = async || drop(bed.kubectl(["delete", kind, name]).await);
    let give = async || {
        let file = file.display().to_string();
        drop(bed.kubectl(["create", "-f", file.as_str()]).await);
    };
    Box::pin(while_nothing_can_be_done(bed, "no-rights", take, give)).await;
}

/// Priority and fairness: one seat for all requests of the operator, mostly taken by three other clients with its
/// name. Most of its requests are answered with 429.
async fn it_gets_too_many_requests(bed: &Bed) {
    let level = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": { "name": "narrow" },
        "spec": { "type": "Limited", "limited": {
            "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
            "limitResponse": { "type": "Reject" },
        } },
    });
    let schema = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
        "metadata": { "name": "narrow" },
        "spec": {
            "matchingPrecedence": 2, "priorityLevelConfiguration": { "name": "narrow" },
            "rules": [{
                "subjects": [{ "kind": "ServiceAccount", "serviceAccount": {
                    "name": "consul-semaphore-operator", "namespace": "consul-semaphore-system",
                } }],
                "resourceRules": [{
                    "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"],
                    "clusterScope": true,
                }],
            }],
        },
    });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [level, schema] });
    let file = bed.folder().path().join("narrow.json");
    std::fs::write(&file, list.to_string()).expect("a file");
    let file = file.display().to_string();
    bed.kubectl(["create", "-f", &file]).await;
    let refused = Arc::new(AtomicUsize::new(0));
    let crowd = crowd(bed, &refused);
    eventually_within(LONG, "much is refused", || async {
        (refused.load(Ordering::Relaxed) > 100).then_some(())
    })
    .await;

    let team = bed.namespace("narrow").await;
    // This may cost the operator its lead; sessions that were made ahead then expire.
    let db = team.semaphore("db").limit(2).ttl("30s").create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let mut jobs = Vec::new();
    for number in 0..5 {
        let job = team.job(&format!("job-{number}")).semaphore("db");
        jobs.push(job.runs("1s").create().await);
    }
    for job in &jobs {
        // Whenever the operator loses its lead, all its watches begin anew.
        eventually_within(LONG * 3, "it is complete", || async {
            let job = job.get().await.and_then(|job| job.status);
            same(job.and_then(|status| status.succeeded), Some(1))
        })
        .await;
    }
    drop(crowd);
    bed.kubectl(["delete", "-f", &file]).await;
    nothing_is_left(bed, &team, &db).await;
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
    assert!(observer.peak_holders() <= 2);
    assert!(observer.peak_jobs() <= 2);
}

/// Three clients with the operator's name that list Jobs constantly in every third second, until this is dropped.
fn crowd(bed: &Bed, refused: &Arc<AtomicUsize>) -> JoinSet<()> {
    let kubeconfig = std::fs::read_to_string(bed.operator_kubeconfig()).expect("a kubeconfig");
    let kubeconfig: Value = serde_json::from_str(&kubeconfig).expect("JSON");
    let cluster = &kubeconfig["clusters"][0]["cluster"];
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let authority = BASE64_STANDARD
        .decode(text(&cluster["certificate-authority-data"]))
        .expect("base64");
    let http = http_client()
        // One handshake each: the answers are to be the load, and one that is lost is no harm.
        .pool_max_idle_per_host(1)
        .tls_certs_only(reqwest::Certificate::from_pem_bundle(&authority).expect("PEM"))
        .build()
        .expect("a client");
    let token = text(&kubeconfig["users"][0]["user"]["token"]);
    let url = format!("{}/apis/batch/v1/jobs", text(&cluster["server"]));
    let (mut crowd, began) = (JoinSet::new(), Instant::now());
    for _ in 0..3 {
        let (http, url, token, refused) =
            (http.clone(), url.clone(), token.clone(), refused.clone());
        crowd.spawn(async move {
            // They pause together, by one clock, so that the seat is free most of the time, however long the machine
            // takes to answer. A watch that is refused some times in a row pauses for half a minute.
            loop {
                if began.elapsed().as_secs() % 3 > 0 {
                    sleep(Duration::from_millis(20)).await;
                    continue;
                }
                let answer = http.get(&url).bearer_auth(&token).send().await;
                if answer.is_ok_and(|answer| answer.status() == 429) {
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    crowd
}

/// All `ConsulSemaphore`s are deleted with their definition, despite their finalizers; the Jobs stay, and belong to
/// the semaphores that are created again.
async fn the_definition_is_deleted_and_made_again(bed: &Bed) {
    const CRD: &str = "consulsemaphores.consul-semaphore.io";
    let team = bed.namespace("no-kind").await;
    let mut held = Held::new(bed, &team, "Reacquire", "120s").await;
    let next = team.job("next").semaphore(held.db.name()).runs("1h");
    let next = next.create().await;
    next.has_event("SlotWaiting").await;
    let manifest = held.db.get().await.expect("it is there")["spec"].clone();

    bed.kubectl(["delete", "crd", CRD, "--wait=false"]).await;
    // It keeps its slots to the end, unless somebody removes its finalizer by hand.
    next.has_event("NoSemaphore").await;
    held.db.has_condition("Ready", "False", "Terminating").await;
    held.db
        .patch(json!({ "metadata": { "finalizers": null } }))
        .await;
    eventually("the kind is gone", || async {
        let crds = bed.kubectl(["get", "crd", "-o", "name"]).await;
        same(crds.contains(CRD), false)
    })
    .await;
    held.goes_on().await;
    let shipped = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/crds/consulsemaphores.consul-semaphore.io.yaml"
    );
    bed.kubectl(["apply", "--server-side", "-f", shipped]).await;
    bed.kubectl(["wait", "--for=condition=Established", &format!("crd/{CRD}")])
        .await;
    let db = team.semaphore(held.db.name()).spec(manifest);
    held.db = eventually_within(LONG, "it is made again", || async {
        db.clone()
            .try_create()
            .await
            .map_err(|error| format!("{error:#}"))
    })
    .await;

    eventually_within(LONG, "it is looked after again", || async {
        let status = held.db.status().await;
        same(
            (&status["heldHere"], &status["waiting"]),
            (&json!(1), &json!(1)),
        )
        .map(drop)
    })
    .await;
    held.goes_on().await;
    holders_are(bed, &held.db, [&held.grant]).await;
    held.job.finish().await;
    runs_in_a_slot(bed, &held.db, &next).await;
    next.finish().await;
    nothing_is_left(bed, &team, &held.db).await;
    held.kept_the_limit();
}

/// A slot becomes free when the pods are gone, and not when the namespace, its Jobs and its semaphore are marked for
/// deletion.
async fn a_namespace_is_deleted_with_running_jobs(bed: &Bed) {
    let stays = bed.namespace("stays").await;
    let goes = bed.namespace("goes").await;
    let prefix = format!("shared/{}", stays.name());
    let db = |team: &testbed::Namespace| team.semaphore("db").prefix(&prefix);
    let (here, there) = (db(&stays).create().await, db(&goes).create().await);
    let observer = bed.watch_limit(&prefix).await;
    let a = goes.job("a").semaphore("db").runs("1h").terminates_in("1h");
    let a = a.create().await;
    let grant = runs_in_a_slot(bed, &there, &a).await;
    let b = stays.job("b").semaphore("db").runs("1h").create().await;
    b.has_event("SlotWaiting").await;

    bed.kubectl(["delete", "namespace", goes.name(), "--wait=false"])
        .await;
    eventually("its pod is ending", || async {
        let pods = a.pods().await;
        let ends = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        same(pods.iter().filter(|pod| ends(pod)).count(), 1)
    })
    .await;
    // The deletion takes time: meanwhile many passes run.
    calls(bed.operator(), "kv_watch", "ok", 3.0).await;
    holders_are(bed, &here, [&grant]).await;
    b.is_waiting().await;
    pods_end(&goes, &a, End::Failed).await;
    is_given_back(bed, &there, &grant).await;
    runs_in_a_slot(bed, &here, &b).await;
    eventually_within(LONG, "the namespace is gone", || async {
        let namespaces = bed.kubectl(["get", "namespaces", "-o", "name"]).await;
        same(namespaces.contains(goes.name()), false)
    })
    .await;
    b.finish().await;
    nothing_is_left(bed, &stays, &here).await;
    assert_eq!(observer.peak_holders(), 1);
    assert_eq!(observer.peak_jobs(), 1);
}
