use std::env;

use testbed::{Bed, operator_program};

use crate::{
    page::{Page, root},
    shell::Shell,
};

#[tokio::test]
async fn plugin() {
    let bed = Bed::shared().await;
    let team = bed.namespace_named("demo").await;
    let database = team.semaphore("database").limit(2).create().await;
    for number in 1..=5 {
        let job = team.job(&format!("migrate-{number}"));
        job.semaphore("database").runs("1h").create().await;
    }
    database
        .shows(serde_json::json!({ "held": 2, "waiting": 3 }))
        .await;
    let mut shell = Shell::with(&bed, "default").await;
    let mut page = Page::open("docs/plugin.md");

    let target = operator_program().expect("the operator's program");
    let target = target.parent().expect("its folder").display().to_string();
    // Not only this package, and with the examples, as `tests/run` builds them: some dependencies would be built again
    // with fewer features, and with them all programs, while other tests start these. And where Cargo finds its
    // configuration, because the operator would be built again without that.
    let build = format!(
        "(cd {} && cargo build --locked --quiet --workspace --bins --examples) #",
        root().display()
    );
    shell.instead_of("cargo build --release --package", &build);
    shell.instead_of("target/release", &target);
    let home = env::var("HOME").unwrap_or_default();
    for (name, default) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        let value = env::var(name).unwrap_or_else(|_| format!("{home}/{default}"));
        shell.set(name, &value);
    }
    // Without the same settings, everything would be built again.
    for name in ["CARGO_TARGET_DIR", "CARGO_INCREMENTAL"] {
        if let Ok(value) = env::var(name) {
            shell.set(name, &value);
        }
    }
    page.run(&shell, "cargo build").await;
    shell.put_on_path(".local/bin");

    let queue = page.run(&shell, "kubectl csem show").await;
    assert_eq!(queue.lines().count(), 3, "{queue}");
    page.run(&shell, "kubectl csem hold").await;
    page.run(&shell, "kubectl csem pause").await;
    page.run(&shell, "source").await;

    let status = database.status().await;
    shell.set(
        "SESSION",
        status["holders"][0]["session"].as_str().expect("a session"),
    );
    shell.instead_of("csem release", "csem release --yes");
    let said = page.run(&shell, "export CONSUL_HTTP_ADDR").await;
    assert!(said.contains("is released"), "{said}");
}
