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
    shell.run("kubectl config view --raw --minify -o jsonpath='{.clusters[0].cluster.certificate-authority-data}' | base64 -d > ca.crt").await;
    let reviewer = "kubectl create serviceaccount reviewer
        kubectl create clusterrolebinding reviewer --clusterrole=system:auth-delegator --serviceaccount=default:reviewer
        kubectl create clusterrole reviewer --verb=get --resource=serviceaccounts
        kubectl create clusterrolebinding reviewer-gets --clusterrole=reviewer --serviceaccount=default:reviewer";
    shell.run(reviewer).await;
    let user = "system:serviceaccount:default:reviewer";
    for what in [
        ["create", "tokenreviews.authentication.k8s.io"],
        ["get", "serviceaccounts"],
    ] {
        bed.lets(user, what, None, true).await;
    }
    let token = shell.run("kubectl create token reviewer").await;
    shell.set("REVIEWER_TOKEN", token.trim());

    // Behind a proxy, so that Consul may read the keys, as it may where they are public.
    let _proxy = shell.start("kubectl proxy --port=0", "proxy.log");
    let address = eventually("a proxy", || async {
        let log = shell.run("cat proxy.log").await;
        let address = log
            .split_whitespace()
            .last()
            .map(|address| format!("http://{address}"));
        address
            .filter(|address| address.contains("127.0.0.1:"))
            .ok_or(log)
    })
    .await;
    shell.instead_of("https://.../openid", &format!("{address}/openid"));
    shell.instead_of("https://...", &server);

    page.run(&shell, "consul acl policy create").await;
    page.run(&shell, "cat > jwt.json").await;
    for (method, audience) in [("kubernetes", ""), ("jwt", "--audience=consul")] {
        let log_in = format!(
            "kubectl create token -n consul-semaphore-system consul-semaphore-operator {audience} > bearer
            consul login -method={method} -bearer-token-file=bearer -token-sink-file={method}.token
            consul kv put -token-file={method}.token semaphores/by-{method} yes
            ! consul kv put -token-file={method}.token elsewhere no"
        );
        shell.run(&log_in).await;
    }
}
