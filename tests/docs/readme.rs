use testbed::Bed;

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn readme() {
    let bed = Bed::builder().without_operator().start().await;
    let mut shell = Shell::with(&bed, "default").await;
    let mut page = Page::open("README.md");

    page.run(&shell, "kubectl apply -k crds").await;
    shell.instead_of(
        "cargo run --bin consul-semaphore-operator --",
        "consul-semaphore-operator",
    );
    shell.instead_of("127.0.0.1:8080", "127.0.0.1:0");
    let _operator = shell.start(&page.commands("CONSUL_HTTP_ADDR"), "operator.log");
    shell
        .run("kubectl apply -f config/samples/consulsemaphore.yaml")
        .await;
    shell
        .run("kubectl wait --for=condition=Ready csem/db-migrations --timeout=100s")
        .await;
    shell.run("kubectl apply -f config/samples/job.yaml").await;
    shell
        .run("kubectl wait --for=condition=Complete job/migrate --timeout=100s")
        .await;

    // Nobody plays Deployments on this bed.
    let install = page.commands("kubectl apply -k config/default");
    shell.run(install.lines().next().expect("a command")).await;

    // A script of HashiCorp's guide makes its lock.
    shell.set("PREFIX", "semaphores/guide");
    assert_eq!(page.run(&shell, "curl -X PUT").await.trim(), "true");
    assert_eq!(bed.consul().limit("semaphores/guide").await, Some(2));
}
