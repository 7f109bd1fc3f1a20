//! What can't be, and what is said about it.

use std::time::Duration;

use consul_semaphore::{
    AcquireError, Builder, InvalidSemaphore, Semaphore, WindowSpec,
    consul::{Client, Config},
};
use serde_json::json;
use testbed::{Consul, SEMAPHORE_FLAGS};

use crate::stage::{PREFIX, Stage, slot_of, soon};

#[tokio::test]
async fn what_can_not_be_is_refused_with_what_can() {
    let client = Client::new(Config::default()).unwrap();
    let at = |prefix: &str| Semaphore::builder(client.clone(), prefix);
    let second = Duration::from_secs(1);
    let never = WindowSpec {
        schedule: "0 0 30 2 *".to_owned(),
        duration: second * 60,
        time_zone: None,
        limit: None,
    };
    let refused: [(Builder, &str); 17] = [
        (
            at("/db").limit(1),
            r#"prefix "/db" is not valid: it must be segments"#,
        ),
        (at("db"), "db has no limit: set limit"),
        (at("db").limit(0), "the limit of db is 0: set at least 1"),
        (
            at("db").limit(5001),
            "the limit of db is 5001: set at most 5000",
        ),
        (
            at("db").limit(2).mutex(),
            "db is a mutex, which has one slot",
        ),
        (
            at("db").limit(2).slots(0),
            "the request is for 0 slots of db",
        ),
        (
            at("db").limit(2).slots(3),
            "db has 2 slots: ask for at most 2, and not for 3",
        ),
        (at("db").limit(2).and("db").limit(2), "db is named twice"),
        (
            at("db").limit(2).reserve(2, 1),
            "db grants this program at most 0 slots",
        ),
        (
            at("db").limit(1).window(never),
            "a window of db never opens: no time within four years",
        ),
        (
            at("db").limit(1).ttl(second),
            "ttl is 1s: set whole seconds, from 10 to 86400",
        ),
        (
            at("db").rate(1, second / 2),
            "the period of rate is 500ms: set whole seconds, from 1 to",
        ),
        (
            at("db").rate(1, second).cooldown(second),
            "the slots of a rate stay held",
        ),
        (
            at("db").limit(1).cooldown(second * 90_000),
            "cooldown is 90000s",
        ),
        (
            at("db").limit(1).lock_delay(second * 61),
            "lock_delay is 61s",
        ),
        (
            at("db").limit(1).grace(second * 30),
            "set a grace of at most 29s, or a longer ttl",
        ),
        (
            at("db").limit(1).node("team/a"),
            r#"the node "team/a" is not valid: use 1 to 63 letters"#,
        ),
    ];
    for (builder, says) in refused {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn without_a_runtime_there_is_no_semaphore() {
    let client = Client::new(Config::default()).unwrap();
    let built = Semaphore::builder(client, "db").limit(1).build();
    assert_eq!(built.unwrap_err(), InvalidSemaphore::NoRuntime);
}

#[tokio::test]
async fn who_shares_a_node_with_strangers_names_its_own() {
    let stage = Stage::new().await;
    let far = stage.client_with(|config| {
        config.addresses = vec!["consul.example:8500".parse().unwrap()];
        config.token = Some("secret".into());
    });
    let built = Semaphore::builder(far, "db").limit(1).build();
    let error = built.unwrap_err();
    assert_eq!(error, InvalidSemaphore::NoNode);
    assert!(
        error
            .to_string()
            .contains(r#"node "team-a" { policy = "write" }"#),
        "{error}"
    );
}

/// The checks of the agent's node would end a session of another node for no reason of its own.
#[tokio::test]
async fn only_who_asks_for_it_depends_on_the_agents_checks() {
    let stage = Stage::new().await;
    for (builder, node) in [
        (stage.builder(), "consul-semaphore"),
        (stage.builder().node("team-a"), "team-a"),
        (stage.builder().agent_checks(), "bed"),
    ] {
        let slot = slot_of(&builder.limit(1).build().unwrap()).await;
        let sessions = stage.consul.sessions().await;
        assert_eq!(sessions[0]["Node"], node);
        slot.release().await.unwrap();
    }
    let far = stage.client_with(|config| {
        config.addresses = vec!["consul.example:8500".parse().unwrap()];
    });
    let built = Semaphore::builder(far, "db")
        .limit(1)
        .agent_checks()
        .build();
    assert_eq!(built.unwrap_err(), InvalidSemaphore::NoAgent);
}

#[tokio::test]
async fn another_limit_is_refused_with_both_and_what_to_do() {
    let stage = Stage::new().await;
    let slot = slot_of(&stage.semaphore(2)).await;
    let refused = soon(stage.semaphore(3).acquire()).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the limit of shared/db is 2 in Consul, not 3: all users of the prefix must have the same limit. Set the limit to \
         2, or delete shared/db/.lock once nobody uses it"
    );
    assert!(matches!(
        refused.why,
        AcquireError::Limit {
            ours: 3,
            theirs: 2,
            ..
        }
    ));
    slot.release().await.unwrap();
    stage.is_clean().await;
}

#[tokio::test]
async fn a_prefix_of_another_use_is_left_alone() {
    let stage = Stage::new().await;
    stage
        .consul
        .put(&format!("{PREFIX}/.lock"), SEMAPHORE_FLAGS, "mine")
        .await;
    let refused = soon(stage.semaphore(3).acquire())
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.starts_with("shared/db/.lock: "), "{refused}");
    assert!(refused.contains("Use another prefix"), "{refused}");
    let mutex = stage.builder().mutex().build().unwrap();
    let slot = soon(mutex.acquire()).await;
    assert!(slot.is_err(), "{slot:?}");
    let lock = stage.consul.kv(&format!("{PREFIX}/.lock")).await.unwrap();
    assert_eq!(lock.value, b"mine");
}

#[tokio::test]
async fn a_prefix_that_nobody_uses_is_refused_if_it_must_exist() {
    let stage = Stage::new().await;
    let semaphore = stage.builder().limit(1).must_exist().build().unwrap();
    let refused = soon(semaphore.acquire()).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "there is no semaphore at shared/db now: nobody holds a slot there or waits for one. Correct the prefix. If it \
         is right, leave must_exist out: a semaphore without a ConsulSemaphore exists only while somebody uses it"
    );
    let other = slot_of(&stage.semaphore(2)).await;
    let known = stage.builder().limit(2).must_exist().build().unwrap();
    slot_of(&known).await.release().await.unwrap();
    drop(other);
    stage.becomes_clean().await;
}

