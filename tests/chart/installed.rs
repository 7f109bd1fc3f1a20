//! The life of the chart on a real API server, with the commands of docs/install.md: installed, upgraded twice, once
//! with a changed `CustomResourceDefinition`, uninstalled, installed again. The operators of its pods work meanwhile.

use std::{fs, path::Path};

use consul_semaphore_operator::telemetry;
use serde_json::Value;
use testbed::{Consul, ConsulServer, Kubernetes, Namespace, eventually, same};

use crate::{
    chart::{CHART, NAMESPACE, RELEASE},
    operator::{Release, a_job_goes_its_way, make_token, shows, stop},
};

const MANAGEMENT: &str = "00000000-1111-4222-8333-444444444444";
const TOKEN: &str = "55555555-6666-4777-8888-999999999999";

const CRD: &str = "crd/consulsemaphores.consul-semaphore.io";

/// The commands of the first block on a page that contains these words, for this Consul.
fn commands(page: &str, words: &str, consul: &Consul) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(path).expect("the page");
    let blocks = text.split("```sh\n").skip(1);
    let mut blocks = blocks.filter_map(|block| block.split("```").next());
    let block = blocks.find(|block| block.contains(words));
    let block = block.unwrap_or_else(|| panic!("no commands with {words:?} in {page}"));
    block
        .replace("http://consul-server.consul.svc:8500", consul.address())
        .replace("token=...", &format!("token={TOKEN}"))
}

/// Like [`commands`], from docs/install.md.
fn documented(words: &str, consul: &Consul) -> String {
    commands("docs/install.md", words, consul)
}

struct Stage {
    kubernetes: Kubernetes,
    consul: ConsulServer,
}

impl Stage {
    async fn new() -> Self {
        let consul = Consul::builder().acls(MANAGEMENT);
        let (kubernetes, consul) =
            tokio::join!(Kubernetes::start_with_deployments(), consul.start());
        make_token(&consul, TOKEN).await;
        Self { kubernetes, consul }
    }

    async fn documented(&self, words: &str) -> String {
        self.kubernetes
            .shell(&documented(words, &self.consul))
            .await
    }

    async fn release(&self) -> Release {
        Release::new(&self.kubernetes, NAMESPACE, RELEASE).await
    }

    /// The chart of another version, with a different `CustomResourceDefinition`.
    fn changed_chart(&self) -> String {
        let chart = self.kubernetes.folder().path().join("changed-chart");
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join(CHART), &chart);
        let change = |file: &str, from: &str, to: &str| {
            let file = chart.join(file);
            let text = fs::read_to_string(&file).expect("the file");
            assert!(text.contains(from), "{} has no {from:?}", file.display());
            fs::write(&file, text.replacen(from, to, 1)).expect("the changed file");
        };
        let version = format!("\nversion: {}\n", telemetry::VERSION);
        change("Chart.yaml", &version, "\nversion: 100.0.0\n");
        let crd = "files/crds/consulsemaphores.consul-semaphore.io.yaml";
        change(crd, "    - csem\n", "    - csem\n    - csema\n");
        chart.display().to_string()
    }

    /// All objects with the release's label, of the kinds that the chart creates.
    async fn objects(&self) -> Vec<String> {
        let kinds = "deployments,replicasets,pods,services,serviceaccounts,poddisruptionbudgets,roles,rolebindings,\
                     clusterroles,clusterrolebindings,customresourcedefinitions,\
                     mutatingadmissionpolicies,mutatingadmissionpolicybindings,\
                     validatingadmissionpolicies,validatingadmissionpolicybindings";
        let label = format!("app.kubernetes.io/instance={RELEASE}");
        let args = ["get", kinds, "--all-namespaces", "-l", &label, "-o", "name"];
        let names = self.kubernetes.kubectl(args).await;
        names.lines().map(str::to_owned).collect()
    }
}

/// Copies a folder with its content.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let from = entry.expect("an entry").path();
        let to = to.join(from.file_name().expect("a name"));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).expect("a file");
        }
    }
}

