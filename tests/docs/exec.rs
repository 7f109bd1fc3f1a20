use testbed::Consul;

use crate::{page::Page, shell::Shell};

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
    shell.set("JOB_ID", "42");
    assert_eq!(
        page.run(&shell, "consul-semaphore exec --prefix ci/staging")
            .await,
        "deploys staging\n"
    );

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

    // One with a slot, and one without.
    let step = page.commands("# before the step");
    shell.program("./step", &format!("{step}echo done"));
    let held = "consul-semaphore exec --prefix db --limit 1 -- ./step";
    assert_eq!(shell.run(held).await, "done\n");
    let [code, out, _] = shell.end_of("./step").await;
    assert_eq!((code.as_str(), out.as_str()), ("1", ""));
}
