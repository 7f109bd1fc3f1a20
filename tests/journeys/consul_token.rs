//! The operator's token in a Consul that denies by default: what it needs, and what is reported when something is
//! missing.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use testbed::{
    Bed, Consul, Namespace, Operator, Semaphore, eventually,
    helpers::{cluster_id, documented_rules, metric},
    same,
};

const MANAGEMENT: &str = "00000000-1111-4222-8333-444444444444";
/// A token that Consul does not know, until the end.
const UNKNOWN: &str = "0bad0bad-1111-4222-8333-444444444444";
/// The operator's own.
const OWN: &str = "5ec2e75e-1111-4222-8333-444444444444";

/// What the operator needs according to the documentation, and no more: keys, node, sessions, its own key.
fn tight(cluster_id: &str) -> [String; 4] {
    let names = [("72ae35f8-3282-451b-b1ca-51957e931009", cluster_id)];
    let rules = documented_rules("operator.hcl", &names);
    rules.try_into().expect("four rules")
}

/// A bed whose Consul denies by default, with a policy that can be changed at any time.
struct Access {
    bed: Bed,
    operator: Operator,
    policy: String,
    token_file: PathBuf,
    /// The lines of the tight policy.
    tight: [String; 4],
}

impl Access {
    async fn start() -> Self {
        let bed = Bed::builder()
            .consul(Consul::builder().acls(MANAGEMENT))
            .without_operator()
            .start()
            .await;
        let tight = tight(&cluster_id(&bed).await);
        let rules = json!({ "Name": "operator", "Rules": tight.join("\n") });
        let policy = bed.consul().put_json("acl/policy", rules).await;
        let token = json!({ "SecretID": OWN, "Policies": [{ "Name": "operator" }] });
        bed.consul().put_json("acl/token", token).await;
        let token_file = bed.folder().path().join("consul-token");
        fs::write(&token_file, UNKNOWN).expect("the token's file");
        let args = ["--log-format", "json", "--consul-token-file"].map(str::to_owned);
        let args = args.into_iter().chain([token_file.display().to_string()]);
        let filter = "info,consul_semaphore_operator=trace".to_owned();
        let operator = bed.another_operator("tight", args, [("RUST_LOG", filter)]);
        operator.start().await;
        Self {
            operator,
            policy: policy["ID"].as_str().expect("the policy's id").to_owned(),
            bed,
            token_file,
            tight,
        }
    }

    /// Sets the rules of the token's policy.
    async fn allow(&self, rules: &[String]) {
        let path = format!("acl/policy/{}", self.policy);
        let rules = json!({ "Name": "operator", "Rules": rules.join("\n") });
        self.bed.consul().put_json(&path, rules).await;
    }

    /// The operator's log, line by line.
    fn log(&self) -> Vec<Value> {
        let logs = self.operator.logs();
        let lines = logs.lines().map(|line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))
        });
        lines.collect()
    }

    /// How many lines the log has at the default level.
    fn plain_lines(&self) -> usize {
        let loud = |line: &&Value| line["level"] != "DEBUG" && line["level"] != "TRACE";
        self.log().iter().filter(loud).count()
    }
}

/// Waits until a semaphore is not ready because a rule is missing, and reports it.
pub(crate) async fn denied(semaphore: &Semaphore, rule: &str) {
    for kind in ["Ready", "ConsulReachable"] {
        semaphore
            .has_condition(kind, "False", "PermissionDenied")
            .await;
    }
    eventually("the missing rule is named", || async {
        let ready = semaphore.condition("Ready").await;
        let message = ready["message"].as_str().unwrap_or_default();
        if message.contains(rule) {
            Ok(())
        } else {
            Err(message.to_owned())
        }
    })
    .await;
}

