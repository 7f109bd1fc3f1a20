//! How each controller is started.
use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{Controller, PATIENCE, Running, Site};
use crate::{http_client, process::Recipe, programs};

/// The ports of a controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) webhook: u16,
    pub(super) health: u16,
    pub(super) more: u16,
}

/// Where Kueue reads the certificate of its metrics, whatever its configuration says.
const METRICS_OF_KUEUE: &str = "/etc/kueue/metrics/certs";

/// Runs a command with a private `/etc` that has the certificate and the key, and nothing else.
const WITH_CERTIFICATES: &str = r#"
mount -t tmpfs etc /etc
mkdir -p "$0"
cp "$1/tls.crt" "$1/tls.key" "$0"
shift
exec "$@"
"#;

/// The flags for the images that Tekton puts into its pods. Nothing pulls them.
const IMAGES_OF_TEKTON: [&str; 6] = [
    "-entrypoint-image=none",
    "-nop-image=none",
    "-sidecarlogresults-image=none",
    "-workingdirinit-image=none",
    "-shell-image=none",
    "-shell-image-win=none",
];

/// What plays Spark.
const SPARK_SUBMIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/spark-submit");

impl Controller {
    /// What is started for it. Programs with a webhook find its certificate in the folder.
    pub(super) fn recipes(
        self,
        site: &Site,
        ports: Ports,
        certificates: Option<&Path>,
    ) -> Result<Vec<Recipe>> {
        let certificates = || certificates.context("a webhook without a certificate");
        match self {
            Self::JobSet => jobset(site, ports, certificates()?),
            Self::Tekton => tekton(site, ports),
            Self::Argo => argo(site),
            Self::Kueue => kueue(site, ports, certificates()?),
            Self::KubeRay => kuberay(site, ports),
            Self::Trainer => trainer(site, ports, certificates()?),
            Self::Mpi => mpi(site),
            Self::Spark => spark(site, ports, certificates()?),
        }
    }

    /// Waits until its processes say that they are ready, if they do.
    pub(super) async fn ready(self, running: &Running, health: u16) -> Result<()> {
        let asked = [Self::JobSet, Self::Kueue, Self::KubeRay, Self::Trainer].contains(&self);
        let [process] = running.processes() else {
            return Ok(());
        };
        if !asked {
            return Ok(());
        }
        let http = http_client().build()?;
        let ready = http.get(format!("http://127.0.0.1:{health}/readyz"));
        let probe = || async {
            let answer = ready.try_clone().ok_or("a request that has a body")?;
            let answer = answer.send().await;
            let answer = answer.and_then(reqwest::Response::error_for_status);
            answer.map(drop).map_err(|error| error.to_string())
        };
        process.ready(PATIENCE, probe).await
    }
}

fn jobset(site: &Site, ports: Ports, certificates: &Path) -> Result<Vec<Recipe>> {
    let mut config = of_controller_runtime("config.jobset.x-k8s.io/v1alpha1", ports);
    config["webhook"]["certDir"] = certificates.display().to_string().into();
    let config = site.folder.write("jobset.json", config.to_string())?;
    let recipe = recipe(site, "jobset")?.arg(format!("--config={}", config.display()));
    Ok(vec![recipe])
}

fn kueue(site: &Site, ports: Ports, certificates: &Path) -> Result<Vec<Recipe>> {
    let mut config = of_controller_runtime("config.kueue.x-k8s.io/v1beta2", ports);
    config["webhook"]["certDir"] = METRICS_OF_KUEUE.into();
    config["featureGates"] = json!({ "VisibilityOnDemand": false });
    config["integrations"] = json!({ "frameworks": ["batch/job", "jobset.x-k8s.io/jobset"] });
    config["controller"] =
        json!({ "groupKindConcurrency": { "Job.batch": 10, "Workload.kueue.x-k8s.io": 10 } });
    let config = site.folder.write("kueue.json", config.to_string())?;
    let recipe = Recipe::new("kueue", "unshare")
        .args(["--map-root-user", "--mount"])
        .args(["bash", "-euc", WITH_CERTIFICATES, METRICS_OF_KUEUE])
        .arg(certificates)
        .arg(programs::controller("kueue")?)
        .arg(format!("--config={}", config.display()))
        .env("KUBECONFIG", site.kubeconfig.to_string_lossy());
    Ok(vec![recipe])
}

fn tekton(site: &Site, ports: Ports) -> Result<Vec<Recipe>> {
    let controller = recipe(site, "tekton-controller")?
        .arg("-disable-ha=true")
        .args(IMAGES_OF_TEKTON);
    let webhook = recipe(site, "tekton-webhook")?
        .env("WEBHOOK_PORT", ports.webhook.to_string())
        .env("WEBHOOK_SERVICE_NAME", "tekton-pipelines-webhook")
        .env("WEBHOOK_SECRET_NAME", "webhook-certs")
        .env("POD_NAME", "webhook");
    let both = [
        (controller, "controller", ports.health),
        (webhook, "webhook", ports.more),
    ];
    let both = both.map(|(recipe, of, probes)| {
        recipe
            .env("SYSTEM_NAMESPACE", "tekton-pipelines")
            .env("KUBERNETES_MIN_VERSION", "v1.28.0")
            .env("METRICS_DOMAIN", "tekton.dev/pipeline")
            .env("PROBES_PORT", probes.to_string())
            .env("CONFIG_DEFAULTS_NAME", "config-defaults")
            .env("CONFIG_LOGGING_NAME", "config-logging")
            .env("CONFIG_OBSERVABILITY_NAME", "config-observability")
            .env("CONFIG_FEATURE_FLAGS_NAME", "feature-flags")
            .env("CONFIG_SPIRE", "config-spire")
            .env(
                "CONFIG_LEADERELECTION_NAME",
                format!("config-leader-election-{of}"),
            )
    });
    Ok(both.into())
}

