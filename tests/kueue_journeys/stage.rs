//! The bed with Kueue and the operator, and steps that the journeys share.

use std::fs;

use consul_semaphore_operator::manifests;
use consul_semaphore_workload::Kind;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::{
    Bed, BedBuilder, Controller, Job, LimitWatch, Namespace, Object, Semaphore, eventually, proof,
    same,
};
use tokio::sync::OnceCell;

pub(crate) const API: &str = "kueue.x-k8s.io/v1beta2";
pub(crate) const ASKS: &str = "consul-semaphore.io/semaphore";
const QUEUE: &str = "kueue.x-k8s.io/queue-name";

fn with_kueue() -> BedBuilder {
    Bed::builder()
        .controllers([Controller::JobSet, Controller::Kueue])
        .operator_args(["--workloads=kueue"])
        .without_operator()
}

/// Starts the operator, with the rights and under the policies that come with Kueue.
async fn operate(bed: &Bed) {
    let file = bed.folder().path().join("of-kueue.yaml");
    fs::write(&file, manifests::of_kind(&Kind::KueueWorkload)).expect("it can be written");
    let file = file.display().to_string();
    bed.kubectl(["apply", "-f", &file]).await;
    bed.operator().start().await;
}

/// The bed that these journeys share.
async fn bed() -> Bed {
    static OPERATED: OnceCell<()> = OnceCell::const_new();
    let bed = with_kueue().shared().await;
    OPERATED.get_or_init(|| operate(&bed)).await;
    bed
}

/// One for a journey that stops the operator.
pub(crate) async fn own_bed() -> Bed {
    let bed = with_kueue().start().await;
    operate(&bed).await;
    bed
}

/// A namespace with a queue of Kueue that asks our check, a semaphore of one slot, and somebody who watches its limit.
pub(crate) struct Stage {
    pub(crate) bed: Bed,
    pub(crate) team: Namespace,
    pub(crate) db: Semaphore,
    pub(crate) check: Object,
    pub(crate) queue: Object,
    observer: LimitWatch,
}

impl Stage {
    pub(crate) async fn new(name: &str) -> Self {
        Self::with(bed().await, name, json!({})).await
    }

    /// With this in the spec of the semaphore.
    pub(crate) async fn with_spec(name: &str, spec: Value) -> Self {
        Self::with(bed().await, name, spec).await
    }

