//! Finds what is left of a workload: its pods, and the objects that may still make more of them. Never uses a cache.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, api::ListParams};

use super::{ClusterWorkloads, MAX_NAMED_REMAINS, PARTS_PER_PAGE};
use crate::call::{CallError, call};
use consul_semaphore::Identity;
use consul_semaphore_workload::{
    Kind, Object,
    kueue::Owner,
    pods::{self, Belongs, OwnQuery, Pod},
};

/// Largest number of controllers between a pod and the workload that it belongs to.
const CONTROLLERS: usize = 4;

/// The remains that were found so far.
pub(super) struct Remains<'a> {
    workloads: &'a ClusterWorkloads,
    namespace: &'a str,
    /// Titles of the remains, for people: at most about [`MAX_NAMED_REMAINS`] of each query.
    pub(super) titles: Vec<String>,
    /// Controllers by uid, and whether the objects that they made belong to the workload of the query.
    controllers: HashMap<String, bool>,
}

impl<'a> Remains<'a> {
    pub(super) fn new(workloads: &'a ClusterWorkloads, namespace: &'a str) -> Self {
        Self {
            workloads,
            namespace,
            titles: Vec::new(),
            controllers: HashMap::new(),
        }
    }

    /// Adds what is left of this workload. The parts that make pods are listed first, so that the list of pods has
    /// all pods that a part has made before it is gone.
    pub(super) async fn of(&mut self, kind: &Kind, workload: &Identity) -> Result<(), CallError> {
        for (part, query) in kind.parts(workload) {
            self.parts(&part, &query).await?;
        }
        for query in kind.pods(workload) {
            self.pods(&query).await?;
        }
        Ok(())
    }

    /// Adds the owner of a Workload of Kueue, if the owner may still make pods: Kueue may not have suspended it yet.
    pub(super) async fn owner(&mut self, owner: &Owner) -> Result<(), CallError> {
        let Owner { kind, name, uid } = owner;
        let found = call(self.api::<Object>(kind).get_opt(name)).await?;
        let it = found.filter(|object| object.metadata.uid.as_deref() == Some(uid.as_ref()));
        let maker = it.filter(|object| kind.may_make_pods(object));
        self.titles.extend(maker.map(|object| kind.title(&object)));
        Ok(())
    }

    /// Adds the parts of a workload that may still make pods. There are none of a kind that the cluster does not have
    /// (any more).
    async fn parts(&mut self, part: &Kind, query: &OwnQuery) -> Result<(), CallError> {
        let api = self.api::<Object>(part);
        let mut left = Vec::new();
        let mut page = Some(
            ListParams::default()
                .labels(&query.labels)
                .limit(PARTS_PER_PAGE),
        );
        while let Some(params) = page.take() {
            let parts = match call(api.list(&params)).await {
                Err(error) if matches!(error.refusal(), Some((404, _))) => break,
                parts => parts?,
            };
            for object in parts.items.iter().filter(|it| part.may_make_pods(it)) {
                let holder = part.holder_of_pods(object);
                let said = query.finds_part(&object.metadata, holder.as_deref());
                if self.belongs(query, said).await? {
                    left.push(part.title(object));
                }
            }
            let more = parts.metadata.continue_.filter(|token| !token.is_empty());
            page = more.map(|token| params.continue_token(&token));
        }
        left.truncate(usize::try_from(MAX_NAMED_REMAINS).unwrap_or(usize::MAX));
        self.titles.extend(left);
        Ok(())
    }

    /// Adds some of the pods of a workload that have not ended; none if all have.
    async fn pods(&mut self, query: &OwnQuery) -> Result<(), CallError> {
        let client = self.workloads.client.clone();
        let api: Api<Pod> = Api::namespaced(client, self.namespace);
        let mut page = ListParams::default()
            .labels(&query.labels)
            .fields(pods::NOT_ENDED)
            .limit(MAX_NAMED_REMAINS);
        loop {
            let list = call(api.list(&page)).await?;
            let mut left = Vec::new();
            for pod in &list.items {
                if self.belongs(query, query.finds(&pod.metadata)).await? {
                    left.push(pods::title(pod));
                }
            }
            let more = list.metadata.continue_.filter(|token| !token.is_empty());
            match more {
                // Many pods of the page may belong to another workload.
                Some(token) if left.is_empty() => {
                    page = page.limit(PARTS_PER_PAGE).continue_token(&token);
                }
                _ => {
                    left.retain(|title| !self.titles.contains(title));
                    self.titles.extend(left);
                    return Ok(());
                }
            }
        }
    }

