use testbed::{Consul, Kubernetes, eventually};

use crate::{page::Page, shell::Shell};

/// The samples of the docs work with the running operator.
pub(crate) async fn works(shell: &Shell) {
    eventually("the kind is served", || async {
        let [code, _, error] = shell.end_of("kubectl get csem").await;
        if code == "0" { Ok(()) } else { Err(error) }
    })
    .await;
    shell
        .run(
            "kubectl apply -f config/samples/consulsemaphore.yaml
            kubectl wait --for=condition=Ready csem/db-migrations --timeout=100s
            kubectl apply -f config/samples/job.yaml
            kubectl wait --for=condition=Complete job/migrate --timeout=100s
            kubectl delete job migrate
            kubectl delete csem db-migrations",
        )
        .await;
}

async fn removed(shell: &Shell) {
    shell
        .run("kubectl delete namespace consul-semaphore-system --ignore-not-found")
        .await;
    shell.run("kubectl delete -k crds --ignore-not-found").await;
}

#[tokio::test]
async fn readme() {
    let (kubernetes, consul) = tokio::join!(Kubernetes::start_with_deployments(), Consul::start());
    let mut shell = Shell::on(kubernetes.kubeconfig(), &consul, "default").await;
    let mut page = Page::open("README.md");

    page.run(&shell, "helm upgrade --install").await;
    tokio::select! {
        () = works(&shell) => {}
        failed = kubernetes.run_operators(|what| println!("{what}")) => panic!("{failed:?}"),
    }

    // A script of HashiCorp's guide makes its lock.
    shell.set("PREFIX", "semaphores/guide");
    page.run(&shell, "consul kv put").await;
    assert_eq!(consul.limit("semaphores/guide").await, Some(2));
}

/// The tests of the chart show that the operators of these pods work.
#[tokio::test]
async fn install() {
    let management = "11111111-2222-3333-4444-555555555555";
    let consul = Consul::builder().acls(management);
    let (kubernetes, consul) = tokio::join!(Kubernetes::start_with_deployments(), consul.start());
    let mut shell = Shell::on(kubernetes.kubeconfig(), &consul, "default").await;
    shell.instead_of("token=...", &format!("token={management}"));
    let mut page = Page::open("docs/install.md");

    shell.write(
        "operator.hcl",
        Page::file("docs/consul-acl.md", "operator.hcl").as_str(),
    );
    page.run(&shell, "consul acl policy create").await;

    page.run(&shell, "kubectl apply -k crds").await;
    let operator = shell.start(&page.commands("CONSUL_HTTP_ADDR"), "operator.log");
    works(&shell).await;
    drop(operator);
    removed(&shell).await;

    shell.write("ca.crt", "its authority");
    // The Secret of the authority, and then everything.
    for _ in 0..2 {
        page.run(&shell, "kubectl apply -f config/manager/namespace.yaml")
            .await;
    }
    shell.run("kubectl create namespace team-a").await;
    page.run(&shell, "kubectl apply -n team-a -k config/token-secret")
        .await;
    page.run(&shell, "kubectl delete -k config/policies").await;

    page.run(&shell, "kubectl create namespace").await;
    page.run(&shell, "helm test").await;
    page.run(&shell, "helm upgrade consul-semaphore-operator")
        .await;
    page.run(&shell, "kubectl delete csem").await;

    removed(&shell).await;
    page.run(&shell, "helm upgrade --install consul-semaphore-policies")
        .await;
    let guard = "kubectl get validatingadmissionpolicy guard.consul-semaphore.io -o yaml";
    let guard = shell.run(guard).await;
    assert!(guard.contains("system:serviceaccount:team-b:"), "{guard}");
    shell
        .run("helm uninstall consul-semaphore-policies -n consul-semaphore-system")
        .await;

    removed(&shell).await;
    shell.run("kubectl apply -k config/default").await;
    page.run(
        &shell,
        "kubectl -n consul-semaphore-system delete deployment",
    )
    .await;
}