#[tokio::test]
async fn who_is_denied_is_told_the_rules() {
    let stage = Stage::with(Consul::builder().acls("root")).await;
    let semaphore = |token: &str| {
        let client = stage.client_with(|config| config.token = Some(token.into()));
        let builder = Semaphore::builder(client, PREFIX).limit(1);
        builder.node("team-a").build().unwrap()
    };
    let unknown = soon(semaphore("nobody").acquire())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        unknown.contains("Consul does not know the token"),
        "{unknown}"
    );
    let client = stage.client();
    let anonymous = Semaphore::builder(client, PREFIX).limit(1).node("team-a");
    let denied = soon(anonymous.build().unwrap().acquire())
        .await
        .unwrap_err()
        .to_string();
    for rule in [
        r#"key_prefix "shared/db/" { policy = "write" }"#,
        r#"node "team-a" { policy = "write" }"#,
        r#"session "team-a" { policy = "write" }"#,
    ] {
        assert!(denied.contains(rule), "{denied}");
    }
    slot_of(&semaphore("root")).await.release().await.unwrap();
}

#[tokio::test]
async fn a_refused_release_says_that_the_token_is_refused() {
    let stage = Stage::with(Consul::builder().acls("root")).await;
    let token = json!({ "Policies": [{ "Name": "global-management" }] });
    let token = stage.consul.put_json("acl/token", token).await;
    let client = stage.client_with(|config| {
        config.token = Some(token["SecretID"].as_str().unwrap().into());
    });
    let semaphore = Semaphore::builder(client, PREFIX).limit(1).node("team-a");
    let slot = slot_of(&semaphore.build().unwrap()).await;
    let accessor = token["AccessorID"].as_str().unwrap();
    stage
        .consul
        .delete_at(&format!("acl/token/{accessor}"))
        .await;
    let told = soon(slot.release()).await.unwrap_err().to_string();
    for words in [
        "Consul denies it: ",
        "the slot is free once its session has expired, 120s from now at the latest",
        "Consul does not know the token",
    ] {
        assert!(told.contains(words), "{told}");
    }
}

#[tokio::test]
async fn a_ttl_that_consul_refuses_ends_the_wait() {
    let config = json!({ "session_ttl_min": "90s" });
    let stage = Stage::with(Consul::builder().config(config)).await;
    let refused = soon(stage.semaphore(1).acquire()).await.unwrap_err();
    assert!(
        matches!(refused.why, AcquireError::Refused(_)),
        "{refused:?}"
    );
    let told = refused.to_string();
    assert!(told.contains("Set a ttl of at least 90 s"), "{told}");
    let longer = stage.builder().limit(1).ttl(Duration::from_secs(90));
    let slot = slot_of(&longer.build().unwrap()).await;
    slot.release().await.unwrap();
    stage.is_clean().await;
}

#[tokio::test]
async fn who_does_not_wait_is_told_that_consul_is_away() {
    let client = Client::new(Config {
        addresses: vec!["127.0.0.1:1".parse().unwrap()],
        timeout: Duration::from_secs(2),
        ..Config::default()
    });
    let semaphore = Semaphore::builder(client.unwrap(), PREFIX)
        .limit(1)
        .build()
        .unwrap();
    let refused = soon(semaphore.try_acquire()).await.unwrap_err();
    assert!(
        matches!(refused.why, AcquireError::Unreachable(_)),
        "{refused:?}"
    );
    let refused = soon(semaphore.acquire_within(Duration::from_secs(10)))
        .await
        .unwrap_err();
    assert!(
        matches!(refused.why, AcquireError::Unreachable(_)),
        "{refused:?}"
    );
    soon(semaphore.all_released()).await;
}
