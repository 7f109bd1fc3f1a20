use axum::body::BodyDataStream;
use futures::StreamExt as _;
use serde_json::{Value, json};
use wiremock::{Mock, MockServer, Request, ResponseTemplate, matchers};

use super::*;
use crate::{
    auth::reviews_by,
    telemetry::Telemetry,
    web::{Shared, guard::Guard, picture::SemaphoreName, places::Places, view::View},
};
use consul_semaphore_api::{ConsulSemaphore, ConsulSemaphoreStatus};

/// An open page, and what it shows.
async fn look() -> (Arc<Shared>, BodyDataStream) {
    look_as(Guard::Open, Pass::Anybody).await
}

async fn look_as(guard: Guard, pass: Pass) -> (Arc<Shared>, BodyDataStream) {
    let picture = Arc::new(Shared::default());
    let app = Arc::new(AppState {
        guard,
        picture: picture.clone(),
        places: Places::default(),
        telemetry: Telemetry::default(),
    });
    let answer = open(app, pass).await.ok().unwrap().into_response();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    (picture, answer.into_body().into_data_stream())
}

fn put(picture: &Shared, called: &str, held: i32) {
    put_in(picture, "batch", called, held);
}

fn put_in(picture: &Shared, namespace: &str, called: &str, held: i32) {
    let semaphore: ConsulSemaphore = serde_json::from_value(json!({
        "apiVersion": "consul-semaphore.io/v1alpha1",
        "kind": "ConsulSemaphore",
        "metadata": { "name": called, "namespace": namespace },
        "spec": { "limit": 9 },
        "status": { "held": held, "holders": [{ "session": "\n\ndata: forged" }] },
    }))
    .unwrap();
    let name = SemaphoreName {
        namespace: namespace.into(),
        name: called.into(),
    };
    let none = ConsulSemaphoreStatus::default();
    let view = View::of(&semaphore, &none);
    picture.send_if_modified(|picture| picture.put(&name, &view, 0));
}

async fn next(events: &mut BodyDataStream) -> (String, Value) {
    let event = events.next().await.unwrap().unwrap();
    let event = String::from_utf8(event.to_vec()).unwrap();
    let lines: Vec<&str> = event.lines().collect();
    let [kind, data, ""] = lines[..] else {
        panic!("two lines and an empty one: {event:?}");
    };
    let kind = kind.strip_prefix("event: ").unwrap();
    let data = serde_json::from_str(data.strip_prefix("data: ").unwrap());
    (kind.to_owned(), data.unwrap())
}

fn held(change: &Value) -> Vec<i64> {
    let semaphores = change["semaphores"].as_array().unwrap().iter();
    semaphores
        .map(|it| it["is"]["held"].as_i64().unwrap())
        .collect()
}

#[tokio::test]
async fn a_page_hears_all_and_then_what_changes() {
    let (picture, mut events) = look().await;
    for number in 0..40 {
        put(&picture, &format!("s-{number:02}"), number);
    }
    let (kind, begin) = next(&mut events).await;
    assert_eq!((kind.as_str(), &begin["user"]), ("begin", &Value::Null));
    assert_eq!(next(&mut events).await.0, "operator");
    let (first, second) = (next(&mut events).await, next(&mut events).await);
    assert_eq!((first.0.as_str(), second.0.as_str()), ("change", "change"));
    assert_eq!(held(&first.1).len(), CHUNK);
    assert_eq!(held(&second.1), (32..40).collect::<Vec<_>>());
    assert_eq!(next(&mut events).await.0, "complete");
    put(&picture, "s-07", 3);
    assert_eq!(held(&next(&mut events).await.1), [3]);
    picture.send_if_modified(|picture| picture.remove(&picture.names(None)[0].clone()));
    assert_eq!(next(&mut events).await.1["gone"], json!(["batch/s-00"]));
}

/// It never receives what it did not take in time.
#[tokio::test]
async fn a_slow_page_hears_only_of_how_things_are() {
    let (picture, mut events) = look().await;
    put(&picture, "a", 0);
    while next(&mut events).await.0 != "complete" {}
    for round in 1..=1_000 {
        put(&picture, "a", round);
        put(&picture, "b", -round);
    }
    assert_eq!(held(&next(&mut events).await.1), [1_000, -1_000]);
    put(&picture, "a", 7);
    assert_eq!(held(&next(&mut events).await.1), [7]);
}

