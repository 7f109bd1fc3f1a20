//! Runs the operator as the pod of a Deployment describes it. kwok only simulates pods and runs nothing.
use std::{
    fs,
    panic::Location,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::{
    api::core::v1::{self as core, Pod, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::Api;
use serde_json::json;
use tokio::{process::Command, time::timeout};

use crate::{
    api_server::ApiServer,
    env::Env,
    http_client, kubeconfig, ports,
    process::{Process, Recipe},
    programs,
    story::story,
    volumes::Volumes,
};

const PATIENCE: Duration = Duration::from_mins(5);

/// Where the program listens by default.
const HTTP_ADDRESS: &str = "[::]:8080";

/// The credentials for the API server in every pod: the pod's token, and the API server's authority.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The operator's container of a pod, as a local process.
///
/// It gets the arguments, variables, files and token of the pod. Paths in them are replaced by their local places. It
/// listens on free loopback ports, because all pods share the ports of this machine.
#[derive(Debug)]
pub struct Container {
    process: Process,
    address: String,
    page: Option<String>,
    liveness: String,
    kubeconfig: PathBuf,
}

impl ApiServer {
    /// Runs the operator as the first container of this pod, and waits until its readiness probe succeeds.
    #[track_caller]
    pub fn run_pod(&self, namespace: &str, name: &str) -> impl Future<Output = Container> {
        story(Location::caller(), self.try_run_pod(namespace, name))
    }

    /// Like [`Self::run_pod`], for a container that is expected to end: the error shows the end of its log.
    pub async fn try_run_pod(&self, namespace: &str, name: &str) -> Result<Container> {
        let (pod, volumes) = self.mounted(namespace, name).await?;
        let kubeconfig = self.in_pod(&volumes, name)?;
        let description = Description::read(&pod, &volumes).await?;
        let program = programs::operator_program()?;
        let started = ports::on_free(|ports| {
            let [address, page] = ports.map(|port| format!("127.0.0.1:{port}"));
            let page = description.page.then_some(page);
            let mut recipe = Recipe::new(name, &program)
                .args(&description.args)
                .env("HOSTNAME", name)
                .env("KUBECONFIG", kubeconfig.display().to_string());
            for (name, value) in description.env.iter() {
                recipe = recipe.env(name, value);
            }
            let mut recipe = recipe.env("HTTP_ADDRESS", &address);
            if let Some(page) = &page {
                recipe = recipe.env("WEB_ADDRESS", page);
            }
            let readiness = &description.readiness;
            async move {
                let process = Process::start(self.shared_folder(), &recipe)?;
                let probe = || async {
                    get(&address, readiness)
                        .await
                        .map(drop)
                        .map_err(|e| format!("{e:#}"))
                };
                process.ready(PATIENCE, probe).await?;
                Ok((process, address, page))
            }
        });
        let (process, address, page) = started.await.with_context(|| format!("running {name}"))?;
        Ok(Container {
            process,
            address,
            page,
            liveness: description.liveness,
            kubeconfig,
        })
    }

    /// Runs the operator's program as the first container of a pod, expects it to end, and returns how it ended and
    /// what it printed.
    #[track_caller]
    pub fn run_pod_to_end(
        &self,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = (ExitStatus, String)> {
        story(Location::caller(), async move {
            let (pod, volumes) = self.mounted(namespace, name).await?;
            let (mut args, env) = given(&pod, &volumes).await?;
            for arg in &mut args {
                *arg = in_place(arg, &volumes)?;
            }
            let mut program = Command::new(programs::operator_program()?);
            program
                .args(args)
                .env_clear()
                .env("HOSTNAME", name)
                .env("KUBECONFIG", self.in_pod(&volumes, name)?)
                .kill_on_drop(true);
            for (name, value) in env.iter() {
                program.env(name, in_place(value, &volumes)?);
            }
            let output = timeout(PATIENCE, program.output()).await??;
            let printed = [output.stdout, output.stderr].concat();
            Ok((
                output.status,
                String::from_utf8_lossy(&printed).into_owned(),
            ))
        })
    }

    /// A pod, with the mounted files of its first container.
    async fn mounted(&self, namespace: &str, name: &str) -> Result<(Pod, Volumes)> {
        let client = kubeconfig::client(self.kubeconfig()).await?;
        let pod: Pod = Api::namespaced(client.clone(), namespace).get(name).await?;
        let root = self.folder().path().join(format!("{name}.files"));
        let volumes = Volumes::write(&client, &pod, &root).await?;
        Ok((pod, volumes))
    }

    /// A kubeconfig for a program in the pod: this API server's own address, and otherwise the pod's files.
    fn in_pod(&self, volumes: &Volumes, pod: &str) -> Result<PathBuf> {
        let [token, authority, namespace] = ["token", "ca.crt", "namespace"]
            .map(|file| volumes.place(Path::new(SERVICE_ACCOUNT).join(file)));
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "bed", "cluster": { "server": self.url(), "certificate-authority": authority? } }],
            "users": [{ "name": "pod", "user": { "tokenFile": token? } }],
            "contexts": [{ "name": "pod", "context": {
                "cluster": "bed", "user": "pod", "namespace": fs::read_to_string(namespace?)?,
            } }],
            "current-context": "pod",
        });
        self.folder()
            .write(&format!("{pod}.kubeconfig"), kubeconfig.to_string())
    }
}

