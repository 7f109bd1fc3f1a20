use testbed::{Bed, Consul, eventually};

use crate::{page::Page, shell::Shell};

/// Both ways to log in, set up by the commands of the page: a client with the operator's account logs in and may
/// write semaphores.
#[tokio::test]
async fn consul_acl() {
    let management = "11111111-2222-3333-4444-555555555555";
    let consul = Consul::builder().acls(management);
    let bed = Bed::builder()
        .consul(consul)
        .without_operator()
        .start()
        .await;
    let mut shell = Shell::with(&bed, "default").await;
    let mut page = Page::open("docs/consul-acl.md");
    shell.write(
        "operator.hcl",
        &Page::file("docs/consul-acl.md", "operator.hcl"),
    );

    let server = "kubectl config view --raw --minify -o jsonpath='{.clusters[0].cluster.server}'";
    let server = shell.run(server).await;
    shell.instead_of("https://...", &server);

    shell.write(
        "reviewer.yaml",
        &Page::file("docs/consul-acl.md", "reviewer.yaml"),
    );
    page.run(&shell, "kubectl apply -f reviewer.yaml").await;
    let user = "system:serviceaccount:consul-semaphore-system:consul-reviewer";
    for what in [
        ["create", "tokenreviews.authentication.k8s.io"],
        ["get", "serviceaccounts"],
    ] {
        bed.lets(user, what, None, true).await;
    }
    // What a controller does that this bed does not have.
    let filled = r#"token=$(kubectl -n consul-semaphore-system create token consul-reviewer)
        token=$(printf %s "$token" | base64 -w0)
        authority=$(kubectl config view --raw --minify -o jsonpath='{.clusters[0].cluster.certificate-authority-data}')
        kubectl -n consul-semaphore-system patch secret consul-reviewer --type=merge \
          -p "{\"data\":{\"token\":\"$token\",\"ca.crt\":\"$authority\"}}""#;
    shell.run(filled).await;
    page.run(&shell, "REVIEWER_TOKEN=").await;

    page.run(&shell, "kubectl create clusterrolebinding").await;
    let keys = format!("curl -sS --fail --cacert ca.crt {server}/openid/v1/jwks");
    eventually("everybody reads the public keys", || async {
        let [code, _, error] = shell.end_of(&keys).await;
        if code == "0" { Ok(()) } else { Err(error) }
    })
    .await;
    page.run(&shell, "cat > jwt.json").await;
    for (method, audience) in [
        ("kubernetes-prod-eu", ""),
        ("jwt-prod-eu", "--audience=consul"),
    ] {
        let log_in = format!(
            "kubectl create token -n consul-semaphore-system consul-semaphore-operator {audience} > bearer
            consul login -method={method} -bearer-token-file=bearer -token-sink-file={method}.token
            consul kv put -token-file={method}.token semaphores/by-{method} yes
            ! consul kv put -token-file={method}.token elsewhere no"
        );
        shell.run(&log_in).await;
    }
}
