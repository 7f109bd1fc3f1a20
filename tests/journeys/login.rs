//! An operator without a token, which logs in to Consul with the token of its `ServiceAccount`.

use std::{fs, path::PathBuf};

use serde_json::Value;
use testbed::{
    AuthMethod, Bed, Consul, Operator, eventually,
    helpers::{cluster_id, documented_rules, metric},
    proof::{holders_are, is_given_back, nothing_is_left, running_pods, runs_in_a_slot},
    same,
};

const MANAGEMENT: &str = "00000000-1111-4222-8333-444444444444";
/// The operator's account.
const ACCOUNT: [&str; 2] = ["consul-semaphore-system", "consul-semaphore-operator"];

/// A Consul that denies by default, and gives tokens to the operator's account.
struct House {
    bed: Bed,
    by: AuthMethod,
    bearer: String,
    bearer_token_file: PathBuf,
}

impl House {
    async fn open(by: AuthMethod, lifetime: Option<&str>) -> Self {
        let bed = Bed::builder()
            .consul(Consul::builder().acls(MANAGEMENT))
            .without_operator()
            .start()
            .await;
        let cluster = [(
            "72ae35f8-3282-451b-b1ca-51957e931009",
            &*cluster_id(&bed).await,
        )];
        let rules = ["operator.hcl", "election.hcl"].map(|file| documented_rules(file, &cluster));
        let server = bed.kubernetes().expect("the bed's own");
        server.auth_method(bed.consul(), by, lifetime).await;
        let rules = rules.concat().join("\n");
        server.let_log_in(bed.consul(), by, ACCOUNT, &rules).await;
        let bearer = server.bearer_token(by, ACCOUNT).await;
        let bearer_token_file = bed.folder().path().join("bearer");
        fs::write(&bearer_token_file, &bearer).expect("the bearer token's file");
        Self {
            bed,
            by,
            bearer,
            bearer_token_file,
        }
    }

    /// An operator with a full log.
    fn guest(&self, name: &str, election: &str) -> Operator {
        let file = self.bearer_token_file.display().to_string();
        let args = [
            "--consul-auth-method",
            self.by.name(),
            "--consul-bearer-token-file",
            &file,
            "--consul-login-meta",
            &format!("replica={name}"),
            "--leader-election",
            election,
        ];
        // It has no token of its own.
        let env = [("CONSUL_HTTP_TOKEN", ""), ("RUST_LOG", "trace")];
        self.bed.another_operator(
            name,
            args,
            env.map(|(name, value)| (name, value.to_owned())),
        )
    }

    /// The tokens of a replica in Consul: accessors and secrets.
    async fn tokens_of(&self, replica: &str) -> Vec<(String, String)> {
        let tokens = self.bed.consul().get("acl/tokens").await;
        let of = format!(r#""replica":"{replica}""#);
        let text =
            |token: &Value, field: &str| token[field].as_str().unwrap_or_default().to_owned();
        let tokens = tokens.as_array().into_iter().flatten();
        let tokens = tokens.filter(|token| {
            token["AuthMethod"] == self.by.name() && text(token, "Description").contains(&of)
        });
        tokens
            .map(|token| (text(token, "AccessorID"), text(token, "SecretID")))
            .collect()
    }

    /// Waits until a replica has exactly one token, different from this one; returns it.
    async fn has_another(&self, replica: &str, before: &(String, String)) -> (String, String) {
        eventually("it has another token", || async {
            let tokens = self.tokens_of(replica).await;
            match &*tokens {
                [token] if token != before => Ok(token.clone()),
                _ => Err(format!("{} tokens", tokens.len())),
            }
        })
        .await
    }
}

/// Waits until the operator has renewed sessions this many more times.
async fn renews(operator: &Operator, more: f64) {
    let name = r#"consul_calls_total{kind="session_renew",result="ok"}"#;
    let count = async || metric(&operator.get("/metrics").await, name).unwrap_or_default();
    let before = count().await;
    eventually("sessions are renewed", || async {
        same(count().await >= before + more, true)
    })
    .await;
}

#[tokio::test]
async fn an_operator_replaces_a_lost_login_token_and_deletes_its_own_at_the_end() {
    let house = House::open(AuthMethod::Kubernetes, None).await;
    let operator = house.guest("guest", "off");
    operator.start().await;
    let bed = &house.bed;
    let team = bed.namespace("login").await;
    // After three failed renewals its slot is lost.
    let db = team.semaphore("db").limit(2).ttl("10s").create().await;
    team.job("first")
        .semaphore("db")
        .create()
        .await
        .is_complete()
        .await;
    let a = team.job("a").semaphore("db").runs("1h").grace(1);
    let a = a.create().await;
    let grant = runs_in_a_slot(bed, &db, &a).await;
    let pods = running_pods(&a).await;

    let first = house.tokens_of("guest").await.pop().expect("a token");
    bed.consul()
        .delete_at(&format!("acl/token/{}", first.0))
        .await;
    let second = house.has_another("guest", &first).await;
    renews(&operator, 3.0).await;
    let b = team.job("b").semaphore("db").create().await;
    b.is_complete().await;
    b.has_event("SlotReleased").await;
    holders_are(bed, &db, [&grant]).await;
    assert_eq!(running_pods(&a).await, pods, "it was never stopped");
    db.is_ready().await;
    let log = operator.logs();
    assert!(!log.contains("PermissionDenied") && !log.contains("not ready"));

    a.delete().await;
    is_given_back(bed, &db, &grant).await;
    db.delete().await;
    db.is_gone().await;
    let status = operator.stop().await;
    assert!(status.success(), "{status}");
    assert_eq!(house.tokens_of("guest").await, []);
    let objects = team
        .kubectl(["get", "csem,jobs,events", "-o", "json"])
        .await;
    for (what, text) in [("the log", operator.logs()), ("the objects", objects)] {
        assert!(what != "the log" || text.contains("TRACE"));
        for secret in [&first.1, &second.1, &house.bearer] {
            assert!(!text.contains(&**secret), "a secret is in {what}");
        }
    }
}

#[tokio::test]
async fn replicas_log_in_each_for_itself_and_exchange_their_tokens_in_time() {
    let house = House::open(AuthMethod::Jwt, Some("60s")).await;
    let [a, b] = ["a", "b"].map(|name| house.guest(name, "consul"));
    a.start().await;
    b.start().await;
    let team = house.bed.namespace("logins").await;
    let db = team.semaphore("db").limit(1).create().await;
    let job = team.job("long").semaphore("db").runs("1h").create().await;
    let grant = runs_in_a_slot(&house.bed, &db, &job).await;
    let pods = running_pods(&job).await;
    let of_b = house.tokens_of("b").await.pop().expect("b has a token");

    // The leader ends; the other takes the slot over, with its own token.
    let status = a.stop().await;
    assert!(status.success(), "{status}");
    assert_eq!(house.tokens_of("a").await, []);
    renews(&b, 1.0).await;
    house.has_another("b", &of_b).await;
    renews(&b, 1.0).await;
    holders_are(&house.bed, &db, [&grant]).await;
    assert_eq!(running_pods(&job).await, pods, "it was never stopped");
    job.delete().await;
    nothing_is_left(&house.bed, &team, &db).await;
    let status = b.stop().await;
    assert!(status.success(), "{status}");
    assert_eq!(house.tokens_of("b").await, []);
}
