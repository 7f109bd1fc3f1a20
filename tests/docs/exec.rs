use serde_json::Value;
use testbed::Consul;

use crate::{page::Page, shell::Shell};

const PAGE: &str = "docs/exec.md";

/// systemd takes the unit as it is, where it is installed, and its command runs.
async fn unit(shell: &Shell) {
    const WORKER: &str = "/usr/local/bin/worker";
    shell.program("./worker", "echo works");
    let program = shell.run("command -v consul-semaphore").await;
    let worker = shell.path().join("worker").display().to_string();
    let unit = Page::file(PAGE, "/etc/systemd/system/worker.service")
        .replace("/usr/local/bin/consul-semaphore", program.trim())
        .replace(WORKER, &worker);
    shell.write("worker.service", &unit);
    let verify = "! command -v systemd-analyze || systemd-analyze verify ./worker.service";
    let [code, _, said] = shell.end_of(verify).await;
    assert!(code == "0" && !said.contains("worker.service"), "{said}");
    let command = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="));
    assert_eq!(shell.run(command.expect("a command")).await, "works\n");
}

#[tokio::test]
async fn exec() {
    let consul = Consul::start().await;
    let mut shell = Shell::with_consul(&consul);
    let mut page = Page::open("docs/exec.md");

    shell.program("./migrate", r#"echo "migrates $*""#);
    assert_eq!(
        page.run(&shell, "export CONSUL_HTTP_ADDR").await,
        "migrates --all\n"
    );

    shell.program("./deploy", r#"echo "deploys $*""#);
    shell.set("GITHUB_RUN_ID", "42");
    shell.set("CI_JOB_ID", "43");
    let yaml = |file| serde_saphyr::from_str::<Value>(&Page::file(PAGE, file)).expect("YAML");
    for step in [
        &yaml(".github/workflows/deploy.yml")["jobs"]["deploy"]["steps"][1]["run"],
        &yaml(".gitlab-ci.yml")["deploy"]["script"][0],
    ] {
        let step = step.as_str().expect("commands");
        assert_eq!(shell.run(step).await, "deploys staging\n");
    }
    unit(&shell).await;

    let slots = r#"echo "$CONSUL_SEMAPHORE_SLOTS" | grep -oE 'lockKey":"(licenses|locks/db)/'"#;
    shell.program("./import", slots);
    assert_eq!(
        page.run(&shell, "consul-semaphore exec --semaphore prefix=locks/db")
            .await,
        "lockKey\":\"locks/db/\n".to_owned() + &"lockKey\":\"licenses/\n".repeat(3)
    );

    shell.program(
        "./import",
        r#"echo "imports with $CONSUL_SEMAPHORE_LOCK_KEY""#,
    );
    for block in [
        "consul-semaphore exec --prefix locks/db",
        "consul-semaphore exec --semaphore \"prefix",
    ] {
        let at_night = page.commands(block);
        let always = at_night
            .replace("0 22 * * 1,3", "* * * * *")
            .replace("0 22 * * *", "* * * * *");
        assert!(always != at_night && shell.run(&always).await.contains("locks/db"));
    }

    shell.program("./call", "echo calls");
    assert_eq!(
        page.run(&shell, "consul-semaphore exec --prefix locks/partner-api")
            .await,
        "calls\n"
    );

    // Another worker has task b.
    shell.program("list-tasks", "echo a b c");
    shell.program("run-task", r#"echo "runs $*""#);
    let another = consul.take_slot("tasks/b", 1).await;
    let worker = page.commands("for task in");
    assert_eq!(
        shell.run(&format!("set +e\n{worker}")).await,
        "runs a\nruns c\n"
    );
    consul.give_back("tasks/b", &another).await;

    // Once inside of another one, and once alone.
    let block = page.commands("consul-semaphore exec --prefix tasks/report");
    let inner = block.lines().last().expect("a command");
    shell.program("./nightly", inner);
    shell.program("./report", "echo reports");
    assert_eq!(shell.run(&block).await, "reports\nreports\n");

    // One with a slot, and one without.
    let step = page.commands("# before the step");
    shell.program("./step", &format!("{step}echo done"));
    let held = "consul-semaphore exec --prefix db --limit 1 -- ./step";
    assert_eq!(shell.run(held).await, "done\n");
    let [code, out, _] = shell.end_of("./step").await;
    assert_eq!((code.as_str(), out.as_str()), ("1", ""));
}
