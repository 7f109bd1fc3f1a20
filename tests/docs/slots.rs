use serde_json::Value;
use testbed::Consul;

use crate::{
    page::{Page, text_of},
    shell::Shell,
};

#[tokio::test]
async fn slots() {
    let consul = Consul::start().await;
    let prefix = "semaphores/batch/db-migrations";
    let session = consul.take_slot(prefix, 2).await;
    let mut shell = Shell::with_consul(&consul);
    let mut page = Page::open("docs/slots.md");

    let shown = page.run(&shell, "export CONSUL_HTTP_ADDR").await;
    assert!(
        shown.contains(prefix) && shown.contains(&session),
        "{shown}"
    );

    // The page has a word for each field.
    let documented = text_of("docs/slots.md".as_ref());
    let json = shell
        .run(&format!("consul-semaphore show {prefix} -o json"))
        .await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let fields = [&json, &json["holders"][0]];
    let fields = fields
        .into_iter()
        .flat_map(|of| of.as_object().expect("an object").keys());
    for field in fields {
        let is_there = documented.contains(&format!("`{field}`"));
        assert!(is_there, "docs/slots.md does not mention {field}");
    }

    shell.set("SESSION", &session);
    shell.instead_of("semaphore release", "semaphore release --yes");
    let said = page.run(&shell, "consul-semaphore release").await;
    assert!(said.contains("is released"), "{said}");
    page.run(&shell, "source").await;
}
