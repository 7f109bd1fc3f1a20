//! Tests of the test bed itself, for defects that would not show in the tests that use it: what it leaves behind, and
//! what it reports when it does not start.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what helps tests fails as they do"
)]
use std::{
    cell::Cell,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use serde_json::json;
use testbed::{ApiServer, Consul, Kubernetes, Policy, eventually, same, server_folders};

/// One policy being in force says nothing about another.
#[tokio::test]
async fn each_admission_policy_is_waited_for_by_itself() {
    const SUSPEND: &str = "config/policies/suspend.yaml";
    const GUARD: &str = "config/policies/guard.yaml";
    const REFUSE: &str = "config/policies/refuse.yaml";
    let server = ApiServer::start().await;
    let team = server.namespace("policies").await;
    let kubectl = async |args: [&str; 3]| drop(server.kubectl(args).await);
    let guard_is_applied = Cell::new(false);

    team.policies_are(&[]).await;
    kubectl(["apply", "-f", SUSPEND]).await;
    let waits = async {
        team.policies_are(&[Policy::Suspend, Policy::Guard]).await;
        assert!(guard_is_applied.get(), "it waited for one of them");
    };
    let applies = async {
        team.policies_are(&[Policy::Suspend]).await;
        guard_is_applied.set(true);
        kubectl(["apply", "-f", GUARD]).await;
    };
    tokio::join!(waits, applies);

    let operator = "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator";
    team.guard_lets(operator, true).await;
    team.guard_lets("somebody", false).await;
    kubectl(["delete", "-f", SUSPEND]).await;
    team.policies_are(&[Policy::Guard]).await;
    kubectl(["apply", "-f", REFUSE]).await;
    team.policies_are(&[Policy::Guard, Policy::Refuse]).await;
    kubectl(["delete", "-f", GUARD]).await;
    team.policies_are(&[Policy::Refuse]).await;
    let left_out = "consul-semaphore.io/admission=disabled";
    let label = ["label", "namespace", team.name(), left_out];
    server.kubectl(label).await;
    team.policies_are(&[]).await;
    assert_eq!(team.jobs().await, [""; 0], "what was tried is gone");
}

#[tokio::test]
async fn a_server_that_does_not_start_says_why() {
    let refusal = Consul::builder()
        .config(json!({ "nonsense": 1 }))
        .try_start()
        .await
        .unwrap_err();

    let refusal = format!("{refusal:#}");
    assert!(
        refusal.contains("starting Consul: consul: it ended"),
        "{refusal}"
    );
    assert!(refusal.contains("invalid config key nonsense"), "{refusal}");
}

#[test]
fn a_missing_server_says_what_to_do() {
    let output = another_process_command()
        .env("SERVERS_DIR", "/nonexistent")
        .output()
        .unwrap();

    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("run `make servers`"), "{complaint}");
}

#[test]
fn another_version_is_never_replaced_by_the_own_one() {
    let output = another_process_command()
        .env("KUBERNETES", "1.0")
        .output()
        .unwrap();

    let complaint = String::from_utf8_lossy(&output.stderr);
    let says = "kubernetes-1.0/bin/etcd): run `make servers`";
    assert!(complaint.contains(says), "{complaint}");
}

/// Here with an operator that starts for ever: its account may not even read the cluster's id.
#[tokio::test]
async fn the_operator_of_a_pod_goes_with_it_also_while_it_starts() {
    let kubernetes = Kubernetes::start_with_deployments().await;
    let team = kubernetes.namespace("pods").await;
    let before = kubernetes.folder().ids();
    let started = || {
        let ids = kubernetes.folder().ids().into_iter();
        let new: Vec<_> = ids.filter(|id| !before.contains(id)).collect();
        running(&new)
    };
    let account =
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "nobody" } });
    team.apply(account).await;
    let probe = json!({ "httpGet": { "path": "/readyz", "port": 8080 } });
    team.apply(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "operator", "labels": { "app.kubernetes.io/name": "consul-semaphore-operator" } },
        "spec": { "serviceAccountName": "nobody", "containers": [{
            "name": "operator",
            "image": "consul-semaphore-operator",
            "args": ["run", "--leader-election=off"],
            "readinessProbe": probe,
            "livenessProbe": probe,
        }] },
    }))
    .await;
    let goes = async {
        eventually("it starts", || async { same(started().is_empty(), false) }).await;
        team.kubectl(["delete", "pod", "operator"]).await;
        eventually("it has ended", || async { same(started(), Vec::new()) }).await;
    };
    tokio::select! {
        () = goes => {}
        failed = kubernetes.run_operators(|_| ()) => panic!("{failed:?}"),
    }
}

#[tokio::test]
async fn nothing_is_left_when_a_part_is_dropped() {
    let consul = Consul::start().await;
    let (ids, folder) = (consul.folder().ids(), consul.folder().path().to_owned());
    assert_eq!(running(&ids), ids);

    drop(consul);

    nothing_is_left(&ids, &folder).await;
}

/// A SIGKILL runs no destructor; a terminal's Ctrl-C and a plain `kill` don't either.
#[tokio::test]
async fn nothing_is_left_when_the_parent_is_killed() {
    for signal in ["KILL", "INT", "TERM"] {
        let (mut parent, ids, folder) = another_process_with_servers();

        // Waiting for a process closes its stdin, which would make this one panic as it ends.
        let stdin = parent.stdin.take();
        kill(signal, parent.id());

        parent.wait().unwrap();
        drop(stdin);
        nothing_is_left(&ids, Path::new(&folder)).await;
    }
}

