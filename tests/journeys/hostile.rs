//! Somebody who may write to Consul with bad intentions: nothing is wrongly started, stopped or released, and the
//! operator's output stays readable.

use serde_json::{Value, json};
use testbed::{
    Bed, Entry, Namespace, SEMAPHORE_FLAGS, Semaphore, eventually, helpers::cluster_id, same,
};

/// As much as Consul accepts in one value, minus the length of the key.
const LARGEST: usize = 512 * 1024;

/// Text that would end a line of a log, clear a terminal and reverse its text.
const ESCAPES: &str = "x\r\n2026-01-01T00:00:00Z  INFO forged\u{1b}[2J\u{0}\u{202e}";

/// Entries of `Holders` that are not sessions, but text that a shell would run.
const NO_SESSIONS: [&str; 2] = ["x;id>PWNED;#", "$(id>PWNED)"];

/// A foreign contender key, locked by its session, with this body.
async fn contend(bed: &Bed, prefix: &str, session: Value, body: impl Into<Vec<u8>>) -> String {
    let consul = bed.consul();
    let session = consul.create_session(session).await;
    let key = format!("{prefix}/{session}");
    consul
        .put_json(
            &format!("kv/{key}?acquire={session}&flags={SEMAPHORE_FLAGS}"),
            json!(null),
        )
        .await;
    consul.put(&key, SEMAPHORE_FLAGS, body).await;
    session
}

/// A body like ours, for any Job.
fn body(cluster: &str, namespace: &str, name: &str, uid: &str, semaphore: &str) -> Value {
    json!({
        "cluster": "prod", "clusterId": cluster, "kind": "Job", "namespace": namespace,
        "name": name, "uid": uid, "semaphore": semaphore, "time": "2026-01-01T00:00:00Z",
    })
}

/// Makes these sessions hold slots.
async fn let_hold(bed: &Bed, prefix: &str, limit: usize, sessions: &[String]) {
    let holders: serde_json::Map<_, _> = sessions
        .iter()
        .map(|session| (session.clone(), json!(true)))
        .collect();
    let lock = json!({ "Limit": limit, "Holders": holders }).to_string();
    let key = format!("{prefix}/.lock");
    bed.consul().put(&key, SEMAPHORE_FLAGS, lock).await;
}

/// The stage: an operator with its own log.
struct Stage {
    bed: Bed,
    cluster: String,
    team: Namespace,
}

#[tokio::test]
async fn hostile_data_in_consul_starts_and_stops_no_job() {
    for format in ["text", "json"] {
        let bed = Bed::builder()
            .operator_args(["--log-format", format])
            .operator_env("RUST_LOG", "trace")
            .start()
            .await;
        let stage = Stage {
            cluster: cluster_id(&bed).await,
            team: bed.namespace("hostile").await,
            bed,
        };
        stage.claims_of_others_move_no_job().await;
        stage.only_sessions_are_shown().await;
        stage.bodies_of_all_kinds_are_left_alone().await;
        stage.what_is_said_stays_readable(format).await;
    }
}

