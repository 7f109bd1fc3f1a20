//! The bed with the operator and the controllers, and steps that the journeys share.

use std::{
    collections::BTreeSet,
    fs,
    sync::atomic::{AtomicUsize, Ordering},
};

use consul_semaphore_operator::manifests;
use consul_semaphore_workload::Kind as WorkloadKind;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::{
    Bed, BedBuilder, Job, LimitWatch, Namespace, Object, SEMAPHORE_LABEL, Semaphore,
    WORKLOAD_LABEL, eventually,
    proof::{self, End},
    same,
};
use tokio::sync::OnceCell;

use crate::kinds::{Ending, Kind, with_a_last_pod};

pub(crate) const ASKS: &str = "consul-semaphore.io/semaphore";
pub(crate) const WAITS: &str = "consul-semaphore.io/waits";
pub(crate) const SESSION: &str = "consul-semaphore.io/session";
pub(crate) const GRANTED_TO: &str = "consul-semaphore.io/granted-to";

/// A bed with the controllers of all these kinds.
fn with_controllers() -> BedBuilder {
    Bed::builder()
        .controllers(crate::CONTROLLERS.iter().copied())
        .operator_args(["--workloads=all"])
        .without_operator()
}

/// Starts the operator, with its rights.
pub(crate) async fn operate(bed: &Bed) {
    allow(bed).await;
    bed.operator().start().await;
}

/// Installs what the kinds bring: the operator's rights, and the policies for it and for users.
pub(crate) async fn allow(bed: &Bed) {
    let kinds = WorkloadKind::all();
    let documents: Vec<_> = kinds.iter().map(manifests::of_kind).collect();
    let file = format!("{}/kinds-{}.yaml", env!("CARGO_TARGET_TMPDIR"), fresh());
    fs::write(&file, documents.join("---\n")).expect("it can be written");
    bed.kubectl(["apply", "-f", &file]).await;
}

/// The bed that these journeys share.
pub(crate) async fn bed() -> Bed {
    static OPERATED: OnceCell<()> = OnceCell::const_new();
    let bed = with_controllers().shared().await;
    OPERATED.get_or_init(|| operate(&bed)).await;
    bed
}

/// One for a journey that stops the operator.
pub(crate) async fn own_bed() -> Bed {
    let bed = with_controllers().start().await;
    operate(&bed).await;
    bed
}

fn fresh() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A namespace with a semaphore of one slot, and somebody who watches its limit.
pub(crate) struct Stage {
    pub(crate) bed: Bed,
    pub(crate) team: Namespace,
    pub(crate) db: Semaphore,
    observer: LimitWatch,
}

impl Stage {
    pub(crate) async fn new(name: &str) -> Self {
        Self::with(bed().await, name, json!({})).await
    }

    /// With this in the spec of the semaphore.
    pub(crate) async fn with(bed: Bed, name: &str, spec: Value) -> Self {
        let team = bed.namespace(name).await;
        let db = team.semaphore("db").limit(1).spec(spec).create().await;
        let observer = bed.watch_limit(&db.lock_prefix()).await;
        Self {
            bed,
            team,
            db,
            observer,
        }
    }

    /// In a namespace that the policies leave out.
    pub(crate) async fn without_policies(name: &str) -> Self {
        let stage = Self::new(name).await;
        let team = stage.team.name();
        let leave_out = [
            "label",
            "namespace",
            team,
            "consul-semaphore.io/admission=disabled",
        ];
        stage.bed.kubectl(leave_out).await;
        stage
    }

    /// A Job that asks for a slot.
    pub(crate) fn job(&self, name: &str) -> Job {
        self.team.job(name).semaphore("db")
    }

    /// Waits until nobody holds or waits for a slot, and says how many ever had pods. At no time had more than one.
    pub(crate) async fn is_over(&self, ran: usize) {
        proof::nothing_is_left(&self.bed, &self.team, &self.db).await;
        self.ran_one_by_one(ran);
    }

    /// This many have had pods, one at a time.
    pub(crate) fn ran_one_by_one(&self, ran: usize) {
        let seen = self.observer.seen();
        assert_eq!((seen.peak_holders, seen.peak_jobs), (1, 1), "{seen:?}");
        assert_eq!(seen.all_jobs.len(), ran, "{seen:?}");
        assert_eq!(self.observer.errors(), [""; 0]);
    }

    pub(crate) async fn holders(&self) -> BTreeSet<String> {
        self.bed.consul().holders(&self.db.lock_prefix()).await
    }
}

/// A workload, described: it is created held, as the admission policies leave it.
pub(crate) struct Described<'a> {
    kind: &'static Kind,
    team: &'a Namespace,
    manifest: Value,
    id: String,
}

