//! What a real API server refuses, fills in, keeps and shows of a `ConsulSemaphore`.

use consul_semaphore_operator::api::{
    ConsulSemaphore, ConsulSemaphoreStatus, HolderStatus, Prefix, QueueStatus, Ttl,
    conditions::{self, ConditionType, Finding, Reason},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// The resource as anybody can write it: nothing that our own types would prevent.
type Semaphores = Api<DynamicObject>;

fn semaphores(client: &Client) -> Semaphores {
    Api::default_namespaced_with(client.clone(), &ApiResource::erase::<ConsulSemaphore>(&()))
}

fn semaphore(spec: &Value) -> DynamicObject {
    DynamicObject {
        metadata: ObjectMeta {
            generate_name: Some("case-".to_owned()),
            ..ObjectMeta::default()
        },
        data: json!({ "spec": spec }),
        ..DynamicObject::new("", &ApiResource::erase::<ConsulSemaphore>(&()))
    }
}

async fn create(api: &Semaphores, spec: &Value) -> kube::Result<DynamicObject> {
    let mut object = semaphore(spec);
    object.metadata.name = None;
    api.create(&PostParams::default(), &object).await
}

/// Creates one with the first spec and replaces that by the second.
async fn update(api: &Semaphores, before: &Value, after: &Value) -> kube::Result<DynamicObject> {
    let mut object = create(api, before).await.expect("the first spec is valid");
    object.data["spec"] = after.clone();
    api.replace(&object.name_any(), &PostParams::default(), &object)
        .await
}

/// Asserts that the API server called the object invalid, in words that hold all of these.
fn assert_refused(result: kube::Result<DynamicObject>, case: &Value, words: &[&str]) {
    match result {
        Ok(_) => panic!("{case} was accepted"),
        Err(kube::Error::Api(status)) => {
            assert_eq!(
                (status.code, status.reason.as_str()),
                (422, "Invalid"),
                "{case}: {}",
                status.message
            );
            for word in words {
                assert!(
                    status.message.contains(word),
                    "{case}: {word:?} is missing in: {}",
                    status.message
                );
            }
        }
        Err(error) => panic!("{case}: {error}"),
    }
}

#[tokio::test]
async fn the_api_server_guards_what_users_write() {
    let client = Client::try_default().await.expect("a client");
    let api = semaphores(&client);

    fills_in_defaults(&api).await;
    checks_limits(&api).await;
    checks_limit_policies(&api).await;
    checks_ttls(&api).await;
    checks_prefixes(&api).await;
    checks_the_place_in_consul(&api).await;
    keeps_a_semaphore_in_its_place(&api).await;
    lets_the_rest_change(&api).await;
    keeps_the_status(&client).await;
}

async fn fills_in_defaults(api: &Semaphores) {
    let full = json!({ "limit": 3, "limitPolicy": "Refuse", "paused": false, "session": { "ttl": "120s" } });
    for sparse in [
        json!({ "limit": 3 }),
        json!({ "limit": 3, "session": {} }),
        json!({ "limit": 3, "session": null, "prefix": null, "consul": null, "limitPolicy": null, "paused": null }),
    ] {
        let made = create(api, &sparse)
            .await
            .expect("only the limit is required");
        assert_eq!(made.data["spec"], full, "{sparse}");
        let typed: ConsulSemaphore = made
            .try_parse()
            .expect("what the API server keeps is what the types read");
        assert_eq!(typed.spec.session.ttl, Ttl::default());
        assert_eq!(
            typed.prefix().as_str(),
            format!("semaphores/default/{}", typed.name_any())
        );
    }
    assert_refused(
        create(api, &json!({})).await,
        &json!({}),
        &["spec.limit: Required value"],
    );
}

async fn checks_limits(api: &Semaphores) {
    for limit in [1, 2, 5000] {
        create(api, &json!({ "limit": limit }))
            .await
            .expect("a valid limit");
    }
    for limit in [0, -1, i64::from(i32::MIN)] {
        let spec = json!({ "limit": limit });
        assert_refused(
            create(api, &spec).await,
            &spec,
            &["spec.limit", "greater than or equal to 1"],
        );
    }
    for limit in [5001, i64::from(i32::MAX), i64::MAX] {
        let spec = json!({ "limit": limit });
        assert_refused(
            create(api, &spec).await,
            &spec,
            &["spec.limit", "less than or equal to 5000"],
        );
    }
    for limit in [json!("3"), json!(1.5), json!(true)] {
        let spec = json!({ "limit": limit });
        assert_refused(
            create(api, &spec).await,
            &spec,
            &["spec.limit", "must be of type int"],
        );
    }
}

async fn checks_limit_policies(api: &Semaphores) {
    for policy in ["Refuse", "Enforce"] {
        create(api, &json!({ "limit": 1, "limitPolicy": policy }))
            .await
            .expect("a valid policy");
    }
    for policy in ["", "refuse", "Ignore"] {
        let spec = json!({ "limit": 1, "limitPolicy": policy });
        let words = [
            "spec.limitPolicy",
            r#"supported values: "Refuse", "Enforce""#,
        ];
        assert_refused(create(api, &spec).await, &spec, &words);
    }
}

async fn checks_ttls(api: &Semaphores) {
    for ttl in ["10s", "120s", "2m", "1h30m", "90m", "24h", "1h60s"] {
        let made = create(api, &json!({ "limit": 1, "session": { "ttl": ttl } }))
            .await
            .expect(ttl);
        let typed: ConsulSemaphore = made.try_parse().expect(ttl);
        assert_eq!(Ok(typed.spec.session.ttl), ttl.parse());
    }
    for ttl in [
        "", "0", "9s", "5s", "24h1s", "25h", "99999h", "120", "abc", "-120s", "+120s", "1.5h",
        "10.5s", "12000ms", "1d", "2 m", "None", "١٢٠s",
    ] {
        assert!(ttl.parse::<Ttl>().is_err(), "{ttl:?}: the operator agrees");
        let spec = json!({ "limit": 1, "session": { "ttl": ttl } });
        let words = [
            "spec.session.ttl",
            "ttl must be whole hours, minutes and seconds from 10s to 24h, such as 120s, 2m or 1h30m",
        ];
        assert_refused(create(api, &spec).await, &spec, &words);
    }
    let spec = json!({ "limit": 1, "session": { "ttl": 120 } });
    assert_refused(
        create(api, &spec).await,
        &spec,
        &["spec.session.ttl", "must be of type string"],
    );
    let spec = json!({ "limit": 1, "session": { "ttl": "1s".repeat(20) } });
    assert_refused(
        create(api, &spec).await,
        &spec,
        &["spec.session.ttl", "may not be more than 32"],
    );
}

async fn checks_prefixes(api: &Semaphores) {
    let longest = "a".repeat(Prefix::MAX_LENGTH);
    for prefix in [
        "db",
        "shared/db",
        "A/b_c-d.e/0",
        "a/.locks/x.lock",
        "...x/y..",
        &longest,
    ] {
        let made = create(api, &json!({ "limit": 1, "prefix": prefix }))
            .await
            .expect(prefix);
        let typed: ConsulSemaphore = made.try_parse().expect(prefix);
        assert_eq!(typed.prefix().as_str(), prefix);
    }
    let segments = "prefix must be segments of letters, digits, '.', '_' and '-' joined by '/'";
    for prefix in [
        "", "/", "/a", "a/", "a//b", "a b", "a%2fb", "ä", "a?b", "a\\b", "a\n", "\na",
    ] {
        assert!(
            prefix.parse::<Prefix>().is_err(),
            "{prefix:?}: the operator agrees"
        );
        let spec = json!({ "limit": 1, "prefix": prefix });
        assert_refused(create(api, &spec).await, &spec, &["spec.prefix", segments]);
    }
    let names = "no segment of prefix may be '.lock' or consist of only dots";
    for prefix in [
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
    ] {
        assert!(
            prefix.parse::<Prefix>().is_err(),
            "{prefix:?}: the operator agrees"
        );
        let spec = json!({ "limit": 1, "prefix": prefix });
        assert_refused(create(api, &spec).await, &spec, &["spec.prefix", names]);
    }
    let spec = json!({ "limit": 1, "prefix": format!("{longest}a") });
    assert_refused(
        create(api, &spec).await,
        &spec,
        &["spec.prefix", "may not be more than 400"],
    );
}

async fn checks_the_place_in_consul(api: &Semaphores) {
    for consul in [
        json!({}),
        json!({ "datacenter": "dc1" }),
        json!({ "datacenter": "eu_west-1", "namespace": "team-a", "partition": "default" }),
        json!({ "namespace": "A", "partition": "p".repeat(64) }),
    ] {
        create(api, &json!({ "limit": 1, "consul": consul }))
            .await
            .expect("a valid place");
    }
    for (consul, words) in [
        (
            json!({ "datacenter": "" }),
            [
                "spec.consul.datacenter",
                "lower case letters, digits, '-' and '_'",
            ],
        ),
        (
            json!({ "datacenter": "DC1" }),
            [
                "spec.consul.datacenter",
                "lower case letters, digits, '-' and '_'",
            ],
        ),
        (
            json!({ "datacenter": "dc1&stale" }),
            [
                "spec.consul.datacenter",
                "lower case letters, digits, '-' and '_'",
            ],
        ),
        (
            json!({ "namespace": "" }),
            [
                "spec.consul.namespace",
                "letters, digits and '-', such as team-a",
            ],
        ),
        (
            json!({ "namespace": "team_a" }),
            [
                "spec.consul.namespace",
                "letters, digits and '-', such as team-a",
            ],
        ),
        (
            json!({ "namespace": "-a" }),
            [
                "spec.consul.namespace",
                "letters, digits and '-', such as team-a",
            ],
        ),
        (
            json!({ "partition": "" }),
            [
                "spec.consul.partition",
                "letters, digits and '-', such as default",
            ],
        ),
        (
            json!({ "partition": "a/b" }),
            [
                "spec.consul.partition",
                "letters, digits and '-', such as default",
            ],
        ),
    ] {
        let spec = json!({ "limit": 1, "consul": consul });
        assert_refused(create(api, &spec).await, &spec, &words);
    }
}

/// Each field that says where the semaphore lives is neither changed, added nor removed: alone, and
/// together with the `consul` object around it.
async fn keeps_a_semaphore_in_its_place(api: &Semaphores) {
    let prefix = |value: &str| json!({ "limit": 1, "prefix": value });
    let consul = |consul: Value| json!({ "limit": 1, "consul": consul });
    let bare = json!({ "limit": 1 });

    let mut cases = vec![
        ("prefix", prefix("a"), prefix("b")),
        ("prefix", prefix("a"), bare.clone()),
        ("prefix", bare.clone(), prefix("a")),
        ("prefix", prefix("a"), json!({ "limit": 1, "prefix": null })),
    ];
    for (field, name) in [
        ("consul.datacenter", "datacenter"),
        ("consul.namespace", "namespace"),
        ("consul.partition", "partition"),
    ] {
        let (a, b) = (consul(json!({ name: "a" })), consul(json!({ name: "b" })));
        cases.extend([
            (field, a.clone(), b),
            (field, a.clone(), consul(json!({}))),
            (field, a.clone(), bare.clone()),
            (field, a.clone(), json!({ "limit": 1, "consul": null })),
            (field, consul(json!({})), a.clone()),
            (field, bare.clone(), a),
        ]);
    }
    for (field, before, after) in &cases {
        let message = format!(
            "{field} can't be changed, added or removed: make another ConsulSemaphore for another place"
        );
        let path = format!("spec.{field}");
        assert_refused(
            update(api, before, after).await,
            &json!([before, after]),
            &[&path, &message],
        );
    }

    let all = json!({ "datacenter": "a", "namespace": "b", "partition": "c" });
    let words = [
        "consul.datacenter can't",
        "consul.namespace can't",
        "consul.partition can't",
    ];
    assert_refused(update(api, &consul(all.clone()), &bare).await, &all, &words);
}

async fn lets_the_rest_change(api: &Semaphores) {
    let place = json!({ "datacenter": "a", "namespace": "b", "partition": "c" });
    let before = json!({ "limit": 1, "prefix": "a", "consul": place });
    let after = json!({
        "limit": 9, "limitPolicy": "Enforce", "prefix": "a", "paused": true, "session": { "ttl": "1h" }, "consul": place,
    });
    let updated = update(api, &before, &after)
        .await
        .expect("the place is the same");
    assert_eq!(updated.data["spec"], after);

    let bare = json!({ "limit": 1 });
    let empty = json!({ "limit": 1, "consul": {} });
    update(api, &bare, &empty)
        .await
        .expect("an empty consul says nothing");
    update(api, &empty, &bare)
        .await
        .expect("an empty consul said nothing");
}

/// The status that the operator writes is kept whole, and its conditions are one for each type.
async fn keeps_the_status(client: &Client) {
    let made = create(&semaphores(client), &json!({ "limit": 3 }))
        .await
        .expect("a semaphore");
    let api: Api<ConsulSemaphore> = Api::default_namespaced(client.clone());
    let since = Some(Time(Timestamp::from_second(1_800_000_000).expect("a time")));
    let findings = [
        Finding::new(
            ConditionType::Ready,
            false,
            Reason::LimitConflict,
            "Consul holds limit 4",
        ),
        Finding::new(
            ConditionType::ConsulReachable,
            true,
            Reason::Reachable,
            "Consul answers",
        ),
    ];
    let status = ConsulSemaphoreStatus {
        observed_generation: Some(1),
        limit: Some(4),
        applied_limits: vec![3],
        fencing_token: Some(i64::MAX),
        held: 3,
        held_here: 2,
        waiting: 5,
        holders: vec![
            HolderStatus {
                session: "s-1".to_owned(),
                holder: Some("prod-eu batch/migrate".to_owned()),
                since: since.clone(),
            },
            HolderStatus {
                session: "s-2".to_owned(),
                holder: None,
                since: None,
            },
        ],
        queue: vec![QueueStatus {
            job: "migrate-2".to_owned(),
            since,
        }],
        conditions: conditions::merge(
            &[],
            &findings,
            Some(1),
            Timestamp::from_second(1_800_000_000).expect("a time"),
        ),
    };
    let body = json!({ "apiVersion": "consul-semaphore.io/v1alpha1", "kind": "ConsulSemaphore", "status": status });
    let apply = PatchParams::apply("api-validation").force();
    let written = api
        .patch_status(&made.name_any(), &apply, &Patch::Apply(body))
        .await
        .expect("the status is valid");
    assert_eq!(written.status, Some(status));
    assert_eq!(
        written.metadata.generation,
        Some(1),
        "a status is no change of the spec"
    );

    let body = json!({
        "apiVersion": "consul-semaphore.io/v1alpha1", "kind": "ConsulSemaphore", "status": ConsulSemaphoreStatus::default(),
    });
    let written = api
        .patch_status(&made.name_any(), &apply, &Patch::Apply(body))
        .await
        .expect("an empty status is valid");
    assert_eq!(
        written.status,
        Some(ConsulSemaphoreStatus::default()),
        "what is left out is gone"
    );
}
