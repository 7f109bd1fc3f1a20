use testbed::Bed;

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