impl Container {
    /// The text of `GET <path>` on its HTTP port, such as `/metrics`.
    #[track_caller]
    pub fn get(&self, path: &str) -> impl Future<Output = String> {
        story(Location::caller(), get(&self.address, path))
    }

    /// Like [`Self::get`], but an answer other than 200 is an error.
    pub async fn try_get(&self, path: &str) -> Result<String> {
        get(&self.address, path).await
    }

    /// Makes the request of the liveness probe: an answer other than 200 fails the test.
    #[track_caller]
    pub fn is_alive(&self) -> impl Future<Output = ()> {
        story(Location::caller(), async {
            get(&self.address, &self.liveness).await.map(drop)
        })
    }

    /// The address of its HTTP endpoints.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The address of its web page, if it serves one.
    pub fn page(&self) -> Option<&str> {
        self.page.as_deref()
    }

    /// The pod's name.
    pub fn name(&self) -> &str {
        self.process.name()
    }

    /// All that it has logged.
    pub fn logs(&self) -> String {
        self.process.log()
    }

    /// Its exit status, if it has ended on its own.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process.exit_status()
    }

    /// Its kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Asks it to stop (SIGTERM), as when a pod is deleted, and waits for its end.
    #[track_caller]
    pub fn stop(self) -> impl Future<Output = ExitStatus> {
        story(Location::caller(), async move {
            self.process.signal("TERM")?;
            self.process.ended(PATIENCE).await
        })
    }
}

async fn get(address: &str, path: &str) -> Result<String> {
    let http = http_client().build()?;
    let url = format!("http://{address}{path}");
    let answer = http.get(url).send().await?.error_for_status()?;
    Ok(answer.text().await?)
}

/// What a pod says about a container, adapted to this machine.
struct Description {
    args: Vec<String>,
    env: Env,
    /// Whether it serves a web page.
    page: bool,
    /// The paths of the probes.
    readiness: String,
    liveness: String,
}

impl Description {
    async fn read(pod: &Pod, volumes: &Volumes) -> Result<Self> {
        let container = first(pod)?;
        let (mut args, mut env) = given(pod, volumes).await?;
        let listens = listens(&mut args, &env)?;
        let page = take(&mut args, "--web-address=").is_some() || env.get("WEB_ADDRESS").is_some();
        let args = args.iter().map(|arg| in_place(arg, volumes));
        for (name, value) in env.clone().iter() {
            env.set(
                name,
                in_place(value, volumes).with_context(|| name.to_owned())?,
            );
        }
        let probe = |probe: &Option<Probe>| path_of(probe.as_ref(), container, listens);
        Ok(Self {
            args: args.collect::<Result<_>>()?,
            env,
            page,
            readiness: probe(&container.readiness_probe).context("the readiness probe")?,
            liveness: probe(&container.liveness_probe).context("the liveness probe")?,
        })
    }
}

fn first(pod: &Pod) -> Result<&core::Container> {
    let spec = pod.spec.as_ref().context("a pod without a spec")?;
    spec.containers.first().context("no container")
}

/// The arguments and variables of a pod's first container, as in the pod.
async fn given(pod: &Pod, volumes: &Volumes) -> Result<(Vec<String>, Env)> {
    let container = first(pod)?;
    ensure!(container.command.is_none(), "the image says what is run");
    let args = container.args.clone().unwrap_or_default();
    Ok((args, volumes.env(container, pod).await?))
}

/// Removes the argument that says where to listen, and returns its port.
fn listens(args: &mut Vec<String>, env: &Env) -> Result<i32> {
    let given = take(args, "--http-address=");
    let given = given.as_deref().or_else(|| env.get("HTTP_ADDRESS"));
    let given = given.unwrap_or(HTTP_ADDRESS);
    let port = given
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok());
    port.with_context(|| format!("{given} is no address to listen at"))
}

/// Removes a flag (`--flag=`) from the arguments, and returns its value.
fn take(args: &mut Vec<String>, flag: &str) -> Option<String> {
    let at = args.iter().position(|arg| arg.starts_with(flag))?;
    Some(args.remove(at)[flag.len()..].to_owned())
}

/// The argument or value, with a path in it replaced by the local one.
fn in_place(text: &str, volumes: &Volumes) -> Result<String> {
    let (flag, value) = match text.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") => (format!("{flag}="), value),
        _ => (String::new(), text),
    };
    if !value.starts_with('/') {
        return Ok(text.to_owned());
    }
    let place = volumes.place(value).with_context(|| text.to_owned())?;
    Ok(format!("{flag}{}", place.display()))
}

/// The path of a probe, if it uses the port on which the program listens.
fn path_of(probe: Option<&Probe>, container: &core::Container, listens: i32) -> Result<String> {
    let ask = probe.and_then(|probe| probe.http_get.as_ref());
    let ask = ask.context("none that asks by HTTP")?;
    let port = match &ask.port {
        IntOrString::Int(port) => Some(*port),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let named = ports.find(|port| port.name.as_ref() == Some(name));
            named.map(|port| port.container_port)
        }
    };
    if port != Some(listens) {
        bail!("it asks at {port:?}, and the program listens at {listens}");
    }
    ask.path.clone().context("it asks for no path")
}