    pub(crate) async fn with(bed: Bed, name: &str, spec: Value) -> Self {
        let team = bed.namespace(name).await;
        let db = team.semaphore("db").limit(1).spec(spec).create().await;
        let observer = bed.watch_limit(&db.lock_prefix()).await;
        // The cluster's objects are named after it.
        let metadata = json!({ "name": team.name() });
        let new = |kind: &str, spec: Value| {
            let object =
                json!({ "apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec });
            team.create(object)
        };
        let controller = json!({ "controllerName": "consul-semaphore.io/slots" });
        let check = new("AdmissionCheck", controller).await;
        new("ResourceFlavor", json!({})).await;
        let quota = json!([{ "name": "pods", "nominalQuota": 10 }]);
        let flavors = json!([{ "name": team.name(), "resources": quota }]);
        let queue = json!({
            "namespaceSelector": {},
            "admissionChecksStrategy": { "admissionChecks": [{ "name": team.name() }] },
            "resourceGroups": [{ "coveredResources": ["pods"], "flavors": flavors }],
        });
        let queue = new("ClusterQueue", queue).await;
        team.create(json!({
            "apiVersion": API, "kind": "LocalQueue",
            "metadata": { "name": "queue", "namespace": team.name() },
            "spec": { "clusterQueue": team.name() },
        }))
        .await;
        queue.is("active", |it| is(it, "Active", "True")).await;
        Self {
            bed,
            team,
            db,
            check,
            queue,
            observer,
        }
    }

    /// A Job in the queue that asks for a slot, runs for an hour, and terminates for 20 seconds once it is to end.
    pub(crate) fn job(&self, name: &str) -> Job {
        let queued = json!({ "metadata": { "labels": { QUEUE: "queue" } } });
        let job = self.team.job(name).semaphore("db").with(queued);
        job.runs("1h").terminates_in("20s")
    }

    /// The Workload that Kueue has of a Job.
    pub(crate) async fn workload_of(&self, job: &Job) -> Object {
        self.workload_with(&proof::uid_of(job).await).await
    }

    /// The Workload that Kueue has of what has this uid.
    pub(crate) async fn workload_with(&self, uid: &str) -> Object {
        proof::kueue_workload(&self.team, uid).await
    }

    /// Waits until a Job runs in a slot, which its pods and its Workload name.
    pub(crate) async fn runs(&self, job: &Job) -> String {
        let (uid, pod) = (proof::uid_of(job).await, self.pod_of(job).await);
        let session = pod.annotations()["consul-semaphore.io/session"].clone();
        assert_eq!(pod.annotations()["consul-semaphore.io/granted-to"], uid);
        assert_eq!(pod.labels()["consul-semaphore.io/holder"], uid);
        let key = format!("{}/{session}", self.db.lock_prefix());
        let contender = self.bed.consul().kv(&key).await;
        let body = contender.expect("a holder has a contender").json();
        assert_eq!(
            (&body["kind"], &body["uid"]),
            (&json!("Workload"), &json!(uid))
        );
        let workload = self.workload_of(job).await.get().await;
        let message = entry(&workload)["message"]
            .as_str()
            .expect("a message")
            .to_owned();
        assert!(message.contains(&session), "{message}");
        session
    }

    /// Its only pod that is not to end, once it runs. Those of a deleted Job of its name may not end yet.
    async fn pod_of(&self, job: &Job) -> Pod {
        let what = format!("{} has a pod that runs", job.name());
        let uid = proof::uid_of(job).await;
        eventually(&what, || async {
            let mut pods = job.pods().await;
            pods.retain(|pod| pod.owner_references().iter().any(|owner| owner.uid == uid));
            pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
            let phase = |pod: &Pod| pod.status.as_ref()?.phase.clone();
            pods.retain(|pod| phase(pod).as_deref() == Some("Running"));
            same(pods.len(), 1).map(|_| pods.remove(0))
        })
        .await
    }

    /// Its check is asked, and not answered; it has no pods.
    pub(crate) async fn waits(&self, job: &Job) {
        job.has_event("SlotWaiting").await;
        let workload = self.workload_of(job).await;
        workload
            .is("in need of its check", |it| {
                is(it, "QuotaReserved", "True") && entry(it)["state"] == "Pending"
            })
            .await;
        job.has_no_pods().await;
    }

    /// Waits until nobody holds or waits for a slot, and says how many ever had pods. At no time had more than one.
    pub(crate) async fn is_over(&self, ran: usize) {
        proof::nothing_is_left(&self.bed, &self.team, &self.db).await;
        self.ran_one_by_one(ran);
    }

    pub(crate) fn ran_one_by_one(&self, ran: usize) {
        let seen = self.observer.seen();
        assert_eq!((seen.peak_holders, seen.peak_jobs), (1, 1), "{seen:?}");
        assert_eq!(seen.all_jobs.len(), ran, "{seen:?}");
        assert_eq!(self.observer.errors(), [""; 0]);
    }

    /// A Job that is in no queue of Kueue waits for the slot, to run for 2 seconds.
    pub(crate) async fn waits_beside(&self, name: &str) -> Job {
        let job = self.team.job(name).semaphore("db").runs("2s");
        let job = job.create().await;
        job.has_event("SlotWaiting").await;
        job
    }

    /// A Job that is in no queue of Kueue holds the slot.
    pub(crate) async fn is_held(&self) -> Job {
        let holder = self
            .team
            .job("holder")
            .semaphore("db")
            .runs("1h")
            .create()
            .await;
        holder.is_running().await;
        holder
    }
}

/// The entry of its only admission check.
pub(crate) fn entry(workload: &Value) -> &Value {
    &workload["status"]["admissionChecks"][0]
}

/// Takes a Workload out of its queue, or puts it back.
pub(crate) async fn set_active(workload: &Object, active: bool) {
    let change = json!([{ "op": "add", "path": "/spec/active", "value": active }]);
    let changed = workload.change(change).await;
    changed.expect("it can be changed");
}

/// Whether the condition of this type has this status.
pub(crate) fn is(object: &Value, of: &str, status: &str) -> bool {
    let mut conditions = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    conditions.any(|condition| condition["type"] == of && condition["status"] == status)
}

/// Waits until the pods of a Job terminate, or are gone.
pub(crate) async fn is_stopping(job: &Job) {
    let what = format!("the pods of {} are to end", job.name());
    eventually(&what, || async {
        let mut pods = job.pods().await;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        same(pods.len(), 0)
    })
    .await;
}
