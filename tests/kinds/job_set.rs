//! `JobSets` wait for a slot as Jobs do. The test plays their controller: it writes their status, and makes their pods.
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::ApiResource,
};
use serde_json::{Value, json};
use testbed::{Bed, Namespace, Semaphore, eventually, same};

const OPERATOR: &str = "consul-semaphore-operator";

const SYSTEM: &str = "consul-semaphore-system";

const HOLD: &str = "consul-semaphore.io/hold";

/// Lets the operator do with `JobSets` what it does with Jobs.
async fn allow(bed: &Bed) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "jobsets" },
        "rules": [
            {
                "apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"],
                "verbs": ["get", "list", "watch", "patch", "delete"],
            },
            {
                "apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets/status"],
                "verbs": ["patch"],
            },
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "jobsets" },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "jobsets",
        },
        "subjects": [{ "kind": "ServiceAccount", "name": OPERATOR, "namespace": SYSTEM }],
    });
    create(bed, "clusterroles", role).await;
    create(bed, "clusterrolebindings", binding).await;
}

/// The API server has `JobSets` from now on, as far as these tests need them, with these subresources.
async fn define(bed: &Bed, subresources: Value) {
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "jobsets.jobset.x-k8s.io" },
        "spec": {
            "group": "jobset.x-k8s.io",
            "scope": "Namespaced",
            "names": {
                "kind": "JobSet", "plural": "jobsets", "singular": "jobset", "listKind": "JobSetList",
            },
            "versions": [{
                "name": "v1alpha2", "served": true, "storage": true,
                "subresources": subresources,
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": any, "status": any },
                } },
            }],
        },
    });
    // Only a name that GitHub has approved may end in k8s.io.
    let mut definition = definition;
    definition["metadata"]["annotations"] = json!({
        "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/jobset",
    });
    create(bed, "customresourcedefinitions", definition).await;
}

/// Waits until `JobSets` can be made.
async fn defined(bed: &Bed) {
    eventually("JobSets can be made", || async {
        bed.try_kubectl(["get", "jobsets", "-A"]).await.is_ok()
    })
    .await;
}

