//! Prefixes and keys of unusual characters: Consul takes all that `exec` takes.

use crate::stage::Stage;

#[tokio::test]
async fn a_prefix_is_used_as_it_is_or_refused() {
    let stage = Stage::new().await;
    for [prefix, key] in [
        ["..a/a..b/c..", "..k..k.."],
        ["-_/_-/A--__9", "-"],
        [".locks/x.lock", ".k"],
    ] {
        let flags = format!("--prefix={prefix} --key={key} --limit 1");
        let command = stage.command_with(&flags, r#"note "$CONSUL_SEMAPHORE_LOCK_KEY""#);
        stage.start(command).ends_with(0).await;
        let locked = stage.journal().pop().unwrap();
        assert!(locked.starts_with(&format!("{prefix}/{key}/")), "{locked}");
    }
    let refused = [
        "/a", "a/", "a//b", "./a", "a/../b", "a/.lock", "a%2e", "a?b", "a#b", "a+b", "é", "a:b",
        r"a\b",
    ];
    for prefix in refused {
        let flags = format!("--prefix={prefix} --limit 1");
        let command = stage.command_with(&flags, "note never");
        let said = stage.start(command).ends_with(2).await;
        let says = format!("prefix {prefix:?} is not valid: it must be segments of letters");
        assert!(said.contains(&says), "{said}");
    }
    assert_eq!(stage.journal().len(), 3);
}