    /// Returns whether an object belongs to the workload that a query is about. The controllers of the object decide;
    /// if one of them is gone or can't be read, the object itself does.
    async fn belongs(&mut self, query: &OwnQuery, said: Belongs) -> Result<bool, CallError> {
        match said {
            Belongs::Yes => Ok(true),
            Belongs::No => Ok(false),
            Belongs::AsItsController {
                controller,
                otherwise,
            } => {
                let made = self.made_by_it(query, controller).await?;
                Ok(made.unwrap_or(otherwise))
            }
        }
    }

    /// Returns whether the objects of this controller belong to the workload; `None` if that can't be found out.
    async fn made_by_it(
        &mut self,
        query: &OwnQuery,
        mut controller: OwnerReference,
    ) -> Result<Option<bool>, CallError> {
        let mut asked = Vec::new();
        let belongs = loop {
            if let Some(known) = self.controllers.get(&controller.uid) {
                break *known;
            }
            if asked.len() == CONTROLLERS {
                return Ok(None);
            }
            let Some(metadata) = self.controller(query, &controller).await? else {
                return Ok(None);
            };
            let said = query.finds_by(&controller, &metadata);
            asked.push(controller.uid);
            match said {
                Belongs::Yes => break true,
                Belongs::No => break false,
                Belongs::AsItsController {
                    controller: next, ..
                } => controller = next,
            }
        };
        let known = asked.into_iter().map(|uid| (uid, belongs));
        self.controllers.extend(known);
        Ok(Some(belongs))
    }

    /// Reads the metadata of an object's controller; `None` if the controller is gone, or of a kind that the operator
    /// may not read.
    async fn controller(
        &self,
        query: &OwnQuery,
        controller: &OwnerReference,
    ) -> Result<Option<ObjectMeta>, CallError> {
        let known = self.workloads.kind(&controller.kind.as_str().into());
        let Some(kind) = known.filter(|kind| query.may_ask(kind, controller)) else {
            return Ok(None);
        };
        let api = self.api::<Object>(&kind);
        let found = match call(api.get_metadata_opt(&controller.name)).await {
            Err(error) if matches!(error.refusal(), Some((403 | 404, _))) => None,
            found => found?,
        };
        let metadata = found.map(|found| found.metadata);
        Ok(metadata.filter(|metadata| metadata.uid.as_deref() == Some(&*controller.uid)))
    }