/// Creates an object that is in no namespace.
async fn create(bed: &Bed, plural: &str, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    let types = object.types.as_ref().expect("it says what it is");
    let (group, version) = types.api_version.split_once('/').expect("it has a group");
    let api = Api::all_with(
        bed.client().clone(),
        &resource(group, version, &types.kind, plural),
    );
    let created = api.create(&PostParams::default(), &object).await;
    created.expect("it can be made");
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: format!("{group}/{version}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// A `JobSet`, and its controller.
struct JobSet<'a> {
    team: &'a Namespace,
    api: Api<DynamicObject>,
    name: String,
}

impl<'a> JobSet<'a> {
    async fn create(bed: &Bed, team: &'a Namespace, name: &str) -> Self {
        let object = json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {
                "name": name,
                "labels": { "consul-semaphore.io/waits": "true" },
                "annotations": { "consul-semaphore.io/semaphore": "db" },
            },
            "spec": {
                "suspend": true,
                "replicatedJobs": [
                    { "name": "driver", "template": { "spec": { "template": { "spec": {} } } } },
                    { "name": "workers", "template": { "spec": { "template": {
                        "metadata": { "labels": { "app": "w" } }, "spec": {},
                    } } } },
                ],
            },
        });
        team.apply(object).await;
        let resource = resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets");
        let this = Self {
            team,
            api: Api::namespaced_with(bed.client().clone(), team.name(), &resource),
            name: name.to_owned(),
        };
        this.reports(json!([{ "type": "Suspended", "status": "True" }]))
            .await;
        this
    }

    async fn get(&self) -> DynamicObject {
        self.api.get(&self.name).await.expect("it is there")
    }

    async fn uid(&self) -> String {
        self.get().await.uid().expect("it has a uid")
    }

    /// Its controller writes these conditions into its status.
    async fn reports(&self, mut conditions: Value) {
        for condition in conditions.as_array_mut().expect("a list") {
            condition["lastTransitionTime"] = "2026-01-01T00:00:00Z".into();
        }
        let status = json!({ "status": { "conditions": conditions } });
        let patched = self
            .api
            .patch_status(&self.name, &PatchParams::default(), &Patch::Merge(status))
            .await;
        patched.expect("the status can be written");
    }

    async fn patch(&self, patch: Value) {
        let patch = Patch::Merge(patch);
        let patched = self
            .api
            .patch(&self.name, &PatchParams::default(), &patch)
            .await;
        patched.expect("it can be changed");
    }

    /// Waits until it is started, in this slot, and has a pod: it comes from the template of its first Job.
    async fn starts(&self, db: &Semaphore, bed: &Bed) -> String {
        let started = eventually("the JobSet runs", || async {
            let object = self.get().await;
            (object.data["spec"]["suspend"] == json!(false)).then_some(object)
        })
        .await;
        let uid = started.uid().expect("it has a uid");
        let jobs = &started.data["spec"]["replicatedJobs"];
        let mut sessions = Vec::new();
        for job in jobs.as_array().expect("its Jobs") {
            let metadata = &job["template"]["spec"]["template"]["metadata"];
            assert_eq!(
                metadata["labels"]["consul-semaphore.io/holder"],
                uid.as_str()
            );
            sessions.push(metadata["annotations"]["consul-semaphore.io/session"].clone());
        }
        let session = started.annotations()["consul-semaphore.io/session"].clone();
        assert_eq!(sessions, [json!(session), json!(session)]);
        assert_eq!(started.annotations()["consul-semaphore.io/granted-to"], uid);
        // What the template of its Job says: its own entries stay.
        let template = &jobs[1]["template"]["spec"]["template"]["metadata"];
        assert_eq!(template["labels"]["app"], "w");

        let contender = bed
            .consul()
            .kv(&format!("{}/{session}", db.lock_prefix()))
            .await;
        let body = contender.expect("a holder has a contender").json();
        assert_eq!(
            (&body["kind"], &body["name"]),
            (&json!("JobSet"), &json!(self.name))
        );

        self.reports(json!([{ "type": "Suspended", "status": "False" }]))
            .await;
        let mut metadata = template.clone();
        metadata["name"] = self.name.as_str().into();
        metadata["labels"]["jobset.sigs.k8s.io/jobset-uid"] = uid.into();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": { "containers": [{ "name": "c", "image": "none" }], "schedulerName": "none" },
        });
        self.team.apply(pod).await;
        session
    }

    async fn pod_ends(&self) {
        let force = "--grace-period=0";
        self.team
            .kubectl(["delete", "pod", &self.name, force, "--force"])
            .await;
    }

    async fn has_event(&self, reason: &str) {
        let of = format!(
            "involvedObject.kind=JobSet,involvedObject.name={}",
            self.name
        );
        let events = self.team.api::<k8s_openapi::api::core::v1::Event>();
        eventually(reason, || async {
            let list = events.list(&ListParams::default().fields(&of)).await;
            let reasons = list.expect("events can be listed").items.into_iter();
            let reasons: Vec<_> = reasons.filter_map(|event| event.reason).collect();
            if reasons.iter().any(|other| other == reason) {
                Ok(())
            } else {
                Err(format!("{reasons:?}"))
            }
        })
        .await;
    }
}

