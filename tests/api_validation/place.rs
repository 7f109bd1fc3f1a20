//! Where a semaphore lives: it is validated on creation, and never changes.

use consul_semaphore::Prefix;
use serde_json::{Value, json};

use crate::semaphores::Semaphores;

pub(crate) async fn is_checked_and_kept(api: &Semaphores) {
    checks_the_prefix(api).await;
    checks_the_place_in_consul(api).await;
    checks_the_token_reference(api).await;
    keeps_a_semaphore_in_its_place(api).await;
    lets_the_rest_change(api).await;
}

async fn checks_the_prefix(api: &Semaphores) {
    let spec = |prefix: &str| json!({ "limit": 1, "prefix": prefix });
    let longest = "a".repeat(Prefix::MAX_LENGTH);
    for prefix in [
        "db",
        "shared/db",
        "A/b_c-d.e/0",
        "a/.locks/x.lock",
        "...x/y..",
        &longest,
    ] {
        let made = api.accept(spec(prefix)).await;
        assert_eq!(made.prefix().as_str(), prefix);
    }

    agrees_with_the_operator(api).await;
    let characters = [
        "", "/", "/a", "a/", "a//b", "a b", "a%2fb", "ä", "a?b", "a\\b", "a\n", "\na",
    ];
    let names = [
        ".",
        "..",
        "...",
        "a/../b",
        "./a",
        "a/.",
        ".lock",
        "a/.lock",
        ".lock/a",
        "a/.lock/b",
    ];
    let invalid = characters.iter().chain(&names);
    let taken: Vec<_> = invalid
        .filter(|prefix| prefix.parse::<Prefix>().is_ok())
        .collect();
    assert!(
        taken.is_empty(),
        "the operator agrees with the API server, but not on {taken:?}"
    );
    let allowed = "prefix must be segments of letters, digits, '.', '_' and '-' joined by '/'";
    api.refuse(characters.map(spec), "spec.prefix", allowed)
        .await;
    let allowed = "no segment of prefix may be '.lock' or consist of only dots";
    api.refuse(names.map(spec), "spec.prefix", allowed).await;
    let too_long = [spec(&format!("{longest}a"))];
    api.refuse(too_long, "spec.prefix", "may not be more than 400")
        .await;
}

/// The API server takes a prefix if the operator does, whatever character is in whatever place.
async fn agrees_with_the_operator(api: &Semaphores) {
    let mut taken = 0;
    for c in ('\0'..='\x7f').chain(['é', '\u{a0}', '\u{2028}', '€', '😀']) {
        let prefixes = [
            format!("{c}b/b"),
            format!("b{c}b"),
            format!("b{c}"),
            format!("b/{c}/b"),
        ];
        for prefix in prefixes {
            let made = api.create(&json!({ "limit": 1, "prefix": prefix })).await;
            assert_eq!(made.is_ok(), prefix.parse::<Prefix>().is_ok(), "{prefix:?}");
            taken += usize::from(made.is_ok());
        }
    }
    // 62 letters and digits, '_' and '-' everywhere, '.' not by itself, '/' between two.
    assert_eq!(taken, 64 * 4 + 3 + 1);
}

async fn checks_the_place_in_consul(api: &Semaphores) {
    for consul in [
        json!({}),
        json!({ "datacenter": "dc1" }),
        json!({ "datacenter": "eu_west-1", "namespace": "team-a", "partition": "default" }),
        json!({ "namespace": "A", "partition": "p".repeat(64) }),
    ] {
        api.accept(json!({ "limit": 1, "consul": consul })).await;
    }
    let names = "letters, digits and '-', such as";
    for (field, invalid, allowed) in [
        (
            "datacenter",
            ["", "DC1", "dc1&stale"],
            "lower case letters, digits, '-' and '_'",
        ),
        ("namespace", ["", "team_a", "-a"], names),
        ("partition", ["", "a/b", "a-"], names),
    ] {
        let path = format!("spec.consul.{field}");
        let spec = |value: &str| json!({ "limit": 1, "consul": { field: value } });
        api.refuse(invalid.map(spec), &path, allowed).await;
        api.refuse([spec(&"a".repeat(65))], &path, "may not be more than 64")
            .await;
    }
}

