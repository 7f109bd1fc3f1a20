//! What a holder does with what the engine and Consul say, without a Consul.

use std::sync::{Arc, mpsc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;
use wiremock::{
    Mock, MockServer, ResponseTemplate,
    matchers::{any, path},
};

use super::*;
use crate::{
    Mode, Prefix, Restrictions,
    plan::{GiveBack, Rename, Suspend, Target},
    samples,
};
use consul_client::{Entry, SessionId};

fn prefix(name: &str) -> Prefix {
    name.parse().unwrap()
}

/// A program that asks for slots of `a` and `b`, and has not asked Consul yet.
fn holder() -> Holder {
    let semaphore = |name| SlotsOf {
        prefix: prefix(name),
        mode: Mode::Semaphore,
        period: None,
        limit: 2,
        slots: 1.try_into().unwrap(),
        restrictions: Restrictions::default(),
    };
    let settings = samples::program(Request::new(vec![semaphore("a"), semaphore("b")]).unwrap());
    let consul = Client::new(consul::Config::default()).unwrap();
    Holder::new(settings, consul, |_| {})
}

impl Holder {
    fn target(&self) -> Target {
        Target::from(&self.program.workload)
    }

    fn writes(&mut self, number: u64, at: &str, write: Write) -> Option<Written> {
        self.write(&prefix(at), CallId::sample(number), write, None)
    }
}

fn give_back(workload: Target, session: &str) -> Write {
    Write::GiveBack(GiveBack {
        workload,
        sessions: vec![session.into()],
        hold: false,
        began: None,
    })
}

#[tokio::test]
async fn a_part_that_is_given_back_makes_what_was_decided_before_outdated() {
    let mut holder = holder();
    let before = holder.target();
    let done = holder.writes(1, "a", give_back(before.clone(), "s"));
    assert!(matches!(done, Some(Written::Done)), "{done:?}");
    assert_eq!(holder.program.workload.reported, [SessionId::from("s")]);
    assert!(matches!(holder.program.proof(), Answer::Proof(Ok((_, left))) if left.is_empty()));
    for write in [
        give_back(before.clone(), "t"),
        Write::Rename(Rename {
            workload: before,
            sessions: vec!["t".into()],
        }),
    ] {
        let outdated = holder.writes(2, "b", write);
        assert!(
            matches!(outdated, Some(Written::Outdated(Some(_)))),
            "{outdated:?}"
        );
    }
    assert_eq!(holder.program.workload.reported, [SessionId::from("s")]);
}

#[tokio::test]
async fn the_first_slot_that_is_lost_ends_the_work() {
    let mut holder = holder();
    holder.change(|workload| workload.phase = Phase::Running);
    let suspend = |holder: &Holder, why| {
        Write::Suspend(Suspend::new(&Arc::clone(&holder.program.workload), why))
    };
    let (lost, unproved) = (
        suspend(&holder, Suspended::SlotLost),
        suspend(&holder, Suspended::Unproved),
    );
    assert!(holder.writes(1, "b", lost).is_none());
    // Decided in the same moment, on the same version.
    assert!(matches!(
        holder.writes(2, "a", unproved),
        Some(Written::Done)
    ));
    let wanted = holder.wanted.take().map(|(_, wanted)| wanted);
    let Some(WantedChange::Stop(lost)) = wanted else {
        panic!("{wanted:?}");
    };
    assert_eq!(lost.prefix, prefix("b"));
    assert_eq!(lost.why, Suspended::SlotLost);
}

/// A Consul with this at the prefix `a`, which answers nothing else.
async fn consul_with(entries: &[Entry]) -> MockServer {
    let wire = entries.iter().map(|entry| {
        json!({
            "Key": entry.key,
            "Value": BASE64_STANDARD.encode(&entry.value),
            "Flags": entry.flags,
            "Session": entry.session,
            "LockIndex": entry.lock_index,
            "CreateIndex": entry.create_index,
            "ModifyIndex": entry.modify_index,
        })
    });
    let server = MockServer::start().await;
    let listing = ResponseTemplate::new(200)
        .insert_header("X-Consul-Index", "9")
        .set_body_json(wire.collect::<Vec<_>>());
    Mock::given(path("/v1/kv/a/"))
        .respond_with(listing)
        .mount(&server)
        .await;
    let silence = ResponseTemplate::new(200).set_delay(Duration::from_hours(1));
    Mock::given(any())
        .respond_with(silence)
        .mount(&server)
        .await;
    server
}

/// A program that asks for a slot of `a`, which has two, and has read who holds them and who waits; and what it was
/// told.
async fn after_its_first_reading(holders: &[&str], waiting: &[&str]) -> (Holder, Vec<Notice>) {
    let names: Vec<_> = holders
        .iter()
        .map(|name| format!("\"{name}\":true"))
        .collect();
    let body = format!(r#"{{"Limit":2,"Holders":{{{}}}}}"#, names.join(","));
    let all = holders.iter().chain(waiting);
    let contenders = all.map(|name| samples::entry(&format!("a/{name}"), Some(name), ""));
    let entries: Vec<_> = contenders
        .chain([samples::entry("a/.lock", None, &body)])
        .collect();
    let server = consul_with(&entries).await;
    let consul = Client::new(consul::Config {
        addresses: vec![server.uri().parse().unwrap()],
        ..consul::Config::default()
    });
    let (tell, told) = mpsc::channel();
    let request = Request::one(prefix("a"), Mode::Semaphore, 2).unwrap();
    let settings = samples::program(request);
    let mut holder = Holder::new(settings, consul.unwrap(), move |notice| {
        tell.send(notice).unwrap();
    });
    let known = async {
        while !holder.views().all(|view| view.is_known()) {
            holder.something().await;
            holder.work();
            holder.report_waiting();
        }
    };
    tokio::time::timeout(Duration::from_mins(1), known)
        .await
        .unwrap();
    let told = told.try_iter().filter(|notice| *notice != Notice::Near);
    (holder, told.collect())
}

#[tokio::test]
async fn a_free_slot_beside_a_holder_is_not_taken() {
    let (holder, told) = after_its_first_reading(&["h"], &[]).await;
    assert_eq!(told, []);
    let why = holder.why_waiting();
    assert!(matches!(why, AcquireError::Unreachable(_)), "{why:?}");
}

#[tokio::test]
async fn a_free_slot_is_taken_for_one_who_comes_after_others() {
    // Of another program, whose contenders say no place: the first who came is the first who is served.
    let (holder, told) = after_its_first_reading(&["h"], &["w"]).await;
    let [Notice::Waiting(missing)] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(missing.holders, "other clients are ahead in the queue");
    let why = holder.why_waiting();
    assert!(matches!(why, AcquireError::Taken(_)), "{why:?}");
}

#[tokio::test]
async fn slots_that_others_hold_are_taken() {
    let (holder, told) = after_its_first_reading(&["h", "i"], &[]).await;
    assert!(matches!(told[..], [Notice::Waiting(_)]), "{told:?}");
    assert!(matches!(holder.why_waiting(), AcquireError::Taken(_)));
}