impl<'a> Described<'a> {
    /// It waits for a slot of `db`, and its pods run for an hour, and for 20 seconds more once they are to end.
    pub(crate) fn new(kind: &'static Kind, team: &'a Namespace, name: &str) -> Self {
        let manifest = json!({
            "apiVersion": kind.api_version, "kind": kind.name,
            "metadata": { "name": name, "labels": { WAITS: "true" }, "annotations": { ASKS: "db" } },
            "spec": (kind.spec)(),
        });
        let id = format!("w{}", fresh());
        let this = Self {
            kind,
            team,
            manifest,
            id: id.clone(),
        };
        let this = this.pods("labels", SEMAPHORE_LABEL, "db");
        let this = this.pods("labels", WORKLOAD_LABEL, &id);
        this.runs("1h").terminates_in("20s")
    }

    /// How long its pods run.
    pub(crate) fn runs(self, time: &str) -> Self {
        self.pods("annotations", "bed.consul-semaphore.io/runs", time)
    }

    /// How long its pods take to end once they are to end.
    pub(crate) fn terminates_in(self, time: &str) -> Self {
        self.pods("annotations", "bed.consul-semaphore.io/terminates-in", time)
    }

    /// An annotation of its own.
    pub(crate) fn annotated(mut self, name: &str, value: &str) -> Self {
        self.manifest["metadata"]["annotations"][name] = value.into();
        self
    }

    fn pods(mut self, map: &str, name: &str, value: &str) -> Self {
        for place in self.kind.pods {
            let metadata = self.manifest.pointer_mut(place).expect("it is there");
            metadata[map][name] = value.into();
        }
        self
    }

    /// It runs one more pod when it ends.
    pub(crate) fn with_a_last_pod(mut self) -> Self {
        let metadata = self.kind.pods.iter().filter_map(|place| {
            let place = place.strip_prefix("/spec")?;
            Some((
                place,
                self.manifest.pointer(&format!("/spec{place}"))?.clone(),
            ))
        });
        let metadata: Vec<_> = metadata.collect();
        let mut spec = with_a_last_pod(self.kind);
        for (place, metadata) in metadata {
            *spec.pointer_mut(place).expect("it is there") = metadata;
        }
        self.manifest["spec"] = spec;
        self
    }

    /// It does not say that it is held in order to wait.
    pub(crate) fn unlabelled(mut self) -> Self {
        let labels = self.manifest["metadata"]["labels"].as_object_mut();
        labels.expect("labels").remove(WAITS);
        self
    }

    /// It is not held, and asks for nothing.
    pub(crate) fn plain(mut self) -> Self {
        let spec = self.manifest["spec"].as_object_mut().expect("a spec");
        spec.remove(self.kind.hold);
        let metadata = &mut self.manifest["metadata"];
        for (map, name) in [("labels", WAITS), ("annotations", ASKS)] {
            metadata[map].as_object_mut().expect("a map").remove(name);
        }
        self
    }

    /// The same with this as the metadata of what is at a place in the object.
    pub(crate) fn with_metadata(mut self, place: &str, metadata: &Value) -> Self {
        let at = self.manifest.pointer_mut(place).expect("it is there");
        at["metadata"] = metadata.clone();
        self
    }

    /// A field of its spec has this value.
    pub(crate) fn with(mut self, field: &str, value: Value) -> Self {
        self.manifest["spec"][field] = value;
        self
    }

    /// Its pipeline is the only task of another one.
    pub(crate) fn nested_in(mut self, task: &str) -> Self {
        let spec = self.manifest["spec"]["pipelineSpec"].take();
        let task = json!({ "name": task, "pipelineSpec": spec });
        self.manifest["spec"]["pipelineSpec"] = json!({ "tasks": [task] });
        self
    }

    /// Creates nothing: the error says why the API server would refuse it.
    pub(crate) async fn tried(self, bed: &Bed) -> Result<(), String> {
        let file = bed.folder().path().join(format!("{}.json", self.id));
        fs::write(&file, self.manifest.to_string()).expect("a file");
        let (file, team) = (file.display().to_string(), self.team.name());
        let create = ["create", "-n", team, "--dry-run=server", "-f", &file];
        let answer = bed.try_kubectl(create).await;
        answer.map(drop).map_err(|error| error.to_string())
    }

    pub(crate) async fn create(self) -> Workload {
        let Self {
            kind,
            team,
            mut manifest,
            id,
        } = self;
        // What it refers to comes first.
        let runtime = manifest["spec"]
            .as_object_mut()
            .and_then(|spec| spec.remove("runtime"));
        if let Some(mut runtime) = runtime {
            runtime["metadata"] = json!({ "name": id });
            manifest["spec"]["runtimeRef"] = json!({ "kind": runtime["kind"], "name": id });
            team.create(runtime).await;
        }
        let object = team.create(manifest).await;
        Workload { kind, object, id }
    }

    /// Creates it, and waits until it waits.
    pub(crate) async fn waits(self) -> Workload {
        let this = self.create().await;
        this.object.has_event("SlotWaiting").await;
        this
    }
}

/// A workload that exists, or has existed.
pub(crate) struct Workload {
    kind: &'static Kind,
    pub(crate) object: Object,
    id: String,
}