async fn checks_the_token_reference(api: &Semaphores) {
    let spec = |reference: Value| json!({ "limit": 1, "consul": { "tokenSecretRef": reference } });
    let made = api.accept(spec(json!({ "name": "consul-token" }))).await;
    let reference = &made.spec.consul.expect("consul").token_secret_ref;
    assert_eq!(
        reference.as_ref().map(|found| found.key.as_str()),
        Some("token")
    );
    api.accept(spec(json!({ "name": "a.b-c", "key": "Token_1.txt" })))
        .await;
    let path = "spec.consul.tokenSecretRef";
    let names = ["", "..", "a/b", "../secrets", "A", "a?b", "a%2fb"];
    let names = names.map(|name| spec(json!({ "name": name })));
    let allowed = "name must be the name of a Secret in the same namespace";
    api.refuse(names, &format!("{path}.name"), allowed).await;
    let keys = ["", "a/b", "a b"].map(|key| spec(json!({ "name": "a", "key": key })));
    let allowed = "key must be a key of the Secret's data";
    api.refuse(keys, &format!("{path}.key"), allowed).await;
    api.refuse([spec(json!({}))], &format!("{path}.name"), "Required value")
        .await;

    // Another token does not move it.
    let (with, other, without) = (
        spec(json!({ "name": "a", "key": "k" })),
        spec(json!({ "name": "b", "key": "k" })),
        json!({ "limit": 1 }),
    );
    for (before, after) in [(&with, &other), (&with, &without), (&without, &with)] {
        api.update(before, after)
            .await
            .expect("the token may be exchanged");
    }
}

/// Each field that says where the semaphore lives can't be changed, added or removed: alone, or together with the
/// `consul` object around it.
async fn keeps_a_semaphore_in_its_place(api: &Semaphores) {
    let bare = json!({ "limit": 1 });
    let prefix = |prefix: Value| json!({ "limit": 1, "prefix": prefix });
    let consul = |consul: Value| json!({ "limit": 1, "consul": consul });

    let [a, b, null] = [json!("a"), json!("b"), json!(null)].map(prefix);
    let changes = [(&a, &b), (&a, &null), (&a, &bare), (&bare, &a)];
    api.refuse_to_move(changes, "prefix").await;

    let [empty, no_consul] = [json!({}), json!(null)].map(consul);
    for field in ["datacenter", "namespace", "partition"] {
        let [a, b, null] =
            [json!("a"), json!("b"), json!(null)].map(|value| consul(json!({ field: value })));
        let changes = [
            (&a, &b),
            (&a, &null),
            (&a, &empty),
            (&a, &no_consul),
            (&a, &bare),
            (&empty, &a),
            (&bare, &a),
        ];
        api.refuse_to_move(changes, &format!("consul.{field}"))
            .await;
    }

    for (field, value, other) in [
        ("mode", json!("Mutex"), json!("Semaphore")),
        ("keyed", json!(true), json!(false)),
    ] {
        let [value, other] = [value, other].map(|value| json!({ "limit": 1, field: value }));
        let changes = [
            (&value, &other),
            (&other, &value),
            (&value, &bare),
            (&bare, &value),
        ];
        api.refuse_to_move(changes, field).await;
    }
}

async fn lets_the_rest_change(api: &Semaphores) {
    let place = json!({ "datacenter": "a", "namespace": "b", "partition": "c" });
    let before = json!({ "limit": 1, "prefix": "a", "consul": place });
    let after = json!({
        "limit": 9, "limitPolicy": "Enforce", "prefix": "a", "paused": true,
        "session": { "ttl": "None", "lockDelay": "0s" }, "onSlotLost": "Continue", "consul": place,
        "mode": "Semaphore", "keyed": false, "cooldown": "1h", "replaceAfter": "0s",
    });
    let updated = api
        .update(&before, &after)
        .await
        .expect("the place is the same");
    assert_eq!(updated.data["spec"], after);

    let [bare, empty] = [json!({ "limit": 1 }), json!({ "limit": 1, "consul": {} })];
    for (before, after) in [(&bare, &empty), (&empty, &bare)] {
        api.update(before, after)
            .await
            .expect("an empty consul says nothing");
    }
}
