//! An operator that should work in some namespaces only, without rights elsewhere: the bindings are those of
//! docs/scope.md.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};
use testbed::{
    Bed, Namespace, Operator, eventually, eventually_within,
    helpers::{apply_documented, event_reasons},
    proof::{nothing_is_left, runs_in_a_slot},
    same,
};

/// How long a backoff and the remaining life of a session may take.
const LONG: Duration = Duration::from_mins(4);

const ACCOUNT: &str = "consul-semaphore-operator";

struct Stage {
    bed: Bed,
    /// The namespace of the operator's account and of its Lease.
    home: Namespace,
    kubeconfig: PathBuf,
}

impl Stage {
    async fn new() -> Self {
        let bed = Bed::builder().without_operator().start().await;
        let home = bed.namespace("home").await;
        home.kubectl(["create", "serviceaccount", ACCOUNT]).await;
        let names = [
            ("consul-semaphore-system", home.name()),
            ("shard-a", "teams"),
        ];
        apply_documented(&bed, "lease.yaml", &names).await;
        let role = "consul-semaphore-operator-leader-election";
        let election = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": { "name": role },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": home.name() }],
        });
        home.apply(election).await;
        let kubeconfig = bed.kubeconfig_of(&home, ACCOUNT).await;
        Self {
            bed,
            home,
            kubeconfig,
        }
    }

    /// Gives the operator its rights in a namespace.
    async fn allow(&self, team: &Namespace) {
        let names = [
            ("consul-semaphore-system", self.home.name()),
            ("team-a", team.name()),
        ];
        apply_documented(&self.bed, "namespaces.yaml", &names).await;
    }

    /// An operator for these namespaces.
    fn operator(&self, name: &str, teams: &[&Namespace]) -> Operator {
        self.operator_with(["--lease-name", "teams"], name, teams)
    }

    fn operator_with(&self, args: [&str; 2], name: &str, teams: &[&Namespace]) -> Operator {
        let teams: Vec<_> = teams.iter().map(|team| team.name()).collect();
        let args = [args[0], args[1], "--namespaces", &teams.join(",")].map(str::to_owned);
        let kubeconfig = self.kubeconfig.display().to_string();
        let bed = &self.bed;
        bed.another_operator(name, args, [("KUBECONFIG", kubeconfig)])
    }

    /// The answer to the operator's account when it reads Jobs there.
    async fn asks_for_jobs(&self, there: &str) -> anyhow::Result<String> {
        let kubeconfig = self.kubeconfig.display().to_string();
        let args = ["--kubeconfig", &kubeconfig, "get", "jobs", there];
        self.bed.try_kubectl(args).await
    }
}

#[tokio::test]
async fn rights_in_its_namespaces_are_enough_and_others_are_left_alone() {
    let stage = Stage::new().await;
    let (team, other) = (
        stage.bed.namespace("its-own").await,
        stage.bed.namespace("elsewhere").await,
    );
    stage.allow(&team).await;
    for there in ["--all-namespaces", &format!("--namespace={}", other.name())] {
        let refused = stage.asks_for_jobs(there).await.expect_err(there);
        assert!(format!("{refused:#}").contains("forbidden"), "{refused:#}");
    }
    let theirs = other.semaphore("db").create().await;
    let waits = other.job("waits").semaphore("db").create().await;
    let runs = other.job("runs").semaphore("db").unsuspended().runs("1h");
    let runs = runs.create().await;
    runs.is_running().await;

    let operator = stage.operator("of-one", &[&team]);
    operator.start().await;
    works_in(&stage.bed, &team).await;
    runs.is_running().await;
    waits.is_waiting().await;
    for job in [&runs, &waits] {
        assert_eq!(
            event_reasons(job).await,
            Vec::<String>::new(),
            "{}",
            job.name()
        );
    }
    let object = theirs.get().await.expect("the semaphore");
    assert_eq!(object["status"], Value::Null);
    assert_eq!(object["metadata"]["finalizers"], Value::Null);
    assert!(!operator.logs().contains(other.name()));
    assert!(operator.stop().await.success());

    // It should work in both, but may in only one.
    let both = stage.operator("of-both", &[&team, &other]);
    let allow = async {
        let missing = format!("what=\"jobs in {}\"", other.name());
        eventually("it is missed", || async { both.logs().contains(&missing) }).await;
        works_in(&stage.bed, &team).await;
        runs.is_running().await;
        stage.allow(&other).await;
    };
    tokio::join!(both.start(), allow);
    runs.has_event("RanWithoutSlot").await;
    waits.is_complete().await;
    runs.is_running().await;
    runs.finish().await;
    nothing_is_left(&stage.bed, &other, &theirs).await;
    assert!(both.stop().await.success());
}

