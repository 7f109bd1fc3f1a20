use testbed::{Consul, Kubernetes, eventually, same};

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn web() {
    let (kubernetes, consul) = tokio::join!(Kubernetes::start_with_deployments(), Consul::start());
    let shell = Shell::on(kubernetes.kubeconfig(), &consul, "default").await;
    shell
        .run("kubectl apply -k config/default; kubectl create namespace team-a")
        .await;
    let mut page = Page::open("docs/web.md");

    page.run(&shell, "kubectl -n consul-semaphore-system set env")
        .await;

    // The text that the page says to write.
    let component = "components: [../web]\n";
    let edit = format!(
        "cp -rL config edited && rm config && mv edited config && echo '{component}' >> config/default/kustomization.yaml"
    );
    shell.run(&edit).await;
    page.run(&shell, "kubectl apply -k config/default").await;
    shell
        .run("kubectl -n consul-semaphore-system get service consul-semaphore-operator-web")
        .await;
    page.run(&shell, "kubectl -n team-a create serviceaccount")
        .await;
    let sees = "kubectl auth can-i watch consulsemaphores -n team-a --as system:serviceaccount:team-a:viewer";
    eventually("what was bound just now counts", || async {
        let [code, said, _] = shell.end_of(sees).await;
        same(format!("{code} {}", said.trim()), "0 yes".to_owned())
    })
    .await;
    let token = page.run(&shell, "kubectl -n team-a create token").await;
    assert_eq!(token.trim().split('.').count(), 3, "a JWT");
}
