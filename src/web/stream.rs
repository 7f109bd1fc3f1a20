//! One open page: server-sent events with what its user may see, and with what changes of that.
//!
//! Nothing is queued for a browser. When it has taken the last event it is told what has changed since,
//! as it is now; so nobody waits for a slow one.
//!
//! | event | data |
//! |---|---|
//! | `begin` | which program this is, for whom, and what time it is here: all is told anew |
//! | `operator` | what this replica says of itself |
//! | `change` | semaphores as they are now, and names of those that are gone |
//! | `complete` | all there is has been told |
//! | `refused` | why no more is told; it is the last one |

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use axum::response::{
    IntoResponse,
    sse::{Event, KeepAlive, Sse},
};
use futures::{Stream, future::try_join_all, stream};
use serde::Serialize;
use tokio::{sync::watch, time::sleep};

use super::{
    Desk,
    guard::{Pass, Refusal},
    picture::{Changes, Picture, Shown},
    places::Place,
};
use crate::{
    clock::{self, Moment},
    telemetry,
};

/// How many semaphores one event tells of at most.
const CHUNK: usize = 32;

/// The least time between two events of what changes.
const PACE: Duration = Duration::from_millis(250);

/// How often this replica is asked how it is.
const LOOK: Duration = Duration::from_secs(2);

/// How often it is asked anew what the user may see. Answers are believed for a shorter time.
const CHECK: Duration = Duration::from_secs(45);

/// A comment as often as this shows that the connection lives.
const ALIVE: Duration = Duration::from_secs(10);

/// When the browser is to ask anew: well before its connection is closed.
const LASTS: Duration = Duration::from_mins(10);

/// A page that is open.
struct Open {
    desk: Arc<Desk>,
    pass: Pass,
    _place: Place,
    picture: watch::Receiver<Picture>,
    /// All up to this change has been told.
    seen: u64,
    begun: bool,
    complete: bool,
    /// Whether the next change is to wait for others.
    pause: bool,
    /// What was last told of this replica.
    told: Option<Operator>,
    /// Whether its user may see all namespaces.
    sees_all: bool,
    /// Which of them else, as far as was asked.
    sees: HashMap<Arc<str>, bool>,
    check: Moment,
    end: Moment,
}

#[derive(Serialize)]
struct Begin<'a> {
    version: &'a str,
    commit: &'a str,
    user: Option<Arc<str>>,
    now: i64,
}

/// What this replica says of itself.
#[derive(Clone, PartialEq, Eq, Serialize)]
struct Operator {
    /// What is in its way.
    obstacles: String,
    /// What else is to be known: who leads.
    remarks: String,
    /// What is in the page's own way.
    trouble: Option<String>,
}

#[derive(Serialize)]
struct Change<'a> {
    semaphores: Vec<&'a Shown>,
    gone: Vec<String>,
}

/// The events for one who was let in.
pub(super) async fn open(desk: Arc<Desk>, pass: Pass) -> Result<impl IntoResponse, Refusal> {
    let place = desk.places.take(pass.user()).map_err(Refusal::Full)?;
    // Who can't be told anything is refused before an answer begins.
    let sees_all = desk.guard.shows(&pass, None).await?;
    let now = Moment::now();
    let open = Open {
        picture: desk.picture.subscribe(),
        desk,
        pass,
        _place: place,
        seen: 0,
        begun: false,
        complete: false,
        pause: false,
        told: None,
        sees_all,
        sees: HashMap::new(),
        check: now + CHECK,
        end: now + LASTS,
    };
    Ok(Sse::new(open.events()).keep_alive(KeepAlive::new().interval(ALIVE)))
}