#[tokio::test]
async fn slots_of_a_deleted_namespace_are_released_although_its_rights_went_first() {
    let stage = Stage::new().await;
    let bed = &stage.bed;
    let (stays, goes) = (bed.namespace("stays").await, bed.namespace("goes").await);
    stage.allow(&stays).await;
    stage.allow(&goes).await;
    let args = ["--lease-name=teams", "--leader-election=off"];
    let operator = &stage.operator_with(args, "of-two", &[&stays, &goes]);
    operator.start().await;
    let db = goes.semaphore("db").ttl("10s").create().await;
    let job = goes.job("a").semaphore("db").runs("1h").create().await;
    let grant = runs_in_a_slot(bed, &db, &job).await;

    // Its rights are deleted first, and no earlier watch continues.
    goes.kubectl(["delete", "rolebinding", ACCOUNT]).await;
    let server = bed.kubernetes().expect("the bed's own");
    server.kill().await;
    server.start_again().await;
    eventually_within(LONG, "its watches are refused", || async {
        let health = operator.get("/readyz").await;
        let fails =
            |line: &str| line.contains(": the watch has failed") && line.contains("forbidden");
        let failing = health
            .lines()
            .filter(|line| line.contains(goes.name()) && fails(line));
        if failing.count() == 3 {
            Ok(())
        } else {
            Err(health)
        }
    })
    .await;
    goes.kubectl(["delete", "job", job.name(), "--wait=false"])
        .await;
    // After an outage the controllers and kwok come back at their own pace.
    eventually_within(LONG, "the pod is gone", || async {
        same(job.pods().await.len(), 0)
    })
    .await;
    bed.kubectl(["delete", "namespace", goes.name(), "--wait=false"])
        .await;
    let session = || async {
        let sessions = bed.consul().sessions().await;
        sessions
            .iter()
            .any(|session| session["ID"] == grant.session.as_str())
    };
    assert!(session().await, "the slot is kept meanwhile");
    db.patch(json!({ "metadata": { "finalizers": null } }))
        .await;
    eventually_within(LONG, "the slot is free", || async {
        same(session().await, false)
    })
    .await;

    works_in(bed, &stays).await;
    let health = operator.get("/readyz").await;
    assert!(!health.contains(goes.name()), "{health}");
    assert!(operator.stop().await.success());
}

/// Jobs of all kinds are handled in this namespace.
async fn works_in(bed: &Bed, team: &Namespace) {
    let db = team.semaphore("db").limit(1).create().await;
    let unsuspended = team.job("unsuspended").semaphore("db").unsuspended();
    let unsuspended = unsuspended.runs("1h").create().await;
    unsuspended.has_event("RanWithoutSlot").await;
    unsuspended.is_running().await;
    let next = team.job("next").semaphore("db").create().await;
    next.has_event("SlotWaiting").await;
    let stray = team.job("stray").semaphore("nowhere").create().await;
    stray.has_event("NoSemaphore").await;
    unsuspended.finish().await;
    next.is_complete().await;
    nothing_is_left(bed, team, &db).await;
    db.delete().await;
    db.is_gone().await;
    for job in [unsuspended, next, stray] {
        job.delete().await;
        job.is_gone().await;
    }
}
