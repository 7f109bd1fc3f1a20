use serde_json::json;
use testbed::{Consul, Kubernetes};

use crate::{install, page::Page, shell::Shell};

const MANAGEMENT: &str = "11111111-2222-3333-4444-555555555555";

/// What Consul's Helm chart leaves behind: its Secrets, one of them with the token of the account by which Consul has
/// tokens reviewed.
const CHART: &str = r#"
kubectl create namespace consul
kubectl -n consul create secret generic consul-bootstrap-acl-token --from-literal=token="$CONSUL_HTTP_TOKEN"
kubectl -n consul create secret generic consul-ca-cert --from-file=tls.crt=authority.crt
kubectl -n consul create serviceaccount consul-auth-method
kubectl create clusterrolebinding consul-auth-method --clusterrole=system:auth-delegator \
  --serviceaccount=consul:consul-auth-method
kubectl create clusterrole consul-auth-method --verb=get --resource=serviceaccounts
kubectl create clusterrolebinding consul-auth-method-reads --clusterrole=consul-auth-method \
  --serviceaccount=consul:consul-auth-method
kubectl -n consul create secret generic consul-auth-method --from-file=ca.crt=authority.crt \
  --from-literal=token="$(kubectl -n consul create token consul-auth-method)"
"#;

/// The operator of the page logs in over TLS, and a Job runs in a slot.
#[tokio::test]
async fn consul_k8s() {
    let kubernetes = Kubernetes::start_with_deployments().await;
    let certificate = kubernetes.authority_file();
    let port = testbed::lasting_port().expect("a free port");
    let tls = json!({
        "ports": { "https": port },
        "tls": { "https": { "cert_file": certificate, "key_file": certificate.with_extension("key") } },
    });
    let consul = Consul::builder().acls(MANAGEMENT).config(tls).start().await;
    let mut shell = Shell::on(kubernetes.kubeconfig(), &consul, "default").await;
    let authority = std::fs::read_to_string(&certificate).expect("the certificate");
    shell.write("authority.crt", &authority);
    shell.run(CHART).await;
    let server = "kubectl config view --raw --minify -o jsonpath='{.clusters[0].cluster.server}'";
    let server = shell.run(server).await;
    shell.instead_of("https://kubernetes.default.svc", &server);

    let address = format!("https://127.0.0.1:{port}");
    shell.instead_of("https://consul-server.consul.svc:8501", &address);
    let mut page = Page::open("docs/consul-k8s.md");
    page.run(&shell, "export CONSUL_HTTP_TOKEN").await;
    // As the page's port-forward lets it.
    shell.set("CONSUL_HTTP_ADDR", &address);
    shell.set("CONSUL_CACERT", "ca.crt");
    shell
        .run(r#"curl -sS --fail --cacert "$CONSUL_CACERT" "$CONSUL_HTTP_ADDR/v1/status/leader""#)
        .await;
    page.run(&shell, "node=").await;
    page.run(&shell, "kubectl create namespace").await;
    tokio::select! {
        () = install::works(&shell) => {}
        failed = kubernetes.run_operators(|what| println!("{what}")) => panic!("{failed:?}"),
    }
    page.run(&shell, "consul acl auth-method delete").await;
    let left = "consul acl policy list; consul acl role list; consul acl binding-rule list";
    let left = shell.run(left).await;
    assert!(!left.contains("consul-semaphore-operator"), "{left}");
}