fn argo(site: &Site) -> Result<Vec<Recipe>> {
    let recipe = recipe(site, "argo")?
        .arg(format!("--kubeconfig={}", site.kubeconfig.display()))
        .args(["--namespace=argo", "--executor-image=none"])
        .args(["--qps=500", "--burst=1000"])
        .env("ARGO_NAMESPACE", "argo")
        // By default it takes ten seconds to see that a pod has ended.
        .env("DEFAULT_REQUEUE_TIME", "1s")
        .env("LEADER_ELECTION_DISABLE", "true");
    Ok(vec![recipe])
}

/// Its webhook, which a cluster has only where it is asked for, is about other kinds.
fn kuberay(site: &Site, ports: Ports) -> Result<Vec<Recipe>> {
    let recipe = recipe(site, "kuberay")?
        .args(["--enable-leader-election=false", "--metrics-addr=0"])
        .arg(format!(
            "--health-probe-bind-address=127.0.0.1:{}",
            ports.health
        ))
        .args(["--qps=500", "--burst=1000"]);
    Ok(vec![recipe])
}

/// It works through `JobSet`, which must run, too.
fn trainer(site: &Site, ports: Ports, certificates: &Path) -> Result<Vec<Recipe>> {
    let mut config = of_controller_runtime("config.trainer.kubeflow.org/v1alpha1", ports);
    if let Some(config) = config.as_object_mut() {
        config.remove("internalCertManagement");
    }
    config["certManagement"] = json!({ "enable": false });
    let config = site.folder.write("trainer.json", config.to_string())?;
    // It has no setting for the folder of its certificate.
    let temporary = certificates.join("tmp");
    let serving = temporary.join("k8s-webhook-server/serving-certs");
    fs::create_dir_all(&serving)?;
    for file in ["tls.crt", "tls.key"] {
        fs::copy(certificates.join(file), serving.join(file))?;
    }
    let recipe = recipe(site, "trainer")?
        .arg(format!("--config={}", config.display()))
        .env("TMPDIR", temporary.to_string_lossy());
    Ok(vec![recipe])
}

fn mpi(site: &Site) -> Result<Vec<Recipe>> {
    let recipe = recipe(site, "mpi")?
        .arg(format!("--kubeConfig={}", site.kubeconfig.display()))
        .args(["--kube-api-qps=500", "--kube-api-burst=1000"]);
    Ok(vec![recipe])
}

/// Its controller and its webhook, which makes its certificate itself.
fn spark(site: &Site, ports: Ports, certificates: &Path) -> Result<Vec<Recipe>> {
    let home = site.folder.path().join("spark");
    let submit = home.join("bin/spark-submit");
    fs::create_dir_all(home.join("bin"))?;
    fs::copy(SPARK_SUBMIT, submit)?;
    let program = programs::controller("spark")?;
    let both = ["controller", "webhook"].map(|part| {
        let health = if part == "webhook" {
            ports.more
        } else {
            ports.health
        };
        Recipe::new(format!("spark-{part}"), &program)
            .args([part, "start", "--namespaces="])
            .arg(format!("--health-probe-bind-address=127.0.0.1:{health}"))
            .args(["--kube-api-qps=500", "--kube-api-burst=1000"])
            .env("KUBECONFIG", site.kubeconfig.to_string_lossy())
    });
    let [controller, webhook] = both;
    let controller = controller
        .env("SPARK_HOME", home.to_string_lossy())
        // Only the address that it gives to Spark.
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", "443")
        .env("KUBECTL", programs::server("kubectl")?.to_string_lossy());
    let webhook = webhook
        .arg(format!("--webhook-port={}", ports.webhook))
        .arg(format!(
            "--webhook-cert-dir={}",
            certificates.join("own").display()
        ))
        .args([
            "--webhook-svc-name=spark-operator-webhook-svc",
            "--webhook-svc-namespace=spark-operator",
            "--webhook-secret-namespace=spark-operator",
            "--mutating-webhook-name=mutating-webhook-configuration",
            "--validating-webhook-name=validating-webhook-configuration",
        ]);
    Ok(vec![controller, webhook])
}

/// A program that finds the API server by the variable that all of them read.
fn recipe(site: &Site, name: &str) -> Result<Recipe> {
    let program = programs::controller(name)?;
    Ok(Recipe::new(name, program).env("KUBECONFIG", site.kubeconfig.to_string_lossy()))
}

/// The configuration that `JobSet` and Kueue share.
fn of_controller_runtime(api_version: &str, ports: Ports) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": "Configuration",
        "leaderElection": { "leaderElect": false },
        "internalCertManagement": { "enable": false },
        "webhook": { "port": ports.webhook },
        "health": { "healthProbeBindAddress": format!("127.0.0.1:{}", ports.health) },
        "metrics": { "bindAddress": "0" },
        "clientConnection": { "qps": 500, "burst": 1000 },
    })
}