#[tokio::test]
async fn a_token_that_lacks_something_is_reported_and_heals() {
    let access = Access::start().await;
    let bed = &access.bed;
    let team = bed.namespace("token").await;

    // Consul does not know the token until its file has another one.
    let db = team.semaphore("db").limit(2).create().await;
    let first = team.job("first").semaphore("db").create().await;
    // Several, because each of them checks the file while the others do.
    let mut crowd = Vec::new();
    for number in 0..12 {
        crowd.push(team.semaphore(&format!("crowd-{number}")).create().await);
    }
    for semaphore in crowd.iter().chain([&db]) {
        denied(semaphore, "ACL not found").await;
    }
    first.has_event("SlotWaiting").await;
    fs::write(&access.token_file, OWN).expect("the token's file");
    // The tight policy is sufficient.
    first.is_complete().await;
    first.has_event("SlotReleased").await;
    for semaphore in crowd.iter().chain([&db]) {
        semaphore.is_ready().await;
    }

    // Each line of the log is an object with the facts at its top level.
    let session = first.session().await.expect("its session");
    for word in ["granted", "released"] {
        let of_first = |line: &Value| {
            line["message"] == word
                && line["level"] == "INFO"
                && line["workload"] == format!("{}/first", team.name())
                && line["semaphore"] == format!("{}/db", team.name())
                && line["session"] == session.as_str()
        };
        let lines = access.log();
        assert_eq!(lines.iter().filter(|line| of_first(line)).count(), 1);
    }

    a_rule_is_missing(&access, &team, &db).await;
    a_prefix_is_out_of_reach(&access, &team, &db).await;
    nothing_is_said_while_nothing_happens(&access, &team).await;
    no_token_is_anywhere(&access, &team).await;
    let status = access.operator.stop().await;
    assert!(status.success(), "{status}");
}

async fn a_rule_is_missing(access: &Access, team: &Namespace, db: &Semaphore) {
    let [keys, node, sessions, _] = &access.tight;
    let running = team.job("running").semaphore("db").runs("1h");
    let running = running.create().await;
    running.is_running().await;
    let session = running.session().await;

    access.allow(&[keys.clone(), node.clone()]).await;
    let second = team.job("second").semaphore("db").create().await;
    denied(db, "session:write").await;
    second.has_event("SlotWaiting").await;
    second.is_waiting().await;
    access.allow(&access.tight).await;
    second.is_complete().await;
    db.is_ready().await;

    access.allow(&[sessions.clone(), node.clone()]).await;
    let third = team.job("third").semaphore("db").create().await;
    denied(db, "key:").await;
    let readable = keys.replace("write", "read");
    access
        .allow(&[readable, sessions.clone(), node.clone()])
        .await;
    denied(db, "key:write").await;
    third.has_event("SlotWaiting").await;
    third.is_waiting().await;
    access.allow(&access.tight).await;
    third.is_complete().await;
    db.is_ready().await;

    running.is_running().await;
    assert_eq!(running.session().await, session, "it went on all the time");
}

async fn a_prefix_is_out_of_reach(access: &Access, team: &Namespace, db: &Semaphore) {
    let far = team.semaphore("far").prefix("elsewhere/far").create().await;
    let job = team.job("far").semaphore("far").create().await;
    denied(&far, "elsewhere/far").await;
    job.has_event("SlotWaiting").await;
    job.is_waiting().await;
    db.is_ready().await;
    let mut rules = access.tight.to_vec();
    rules.push(r#"key_prefix "elsewhere/" { policy = "write" }"#.to_owned());
    access.allow(&rules).await;
    job.is_complete().await;
    job.has_event("SlotReleased").await;
    far.is_ready().await;
}

async fn nothing_is_said_while_nothing_happens(access: &Access, team: &Namespace) {
    let quick = team.semaphore("quick").ttl("10s").create().await;
    let job = team.job("held").semaphore("quick").runs("1h").grace(1);
    job.create().await.is_running().await;
    quick.shows(json!({ "held": 1, "heldHere": 1 })).await;
    let calls = |kind: &'static str| {
        let operator = &access.operator;
        async move {
            let calls = format!("consul_calls_total{{kind=\"{kind}\",result=\"ok\"}}");
            metric(&operator.get("/metrics").await, &calls).unwrap_or_default()
        }
    };
    // Again if a busy machine caused some lines.
    eventually("nothing is said meanwhile", || async {
        let before = access.plain_lines();
        let (renewals, readings) = (calls("session_renew").await, calls("kv_watch").await);
        eventually("sessions are renewed and prefixes read again", || async {
            let enough = calls("session_renew").await >= renewals + 3.0
                && calls("kv_watch").await >= readings + 3.0;
            same(enough, true)
        })
        .await;
        same(access.plain_lines(), before).map_err(|_| format!("{:?}", access.log()))
    })
    .await;
}

async fn no_token_is_anywhere(access: &Access, team: &Namespace) {
    let objects = team
        .kubectl(["get", "csem,jobs,pods,events", "-o", "json"])
        .await;
    let metrics = access.operator.get("/metrics").await;
    let readyz = access.operator.get("/readyz").await;
    for (what, text) in [
        ("the objects", objects),
        ("the metrics", metrics),
        ("readyz", readyz),
        ("the log", access.operator.logs()),
    ] {
        assert!(!text.is_empty(), "{what}");
        for token in [OWN, UNKNOWN, MANAGEMENT] {
            assert!(!text.contains(token), "{token} is in {what}");
        }
    }
}
