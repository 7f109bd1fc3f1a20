use testbed::{Bed, eventually};

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn security() {
    let bed = Bed::shared().await;
    let shell = Shell::with(&bed, "default").await;
    let mut page = Page::open("docs/security.md");
    let rights = page.run(&shell, "kubectl auth can-i --list").await;
    assert!(rights.contains("jobs.batch"), "{rights}");
    assert!(!rights.contains("secrets"), "{rights}");
}

/// A tenant who may change their namespace can't take it away from the policies; administrators can.
#[tokio::test]
async fn only_administrators_exclude_a_namespace() {
    let bed = Bed::builder().without_operator().start().await;
    let shell = Shell::with(&bed, "default").await;
    let policy = Page::file("docs/security.md", "forbid-exemption.yaml");
    shell.write("forbid-exemption.yaml", &policy);
    shell
        .run(
            "kubectl apply -f forbid-exemption.yaml
            kubectl create namespace mine
            kubectl create clusterrole tenant --verb=get,list,patch,update \
              --resource=namespaces,namespaces/status,namespaces/finalize
            kubectl create clusterrolebinding tenant --clusterrole=tenant --user=tenant",
        )
        .await;
    let exclude = "kubectl label namespace mine consul-semaphore.io/admission=disabled";
    eventually("the policy refuses the label", || async {
        let dry = format!("{exclude} --as=tenant --dry-run=server");
        let [code, out, error] = shell.end_of(&dry).await;
        if code == "1" && error.contains("is for administrators") {
            Ok(())
        } else {
            Err(format!("{code} {out} {error}"))
        }
    })
    .await;
    shell
        .run(
            r#"kubectl get namespace mine --output=json | sed '0,/"labels": {/s//&"consul-semaphore.io\/admission": "disabled",/' > mine.json"#,
        )
        .await;
    for otherwise in [
        r#"kubectl patch namespace mine --subresource=status --type=merge --patch '{"metadata":{"labels":{"consul-semaphore.io/admission":"disabled"}}}' --as=tenant"#,
        "kubectl replace --raw /api/v1/namespaces/mine/finalize --filename=mine.json --as=tenant",
    ] {
        let [code, out, error] = shell.end_of(otherwise).await;
        let refused = code == "1" && error.contains("is for administrators");
        assert!(refused, "{otherwise}: {code} {out} {error}");
    }
    shell
        .run("kubectl label namespace mine team=a --as=tenant")
        .await;
    shell.run(exclude).await;
    // It has the label already.
    shell
        .run("kubectl label namespace mine team=b --overwrite --as=tenant")
        .await;
}

/// What the table of rights says about a suspended Job.
#[tokio::test]
async fn of_a_suspended_job_it_can_change_where_it_runs_and_not_what() {
    // By its rights alone: in the shared bed the admission policy is in force.
    let bed = Bed::builder().without_operator().start().await;
    let team = bed.namespace("security").await;
    let shell = Shell::with(&bed, team.name()).await;
    team.job("job").create().await.is_at_rest().await;
    let patch = async |path: &str, value: &str| {
        let patch = format!(r#"[{{"op":"add","path":"/spec/template/{path}","value":{value}}}]"#);
        let operator = "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator";
        let patch = format!("kubectl patch job job --type=json -p '{patch}' --as={operator}");
        let [code, _, error] = shell.end_of(&patch).await;
        match code.as_str() {
            "0" => true,
            _ if error.contains("field is immutable") => false,
            _ => panic!("{path}: {error}"),
        }
    };
    for (path, value) in [
        ("spec/containers/0/image", "\"another\""),
        ("spec/containers/0/command", "[\"another\"]"),
        (
            "spec/containers/0/env",
            "[{\"name\":\"A\",\"value\":\"b\"}]",
        ),
        ("spec/volumes", "[{\"name\":\"a\",\"emptyDir\":{}}]"),
        ("spec/serviceAccountName", "\"another\""),
    ] {
        assert!(!patch(path, value).await, "{path}");
    }
    for (path, value) in [
        ("spec/nodeSelector", "{\"a\":\"b\"}"),
        (
            "spec/containers/0/resources",
            "{\"requests\":{\"cpu\":\"1\"}}",
        ),
        ("metadata/labels/a", "\"b\""),
        ("metadata/annotations", "{\"a\":\"b\"}"),
    ] {
        assert!(patch(path, value).await, "{path}");
    }
}
