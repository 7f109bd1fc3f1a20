//! A chart with a mistake does not run: without this, the other tests could miss mistakes, too.

use std::{fs, path::Path};

use testbed::Kubernetes;

use crate::{chart::file, installed::copy, operator::Release};

/// Where the mistake is, and what is reported about it.
struct Mistake {
    name: &'static str,
    file: &'static str,
    right: &'static str,
    wrong: &'static str,
    said: &'static str,
}

const MISTAKES: [Mistake; 3] = [
    Mistake {
        name: "flag",
        file: "templates/_program.tpl",
        right: "--log-format=",
        wrong: "--log-fromat=",
        said: "unexpected argument '--log-fromat'",
    },
    Mistake {
        name: "path",
        file: "templates/_program.tpl",
        right: "  mountPath: /etc/consul/token\n",
        wrong: "  mountPath: /etc/consul/tokens\n",
        said: "nothing is mounted at /etc/consul/token/token",
    },
    Mistake {
        name: "port",
        file: "templates/deployment.yaml",
        right: "containerPort: {{ int .Values.http.port }}",
        wrong: "containerPort: 9090",
        said: "and the program listens at 8080",
    },
];

impl Mistake {
    /// A chart with the mistake.
    fn plant(&self, chart: &Path) {
        copy(&file(""), chart);
        let file = chart.join(self.file);
        let text = fs::read_to_string(&file).expect("the file");
        assert!(
            text.contains(self.right),
            "{} has no {:?}",
            self.file,
            self.right
        );
        fs::write(&file, text.replacen(self.right, self.wrong, 1))
            .expect("the file with the mistake");
    }

    /// What is reported when a pod of it runs.
    async fn outcome(&self, kubernetes: &Kubernetes) -> String {
        let chart = kubernetes.folder().path().join(self.name);
        self.plant(&chart);
        let namespace = kubernetes.namespace(self.name).await;
        let secret = [
            "create",
            "secret",
            "generic",
            "consul-semaphore-operator",
            "--from-literal=token=a",
        ];
        namespace.kubectl(secret).await;
        let chart = chart.display().to_string();
        let name = format!("fullnameOverride={}", self.name);
        let here = [
            "install",
            self.name,
            &chart,
            "-n",
            namespace.name(),
            "--set",
            &name,
        ];
        let alone = "crds.enabled=false,rbac.userRoles=false,consul.token.asFile=true,\
                     admissionPolicies.suspend.enabled=false,admissionPolicies.guard.enabled=false,\
                     admissionPolicies.cronJobs.enabled=false";
        kubernetes
            .helm(here.into_iter().chain(["--set", alone]))
            .await;
        let release = Release::new(kubernetes, namespace.name(), self.name).await;
        let pod = release.pods().await.pop().expect("a pod");
        match kubernetes.try_run_pod(namespace.name(), &pod).await {
            Ok(container) => format!("{} runs", container.name()),
            Err(error) => format!("{error:#}"),
        }
    }
}

#[tokio::test]
async fn a_mistake_in_the_chart_is_found() {
    let kubernetes = Kubernetes::start_with_deployments().await;
    for mistake in MISTAKES {
        let outcome = mistake.outcome(&kubernetes).await;
        assert!(
            outcome.contains(mistake.said),
            "{:?} is not in: {outcome}",
            mistake.said
        );
    }
}
