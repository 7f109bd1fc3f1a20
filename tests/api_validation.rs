//! What a real API server refuses, fills in, keeps and shows of a `ConsulSemaphore`.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

use consul_semaphore_operator::api::{
    ConsulSemaphore, ConsulSemaphoreStatus, HolderStatus, LockDelay, Prefix, QueueStatus, Ttl,
    conditions::{self, ConditionType, Finding, Reason},
    crd_yaml,
};
use jiff::Timestamp;
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{ApiServer, eventually};
use tokio::process::Command;

#[tokio::test]
async fn the_api_server_guards_and_shows_what_users_write() {
    let server = ApiServer::start().await;
    let client = server.client().await;
    let api = Semaphores::install(&client).await;

    fills_in_defaults(&api).await;
    checks_the_limit(&api).await;
    checks_the_limit_policy(&api).await;
    checks_what_a_lost_slot_means(&api).await;
    checks_the_ttl(&api).await;
    checks_the_lock_delay(&api).await;
    checks_the_prefix(&api).await;
    checks_the_place_in_consul(&api).await;
    checks_the_token_reference(&api).await;
    keeps_a_semaphore_in_its_place(&api).await;
    lets_the_rest_change(&api).await;
    keeps_the_status(&api).await;
    shows_columns(&api, &server).await;
    explains_fields(&server).await;
}

async fn fills_in_defaults(api: &Semaphores) {
    let full = json!({
        "limit": 3, "limitPolicy": "Refuse", "onSlotLost": "Reacquire", "paused": false,
        "session": { "ttl": "120s", "lockDelay": "15s" },
    });
    for sparse in [
        json!({ "limit": 3 }),
        json!({ "limit": 3, "session": {} }),
        json!({ "limit": 3, "session": null, "prefix": null, "consul": null, "limitPolicy": null, "paused": null }),
    ] {
        let made = api
            .create(&sparse)
            .await
            .expect("only the limit is required");
        assert_eq!(made.data["spec"], full, "{sparse}");
    }
    api.refuse([json!({})], "spec.limit", "Required value")
        .await;

    let bare = api.accept(json!({ "limit": 3 })).await;
    let default = format!("semaphores/default/{}", bare.name_any());
    assert_eq!(bare.prefix().as_str(), default);
}

async fn checks_the_limit(api: &Semaphores) {
    for limit in [json!(1), json!(2), json!(5000), json!(3.0)] {
        api.accept(json!({ "limit": limit })).await;
    }
    let low = [0, -1, i64::from(i32::MIN)].map(|limit| json!({ "limit": limit }));
    api.refuse(low, "spec.limit", "greater than or equal to 1")
        .await;
    let high = [5001, i64::from(i32::MAX), i64::MAX].map(|limit| json!({ "limit": limit }));
    api.refuse(high, "spec.limit", "less than or equal to 5000")
        .await;
    let other = [json!("3"), json!(1.5), json!(true)].map(|limit| json!({ "limit": limit }));
    api.refuse(other, "spec.limit", "must be of type int").await;
}

async fn checks_the_limit_policy(api: &Semaphores) {
    for policy in ["Refuse", "Enforce"] {
        api.accept(json!({ "limit": 1, "limitPolicy": policy }))
            .await;
    }
    let unknown =
        ["", "refuse", "Ignore"].map(|policy| json!({ "limit": 1, "limitPolicy": policy }));
    let allowed = r#"supported values: "Refuse", "Enforce""#;
    api.refuse(unknown, "spec.limitPolicy", allowed).await;
}

async fn checks_the_ttl(api: &Semaphores) {
    let spec = |ttl: &str| json!({ "limit": 1, "session": { "ttl": ttl } });
    for ttl in ["10s", "120s", "2m", "1h30m", "90m", "24h", "1h60s", "None"] {
        let made = api.accept(spec(ttl)).await;
        assert_eq!(Ok(made.spec.session.ttl), ttl.parse());
    }
    let invalid = [
        "", "0", "9s", "5s", "24h1s", "25h", "99999h", "999999s", "120", "abc", "-120s", "+120s",
        "1.5h", "10.5s", "12000ms", "1d", "2 m", "2m\n", "none", "١٢٠s",
    ];
    let taken: Vec<_> = invalid
        .iter()
        .filter(|ttl| ttl.parse::<Ttl>().is_ok())
        .collect();
    assert!(
        taken.is_empty(),
        "the operator agrees with the API server, but not on {taken:?}"
    );
    let allowed = "ttl must be whole hours, minutes and seconds from 10s to 24h, such as 120s, 2m or 1h30m, or None";
    api.refuse(invalid.map(spec), "spec.session.ttl", allowed)
        .await;

    let too_long = [spec(&"1s".repeat(20))];
    api.refuse(too_long, "spec.session.ttl", "may not be more than 32")
        .await;
    let number = [json!({ "limit": 1, "session": { "ttl": 120 } })];
    api.refuse(number, "spec.session.ttl", "must be of type string")
        .await;
}