impl Workload {
    /// Its pods, also those that have ended.
    pub(crate) async fn pods(&self) -> Vec<Pod> {
        let labels = format!("{WORKLOAD_LABEL}={}", self.id);
        let mut pods = self.object.namespace().pods_with(&labels).await;
        // What is held runs nothing.
        let is_held = |pod: &Pod| pod.spec.iter().any(|spec| spec.scheduling_gates.is_some());
        pods.retain(|pod| !is_held(pod));
        pods
    }

    /// Those that run, also those that terminate.
    pub(crate) async fn running(&self) -> Vec<Pod> {
        let mut pods = self.pods().await;
        pods.retain(|pod| phase(pod) == "Running");
        pods
    }

    /// Waits until all its pods run.
    pub(crate) async fn all_run(&self) -> Vec<Pod> {
        let what = format!("{} {} runs", self.kind.name, self.object.name());
        eventually(&what, || async {
            let mut pods = self.running().await;
            pods.retain(|pod| pod.metadata.deletion_timestamp.is_none() && is_known(pod));
            same(pods.len(), self.kind.size).map(|_| pods)
        })
        .await
    }

    /// Waits until all its pods run in a slot, which they name, and returns its session.
    pub(crate) async fn runs(&self, stage: &Stage) -> String {
        let pods = self.all_run().await;
        let uid = self.object.uid().await;
        let object = self.object.get().await;
        let session = object["metadata"]["annotations"][SESSION].clone();
        let session = session.as_str().expect("it says its session").to_owned();
        for pod in pods.iter().filter(|_| self.is_told()) {
            assert_eq!(pod.annotations()[SESSION], session);
            assert_eq!(pod.annotations()[GRANTED_TO], uid);
            assert_eq!(pod.labels()["consul-semaphore.io/holder"], uid);
        }
        assert!(stage.holders().await.contains(&session));
        let key = format!("{}/{session}", stage.db.lock_prefix());
        let contender = stage.bed.consul().kv(&key).await;
        let body = contender.expect("a holder has a contender").json();
        assert_eq!(
            (&body["kind"], &body["name"], &body["uid"]),
            (
                &json!(self.kind.name),
                &json!(self.object.name()),
                &json!(uid)
            )
        );
        session
    }

    /// Whether a grant reaches its pods: not those of something that it refers to.
    pub(crate) fn is_told(&self) -> bool {
        !self.kind.pods[0].starts_with("/spec/runtime/")
    }

    /// Its controller has seen it held, and it has no pods.
    pub(crate) async fn is_held(&self) {
        self.object.is("held", self.kind.is_held).await;
        assert_eq!(self.pods().await.len(), 0);
    }

    /// Its user ends it. When this returns, it is over and pods of it go on.
    pub(crate) async fn is_ended_by_its_user(&self) {
        match &self.kind.ending {
            Ending::PodSucceeds(labels) => self.pod_ends(labels, End::Succeeded).await,
            Ending::DriverSucceeds(driver, executors) => {
                self.pod_ends(driver, End::Succeeded).await;
                let executors = format!("{WORKLOAD_LABEL}={},{executors}", self.id);
                let delete = ["delete", "pod", "--wait=false", "-l", &executors];
                self.object.namespace().kubectl(delete).await;
            }
            Ending::Status(fields) => {
                let set = fields.iter();
                let set =
                    set.map(|(path, value)| json!({ "op": "add", "path": path, "value": value }));
                let changed = self.object.change_status(set.collect()).await;
                changed.expect("its status can be changed");
            }
            Ending::Change(path, value) => {
                let change = json!([{ "op": "add", "path": path, "value": value }]);
                self.object.change(change).await.expect("it can be changed");
            }
            Ending::Delete => self.object.delete().await,
        }
        self.object.is("over", self.kind.is_over).await;
        assert_ne!(self.running().await.len(), 0, "its pods terminate for 20 s");
    }

    /// The pod of it with these labels ends.
    async fn pod_ends(&self, labels: &str, end: End) {
        let team = self.object.namespace();
        let pods = team
            .pods_with(&format!("{WORKLOAD_LABEL}={},{labels}", self.id))
            .await;
        let pod = pods.first().expect("it runs").name_any();
        proof::pod_ends(team, &pod, end).await;
    }

    /// Waits until it has failed, for this reason, which an event says, too: the message of that.
    pub(crate) async fn fails(&self, reason: &str) -> String {
        let note = self.object.has_event(reason).await;
        self.object.is("failed", self.kind.has_failed).await;
        note
    }

    /// Waits until it has no pod any more that has not ended.
    pub(crate) async fn pods_are_gone(&self) {
        let what = format!("the pods of {} are gone", self.object.name());
        eventually(&what, || async { same(self.running().await.len(), 0) }).await;
    }
}

pub(crate) fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// Whether its controller knows of a pod. Tekton does not end one of which it does not know yet.
fn is_known(pod: &Pod) -> bool {
    let of_tekton = pod.labels().contains_key("tekton.dev/taskRun");
    !of_tekton || pod.annotations().contains_key("tekton.dev/ready")
}
