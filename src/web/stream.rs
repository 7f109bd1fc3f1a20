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
    /// Which namespaces its user may see, as far as was asked.
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
pub(super) fn open(desk: Arc<Desk>, pass: Pass) -> Result<impl IntoResponse, Refusal> {
    let place = desk.places.take(&pass.name()).map_err(Refusal::Full)?;
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
        sees: HashMap::new(),
        check: now + CHECK,
        end: now + LASTS,
    };
    Ok(Sse::new(open.events()).keep_alive(KeepAlive::new().interval(ALIVE)))
}

impl Open {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut open| async move {
            // The browser asks anew, and hears then why it is refused, if it is.
            let event = open.next().await.ok().flatten()?;
            Some((Ok(event), open))
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
        let user = match &self.pass {
            Pass::Bearer { user, .. } => Some(user.name.clone()),
            Pass::Anybody => None,
        };
        let begin = Begin {
            version: telemetry::VERSION,
            commit: telemetry::COMMIT,
            user,
            now: clock::time().as_second(),
        };
        event("begin", &begin)
    }

    /// What this replica says of itself, if that is news.
    fn operator(&mut self) -> Option<Event> {
        let health = &self.desk.telemetry.health;
        let operator = Some(Operator {
            obstacles: health.obstacles(),
            remarks: health.remarks(),
            trouble: self.picture.borrow().trouble(),
        });
        let news = self.told != operator;
        self.told = operator;
        news.then(|| event("operator", &self.told))
    }

    /// Finds out whether its user may see the namespaces that these are in.
    async fn ask_about(&mut self, changes: &Changes) -> Result<(), Refusal> {
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
        self.desk.guard.renew(&mut self.pass).await?;
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
        try_join_all(asked.map(|namespace| guard.shows(&self.pass, namespace))).await
    }

    /// What of this its user may see, if it may see any of it.
    fn change(&self, changes: &Changes) -> Option<Event> {
        let mut change = Change {
            semaphores: Vec::new(),
            gone: Vec::new(),
        };
        for (name, shown) in &changes.semaphores {
            if self.sees.get(&name.namespace) != Some(&true) {
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

    use super::*;
    use crate::{
        api::{ConsulSemaphore, ConsulSemaphoreStatus},
        telemetry::Telemetry,
        web::{Shared, guard::Guard, picture::Name, places::Places, view::View},
    };

    /// An open page, and what it shows.
    fn look() -> (Arc<Shared>, BodyDataStream) {
        let picture = Arc::new(Shared::default());
        let desk = Arc::new(Desk {
            guard: Guard::Open,
            picture: picture.clone(),
            places: Places::default(),
            telemetry: Telemetry::default(),
        });
        let answer = open(desk, Pass::Anybody).ok().unwrap().into_response();
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        (picture, answer.into_body().into_data_stream())
    }

    fn put(picture: &Shared, called: &str, held: i32) {
        let semaphore: ConsulSemaphore = serde_json::from_value(json!({
            "apiVersion": "consul-semaphore.io/v1alpha1",
            "kind": "ConsulSemaphore",
            "metadata": { "name": called, "namespace": "batch" },
            "spec": { "limit": 9 },
            "status": { "held": held, "holders": [{ "session": "\n\ndata: forged" }] },
        }))
        .unwrap();
        let name = Name {
            namespace: "batch".into(),
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
        let (picture, mut events) = look();
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
        let (picture, mut events) = look();
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
        let (picture, mut events) = look();
        picture.send_modify(|picture| picture.awaits("all", "being listed"));
        put(&picture, "a", 1);
        next(&mut events).await;
        assert_eq!(next(&mut events).await.1["trouble"], "all: being listed");
        assert_eq!(held(&next(&mut events).await.1), [1]);
        picture.send_if_modified(|picture| picture.knows("all"));
        assert_eq!(next(&mut events).await.1["trouble"], Value::Null);
        assert_eq!(next(&mut events).await.0, "complete");
    }
}