#[tokio::test]
async fn a_page_is_not_complete_before_all_was_listed() {
    let (picture, mut events) = look().await;
    picture.send_modify(|picture| picture.awaits("all", "being listed"));
    put(&picture, "a", 1);
    next(&mut events).await;
    assert_eq!(next(&mut events).await.1["trouble"], "all: being listed");
    assert_eq!(held(&next(&mut events).await.1), [1]);
    picture.send_if_modified(|picture| picture.knows("all"));
    assert_eq!(next(&mut events).await.1["trouble"], Value::Null);
    assert_eq!(next(&mut events).await.0, "complete");
}

/// An API server that knows every token; `may` answers where its user may look, `None` gives no answer.
async fn asked(may: impl Fn(&str) -> Option<bool> + Send + Sync + 'static) -> MockServer {
    let server = MockServer::start().await;
    let answer = move |request: &Request| {
        let asked: Value = request.body_json().unwrap();
        if asked["kind"] == "TokenReview" {
            let status = json!({
                "authenticated": true,
                "audiences": asked["spec"]["audiences"],
                "user": { "username": "viewer" },
            });
            return ResponseTemplate::new(201).set_body_json(json!({ "status": status }));
        }
        let namespace = &asked["spec"]["resourceAttributes"]["namespace"];
        let Some(allowed) = may(namespace.as_str().unwrap()) else {
            let status = json!({ "kind": "Status", "code": 403, "reason": "Forbidden" });
            return ResponseTemplate::new(403).set_body_json(status);
        };
        let status = json!({ "allowed": allowed });
        ResponseTemplate::new(201).set_body_json(json!({ "status": status }))
    };
    let all = Mock::given(matchers::any()).respond_with(answer);
    all.mount(&server).await;
    server
}

async fn look_by(server: &MockServer) -> (Arc<Shared>, BodyDataStream) {
    let guard = Guard::Asks(Box::new(reviews_by(&server.uri())));
    let token = ("x-consul-semaphore-token", "t");
    let parsed = [token].map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    let headers = parsed.into_iter().collect();
    let pass = guard.admit(&headers, &"127.0.0.1".into()).await.ok();
    look_as(guard, pass.unwrap()).await
}

/// An answer that has begun can't be refused by its status.
#[tokio::test]
async fn an_open_page_hears_why_it_ends() {
    let server = asked(|namespace| namespace.is_empty().then_some(false)).await;
    let (picture, mut events) = look_by(&server).await;
    for kind in ["begin", "operator", "complete"] {
        assert_eq!(next(&mut events).await.0, kind);
    }
    put(&picture, "a", 1);
    let (kind, words) = next(&mut events).await;
    assert_eq!(kind, "refused");
    let words = words.as_str().unwrap();
    assert!(words.contains("config/web/role.yaml"), "{words}");
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn who_may_see_all_is_asked_about_once() {
    let server = asked(|namespace| Some(namespace.is_empty())).await;
    let (picture, mut events) = look_by(&server).await;
    for number in 0..40 {
        put_in(&picture, &format!("team-{number}"), "db", number);
    }
    while next(&mut events).await.0 != "complete" {}
    // One review of the token, and two of the rights to list and watch.
    assert_eq!(server.received_requests().await.unwrap().len(), 3);
}

/// The problems may contain names that not every user of the API server should see.
#[tokio::test]
async fn who_may_see_nothing_hears_nothing_of_the_operator() {
    let server = asked(|namespace| Some(namespace == "team-a")).await;
    let (picture, mut events) = look_by(&server).await;
    picture.send_modify(|picture| picture.awaits("all", "secret-host"));
    let operator = |told: &(String, Value)| {
        assert_eq!(told.0, "operator");
        told.1.to_string()
    };
    next(&mut events).await;
    let told = operator(&next(&mut events).await);
    assert!(
        !told.contains("secret-host") && !told.contains("synced"),
        "{told}"
    );
    assert!(told.contains("some data can't be shown now"), "{told}");
    put_in(&picture, "team-a", "db", 1);
    assert_eq!(held(&next(&mut events).await.1), [1]);
    let told = operator(&next(&mut events).await);
    assert!(told.contains("secret-host"), "{told}");
}
