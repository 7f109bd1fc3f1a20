//! Namespaces that share an operator and a Consul: which prefixes each may use with which token, and that no token is
//! ever shown.

use std::{
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use testbed::{
    Bed, Consul, Job, Namespace, Operator, Semaphore, eventually,
    helpers::{cluster_id, metric, warning},
    same,
};

const ON_CONTENTION: &str = "consul-semaphore.io/on-contention";
const MANAGEMENT: &str = "00000000-1111-4222-8333-444444444444";
/// The operator's own token.
const OWN: &str = "0a0a5ec2-e75e-4222-8333-0123456789ab";
/// The tokens of the namespace, one after another.
const FIRST: &str = "f1f15ec2-e75e-4222-8333-0123456789ab";
const SECOND: &str = "5e5e5ec2-e75e-4222-8333-0123456789ab";
const THIRD: &str = "3e3e5ec2-e75e-4222-8333-0123456789ab";
/// A token that Consul does not know, and one that can't be sent.
const UNKNOWN: &str = "0bad5ec2-e75e-4222-8333-0123456789ab";
const BROKEN: &str = "b4b45ec2-e75e\u{1}4222-8333-0123456789ab";

/// A Consul that denies by default, and an operator that restricts namespaces to their folders.
struct Tenants {
    bed: Bed,
    operator: Operator,
    token_file: PathBuf,
    node: String,
}

impl Tenants {
    async fn start() -> Self {
        let bed = Bed::builder()
            .consul(Consul::builder().acls(MANAGEMENT))
            .without_operator()
            .start()
            .await;
        let node = format!("k8s-{}", cluster_id(&bed).await);
        // It could write anywhere: it is not Consul that restricts namespaces.
        token(&bed, OWN, &[r#"key_prefix "" { policy = "write" }"#], &node).await;
        let token_file = bed.folder().path().join("own-token");
        fs::write(&token_file, OWN).expect("the token's file");
        let operator = operator(&bed, "confined", &token_file, &[]);
        operator.start().await;
        Self {
            bed,
            operator,
            token_file,
            node,
        }
    }

    /// The same operator, restarted with these arguments.
    async fn restart(&mut self, name: &str, args: &[&str]) {
        let status = self.operator.stop().await;
        assert!(status.success(), "{status}");
        self.operator = operator(&self.bed, name, &self.token_file, args);
        self.operator.start().await;
    }

    /// All keys in Consul.
    async fn keys(&self) -> Vec<String> {
        let entries = self.bed.consul().list("").await;
        entries.into_iter().map(|entry| entry.key).collect()
    }
}

/// An operator that trusts no namespace, with a full log.
fn operator(bed: &Bed, name: &str, token_file: &Path, args: &[&str]) -> Operator {
    let own = [
        "--consul-token-file".to_owned(),
        token_file.display().to_string(),
    ];
    let args = own.into_iter().chain(args.iter().map(ToString::to_string));
    let env = [("RUST_LOG", "trace"), ("TRUSTED_NAMESPACES", "")];
    bed.another_operator(
        name,
        args,
        env.map(|(name, value)| (name, value.to_owned())),
    )
}

/// Creates a token with these rules, and those that sessions on a node need.
async fn token(bed: &Bed, secret: &str, rules: &[&str], node: &str) -> String {
    let rules = rules.join("\n");
    let rules = format!(
        "{rules}\nnode \"{node}\" {{ policy = \"write\" }}\nsession \"{node}\" {{ policy = \"write\" }}"
    );
    let name = format!("rules-of-{}", &secret[..4]);
    let policy = json!({ "Name": name, "Rules": rules });
    bed.consul().put_json("acl/policy", policy).await;
    let token = json!({ "SecretID": secret, "Policies": [{ "Name": name }] });
    let made = bed.consul().put_json("acl/token", token).await;
    made["AccessorID"].as_str().expect("an id").to_owned()
}

/// Waits until a semaphore is not ready for this reason, with a message that contains all of these words.
async fn refused(semaphore: &Semaphore, reason: &str, words: &[&str]) {
    semaphore.has_condition("Ready", "False", reason).await;
    eventually("the message says why", || async {
        let ready = semaphore.condition("Ready").await;
        let message = ready["message"].as_str().unwrap_or_default().to_owned();
        if words.iter().all(|word| message.contains(word)) {
            Ok(())
        } else {
            Err(message)
        }
    })
    .await;
}

#[tokio::test]
async fn tenants_go_where_they_may_and_no_token_is_shown() {
    let mut tenants = Tenants::start().await;
    let team = tenants.bed.namespace("tenant").await;
    a_namespace_stays_in_its_folder(&tenants, &team).await;
    one_that_is_trusted_does_not(&mut tenants, &team).await;
    a_token_of_its_own_goes_where_consul_lets_it(&mut tenants, &team).await;
    no_token_is_anywhere(&tenants, &team).await;
    let status = tenants.operator.stop().await;
    assert!(status.success(), "{status}");
}

/// A Job that replaces others by this policy of on-contention.
async fn replaces(team: &Namespace, name: &str, policy: &str, hold: bool) -> Job {
    let job = team.job(name).semaphore("db").runs("1h");
    let job = job.annotation(ON_CONTENTION, policy);
    let job = if hold { job.hold() } else { job };
    job.create().await
}

/// Whoever may make a `ConsulSemaphore` may name the lock key of another namespace. What it may do there decides.
#[tokio::test]
async fn a_job_replaces_none_of_a_namespace_whose_slots_it_could_not_have() {
    let tenants = Tenants::start().await;
    let team = tenants.bed.namespace("replaced").await;
    let db = team.semaphore("db").limit(1).create().await;
    let runs = replaces(&team, "runs", "ReplaceRunning", false).await;
    runs.is_running().await;
    // Of the same second, the name decides which one is newer.
    let older = replaces(&team, "a-older", "ReplaceWaiting", true).await;
    let newer = replaces(&team, "b-newer", "ReplaceWaiting", true).await;

    // The operator refuses this prefix. The Job there is the newest of all that name the lock key.
    let outsider = tenants.bed.namespace("outsider").await;
    let refused_db = outsider.semaphore("db").limit(1).prefix(&db.lock_prefix());
    let refused_db = refused_db.create().await;
    refused(&refused_db, "PrefixNotAllowed", &[&db.lock_prefix()]).await;
    let newest = replaces(&outsider, "newest", "ReplaceRunning", false).await;
    newest.has_event("SlotWaiting").await;
    for job in [&older, &newer] {
        job.annotate("consul-semaphore.io/hold", None).await;
    }
    let note = older.has_event("Superseded").await;
    assert!(note.contains("/b-newer"), "{note}");
    older.is_failed().await;

    // This one may read the lock key, and make sessions. No slot is free, so nothing shows that it can't write.
    let reader = tenants.bed.namespace("reader").await;
    let rule = format!(
        "key_prefix \"{}/\" {{ policy = \"read\" }}",
        db.lock_prefix()
    );
    let of_sessions = format!("{}:{}", tenants.node, reader.name());
    token(&tenants.bed, FIRST, &[&rule], &of_sessions).await;
    let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/config/token-secret");
    reader.kubectl(["apply", "-k", manifests]).await;
    put_secret(&reader, json!({ "token": FIRST })).await;
    let reads = reader.semaphore("db").limit(1).prefix(&db.lock_prefix());
    let reads = reads.spec(json!({ "consul": { "tokenSecretRef": { "name": "consul-token" } } }));
    let reads = reads.create().await;
    reads.is_ready().await;
    let of_reader = replaces(&reader, "newest", "ReplaceRunning", false).await;
    of_reader.has_event("SlotWaiting").await;
    reads.shows(json!({ "held": 1, "waiting": 1 })).await;

    // A Job of its own namespace does replace them.
    newer.is_waiting().await;
    let third = replaces(&team, "third", "ReplaceRunning", false).await;
    for (job, event) in [(&newer, "Superseded"), (&runs, "Replaced")] {
        let note = job.has_event(event).await;
        assert!(note.contains(&format!("{}/third", team.name())), "{note}");
    }
    third.is_running().await;
    for job in [&newest, &of_reader] {
        job.is_waiting().await;
    }
    let status = tenants.operator.stop().await;
    assert!(status.success(), "{status}");
}

async fn a_namespace_stays_in_its_folder(tenants: &Tenants, team: &Namespace) {
    let ns = team.name();
    let folder = format!("semaphores/{ns}");
    let mut refusals = Vec::new();
    for (name, prefix) in [
        ("shared", format!("shared/{ns}")),
        ("sibling", format!("{folder}-b/db")),
        ("itself", folder.clone()),
        ("capitals", format!("Semaphores/{ns}/db")),
        ("dotted", format!("{folder}.x/db")),
        ("other", "semaphores/default/db".to_owned()),
        ("all", "semaphores".to_owned()),
    ] {
        let semaphore = team.semaphore(name).prefix(&prefix).create().await;
        let job = team.job(name).semaphore(name).create().await;
        refusals.push((semaphore, job, prefix));
    }
    // Anything that could lead out of it on the way to Consul is not a valid prefix.
    for tail in [
        "../default/db",
        "./db",
        "/db",
        "a//b",
        "..",
        "%2e%2e/default/db",
        "..%2fdefault/db",
        "a%2Fb",
        "a\\b",
        "db/",
        "a/.lock",
        "a?keys",
        "a#b",
        "a\u{0}b",
        "\u{ff0e}\u{ff0e}/default/db",
    ] {
        let semaphore = team.semaphore("trick").prefix(&format!("{folder}/{tail}"));
        let refusal = semaphore.try_create().await.expect_err(tail);
        assert!(
            format!("{refusal:#}").contains("spec.prefix"),
            "{refusal:#}"
        );
    }
    for (semaphore, job, prefix) in &refusals {
        let allowed = format!("{folder}/");
        refused(
            semaphore,
            "PrefixNotAllowed",
            &[prefix, &allowed, "--trusted-namespaces"],
        )
        .await;
        job.is_waiting().await;
        // It waits until somebody acts.
        let note = warning(job, "SlotWaiting").await;
        assert!(note.contains("--trusted-namespaces"), "{note}");
    }
    for (name, prefix) in [("plain", None), ("deep", Some(format!("{folder}/a/b")))] {
        let semaphore = team.semaphore(name).spec(json!({ "prefix": prefix }));
        semaphore.create().await.is_ready().await;
        let job = team.job(name).semaphore(name).create().await;
        job.is_complete().await;
        job.has_event("SlotReleased").await;
    }
    // The operator has a key of its own.
    let own = "service/consul-semaphore-operator/";
    let outside = |key: &String| !key.starts_with(&format!("{folder}/")) && !key.starts_with(own);
    assert_eq!(tenants.keys().await.into_iter().find(outside), None);
    let requests = consul_log(&tenants.bed);
    assert!(
        requests.contains(&format!("/v1/kv/{folder}/deep/"))
            || requests.contains(&format!("/v1/kv/{folder}/a/b/"))
    );
    for (semaphore, job, prefix) in &refusals {
        assert!(
            !requests.contains(&format!("/v1/kv/{prefix}/?")),
            "{prefix} was read"
        );
        job.is_waiting().await;
        if semaphore.name() != "shared" {
            semaphore.delete().await;
            semaphore.is_gone().await;
        }
    }
}

/// Consul's log, which contains every request.
fn consul_log(bed: &Bed) -> String {
    fs::read_to_string(bed.folder().path().join("consul.log")).expect("Consul's log")
}

async fn one_that_is_trusted_does_not(tenants: &mut Tenants, team: &Namespace) {
    let trusted = format!("infra,{}", team.name());
    tenants
        .restart("trusting", &["--trusted-namespaces", &trusted])
        .await;
    team.semaphore("shared").is_ready().await;
    team.job("shared").is_complete().await;
    team.job("shared").has_event("SlotReleased").await;

    // No longer trusted.
    let lasting = team.job("lasting").semaphore("shared").create().await;
    lasting.is_complete().await;
    tenants.restart("confined-again", &[]).await;
    refused(&team.semaphore("shared"), "PrefixNotAllowed", &["shared/"]).await;
    team.semaphore("shared").delete().await;
    team.semaphore("shared").is_gone().await;
}

/// Writes the Secret that the semaphores of the namespace refer to.
async fn put_secret(team: &Namespace, data: Value) {
    let metadata = json!({ "name": "consul-token" });
    let secret =
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data });
    // Recreated, so that old keys are removed.
    team.kubectl(["delete", "secret", "consul-token", "--ignore-not-found"])
        .await;
    team.apply(secret).await;
}

async fn a_token_of_its_own_goes_where_consul_lets_it(tenants: &mut Tenants, team: &Namespace) {
    let bed = &tenants.bed;
    let consul = bed.consul();
    let prefix = format!("payments/{}", team.name());
    let rule = format!("key_prefix \"{prefix}/\" {{ policy = \"write\" }}");
    let node = format!("{}:{}", tenants.node, team.name());
    let accessor = token(bed, FIRST, &[&rule], &node).await;
    token(bed, SECOND, &[&rule], &node).await;

    let reference = json!({ "tokenSecretRef": { "name": "consul-token" } });
    let db = team
        .semaphore("db")
        .prefix(&prefix)
        .spec(json!({ "consul": reference }));
    let db = db.create().await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;

    // Reading Secrets is off until it is allowed for the namespace.
    let allow = "config/token-secret";
    refused(
        &db,
        "TokenNotFound",
        &["may not read the Secret consul-token", allow],
    )
    .await;
    let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/config/token-secret");
    team.kubectl(["apply", "-k", manifests]).await;
    refused(
        &db,
        "TokenNotFound",
        &["there is no Secret consul-token", "create it"],
    )
    .await;
    put_secret(team, json!({ "other": FIRST })).await;
    refused(&db, "TokenNotFound", &["has no key token"]).await;
    put_secret(team, json!({ "token": "\n" })).await;
    refused(&db, "TokenNotFound", &["holds no token"]).await;
    put_secret(team, json!({ "token": BROKEN })).await;
    refused(
        &db,
        "TokenNotFound",
        &["holds characters that no token has"],
    )
    .await;
    put_secret(team, json!({ "token": UNKNOWN })).await;
    refused(
        &db,
        "PermissionDenied",
        &[
            "ACL not found",
            "Consul does not know the token of the Secret consul-token",
        ],
    )
    .await;
    a.has_event("SlotWaiting").await;
    a.is_waiting().await;
    assert_eq!(consul.list(&prefix).await, []);

    // With a line break at the end, as `kubectl create secret --from-file` may store it.
    put_secret(team, json!({ "token": format!("{FIRST}\n") })).await;
    a.is_running().await;
    db.is_ready().await;
    let session = a.session().await.expect("a session");
    let its_node = |sessions: Vec<Value>| {
        let session = sessions
            .into_iter()
            .find(|found| found["ID"] == session.as_str());
        session.map(|session| session["Node"].clone())
    };
    assert_eq!(its_node(consul.sessions().await), Some(json!(node)));

    other_tokens(tenants, team, &db, &a, (&rule, &accessor)).await;
    let consul = tenants.bed.consul();

    // The Secret is deleted, as with the namespace; the last token is used to clean up.
    team.kubectl(["delete", "secret", "consul-token"]).await;
    db.delete().await;
    a.delete().await;
    db.is_gone().await;
    eventually("nothing is left in Consul", || async {
        same(consul.list(&prefix).await, vec![])
    })
    .await;
}

/// Another token, and another reference, replace the first while `a` runs: `rule` is what each of them may do,
/// `first` the accessor of the first.
async fn other_tokens(
    tenants: &mut Tenants,
    team: &Namespace,
    db: &Semaphore,
    a: &Job,
    (rule, first): (&str, &str),
) {
    let bed = &tenants.bed;
    let node = format!("{}:{}", tenants.node, team.name());
    let session = a.session().await.expect("a session");

    // The first one is revoked.
    db.set_limit(2).await;
    put_secret(team, json!({ "token": SECOND })).await;
    bed.consul_tool(["acl", "token", "delete", "-accessor-id", first])
        .await;
    let b = team.job("b").semaphore("db").create().await;
    b.is_complete().await;
    b.has_event("SlotReleased").await;
    a.is_running().await;
    assert_eq!(
        a.session().await.as_ref(),
        Some(&session),
        "it kept its slot"
    );

    // Another reference: a holder continues with the token that it has, and after a restart with the new one, whose
    // sessions are on the same node.
    token(bed, THIRD, &[rule], &node).await;
    put_secret(team, json!({ "token": SECOND, "other": THIRD })).await;
    let reference = json!({ "name": "consul-token", "key": "other" });
    db.patch(json!({ "spec": { "consul": { "tokenSecretRef": reference } } }))
        .await;
    db.is_ready().await;
    tenants.restart("other-token", &[]).await;
    let c = team.job("c").semaphore("db").create().await;
    c.is_complete().await;
    c.has_event("SlotReleased").await;
    eventually("its session is renewed", || async {
        let page = tenants.operator.get("/metrics").await;
        same(metric(&page, "sessions"), Some(1.0))
    })
    .await;
    a.is_running().await;
    assert_eq!(
        a.session().await.as_ref(),
        Some(&session),
        "it kept its slot"
    );
}

async fn no_token_is_anywhere(tenants: &Tenants, team: &Namespace) {
    let (bed, operator) = (&tenants.bed, &tenants.operator);
    let objects = bed
        .kubectl(["get", "csem,jobs,pods,events", "-A", "-o", "json"])
        .await;
    let mut texts = vec![
        ("the objects", objects),
        ("the events", team.kubectl(["events"]).await),
        ("the metrics", operator.get("/metrics").await),
        ("readyz", operator.get("/readyz").await),
    ];
    for name in ["confined", "trusting", "confined-again", "other-token"] {
        let log = bed.folder().path().join(format!("{name}.log"));
        let log = fs::read_to_string(log).expect("a log");
        // Libraries log everything, too.
        assert!(log.contains("TRACE"), "{name}");
        texts.push((name, log));
    }
    for (what, text) in texts {
        assert!(!text.is_empty(), "{what}");
        for token in [OWN, FIRST, SECOND, THIRD, UNKNOWN, BROKEN, MANAGEMENT] {
            // Not even the unique part of the token, nor its encoded form in Secrets.
            let encoded = BASE64_STANDARD.encode(&token[..12]);
            for marked in [&token[..13], &encoded] {
                assert!(!text.contains(marked), "{marked} is in {what}");
            }
        }
    }
}