async fn checks_what_a_lost_slot_means(api: &Semaphores) {
    for policy in ["Reacquire", "Suspend", "Continue"] {
        api.accept(json!({ "limit": 1, "onSlotLost": policy }))
            .await;
    }
    let unknown =
        ["", "suspend", "Ignore"].map(|policy| json!({ "limit": 1, "onSlotLost": policy }));
    let allowed = r#"supported values: "Reacquire", "Suspend", "Continue""#;
    api.refuse(unknown, "spec.onSlotLost", allowed).await;
}

async fn checks_the_lock_delay(api: &Semaphores) {
    let spec = |delay: &str| json!({ "limit": 1, "session": { "lockDelay": delay } });
    for delay in ["0s", "1s", "15s", "60s", "1m", "0h0m60s"] {
        let made = api.accept(spec(delay)).await;
        assert_eq!(Ok(made.spec.session.lock_delay), delay.parse());
    }
    let invalid = [
        "", "0", "61s", "1m1s", "2m", "1h", "-1s", "1.5s", "100ms", "None", "1d",
    ];
    let taken: Vec<_> = invalid
        .iter()
        .filter(|delay| delay.parse::<LockDelay>().is_ok())
        .collect();
    assert!(
        taken.is_empty(),
        "the operator agrees with the API server, but not on {taken:?}"
    );
    let allowed = "lockDelay must be whole seconds from 0s to 60s, such as 15s or 1m";
    api.refuse(invalid.map(spec), "spec.session.lockDelay", allowed)
        .await;
    let number = [json!({ "limit": 1, "session": { "lockDelay": 15 } })];
    api.refuse(number, "spec.session.lockDelay", "must be of type string")
        .await;
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

/// Each field that says where the semaphore lives is neither changed, added nor removed: alone, and
/// together with the `consul` object around it.
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

    // Another token is no other place.
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

async fn lets_the_rest_change(api: &Semaphores) {
    let place = json!({ "datacenter": "a", "namespace": "b", "partition": "c" });
    let before = json!({ "limit": 1, "prefix": "a", "consul": place });
    let after = json!({
        "limit": 9, "limitPolicy": "Enforce", "prefix": "a", "paused": true,
        "session": { "ttl": "None", "lockDelay": "0s" }, "onSlotLost": "Continue", "consul": place,
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

/// The status that the operator applies is kept whole, and what it leaves out the next time is gone.
async fn keeps_the_status(api: &Semaphores) {
    let name = api.accept(json!({ "limit": 3 })).await.name_any();
    for status in [a_status(), ConsulSemaphoreStatus::default()] {
        let written = api.apply_status(&name, &status).await;
        assert_eq!(written.status, Some(status));
        assert_eq!(
            written.metadata.generation,
            Some(1),
            "a status is no change of the spec"
        );
    }
}

async fn shows_columns(api: &Semaphores, server: &ApiServer) {
    let name = api.accept(json!({ "limit": 3 })).await.name_any();
    api.apply_status(&name, &a_status()).await;
    let table = kubectl(server, &["get", "csem", &name])
        .await
        .expect("a table");
    let rows: Vec<Vec<_>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows[0],
        ["NAME", "LIMIT", "HELD", "WAITING", "READY", "REASON", "AGE"],
        "{table}"
    );
    assert_eq!(
        rows[1][..6],
        [&name, "3", "4", "5", "False", "LimitConflict"],
        "{table}"
    );

    let names = kubectl(server, &["get", "consul", "--output=name"])
        .await
        .expect("the category");
    assert!(
        names.contains(&format!("consulsemaphore.consul-semaphore.io/{name}")),
        "{names}"
    );
}

async fn explains_fields(server: &ApiServer) {
    for (field, words) in [
        (
            "csem",
            "A semaphore in Consul whose slots the Jobs of this namespace wait for.",
        ),
        (
            "csem.spec.limit",
            "How many may hold a slot at once, from 1 to 5000.",
        ),
        ("csem.spec.limitPolicy", "ENUM: Refuse Enforce"),
        (
            "csem.spec.prefix",
            "The default is semaphores/<namespace>/<name>. Can't be changed, added or removed later.",
        ),
        (
            "csem.spec.session.ttl",
            "from 10s to 24h, such as 120s, 2m or 1h30m.",
        ),
        ("csem.spec.consul.namespace", "Needs Consul Enterprise"),
        ("csem.status.queue.since", "When it came in line."),
    ] {
        // What explains is published a moment after the resource.
        let args = ["explain", field];
        let text = eventually("the field is explained", || kubectl(server, &args)).await;
        let text: Vec<_> = text.split_whitespace().collect();
        assert!(
            text.join(" ").contains(words),
            "{field}: {}",
            text.join(" ")
        );
    }
}

/// What kubectl prints; its error when it fails.
async fn kubectl(server: &ApiServer, args: &[&str]) -> Result<String, String> {
    let kubeconfig = server.kubeconfig();
    let output = Command::new(testbed::servers().join("kubectl"))
        .args(args)
        .arg("--request-timeout=30s")
        .env_clear()
        .env("KUBECONFIG", kubeconfig)
        // Where it looks for settings, and keeps what it has learned about the server.
        .env("HOME", kubeconfig.parent().expect("a folder"))
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| error.to_string())?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

fn a_status() -> ConsulSemaphoreStatus {
    let now = Timestamp::from_second(1_800_000_000).expect("a time");
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
    let known = HolderStatus {
        session: "s-1".to_owned(),
        holder: Some("prod-eu batch/migrate".to_owned()),
        since: Some(Time(now)),
        never_expires: false,
    };
    let unknown = HolderStatus {
        session: "s-2".to_owned(),
        holder: None,
        since: None,
        never_expires: false,
    };
    ConsulSemaphoreStatus {
        observed_generation: Some(1),
        limit: Some(4),
        applied_limits: vec![3],
        fencing_token: Some(i64::MAX),
        held: 4,
        held_here: 2,
        waiting: 5,
        holders: vec![known, unknown],
        queue: vec![QueueStatus {
            job: "migrate-2".to_owned(),
            since: Some(Time(now)),
        }],
        conditions: conditions::merge(&[], &findings, Some(1), now),
    }
}

/// The resource as anybody can write it, with nothing that our own types would prevent.
struct Semaphores {
    untyped: Api<DynamicObject>,
    typed: Api<ConsulSemaphore>,
}

impl Semaphores {
    /// Installs the resource as it is shipped, and waits until it is served.
    async fn install(client: &Client) -> Self {
        let crd = serde_yaml_ng::from_str(&crd_yaml().expect("YAML")).expect("a CRD");
        let crds = Api::<CustomResourceDefinition>::all(client.clone());
        crds.create(&PostParams::default(), &crd)
            .await
            .expect("the API server takes the CRD");
        let resource = ApiResource::erase::<ConsulSemaphore>(&());
        let this = Self {
            untyped: Api::default_namespaced_with(client.clone(), &resource),
            typed: Api::default_namespaced(client.clone()),
        };
        let all = ListParams::default();
        eventually("the resource is served", || this.typed.list(&all)).await;
        this
    }

    async fn create(&self, spec: &Value) -> kube::Result<DynamicObject> {
        let mut object = DynamicObject::new("", &ApiResource::erase::<ConsulSemaphore>(&()));
        object.metadata.name = None;
        object.metadata.generate_name = Some("case-".to_owned());
        object.data = json!({ "spec": spec });
        self.untyped.create(&PostParams::default(), &object).await
    }

    /// Creates one with the first spec and replaces that by the second.
    async fn update(&self, before: &Value, after: &Value) -> kube::Result<DynamicObject> {
        let mut object = self.create(before).await.expect("the first spec is valid");
        object.data["spec"] = after.clone();
        self.untyped
            .replace(&object.name_any(), &PostParams::default(), &object)
            .await
    }

    async fn apply_status(&self, name: &str, status: &ConsulSemaphoreStatus) -> ConsulSemaphore {
        let body = json!({ "apiVersion": "consul-semaphore.io/v1alpha1", "kind": "ConsulSemaphore", "status": status });
        let params = PatchParams::apply("api-validation").force();
        let written = self
            .typed
            .patch_status(name, &params, &Patch::Apply(body))
            .await;
        written.expect("the status is valid")
    }

    /// What the API server makes of a valid spec, read by our types.
    async fn accept(&self, spec: Value) -> ConsulSemaphore {
        let made = self
            .create(&spec)
            .await
            .unwrap_or_else(|error| panic!("{spec}: {error}"));
        made.try_parse()
            .unwrap_or_else(|error| panic!("{spec}: {error}"))
    }

    /// Asserts that the API server calls each spec invalid, in a message that names the field and
    /// says what is allowed.
    async fn refuse(&self, specs: impl IntoIterator<Item = Value>, field: &str, allowed: &str) {
        for spec in specs {
            assert_invalid(self.create(&spec).await, &spec, [field, allowed]);
        }
    }

    /// Asserts that the API server refuses each change of a spec into another one, because this
    /// field says where the semaphore lives.
    async fn refuse_to_move(
        &self,
        changes: impl IntoIterator<Item = (&Value, &Value)>,
        field: &str,
    ) {
        let path = format!("spec.{field}");
        let allowed = format!(
            "{field} can't be changed, added or removed: make another ConsulSemaphore for another place"
        );
        for (before, after) in changes {
            assert_invalid(
                self.update(before, after).await,
                &json!([before, after]),
                [&path, &allowed],
            );
        }
    }
}

fn assert_invalid(result: kube::Result<DynamicObject>, case: &Value, words: [&str; 2]) {
    let status = match result {
        Err(kube::Error::Api(status)) => status,
        Err(error) => panic!("{case}: {error}"),
        Ok(_) => panic!("{case} was accepted"),
    };
    let message = &status.message;
    assert_eq!(
        (status.code, status.reason.as_str()),
        (422, "Invalid"),
        "{case}: {message}"
    );
    for word in words {
        assert!(
            message.contains(word),
            "{case}: {word:?} is missing in: {message}"
        );
    }
}