#[expect(
    clippy::many_single_char_names,
    reason = "the JobSets of a story are a, b and c"
)]
#[tokio::test]
async fn a_job_set_waits_and_its_slot_is_free_when_its_pods_are_gone() {
    let builder = Bed::builder().operator_args(["--workloads=jobsets"]);
    let bed = builder.without_operator().start().await;
    allow(&bed).await;
    // Its kind may come later.
    bed.operator().start().await;
    define(&bed, json!({ "status": {} })).await;
    let team = bed.namespace("job-sets").await;
    let db = team.semaphore("db").limit(1).create().await;
    let holders = |expected: Vec<String>| {
        let (consul, prefix) = (bed.consul(), db.lock_prefix());
        async move {
            eventually("the holders", || async {
                same(
                    consul.holders(&prefix).await,
                    expected.iter().cloned().collect(),
                )
            })
            .await;
        }
    };
    defined(&bed).await;

    let a = JobSet::create(&bed, &team, "a").await;
    let session = a.starts(&db, &bed).await;
    holders(vec![session.clone()]).await;
    a.has_event("SlotGranted").await;
    let b = JobSet::create(&bed, &team, "b").await;
    b.has_event("SlotWaiting").await;

    // It is finished, and its pod still terminates. What came later was seen: so was this.
    a.reports(json!([{ "type": "Completed", "status": "True" }]))
        .await;
    let c = JobSet::create(&bed, &team, "c").await;
    c.has_event("SlotWaiting").await;
    holders(vec![session]).await;
    a.pod_ends().await;
    let session = b.starts(&db, &bed).await;
    holders(vec![session.clone()]).await;
    a.has_event("SlotReleased").await;

    // Its user suspends it: it gives its slot back when its pod is gone.
    b.patch(json!({ "spec": { "suspend": true } })).await;
    b.reports(json!([{ "type": "Suspended", "status": "True" }]))
        .await;
    let d = JobSet::create(&bed, &team, "d").await;
    d.has_event("SlotWaiting").await;
    holders(vec![session]).await;
    b.pod_ends().await;
    let session = c.starts(&db, &bed).await;
    holders(vec![session.clone()]).await;
    b.has_event("PutOnHold").await;

    // It is deleted: its slot is free when its pod is gone.
    let uid = c.uid().await;
    c.api
        .delete("c", &DeleteParams::background())
        .await
        .expect("it can be deleted");
    c.has_event("SlotGranted").await;
    holders(vec![session]).await;
    c.pod_ends().await;
    d.starts(&db, &bed).await;
    assert_ne!(d.uid().await, uid);

    // One that runs without a slot is suspended.
    let e = JobSet::create(&bed, &team, "e").await;
    e.has_event("SlotWaiting").await;
    e.patch(json!({ "spec": { "suspend": false } })).await;
    e.reports(json!([{ "type": "Suspended", "status": "False" }]))
        .await;
    eventually("it is suspended", || async {
        e.get().await.data["spec"]["suspend"] == json!(true)
    })
    .await;
    e.has_event("RanWithoutSlot").await;
}

/// There is no subresource for its status.
#[tokio::test]
async fn one_that_can_t_say_that_it_failed_is_put_on_hold() {
    let builder = Bed::builder().operator_args(["--workloads=jobsets"]);
    let bed = builder.without_operator().start().await;
    allow(&bed).await;
    define(&bed, json!({})).await;
    defined(&bed).await;
    bed.operator().start().await;
    let team = bed.namespace("no-status").await;
    let db = team.semaphore("db").limit(1).create().await;
    let holder = team.job("holder").semaphore("db").runs("1h").create().await;
    holder.is_running().await;
    let late = team
        .create(json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {
                "name": "late",
                "labels": { "consul-semaphore.io/waits": "true" },
                "annotations": {
                    "consul-semaphore.io/semaphore": "db",
                    "consul-semaphore.io/wait-timeout": "1s",
                },
            },
            "spec": { "suspend": true },
            "status": { "conditions": [{ "type": "Suspended", "status": "True" }] },
        }))
        .await;
    let note = late.has_event("WaitTimedOut").await;
    assert!(
        note.starts_with("put on hold, because it has waited for 1s"),
        "{note}"
    );
    assert_eq!(late.get().await["metadata"]["annotations"][HOLD], "true");
    // Until then it was refused a few times.
    let note = late.has_event("StartRefused").await;
    assert!(note.contains("refuses to change this JobSet"), "{note}");
    db.shows(json!({ "held": 1, "waiting": 0 })).await;
}