#[tokio::test]
async fn installed_upgraded_uninstalled() {
    let stage = Stage::new().await;
    let kubernetes = &stage.kubernetes;
    let said = stage.documented("kubectl create namespace").await;
    assert!(said.contains("STATUS: deployed"), "{said}");
    assert!(said.contains("Create a semaphore with two slots"), "{said}");
    let release = stage.release().await;
    let first = release.run(kubernetes).await;
    shows(
        kubernetes,
        &["pdb", RELEASE, "-n", NAMESPACE],
        ".status.disruptionsAllowed",
        "1",
    )
    .await;

    eventually("the leader finds both policies in force", || async {
        let logs: Vec<_> = first.iter().map(testbed::Container::logs).collect();
        let found =
            ["suspend", "guard"].map(|name| format!("{name}.consul-semaphore.io is in force"));
        same(
            found.map(|found| logs.iter().any(|log| log.contains(&found))),
            [true; 2],
        )
    })
    .await;

    stage.documented("helm test").await;
    let check = format!("{RELEASE}-check");
    let (status, printed) = kubernetes.run_pod_to_end(NAMESPACE, &check).await;
    assert!(status.success(), "{printed}");
    for word in ["keys: write", "in force", " 0 failed"] {
        assert!(printed.contains(word), "{printed}");
    }
    // Helm leaves it there, so that its log can be read.
    kubernetes
        .kubectl(["delete", "pod", &check, "-n", NAMESPACE])
        .await;

    let team = kubernetes.namespace("team").await;
    let db = team.semaphore("db").limit(2).create().await;
    db.is_ready().await;
    a_job_goes_its_way(&team, "db", "first").await;
    let long = team.job("long").semaphore("db").runs("1h").create().await;
    long.is_running().await;
    let session = long.session().await;

    // Different arguments: all pods are replaced, and the Job continues.
    let before = release.pods().await;
    stage.documented("--reset-then-reuse-values").await;
    let after = release.pods().await;
    assert!(
        after.iter().all(|pod| !before.contains(pod)),
        "{before:?} {after:?}"
    );
    let second = run_in_place_of(&stage, first).await;
    assert!(
        second[0].logs().contains("\"DEBUG\""),
        "{}",
        second[0].logs()
    );
    a_job_goes_its_way(&team, "db", "second").await;

    // A different CustomResourceDefinition: no pod is replaced.
    shows(kubernetes, &[CRD], ".spec.names.shortNames", r#"["csem"]"#).await;
    let upgrade = documented("--reset-then-reuse-values", &stage.consul);
    let upgrade = upgrade.replace(CHART, &stage.changed_chart());
    kubernetes.shell(&upgrade).await;
    shows(
        kubernetes,
        &[CRD],
        ".spec.names.shortNames",
        r#"["csem","csema"]"#,
    )
    .await;
    assert_eq!(release.pods().await, after);
    a_job_goes_its_way(&team, "db", "third").await;
    assert_eq!(long.session().await, session);
    let events = long.events().await;
    let lost =
        |event: &k8s_openapi::api::core::v1::Event| event.reason.as_deref() == Some("SlotLost");
    assert!(!events.iter().any(lost));
    long.finish().await;
    long.has_event("SlotReleased").await;

    leaves_what_users_made(&stage, &team).await;
    stop(second).await;
    comes_back_to_it(&stage, &team).await;
}

/// As in a rolling update: the new pods start before the old ones end.
async fn run_in_place_of(
    stage: &Stage,
    before: Vec<testbed::Container>,
) -> Vec<testbed::Container> {
    let release = stage.release().await;
    let mut containers = Vec::new();
    for pod in release.pods().await {
        containers.push(stage.kubernetes.run_pod(&release.namespace, &pod).await);
    }
    stop(before).await;
    containers
}

/// After it is uninstalled, only the release's `CustomResourceDefinition` is left.
async fn leaves_what_users_made(stage: &Stage, team: &Namespace) {
    let uninstall = documented("helm uninstall", &stage.consul);
    let uninstall = uninstall
        .lines()
        .find(|line| line.starts_with("helm uninstall"));
    stage
        .kubernetes
        .shell(uninstall.expect("the command"))
        .await;
    eventually("all is gone but the CustomResourceDefinition", || async {
        let kept = format!(
            "customresourcedefinition.apiextensions.k8s.io/{}",
            &CRD[4..]
        );
        same(stage.objects().await, vec![kept])
    })
    .await;
    let db = team.semaphore("db").get().await;
    assert!(db.is_some(), "the ConsulSemaphores stay");
}

/// Installed again, as the README says, it takes over what exists; then it is removed as docs/install.md says.
async fn comes_back_to_it(stage: &Stage, team: &Namespace) {
    let install = commands("README.md", "helm upgrade --install", &stage.consul);
    stage.kubernetes.shell(&install).await;
    let containers = stage.release().await.run(&stage.kubernetes).await;
    a_job_goes_its_way(team, "db", "fourth").await;
    stage.documented("helm uninstall").await;
    stop(containers).await;
    let crds = stage
        .kubernetes
        .kubectl(["get", "crds", "-o", "json"])
        .await;
    let crds: Value = serde_json::from_str(&crds).expect("a list");
    assert!(crate::operator::is_empty(&crds), "{crds}");
}

/// A cluster where the operator was installed with kustomize.
#[tokio::test]
async fn from_kustomize_to_helm() {
    let stage = Stage::new().await;
    let kubernetes = &stage.kubernetes;
    let kustomized = documented("kubectl apply -k config/default", &stage.consul);
    let kustomized = kustomized.lines().filter(|line| !line.contains("rollout"));
    kubernetes
        .shell(&kustomized.collect::<Vec<_>>().join("\n"))
        .await;
    let team = kubernetes.namespace("team").await;
    team.semaphore("db").create().await;
    let said = stage.documented("--take-ownership").await;
    assert!(said.contains("STATUS: deployed"), "{said}");
    let containers = stage.release().await.run(kubernetes).await;
    a_job_goes_its_way(&team, "db", "a").await;
    stop(containers).await;
}
