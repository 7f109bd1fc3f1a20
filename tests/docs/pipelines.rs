//! The page about pipelines: each pipeline's commands run as they are there, step by step.

use std::path::Path;

use serde_json::Value;
use testbed::{Consul, ConsulServer};

use crate::{
    page::{Page, blocks, text_of},
    shell::Shell,
};

const PAGE: &str = "docs/pipelines.md";

/// A Consul, and a shell with the programs that the pipelines call. Each of these programs fails without a slot.
struct Runner {
    consul: ConsulServer,
    shell: Shell,
}

impl Runner {
    async fn new() -> Self {
        let consul = Consul::start().await;
        let shell = Shell::with_consul(&consul);
        for program in ["./deploy", "./smoke-test"] {
            shell.program(program, "consul-semaphore show ci/staging | grep -c Lease");
        }
        for program in ["./dump", "./upload"] {
            shell.program(
                program,
                "consul-semaphore held && consul-semaphore show backups | grep -c nightly",
            );
        }
        Self { consul, shell }
    }

    /// Checks that the pipeline has given its slot back.
    async fn is_free(&self, prefix: &str) {
        assert_eq!(self.consul.holders(prefix).await.len(), 0);
    }
}

/// The commands of a step, or of a part of a GitLab job.
fn commands(step: &Value) -> String {
    match step {
        Value::Array(lines) => lines.iter().map(commands).collect::<Vec<_>>().join("\n"),
        step => step.as_str().expect("commands").to_owned(),
    }
}

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&Page::file(PAGE, file)).expect("YAML")
}

#[tokio::test]
async fn github() {
    let mut runner = Runner::new().await;
    let variables = runner.shell.path().join("github.env");
    runner
        .shell
        .set("GITHUB_ENV", &variables.display().to_string());
    runner.shell.set("GITHUB_RUN_ID", "42");
    let workflow = yaml(".github/workflows/staging.yml");
    let steps = workflow["jobs"]["deploy"]["steps"]
        .as_array()
        .expect("steps");
    for step in &steps[1..] {
        runner.shell.run(&commands(&step["run"])).await;
        // Each step has the variables that the steps before it have written.
        let written = std::fs::read_to_string(&variables).expect("the variables");
        for (name, value) in written.lines().filter_map(|line| line.split_once('=')) {
            runner.shell.set(name, value);
        }
    }
    runner.is_free("ci/staging").await;
}

#[tokio::test]
async fn gitlab() {
    let runner = Runner::new().await;
    let job = &yaml(".gitlab-ci.yml")["deploy"];
    let main = [&job["before_script"], &job["script"]]
        .map(commands)
        .join("\n");
    assert_eq!(runner.shell.run(&main).await, "1\n1\n");
    runner.shell.run(&commands(&job["after_script"])).await;
    runner.is_free("ci/staging").await;
}

#[tokio::test]
async fn jenkins() {
    let runner = Runner::new().await;
    let blocks = blocks(&text_of(Path::new(PAGE)));
    let file = blocks.iter().find(|block| block.kind == "groovy");
    let lines = file.expect("a Jenkinsfile").text.lines();
    let steps = lines.filter_map(|line| line.trim().strip_prefix("sh '")?.strip_suffix('\''));
    let steps: Vec<_> = steps.collect();
    assert_eq!(steps.len(), 5);
    for step in steps {
        runner.shell.run(step).await;
    }
    runner.is_free("ci/staging").await;
}

#[tokio::test]
async fn a_script() {
    let runner = Runner::new().await;
    let mut page = Page::open("docs/pipelines.md");
    let said = page.run(&runner.shell, "# nightly.sh").await;
    assert!(said.contains("held for 7200s from now"), "{said}");
    runner.is_free("backups").await;
}