impl Stage {
    async fn claims_of_others_move_no_job(&self) {
        let Self { bed, cluster, team } = self;
        let db = team.semaphore("db").limit(20).create().await;
        db.is_ready().await;
        let prefix = db.lock_prefix();
        let running = team
            .job("running")
            .semaphore("db")
            .runs("1h")
            .create()
            .await;
        running.is_running().await;
        let own = running.session().await.expect("its session");
        let held = team.job("held").semaphore("db").hold().create().await;
        let held_uid = uid(&held).await;
        let running_uid = uid(&running).await;

        // Sessions with our name, on another node; and one on our node with another name.
        let name = |job: &str, uid: &str| {
            format!(
                "consul-semaphore-operator/{cluster}/{}/db/{job}/{uid}",
                team.name()
            )
        };
        let node = format!("k8s-{cluster}");
        let claim = |job: &str, uid: &str| body(cluster, team.name(), job, uid, "db").to_string();
        let sessions = [
            (
                json!({ "Name": name("held", &held_uid) }),
                claim("held", &held_uid),
            ),
            (
                json!({ "Name": name("running", &running_uid) }),
                claim("running", &running_uid),
            ),
            (
                json!({ "Node": node, "NodeChecks": [], "Name": "mine" }),
                claim("held", &held_uid),
            ),
            (
                json!({ "Node": node, "NodeChecks": [], "Name": format!("{}\n/x", name("held", &held_uid)) }),
                claim("gone", "00000000-0000-0000-0000-000000000000"),
            ),
            (
                json!({ "Name": ESCAPES }),
                body(ESCAPES, ESCAPES, ESCAPES, ESCAPES, ESCAPES).to_string(),
            ),
        ];
        let mut others = Vec::new();
        for (mut session, body) in sessions {
            session["Behavior"] = json!("delete");
            others.push(contend(bed, &prefix, session, body).await);
        }
        // A holder that claims to have held since before the calendar began, in a very long text.
        let mut long = body(cluster, &"n".repeat(LARGEST / 4), ESCAPES, "u", "db");
        long["cluster"] = json!(format!("{ESCAPES}{}", "c".repeat(LARGEST / 4)));
        long["time"] = json!("-009999-06-01T00:00:00Z");
        others.push(
            contend(
                bed,
                &prefix,
                json!({ "Behavior": "delete" }),
                long.to_string(),
            )
            .await,
        );
        let deep = "[".repeat(LARGEST / 2 - 1) + &"]".repeat(LARGEST / 2 - 1);
        others.push(contend(bed, &prefix, json!({ "Behavior": "delete" }), deep).await);

        let mut all = others.clone();
        all.push(own.clone());
        let_hold(bed, &prefix, 20, &all).await;
        db.shows(json!({ "held": all.len(), "heldHere": 1 })).await;

        // It continues as if nothing had happened.
        let next = team.job("next").semaphore("db").create().await;
        next.is_complete().await;
        next.has_event("SlotReleased").await;
        held.is_waiting().await;
        running.is_running().await;
        assert_eq!(running.session().await.as_ref(), Some(&own));
        let holders = bed.consul().holders(&prefix).await;
        assert!(
            others.iter().all(|other| holders.contains(other)),
            "{holders:?}"
        );
        let status = db.status().await;
        for holder in status["holders"].as_array().expect("holders") {
            for part in ["kind", "cluster", "namespace", "host", "node", "name"] {
                let shown = holder[part].as_str().unwrap_or_default();
                assert!(
                    shown.chars().count() <= 256 && !shown.chars().any(char::is_control),
                    "{shown}"
                );
            }
        }
        running.finish().await;
        for other in &others {
            bed.consul().destroy_session(other).await;
        }
    }

    /// Entries that are not sessions take slots until they are pruned, and their content is never shown.
    async fn only_sessions_are_shown(&self) {
        let Self { bed, team, .. } = self;
        let rests = json!({ "session": { "lockDelay": "60s" } });
        let strays = team.semaphore("strays").limit(4).spec(rests);
        let strays = strays.create().await;
        strays.is_ready().await;
        let prefix = strays.lock_prefix();
        let session = contend(bed, &prefix, json!({ "Behavior": "delete" }), "").await;
        let mut all = NO_SESSIONS.map(str::to_owned).to_vec();
        all.push(session.clone());
        let_hold(bed, &prefix, 4, &all).await;
        strays.shows(json!({ "held": 3 })).await;
        let status = strays.status().await;
        let holders = status["holders"].as_array().expect("holders").iter();
        let shown: Vec<_> = holders.map(|holder| &holder["session"]).collect();
        assert_eq!(shown, [&json!(session)]);
        for text in NO_SESSIONS {
            assert!(!status.to_string().contains(text), "{status}");
        }
        let available = strays.condition("SlotsAvailable").await;
        let words = "3 of 4 slots are held, 2 of them by entries in Holders that are not sessions";
        assert_eq!(available["message"], words);
    }

