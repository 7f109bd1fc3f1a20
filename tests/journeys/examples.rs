//! The files in `examples/`, each applied in a namespace of its own.

use std::{fs, path::Path};

use testbed::{Bed, eventually};
use tokio::task::JoinSet;

#[tokio::test]
async fn each_example_works_as_it_is() {
    let bed = Bed::shared().await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let page = fs::read_to_string(folder.join("README.md")).unwrap();
    let files = fs::read_dir(&folder).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let mut examples = JoinSet::new();
    for file in files.filter(|file| file.extension().is_some_and(|end| end == "yaml")) {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(page.contains(&format!("({name}.yaml)")), "{name}");
        let bed = bed.clone();
        examples.spawn(async move {
            let team = bed.namespace(&format!("example-{name}")).await;
            team.kubectl(["apply", "-f", file.to_str().unwrap()]).await;
            let names = team.kubectl(["get", "csem", "-o=name"]).await;
            for semaphore in names.split_whitespace() {
                let ready = "--for=condition=Ready";
                team.kubectl(["wait", ready, semaphore, "--timeout=100s"])
                    .await;
            }
            let jobs = team.kubectl(["get", "jobs", "-o=name"]).await;
            for job in jobs.split_whitespace() {
                let status = ["get", job, "-o=jsonpath={.status}"];
                eventually(&format!("{name}: {job} starts"), || async {
                    let status = team.kubectl(status).await;
                    status.contains("startTime").then_some(()).ok_or(status)
                })
                .await;
                let grant = team.kubectl(["get", job, "-o=yaml"]).await;
                assert!(grant.contains("consul-semaphore.io/session:"), "{grant}");
            }
        });
    }
    assert!(!examples.is_empty(), "there are examples");
    examples.join_all().await;
}