#[tokio::test]
async fn a_test_that_panics_keeps_the_logs_and_nothing_else() {
    let (mut parent, ids, folder) = another_process_with_servers();

    drop(parent.stdin.take());

    assert!(!parent.wait().unwrap().success());
    eventually("all processes have ended", || async {
        same(running(&ids), vec![])
    })
    .await;
    assert!(Path::new(&folder).join("kube-apiserver.log").exists());
    std::fs::remove_dir_all(folder).unwrap();
}

/// It is broken off first, while Jobs run, and then it runs to its end.
#[tokio::test]
async fn the_demo_leaves_nothing_on_a_cluster_that_is_there() {
    let (kubernetes, consul) = tokio::join!(Kubernetes::start(), Consul::start());
    let nothing_of_it_is_left = async || {
        let kinds = "crd,clusterroles,clusterrolebindings,namespaces";
        let names = kubernetes.kubectl(["get", kinds, "-o", "name"]).await;
        let mut names: Vec<_> = names.lines().collect();
        names.retain(|name| name.contains("semaphore") || *name == "namespace/demo");
        assert_eq!(names, [""; 0]);
        assert_eq!(consul.list("").await, []);
        assert_eq!(consul.sessions().await, [json!(null); 0]);
        let nodes = consul.get("catalog/nodes").await;
        let nodes: Vec<_> = nodes.as_array().unwrap().iter().collect();
        assert_eq!(nodes.len(), 1, "only Consul's own: {nodes:?}");
    };

    let mut demo = demo_on(&kubernetes, &consul).spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap());
    eventually("a Job runs", || async {
        let active = "jsonpath={.items[*].status.active}";
        let running = kubernetes
            .kubectl(["get", "jobs", "-A", "-o", active])
            .await;
        same(running.is_empty(), false)
    })
    .await;
    kill("INT", demo.id());
    line_after(&mut lines, "The demo ends early: interrupted");
    line_after(&mut lines, "Nothing of it is left.");
    assert!(!demo.wait().unwrap().success());
    nothing_of_it_is_left().await;

    let demo = demo_on(&kubernetes, &consul).output().unwrap();
    let shown = String::from_utf8_lossy(&demo.stdout);
    assert!(demo.status.success(), "{shown}");
    assert!(shown.contains("All five are complete"), "{shown}");
    nothing_of_it_is_left().await;
}

/// What the demo would take away is not its own there.
#[tokio::test]
async fn the_demo_does_not_touch_an_operator_that_is_there() {
    let (server, consul) = tokio::join!(ApiServer::start(), Consul::start());
    server.kubectl(["apply", "-k", "crds"]).await;

    let demo = demo_on(&server, &consul).output().unwrap();

    let shown = String::from_utf8_lossy(&demo.stdout);
    assert!(!demo.status.success(), "{shown}");
    let crd = "customresourcedefinition.apiextensions.k8s.io/consulsemaphores.consul-semaphore.io";
    assert!(shown.contains("the cluster has them already"), "{shown}");
    assert!(shown.contains(crd), "{shown}");
    server.kubectl(["get", crd]).await;
}

/// `make demo` on a cluster and a Consul that are there.
fn demo_on(server: &ApiServer, consul: &Consul) -> Command {
    let this = std::env::current_exe().unwrap();
    let programs = this.ancestors().nth(2).unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = server_folders()
        .into_iter()
        .chain(std::env::split_paths(&path));
    let mut command = Command::new(programs.join("bed"));
    command
        .arg("demo")
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("BED_EXISTING", "1")
        .env("KUBECONFIG", server.kubeconfig())
        .env("CONSUL_HTTP_ADDR", consul.address())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// Not a test: the process that the tests above end. It panics when its stdin is closed.
#[tokio::test]
#[ignore = "the other process of other tests"]
async fn another_process() {
    let server = ApiServer::start().await;
    println!("\nids {}", json!(server.folder().ids()));
    println!("folder {}", server.folder().path().display());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    panic!("the end");
}

fn another_process_command() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["another_process", "--exact", "--ignored", "--nocapture"]);
    command
}

fn another_process_with_servers() -> (Child, Vec<u32>, String) {
    let mut process = another_process_command()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .env_remove("KEEP_BED")
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap());
    let ids = line_after(&mut lines, "ids ");
    let folder = line_after(&mut lines, "folder ");
    let ids: Vec<u32> = serde_json::from_str(&ids).unwrap();
    assert_eq!(
        running(&ids),
        ids,
        "two servers, their guards and the keeper"
    );
    assert_eq!(ids.len(), 5);
    (process, ids, folder)
}

fn line_after(lines: &mut BufReader<ChildStdout>, start: &str) -> String {
    for line in lines.lines() {
        if let Some(rest) = line.unwrap().strip_prefix(start) {
            return rest.to_owned();
        }
    }
    panic!("no line starts with {start}");
}

async fn nothing_is_left(ids: &[u32], folder: &Path) {
    eventually("all processes have ended", || async {
        same(running(ids), vec![])
    })
    .await;
    eventually("the folder is removed", || async {
        same(folder.exists(), false)
    })
    .await;
}

fn running(ids: &[u32]) -> Vec<u32> {
    ids.iter()
        .copied()
        .filter(|id| Path::new(&format!("/proc/{id}")).exists())
        .collect()
}

fn kill(signal: &str, id: u32) {
    let killed = Command::new("bash")
        .args(["-c", &format!("kill -s {signal} {id}")])
        .status();
    assert!(killed.unwrap().success());
}