    async fn bodies_of_all_kinds_are_left_alone(&self) {
        let Self { bed, team, .. } = self;
        let consul = bed.consul();
        let fill = |body: &str| {
            let most = LARGEST - body.len();
            body.replace("FILL", &"x".repeat(most))
        };
        let half = LARGEST / 2 - 100;
        let deep = "[".repeat(half) + &"]".repeat(half);
        let bodies = [
            ("deep", format!(r#"{{"Limit":1,"Holders":{deep}}}"#)),
            ("large-name", fill(r#"{"Limit":1,"Holders":{"FILL":true}}"#)),
            (
                "escapes",
                json!({ "Limit": 1, "Holders": [ESCAPES] }).to_string(),
            ),
            (
                "huge-limit",
                r#"{"Limit":99999999999999999999,"Holders":{}}"#.to_owned(),
            ),
            (
                "twice",
                r#"{"Limit":1,"Holders":{"a":true},"Holders":{}}"#.to_owned(),
            ),
            (
                "alike",
                r#"{"Limit":1,"Holders":{},"holders":{"a":true}}"#.to_owned(),
            ),
            (
                "other-key",
                r#"{"Limit":1,"Holders":["../../other/.lock"]}"#.to_owned(),
            ),
            ("lock", r#"{"Limit":1,"Holders":[".lock"]}"#.to_owned()),
        ];
        let mut refused: Vec<(Semaphore, Option<Entry>)> = Vec::new();
        for (name, body) in bodies {
            let semaphore = team.semaphore(name);
            let key = format!("{}/.lock", semaphore.lock_prefix());
            consul.put(&key, SEMAPHORE_FLAGS, body).await;
            team.job(name).semaphore(name).create().await;
            refused.push((semaphore.create().await, consul.kv(&key).await));
        }
        for (semaphore, before) in &refused {
            semaphore
                .has_condition("Ready", "False", "LockConflict")
                .await;
            team.job(semaphore.name()).is_waiting().await;
            let key = format!("{}/.lock", semaphore.lock_prefix());
            assert!(consul.kv(&key).await == *before, "{key} was touched");
        }

        // What can be parsed is kept to the last digit.
        let odd = team.semaphore("odd").limit(2);
        let key = format!("{}/.lock", odd.lock_prefix());
        // Written back in a transaction, which accepts less than a single write.
        let half = LARGEST / 8;
        let deep = "[".repeat(half) + &"]".repeat(half);
        let rest = format!(r#""Limit":2,"cost":123456789012345678901234567890.10,"deep":{deep}}}"#);
        let before = format!(r#"{{"Holders":{{}},{rest}"#);
        consul.put(&key, SEMAPHORE_FLAGS, before.clone()).await;
        odd.create().await;
        let job = team.job("odd").semaphore("odd").create().await;
        job.is_complete().await;
        job.has_event("SlotReleased").await;
        let after = consul.kv(&key).await.expect("the key").value;
        assert!(after == before.into_bytes(), "not as it was");
    }

    async fn what_is_said_stays_readable(&self, format: &str) {
        let Self { bed, team, .. } = self;
        let log = bed.operator().logs();
        assert!(!log.contains('\u{fffd}'), "the log is UTF-8");
        for line in log.lines() {
            if format == "json" {
                let parsed = serde_json::from_str::<Value>(line);
                assert!(parsed.is_ok_and(|line| line["level"].is_string()), "{line}");
            } else {
                let dated = line.starts_with("20") && line.as_bytes().get(10) == Some(&b'T');
                assert!(dated && !line.contains("  INFO forged"), "{line}");
            }
            assert!(!line.contains(['\u{1b}', '\u{0}', '\r']), "{line}");
        }
        eventually("its events have one line each", || async {
            let events = team.kubectl(["get", "events", "-o", "json"]).await;
            let events: Value = serde_json::from_str(&events).map_err(|error| error.to_string())?;
            let notes = events["items"].as_array().into_iter().flatten();
            let mut notes = notes.filter_map(|event| event["message"].as_str());
            same(notes.find(|note| note.chars().any(char::is_control)), None).map(drop)
        })
        .await;
        // The rest of the operator works as before.
        let db = team.semaphore("db");
        db.shows(json!({ "held": 0 })).await;
        db.is_ready().await;
    }
}

async fn uid(job: &testbed::Job) -> String {
    let job = job.get().await.expect("the Job");
    job.metadata.uid.expect("its uid")
}