impl Open {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(Some(self), |open| async move {
            let mut open = open?;
            match open.next().await {
                Ok(event) => Some((Ok(event?), Some(open))),
                Err(refusal) => {
                    tracing::debug!(%refusal, "a page that was open is told no more");
                    Some((Ok(event("refused", &refusal.to_string())), None))
                }
            }
        })
    }

    /// The next event; `None` when all is to begin anew.
    async fn next(&mut self) -> Result<Option<Event>, Refusal> {
        if !std::mem::replace(&mut self.begun, true) {
            return Ok(Some(self.begin()));
        }
        loop {
            // What was there from the beginning is told without a pause.
            if std::mem::take(&mut self.pause) {
                sleep(PACE).await;
            }
            let now = Moment::now();
            if now >= self.end || (now >= self.check && !self.sees_the_same().await?) {
                return Ok(None);
            }
            if let Some(event) = self.operator() {
                return Ok(Some(event));
            }
            let changes = self.picture.borrow_and_update().after(self.seen, CHUNK);
            let Some(changes) = changes else {
                return Ok(None);
            };
            if !changes.semaphores.is_empty() {
                self.seen = changes.number;
                self.ask_about(&changes).await?;
                if let Some(event) = self.change(&changes) {
                    self.pause = self.complete;
                    return Ok(Some(event));
                }
                continue;
            }
            let all_is_known = self
                .told
                .as_ref()
                .is_some_and(|told| told.trouble.is_none());
            if all_is_known && !std::mem::replace(&mut self.complete, true) {
                return Ok(Some(event("complete", &())));
            }
            tokio::select! {
                // The picture lasts as long as the desk.
                _ = self.picture.changed() => {}
                () = sleep(LOOK) => {}
            }
        }
    }

    fn begin(&self) -> Event {
        let begin = Begin {
            version: telemetry::VERSION,
            commit: telemetry::COMMIT,
            user: self.pass.user(),
            now: clock::time().as_second(),
        };
        event("begin", &begin)
    }

    /// What this replica says of itself, if that is news.
    fn operator(&mut self) -> Option<Event> {
        let health = &self.desk.telemetry.health;
        let operator = Operator {
            obstacles: health.obstacles(),
            remarks: health.remarks(),
            trouble: self.picture.borrow().trouble(),
        };
        let sees_any = self.sees_all || self.sees.values().any(|sees| *sees);
        let operator = Some(if sees_any {
            operator
        } else {
            operator.in_brief()
        });
        let news = self.told != operator;
        self.told = operator;
        news.then(|| event("operator", &self.told))
    }

    /// Finds out whether its user may see the namespaces that these are in.
    async fn ask_about(&mut self, changes: &Changes) -> Result<(), Refusal> {
        if self.sees_all {
            return Ok(());
        }
        let names = changes.semaphores.iter();
        let mut new: Vec<_> = names.map(|(name, _)| name.namespace.clone()).collect();
        new.sort_unstable();
        new.dedup();
        new.retain(|namespace| !self.sees.contains_key(namespace));
        let answers = self.ask(&new).await?;
        self.sees.extend(new.into_iter().zip(answers));
        Ok(())
    }

    /// Whether its user is let in, and may see what it might before. Else all is told anew.
    async fn sees_the_same(&mut self) -> Result<bool, Refusal> {
        self.check = Moment::now() + CHECK;
        let guard = &self.desk.guard;
        guard.renew(&mut self.pass).await?;
        if guard.shows(&self.pass, None).await? != self.sees_all {
            return Ok(false);
        }
        let namespaces: Vec<_> = self.sees.keys().cloned().collect();
        for namespaces in namespaces.chunks(CHUNK) {
            let answers = self.ask(namespaces).await?;
            let mut answers = namespaces.iter().zip(answers);
            if answers.any(|(namespace, sees)| self.sees.get(namespace) != Some(&sees)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn ask(&self, namespaces: &[Arc<str>]) -> Result<Vec<bool>, Refusal> {
        let guard = &self.desk.guard;
        let asked = namespaces.iter();
        try_join_all(asked.map(|namespace| guard.shows(&self.pass, Some(namespace)))).await
    }

    /// What of this its user may see, if it may see any of it.
    fn change(&self, changes: &Changes) -> Option<Event> {
        let mut change = Change {
            semaphores: Vec::new(),
            gone: Vec::new(),
        };
        for (name, shown) in &changes.semaphores {
            if !self.sees_all && self.sees.get(&name.namespace) != Some(&true) {
                continue;
            }
            match shown {
                Some(shown) => change.semaphores.push(shown),
                None => change
                    .gone
                    .push(format!("{}/{}", name.namespace, name.name)),
            }
        }
        let empty = change.semaphores.is_empty() && change.gone.is_empty();
        (!empty).then(|| event("change", &change))
    }
}

impl Operator {
    /// The same for one who may see nothing: that there is something, and not what.
    fn in_brief(self) -> Self {
        let is_fine = self.obstacles.is_empty();
        let obstacles = if is_fine {
            ""
        } else {
            "something is in its way"
        };
        Self {
            obstacles: obstacles.to_owned(),
            remarks: String::new(),
            trouble: self.trouble.map(|_| "not all can be shown now".to_owned()),
        }
    }
}

/// JSON has no line breaks but in escapes, so it is one line of an event.
fn event(kind: &str, data: &impl Serialize) -> Event {
    let data = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(kind).data(data)
}

#[cfg(test)]
mod tests {
    use axum::body::BodyDataStream;
    use futures::StreamExt as _;
    use serde_json::{Value, json};
    use wiremock::{Mock, MockServer, Request, ResponseTemplate, matchers};

    use super::*;
    use crate::{
        api::{ConsulSemaphore, ConsulSemaphoreStatus},
        telemetry::Telemetry,
        web::{
            Shared, guard::Guard, picture::Name, places::Places, reviews::tests::reviews_by,
            view::View,
        },
    };

    /// An open page, and what it shows.
    async fn look() -> (Arc<Shared>, BodyDataStream) {
        look_as(Guard::Open, Pass::Anybody).await
    }

    async fn look_as(guard: Guard, pass: Pass) -> (Arc<Shared>, BodyDataStream) {
        let picture = Arc::new(Shared::default());
        let desk = Arc::new(Desk {
            guard,
            picture: picture.clone(),
            places: Places::default(),
            telemetry: Telemetry::default(),
        });
        let answer = open(desk, pass).await.ok().unwrap().into_response();
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
        let name = Name {
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

    /// What it did not take in time it never hears of.
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

    /// An API server that knows every token; `may` answers where its user may look, `None` refuses to say.
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
        let headers = [token].map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let pass = guard.admit(&headers.into_iter().collect()).await.ok();
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
        // Whose the token is, and whether that one may list and watch.
        assert_eq!(server.received_requests().await.unwrap().len(), 3);
    }

    /// What is wrong may name what is no business of everybody whom the API server knows.
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
        assert!(told.contains("not all can be shown now"), "{told}");
        put_in(&picture, "team-a", "db", 1);
        assert_eq!(held(&next(&mut events).await.1), [1]);
        let told = operator(&next(&mut events).await);
        assert!(told.contains("secret-host"), "{told}");
    }
}