    fn api<K>(&self, kind: &Kind) -> Api<K>
    where
        K: kube::Resource<
                DynamicType = kube::api::ApiResource,
                Scope = kube::core::DynamicResourceScope,
            >,
    {
        let client = self.workloads.client.clone();
        Api::namespaced_with(client, self.namespace, &kind.resource())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::{Client, Config};
    use serde_json::{Value, json};
    use wiremock::{Mock, MockServer, Request, ResponseTemplate, matchers::any};

    use super::*;
    use crate::workload::{KnownKinds, Owners, ServedKinds};
    use consul_semaphore_workload::Kinds;

    /// Objects by their paths in the API server.
    type Objects = BTreeMap<String, Vec<Value>>;

    /// Returns whether an object has all labels of a selector, as in `a=b,c=d`.
    fn has(object: &Value, selector: &str) -> bool {
        let mut labels = selector.split(',').filter(|label| !label.is_empty());
        labels.all(|label| {
            let (name, value) = label.split_once('=').unwrap();
            object["metadata"]["labels"][name] == value
        })
    }

    fn answer(objects: &Objects, request: &Request) -> ResponseTemplate {
        let path = request.url.path();
        if let Some(all) = objects.get(path) {
            let query: BTreeMap<_, _> = request.url.query_pairs().collect();
            let selector = query.get("labelSelector").map_or("", |labels| labels);
            let found = all.iter().filter(|object| has(object, selector));
            let items: Vec<&Value> = found.collect();
            let list =
                json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items });
            return ResponseTemplate::new(200).set_body_json(list);
        }
        let (folder, name) = path.rsplit_once('/').unwrap();
        let mut all = objects.get(folder).into_iter().flatten();
        all.find(|object| object["metadata"]["name"] == name)
            .map_or_else(
                || {
                    let details = json!({ "name": name });
                    let status = json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                        "reason": "NotFound", "message": "not found", "details": details,
                    });
                    ResponseTemplate::new(404).set_body_json(status)
                },
                |object| ResponseTemplate::new(200).set_body_json(object),
            )
    }

    /// Returns the remains of the workload with this kind, name and uid in an API server with these objects, for an
    /// operator that serves these kinds.
    async fn asked(
        objects: Objects,
        kinds: ServedKinds,
        (kind, name, uid): (&str, &str, &str),
    ) -> Result<Vec<String>, String> {
        let server = MockServer::start().await;
        let answers = Mock::given(any());
        answers
            .respond_with(move |request: &Request| answer(&objects, request))
            .mount(&server)
            .await;
        let config = Config::new(server.uri().parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let workloads = ClusterWorkloads::new(client, KnownKinds::new(), kinds, Owners::default());
        let identity = Identity {
            cluster: "c".into(),
            namespace: "batch".into(),
            semaphore: "db".into(),
            key: None,
            kind: kind.into(),
            workload: name.into(),
            uid: uid.into(),
            ordinal: 0,
        };
        let (_, left) = workloads.prove(&identity).await?;
        Ok(left)
    }

    /// Returns the remains of a workload for an operator that serves all kinds.
    async fn left(objects: Objects, kind: &str, name: &str, uid: &str) -> Vec<String> {
        let served = ServedKinds::new(&Kinds::all());
        asked(objects, served, (kind, name, uid)).await.unwrap()
    }

    const JOBS: &str = "/apis/batch/v1/namespaces/batch/jobs";
    const JOB_SETS: &str = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/batch/jobsets";
    const TRAIN_JOBS: &str = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/batch/trainjobs";
    const RAY_JOBS: &str = "/apis/ray.io/v1/namespaces/batch/rayjobs";
    const PODS: &str = "/api/v1/namespaces/batch/pods";

    fn owner(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
        json!([{
            "apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true,
        }])
    }

    fn object(name: &str, uid: &str, labels: &Value, owners: &Value) -> Value {
        json!({
            "metadata": {
                "name": name, "namespace": "batch", "uid": uid, "resourceVersion": "1",
                "labels": labels, "ownerReferences": owners,
            },
            "spec": {},
        })
    }

    /// The objects are as Trainer makes them. A `TrainJob` leaves no mark on the objects that its `JobSet` makes.
    #[tokio::test]
    async fn a_train_job_made_again_under_its_name_has_other_pods() {
        let named = json!({ "jobset.sigs.k8s.io/jobset-name": "t" });
        let made = |uid: &str| owner("trainer.kubeflow.org/v1alpha1", "TrainJob", "t", uid);
        let by_job_set = |uid: &str| owner("jobset.x-k8s.io/v1alpha2", "JobSet", "t", uid);
        let by_job = |name: &str, uid: &str| owner("batch/v1", "Job", name, uid);
        let none = json!([]);
        let objects = |old_pod: bool| {
            let mut pods = vec![object("new-pod", "np", &named, &by_job("t-node-0", "nj"))];
            // The old pod's Job and JobSet are gone already.
            let old = || object("old-pod", "op", &named, &by_job("t-node-0", "oj"));
            pods.extend(old_pod.then(old));
            Objects::from([
                (
                    TRAIN_JOBS.to_owned(),
                    vec![object("t", "new", &json!({}), &none)],
                ),
                (
                    JOB_SETS.to_owned(),
                    vec![object("t", "ns", &named, &made("new"))],
                ),
                (
                    JOBS.to_owned(),
                    vec![object("t-node-0", "nj", &named, &by_job_set("ns"))],
                ),
                (PODS.to_owned(), pods),
            ])
        };
        let of = |old_pod, uid| left(objects(old_pod), "TrainJob", "t", uid);
        assert_eq!(of(true, "old").await, ["old-pod on node (none yet)"]);
        assert_eq!(of(false, "old").await, [""; 0], "its slot is free");
        assert_eq!(
            of(false, "new").await,
            ["Job t-node-0", "new-pod on node (none yet)"]
        );
    }

    /// The objects are as `KubeRay` makes them. A `RayJob` leaves no mark on the pod of its submitter.
    #[tokio::test]
    async fn a_ray_job_made_again_under_its_name_has_another_submitter() {
        let labels = json!({
            "batch.kubernetes.io/job-name": "r",
            "ray.io/originated-from-cr-name": "r",
            "ray.io/originated-from-crd": "RayJob",
        });
        let objects = || {
            let job = object(
                "r",
                "job",
                &labels,
                &owner("ray.io/v1", "RayJob", "r", "new"),
            );
            let pod = object("r-x", "pod", &labels, &owner("batch/v1", "Job", "r", "job"));
            Objects::from([
                (
                    RAY_JOBS.to_owned(),
                    vec![object("r", "new", &json!({}), &json!([]))],
                ),
                (JOBS.to_owned(), vec![job]),
                (PODS.to_owned(), vec![pod]),
            ])
        };
        assert_eq!(left(objects(), "RayJob", "r", "old").await, [""; 0]);
        let left = left(objects(), "RayJob", "r", "new").await;
        assert_eq!(left, ["Job r", "r-x on node (none yet)"]);
    }

    /// The `MPIJob`s were deleted while a launcher was between two pods. Their Jobs and pods are as the MPI operator
    /// makes them: the Job has one label, which anybody may use.
    #[tokio::test]
    async fn the_launcher_of_a_deleted_mpi_job_may_make_another_pod() {
        let app = json!({ "app": "m" });
        let none = json!([]);
        let launcher = |holder: Option<&str>, owners: &Value| {
            let mut job = object("m-launcher", "job", &app, owners);
            let labels = holder.map(|holder| json!({ "consul-semaphore.io/holder": holder }));
            job["spec"] = json!({ "template": { "metadata": { "labels": labels } } });
            job["status"] = json!({ "startTime": "2026-01-01T00:00:00Z", "failed": 1 });
            job
        };
        let by_it = owner("kubeflow.org/v2beta1", "MPIJob", "m", "u");
        let by_cron_job = owner("batch/v1", "CronJob", "m", "c");
        let mut ended = launcher(Some("u"), &none);
        ended["status"]["conditions"] = json!([{ "type": "Failed", "status": "True" }]);
        let another = |holder: Option<&str>, owners: &Value| {
            let mut job = launcher(holder, owners);
            job["metadata"]["name"] = "m-another".into();
            job
        };
        let left_of = |job: Value| async {
            let objects = Objects::from([(JOBS.to_owned(), vec![job]), (PODS.to_owned(), vec![])]);
            left(objects, "MPIJob", "m", "u").await
        };
        let expected = ["Job m-launcher"];
        assert_eq!(
            left_of(launcher(Some("u"), &none)).await,
            expected,
            "orphaned"
        );
        assert_eq!(
            left_of(launcher(Some("u"), &by_it)).await,
            expected,
            "to be collected"
        );
        assert_eq!(left_of(launcher(None, &by_it)).await, expected);
        for (what, job) in [
            ("it has ended", ended),
            ("of an earlier one", launcher(Some("earlier"), &none)),
            ("a Job of a user", another(None, &none)),
            ("a CronJob's", another(None, &by_cron_job)),
        ] {
            assert_eq!(left_of(job).await, [""; 0], "{what}");
        }
    }

    /// The objects are as `JobSet` before v0.9 makes them: without the label `jobset-uid`.
    #[tokio::test]
    async fn the_pods_and_jobs_of_a_deleted_job_set_count_whatever_its_version() {
        let held = json!({
            "jobset.sigs.k8s.io/jobset-name": "a", "consul-semaphore.io/holder": "u",
        });
        let by_job = owner("batch/v1", "Job", "a-w-0", "j");
        let pods = Objects::from([
            (PODS.to_owned(), vec![object("a-x", "p", &held, &by_job)]),
            (JOBS.to_owned(), Vec::new()),
        ]);
        assert_eq!(
            left(pods, "JobSet", "a", "u").await,
            ["a-x on node (none yet)"]
        );
        let named = json!({ "jobset.sigs.k8s.io/jobset-name": "a" });
        let by_it = owner("jobset.x-k8s.io/v1alpha2", "JobSet", "a", "u");
        let jobs = Objects::from([
            (PODS.to_owned(), Vec::new()),
            (JOBS.to_owned(), vec![object("a-w-0", "j", &named, &by_it)]),
        ]);
        assert_eq!(left(jobs.clone(), "JobSet", "a", "u").await, ["Job a-w-0"]);
        let later = Objects::from([(
            JOB_SETS.to_owned(),
            vec![object("a", "u", &named, &json!([]))],
        )]);
        let later = jobs.into_iter().chain(later).collect();
        assert_eq!(left(later, "JobSet", "a", "earlier").await, [""; 0]);
    }

    /// Returns a `JobSet` with these fields, and a pod of it.
    fn job_set(fields: &Value, pod: bool) -> Objects {
        let mut itself = object("a", "u", &json!({}), &json!([]));
        for (name, value) in fields.as_object().unwrap() {
            itself[name] = value.clone();
        }
        let held = json!({ "consul-semaphore.io/holder": "u" });
        let pods = pod.then(|| object("a-x", "p", &held, &json!([])));
        Objects::from([
            (JOB_SETS.to_owned(), vec![itself]),
            (JOBS.to_owned(), Vec::new()),
            (PODS.to_owned(), pods.into_iter().collect()),
        ])
    }

    #[tokio::test]
    async fn of_a_kind_that_is_off_a_workload_counts_while_it_may_make_pods() {
        let condition = |kind: &str| json!({ "conditions": [{ "type": kind, "status": "True" }] });
        let runs = json!({ "spec": {} });
        let ended = json!({ "spec": {}, "status": condition("Completed") });
        let held = json!({ "spec": { "suspend": true }, "status": condition("Suspended") });
        let stops = json!({ "spec": { "suspend": true } });
        let (itself, pod) = (
            "JobSet a (this kind is switched off)",
            "a-x on node (none yet)",
        );
        let off = || ServedKinds::of_old(&Kinds::default());
        let just_now = || ServedKinds::new(&Kinds::default());
        for (fields, has_pod, served, expected) in [
            (&runs, true, off(), &[itself, pod][..]),
            // The controller of the `JobSet` makes the next pod.
            (&runs, false, off(), &[itself]),
            (&stops, false, off(), &[itself]),
            (&ended, true, off(), &[pod]),
            (&ended, false, off(), &[]),
            (&held, false, off(), &[]),
            // A start of the `JobSet` may still be on its way.
            (&held, false, just_now(), &[itself]),
            (&ended, false, just_now(), &[]),
        ] {
            let left = asked(job_set(fields, has_pod), served, ("JobSet", "a", "u")).await;
            assert_eq!(left.unwrap(), expected, "{fields}, a pod: {has_pod}");
        }
        let another = asked(job_set(&runs, false), off(), ("JobSet", "a", "earlier")).await;
        assert_eq!(another.unwrap(), [""; 0]);
    }

    /// The owner of the Workload may be between two pods.
    #[tokio::test]
    async fn of_kueue_nothing_is_known_while_it_is_off() {
        let off = ServedKinds::of_old(&Kinds::default());
        let asked = asked(Objects::new(), off, ("Workload", "job-a", "u")).await;
        assert_eq!(asked.unwrap_err(), "kueue is not among --workloads");
    }
}
